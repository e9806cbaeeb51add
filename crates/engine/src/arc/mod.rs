//! The adaptive replacement cache: decoded blocks in memory, within a promise of bytes.
//!
//! One entry a block, keyed by where its first copy stands and when it was born; what is cached is
//! what consumers want (decrypted, decompressed, little-endian). Concurrent readers of one block
//! share one read. [`policy`] decides what stays.
//!
//! Lock order: the state's lock is a leaf lock; zio and waiters are called without it.
//!
//! Differs from OpenZFS: no header for compressed buffers and no level-2 cache; the limit counts
//! bytes that consumers may still hold.

pub mod policy;
pub mod write;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::Blkptr;
use parking_lot::Mutex;
use stdx::Buf;

use crate::error::Result;
use crate::taskq::{Promise, start_and_wait};
use crate::types::Bookmark;
use crate::zio::{Form, ReadOptions, Zio};
use policy::{Lists, Lookup};

/// Identity of a cached block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    vdev: u32,
    offset: u64,
    birth: u64,
    keyless: bool,
}

impl Key {
    fn of(bp: &Blkptr, form: Form) -> Option<Self> {
        let dva = bp.dva(0)?;
        let keyless = form == Form::NoKey && bp.is_protected();
        Some(Self { vdev: dva.vdev, offset: dva.offset, birth: bp.physical_birth(), keyless })
    }
}

type Waiter = Box<dyn FnOnce(Result<Buf>) + Send>;

#[derive(Debug, Default)]
struct State {
    lists: Lists,
    cached: HashMap<Key, Buf>,
    bytes: u64,
    pending: Pending,
}

#[derive(Default)]
struct Pending(HashMap<Key, Vec<Waiter>>);

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} reads under way", self.0.len())
    }
}

/// Counters since the pool was opened, under their OpenZFS names.
#[derive(Debug, Default)]
pub struct ArcStats {
    /// Reads answered from memory.
    pub hits: AtomicU64,
    /// Reads that went to a device.
    pub misses: AtomicU64,
    /// Blocks given up.
    pub evicted: AtomicU64,
}

/// The cache of one pool.
#[derive(Debug)]
pub struct ArcCache {
    zio: Arc<Zio>,
    limit: u64,
    state: Mutex<State>,
    /// Counters.
    pub stats: ArcStats,
}

enum Found {
    Answered,
    Joined,
    Absent(Waiter),
}

impl ArcCache {
    /// A cache of at most `limit` bytes in front of `zio`.
    pub fn new(zio: Arc<Zio>, limit: u64) -> Arc<Self> {
        Arc::new(Self { zio, limit, state: Mutex::default(), stats: ArcStats::default() })
    }

    /// The read path behind it.
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// Bytes held, and the limit.
    pub fn size(&self) -> (u64, u64) {
        (self.state.lock().bytes, self.limit)
    }

    /// The block's bytes; waits for the device when they are not here.
    pub fn read(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, form: Form) -> Result<Buf> {
        self.read_as(bp, at, ReadOptions { form, ..ReadOptions::default() })
    }

    /// As [`ArcCache::read`], with all options of a read that stops at the first good copy.
    pub fn read_as(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, options: ReadOptions) -> Result<Buf> {
        let form = options.form;
        if let Some(buf) = self.cached(bp, form) {
            return Ok(buf);
        }
        let promise = Promise::default();
        let theirs = promise.clone();
        start_and_wait(|| self.start(bp, at, options, Box::new(move |result| theirs.set(result))));
        promise.wait(&**self.zio.executor())
    }

    /// Starts reading a block; `done` is told its bytes, perhaps before this returns.
    pub fn read_async(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, form: Form, done: Waiter) {
        self.start(bp, at, ReadOptions { form, ..ReadOptions::default() }, done);
    }

    fn start(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, options: ReadOptions, done: Waiter) {
        let form = options.form;
        let Some(key) = Key::of(bp, form).filter(|_| !bp.is_embedded() && form != Form::Physical) else {
            return self.zio.read(bp, at, options, Box::new(move |outcome| done(outcome.data)));
        };
        match self.find(key, done) {
            Found::Answered | Found::Joined => {}
            Found::Absent(done) => {
                self.stats.misses.fetch_add(1, Ordering::Relaxed);
                let cache = Arc::clone(self);
                let finish =
                    Box::new(move |outcome: crate::zio::ReadOutcome| cache.finish(key, done, outcome.data));
                self.zio.read(bp, at, options, finish);
            }
        }
    }

    /// Starts reading a block that will be wanted soon.
    pub fn prefetch(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, form: Form) {
        self.prefetch_as(bp, at, ReadOptions { form, ..ReadOptions::default() });
    }

    /// As [`ArcCache::prefetch`], with all options of a read that stops at the first good copy.
    pub fn prefetch_as(self: &Arc<Self>, bp: &Blkptr, at: Bookmark, options: ReadOptions) {
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        self.start(bp, at, options, Box::new(|_| ()));
    }

    /// Puts the bytes of a block that was just written in, in the place of what was there.
    pub fn insert(&self, bp: &Blkptr, form: Form, data: &Buf) {
        let Some(key) = Key::of(bp, form).filter(|_| !bp.is_hole() && !bp.is_embedded()) else { return };
        let mut state = self.state.lock();
        let twin = Key { keyless: true, ..key };
        if bp.is_protected() && state.cached.remove(&twin).is_some() {
            // Written in place: its bytes without the key are others now.
            let bytes = state.lists.remove(twin);
            state.bytes = state.bytes.saturating_sub(bytes);
        }
        if let Some(slot) = state.cached.get_mut(&key) {
            // Written in place: what was cached is old. The size is the same.
            *slot = data.clone();
            return;
        }
        self.keep(&mut state, key, data);
    }

    /// Forgets everything: a key was unloaded, and what it opened must not be read from memory.
    pub fn forget_all(&self) {
        let mut state = self.state.lock();
        state.cached.clear();
        state.lists = Lists::default();
        state.bytes = 0;
    }

    fn cached(&self, bp: &Blkptr, form: Form) -> Option<Buf> {
        let key = Key::of(bp, form)?;
        let mut state = self.state.lock();
        let buf = state.cached.get(&key).cloned()?;
        state.lists.touch(key);
        self.stats.hits.fetch_add(1, Ordering::Relaxed);
        Some(buf)
    }

    fn find(&self, key: Key, done: Waiter) -> Found {
        let mut state = self.state.lock();
        if let Some(buf) = state.cached.get(&key).cloned() {
            state.lists.touch(key);
            drop(state);
            self.stats.hits.fetch_add(1, Ordering::Relaxed);
            done(Ok(buf));
            return Found::Answered;
        }
        if let Some(waiters) = state.pending.0.get_mut(&key) {
            waiters.push(done);
            return Found::Joined;
        }
        state.pending.0.insert(key, Vec::new());
        Found::Absent(done)
    }

    fn finish(&self, key: Key, first: Waiter, result: Result<Buf>) {
        let waiters = {
            let mut state = self.state.lock();
            if let Ok(buf) = &result {
                self.keep(&mut state, key, buf);
            }
            state.pending.0.remove(&key).unwrap_or_default()
        };
        for waiter in waiters {
            waiter(result.clone());
        }
        first(result);
    }

    fn keep(&self, state: &mut State, key: Key, buf: &Buf) {
        // A small window into a joined device read would keep all of that read alive.
        let own = if buf.footprint() > 2 * buf.len() { Buf::from(&**buf) } else { buf.clone() };
        let size = u64::try_from(own.footprint()).unwrap_or(u64::MAX);
        if size > self.limit / 2 {
            return;
        }
        let Lookup { target } = state.lists.insert(key, size, self.limit);
        state.cached.insert(key, own);
        state.bytes += size;
        while state.bytes > self.limit {
            let Some((victim, bytes)) = state.lists.evict(target) else { break };
            state.cached.remove(&victim);
            state.bytes = state.bytes.saturating_sub(bytes);
            self.stats.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }
}
