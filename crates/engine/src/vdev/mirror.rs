//! How a block is read from a mirror, or from a single disk, which is a mirror with one side.
//!
//! All copies stand at the same offset of each side. One side is asked, chosen by offset so that
//! sequential readers keep each side's head in one region while the sides share the load; the next
//! is asked when that copy is missing or wrong. Sides that are known to lack the block come last.
//!
//! When no copy is right as a whole, unreadable parts are read again in pieces, and the block is put together
//! from all of them ([`super::mirror_sectors`]).
//!
//! Differs from OpenZFS: that last step; the load of a side's queue and whether it rotates are not considered, and
//! in [`Depth::All`] a copy equal to the accepted one is not checksummed again.

use super::mirror_sectors::{Scrap, UNIT, combine};
use super::plan::{BadCopy, ChildRead, ChildResult, Children, Depth, Fault, PlanOutcome, PlanStep, ReadPlan};
use std::collections::BTreeMap;
use stdx::Buf;

/// Log2 of the region within which successive blocks prefer the same side.
const REGION_SHIFT: u32 = 20;

/// Reads one block from whichever side of child 0 has it.
#[derive(Debug)]
pub struct MirrorPlan {
    offset: u64,
    size: u64,
    depth: Depth,
    seed: u64,
    /// Sides still to ask, the next one last.
    waiting: Vec<u32>,
    good: Option<Buf>,
    bad: Vec<BadCopy>,
    /// Copies that were read but not accepted, and pieces of those that were not read, by side.
    scraps: BTreeMap<u32, Scrap>,
    /// The last step was taken.
    in_pieces: bool,
}

/// Pieces that a failed read is cut into.
const MAX_PIECES: u64 = 64;

impl MirrorPlan {
    /// A plan for `size` bytes at `offset` of the data area. `preferred_seed` shifts which side is
    /// asked first: give each top-level vdev, or each ditto copy, its own.
    pub fn new(offset: u64, size: u64, depth: Depth, preferred_seed: u64) -> Self {
        Self {
            offset,
            size,
            depth,
            seed: preferred_seed,
            waiting: Vec::new(),
            good: None,
            bad: Vec::new(),
            scraps: BTreeMap::new(),
            in_pieces: false,
        }
    }

    fn read(&self, side: u32) -> ChildRead {
        ChildRead::data(0, side, self.offset, self.size)
    }

    fn is_sane(&self) -> bool {
        self.size > 0
            && usize::try_from(self.size).is_ok()
            && self.offset.checked_add(self.size).is_some_and(|end| i64::try_from(end).is_ok())
    }

    /// The order of asking: fresh sides from the preferred one on, then stale ones. Absent sides are
    /// never asked.
    fn line_up(&mut self, children: &dyn Children) {
        let sides = children.sides(0, self.offset);
        let turn = (self.offset >> REGION_SHIFT).wrapping_add(self.seed);
        let first = u32::try_from(turn.checked_rem(u64::from(sides)).unwrap_or(0)).unwrap_or(0);
        let order: Vec<u32> = (first..sides).chain(0..first).collect();
        let (fresh, faulted): (Vec<u32>, Vec<u32>) =
            order.into_iter().partition(|&side| children.fault(0, side, self.offset).is_none());
        let stale =
            faulted.iter().filter(|&&side| children.fault(0, side, self.offset) != Some(Fault::Unreadable));
        self.waiting = fresh.iter().chain(stale).rev().copied().collect();
    }

    fn next(&mut self, children: &dyn Children) -> PlanStep {
        if self.good.is_some() {
            return self.finish(children);
        }
        match self.waiting.pop() {
            Some(side) => PlanStep::Issue(vec![self.read(side)]),
            None => self.finish(children),
        }
    }

    /// Names the sides that were never asked because of a known fault, where that matters: always
    /// when all copies were wanted, else only when none was good.
    fn finish(&mut self, children: &dyn Children) -> PlanStep {
        if self.depth != Depth::First || self.good.is_none() {
            for side in 0..children.sides(0, self.offset) {
                let read = self.read(side);
                if let Some(fault) = children.fault(0, side, self.offset)
                    && !self.bad.iter().any(|bad| bad.read == read)
                {
                    self.bad.push(BadCopy { read, fault });
                }
            }
        }
        PlanStep::Done(PlanOutcome { data: self.good.take(), bad: std::mem::take(&mut self.bad) })
    }

    fn take(
        &mut self,
        children: &dyn Children,
        result: ChildResult,
        judge: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Option<Fault> {
        let size = usize::try_from(self.size).ok()?;
        let Some(data) = result.data.filter(|data| data.len() >= size) else {
            return Some(Fault::Unreadable);
        };
        let data = data.slice(0..size);
        match &self.good {
            Some(good) if **good == *data => None,
            Some(_) if judge(&data) => None,
            None if judge(&data) => {
                self.good = Some(data);
                None
            }
            _ => {
                self.scrap(result.read.side).add(0, &data);
                Some(children.fault(0, result.read.side, self.offset).unwrap_or(Fault::Wrong))
            }
        }
    }

    fn scrap(&mut self, side: u32) -> &mut Scrap {
        let size = usize::try_from(self.size).unwrap_or(0);
        self.scraps.entry(side).or_insert_with(|| Scrap::empty(size))
    }

    /// Asks again, in pieces, for the copies that were not read, when there is another to complete
    /// them with.
    fn pieces(&self) -> Vec<ChildRead> {
        let failed: Vec<ChildRead> = self
            .bad
            .iter()
            .map(|bad| bad.read)
            .filter(|read| !self.scraps.contains_key(&read.side))
            .collect();
        let unit = u64::try_from(UNIT).unwrap_or(u64::MAX);
        let piece = self.size.div_ceil(MAX_PIECES).next_multiple_of(unit);
        if failed.len() + self.scraps.len() < 2 || piece >= self.size {
            return Vec::new();
        }
        let starts = || (0..self.size).step_by(usize::try_from(piece).unwrap_or(usize::MAX));
        let cut = |read: &ChildRead| {
            let side = read.side;
            starts()
                .map(move |at| ChildRead::data(0, side, self.offset + at, piece.min(self.size - at)))
                .collect::<Vec<_>>()
        };
        failed.iter().flat_map(cut).collect()
    }

    fn take_piece(&mut self, result: ChildResult) {
        let at = result.read.offset.checked_sub(self.offset).and_then(|at| usize::try_from(at).ok());
        if let (Some(at), Some(data)) = (at, result.data) {
            let len = data.len().min(usize::try_from(result.read.len).unwrap_or(0));
            self.scrap(result.read.side).add(at, &data.slice(0..len));
        }
    }

    fn put_together(&mut self, judge: &mut dyn FnMut(&[u8]) -> bool) {
        let scraps: Vec<Scrap> = std::mem::take(&mut self.scraps).into_values().collect();
        if scraps.len() > 1 {
            self.good = usize::try_from(self.size).ok().and_then(|size| combine(size, &scraps, judge));
        }
    }
}

impl ReadPlan for MirrorPlan {
    fn start(&mut self, children: &dyn Children) -> PlanStep {
        if !self.is_sane() {
            return PlanStep::Done(PlanOutcome::default());
        }
        self.line_up(children);
        if self.depth != Depth::All {
            return self.next(children);
        }
        let fresh = |side: &u32| children.fault(0, *side, self.offset).is_none();
        let reads: Vec<ChildRead> =
            self.waiting.iter().rev().filter(|side| fresh(side)).map(|&side| self.read(side)).collect();
        self.waiting.retain(|side| !fresh(side));
        if reads.is_empty() { self.next(children) } else { PlanStep::Issue(reads) }
    }

    fn resume(
        &mut self,
        children: &dyn Children,
        results: Vec<ChildResult>,
        judge: &mut dyn FnMut(&[u8]) -> bool,
    ) -> PlanStep {
        if self.in_pieces {
            results.into_iter().for_each(|result| self.take_piece(result));
            self.put_together(judge);
            return self.finish(children);
        }
        for result in results {
            let read = result.read;
            if let Some(fault) = self.take(children, result, judge) {
                self.bad.push(BadCopy { read, fault });
            }
        }
        if self.good.is_none() && self.waiting.is_empty() {
            self.in_pieces = true;
            let pieces = self.pieces();
            if !pieces.is_empty() {
                return PlanStep::Issue(pieces);
            }
            self.put_together(judge);
        }
        self.next(children)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Leaves, run};
    use super::*;

    fn copies(n: usize) -> Leaves {
        let block: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
        Leaves::new(vec![vec![block; n]])
    }

    fn want(leaves: &Leaves) -> Vec<u8> {
        leaves.bytes(0, 0)[1024..2048].to_vec()
    }

    #[test]
    fn one_good_copy_is_enough() {
        for bad in 0..8u32 {
            let mut leaves = copies(3);
            let want = want(&leaves);
            for side in (0..3).filter(|side| bad & (1 << side) != 0) {
                leaves.corrupt(0, side, 1024, 10);
            }
            for (depth, seed) in [(Depth::First, 0), (Depth::First, 1), (Depth::First, 2), (Depth::All, 0)] {
                let outcome = run(&mut MirrorPlan::new(1024, 1024, depth, seed), &leaves, &want);
                assert_eq!(outcome.data.is_some(), bad != 7);
                if depth == Depth::All || bad == 7 {
                    assert_eq!(outcome.bad.len(), bad.count_ones() as usize);
                }
            }
        }
    }

    #[test]
    fn regions_spread_over_the_sides() {
        let leaves = copies(3);
        let mut seen = [false; 3];
        for region in 0..3u64 {
            match MirrorPlan::new(region << 20, 512, Depth::First, 7).start(&leaves) {
                PlanStep::Issue(reads) => seen[reads[0].side as usize] = true,
                PlanStep::Done(_) => panic!("nothing asked"),
            }
        }
        assert_eq!(seen, [true; 3]);
    }

    #[test]
    fn stale_comes_last_and_absent_never() {
        let mut leaves = copies(3);
        let want = want(&leaves);
        leaves.set_fault(0, 0, Fault::Stale);
        leaves.set_fault(0, 1, Fault::Unreadable);
        leaves.corrupt(0, 2, 1500, 1);
        let outcome = run(&mut MirrorPlan::new(1024, 1024, Depth::First, 0), &leaves, &want);
        assert_eq!(outcome.data.as_deref(), Some(&want[..]));
        assert_eq!(
            outcome.bad,
            vec![BadCopy { read: ChildRead::data(0, 2, 1024, 1024), fault: Fault::Wrong }]
        );
    }

    #[test]
    fn sides_complete_each_other() {
        let mut leaves = copies(3);
        let want = want(&leaves);
        leaves.corrupt(0, 0, 1100, 10);
        leaves.corrupt(0, 1, 1600, 10);
        leaves.make_hole(0, 2, 1100);
        let outcome = run(&mut MirrorPlan::new(1024, 1024, Depth::First, 0), &leaves, &want);
        assert_eq!(outcome.data.as_deref(), Some(&want[..]));
        assert_eq!(outcome.bad.len(), 3);
    }

    #[test]
    fn absurd_requests_fail() {
        let leaves = copies(2);
        for (offset, size) in [(0, 0), (u64::MAX, 512), (u64::MAX - 100, 512), (0, u64::MAX)] {
            assert!(run(&mut MirrorPlan::new(offset, size, Depth::All, 0), &leaves, &[]).data.is_none());
        }
    }
}
