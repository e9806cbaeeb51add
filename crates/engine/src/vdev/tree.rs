//! The vdev tree of an open pool: every leaf with its device, every top-level vdev as a read target.

use std::collections::HashMap;
use std::sync::Arc;

use blkdev::Device;
use parking_lot::RwLock;

use zcommon::draid::DraidConfig;

use super::config::{Kind, VdevConfig};
use super::draid::DraidGeometry;
use super::health::recorded;
use super::leaf::Leaf;
use super::raidz::RaidzGeometry;
use super::top::{Layout, Side, Top};
use crate::error::{Error, Result};

/// Most top-level vdevs.
const MAX_TOPS: u64 = 1 << 16;

/// Devices found, by leaf guid.
pub type Devices = HashMap<u64, Device>;

/// The tree of one pool.
#[derive(Debug)]
pub struct Tree {
    /// As configured.
    pub config: VdevConfig,
    tops: Vec<Option<Arc<Top>>>,
    leaves: HashMap<u64, Arc<Leaf>>,
}

impl Tree {
    /// Builds the tree of `config` (its root). Leaves already open in `known` are kept, with their
    /// queues and counters; others get their device from `devices`, or none. So is where removed vdevs went.
    pub fn build(
        config: VdevConfig,
        known: Option<&Tree>,
        devices: &Devices,
        reflow: Option<u64>,
    ) -> Result<Self> {
        let mut leaves = HashMap::new();
        for vdev in config.walk().into_iter().filter(|v| v.kind.is_leaf()) {
            let leaf = known.and_then(|t| t.leaves.get(&vdev.guid).cloned());
            let leaf = leaf.unwrap_or_else(|| open_leaf(vdev, devices));
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
            let layout = match layout(child, reflow)? {
                Layout::Indirect(_) => Layout::Indirect(RwLock::new(before.and_then(|top| top.mapping()))),
                layout => layout,
            };
            let nested = nested(child, &leaves)?;
            let find = |guid| match nested.get(&guid) {
                Some(top) => Some(Side::Nested(Arc::clone(top))),
                None => leaves.get(&guid).cloned().map(Side::Leaf),
            };
            if let Some(top) = tops.get_mut(slot) {
                *top = Some(Top::new(child, layout, &find));
            }
        }
        Ok(Self { config, tops, leaves })
    }

    /// The same vdevs with another configuration of them, which differs in what only people and the allocator need.
    #[must_use]
    pub fn described(&self, config: VdevConfig) -> Self {
        Self { config, tops: self.tops.clone(), leaves: self.leaves.clone() }
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

    /// All leaves, in no order.
    pub fn leaves(&self) -> impl Iterator<Item = &Arc<Leaf>> {
        self.leaves.values()
    }

    /// Whether [`Tree::dirty_dtls`] has something to tell.
    pub fn has_dirty_dtls(&self) -> bool {
        self.leaves.values().any(|leaf| leaf.has_changed_dtl())
    }

    /// Leaves whose DTL has changed since the last call, by guid, with all that each of them lacks.
    #[doc(alias = "vdev_dtl_sync")]
    pub fn dirty_dtls(&self) -> Vec<(u64, Vec<(u64, u64)>)> {
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

/// Every raidz and draid below a mirror, by guid. Their sectors are the top-level vdev's.
fn nested(top: &VdevConfig, leaves: &HashMap<u64, Arc<Leaf>>) -> Result<HashMap<u64, Arc<Top>>> {
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
        found.insert(vdev.guid, Top::new(&config, layout(&config, None)?, &find));
    }
    Ok(found)
}

fn open_leaf(vdev: &VdevConfig, devices: &Devices) -> Arc<Leaf> {
    let device = devices.get(&vdev.guid).cloned();
    let recorded = vdev.path.clone().unwrap_or_else(|| vdev.guid.to_string());
    let path = device.as_ref().map_or(recorded, |d| d.name().to_owned());
    Leaf::new(vdev.guid, path, device)
}

fn layout(top: &VdevConfig, reflow: Option<u64>) -> Result<Layout> {
    let at = |e: Error| e.on_vdev(&top.name());
    Ok(match top.kind {
        Kind::Raidz => {
            let width = u32::try_from(top.children.len()).unwrap_or(u32::MAX);
            let moving = top.expanding.then_some(reflow).flatten();
            let geometry = RaidzGeometry::new(top.ashift, width, top.nparity, &top.expand_txgs, moving);
            Layout::Raidz(geometry.map_err(at)?)
        }
        Kind::Draid => Layout::Draid(draid(top).map_err(at)?),
        Kind::Indirect => Layout::Indirect(RwLock::default()),
        Kind::Hole | Kind::Missing | Kind::Root | Kind::L2cache => Layout::Absent,
        _ => Layout::Mirror,
    })
}

fn draid(top: &VdevConfig) -> Result<DraidGeometry> {
    let shape = top.draid.ok_or_else(|| Error::corrupt("the draid's shape is not recorded"))?;
    let config = DraidConfig {
        parity: u64::from(top.nparity),
        data: u64::from(shape.ndata),
        children: u64::try_from(top.children.len()).unwrap_or(u64::MAX),
        spares: u64::from(shape.nspares),
    };
    DraidGeometry::new(top.ashift, config, u64::from(shape.ngroups))
}

#[cfg(test)]
mod tests {
    use nvpair::NvList;

    use super::*;
    use crate::vdev::indirect::IndirectMapping;

    #[test]
    fn a_new_tree_knows_where_removed_vdevs_went() {
        let (mut removed, mut root) = (NvList::new(), NvList::new());
        removed.add("type", "indirect").add("id", 0u64).add("guid", 7u64).add("ashift", 9u64);
        root.add("type", "root").add("guid", 1u64).add("children", vec![removed]);
        let config = || VdevConfig::parse(&root).unwrap();
        let old = Tree::build(config(), None, &Devices::default(), None).unwrap();
        let top = old.top(0).unwrap();
        let Layout::Indirect(slot) = &top.layout else { panic!("{top:?}") };
        *slot.write() = Some(Arc::new(IndirectMapping::default()));
        let new = Tree::build(config(), Some(&old), &Devices::default(), None).unwrap();
        assert!(new.top(0).unwrap().mapping().is_some());
    }
}
