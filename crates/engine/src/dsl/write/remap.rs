//! Pointers to removed vdevs that OpenZFS has replaced in a head, while snapshots still have the old ones.
//!
//! A head's *remap deadlist* records the replaced places by birth, as its deadlist records dead blocks. A
//! snapshot takes it over; with the last snapshot that had the old pointers the places become obsolete on the
//! removed vdev. The bytes themselves belong to the block, and are freed with that.
//!
//! Differs from OpenZFS: nothing is remapped here, so no new entries are made.

use std::ops::ControlFlow;

use ondisk::dsl::DslDataset;
use ondisk::names::{MOS_DIRECTORY_OBJECT, dsl_dataset, mos};
use zcommon::features::Feature;

use super::lists;
use super::mos_tx::{MosTx, MosView};
use crate::dsl::bpobj::BlockList;
use crate::dsl::deadlist::DeadList;
use crate::error::Result;

/// A dataset's remap deadlist.
pub(super) fn list(at: &MosView<'_>, dataset: u64) -> Result<Option<u64>> {
    Ok(at.extra(dataset, dsl_dataset::REMAP_DEADLIST)?.and_then(|value| value.first()))
}

/// A new snapshot of `head` has the old pointers from now on.
pub(super) fn snapshotted(at: &MosTx<'_>, head: u64, snapshot: u64) -> Result<()> {
    let Some(number) = list(at, head)? else { return Ok(()) };
    at.zap_remove(head, dsl_dataset::REMAP_DEADLIST)?;
    at.set_extra(snapshot, dsl_dataset::REMAP_DEADLIST, number)
}

/// A dataset's remap deadlist goes with it.
#[doc(alias = "dsl_dataset_destroy_remap_deadlist")]
pub(super) fn destroy(at: &MosTx<'_>, dataset: u64) -> Result<()> {
    let Some(number) = list(at, dataset)? else { return Ok(()) };
    DeadList::open(at, number)?.free()?;
    forget(at, dataset)
}

/// A dataset has no remap deadlist any more.
fn forget(at: &MosTx<'_>, dataset: u64) -> Result<()> {
    at.zap_remove(dataset, dsl_dataset::REMAP_DEADLIST)?;
    at.count(Feature::ObsoleteCounts, -1)
}

/// A snapshot is destroyed: places that only it had become obsolete, the others move to the next one.
#[doc(alias = "dsl_destroy_snapshot_handle_remaps")]
pub(super) fn snapshot_destroyed(at: &MosTx<'_>, number: u64, snap: &DslDataset) -> Result<()> {
    if let Some(next) = list(at, snap.next_snap_obj)? {
        let obsolete = BlockList::open(at, obsolete_list(at)?)?;
        DeadList::open(at, next)?.move_to(&obsolete, snap.prev_snap_txg)?;
    }
    let Some(own) = list(at, number)? else { return Ok(()) };
    let next = match list(at, snap.next_snap_obj)? {
        Some(next) => next,
        None => {
            let next = at.dataset(snap.next_snap_obj)?;
            let made = lists::clone_deadlist(at, next.deadlist_obj, u64::MAX, next.prev_snap_obj)?;
            at.set_extra(snap.next_snap_obj, dsl_dataset::REMAP_DEADLIST, made)?;
            at.count(Feature::ObsoleteCounts, 1)?;
            made
        }
    };
    DeadList::open(at, next)?.merge(DeadList::open(at, own)?)?;
    forget(at, number)
}

/// A snapshot's key is no longer one of a dataset's deadlist.
pub(super) fn remove_key(at: &MosTx<'_>, dataset: u64, txg: u64) -> Result<()> {
    list(at, dataset)?.map_or(Ok(()), |number| lists::remove_key(at, number, txg))
}

/// The pool's list of blocks that are to become obsolete.
#[doc(alias = "dsl_pool_create_obsolete_bpobj")]
fn obsolete_list(at: &MosTx<'_>) -> Result<u64> {
    if let Some(number) = at.zap_word(MOS_DIRECTORY_OBJECT, mos::OBSOLETE_BPOBJ)? {
        return Ok(number);
    }
    let number = lists::alloc(at, lists::BLOCK)?;
    at.zap_add(MOS_DIRECTORY_OBJECT, mos::OBSOLETE_BPOBJ, number)?;
    at.count(Feature::ObsoleteCounts, 1)?;
    Ok(number)
}

/// Reports obsolete places to the pool.
pub(super) fn process(at: &MosTx<'_>) -> Result<()> {
    let Some(number) = at.zap_word(MOS_DIRECTORY_OBJECT, mos::OBSOLETE_BPOBJ)? else { return Ok(()) };
    let list = BlockList::open(at, number)?;
    let _ = list.drain(&mut |bp, _| {
        at.hooks.mark_obsolete(bp, at.tx)?;
        Ok(ControlFlow::Continue(()))
    })?;
    list.free()?;
    at.zap_remove(MOS_DIRECTORY_OBJECT, mos::OBSOLETE_BPOBJ)?;
    at.count(Feature::ObsoleteCounts, -1)
}
