//! A transaction: a hold on the open transaction group, within which objects are changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::txg::{Hold, SIZE, Txgs, slot};

/// Bytes changed and not yet written, by transaction group.
#[derive(Debug, Default)]
pub struct Dirty {
    slots: [AtomicU64; SIZE],
}

impl Dirty {
    fn cell(&self, txg: u64) -> Option<&AtomicU64> {
        self.slots.get(slot(txg))
    }

    /// Adds what a transaction changed.
    pub fn add(&self, txg: u64, bytes: u64) {
        if let Some(cell) = self.cell(txg) {
            cell.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Forgets a group that has been written.
    pub fn clear(&self, txg: u64) {
        if let Some(cell) = self.cell(txg) {
            cell.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes of one group.
    pub fn of(&self, txg: u64) -> u64 {
        self.cell(txg).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Bytes of all groups.
    pub fn total(&self) -> u64 {
        self.slots.iter().map(|cell| cell.load(Ordering::Relaxed)).sum()
    }
}

/// Bytes changed in the last groups. Those of a group count until it is on disk, whose room is known only then: so
/// nobody clears them, and a newer group takes the place.
#[derive(Debug, Default)]
pub struct Changed {
    slots: Mutex<[(u64, u64); SIZE]>,
}

impl Changed {
    /// Adds what a transaction changed.
    pub fn add(&self, txg: u64, bytes: u64) {
        if let Some((of, sum)) = self.slots.lock().get_mut(slot(txg)) {
            *sum = if *of == txg { sum.saturating_add(bytes) } else { bytes };
            *of = txg;
        }
    }

    /// Bytes of all groups after `synced`.
    pub fn after(&self, synced: u64) -> u64 {
        self.slots.lock().iter().filter(|(of, _)| *of > synced).map(|(_, sum)| sum).sum()
    }
}

/// A transaction. Changes made under it reach the disk together with all others of its group; it ends when it
/// is dropped.
#[derive(Debug)]
pub struct Tx {
    txg: u64,
    dirty: Arc<Dirty>,
    /// `None` in syncing context, where the group can't end under us.
    hold: Option<Hold>,
}

impl Tx {
    /// A transaction in the group that is open now.
    pub fn begin(txgs: &Arc<Txgs>, dirty: &Arc<Dirty>) -> Self {
        let hold = txgs.begin();
        Self { txg: hold.txg(), dirty: Arc::clone(dirty), hold: Some(hold) }
    }

    /// The transaction of the sync thread, in the group that is being written.
    pub fn syncing(txg: u64, dirty: &Arc<Dirty>) -> Self {
        Self { txg, dirty: Arc::clone(dirty), hold: None }
    }

    /// Its group.
    pub fn txg(&self) -> u64 {
        self.txg
    }

    /// True for the sync thread's own.
    pub fn is_syncing(&self) -> bool {
        self.hold.is_none()
    }

    /// Counts changed bytes.
    pub(crate) fn dirtied(&self, bytes: usize) {
        self.dirty.add(self.txg, u64::try_from(bytes).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::Changed;

    #[test]
    fn what_a_group_changed_counts_until_it_is_on_disk() {
        let changed = Changed::default();
        for (txg, bytes) in [(7, 10), (8, 200), (8, 300), (9, 4000)] {
            changed.add(txg, bytes);
        }
        assert_eq!([6, 7, 8, 9].map(|synced| changed.after(synced)), [4510, 4500, 4000, 0]);
        changed.add(11, 1);
        assert_eq!(changed.after(9), 1, "group 7 had the place");
    }
}
