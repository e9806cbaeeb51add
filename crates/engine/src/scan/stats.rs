//! Block statistics: count and size by type and level, as in `zdb -b`.

use std::collections::BTreeMap;

use ondisk::{Blkptr, ObjectType};

use super::traverse::{ReferenceKind, Visit};

/// A row of the table of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Row {
    /// A type of the DMU's fixed table.
    Type(u8),
    /// Blocks that are still to be freed.
    Deferred,
    /// Extra copies of much-used deduplicated blocks, in old pools.
    DedupDitto,
    /// Self-describing types.
    Other,
}

impl Row {
    /// The row of a block.
    pub fn of(visit: &Visit<'_>) -> Self {
        match visit.origin {
            ReferenceKind::Deferred => Self::Deferred,
            _ if visit.bp.object_type().is_newtype() => Self::Other,
            _ => Self::Type(visit.bp.object_type().raw()),
        }
    }

    /// zdb's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Type(raw) => ObjectType(raw).name().unwrap_or("unknown"),
            Self::Deferred => "deferred free",
            Self::DedupDitto => "dedup ditto",
            Self::Other => "other",
        }
    }

    /// All rows in zdb's order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..ObjectType::NUMTYPES).map(Self::Type).chain([Self::Deferred, Self::DedupDitto, Self::Other])
    }
}

/// Totals over some blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[doc(alias = "zdb_blkstats_t")]
pub struct Sums {
    /// Pointers.
    pub count: u64,
    /// Bytes before compression.
    pub lsize: u64,
    /// Bytes after compression.
    pub psize: u64,
    /// Bytes allocated, all copies and parity.
    pub asize: u64,
    /// Copies that are gang blocks.
    pub gangs: u64,
    /// Blocks with copies on one top-level vdev.
    pub ditto_same_vdev: u64,
    /// Blocks with copies in one metaslab.
    pub ditto_same_metaslab: u64,
    /// Blocks by sectors of 512 bytes; those above 128 KiB are in the last slot.
    pub psize_histogram: BTreeMap<u16, u64>,
}

/// Slot of `psize_histogram` for blocks above 128 KiB.
pub(crate) const PSIZE_LAST: u16 = 257;

impl Sums {
    /// Adds other totals.
    pub(crate) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.lsize += other.lsize;
        self.psize += other.psize;
        self.asize += other.asize;
        self.gangs += other.gangs;
        self.ditto_same_vdev += other.ditto_same_vdev;
        self.ditto_same_metaslab += other.ditto_same_metaslab;
        for (slot, count) in &other.psize_histogram {
            *self.psize_histogram.entry(*slot).or_default() += count;
        }
    }
}

/// Blocks by the power of two of their size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SizeHistogram {
    /// Blocks, by exponent.
    pub count: BTreeMap<u32, u64>,
    /// Their bytes.
    pub bytes: BTreeMap<u32, u64>,
}

impl SizeHistogram {
    fn add(&mut self, size: u64) {
        if let Some(bin) = size.checked_ilog2() {
            *self.count.entry(bin).or_default() += 1;
            *self.bytes.entry(bin).or_default() += size;
        }
    }
}

/// The totals of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// By type and level.
    pub(crate) cells: BTreeMap<(Row, u8), Sums>,
    /// Embedded blocks: by kind of content and bytes of payload.
    pub embedded: BTreeMap<(u8, u64), u64>,
    /// Sizes after compression.
    pub psizes: SizeHistogram,
    /// Sizes before compression.
    pub lsizes: SizeHistogram,
    /// Sizes allocated.
    pub asizes: SizeHistogram,
    /// Bytes that dedup saved: every reference but the first.
    pub dedup_asize: u64,
    /// References that dedup saved.
    pub dedup_blocks: u64,
    /// Bytes that cloning saved.
    pub clone_asize: u64,
    /// References that cloning saved.
    pub clone_blocks: u64,
}

/// Copies of a block on one vdev, and in one metaslab of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ditto {
    /// Two copies share a top-level vdev.
    pub(crate) same_vdev: bool,
    /// Two copies share a metaslab.
    pub(crate) same_metaslab: bool,
}

impl Ditto {
    /// `metaslab` returns the metaslab of an offset of a vdev.
    pub(crate) fn of(bp: &Blkptr, metaslab: impl Fn(u32, u64) -> Option<u64>) -> Self {
        let copies: Vec<_> = bp.dvas().collect();
        let mut ditto = Self::default();
        for (i, a) in copies.iter().enumerate() {
            for b in copies.iter().skip(i + 1).filter(|b| b.vdev == a.vdev) {
                ditto.same_vdev = true;
                let same = metaslab(a.vdev, a.offset) == metaslab(b.vdev, b.offset);
                ditto.same_metaslab |= same;
            }
        }
        ditto
    }
}

impl BlockStats {
    /// Counts a block pointer.
    pub fn count(&mut self, visit: &Visit<'_>, ditto: Ditto) {
        let bp = visit.bp;
        let sums = self.cells.entry((Row::of(visit), bp.level())).or_default();
        sums.count += 1;
        sums.lsize += bp.lsize();
        sums.psize += bp.psize();
        sums.asize += bp.asize();
        sums.gangs += u64::try_from(bp.count_gang()).unwrap_or(0);
        sums.ditto_same_vdev += u64::from(ditto.same_vdev);
        sums.ditto_same_metaslab += u64::from(ditto.same_metaslab);
        let sectors = u16::try_from(bp.psize() >> 9).unwrap_or(u16::MAX).min(PSIZE_LAST);
        *sums.psize_histogram.entry(sectors).or_default() += 1;
        if bp.is_embedded() {
            *self.embedded.entry((bp.embedded_type_raw(), bp.embedded_psize())).or_default() += 1;
            return;
        }
        self.psizes.add(bp.psize());
        self.lsizes.add(bp.lsize());
        self.asizes.add(bp.asize());
    }

    /// Everything.
    pub fn total(&self) -> Sums {
        self.sum(|_, _| true)
    }

    /// Totals over the cells selected by `which`.
    pub fn sum(&self, which: impl Fn(Row, u8) -> bool) -> Sums {
        self.sum_cells(|row, level, _| which(row, level))
    }

    fn sum_cells(&self, which: impl Fn(Row, u8, &Sums) -> bool) -> Sums {
        let mut sums = Sums::default();
        for ((row, level), cell) in &self.cells {
            if which(*row, *level, cell) {
                sums.add(cell);
            }
        }
        sums
    }

    /// The content of zdb's last row: indirect blocks and metadata types, without self-describing ones and blocks
    /// that are always embedded.
    pub fn metadata(&self) -> Sums {
        self.sum_cells(|row, level, cell| match row {
            Row::Type(raw) => cell.asize > 0 && (level > 0 || ObjectType(raw).is_metadata()),
            _ => false,
        })
    }
}
