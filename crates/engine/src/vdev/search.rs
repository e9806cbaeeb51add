//! The search for a block's bytes when some of the bytes that were read are wrong at an unknown place.
//!
//! Everything stands on a [`ParityRows`]: all sectors in rows, one row being the sectors that one set of
//! parity equations ties together. A row whose equations hold is taken as it is: to hide damage from
//! them, more columns must be wrong than could be repaired anyway. That leaves the *suspect* rows:
//! - First all of them are blamed on the same few children, each set of them up to the parity count.
//!   On an expanded vdev also children of older widths are blamed: bytes that a disk got wrong before
//!   the reflow have since been spread over all.
//! - Then each row is blamed on columns of its own.
//!
//! An assumption that leaves parity over is tested by that parity; only candidates that pass, or that can't
//! be tested, are shown to the judge. All of this is repeated for each *variant*: a choice of the believed
//! leaf for each child whose leaves disagree. Time is bounded by [`Budget`].

use super::gather::{Bytes, Gather};
use super::parity_rows::{ParityRow, ParityRows, RowBytes};
use super::plan::Children;
use super::stripe::Grid;
use super::stripe_plan::{is_doubtful, read_of};
use std::collections::BTreeSet;
use stdx::{AlignedBuf, Buf};

/// Most variants tried.
const MAX_VARIANTS: usize = 64;

/// Rows that may each have several explanations in the second part: their numbers multiply.
const MAX_OPEN_ROWS: usize = 16;

/// Explanations of one row tried in the second part.
const MAX_EXPLANATIONS: usize = 4096;

/// Leaves believed instead of the first one, as (child, side).
pub(super) type Variant = Vec<(u32, u32)>;

/// Limits of a search's cost.
#[derive(Debug)]
struct Budget {
    /// Candidates that may still be shown to the judge.
    judged: u64,
    /// Assumptions that may still be looked at.
    looked_at: u64,
}

impl Budget {
    /// At most about 4 GiB of candidates, but at least 2,048 of them.
    fn new(size: u64) -> Self {
        const BYTES: u64 = 4 << 30;
        Self { judged: (BYTES / size.max(1)).clamp(2048, 1 << 15), looked_at: 1 << 18 }
    }

    fn look(&mut self) -> bool {
        self.looked_at = self.looked_at.saturating_sub(1);
        self.looked_at > 0
    }

    fn judge(&mut self) -> bool {
        self.judged = self.judged.saturating_sub(1);
        self.judged > 0
    }
}

/// One search: its fixed inputs.
struct Search<'a> {
    size: usize,
    budget: Budget,
    judge: &'a mut dyn FnMut(&[u8]) -> bool,
}

/// Looks for bytes that the judge accepts. `stale` lets leaves with missing writes be believed.
pub(super) fn search(
    grid: &Grid,
    gather: &Gather,
    children: &dyn Children,
    size: u64,
    stale: bool,
    judge: &mut dyn FnMut(&[u8]) -> bool,
) -> Option<Buf> {
    let variants = variants(&alternatives(grid, gather, children, stale));
    let size = usize::try_from(size).ok()?;
    let mut search = Search { size, budget: Budget::new(grid.size), judge };
    for shared_blame in [true, false] {
        for variant in &variants {
            let Some(rows) = ParityRows::new(grid, gather, children, variant) else { continue };
            if rows.suspects.is_empty() {
                if shared_blame && search.accepts(&rows.image) {
                    return Some(search.cut(rows.image));
                }
                continue;
            }
            let found = if shared_blame { search.blame_children(&rows) } else { search.blame_rows(&rows) };
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// Leaves whose bytes differ from the ones believed first.
fn alternatives(grid: &Grid, gather: &Gather, children: &dyn Children, stale: bool) -> Variant {
    let mut found = BTreeSet::new();
    for column in grid.columns.iter().filter(|column| column.len > 0) {
        let mut first: Option<Buf> = None;
        for side in 0..children.sides(column.child, column.offset) {
            let fault = children.fault(column.child, side, column.offset);
            let Bytes::Read(bytes) = gather.look_up(&read_of(column, side)) else { continue };
            match &first {
                None if fault.is_none() => first = Some(bytes),
                Some(first) if **first == *bytes => {}
                _ if fault.is_none() || (stale && is_doubtful(fault)) => {
                    found.insert((column.child, side));
                }
                _ => {}
            }
        }
    }
    found.into_iter().collect()
}

/// Sets of alternatives, one leaf a child at most, small sets first.
fn variants(alternatives: &[(u32, u32)]) -> Vec<Variant> {
    let mut all: Vec<Variant> = vec![Vec::new()];
    let mut next = 0;
    while let Some(base) = all.get(next).cloned() {
        for &(child, side) in alternatives {
            let follows = base.last().is_none_or(|&(last, _)| last < child);
            if follows && all.len() < MAX_VARIANTS {
                let mut more = base.clone();
                more.push((child, side));
                all.push(more);
            }
        }
        next += 1;
    }
    all
}

impl Search<'_> {
    fn accepts(&mut self, image: &[u8]) -> bool {
        self.budget.judge() && image.get(..self.size).is_some_and(|block| (self.judge)(block))
    }

    fn cut(&self, image: Vec<u8>) -> Buf {
        AlignedBuf::copy_of(image.get(..self.size).unwrap_or_default()).into()
    }

    /// All suspect rows blamed on the same children.
    fn blame_children(&mut self, rows: &ParityRows<'_>) -> Option<Buf> {
        let blamed = rows.blamable();
        for count in 1..=rows.grid.nparity {
            let mut sets = Combinations::new(blamed.len(), count);
            while let Some(set) = sets.next() {
                if !self.budget.look() {
                    return None;
                }
                let set: Vec<u64> = set.iter().filter_map(|&index| blamed.get(index).copied()).collect();
                let Some(fills) = solve_all(rows, &set) else { continue };
                let mut image = rows.image.clone();
                fills.iter().for_each(|fill| fill.apply(&mut image));
                if self.accepts(&image) {
                    return Some(self.cut(image));
                }
                if self.budget.judged == 0 {
                    return None;
                }
            }
        }
        None
    }

    /// Explains each suspect row by itself: first by assumptions that the parity confirms, if any, then by
    /// all that it can't rule out.
    fn blame_rows(&mut self, rows: &ParityRows<'_>) -> Option<Buf> {
        let mut likely = Vec::new();
        let mut open = 0;
        for row in &rows.suspects {
            let sets = match self.confirmed(rows, row)? {
                Some(set) => vec![set],
                None => self.open(rows, row)?,
            };
            open += usize::from(sets.len() > 1);
            if open > MAX_OPEN_ROWS {
                return None;
            }
            likely.push((*row, sets));
        }
        let found = self.combine(rows, &likely);
        if found.is_some() || likely.len() > MAX_OPEN_ROWS {
            return found;
        }
        let mut all = Vec::new();
        for (row, mut sets) in likely {
            if sets.len() == 1 {
                sets.append(&mut self.open(rows, &row)?);
            }
            all.push((row, sets));
        }
        self.combine(rows, &all)
    }

    /// The smallest set of wrong columns that leaves parity over, and that this parity confirms.
    fn confirmed(&mut self, rows: &ParityRows<'_>, row: &ParityRow) -> Option<Option<Vec<usize>>> {
        let missing = rows.missing(row);
        for count in 1..rows.grid.nparity.saturating_sub(missing.len()) {
            let there = rows.present(row);
            let mut sets = Combinations::new(there.len(), count);
            while let Some(set) = sets.next() {
                if !self.budget.look() {
                    return None;
                }
                let erased = erase(&missing, &there, set);
                if rows.solve(row, &erased).is_some_and(|solved| solved.sound == Some(true)) {
                    return Some(Some(erased));
                }
            }
        }
        Some(None)
    }

    /// All sets of wrong columns that use up the parity; `None` when they are too many to try.
    fn open(&mut self, rows: &ParityRows<'_>, row: &ParityRow) -> Option<Vec<Vec<usize>>> {
        let missing = rows.missing(row);
        let there = rows.present(row);
        let mut found = Vec::new();
        let mut sets = Combinations::new(there.len(), rows.grid.nparity.saturating_sub(missing.len()));
        while let Some(set) = sets.next() {
            if !self.budget.look() || found.len() > MAX_EXPLANATIONS {
                return None;
            }
            found.push(erase(&missing, &there, set));
        }
        Some(found)
    }

    /// Applies the explanations that have no alternative, then tries all choices of the rest.
    fn combine(&mut self, rows: &ParityRows<'_>, explained: &[Explained]) -> Option<Buf> {
        let mut image = rows.image.clone();
        let (settled, open): (Vec<&Explained>, _) = explained.iter().partition(|(_, sets)| sets.len() == 1);
        for (row, sets) in settled {
            let solved = rows.solve(row, sets.first()?)?;
            solved.fills.iter().for_each(|fill| fill.apply(&mut image));
        }
        self.try_all(rows, &open, &mut image).then(|| self.cut(image))
    }

    /// Every choice of one explanation for each open row; leaves the accepted one in `image`.
    fn try_all(&mut self, rows: &ParityRows<'_>, open: &[&Explained], image: &mut [u8]) -> bool {
        let Some(((row, sets), rest)) = open.split_first() else {
            return self.accepts(image);
        };
        for erased in sets {
            let Some(solved) = rows.solve(row, erased) else { continue };
            let undo: Vec<RowBytes> = solved.fills.iter().map(|fill| fill.of(image)).collect();
            solved.fills.iter().for_each(|fill| fill.apply(image));
            if self.try_all(rows, rest, image) {
                return true;
            }
            undo.iter().for_each(|fill| fill.apply(image));
            if self.budget.judged == 0 {
                return false;
            }
        }
        false
    }
}

/// A row and the sets of its columns that may be wrong.
type Explained = (ParityRow, Vec<Vec<usize>>);

fn erase(missing: &[usize], there: &[usize], set: &[usize]) -> Vec<usize> {
    missing.iter().copied().chain(set.iter().filter_map(|&index| there.get(index).copied())).collect()
}

/// Repairs of all suspect rows under the assumption that these children are wrong; `None` when that
/// explains not all of them.
fn solve_all(rows: &ParityRows<'_>, blamed: &[u64]) -> Option<Vec<RowBytes>> {
    let mut all = Vec::new();
    for row in &rows.suspects {
        let missing = rows.missing(row);
        let hit =
            rows.places(row).filter(|&place| !missing.contains(&place) && rows.is_hit(row, place, blamed));
        let erased: Vec<usize> = missing.iter().copied().chain(hit).collect();
        if erased.len() == missing.len() {
            return None;
        }
        let solved = rows.solve(row, &erased)?;
        if solved.sound == Some(false) {
            return None;
        }
        all.extend(solved.fills);
    }
    Some(all)
}

/// All sets of `count` of the numbers below `total`, in order.
struct Combinations {
    total: usize,
    set: Vec<usize>,
    begun: bool,
}

impl Combinations {
    fn new(total: usize, count: usize) -> Self {
        Self { total, set: (0..count).collect(), begun: false }
    }

    fn next(&mut self) -> Option<&[usize]> {
        let count = self.set.len();
        if !std::mem::replace(&mut self.begun, true) {
            return (count <= self.total).then_some(&self.set);
        }
        let limit = |position: usize| self.total.saturating_sub(count - position);
        let (position, value) =
            self.set.iter().copied().enumerate().rev().find(|&(position, value)| value < limit(position))?;
        for (slot, value) in self.set.iter_mut().skip(position).zip(value + 1..) {
            *slot = value;
        }
        Some(&self.set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_all_and_in_order() {
        let mut sets = Combinations::new(5, 3);
        let mut seen = Vec::new();
        while let Some(set) = sets.next() {
            seen.push(set.to_vec());
        }
        assert_eq!(seen.len(), 10);
        assert!(seen.is_sorted());
        assert!(Combinations::new(2, 3).next().is_none());
    }

    #[test]
    fn variants_take_one_leaf_a_child() {
        let all = variants(&[(0, 1), (0, 2), (3, 1)]);
        assert_eq!(all.len(), 6);
        assert!(all.is_sorted_by_key(Vec::len));
        let many: Vec<(u32, u32)> = (0..200).map(|child| (child, 1)).collect();
        assert_eq!(variants(&many).len(), MAX_VARIANTS);
    }
}
