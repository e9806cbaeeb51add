//! Which features a pool uses, and whether reading it is safe.

use ondisk::ObjectType;

use crate::dmu::Objset;
use crate::error::{Error, Kind, Result};
use crate::zap::Zap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pool's features as its MOS records them.
#[derive(Debug, Clone, Default)]
pub struct PoolFeatures {
    /// Reference counts of features that reading needs, by guid.
    pub for_read: BTreeMap<String, u64>,
    /// Reference counts of features that only writing needs, by guid.
    pub for_write: BTreeMap<String, u64>,
    /// Descriptions that the writer left, by guid.
    pub descriptions: BTreeMap<String, String>,
    /// Txgs in which features were enabled, by guid.
    pub enabled_txg: BTreeMap<String, u64>,
}

impl PoolFeatures {
    /// Reads the feature ZAPs that the pool directory names. Pools before version 5000 have none.
    pub fn load(mos: &Arc<Objset>, directory: &Zap) -> Result<Self> {
        let numbers = |name: &str| -> Result<BTreeMap<String, u64>> {
            let Some(zap) = open(mos, directory, name)? else { return Ok(BTreeMap::new()) };
            let entries = zap.to_vec()?;
            Ok(entries.iter().filter_map(|e| Some((e.name_lossy(), e.value.first()?))).collect())
        };
        let mut features = Self {
            for_read: numbers("features_for_read")?,
            for_write: numbers("features_for_write")?,
            descriptions: BTreeMap::new(),
            enabled_txg: numbers("feature_enabled_txg").unwrap_or_default(),
        };
        // Descriptions are for messages only: a damaged list must not stop anything.
        if let Ok(Some(zap)) = open(mos, directory, "feature_descriptions") {
            features.descriptions =
                zap.entries().flatten().map(|e| (e.name_lossy(), e.value.string())).collect();
        }
        Ok(features)
    }

    /// The reference count, `None` when the feature is disabled.
    pub fn count(&self, guid: &str) -> Option<u64> {
        self.for_read.get(guid).or_else(|| self.for_write.get(guid)).copied()
    }

    /// True when the feature is in use.
    pub fn is_active(&self, guid: &str) -> bool {
        self.count(guid).is_some_and(|n| n > 0)
    }

    /// Features in use that reading needs and this build does not know.
    pub fn unreadable(&self) -> Vec<&str> {
        unknown(&self.for_read).collect()
    }

    /// Features in use that writing needs and this build does not know. One that is enabled and was never used changes
    /// nothing on disk.
    pub fn unwritable(&self) -> Vec<&str> {
        unknown(&self.for_read).chain(unknown(&self.for_write)).collect()
    }

    /// Refuses a pool that uses an unknown feature which reading needs.
    pub fn check(&self) -> Result<()> {
        let unknown = self.unreadable();
        if unknown.is_empty() {
            return Ok(());
        }
        let describe = |guid: &&str| match self.descriptions.get(*guid) {
            Some(text) if !text.is_empty() => format!("{guid} ({text})"),
            _ => (*guid).to_owned(),
        };
        let list: Vec<String> = unknown.iter().map(describe).collect();
        let what = format!("the pool uses features that this build can't read: {}", list.join(", "));
        Err(Error::new(Kind::Unsupported, what))
    }
}

fn unknown(features: &BTreeMap<String, u64>) -> impl Iterator<Item = &str> {
    let is_unknown = |guid: &str| zcommon::features::Feature::from_guid(guid).is_none();
    let in_use = features.iter().filter(|(_, count)| **count > 0).map(|(guid, _)| guid.as_str());
    in_use.filter(move |guid| is_unknown(guid))
}

fn open(mos: &Arc<Objset>, directory: &Zap, name: &str) -> Result<Option<Zap>> {
    let Some(number) = directory.u64(name)?.filter(|&n| n != 0) else { return Ok(None) };
    let object = mos.object(number)?;
    if object.dnode.object_type == ObjectType::NONE {
        return Ok(None);
    }
    Zap::open(&object).map(Some)
}
