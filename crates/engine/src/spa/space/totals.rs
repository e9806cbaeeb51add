//! Totals of a pool.

use ondisk::bpobj::Bpobj;
use ondisk::names::mos;
use ondisk::pool::BrtVdev;

use super::{Detail, VdevSpace, fragmentation, slop, vdevs};
use crate::ddt;
use crate::error::{Error, Result};
use crate::spa::Pool;
use crate::vdev::config::AllocBias;
use crate::zio::deflated;

/// Space of a pool.
#[derive(Debug, Clone)]
pub struct PoolSpace {
    /// Its top-level vdevs, in order.
    pub vdevs: Vec<VdevSpace>,
    /// Dedup tables' totals.
    pub(crate) dedup: DedupTotals,
    /// Bytes of blocks that are cloned.
    pub(crate) cloned: u64,
    /// Bytes that cloning saves.
    pub(crate) clones_saved: u64,
    /// Bytes that wait to be freed in the next txg.
    pub(crate) deferred: u64,
}

/// Space saved by dedup, in deflated bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DedupTotals {
    /// Bytes allocated for deduplicated blocks.
    pub(crate) dsize: u64,
    /// Bytes that they would take without dedup.
    pub(crate) ref_dsize: u64,
}

impl PoolSpace {
    /// Adds everything up. Unreadable parts are skipped and reported in `notes`.
    pub fn of(pool: &Pool, notes: &mut Vec<Error>) -> Self {
        Self::of_imported(pool, None, notes)
    }

    /// As [`Self::of`]; `dedup`: the totals that the process of an imported pool keeps, `None` reads them.
    pub fn of_imported(pool: &Pool, dedup: Option<DedupTotals>, notes: &mut Vec<Error>) -> Self {
        let dedup = dedup.unwrap_or_else(|| stored_dedup(pool, notes));
        Self::with_detail(pool, Detail::Allocation, dedup, notes)
    }

    /// Bytes that datasets may use in all, without reading the allocated bytes.
    /// `dedup`: the totals that the process of an imported pool keeps; `None` reads them.
    pub fn usable_of(pool: &Pool, dedup: Option<DedupTotals>, notes: &mut Vec<Error>) -> u64 {
        let dedup = dedup.unwrap_or_else(|| stored_dedup(pool, notes));
        Self::with_detail(pool, Detail::Sizes, dedup, notes).usable()
    }

    fn with_detail(pool: &Pool, detail: Detail, dedup: DedupTotals, notes: &mut Vec<Error>) -> Self {
        let mut or_note = |result: Result<(u64, u64)>| {
            result.unwrap_or_else(|e| {
                notes.push(e);
                (0, 0)
            })
        };
        let (cloned, clones_saved) = or_note(clones(pool));
        let (deferred, _) = or_note(deferred(pool).map(|bytes| (bytes, 0)));
        let vdevs = vdevs(pool, detail, notes);
        Self { vdevs, dedup, cloned, clones_saved, deferred }
    }

    fn data_vdevs(&self) -> impl Iterator<Item = &VdevSpace> {
        self.vdevs.iter().filter(|v| v.bias != AllocBias::Log)
    }

    fn normal(&self) -> impl Iterator<Item = &VdevSpace> {
        self.vdevs.iter().filter(|v| v.bias == AllocBias::Normal)
    }

    /// The `size` property: bytes of all vdevs that keep data.
    pub fn size(&self) -> u64 {
        self.data_vdevs().map(VdevSpace::size).fold(0, u64::saturating_add)
    }

    /// The `allocated` property.
    pub fn allocated(&self) -> u64 {
        self.data_vdevs().map(VdevSpace::allocated).fold(0, u64::saturating_add)
    }

    /// The `fragmentation` property in percent; `None` where maps are too old for it.
    pub fn fragmentation(&self) -> Option<u64> {
        fragmentation::of_class(self.normal())
    }

    /// The `checkpoint` property: bytes that only the checkpoint uses.
    pub fn checkpoint(&self) -> u64 {
        self.vdevs.iter().map(|v| v.checkpoint).fold(0, u64::saturating_add)
    }

    /// Deflated bytes of the normal class, without those reserved for the intent log.
    fn real_dspace(&self) -> u64 {
        let of = |v: &VdevSpace| v.deflated(v.size().saturating_sub(v.embedded_log()));
        self.normal().filter(|v| !v.closed).map(of).fold(0, u64::saturating_add)
    }

    /// Deflated bytes reserved for the intent log, also on vdevs on which nothing is allocated.
    fn embedded_log_dspace(&self) -> u64 {
        self.normal().map(|v| v.deflated(v.embedded_log())).fold(0, u64::saturating_add)
    }

    /// Deflated bytes that the vdevs hold, plus those that dedup and cloning save.
    #[doc(alias = "spa_get_dspace")]
    pub(crate) fn dspace(&self) -> u64 {
        let saved = self.dedup.ref_dsize.saturating_sub(self.dedup.dsize);
        self.real_dspace().saturating_add(saved).saturating_add(self.clones_saved)
    }

    /// The slop space.
    #[doc(alias = "spa_get_slop_space")]
    pub fn slop(&self) -> u64 {
        slop::slop(self.real_dspace(), self.embedded_log_dspace())
    }

    /// Bytes that datasets may use in all.
    #[doc(alias = "dsl_pool_adjustedsize")]
    pub fn usable(&self) -> u64 {
        let space = self.dspace().saturating_sub(self.checkpoint()).saturating_sub(self.deferred);
        space.saturating_sub(self.slop())
    }
}

/// Totals of all dedup tables as they are on disk, their logs included.
#[doc(alias = "ddt_get_dedup_stats")]
fn stored_dedup(pool: &Pool, notes: &mut Vec<Error>) -> DedupTotals {
    let (tables, tree) = (ddt::tables(&pool.mos, notes), pool.tree());
    let all = ddt::Totals::of(&tables, &|bp| deflated(&tree, bp)).all();
    DedupTotals { dsize: all.dsize, ref_dsize: all.ref_dsize }
}

/// Bytes cloned, and bytes saved by that.
#[doc(alias = "brt_get_used")]
fn clones(pool: &Pool) -> Result<(u64, u64)> {
    let directory = pool.directory()?;
    let mut totals = (0_u64, 0_u64);
    for config in &pool.tree().config.children {
        let name = format!("{}{}", mos::BRT_VDEV_PREFIX, config.id);
        let Some(number) = directory.u64(&name)? else { continue };
        let object = pool.mos.object(number)?;
        let table = BrtVdev::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
        totals.0 = totals.0.wrapping_add(table.usedspace);
        totals.1 = totals.1.wrapping_add(table.savedspace);
    }
    Ok(totals)
}

fn deferred(pool: &Pool) -> Result<u64> {
    let Some(number) = pool.directory()?.u64(mos::SYNC_BPOBJ)? else { return Ok(0) };
    let object = pool.mos.object(number)?;
    Ok(Bpobj::from_bonus(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?.phys.bytes)
}
