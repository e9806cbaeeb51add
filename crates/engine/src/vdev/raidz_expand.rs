//! raidz expansion: one vdev, blocks of several widths.
//!
//! Attaching a disk moves every sector of the vdev, in its logical order, from rows of `n` children
//! to rows of `n + 1`. Blocks keep the parity and the row width that they were written with, their
//! *logical width*, which follows from the txg of their birth; only where their
//! sectors stand changes.
//!
//! While that reflow is under way, sectors below `ReflowState::offset` have moved. A row that
//! is not wholly below it is read from its old place. The very first rows can't be moved without overwriting
//! their own source, so they are first written to the boot area of each child; when the pool stopped in that
//! moment, `ReflowState::scratch` is set and they are read from there.
//!
//! Format source: `raidz_expand_txgs` and `raidz_expanding` in the vdev's config,
//! `ub_raidz_reflow_info` in the uberblock; vdev_raidz.c, OpenZFS 2.3.

use std::ops::Range;

use ondisk::uberblock::ReflowScratchState;

use super::plan::Area;
use super::raidz::{RaidzGeometry, RowPlace};
use super::stripe::{Column, Grid};

/// Expansion of a raidz vdev, from its config.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Expansion {
    /// For each completed expansion the first txg that wrote at the new width, oldest
    /// first (`raidz_expand_txgs`).
    pub(crate) txgs: Vec<u64>,
    /// Set while another expansion is under way (`raidz_expanding`); the disk being attached is
    /// counted in the geometry's width.
    pub(crate) reflow: Option<ReflowState>,
}

/// Position of a reflow, and the place of the moved bytes (`ub_raidz_reflow_info`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes of the vdev, from its start, that have been moved.
    pub(crate) offset: u64,
    /// The moved bytes are still in the scratch area (`RRSS_SCRATCH_VALID`).
    pub(crate) scratch: bool,
}

impl Moved {
    fn area(self) -> Area {
        if self.scratch { Area::Boot } else { Area::Data }
    }

    /// The value of `ub_raidz_reflow_info`. `RRSS_SCRATCH_INVALID_SYNCED_REFLOW` once the scratch area is out of use.
    #[doc(alias = "RAIDZ_REFLOW_SET")]
    pub(crate) fn to_uberblock(self) -> u64 {
        let state = match self.scratch {
            true => ReflowScratchState::Valid,
            false => ReflowScratchState::InvalidSyncedReflow,
        };
        (state as u64) << OFFSET_BITS | self.offset >> ondisk::MIN_BLOCK_SHIFT
    }
}

/// A reflow as the last uberblock on disk records it, and its state after the txg being written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReflowState {
    /// Bytes of the vdev, from its start, that have been moved.
    pub(crate) offset: u64,
    /// The moved bytes are still in the scratch area (`RRSS_SCRATCH_VALID`).
    pub(crate) scratch: bool,
    /// State that the next uberblock may record. Reads do not follow it; writes go to the places of both
    /// states.
    pub(crate) next: Option<Moved>,
}

/// Bits of `ub_raidz_reflow_info` that count 512-byte sectors; the others are the state.
const OFFSET_BITS: u32 = 55;

impl ReflowState {
    /// The state that the last uberblock has.
    pub(crate) fn synced(&self) -> Moved {
        Moved { offset: self.offset, scratch: self.scratch }
    }

    /// Bytes of the vdev that stand in two places, of which one is read by now: a block that has any of them is written to
    /// both. Never empty, as a row that the position cuts is one of these.
    pub(crate) fn doubled(&self) -> Range<u64> {
        let last = self.offset.saturating_add(1);
        match self.next {
            None => self.offset.saturating_sub(1)..last,
            // The scratch area and the places for good.
            Some(next) if next.offset == self.offset => 0..last,
            Some(next) => self.offset.saturating_sub(1)..last.max(next.offset),
        }
    }

    /// Takes `ub_raidz_reflow_info` apart: 55 bits of 512-byte sectors, 9 bits of state; state 1 means that
    /// the scratch area holds the moved bytes.
    pub(crate) fn from_uberblock(reflow_info: u64) -> Self {
        const SCRATCH_VALID: u64 = 1;
        let sectors = reflow_info & ((1 << OFFSET_BITS) - 1);
        Self { offset: sectors << 9, scratch: reflow_info >> OFFSET_BITS == SCRATCH_VALID, next: None }
    }
}

impl Expansion {
    /// Expansions so far, the one under way included.
    pub(super) fn times(&self) -> u64 {
        u64::try_from(self.txgs.len()).unwrap_or(u64::MAX).saturating_add(u64::from(self.reflow.is_some()))
    }

    /// Width at which a block born in `txg` was laid out, when the vdev now has `width` children.
    pub(super) fn logical_width(&self, width: u64, txg: u64) -> u64 {
        let since = self.txgs.iter().enumerate().filter(|&(_, &from)| from <= txg);
        let done = since.max_by_key(|&(_, &from)| from).map_or(0, |(index, _)| index + 1);
        let original = width.saturating_sub(self.times());
        original.saturating_add(u64::try_from(done).unwrap_or(0))
    }

    /// Where the row of `columns` sectors that begins at the vdev's sector `first` stands.
    pub(super) fn place(&self, geometry: &RaidzGeometry, first: u64, columns: u64) -> RowPlace {
        let width = u64::from(geometry.width);
        let Some(reflow) = self.reflow else {
            return RowPlace { width, area: Area::Data };
        };
        let moved = reflow.offset >> geometry.ashift;
        if first.saturating_add(columns) > moved {
            RowPlace { width: width.saturating_sub(1), area: Area::Data }
        } else {
            RowPlace { width, area: reflow.synced().area() }
        }
    }
}

/// Where the bytes of a block go while a reflow is under way.
#[derive(Debug)]
pub(super) struct WritePlaces {
    /// Where the block is read now, and where it is read once the next state is on disk. All bytes of each are needed.
    pub(crate) read: Vec<Grid>,
    /// Columns that the reflow will not copy any more, at their new places, in the order of the columns of `read`; empty
    /// columns are not written.
    pub(crate) moved: Vec<Vec<Column>>,
}

impl RaidzGeometry {
    /// The places of a block while a reflow is under way.
    ///
    /// A row that the reflow's position cuts is read from its old place, but its first sectors are copied already: they are
    /// written to both places, as no copy will bring them to the new one.
    pub(super) fn write_places(&self, offset: u64, size: u64, birth_txg: u64) -> Option<WritePlaces> {
        let reflow = self.expansion.as_ref()?.reflow?;
        let now = self.with_reflow(ReflowState { next: None, ..reflow }).grid(offset, size, birth_txg)?;
        let mut states = vec![reflow.synced()];
        states.extend(reflow.next);
        let moved =
            states.iter().map(|state| self.moved_columns(&now, *state)).collect::<Option<Vec<_>>>()?;
        let mut read = vec![now];
        if let Some(Moved { offset: next, scratch }) = reflow.next {
            let state = ReflowState { offset: next, scratch, next: None };
            read.push(self.with_reflow(state).grid(offset, size, birth_txg)?);
        }
        Some(WritePlaces { read, moved })
    }

    /// The columns of `grid` that lie before a position, where they stand once moved; others are empty.
    fn moved_columns(&self, grid: &Grid, state: Moved) -> Option<Vec<Column>> {
        let (width, limit) = (u64::from(self.width), state.offset >> self.ashift);
        let place = |column: &Column| {
            let row = column.sector.checked_div(width)?;
            Some(Column {
                child: u32::try_from(column.sector.checked_rem(width)?).ok()?,
                area: state.area(),
                offset: row.checked_mul(1 << self.ashift)?,
                len: if column.sector < limit { column.len } else { 0 },
                ..*column
            })
        };
        grid.columns.iter().map(place).collect()
    }

    /// The same vdev with another state of its reflow.
    #[must_use]
    pub(crate) fn with_reflow(&self, reflow: ReflowState) -> Self {
        let txgs = self.expansion.as_ref().map(|expansion| expansion.txgs.clone()).unwrap_or_default();
        Self { expansion: Some(Expansion { txgs, reflow: Some(reflow) }), ..self.clone() }
    }

    /// The same vdev, which is being expanded according to its config, in an already known state.
    #[must_use]
    pub(super) fn resumed(&self, reflow: ReflowState) -> Self {
        self.with_reflow(reflow)
    }

    /// The state of the reflow under way.
    pub(crate) fn reflow(&self) -> Option<ReflowState> {
        self.expansion.as_ref()?.reflow
    }
}
