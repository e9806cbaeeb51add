//! Writes that a failed flush may have lost on a leaf: the system drops pages that it could not write back, reports that once,
//! and later flushes succeed.
//!
//! Writes of a txg or an intent log are read back or written again where the flush matters. Blocks that a resilver or
//! reconstruction restores belong to txgs long past: the leaf gets a further txg into its DTL, so that the work that is under way
//! does not make it whole, and another resilver follows. A distributed spare has its blocks on the disks of its draid: a failed
//! flush of one of them may lose writes of the spare.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::leaf::{Leaf, LeafState};

/// The failed flushes of a leaf.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// The txg that was next to be on disk when a flush failed last; 0: none has.
    newest: AtomicU64,
    /// Flushes that failed.
    flushes: AtomicU64,
    /// Distributed spares that have rows on the leaf.
    spares: Mutex<Vec<Weak<LeafState>>>,
}

impl Leaf {
    /// Notes that distributed spares have rows on this leaf. Spares of earlier trees remain until they are gone: a tree that is
    /// built is not always taken into use.
    pub(super) fn carry(&self, spares: &[Arc<Self>]) {
        let mut carried = self.doubt.spares.lock();
        carried.retain(|known| known.strong_count() > 0);
        for spare in spares {
            let state = Arc::downgrade(&spare.state);
            if !carried.iter().any(|known| known.ptr_eq(&state)) {
                carried.push(state);
            }
        }
    }
}

impl LeafState {
    /// Notes a flush that failed while `next` was the next txg to be on disk.
    pub(super) fn flush_failed(&self, next: u64) {
        self.doubt.newest.fetch_max(next, Ordering::AcqRel);
        self.doubt.flushes.fetch_add(1, Ordering::AcqRel);
        self.doubt_restored(next);
        let carried = self.doubt.spares.lock();
        carried.iter().filter_map(Weak::upgrade).for_each(|spare| spare.doubt_restored(next));
    }

    /// Whether a flush has failed since the txg `since` was the next to be on disk.
    pub(crate) fn is_doubted(&self, since: u64) -> bool {
        let newest = self.doubt.newest.load(Ordering::Acquire);
        // The txg before may have reached the disk while that flush was under way.
        newest != 0 && newest.saturating_add(1) >= since
    }

    /// Flushes that have failed.
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.doubt.flushes.load(Ordering::Acquire)
    }

    /// Doubts the blocks that a resilver has restored: a failed flush may have lost them. A resilver that began before the txg
    /// after `next` does not make the leaf whole.
    pub(crate) fn doubt_restored(&self, next: u64) {
        let is_filled = !self.dtl.read().is_empty();
        if is_filled {
            self.miss(next.saturating_add(1));
        }
    }
}
