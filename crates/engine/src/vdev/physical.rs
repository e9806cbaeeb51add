//! Where a part of a top-level vdev's address space stands on one of its children.
//!
//! Blocks begin anywhere, so this is defined for sectors, not for blocks: a raidz of `n` children has sector
//! `s` on child `s % n` in row `s / n`; a draid has within each of its groups `width` children that hold a
//! sector of each row.
//!
//! Source: `vdev_xlate`, `vdev_raidz_xlate`, `vdev_draid_xlate`, OpenZFS 2.4.

use super::draid::DraidGeometry;
use super::top::{Side, Top, VdevLayout};

/// A range of bytes: first, and first after it.
type Range = (u64, u64);

impl Top {
    /// The child of which a leaf holds all bytes; `None` for a distributed spare, and a leaf that is elsewhere.
    pub fn child_of(&self, leaf: u64) -> Option<u32> {
        let is_it = |side: &Side| matches!(side, Side::Leaf(found) if found.guid == leaf);
        let at = self.children().iter().position(|sides| sides.iter().any(is_it))?;
        u32::try_from(at).ok()
    }

    /// The ranges of a child's data area (without its labels) that hold the bytes from `start` to `end`, in their order.
    /// Only whole sectors that no other bytes share. Empty for a removed vdev, and while a raidz is being expanded.
    #[doc(alias = "vdev_xlate")]
    pub fn physical(&self, child: u32, start: u64, end: u64) -> Vec<Range> {
        match &self.layout {
            VdevLayout::Mirror => vec![(start, end)],
            VdevLayout::Raidz(geometry) if !geometry.is_reflowing() => {
                let width = u64::try_from(self.children().len()).unwrap_or(1).max(1);
                let first_row =
                    |at: u64| (at >> self.ashift).saturating_sub(u64::from(child)).div_ceil(width);
                vec![(first_row(start) << self.ashift, first_row(end) << self.ashift)]
            }
            VdevLayout::Draid(geometry) => geometry.physical(child, start, end),
            VdevLayout::Raidz(_) | VdevLayout::Indirect(_) | VdevLayout::Absent => Vec::new(),
        }
        .into_iter()
        .filter(|(start, end)| start < end)
        .collect()
    }

    /// Bytes of this vdev that take at most `most` bytes of each child, in whole units of its allocations; at least one.
    pub(crate) fn logical_chunk(&self, most: u64) -> u64 {
        let width = match &self.layout {
            VdevLayout::Raidz(_) => u64::try_from(self.children().len()).unwrap_or(1),
            VdevLayout::Draid(geometry) => geometry.group_width(),
            _ => 1,
        };
        (most >> self.ashift).max(1).saturating_mul(width.max(1)) << self.ashift
    }
}

impl DraidGeometry {
    fn physical(&self, child: u32, start: u64, end: u64) -> Vec<Range> {
        let mut found = Vec::new();
        let unit = self.unit();
        let (mut at, end) = (start.next_multiple_of(unit), end / unit * unit);
        while at < end {
            let part = end.min((at / self.group_bytes() + 1).saturating_mul(self.group_bytes()));
            if let Some(from) = self.row_on(child, at) {
                found.push((from, from + (part - at) / self.group_width()));
            }
            at = part;
        }
        found
    }
}
