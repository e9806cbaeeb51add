//! Space of directories: who uses it, who has reserved it.
//!
//! A directory's `used_bytes` is what it uses or has reserved through its refreservation, with all below. What
//! its parent is charged with is that or its reservation, whichever is more.

use ondisk::dsl::{DslDataset, DslDir};

use super::at::MosAt;
use super::props;
use crate::dsl::MAX_NESTING;
use crate::dsl::props::space::{DirSpace, available_along};
use crate::error::Result;

/// A change of space, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delta {
    /// Allocated.
    pub used: i64,
    /// Before redundancy.
    pub compressed: i64,
    /// Before compression.
    pub uncompressed: i64,
}

impl Delta {
    /// The opposite change.
    #[must_use]
    pub fn negated(self) -> Self {
        Self { used: -self.used, compressed: -self.compressed, uncompressed: -self.uncompressed }
    }

    /// Both changes.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            used: self.used + other.used,
            compressed: self.compressed + other.compressed,
            uncompressed: self.uncompressed + other.uncompressed,
        }
    }

    /// Of sizes as they are on disk.
    pub fn of(used: u64, compressed: u64, uncompressed: u64) -> Self {
        Self {
            used: used.cast_signed(),
            compressed: compressed.cast_signed(),
            uncompressed: uncompressed.cast_signed(),
        }
    }
}

/// What a charge changes by when what is used goes from `used` to `used + delta` and `reserved` is charged at
/// least.
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
pub fn charge(at: &MosAt<'_>, dir: u64, kind: usize, delta: Delta) -> Result<()> {
    charge_and_move(at, dir, delta, delta.used, (kind, kind))
}

/// Charges a directory and its ancestors; `moved` bytes become of the second kind, and what of them is not new
/// was of the first kind before.
#[doc(alias = "dsl_dir_diduse_transfer_space")]
pub fn charge_and_move(
    at: &MosAt<'_>,
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
pub fn transfer(at: &MosAt<'_>, dir: u64, bytes: i64, from: usize, to: usize) -> Result<()> {
    at.change_dir(dir, |phys| {
        move_kind(phys, -bytes, from);
        move_kind(phys, bytes, to);
    })
}

/// A snapshot is made of `head`: what was unique is no longer, so the refreservation must be filled anew.
pub(super) fn charge_refreservation(at: &MosAt<'_>, head: &DslDataset) -> Result<()> {
    let reserved = props::own_number(at, head.dir_obj, "refreservation")?;
    if reserved == 0 {
        return Ok(());
    }
    let bytes = head.unique_bytes.min(reserved);
    charge(at, head.dir_obj, DslDir::USED_REFRSRV, Delta::of(bytes, 0, 0))
}

/// Sets a directory's reservation; its parent pays for what is not used of it.
#[doc(alias = "dsl_dir_set_reservation_sync_impl")]
pub(super) fn set_reserved(at: &MosAt<'_>, dir: u64, value: u64) -> Result<()> {
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

/// Space that a directory may still take, `netfree` as in [`super::Hooks::pool_space`]; what its ancestors from
/// `stop` on allow is not asked.
#[doc(alias = "dsl_dir_space_available")]
pub fn available(at: &MosAt<'_>, dir: u64, stop: u64, netfree: bool) -> Result<u64> {
    let mut path = Vec::new();
    let mut next = dir;
    while next != 0 && next != stop && path.len() <= MAX_NESTING {
        let phys = at.dir(next)?;
        path.push(DirSpace { used: phys.used_bytes, quota: phys.quota, reserved: phys.reserved });
        next = phys.parent_obj;
    }
    path.reverse();
    let pool = if next == stop && stop != 0 { u64::MAX } else { at.hooks.pool_space(netfree) };
    Ok(available_along(pool, &path))
}
