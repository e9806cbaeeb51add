//! The pool's allocator: its vdevs by class, their metaslabs, and the space of each class.
//!
//! [`placement`] chooses the place of a block.
//!
//! Locks, in the order of acquisition: the tables of vdevs (read), a metaslab's state, the sets of dirty
//! metaslabs, the problems. None is held during I/O.
//!
//! The same calls in the same order return the same places.
//!
//! Differs from OpenZFS: there is one rotor, not one for each of several allocators; when no piece is found at first,
//! every metaslab is tried before the block is ganged; freed space is always kept for two txgs, also in a full pool.

mod placement;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ondisk::Dva;
use ondisk::space_map::SpaceMapDecoder;
use parking_lot::{Mutex, RwLock};
use stdx::RangeSet;

use super::log;
use super::record::{self, TopRecord};
use super::removed::Removed;
use super::store::SpaceMapSource;
use super::sync::SyncState;
use super::table;
use super::unit::Metaslab;
use super::vdev::{Group, GroupRequest, Vdev};
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::memory::{Limit, Memory};
use crate::txg;
use crate::vdev::config::{AllocBias, VdevConfig};
use crate::vdev::top::Top;
use crate::vdev::tree::Tree;
use crate::zio::alloc::MetaslabClass;

/// Bytes of a gang header.
pub(super) const GANG_HEADER: u64 = 512;
/// Maximum size that a DVA can hold.
const MAX_ASIZE: u64 = ((1 << 24) - 1) << 9;
/// Ranges that all loaded metaslabs together may have before idle ones are forgotten.
const MAX_LOADED_RANGES: u64 = 1 << 20;
/// Tries to load a metaslab that others unload at the same time.
const MAX_LOADS: usize = 4;
/// Txgs that a metaslab stays loaded after its last allocation.
#[doc(alias = "metaslab_unload_delay")]
const UNLOAD_DELAY: u64 = 32;
/// Metaslabs of a group that are kept ready.
#[doc(alias = "metaslab_preload_limit")]
const PRELOAD: usize = 10;

/// Which features of the pool the space maps may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceMapFeatures {
    /// `log_spacemap`: changes go to one log each txg.
    pub(crate) log: bool,
    /// `spacemap_v2`: entries of two words. Needed by `log`.
    pub(crate) two_words: bool,
    /// `spacemap_histogram`.
    pub(crate) histogram: bool,
    /// `obsolete_counts`: frees on removed vdevs are recorded.
    pub(crate) obsolete_counts: bool,
}

impl SpaceMapFeatures {
    /// As of a pool with all features.
    pub const NEW: Self = Self { log: true, two_words: true, histogram: true, obsolete_counts: true };
}

/// Space of a class or of a vdev, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// In metaslabs.
    pub space: u64,
    /// Allocated bytes, including deferred frees.
    #[doc(alias = "mc_alloc")]
    pub allocated: u64,
    /// Freed, but waits.
    pub deferred: u64,
    /// `space` as users count it.
    pub(crate) dspace: u64,
    /// `allocated` as users count it.
    pub(crate) dallocated: u64,
}

impl SpaceStats {
    /// Bytes that can still be allocated or will be in a few txgs.
    pub(crate) fn free(&self) -> u64 {
        self.space.saturating_sub(self.allocated)
    }
}

#[derive(Debug, Default)]
struct Rotor {
    at: usize,
    used: u64,
    turn: u64,
}

#[derive(Debug, Default)]
pub(super) struct VdevTables {
    pub(crate) vdevs: BTreeMap<u64, Arc<Vdev>>,
    /// Groups that are open for allocation, by class.
    classes: BTreeMap<MetaslabClass, Vec<Arc<Group>>>,
}

impl VdevTables {
    /// Bytes of the smallest allocation of the normal class.
    #[doc(alias = "spa_min_alloc")]
    fn least(&self) -> u64 {
        self.of(MetaslabClass::Normal).iter().map(|group| group.top.get().min_alloc()).min().unwrap_or(0)
    }

    fn new(vdevs: BTreeMap<u64, Arc<Vdev>>) -> Self {
        let mut classes: BTreeMap<MetaslabClass, Vec<Arc<Group>>> = BTreeMap::new();
        let open = vdevs.values().filter(|vdev| !vdev.closed.load(Ordering::Relaxed));
        for group in open.flat_map(|vdev| &vdev.groups) {
            classes.entry(group.class).or_default().push(Arc::clone(group));
        }
        Self { vdevs, classes }
    }

    fn of(&self, class: MetaslabClass) -> &[Arc<Group>] {
        self.classes.get(&class).map_or(&[], Vec::as_slice)
    }
}

/// Metaslabs by vdev and number.
pub(super) type MetaslabNames = BTreeSet<(u64, u64)>;

/// The allocator of a pool.
#[derive(Debug)]
pub struct SpaceAllocator {
    pub(super) source: Option<Arc<dyn SpaceMapSource>>,
    pub(super) forms: RwLock<SpaceMapFeatures>,
    pub(super) removed: RwLock<BTreeMap<u64, Arc<Removed>>>,
    tables: RwLock<Arc<VdevTables>>,
    rotors: Mutex<BTreeMap<MetaslabClass, Rotor>>,
    /// Metaslabs that changed, by the txg's last two bits.
    pub(super) dirty: [Mutex<MetaslabNames>; txg::SIZE],
    pub(super) sync: Mutex<SyncState>,
    checkpoint_txg: AtomicU64,
    /// Freed space is noted for [`SpaceAllocator::with_freed`].
    pub(super) trims: AtomicBool,
    /// Freed space is not used again: the pool is frozen.
    pub(super) keeps_freed: AtomicBool,
    pub(super) checkpoint_space: AtomicI64,
    problems: Mutex<Vec<Error>>,
    notes: Mutex<Vec<Error>>,
    gang_above: AtomicU64,
    memory: OnceLock<Arc<Memory>>,
    /// Blocks that could have been forced to become gangs.
    gang_turn: AtomicU64,
    /// How often space became allocatable, or maps were forgotten.
    freed: AtomicU64,
}

impl SpaceAllocator {
    /// An allocator without vdevs. `source` reads the maps of an existing pool.
    pub fn new(forms: SpaceMapFeatures, source: Option<Arc<dyn SpaceMapSource>>) -> Self {
        Self {
            source,
            forms: RwLock::new(forms),
            removed: RwLock::default(),
            tables: RwLock::default(),
            rotors: Mutex::default(),
            dirty: Default::default(),
            sync: Mutex::default(),
            checkpoint_txg: AtomicU64::new(0),
            trims: AtomicBool::new(false),
            keeps_freed: AtomicBool::new(false),
            checkpoint_space: AtomicI64::new(0),
            problems: Mutex::default(),
            notes: Mutex::default(),
            gang_above: AtomicU64::new(u64::MAX),
            memory: OnceLock::new(),
            gang_turn: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        }
    }

    /// The allocator of an existing pool. Reads the heads of all maps, and the logs; the maps when they are needed, from
    /// `source`.
    ///
    /// # Errors
    /// When something can't be read: such a pool can't be written.
    pub fn open(
        mos: &Arc<Objset>,
        tree: &Tree,
        forms: SpaceMapFeatures,
        source: Arc<dyn SpaceMapSource>,
    ) -> Result<Self> {
        let mut all = Self::new(forms, Some(source));
        all.obey(mos.arc().memory());
        all.removed = RwLock::new(Removed::load_all(mos, tree)?);
        for record in TopRecord::load_all(mos, tree)? {
            all.add_top(record)?;
        }
        for log in log::logs(mos)? {
            all.add_log(log.txg, record::map(&log.object)?);
        }
        Ok(all)
    }

    /// Changes the space map features that the maps may use, from the next synced txg on (a feature was
    /// enabled).
    pub(crate) fn set_forms(&self, forms: SpaceMapFeatures) {
        *self.forms.write() = forms;
    }

    /// Blocks born up to this txg belong to the checkpoint: their space is kept. 0: no checkpoint.
    pub(crate) fn set_checkpoint(&self, txg: u64) {
        self.checkpoint_txg.store(txg, Ordering::Relaxed);
    }

    /// Freed space is not used again.
    pub(crate) fn keep_freed(&self) {
        self.keeps_freed.store(true, Ordering::Release);
    }

    /// For tests: blocks of at least so many bytes are refused as if space were fragmented.
    #[doc(alias = "metaslab_force_ganging")]
    pub fn force_ganging(&self, psize: u64) {
        self.gang_above.store(psize, Ordering::Relaxed);
    }

    /// Obeys the settings of `memory` from now on.
    pub(crate) fn obey(&self, memory: &Arc<Memory>) {
        let _ = self.memory.set(Arc::clone(memory));
    }

    /// A vdev of more metaslabs than this keeps one for the intent log.
    #[doc(alias = "zfs_embedded_slog_min_ms")]
    fn log_min(&self) -> usize {
        let set = self.memory.get().map(|memory| memory.limits.get(Limit::EmbeddedLogMin));
        usize::try_from(set.unwrap_or(Limit::EmbeddedLogMin.info().plain)).unwrap_or(usize::MAX)
    }

    /// Percent of the special class that only metadata takes.
    #[doc(alias = "zfs_special_class_metadata_reserve_pct")]
    pub(super) fn metadata_reserve(&self) -> u64 {
        let set = self.memory.get().map(|memory| memory.limits.get(Limit::SpecialReserve));
        set.unwrap_or(Limit::SpecialReserve.info().plain)
    }

    /// Whether the settings force a block to become a gang.
    #[doc(alias = "metaslab_force_ganging_pct")]
    pub(super) fn is_forced(&self, psize: u64) -> bool {
        let Some(limits) = self.memory.get().map(|memory| &memory.limits) else { return false };
        if psize < limits.get(Limit::ForceGanging) {
            return false;
        }
        // Spread evenly: 37 and 100 have no common divisor.
        let turn = self.gang_turn.fetch_add(37, Ordering::Relaxed);
        turn % 100 < limits.get(Limit::ForceGangingPercent)
    }

    /// Adds a top-level vdev: a new one, or one of a pool that is being imported.
    ///
    /// # Errors
    /// When the record makes no sense.
    pub fn add_top(&self, record: TopRecord) -> Result<()> {
        let vdev = Arc::new(record.into_vdev(self.log_min())?);
        for metaslab in &vdev.metaslabs {
            let state = metaslab.lock();
            if state.unflushed_txg != 0 {
                let mut sync = self.sync.lock();
                sync.unflushed.insert((state.unflushed_txg, metaslab.vdev, metaslab.id));
            }
        }
        let held = vdev.checkpoint.lock().head.alloc.saturating_neg();
        self.checkpoint_space.fetch_add(held, Ordering::Relaxed);
        let mut tables = self.tables.write();
        let mut vdevs = tables.vdevs.clone();
        vdevs.insert(vdev.id, vdev);
        *tables = Arc::new(VdevTables::new(vdevs));
        Ok(())
    }

    /// Adds metaslabs to a vdev up to the size in its configuration (syncing context).
    ///
    /// # Errors
    /// When that many metaslabs are too many; nothing has changed then.
    #[doc(alias = "vdev_expand")]
    pub(crate) fn grow_top(&self, config: &VdevConfig) -> Result<()> {
        let count = record::metaslabs(config)?;
        let mut tables = self.tables.write();
        let Some(old) = tables.vdevs.get(&config.id) else { return Ok(()) };
        let new = old.grown(table::row(config), count, self.log_min());
        let mut vdevs = tables.vdevs.clone();
        vdevs.insert(config.id, Arc::new(new));
        *tables = Arc::new(VdevTables::new(vdevs));
        Ok(())
    }

    /// Allocation class of a vdev; `None` for one without metaslabs.
    pub(crate) fn bias(&self, vdev: u64) -> Option<AllocBias> {
        Some(match self.vdev(vdev)?.groups.first()?.class {
            MetaslabClass::Normal | MetaslabClass::EmbeddedLog => AllocBias::Normal,
            MetaslabClass::Log => AllocBias::Log,
            MetaslabClass::Special => AllocBias::Special,
            MetaslabClass::Dedup => AllocBias::Dedup,
        })
    }

    /// Whether the class has a vdev on which something is allocated.
    #[doc(alias = "mc_groups")]
    pub(crate) fn is_open(&self, class: MetaslabClass) -> bool {
        !self.tables().of(class).is_empty()
    }

    /// A vdev has become another object (a disk is a mirror now): it keeps its metaslabs. A vdev without
    /// metaslabs is skipped.
    pub(crate) fn set_top(&self, top: &Arc<Top>) {
        if let Some(vdev) = self.vdev(top.id) {
            vdev.top.set(Arc::clone(top));
        }
    }

    /// Stops (or resumes) allocating on a vdev: it is offline, or being removed.
    pub(crate) fn set_closed(&self, vdev: u64, closed: bool) {
        if let Some(vdev) = self.vdev(vdev) {
            vdev.closed.store(closed, Ordering::Relaxed);
        }
        let mut tables = self.tables.write();
        *tables = Arc::new(VdevTables::new(tables.vdevs.clone()));
    }

    pub(super) fn all_vdevs(&self) -> Vec<Arc<Vdev>> {
        self.tables.read().vdevs.values().map(Arc::clone).collect()
    }

    pub(super) fn drop_vdev(&self, id: u64) {
        let mut tables = self.tables.write();
        let mut vdevs = tables.vdevs.clone();
        vdevs.remove(&id);
        *tables = Arc::new(VdevTables::new(vdevs));
    }

    pub(super) fn vdev(&self, id: u64) -> Option<Arc<Vdev>> {
        self.tables.read().vdevs.get(&id).cloned()
    }

    pub(super) fn metaslab(&self, vdev: u64, id: u64) -> Option<Arc<Metaslab>> {
        self.vdev(vdev)?.metaslabs.get(usize::try_from(id).ok()?).cloned()
    }

    fn tables(&self) -> Arc<VdevTables> {
        Arc::clone(&self.tables.read())
    }

    /// Space of a class.
    pub fn class_stats(&self, class: MetaslabClass) -> SpaceStats {
        let tables = self.tables();
        let groups =
            tables.vdevs.values().flat_map(|vdev| vdev.groups.iter().map(move |group| (vdev, group)));
        let groups = groups.filter(|(_, group)| group.class == class);
        groups.map(|(vdev, group)| group_stats(vdev, group)).fold(SpaceStats::default(), add)
    }

    /// Deflated bytes of ordinary vdevs on which nothing is allocated.
    #[doc(alias = "spa_nonallocating_dspace")]
    pub(crate) fn closed_dspace(&self) -> u64 {
        let tables = self.tables();
        let closed = tables.vdevs.values().filter(|vdev| vdev.closed.load(Ordering::Relaxed));
        let groups = closed.flat_map(|vdev| vdev.groups.iter().map(move |group| (vdev, group)));
        let groups = groups.filter(|(_, group)| group.class == MetaslabClass::Normal);
        groups.map(|(vdev, group)| group_stats(vdev, group).dspace).fold(0, u64::saturating_add)
    }

    /// Space of a vdev, all its groups.
    pub fn vdev_stats(&self, vdev: u64) -> Option<SpaceStats> {
        let vdev = self.vdev(vdev)?;
        Some(vdev.groups.iter().map(|group| group_stats(&vdev, group)).fold(SpaceStats::default(), add))
    }

    /// Bytes by which each open top-level vdev exceeds its share of its class: moving them makes all equally full. Log vdevs do
    /// not count.
    pub(crate) fn surplus(&self) -> BTreeMap<u64, u64> {
        let tables = self.tables();
        let classes = [MetaslabClass::Normal, MetaslabClass::Special, MetaslabClass::Dedup]
            .map(|class| tables.of(class));
        let mut surplus = BTreeMap::new();
        for groups in classes {
            let sum = |of: fn(&Group) -> u64| groups.iter().map(|group| u128::from(of(group))).sum::<u128>();
            let (used, space) = (sum(Group::used), sum(|group| group.space));
            for group in groups {
                let share = used * u128::from(group.space) / space.max(1);
                let more = u128::from(group.used()).saturating_sub(share);
                // An hundredth of a vdev is no unevenness.
                if more > u128::from(group.space / 100) {
                    surplus.insert(group.vdev, u64::try_from(more).unwrap_or(u64::MAX));
                }
            }
        }
        surplus
    }

    /// Bytes that a block of `psize` bytes takes on a vdev if it is written in txg `txg`; `None` for a vdev without metaslabs.
    pub fn asize_on(&self, vdev: u64, psize: u64, txg: u64) -> Option<u64> {
        Some(self.vdev(vdev)?.top.get().asize_of(psize, txg))
    }

    /// Bytes that blocks of these sizes take on the vdev where they take most, for one copy. Log vdevs do not count.
    #[doc(alias("spa_get_worst_case_asize", "vdev_get_min_asize"))]
    pub(crate) fn worst_asizes<const N: usize>(&self, sizes: [u64; N], txg: u64) -> [u64; N] {
        let (tables, mut worst) = (self.tables(), [0; N]);
        for (class, groups) in &tables.classes {
            if matches!(class, MetaslabClass::Log | MetaslabClass::EmbeddedLog) {
                continue;
            }
            for group in groups {
                let top = group.top.get();
                for (worst, size) in worst.iter_mut().zip(sizes) {
                    *worst = top.asize_of(size, txg).max(*worst);
                }
            }
        }
        worst
    }

    /// Bytes of ordinary vdevs that were freed and can't be used yet, as users count them.
    pub(crate) fn deferred(&self) -> u64 {
        let stats = self.class_stats(MetaslabClass::Normal);
        let share = u128::from(stats.dspace) * u128::from(stats.deferred) / u128::from(stats.space.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Bytes that only the checkpoint keeps.
    pub fn checkpoint_space(&self) -> u64 {
        u64::try_from(self.checkpoint_space.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Maps that can't be read. Nothing is allocated from their metaslabs.
    pub fn take_notes(&self) -> Vec<Error> {
        std::mem::take(&mut self.notes.lock())
    }

    /// Returns errors that their callers could not return: space freed twice, or outside of any vdev.
    /// [`Self::sync`] fails with the first.
    pub fn take_problems(&self) -> Vec<Error> {
        std::mem::take(&mut self.problems.lock())
    }

    fn problem(&self, error: Error) {
        self.problems.lock().push(error);
    }

    pub(super) fn mark_dirty(&self, metaslab: &Metaslab, txg: u64) {
        self.dirty_slot(txg).lock().insert((metaslab.vdev, metaslab.id));
    }

    pub(super) fn dirty_slot(&self, txg: u64) -> &Mutex<MetaslabNames> {
        txg::of(&self.dirty, txg)
    }

    /// The metaslab and bytes that a DVA names. A gang header has the size of one, whatever its members take.
    fn place(&self, dva: &Dva) -> Result<(Arc<Metaslab>, u64, u64)> {
        let vdev = self.vdev(u64::from(dva.vdev));
        let found = vdev.and_then(|vdev| {
            let asize = if dva.gang { vdev.top.get().asize_of(GANG_HEADER, 0) } else { dva.asize };
            let end = dva.offset.checked_add(asize).filter(|_| asize > 0)?;
            let metaslab = vdev.metaslab(dva.offset, end)?;
            let unit = (1 << metaslab.ashift) - 1;
            (dva.offset & unit == 0 && end & unit == 0).then(|| (Arc::clone(metaslab), dva.offset, end))
        });
        found.ok_or_else(|| Error::corrupt(format!("no metaslab holds {dva:?}")))
    }

    /// Makes a metaslab ready to allocate from. Waits for reads.
    pub(super) fn load(&self, metaslab: &Metaslab) {
        for _ in 0..MAX_LOADS {
            let Some(start) = metaslab.start_load() else { return };
            let read = self.read_map(metaslab, start.object, start.length);
            metaslab.end_load(&start, read.as_ref().map_err(Clone::clone));
            if metaslab.is_loaded() {
                return;
            }
            // A map that was unloaded meanwhile may have been written anew: that is no failure.
            if let Err(e) = read
                && metaslab.is_as_at(&start)
            {
                metaslab.unreadable.store(true, Ordering::Relaxed);
                self.notes.lock().push(e);
                return;
            }
        }
    }

    pub(super) fn read_map(&self, metaslab: &Metaslab, object: u64, length: u64) -> Result<RangeSet> {
        let mut allocated = RangeSet::new();
        if object == 0 || length == 0 {
            return Ok(allocated);
        }
        let source = self.source.as_ref().ok_or_else(|| Error::unsupported("nothing reads space maps"))?;
        let mut decoder = SpaceMapDecoder::new(metaslab.ashift, metaslab.start, metaslab.size);
        source.read(object, length, &mut |block| {
            for entry in decoder.entries(block) {
                let entry = entry.map_err(|e| Error::corrupt(format!("space map {object}: {e}")))?;
                let end = entry.offset.saturating_add(entry.run);
                let changed = match entry.free {
                    true => allocated.remove(entry.offset, end),
                    false => allocated.insert(entry.offset, end),
                };
                if changed != entry.run {
                    // Allocation by such a map may overwrite blocks in use.
                    return Err(Error::corrupt(format!("space map {object} contradicts itself")));
                }
            }
            Ok(())
        })?;
        Ok(allocated)
    }

    /// Loads the best metaslabs of every group, and forgets idle ones when too much is loaded. For the sync thread,
    /// after a txg ([`Self::sync_done`] does it), and before the first allocation of an imported pool: so that few
    /// allocations have to wait.
    #[doc(alias = "metaslab_group_preload")]
    pub(crate) fn preload(&self, txg: u64) {
        let tables = self.tables();
        let groups: Vec<&Arc<Group>> = tables.vdevs.values().flat_map(|vdev| &vdev.groups).collect();
        let all = self.memory.get().is_some_and(|memory| memory.limits.is_on(Limit::LoadMetaslabs));
        for group in &groups {
            let mut best: Vec<_> =
                group.metaslabs.iter().filter(|metaslab| all || metaslab.may_hold(1, false)).collect();
            best.sort_by_key(|metaslab| (std::cmp::Reverse(metaslab.weight()), metaslab.id));
            let most = if all { usize::MAX } else { PRELOAD };
            for metaslab in best.into_iter().take(most).filter(|metaslab| !metaslab.is_loaded()) {
                self.load(metaslab);
            }
        }
        if all {
            return;
        }
        let metaslabs = || groups.iter().flat_map(|group| group.metaslabs.iter());
        let ranges =
            |metaslab: &Arc<Metaslab>| metaslab.lock().free.as_ref().map_or(0, stdx::SizedRanges::len);
        let mut loaded =
            metaslabs().map(|metaslab| u64::try_from(ranges(metaslab)).unwrap_or(0)).sum::<u64>();
        for metaslab in metaslabs() {
            if loaded <= MAX_LOADED_RANGES {
                return;
            }
            let many = u64::try_from(ranges(metaslab)).unwrap_or(0);
            let idle = metaslab.lock().used_txg + UNLOAD_DELAY < txg;
            if idle && metaslab.unload() {
                loaded -= many;
                self.note_freed();
            }
        }
    }

    /// An allocation that failed before may succeed now.
    pub(super) fn note_freed(&self) {
        self.freed.fetch_add(1, Ordering::AcqRel);
    }

    /// All that may be allocated on a vdev now. Loads every metaslab.
    pub fn allocatable(&self, vdev: u64) -> RangeSet {
        let mut all = RangeSet::new();
        for metaslab in self.vdev(vdev).iter().flat_map(|vdev| &vdev.metaslabs) {
            self.load(metaslab);
            for (start, end) in metaslab.lock().free.iter().flat_map(stdx::SizedRanges::iter) {
                all.insert(start, end);
            }
        }
        all
    }
}

fn group_stats(vdev: &Vdev, group: &Group) -> SpaceStats {
    let get = |n: &AtomicI64| u64::try_from(n.load(Ordering::Relaxed)).unwrap_or(0);
    let deflated = |bytes: u64| (bytes >> ondisk::MIN_BLOCK_SHIFT).saturating_mul(vdev.deflate_ratio);
    let allocated = get(&group.allocated);
    SpaceStats {
        space: group.space,
        allocated,
        deferred: get(&group.deferred),
        dspace: deflated(group.space),
        dallocated: deflated(allocated),
    }
}

fn add(a: SpaceStats, b: SpaceStats) -> SpaceStats {
    SpaceStats {
        space: a.space.saturating_add(b.space),
        allocated: a.allocated.saturating_add(b.allocated),
        deferred: a.deferred.saturating_add(b.deferred),
        dspace: a.dspace.saturating_add(b.dspace),
        dallocated: a.dallocated.saturating_add(b.dallocated),
    }
}
