//! Sizes of each vdev, for `zpool list -v`, `zpool status -j` and `zpool get` of a vdev.
//!
//! Differs from OpenZFS: none of it counts operations since the import, as the pool may not be imported.

use std::collections::BTreeMap;

use engine::arc::l2arc::CacheStats;
use engine::spa::growth;
use engine::spa::space::{PoolSpace, VdevSpace};
use engine::vdev::tree::Tree;
use ondisk::label::{LABEL_END_SIZE, LABEL_SIZE, LABEL_START_SIZE};
use zcommon::vdev::VdevState;
use zutil::PoolCandidate;
use zutil::assess::{Presence, child_share, usable_now};
use zutil::import_listing::{MosFacts, class_of};
use zutil::tree::VdevNode;

/// Bytes at both ends of a device that hold no data.
const LABELS: u64 = LABEL_START_SIZE + LABEL_END_SIZE;

/// Log2 of the bytes of a cache device's header; a larger sector is all its own.
#[doc(alias = "l2arc_dev_hdr_phys_t")]
const HEADER_SHIFT: u64 = 9;

/// One vdev; all in bytes, 0 where it has no such thing.
#[doc(alias = "vdev_stat_t")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VdevSizes {
    /// Allocated (root and top-level vdevs, cache devices).
    pub allocated: u64,
    /// In metaslabs (root and top-level vdevs), or for the blocks of a cache device.
    pub size: u64,
    /// The same as users count it, without parity.
    pub deflated: u64,
    /// Size that a replacement of this device must have.
    #[doc(alias = "vs_rsize")]
    pub replaceable: u64,
    /// Space that the devices could add at their present sizes (top-level vdevs; in a pool in use, vdevs
    /// below them, too).
    #[doc(alias = "vs_esize")]
    pub expandable: u64,
    /// Of the device itself.
    #[doc(alias = "vs_pspace")]
    pub physical: u64,
    /// Held by the pool's checkpoint.
    pub checkpoint: u64,
    /// Fragmentation in percent, where the vdev knows it.
    pub fragmentation: Option<u64>,
    /// Without labels: for metaslabs, and the rest that is too small for one.
    #[doc(alias = "vdev_asize")]
    pub usable: u64,
    /// Log2 of the smallest block: a top-level vdev's own, else that of the device.
    pub ashift: u64,
}

/// The sizes of all vdevs of a pool, by guid.
#[derive(Debug, Clone, Default)]
pub struct Sizes {
    by_guid: BTreeMap<u64, VdevSizes>,
    /// The possible growth of the pool: the expandable bytes of its normal class.
    pub expandable: u64,
}

impl Sizes {
    /// Measures every vdev of the tree, and the spares and cache devices of `facts`. Of a pool in use (`live`, its
    /// devices) sizes are those that it knows, also of a device that was taken offline.
    pub fn of(
        tree: &VdevNode,
        facts: Option<&MosFacts>,
        space: &PoolSpace,
        candidate: &PoolCandidate,
        live: Option<&Tree>,
    ) -> Self {
        let devices = Devices { candidate, live };
        let mut sizes = Self::default();
        let mut root = VdevSizes::default();
        for top in &tree.children {
            let Some(found) = space.vdevs.iter().find(|s| s.id == top.id) else { continue };
            if top.is_virtual() {
                continue;
            }
            let own = top_sizes(top, found, &devices);
            if class_of(top) != Some("logs") {
                root.allocated = root.allocated.saturating_add(own.allocated);
                root.size = root.size.saturating_add(own.size);
                root.deflated = root.deflated.saturating_add(own.deflated);
            }
            if class_of(top).is_none() {
                sizes.expandable = sizes.expandable.saturating_add(own.expandable);
            }
            sizes.descend(top, least(top), &devices);
            let leaf = sizes.by_guid.get(&top.guid).copied().unwrap_or_default();
            let merged = VdevSizes { replaceable: leaf.replaceable, physical: leaf.physical, ..own };
            sizes.by_guid.insert(top.guid, merged);
        }
        sizes.by_guid.insert(tree.guid, root);
        let Some(facts) = facts else { return sizes };
        for vdev in &facts.spares {
            sizes.by_guid.insert(vdev.guid, devices.whole(vdev));
        }
        for vdev in &facts.l2cache {
            sizes.by_guid.insert(vdev.guid, devices.cache(vdev));
        }
        sizes
    }

    /// Adds the contents of cache devices in use.
    pub fn add_caches(&mut self, caches: &[CacheStats]) {
        for cache in caches {
            if let Some(sizes) = self.by_guid.get_mut(&cache.leaf.guid) {
                (sizes.allocated, sizes.size) = (cache.allocated, cache.size);
            }
        }
    }

    /// The sizes of the vdev of this guid.
    pub fn get(&self, guid: u64) -> VdevSizes {
        self.by_guid.get(&guid).copied().unwrap_or_default()
    }

    fn descend(&mut self, vdev: &VdevNode, least: u64, devices: &Devices<'_>) {
        let expandable = devices.expandable(vdev).unwrap_or(0);
        let mut sizes = VdevSizes { replaceable: least, expandable, ..VdevSizes::default() };
        if vdev.is_leaf() {
            sizes.replaceable = least.saturating_add(LABELS);
            sizes.physical = devices.physical(vdev);
            sizes.usable = (sizes.physical - sizes.physical % LABEL_SIZE).saturating_sub(LABELS);
            sizes.ashift = sector_shift(vdev, devices.candidate);
        } else {
            sizes.usable = usable_now(vdev, &|leaf| devices.candidate.locate(leaf)).unwrap_or(0);
        }
        self.by_guid.insert(vdev.guid, sizes);
        let share = child_share(vdev, least);
        vdev.children.iter().for_each(|child| self.descend(child, share, devices));
    }
}

/// Minimum size of a top-level vdev: its metaslabs.
fn least(top: &VdevNode) -> u64 {
    top.asize - top.asize % metaslab(top)
}

fn metaslab(top: &VdevNode) -> u64 {
    1_u64.checked_shl(u32::try_from(top.metaslab_shift).unwrap_or(64)).unwrap_or(1).max(1)
}

fn top_sizes(top: &VdevNode, space: &VdevSpace, devices: &Devices<'_>) -> VdevSizes {
    let by_labels = || {
        let now = usable_now(top, &|leaf| devices.candidate.locate(leaf)).unwrap_or(0);
        let more = now.saturating_sub(top.asize);
        more - more % metaslab(top)
    };
    VdevSizes {
        allocated: space.allocated(),
        size: space.size(),
        deflated: space.deflated(space.size()),
        expandable: devices.expandable(top).unwrap_or_else(by_labels),
        checkpoint: space.checkpoint,
        fragmentation: space.fragmentation(),
        usable: top.asize,
        ashift: top.ashift,
        ..VdevSizes::default()
    }
}

/// Where sizes of devices come from.
struct Devices<'a> {
    candidate: &'a PoolCandidate,
    live: Option<&'a Tree>,
}

impl Devices<'_> {
    /// The size of a device that is in use; of one that its administrator took offline only a pool in use knows.
    #[doc(alias = "vdev_psize")]
    fn physical(&self, vdev: &VdevNode) -> u64 {
        let known = match vdev.health.state {
            VdevState::Healthy | VdevState::Degraded => true,
            VdevState::Offline => self.live.is_some(),
            _ => false,
        };
        if let Some(leaf) = self.live.and_then(|tree| tree.leaf(vdev.guid)).filter(|leaf| leaf.size() > 0) {
            return if known { leaf.size() } else { 0 };
        }
        match self.candidate.locate(vdev) {
            Presence::Present { size, .. } if known => size,
            _ => 0,
        }
    }

    /// Expandable bytes of a vdev of a pool in use.
    fn expandable(&self, vdev: &VdevNode) -> Option<u64> {
        Some(growth::expandable(self.live?, vdev.guid))
    }

    /// A device that stands for itself: a spare, a cache device.
    fn whole(&self, vdev: &VdevNode) -> VdevSizes {
        let physical = self.physical(vdev);
        let replaceable = physical - physical % LABEL_SIZE;
        VdevSizes { physical, replaceable, ..VdevSizes::default() }
    }

    /// A cache device: while its pool is in use there is room for blocks, all but the header. Its content is
    /// added by [`Sizes::add_caches`].
    fn cache(&self, vdev: &VdevNode) -> VdevSizes {
        let whole = self.whole(vdev);
        if self.live.is_none() || whole.physical == 0 {
            return whole;
        }
        let header = 1_u64 << sector_shift(vdev, self.candidate).max(HEADER_SHIFT);
        let size = whole.replaceable.saturating_sub(LABELS + header);
        VdevSizes { size, fragmentation: Some(0), ..whole }
    }
}

/// Log2 of the minimum I/O size of a device in use.
fn sector_shift(vdev: &VdevNode, candidate: &PoolCandidate) -> u64 {
    match candidate.member(vdev.guid) {
        Some(member) if vdev.health.state == VdevState::Healthy => {
            u64::from(member.device.geometry.logical_sector.max(512).ilog2())
        }
        _ => 0,
    }
}
