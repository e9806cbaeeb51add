//! Dirty time logs: which txgs a leaf may lack.
//!
//! A leaf that was absent, or failed a write, lacks something of that txg. The log is kept in the MOS (see
//! `spa` for how) so that a resilver later copies just that.

use stdx::RangeSet;

/// Txgs a leaf may have missed, as half-open ranges, ascending, disjoint, not touching.
#[doc(alias = "DTL_MISSING")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dtl(Vec<(u64, u64)>);

impl Dtl {
    /// From `[start, end)` ranges in any order.
    pub(crate) fn new(ranges: Vec<(u64, u64)>) -> Self {
        let mut set = RangeSet::new();
        for (start, end) in ranges {
            set.insert(start, end);
        }
        Self(set.iter().collect())
    }

    /// True when the leaf may lack blocks written in `txg`.
    pub fn contains(&self, txg: u64) -> bool {
        self.0.iter().any(|&(start, end)| start <= txg && txg < end)
    }

    /// True when nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Adds one txg; false when it was there.
    pub(crate) fn add(&mut self, txg: u64) -> bool {
        if self.contains(txg) {
            return false;
        }
        match self.0.last_mut() {
            Some(last) if last.1 == txg => last.1 += 1,
            _ => {
                self.0.push((txg, txg.saturating_add(1)));
                *self = Self::new(std::mem::take(&mut self.0));
            }
        }
        true
    }

    /// Adds the txgs `[start, end)`.
    pub(crate) fn add_range(&mut self, start: u64, end: u64) {
        self.0.push((start, end));
        *self = Self::new(std::mem::take(&mut self.0));
    }

    /// Takes `[start, end)` out: a resilver has brought it up to date.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        let mut set = RangeSet::new();
        self.0.iter().for_each(|&(start, end)| {
            set.insert(start, end);
        });
        set.remove(start, end);
        self.0 = set.iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn txgs_become_ranges() {
        let mut dtl = Dtl::default();
        for txg in [5, 6, 7, 12, 11, 6] {
            assert_eq!(dtl.add(txg), !(txg == 6 && dtl.ranges().len() == 2));
        }
        assert_eq!(dtl.ranges(), [(5, 8), (11, 13)]);
        dtl.remove(6, 12);
        assert_eq!(dtl.ranges(), [(5, 6), (12, 13)]);
        assert_eq!(Dtl::new(vec![(8, 9), (5, 8)]).ranges(), [(5, 9)]);
    }
}
