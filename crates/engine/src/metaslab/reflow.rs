//! The allocator's part in the expansion of a raidz vdev: which ranges have to be copied.

use std::ops::Range;

use stdx::RangeSet;

use super::allocator::SpaceAllocator;

impl SpaceAllocator {
    /// First byte after the last metaslab of a vdev: where the expansion of a raidz ends. 0 for an unknown vdev.
    pub fn end_of_metaslabs(&self, vdev: u64) -> u64 {
        self.vdev(vdev).and_then(|vdev| vdev.metaslabs.last().map(|metaslab| metaslab.end())).unwrap_or(0)
    }

    /// Returns ranges of a vdev, within `within`, that are not allocatable: space in use, and space freed in
    /// the last txgs. Stops after about `most` bytes; returns the ranges and where the search ended. Loads
    /// metaslabs; one that cannot be loaded counts as in use.
    pub fn not_allocatable(&self, vdev: u64, within: Range<u64>, most: u64) -> (RangeSet, u64) {
        let mut found = RangeSet::new();
        let mut reached = within.start;
        let vdev = self.vdev(vdev);
        for metaslab in
            vdev.iter().flat_map(|vdev| &vdev.metaslabs).filter(|metaslab| metaslab.end() > within.start)
        {
            let (start, end) = (metaslab.start.max(within.start), metaslab.end().min(within.end));
            if start >= end {
                break;
            }
            self.load(metaslab);
            let mut used = RangeSet::new();
            used.insert(start, end);
            for (start, end) in metaslab.lock().free.iter().flat_map(stdx::SizedRanges::iter) {
                used.remove(start, end);
            }
            for (start, end) in used.iter() {
                let left = most.saturating_sub(found.covered());
                if left == 0 {
                    return (found, reached);
                }
                reached = end.min(start.saturating_add(left));
                found.insert(start, reached);
                if reached < end {
                    return (found, reached);
                }
            }
            reached = end;
        }
        (found, reached)
    }
}
