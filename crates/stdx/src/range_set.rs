//! Sets of `u64` ranges: free space, txgs, file extents.

use std::collections::BTreeMap;

/// A set of numbers kept as disjoint half-open ranges that never touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: BTreeMap<u64, u64>,
    covered: u64,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `[start, end)`. Returns how many numbers are new.
    pub fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let before = self.covered;
        let mut to = end;
        while let Some((&s, e)) = self.ranges.range_mut(..=to).next_back() {
            if *e < start {
                break;
            }
            if s <= start {
                // No range before this one reaches so far: it grows in its place.
                self.covered += to.saturating_sub(*e);
                *e = to.max(*e);
                return self.covered - before;
            }
            let (first, last) = (s, *e);
            self.ranges.remove(&first);
            self.covered -= last - first;
            to = to.max(last);
        }
        self.ranges.insert(start, to);
        self.covered += to - start;
        self.covered - before
    }

    /// Removes `[start, end)`. Returns the count of removed numbers.
    pub fn remove(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let before = self.covered;
        while let Some((&s, &e)) = self.ranges.range(..end).next_back() {
            if e <= start {
                break;
            }
            self.ranges.remove(&s);
            self.covered -= e - s;
            for (s, e) in [(s, start), (end, e)] {
                if s < e {
                    self.ranges.insert(s, e);
                    self.covered += e - s;
                }
            }
            if s <= start {
                break;
            }
        }
        before - self.covered
    }

    /// True when all of `[start, end)` is in the set.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        start >= end || self.ranges.range(..=start).next_back().is_some_and(|(_, &e)| e >= end)
    }

    /// True when some of `[start, end)` is in the set.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        start < end
            && self.covered > 0
            && self.ranges.range(..end).next_back().is_some_and(|(_, &e)| e > start)
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&s, &e)| (s, e))
    }

    /// The parts of `[start, end)` in the set, in ascending order.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.ranges.range(..=start).next_back().map_or(start, |(&s, _)| s);
        let near = self.ranges.range(first..end.max(first));
        near.map(move |(&s, &e)| (s.max(start), e.min(end))).filter(|(s, e)| s < e)
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True for the empty set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Count of numbers in the set.
    pub fn covered(&self) -> u64 {
        self.covered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn behaves_as_a_bitmap() {
        let mut rng = Rng::new(5);
        let mut set = RangeSet::new();
        let mut model = [false; 64];
        for _ in 0..5000 {
            let (a, b) = (rng.below(64), rng.below(65));
            let (s, e) = (a.min(b), a.max(b));
            let add = rng.below(2) == 0;
            let changed = (s..e).filter(|&i| model[i as usize] != add).count() as u64;
            model[s as usize..e as usize].fill(add);
            assert_eq!(if add { set.insert(s, e) } else { set.remove(s, e) }, changed);
            assert_eq!(set.covered(), model.iter().filter(|&&b| b).count() as u64);
            assert_eq!(set.contains(s, e), model[s as usize..e as usize].iter().all(|&b| b));
            assert_eq!(set.overlaps(s, e), model[s as usize..e as usize].iter().any(|&b| b));
            let inside: Vec<_> = set.within(s, e).flat_map(|(s, e)| s..e).collect();
            assert_eq!(inside, (s..e).filter(|&i| model[i as usize]).collect::<Vec<_>>());
            let ends: Vec<_> = set.iter().collect();
            assert!(ends.windows(2).all(|w| w[0].1 < w[1].0));
        }
    }
}
