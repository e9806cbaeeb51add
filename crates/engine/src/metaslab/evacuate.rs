//! The allocator's part in the removal of a top-level vdev: the ranges to copy, the copied ones, and the
//! vdev's end.
//!
//! Methods that change state are for syncing context only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::Dva;
use parking_lot::Mutex;
use stdx::RangeSet;

use super::allocator::SpaceAllocator;
use super::removed::{Evacuation, PendingCopies, Removed};
use super::store::{SpaceMapStore, SpaceObject};
use super::unit::{MapState, Metaslab};
use crate::error::{Error, Result};
use crate::vdev::indirect::{IndirectMapping, MappingEntry};
use crate::vdev::top::Top;
use crate::zio::alloc::Allocator as _;

impl Metaslab {
    /// Ranges that something refers to; `None` when it is not loaded.
    fn in_use(&self) -> Option<RangeSet> {
        let state = self.lock();
        let mut used = RangeSet::new();
        used.insert(self.start, self.end());
        for (start, end) in state.free.as_ref()?.iter() {
            used.remove(start, end);
        }
        let freed = [&state.freeing, &state.freed].into_iter();
        for (start, end) in freed.chain(state.deferred.iter().map(|(_, set)| set)).flat_map(RangeSet::iter) {
            used.remove(start, end);
        }
        Some(used)
    }

    fn bytes_in_use(&self) -> u64 {
        let state = self.lock();
        state.allocated.saturating_sub(state.freeing.covered())
    }
}

impl SpaceAllocator {
    /// Referenced bytes of a vdev: a removal copies them.
    pub(crate) fn bytes_in_use(&self, vdev: u64) -> u64 {
        let vdev = self.vdev(vdev);
        vdev.iter().flat_map(|vdev| &vdev.metaslabs).map(|metaslab| metaslab.bytes_in_use()).sum()
    }

    /// Begins the removal of a vdev, on which nothing is allocated from now.
    pub(crate) fn begin_evacuation(&self, top: Arc<Top>) {
        let evacuation = Some(Evacuation::default());
        let removed = Removed {
            freed: Mutex::default(),
            obsolete: Mutex::default(),
            evacuation,
            top: Arc::clone(&top),
        };
        self.removed.write().insert(top.id, Arc::new(removed));
    }

    fn evacuation(&self, vdev: u64) -> Result<Arc<Removed>> {
        let removed = self.removed(vdev).filter(|removed| removed.evacuation.is_some());
        removed.ok_or_else(|| Error::corrupt(format!("vdev {vdev} is not being removed")))
    }

    /// Takes the next range to be copied, of at most so many bytes; `None` when nothing is left. Ranges come in ascending
    /// order. A taken range must be copied, or the removal cancelled.
    ///
    /// # Errors
    /// When a space map cannot be read.
    pub(crate) fn take_to_copy(&self, vdev: u64, most: u64) -> Result<Option<(u64, u64)>> {
        let (removed, vdev) = (self.evacuation(vdev)?, self.vdev(vdev));
        let (Some(evacuation), Some(vdev)) = (&removed.evacuation, vdev) else { return Ok(None) };
        loop {
            let next = {
                let mut pending = evacuation.pending.lock();
                let first = pending.ranges.iter().next();
                if let Some((start, end)) = first {
                    let end = end.min(start.saturating_add(most));
                    pending.ranges.remove(start, end);
                    return Ok(Some((start, end)));
                }
                pending.next
            };
            let Some(metaslab) = vdev.metaslabs.get(next) else { return Ok(None) };
            let done = evacuation.copies.lock().end();
            let mut ranges = RangeSet::new();
            if metaslab.end() > done {
                self.load(metaslab);
                let unread = || Error::corrupt("a space map cannot be read").on_vdev(&vdev.top.get().name);
                ranges = metaslab.in_use().ok_or_else(unread)?;
                ranges.remove(0, done);
            }
            *evacuation.pending.lock() = PendingCopies { next: next + 1, ranges };
        }
    }

    /// A range was copied.
    ///
    /// # Errors
    /// When it is not behind those copied before.
    pub(crate) fn note_copied(&self, vdev: u64, entry: MappingEntry) -> Result<()> {
        let removed = self.evacuation(vdev)?;
        removed.evacuation.as_ref().map_or(Ok(()), |evacuation| evacuation.copies.lock().push(entry))
    }

    /// Copies made so far of a vdev that is being removed.
    pub(crate) fn copied(&self, vdev: u64) -> Option<IndirectMapping> {
        let removed = self.removed(vdev);
        removed.as_ref()?.evacuation.as_ref().map(|evacuation| evacuation.copies.lock().clone())
    }

    /// Free pieces of a vdev, from its space maps.
    pub(crate) fn free_pieces(&self, vdev: u64) -> u64 {
        let vdev = self.vdev(vdev);
        let pieces = |metaslab: &Arc<Metaslab>| {
            let state = metaslab.lock();
            let many = match &state.free {
                Some(free) => u64::try_from(free.len()).unwrap_or(u64::MAX),
                None => state.map.head.histogram.iter().sum(),
            };
            many.max(1)
        };
        vdev.iter().flat_map(|vdev| &vdev.metaslabs).map(pieces).sum()
    }

    /// Bytes that were freed before they were copied, since this was last asked.
    pub(crate) fn take_spared(&self, vdev: u64) -> u64 {
        let removed = self.removed(vdev);
        let evacuation = removed.as_ref().and_then(|removed| removed.evacuation.as_ref());
        evacuation.map_or(0, |evacuation| evacuation.spared.swap(0, Ordering::Relaxed))
    }

    /// Cancels a removal: the copies are freed. Returns the obsolete space map with its object, which is the
    /// caller's to free.
    ///
    /// # Errors
    /// When a space map cannot be read.
    #[doc(alias = "spa_vdev_remove_cancel_sync")]
    pub(crate) fn cancel_evacuation(&self, vdev: u64, txg: u64) -> Result<Option<(SpaceObject, u64)>> {
        let removed = self.evacuation(vdev)?;
        let (Some(evacuation), Some(of)) = (&removed.evacuation, self.vdev(vdev)) else { return Ok(None) };
        let end = evacuation.copies.lock().end();
        let mut copied = Vec::new();
        for metaslab in of.metaslabs.iter().filter(|metaslab| metaslab.start < end) {
            self.load(metaslab);
            let unread = || Error::corrupt("a space map cannot be read").on_vdev(&of.top.get().name);
            copied.extend(metaslab.in_use().ok_or_else(unread)?.iter().filter(|(start, _)| *start < end));
        }
        let copies = evacuation.copies.lock();
        let pieces: Result<Vec<_>> =
            copied.into_iter().map(|(start, last)| copies.resolve(start, last.min(end) - start)).collect();
        drop(copies);
        self.removed.write().remove(&vdev);
        for piece in pieces?.into_iter().flatten() {
            let number = u32::try_from(piece.vdev).map_err(|_| Error::corrupt("vdev number too big"))?;
            let dva = Dva { vdev: number, offset: piece.offset, asize: piece.len, ..Dva::default() };
            self.free(&dva, txg);
        }
        Ok(obsolete_object(vdev, &removed.obsolete.lock()))
    }

    /// Ends a removal: the vdev is gone, and the indirect vdev `top` replaces it. Its space maps are freed.
    /// Returns the object with the unflushed txgs, which is the caller's to free; 0: none.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn end_evacuation(&self, top: Arc<Top>, store: &mut dyn SpaceMapStore) -> Result<u64> {
        let removed = self.evacuation(top.id)?;
        let unflushed = self.forget_top(top.id, store)?;
        let freed = std::mem::take(&mut *removed.freed.lock());
        let obsolete = *removed.obsolete.lock();
        let removed = Removed {
            freed: Mutex::new(freed),
            obsolete: Mutex::new(obsolete),
            evacuation: None,
            top: Arc::clone(&top),
        };
        self.removed.write().insert(top.id, Arc::new(removed));
        Ok(unflushed)
    }

    /// Forgets a vdev, and frees its space maps. Returns the object with the unflushed txgs, which is the caller's to free;
    /// 0: none.
    ///
    /// # Errors
    /// Errors of the store.
    #[doc(alias("vdev_destroy_spacemaps", "vdev_metaslab_fini"))]
    pub(crate) fn forget_top(&self, vdev: u64, store: &mut dyn SpaceMapStore) -> Result<u64> {
        let Some(of) = self.vdev(vdev) else { return Ok(0) };
        for metaslab in &of.metaslabs {
            let map = metaslab.lock().map;
            if map.object != 0 {
                let what = SpaceObject::Map { block_size: map.block_size, head: map.head_size() };
                store.free(&what, map.object)?;
            }
        }
        let array = of.array.load(Ordering::Relaxed);
        if array != 0 {
            store.free(&SpaceObject::Array { vdev }, array)?;
        }
        self.sync.lock().unflushed.retain(|(_, of, _)| *of != vdev);
        self.drop_vdev(vdev);
        self.note_freed();
        Ok(of.unflushed_array.load(Ordering::Relaxed))
    }

    /// Returns for each removed vdev its number, its obsolete bytes and the size of its obsolete space map.
    pub fn obsolete(&self) -> Vec<(u64, u64, u64)> {
        let removed = self.removed.read();
        let removed = removed.iter().filter(|(_, removed)| removed.evacuation.is_none());
        let of = |map: &MapState| (u64::try_from(map.head.alloc).unwrap_or(0), map.head.length);
        let all = removed.map(|(vdev, removed)| {
            let (bytes, length) = of(&removed.obsolete.lock());
            (*vdev, bytes, length)
        });
        all.collect()
    }

    /// Detaches the obsolete space map from a removed vdev, whose mapping is about to be condensed by it:
    /// later obsolete ranges go into another map. Returns its object; 0: none.
    pub(crate) fn take_obsolete(&self, vdev: u64) -> u64 {
        let removed = self.removed(vdev).filter(|removed| removed.evacuation.is_none());
        removed.map_or(0, |removed| std::mem::take(&mut *removed.obsolete.lock()).object)
    }
}

fn obsolete_object(vdev: u64, map: &MapState) -> Option<(SpaceObject, u64)> {
    let what = SpaceObject::Obsolete { vdev, block_size: map.block_size, head: map.head_size() };
    (map.object != 0).then_some((what, map.object))
}
