//! dRAID: raidz groups and spare space spread over all children by permutations.
//!
//! Each child is cut into rows of 16 MiB. A group of `ndata + nparity` columns takes 16 MiB from each
//! of as many disks and is filled before the next; groups follow each other across the children
//! that are not spare space and wrap into the next row. After `ngroups` of them, a *slice*, the next
//! permutation of the children applies; the last places of each permutation are the distributed
//! spares. A block always takes whole rows of its group, the padding is written as zeros. Format
//! source: vdev_draid.c, OpenZFS 2.3.

use super::plan::{Area, ChildResult, Children, Depth, ReadPlan, Step};
use super::raidz::deflate_ratio;
use super::stripe::{Column, Grid, Heights, MAX_BLOCK, MAX_COLUMNS};
use super::stripe_plan::StripePlan;
use std::sync::Arc;

/// Bytes of a row on each child (`VDEV_DRAID_ROWHEIGHT`): a whole block of 16 MiB must fit one data
/// column.
pub const ROW_HEIGHT: u64 = 1 << 24;

/// Bytes of each child kept back for a future reflow (`VDEV_DRAID_REFLOW_RESERVE`).
const REFLOW_RESERVE: u64 = 2 * ROW_HEIGHT;

/// The fixed shape of a dRAID vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraidGeometry {
    ashift: u8,
    ndata: u64,
    nparity: u64,
    nspares: u64,
    children: u64,
    ngroups: u64,
    /// Permutations one after the other, each with `children` entries.
    perms: Arc<[u8]>,
}

/// What a dRAID's config says, unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraidConfig {
    /// Log2 of the sector size.
    pub ashift: u8,
    /// Data columns of a group (`draid_ndata`).
    pub ndata: u64,
    /// Parity columns of a group (`nparity`).
    pub nparity: u64,
    /// Distributed spares (`draid_nspares`).
    pub nspares: u64,
    /// Number of children.
    pub children: u64,
    /// Groups of a slice (`draid_ngroups`).
    pub ngroups: u64,
}

impl DraidGeometry {
    /// Checks a config against the permutations for that number of children (rows of `children`
    /// bytes, one after the other). `None` when they contradict each other.
    pub fn new(config: DraidConfig, perms: Arc<[u8]>) -> Option<Self> {
        let DraidConfig { ashift, ndata, nparity, nspares, children, ngroups } = config;
        let width = ndata.checked_add(nparity)?;
        let disks = children.checked_sub(nspares)?;
        let row = usize::try_from(children).ok()?;
        let sane = (9..=16).contains(&ashift)
            && (1..=3).contains(&nparity)
            && ndata > 0
            && children <= MAX_COLUMNS
            && width <= disks
            && (1..=MAX_COLUMNS).contains(&ngroups)
            && (width * ngroups).checked_rem(disks)? == 0
            && !perms.is_empty()
            && perms.len().checked_rem(row)? == 0
            && perms.iter().all(|&id| u64::from(id) < children);
        sane.then_some(Self { ashift, ndata, nparity, nspares, children, ngroups, perms })
    }

    /// Columns of a group, parity included.
    pub fn group_width(&self) -> u64 {
        self.ndata + self.nparity
    }

    /// Parity columns of a group.
    pub fn nparity(&self) -> u64 {
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

    /// `vdev_deflate_ratio`.
    pub fn deflate_ratio(&self) -> u64 {
        deflate_ratio(self.asize(1 << 17))
    }

    /// Bytes that each child must offer for a vdev of `asize` bytes.
    #[doc(alias = "vdev_draid_min_asize")]
    pub fn min_asize(&self, asize: u64) -> u64 {
        REFLOW_RESERVE.saturating_add(asize.div_ceil(self.disks()))
    }

    /// The smallest allocation: one row of data columns.
    #[doc(alias = "vdev_draid_min_alloc")]
    pub fn min_alloc(&self) -> u64 {
        self.ndata << self.ashift
    }

    /// The child that stands at `place` of the permutation in force for slice `slice`. Rows of the
    /// table are used `children` times each, rotated by one more every time.
    fn child_at(&self, slice: u64, place: u64) -> Option<u32> {
        let rows = u64::try_from(self.perms.len()).ok()?.checked_div(self.children)?;
        let turn = slice.checked_rem(rows.checked_mul(self.children)?)?;
        let (row, shift) = (turn / self.children, turn % self.children);
        let index = usize::try_from(row * self.children + place).ok()?;
        let base = u64::from(*self.perms.get(index)?);
        u32::try_from((base + shift) % self.children).ok()
    }

    /// Which child holds byte `offset` (of the data area) of distributed spare `spare`, at the same
    /// offset. That child may itself be replaced by another distributed spare.
    #[doc(alias = "vdev_draid_spare_get_child")]
    pub fn spare_location(&self, spare: u64, offset: u64) -> Option<u32> {
        if spare >= self.nspares {
            return None;
        }
        let slice = offset.checked_div(self.slice_rows() * ROW_HEIGHT)?;
        self.child_at(slice, self.children - 1 - spare)
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

    /// The columns of the part of a block that lies in one group.
    fn stripe(&self, columns: &mut Vec<Column>, offset: u64, at: u64, size: u64) -> Option<()> {
        let width = self.group_width();
        let heights = Heights::new(size >> self.ashift, width, self.nparity)?;
        let group = offset / self.group_size();
        let slice = group / self.ngroups;
        let in_slice = group % self.ngroups * width;
        let start = in_slice % self.disks();
        let row = slice.checked_mul(self.slice_rows())?.checked_add(in_slice / self.disks())?;
        let base = row.checked_mul(ROW_HEIGHT)?.checked_add(offset % self.group_size() / width)?;
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
    fn start(&mut self, children: &dyn Children) -> Step {
        self.0.start(children)
    }

    fn resume(
        &mut self,
        children: &dyn Children,
        results: Vec<ChildResult>,
        judge: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Step {
        self.0.resume(children, results, judge)
    }
}
