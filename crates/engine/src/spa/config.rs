//! The configuration of a pool that is being written: as the MOS keeps it, and as labels repeat it.
//!
//! Source: `spa_config_generate`, `vdev_config_generate`, OpenZFS 2.3.

use nvpair::{NvList, NvValue};

use super::space_store::set;
use crate::error::{Error, Result};

/// What the MOS says of a vdev and labels don't.
const ONLY_IN_MOS: [&str; 3] =
    ["com.delphix:vdev_zap_leaf", "com.delphix:vdev_zap_top", "com.klarasystems:vdev_zap_root"];

/// State of a pool, as labels and the MOS give it.
#[doc(alias = "pool_state_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum PoolState {
    /// In use, or not cleanly exported.
    Active = 0,
    /// Exported.
    Exported = 1,
    /// Destroyed.
    Destroyed = 2,
}

/// The configuration and whether the disk has it.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    list: NvList,
    dirty: bool,
}

impl PoolConfig {
    /// From the MOS's list, or that of a new pool (which is dirty).
    pub fn new(list: NvList, dirty: bool) -> Self {
        Self { list, dirty }
    }

    /// The whole list.
    pub fn list(&self) -> &NvList {
        &self.list
    }

    /// The list for change; it is then dirty.
    pub fn change(&mut self) -> &mut NvList {
        self.dirty = true;
        &mut self.list
    }

    /// Whether something changed since the last time this was asked.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// Whether something changed that the disk does not have.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// A top-level vdev's list.
    pub fn top(&self, id: u64) -> Option<&NvList> {
        let tops = self.list.nvlist("vdev_tree")?.nvlist_array("children")?;
        tops.iter().find(|top| top.u64("id") == Some(id))
    }

    /// Changes a top-level vdev's list.
    pub fn change_top(&mut self, id: u64, work: impl FnOnce(&mut NvList)) {
        let Some(NvValue::List(tree)) = self.change().get_mut("vdev_tree") else { return };
        let Some(NvValue::ListArray(tops)) = tree.get_mut("children") else { return };
        if let Some(top) = tops.iter_mut().find(|top| top.u64("id") == Some(id)) {
            work(top);
        }
    }

    /// Changes every vdev's list, the root's first.
    pub fn change_all(&mut self, work: &mut dyn FnMut(&mut NvList, usize) -> Result<()>) -> Result<()> {
        match self.change().get_mut("vdev_tree") {
            Some(NvValue::List(tree)) => change_below(tree, 0, work),
            _ => Err(Error::corrupt("the configuration has no vdev tree")),
        }
    }

    /// As it is stored in the MOS with `txg`.
    pub fn stored(&self, txg: u64, state: PoolState, in_labels: &[&str]) -> NvList {
        let mut list = self.list.clone();
        set(&mut list, "txg", txg);
        set(&mut list, "state", state as u64);
        set_features(&mut list, in_labels);
        list
    }

    /// What the label of leaf `guid` says with `txg`. `None` when no such leaf is in the tree.
    pub fn label(&self, guid: u64, txg: u64, state: PoolState, in_labels: &[&str]) -> Option<NvList> {
        let tops = self.list.nvlist("vdev_tree")?.nvlist_array("children")?;
        let top = tops.iter().find(|top| has_leaf(top, guid))?;
        let mut label = NvList::new();
        for pair in self.list.iter() {
            let name = pair.name.as_str().unwrap_or_default();
            match name {
                "vdev_tree" | "features_for_read" | "com.delphix:has_per_vdev_zaps" | "vdev_children" => {}
                _ => label.push(pair.name.clone(), pair.value.clone()),
            }
        }
        set(&mut label, "txg", txg);
        set(&mut label, "state", state as u64);
        set(&mut label, "top_guid", top.u64("guid").unwrap_or(0));
        set(&mut label, "guid", guid);
        if top.u64("is_log").unwrap_or(0) != 0 {
            label.add("is_log", 1u64);
        }
        set(&mut label, "vdev_children", u64::try_from(tops.len()).unwrap_or(u64::MAX));
        label.add("vdev_tree", for_label(top));
        set_features(&mut label, in_labels);
        Some(label)
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

fn has_leaf(list: &NvList, guid: u64) -> bool {
    match list.nvlist_array("children") {
        Some(children) => children.iter().any(|child| has_leaf(child, guid)),
        None => list.u64("guid") == Some(guid),
    }
}

fn for_label(vdev: &NvList) -> NvList {
    let mut list = vdev.clone();
    for name in ONLY_IN_MOS {
        list.remove(name);
    }
    if let Some(NvValue::ListArray(children)) = list.get_mut("children") {
        for child in children {
            *child = for_label(child);
        }
    }
    list
}

fn set_features(list: &mut NvList, in_labels: &[&str]) {
    list.remove("features_for_read");
    let mut features = NvList::new();
    for guid in in_labels {
        features.add(*guid, NvValue::Boolean);
    }
    list.add("features_for_read", features);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> PoolConfig {
        let mut leaf = NvList::new();
        leaf.add("type", "file").add("id", 0u64).add("guid", 5u64).add("com.delphix:vdev_zap_leaf", 9u64);
        let mut root = NvList::new();
        root.add("type", "root").add("guid", 1u64).add("children", NvValue::ListArray(vec![leaf]));
        let mut list = NvList::new();
        list.add("name", "tank").add("txg", 4u64).add("vdev_tree", root);
        PoolConfig::new(list, false)
    }

    #[test]
    fn a_label_tells_of_its_own_top_only_and_not_of_the_mos() {
        let label = config().label(5, 77, PoolState::Active, &["a:b"]).unwrap();
        let top = label.nvlist("vdev_tree").unwrap();
        assert_eq!(
            (label.u64("txg"), label.u64("top_guid"), label.u64("guid")),
            (Some(77), Some(5), Some(5))
        );
        assert!(top.contains("guid") && !top.contains("com.delphix:vdev_zap_leaf"));
        assert!(label.nvlist("features_for_read").unwrap().contains("a:b"));
        assert!(config().label(6, 77, PoolState::Active, &[]).is_none());
    }

    #[test]
    fn changes_make_it_dirty() {
        let mut config = config();
        config.change_top(0, |top| set(top, "metaslab_array", 30));
        assert_eq!(config.top(0).and_then(|t| t.u64("metaslab_array")), Some(30));
        assert!(config.take_dirty() && !config.take_dirty());
    }
}
