//! The storage pool: from labels to an open pool.
//!
//! Trust grows in steps, each a type that the next consumes:
//!
//! 1. [`ImportSource`]: the labels' content, and the devices found by guid. Only each label's own checksum
//!    has been verified.
//! 2. an uberblock candidate: the newest whose root block can be read ([`load`]).
//! 3. the trusted config: the one stored in the MOS, which replaces the labels' tree.
//! 4. [`Pool`]: features checked, removed vdevs' mappings and the leaves' DTLs loaded.
//!
//! When the newest uberblock can't be opened, older ones may be tried; the attempts and their cost are kept
//! in [`Pool::rewind`].
//!
//! [`Spa`] is a pool that is open for writing. Commands and mounts change objects in transactions
//! ([`Spa::begin`]); sync tasks ([`Spa::sync_task`]) change the MOS in syncing context. The sync thread (without
//! threads: the caller that waits) quiesces and writes txgs: see [`sync`].
//!
//! Lock order: changing → tasks → config → (leaf locks of dmu and metaslab). No lock here is held while waiting.

mod accounts;
mod activity;
mod admin;
pub mod attach;
mod autotrim;
mod balance;
mod cache;
pub mod checkpoint;
pub(crate) mod config;
pub mod copy_pass;
pub mod create;
mod detach;
pub mod devices;
mod dtl;
mod emptying;
pub mod errlog;
mod errlog_lists;
pub mod events;
mod expansion;
mod faults;
pub(crate) mod feature_set;
pub mod features;
pub(crate) mod freed_lists;
mod freeing;
mod freeze;
pub mod growth;
mod health;
pub mod history;
pub mod history_log;
mod hooks;
pub(crate) mod import;
mod indexing;
mod injecting;
mod keys;
pub mod layout;
mod load;
mod load_verify;
pub(crate) mod mapping;
mod multihost;
mod overtaken;
mod pacing;
mod pool;
pub mod props;
pub mod rebuild;
pub mod reconstruct;
mod remapped;
mod remote;
pub(crate) mod removal;
mod resume;
pub mod scrub;
mod set_props;
pub(crate) mod shared;
mod sitting;
mod source;
pub mod space;
mod space_store;
mod spares;
pub mod sparing;
pub mod split;
mod subjects;
pub mod suspension;
pub mod sweep;
mod sync;
mod sync_task;
mod tree_age;
mod txg_history;
mod txg_times;
mod upgrade;
mod vdev_change;
pub mod vdev_props;
mod vdev_zaps;
mod wait_activity;
mod writable;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nvpair::NvList;
use ondisk::{Blkptr, Uberblock};
use parking_lot::{ArcRwLockReadGuard, Mutex, RwLock};

use self::activity::{Activities, Due};
use self::checkpoint::Discarding;
use self::config::PoolConfig;
use self::events::Events;
use self::faults::Lost;
use self::feature_set::FeatureSet;
use self::freeing::Freeing;
use self::growth::Growth;
use self::health::Diagnosis;
use self::multihost::Multihost;
use self::removal::Removing;
use self::shared::Shared;
use self::suspension::Telling;
use self::sync_task::WaitingTasks;
use crate::dmu::dirty::sync::BlockOps;
use crate::dmu::tx::{DirtyData, FREED_BLOCK, Reserved, Unsynced};
use crate::dmu::{LiveObjset, Tx};
use crate::dsl::write::DslPool;
use crate::error::{Error, Result};
use crate::memory::{Limit, Limits};
use crate::metaslab::{DEFER, SpaceAllocator};
use crate::txg::Txgs;
use crate::vdev::leaf::Leaf;
use crate::zio::{self, suspend::be_patient};

pub use activity::{Activity, ActivityStep, Pace};
pub use create::{FillRoot, NewPool, create, create_encrypted};
pub use import::{ImportOptions, check_logs, import, import_read_only, import_rebuilt, missing_logs};
pub use load::{open, packed_nvlist};
pub use overtaken::overtaken;
pub use pool::{Pool, PoolBase, Rewind};
pub use remote::has_heartbeats;
pub use source::{FoundUberblock, ImportSource, Newest, OpenOptions, OpenPurpose, Reach};
pub use subjects::{
    Background, BlockSharing, Caches, Checkpointing, Disks, ErrorLog, FreeSpace, Injections, IntentLogs,
    MultihostClaim, PoolDatasets, PoolProps, RaidzExpansion, Rebuilds, Removal, Reports, Scans, SpaceFacts,
    Spares, Suspending, VdevTree,
};
pub use upgrade::is_version;
pub use wait_activity::{ActivityCommand, WaitActivity};

/// Longest delay.
const DELAY_MAX: Duration = Duration::from_millis(100);
/// Pause of a writer whose memory other transactions may still use.
const HELD_PAUSE: Duration = Duration::from_millis(1);

/// Stack of the sync thread. `zpool split` writes txgs of another pool on it.
const STACK: usize = 8 << 20;

/// How often is asked whether a heartbeat is due.
const BEAT_TICK: Duration = Duration::from_millis(100);

/// Interval at which a caller waiting for [`Quiet`] checks whether the pool is suspended.
const LOOK: Duration = Duration::from_millis(50);

/// A pool that is being written.
#[derive(Debug)]
pub struct Spa {
    /// The pool as readers see it.
    pub pool: Arc<PoolBase>,
    /// The meta object set.
    pub mos: Arc<LiveObjset>,
    /// Its txgs.
    pub txgs: Arc<Txgs>,
    /// Changed bytes.
    pub dirty: Arc<DirtyData>,
    /// Datasets that are open for writing.
    pub datasets: Arc<DslPool>,
    /// Allocates and frees space.
    pub space: Arc<SpaceAllocator>,
    /// Features in use.
    pub features: FeatureSet,
    /// Blocks with more than one owner.
    pub shared: Shared,
    /// Bytes that leave vdevs in txgs that are not on disk yet.
    pub(super) leaving: Mutex<BTreeMap<u64, Unsynced<u64>>>,
    /// Leaves that are no longer in the pool once the txg is on disk, and their labels then.
    retired: Mutex<Vec<(Arc<Leaf>, NvList)>>,
    /// Configuration.
    pub config: Mutex<PoolConfig>,
    me: Weak<Spa>,
    uberblock: Mutex<Uberblock>,
    tasks: WaitingTasks,
    /// Tasks that come before anything else of their txg.
    early_tasks: WaitingTasks,
    mos_delta: Mutex<[i64; 3]>,
    /// Pass of the syncing txg.
    pass: AtomicU64,
    multihost: Multihost,
    events: Arc<Events>,
    lost: Arc<Lost>,
    diagnosis: Diagnosis,
    sitting: self::sitting::Sitting,
    telling: Telling,
    scanning: Arc<self::scrub::Scanning>,
    times: Arc<self::txg_times::TxgTimes>,
    sparing: Arc<self::sparing::Sparing>,
    freeing: Arc<Freeing>,
    growth: Arc<Growth>,
    discarding: Arc<Discarding>,
    removing: Arc<Removing>,
    expanding: Arc<self::expansion::Expanding>,
    reconstruction: Arc<self::reconstruct::Reconstruction>,
    pacing: self::pacing::JobPacing,
    sweeps: Arc<self::sweep::Sweeps>,
    autotrim: Arc<self::autotrim::Autotrim>,
    feeding: Arc<self::cache::Feeding>,
    indexing: Arc<self::indexing::Indexing>,
    activities: Activities,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Whether the sync thread runs: it asks for this itself, while [`Spa::stop_thread`] waits for its end.
    threaded: AtomicBool,
    stop: AtomicBool,
    /// A txg was left half written: nothing can be written any more.
    broken: AtomicBool,
    /// The first failure after which the syncing txg must not be committed, of a task or of [`Spa::write_early`].
    early_failure: Mutex<Option<Error>>,
    txg_history: txg_history::TxgHistory,
    /// The last txg on disk of a frozen pool; 0: it is not frozen.
    frozen: AtomicU64,
    /// The pool's present guid; that of `pool` is the one that it was opened with.
    guid: AtomicU64,
    /// Held for change while a txg changes the datasets' state in the MOS.
    changing: Arc<RwLock<()>>,
}

/// While it is held, the datasets' state in the MOS does not change, and nothing that it refers to is
/// overwritten. Txgs wait for its end: hold it only for a look-up, and never while waiting for a txg.
#[derive(Debug)]
pub struct Quiet {
    _held: Option<ArcRwLockReadGuard<parking_lot::RawRwLock, ()>>,
}

impl Spa {
    fn new(
        (pool, guid): (Arc<PoolBase>, u64),
        mos: Arc<LiveObjset>,
        space: Arc<SpaceAllocator>,
        (txgs, dirty): (Arc<Txgs>, Arc<DirtyData>),
        (features, config, shared): (FeatureSet, Mutex<PoolConfig>, Shared),
        uberblock: Uberblock,
    ) -> Arc<Self> {
        pool.dsl.keys.set_secrets(&pool.env.secrets);
        // Blocks on disk can be repaired from the first read on.
        pool.zio.set_synced(uberblock.txg);
        let (freeing, growth) = (Arc::<Freeing>::default(), Arc::<Growth>::default());
        let discarding = Arc::<Discarding>::default();
        let sweeps = Arc::<self::sweep::Sweeps>::default();
        let (lost, scanning) = (Arc::<Lost>::default(), Arc::<self::scrub::Scanning>::default());
        let times = Arc::<self::txg_times::TxgTimes>::default();
        let removing = Arc::<Removing>::default();
        let expanding = Arc::<self::expansion::Expanding>::default();
        let reconstruction = Arc::<self::reconstruct::Reconstruction>::default();
        let sparing = Arc::<self::sparing::Sparing>::default();
        let activities = Activities::new(vec![
            Arc::<self::detach::Pairs>::default() as _,
            Arc::clone(&sparing) as _,
            Arc::clone(&freeing) as _,
            Arc::clone(&growth) as _,
            Arc::clone(&lost) as _,
            Arc::clone(&discarding) as _,
            Arc::clone(&sweeps) as _,
            Arc::clone(&reconstruction) as _,
            Arc::clone(&scanning) as _,
            Arc::clone(&removing) as _,
            Arc::clone(&expanding) as _,
            Arc::new(shared::LogFlush),
            Arc::clone(&times) as _,
        ]);
        space.obey(&pool.env.memory);
        let spa = Arc::new_cyclic(|me| Self {
            guid: AtomicU64::new(guid),
            datasets: DslPool::new(&mos, &pool.dsl.keys),
            pool,
            mos,
            txgs,
            dirty,
            space,
            features,
            shared,
            leaving: Mutex::default(),
            retired: Mutex::default(),
            config,
            me: Weak::clone(me),
            uberblock: Mutex::new(uberblock),
            tasks: WaitingTasks::default(),
            early_tasks: WaitingTasks::default(),
            mos_delta: Mutex::default(),
            pass: AtomicU64::new(0),
            multihost: Multihost::default(),
            events: Arc::default(),
            lost,
            diagnosis: Diagnosis::default(),
            sitting: self::sitting::Sitting::default(),
            telling: Telling::default(),
            scanning,
            times,
            sparing,
            freeing,
            growth,
            discarding,
            removing,
            expanding,
            reconstruction,
            pacing: self::pacing::JobPacing::default(),
            sweeps,
            autotrim: Arc::default(),
            feeding: Arc::default(),
            indexing: Arc::new(self::indexing::Indexing::new(Weak::clone(me))),
            activities,
            thread: Mutex::default(),
            threaded: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            early_failure: Mutex::default(),
            txg_history: txg_history::TxgHistory::default(),
            frozen: AtomicU64::new(0),
            changing: Arc::default(),
        });
        spa.connect();
        spa
    }

    /// Makes the parts below know this pool.
    fn connect(self: &Arc<Self>) {
        // Each import has a Dsl of its own, so the cell is still empty.
        let _ = self.pool.dsl.writer.set(Arc::downgrade(&self.datasets));
        self.pool.zio.set_dedup(Arc::new(shared::DedupOf(Arc::downgrade(self))));
        self.watch();
        self.error_log().report_damaged_tables();
    }

    /// Keeps datasets as they are until it is dropped.
    #[doc(alias = "dsl_pool_config_enter")]
    pub fn quiet(&self) -> Quiet {
        // A suspended pool may stand still in the middle of a txg: nothing changes, and a reader must not
        // wait.
        loop {
            let held = self.changing.try_read_arc_for(LOOK);
            if held.is_some() || self.is_suspended() {
                return Quiet { _held: held };
            }
        }
    }

    fn limits(&self) -> &Limits {
        &self.pool.env.memory.limits
    }

    /// Begins a transaction in the open txg. Waits while there is too much dirty data.
    pub fn begin(&self) -> Result<Tx> {
        self.begin_reserved(None)
    }

    /// The same with space that was reserved for it, for which there must be memory, too.
    pub fn begin_reserved(&self, mut reserved: Option<Reserved>) -> Result<Tx> {
        if let Some(why) = self.txgs.suspended() {
            return Err(why);
        }
        self.throttle()?;
        if let Some(reserved) = &mut reserved {
            while !reserved.hold(self.limits().get(Limit::DirtyMax)) {
                // Transactions under way end soon, and then count as dirty data.
                self.txgs.wait_change(HELD_PAUSE);
                if let Some(why) = self.txgs.suspended() {
                    return Err(why);
                }
                self.throttle()?;
            }
        }
        Ok(Tx::begin_reserved(&self.txgs, &self.dirty, reserved))
    }

    /// For tests: see [`DirtyData::break_off_after`].
    pub fn break_off_after(&self, changes: u64) {
        self.dirty.break_off_after(changes);
    }

    /// As [`Spa::begin`], for a transaction that frees blocks. Waits for another txg while the open one frees
    /// enough, so that neither memory nor duration of a txg depends on the amount that is freed; writers are
    /// not delayed.
    #[doc(alias = "zfs_per_txg_dirty_frees_percent")]
    pub fn begin_free(&self, reserved: Option<Reserved>) -> Result<Tx> {
        let share = self.limits().dirty_share(Limit::DirtyFreesPercent);
        let most = self.limits().get(Limit::AsyncBlockMax).min(share / FREED_BLOCK);
        let mut open = self.txgs.open();
        while self.dirty.freed(open) > most {
            self.txgs.wait_open(open + 1, &|| self.step_unless_threaded())?;
            open = self.txgs.open();
        }
        self.begin_reserved(reserved)
    }

    /// Slows writers down to the speed of the disks: above a share of the limit of dirty data each writer
    /// waits briefly, the longer the nearer the limit is; at the limit all wait for a txg.
    #[doc(alias("dmu_tx_delay", "dmu_tx_wait"))]
    fn throttle(&self) -> Result<()> {
        let (dirty, limits) = (self.dirty.memory(), self.limits());
        let most = limits.get(Limit::DirtyMax);
        if dirty >= most {
            return self.wait_synced(self.txgs.synced() + 1);
        }
        if dirty > limits.dirty_share(Limit::DirtySyncPercent) {
            self.txgs.note_full();
        }
        let from = limits.dirty_share(Limit::DelayMinDirtyPercent);
        if dirty > from && self.is_threaded() {
            let nanos = limits.get(Limit::DelayScale).saturating_mul(dirty - from) / (most - dirty);
            self.txgs.wait_change(Duration::from_nanos(nanos).min(DELAY_MAX));
        }
        Ok(())
    }

    /// Waits until everything that was changed so far is on disk.
    pub fn sync(&self) -> Result<()> {
        self.wait_synced(self.txgs.open())
    }

    /// As [`Spa::sync`]; also syncs until freed space is reusable and deferred work, such as the flush of a dedup log, is
    /// written.
    #[doc(alias("zpool sync", "txg_wait_synced"))]
    pub fn sync_deferred(&self) -> Result<()> {
        self.wait_synced(self.txgs.open().saturating_add(DEFER))
    }

    /// Waits until `txg` is on disk.
    pub fn wait_synced(&self, txg: u64) -> Result<()> {
        self.txgs.wait_synced(txg, &|| self.step_unless_threaded())
    }

    /// Whether the pool has a sync thread. Without one, a caller that waits for a txg writes it.
    pub fn is_threaded(&self) -> bool {
        self.threaded.load(Ordering::Acquire)
    }

    fn step_unless_threaded(&self) -> bool {
        !self.is_threaded() && self.step(true)
    }

    /// Does the next thing that is due: syncs a txg that is ready, or closes the open one when `force`d,
    /// wanted, or full. True when something was done.
    pub(crate) fn step(&self, force: bool) -> bool {
        // A transaction that broke off suspends the pool without reporting it.
        self.suspending().tell();
        self.disks().tend();
        self.disks().tend_slow();
        if let Some(txg) = self.txgs.take() {
            if let Err(why) = self.sync_txg(txg) {
                self.broken.store(true, Ordering::Release);
                self.suspending().suspend(why);
            }
            return true;
        }
        let open = self.txgs.open();
        let due = force
            || self.txgs.wanted()
            || self.dirty.memory_of(open) > self.limits().dirty_share(Limit::DirtySyncPercent);
        due && self.txgs.close()
    }

    /// Starts the sync thread.
    #[expect(clippy::disallowed_methods, reason = "simulations have none: they call Spa::sync")]
    pub fn start_thread(self: &Arc<Self>) -> Result<()> {
        let weak = Weak::clone(&self.me);
        let txgs = Arc::clone(&self.txgs);
        self.suspending().hold_what_fails();
        let work = move || {
            be_patient();
            let mut idle = Duration::ZERO;
            let tick = Duration::from_millis(50);
            loop {
                let Some(spa) = weak.upgrade() else { return };
                if spa.stop.load(Ordering::Acquire) {
                    return;
                }
                let late = idle >= Duration::from_secs(spa.limits().get(Limit::TxgTimeout));
                let due = match spa.background().due() {
                    Due::Now => true,
                    Due::Soon => late,
                    Due::No => late && spa.has_changes(),
                };
                if spa.step_or_suspend(due) {
                    idle = Duration::ZERO;
                    continue;
                }
                drop(spa);
                // Changes of state come with txgs, and far more often than ticks when many are written.
                if txgs.wait_change(tick) {
                    idle += tick;
                }
            }
        };
        let weak = Weak::clone(&self.me);
        let beat = move || {
            while let Some(spa) = weak.upgrade().filter(|spa| !spa.stop.load(Ordering::Acquire)) {
                spa.multihost().heartbeat();
                drop(spa);
                std::thread::sleep(BEAT_TICK);
            }
        };
        std::thread::Builder::new().name(format!("mmp-{}", self.pool.name)).spawn(beat)?;
        let name = format!("txg-{}", self.pool.name);
        let thread = std::thread::Builder::new().name(name).stack_size(STACK).spawn(work)?;
        *self.thread.lock() = Some(thread);
        self.threaded.store(true, Ordering::Release);
        self.background().start();
        Ok(())
    }

    /// As [`Spa::step`]. When an invariant breaks, waiters get an error instead of waiting for ever.
    fn step_or_suspend(&self, force: bool) -> bool {
        std::panic::catch_unwind(AssertUnwindSafe(|| self.step(force))).unwrap_or_else(|panic| {
            let what = "the pool is suspended: writing it stopped at an error of this program";
            self.broken.store(true, Ordering::Release);
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            let why = Error::corrupt(format!("an invariant of this program is broken: {said}"));
            self.suspending().suspend_because(Error::new(crate::Kind::Suspended, what).because(why));
            self.stop.store(true, Ordering::Release);
            true
        })
    }

    /// Whether the pool is written, or a caller waits for a txg.
    fn is_busy(&self) -> bool {
        self.txgs.wanted() || self.dirty.memory_of(self.txgs.open()) > 0
    }

    /// Whether the open txg has something to write.
    fn has_changes(&self) -> bool {
        let open = self.txgs.open();
        self.datasets.is_dirty(open)
            || self.mos.is_dirty(open)
            || self.config.lock().is_dirty()
            || self.tasks.0.lock().contains_key(&open)
            || self.early_tasks.0.lock().contains_key(&open)
    }

    /// Stops the sync thread.
    fn stop_thread(&self) {
        // A step of an activity may wait for a txg, which the sync thread has to write, or for a disk.
        self.pool.zio.suspended.close();
        self.activities.end();
        self.stop.store(true, Ordering::Release);
        self.txgs.want(0);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A thread that panicked has reported itself.
            let _ = thread.join();
        }
        self.threaded.store(false, Ordering::Release);
    }

    /// The uberblock on disk.
    pub fn uberblock(&self) -> Uberblock {
        *self.uberblock.lock()
    }
}

impl Drop for Spa {
    fn drop(&mut self) {
        self.stop_thread();
        self.pool.zio.clear_allocator();
        self.shared.forget_indices(&self.pool.env.memory);
        self.scanning.forget_live(&self.pool.env.memory);
    }
}

/// Accounts of the MOS's own blocks.
struct MosOps<'a>(pub &'a Spa);

impl MosOps<'_> {
    fn add(&self, bp: &Blkptr, sign: i64) {
        let tree = self.0.pool.zio.tree();
        let sizes = [zio::deflated(&tree, bp), bp.psize(), bp.ucsize()];
        let mut delta = self.0.mos_delta.lock();
        for (sum, size) in delta.iter_mut().zip(sizes) {
            *sum += sign * i64::try_from(size).unwrap_or(0);
        }
    }
}

impl BlockOps for MosOps<'_> {
    fn born(&self, bp: &Blkptr, _: &Tx) -> Result<()> {
        self.add(bp, 1);
        Ok(())
    }

    fn killed(&self, bp: &Blkptr, tx: &Tx) -> Result<()> {
        self.add(bp, -1);
        // The MOS' blocks have no other owners.
        self.0.sharing().free_places(bp, tx)
    }
}
