//! Zio: from a block pointer to its bytes.
//!
//! A read passes these stages: embedded or hole (done at once) → cache device, if one has it ([`stored`]) → copies (each DVA in
//! turn; gang blocks are assembled, removed vdevs remapped, redundancy tried through the vdev's read plan, every
//! candidate judged by the block's checksum) → open (decrypt or authenticate) → decompress → byte
//! order. No stage waits: devices complete on their threads, stages run on the executor, and a callback
//! receives the result. [`Zio::read_wait`] is for callers from outside.
//!
//! Differs from OpenZFS: there is no zio tree with per-type pipelines; a logical read owns a small
//! state machine per copy, because redundancy is decided in the read plans.

pub mod alloc;
pub(crate) mod correct;
pub mod dedup;
pub(crate) mod drive;
mod gang;
mod gang_write;
mod read;
mod remap;
mod seal;
pub(crate) mod stored;
pub(crate) mod suspend;
pub(crate) mod transform;
pub(crate) mod verify;
pub mod write;

pub(crate) use gang::parts_to_free;
pub use gang::{GangMembers, gang_members, gang_parts};
pub(crate) use remap::written_in;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use checksum::Salted;
use ondisk::Blkptr;
use parking_lot::RwLock;
use stdx::{AlignedBuf, Buf};

use crate::env::Env;
use crate::error::{Error, Kind, Result};
use crate::inject::BlockFaults;
use crate::memory::Memory;
use crate::taskq::{Executor, Promise};
use crate::types::Bookmark;
use crate::vdev::config::AllocBias;
use crate::vdev::plan::{BadCopy, Depth, Fault};
use crate::vdev::top::{Entered, Top};
use crate::vdev::tree::Tree;
use alloc::Allocator;
use dedup::DedupTables;
use stored::{Second, StoredCache};
use suspend::SuspendedIo;

/// How often a caller that waits for repairs looks whether they have ended.
const MENDING_TICK: std::time::Duration = std::time::Duration::from_millis(1);

/// How a block is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// Stop at the first good copy, or check them all.
    pub depth: Depth,
    /// With [`Depth::All`]: all parts of the first copy are checked, and other copies only if that is bad.
    pub lead: bool,
    /// Degree of transformation of the bytes.
    pub form: Form,
    /// Overwrite bad copies with good bytes, where the pool is being written. Only for a pointer that the pool
    /// refers to as the read begins: see [`crate::vdev::repair`].
    pub heal: bool,
    /// With `heal`: also writes the block to leaves that are known to lack it.
    pub resilver: bool,
    /// The block may never have been written, or not everywhere: bad copies are no fault of a disk.
    #[doc(alias = "ZIO_FLAG_SPECULATIVE")]
    pub speculative: bool,
    /// The last txg on disk at a moment when the pool referred to the pointer. A read that ends much later neither mends copies
    /// nor reports damage: the space may be another block's by then. `None`: the caller keeps the block from being freed.
    pub as_of: Option<u64>,
    /// Whether cache devices are asked first and offered the bytes.
    pub second: Second,
    /// The bytes are not kept in memory after the read, nor on cache devices (`primarycache`).
    pub uncached: bool,
    /// Read for a stream that passes them on to the system's page cache.
    pub paged: bool,
}

/// Txgs after which a block that was freed may have been replaced, less one for the mending itself: freed space is kept for two
/// txgs.
const RECENT: u64 = 1;

/// Degree of transformation of a block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Decrypted or authenticated, decompressed, little-endian: the consumers' form.
    #[default]
    Logical,
    /// As [`Form::Logical`] without the key: encrypted parts stay encrypted, nothing is authenticated.
    NoKey,
    /// Decrypted or authenticated, but compressed and in its own byte order: `psize` bytes.
    Opened,
    /// As stored: `psize` bytes.
    Physical,
}

impl Form {
    /// Whether the bytes are kept in memory in this form.
    pub(crate) fn is_cached(self) -> bool {
        matches!(self, Self::Logical | Self::NoKey)
    }
}

/// One bad copy found while a block was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedCopy {
    /// Top-level vdev.
    pub(crate) top: u64,
    /// Guid of the leaf, 0 when there is none.
    pub(crate) leaf: u64,
    /// The read and its fault.
    pub(crate) bad: BadCopy,
}

/// The end of a logical read.
#[derive(Debug)]
pub struct ReadOutcome {
    /// The bytes.
    pub data: Result<Buf>,
    /// Every bad copy met, whether or not the data was had in the end.
    pub damage: Vec<DamagedCopy>,
}

/// Called once, on an executor's thread or the caller's.
pub(crate) type ReadDone = Box<dyn FnOnce(ReadOutcome) + Send>;

/// Opens and makes protected blocks: set by the dsl layer, which knows datasets and their keys.
pub(crate) trait KeySource: Send + Sync + std::fmt::Debug {
    /// Decrypts or authenticates `data` (the physical bytes of `bp`) in place.
    fn open_block(&self, bp: &Blkptr, at: Bookmark, data: &mut AlignedBuf) -> Result<()>;
    /// Salt and IV for one new encrypted block of an object set.
    fn draw(&self, objset: u64) -> Result<(crypt::Salt, crypt::Iv)>;
    /// Salt and IV for a block of an object set that is deduplicated: equal for equal stored bytes under one key.
    fn derive(&self, objset: u64, data: &[u8]) -> Result<(crypt::Salt, crypt::Iv)>;
    /// Encrypts `data` (with the salt and IV in `bp`), or makes its MAC, as the pointer's type requires.
    /// Returns the MAC for the pointer; that of an object set or an intent-log block has been put into
    /// `data`.
    fn seal_block(&self, bp: &Blkptr, at: Bookmark, data: &mut AlignedBuf) -> Result<crypt::Mac>;
}

/// Receives damage found by reads, repaired or not.
pub(crate) trait FaultSink: Send + Sync + std::fmt::Debug {
    /// `repaired`: good bytes were found elsewhere.
    fn damaged(&self, bp: &Blkptr, at: Bookmark, damage: &[DamagedCopy], repaired: bool);

    /// Good bytes of a block born in `birth` could not be written over bad ones.
    fn not_mended(&self, birth: u64);

    /// A scan could not write a block born in `birth` where these distributed spares should have it.
    fn not_spared(&self, birth: u64, spares: &BTreeSet<u64>);
}

/// Counters since the pool was opened.
#[derive(Debug, Default)]
pub struct ZioStats {
    /// Logical reads finished.
    pub reads: AtomicU64,
    /// Physical bytes that they delivered.
    pub(crate) bytes: AtomicU64,
    /// Reads that met damage but got their bytes.
    pub repaired: AtomicU64,
    /// Columns and copies that were overwritten with good bytes.
    pub mended: AtomicU64,
    /// Bytes that were written so.
    pub(crate) mended_bytes: AtomicU64,
    /// Bytes of blocks that are being repaired.
    pub(crate) mending_held: AtomicU64,
    /// Repairs that are under way.
    pub(crate) mending: AtomicU64,
    /// Reads that got no bytes.
    pub(crate) failed: AtomicU64,
    /// Blocks written.
    pub(crate) writes: AtomicU64,
    /// Strong checksums of blocks to be written.
    pub summed: AtomicU64,
}

/// The read path of one pool.
#[derive(Debug)]
pub struct Zio {
    tree: RwLock<Arc<Tree>>,
    executor: Arc<dyn Executor>,
    memory: Arc<Memory>,
    salt: RwLock<Option<Arc<Salted>>>,
    keys: RwLock<Option<Arc<dyn KeySource>>>,
    faults: RwLock<Option<Arc<dyn FaultSink>>>,
    wide_gangs: AtomicBool,
    /// A piece of a gang was a gang, and a larger header would have named more pieces.
    gangs_nest: AtomicBool,
    stored: RwLock<Option<Arc<dyn StoredCache>>>,
    allocator: RwLock<Option<Arc<dyn Allocator>>>,
    dedup: RwLock<Option<Arc<dyn DedupTables>>>,
    /// Sizes of allocations on ordinary vdevs: smallest, and step.
    units: (AtomicU64, AtomicU64),
    /// The last txg that is on disk.
    synced: AtomicU64,
    /// Faults injected by `zinject`.
    pub inject: BlockFaults,
    /// Requests that wait for the pool to be resumed.
    pub suspended: SuspendedIo,
    /// Counters.
    pub stats: ZioStats,
}

/// Sizes of allocations on the vdevs of ordinary data: stored sizes are rounded up to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AllocUnits {
    /// The smallest one, in bytes.
    #[doc(alias = "spa_min_alloc")]
    pub(crate) least: usize,
    /// The greatest divisor of all.
    #[doc(alias = "spa_gcd_alloc")]
    pub(crate) step: usize,
}

impl AllocUnits {
    /// Of a tree. Vdevs for logs, metadata or dedup tables do not count, nor what is left of removed ones.
    #[doc(alias = "vdev_spa_set_alloc")]
    pub(crate) fn of(tree: &Tree) -> Self {
        let counts = |top: &&Arc<Top>| {
            top.bias == AllocBias::Normal && !top.is_removed() && top.ashift >= ondisk::MIN_BLOCK_SHIFT
        };
        let sizes = tree.tops().filter(counts).map(|top| usize::try_from(top.min_alloc()).unwrap_or(512));
        let units = sizes.fold(None, |units: Option<Self>, size| {
            let units = units.unwrap_or(Self { least: size, step: size });
            Some(Self { least: units.least.min(size), step: divisor(units.step, size) })
        });
        units.unwrap_or(Self { least: 512, step: 512 })
    }

    /// The size that `bytes` bytes are stored with.
    #[doc(alias = "zio_roundup_alloc_size")]
    pub(crate) fn round_up(self, bytes: usize) -> usize {
        if bytes > self.least { bytes.next_multiple_of(self.step.max(1)) } else { self.least }
    }
}

fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a.checked_rem(b).unwrap_or(0)) }
}

impl Zio {
    /// A read path over `tree`.
    pub(crate) fn new(tree: Arc<Tree>, env: &Env) -> Arc<Self> {
        Arc::new(Self {
            tree: RwLock::new(tree),
            executor: Arc::clone(&env.executor),
            memory: Arc::clone(&env.memory),
            salt: RwLock::default(),
            keys: RwLock::default(),
            faults: RwLock::default(),
            wide_gangs: AtomicBool::new(false),
            gangs_nest: AtomicBool::new(false),
            stored: RwLock::default(),
            allocator: RwLock::default(),
            dedup: RwLock::default(),
            units: (AtomicU64::new(ondisk::MIN_BLOCK_SIZE), AtomicU64::new(ondisk::MIN_BLOCK_SIZE)),
            synced: AtomicU64::new(0),
            inject: BlockFaults::default(),
            suspended: SuspendedIo::default(),
            stats: ZioStats::default(),
        })
    }

    /// Sets the txg that is on disk. Blocks born later may be rewritten in place while they are read, and are
    /// not mended.
    pub(crate) fn set_synced(&self, txg: u64) {
        self.synced.store(txg, Ordering::Release);
    }

    /// Whether a block born in `birth` stays as it is until it is freed.
    pub(crate) fn is_settled(&self, birth: u64) -> bool {
        birth <= self.synced.load(Ordering::Acquire)
    }

    /// The last txg that is on disk.
    pub(crate) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// Whether no block that the pool referred to at that moment can have been replaced by another.
    fn is_recent(&self, as_of: Option<u64>) -> bool {
        as_of.is_none_or(|then| self.synced() <= then.saturating_add(RECENT))
    }

    /// The vdev tree in force.
    pub fn tree(&self) -> Arc<Tree> {
        Arc::clone(&self.tree.read())
    }

    /// Replaces the vdev tree: the trusted one takes the place of the labels'.
    pub(crate) fn set_tree(&self, tree: Arc<Tree>) {
        let units = AllocUnits::of(&tree);
        *self.tree.write() = tree;
        self.set_units(units);
    }

    /// The top-level vdev of that number, to read or write: until the guard is dropped, and as long as a write through it is
    /// under way, [`Zio::drain`] waits. It is of the tree in force at some moment after the guard was made.
    pub(crate) fn top_to_use(&self, id: u64) -> Option<Entered> {
        loop {
            let top = Top::enter(self.tree().top(id)?);
            match self.tree().top(id) {
                Some(now) if Arc::ptr_eq(&now, top.top()) => return Some(top),
                // The tree was replaced meanwhile, and the change may have missed this write.
                _ => {}
            }
        }
    }

    /// Waits until all reads and writes have ended of vdevs of an old tree, those apart that the tree in force still has.
    #[doc(alias = "SCL_ZIO")]
    #[expect(clippy::disallowed_methods, reason = "without other work it waits for devices")]
    pub(crate) fn drain(&self, old: &Tree) {
        let now = self.tree();
        let is_kept = |top: &Arc<Top>| now.top(top.id).is_some_and(|kept| Arc::ptr_eq(&kept, top));
        for top in old.tops().filter(|top| !is_kept(top)) {
            top.set_replaced();
            while top.writing() > 0 {
                if !self.executor.help() {
                    std::thread::sleep(MENDING_TICK);
                }
            }
        }
    }

    /// Sets the pool's checksum salt.
    pub(crate) fn set_salt(&self, salt: &checksum::Salt) {
        *self.salt.write() = Some(Arc::new(Salted::new(salt)));
    }

    /// Sets the source of keys for protected blocks.
    pub(crate) fn set_keys(&self, keys: Arc<dyn KeySource>) {
        *self.keys.write() = Some(keys);
    }

    /// Removes the source of keys, if it is still `keys`.
    pub(crate) fn clear_keys(&self, keys: &Arc<dyn KeySource>) {
        let mut slot = self.keys.write();
        if slot.as_ref().is_some_and(|have| Arc::ptr_eq(have, keys)) {
            *slot = None;
        }
    }

    /// Sets the receiver of damage reports.
    pub(crate) fn set_faults(&self, faults: Arc<dyn FaultSink>) {
        *self.faults.write() = Some(faults);
    }

    /// Sets the cache that reads ask before the pool's vdevs; `None`: no cache.
    pub(crate) fn set_stored(&self, stored: Option<Arc<dyn StoredCache>>) {
        *self.stored.write() = stored;
    }

    fn stored(&self) -> Option<Arc<dyn StoredCache>> {
        self.stored.read().clone()
    }

    /// Sets whether gang headers may fill a whole minimum allocation (`dynamic_gang_header`).
    pub(crate) fn set_wide_gangs(&self, on: bool) {
        self.wide_gangs.store(on, Ordering::Relaxed);
    }

    /// Returns whether larger gang headers would have avoided gangs within gangs since the last call.
    pub(crate) fn take_nested_gangs(&self) -> bool {
        self.gangs_nest.swap(false, Ordering::Relaxed)
    }

    fn has_wide_gangs(&self) -> bool {
        self.wide_gangs.load(Ordering::Relaxed)
    }

    /// Sets the allocator: the pool can be written from now on.
    pub(crate) fn set_allocator(&self, allocator: Arc<dyn Allocator>) {
        *self.allocator.write() = Some(allocator);
    }

    /// Removes the allocator, which reads its space maps through this zio: one of the two references must be
    /// dropped.
    pub(crate) fn clear_allocator(&self) {
        *self.allocator.write() = None;
    }

    /// Returns the allocator of new blocks.
    ///
    /// # Errors
    /// `ReadOnly` when the pool was opened for reading.
    pub(crate) fn allocator(&self) -> Result<Arc<dyn Allocator>> {
        self.allocator
            .read()
            .clone()
            .ok_or_else(|| Error::new(Kind::ReadOnly, "the pool is open for reading only"))
    }

    /// Learns the sizes of allocations from the tree in force.
    pub(crate) fn learn_units(&self) {
        self.set_units(AllocUnits::of(&self.tree()));
    }

    fn set_units(&self, units: AllocUnits) {
        let word = |bytes: usize| u64::try_from(bytes).unwrap_or(ondisk::MIN_BLOCK_SIZE);
        self.units.0.store(word(units.least), Ordering::Relaxed);
        self.units.1.store(word(units.step), Ordering::Relaxed);
    }

    fn alloc_units(&self) -> AllocUnits {
        let bytes = |word: &AtomicU64| usize::try_from(word.load(Ordering::Relaxed)).unwrap_or(512);
        AllocUnits { least: bytes(&self.units.0), step: bytes(&self.units.1) }
    }

    /// Where CPU work runs.
    pub fn executor(&self) -> &Arc<dyn Executor> {
        &self.executor
    }

    fn salted(&self) -> Option<Arc<Salted>> {
        self.salt.read().clone()
    }

    fn keys(&self) -> Result<Arc<dyn KeySource>> {
        let keys = self.keys.read().clone();
        keys.ok_or_else(|| Error::new(Kind::KeyMissing, "the dataset's key is not loaded"))
    }

    /// Starts reading a block; `done` is called with the result, perhaps before this returns.
    pub(crate) fn read(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, options: ReadOptions, done: ReadDone) {
        let zio = Arc::clone(self);
        let pointer = *bp;
        let counted = Box::new(move |outcome: ReadOutcome| {
            zio.count(&pointer, at, options, &outcome);
            done(outcome);
        });
        read::start(self, bp, at, options, gang::Nesting::default(), counted);
    }

    /// Reads a block and waits for it.
    pub fn read_wait(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, options: ReadOptions) -> ReadOutcome {
        loop {
            let promise = Promise::default();
            let theirs = promise.clone();
            self.read(bp, at, options, Box::new(move |outcome| theirs.set(outcome)));
            let outcome: ReadOutcome = promise.wait(&*self.executor);
            if !self.suspended.wait_to_read(&outcome.data) {
                return outcome;
            }
        }
    }

    /// Waits until no repair is under way.
    pub fn wait_mended(&self) {
        self.wait_mending(0, 0);
    }

    /// Waits until at most so many repairs are under way, of blocks with so many bytes.
    #[expect(clippy::disallowed_methods, reason = "without other work it waits for devices")]
    pub(crate) fn wait_mending(&self, most: u64, bytes: u64) {
        while self.is_mending(most, bytes) {
            if !self.executor.help() {
                std::thread::sleep(MENDING_TICK);
            }
        }
    }

    /// Whether more repairs than these are under way, or their blocks have more bytes.
    pub(crate) fn is_mending(&self, most: u64, bytes: u64) -> bool {
        let stats = &self.stats;
        stats.mending.load(Ordering::Acquire) > most || stats.mending_held.load(Ordering::Acquire) > bytes
    }

    /// Reads `size` bytes at `offset` of a top-level vdev, unjudged (`zdb -R`).
    pub fn read_physical(self: &Arc<Self>, top: u64, offset: u64, size: u64) -> Result<Buf> {
        read::physical(self, top, offset, size)
    }

    fn count(&self, bp: &Blkptr, at: Bookmark, options: ReadOptions, outcome: &ReadOutcome) {
        let ok = outcome.data.is_ok();
        self.stats.reads.fetch_add(1, Ordering::Relaxed);
        if ok {
            self.stats.bytes.fetch_add(bp.psize(), Ordering::Relaxed);
        } else {
            self.stats.failed.fetch_add(1, Ordering::Relaxed);
        }
        // A commit that a crash interrupted may have reached some devices only: a log block that is good somewhere blames none.
        let interrupted = ok && at.level == Bookmark::ZIL;
        if outcome.damage.is_empty() || options.speculative || interrupted || !self.is_recent(options.as_of) {
            return;
        }
        self.blame(&outcome.damage);
        if ok {
            self.stats.repaired.fetch_add(1, Ordering::Relaxed);
        }
        let sink = self.faults.read().clone();
        if let Some(sink) = sink {
            sink.damaged(bp, at, &outcome.damage, ok);
        }
    }

    /// Counts wrong bytes against the leaves that gave them.
    fn blame(&self, damage: &[DamagedCopy]) {
        let tree = self.tree();
        let wrong = damage.iter().filter(|damage| damage.bad.fault == Fault::Wrong);
        for leaf in wrong.filter_map(|damage| tree.leaf(damage.leaf)) {
            leaf.gave_wrong_bytes();
        }
    }
}

/// Bytes that a block takes, as users count them.
#[doc(alias = "bp_get_dsize")]
pub fn deflated(tree: &Tree, bp: &Blkptr) -> u64 {
    let dsize = |dva: ondisk::Dva| {
        let ratio = tree.top(u64::from(dva.vdev)).map_or(0, |top| top.deflate_ratio());
        (dva.asize >> ondisk::MIN_BLOCK_SHIFT).saturating_mul(ratio)
    };
    bp.dvas().map(dsize).fold(0, u64::saturating_add)
}
