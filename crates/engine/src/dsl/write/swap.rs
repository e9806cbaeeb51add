//! Rollback: a head gets the content of its last snapshot.
//!
//! A clone of the snapshot is made, head and clone change contents, and the clone, which now has the head's
//! old content, is destroyed. Receives end in the same way.

use ondisk::dsl::{DslDataset, DslDir};
use ondisk::names::dsl_dataset;

use super::mos_tx::MosTx;
use super::space;
use super::tree::{self, CloneOrigin};
use super::{bookmarks, destroy, livelist, log, props};
use crate::dsl::Delta;
use crate::dsl::deadlist::DeadList;
use crate::error::{Error, Kind, Result};

/// Name of the clone that lives while a rollback is made.
const TEMPORARY: &str = "%rollback";

/// Whether a head can go back to its last snapshot.
#[doc(alias = "dsl_dataset_rollback_check")]
pub(super) fn check_rollback(at: &MosTx<'_>, head_number: u64) -> Result<()> {
    let head = at.dataset(head_number)?;
    if head.prev_snap_txg < crate::txg::INITIAL {
        return Err(Error::not_found("the dataset has no snapshot"));
    }
    let snap = at.dataset(head.prev_snap_obj)?;
    if snap.next_snap_obj != head_number {
        return Err(Error::not_found("the dataset has no snapshot of its own"));
    }
    if bookmarks::newest(at, head_number)? > snap.creation_txg {
        return Err(Error::new(Kind::Exists, "there are newer bookmarks"));
    }
    let quota = props::own_number(at, head.dir_obj, "refquota")?;
    if quota != 0 && snap.referenced_bytes > quota {
        return Err(Error::new(Kind::Quota, "the snapshot is larger than the refquota"));
    }
    // All of the refreservation may be charged again.
    let reserved = props::own_number(at, head.dir_obj, "refreservation")?;
    let more = reserved.min(head.unique_bytes);
    if more > 0 && more > space::available(at, head.dir_obj)? {
        return Err(Error::new(Kind::NoSpace, "the refreservation could not be kept"));
    }
    Ok(())
}

/// Bytes that received content may exceed the refquota by: the last transaction of its source could.
#[doc(alias("DMU_MAX_ACCESS", "spa_asize_inflation"))]
const REFQUOTA_SLACK: u64 = (64 << 20) * 24;

/// Checks whether space and quotas permit the exchange of the head with a clone of its last snapshot.
#[doc(alias = "dsl_dataset_clone_swap_check_impl")]
pub(super) fn check(at: &MosTx<'_>, clone: u64, head_number: u64) -> Result<()> {
    let (clone, head) = (at.dataset(clone)?, at.dataset(head_number)?);
    let reserved = props::own_number(at, head.dir_obj, "refreservation")?;
    let unfilled = |unique: u64| reserved.saturating_sub(unique);
    let more = unfilled(clone.unique_bytes).saturating_sub(unfilled(head.unique_bytes));
    if more > 0 && more > space::available(at, head.dir_obj)? {
        return Err(Error::new(Kind::NoSpace, "the refreservation could not be kept"));
    }
    let quota = props::own_number(at, head.dir_obj, "refquota")?;
    if quota != 0 && clone.referenced_bytes > quota.saturating_add(REFQUOTA_SLACK) {
        return Err(Error::new(Kind::Quota, "space quota exceeded."));
    }
    Ok(())
}

/// Takes a head back to its last snapshot. Returns the number of the clone with the previous content if that is to be emptied
/// first ([`destroy::replaced`]).
#[doc(alias = "dsl_dataset_rollback_sync")]
pub(super) fn rollback(at: &MosTx<'_>, head: u64) -> Result<Option<u64>> {
    let phys = at.dataset(head)?;
    let origin = CloneOrigin { number: phys.prev_snap_obj, head };
    let clone_dir = tree::create_dir(at, Some((phys.dir_obj, TEMPORARY)))?;
    let clone = tree::create_head(at, clone_dir, Some(origin), 0)?;
    log::forget(at, clone)?;
    swap(at, clone, head)?;
    destroy::replaced(at, clone, TEMPORARY)
}

/// A clone of a head's last snapshot and the head change contents.
#[doc(alias = "dsl_dataset_clone_swap_sync_impl")]
pub(super) fn swap(at: &MosTx<'_>, clone_number: u64, head_number: u64) -> Result<()> {
    let (clone, head) = (at.dataset(clone_number)?, at.dataset(head_number)?);
    swap_features(at, clone_number, head_number)?;
    let (clone_dead, head_dead) =
        (DeadList::open(at, clone.deadlist_obj)?, DeadList::open(at, head.deadlist_obj)?);
    let since = at.dataset(head.prev_snap_obj)?.prev_snap_txg;
    let unique = clone_dead.space_range(since, u64::MAX)?.used.cast_unsigned();
    at.change_dataset(head.prev_snap_obj, |snap| snap.unique_bytes = unique)?;

    let total = |phys: &DslDataset, dead: &DeadList<'_>| -> Result<Delta> {
        let own = Delta::of(phys.referenced_bytes, phys.compressed_bytes, phys.uncompressed_bytes);
        Ok(own.plus(dead.space()?))
    };
    let delta = total(&clone, &clone_dead)?.plus(total(&head, &head_dead)?.negated());
    space::charge(at, head.dir_obj, DslDir::USED_HEAD, delta)?;
    space::charge(at, clone.dir_obj, DslDir::USED_HEAD, delta.negated())?;
    let origin_txg = at.origin_txg(&at.dir(head.dir_obj)?)?;
    let to_snapshots = clone_dead.space_range(origin_txg, u64::MAX)?.used
        - head_dead.space_range(origin_txg, u64::MAX)?.used;
    space::transfer(at, head.dir_obj, to_snapshots, DslDir::USED_HEAD, DslDir::USED_SNAP)?;

    at.change_dataset(head_number, |phys| take_content(phys, &clone))?;
    at.change_dataset(clone_number, |phys| take_content(phys, &head))?;
    let reserved = props::own_number(at, head.dir_obj, "refreservation")?;
    let filled = |unique: u64| unique.min(reserved).cast_signed();
    let unfilled = Delta { used: filled(head.unique_bytes) - filled(clone.unique_bytes), ..Delta::default() };
    space::charge(at, head.dir_obj, DslDir::USED_REFRSRV, unfilled)?;
    livelist::remove(at, head.dir_obj)?;
    super::scan_state::swapped(at, clone_number, head_number)?;
    bookmarks::next_changed(at, head_number, head.prev_snap_obj)
}

fn take_content(phys: &mut DslDataset, from: &DslDataset) {
    phys.bp = from.bp;
    phys.referenced_bytes = from.referenced_bytes;
    phys.compressed_bytes = from.compressed_bytes;
    phys.uncompressed_bytes = from.uncompressed_bytes;
    phys.unique_bytes = from.unique_bytes;
    phys.deadlist_obj = from.deadlist_obj;
}

/// Features in use move with the contents.
fn swap_features(at: &MosTx<'_>, a: u64, b: u64) -> Result<()> {
    let features: Vec<_> = tree::dataset_features().map(|feature| feature.info().guid).collect();
    // The remap deadlist belongs to the contents, too.
    for guid in features.into_iter().chain([dsl_dataset::REMAP_DEADLIST]) {
        let (of_a, of_b) = (at.extra(a, guid)?, at.extra(b, guid)?);
        for (number, old, new) in [(a, &of_a, &of_b), (b, &of_b, &of_a)] {
            match (old, new) {
                (_, Some(value)) => at.set_extra(number, guid, value.clone())?,
                (Some(_), None) => at.zap_remove(number, guid)?,
                (None, None) => {}
            }
        }
    }
    Ok(())
}
