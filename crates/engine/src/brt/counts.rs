//! Counters of changes of clone tables, as OpenZFS has them in `zfs/brtstats`.
//!
//! Differs from OpenZFS: entries are kept in the blocks of their ZAP alone, so none is in memory besides, and no read races
//! with one that comes there.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a pool since it was opened.
#[doc(alias = "brt_stats_t")]
#[derive(Debug, Default)]
pub(crate) struct BrtCounts {
    /// Blocks with new references that a table had, and those of regions with entries that it did not have.
    pub(super) added: [AtomicU64; 2],
    /// Frees of blocks with an entry that keeps references, with one that ends, and without one.
    pub(super) ended: [AtomicU64; 3],
}

pub(super) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl BrtCounts {
    /// Names and values, in OpenZFS's order.
    pub(crate) fn all(&self) -> [(&'static str, u64); 10] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [on_disk, not_on_disk] = self.added.each_ref().map(get);
        let [kept, last, none] = self.ended.each_ref().map(get);
        [
            ("addref_entry_not_on_disk", not_on_disk),
            ("addref_entry_on_disk", on_disk),
            ("decref_entry_in_memory", 0),
            ("decref_entry_loaded_from_disk", kept + last),
            ("decref_entry_not_in_memory", kept + last + none),
            ("decref_entry_read_lost_race", 0),
            ("decref_entry_still_referenced", kept),
            ("decref_free_data_later", last),
            ("decref_free_data_now", 0),
            ("decref_no_entry", none),
        ]
    }
}
