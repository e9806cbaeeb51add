//! Which settings are in force on a dataset, and where each comes from.
//!
//! The dataset's own ZAP is looked at first, then its directory's, then each ancestor's; the first one that
//! has a property decides. An ancestor's counts only for properties that are inherited; a snapshot inherits
//! all but its own settings from its file system in that way, restricted to properties that snapshots have.

use std::collections::BTreeMap;

use super::PropValue;
use super::inherit::{RECEIVED, inherit_entry};
use crate::dsl::Dataset;
use crate::dsl::lookup::ReadNames;
use crate::error::Result;
use crate::zap::Zap;

/// Where a setting was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setpoint {
    /// On the dataset of this name: the dataset itself, or the one it inherits from.
    Dataset(String),
    /// It came with a stream that the dataset itself received.
    Received,
}

/// A property's value in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The value.
    pub value: PropValue,
    /// Where it was set.
    pub setpoint: Setpoint,
}

/// The settings in force on a dataset, in the order in which OpenZFS finds them.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    order: Vec<String>,
    map: BTreeMap<String, Setting>,
    received: BTreeMap<String, PropValue>,
}

/// Facts of the property tables, which this module does not know.
#[derive(Debug, Clone, Copy)]
pub struct PropRules {
    /// Whether a property of this name passes from parent to child. User properties do.
    pub is_inherited: fn(&str) -> bool,
    /// Whether snapshots have it. User properties they have.
    pub is_for_snapshots: fn(&str) -> bool,
}

impl Settings {
    /// Reads the settings of `dataset`.
    pub fn of(dataset: &Dataset, rules: PropRules) -> Result<Self> {
        let mut found = Self::default();
        let dsl = &dataset.dsl;
        let snapshot = dataset.is_snapshot();
        if let Some(zap) = dsl.zap(dataset.phys.props_obj)? {
            found.collect(&zap, &dataset.name, Place { own: true, snapshot, rules })?;
        }
        let mut name = dataset.name.split('@').next().unwrap_or_default();
        let mut own = !snapshot;
        for step in dsl.ancestors(dataset.phys.dir_obj) {
            let (_, dir) = step.map_err(|e| e.in_dataset(&dataset.name))?;
            if let Some(zap) = dsl.zap(dir.props_zapobj)? {
                found.collect(&zap, name, Place { own, snapshot, rules })?;
            }
            own = false;
            name = name.rsplit_once('/').map_or("", |(up, _)| up);
        }
        Ok(found)
    }

    /// The setting of this name.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.map.get(name)
    }

    /// The value received with a stream for this name, also where a local setting hides it.
    pub fn received(&self, name: &str) -> Option<&PropValue> {
        self.received.get(name)
    }

    /// All settings in the order in which they were found.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.order.iter().filter_map(|name| Some((name.as_str(), self.map.get(name)?)))
    }

    fn collect(&mut self, zap: &Zap, at: &str, place: Place) -> Result<()> {
        let entries: Vec<(String, PropValue)> =
            zap.to_vec()?.iter().map(|e| (e.name_lossy(), PropValue::from_zap(&e.value))).collect();
        let exists = |name: &str| entries.iter().any(|(n, _)| n == name);
        for (entry, value) in &entries {
            let (name, received) = match entry.find('$').map(|i| entry.split_at(i)) {
                None => (entry.as_str(), false),
                Some((name, RECEIVED)) => (name, true),
                // "Inherited" hides the received value, handled below; other suffixes come from newer
                // versions.
                Some(_) => continue,
            };
            if received && place.own {
                self.received.insert(name.to_owned(), value.clone());
            }
            let hidden = received && (exists(name) || exists(&inherit_entry(name)));
            if hidden || !place.admits(name) || self.map.contains_key(name) {
                continue;
            }
            let setpoint =
                if received && place.own { Setpoint::Received } else { Setpoint::Dataset(at.to_owned()) };
            self.order.push(name.to_owned());
            self.map.insert(name.to_owned(), Setting { value: value.clone(), setpoint });
        }
        Ok(())
    }
}

/// How a ZAP relates to the dataset whose settings are wanted.
#[derive(Clone, Copy)]
struct Place {
    own: bool,
    snapshot: bool,
    rules: PropRules,
}

impl Place {
    fn admits(&self, name: &str) -> bool {
        let inherited = self.own || (self.rules.is_inherited)(name);
        inherited && (!self.snapshot || (self.rules.is_for_snapshots)(name))
    }
}
