//! dRAID: raidz groups and spare space spread over all children by permutations.
//!
//! Each child is cut into rows of 16 MiB. A group of `ndata + nparity` columns takes 16 MiB from each
//! of as many disks and is filled before the next; groups follow each other across the children
//! that are not spare space and wrap into the next row. After `ngroups` of them, a *slice*, the next
//! permutation of the children applies; the last places of each permutation are the distributed
//! spares. A block always takes whole rows of its group, the padding is written as zeros. Format
//! source: vdev_draid.c, OpenZFS 2.3.

use super::plan::{Area, ChildResult, Children, Depth, PlanStep, ReadPlan};
use super::stripe::{Column, Grid, Heights, MAX_BLOCK};
use super::stripe_plan::StripePlan;
use crate::{Error, Result};
use std::sync::Arc;
use zcommon::draid::{DraidConfig, MAX_CHILDREN, PermutationMap, ROW_HEIGHT};

/// Bytes of each child kept back for a future reflow (`VDEV_DRAID_REFLOW_RESERVE`).
const REFLOW_RESERVE: u64 = 2 * ROW_HEIGHT;

/// The fixed shape of a dRAID vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraidGeometry {
    ashift: u32,
    ndata: u64,
    nparity: u64,
    nspares: u64,
    children: u64,
    ngroups: u64,
    map: Arc<PermutationMap>,
}

impl DraidGeometry {
    /// Checks the values of the vdev's config: `nparity`, `draid_ndata`, `draid_nspares`, the number of
    /// children and `draid_ngroups`.
    ///
    /// # Errors
    /// `Corrupt` when the numbers contradict each other.
    pub fn new(ashift: u32, config: DraidConfig, ngroups: u64) -> Result<Self> {
        let map = PermutationMap::generate(config.children);
        let map = map.ok_or_else(|| Error::corrupt("a draid can't have this many children"))?;
        let geometry = Self {
            ashift,
            ndata: config.data,
            nparity: config.parity,
            nspares: config.spares,
            children: config.children,
            ngroups,
            map: Arc::new(map),
        };
        let sane = geometry.is_sane().unwrap_or(false);
        if sane {
            Ok(geometry)
        } else {
            Err(Error::corrupt("the numbers of the draid's config contradict each other"))
        }
    }

    fn is_sane(&self) -> Option<bool> {
        let width = self.ndata.checked_add(self.nparity)?;
        let disks = self.children.checked_sub(self.nspares)?;
        Some(
            (9..=16).contains(&self.ashift)
                && (1..=3).contains(&self.nparity)
                && self.ndata > 0
                && width <= disks
                && (1..=MAX_CHILDREN).contains(&self.ngroups)
                && (width * self.ngroups).checked_rem(disks)? == 0,
        )
    }

    /// Columns of a group, parity included.
    pub(crate) fn group_width(&self) -> u64 {
        self.ndata + self.nparity
    }

    /// Parity columns of a group.
    pub(crate) fn nparity(&self) -> u64 {
        self.nparity
    }

    /// Children's worth of space that is not spare.
    fn disks(&self) -> u64 {
        self.children - self.nspares
    }

    /// Logical bytes of a group.
    fn group_size(&self) -> u64 {
        self.group_width() * ROW_HEIGHT
    }

    /// Rows of a slice.
    fn slice_rows(&self) -> u64 {
        self.group_width() * self.ngroups / self.disks()
    }

    /// Bytes that a block of `psize` bytes takes on all children together.
    #[doc(alias = "vdev_draid_asize")]
    pub fn asize(&self, psize: u64) -> u64 {
        let rows = psize.max(1).div_ceil(self.ndata << self.ashift);
        rows.saturating_mul(self.group_width()).saturating_mul(1 << self.ashift)
    }

    /// Allocatable bytes when each child provides `child_asize`: whole groups in whole rows.
    #[doc(alias = "vdev_draid_open")]
    pub(crate) fn capacity(&self, child_asize: u64) -> u64 {
        let usable = child_asize.saturating_sub(REFLOW_RESERVE);
        let rows = (usable - usable % ROW_HEIGHT).saturating_mul(self.disks());
        rows - rows % self.group_size()
    }

    /// The smallest allocation: one row of data columns.
    #[doc(alias = "vdev_draid_min_alloc")]
    pub(crate) fn min_alloc(&self) -> u64 {
        self.ndata << self.ashift
    }

    /// The child that stands at `place` of the permutation in force for slice `slice`.
    fn child_at(&self, slice: u64, place: u64) -> Option<u32> {
        u32::try_from(self.map.child(slice, place)?).ok()
    }

    /// Which child holds byte `offset` (of the data area) of distributed spare `spare`, at the same
    /// offset. That child may itself be replaced by another distributed spare.
    #[doc(alias = "vdev_draid_spare_get_child")]
    pub fn spare_child(&self, spare: u32, offset: u64) -> Option<u32> {
        let place = self.nspares.checked_sub(1)?.checked_sub(u64::from(spare))?;
        let slice = offset.checked_div(self.slice_rows() * ROW_HEIGHT)?;
        self.child_at(slice, self.disks() + place)
    }

    /// Where a block stands; `None` when the request makes no sense for this geometry.
    pub(super) fn grid(&self, offset: u64, size: u64) -> Option<Grid> {
        let sector = 1u64 << self.ashift;
        let unit = self.group_width() << self.ashift;
        if size == 0 || size > MAX_BLOCK || !offset.is_multiple_of(unit) || i64::try_from(offset).is_err() {
            return None;
        }
        let size = size.next_multiple_of(sector);
        let mut columns = Vec::new();
        let (mut at, mut offset) = (0, offset);
        while at < size {
            let left_in_group = self.group_size() - offset % self.group_size();
            let room = left_in_group / self.group_width() * self.ndata;
            let part = room.min(size - at);
            self.stripe(&mut columns, offset, at, part)?;
            offset = offset.checked_add(self.asize(part))?;
            at += part;
        }
        let width = usize::try_from(self.group_width()).ok()?;
        let nparity = usize::try_from(self.nparity).ok()?;
        Some(Grid { nparity, width, sector, size, columns, older_widths: Vec::new() })
    }

    /// Bytes of a row of sectors of a group: allocations are multiples of it.
    pub(super) fn unit(&self) -> u64 {
        self.group_width() << self.ashift
    }

    /// Logical bytes of a group.
    pub(super) fn group_bytes(&self) -> u64 {
        self.group_size()
    }

    /// Where the group that has logical byte `offset`, in a row that begins there, stands on a child; `None` when it is not
    /// on that child.
    pub(super) fn row_on(&self, child: u32, offset: u64) -> Option<u64> {
        let (start, slice, base) = self.row(offset)?;
        let place = (0..self.group_width())
            .find(|place| self.child_at(slice, (start + place) % self.disks()) == Some(child))?;
        base.checked_add(u64::from(start + place >= self.disks()) * ROW_HEIGHT)
    }

    /// For the group of logical byte `offset`: its first place in the permutation, its slice, and the place
    /// of `offset` on the children that it does not wrap around to.
    fn row(&self, offset: u64) -> Option<(u64, u64, u64)> {
        let width = self.group_width();
        let group = offset / self.group_size();
        let slice = group / self.ngroups;
        let in_slice = group % self.ngroups * width;
        let row = slice.checked_mul(self.slice_rows())?.checked_add(in_slice / self.disks())?;
        let base = row.checked_mul(ROW_HEIGHT)?.checked_add(offset % self.group_size() / width)?;
        Some((in_slice % self.disks(), slice, base))
    }

    /// The columns of the part of a block that lies in one group.
    fn stripe(&self, columns: &mut Vec<Column>, offset: u64, at: u64, size: u64) -> Option<()> {
        let width = self.group_width();
        let heights = Heights::new(size >> self.ashift, width, self.nparity)?;
        let (start, slice, base) = self.row(offset)?;
        for place in 0..width {
            let wrapped = u64::from(start + place >= self.disks());
            let height = heights.of(place);
            columns.push(Column {
                child: self.child_at(slice, (start + place) % self.disks())?,
                area: Area::Data,
                offset: base.checked_add(wrapped * ROW_HEIGHT)?,
                len: height << self.ashift,
                zeros: (heights.rows() - height) << self.ashift,
                at: at.checked_add(heights.before(place) << self.ashift)?,
                sector: 0,
            });
        }
        Some(())
    }
}

/// Reads one block of a dRAID vdev.
#[derive(Debug)]
pub struct DraidPlan(StripePlan);

impl DraidPlan {
    /// A plan for `size` bytes at `offset` of the vdev. A request that makes no sense ends at once
    /// without data.
    pub fn new(geometry: &DraidGeometry, offset: u64, size: u64, depth: Depth) -> Self {
        Self(StripePlan::new(geometry.grid(offset, size), size, depth))
    }
}

impl ReadPlan for DraidPlan {
    fn start(&mut self, children: &dyn Children) -> PlanStep {
        self.0.start(children)
    }

    fn resume(
        &mut self,
        _: &dyn Children,
        results: Vec<ChildResult>,
        judge: &mut dyn FnMut(&[u8]) -> bool,
    ) -> PlanStep {
        self.0.resume(results, judge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn geometry(parity: u64, data: u64, spares: u64, children: u64) -> DraidGeometry {
        let config = DraidConfig { parity, data, children, spares };
        DraidGeometry::new(12, config, config.groups().unwrap()).unwrap()
    }

    /// Over two turns of the whole permutation table, no place of a child belongs to two columns, or
    /// to a column and to spare space.
    #[test]
    fn nothing_overlaps() {
        for (parity, data, spares, children) in [(1, 2, 1, 5), (2, 3, 2, 9), (3, 1, 0, 4), (1, 8, 2, 14)] {
            let geometry = geometry(parity, data, spares, children);
            let mut owner: HashMap<(u32, u64), u64> = HashMap::new();
            for group in 0..40 * geometry.ngroups {
                let grid = geometry.grid(group * geometry.group_size(), geometry.min_alloc()).unwrap();
                for column in &grid.columns {
                    assert_eq!(column.offset % ROW_HEIGHT, 0);
                    let taken = owner.insert((column.child, column.offset), group);
                    assert_eq!(taken, None, "group {group}");
                    for spare in 0..u32::try_from(spares).unwrap() {
                        assert_ne!(geometry.spare_child(spare, column.offset), Some(column.child));
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_may_cross_into_the_next_group() {
        let geometry = geometry(1, 2, 0, 5);
        let offset = geometry.group_size() - (3 << 12);
        let grid = geometry.grid(offset, 5 << 12).unwrap();
        assert_eq!(grid.stripes().count(), 2);
        let data: u64 = grid.stripes().flat_map(|stripe| &stripe[1..]).map(|column| column.len).sum();
        assert_eq!(data, 5 << 12);
    }

    #[test]
    fn contradictions_are_refused() {
        for (parity, data, spares, children, ngroups) in [
            (0, 2, 0, 5, 5),
            (4, 2, 0, 9, 3),
            (1, 0, 0, 5, 5),
            (1, 5, 0, 5, 5),
            (1, 2, 6, 5, 5),
            (1, 2, 0, 5, 4),
            (1, 2, 0, 500, 5),
        ] {
            assert!(DraidGeometry::new(9, DraidConfig { parity, data, children, spares }, ngroups).is_err());
        }
    }
}
