//! A transaction: a hold on the open txg, within which objects are changed.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::dirty::needs::Needs;
use crate::txg::{SIZE, TxgHold, Txgs, slot};

/// Bytes of memory for a changed block besides its content until it is written: its entry in the change and in the
/// sync's copy of that, old and new pointer in the lists of born and killed blocks, and the same for an indirect
/// block above it that no other changed block shares.
const BLOCK: u64 = 2560;
/// Bytes of memory for a changed object until it is written: its previous, present and future dnode, its changes,
/// and the file system's state for it.
const OBJECT: u64 = 8192;
/// Buffers begin at pages.
const PAGE: u64 = 4096;

/// Unwritten changes by txg: bytes of blocks, which determine the needed space, and their memory, which is many
/// times larger for small blocks.
#[derive(Debug, Default)]
pub struct DirtyData {
    slots: [AtomicU64; SIZE],
    memory: [AtomicU64; SIZE],
    /// Blocks that transactions free.
    freed: [AtomicU64; SIZE],
    /// Blocks that will be written: bytes, and number.
    needs: [[AtomicU64; SIZE]; 2],
    /// Blocks that transactions clone.
    clones: [AtomicU64; SIZE],
    /// Bytes of all [`Reserved`], and of those whose transactions have memory for them.
    reserved: AtomicU64,
    held: AtomicU64,
    /// Changes until a transaction breaks off; 0: none does. See [`DirtyData::break_off_after`].
    breaks_off: AtomicU64,
}

fn add(cells: &[AtomicU64; SIZE], txg: u64, bytes: u64) {
    if let Some(cell) = cells.get(slot(txg)) {
        cell.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn sum(cells: &[AtomicU64; SIZE]) -> u64 {
    cells.iter().map(|cell| cell.load(Ordering::Relaxed)).fold(0, u64::saturating_add)
}

/// Bytes of memory for a block from the transaction that frees it until its txg is on disk.
pub(crate) const FREED_BLOCK: u64 = 256;

impl DirtyData {
    /// For tests of panic recovery: the `count`th change of an object from now on panics within its
    /// transaction. 0: none.
    pub(crate) fn break_off_after(&self, count: u64) {
        self.breaks_off.store(count, Ordering::Relaxed);
    }

    /// Adds a block that a transaction changed.
    pub(crate) fn add(&self, txg: u64, bytes: u64) {
        add(&self.slots, txg, bytes);
        add(&self.memory, txg, bytes.next_multiple_of(PAGE).saturating_add(BLOCK));
    }

    /// Adds an object that the txg has not changed yet.
    pub(crate) fn add_object(&self, txg: u64) {
        add(&self.memory, txg, OBJECT);
    }

    /// Clears a txg that has been written.
    pub(crate) fn clear(&self, txg: u64) {
        for cells in [&self.slots, &self.memory, &self.freed, &self.clones].into_iter().chain(&self.needs) {
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

    /// Blocks freed by transactions of one txg.
    pub(crate) fn freed(&self, txg: u64) -> u64 {
        self.freed.get(slot(txg)).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Blocks that transactions of one txg cloned; later ones may have replaced some.
    pub(crate) fn clones(&self, txg: u64) -> u64 {
        self.clones.get(slot(txg)).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Blocks that all txgs will write.
    pub(crate) fn needs(&self) -> Needs {
        let [bytes, blocks] = &self.needs;
        Needs { bytes: sum(bytes), blocks: sum(blocks) }
    }

    /// Bytes of blocks of all txgs.
    pub fn total(&self) -> u64 {
        sum(&self.slots)
    }

    /// Reserves bytes of blocks for a transaction; returns those reserved by others, too.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> (Reserved, u64) {
        // Most transactions reserve none, and leave the counter to the others.
        let others = match bytes {
            0 => self.reserved.load(Ordering::Relaxed),
            bytes => self.reserved.fetch_add(bytes, Ordering::Relaxed),
        };
        (Reserved { dirty: Arc::clone(self), bytes, is_held: false }, others)
    }

    /// Bytes of memory of one txg.
    pub(crate) fn memory_of(&self, txg: u64) -> u64 {
        self.memory.get(slot(txg)).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Bytes of memory of all txgs.
    pub(crate) fn memory(&self) -> u64 {
        sum(&self.memory)
    }
}

/// Bytes of blocks that a transaction may still change. They count as changed until it ends, so that transactions which begin at the
/// same time do not all get the same space and the same memory.
#[doc(alias = "dsl_dir_tempreserve_space")]
#[derive(Debug)]
pub struct Reserved {
    dirty: Arc<DirtyData>,
    bytes: u64,
    is_held: bool,
}

impl Reserved {
    /// Takes memory for them, unless the memory of all other changes reaches `most`; true once it has.
    pub(crate) fn hold(&mut self, most: u64) -> bool {
        if !self.is_held && self.bytes > 0 {
            let others = self.dirty.held.fetch_add(self.bytes, Ordering::Relaxed);
            self.is_held = self.dirty.memory().saturating_add(others) < most;
            if !self.is_held {
                self.dirty.held.fetch_sub(self.bytes, Ordering::Relaxed);
            }
        }
        self.is_held || self.bytes == 0
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        self.dirty.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.is_held {
            self.dirty.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Changes of the last txgs. They are charged until their txg is on disk; only then is the allocation known. Nothing is
/// cleared: a newer txg replaces an older one.
#[derive(Debug, Default)]
pub(crate) struct Unsynced<T> {
    slots: Mutex<[(u64, T); SIZE]>,
}

impl<T: Copy + Default + AddAssign> Unsynced<T> {
    /// Adds the changes of a transaction.
    pub(crate) fn add(&self, txg: u64, more: T) {
        if let Some((of, sum)) = self.slots.lock().get_mut(slot(txg)) {
            if *of != txg {
                (*of, *sum) = (txg, T::default());
            }
            *sum += more;
        }
    }

    /// The sum of all txgs after `synced`.
    pub(crate) fn after(&self, synced: u64) -> T {
        let mut all = T::default();
        self.slots.lock().iter().filter(|(of, _)| *of > synced).for_each(|(_, sum)| all += *sum);
        all
    }
}

/// A transaction. Changes made under it reach the disk together with all others of its txg; it ends when it is
/// dropped.
#[derive(Debug)]
pub struct Tx {
    txg: u64,
    dirty: Arc<DirtyData>,
    /// `None` in syncing context, where the txg cannot end during the transaction.
    hold: Option<TxgHold>,
    changes: AtomicU64,
    /// Returned when the transaction ends: all its changes are counted by then.
    _reserved: Option<Reserved>,
}

impl Tx {
    /// A transaction in the currently open txg.
    pub(crate) fn begin(txgs: &Arc<Txgs>, dirty: &Arc<DirtyData>) -> Self {
        Self::begin_reserved(txgs, dirty, None)
    }

    /// The same with space and memory that were reserved for it.
    pub(crate) fn begin_reserved(
        txgs: &Arc<Txgs>,
        dirty: &Arc<DirtyData>,
        reserved: Option<Reserved>,
    ) -> Self {
        let hold = txgs.begin();
        let (txg, changes) = (hold.txg(), AtomicU64::new(0));
        Self { txg, dirty: Arc::clone(dirty), hold: Some(hold), changes, _reserved: reserved }
    }

    /// The transaction of the sync thread, in the syncing txg.
    pub(crate) fn syncing(txg: u64, dirty: &Arc<DirtyData>) -> Self {
        Self { txg, dirty: Arc::clone(dirty), hold: None, changes: AtomicU64::new(0), _reserved: None }
    }

    /// Its txg.
    pub fn txg(&self) -> u64 {
        self.txg
    }

    /// Whether it is the sync thread's own.
    pub(crate) fn is_syncing(&self) -> bool {
        self.hold.is_none()
    }

    /// Number of changes of objects made so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Called before each change of an object: counts it, and unwinds where [`DirtyData::break_off_after`] says so.
    pub(crate) fn begins_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        let left = &self.dirty.breaks_off;
        if left.load(Ordering::Relaxed) > 0 && !self.is_syncing() && left.fetch_sub(1, Ordering::Relaxed) == 1
        {
            std::panic::resume_unwind(Box::new("a change breaks off"));
        }
    }

    /// Counts freed blocks, as far as known: a txg frees a bounded number.
    #[doc(alias = "dmu_tx_count_free")]
    pub fn frees(&self, blocks: u64) {
        self.dirty.add_freed(self.txg, blocks);
    }

    /// Counts a cloned block.
    pub(crate) fn cloned(&self) {
        add(&self.dirty.clones, self.txg, 1);
    }

    /// Counts changed bytes.
    pub(crate) fn dirtied(&self, bytes: usize) {
        self.dirty.add(self.txg, u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// Counts blocks that its txg has to write.
    pub(crate) fn needs(&self, needs: Needs) {
        let [bytes, blocks] = &self.dirty.needs;
        add(bytes, self.txg, needs.bytes);
        add(blocks, self.txg, needs.blocks);
    }

    /// Counts an object that its txg changes for the first time.
    pub(crate) fn dirtied_object(&self) {
        self.dirty.add_object(self.txg);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_and_objects_count_with_the_memory_that_they_take() {
        let dirty = DirtyData::default();
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
    fn reserved_bytes_count_until_their_transaction_ends() {
        let dirty = Arc::new(DirtyData::default());
        let (mut one, before) = dirty.reserve(100);
        let (mut other, others) = dirty.reserve(50);
        assert_eq!((before, others), (0, 100));
        assert!(one.hold(80), "a single one may exceed the limit");
        assert!(!other.hold(80) && one.hold(80));
        drop(one);
        assert!(other.hold(80));
        drop(other);
        assert_eq!(dirty.reserve(1).1, 0);
        assert_eq!(dirty.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn changes_of_a_txg_count_until_it_is_on_disk() {
        let changed = Unsynced::default();
        for (txg, bytes) in [(7, 10_u64), (8, 200), (8, 300), (9, 4000)] {
            changed.add(txg, bytes);
        }
        assert_eq!([6, 7, 8, 9].map(|synced| changed.after(synced)), [4510, 4500, 4000, 0]);
        changed.add(11, 1);
        assert_eq!(changed.after(9), 1, "txg 7 had the place");
    }
}
