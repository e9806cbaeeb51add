//! Blocks with more than one owner: writes that share a stored block; frees, which end a reference or release space.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ondisk::names::{mos, vdev_top};
use ondisk::{Blkptr, Dva};
use zcommon::features::Feature;

use super::Spa;
use super::activity::{Activity, Due};
use super::pool::Pool;
use super::remapped;
use super::subjects::BlockSharing;
use crate::brt::write::Added;
use crate::ddt::index::IndexProgress;
use crate::ddt::prune::{Ages, BATCH, Place, Prune, candidates};
use crate::ddt::rebuild::Gathered;
use crate::dmu::dirty::within::Within;
use crate::dmu::edit::Objects;
use crate::dmu::{Objset, Tx};
use crate::dsl::write::{Hooks, MosTx};
use crate::error::{Error, Result};
use crate::memory::{Limits, Memory};
use crate::zio::alloc::MetaslabClass;
use crate::zio::dedup::{Claim, ClaimAgain, DedupTables, Want};
use crate::{brt, ddt, zio};

/// The property that limits dedup tables.
pub(super) const QUOTA: &str = "dedup_table_quota";
/// Percent of the vdevs for dedup tables at which these are full.
const FULL: u64 = 85;
/// Bytes that a large one keeps free at most.
const LARGE_REST: u64 = 1 << 33;

/// Flushing the logs of dedup tables continues without other changes.
#[derive(Debug, Default)]
pub(super) struct LogFlush;

impl Activity for LogFlush {
    fn is_due(&self, spa: &Spa) -> Due {
        match spa.shared.ddt.is_flush_forced() {
            true => Due::Now,
            false if spa.shared.has_logged() => Due::Soon,
            false => Due::No,
        }
    }
}

/// The tables of blocks with more than one owner.
#[derive(Debug, Default)]
pub struct Shared {
    ddt: ddt::write::Tables,
    /// The property `dedup_table_quota`: bytes, 0 for none, `u64::MAX` for the capacity of the dedup vdevs.
    quota: AtomicU64,
    /// Bytes of memory that the tables' indices hold.
    indexed: AtomicU64,
    brt: brt::write::CloneTables,
}

impl Shared {
    /// The tables of an existing pool.
    pub(super) fn load(pool: &Pool) -> Result<Self> {
        Self::load_some(pool, true, true)
    }

    /// As [`Shared::load`], but dedup or clone tables that are not wanted are unknown until they are replaced.
    pub(super) fn load_some(pool: &Pool, dedup: bool, clones: bool) -> Result<Self> {
        let unknown = Error::corrupt("the table is made anew");
        let tree = pool.tree();
        let dsize = |bp: &Blkptr| zio::deflated(&tree, bp);
        let words = pool.features.is_active(Feature::BlockCloningEndian.info().guid);
        let props = pool.directory()?.u64(mos::PROPS)?.unwrap_or(0);
        let quota = pool.dsl.zap(props)?.map(|zap| zap.u64(QUOTA)).transpose()?.flatten();
        Ok(Self {
            ddt: match dedup {
                true => ddt::write::Tables::load(&pool.mos, &dsize)?,
                false => ddt::write::Tables::unknown(&unknown),
            },
            quota: AtomicU64::new(quota.unwrap_or(u64::MAX)),
            indexed: AtomicU64::new(0),
            brt: match clones {
                true => brt::write::CloneTables::load(&pool.mos, words)?,
                false => brt::write::CloneTables::unknown(&unknown),
            },
        })
    }

    /// The pool is closed: its indices no longer count.
    pub(super) fn forget_indices(&self, memory: &Memory) {
        memory.dedup_index(self.indexed.swap(0, Ordering::Relaxed), 0);
    }

    /// The property `dedup_table_quota` has a new value.
    pub(super) fn set_quota(&self, quota: u64) {
        self.quota.store(quota, Ordering::Relaxed);
    }

    /// Flushes the logs of the dedup tables up to the records of `txg` (syncing context).
    pub(super) fn force_flush(&self, txg: u64) {
        self.ddt.force_flush(txg);
    }

    /// Whether that is not done yet.
    pub(super) fn is_flush_forced(&self) -> bool {
        self.ddt.is_flush_forced()
    }

    /// Whether entries of dedup tables wait in their logs.
    pub(super) fn has_logged(&self) -> bool {
        self.ddt.has_logged()
    }

    /// The tables that are damaged and change no more: each one's name, and why.
    pub fn damaged(&self) -> Vec<(String, Error)> {
        let dedup =
            self.ddt.damaged().into_iter().map(|(c, why)| (format!("dedup table of {}", c.name()), why));
        let clones =
            self.brt.damaged().into_iter().map(|(vdev, why)| (format!("clone table of vdev {vdev}"), why));
        dedup.chain(clones).collect()
    }

    /// Why no block can be cloned: a clone table that is damaged.
    pub fn refuses_clones(&self) -> Option<Error> {
        self.brt.damaged().into_iter().map(|(_, why)| why).next()
    }

    /// Whether keys of dedup tables are to be read into memory.
    pub(super) fn wants_index(&self) -> bool {
        self.ddt.wants_index()
    }

    /// Reads a small part of the dedup tables' keys into memory.
    pub(super) fn read_index(&self, view: &Arc<Objset>, memory: &Memory) -> IndexProgress {
        self.ddt.read_part(view, &|held| self.index_room(memory, held))
    }

    /// Takes note of the bytes that the indices of dedup tables hold; returns how many they may.
    fn index_room(&self, memory: &Memory, held: u64) -> u64 {
        memory.dedup_index(self.indexed.swap(held, Ordering::Relaxed), held)
    }

    /// The counters of the dedup tables: each checksum's name, and its counters.
    pub fn dedup_counters(&self) -> Vec<(&'static str, Vec<ddt::Counted>)> {
        self.ddt.counters()
    }

    /// The counters of the clone tables.
    pub fn clone_counters(&self) -> [(&'static str, u64); 10] {
        self.brt.counts.all()
    }

    /// Counts of look-ups in dedup tables.
    pub fn lookup_counts(&self) -> &ddt::LookupCounts {
        self.ddt.lookup_counts()
    }

    /// The totals of the dedup tables: see [`ddt::write::Tables::totals`].
    pub(crate) fn dedup_totals(&self) -> (u64, u64) {
        self.ddt.totals()
    }

    /// Bytes that the pool would need more if every block had one owner.
    pub fn saved(&self) -> u64 {
        self.ddt.saved().saturating_add(self.brt.saved())
    }
}

struct TablesAt<'a> {
    spa: &'a Spa,
    within: Within<'a>,
}

impl ddt::host::DdtHost for TablesAt<'_> {
    fn objects(&self) -> &dyn Objects {
        &self.within
    }

    fn view(&self) -> Arc<Objset> {
        self.spa.mos.view()
    }

    fn dsize(&self, bp: &Blkptr) -> u64 {
        zio::deflated(&self.spa.pool.zio.tree(), bp)
    }

    fn salt(&self) -> u64 {
        self.spa.pool.env.guid()
    }

    fn txg(&self) -> (u64, u64) {
        (self.within.tx.txg(), self.spa.pass.load(Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        self.spa.pool.env.now()
    }

    fn index_room(&self, held: u64) -> u64 {
        self.spa.shared.index_room(&self.spa.pool.env.memory, held)
    }

    fn limits(&self) -> &Limits {
        self.spa.limits()
    }

    fn elapsed(&self) -> (Duration, bool) {
        (self.spa.pool.env.clock.monotonic(), self.spa.txgs.wanted())
    }

    fn count_feature(&self, feature: Feature, delta: i64) -> Result<()> {
        self.spa.count_feature(feature, delta, self.within.tx)
    }
}

impl brt::write::BrtHost for TablesAt<'_> {
    fn feature(&self, feature: Feature) -> Option<u64> {
        self.spa.feature(feature)
    }

    fn vdev_bytes(&self, vdev: u64) -> Option<u64> {
        let tree = self.spa.pool.zio.tree();
        let config = tree.config.children.iter().find(|config| config.id == vdev)?;
        let whole = config.asize.checked_shr(config.metaslab_shift)?.checked_shl(config.metaslab_shift)?;
        Some(if whole == 0 { config.asize } else { whole })
    }
}

impl ddt::host::DdtSource for Spa {
    fn view(&self) -> Result<Arc<Objset>> {
        Ok(self.mos.view())
    }

    fn makes_fast(&self) -> bool {
        self.features.is_enabled(Feature::FastDedup)
    }

    fn is_sound(&self, bp: &Blkptr) -> bool {
        let tree = self.pool.zio.tree();
        let within = |dva: Dva| {
            let config = tree.config.children.iter().find(|child| child.id == u64::from(dva.vdev));
            // The size of a gang is that of its pieces, which are elsewhere.
            let size = if dva.gang { 0 } else { dva.asize };
            config.is_some_and(|top| dva.offset.saturating_add(size) <= top.asize)
        };
        bp.physical_birth() <= bp.logical_birth() && bp.dvas().next().is_some() && bp.dvas().all(within)
    }
}

/// The dedup tables for the write path, which does not keep the pool open.
#[derive(Debug)]
pub(super) struct DedupOf(pub Weak<Spa>);

impl DedupTables for DedupOf {
    fn claim(&self, bp: &Blkptr, want: &Want, again: &mut Option<ClaimAgain>) -> Result<Claim> {
        let Some(spa) = self.0.upgrade() else { return Ok(Claim::Refused) };
        let claim = spa.shared.ddt.claim(&*spa, bp, want, again);
        if spa.shared.ddt.wants_service() {
            let theirs = Arc::clone(&spa);
            spa.pool.zio.executor().spawn_waiting(Box::new(move || theirs.shared.ddt.serve(&*theirs)));
        }
        claim
    }

    fn written(&self, bp: &Blkptr, want: &Want, written: Option<&Blkptr>) -> Option<Blkptr> {
        self.0.upgrade()?.shared.ddt.written(bp, want, written)
    }
}

impl BlockSharing<'_> {
    /// A reference to a block ends (syncing context); the last one takes its space back.
    #[doc(alias = "zio_free")]
    pub(crate) fn free_block(self, bp: &Blkptr, tx: &Tx) -> Result<()> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let tables = TablesAt { spa: self.spa, within: self.spa.mos.within(tx) };
        if !bp.dedup() {
            return release(self.spa, &tables, bp, tx);
        }
        // Only its entry knows when a listed block is free.
        self.spa.shared.ddt.free(self.spa, bp)?.iter().try_for_each(|bp| release(self.spa, &tables, bp, tx))
    }

    /// Whether a clone table lists each of `all`: it has more references than one, as of the txg on disk.
    ///
    /// # Errors
    /// The errors of [`Spa::begin`]; errors of reading the table.
    pub fn are_cloned(self, all: &[Blkptr]) -> Result<Vec<bool>> {
        // Nothing is changed under it: objects of the MOS are opened under a transaction.
        let tx = self.spa.begin()?;
        let tables = TablesAt { spa: self.spa, within: self.spa.mos.within(&tx) };
        let refers = |bp: &Blkptr| self.spa.shared.brt.refers(&tables, bp);
        let is_cloned = |bp: &Blkptr| -> Result<bool> {
            let others = other_pointers(self.spa, bp);
            others.iter().try_fold(refers(bp)?, |any, other| Ok(any || refers(other)?))
        };
        all.iter().map(is_cloned).collect()
    }

    /// Whether another reference to each of `all` can be counted when it is written.
    ///
    /// # Errors
    /// When the place of one in its clone table cannot be read.
    pub fn check_clones(self, all: &[Blkptr]) -> Result<()> {
        let is_listed = |bp: &&Blkptr| !bp.is_hole() && !bp.is_embedded() && !bp.dedup();
        self.spa.shared.brt.check(&self.spa.mos.view(), all.iter().filter(is_listed))
    }

    /// Counts the references of the txg's clones, before anything that it frees.
    pub(super) fn count_clones(self, tx: &Tx) -> Result<()> {
        if self.spa.dirty.clones(tx.txg()) == 0 {
            return Ok(());
        }
        self.add_references(self.spa.datasets.cloned(tx.txg()), tx)
    }

    /// Blocks get another reference for each of `cloned` (syncing context).
    #[doc(alias = "brt_pending_apply")]
    pub(super) fn add_references(self, cloned: Vec<Blkptr>, tx: &Tx) -> Result<()> {
        let mut by_place: BTreeMap<(u32, u64), Added> = BTreeMap::new();
        for bp in cloned {
            let Some(dva) = bp.dva(0) else { continue };
            let added = by_place.entry((dva.vdev, dva.offset)).or_insert(Added { bp, count: 0 });
            added.count += 1;
        }
        // References to blocks in a dedup table are counted there: a free could not tell which table counts a
        // reference.
        let mut rest = Vec::new();
        self.spa
            .shared
            .ddt
            .expect(self.spa, by_place.values().map(|added| &added.bp).filter(|bp| bp.dedup()));
        for added in by_place.into_values() {
            if !added.bp.dedup() || !self.spa.shared.ddt.add_references(self.spa, &added.bp, added.count)? {
                rest.push(added);
            }
        }
        let tables = TablesAt { spa: self.spa, within: self.spa.mos.within(tx) };
        self.spa.shared.brt.add(&tables, &rest)
    }

    /// Makes the dedup tables anew (syncing context).
    pub(super) fn replace_dedup(self, entries: Gathered, fast: &BTreeSet<u8>, tx: &Tx) -> Result<()> {
        let tables = TablesAt { spa: self.spa, within: self.spa.mos.within(tx) };
        self.spa.shared.ddt.replace(&tables, entries, fast)
    }

    /// Makes the clone tables anew (syncing context): each block with its additional references.
    pub(super) fn replace_clones(self, clones: Vec<(Blkptr, u64)>, tx: &Tx) -> Result<()> {
        let tables = TablesAt { spa: self.spa, within: self.spa.mos.within(tx) };
        let mut added: Vec<Added> = clones.into_iter().map(|(bp, count)| Added { bp, count }).collect();
        added.sort_by_key(|added| added.bp.dva(0).map(|dva| (dva.vdev, dva.offset)));
        self.spa.shared.brt.replace(&tables, &added)
    }

    /// Whether the dedup tables have all the space that they may take.
    #[doc(alias = "ddt_over_quota")]
    pub fn is_over_quota(self) -> bool {
        let is_full = |class: MetaslabClass| {
            let stats = self.spa.space.class_stats(class);
            let limit = (stats.space / 100 * FULL).max(stats.space.saturating_sub(LARGE_REST));
            (stats.space > 0).then_some(stats.allocated >= limit)
        };
        match self.spa.shared.quota.load(Ordering::Relaxed) {
            0 => false,
            u64::MAX => {
                is_full(MetaslabClass::Dedup).or_else(|| is_full(MetaslabClass::Special)).unwrap_or(false)
            }
            quota => self.spa.shared.ddt.size() > quota,
        }
    }

    /// A place of a removed vdev may be that of a clone, which was made from a snapshot with the old pointer and whose entry in a
    /// clone table is gone when it is the last reference. The place does not become obsolete, so obsolete space is not
    /// counted precisely.
    #[doc(alias = "vdev_obsolete_counts_are_precise")]
    pub(super) fn keep_place(self, vdev: u64, tx: &Tx) -> Result<()> {
        let tree = self.spa.pool.zio.tree();
        let top = tree.config.children.iter().find(|top| top.id == vdev && top.top_zap != 0);
        let Some(zap) = top.map(|top| top.top_zap) else { return Ok(()) };
        let at: MosTx<'_> = self.spa.datasets.at(tx, self.spa);
        match at.zap_word(zap, vdev_top::OBSOLETE_COUNTS_ARE_PRECISE)? {
            Some(_) => {
                at.zap_remove(zap, vdev_top::OBSOLETE_COUNTS_ARE_PRECISE)?;
                at.count(Feature::ObsoleteCounts, -1)
            }
            None => Ok(()),
        }
    }

    /// Takes a block's space back. The pieces of a gang whose header is damaged stay allocated: only the header knows them.
    pub(super) fn free_places(self, bp: &Blkptr, tx: &Tx) -> Result<()> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let (parts, lost) = match bp.is_gang() {
            true => {
                let (parts, lost) = zio::parts_to_free(&self.spa.pool.zio, bp)?;
                (Cow::Owned(parts), lost)
            }
            false => (Cow::Borrowed(std::slice::from_ref(bp)), None),
        };
        if let Some(why) = lost {
            let cause = format!("the space of the pieces of a gang block is lost: {why}");
            self.spa.reports().report_pool("ereport.fs.zfs.data", &cause);
        }
        let allocator = self.spa.pool.zio.allocator()?;
        self.spa.pool.arc.freed(bp);
        self.spa.scans().freed(bp);
        // A clone is younger than its bytes: a checkpoint goes by the physical birth txg.
        for part in parts.iter() {
            // Nothing will refer to a block of this txg: it need not survive a device that was away.
            if part.physical_birth() == tx.txg() {
                self.spa.pool.zio.suspended.forget(part.dvas());
            }
            part.dvas().for_each(|dva| allocator.free_born(&dva, part.physical_birth(), tx.txg()));
        }
        Ok(())
    }

    /// Takes entries with one reference from the dedup tables; their blocks stay.
    ///
    /// # Errors
    /// `Unsupported` where the feature `fast_dedup` is not enabled: entries of older tables have no age. Otherwise those of reads
    /// and sync tasks.
    #[doc(alias("ddt_prune_unique_entries", "zfs_ioc_ddt_prune"))]
    pub fn prune_ddt(self, which: Prune) -> Result<()> {
        if !self.spa.features.is_enabled(Feature::FastDedup) {
            return Err(Error::unsupported("operation not supported on this type of pool"));
        }
        let now = self.spa.pool.env.now();
        let least = match which {
            Prune::Age(seconds) => seconds,
            Prune::Percentage(percentage) => {
                let (mut ages, mut place) = (Ages::default(), Some(Place::default()));
                while let Some(from) = place {
                    let _quiet = self.spa.quiet();
                    place = ages.add(&self.spa.mos.view(), now, from)?;
                }
                ages.least(percentage)
            }
        };
        let mut place = Some(Place::default());
        while let Some(from) = place {
            let (found, next) = {
                let _quiet = self.spa.quiet();
                candidates(&self.spa.mos.view(), (now, least), (from, BATCH))?
            };
            for part in found {
                self.spa.sync_task(move |spa, tx| {
                    let tables = TablesAt { spa, within: spa.mos.within(tx) };
                    spa.shared.ddt.prune(&tables, &part).map(drop)
                })?;
            }
            place = next;
        }
        Ok(())
    }

    /// Bytes of the dedup tables' blocks that are cached.
    #[doc(alias = "ddt_get_pool_dedup_cached")]
    pub fn dedup_cached(self) -> u64 {
        let view = self.spa.mos.view();
        // Damage is told elsewhere.
        let tables = ddt::tables(&view, &mut Vec::new());
        let stores = tables.iter().flat_map(|table| &table.stores);
        let cached =
            stores.filter_map(|store| view.object(store.object).ok()).map(|object| object.cached_bytes());
        cached.fold(0, u64::saturating_add)
    }

    /// Writes changes of the tables, and frees blocks that lost their last reference.
    pub(super) fn sync(self, tx: &Tx) -> Result<()> {
        let tables = TablesAt { spa: self.spa, within: self.spa.mos.within(tx) };
        let unlisted = self.spa.shared.ddt.settle_frees(self.spa)?;
        unlisted.iter().try_for_each(|bp| release(self.spa, &tables, bp, tx))?;
        let freed = self.spa.shared.ddt.sync(&tables)?;
        self.spa.shared.ddt.set_full(self.is_over_quota());
        freed.iter().try_for_each(|bp| release(self.spa, &tables, bp, tx))?;
        self.spa.shared.brt.sync(&tables)
    }
}

fn release(spa: &Spa, tables: &TablesAt<'_>, bp: &Blkptr, tx: &Tx) -> Result<()> {
    if spa.shared.brt.release(tables, bp)? {
        return Ok(());
    }
    for other in other_pointers(spa, bp) {
        if spa.shared.brt.release(tables, &other)? {
            return Ok(());
        }
    }
    spa.sharing().free_places(bp, tx)
}

/// The pointers to a block under its other places, if the pool has clones ([`remapped`]).
fn other_pointers(spa: &Spa, bp: &Blkptr) -> Vec<Blkptr> {
    if !spa.shared.brt.is_used() {
        return Vec::new();
    }
    remapped::other_pointers(&spa.pool.zio.tree(), bp)
}
