//! Which settings are in force on a dataset, and where each comes from.
//!
//! The dataset's own ZAP is looked at first, then its directory's, then each ancestor's; the first one that
//! has a property decides. An ancestor's counts only for properties that are inherited; a snapshot inherits
//! all but its own settings from its file system in that way, restricted to properties that snapshots have.

use std::collections::BTreeMap;

use super::PropValue;
use crate::dsl::{Dataset, Dir, MAX_NESTING};
use crate::error::{Error, Kind, Result};
use crate::zap::Zap;

/// End of the name of an entry that came with a stream.
#[doc(alias = "ZPROP_RECVD_SUFFIX")]
const RECEIVED: &str = "$recvd";
/// Suffix of the name of an entry that means "inherited, regardless of a received value".
#[doc(alias = "ZPROP_INHERIT_SUFFIX")]
const INHERIT: &str = "$inherit";

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
        let mut dir = dataset.dir()?;
        let mut own = !snapshot;
        for _ in 0..=MAX_NESTING {
            if let Some(zap) = dsl.zap(dir.phys.props_zapobj)? {
                found.collect(&zap, &dir.name, Place { own, snapshot, rules })?;
            }
            own = false;
            match parent(&dir)? {
                Some(up) => dir = up,
                None => return Ok(found),
            }
        }
        Err(Error::new(Kind::Loop, "the dataset's ancestors go in circles").in_dataset(&dataset.name))
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
            let hidden = received && (exists(name) || exists(&format!("{name}{INHERIT}")));
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

/// The directory above; `None` at the root.
pub(super) fn parent(dir: &Dir) -> Result<Option<Dir>> {
    if dir.phys.parent_obj == 0 {
        return Ok(None);
    }
    let name = dir.name.rsplit_once('/').map_or("", |(up, _)| up);
    Dir::open(&dir.dsl, dir.phys.parent_obj, name.to_owned()).map(Some)
}
