//! Discarding a checkpoint: the space that it kept becomes free, from the end of each vdev's checkpoint space
//! map to its start.
//!
//! Whole blocks of the map are taken, so that an entry of two words is never cut. The frees and the shorter map are written
//! with one txg: after a crash the rest of the map describes the space still kept.
//!
//! Source: `spa_checkpoint_discard_thread_sync`, `space_map_incremental_destroy`, OpenZFS 2.4.

use std::sync::atomic::Ordering;

use ondisk::space_map::{SpaceMapDecoder, SpaceMapItem, SpaceMapPhys};

use super::allocator::SpaceAllocator;
use super::append::Addition;
use super::store::{SpaceMapStore, SpaceObject};
use super::unit::MapState;
use super::vdev::Vdev;
use crate::error::{Error, Result};

impl SpaceAllocator {
    /// Frees, in the syncing txg, the space named by at most `budget` bytes of checkpoint space maps (at
    /// least a block of one). Must be called before [`SpaceAllocator::sync`], when blocks are no longer kept.
    /// Returns whether maps are left.
    ///
    /// # Errors
    /// When a map cannot be read or is invalid.
    pub fn discard_checkpoint(&self, txg: u64, budget: u64, store: &mut dyn SpaceMapStore) -> Result<bool> {
        let mut budget = budget.max(1);
        for vdev in self.all_vdevs() {
            if vdev.checkpoint.lock().object == 0 {
                continue;
            }
            if budget == 0 || !self.discard_from(&vdev, txg, &mut budget, store)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Frees the space named by the end of a vdev's map; returns whether the map is gone.
    fn discard_from(
        &self,
        vdev: &Vdev,
        txg: u64,
        budget: &mut u64,
        store: &mut dyn SpaceMapStore,
    ) -> Result<bool> {
        let before = *vdev.checkpoint.lock();
        let mut map = before;
        let block_size = map.block_size.max(8);
        while map.head.length > 0 && *budget > 0 {
            let start = (map.head.length - 1) / block_size * block_size;
            let used = map.head.length - start;
            let freed = self.free_block_of(vdev, &map, (start / block_size, used), txg, store)?;
            map.head.length = start;
            map.head.alloc = map.head.alloc.saturating_add(freed);
            self.checkpoint_space.fetch_sub(freed, Ordering::Relaxed);
            *budget = budget.saturating_sub(block_size);
        }
        let is_done = map.head.length == 0;
        if is_done {
            let head = if map.has_histogram { SpaceMapPhys::SIZE } else { SpaceMapPhys::MIN_SIZE };
            let what = SpaceObject::Checkpoint { vdev: vdev.top.get().id, block_size: map.block_size, head };
            store.free(&what, map.object)?;
            map = MapState::default();
        } else {
            map.head = Addition::to(map).write(store, &before.head)?;
        }
        *vdev.checkpoint.lock() = map;
        Ok(is_done)
    }

    /// Frees the space named by the first `used` bytes of a block of the map; returns how many bytes that
    /// are.
    fn free_block_of(
        &self,
        vdev: &Vdev,
        map: &MapState,
        (blkid, used): (u64, u64),
        txg: u64,
        store: &mut dyn SpaceMapStore,
    ) -> Result<i64> {
        let wrong = |what: String| {
            let map = map.object;
            Error::corrupt(format!(
                "checkpoint space map {map} of top-level vdev {}: {what}",
                vdev.top.get().id
            ))
        };
        let bytes = store.open(map.object)?.read_block(blkid)?;
        let used = usize::try_from(used).unwrap_or(usize::MAX);
        let words = bytes.get(..used).ok_or_else(|| wrong("it ends before its length".to_owned()))?;
        let size = u64::try_from(vdev.metaslabs.len()).unwrap_or(u64::MAX).checked_shl(vdev.shift);
        let mut decoder = SpaceMapDecoder::new(vdev.top.get().ashift, 0, size.unwrap_or(u64::MAX));
        let mut freed = 0;
        for item in decoder.raw(words) {
            let SpaceMapItem::Entry(entry, _) = item.map_err(|e| wrong(e.to_string()))? else { continue };
            let end = entry.offset.saturating_add(entry.run);
            let metaslab = vdev.metaslab(entry.offset, end).filter(|_| entry.free);
            let metaslab =
                metaslab.ok_or_else(|| wrong(format!("an entry at {:#x} is invalid", entry.offset)))?;
            metaslab.free(entry.offset, end, false)?;
            self.mark_dirty(metaslab, txg);
            freed += i64::try_from(entry.run).unwrap_or(i64::MAX);
        }
        Ok(freed)
    }
}
