//! The pool's scan, a scrub or a resilver, as the MOS holds it, and the effects of dataset changes on it.
//!
//! The state stands under `scan` in the MOS directory; a ZAP that it names holds the datasets still to be scanned, each
//! with the txg after which its blocks count. Both are read and written in syncing context only. The place is one before which
//! all blocks have been read: while blocks are gathered to be read in device order, a later state is in memory only.
//!
//! A dataset that goes away, or changes its number or its contents, takes its place in the scan along: the place, the
//! queue, or both name another dataset from then on.
//!
//! Format source: dsl_scan.c (`dsl_scan_ds_destroyed`, `dsl_scan_ds_snapshotted`, `dsl_scan_ds_clone_swapped`), OpenZFS 2.3.

use std::collections::BTreeMap;

use ondisk::ObjectType;
use ondisk::dsl::DslDataset;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::DslScan;

use super::mos_tx::{MosTx, MosView};
use super::scan_moves::{DatasetMove, ScanQueue};
use crate::error::Result;
use crate::zap::{Value, int_name};

/// The scan waits for its administrator.
#[doc(alias = "DSF_SCRUB_PAUSED")]
pub(crate) const PAUSED: u64 = 1 << 1;
/// `dsl_scan_state_t`: under way.
pub const SCANNING: u64 = 1;

/// The scan under way or the last one; `None` in a pool that never had one.
///
/// # Errors
/// When the MOS cannot be read. A state that cannot be decoded counts as none.
pub fn load(at: &MosView<'_>) -> Result<Option<DslScan>> {
    let value = at.zap_get(MOS_DIRECTORY_OBJECT, mos::SCAN)?;
    Ok(value.and_then(|value| DslScan::from_words(&value.ints).ok()))
}

/// Writes the state.
#[doc(alias = "dsl_scan_sync_state")]
pub fn store(at: &MosTx<'_>, scan: &DslScan) -> Result<()> {
    let words = scan.to_bytes();
    let words: Vec<u64> = words.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    at.zap_set(MOS_DIRECTORY_OBJECT, mos::SCAN, Value::from(words))
}

/// The scan under way, if there is one; a paused one counts.
pub fn running(at: &MosView<'_>) -> Result<Option<DslScan>> {
    Ok(load(at)?.filter(|scan| scan.state == SCANNING))
}

/// Makes the queue of a scan that begins.
pub(crate) fn create_queue(at: &MosTx<'_>) -> Result<u64> {
    at.create_zap(ObjectType::SCAN_QUEUE)
}

/// Puts a dataset into the queue, or changes the txg after which its blocks count.
fn enqueue(at: &MosTx<'_>, scan: &DslScan, dataset: u64, after: u64) -> Result<()> {
    at.zap_set(scan.queue_obj, &int_name(dataset), after)
}

/// Takes a dataset out of the queue; returns the txg after which its blocks count.
fn dequeue(at: &MosTx<'_>, scan: &DslScan, dataset: u64) -> Result<Option<u64>> {
    if scan.queue_obj == 0 {
        return Ok(None);
    }
    let key = int_name(dataset);
    let after = at.zap_word(scan.queue_obj, &key)?;
    if after.is_some() {
        at.zap_remove(scan.queue_obj, &key)?;
    }
    Ok(after)
}

/// Makes the queue on disk contain these datasets, each with the txg after which its blocks count.
#[doc(alias = "scan_ds_queue_sync")]
pub(crate) fn store_queue(at: &MosTx<'_>, scan: &DslScan, queue: &BTreeMap<u64, u64>) -> Result<()> {
    let stored = load_queue(at, scan)?;
    for (dataset, _) in stored.iter().filter(|(dataset, _)| !queue.contains_key(*dataset)) {
        at.zap_remove(scan.queue_obj, &int_name(*dataset))?;
    }
    let changed = queue.iter().filter(|(dataset, after)| stored.get(*dataset) != Some(*after));
    changed.into_iter().try_for_each(|(dataset, after)| enqueue(at, scan, *dataset, *after))
}

/// The datasets in the queue on disk.
pub(crate) fn load_queue(at: &MosTx<'_>, scan: &DslScan) -> Result<BTreeMap<u64, u64>> {
    let mut queue = BTreeMap::new();
    for entry in at.zap_entries(scan.queue_obj)? {
        let number = u64::from_str_radix(&entry.name_lossy(), 16);
        let (Ok(number), Some(after)) = (number, entry.value.first()) else {
            return Err(
                at.corrupt(scan.queue_obj, "the queue of the scan has an entry that names no dataset")
            );
        };
        queue.insert(number, after);
    }
    Ok(queue)
}

/// The queue on disk.
struct Stored<'a>(&'a MosTx<'a>, DslScan);

impl ScanQueue for Stored<'_> {
    fn take(&mut self, dataset: u64) -> Result<Option<u64>> {
        dequeue(self.0, &self.1, dataset)
    }

    fn put(&mut self, dataset: u64, after: u64) -> Result<()> {
        enqueue(self.0, &self.1, dataset, after)
    }
}

/// Datasets change: the scan under way follows.
fn moved(at: &MosTx<'_>, moved: DatasetMove) -> Result<()> {
    let Some(mut scan) = running(at)? else { return Ok(()) };
    if moved.place(&mut scan) {
        store(at, &scan)?;
    }
    moved.queue(&mut Stored(at, scan))?;
    at.hooks.scan_moved(moved)
}

/// A dataset is about to be destroyed.
pub(super) fn destroyed(at: &MosTx<'_>, number: u64, phys: &DslDataset) -> Result<()> {
    moved(at, DatasetMove::Destroyed(number, phys.is_snapshot().then_some(phys.next_snap_obj)))
}

/// A head has a new snapshot.
pub(super) fn snapshotted(at: &MosTx<'_>, head: u64, snapshot: u64) -> Result<()> {
    moved(at, DatasetMove::Snapshotted(head, snapshot))
}

/// Two heads have changed contents.
pub(super) fn swapped(at: &MosTx<'_>, a: u64, b: u64) -> Result<()> {
    moved(at, DatasetMove::Swapped(a, b))
}
