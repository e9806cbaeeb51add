//! Whole rows of a draid's groups, without regard to blocks: what a sequential reconstruction reads and writes.
//!
//! A block takes whole rows of its group, so rows that belong to several blocks satisfy the parity equations as rows of one
//! block do. That holds within one group only: a stretch never crosses into the next one.
//!
//! Source: `vdev_draid_rebuild_asize`, vdev_draid.c, OpenZFS 2.4.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::draid::DraidGeometry;
use super::leaf::Leaf;
use super::top::{Side, Top, VdevLayout};

/// Longest block that a stretch of rows may be taken for.
#[doc(alias = "SPA_MAXBLOCKSIZE")]
const MOST: u64 = 16 << 20;

/// Distributed spares, each standing on the next, and the leaf that has the bytes.
pub(super) type LeafPath = Vec<Arc<Leaf>>;

/// The bytes that a stretch of rows has on one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowColumn {
    /// Index of the direct child.
    pub child: u32,
    /// Bytes from the start of the data area.
    pub offset: u64,
    /// Bytes, the same in all columns.
    pub(crate) len: u64,
}

impl DraidGeometry {
    /// Bytes of a row of a group: allocations are aligned to it and are multiples of it.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.unit()
    }

    /// Cuts the rows that bytes from `start` to `end` touch into stretches, each a first byte and a length, of at most
    /// `most` bytes of each data column, within one group.
    #[doc(alias = "vdev_draid_rebuild_asize")]
    pub fn stretches(&self, start: u64, end: u64, most: u64) -> Vec<(u64, u64)> {
        let sector = self.unit() / self.group_width().max(1);
        let ndata = self.group_width().saturating_sub(self.nparity()).max(1);
        let rows = (most.min(MOST / ndata) / sector.max(1)).max(1);
        let (mut at, end) = (start - start % self.unit(), end.next_multiple_of(self.unit()));
        let mut found = Vec::new();
        while at < end {
            let left = self.group_bytes() - at % self.group_bytes();
            let len = left.min(end - at).min(rows.saturating_mul(self.unit()));
            found.push((at, len));
            at = at.saturating_add(len);
        }
        found
    }

    /// The columns of a stretch, parity first; `None` if the range is not a stretch.
    pub fn columns_of(&self, start: u64, len: u64) -> Option<Vec<RowColumn>> {
        let ndata = self.group_width().checked_sub(self.nparity())?;
        let grid = self.grid(start, len.checked_div(self.group_width())?.checked_mul(ndata)?)?;
        let columns = grid.columns.iter().map(|c| RowColumn { child: c.child, offset: c.offset, len: c.len });
        let columns: Vec<RowColumn> = columns.collect();
        let is_even = columns.iter().all(|column| Some(column.len) == len.checked_div(self.group_width()));
        (u64::try_from(columns.len()).ok()? == self.group_width() && is_even).then_some(columns)
    }
}

impl Top {
    /// Its geometry, when it is a draid.
    pub fn draid(&self) -> Option<&DraidGeometry> {
        match &self.layout {
            VdevLayout::Draid(geometry) => Some(geometry),
            _ => None,
        }
    }

    /// The leaves that hold byte `offset` of a child, each last in a list of those that stand for it: the distributed spares
    /// by way of which it does come before it. A distributed spare stands on all leaves of another child, which another
    /// spare may have replaced.
    pub fn places(&self, child: u32, offset: u64) -> Vec<Vec<Arc<Leaf>>> {
        let mut found = Vec::new();
        self.add_places(child, offset, &mut Vec::new(), &mut found);
        found
    }

    /// Whether a child has no leaf in use and none that stands for it: distributed spares that have rows there miss all
    /// writes to them.
    pub(crate) fn lacks_child(&self) -> bool {
        let is_out = |side: &Side| matches!(side, Side::Leaf(leaf) if leaf.is_out());
        self.children().iter().any(|sides| sides.iter().all(is_out))
    }

    fn add_places(&self, child: u32, offset: u64, above: &mut LeafPath, found: &mut Vec<LeafPath>) {
        let sides = usize::try_from(child).ok().and_then(|child| self.children().get(child));
        sides.into_iter().flatten().for_each(|side| self.add_place(side, offset, above, found));
    }

    fn add_place(&self, side: &Side, offset: u64, above: &mut LeafPath, found: &mut Vec<LeafPath>) {
        match (side, &self.layout) {
            (Side::Leaf(leaf), _) => found.push(above.iter().chain([leaf]).map(Arc::clone).collect()),
            // A spare stands in for one child: none is met twice.
            (Side::DistributedSpare { id, spare: Some(spare) }, VdevLayout::Draid(geometry))
                if !above.iter().any(|leaf| leaf.guid == spare.guid) =>
            {
                let Some(child) = geometry.spare_child(*id, offset) else { return };
                above.push(Arc::clone(spare));
                self.add_places(child, offset, above, found);
                above.pop();
            }
            _ => {}
        }
    }
}

/// The distributed spares of which no leaf takes writes, among those that stand for a child by these paths.
pub(crate) fn unserved(paths: &[Vec<Arc<Leaf>>]) -> BTreeSet<u64> {
    let guids = |leaves: &[Arc<Leaf>]| leaves.iter().map(|leaf| leaf.guid).collect::<BTreeSet<u64>>();
    let mut spares = BTreeSet::new();
    let mut served = BTreeSet::new();
    for (leaf, above) in paths.iter().filter_map(|path| path.split_last()) {
        spares.append(&mut guids(above));
        if leaf.is_writable() {
            served.append(&mut guids(above));
        }
    }
    &spares - &served
}

#[cfg(test)]
mod tests {
    use zcommon::draid::DraidConfig;

    use super::*;

    fn geometry(parity: u64, data: u64, spares: u64, children: u64) -> DraidGeometry {
        let config = DraidConfig { parity, data, children, spares };
        DraidGeometry::new(12, config, config.groups().unwrap()).unwrap()
    }

    #[test]
    fn stretches_cover_rows_once_and_stay_within_a_group() {
        let geometry = geometry(1, 2, 1, 6);
        let (unit, group) = (geometry.unit(), geometry.group_bytes());
        let (start, end) = (group - 5 * unit + 512, group + 400 * unit - 512);
        let mut next = start / unit * unit;
        for (at, len) in geometry.stretches(start, end, 1 << 18) {
            assert_eq!((at, len % unit, at / group), (next, 0, (at + len - 1) / group));
            assert!(len / geometry.group_width() <= 1 << 18);
            let columns = geometry.columns_of(at, len).unwrap();
            assert_eq!(columns.len(), 3);
            next = at + len;
        }
        assert_eq!(next, end.next_multiple_of(unit));
        assert_eq!(geometry.columns_of(group - unit, 2 * unit), None);
        assert_eq!(geometry.columns_of(512, unit), None);
    }

    #[test]
    fn wide_groups_have_short_stretches() {
        let geometry = geometry(2, 40, 0, 42);
        for (at, len) in geometry.stretches(0, geometry.group_bytes(), 1 << 20) {
            assert!(len / 42 * 40 <= MOST && geometry.columns_of(at, len).is_some());
        }
    }
}
