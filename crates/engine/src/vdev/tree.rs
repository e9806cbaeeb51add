//! The vdev tree of an open pool: every leaf with its device, every top-level vdev as a read target.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use blkdev::Device;
use parking_lot::RwLock;

use super::config::{Kind, VdevConfig};
use super::draid::DraidGeometry;
use super::health::recorded;
use super::indirect::{Hop, IndirectMapping, Segment, follow};
use super::leaf::Leaf;
use super::least::{is_short, least_sizes, short_leaf};
use super::raidz::RaidzGeometry;
use super::top::{Side, Top, VdevLayout};
use crate::error::{Error, Result};

/// Most top-level vdevs.
const MAX_TOPS: u64 = 1 << 16;

/// Devices found, by leaf guid.
pub type Devices = HashMap<u64, Device>;

/// Inputs of a change of the tree besides the configuration.
#[derive(Debug, Clone, Default)]
pub struct TreeChange {
    /// Devices of new leaves.
    pub(crate) devices: Devices,
    /// Leaves whose guid or path changes: the new guid, and the one in the old tree.
    pub(crate) renamed: HashMap<u64, u64>,
    /// Mappings of top-level vdevs that become indirect, by number.
    pub(crate) mappings: HashMap<u64, Arc<IndirectMapping>>,
    /// Position of a raidz expansion (`ub_raidz_reflow_info`), for tops that are rebuilt.
    pub(crate) reflow: Option<u64>,
    /// Whether space is counted without parity (`DMU_POOL_DEFLATE`); `None`: as in the known tree.
    pub(crate) deflates: Option<bool>,
    /// Leaves are out of use whose devices have become too short: at their end they would be written where their vdev has
    /// data.
    pub(crate) refuse_short: bool,
}

/// The tree of one pool.
#[derive(Debug)]
pub struct Tree {
    /// As configured.
    pub config: VdevConfig,
    tops: Vec<Option<Arc<Top>>>,
    /// Ordered, so that operations on all leaves run in the same order in each run of a seed.
    leaves: BTreeMap<u64, Arc<Leaf>>,
    deflates: bool,
}

impl Tree {
    /// Builds the tree of `config` (its root). Leaves already open in `known` are kept, with their
    /// queues and counters; others get their device from `devices`, or none. So is where removed vdevs went.
    pub(crate) fn build(
        config: VdevConfig,
        known: Option<&Tree>,
        devices: &Devices,
        reflow: Option<u64>,
    ) -> Result<Self> {
        Self::changed(
            config,
            known,
            &TreeChange { devices: devices.clone(), reflow, ..TreeChange::default() },
        )
    }

    /// As [`Tree::build`], after a change of the tree. A top-level vdev of `known` that is the same in
    /// `config` is kept; one that has changed shares its count of bytes in flight with its successor.
    ///
    /// # Errors
    /// When a vdev's configuration is invalid.
    pub fn changed(config: VdevConfig, known: Option<&Tree>, change: &TreeChange) -> Result<Self> {
        let (devices, reflow) = (&change.devices, change.reflow);
        let deflates = change.deflates.unwrap_or_else(|| known.is_none_or(|tree| tree.deflates));
        let mut leaves = BTreeMap::new();
        let least = if change.refuse_short { least_sizes(&config) } else { HashMap::new() };
        for vdev in config.walk().into_iter().filter(|v| v.kind.is_leaf()) {
            let leaf = known.and_then(|tree| tree.known_leaf(vdev, &change.renamed));
            let leaf = leaf.unwrap_or_else(|| open_leaf(vdev, devices));
            let leaf = match least.get(&vdev.guid) {
                Some(least) if is_short(&leaf, *least) => short_leaf(&leaf),
                _ => leaf,
            };
            if let Some(health) = recorded(vdev, leaf.device().is_some()) {
                leaf.set_health(health);
            }
            leaves.insert(vdev.guid, leaf);
        }
        let mut tops = Vec::new();
        for child in &config.children {
            if child.id >= MAX_TOPS {
                return Err(Error::corrupt(format!("top-level vdev number {} is out of bounds", child.id)));
            }
            let slot = usize::try_from(child.id).unwrap_or(usize::MAX);
            if tops.len() <= slot {
                tops.resize(slot + 1, None);
            }
            let before = known.and_then(|tree| tree.top(child.id));
            if let Some(same) = before.as_ref().filter(|top| {
                known.is_some_and(|tree| tree.has(child) && tree.deflates == deflates)
                    && top.leaves().all(|leaf| is_one_of(&leaf, &leaves))
            }) {
                if let Some(top) = tops.get_mut(slot) {
                    *top = Some(Arc::clone(same));
                }
                continue;
            }
            let layout = match layout(child, reflow)? {
                VdevLayout::Indirect(_) => {
                    let known = || before.as_ref().and_then(|top| top.mapping());
                    VdevLayout::Indirect(RwLock::new(change.mappings.get(&child.id).cloned().or_else(known)))
                }
                VdevLayout::Raidz(geometry) if child.expanding && !geometry.is_reflowing() => {
                    let state = before.as_ref().and_then(|top| top.reflow());
                    let lost =
                        || Error::corrupt("the state of the expansion is not known").on_vdev(&child.name());
                    VdevLayout::Raidz(geometry.resumed(state.ok_or_else(lost)?))
                }
                layout => layout,
            };
            let nested = nested(child, &leaves)?;
            let find = |guid| match nested.get(&guid) {
                Some(top) => Some(Side::Nested(Arc::clone(top))),
                None => leaves.get(&guid).cloned().map(Side::Leaf),
            };
            if let Some(top) = tops.get_mut(slot) {
                *top = Some(Top::new(child, layout, &find, before.as_deref(), deflates));
            }
        }
        Ok(Self { config, tops, leaves, deflates })
    }

    /// The open leaf that a configuration means, under the guid and path that it has there.
    fn known_leaf(&self, vdev: &VdevConfig, renamed: &HashMap<u64, u64>) -> Option<Arc<Leaf>> {
        let old = self.leaves.get(renamed.get(&vdev.guid).unwrap_or(&vdev.guid))?;
        let path = match renamed.contains_key(&vdev.guid) {
            true => vdev.path.clone().unwrap_or_else(|| old.path.clone()),
            false => old.path.clone(),
        };
        Some(if old.guid == vdev.guid && old.path == path {
            Arc::clone(old)
        } else {
            old.renamed(vdev.guid, path)
        })
    }

    /// Whether this tree has the same top-level vdev.
    fn has(&self, top: &VdevConfig) -> bool {
        self.config.children.iter().any(|own| own.id == top.id && is_alike(own, top))
    }

    /// The same vdevs with another one in the place of the top-level vdev of its number. It has the same leaves.
    #[must_use]
    pub(crate) fn with_top(&self, top: &Arc<Top>) -> Self {
        let mut tops = self.tops.clone();
        if let Some(slot) = usize::try_from(top.id).ok().and_then(|id| tops.get_mut(id)) {
            *slot = Some(Arc::clone(top));
        }
        Self { config: self.config.clone(), tops, leaves: self.leaves.clone(), deflates: self.deflates }
    }

    /// Whether space is counted without parity.
    #[doc(alias = "spa_deflate")]
    pub(crate) fn deflates(&self) -> bool {
        self.deflates
    }

    /// The pieces of a range on vdevs that are there: the range itself, unless its vdev was removed.
    ///
    /// # Errors
    /// When a mapping is not known or damaged, or leads too far.
    pub(crate) fn pieces(&self, range: Segment) -> Result<Vec<Segment>> {
        follow(range, |segment| match self.top(segment.vdev).filter(|top| top.is_removed()) {
            None => Ok(Hop::Here),
            Some(top) => top.moved(segment.offset, segment.len).map(Hop::Moved),
        })
    }

    /// The top-level vdev of that number.
    pub fn top(&self, id: u64) -> Option<Arc<Top>> {
        self.tops.get(usize::try_from(id).ok()?)?.clone()
    }

    /// All top-level vdevs.
    pub fn tops(&self) -> impl Iterator<Item = &Arc<Top>> {
        self.tops.iter().flatten()
    }

    /// The top-level vdev that a leaf belongs to.
    pub fn top_of(&self, leaf: u64) -> Option<Arc<Top>> {
        self.tops().find(|top| top.leaves().any(|found| found.guid == leaf)).cloned()
    }

    /// The leaf of that guid.
    pub fn leaf(&self, guid: u64) -> Option<&Arc<Leaf>> {
        self.leaves.get(&guid)
    }

    /// All leaves, by guid.
    pub fn leaves(&self) -> impl Iterator<Item = &Arc<Leaf>> {
        self.leaves.values()
    }

    /// Whether [`Tree::dirty_dtls`] would return any.
    pub(crate) fn has_dirty_dtls(&self) -> bool {
        self.leaves.values().any(|leaf| leaf.has_changed_dtl())
    }

    /// Leaves whose DTL has changed since the last call, by guid, with all that each of them lacks.
    #[doc(alias = "vdev_dtl_sync")]
    pub(crate) fn dirty_dtls(&self) -> Vec<(u64, Vec<(u64, u64)>)> {
        let changed = |leaf: &Arc<Leaf>| Some((leaf.guid, leaf.take_changed_dtl()?));
        let mut all: Vec<_> = self.leaves.values().filter_map(changed).collect();
        all.sort_unstable_by_key(|&(guid, _)| guid);
        all
    }

    /// A name for people: the leaf's path, or the top-level vdev's name.
    pub fn leaf_name(&self, leaf: u64, top: u64) -> String {
        match (self.leaves.get(&leaf), self.top(top)) {
            (Some(leaf), _) => leaf.path.clone(),
            (None, Some(top)) => top.name.clone(),
            (None, None) => format!("vdev {top}"),
        }
    }
}

/// Whether two configurations describe the same vdevs, apart from sizes and recorded states.
fn is_alike(a: &VdevConfig, b: &VdevConfig) -> bool {
    let form = |v: &VdevConfig| {
        (v.kind, v.guid, v.ashift, v.nparity, v.bias, v.draid, v.draid_groups, v.spare_of, v.expanding)
    };
    form(a) == form(b)
        && (&a.path, &a.expand_txgs) == (&b.path, &b.expand_txgs)
        && a.children.len() == b.children.len()
        && a.children.iter().zip(&b.children).all(|(a, b)| is_alike(a, b))
}

fn is_one_of(leaf: &Arc<Leaf>, leaves: &BTreeMap<u64, Arc<Leaf>>) -> bool {
    leaves.get(&leaf.guid).is_some_and(|known| Arc::ptr_eq(known, leaf))
}

/// Every raidz and draid below a mirror, by guid. Their sectors are the top-level vdev's.
fn nested(top: &VdevConfig, leaves: &BTreeMap<u64, Arc<Leaf>>) -> Result<HashMap<u64, Arc<Top>>> {
    let striped = |vdev: &VdevConfig| matches!(vdev.kind, Kind::Raidz | Kind::Draid);
    let mut found = HashMap::new();
    for vdev in top.walk().into_iter().skip(1).filter(|vdev| striped(vdev)) {
        let inside = vdev.walk();
        if striped(top) || inside.iter().skip(1).any(|vdev| striped(vdev)) {
            let what = "a raidz or draid of others can't be read";
            return Err(Error::unsupported(what).on_vdev(&top.name()));
        }
        let config = VdevConfig { ashift: top.ashift, ..vdev.clone() };
        let find = |guid| leaves.get(&guid).cloned().map(Side::Leaf);
        found.insert(vdev.guid, Top::new(&config, layout(&config, None)?, &find, None, true));
    }
    Ok(found)
}

fn open_leaf(vdev: &VdevConfig, devices: &Devices) -> Arc<Leaf> {
    let device = devices.get(&vdev.guid).cloned();
    let recorded = vdev.path.clone().unwrap_or_else(|| vdev.guid.to_string());
    if vdev.spare_of.is_some() {
        return Leaf::distributed(vdev.guid, recorded);
    }
    let path = device.as_ref().map_or(recorded, |d| d.name().to_owned());
    Leaf::new(vdev.guid, path, device)
}

fn layout(top: &VdevConfig, reflow: Option<u64>) -> Result<VdevLayout> {
    let at = |e: Error| e.on_vdev(&top.name());
    Ok(match top.kind {
        Kind::Raidz => {
            let width = u32::try_from(top.children.len()).unwrap_or(u32::MAX);
            let moving = top.expanding.then_some(reflow).flatten();
            let geometry = RaidzGeometry::new(top.ashift, width, top.nparity, &top.expand_txgs, moving);
            VdevLayout::Raidz(geometry.map_err(at)?)
        }
        Kind::Draid => VdevLayout::Draid(draid(top).map_err(at)?),
        Kind::Indirect => VdevLayout::Indirect(RwLock::default()),
        Kind::Hole | Kind::Missing | Kind::Root | Kind::L2cache => VdevLayout::Absent,
        _ => VdevLayout::Mirror,
    })
}

fn draid(top: &VdevConfig) -> Result<DraidGeometry> {
    let config = top.draid.ok_or_else(|| Error::corrupt("the draid's shape is not recorded"))?;
    DraidGeometry::new(top.ashift, config, u64::from(top.draid_groups))
}

#[cfg(test)]
mod tests {
    use nvpair::NvList;

    use super::*;

    fn disk(id: u64, guid: u64) -> NvList {
        let mut list = NvList::new();
        list.add("type", "file")
            .add("id", id)
            .add("guid", guid)
            .add("path", format!("/d{guid}"))
            .add("ashift", 9u64);
        list
    }

    fn root(tops: Vec<NvList>) -> VdevConfig {
        let mut root = NvList::new();
        root.add("type", "root").add("guid", 1u64).add("children", tops);
        VdevConfig::parse(&root).unwrap()
    }

    #[test]
    fn tops_that_stay_the_same_are_the_same_and_others_share_what_is_in_flight() {
        let old = Tree::build(root(vec![disk(0, 7), disk(1, 8)]), None, &Devices::default(), None).unwrap();
        let mut mirror = NvList::new();
        mirror.add("type", "mirror").add("id", 1u64).add("guid", 20u64).add("ashift", 9u64);
        mirror.add("children", vec![disk(0, 8), disk(1, 9)]);
        let new = Tree::changed(root(vec![disk(0, 7), mirror]), Some(&old), &TreeChange::default()).unwrap();
        assert!(Arc::ptr_eq(&old.top(0).unwrap(), &new.top(0).unwrap()));
        let (before, after) = (old.top(1).unwrap(), new.top(1).unwrap());
        before.in_flight.fetch_add(5, std::sync::atomic::Ordering::Relaxed);
        assert!(!Arc::ptr_eq(&before, &after) && after.in_flight() == 5);
        assert!(Arc::ptr_eq(old.leaf(8).unwrap(), new.leaf(8).unwrap()));
    }

    #[test]
    fn a_leaf_with_another_guid_keeps_its_state() {
        let old = Tree::build(root(vec![disk(0, 7)]), None, &Devices::default(), None).unwrap();
        let change = TreeChange { renamed: HashMap::from([(70, 7)]), ..TreeChange::default() };
        let new = Tree::changed(root(vec![disk(0, 70)]), Some(&old), &change).unwrap();
        old.leaf(7).unwrap().miss(33);
        assert!(new.leaf(70).unwrap().dtl.read().contains(33) && new.leaf(7).is_none());
    }

    #[test]
    fn a_new_tree_knows_where_removed_vdevs_went() {
        let (mut removed, mut root) = (NvList::new(), NvList::new());
        removed.add("type", "indirect").add("id", 0u64).add("guid", 7u64).add("ashift", 9u64);
        root.add("type", "root").add("guid", 1u64).add("children", vec![removed]);
        let config = || VdevConfig::parse(&root).unwrap();
        let old = Tree::build(config(), None, &Devices::default(), None).unwrap();
        let top = old.top(0).unwrap();
        let VdevLayout::Indirect(slot) = &top.layout else { panic!("{top:?}") };
        *slot.write() = Some(Arc::new(IndirectMapping::default()));
        let new = Tree::build(config(), Some(&old), &Devices::default(), None).unwrap();
        assert!(new.top(0).unwrap().mapping().is_some());
    }
}
