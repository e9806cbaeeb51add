//! The shape of one block on a raidz-like vdev: which bytes of which child are data, which parity.
//!
//! A block is one or more *stripes*: sets of columns, parity first, tied together by the parity
//! equations. Column heights differ by at most one sector; shorter ones count as zero-filled for
//! parity. Plain raidz has one stripe of tall columns; an expanded raidz has a stripe for each row of
//! sectors, since a column no longer stays on one child; draid has two where a block crosses from
//! one redundancy group to the next. raidz and draid only differ in how they make a [`Grid`].

use super::plan::Area;

/// Largest physical size of a block: 16 bits of 512-byte sectors in a block pointer.
pub(super) const MAX_BLOCK: u64 = 32 << 20;

/// Most columns of a stripe: the exponents of GF(2^8) repeat after 255.
pub(super) const MAX_COLUMNS: u64 = 255;

/// A run of bytes on one child that is data or parity of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    pub(crate) child: u32,
    pub(crate) area: Area,
    /// Bytes from the start of the area.
    pub(crate) offset: u64,
    /// Bytes; 0 for a column that the stripe is too short to reach.
    pub(crate) len: u64,
    /// Zero bytes that must follow (draid writes its padding).
    pub(crate) zeros: u64,
    /// Where a data column's bytes stand in the block. Unused for parity.
    pub(crate) at: u64,
    /// Number of the first sector in the vdev's logical order, from which the child follows at any
    /// width.
    pub(crate) sector: u64,
}

/// All columns of a block.
#[derive(Debug)]
pub(super) struct Grid {
    pub(crate) nparity: usize,
    /// Columns of each stripe.
    pub(crate) width: usize,
    /// Bytes of a sector.
    pub(crate) sector: u64,
    /// Bytes of data in all columns: the block's size rounded up to sectors.
    pub(crate) size: u64,
    /// Stripe after stripe, each with `width` columns, parity first.
    pub(crate) columns: Vec<Column>,
    /// Widths at which the vdev was written in the past, when a bad child spoilt other columns.
    pub(crate) older_widths: Vec<u64>,
}

impl Grid {
    /// The stripes in order.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = &[Column]> {
        self.columns.chunks(self.width.max(1))
    }

    /// Whether the column at this place of a stripe is parity.
    pub(crate) fn is_parity(&self, place: usize) -> bool {
        place < self.nparity
    }

    /// Returns the children that may have spoilt a column: its own child, or a child of an older width.
    pub(crate) fn suspects(&self, column: &Column) -> impl Iterator<Item = u64> {
        let sector = column.sector;
        let older = self.older_widths.iter().zip(1u64..);
        let older = older.map(move |(&width, n)| (n << 32) | sector.checked_rem(width).unwrap_or(0));
        std::iter::once(u64::from(column.child)).chain(older)
    }
}

/// How sectors of data fall into columns, the same arithmetic for every raidz-like layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heights {
    nparity: u64,
    /// Rows that reach all columns.
    full: u64,
    /// Columns, parity included, that have one sector more.
    pub(crate) big: u64,
}

impl Heights {
    /// For `sectors` of data over `width` columns of which `nparity` are parity.
    pub(crate) fn new(sectors: u64, width: u64, nparity: u64) -> Option<Self> {
        let ndata = width.checked_sub(nparity)?;
        let rest = sectors.checked_rem(ndata)?;
        let big = if rest == 0 { 0 } else { rest + nparity };
        Some(Self { nparity, full: sectors / ndata, big })
    }

    /// Sectors in the column at this place.
    pub(crate) fn of(&self, place: u64) -> u64 {
        self.full + u64::from(place < self.big)
    }

    /// Rows of the stripe.
    pub(crate) fn rows(&self) -> u64 {
        self.full + u64::from(self.big > 0)
    }

    /// Sectors of data in the columns before this one.
    pub(crate) fn before(&self, place: u64) -> u64 {
        let data_columns = place.saturating_sub(self.nparity);
        let big_data = self.big.saturating_sub(self.nparity);
        data_columns * self.full + data_columns.min(big_data)
    }
}
