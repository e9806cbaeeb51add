//! raidz: where a block's data and parity stand, and how much space it takes.
//!
//! The sectors of the vdev are numbered across its children, row by row. A block takes consecutive
//! ones; row by row, the first `nparity` hold parity and the rest data, which runs down each column
//! first. Format source: vdev_raidz.c, OpenZFS 2.3.
//!
//! Differs from OpenZFS: see [`super::stripe_plan`] for how reads and recovery differ.

use super::plan::{Area, ChildResult, Children, Depth, PlanStep, ReadPlan};
use super::raidz_expand::{Expansion, ReflowState};
use super::stripe::{Column, Grid, Heights, MAX_BLOCK, MAX_COLUMNS};
use super::stripe_plan::StripePlan;
use crate::{Error, Result};

/// Offsets with this bit set have the first two columns of a single-parity block swapped, so that
/// parity is not always on one child.
const SWAP_BIT: u64 = 1 << 20;

/// The fixed shape of a raidz vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaidzGeometry {
    /// Log2 of the sector size, 9 to 16.
    pub(crate) ashift: u32,
    /// Number of children (`vd_physical_width`).
    pub(crate) width: u32,
    /// 1 to 3.
    pub(crate) nparity: u32,
    /// Past and present growth by single disks, `None` when never grown.
    pub(crate) expansion: Option<Expansion>,
}

impl RaidzGeometry {
    /// Checks the values of the vdev's config: its ashift, the number of children, `nparity` and
    /// `raidz_expand_txgs`. `reflow_info` is the uberblock's `ub_raidz_reflow_info` while the config has
    /// `raidz_expanding`, else `None`.
    ///
    /// # Errors
    /// `Corrupt` when no such vdev can be.
    pub fn new(
        ashift: u32,
        width: u32,
        nparity: u32,
        expand_txgs: &[u64],
        reflow_info: Option<u64>,
    ) -> Result<Self> {
        let grown = !expand_txgs.is_empty() || reflow_info.is_some();
        let expansion = grown.then(|| Expansion {
            txgs: expand_txgs.to_vec(),
            reflow: reflow_info.map(ReflowState::from_uberblock),
        });
        let geometry = Self { ashift, width, nparity, expansion };
        let valid = geometry.is_valid();
        if valid {
            Ok(geometry)
        } else {
            Err(Error::corrupt("the numbers of the raidz's config contradict each other"))
        }
    }

    /// Whether any block could stand on such a vdev.
    pub(crate) fn is_valid(&self) -> bool {
        (9..=16).contains(&self.ashift)
            && (1..=3).contains(&self.nparity)
            && u64::from(self.width) <= MAX_COLUMNS
            && self.original_width() > u64::from(self.nparity)
    }

    /// Whether sectors are being moved to another width right now.
    pub(crate) fn is_reflowing(&self) -> bool {
        self.expansion.as_ref().is_some_and(|expansion| expansion.reflow.is_some())
    }

    /// Width when the vdev was created.
    pub(crate) fn original_width(&self) -> u64 {
        let grown = self.expansion.as_ref().map_or(0, Expansion::times);
        u64::from(self.width).saturating_sub(grown)
    }

    /// Columns across which a block born in `txg` was laid out
    /// (`vdev_raidz_get_logical_width`).
    pub(crate) fn logical_width(&self, txg: u64) -> u64 {
        let width = u64::from(self.width);
        self.expansion.as_ref().map_or(width, |expansion| expansion.logical_width(width, txg))
    }

    /// Bytes that a block of `psize` bytes born in `txg` takes on all children together, padding
    /// included. 0 when the geometry is invalid.
    #[doc(alias = "vdev_raidz_asize")]
    pub fn asize(&self, psize: u64, txg: u64) -> u64 {
        let nparity = u64::from(self.nparity);
        let Some(ndata) = self.logical_width(txg).checked_sub(nparity).filter(|&ndata| ndata > 0) else {
            return 0;
        };
        let sectors = psize.max(1).div_ceil(1 << self.ashift.min(32));
        let rows = sectors.div_ceil(ndata);
        let used = sectors.saturating_add(nparity.saturating_mul(rows));
        let unit = nparity + 1;
        used.div_ceil(unit).saturating_mul(unit).saturating_mul(1 << self.ashift.min(32))
    }

    /// Where a block stands; `None` when the request makes no sense for this geometry.
    pub(super) fn grid(&self, offset: u64, size: u64, birth_txg: u64) -> Option<Grid> {
        if !self.is_valid() || size == 0 || size > MAX_BLOCK {
            return None;
        }
        let sector = 1u64 << self.ashift;
        if !offset.is_multiple_of(sector) || i64::try_from(offset).is_err() {
            return None;
        }
        let block = Block {
            first: offset >> self.ashift,
            sectors: size.div_ceil(sector),
            width: self.logical_width(birth_txg),
            nparity: u64::from(self.nparity),
            ashift: self.ashift,
            swapped: self.nparity == 1 && offset & SWAP_BIT != 0,
        };
        if block.width == u64::from(self.width) {
            return block.grid();
        }
        let mut grid = block.rows(|first, columns| {
            let place = self.expansion.as_ref().map(|expansion| expansion.place(self, first, columns));
            place.unwrap_or_else(|| RowPlace { width: u64::from(self.width), area: Area::Data })
        })?;
        grid.older_widths = (self.original_width()..u64::from(self.width)).rev().collect();
        Some(grid)
    }
}

/// Where a row of an expanded vdev stands at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowPlace {
    /// Children over which its sectors are spread.
    pub(crate) width: u64,
    pub(crate) area: Area,
}

/// One block in units of sectors.
struct Block {
    first: u64,
    sectors: u64,
    width: u64,
    nparity: u64,
    ashift: u32,
    swapped: bool,
}

impl Block {
    /// One stripe of tall columns: the children are as many as when the block was written.
    fn grid(&self) -> Option<Grid> {
        let heights = Heights::new(self.sectors, self.width, self.nparity)?;
        let mut columns = Vec::new();
        for place in 0..self.columns(&heights) {
            let sector = self.first.checked_add(place)?;
            let at = heights.before(place) << self.ashift;
            columns.push(self.column(sector, heights.of(place), at, self.width, Area::Data)?);
        }
        self.swap(&mut columns);
        self.finish(columns.len(), columns)
    }

    /// A stripe for each row, for rows that were moved to another width.
    fn rows(&self, place_of: impl Fn(u64, u64) -> RowPlace) -> Option<Grid> {
        let heights = Heights::new(self.sectors, self.width, self.nparity)?;
        let width = self.columns(&heights);
        let mut all = Vec::new();
        for row in 0..heights.rows() {
            let first = row.checked_mul(self.width)?.checked_add(self.first)?;
            let stands = place_of(first, width);
            let mut columns = Vec::new();
            for place in 0..width {
                let height = u64::from(row < heights.of(place));
                let at = (heights.before(place) + row) << self.ashift;
                let sector = first.checked_add(place)?;
                columns.push(self.column(sector, height, at, stands.width, stands.area)?);
            }
            self.swap(&mut columns);
            all.append(&mut columns);
        }
        self.finish(usize::try_from(width).ok()?, all)
    }

    /// Columns of the stripe: fewer than the width when not even one row is full.
    fn columns(&self, heights: &Heights) -> u64 {
        if heights.of(self.width - 1) == 0 { heights.big } else { self.width }
    }

    fn column(&self, sector: u64, height: u64, at: u64, width: u64, area: Area) -> Option<Column> {
        let row = sector.checked_div(width)?;
        Some(Column {
            child: u32::try_from(sector % width).ok()?,
            area,
            offset: row.checked_mul(1 << self.ashift)?,
            len: height << self.ashift,
            zeros: 0,
            at,
            sector,
        })
    }

    /// Exchanges where parity and the first data column stand.
    fn swap(&self, columns: &mut [Column]) {
        if let (true, Some(([parity], rest))) = (self.swapped, columns.split_at_mut_checked(1))
            && let Some(data) = rest.first_mut()
        {
            std::mem::swap(&mut parity.child, &mut data.child);
            std::mem::swap(&mut parity.area, &mut data.area);
            std::mem::swap(&mut parity.offset, &mut data.offset);
            std::mem::swap(&mut parity.sector, &mut data.sector);
        }
    }

    fn finish(&self, width: usize, columns: Vec<Column>) -> Option<Grid> {
        Some(Grid {
            nparity: usize::try_from(self.nparity).ok()?,
            width,
            sector: 1 << self.ashift,
            size: self.sectors << self.ashift,
            columns,
            older_widths: Vec::new(),
        })
    }
}

/// Reads one block of a raidz vdev.
#[derive(Debug)]
pub struct RaidzPlan(StripePlan);

impl RaidzPlan {
    /// A plan for `size` bytes at `offset` of the vdev, of a block born (physically) in `birth_txg`.
    /// A request that makes no sense ends at once without data.
    pub fn new(geometry: &RaidzGeometry, offset: u64, size: u64, birth_txg: u64, depth: Depth) -> Self {
        Self(StripePlan::new(geometry.grid(offset, size, birth_txg), size, depth))
    }
}

impl ReadPlan for RaidzPlan {
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

    /// Sizes as zdb shows them for blocks of a real pool: raidz1 of 3, ashift 9.
    #[test]
    fn allocated_sizes_are_those_of_openzfs() {
        let geometry = RaidzGeometry::new(9, 3, 1, &[], None).unwrap();
        for (psize, asize) in [
            (0x200, 0x400),
            (0x400, 0x800),
            (0x600, 0xc00),
            (0x800, 0xc00),
            (0xe00, 0x1800),
            (0x1000, 0x1800),
        ] {
            assert_eq!(geometry.asize(psize, 1), asize);
        }
    }

    #[test]
    fn width_follows_birth() {
        let grown = RaidzGeometry::new(9, 6, 1, &[10, 20], None).unwrap();
        assert_eq!([0, 9, 10, 19, 20, 99].map(|txg| grown.logical_width(txg)), [4, 4, 5, 5, 6, 6]);
        let growing = RaidzGeometry::new(9, 6, 1, &[10], Some(0)).unwrap();
        assert_eq!([0, 9, 10, 99].map(|txg| growing.logical_width(txg)), [4, 4, 5, 5]);
        assert!(RaidzGeometry::new(9, 3, 1, &[10, 20], None).is_err(), "narrower than its parity allows");
    }

    #[test]
    fn reflow_info_is_taken_apart() {
        let info = 1 << 55 | 18_350_080 >> 9;
        assert_eq!(
            ReflowState::from_uberblock(info),
            ReflowState { offset: 18_350_080, scratch: true, next: None }
        );
        assert!(!ReflowState::from_uberblock(4 << 55 | 7).scratch);
    }

    /// A block that fills a part of one row: parity comes first, and bit 20 of the offset swaps it.
    #[test]
    fn parity_changes_place_every_mebibyte() {
        let geometry = RaidzGeometry::new(9, 4, 1, &[], None).unwrap();
        let children = |offset| {
            geometry.grid(offset, 1024, 1).unwrap().columns.iter().map(|c| c.child).collect::<Vec<_>>()
        };
        assert_eq!(children(0), [0, 1, 2]);
        assert_eq!(children(1 << 20), [1, 0, 2]);
        let double = RaidzGeometry::new(9, 4, 2, &[], None).unwrap();
        assert_eq!(double.grid(1 << 20, 512, 1).unwrap().columns[0].child, 0);
    }
}
