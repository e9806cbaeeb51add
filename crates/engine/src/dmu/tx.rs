//! A transaction: a hold on the open transaction group, within which objects are changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::dirty::needs::Needs;
use crate::txg::{Hold, SIZE, Txgs, slot};

/// Bytes of memory that a changed block takes besides its content until it is written: its place in the change and in
/// the sync's copy of that, old and new pointer in the lists of what is born and killed, and the same for an indirect
/// block above it that no other changed block shares.
const BLOCK: u64 = 2560;
/// Bytes of memory that a changed object takes until it is written: its dnode as it was, is, and will be, what changed
/// in it, and what a file system keeps of it.
const OBJECT: u64 = 8192;
/// Buffers begin at pages.
const PAGE: u64 = 4096;

/// What was changed and is not written yet, by transaction group: bytes of blocks, which tell how much space is needed,
/// and the memory that all of it takes, which is many times that of small blocks.
#[derive(Debug, Default)]
pub struct Dirty {
    slots: [AtomicU64; SIZE],
    memory: [AtomicU64; SIZE],
    /// Blocks that transactions free.
    freed: [AtomicU64; SIZE],
    /// Blocks that will be written: bytes, and how many.
    needs: [[AtomicU64; SIZE]; 2],
}

fn add(cells: &[AtomicU64; SIZE], txg: u64, bytes: u64) {
    if let Some(cell) = cells.get(slot(txg)) {
        cell.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn sum(cells: &[AtomicU64; SIZE]) -> u64 {
    cells.iter().map(|cell| cell.load(Ordering::Relaxed)).fold(0, u64::saturating_add)
}

/// Bytes that a block takes in memory from the transaction that frees it until its group is on disk.
pub const FREED_BLOCK: u64 = 256;

impl Dirty {
    /// Adds a block that a transaction changed.
    pub fn add(&self, txg: u64, bytes: u64) {
        add(&self.slots, txg, bytes);
        add(&self.memory, txg, bytes.next_multiple_of(PAGE).saturating_add(BLOCK));
    }

    /// Adds an object that the group did not change yet.
    pub fn add_object(&self, txg: u64) {
        add(&self.memory, txg, OBJECT);
    }

    /// Forgets a group that has been written.
    pub fn clear(&self, txg: u64) {
        for cells in [&self.slots, &self.memory, &self.freed].into_iter().chain(&self.needs) {
            if let Some(cell) = cells.get(slot(txg)) {
                cell.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Adds blocks that a transaction frees.
    fn add_freed(&self, txg: u64, blocks: u64) {
        add(&self.freed, txg, blocks);
        add(&self.memory, txg, blocks.saturating_mul(FREED_BLOCK));
    }

    /// Blocks that transactions of one group free.
    pub fn freed(&self, txg: u64) -> u64 {
        self.freed.get(slot(txg)).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Blocks that all groups will write.
    pub fn needs(&self) -> Needs {
        let [bytes, blocks] = &self.needs;
        Needs { bytes: sum(bytes), blocks: sum(blocks) }
    }

    /// Bytes of blocks of all groups.
    pub fn total(&self) -> u64 {
        sum(&self.slots)
    }

    /// Bytes of memory that one group takes.
    pub fn memory_of(&self, txg: u64) -> u64 {
        self.memory.get(slot(txg)).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Bytes of memory that all groups take.
    pub fn memory(&self) -> u64 {
        sum(&self.memory)
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

    /// Counts blocks that are freed, as far as that is known: groups free a bounded number.
    #[doc(alias = "dmu_tx_count_free")]
    pub fn frees(&self, blocks: u64) {
        self.dirty.add_freed(self.txg, blocks);
    }

    /// Counts changed bytes.
    pub(crate) fn dirtied(&self, bytes: usize) {
        self.dirty.add(self.txg, u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// Counts blocks that its group has to write.
    pub(crate) fn needs(&self, needs: Needs) {
        let [bytes, blocks] = &self.dirty.needs;
        add(bytes, self.txg, needs.bytes);
        add(blocks, self.txg, needs.blocks);
    }

    /// Counts an object that its group changes for the first time.
    pub(crate) fn dirtied_object(&self) {
        self.dirty.add_object(self.txg);
    }
}

#[cfg(test)]
mod tests {
    use super::{Changed, Dirty};

    #[test]
    fn small_blocks_and_objects_count_with_the_memory_that_they_take() {
        let dirty = Dirty::default();
        (0..1000).for_each(|_| dirty.add(5, 512));
        dirty.add(6, 1 << 20);
        assert_eq!(dirty.total(), 512_000 + (1 << 20));
        assert!(dirty.memory_of(5) > 4_096_000 && dirty.memory_of(6) < 1_100_000);
        dirty.clear(5);
        dirty.add_object(6);
        assert_eq!((dirty.total(), dirty.memory()), (1 << 20, dirty.memory_of(6)));
        assert!(dirty.memory() > (1 << 20) + 4096);
    }

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
