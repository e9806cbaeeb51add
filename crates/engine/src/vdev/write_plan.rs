//! Converts a write of a block to a top-level vdev into writes of its children. No I/O.
//!
//! The bytes of the block are not copied: each child's write refers to stretches of it. Only parity is new.
//!
//! Differs from OpenZFS: the sectors that raidz leaves unused at a block's end (skip sectors) are never written;
//! it writes zeros there where that joins two writes. draid's padding is written as zeros, as there.

use std::collections::HashSet;
use std::sync::OnceLock;

use stdx::{AlignedBuf, Buf};

use super::draid::DraidGeometry;
use super::plan::{Area, part};
use super::raidz::RaidzGeometry;
use super::stripe::{Column, Grid};

/// Zero bytes at hand: the rest of a sector and one sector of padding, each 64 KiB at most.
const ZEROS: usize = 128 << 10;

/// A write of one child: every side of it takes the same bytes.
#[derive(Debug, Clone)]
pub struct ChildWrite {
    /// Index of the direct child of the top-level vdev.
    pub child: u32,
    /// The area that `offset` counts from.
    pub area: Area,
    /// Bytes from the start of the area.
    pub offset: u64,
    /// The bytes, one part after the other.
    pub parts: Vec<Buf>,
}

impl ChildWrite {
    /// Bytes in all parts.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| u64::try_from(part.len()).unwrap_or(0)).sum()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn covers(&self, column: &Column) -> bool {
        let end = self.offset.saturating_add(self.len());
        (column.child, column.area) == (self.child, self.area) && (self.offset..end).contains(&column.offset)
    }
}

/// All writes of a block, to be issued together.
#[derive(Debug)]
pub struct WritePlan {
    /// The writes, by child and offset.
    pub writes: Vec<ChildWrite>,
    /// The places from which the block is to be readable, more than one while a reflow moves it. Empty: one write, which is
    /// needed.
    grids: Vec<Grid>,
}

impl WritePlan {
    /// A block on a disk or mirror with sectors of `1 << ashift` bytes.
    pub fn mirror(ashift: u32, offset: u64, data: &Buf) -> Self {
        let rest = data.len().next_multiple_of(1 << ashift.min(16)) - data.len();
        let mut parts = vec![data.clone()];
        if rest > 0 {
            parts.push(zeros(rest));
        }
        Self { writes: vec![ChildWrite { child: 0, area: Area::Data, offset, parts }], grids: Vec::new() }
    }

    /// A block on a raidz, born in `birth_txg`; `None` when the request makes no sense.
    pub fn raidz(geometry: &RaidzGeometry, offset: u64, data: &Buf, birth_txg: u64) -> Option<Self> {
        let size = u64::try_from(data.len()).ok()?;
        if !geometry.is_reflowing() {
            return Self::striped(geometry.grid(offset, size, birth_txg)?, data);
        }
        let places = geometry.write_places(offset, size, birth_txg)?;
        let mut grids = places.read.into_iter();
        let mut plan = Self::striped(grids.next()?, data)?;
        let columns = plan.grids.first()?.columns.clone();
        let contents = contents(plan.grids.first()?, data, |_| true)?;
        let mut taken: HashSet<_> =
            columns.iter().filter(|c| c.len > 0).map(|c| (c.child, c.area, c.offset)).collect();
        plan.grids.extend(grids);
        let next = plan.grids.get(1..)?.iter().map(|grid| &grid.columns);
        for others in next.chain(&places.moved) {
            for (column, parts) in others.iter().zip(&contents).filter(|(column, _)| column.len > 0) {
                if taken.insert((column.child, column.area, column.offset)) {
                    plan.writes.push(ChildWrite {
                        child: column.child,
                        area: column.area,
                        offset: column.offset,
                        parts: parts.clone(),
                    });
                }
            }
        }
        plan.writes = joined(plan.writes);
        Some(plan)
    }

    /// A block on a draid; `None` when the request makes no sense.
    pub fn draid(geometry: &DraidGeometry, offset: u64, data: &Buf) -> Option<Self> {
        Self::striped(geometry.grid(offset, u64::try_from(data.len()).ok()?)?, data)
    }

    fn striped(grid: Grid, data: &Buf) -> Option<Self> {
        Self::columns(grid, data, |_| true)
    }

    /// The writes of the columns of a block that are `wanted`. Parity that is not, is not computed.
    pub(super) fn columns(grid: Grid, data: &Buf, wanted: impl Fn(&Column) -> bool) -> Option<Self> {
        let contents = contents(&grid, data, wanted)?;
        let mut writes = Vec::with_capacity(grid.columns.len());
        for (column, parts) in grid.columns.iter().zip(contents) {
            if parts.iter().any(|part| !part.is_empty()) {
                writes.push(ChildWrite {
                    child: column.child,
                    area: column.area,
                    offset: column.offset,
                    parts,
                });
            }
        }
        Some(Self { writes: joined(writes), grids: vec![grid] })
    }

    /// Whether the block can still be read when the writes with these numbers failed on all sides.
    pub(crate) fn can_lose(&self, lost: &[usize]) -> bool {
        let lost: Vec<&ChildWrite> = lost.iter().filter_map(|&number| self.writes.get(number)).collect();
        let survives = |grid: &Grid| {
            grid.stripes().all(|stripe| {
                let columns = stripe.iter().filter(|column| column.len > 0);
                columns.filter(|column| lost.iter().any(|write| write.covers(column))).count() <= grid.nparity
            })
        };
        lost.is_empty() || !self.grids.is_empty() && self.grids.iter().all(survives)
    }
}

/// The bytes of each column that is wanted, with the zeros that follow them; nothing for the others.
fn contents(grid: &Grid, data: &Buf, wanted: impl Fn(&Column) -> bool) -> Option<Vec<Vec<Buf>>> {
    let parity = parity(grid, data, &wanted)?;
    let mut parity_at = 0;
    let mut all = Vec::with_capacity(grid.columns.len());
    for (number, column) in grid.columns.iter().enumerate() {
        let mut parts = Vec::with_capacity(2);
        if !wanted(column) {
            all.push(parts);
            continue;
        }
        if grid.is_parity(number.checked_rem(grid.width)?) {
            let end = usize::try_from(column.len).ok()?.checked_add(parity_at)?;
            parts.push(parity.slice(parity_at..end));
            parity_at = end;
        } else {
            parts.push(stretch(data, column)?);
        }
        let have = parts.iter().map(|part| part.len()).sum();
        let want = usize::try_from(column.len.checked_add(column.zeros)?).ok()?;
        if want > have {
            parts.push(zeros(want - have));
        }
        all.push(parts);
    }
    Some(all)
}

/// A data column's bytes, fewer than its length where the block ends within a sector.
fn stretch(data: &Buf, column: &Column) -> Option<Buf> {
    let at = usize::try_from(column.at).ok()?;
    Some(data.slice(at..at.checked_add(usize::try_from(column.len).ok()?)?))
}

/// The wanted parity of all stripes, column after column, in one buffer.
fn parity(grid: &Grid, data: &Buf, wanted: impl Fn(&Column) -> bool) -> Option<Buf> {
    let height = |column: &Column| {
        if wanted(column) { usize::try_from(column.len).unwrap_or(0) } else { 0 }
    };
    let of_stripe = |stripe: &[Column]| stripe.iter().take(grid.nparity).map(height).sum::<usize>();
    let mut all = AlignedBuf::scratch(grid.stripes().map(of_stripe).sum());
    let mut rest: &mut [u8] = &mut all;
    for stripe in grid.stripes().filter(|stripe| of_stripe(stripe) > 0) {
        let (parity, columns) = stripe.split_at_checked(grid.nparity)?;
        let mut views = Vec::with_capacity(grid.nparity);
        for column in parity {
            let (view, tail) = std::mem::take(&mut rest).split_at_mut_checked(height(column))?;
            views.push(view);
            rest = tail;
        }
        let columns: Vec<Buf> = columns.iter().map(|column| stretch(data, column)).collect::<Option<_>>()?;
        let columns: Vec<&[u8]> = columns.iter().map(|column| &**column).collect();
        raidz_math::generate(&columns, &mut views).ok()?;
    }
    Some(all.into())
}

/// One write for neighbours on a child: an expanded raidz has its rows there one below the other. Neighbours in two rows of
/// a draid stay apart, as a distributed spare has them on two leaves.
fn joined(mut writes: Vec<ChildWrite>) -> Vec<ChildWrite> {
    writes.sort_by_key(|write| (write.child, write.area, write.offset));
    let mut all: Vec<ChildWrite> = Vec::with_capacity(writes.len());
    for mut next in writes {
        match all.last_mut() {
            Some(last)
                if (last.child, last.area, part(last.offset))
                    == (next.child, next.area, part(next.offset))
                    && last.offset.checked_add(last.len()) == Some(next.offset) =>
            {
                last.parts.append(&mut next.parts);
            }
            _ => all.push(next),
        }
    }
    all
}

/// Returns `len` zero bytes from a shared buffer.
fn zeros(len: usize) -> Buf {
    static SHARED: OnceLock<Buf> = OnceLock::new();
    let shared = SHARED.get_or_init(|| AlignedBuf::zeroed(ZEROS).into());
    if len <= ZEROS { shared.slice(0..len) } else { AlignedBuf::zeroed(len).into() }
}
