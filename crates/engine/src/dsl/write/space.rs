//! Space of directories: usage and reservations.
//!
//! A directory's `used_bytes` is the space that it uses or has reserved through its refreservation, with all
//! below. Its parent is charged with that or with its reservation, whichever is larger.

use std::collections::BTreeMap;

use ondisk::dsl::{DslDataset, DslDir};

use super::hooks::Hooks;
use super::mos_tx::{MosTx, MosView};
use super::props;
use crate::dsl::lookup::{self, ReadNames};
use crate::dsl::props::space::{DirSpace, available_along};
use crate::dsl::{Delta, MAX_NESTING};
use crate::error::{Error, Kind, Result};

/// log2 of the bytes that a task's blocks are taken to have.
#[doc(alias = "DST_AVG_BLKSHIFT")]
const TASK_BLOCK_SHIFT: u32 = 14;

/// Unsynced changes may exceed a directory's quota by this part of it, as in OpenZFS.
const QUOTA_SLACK_SHIFT: u32 = 5;

/// The change of a charge when usage goes from `used` to `used + delta` and at least `reserved` is charged.
#[doc(alias = "parent_delta")]
pub(super) fn charged(used: u64, reserved: u64, delta: i64) -> i64 {
    let new = used.saturating_add_signed(delta).max(reserved);
    new.wrapping_sub(used.max(reserved)).cast_signed()
}

fn move_kind(dir: &mut DslDir, delta: i64, kind: usize) {
    if dir.flags & DslDir::FLAG_USED_BREAKDOWN == 0 {
        return;
    }
    if let Some(bytes) = dir.used_breakdown.get_mut(kind) {
        *bytes = bytes.wrapping_add_signed(delta);
    }
}

fn change(dir: &mut DslDir, delta: Delta) {
    dir.used_bytes = dir.used_bytes.wrapping_add_signed(delta.used);
    dir.compressed_bytes = dir.compressed_bytes.wrapping_add_signed(delta.compressed);
    dir.uncompressed_bytes = dir.uncompressed_bytes.wrapping_add_signed(delta.uncompressed);
}

/// Charges a directory and its ancestors with space of one kind.
#[doc(alias = "dsl_dir_diduse_space")]
pub(crate) fn charge(at: &MosTx<'_>, dir: u64, kind: usize, delta: Delta) -> Result<()> {
    charge_and_move(at, dir, delta, delta.used, (kind, kind))
}

/// Charges a directory and its ancestors; `moved` bytes become of the second kind, and the part of them that
/// is not new was of the first kind before.
#[doc(alias = "dsl_dir_diduse_transfer_space")]
pub(crate) fn charge_and_move(
    at: &MosTx<'_>,
    dir: u64,
    delta: Delta,
    moved: i64,
    (from, to): (usize, usize),
) -> Result<()> {
    let (mut dir, mut delta, mut moved, mut kinds) = (dir, delta, moved, (from, to));
    for _ in 0..=MAX_NESTING {
        let (parent, accounted) = at.change_dir(dir, |phys| {
            let accounted = charged(phys.used_bytes, phys.reserved, delta.used);
            change(phys, delta);
            move_kind(phys, -(moved - delta.used), kinds.0);
            move_kind(phys, moved, kinds.1);
            (phys.parent_obj, accounted)
        })?;
        if parent == 0 {
            return Ok(());
        }
        moved = delta.used;
        delta.used = accounted;
        kinds = (DslDir::USED_CHILD_RSRV, DslDir::USED_CHILD);
        dir = parent;
    }
    Ok(())
}

/// Moves bytes from one kind to another.
#[doc(alias = "dsl_dir_transfer_space")]
pub fn transfer(at: &MosTx<'_>, dir: u64, bytes: i64, from: usize, to: usize) -> Result<()> {
    at.change_dir(dir, |phys| {
        move_kind(phys, -bytes, from);
        move_kind(phys, bytes, to);
    })
}

/// A snapshot is made of `head`: its blocks are not unique any more, so the refreservation must be charged in
/// full again.
pub(super) fn charge_refreservation(at: &MosTx<'_>, head: &DslDataset) -> Result<()> {
    let reserved = props::own_number(at, head.dir_obj, "refreservation")?;
    if reserved == 0 {
        return Ok(());
    }
    let bytes = head.unique_bytes.min(reserved);
    charge(at, head.dir_obj, DslDir::USED_REFRSRV, Delta::of(bytes, 0, 0))
}

/// Sets a directory's reservation; its parent is charged with the unused part.
#[doc(alias = "dsl_dir_set_reservation_sync_impl")]
pub(super) fn set_reserved(at: &MosTx<'_>, dir: u64, value: u64) -> Result<()> {
    let (parent, delta) = at.change_dir(dir, |dir| {
        let delta = dir.used_bytes.max(value).wrapping_sub(dir.used_bytes.max(dir.reserved));
        dir.reserved = value;
        (dir.parent_obj, delta.cast_signed())
    })?;
    if parent == 0 {
        return Ok(());
    }
    charge(at, parent, DslDir::USED_CHILD_RSRV, Delta { used: delta, ..Delta::default() })
}

/// Space that a directory may still take.
#[doc(alias = "dsl_dir_space_available")]
pub fn available(at: &MosTx<'_>, dir: u64) -> Result<u64> {
    available_with(at, dir, |_, _| ())
}

fn available_with(at: &MosTx<'_>, dir: u64, change: impl Fn(u64, &mut DirSpace)) -> Result<u64> {
    let mut path = Vec::new();
    for step in at.ancestors(dir) {
        let (number, phys) = step?;
        let mut space = DirSpace::of(&phys);
        change(number, &mut space);
        path.push(space);
    }
    path.reverse();
    Ok(available_along(at.hooks.pool_space(false), &path))
}

/// Whether space that is charged to directory `from` may be charged to `to` instead.
#[doc(alias = "dsl_dir_transfer_possible")]
pub(super) fn can_move(at: &MosTx<'_>, (from, to): (u64, u64), bytes: u64) -> Result<bool> {
    let common = lookup::common_ancestor(&**at, from, to)?;
    let mut delta = -i64::try_from(bytes).unwrap_or(i64::MAX);
    for step in at.ancestors(from) {
        let (number, phys) = step?;
        if number == common {
            break;
        }
        delta = charged(phys.used_bytes, phys.reserved, delta);
    }
    // Reservations on the way keep a part of it above.
    let freed = |dir: u64, space: &mut DirSpace| {
        if dir == common {
            space.freed = delta.min(0).unsigned_abs();
        }
    };
    Ok(bytes <= available_with(at, to, freed)?)
}

/// Space that a task takes from directories before it changes them.
#[derive(Debug, Default)]
pub(super) struct Planned(BTreeMap<u64, u64>);

impl Planned {
    /// Plans to take space from a directory and those above it. Returns false, without a change, when too little is left by the
    /// plans before.
    #[doc(alias = "dsl_dir_willuse_space")]
    pub(super) fn take(&mut self, at: &MosTx<'_>, dir: u64, bytes: u64) -> Result<bool> {
        let planned = |dir: u64| self.0.get(&dir).copied().unwrap_or(0);
        let left =
            available_with(at, dir, |dir, space| space.used = space.used.saturating_add(planned(dir)))?;
        if bytes > left {
            return Ok(false);
        }
        let mut more = bytes;
        for step in at.ancestors(dir) {
            let (number, phys) = step?;
            let planned = self.0.entry(number).or_default();
            let used = phys.used_bytes.saturating_add(*planned);
            *planned = planned.saturating_add(more);
            more = charged(used, phys.reserved, more.cast_signed()).max(0).unsigned_abs();
        }
        Ok(true)
    }
}

/// Bytes that a head may grow by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Before its refquota, or a quota of its directory or one above, is used up.
    pub(crate) quota: u64,
    /// Before the pool is full.
    pub pool: u64,
}

impl Room {
    /// The least of both.
    pub fn least(self) -> u64 {
        self.quota.min(self.pool)
    }
}

/// The room that a quota leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaRoom {
    /// The directory, with everything below it; `None`: the head alone, by its refquota.
    pub(super) dir: Option<u64>,
    /// Bytes until it is used up.
    pub(super) left: u64,
    /// Bytes by which unsynced changes may exceed it: their estimate is high, and a dataset that is nearly full would otherwise
    /// wait for a txg at each write.
    pub(super) slack: u64,
}

/// Returns how much a head may grow, and how much each quota leaves of that. `netfree`: a change that frees space in the end,
/// so quotas are not asked and half of the pool's reserve may be used.
#[doc(alias("dsl_dir_tempreserve_space", "dsl_dataset_check_quota"))]
pub(super) fn room(
    view: &MosView<'_>,
    hooks: &dyn Hooks,
    head: u64,
    netfree: bool,
) -> Result<(Room, Vec<QuotaRoom>)> {
    let mut quotas = Vec::new();
    let phys = view.dataset(head)?;
    let refquota = props::own_number(view, phys.dir_obj, "refquota")?;
    let mut room = Room { quota: u64::MAX, pool: u64::MAX };
    if !netfree && refquota != 0 {
        room.quota = refquota.saturating_sub(phys.referenced_bytes);
        quotas.push(QuotaRoom { dir: None, left: room.quota, slack: 0 });
    }
    // The head may use the space of its refreservation.
    let reserved = props::own_number(view, phys.dir_obj, "refreservation")?;
    let mut unused = reserved.saturating_sub(phys.unique_bytes);
    for step in view.ancestors(phys.dir_obj) {
        let (number, dir) = step?;
        let used = dir.used_bytes.saturating_sub(unused);
        if !netfree && dir.quota != 0 {
            let left = dir.quota.saturating_sub(used);
            room.quota = room.quota.min(left);
            quotas.push(QuotaRoom { dir: Some(number), left, slack: dir.quota >> QUOTA_SLACK_SHIFT });
        }
        if dir.parent_obj == 0 {
            room.pool = hooks.pool_space(netfree).saturating_sub(used);
        }
        // So is the space that a reservation of this directory holds above.
        unused = unused.saturating_add(dir.reserved.saturating_sub(dir.used_bytes));
    }
    Ok((room, quotas))
}

/// Whether the MOS may grow by some blocks, for a change of datasets.
#[doc(alias = "dsl_sync_task_sync")]
pub(super) fn check_room(at: &MosTx<'_>, blocks: u64, netfree: bool) -> Result<()> {
    let needed = blocks << TASK_BLOCK_SHIFT;
    let used = at.dir(at.root_dir()?)?.used_bytes.saturating_add(needed * 3);
    match used > at.hooks.pool_space(netfree) {
        true => Err(Error::new(Kind::NoSpace, "the pool is full")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_space_is_charged_at_once() {
        assert_eq!(charged(10, 0, 5), 5);
        assert_eq!(charged(10, 100, 5), 0);
        assert_eq!(charged(90, 100, 20), 10);
        assert_eq!(charged(110, 100, -20), -10);
        assert_eq!(charged(110, 100, -5), -5);
    }

    #[test]
    fn charges_in_two_steps_are_those_of_one() {
        for (used, reserved, a, b) in [(5, 20, 10i64, 10i64), (30, 20, -15, 9), (0, 7, 3, -3)] {
            let mid = u64::try_from(i64::try_from(used).unwrap() + a).unwrap();
            let steps = charged(used, reserved, a) + charged(mid, reserved, b);
            assert_eq!(steps, charged(used, reserved, a + b));
        }
    }
}
