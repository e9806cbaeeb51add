//! One metaslab in core: its allocatable ranges, and those on their way to becoming allocatable.
//!
//! ```text
//!            allocate                     sync(T)
//! allocatable ─────────▶ allocating[T] ─────────▶ the maps
//!      ▲                                             │ free (in syncing txg T)
//!      │ sync_done(T + 2)        sync_done(T)        ▼
//!      └──────────── deferred ◀──────────── freed ◀──── freeing
//! ```
//!
//! A piece freed in T is written as free in T, but is given out again only when T + 2 is on disk: the uberblocks
//! of T - 1 and before may refer to it, and three of them must stay good.
//!
//! The allocatable ranges are kept only while the metaslab is *loaded*. Nothing is allocated from an unloaded
//! one, but it accepts frees. A load reads the map without a lock; ranges that become allocatable meanwhile
//! are kept in `returned` and added at its end. Several loads of one metaslab may run at once: the first to
//! end wins.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ondisk::space_map::SpaceMapPhys;
use parking_lot::{Mutex, MutexGuard};
use stdx::{RangeSet, SizedRanges};

use super::log::MetaslabChange;
use super::policy::{self, Weight};
use crate::error::{Error, Kind, Result};
use crate::txg;

/// Txgs for which freed space is kept as it is.
#[doc(alias = "TXG_DEFER_SIZE")]
pub(crate) const DEFER: u64 = 2;

/// By how many powers of two the longest piece may shrink before another metaslab has its turn.
#[doc(alias = "zfs_metaslab_switch_threshold")]
const SWITCH: u32 = 2;

/// Ranges of a metaslab that wait to be trimmed; more are left to `zpool trim`.
const MAX_TO_TRIM: usize = 1 << 14;

/// A space map as it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MapState {
    /// Its object; 0: none yet.
    pub(crate) object: u64,
    /// Its head.
    pub(crate) head: SpaceMapPhys,
    /// Bytes of a block.
    pub(crate) block_size: u64,
    /// Its head has room for a histogram.
    pub(crate) has_histogram: bool,
}

/// A metaslab.
#[derive(Debug)]
pub(super) struct Metaslab {
    /// Its vdev.
    pub(crate) vdev: u64,
    /// Its number there.
    pub id: u64,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Unit, as a shift.
    pub(crate) ashift: u32,
    /// Longest piece of a loaded one; all ones when not loaded.
    largest: AtomicU64,
    weight: AtomicU64,
    /// Longest piece when it was last unloaded, until freed space comes; all ones when not known.
    ceiling: AtomicU64,
    /// Its map can't be read: nothing is allocated from it.
    pub(crate) unreadable: AtomicBool,
    /// How often it was asked for a piece.
    #[cfg(test)]
    pub(crate) visits: AtomicU64,
    state: Mutex<MetaslabState>,
}

/// The mutable state.
#[derive(Debug, Default)]
pub(super) struct MetaslabState {
    /// Allocatable ranges, while loaded.
    pub(crate) free: Option<SizedRanges>,
    /// How often it was unloaded: a load that began before that ends in vain.
    epoch: u64,
    loaders: u32,
    /// Free, but lent to something that works on it: see [`super::lend`].
    pub(crate) lent: RangeSet,
    /// Freed since it was last trimmed, and free still: see [`super::lend`].
    pub(crate) to_trim: RangeSet,
    returned: RangeSet,
    /// Allocated in the open, quiescing and syncing txg, by its last two bits.
    pub(crate) allocating: [RangeSet; txg::SIZE],
    /// Freed in the syncing txg, not yet written.
    pub(crate) freeing: RangeSet,
    /// Freed in the syncing txg and written.
    pub(crate) freed: RangeSet,
    /// Freed in the syncing txg, but the checkpoint keeps it.
    pub(crate) checkpointing: RangeSet,
    /// Freed in that txg and synced.
    pub(crate) deferred: Vec<(u64, RangeSet)>,
    /// Changes that are only in the logs.
    pub(crate) unflushed: MetaslabChange,
    /// Changes that were only in the logs, and are being written to the metaslab's own map in the syncing
    /// txg.
    pub(crate) flushing: MetaslabChange,
    /// Since when `unflushed` is only in logs; 0: the metaslab has never been in a log.
    pub(crate) unflushed_txg: u64,
    /// It has changes since then.
    pub(crate) unflushed_dirty: bool,
    /// Its own map.
    pub(crate) map: MapState,
    /// No map describes the metaslab: one must be written from `free`, or is being written, and `free` must not be dropped
    /// before.
    pub(crate) unwritten: bool,
    /// Bytes of it that are settled: the rest is of the txg that is being synced.
    pub(crate) synced_length: u64,
    /// Bytes allocated according to the maps.
    pub(crate) allocated: u64,
    /// By how much that changed in the syncing txg.
    pub(crate) allocated_now: i64,
    cursors: Vec<u64>,
    /// Weight's index when it was last made active.
    pub(crate) active_index: Option<u32>,
    /// Last txg in which something was allocated.
    pub(crate) used_txg: u64,
}

/// A piece that was allocated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(crate) start: u64,
    /// The metaslab had no changes in the txg before.
    pub(crate) first: bool,
    /// It is time for another metaslab.
    pub(crate) spent: bool,
}

/// Starting point of a load.
#[derive(Debug)]
pub(super) struct LoadStart {
    pub(crate) object: u64,
    pub(crate) length: u64,
    epoch: u64,
    changes: [MetaslabChange; 2],
    not_yet: RangeSet,
}

impl Metaslab {
    pub(crate) fn new(vdev: u64, id: u64, place: (u64, u64), ashift: u32, state: MetaslabState) -> Self {
        let metaslab = Self {
            vdev,
            id,
            start: place.0,
            size: place.1,
            ashift,
            largest: AtomicU64::new(u64::MAX),
            weight: AtomicU64::new(0),
            ceiling: AtomicU64::new(u64::MAX),
            unreadable: AtomicBool::new(false),
            #[cfg(test)]
            visits: AtomicU64::new(0),
            state: Mutex::new(state),
        };
        metaslab.reweigh(&mut metaslab.lock());
        metaslab
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MetaslabState> {
        self.state.lock()
    }

    /// First byte after it.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }

    pub(crate) fn weight(&self) -> Weight {
        Weight::from_word(self.weight.load(Ordering::Relaxed))
    }

    /// Longest piece that can be there; exact when loaded.
    pub(crate) fn longest(&self) -> u64 {
        match (self.largest.load(Ordering::Relaxed), self.ceiling.load(Ordering::Relaxed)) {
            (u64::MAX, u64::MAX) => self.weight().limit().saturating_sub(1),
            (u64::MAX, ceiling) => ceiling,
            (exact, _) => exact,
        }
    }

    pub(super) fn set_largest(&self, largest: u64) {
        self.largest.store(largest, Ordering::Relaxed);
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.largest.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether a piece of that length may be there. With `hard` an estimate does not rule it out, but facts
    /// remembered of an unloaded metaslab do: else a full pool reads all maps for each block.
    #[doc(alias = "metaslab_should_allocate")]
    pub(crate) fn may_hold(&self, size: u64, hard: bool) -> bool {
        if self.unreadable.load(Ordering::Relaxed) {
            return false;
        }
        let unknown = self.ceiling.load(Ordering::Relaxed) == u64::MAX;
        let any = hard && !self.is_loaded() && unknown && self.size >= size;
        any || self.longest() >= size
    }

    /// After a change: weight and longest piece anew.
    pub(crate) fn reweigh(&self, state: &mut MetaslabState) {
        let weight = match &state.free {
            Some(free) => {
                self.largest.store(free.largest(), Ordering::Relaxed);
                Weight::of(free, self.ashift)
            }
            None => {
                self.largest.store(u64::MAX, Ordering::Relaxed);
                self.unloaded_weight(state)
            }
        };
        self.weight.store(weight.word(), Ordering::Relaxed);
    }

    fn unloaded_weight(&self, state: &MetaslabState) -> Weight {
        if state.allocated == 0 {
            return Weight::of_space(self.size);
        }
        if !state.map.has_histogram {
            return Weight::of_space(self.size.saturating_sub(state.allocated));
        }
        let mut deferred = [0; 32];
        for (_, ranges) in &state.deferred {
            policy::add_histogram(&mut deferred, &policy::histogram_of(ranges.iter()), self.ashift);
        }
        Weight::of_map(&state.map.head.histogram, &deferred, self.ashift)
    }

    /// Allocates `size` bytes for `txg`; `far_from`: not near that offset. `None` when there is no such piece or the
    /// metaslab is not loaded. Also reports whether this is the txg's first change here, and whether the
    /// metaslab has used up the kind of pieces for which it was chosen.
    pub(crate) fn allocate(&self, size: u64, txg: u64, far_from: Option<u64>) -> Option<Placed> {
        #[cfg(test)]
        self.visits.fetch_add(1, Ordering::Relaxed);
        let mut guard = self.lock();
        let state = &mut *guard;
        let free = state.free.as_mut()?;
        if free.largest() < size {
            return None;
        }
        let at = policy::cursor_of(size);
        if state.cursors.len() <= at {
            state.cursors.resize(at + 1, self.start);
        }
        let cursor = state.cursors.get_mut(at)?;
        if let Some(other) = far_from {
            // Half of the metaslab away, or as far as can be.
            let half = self.size / 2;
            let aim = if other - self.start < half { other + half } else { other - half };
            *cursor = aim >> self.ashift << self.ashift;
        }
        let start = policy::dynamic_fit(free, cursor, size, self.size)?;
        free.remove(start, start + size);
        state.to_trim.remove(start, start + size);
        let largest = free.largest();
        self.largest.store(largest, Ordering::Relaxed);
        let slot = state.slot(txg);
        let first = slot.is_empty();
        slot.insert(start, start + size);
        state.used_txg = txg;
        let index = largest.checked_ilog2();
        let spent = index.zip(state.active_index).is_none_or(|(index, then)| index + SWITCH <= then);
        Some(Placed { start, first, spent })
    }

    /// Chosen to be allocated from.
    pub(crate) fn activate(&self) {
        let mut state = self.lock();
        self.reweigh(&mut state);
        state.active_index = self.weight().index();
    }

    /// Begins a load; `None` when it is loaded.
    pub(crate) fn start_load(&self) -> Option<LoadStart> {
        let mut state = self.lock();
        if state.free.is_some() {
            return None;
        }
        if state.loaders == 0 {
            state.returned = RangeSet::new();
        }
        state.loaders += 1;
        let mut not_yet = state.freed.clone();
        for (start, end) in state.deferred.iter().flat_map(|(_, ranges)| ranges.iter()) {
            not_yet.insert(start, end);
        }
        let length = if state.map.object == 0 { 0 } else { state.synced_length };
        let changes = [state.flushing.clone(), state.unflushed.clone()];
        Some(LoadStart { object: state.map.object, length, epoch: state.epoch, changes, not_yet })
    }

    /// Ends a load with the ranges that the read part of the map has as allocated. The load is void when the
    /// metaslab was loaded and unloaded meanwhile.
    pub(crate) fn end_load(&self, start: &LoadStart, allocated: Result<&RangeSet>) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if start.epoch != state.epoch {
            return;
        }
        state.loaders = state.loaders.saturating_sub(1);
        let (Ok(allocated), None) = (allocated, &state.free) else { return };
        let mut free = SizedRanges::new();
        free.insert(self.start, self.end());
        for (s, e) in allocated.iter() {
            free.clear(s, e);
        }
        for change in &start.changes {
            change.allocated.iter().for_each(|(s, e)| free.clear(s, e));
            for (s, e) in change.freed.iter() {
                free.clear(s, e);
                free.insert(s, e);
            }
        }
        for (s, e) in start.not_yet.iter() {
            free.clear(s, e);
        }
        for (s, e) in std::mem::take(&mut state.returned).iter() {
            free.clear(s, e);
            free.insert(s, e);
        }
        state.free = Some(free);
        self.reweigh(state);
    }

    /// Not unloaded since that load began.
    pub(crate) fn is_as_at(&self, start: &LoadStart) -> bool {
        self.lock().epoch == start.epoch
    }

    /// Drops the allocatable ranges, if nothing is being allocated or written: a load reads the settled part
    /// of the map, and the logs.
    pub(crate) fn unload(&self) -> bool {
        let mut state = self.lock();
        let writing = state.synced_length != state.map.head.length;
        if writing
            || state.unwritten
            || !state.lent.is_empty()
            || state.allocating.iter().any(|set| !set.is_empty())
            || state.free.is_none()
        {
            return false;
        }
        let largest = state.free.as_ref().map_or(u64::MAX, SizedRanges::largest);
        self.ceiling.store(largest, Ordering::Relaxed);
        state.free = None;
        state.epoch += 1;
        state.loaders = 0;
        state.active_index = None;
        self.reweigh(&mut state);
        true
    }

    /// Undoes an allocation of `txg`. Ranges that were already written as allocated become ordinary frees.
    pub(crate) fn unallocate(&self, start: u64, end: u64, txg: u64) -> Result<()> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if !state.slot(txg).contains(start, end) {
            drop(guard);
            return self.free(start, end, false);
        }
        state.slot(txg).remove(start, end);
        if let Some(free) = &mut state.free {
            free.insert(start, end);
            self.largest.store(free.largest(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Frees in the syncing txg.
    pub(super) fn free(&self, start: u64, end: u64, checkpointed: bool) -> Result<()> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let loaded = state.free.as_ref().is_some_and(|free| free.overlaps(start, end));
        let waiting = state.deferred.iter().any(|(_, set)| set.overlaps(start, end))
            || [&state.freeing, &state.freed, &state.checkpointing, &state.lent]
                .iter()
                .any(|set| set.overlaps(start, end));
        if loaded || waiting {
            return Err(Error::new(
                Kind::Corrupt,
                format!("bytes {start:#x} to {end:#x} of top-level vdev {} are freed twice", self.vdev),
            ));
        }
        if checkpointed { &mut state.checkpointing } else { &mut state.freeing }.insert(start, end);
        Ok(())
    }

    /// Marks as allocated in `txg`. True when it was free.
    pub(crate) fn claim(&self, start: u64, end: u64, txg: u64) -> Result<bool> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(free) = &mut state.free else {
            return Err(Error::new(Kind::Busy, "the metaslab is not loaded"));
        };
        if !free.overlaps(start, end) {
            return Ok(false);
        }
        if !free.remove(start, end) {
            return Err(Error::corrupt("an intent-log block is partly free"));
        }
        self.largest.store(free.largest(), Ordering::Relaxed);
        state.slot(txg).insert(start, end);
        Ok(true)
    }

    /// After a synced txg: see the picture above. Returns the growth of the allocated and of the deferred
    /// bytes. `ripens`: space that was freed long enough before this txg can be used again. `trims`: ranges that become free are
    /// to be trimmed.
    pub(crate) fn sync_done(&self, txg: u64, ripens: u64, trims: bool) -> (i64, i64) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let freed = std::mem::take(&mut state.freed);
        let mut delta = i64::try_from(freed.covered()).unwrap_or(i64::MAX);
        if !freed.is_empty() {
            state.deferred.push((txg, freed));
        }
        let (ripe, rest) =
            std::mem::take(&mut state.deferred).into_iter().partition(|&(then, _)| then + DEFER <= ripens);
        state.deferred = rest;
        let ripe: Vec<(u64, RangeSet)> = ripe;
        if ripe.iter().any(|(_, ranges)| !ranges.is_empty()) {
            self.ceiling.store(u64::MAX, Ordering::Relaxed);
        }
        for (start, end) in ripe.iter().flat_map(|(_, ranges)| ranges.iter()) {
            delta -= i64::try_from(end - start).unwrap_or(i64::MAX);
            if trims && state.to_trim.len() < MAX_TO_TRIM {
                state.to_trim.insert(start, end);
            }
            match &mut state.free {
                Some(free) => {
                    free.insert(start, end);
                }
                None if state.loaders > 0 => {
                    state.returned.insert(start, end);
                }
                None => {}
            }
        }
        let allocated = std::mem::take(&mut state.allocated_now);
        state.flushing = MetaslabChange::default();
        state.synced_length = state.map.head.length;
        self.reweigh(state);
        (allocated, delta)
    }
}

impl MetaslabState {
    /// Ranges allocated in a txg and not yet written.
    pub(crate) fn slot(&mut self, txg: u64) -> &mut RangeSet {
        txg::of_mut(&mut self.allocating, txg)
    }

    /// Bytes that are freed but not yet allocatable.
    pub(crate) fn deferred_space(&self) -> u64 {
        self.deferred.iter().map(|(_, ranges)| ranges.covered()).sum()
    }
}
