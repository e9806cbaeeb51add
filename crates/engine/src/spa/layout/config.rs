//! Configuration nvlists as OpenZFS writes them: the pool's in the MOS, and one for each leaf's labels.
//!
//! A vdev tree is kept in the MOS's form, as an nvlist. Labels have the same without the entries that only
//! the MOS needs, and only the top-level vdev of the leaf.
//!
//! Format source: `spa_config_generate`, spa_config.c; `vdev_config_generate`, vdev_label.c; OpenZFS 2.3.

use nvpair::{NvList, NvValue};
use zcommon::vdev::PoolState;

use crate::error::{Error, Result};

/// Keys of a vdev in the order in which OpenZFS writes them.
const ORDER: &[&str] = &[
    "type",
    "id",
    "guid",
    "path",
    "devid",
    "phys_path",
    "vdev_enc_sysfs_path",
    "fru",
    "nparity",
    "raidz_expanding",
    "raidz_expand_txgs",
    "draid_ndata",
    "draid_nspares",
    "draid_ngroups",
    "top_guid",
    "spareid",
    "whole_disk",
    "not_present",
    "is_spare",
    "metaslab_array",
    "metaslab_shift",
    "ashift",
    "asize",
    "min_alloc",
    "is_log",
    "non_allocating",
    "removing",
    "DTL",
    "com.delphix:indirect_object",
    "com.delphix:indirect_births",
    "com.delphix:prev_indirect_vdev",
    "create_txg",
    "expansion_time",
    LEAF_ZAP,
    TOP_ZAP,
    ROOT_ZAP,
    RESILVER_DEFER,
    "children",
    "offline",
    "resilver_txg",
    "rebuild_txg",
    "faulted",
    "degraded",
    "removed",
    "unspare",
    "is_hole",
    "aux_state",
    "orig_guid",
];

/// A leaf's own ZAP in the MOS.
#[doc(alias = "ZPOOL_CONFIG_VDEV_LEAF_ZAP")]
pub const LEAF_ZAP: &str = "com.delphix:vdev_zap_leaf";
/// A top-level vdev's ZAP in the MOS.
#[doc(alias = "ZPOOL_CONFIG_VDEV_TOP_ZAP")]
pub(crate) const TOP_ZAP: &str = "com.delphix:vdev_zap_top";
/// The root vdev's ZAP in the MOS.
#[doc(alias = "ZPOOL_CONFIG_VDEV_ROOT_ZAP")]
pub(crate) const ROOT_ZAP: &str = "com.klarasystems:vdev_zap_root";
/// In a leaf's configuration: it waits for a resilver of its own.
#[doc(alias = "ZPOOL_CONFIG_RESILVER_DEFER")]
pub(crate) const RESILVER_DEFER: &str = "com.datto:resilver_defer";
/// Entries that are in the MOS only.
const MOS_ONLY: [&str; 4] = [LEAF_ZAP, TOP_ZAP, ROOT_ZAP, RESILVER_DEFER];

/// Entries of every configuration of a pool besides its vdevs.
#[derive(Debug, Clone)]
pub struct PoolFacts {
    /// On-disk version.
    pub version: u64,
    /// The pool's name.
    pub name: String,
    /// Active, exported or destroyed.
    pub state: PoolState,
    /// The txg that writes the configuration.
    pub txg: u64,
    /// Number of a known damage of the pool; 0: none.
    pub errata: u64,
    /// The property of that name, when set.
    pub comment: Option<String>,
    /// The property of that name, when set.
    pub compatibility: Option<String>,
    /// Host that has it imported; 0 is omitted.
    pub hostid: u64,
    /// The same by name.
    pub hostname: String,
    /// Guids of active features without which the MOS can't be read, in the order of the pool's first use.
    pub features_for_read: Vec<String>,
    /// State of a `zpool split`.
    pub split: Option<SplitNote>,
}

/// The entry of `zpool split` in configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitNote {
    /// The pool is being split: the guids of the leaves that leave, by top-level vdev; 0 for one that stays.
    #[doc(alias = "ZPOOL_CONFIG_SPLIT_LIST")]
    Leaving(Vec<u64>),
    /// The pool was split off the pool of this guid, and has not been imported since.
    #[doc(alias = "ZPOOL_CONFIG_SPLIT_GUID")]
    From(u64),
}

impl SplitNote {
    /// The entry `split` of the MOS's configuration.
    #[doc(alias = "spa_config_splitting")]
    fn list(&self) -> NvList {
        let mut list = NvList::new();
        match self {
            Self::Leaving(leaves) => list.add("split_list", leaves.clone()),
            Self::From(guid) => list.add("split_guid", *guid),
        };
        list
    }
}

impl PoolFacts {
    fn head(&self, pool_guid: u64) -> NvList {
        let mut list = NvList::new();
        list.add("version", self.version).add("name", self.name.as_str());
        list.add("state", self.state as u64).add("txg", self.txg).add("pool_guid", pool_guid);
        list.add("errata", self.errata);
        for (key, value) in [("comment", &self.comment), ("compatibility", &self.compatibility)] {
            if let Some(value) = value {
                list.add(key, value.as_str());
            }
        }
        if self.hostid != 0 {
            list.add("hostid", self.hostid);
        }
        list.add("hostname", self.hostname.as_str());
        list
    }

    fn tail(&self, list: &mut NvList, root: &NvList, tree: NvList) {
        let tops = root.nvlist_array("children").unwrap_or_default();
        let is_hole = |top: &&NvList| top.str("type") == Some("hole");
        let holes: Vec<u64> = tops.iter().filter(is_hole).filter_map(|top| top.u64("id")).collect();
        if !holes.is_empty() {
            list.add("hole_array", holes);
        }
        list.add("vdev_children", count(tops));
        if let Some(SplitNote::From(guid)) = self.split {
            list.add("split_guid", guid);
        }
        list.add("vdev_tree", tree);
        let mut features = NvList::new();
        for guid in &self.features_for_read {
            features.add(guid.as_str(), NvValue::Boolean);
        }
        list.add("features_for_read", features);
    }

    /// The configuration that the pool keeps in its MOS; `root` is its vdev tree.
    pub fn mos_config(&self, root: &NvList) -> NvList {
        let mut list = self.head(root.u64("guid").unwrap_or(0));
        if let Some(split) = &self.split {
            list.add("split", split.list());
        }
        list.add("com.delphix:has_per_vdev_zaps", NvValue::Boolean);
        self.tail(&mut list, root, root.clone());
        list
    }

    /// The configuration in the labels of one leaf.
    ///
    /// # Errors
    /// `NotFound` when the tree has no such leaf.
    pub fn leaf_label(&self, root: &NvList, leaf: u64) -> Result<NvList> {
        let tops = root.nvlist_array("children").unwrap_or_default();
        let found = tops.iter().find_map(|top| find(top, leaf).map(|leaf| (top, leaf)));
        let (top, leaf) = found.ok_or_else(|| Error::not_found(format!("the pool has no vdev {leaf}")))?;
        let mut list = self.head(root.u64("guid").unwrap_or(0));
        list.add("top_guid", top.u64("guid").unwrap_or(0)).add("guid", leaf.u64("guid").unwrap_or(0));
        for key in ["is_spare", "is_log"] {
            if leaf.u64(key).unwrap_or(0) != 0 {
                list.add(key, 1u64);
            }
        }
        self.tail(&mut list, root, label_form(top));
        Ok(list)
    }

    /// A first label: it counts for nothing until a sync has written the real one.
    ///
    /// # Errors
    /// As [`PoolFacts::leaf_label`].
    pub(crate) fn first_label(&self, root: &NvList, leaf: u64, create_txg: u64) -> Result<NvList> {
        let mut list = Self { txg: 0, ..self.clone() }.leaf_label(root, leaf)?;
        list.add("create_txg", create_txg);
        Ok(list)
    }

    /// The label of a spare, from its entry in the MOS's list of spares.
    pub fn spare_label(&self, spare: &NvList) -> NvList {
        self.aux_label(PoolState::Spare, spare)
    }

    /// The label of a cache device, from its entry in the MOS's list.
    pub fn cache_label(&self, device: &NvList) -> NvList {
        self.aux_label(PoolState::L2cache, device)
    }

    fn aux_label(&self, state: PoolState, entry: &NvList) -> NvList {
        let mut list = NvList::new();
        list.add("version", self.version)
            .add("state", state as u64)
            .add("guid", entry.u64("guid").unwrap_or(0));
        if state == PoolState::L2cache {
            list.add("ashift", entry.u64("ashift").unwrap_or(0));
        }
        for key in ["path", "devid", "phys_path"] {
            if let Some(value) = entry.get(key) {
                list.add(key, value.clone());
            }
        }
        list
    }
}

/// A vdev and all below it as labels have them.
pub(crate) fn label_form(vdev: &NvList) -> NvList {
    let mut list = NvList::with_flags(vdev.flags());
    for pair in vdev.iter().filter(|pair| !MOS_ONLY.iter().any(|key| pair.name.as_bytes() == key.as_bytes()))
    {
        list.push(pair.name.clone(), pair.value.clone());
    }
    if let Some(NvValue::ListArray(children)) = list.get_mut("children") {
        for child in children {
            *child = label_form(child);
        }
    }
    list
}

/// Puts the keys of a vdev and all below it into OpenZFS's order, after some were added. Keys that it has no place
/// for come last.
pub fn put_in_order(vdev: &mut NvList) {
    let rank = |name: &[u8]| ORDER.iter().position(|key| key.as_bytes() == name).unwrap_or(ORDER.len());
    let mut pairs: Vec<_> = vdev.iter().cloned().collect();
    pairs.sort_by_key(|pair| rank(pair.name.as_bytes()));
    let mut list = NvList::with_flags(vdev.flags());
    pairs.into_iter().for_each(|pair| list.push(pair.name, pair.value));
    if let Some(NvValue::ListArray(children)) = list.get_mut("children") {
        children.iter_mut().for_each(put_in_order);
    }
    *vdev = list;
}

/// Changes the vdev of this guid, wherever it stands in the tree; false when there is none. Afterwards the tree is
/// in order again.
pub(crate) fn edit(root: &mut NvList, guid: u64, change: &mut dyn FnMut(&mut NvList)) -> bool {
    let found = edit_below(root, guid, change);
    put_in_order(root);
    found
}

fn edit_below(vdev: &mut NvList, guid: u64, change: &mut dyn FnMut(&mut NvList)) -> bool {
    if vdev.u64("guid") == Some(guid) {
        change(vdev);
        return true;
    }
    match vdev.get_mut("children") {
        Some(NvValue::ListArray(children)) => {
            children.iter_mut().any(|child| edit_below(child, guid, change))
        }
        _ => false,
    }
}

/// The vdev of this guid at or below `vdev`.
pub fn find(vdev: &NvList, guid: u64) -> Option<&NvList> {
    if vdev.u64("guid") == Some(guid) {
        return Some(vdev);
    }
    vdev.nvlist_array("children").unwrap_or_default().iter().find_map(|child| find(child, guid))
}

/// The vdev of this guid and its ancestors up to `vdev`; empty when it isn't there.
pub(crate) fn line(vdev: &NvList, guid: u64) -> Vec<&NvList> {
    if vdev.u64("guid") == Some(guid) {
        return vec![vdev];
    }
    let children = vdev.nvlist_array("children").unwrap_or_default().iter();
    let mut found = children.map(|child| line(child, guid)).find(|line| !line.is_empty()).unwrap_or_default();
    if !found.is_empty() {
        found.push(vdev);
    }
    found
}

/// The value in an uberblock that reveals a missing device: the sum of all guids, the pool's own included.
#[doc(alias = "vdev_guid_sum")]
pub fn guid_sum(vdev: &NvList) -> u64 {
    let children = vdev.nvlist_array("children").unwrap_or_default();
    children.iter().map(guid_sum).fold(vdev.u64("guid").unwrap_or(0), u64::wrapping_add)
}

fn count(list: &[NvList]) -> u64 {
    u64::try_from(list.len()).unwrap_or(u64::MAX)
}
