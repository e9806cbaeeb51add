//! Totals over dedup tables.

use ondisk::Blkptr;
use ondisk::ChecksumType;
use ondisk::ddt::{DdtHistogram, DdtKey, DdtPhys, DdtStat};

use super::DdtTable;

/// Totals by reference count: bucket i counts blocks with `2^i` up to `2^(i+1) - 1` references.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// The buckets.
    pub histogram: DdtHistogram,
}

impl Totals {
    /// Totals of all tables as stored in the pool, plus the entries of their logs. `dsize` returns the deflated
    /// bytes of a block.
    #[doc(alias = "ddt_get_dedup_histogram")]
    pub fn of(tables: &[DdtTable], dsize: &dyn Fn(&Blkptr) -> u64) -> Self {
        let mut totals = Self::default();
        for table in tables {
            for histogram in table.stores.iter().filter_map(|s| s.histogram.as_ref()) {
                totals.merge(histogram);
            }
            for log in &table.logs {
                for (key, entry) in &log.entries {
                    // Blocks without references are freed when the log is flushed.
                    for phys in entry.phys.iter().filter(|phys| phys.refcnt > 0) {
                        let bp = phys.blkptr(key, table.checksum);
                        totals.count(&of_block(&bp, dsize(&bp), phys.refcnt), phys.refcnt);
                    }
                }
            }
        }
        totals
    }

    fn merge(&mut self, other: &DdtHistogram) {
        for (to, from) in self.histogram.stat.iter_mut().zip(&other.stat) {
            add(to, from);
        }
    }

    /// Adds blocks with `refcnt` references each.
    pub fn count(&mut self, stat: &DdtStat, refcnt: u64) {
        let bucket = refcnt.checked_ilog2().unwrap_or(0);
        if let Some(to) = usize::try_from(bucket).ok().and_then(|i| self.histogram.stat.get_mut(i)) {
            add(to, stat);
        }
    }

    /// All buckets together.
    pub fn all(&self) -> DdtStat {
        let mut all = DdtStat::default();
        self.histogram.stat.iter().for_each(|stat| add(&mut all, stat));
        all
    }
}

/// The statistics of one block with `refcnt` references.
#[doc(alias = "ddt_stat_generate")]
pub fn of_block(bp: &Blkptr, dsize: u64, refcnt: u64) -> DdtStat {
    DdtStat {
        blocks: 1,
        lsize: bp.lsize(),
        psize: bp.psize(),
        dsize,
        ref_blocks: refcnt,
        ref_lsize: bp.lsize().wrapping_mul(refcnt),
        ref_psize: bp.psize().wrapping_mul(refcnt),
        ref_dsize: dsize.wrapping_mul(refcnt),
    }
}

/// Adds an entry to a table's statistics, or removes it.
#[doc(alias("ddt_histogram_add_entry", "ddt_histogram_sub_entry"))]
pub(super) fn tally(
    histogram: &mut DdtHistogram,
    (key, phys): (&DdtKey, &[DdtPhys]),
    checksum: ChecksumType,
    dsize: &dyn Fn(&Blkptr) -> u64,
    out: bool,
) {
    let mut all = DdtStat::default();
    for p in phys {
        let bp = p.blkptr(key, checksum);
        add(&mut all, &of_block(&bp, dsize(&bp), p.refcnt));
    }
    let Some(bucket) = all.ref_blocks.checked_ilog2() else { return };
    if let Some(to) = usize::try_from(bucket).ok().and_then(|i| histogram.stat.get_mut(i)) {
        if out { combine(to, &all, u64::wrapping_sub) } else { add(to, &all) }
    }
}

fn add(to: &mut DdtStat, from: &DdtStat) {
    combine(to, from, u64::wrapping_add);
}

fn combine(to: &mut DdtStat, from: &DdtStat, sum: fn(u64, u64) -> u64) {
    *to = DdtStat {
        blocks: sum(to.blocks, from.blocks),
        lsize: sum(to.lsize, from.lsize),
        psize: sum(to.psize, from.psize),
        dsize: sum(to.dsize, from.dsize),
        ref_blocks: sum(to.ref_blocks, from.ref_blocks),
        ref_lsize: sum(to.ref_lsize, from.ref_lsize),
        ref_psize: sum(to.ref_psize, from.ref_psize),
        ref_dsize: sum(to.ref_dsize, from.ref_dsize),
    };
}
