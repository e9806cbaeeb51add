//! Finds the bad copies once a block's bytes are known.

use super::gather::{Bytes, Gather};
use super::plan::{BadCopy, Children, Fault, part};
use super::stripe::{Column, Grid};
use super::stripe_plan::{padding_of, read_of};
use std::borrow::Cow;
use stdx::AlignedBuf;

/// Returns every copy that could not serve the read or whose bytes are wrong. `data` is the block to compare
/// the copies with; `thorough` also names known faults of leaves that were not needed. When the block is
/// `lost` although enough of it was read, every column that was read counts as wrong, as the wrong ones can't
/// be told apart.
#[doc(alias = "vdev_raidz_io_done_unrecoverable")]
pub(super) fn bad_copies(
    grid: &Grid,
    gather: &Gather,
    children: &dyn Children,
    data: Option<&[u8]>,
    thorough: bool,
    lost: bool,
) -> Vec<BadCopy> {
    let suspect = lost && grid.stripes().all(|stripe| is_enough(grid, gather, children, stripe));
    let block = data.and_then(|data| padded(data, grid.size));
    let mut bad = Vec::new();
    let mut expected_parity = ExpectedParity::of(grid);
    for stripe in grid.stripes() {
        let missing = stripe.iter().any(|column| column.len > 0 && !is_read(gather, children, column));
        let is_wanted = |column: &Column| is_read(gather, children, column);
        let parity = block.as_deref().and_then(|block| expected_parity.compute(stripe, block, is_wanted));
        for (place, column) in stripe.iter().enumerate() {
            let expected = if grid.is_parity(place) {
                parity.as_ref().and_then(|parity| parity.get(place)).map(|column| &**column)
            } else {
                block.as_deref().and_then(|block| data_of(column, block))
            };
            let wanted = thorough || (missing && !is_read(gather, children, column));
            let expected =
                expected.map_or(if suspect { Expected::Other } else { Expected::Unknown }, Expected::These);
            check(&mut bad, gather, children, column, expected, wanted);
            let padding = padding_of(column);
            if padding.len > 0 {
                let zeros = vec![0; usize::try_from(padding.len).unwrap_or(0)];
                check(&mut bad, gather, children, &padding, Expected::These(&zeros), thorough);
            }
        }
    }
    bad.sort_unstable_by_key(|bad| bad.read);
    join(bad)
}

/// The block with the rest of its last sector, which is written as zeros.
fn padded(data: &[u8], size: u64) -> Option<Cow<'_, [u8]>> {
    let size = usize::try_from(size).ok()?;
    if data.len() == size {
        return Some(Cow::Borrowed(data));
    }
    let mut block = data.to_vec();
    block.resize(size, 0);
    Some(Cow::Owned(block))
}

fn data_of<'a>(column: &Column, block: &'a [u8]) -> Option<&'a [u8]> {
    let at = usize::try_from(column.at).ok()?;
    block.get(at..at.checked_add(usize::try_from(column.len).ok()?)?)
}

/// Room for the parity that a stripe should have, used for one stripe after the other.
struct ExpectedParity(Vec<AlignedBuf>);

impl ExpectedParity {
    fn of(grid: &Grid) -> Self {
        let height = grid.columns.iter().map(|column| usize::try_from(column.len).unwrap_or(0)).max();
        Self((0..grid.nparity).map(|_| AlignedBuf::scratch(height.unwrap_or(0))).collect())
    }

    /// Returns the parity columns of a stripe of the block; those that are not `wanted` are empty. `None` when none is.
    fn compute(
        &mut self,
        stripe: &[Column],
        block: &[u8],
        wanted: impl Fn(&Column) -> bool,
    ) -> Option<Vec<&mut [u8]>> {
        let (parity, data) = stripe.split_at_checked(self.0.len())?;
        let mut columns = Vec::with_capacity(parity.len());
        for (column, room) in parity.iter().zip(&mut self.0) {
            let len = if wanted(column) { usize::try_from(column.len).ok()? } else { 0 };
            columns.push(room.get_mut(..len)?);
        }
        if columns.iter().all(|column| column.is_empty()) {
            return None;
        }
        let data: Vec<&[u8]> = data.iter().map(|column| data_of(column, block)).collect::<Option<_>>()?;
        raidz_math::generate(&data, &mut columns).ok()?;
        Some(columns)
    }
}

fn is_read(gather: &Gather, children: &dyn Children, column: &Column) -> bool {
    (0..children.sides(column.child, column.offset))
        .any(|side| matches!(gather.look_up(&read_of(column, side)), Bytes::Read(_)))
}

/// Whether no more columns of a stripe are missing than it has parity.
fn is_enough(grid: &Grid, gather: &Gather, children: &dyn Children, stripe: &[Column]) -> bool {
    let missing = stripe.iter().filter(|column| column.len > 0 && !is_read(gather, children, column));
    missing.count() <= grid.nparity
}

/// The expected content of a column.
#[derive(Clone, Copy)]
enum Expected<'a> {
    These(&'a [u8]),
    Unknown,
    /// Unknown, but different from the bytes that were read.
    Other,
}

/// Looks at one column on all its sides. Bytes can only be wrong where something is `expected`.
fn check(
    bad: &mut Vec<BadCopy>,
    gather: &Gather,
    children: &dyn Children,
    column: &Column,
    expected: Expected<'_>,
    wanted: bool,
) {
    if column.len == 0 {
        return;
    }
    for side in 0..children.sides(column.child, column.offset) {
        let read = read_of(column, side);
        let known = children.fault(column.child, side, column.offset);
        let fault = match gather.look_up(&read) {
            Bytes::Unasked => known.filter(|_| wanted),
            Bytes::Failed => Some(Fault::Unreadable),
            Bytes::Read(bytes) => match expected {
                Expected::These(expected) if *bytes == *expected => None,
                Expected::Unknown => None,
                Expected::These(_) | Expected::Other => Some(known.unwrap_or(Fault::Wrong)),
            },
        };
        bad.extend(fault.map(|fault| BadCopy { read, fault }));
    }
}

/// Joins neighbours on a leaf that share a fault.
fn join(bad: Vec<BadCopy>) -> Vec<BadCopy> {
    let mut joined: Vec<BadCopy> = Vec::new();
    for next in bad {
        match joined.last_mut() {
            Some(last)
                if (last.fault, part(last.read.offset)) == (next.fault, part(next.read.offset))
                    && (last.read.child, last.read.side, last.read.area)
                        == (next.read.child, next.read.side, next.read.area)
                    && last.read.offset.saturating_add(last.read.len) == next.read.offset =>
            {
                last.read.len = last.read.len.saturating_add(next.read.len);
            }
            _ => joined.push(next),
        }
    }
    joined
}
