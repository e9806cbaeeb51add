//! The pool's scan, a scrub or a resilver, as the MOS holds it, and the effects of dataset changes on it.
//!
//! The state stands under `scan` in the MOS directory; a ZAP that it names holds the datasets still to be scanned, each
//! with the txg after which its blocks count. Both are read and written in syncing context only, and nothing of them is
//! kept in memory, so that the state of a txg is always that of the datasets of the same txg.
//!
//! A dataset that goes away, or changes its number or its contents, takes its place in the scan along: the place, the
//! queue, or both name another dataset from then on.
//!
//! Format source: dsl_scan.c (`dsl_scan_ds_destroyed`, `dsl_scan_ds_snapshotted`, `dsl_scan_ds_clone_swapped`), OpenZFS 2.3.

use ondisk::dsl::DslDataset;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::DslScan;
use ondisk::{Bookmark, ObjectType};

use super::mos_tx::{MosTx, MosView};
use crate::error::Result;
use crate::zap::{Value, int_name};

/// No dataset has this number: the place is between two datasets.
#[doc(alias = "ZB_DESTROYED_OBJSET")]
pub(crate) const BETWEEN: u64 = u64::MAX;
/// The dataset at hand is visited once more.
#[doc(alias = "DSF_VISIT_DS_AGAIN")]
pub(crate) const VISIT_AGAIN: u64 = 1 << 0;
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
pub fn create_queue(at: &MosTx<'_>) -> Result<u64> {
    at.create_zap(ObjectType::SCAN_QUEUE)
}

/// Puts a dataset into the queue, or changes the txg after which its blocks count.
pub fn enqueue(at: &MosTx<'_>, scan: &DslScan, dataset: u64, after: u64) -> Result<()> {
    at.zap_set(scan.queue_obj, &int_name(dataset), after)
}

/// Takes a dataset out of the queue; returns the txg after which its blocks count.
pub fn dequeue(at: &MosTx<'_>, scan: &DslScan, dataset: u64) -> Result<Option<u64>> {
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

/// The next dataset of the queue, which keeps it.
pub fn first_queued(at: &MosTx<'_>, scan: &DslScan) -> Result<Option<(u64, u64)>> {
    let Some(entry) = at.zap_first(scan.queue_obj)? else { return Ok(None) };
    let number = u64::from_str_radix(&entry.name_lossy(), 16);
    match (number, entry.value.first()) {
        (Ok(number), Some(after)) => Ok(Some((number, after))),
        _ => Err(at.corrupt(scan.queue_obj, "the queue of the scan has an entry that names no dataset")),
    }
}

/// A dataset is about to be destroyed.
#[doc(alias = "dsl_scan_ds_destroyed")]
pub(super) fn destroyed(at: &MosTx<'_>, number: u64, phys: &DslDataset) -> Result<()> {
    let Some(mut scan) = running(at)? else { return Ok(()) };
    let next = phys.is_snapshot().then_some(phys.next_snap_obj);
    if scan.bookmark.objset == number {
        match next {
            // Its surviving blocks belong to the next snapshot, or to the head.
            Some(next) => {
                scan.bookmark.objset = next;
                scan.flags |= VISIT_AGAIN;
            }
            None => scan.bookmark = Bookmark { objset: BETWEEN, object: 0, level: 0, blkid: 0 },
        }
        store(at, &scan)?;
    }
    match (dequeue(at, &scan, number)?, next) {
        (Some(after), Some(next)) => enqueue(at, &scan, next, after),
        _ => Ok(()),
    }
}

/// A head has a new snapshot, which owns its blocks from now on.
#[doc(alias = "dsl_scan_ds_snapshotted")]
pub(super) fn snapshotted(at: &MosTx<'_>, head: u64, snapshot: u64) -> Result<()> {
    let Some(mut scan) = running(at)? else { return Ok(()) };
    if scan.bookmark.objset == head {
        scan.bookmark.objset = snapshot;
        store(at, &scan)?;
    }
    match dequeue(at, &scan, head)? {
        Some(after) => enqueue(at, &scan, snapshot, after),
        None => Ok(()),
    }
}

/// Two heads have changed contents.
#[doc(alias = "dsl_scan_ds_clone_swapped")]
pub(super) fn swapped(at: &MosTx<'_>, a: u64, b: u64) -> Result<()> {
    let Some(mut scan) = running(at)? else { return Ok(()) };
    let other = match scan.bookmark.objset {
        number if number == a => Some(b),
        number if number == b => Some(a),
        _ => None,
    };
    if let Some(other) = other {
        scan.bookmark.objset = other;
        store(at, &scan)?;
    }
    let (of_a, of_b) = (dequeue(at, &scan, a)?, dequeue(at, &scan, b)?);
    of_a.map_or(Ok(()), |after| enqueue(at, &scan, b, after))?;
    of_b.map_or(Ok(()), |after| enqueue(at, &scan, a, after))
}
