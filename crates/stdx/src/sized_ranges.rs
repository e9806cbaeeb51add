//! Free space: ranges by offset, and at the same time by size, with a count of ranges for each power of two.

use std::collections::{BTreeMap, BTreeSet};

/// Buckets of the histogram: one for each power of two that a range may have.
pub const BUCKETS: usize = 64;

/// Disjoint half-open ranges that never touch, found by offset or by size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizedRanges {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    histogram: [u64; BUCKETS],
    covered: u64,
}

impl Default for SizedRanges {
    fn default() -> Self {
        Self { by_offset: BTreeMap::new(), by_size: BTreeSet::new(), histogram: [0; BUCKETS], covered: 0 }
    }
}

impl SizedRanges {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `[start, end)`. False, and nothing changes, when some of it is there already.
    pub fn insert(&mut self, start: u64, end: u64) -> bool {
        if start >= end {
            return true;
        }
        if self.overlaps(start, end) {
            return false;
        }
        let (mut from, mut to) = (start, end);
        if let Some((&s, &e)) = self.by_offset.range(..start).next_back()
            && e == start
        {
            self.drop_range(s, e);
            from = s;
        }
        if let Some(&e) = self.by_offset.get(&end) {
            self.drop_range(end, e);
            to = e;
        }
        self.add_range(from, to);
        true
    }

    /// Takes `[start, end)` out. False, and nothing changes, when not all of it is there.
    pub fn remove(&mut self, start: u64, end: u64) -> bool {
        if start >= end {
            return true;
        }
        let Some((&s, &e)) = self.by_offset.range(..=start).next_back() else { return false };
        if e < end {
            return false;
        }
        self.drop_range(s, e);
        self.add_range(s, start);
        self.add_range(end, e);
        true
    }

    /// Removes the parts of `[start, end)` that are in the set.
    pub fn clear(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        while let Some((&s, &e)) = self.by_offset.range(..end).next_back() {
            if e <= start {
                break;
            }
            self.drop_range(s, e);
            self.add_range(s, start);
            self.add_range(end, e);
            if s <= start {
                break;
            }
        }
    }

    fn drop_range(&mut self, start: u64, end: u64) {
        self.by_offset.remove(&start);
        self.by_size.remove(&(end - start, start));
        self.covered -= end - start;
        if let Some(count) = self.histogram.get_mut(bucket(end - start)) {
            *count -= 1;
        }
    }

    fn add_range(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.by_offset.insert(start, end);
        self.by_size.insert((end - start, start));
        self.covered += end - start;
        if let Some(count) = self.histogram.get_mut(bucket(end - start)) {
            *count += 1;
        }
    }

    /// True when all of `[start, end)` is in the set.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        start >= end || self.by_offset.range(..=start).next_back().is_some_and(|(_, &e)| e >= end)
    }

    /// True when some of `[start, end)` is in the set.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        start < end && self.by_offset.range(..end).next_back().is_some_and(|(_, &e)| e > start)
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.by_offset.iter().map(|(&s, &e)| (s, e))
    }

    /// The ranges from the one that holds or follows `at`, in ascending order; the first is cut at `at`.
    pub fn iter_from(&self, at: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self.by_offset.range(..at).next_back().filter(|&(_, &e)| e > at).map(|(_, &e)| (at, e));
        before.into_iter().chain(self.by_offset.range(at..).map(|(&s, &e)| (s, e)))
    }

    /// The smallest range of at least `size`, the first of them by offset.
    pub fn best_fit(&self, size: u64) -> Option<(u64, u64)> {
        self.by_size.range((size, 0)..).next().map(|&(len, start)| (start, start + len))
    }

    /// Length of the longest range; 0 when there is none.
    pub fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |&(len, _)| len)
    }

    /// Number of ranges with `2^i` up to twice that, by `i`.
    pub fn histogram(&self) -> &[u64; BUCKETS] {
        &self.histogram
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.by_offset.len()
    }

    /// True for the empty set.
    pub fn is_empty(&self) -> bool {
        self.by_offset.is_empty()
    }

    /// Count of numbers in the set.
    pub fn covered(&self) -> u64 {
        self.covered
    }
}

/// Which power of two a length (not 0) falls into.
fn bucket(len: u64) -> usize {
    usize::try_from(len.checked_ilog2().unwrap_or(0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn behaves_as_a_bitmap() {
        let mut rng = Rng::new(9);
        let mut set = SizedRanges::new();
        let mut model = [false; 64];
        for _ in 0..20_000 {
            let (a, b) = (rng.below(64), rng.below(65));
            let (s, e) = (a.min(b), a.max(b));
            let part = &mut model[s as usize..e as usize];
            match rng.below(3) {
                0 => {
                    let fits = part.iter().all(|&b| !b);
                    assert_eq!(set.insert(s, e), fits);
                    if fits {
                        part.fill(true);
                    }
                }
                1 => {
                    let fits = part.iter().all(|&b| b);
                    assert_eq!(set.remove(s, e), fits);
                    if fits {
                        part.fill(false);
                    }
                }
                _ => {
                    set.clear(s, e);
                    part.fill(false);
                }
            }
            same(&set, &model);
        }
    }

    fn same(set: &SizedRanges, model: &[bool; 64]) {
        let inside: Vec<u64> = set.iter().flat_map(|(s, e)| s..e).collect();
        let wanted: Vec<u64> = (0..64).filter(|&i| model[i as usize]).collect();
        assert_eq!(inside, wanted);
        assert_eq!(set.covered(), wanted.len() as u64);
        let ends: Vec<_> = set.iter().collect();
        assert!(ends.windows(2).all(|w| w[0].1 < w[1].0));
        assert_eq!(set.largest(), ends.iter().map(|(s, e)| e - s).max().unwrap_or(0));
        let mut histogram = [0; BUCKETS];
        ends.iter().for_each(|(s, e)| histogram[(e - s).ilog2() as usize] += 1);
        assert_eq!(set.histogram(), &histogram);
        for at in 0..64 {
            let from: Vec<u64> = set.iter_from(at).flat_map(|(s, e)| s..e).collect();
            assert_eq!(from, wanted.iter().copied().filter(|&i| i >= at).collect::<Vec<_>>());
            let best = ends.iter().filter(|(s, e)| e - s >= at.max(1)).min_by_key(|(s, e)| (e - s, *s));
            assert_eq!(set.best_fit(at.max(1)), best.copied());
        }
    }
}
