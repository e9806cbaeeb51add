//! The configuration of a pool that is being written: its facts and its vdev tree, and whether the disk has them.

use std::collections::BTreeSet;

use nvpair::{NvList, NvValue};
use zcommon::vdev::PoolState;

use super::layout::config::{PoolFacts, put_in_order};
use super::space_store::set;
use crate::error::{Error, Result};

/// Facts, vdev tree, and whether something changed.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    facts: PoolFacts,
    root: NvList,
    dirty: bool,
    /// Top-level vdevs that are closed to allocation in memory only.
    passive: BTreeSet<u64>,
}

impl PoolConfig {
    /// A new pool's: the disk has nothing of it yet.
    pub(crate) fn new(facts: PoolFacts, root: NvList) -> Self {
        Self { facts, root, dirty: true, passive: BTreeSet::new() }
    }

    /// From the list that the MOS keeps.
    pub(crate) fn from_mos(list: &NvList) -> Result<Self> {
        let text = |name: &str| list.str(name).map(str::to_owned);
        let state = match list.u64("state") {
            Some(1) => PoolState::Exported,
            Some(2) => PoolState::Destroyed,
            _ => PoolState::Active,
        };
        let root =
            list.nvlist("vdev_tree").ok_or_else(|| Error::corrupt("the configuration has no vdev tree"))?;
        let facts = PoolFacts {
            version: list.u64("version").unwrap_or(0),
            name: text("name").unwrap_or_default(),
            state,
            txg: list.u64("txg").unwrap_or(0),
            errata: list.u64("errata").unwrap_or(0),
            comment: text("comment"),
            compatibility: text("compatibility"),
            hostid: list.u64("hostid").unwrap_or(0),
            hostname: text("hostname").unwrap_or_default(),
            features_for_read: Vec::new(),
            // Only the import that wrote it can use it.
            split: None,
        };
        Ok(Self { facts, root: root.clone(), dirty: false, passive: BTreeSet::new() })
    }

    /// The entries that are not about vdevs.
    pub fn facts(&self) -> &PoolFacts {
        &self.facts
    }

    /// Changes the facts.
    pub(crate) fn change_facts(&mut self, work: impl FnOnce(&mut PoolFacts)) {
        self.dirty = true;
        work(&mut self.facts);
    }

    /// The vdev tree.
    pub fn root(&self) -> &NvList {
        &self.root
    }

    /// Changes the vdev tree.
    pub fn change_root(&mut self, work: impl FnOnce(&mut NvList)) {
        self.dirty = true;
        work(&mut self.root);
        put_in_order(&mut self.root);
    }

    /// Whether something changed since [`PoolConfig::clean`].
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Marks the configuration as written; returns whether it was dirty.
    pub(crate) fn clean(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// A top-level vdev's list.
    pub(crate) fn top(&self, id: u64) -> Option<&NvList> {
        self.root.nvlist_array("children")?.iter().find(|top| top.u64("id") == Some(id))
    }

    /// Closes a top-level vdev to allocation, or opens it. The state is not recorded: after a crash the vdev is open.
    #[doc(alias("vdev_passivate", "vdev_activate"))]
    pub(crate) fn set_passive(&mut self, id: u64, passive: bool) {
        match passive {
            true => self.passive.insert(id),
            false => self.passive.remove(&id),
        };
    }

    /// Whether a top-level vdev is closed to allocation in memory.
    pub(crate) fn is_passive(&self, id: u64) -> bool {
        self.passive.contains(&id)
    }

    /// Sets a number of a top-level vdev.
    pub(crate) fn set_top(&mut self, id: u64, name: &str, value: u64) {
        self.change_root(|root| {
            let Some(NvValue::ListArray(tops)) = root.get_mut("children") else { return };
            if let Some(top) = tops.iter_mut().find(|top| top.u64("id") == Some(id)) {
                set(top, name, value);
            }
        });
    }

    /// Changes every vdev's list, the root's first; `work` gets the depth, 0 for the root.
    pub(crate) fn change_all(
        &mut self,
        work: &mut dyn FnMut(&mut NvList, usize) -> Result<()>,
    ) -> Result<()> {
        self.dirty = true;
        change_below(&mut self.root, 0, work)?;
        put_in_order(&mut self.root);
        Ok(())
    }

    /// The facts as `txg` writes them.
    pub fn facts_of(&self, txg: u64, in_labels: &[&str]) -> PoolFacts {
        let features_for_read = in_labels.iter().map(|&guid| guid.to_owned()).collect();
        PoolFacts { txg, features_for_read, ..self.facts.clone() }
    }
}

fn change_below(
    list: &mut NvList,
    depth: usize,
    work: &mut dyn FnMut(&mut NvList, usize) -> Result<()>,
) -> Result<()> {
    work(list, depth)?;
    match list.get_mut("children") {
        Some(NvValue::ListArray(children)) => {
            children.iter_mut().try_for_each(|child| change_below(child, depth + 1, work))
        }
        _ => Ok(()),
    }
}
