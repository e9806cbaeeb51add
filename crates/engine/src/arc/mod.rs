//! A pool's side of the adaptive replacement cache: reads go through it, writes leave their bytes in it.
//!
//! One entry per block, keyed by its first DVA and its birth txg. Cached bytes are in the consumers' form
//! (decrypted, decompressed, little-endian). Concurrent readers of one block share one read.
//! [`crate::memory`] decides for all pools together which entries stay.
//!
//! Lock order: reads under way, then the memory's own lock; zio and waiters are called without either.

pub mod l2arc;
pub(crate) mod write;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use ondisk::Blkptr;
use parking_lot::Mutex;
use stdx::Buf;

use self::l2arc::L2arc;
use crate::env::Env;
use crate::error::Result;
use crate::memory::demand::{self, Demanded};
use crate::memory::on_its_way::OnItsWay;
use crate::memory::stats::ReadPurpose;
use crate::memory::{BlockKey, Limits, Memory};
use crate::taskq::{Promise, start_and_wait};
use crate::types::Bookmark;
use crate::zio::stored::Second;
use crate::zio::{Form, ReadOptions, Zio};

type Waiter = Box<dyn FnOnce(Result<Buf>) + Send>;

/// A read that is under way.
struct Pending {
    waiters: Vec<Waiter>,
    /// A caller waits for it; else it is read ahead.
    demanded: bool,
}

/// The cache of one pool.
pub struct ArcCache {
    zio: Arc<Zio>,
    memory: Arc<Memory>,
    /// Its number in there.
    pool: u32,
    pending: Mutex<HashMap<BlockKey, Pending>>,
    /// Its cache devices, once it had one.
    second: OnceLock<Arc<L2arc>>,
}

impl std::fmt::Debug for ArcCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArcCache({}, {} reads under way)", self.pool, self.pending.lock().len())
    }
}

impl Drop for ArcCache {
    fn drop(&mut self) {
        self.memory.forget(self.pool);
    }
}

enum Found {
    Answered,
    Joined,
    Absent(Waiter),
}

/// Bytes that a read of a block takes in memory: the block, and the bytes that devices return for it.
fn bytes_to_read(bp: &Blkptr) -> u64 {
    // A pointer can claim any allocated size; parity is at most three times the data.
    let stored = bp.dva(0).map_or(0, |dva| dva.asize).clamp(bp.psize(), 4 * bp.psize());
    bp.lsize().saturating_add(stored)
}

fn is_large(bp: &Blkptr) -> bool {
    !bp.is_metadata() && !bp.is_hole() && !bp.is_embedded() && bp.lsize().max(bp.psize()) > demand::SMALL
}

impl ArcCache {
    /// The settings of the process.
    pub fn limits(&self) -> &Limits {
        &self.memory.limits
    }

    /// A pool's blocks in `memory`, in front of `zio`.
    pub(crate) fn new(zio: Arc<Zio>, memory: Arc<Memory>) -> Arc<Self> {
        let pool = memory.pool();
        Arc::new(Self { zio, memory, pool, pending: Mutex::default(), second: OnceLock::new() })
    }

    /// The read path behind it.
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// Where its blocks are kept.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The pool's cache devices; `None`: it has had none since it was opened.
    pub(crate) fn l2arc(&self) -> Option<Arc<L2arc>> {
        self.second.get().cloned()
    }

    /// As [`ArcCache::l2arc`], for a pool of that guid that gets a cache device.
    pub(crate) fn start_l2arc(&self, env: &Env, guid: u64) -> Arc<L2arc> {
        Arc::clone(self.second.get_or_init(|| L2arc::new(env, self.pool, guid, &self.zio)))
    }

    /// `paged`: see [`ReadPurpose`]. Pools with cache devices keep such blocks like others, as the devices are fed with the
    /// blocks that the memory keeps.
    fn purpose(&self, bp: &Blkptr, prefetch: bool, paged: bool) -> ReadPurpose {
        ReadPurpose { prefetch, metadata: bp.is_metadata(), paged: paged && self.second.get().is_none() }
    }

    fn key(&self, bp: &Blkptr, form: Form) -> Option<BlockKey> {
        let dva = bp.dva(0)?;
        let keyless = form == Form::NoKey && bp.is_protected();
        Some(BlockKey {
            pool: self.pool,
            vdev: dva.vdev,
            offset: dva.offset,
            birth: bp.physical_birth(),
            keyless,
        })
    }

    /// The block's bytes; waits for the device when they are not here.
    pub fn read(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, form: Form) -> Result<Buf> {
        self.read_as(bp, at, ReadOptions { form, ..ReadOptions::default() })
    }

    /// As [`ArcCache::read`], with all options of a read that stops at the first good copy.
    pub fn read_as(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, options: ReadOptions) -> Result<Buf> {
        if let Some(key) = self.key(bp, options.form).filter(|_| options.form.is_cached())
            && let Some(buf) = self.memory.get(key, self.purpose(bp, false, options.paged))
        {
            return Ok(buf);
        }
        loop {
            let promise = Promise::default();
            let theirs = promise.clone();
            start_and_wait(|| self.start(bp, at, options, false, Box::new(move |result| theirs.set(result))));
            let result = promise.wait(&**self.zio.executor());
            if !self.zio.suspended.wait_to_read(&result) {
                return result;
            }
        }
    }

    /// Counts the read of a large block of data until the result is dropped; waits until there is memory for it. `None` for
    /// other blocks.
    pub(crate) fn count_large(&self, bp: &Blkptr) -> Option<Demanded> {
        let executor = &**self.zio.executor();
        is_large(bp).then(|| Demanded::wait(&self.memory, self.pool, bytes_to_read(bp), executor))
    }

    /// Reads several blocks of metadata at the same time; waits for all. Returns their bytes in the order of `blocks`.
    pub(crate) fn read_many(
        self: &Arc<Self>,
        blocks: &[(Blkptr, Bookmark, ReadOptions)],
    ) -> Vec<Result<Buf>> {
        let mut reads = Vec::with_capacity(blocks.len());
        for (bp, at, options) in blocks {
            let promise = Promise::default();
            let theirs = promise.clone();
            self.start(bp, *at, *options, false, Box::new(move |result| theirs.set(result)));
            reads.push(promise);
        }
        let wait = |promise: Promise<Result<Buf>>| promise.wait(&**self.zio.executor());
        let again = |(result, (bp, at, options)): (Result<Buf>, &(Blkptr, Bookmark, ReadOptions))| {
            if self.zio.suspended.wait_to_read(&result) { self.read_as(bp, *at, *options) } else { result }
        };
        reads.into_iter().map(wait).zip(blocks).map(again).collect()
    }

    /// Whether a block is in memory or on a cache device.
    #[doc(alias = "arc_cached")]
    pub fn has(&self, bp: &Blkptr) -> bool {
        let in_memory = self.key(bp, Form::Logical).is_some_and(|key| self.memory.has(key));
        in_memory || self.second.get().is_some_and(|second| second.has(bp))
    }

    fn start(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, options: ReadOptions, ahead: bool, done: Waiter) {
        let form = options.form;
        let Some(key) = self.key(bp, form).filter(|_| !bp.is_embedded() && form.is_cached()) else {
            let counted = if ahead { None } else { self.count_large(bp) };
            let finish = Box::new(move |outcome: crate::zio::ReadOutcome| {
                drop(counted);
                done(outcome.data);
            });
            return self.zio.read(bp, at, options, finish);
        };
        let purpose = self.purpose(bp, ahead, options.paged);
        match self.find(key, purpose, done) {
            Found::Answered | Found::Joined => {}
            Found::Absent(done) => {
                let cache = Arc::clone(self);
                let second = match (options.uncached, ahead) {
                    (true, _) => Second::No,
                    (false, true) => Second::Ahead,
                    (false, false) => Second::Demand,
                };
                let keep = !options.uncached;
                // Others that want the block join this read meanwhile, and take no memory.
                let counted = if ahead { None } else { self.count_large(bp) };
                let options = ReadOptions { second, ..options };
                let finish = Box::new(move |outcome: crate::zio::ReadOutcome| {
                    drop(counted);
                    cache.finish(key, (purpose, keep), done, outcome.data);
                });
                self.zio.read(bp, at, options, finish);
            }
        }
    }

    /// Starts reading a block that will be wanted soon. The caller bounds the number of such blocks.
    pub(crate) fn prefetch(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, form: Form) {
        if !bp.is_hole() && !bp.is_embedded() {
            self.start(bp, at, ReadOptions { form, ..ReadOptions::default() }, true, Box::new(|_| ()));
        }
    }

    /// As [`ArcCache::prefetch`], with all options of a read that stops at the first good copy. Returns false, and starts
    /// nothing, if the blocks that are read ahead in this way take all the space that there is for them.
    pub(crate) fn prefetch_as(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, options: ReadOptions) -> bool {
        if bp.is_hole() || bp.is_embedded() {
            return true;
        }
        let bytes = if is_large(bp) { bytes_to_read(bp) } else { bp.lsize() };
        let Some(held) = OnItsWay::take(&self.memory, bytes) else { return false };
        self.start(bp, at, options, true, Box::new(move |_| drop(held)));
        true
    }

    /// Inserts the bytes of a block that was just written; replaces an entry with the same key. `paged`: see [`ReadPurpose`].
    pub(crate) fn insert(&self, bp: &Blkptr, form: Form, data: &Buf, paged: bool) {
        let key = self.key(bp, form).filter(|_| !bp.is_hole() && !bp.is_embedded());
        let Some(key) = key else { return };
        if let Some(l2) = self.second.get() {
            l2.forget(bp);
        }
        if bp.is_protected() {
            // Written in place: its bytes without the key are others now.
            self.memory.remove(BlockKey { keyless: true, ..key });
        }
        self.memory.replace(key, data, self.purpose(bp, false, paged));
    }

    /// Forgets a block whose space is free again.
    #[doc(alias = "arc_freed")]
    pub(crate) fn freed(&self, bp: &Blkptr) {
        if let Some(key) = self.key(bp, Form::Logical) {
            if let Some(l2) = self.second.get() {
                l2.forget(bp);
            }
            self.memory.remove(key);
            if bp.is_protected() {
                self.memory.remove(BlockKey { keyless: true, ..key });
            }
        }
    }

    /// Forgets everything: a key was unloaded, and blocks that it decrypted must not be read from memory.
    pub fn forget_all(&self) {
        self.memory.forget(self.pool);
    }

    fn find(&self, key: BlockKey, purpose: ReadPurpose, done: Waiter) -> Found {
        let mut pending = self.pending.lock();
        if let Some(buf) = self.memory.get(key, purpose) {
            drop(pending);
            done(Ok(buf));
            return Found::Answered;
        }
        let stats = &self.memory.stats;
        if let Some(read) = pending.get_mut(&key) {
            read.waiters.push(done);
            stats.io_hits.count(purpose);
            if !purpose.prefetch && !read.demanded {
                read.demanded = true;
                stats.prefetch_used.fetch_add(1, Ordering::Relaxed);
                stats.prefetch_joined.fetch_add(1, Ordering::Relaxed);
            }
            return Found::Joined;
        }
        stats.misses.count(purpose);
        pending.insert(key, Pending { waiters: Vec::new(), demanded: !purpose.prefetch });
        Found::Absent(done)
    }

    fn finish(
        &self,
        key: BlockKey,
        (purpose, keep): (ReadPurpose, bool),
        first: Waiter,
        result: Result<Buf>,
    ) {
        let waiters = {
            let mut pending = self.pending.lock();
            let read = pending.remove(&key);
            if let Some(buf) = result.as_ref().ok().filter(|_| keep) {
                let prefetch = read.as_ref().is_some_and(|read| !read.demanded);
                self.memory.keep(key, buf, ReadPurpose { prefetch, ..purpose });
            }
            read.map(|read| read.waiters).unwrap_or_default()
        };
        for waiter in waiters {
            waiter(result.clone());
        }
        first(result);
    }
}
