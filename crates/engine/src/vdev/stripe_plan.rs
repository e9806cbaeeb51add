//! How a block is read from a raidz-like vdev, and recovered when that fails.
//!
//! States, each left when it has nothing more to ask:
//! - `Known`: read the data columns, except where a child sits out and parity suffices, and parity when columns are missing. If
//!   the bytes are accepted, that is all, unless a device failed a read: then a repair follows, and
//!   the rest of the stripe is verified too.
//! - `Fresh`: read every column from every leaf that should be up to date, then search for an
//!   assumption of wrong columns under which the bytes are accepted ([`super::search`]).
//! - `Pieces`: read again in small pieces where a device failed, and search again: often only a few of its
//!   sectors are unreadable.
//! - `Stale`: add the bytes of leaves that are known to lack writes, and search again.
//!
//! A thorough read starts in `Fresh`. A resilver's starts in `Known`: the checksum judges the block, and columns that neither
//! serve nor are lacking are a scrub's work. At the end all bytes that were read are compared with the expected ones
//! ([`super::compare`]).
//!
//! Differs from OpenZFS: as many children as parity replaces sit out, where OpenZFS does without one per row; the search looks
//! at each row of sectors by itself, so it also recovers blocks whose damage is spread over more columns than there
//! is parity, and gives up at once when the parity shows that no assumption can help; OpenZFS's resilver reads all columns.

use super::compare;
use super::gather::{Bytes, GAP, Gather};
use super::plan::{BadCopy, ChildRead, ChildResult, Children, Depth, Fault, PlanOutcome, PlanStep, part};
use super::search;
use super::stripe::{Column, Grid};
use stdx::{AlignedBuf, Buf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Known,
    Fresh,
    Pieces,
    Stale,
}

/// Known faults of the sides of one part of a child.
#[derive(Debug, Clone)]
struct PartFaults {
    part: u64,
    sides: Vec<Option<Fault>>,
    sits_out: bool,
}

/// Known faults of the children that the block touches, at the start of the plan.
#[derive(Debug, Default)]
struct Faults(Vec<Vec<PartFaults>>);

impl Faults {
    fn of(children: &dyn Children, grid: &Grid) -> Self {
        let mut faults = Self(vec![Vec::new(); usize::try_from(children.count()).unwrap_or(0)]);
        for (child, offset) in grid.columns.iter().map(|column| (column.child, column.offset)) {
            if let Some(known) = usize::try_from(child).ok().and_then(|child| faults.0.get_mut(child))
                && known.iter().all(|known| known.part != part(offset))
            {
                let sides = 0..children.sides(child, offset);
                let sides = sides.map(|side| children.fault(child, side, offset)).collect();
                let sits_out = children.sits_out(child, offset);
                known.push(PartFaults { part: part(offset), sides, sits_out });
            }
        }
        faults
    }

    fn any_doubtful(&self) -> bool {
        self.0.iter().flatten().flat_map(|known| &known.sides).any(|&fault| is_doubtful(fault))
    }

    /// Columns of a raidz may reach into a part in which none begins: its children are the same in all parts.
    fn part(&self, child: u32, offset: u64) -> Option<&PartFaults> {
        let known = usize::try_from(child).ok().and_then(|child| self.0.get(child))?;
        known.iter().find(|known| known.part == part(offset)).or(known.first())
    }

    fn child(&self, child: u32, offset: u64) -> &[Option<Fault>] {
        self.part(child, offset).map_or(&[], |known| &known.sides)
    }
}

impl Children for Faults {
    fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn sides(&self, child: u32, offset: u64) -> u32 {
        u32::try_from(self.child(child, offset).len()).unwrap_or(u32::MAX)
    }

    fn fault(&self, child: u32, side: u32, offset: u64) -> Option<Fault> {
        let fault = usize::try_from(side).ok().and_then(|side| self.child(child, offset).get(side));
        fault.copied().unwrap_or(Some(Fault::Unreadable))
    }

    fn sits_out(&self, child: u32, offset: u64) -> bool {
        self.part(child, offset).is_some_and(|known| known.sits_out)
    }
}

/// Reads one block that a [`Grid`] describes.
#[derive(Debug)]
pub(super) struct StripePlan {
    /// `None` when the request made no sense.
    grid: Option<Grid>,
    size: u64,
    depth: Depth,
    phase: Phase,
    gather: Gather,
    faults: Faults,
    /// A leaf that was wanted could not serve.
    degraded: bool,
    /// A device failed a read that it was to serve: the column will be repaired.
    failed: bool,
    /// The block, while the rest of its stripes is read to be verified.
    accepted: Option<Buf>,
}

/// The read of a column from one side.
pub(super) fn read_of(column: &Column, side: u32) -> ChildRead {
    ChildRead { child: column.child, side, area: column.area, offset: column.offset, len: column.len }
}

/// Where a column can be had without doubting any leaf.
enum Source {
    Here(Buf),
    Ask(ChildRead),
    Nowhere,
}

fn source(gather: &Gather, children: &dyn Children, column: &Column) -> Source {
    for side in 0..children.sides(column.child, column.offset) {
        if children.fault(column.child, side, column.offset).is_some() {
            continue;
        }
        let read = read_of(column, side);
        match gather.look_up(&read) {
            Bytes::Read(data) => return Source::Here(data),
            Bytes::Unasked => return Source::Ask(read),
            Bytes::Failed => {}
        }
    }
    Source::Nowhere
}

impl StripePlan {
    pub(crate) fn new(grid: Option<Grid>, size: u64, depth: Depth) -> Self {
        let phase = if depth == Depth::All { Phase::Fresh } else { Phase::Known };
        Self {
            grid,
            size,
            depth,
            phase,
            gather: Gather::default(),
            faults: Faults::default(),
            degraded: false,
            failed: false,
            accepted: None,
        }
    }

    pub(super) fn start(&mut self, children: &dyn Children) -> PlanStep {
        let Some(grid) = &self.grid else {
            return PlanStep::Done(PlanOutcome::default());
        };
        if grid.columns.iter().any(|column| column.child >= children.count()) {
            return PlanStep::Done(PlanOutcome::default());
        }
        self.faults = Faults::of(children, grid);
        // Nothing can be accepted before anything was read, so no judge is needed yet.
        self.proceed(GAP, &mut |_| false)
    }

    pub(super) fn resume(
        &mut self,
        results: Vec<ChildResult>,
        judge: &mut dyn FnMut(&[u8]) -> bool,
    ) -> PlanStep {
        for result in results {
            self.degraded |= result.data.is_none();
            self.failed |= result.data.is_none();
            self.gather.take(result);
        }
        self.proceed(0, judge)
    }

    /// Advances from state to state until there is something to read or the plan ends.
    fn proceed(&mut self, gap: u64, judge: &mut dyn FnMut(&[u8]) -> bool) -> PlanStep {
        let Some(grid) = &self.grid else {
            return PlanStep::Done(PlanOutcome::default());
        };
        loop {
            let (gather, faults) = (&mut self.gather, &self.faults);
            let wanted = match self.phase {
                Phase::Known => known(grid, gather, faults, self.depth, &mut self.degraded),
                Phase::Fresh | Phase::Pieces => everything(grid, gather, faults, self.depth, false),
                Phase::Stale => everything(grid, gather, faults, self.depth, true),
            };
            let reads = gather.ask(wanted, gap);
            if !reads.is_empty() {
                return PlanStep::Issue(reads);
            }
            let search = |stale, judge: &mut dyn FnMut(&[u8]) -> bool| {
                search::search(grid, gather, faults, self.size, stale, judge)
            };
            let simple = || assemble(grid, gather, faults, self.size);
            let data = match self.phase {
                _ if self.accepted.is_some() => self.accepted.take(),
                Phase::Known => simple().filter(|data| judge(data)),
                Phase::Fresh | Phase::Pieces => {
                    simple().filter(|data| judge(data)).or_else(|| search(false, judge))
                }
                Phase::Stale if faults.any_doubtful() => search(true, judge),
                Phase::Stale => None,
            };
            let verifies = self.phase == Phase::Known && self.failed;
            if (data.is_some() && !verifies) || self.phase == Phase::Stale {
                let bad = self.bad_copies(grid, data.as_deref());
                return PlanStep::Done(PlanOutcome { data, bad });
            }
            self.accepted = data;
            match self.phase {
                Phase::Known => self.phase = Phase::Fresh,
                Phase::Fresh => {
                    self.phase = Phase::Pieces;
                    let pieces = self.gather.retry_in_pieces(grid.sector);
                    if !pieces.is_empty() {
                        return PlanStep::Issue(pieces);
                    }
                    self.phase = Phase::Stale;
                }
                Phase::Pieces | Phase::Stale => self.phase = Phase::Stale,
            }
        }
    }

    fn bad_copies(&self, grid: &Grid, data: Option<&[u8]>) -> Vec<BadCopy> {
        let is_lacking = self.depth == Depth::Lacking;
        if self.phase == Phase::Known && !self.degraded && !is_lacking {
            return Vec::new();
        }
        // Without more parity than it takes, the columns that `Known` read made up a good block, so none of them is wrong.
        let compared = data.filter(|_| self.phase != Phase::Known || self.degraded && !is_lacking);
        let thorough = self.depth != Depth::First || data.is_none();
        compare::bad_copies(grid, &self.gather, &self.faults, compared, thorough, data.is_none())
    }
}

/// A leaf that is there but not to be trusted.
pub(super) fn is_doubtful(fault: Option<Fault>) -> bool {
    matches!(fault, Some(Fault::Stale | Fault::Wrong))
}

/// Returns the reads that `Known` still has to issue.
fn known(
    grid: &Grid,
    gather: &Gather,
    children: &dyn Children,
    depth: Depth,
    degraded: &mut bool,
) -> Vec<ChildRead> {
    let mut wanted = Vec::new();
    let sits_out = |column: &Column| children.sits_out(column.child, column.offset);
    for stripe in grid.stripes() {
        let (parity, data) = stripe.split_at_checked(grid.nparity).unwrap_or_default();
        let (mut missing, mut sitting) = (0usize, Vec::new());
        for column in data.iter().filter(|column| column.len > 0) {
            match source(gather, children, column) {
                Source::Here(_) => {}
                Source::Ask(read) if sits_out(column) => sitting.push(read),
                Source::Ask(read) => wanted.push(read),
                Source::Nowhere => missing += 1,
            }
        }
        *degraded |= missing > 0;
        // Parity of children that sit out is read when the rest does not suffice.
        let can_serve = |column: &&Column| !matches!(source(gather, children, column), Source::Nowhere);
        let ready = parity.iter().filter(can_serve).filter(|column| !sits_out(column)).count();
        let left_out = ready.saturating_sub(missing).min(sitting.len());
        wanted.extend(sitting.into_iter().rev().skip(left_out));
        let needed = missing + left_out;
        // All parity, as in OpenZFS: some of it serves, and the rest is compared with the block. A resilver reads only what
        // serves.
        let most = if depth == Depth::Lacking { needed } else { parity.len() };
        let wants = parity.iter().filter(|column| needed > 0 && (!sits_out(column) || needed > ready));
        for column in wants.filter(can_serve).take(most) {
            if let Source::Ask(read) = source(gather, children, column) {
                wanted.push(read);
            }
        }
    }
    wanted
}

/// All columns, and in a thorough read the padding too, from all sides that are in question.
fn everything(
    grid: &Grid,
    gather: &Gather,
    children: &dyn Children,
    depth: Depth,
    stale: bool,
) -> Vec<ChildRead> {
    let mut wanted = Vec::new();
    for column in &grid.columns {
        for side in 0..children.sides(column.child, column.offset) {
            let fault = children.fault(column.child, side, column.offset);
            if fault.is_some() && !(stale && is_doubtful(fault)) {
                continue;
            }
            let padding = Some(padding_of(column)).filter(|_| depth == Depth::All);
            for column in std::iter::once(*column).chain(padding) {
                let read = read_of(&column, side);
                if column.len > 0 && matches!(gather.look_up(&read), Bytes::Unasked) {
                    wanted.push(read);
                }
            }
        }
    }
    wanted
}

/// The zeros after a column as a column of their own.
pub(super) fn padding_of(column: &Column) -> Column {
    Column { offset: column.offset.saturating_add(column.len), len: column.zeros, zeros: 0, ..*column }
}

/// The block from the columns at hand, missing ones computed; `None` when that is not possible.
fn assemble(grid: &Grid, gather: &Gather, children: &dyn Children, size: u64) -> Option<Buf> {
    let size = usize::try_from(size).ok()?;
    let here = |column: &Column| match source(gather, children, column) {
        Source::Here(data) => Some(data),
        Source::Ask(_) | Source::Nowhere => None,
    };
    let found: Vec<Option<Buf>> = grid
        .columns
        .iter()
        .map(|column| Some(column).filter(|column| column.len > 0).and_then(here))
        .collect();
    match joined(grid, &found, size) {
        Some(block) => Some(block),
        None => rebuilt(grid, &found, size),
    }
}

/// The block when all data columns are there.
fn joined(grid: &Grid, found: &[Option<Buf>], size: usize) -> Option<Buf> {
    let mut parts = Vec::with_capacity(grid.columns.len());
    for (number, (column, data)) in grid.columns.iter().zip(found).enumerate() {
        if column.len > 0 && !grid.is_parity(number.checked_rem(grid.width)?) {
            parts.push((column.at, data.as_ref()?));
        }
    }
    if let [(_, only)] = parts.as_slice() {
        return Some(only.slice(0..size));
    }
    parts.sort_unstable_by_key(|&(at, _)| at);
    let parts: Vec<&[u8]> = parts.into_iter().map(|(_, data)| &**data).collect();
    Some(AlignedBuf::concat(&parts).into_prefix(size))
}

/// The block with missing data columns computed from parity.
fn rebuilt(grid: &Grid, found: &[Option<Buf>], size: usize) -> Option<Buf> {
    // The data columns cover it all.
    let mut block = AlignedBuf::scratch(usize::try_from(grid.size).ok()?);
    for (stripe, found) in grid.stripes().zip(found.chunks(grid.width.max(1))) {
        let (_, data) = stripe.split_at_checked(grid.nparity)?;
        let (parity, found) = found.split_at_checked(grid.nparity)?;
        let mut views = views(&mut block, data)?;
        let mut missing = Vec::new();
        for ((place, bytes), view) in found.iter().enumerate().zip(&mut views) {
            match bytes {
                Some(bytes) => view.copy_from_slice(bytes.get(..view.len())?),
                None if view.is_empty() => {}
                None => missing.push(place),
            }
        }
        if !missing.is_empty() {
            let parity: Vec<&[u8]> =
                parity.iter().map(|bytes| bytes.as_deref().unwrap_or_default()).collect();
            raidz_math::rebuild(&parity, &mut views, &missing).ok()?;
        }
    }
    Some(block.into_prefix(size))
}

/// Where the data columns of a stripe stand in the block. They follow each other, with gaps where
/// other stripes have theirs.
fn views<'a>(block: &'a mut [u8], data: &[Column]) -> Option<Vec<&'a mut [u8]>> {
    let (mut rest, mut at) = (block, 0);
    let mut views = Vec::with_capacity(data.len());
    for column in data {
        let (column_at, len) = (usize::try_from(column.at).ok()?, usize::try_from(column.len).ok()?);
        let skip = if len == 0 { 0 } else { column_at.checked_sub(at)? };
        let (view, tail) = rest.split_at_mut_checked(skip)?.1.split_at_mut_checked(len)?;
        views.push(view);
        rest = tail;
        at = at.checked_add(skip)?.checked_add(len)?;
    }
    Some(views)
}
