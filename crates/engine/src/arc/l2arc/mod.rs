//! Cache devices (L2ARC): blocks that were read from the pool are kept, as they are stored, on faster devices.
//!
//! States of a device ([`device::DeviceState`]): *rebuilding* (its header and log blocks are read, [`rebuild`]) → *idle* ⇄
//! *writing* (a round of [`feed`]) → *failed* (after [`MAX_FAILURES`] rounds in a row, or without its device: nothing is read
//! from it or written to it), or *offline* (`zpool offline`: the index keeps its blocks, as OpenZFS does, and they are not read).
//! `zpool online` and an import begin again with rebuilding; with `l2arc_rebuild_enabled=0` an offline device returns with the
//! index that it had.
//!
//! A read that misses in memory asks here first ([`StoredCache::find`]); a block that the pool delivered
//! instead is staged ([`StoredCache::offer`]) and written by the next round. Bytes are the stored ones:
//! compressed stays compressed, encrypted stays encrypted, and each read is judged by the block pointer's
//! checksum. Blocks without a checksum and gangs are left to the pool.
//!
//! Crash safety: nothing in the pool refers to a cache device. Whatever a crash leaves of a round, the header names log
//! blocks by checksum, log blocks name blocks by address and birth, and the bytes must match the checksum in the pointer
//! that is read: a stale or torn block costs one read. A block that is freed is forgotten ([`L2arc::forget`]); an entry that a
//! rebuild restores for it is never asked for, because a new block at that address has another birth. Only blocks of txgs
//! on disk are staged, because later ones may be rewritten in place.
//!
//! Memory: [`device::HEADER`] bytes a block, at most `l2arc_meta_percent` of `zfs_arc_max`; staged blocks take at most an
//! eighth of it. Both are counted with the cache's blocks ([`Memory::hold_second`]).
//!
//! Lock order: reads under way (arc) → this module's one lock → memory. It is never held across I/O or a callback; device
//! threads take it for a moment.
//!
//! Differs from OpenZFS: memory holds decoded blocks, so blocks to write are taken from reads as they arrive,
//! not from the tails of the lists ("headroom" has no meaning here); a block that was written and never read
//! from a device is not fed. Each pool feeds its own devices. What a round
//! trims ahead of its writes (`l2arc_trim_ahead`) does not make the round larger.
//!
//! Source: arc.c (`l2arc_*`), arc_impl.h, OpenZFS 2.4.

mod device;
mod feed;
pub(crate) mod place;
mod rebuild;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ondisk::Blkptr;
use ondisk::label::LABEL_START_SIZE;
use parking_lot::Mutex;
use stdx::Buf;

use self::device::{BlockId, CacheDevice, DeviceState, HEADER, Index};
use self::place::{FeedArea, header_block};
use crate::env::Env;
use crate::memory::stats::L2;
use crate::memory::{BlockKey, Limit, Memory};
use crate::types::Bookmark;
use crate::vdev::leaf::Leaf;
use crate::vdev::stats::IoClass;
use crate::zio::stored::{Second, StoredCache, StoredPlace, Verdict};

pub use feed::Fed;
pub(crate) use rebuild::Rebuilt;

/// Rounds that fail in a row before a device is given up.
const MAX_FAILURES: u32 = 3;
/// Longest wait for a round under way when a device is let go, in milliseconds.
const PATIENCE: u32 = 10_000;
/// Ids of freed blocks that may stay in the queue.
const SPARE_IDS: usize = 1024;
/// Share of the cache's memory that staged blocks may take: one in so many.
const STAGED_SHARE: u64 = 8;

/// A block that waits to be written.
#[derive(Debug)]
struct Staged {
    bp: Blkptr,
    objset: u64,
    second: Second,
    data: Buf,
}

#[derive(Debug, Default)]
struct State {
    devices: BTreeMap<u64, CacheDevice>,
    index: Index,
    /// Staged blocks, oldest first; ids that are no longer in the map were freed.
    queue: VecDeque<BlockId>,
    staged: HashMap<BlockId, Staged>,
    staged_bytes: u64,
    /// Headers counted with the memory.
    counted: u64,
    /// The device that was fed last.
    last: u64,
    /// Ends of rebuilds that were not reported yet.
    rebuilt: Vec<Rebuilt>,
    is_closed: bool,
}

/// The facts of a device for users.
#[derive(Debug, Clone)]
pub struct CacheStats {
    /// The device.
    pub leaf: Arc<Leaf>,
    /// Bytes of blocks and log blocks.
    pub allocated: u64,
    /// Usable bytes.
    pub size: u64,
    /// It failed too often.
    pub failed: bool,
}

/// The cache devices of one pool.
#[derive(Debug)]
pub struct L2arc {
    env: Env,
    memory: Arc<Memory>,
    /// The pool's number in the memory.
    number: u32,
    /// The pool's guid.
    pool: AtomicU64,
    zio: std::sync::Weak<crate::zio::Zio>,
    state: Mutex<State>,
}

impl Drop for L2arc {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let State { devices, index, .. } = state;
        devices.values_mut().for_each(|device| device.clear(index, &self.memory.stats.second));
        self.memory.release_second(state.counted + state.staged_bytes);
    }
}

impl L2arc {
    pub(super) fn new(env: &Env, number: u32, pool: u64, zio: &Arc<crate::zio::Zio>) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            memory: Arc::clone(&env.memory),
            number,
            pool: AtomicU64::new(pool),
            zio: Arc::downgrade(zio),
            state: Mutex::default(),
        })
    }

    fn limit(&self, limit: Limit) -> u64 {
        self.memory.limits.get(limit)
    }

    fn pool_guid(&self) -> u64 {
        self.pool.load(Ordering::Acquire)
    }

    /// The pool has another guid, which the headers of its devices get at once: an import takes no other pool's contents.
    /// A device that is being written gets it with the round under way, one that is being restored with its next round.
    pub(crate) fn set_pool(self: &Arc<Self>, guid: u64) {
        let headers: Vec<_> = {
            let mut state = self.state.lock();
            self.pool.store(guid, Ordering::Release);
            let idle = state.devices.values_mut().filter(|device| device.mode == DeviceState::Idle);
            idle.map(|device| {
                device.mode = DeviceState::Writing;
                (Arc::clone(&device.leaf), header_block(&device.header(guid), device.place.sector))
            })
            .collect()
        };
        for (leaf, block) in headers {
            let (l2, device) = (Arc::clone(self), leaf.guid);
            // With a header that could not be written, the next import begins with an empty device.
            let done = Box::new(move |_| {
                if let Some(device) = l2.state.lock().devices.get_mut(&device) {
                    device.mode = DeviceState::Idle;
                }
            });
            leaf.write_parts(LABEL_START_SIZE, vec![block], IoClass::AsyncWrite, done);
        }
    }

    /// Whether there are devices.
    pub(crate) fn is_used(&self) -> bool {
        !self.state.lock().devices.is_empty()
    }

    /// Takes a device into use, whose contents are restored in the background; `sector`: the unit of a device without a
    /// header. A device that failed or was offline is taken into use again. False when it is too small or in use already.
    #[doc(alias("l2arc_add_vdev", "l2arc_rebuild_vdev"))]
    pub(crate) fn add(self: &Arc<Self>, leaf: &Arc<Leaf>, sector: u64) -> bool {
        let size = leaf.device().map_or(0, |device| device.geometry().size);
        let Some(place) = FeedArea::of(size, sector) else { return false };
        let entries = place.log_entries(self.limit(Limit::L2RebuildMinSize));
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            let is_rebuilt = self.limit(Limit::L2RebuildEnabled) != 0;
            match state.devices.get_mut(&leaf.guid) {
                _ if state.is_closed => return false,
                Some(old) if old.mode == DeviceState::Offline && !is_rebuilt && old.is_of_size(size) => {
                    (old.leaf, old.mode, old.failures) = (Arc::clone(leaf), DeviceState::Idle, 0);
                    return true;
                }
                Some(old) if matches!(old.mode, DeviceState::Offline | DeviceState::Failed) => {
                    old.clear(&mut state.index, &self.memory.stats.second);
                }
                Some(_) => return false,
                None => {}
            }
            state.devices.insert(leaf.guid, CacheDevice::new(Arc::clone(leaf), place, entries));
            self.recount(state);
        }
        self.start_rebuild(leaf);
        true
    }

    /// Lets a device go, after the round under way.
    #[doc(alias = "l2arc_remove_vdev")]
    pub(crate) fn remove(&self, guid: u64) {
        self.wait_idle(|id, _| id == guid);
        let mut state = self.state.lock();
        if let Some(mut device) = state.devices.remove(&guid) {
            device.clear(&mut state.index, &self.memory.stats.second);
        }
        if state.devices.is_empty() {
            self.unstage_all(&mut state);
        }
        self.recount(&mut state);
    }

    /// Neither reads nor writes a device any more, after the round under way; its blocks stay in the index until the device
    /// is taken into use again. One that was being restored or failed is let go.
    #[doc(alias = "vdev_offline")]
    pub(crate) fn offline(&self, guid: u64) {
        self.wait_idle(|id, _| id == guid);
        let mut state = self.state.lock();
        let Some(device) = state.devices.get_mut(&guid) else { return };
        if matches!(device.mode, DeviceState::Rebuilding | DeviceState::Failed) {
            drop(state);
            return self.remove(guid);
        }
        device.mode = DeviceState::Offline;
        if !state.devices.values().any(CacheDevice::is_fed) {
            self.unstage_all(&mut state);
        }
    }

    /// Begins no more rounds, and waits for those under way.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.wait_idle(|_, _| true);
    }

    /// Begins rounds again after [`L2arc::close`].
    pub(crate) fn reopen(&self) {
        self.state.lock().is_closed = false;
    }

    /// Waits until no round is under way on some devices; not for ever for a device that does not answer.
    #[expect(clippy::disallowed_methods, reason = "without other work it waits for devices")]
    fn wait_idle(&self, of: impl Fn(u64, &CacheDevice) -> bool) {
        for _ in 0..PATIENCE {
            let busy = {
                let state = self.state.lock();
                state
                    .devices
                    .iter()
                    .any(|(id, device)| device.mode == DeviceState::Writing && of(*id, device))
            };
            if !busy {
                return;
            }
            if !self.env.executor.help() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Waits until no rebuild or round is under way, and makes the next round due, for tests and simulations.
    pub fn settle(&self) {
        self.state.lock().devices.values_mut().for_each(|device| device.next = Duration::ZERO);
        self.wait_rebuilt();
        self.wait_idle(|_, _| true);
    }

    #[expect(clippy::disallowed_methods, reason = "without other work it waits for devices")]
    fn wait_rebuilt(&self) {
        for _ in 0..PATIENCE {
            if self.state.lock().devices.values().all(|device| device.mode != DeviceState::Rebuilding) {
                return;
            }
            if !self.env.executor.help() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Whether a device has a block.
    pub fn has(&self, bp: &Blkptr) -> bool {
        BlockId::of(bp).is_some_and(|id| self.state.lock().index.contains_key(&id))
    }

    /// Forgets a block: its space in the pool is free, or has other content.
    pub(crate) fn forget(&self, bp: &Blkptr) {
        let Some(id) = BlockId::of(bp) else { return };
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(staged) = state.staged.remove(&id) {
            let bytes = footprint(&staged.data);
            state.staged_bytes = state.staged_bytes.saturating_sub(bytes);
            self.memory.release_second(bytes);
        }
        if let Some(device) = state.index.get(&id).map(|entry| entry.device)
            && let Some(device) = state.devices.get_mut(&device)
        {
            device.remove(&id, &mut state.index, &self.memory.stats.second);
            self.recount(state);
        }
    }

    /// The devices for users, without those that are offline.
    pub(crate) fn devices(&self) -> Vec<CacheStats> {
        let state = self.state.lock();
        let stats = |device: &CacheDevice| CacheStats {
            leaf: Arc::clone(&device.leaf),
            allocated: device.held + device.log_bytes(),
            size: device.place.end - device.place.start,
            failed: device.mode == DeviceState::Failed,
        };
        state.devices.values().filter(|device| device.mode != DeviceState::Offline).map(stats).collect()
    }

    /// Ends of rebuilds since the last call.
    pub(crate) fn take_rebuilt(&self) -> Vec<Rebuilt> {
        std::mem::take(&mut self.state.lock().rebuilt)
    }

    /// Whether another block would exceed the memory for headers.
    #[doc(alias = "l2arc_hdr_limit_reached")]
    fn is_full(&self, state: &State) -> bool {
        let most = u128::from(self.memory.target()) * u128::from(self.limit(Limit::L2MetaPercent)) / 100;
        u128::from(HEADER) * (state.index.len() as u128 + 1) > most
    }

    /// Counts the headers with the memory.
    fn recount(&self, state: &mut State) {
        let now = HEADER * u64::try_from(state.index.len()).unwrap_or(0);
        self.memory.hold_second(now);
        self.memory.release_second(state.counted);
        state.counted = now;
    }

    fn unstage_all(&self, state: &mut State) {
        state.queue.clear();
        state.staged.clear();
        self.memory.release_second(std::mem::take(&mut state.staged_bytes));
    }

    fn key(&self, id: BlockId, keyless: bool) -> BlockKey {
        BlockKey { pool: self.number, vdev: id.vdev, offset: id.offset, birth: id.birth, keyless }
    }
}

/// Bytes of memory that a staged block takes.
fn footprint(data: &Buf) -> u64 {
    u64::try_from(data.footprint()).unwrap_or(u64::MAX).saturating_add(HEADER)
}

/// Whether cache devices may have the block at all: its checksum must identify its stored bytes.
fn is_eligible(bp: &Blkptr) -> bool {
    let sum = bp.checksum().filter(|kind| !kind.is_embedded()).and_then(crate::zio::verify::algorithm);
    let is_judged = sum.is_some_and(|sum| sum != checksum::Algorithm::Off);
    is_judged && !bp.is_gang() && !bp.is_hole() && !bp.is_embedded()
}

impl StoredCache for L2arc {
    fn find(&self, bp: &Blkptr, _: Second) -> Option<StoredPlace> {
        let stats = &self.memory.stats.second;
        let id = BlockId::of(bp)?;
        let state = self.state.lock();
        if state.devices.is_empty() {
            return None;
        }
        let place = state.index.get(&id).filter(|entry| entry.prop.psize() == bp.psize() && is_eligible(bp));
        let found = place.and_then(|entry| {
            let device = state.devices.get(&entry.device).filter(|device| device.is_read())?;
            let leaf = Arc::clone(&device.leaf);
            Some(StoredPlace { leaf, offset: entry.daddr, size: u64::from(entry.asize) })
        });
        drop(state);
        stats.add(if found.is_some() { L2::Hits } else { L2::Misses }, 1);
        if let Some(found) = &found {
            stats.add(L2::ReadBytes, found.size);
        }
        found
    }

    fn judged(&self, bp: &Blkptr, found: &StoredPlace, verdict: Verdict) {
        let Some(id) = BlockId::of(bp).filter(|_| verdict != Verdict::Good) else { return };
        let stats = &self.memory.stats.second;
        let mut state = self.state.lock();
        let state = &mut *state;
        let is_there = state
            .index
            .get(&id)
            .is_some_and(|entry| entry.device == found.leaf.guid && entry.daddr == found.offset);
        if !is_there {
            // A round has overwritten it since.
            return stats.add(L2::EvictReading, 1);
        }
        stats.add(if verdict == Verdict::Wrong { L2::CksumBad } else { L2::IoError }, 1);
        if verdict == Verdict::Wrong {
            found.leaf.errors.checksum.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        if let Some(device) = state.devices.get_mut(&found.leaf.guid) {
            device.remove(&id, &mut state.index, stats);
            if device.leaf.is_out() {
                device.mode = DeviceState::Failed;
                device.clear(&mut state.index, stats);
            }
        }
        self.recount(state);
    }

    fn offer(&self, bp: &Blkptr, at: Bookmark, stored: &Buf, second: Second) {
        let Some(id) = BlockId::of(bp).filter(|_| is_eligible(bp)) else { return };
        if !self.zio.upgrade().is_some_and(|zio| zio.is_settled(bp.physical_birth())) {
            return;
        }
        let mut state = self.state.lock();
        let is_fed = state.devices.values().any(CacheDevice::is_fed);
        let most = (self.memory.target() / STAGED_SHARE).min(self.write_size());
        if !is_fed
            || state.is_closed
            || state.staged_bytes.saturating_add(bp.psize()) > most
            || state.index.contains_key(&id)
            || state.staged.contains_key(&id)
        {
            return;
        }
        // A small slice of a joined device read would keep the whole read alive.
        let data = if stored.footprint() > 2 * stored.len() { Buf::from(&**stored) } else { stored.clone() };
        let bytes = footprint(&data);
        state.staged_bytes += bytes;
        // Freed blocks leave their ids behind; a device that does not answer must not let them grow.
        if state.queue.len() > 2 * state.staged.len() + SPARE_IDS {
            let State { queue, staged, .. } = &mut *state;
            queue.retain(|id| staged.contains_key(id));
        }
        state.queue.push_back(id);
        state.staged.insert(id, Staged { bp: *bp, objset: at.objset, second, data });
        drop(state);
        self.memory.hold_second(bytes);
    }
}
