//! Promotion: a clone takes over the snapshots up to its origin, and the origin's dataset becomes the clone.
//!
//! ```text
//!  before:  s1 ─ s2 ─ s3 ─ origin's head        after:  s1 ─ s2 ─ c1 ─ clone's head
//!                 └─ c1 ─ clone's head                         └─ s3 ─ origin's head
//! ```

use ondisk::dsl::{DslDataset, DslDir};
use ondisk::names::dsl_dir;

use super::hooks::version;
use super::mos_tx::{MosTx, MosView};
use super::space;
use super::{bookmarks, limits, livelist, names, tree};
use crate::dsl::Delta;
use crate::dsl::deadlist::DeadList;
use crate::dsl::lookup;
use crate::error::{Error, Kind, Result};

/// The parts that a promotion moves.
struct Plan {
    /// The clone's head, its directory.
    clone: (u64, u64),
    /// The origin's head, its directory.
    origin: (u64, u64),
    /// Snapshots that move, the newest (the clone's origin) first.
    shared: Vec<u64>,
    /// The oldest dataset of the clone after its origin.
    first_of_clone: u64,
    /// Txg of the clone's origin.
    until: u64,
    used: Delta,
    clone_snapshots: i64,
    origin_snapshots: i64,
    unique: u64,
}

/// Datasets from `last` back to the one after `first`, the newest first.
#[doc(alias = "snaplist_make")]
fn chain(at: &MosView<'_>, first: u64, last: u64) -> Result<Vec<u64>> {
    let (mut all, mut next) = (Vec::new(), last);
    while next != first {
        let phys = at.dataset(next)?;
        all.push(next);
        if all.len() > 1 << 20 {
            return Err(Error::new(Kind::Loop, "snapshots go in circles"));
        }
        next = phys.prev_snap_obj;
        if next == 0 {
            break;
        }
    }
    Ok(all)
}

fn dead_space(at: &MosTx<'_>, all: &[u64], since: u64) -> Result<i64> {
    let mut total = 0;
    for number in all {
        total += DeadList::open(at, at.dataset(*number)?.deadlist_obj)?.space_range(since, u64::MAX)?.used;
    }
    Ok(total)
}

/// Makes a clone independent of its origin. `name_len`: the length of the clone's full name.
#[doc(alias("dsl_dataset_promote_check", "dsl_dataset_promote_sync"))]
pub(super) fn promote(at: &MosTx<'_>, clone: u64, name_len: usize) -> Result<()> {
    let plan = plan(at, clone, name_len)?;
    relink(at, &plan)?;
    move_snapshots(at, &plan)?;
    move_space(at, &plan)?;
    // The promotion is complete, whatever a damaged error log says.
    let _ = at.hooks.errors_moved((plan.origin.0, plan.clone.0), plan.until, at.tx);
    Ok(())
}

fn plan(at: &MosTx<'_>, clone: u64, name_len: usize) -> Result<Plan> {
    let head = at.dataset(clone)?;
    let dir = at.dir(head.dir_obj)?;
    let no_clone = || Error::new(Kind::Invalid, "not a cloned file system or volume");
    if head.flags & DslDataset::FLAG_NOPROMOTE != 0 {
        return Err(Error::new(Kind::Invalid, "the dataset can't be promoted"));
    }
    if dir.origin_obj == 0 {
        return Err(no_clone());
    }
    let origin = at.dataset(dir.origin_obj)?;
    let origin_dir = at.dir(origin.dir_obj)?;
    let origin_head = origin_dir.head_dataset_obj;
    if origin.creation_txg <= 1 {
        return Err(no_clone());
    }
    let shared = shared_with_origin(at, &origin_dir, dir.origin_obj)?;
    let of_clone = chain(at, dir.origin_obj, clone)?;
    let of_origin = chain(at, dir.origin_obj, origin_head)?;
    let first_of_clone = of_clone.last().copied().ok_or_else(no_clone)?;
    let first_dead = DeadList::open(at, at.dataset(first_of_clone)?.deadlist_obj)?;
    let unique = first_dead.space_range(origin.prev_snap_txg, u64::MAX)?.used.cast_unsigned();
    if shared.iter().any(|number| at.hooks.is_held(*number)) {
        return Err(Error::new(Kind::Busy, "dataset is busy"));
    }
    let used = moved_space(at, &origin, &origin_dir, &shared)?;
    check_names(at, (clone, name_len), &shared, origin_head)?;
    bookmarks::check_move_up_to(at, origin_head, (clone, name_len), origin.creation_txg)?;
    check_room(at, &plan_dirs(&head, &origin), used, shared.len())?;
    let since = at.origin_txg(&origin_dir)?;
    let counted = |dir: &DslDir| dir.flags & DslDir::FLAG_USED_BREAKDOWN != 0;
    let clone_snapshots = match counted(&dir) {
        true => dead_space(at, &shared, since)? + dead_space(at, &of_clone, since)?,
        false => 0,
    };
    let origin_snapshots = match counted(&origin_dir) {
        true => dead_space(at, &of_origin, origin.creation_txg)?,
        false => 0,
    };
    Ok(Plan {
        clone: (clone, head.dir_obj),
        origin: (origin_head, origin.dir_obj),
        shared,
        first_of_clone,
        until: origin.creation_txg,
        used,
        clone_snapshots,
        origin_snapshots,
        unique,
    })
}

fn plan_dirs(head: &DslDataset, origin: &DslDataset) -> [u64; 2] {
    [head.dir_obj, origin.dir_obj]
}

/// The origin and the snapshots before it, as far as they are in its directory.
fn shared_with_origin(at: &MosView<'_>, origin_dir: &DslDir, origin: u64) -> Result<Vec<u64>> {
    chain(at, origin_dir.origin_obj, origin)
}

/// Space that goes with the snapshots.
fn moved_space(at: &MosTx<'_>, origin: &DslDataset, dir: &DslDir, shared: &[u64]) -> Result<Delta> {
    let mut used = referenced(origin);
    for number in shared {
        let snap = at.dataset(*number)?;
        if snap.prev_snap_obj != 0 {
            used = used.plus(DeadList::open(at, snap.deadlist_obj)?.space()?);
        }
    }
    match dir.origin_obj {
        0 => Ok(used),
        above => Ok(used.plus(referenced(&at.dataset(above)?).negated())),
    }
}

fn referenced(phys: &DslDataset) -> Delta {
    Delta::of(phys.referenced_bytes, phys.compressed_bytes, phys.uncompressed_bytes)
}

fn check_names(
    at: &MosView<'_>,
    (head, name_len): (u64, usize),
    shared: &[u64],
    origin_head: u64,
) -> Result<()> {
    let names_of_origin = at.dataset(origin_head)?.snapnames_zapobj;
    for number in shared {
        let name = names::of_value(at, names_of_origin, *number)?;
        names::check_length(name_len + 1 + name.len())?;
        if names::snapshot(at, head, &name)?.is_some() {
            return Err(Error::new(Kind::Exists, format!("conflicting snapshot '{name}'")));
        }
    }
    Ok(())
}

#[doc(alias = "dsl_dir_transfer_possible")]
fn check_room(at: &MosTx<'_>, [to, from]: &[u64; 2], used: Delta, snapshots: usize) -> Result<()> {
    let common = lookup::common_ancestor(&**at, *to, *from)?;
    if used.used > 0 && !space::can_move(at, (*from, *to), used.used.cast_unsigned())? {
        return Err(Error::new(Kind::NoSpace, "a quota has no room for the snapshots"));
    }
    limits::check_more_snapshots(at, *to, common, u64::try_from(snapshots).unwrap_or(u64::MAX))
}

/// Snapshots, clones and directories name each other anew.
fn relink(at: &MosTx<'_>, plan: &Plan) -> Result<()> {
    let Some(&origin_number) = plan.shared.first() else {
        return Err(Error::corrupt("a clone's origin is not among its directory's snapshots"));
    };
    let origin = at.dataset(origin_number)?;
    let (clone, clone_dir) = plan.clone;
    let (origin_head, origin_dir) = plan.origin;
    let above = at.dir(origin_dir)?.origin_obj;
    at.change_dataset(origin_number, |origin| origin.next_snap_obj = plan.first_of_clone)?;
    if origin.next_clones_obj != 0 {
        at.zap(origin.next_clones_obj, |zap| {
            zap.remove_int(plan.first_of_clone)?;
            zap.add_int(origin.next_snap_obj)
        })?;
    }
    livelist::remove(at, clone_dir)?;
    livelist::remove(at, origin_dir)?;
    at.change_dir(clone_dir, |dir| dir.origin_obj = above)?;
    at.change_dir(origin_dir, |dir| dir.origin_obj = origin_number)?;
    if !at.since(version::DEADLISTS) {
        return Ok(());
    }
    remove_clone(at, origin_dir, clone)?;
    if above != 0 {
        let above_dir = at.dataset(above)?.dir_obj;
        tree::add_clone(at, above_dir, clone)?;
        remove_clone(at, above_dir, origin_head)?;
    }
    tree::add_clone(at, clone_dir, origin_head)
}

fn remove_clone(at: &MosTx<'_>, dir: u64, clone: u64) -> Result<()> {
    match at.dir(dir)?.clones {
        0 => Ok(()),
        list => at.zap(list, |zap| zap.remove_int(clone)),
    }
}

/// Snapshots go to the clone's directory, with the clones and bookmarks that hang on them.
fn move_snapshots(at: &MosTx<'_>, plan: &Plan) -> Result<()> {
    let (clone, clone_dir) = plan.clone;
    let (origin_head, origin_dir) = plan.origin;
    let names_of_origin = at.dataset(origin_head)?.snapnames_zapobj;
    let names_of_clone = at.dataset(clone)?.snapnames_zapobj;
    for &number in &plan.shared {
        let name = names::of_value(at, names_of_origin, number)?;
        at.zap_remove(names_of_origin, &name)?;
        tree::count_up(at, origin_dir, dsl_dir::SNAPSHOT_COUNT, -1)?;
        at.zap_add(names_of_clone, &name, number)?;
        tree::count_up(at, clone_dir, dsl_dir::SNAPSHOT_COUNT, 1)?;
        let snap = at.change_dataset(number, |snap| {
            snap.dir_obj = clone_dir;
            *snap
        })?;
        if snap.next_clones_obj != 0 && at.since(version::DEADLISTS) {
            move_clones(at, plan, &snap)?;
        }
    }
    let up_to = plan.shared.first().map_or(Ok(0), |n| at.dataset(*n).map(|s| s.creation_txg))?;
    bookmarks::move_up_to(at, origin_head, clone, up_to)?;
    plan.shared.first().map_or(Ok(()), |origin| bookmarks::next_changed(at, clone, *origin))
}

fn move_clones(at: &MosTx<'_>, plan: &Plan, snap: &DslDataset) -> Result<()> {
    for entry in at.zap_entries(snap.next_clones_obj)? {
        let Some(number) = entry.value.first() else { continue };
        let head = at.dir(at.dataset(number)?.dir_obj)?.head_dataset_obj;
        // The origin's head is listed already, as is the clone itself.
        if head == plan.clone.0 || head == plan.origin.0 {
            continue;
        }
        remove_clone(at, plan.origin.1, head)?;
        tree::add_clone(at, plan.clone.1, head)?;
    }
    Ok(())
}

fn move_space(at: &MosTx<'_>, plan: &Plan) -> Result<()> {
    let snap_bytes = |dir: u64| -> Result<i64> {
        let breakdown = at.dir(dir)?.used_breakdown;
        Ok(breakdown.get(DslDir::USED_SNAP).copied().unwrap_or(0).cast_signed())
    };
    let only = |used: i64| Delta { used, ..Delta::default() };
    let ((_, clone_dir), (_, origin_dir)) = (plan.clone, plan.origin);
    let more = plan.clone_snapshots - snap_bytes(clone_dir)?;
    space::charge(at, clone_dir, DslDir::USED_SNAP, only(more))?;
    let rest = Delta { used: plan.used.used - more, ..plan.used };
    space::charge(at, clone_dir, DslDir::USED_HEAD, rest)?;
    let less = plan.origin_snapshots - snap_bytes(origin_dir)?;
    space::charge(at, origin_dir, DslDir::USED_SNAP, only(less))?;
    let rest = Delta { used: -plan.used.used - less, ..plan.used.negated() };
    space::charge(at, origin_dir, DslDir::USED_HEAD, rest)?;
    let Some(&origin) = plan.shared.first() else { return Ok(()) };
    at.change_dataset(origin, |origin| origin.unique_bytes = plan.unique)
}
