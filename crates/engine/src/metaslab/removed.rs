//! Removed vdevs: what is freed on them is freed where it went, and noted as obsolete.
//!
//! A removed vdev has no metaslabs. Each range that loses its last reference is appended to the vdev's obsolete space
//! map, by which its mapping can be made smaller some day.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::Dva;
use parking_lot::Mutex;
use stdx::RangeSet;

use super::allocator::SpaceAllocator;
use super::record;
use super::table;
use super::unit::MapState;
use crate::dmu::Objset;
use crate::error::{Error, Kind, Result};
use crate::vdev::top::Top;
use crate::vdev::tree::Tree;

/// Vdevs removed one after another that a block may have moved through.
const MAX_HOPS: usize = 64;

/// A removed vdev.
#[derive(Debug)]
pub(super) struct Removed {
    pub top: Arc<Top>,
    /// Freed in the syncing txg, not yet written.
    pub freed: Mutex<RangeSet>,
    /// What is obsolete.
    pub obsolete: Mutex<MapState>,
}

/// A range of a top-level vdev, and how many removals led to it.
type Piece = (u64, u64, u64, usize);

impl Removed {
    /// The removed vdevs of an existing pool.
    pub fn load_all(mos: &Arc<Objset>, tree: &Tree) -> Result<BTreeMap<u64, Arc<Self>>> {
        let mut all = BTreeMap::new();
        for config in &tree.config.children {
            let Some(top) = tree.top(config.id).filter(|top| top.is_removed()) else { continue };
            let obsolete = match table::obsolete(mos, config)? {
                Some(number) => record::map(&mos.object(number)?)?,
                None => MapState::default(),
            };
            let removed = Self { top, freed: Mutex::default(), obsolete: Mutex::new(obsolete) };
            all.insert(config.id, Arc::new(removed));
        }
        Ok(all)
    }
}

impl SpaceAllocator {
    pub(super) fn is_removed(&self, vdev: u32) -> bool {
        self.removed.contains_key(&u64::from(vdev))
    }

    /// Where the bytes of a removed vdev's DVA are now. `obsolete`: they are no longer needed there.
    #[doc(alias("vdev_indirect_remap", "vdev_indirect_mark_obsolete"))]
    pub(super) fn moved(&self, dva: &Dva, obsolete: bool) -> Result<Vec<Dva>> {
        let noted = obsolete && self.forms.read().obsolete_counts;
        let (mut done, mut todo) = (Vec::new(), vec![self.piece(dva)?]);
        while let Some((vdev, offset, size, hops)) = todo.pop() {
            let Some(removed) = self.removed.get(&vdev) else {
                let vdev = u32::try_from(vdev).map_err(|_| Error::corrupt("vdev number too big"))?;
                done.push(Dva { vdev, offset, asize: size, ..Dva::default() });
                continue;
            };
            if hops >= MAX_HOPS {
                return Err(Error::new(Kind::Loop, "removed vdevs map to each other in a circle"));
            }
            let mapping = removed.top.mapping();
            let mapping =
                mapping.ok_or_else(|| Error::corrupt("the removed vdev's mapping could not be read"))?;
            let pieces = mapping.resolve(offset, size)?;
            todo.extend(pieces.iter().rev().map(|s| (s.vdev, s.offset, s.len, hops + 1)));
            if noted {
                removed.freed.lock().insert(offset, offset + size);
            }
        }
        Ok(done)
    }

    /// Notes that a range of a removed vdev is no longer referred to there (syncing context).
    pub fn mark_obsolete(&self, dva: &Dva) {
        let removed = self.removed.get(&u64::from(dva.vdev));
        if let Some(removed) = removed.filter(|_| self.forms.read().obsolete_counts) {
            removed.freed.lock().insert(dva.offset, dva.offset.saturating_add(dva.asize));
        }
    }

    fn piece(&self, dva: &Dva) -> Result<Piece> {
        let vdev = u64::from(dva.vdev);
        let removed = self.removed.get(&vdev).ok_or_else(|| Error::corrupt("no such removed vdev"))?;
        let size = if dva.gang { removed.top.asize_of(super::allocator::GANG_HEADER, 0) } else { dva.asize };
        Ok((vdev, dva.offset, size, 0))
    }
}
