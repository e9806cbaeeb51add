//! The allocator in syncing context: writes the changes of a txg to the space maps.
//!
//! *Classic*: each metaslab's changes are appended to its own map. *Logged*: the changes of all go to one log of the
//! txg, and some metaslabs each txg are *flushed*: their changes of many txgs go to their own map, and their
//! entries in the logs are obsolete from then on. Logs older than every metaslab's last flush are freed.
//!
//! A map that has grown to twice the size it needs is *condensed*: rewritten from the known free ranges.
//!
//! [`SpaceAllocator::sync`] is called in every pass of a txg, after the objects were written. Writing maps dirties the
//! meta object set; its blocks need space in the next pass, which goes to the maps in that pass. From pass 2 on, blocks
//! are rewritten where they are unless they grow, so that a pass comes in which nothing is allocated or freed.
//!
//! Within a txg a piece may be allocated and then freed (both are written, in this order), but a freed piece
//! is never allocated again. So the order allocations, frees, next pass is one in which the entries can be
//! replayed.
//!
//! Only the sync thread runs this code. It holds [`SyncState`]'s lock throughout, a metaslab's only while it
//! takes the ranges to write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::space_map::SpaceMapPhys;
use stdx::RangeSet;

use super::allocator::{SpaceAllocator, SpaceMapFeatures};
use super::append::{Addition, Stamp, put_words};
use super::log::MetaslabChange;
use super::policy::{self, MetaslabLimits};
use super::store::{SpaceMapStore, SpaceObject};
use super::unit::{MapState, Metaslab, MetaslabState};
use super::vdev::Vdev;
use crate::error::{Error, Result};
use crate::txg;

/// A log that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogRecord {
    pub(crate) map: MapState,
}

impl LogRecord {
    fn blocks(&self) -> u64 {
        self.map.head.length.div_ceil(self.map.block_size.max(1))
    }
}

/// State of the sync thread.
#[derive(Debug, Default)]
pub(super) struct SyncState {
    /// Metaslabs that logs speak of, by the txg since when: `(txg, vdev, metaslab)`.
    pub(crate) unflushed: BTreeSet<(u64, u64, u64)>,
    /// The logs by txg.
    pub(crate) logs: BTreeMap<u64, LogRecord>,
    /// Metaslabs whose maps are to be written anew with the next txg: `(vdev, metaslab)`.
    pub(crate) rewrite: BTreeSet<(u64, u64)>,
    /// Vdevs whose arrays of maps are to be made with the next txg, also when they have no maps.
    pub(crate) rearray: BTreeSet<u64>,
    /// Flush every metaslab with the next txg.
    pub(crate) flush_all: bool,
    /// Sizes.
    pub(crate) limits: MetaslabLimits,
    /// Metaslabs with space that was freed but waits.
    waiting: BTreeSet<(u64, u64)>,
}

impl SpaceAllocator {
    /// Flushes all metaslabs with the next txg, so that only its log is left: before the pool is exported.
    #[doc(alias = "spa_log_flushall_txg")]
    pub(crate) fn request_flush_all(&self) {
        self.sync.lock().flush_all = true;
    }

    /// For tests: sizes other than the usual.
    pub fn set_limits(&self, limits: MetaslabLimits) {
        self.sync.lock().limits = limits;
    }

    /// Adds a log of a pool that is being imported, after all its vdevs.
    pub(crate) fn add_log(&self, txg: u64, map: MapState) {
        self.sync.lock().logs.insert(txg, LogRecord { map });
    }

    /// True when the txg has changes that are not in the maps yet.
    #[cfg(test)]
    pub(crate) fn is_dirty(&self, txg: u64) -> bool {
        !self.changed(txg).is_empty()
    }

    /// Metaslabs with something to write.
    fn changed(&self, txg: u64) -> Vec<(u64, u64)> {
        let names: Vec<_> = self.dirty_slot(txg).lock().iter().copied().collect();
        let changed =
            |&(vdev, id): &(u64, u64)| self.metaslab(vdev, id).is_some_and(|s| s.lock().has_changes(txg));
        names.into_iter().filter(changed).collect()
    }

    /// Writes the changes since the last pass. Returns true when something was written.
    ///
    /// # Errors
    /// Errors of the store, and those that [`SpaceAllocator::take_problems`] would return. The pool can't
    /// stay in use then.
    pub fn sync(&self, txg: u64, pass: u64, store: &mut dyn SpaceMapStore) -> Result<bool> {
        if let Some(problem) = self.take_problems().into_iter().next() {
            return Err(problem);
        }
        let forms = *self.forms.read();
        let mut state = self.sync.lock();
        let stamp = Stamp { txg, pass, two_words: forms.two_words };
        let names = self.changed(txg);
        let mut run = MapSync {
            of: self,
            forms,
            stamp,
            store,
            state: &mut state,
            arrays: BTreeMap::new(),
            log: Vec::new(),
            wrote: false,
        };
        if pass == 1 {
            run.renew_all()?;
        }
        if pass == 1 && forms.log && (!names.is_empty() || run.state.flush_all) {
            run.flush()?;
        }
        for (vdev, id) in names {
            let vdev = self.vdev(vdev).ok_or_else(|| Error::corrupt("a dirty vdev is gone"))?;
            if let Some(metaslab) = usize::try_from(id).ok().and_then(|id| vdev.metaslabs.get(id)) {
                run.metaslab(&vdev, metaslab)?;
            }
        }
        run.obsolete()?;
        run.finish()
    }

    /// After the uberblock of `txg` is on disk: space freed two txgs ago becomes allocatable. May wait for
    /// reads.
    pub(crate) fn sync_done(&self, txg: u64) {
        let mut state = self.sync.lock();
        let mut names = std::mem::take(&mut *self.dirty_slot(txg).lock());
        names.append(&mut state.waiting);
        for (vdev, id) in names {
            let Some(vdev) = self.vdev(vdev) else { continue };
            let Some(metaslab) = usize::try_from(id).ok().and_then(|id| vdev.metaslabs.get(id)) else {
                continue;
            };
            // Nothing is ripe before its txg.
            let ripens = if self.keeps_freed.load(Ordering::Acquire) { 0 } else { txg };
            let (allocated, deferred) = metaslab.sync_done(txg, ripens, self.trims.load(Ordering::Relaxed));
            if let Some(group) = vdev.group_of(id) {
                group.allocated.fetch_add(allocated + deferred, Ordering::Relaxed);
                group.deferred.fetch_add(deferred, Ordering::Relaxed);
            }
            if metaslab.lock().deferred_space() != 0 {
                state.waiting.insert((metaslab.vdev, id));
            }
        }
        drop(state);
        self.note_freed();
        self.preload(txg);
    }
}

/// One pass.
pub(super) struct MapSync<'a> {
    pub(super) of: &'a SpaceAllocator,
    pub(super) forms: SpaceMapFeatures,
    pub(super) stamp: Stamp,
    pub(super) store: &'a mut dyn SpaceMapStore,
    state: &'a mut SyncState,
    /// Words to write, by object and index.
    arrays: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// Entries for the log: vdev, allocated, freed.
    log: Vec<(u32, RangeSet, RangeSet)>,
    pub(super) wrote: bool,
}

impl MapSync<'_> {
    fn renew_all(&mut self) -> Result<()> {
        for id in std::mem::take(&mut self.state.rearray) {
            let vdev = self.of.vdev(id).ok_or_else(|| Error::corrupt("a vdev to be rewritten is gone"))?;
            self.array(&vdev)?;
        }
        for (vdev, id) in std::mem::take(&mut self.state.rewrite) {
            let vdev = self.of.vdev(vdev).ok_or_else(|| Error::corrupt("a vdev to be rewritten is gone"))?;
            if let Some(metaslab) = usize::try_from(id).ok().and_then(|id| vdev.metaslabs.get(id)) {
                self.renew(&vdev, metaslab)?;
            }
        }
        Ok(())
    }

    fn block_size(&self) -> u64 {
        let limits = &self.state.limits;
        if self.forms.log { limits.logged_block } else { limits.classic_block }
    }

    fn head_size(&self) -> usize {
        if self.forms.histogram { SpaceMapPhys::SIZE } else { SpaceMapPhys::MIN_SIZE }
    }

    fn create(&mut self, what: &SpaceObject, block_size: u64) -> Result<MapState> {
        self.wrote = true;
        let object = self.store.create(what)?;
        Ok(MapState {
            object,
            head: SpaceMapPhys::default(),
            block_size,
            has_histogram: self.forms.histogram,
        })
    }

    /// A new map for a metaslab, noted in the vdev's array.
    pub(super) fn new_map(&mut self, vdev: &Vdev, metaslab: &Metaslab) -> Result<MapState> {
        let block_size = self.block_size();
        let map = self.create(&SpaceObject::Map { block_size, head: self.head_size() }, block_size)?;
        let array = self.array(vdev)?;
        self.arrays.entry(array).or_default().insert(metaslab.id, map.object);
        Ok(map)
    }

    /// The object with the numbers of a vdev's maps; made when it is not there.
    fn array(&mut self, vdev: &Vdev) -> Result<u64> {
        let mut array = vdev.array.load(Ordering::Relaxed);
        if array == 0 {
            array = self.store.create(&SpaceObject::Array { vdev: vdev.id })?;
            vdev.array.store(array, Ordering::Relaxed);
            self.wrote = true;
        }
        Ok(array)
    }

    /// Makes the table of unflushed txgs. Before a metaslab's lock is taken: the store may read.
    pub(super) fn need_unflushed(&mut self, vdev: &Vdev) -> Result<()> {
        if self.forms.log && vdev.unflushed_array.load(Ordering::Relaxed) == 0 {
            let array = self.store.create(&SpaceObject::UnflushedTxgs { vdev: vdev.id })?;
            vdev.unflushed_array.store(array, Ordering::Relaxed);
            self.wrote = true;
        }
        Ok(())
    }

    /// Writes the changes of one metaslab.
    #[doc(alias = "metaslab_sync")]
    fn metaslab(&mut self, vdev: &Vdev, metaslab: &Metaslab) -> Result<()> {
        if !metaslab.lock().has_changes(self.stamp.txg) {
            return Ok(());
        }
        self.need_unflushed(vdev)?;
        if metaslab.lock().map.object == 0 {
            let map = self.new_map(vdev, metaslab)?;
            metaslab.lock().map = map;
        }
        if self.stamp.pass == 1 {
            self.condense(vdev, metaslab)?;
        }
        if self.forms.log {
            let mut state = metaslab.lock();
            if !state.unflushed_dirty {
                self.bump(vdev, metaslab, &mut state, true);
            }
        }
        let mut state = metaslab.lock();
        let before = state.map.head;
        let allocated = std::mem::take(state.slot(self.stamp.txg));
        let freed = std::mem::take(&mut state.freeing);
        let kept = std::mem::take(&mut state.checkpointing);
        state.count(&allocated, &freed);
        let mut addition = Addition::to(state.map);
        if self.forms.log {
            allocated.iter().for_each(|(s, e)| state.unflushed.apply(s, e, false));
            freed.iter().for_each(|(s, e)| state.unflushed.apply(s, e, true));
        } else {
            let unit = (metaslab.ashift, metaslab.start);
            addition.ranges(unit, &allocated, false, None, self.stamp);
            addition.ranges(unit, &freed, true, None, self.stamp);
        }
        let histogram = state.histogram(&freed, metaslab.ashift);
        addition.map.head.histogram = histogram;
        state.map.head = addition.map.head;
        freed.iter().for_each(|(s, e)| {
            state.freed.insert(s, e);
        });
        drop(state);
        self.wrote = true;
        let head = addition.write(self.store, &before)?;
        metaslab.lock().map.head = head;
        if self.forms.log {
            let number = u32::try_from(vdev.id).map_err(|_| Error::corrupt("vdev number too big"))?;
            self.log.push((number, allocated, freed));
        }
        self.checkpoint(vdev, &kept)
    }

    /// Frees on removed vdevs.
    #[doc(alias = "vdev_indirect_sync_obsolete")]
    fn obsolete(&mut self) -> Result<()> {
        let of = self.of;
        let all: Vec<_> =
            of.removed.read().iter().map(|(vdev, removed)| (*vdev, Arc::clone(removed))).collect();
        for (vdev, removed) in all {
            let freed = std::mem::take(&mut *removed.freed.lock());
            if freed.is_empty() {
                continue;
            }
            let mut map = *removed.obsolete.lock();
            if map.object == 0 {
                let block_size = self.state.limits.logged_block;
                map = self.create(
                    &SpaceObject::Obsolete { vdev, block_size, head: self.head_size() },
                    block_size,
                )?;
            }
            let mut addition = Addition::to(map);
            addition.ranges((0, 0), &freed, false, None, self.stamp);
            map.head = addition.write(self.store, &map.head)?;
            *removed.obsolete.lock() = map;
            self.wrote = true;
        }
        Ok(())
    }

    /// Frees that a checkpoint keeps.
    fn checkpoint(&mut self, vdev: &Vdev, kept: &RangeSet) -> Result<()> {
        if kept.is_empty() {
            return Ok(());
        }
        let mut map = *vdev.checkpoint.lock();
        if map.object == 0 {
            let block_size = self.state.limits.logged_block;
            let what = SpaceObject::Checkpoint { vdev: vdev.id, block_size, head: self.head_size() };
            map = self.create(&what, block_size)?;
        }
        let mut addition = Addition::to(map);
        addition.ranges((vdev.top.get().ashift, 0), kept, true, None, self.stamp);
        map.head = addition.write(self.store, &map.head)?;
        *vdev.checkpoint.lock() = map;
        let bytes = i64::try_from(kept.covered()).unwrap_or(i64::MAX);
        self.of.checkpoint_space.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Writes a metaslab's map anew if that is worth it. Nothing of this txg is in it then. True when it was.
    #[doc(alias = "metaslab_condense")]
    fn condense(&mut self, vdev: &Vdev, metaslab: &Metaslab) -> Result<bool> {
        let mut state = metaslab.lock();
        let record = state.map.block_size.max(1 << metaslab.ashift);
        let wanted = state.free.as_ref().is_some_and(|free| {
            let size =
                policy::condensed_size(free, metaslab.ashift, self.forms.two_words, state.map.block_size);
            policy::should_condense(&state.map.head, size, record, free.is_empty())
        });
        if !wanted || !state.freed.is_empty() {
            return Ok(false);
        }
        // Until the words are on their way the map does not describe the metaslab: it must stay loaded.
        state.unwritten = true;
        let old = state.map;
        let fits = old.block_size == self.block_size() && (old.has_histogram || !self.forms.histogram);
        let map = if fits {
            old
        } else {
            drop(state);
            let what = SpaceObject::Map { block_size: old.block_size, head: old.head_size() };
            self.store.free(&what, old.object)?;
            let map = self.new_map(vdev, metaslab)?;
            state = metaslab.lock();
            map
        };
        let mut addition = Addition::anew(map);
        state.whole(metaslab, &mut addition, self.stamp);
        addition.map.head.histogram = state.histogram(&RangeSet::new(), metaslab.ashift);
        state.map = addition.map;
        state.synced_length = addition.map.head.length;
        state.unflushed = MetaslabChange::default();
        state.flushing = MetaslabChange::default();
        if self.forms.log && state.unflushed_txg != 0 {
            self.bump(vdev, metaslab, &mut state, false);
        }
        drop(state);
        self.wrote = true;
        let head = addition.write(self.store, &SpaceMapPhys::default())?;
        let mut state = metaslab.lock();
        state.map.head = head;
        state.unwritten = false;
        Ok(true)
    }

    /// From this txg on the logs count for the metaslab.
    #[doc(alias = "metaslab_unflushed_bump")]
    pub(super) fn bump(&mut self, vdev: &Vdev, metaslab: &Metaslab, state: &mut MetaslabState, dirty: bool) {
        let txg = self.stamp.txg;
        state.unflushed_dirty = dirty;
        if state.unflushed_txg == txg {
            return;
        }
        self.state.unflushed.remove(&(state.unflushed_txg, metaslab.vdev, metaslab.id));
        self.state.unflushed.insert((txg, metaslab.vdev, metaslab.id));
        state.unflushed_txg = txg;
        let array = vdev.unflushed_array.load(Ordering::Relaxed);
        self.arrays.entry(array).or_default().insert(metaslab.id, txg);
        self.wrote = true;
    }

    /// Flushes as many metaslabs as the logs' length asks for, those first whose changes are oldest.
    #[doc(alias = "spa_flush_metaslabs")]
    fn flush(&mut self) -> Result<()> {
        let txg = self.stamp.txg;
        let order: Vec<(u64, u64, u64)> = self.state.unflushed.iter().copied().collect();
        let mut metaslabs = Vec::new();
        for (since, vdev, id) in order.into_iter().take_while(|&(since, ..)| since != txg) {
            let vdev = self.of.vdev(vdev).ok_or_else(|| Error::corrupt("a metaslab in a log is gone"))?;
            let metaslab = self.of.metaslab(vdev.id, id).ok_or_else(|| Error::corrupt("no such metaslab"))?;
            let (dirty, ranges) = {
                let state = metaslab.lock();
                (state.unflushed_dirty, state.unflushed.allocated.len() + state.unflushed.freed.len())
            };
            metaslabs.push((since, vdev, metaslab, dirty, u64::try_from(ranges).unwrap_or(u64::MAX)));
        }
        let mut ranges: u64 = metaslabs.iter().map(|metaslab| metaslab.4).fold(0, u64::saturating_add);
        let mut want =
            if std::mem::take(&mut self.state.flush_all) { u64::MAX } else { self.budget(&metaslabs) };
        for (_, vdev, metaslab, dirty, many) in metaslabs {
            self.need_unflushed(&vdev)?;
            if want == 0 && ranges <= self.state.limits.unflushed_ranges {
                break;
            }
            if dirty {
                self.flush_one(&vdev, &metaslab)?;
                (want, ranges) = (want.saturating_sub(1), ranges.saturating_sub(many));
            } else {
                self.bump(&vdev, &metaslab, &mut metaslab.lock(), false);
            }
        }
        self.free_old_logs()
    }

    fn budget<V, S>(&self, metaslabs: &[(u64, V, S, bool, u64)]) -> u64 {
        let mut rows: BTreeMap<u64, (u64, u64)> =
            self.state.logs.iter().map(|(&txg, log)| (txg, (log.blocks(), 0))).collect();
        for (since, ..) in metaslabs.iter().filter(|metaslab| metaslab.3) {
            rows.entry(*since).or_default().1 += 1;
        }
        let rows: Vec<(u64, u64)> = rows.into_values().collect();
        policy::metaslabs_to_flush(&rows, &self.state.limits)
    }

    #[doc(alias = "metaslab_flush")]
    fn flush_one(&mut self, vdev: &Vdev, metaslab: &Metaslab) -> Result<()> {
        if metaslab.lock().map.object == 0 {
            let map = self.new_map(vdev, metaslab)?;
            metaslab.lock().map = map;
        }
        if self.condense(vdev, metaslab)? {
            return Ok(());
        }
        let mut state = metaslab.lock();
        let before = state.map.head;
        state.flushing = std::mem::take(&mut state.unflushed);
        let mut addition = Addition::to(state.map);
        let unit = (metaslab.ashift, metaslab.start);
        addition.ranges(unit, &state.flushing.allocated, false, None, self.stamp);
        addition.ranges(unit, &state.flushing.freed, true, None, self.stamp);
        state.map.head = addition.map.head;
        self.bump(vdev, metaslab, &mut state, false);
        drop(state);
        self.of.mark_dirty(metaslab, self.stamp.txg);
        let head = addition.write(self.store, &before)?;
        metaslab.lock().map.head = head;
        Ok(())
    }

    /// Logs in which nothing counts any more.
    #[doc(alias = "spa_cleanup_old_sm_logs")]
    fn free_old_logs(&mut self) -> Result<()> {
        let oldest = self.state.unflushed.first().map_or(self.stamp.txg, |&(since, ..)| since);
        let kept = self.state.logs.split_off(&oldest);
        for (txg, log) in std::mem::replace(&mut self.state.logs, kept) {
            let head = log.map.head_size();
            self.store
                .free(&SpaceObject::Log { txg, block_size: log.map.block_size, head }, log.map.object)?;
            self.wrote = true;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<bool> {
        self.write_log()?;
        for (object, words) in std::mem::take(&mut self.arrays) {
            let words: Vec<(u64, u64)> = words.into_iter().collect();
            put_words(self.store.open(object)?.as_mut(), &words)?;
        }
        Ok(self.wrote)
    }

    fn write_log(&mut self) -> Result<()> {
        // A metaslab may not count from a txg that has no log.
        let txg = self.stamp.txg;
        let counts = self.state.unflushed.last().is_some_and(|&(since, ..)| since == txg);
        if self.log.is_empty() && (!counts || self.state.logs.contains_key(&txg)) {
            return Ok(());
        }
        let map = match self.state.logs.get(&txg) {
            Some(log) => log.map,
            None => {
                let block_size = self.state.limits.logged_block;
                let what = SpaceObject::Log { txg, block_size, head: self.head_size() };
                self.create(&what, block_size)?
            }
        };
        let mut addition = Addition::to(map);
        // A log's entries always have two words, of sectors of 512 bytes.
        let stamp = Stamp { two_words: true, ..self.stamp };
        for (vdev, allocated, freed) in &self.log {
            addition.ranges((ondisk::MIN_BLOCK_SHIFT, 0), allocated, false, Some(*vdev), stamp);
            addition.ranges((ondisk::MIN_BLOCK_SHIFT, 0), freed, true, Some(*vdev), stamp);
        }
        let head = addition.write(self.store, &map.head)?;
        self.state.logs.insert(txg, LogRecord { map: MapState { head, ..map } });
        Ok(())
    }
}

impl MetaslabState {
    /// Something of the txg waits to be written.
    fn has_changes(&self, txg: u64) -> bool {
        !txg::of(&self.allocating, txg).is_empty()
            || !self.freeing.is_empty()
            || !self.checkpointing.is_empty()
    }

    fn count(&mut self, allocated: &RangeSet, freed: &RangeSet) {
        self.allocated = self.allocated.saturating_add(allocated.covered()).saturating_sub(freed.covered());
        let signed = |set: &RangeSet| i64::try_from(set.covered()).unwrap_or(i64::MAX);
        self.allocated_now += signed(allocated) - signed(freed);
    }

    /// The map's histogram with `freeing` counted as free too: all free space, allocatable or not. Without a
    /// load, `freeing` is added to the old histogram.
    pub(super) fn histogram(&self, freeing: &RangeSet, ashift: u32) -> [u64; 32] {
        if !self.map.has_histogram {
            return [0; 32];
        }
        let mut histogram = self.map.head.histogram;
        if let Some(free) = &self.free {
            histogram = [0; 32];
            policy::add_histogram(&mut histogram, free.histogram(), ashift);
            for set in self.deferred.iter().map(|(_, set)| set).chain([&self.freed, &self.lent]) {
                policy::add_histogram(&mut histogram, &policy::histogram_of(set.iter()), ashift);
            }
        }
        policy::add_histogram(&mut histogram, &policy::histogram_of(freeing.iter()), ashift);
        histogram
    }

    /// Appends the metaslab's state before this txg: all is allocated, except space that is free, deferred,
    /// or was allocated since.
    pub(super) fn whole(&self, metaslab: &Metaslab, addition: &mut Addition, stamp: Stamp) {
        let unit = (metaslab.ashift, metaslab.start);
        let mut rest = RangeSet::new();
        let sets = self.deferred.iter().map(|(_, set)| set).chain(&self.allocating).chain([&self.lent]);
        sets.flat_map(RangeSet::iter).for_each(|(start, end)| {
            rest.insert(start, end);
        });
        addition.each(unit, std::iter::once((metaslab.start, metaslab.end())), false, None, stamp);
        addition.each(unit, self.free.iter().flat_map(|free| free.iter()), true, None, stamp);
        addition.ranges(unit, &rest, true, None, stamp);
    }
}

impl MapState {
    pub(super) fn head_size(&self) -> usize {
        if self.has_histogram { SpaceMapPhys::SIZE } else { SpaceMapPhys::MIN_SIZE }
    }
}
