//! raidz expansion: one vdev, blocks of several widths.
//!
//! Attaching a disk moves every sector of the vdev, in its logical order, from rows of `n` children
//! to rows of `n + 1`. Blocks keep the parity and the row width that they were written with, their
//! *logical width*, which follows from the transaction group of their birth; only where their
//! sectors stand changes.
//!
//! While that reflow is under way, sectors below `ReflowState::offset` have moved. A row that
//! is not wholly below it is read from its old place. The very first rows can't be moved without
//! overwriting what they come from, so they are first written to the boot area of each child; when
//! the pool stopped in that moment, `ReflowState::scratch` is set and they are read from there.
//!
//! Format source: `raidz_expand_txgs` and `raidz_expanding` in the vdev's config,
//! `ub_raidz_reflow_info` in the uberblock; vdev_raidz.c, OpenZFS 2.3.

use super::plan::Area;
use super::raidz::{RaidzGeometry, RowPlace};

/// Growth of a raidz vdev, as its config tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expansion {
    /// For each completed expansion the first transaction group that wrote at the new width, oldest
    /// first (`raidz_expand_txgs`).
    pub txgs: Vec<u64>,
    /// Set while another expansion is under way (`raidz_expanding`); the disk being attached is
    /// counted in the geometry's width.
    pub reflow: Option<ReflowState>,
}

/// How far a reflow has come (`ub_raidz_reflow_info` of the uberblock that the pool is opened at).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReflowState {
    /// Bytes of the vdev, from its start, that have been moved.
    pub offset: u64,
    /// The moved bytes are still in the scratch area (`RRSS_SCRATCH_VALID`).
    pub scratch: bool,
}

impl ReflowState {
    /// Takes `ub_raidz_reflow_info` apart: 55 bits of 512-byte sectors, 9 bits of state of which 1
    /// says that the scratch area holds the moved bytes.
    pub fn from_uberblock(reflow_info: u64) -> Self {
        const OFFSET_BITS: u32 = 55;
        const SCRATCH_VALID: u64 = 1;
        let sectors = reflow_info & ((1 << OFFSET_BITS) - 1);
        Self { offset: sectors << 9, scratch: reflow_info >> OFFSET_BITS == SCRATCH_VALID }
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
        } else if reflow.scratch {
            RowPlace { width, area: Area::Boot }
        } else {
            RowPlace { width, area: Area::Data }
        }
    }
}
