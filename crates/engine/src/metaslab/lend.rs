//! Free space lent out: nothing is allocated from it while something is done to it that must not touch a block.
//!
//! Initialize and trim walk over free ranges and write there, or trim the device. A range in work is taken
//! out of the allocatable ranges of its metaslab, and put back afterwards; the rest of the metaslab stays in
//! use. On disk it is free all the time.
//!
//! Differs from OpenZFS, which takes a whole metaslab out of use meanwhile (`metaslab_disable`).

use std::sync::atomic::Ordering;

use stdx::RangeSet;

use super::allocator::SpaceAllocator;
use super::unit::Metaslab;

impl SpaceAllocator {
    /// Lends the first free range of the vdev at or after `from`, of at most `most` bytes, to `work`; returns the range and
    /// what `work` returned. `None` when nothing is free there. Metaslabs that cannot be read are skipped.
    pub(crate) fn with_free<T>(
        &self,
        vdev: u64,
        from: u64,
        most: u64,
        only_used: bool,
        work: impl FnOnce(u64, u64) -> T,
    ) -> Option<((u64, u64), T)> {
        let vdev = self.vdev(vdev)?;
        for metaslab in vdev.metaslabs.iter().filter(|metaslab| metaslab.end() > from) {
            if only_used && metaslab.lock().map.object == 0 {
                continue;
            }
            let was_loaded = metaslab.is_loaded();
            self.load(metaslab);
            if let Some((start, end)) = metaslab.lend(from, most) {
                let done = work(start, end);
                self.take_back(metaslab, start, end);
                return Some(((start, end), done));
            }
            if !was_loaded && metaslab.unload() {
                self.note_freed();
            }
        }
        None
    }

    /// Whether space that becomes free is noted for [`SpaceAllocator::with_freed`].
    pub(crate) fn set_trims(&self, on: bool) {
        self.trims.store(on, Ordering::Relaxed);
        if !on {
            let vdevs = self.all_vdevs();
            vdevs
                .iter()
                .flat_map(|vdev| &vdev.metaslabs)
                .for_each(|metaslab| metaslab.lock().to_trim = RangeSet::new());
        }
    }

    /// Lends the ranges that were freed on the vdev since the last call, and are still free, to `work`, one
    /// by one.
    #[doc(alias = "ms_trim")]
    pub(crate) fn with_freed(&self, vdev: u64, work: &mut dyn FnMut(u64, u64)) {
        for metaslab in self.vdev(vdev).iter().flat_map(|vdev| &vdev.metaslabs) {
            let freed = std::mem::take(&mut metaslab.lock().to_trim);
            if !freed.is_empty() {
                self.load(metaslab);
                self.with_these(metaslab, &freed, work);
            }
        }
    }

    /// Lends those parts of `wanted`, in one metaslab, that are free.
    fn with_these(&self, metaslab: &Metaslab, wanted: &RangeSet, work: &mut dyn FnMut(u64, u64)) {
        for (mut from, end) in wanted.iter() {
            while from < end {
                let Some((start, until)) = metaslab.lend(from, end - from) else { break };
                if start < end {
                    work(start, until.min(end));
                }
                self.take_back(metaslab, start, until);
                from = until;
            }
        }
    }

    fn take_back(&self, metaslab: &Metaslab, start: u64, end: u64) {
        metaslab.take_back(start, end);
        // An allocation may have found too little meanwhile.
        self.note_freed();
    }
}

impl Metaslab {
    /// Takes the first free range at or after `from` out of the allocatable ranges.
    fn lend(&self, from: u64, most: u64) -> Option<(u64, u64)> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let free = state.free.as_mut()?;
        let (start, end) = free.iter_from(from).next()?;
        let end = end.min(start.saturating_add(most));
        free.remove(start, end);
        self.set_largest(free.largest());
        state.lent.insert(start, end);
        Some((start, end))
    }

    fn take_back(&self, start: u64, end: u64) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.lent.remove(start, end);
        if let Some(free) = &mut state.free {
            free.insert(start, end);
        }
        self.reweigh(state);
    }
}
