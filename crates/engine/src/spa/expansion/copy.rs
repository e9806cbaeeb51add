//! Moves sectors of a raidz vdev from one width to another, regardless of their content.
//!
//! The copy of a sector that was damaged is damaged, too, and stands on another child: a block that lacks one sector of a row
//! because its child had lost it must not lack another because a child loses the copy. So each copy is flushed and read back
//! from the device before the position covers it.

use std::io;
use std::sync::Arc;

use stdx::{AlignedBuf, Buf};

use crate::error::{Error, Kind, Result};
use crate::spa::removal::copy::{Start, all};
use crate::taskq::Executor;
use crate::vdev::leaf::{Leaf, PastCaches};
use crate::vdev::plan::Area;
use crate::vdev::stats::IoClass;
use crate::vdev::top::{Side, Top};

/// Bytes of the vdev that are copied as one.
const PIECE: u64 = 4 << 20;
/// Bytes that are in memory at once.
const BATCH: u64 = 16 << 20;
/// Free space between two ranges that is copied with them: one long request costs less than two.
const GAP: u64 = 64 << 10;

/// How the sectors of a vdev are spread over its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SectorSpread {
    /// Children in use.
    pub(crate) width: u64,
    pub(crate) area: Area,
}

/// Consecutive sectors of the vdev.
#[derive(Debug, Clone, Copy)]
struct Piece {
    first: u64,
    count: u64,
}

/// One child's share of a piece: every `width`th sector, which follow each other on the child.
#[derive(Debug, Clone, Copy)]
struct Share {
    child: u64,
    /// Sectors from the start of the piece to the first one.
    skip: u64,
    /// First row.
    row: u64,
    rows: u64,
}

impl Piece {
    fn shares(self, form: SectorSpread) -> impl Iterator<Item = Share> {
        (0..self.count.min(form.width)).filter_map(move |skip| {
            let sector = self.first.checked_add(skip)?;
            Some(Share {
                child: sector.checked_rem(form.width)?,
                skip,
                row: sector.checked_div(form.width)?,
                rows: (self.count - skip).div_ceil(form.width),
            })
        })
    }
}

/// Joins ranges that are near to each other and cuts them into pieces.
fn pieces(ranges: &[(u64, u64)], ashift: u32) -> Vec<Piece> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for &(start, end) in ranges {
        match joined.last_mut() {
            Some(last) if start <= last.1.saturating_add(GAP) => last.1 = end,
            _ => joined.push((start, end)),
        }
    }
    let most = PIECE >> ashift;
    let cut = |(start, end): (u64, u64)| {
        let (first, last) = (start >> ashift, end >> ashift);
        let parts = (first..last).step_by(usize::try_from(most).unwrap_or(usize::MAX));
        parts.map(move |first| Piece { first, count: most.min(last - first) })
    };
    joined.into_iter().flat_map(cut).collect()
}

/// The leaves of all children; `None` when a child is being replaced.
pub(super) fn leaves(top: &Top) -> Option<Vec<Arc<Leaf>>> {
    let only = |sides: &Vec<Side>| match sides.as_slice() {
        [Side::Leaf(leaf)] => Some(Arc::clone(leaf)),
        _ => None,
    };
    top.children().iter().map(only).collect()
}

/// Copies `ranges` (bytes of the vdev, ascending, whole sectors) from one form to another, flushes the
/// children, and compares their content with the written bytes.
///
/// # Errors
/// `Io` when a device fails, or returns other bytes. The old places keep their content where the new ones do
/// not overlap them.
pub(super) fn copy(
    executor: &dyn Executor,
    top: &Top,
    ranges: &[(u64, u64)],
    (from, to): (SectorSpread, SectorSpread),
    txg: u64,
) -> Result<()> {
    let leaves = leaves(top).ok_or_else(|| failed(top, "a device of it is being replaced"))?;
    let pieces = pieces(ranges, top.ashift);
    let batch = usize::try_from(BATCH / PIECE).unwrap_or(1);
    for batch in pieces.chunks(batch) {
        let copies = read_batch(executor, top, &leaves, batch, (from, to))?;
        write_all(executor, top, &copies)?;
        flush_all(executor, top, &leaves, txg)?;
        compare_all(executor, top, &copies)?;
    }
    Ok(())
}

fn failed(top: &Top, what: &str) -> Error {
    Error::new(Kind::Io, what).on_vdev(&top.name)
}

/// The writes of one child.
struct ChildCopy {
    leaf: Arc<Leaf>,
    /// Byte offset on its device.
    at: u64,
    bytes: Buf,
}

/// Reads pieces from their old places; returns the writes to the new ones.
fn read_batch(
    executor: &dyn Executor,
    top: &Top,
    leaves: &[Arc<Leaf>],
    pieces: &[Piece],
    (from, to): (SectorSpread, SectorSpread),
) -> Result<Vec<ChildCopy>> {
    let sector = 1_u64 << top.ashift;
    let overflow = || Error::corrupt("a sector lies beyond its device").on_vdev(&top.name);
    let place = |share: &Share, form: SectorSpread| {
        let leaf = usize::try_from(share.child).ok().and_then(|child| leaves.get(child));
        let at = share.row.checked_mul(sector).and_then(|at| form.area.leaf_offset(at));
        leaf.zip(at).ok_or_else(overflow)
    };
    let mut starts: Vec<Start<'_, io::Result<Buf>>> = Vec::new();
    for piece in pieces {
        for share in piece.shares(from) {
            let (leaf, at) = place(&share, from)?;
            let len = share.rows * sector;
            starts.push(Box::new(move |told| leaf.read_as(at, len, Some(IoClass::RemovalRead), told)));
        }
    }
    let mut read = all(executor, starts).into_iter();
    let mut copies = Vec::new();
    for piece in pieces {
        let mut sectors: Vec<Option<Buf>> = vec![None; usize::try_from(piece.count).unwrap_or(0)];
        for share in piece.shares(from) {
            let Some(Some(Ok(bytes))) = read.next() else {
                return Err(failed(top, "a device cannot be read"));
            };
            scatter(&bytes, sector, &share, from, &mut sectors).ok_or_else(overflow)?;
        }
        for share in piece.shares(to) {
            let bytes = collect(sector, &share, to, &sectors).ok_or_else(overflow)?;
            let (leaf, at) = place(&share, to)?;
            copies.push(ChildCopy { leaf: Arc::clone(leaf), at, bytes });
        }
    }
    Ok(copies)
}

fn write_all(executor: &dyn Executor, top: &Top, copies: &[ChildCopy]) -> Result<()> {
    let writes = copies.iter().map(|copy| {
        let parts = vec![copy.bytes.clone()];
        let start: Start<'_, io::Result<()>> =
            Box::new(move |told| copy.leaf.write_parts(copy.at, parts, IoClass::RemovalWrite, told));
        start
    });
    match all(executor, writes.collect()).into_iter().all(|result| matches!(result, Some(Ok(())))) {
        true => Ok(()),
        false => Err(failed(top, "a device cannot be written")),
    }
}

fn flush_all(executor: &dyn Executor, top: &Top, leaves: &[Arc<Leaf>], txg: u64) -> Result<()> {
    let flushes = leaves.iter().map(|leaf| {
        let start: Start<'_, io::Result<()>> = Box::new(move |told| leaf.flush(txg, told));
        start
    });
    match all(executor, flushes.collect()).into_iter().all(|result| matches!(result, Some(Ok(())))) {
        true => Ok(()),
        false => Err(failed(top, "a device cannot be flushed")),
    }
}

/// Reads copies from the devices themselves; a leaf that returns other bytes than it got has a checksum error more.
fn compare_all(executor: &dyn Executor, top: &Top, copies: &[ChildCopy]) -> Result<()> {
    let past_caches = PastCaches::of(copies.iter().map(|copy| Arc::clone(&copy.leaf)).collect());
    let reads = copies.iter().map(|copy| {
        let len = u64::try_from(copy.bytes.len()).unwrap_or(u64::MAX);
        let start: Start<'_, io::Result<Buf>> =
            Box::new(move |told| copy.leaf.read_as(copy.at, len, Some(IoClass::RemovalRead), told));
        start
    });
    let mut kept = true;
    for (copy, found) in copies.iter().zip(all(executor, reads.collect())) {
        let Some(Ok(found)) = found else { return Err(failed(top, "a device cannot be read")) };
        if found[..] != copy.bytes[..] {
            copy.leaf.gave_wrong_bytes();
            kept = false;
        }
    }
    drop(past_caches);
    match kept {
        true => Ok(()),
        false => Err(failed(top, "a device did not keep what was written")),
    }
}

/// Splits a child's bytes into the sectors of the piece.
fn scatter(
    bytes: &Buf,
    sector: u64,
    share: &Share,
    form: SectorSpread,
    to: &mut [Option<Buf>],
) -> Option<()> {
    let len = usize::try_from(sector).ok()?;
    for row in 0..usize::try_from(share.rows).ok()? {
        let from = row.checked_mul(len)?;
        let number =
            usize::try_from(share.skip).ok()? + row.checked_mul(usize::try_from(form.width).ok()?)?;
        let end = from.checked_add(len).filter(|end| *end <= bytes.len())?;
        *to.get_mut(number)? = Some(bytes.slice(from..end));
    }
    Some(())
}

/// Joins the sectors that go to one child.
fn collect(sector: u64, share: &Share, form: SectorSpread, sectors: &[Option<Buf>]) -> Option<Buf> {
    let len = usize::try_from(sector).ok()?;
    let mut bytes = AlignedBuf::scratch(usize::try_from(share.rows).ok()?.checked_mul(len)?);
    let (skip, width) = (usize::try_from(share.skip).ok()?, usize::try_from(form.width).ok()?);
    for (row, to) in bytes.chunks_exact_mut(len).enumerate() {
        to.copy_from_slice(sectors.get(skip + row * width)?.as_ref()?);
    }
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_each_sector_of_a_piece_once_where_the_geometry_has_it() {
        for (first, count, width) in [(0, 10, 3), (7, 1, 4), (5, 3, 4), (11, 29, 5)] {
            let mut seen = Vec::new();
            for share in (Piece { first, count }).shares(SectorSpread { width, area: Area::Data }) {
                for row in 0..share.rows {
                    let sector = first + share.skip + row * width;
                    assert_eq!((sector % width, sector / width), (share.child, share.row + row));
                    seen.push(sector);
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (first..first + count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn near_ranges_are_copied_as_one() {
        let found = pieces(&[(0, 4096), (8192, 12288), (1 << 20, (1 << 20) + 512)], 9);
        assert_eq!(found.iter().map(|p| (p.first, p.count)).collect::<Vec<_>>(), [(0, 24), (2048, 1)]);
    }
}
