//! Destroying snapshots and heads.
//!
//! Blocks that only a snapshot referred to move from the next one's deadlist to the pool's list of blocks to
//! be freed; a head's tree goes to the list of trees to be freed. Both are worked off later
//! ([`super::freeing`]), and their space belongs to `$FREE` until then. Pools without those lists free at
//! once.

use std::ops::ControlFlow;

use ondisk::dsl::{DslDataset, DslDir};
use ondisk::names::{MOS_DIRECTORY_OBJECT, dsl_dir, mos};
use zcommon::features::Feature;

use super::batch::Batch;
use super::hooks::version;
use super::mos_tx::{MosTx, MosView};
use super::space;
use super::{bookmarks, crypto, freeing, lists, livelist, names, props, readable, remap, tree};
use crate::dsl::Delta;
use crate::dsl::bpobj::BlockList;
use crate::dsl::bptree;
use crate::dsl::deadlist::DeadList;
use crate::error::{Error, Kind, Result};

/// Bytes of its own from which a dataset is emptied before it is destroyed, where its tree can't be freed in later txgs.
const EMPTIED_FIRST: u64 = 16 << 20;

/// Blocks of an old deadlist that are moved together.
const KEPT: usize = 4096;
/// Why a snapshot with holds is not destroyed.
pub const HELD: &str = "the snapshot is held";

/// Number of a snapshot's holds.
pub fn holds(at: &MosView<'_>, snap: &DslDataset) -> Result<u64> {
    at.zap_count(snap.userrefs_obj)
}

/// Whether a snapshot may be destroyed; `defer`: it need not go at once.
#[doc(alias = "dsl_destroy_snapshot_check_impl")]
pub fn check_snapshot(at: &MosTx<'_>, number: u64, defer: bool) -> Result<()> {
    let snap = at.dataset(number)?;
    if !snap.is_snapshot() {
        return Err(Error::new(Kind::Invalid, "not a snapshot"));
    }
    check_unheld(at, number)?;
    if defer {
        return match at.since(version::USERREFS) {
            true => Ok(()),
            false => Err(Error::unsupported("pool must be upgraded to destroy snapshots later")),
        };
    }
    if holds(at, &snap)? > 0 {
        return Err(Error::new(Kind::Busy, HELD));
    }
    if snap.num_children > 1 {
        return Err(Error::new(Kind::Exists, "the snapshot has clones"));
    }
    Ok(())
}

/// Refuses a snapshot that a stream or other work in memory needs.
pub(super) fn check_unheld(at: &MosTx<'_>, number: u64) -> Result<()> {
    match at.hooks.is_held(number) {
        true => Err(Error::new(Kind::Busy, "dataset is busy")),
        false => Ok(()),
    }
}

/// Destroys a snapshot, or marks it to be destroyed with its last hold or clone when `defer` and it has any.
/// `name` is the part after the `@`, if it is known.
pub fn snapshot(at: &MosTx<'_>, number: u64, name: Option<&str>, defer: bool) -> Result<()> {
    snapshot_of(&mut Batch::new(at), number, name, defer)
}

/// The same of many snapshots in one task. The order in which they are given is best from the newest of a dataset to the
/// oldest: then the deadlist that takes in all others is read once.
#[doc(alias = "dsl_destroy_snapshot_sync_impl")]
pub(super) fn snapshot_of(batch: &mut Batch<'_>, number: u64, name: Option<&str>, defer: bool) -> Result<()> {
    let at = batch.at;
    let snap = at.dataset(number)?;
    if defer && (snap.num_children > 1 || holds(at, &snap)? > 0) {
        return at.change_dataset(number, |snap| snap.flags |= DslDataset::FLAG_DEFER_DESTROY);
    }
    let dir = at.dir(snap.dir_obj)?;
    let head_number = dir.head_dataset_obj;
    let known = names::given(at, at.dataset(head_number)?.snapnames_zapobj, number, name)?;
    super::scan_state::destroyed(at, number, &snap)?;
    let keep_key = batch.note_in_bookmarks(head_number, number, &snap)?;
    tree::drop_features(at, number)?;
    let branched = unlink_previous(at, number, &snap)?;
    let old_unique = at.change_dataset(snap.next_snap_obj, |next| {
        next.prev_snap_obj = snap.prev_snap_obj;
        next.prev_snap_txg = snap.prev_snap_txg;
        next.unique_bytes
    })?;
    move_dead(batch, number, &snap, branched)?;
    remap::snapshot_destroyed(at, number, &snap)?;
    if !keep_key {
        remove_clones_key(batch, snap.dir_obj, snap.creation_txg)?;
    }
    let next = at.dataset(snap.next_snap_obj)?;
    if next.is_snapshot() {
        let after = at.dataset(next.next_snap_obj)?.deadlist_obj;
        let more = batch.list(after)?.space_range(snap.prev_snap_txg, snap.creation_txg)?.used;
        at.change_dataset(snap.next_snap_obj, |next| {
            next.unique_bytes = next.unique_bytes.wrapping_add_signed(more);
        })?;
        if !keep_key {
            let dead = at.dataset(head_number)?.deadlist_obj;
            lists::remove_key_of(batch.list(dead)?, snap.creation_txg)?;
            remap::remove_key(at, head_number, snap.creation_txg)?;
        }
    } else {
        recount_unique(at, snap.next_snap_obj)?;
        consume_refreservation(at, snap.next_snap_obj, old_unique)?;
    }
    at.zap_remove(at.dataset(head_number)?.snapnames_zapobj, &known)?;
    tree::count_up(at, snap.dir_obj, dsl_dir::SNAPSHOT_COUNT, -1)?;
    for zap in [snap.next_clones_obj, snap.props_obj, snap.userrefs_obj] {
        if zap != 0 {
            at.free_object(zap)?;
        }
    }
    at.free_zapified(number)?;
    at.hooks.dataset_gone(number);
    tree::note_snapshots_changed(at, snap.dir_obj)
}

/// Unlinks a destroyed snapshot from the one before it; returns whether it was the first of a clone.
fn unlink_previous(at: &MosTx<'_>, number: u64, snap: &DslDataset) -> Result<bool> {
    if snap.prev_snap_obj == 0 {
        return Ok(false);
    }
    let previous = at.dataset(snap.prev_snap_obj)?;
    if previous.next_snap_obj == number {
        at.change_dataset(snap.prev_snap_obj, |previous| previous.next_snap_obj = snap.next_snap_obj)?;
        return Ok(false);
    }
    if previous.next_clones_obj != 0 {
        at.zap(previous.next_clones_obj, |zap| {
            zap.remove_int(number)?;
            zap.add_int(snap.next_snap_obj)
        })?;
    }
    Ok(true)
}

/// A block that died between the snapshot and the next one is freed if only the snapshot had it, else it goes
/// to the next one's deadlist.
fn move_dead(batch: &mut Batch<'_>, number: u64, snap: &DslDataset, branched: bool) -> Result<()> {
    let at = batch.at;
    let next = at.dataset(snap.next_snap_obj)?;
    let own = batch.take(snap.deadlist_obj)?;
    let dead = batch.list(next.deadlist_obj)?;
    if dead.is_old() {
        process_old_deadlist(at, number, snap, branched)?;
        return DeadList::open(at, at.dataset(number)?.deadlist_obj)?.free();
    }
    if snap.prev_snap_obj != 0 && !branched {
        let since = at.dataset(snap.prev_snap_obj)?.prev_snap_txg;
        let more = dead.space_range(since, snap.prev_snap_txg)?.used;
        at.change_dataset(snap.prev_snap_obj, |previous| {
            previous.unique_bytes = previous.unique_bytes.wrapping_add_signed(more);
        })?;
    }
    let gone = dead.space_range(snap.prev_snap_txg, u64::MAX)?;
    space::charge(at, snap.dir_obj, DslDir::USED_SNAP, gone.negated())?;
    dead.move_to(&BlockList::open(at, lists::free_bpobj(at)?)?, snap.prev_snap_txg)?;
    space::charge(at, names::free_dir(at)?, DslDir::USED_HEAD, gone)?;
    dead.merge(own)
}

/// The same with deadlists that are single block lists: blocks are freed now.
fn process_old_deadlist(at: &MosTx<'_>, number: u64, snap: &DslDataset, branched: bool) -> Result<()> {
    let next = at.dataset(snap.next_snap_obj)?;
    let previous = (snap.prev_snap_obj != 0 && !branched).then_some(snap.prev_snap_obj);
    let since = previous.map_or(Ok(u64::MAX), |p| at.dataset(p).map(|p| p.prev_snap_txg))?;
    let kept_list = DeadList::open(at, snap.deadlist_obj)?;
    let (mut kept, mut gone, mut unique) = (Vec::new(), Delta::default(), 0);
    let _ = BlockList::open(at, next.deadlist_obj)?.iterate(&mut |bp, _| {
        let size = at.sizes(bp);
        if bp.accounting_birth() > snap.prev_snap_txg {
            gone = gone.plus(size);
            at.free_block(bp)?;
        } else {
            kept.push(*bp);
            if kept.len() >= KEPT {
                kept_list.insert(&std::mem::take(&mut kept), false)?;
            }
            unique += if bp.accounting_birth() > since { size.used } else { 0 };
        }
        Ok(ControlFlow::Continue(()))
    })?;
    kept_list.insert(&kept, false)?;
    if let Some(previous) = previous {
        at.change_dataset(previous, |p| p.unique_bytes = p.unique_bytes.wrapping_add_signed(unique))?;
    }
    space::charge(at, snap.dir_obj, DslDir::USED_SNAP, gone.negated())?;
    // The list that is worked off goes with the snapshot.
    at.change_dataset(snap.next_snap_obj, |next| next.deadlist_obj = snap.deadlist_obj)?;
    at.change_dataset(number, |snap| snap.deadlist_obj = next.deadlist_obj)
}

/// Unique bytes of a head, computed anew.
#[doc(alias = "dsl_dataset_recalc_head_uniq")]
pub(super) fn recount_unique(at: &MosTx<'_>, head_number: u64) -> Result<()> {
    let head = at.dataset(head_number)?;
    let shared = match head.prev_snap_obj {
        0 => 0,
        previous => at.dataset(previous)?.referenced_bytes,
    };
    let dead = DeadList::open(at, head.deadlist_obj)?.space()?.used;
    let accurate = at.since(version::UNIQUE_ACCURATE);
    at.change_dataset(head_number, |head| {
        head.unique_bytes = head.referenced_bytes.wrapping_sub(shared.wrapping_add_signed(-dead));
        if accurate {
            head.flags |= DslDataset::FLAG_UNIQUE_ACCURATE;
        }
    })
}

/// A head has more to itself than before: less of its refreservation is charged.
fn consume_refreservation(at: &MosTx<'_>, head_number: u64, old_unique: u64) -> Result<()> {
    let head = at.dataset(head_number)?;
    let reserved = props::own_number(at, head.dir_obj, "refreservation")?;
    if old_unique >= reserved {
        return Ok(());
    }
    let bytes = head.unique_bytes.saturating_sub(old_unique).min(reserved - old_unique);
    let delta = Delta { used: -bytes.cast_signed(), ..Delta::default() };
    space::charge(at, head.dir_obj, DslDir::USED_REFRSRV, delta)
}

/// Takes a txg out of the deadlists of all clones that came later, and of theirs.
#[doc(alias = "dsl_dataset_remove_clones_key")]
fn remove_clones_key(batch: &mut Batch<'_>, dir: u64, txg: u64) -> Result<()> {
    let at = batch.at;
    let mut dirs = vec![dir];
    let mut left = 1 << 20;
    while let Some(dir) = dirs.pop() {
        for entry in at.zap_entries(at.dir(dir)?.clones)? {
            let Some(number) = entry.value.first() else { continue };
            let clone = at.dataset(number)?;
            let clone_dir = at.dir(clone.dir_obj)?;
            if at.origin_txg(&clone_dir)? > txg {
                lists::remove_key_of(batch.list(clone.deadlist_obj)?, txg)?;
                remap::remove_key(at, number, txg)?;
                dirs.push(clone.dir_obj);
            }
            left -= 1;
            if left == 0 {
                return Err(Error::new(Kind::Loop, "the clone list has a cycle"));
            }
        }
    }
    Ok(())
}

/// Takes a txg out of the deadlists of a head and its clones.
pub(super) fn remove_keys(at: &MosTx<'_>, head: u64, txg: u64) -> Result<()> {
    let phys = at.dataset(head)?;
    remove_clones_key(&mut Batch::new(at), phys.dir_obj, txg)?;
    remap::remove_key(at, head, txg)?;
    lists::remove_key(at, phys.deadlist_obj, txg)
}

/// The origin of a clone that waits for the clone to go, and would go with it.
fn waiting_origin(at: &MosView<'_>, head: &DslDataset) -> Result<Option<u64>> {
    if head.prev_snap_obj == 0 || at.dir(head.dir_obj)?.origin_obj != head.prev_snap_obj {
        return Ok(None);
    }
    let origin = at.dataset(head.prev_snap_obj)?;
    let waits = origin.flags & DslDataset::FLAG_DEFER_DESTROY != 0 && origin.num_children == 2;
    Ok((waits && holds(at, &origin)? == 0).then_some(head.prev_snap_obj))
}

/// Whether a head may be destroyed.
pub(crate) fn check_head(at: &MosTx<'_>, number: u64) -> Result<()> {
    check_head_after(at, number, 0)
}

/// Whether a head may be destroyed after `gone` of its children.
#[doc(alias = "dsl_destroy_head_check_impl")]
pub(super) fn check_head_after(at: &MosTx<'_>, number: u64, gone: u64) -> Result<()> {
    let head = at.dataset(number)?;
    if head.is_snapshot() {
        return Err(Error::new(Kind::Invalid, "not a file system or volume"));
    }
    if head.prev_snap_obj != 0 && at.dataset(head.prev_snap_obj)?.next_snap_obj == number {
        return Err(Error::new(Kind::Busy, "the dataset has snapshots"));
    }
    if at.zap_count(at.dir(head.dir_obj)?.child_dir_zapobj)? > gone {
        return Err(Error::new(Kind::Exists, "the dataset has children"));
    }
    if let Some(origin) = waiting_origin(at, &head)? {
        check_unheld(at, origin)?;
    }
    if at.dir(head.dir_obj)?.parent_obj == 0 {
        return Err(Error::new(Kind::Invalid, "the root dataset is destroyed only with its pool"));
    }
    readable::check_changed(at, number)
}

/// Destroys a head and its directory. Its blocks must have been written: dirty data in memory is dropped with
/// it. `name` is the last part of its own, if it is known.
#[doc(alias = "dsl_destroy_head_sync_impl")]
pub fn head(at: &MosTx<'_>, number: u64, name: Option<&str>) -> Result<()> {
    let head = at.dataset(number)?;
    super::scan_state::destroyed(at, number, &head)?;
    let origin = waiting_origin(at, &head)?;
    props::set_refreservation(at, number, 0, props::SettingSource::Gone)?;
    discharge_refreservation(at, head.dir_obj)?;
    tree::drop_features(at, number)?;
    if head.prev_snap_obj != 0 {
        let previous = at.dataset(head.prev_snap_obj)?;
        if previous.next_clones_obj != 0 {
            at.zap(previous.next_clones_obj, |zap| zap.remove_int(number))?;
        }
        at.change_dataset(head.prev_snap_obj, |previous| previous.num_children -= 1)?;
    }
    // The origin of a clone still has the blocks in its deadlist; any other head has no snapshots, so its
    // deadlist is empty.
    DeadList::open(at, head.deadlist_obj)?.free()?;
    remap::destroy(at, number)?;
    free_tree(at, &head)?;
    if head.prev_snap_obj != 0 && at.since(version::DEADLISTS) {
        let list = at.dir(at.dataset(head.prev_snap_obj)?.dir_obj)?.clones;
        if list != 0 {
            at.zap(list, |zap| zap.remove_int(number))?;
        }
    }
    at.change_dir(head.dir_obj, |dir| dir.head_dataset_obj = 0)?;
    bookmarks::destroy_all(at, number)?;
    at.free_object(head.snapnames_zapobj)?;
    at.free_zapified(number)?;
    at.hooks.dataset_gone(number);
    clear_bootfs(at, number)?;
    // A damaged list of errors only leaks.
    let _ = at.hooks.forget_errors(number, at.tx);
    destroy_dir(at, head.dir_obj, name)?;
    origin.map_or(Ok(()), |origin| snapshot(at, origin, None, false))
}

/// Removes the charge of a refreservation that no property names any more: it would stay in the pool's accounts.
fn discharge_refreservation(at: &MosTx<'_>, dir: u64) -> Result<()> {
    let phys = at.dir(dir)?;
    let has_breakdown = phys.flags & DslDir::FLAG_USED_BREAKDOWN != 0;
    let charged = phys.used_breakdown.get(DslDir::USED_REFRSRV).copied().unwrap_or(0);
    match has_breakdown && charged != 0 && charged <= phys.used_bytes {
        true => space::charge(at, dir, DslDir::USED_REFRSRV, Delta::of(charged, 0, 0).negated()),
        false => Ok(()),
    }
}

/// The pool's property `bootfs` must not name a later dataset of the same number.
#[doc(alias = "spa_prop_clear_bootfs")]
fn clear_bootfs(at: &MosTx<'_>, head: u64) -> Result<()> {
    let props = at.zap_word(MOS_DIRECTORY_OBJECT, mos::PROPS)?.unwrap_or(0);
    if props != 0 && at.zap_word(props, "bootfs")? == Some(head) {
        at.zap_remove(props, "bootfs")?;
    }
    Ok(())
}

/// Whether a head is emptied in several txgs before it is destroyed: the pool can't free its tree in later txgs, and it is large.
pub(super) fn is_emptied_first(at: &MosTx<'_>, head: &DslDataset) -> bool {
    let own = if at.since(version::UNIQUE_ACCURATE) { head.unique_bytes } else { head.referenced_bytes };
    own >= EMPTIED_FIRST && !at.enabled(Feature::AsyncDestroy)
}

/// Destroys a hidden clone, named `name` in its parent, that has the previous content of a head since they changed contents. A
/// large one that is to be emptied first is marked as inconsistent and gets another hidden name, which leaves `name` to the
/// next rollback or receive; its number is returned.
pub(super) fn replaced(at: &MosTx<'_>, number: u64, name: &str) -> Result<Option<u64>> {
    let clone = at.dataset(number)?;
    // The livelist of the clone is of its old content.
    livelist::remove(at, clone.dir_obj)?;
    if !is_emptied_first(at, &clone) {
        return head(at, number, Some(name)).map(|()| None);
    }
    at.change_dataset(number, |clone| clone.flags |= DslDataset::FLAG_INCONSISTENT)?;
    let children = at.dir(at.dir(clone.dir_obj)?.parent_obj)?.child_dir_zapobj;
    at.zap_remove(children, name)?;
    at.zap_add(children, &format!("%destroyed-{number}"), clone.dir_obj)?;
    Ok(Some(number))
}

/// Frees the tree of a head, now or later.
#[doc(alias("dsl_async_dataset_destroy", "old_synchronous_dataset_destroy"))]
fn free_tree(at: &MosTx<'_>, head: &DslDataset) -> Result<()> {
    freeing::destroy_zil(at, head)?;
    if !at.enabled(Feature::AsyncDestroy) {
        livelist::remove(at, head.dir_obj)?;
        let freed = freeing::free_now(at, &head.bp, head.prev_snap_txg)?;
        return space::charge(at, head.dir_obj, DslDir::USED_HEAD, freed.negated());
    }
    if let Some(list) = livelist::of(at, head.dir_obj)? {
        return livelist::doom(at, head, list);
    }
    let dir = at.dir(head.dir_obj)?;
    let list = match at.active(Feature::AsyncDestroy) {
        true => at.zap_word(MOS_DIRECTORY_OBJECT, mos::BPTREE_OBJ)?,
        false => None,
    };
    let list = match list {
        Some(list) => list,
        None => {
            at.count(Feature::AsyncDestroy, 1)?;
            let list = bptree::create(at)?;
            at.zap_set(MOS_DIRECTORY_OBJECT, mos::BPTREE_OBJ, list)?;
            list
        }
    };
    let all = Delta::of(dir.used_bytes, dir.compressed_bytes, dir.uncompressed_bytes);
    bptree::add(at, list, &head.bp, head.prev_snap_txg, all)?;
    space::charge(at, head.dir_obj, DslDir::USED_HEAD, all.negated())?;
    space::charge(at, names::free_dir(at)?, DslDir::USED_HEAD, all)
}

/// Frees an empty directory.
#[doc(alias = "dsl_dir_destroy_sync")]
fn destroy_dir(at: &MosTx<'_>, number: u64, name: Option<&str>) -> Result<()> {
    let dir = at.dir(number)?;
    let parent = at.dir(dir.parent_obj)?;
    let name = names::given(at, parent.child_dir_zapobj, number, name)?;
    if !name.starts_with('%') {
        tree::count_up(at, dir.parent_obj, dsl_dir::FILESYSTEM_COUNT, -1)?;
    }
    space::set_reserved(at, number, 0)?;
    crypto::release(at, number)?;
    for zap in [dir.child_dir_zapobj, dir.props_zapobj, dir.clones] {
        if zap != 0 {
            at.free_object(zap)?;
        }
    }
    if dir.deleg_zapobj != 0 {
        for entry in at.zap_entries(dir.deleg_zapobj)? {
            if let Some(who) = entry.value.first() {
                at.free_object(who)?;
            }
        }
        at.free_object(dir.deleg_zapobj)?;
    }
    at.zap_remove(parent.child_dir_zapobj, &name)?;
    at.free_zapified(number)
}
