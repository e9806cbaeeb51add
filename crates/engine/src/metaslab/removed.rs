//! Removed vdevs, and the one that is being removed: space freed on them is freed at its new place, and
//! recorded as obsolete.
//!
//! A removed vdev has no metaslabs. Each range that loses its last reference is appended to the vdev's obsolete space
//! map, by which its mapping can be made smaller (`spa::removal::condense`).
//!
//! While a vdev is being removed, nothing is allocated on it, and its allocated ranges are copied in
//! ascending order. A freed range lies before the end of the mapping (it was copied: both places are freed),
//! or behind it (it need not be copied any more), or partly both. Source: `free_from_removing_vdev`,
//! vdev_removal.c, OpenZFS 2.3.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::Dva;
use parking_lot::Mutex;
use stdx::RangeSet;

use super::allocator::SpaceAllocator;
use super::record;
use super::table;
use super::unit::MapState;
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::vdev::config::VdevConfig;
use crate::vdev::indirect::{Hop, IndirectMapping, Segment, follow};
use crate::vdev::top::Top;
use crate::vdev::tree::Tree;

/// A removed vdev, or one that is being removed.
#[derive(Debug)]
pub(super) struct Removed {
    pub(crate) top: Arc<Top>,
    /// Became obsolete in the syncing txg, not yet written.
    pub(crate) freed: Mutex<RangeSet>,
    /// The obsolete space map.
    pub(crate) obsolete: Mutex<MapState>,
    /// Set while the vdev is being removed.
    pub(crate) evacuation: Option<Evacuation>,
}

/// Progress of the removal of a vdev.
#[derive(Debug, Default)]
pub(super) struct Evacuation {
    /// Copies made so far.
    pub(crate) copies: Mutex<IndirectMapping>,
    /// The ranges of one metaslab that are still to be copied.
    pub(crate) pending: Mutex<PendingCopies>,
    /// Bytes that were freed before they were copied, since [`SpaceAllocator::take_spared`].
    pub(crate) spared: AtomicU64,
}

/// The ranges of one metaslab that are still to be copied.
#[derive(Debug, Default)]
pub(super) struct PendingCopies {
    /// The metaslab to look at next.
    pub(crate) next: usize,
    /// Allocated ranges of the one before.
    pub(crate) ranges: RangeSet,
}

impl Removed {
    /// The removed vdevs of an existing pool, and the one that is being removed.
    pub(crate) fn load_all(mos: &Arc<Objset>, tree: &Tree) -> Result<BTreeMap<u64, Arc<Self>>> {
        let mut all = BTreeMap::new();
        for config in &tree.config.children {
            let Some(top) = tree.top(config.id) else { continue };
            let evacuation = match (top.is_removed(), config.removing && config.indirect_object != 0) {
                (true, _) => None,
                (false, true) => Some(Evacuation::continued(mos, config)?),
                (false, false) => continue,
            };
            let obsolete = match table::obsolete(mos, config)? {
                Some(number) => record::map(&mos.object(number)?)?,
                None => MapState::default(),
            };
            let removed = Self { top, freed: Mutex::default(), obsolete: Mutex::new(obsolete), evacuation };
            all.insert(config.id, Arc::new(removed));
        }
        Ok(all)
    }
}

impl Evacuation {
    fn continued(mos: &Arc<Objset>, config: &VdevConfig) -> Result<Self> {
        let copies = super::mapping::load_mapping(mos, config.indirect_object)?;
        Ok(Self { copies: Mutex::new(copies), ..Self::default() })
    }

    /// A range is freed: returns where its copy is, as far as there is one. `None`: it has none.
    fn free(&self, offset: u64, size: u64) -> Result<Option<(u64, Vec<Segment>)>> {
        let copies = self.copies.lock();
        let (end, copied) = (offset.saturating_add(size), copies.end().saturating_sub(offset).min(size));
        if copied < size {
            self.pending.lock().ranges.remove(offset.saturating_add(copied), end);
            self.spared.fetch_add(size - copied, Ordering::Relaxed);
        }
        if copied == 0 { Ok(None) } else { Ok(Some((copied, copies.resolve(offset, copied)?))) }
    }
}

impl SpaceAllocator {
    pub(super) fn removed(&self, vdev: u64) -> Option<Arc<Removed>> {
        self.removed.read().get(&vdev).cloned()
    }

    /// Whether a vdev was removed, or is being removed.
    pub(super) fn is_moved(&self, vdev: u32) -> bool {
        self.removed.read().contains_key(&u64::from(vdev))
    }

    /// Where the bytes of a removed vdev's DVA are now. `freed`: they are no longer needed, and become
    /// obsolete there; for a vdev that is being removed, the result includes their copies.
    #[doc(alias("vdev_indirect_mark_obsolete", "free_from_removing_vdev"))]
    pub(super) fn moved(&self, dva: &Dva, freed: bool) -> Result<Vec<Dva>> {
        let noted = freed && self.forms.read().obsolete_counts;
        let pieces = follow(self.piece(dva)?, |piece| {
            let Some(removed) = self.removed(piece.vdev) else { return Ok(Hop::Here) };
            let (size, hop) = match &removed.evacuation {
                Some(_) if !freed => return Ok(Hop::Here),
                Some(evacuation) => match evacuation.free(piece.offset, piece.len)? {
                    Some((copied, copies)) => (copied, Hop::Copied(copies)),
                    None => return Ok(Hop::Here),
                },
                None => (piece.len, Hop::Moved(removed.top.moved(piece.offset, piece.len)?)),
            };
            if noted {
                removed.freed.lock().insert(piece.offset, piece.offset.saturating_add(size));
            }
            Ok(hop)
        })?;
        let dva = |piece: Segment| {
            let vdev = u32::try_from(piece.vdev).map_err(|_| Error::corrupt("vdev number too big"))?;
            Ok(Dva { vdev, offset: piece.offset, asize: piece.len, ..Dva::default() })
        };
        pieces.into_iter().map(dva).collect()
    }

    /// Notes that a range of a removed vdev is no longer referred to there (syncing context).
    pub(crate) fn mark_obsolete(&self, dva: &Dva) {
        let removed = self.removed(u64::from(dva.vdev));
        if let Some(removed) = removed.filter(|_| self.forms.read().obsolete_counts) {
            removed.freed.lock().insert(dva.offset, dva.offset.saturating_add(dva.asize));
        }
    }

    fn piece(&self, dva: &Dva) -> Result<Segment> {
        let vdev = u64::from(dva.vdev);
        let removed = self.removed(vdev).ok_or_else(|| Error::corrupt("no such removed vdev"))?;
        let size = if dva.gang { removed.top.asize_of(super::allocator::GANG_HEADER, 0) } else { dva.asize };
        Ok(Segment::new(vdev, dva.offset, size))
    }
}
