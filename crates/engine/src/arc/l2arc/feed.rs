//! Rounds of writing: staged blocks go to one device after another, at most so many bytes in an interval.
//!
//! 1. Blocks are taken from the stage, as far as they may be written ([`L2arc::feed`]).
//! 2. Room is made behind the hand: blocks stored there are dropped from the index before anything is
//!    written.
//! 3. Blocks, and a log block after each `log_entries` of them, are written in one run; no lock is held.
//! 4. When all writes have ended, the blocks are entered in the index, and the header is written.
//!
//! A round that fails enters nothing, and takes its log blocks back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ondisk::Blkptr;
use ondisk::l2arc::{L2arcLogBlkptr, L2arcProp, LOG_BLOCK_SIZE};
use ondisk::label::LABEL_START_SIZE;
use stdx::{AlignedBuf, Buf};

use super::device::{BlockId, CacheDevice, CachedBlock, DeviceState, log_entry, prop_of};
use super::place::{header_block, log_block};
use super::{L2arc, MAX_FAILURES, Staged, State, footprint};
use crate::memory::stats::L2;
use crate::memory::{Limit, Memory};
use crate::vdev::leaf::Leaf;
use crate::vdev::stats::IoClass;
use crate::zio::stored::Second;

/// Bytes of one write.
const RUN: usize = 1 << 20;
/// Buffers of one write.
const PARTS: usize = 256;
/// Bytes that are trimmed ahead of a round at least.
const LEAST_TRIM: u64 = 64 << 20;

/// Result of a call of [`L2arc::feed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fed {
    /// There is no device.
    NoDevice,
    /// Nothing is due, or nothing may be written.
    Nothing,
    /// A round of so many blocks was started.
    Blocks(usize),
}

/// Counts the bytes of a round with the memory until it has ended.
struct Held {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.release_second(self.bytes);
    }
}

/// A round under way.
struct Round {
    l2: Arc<L2arc>,
    leaf: Arc<Leaf>,
    entries: Vec<(BlockId, CachedBlock)>,
    /// Log blocks that it writes, and the heads before.
    logs: (usize, [L2arcLogBlkptr; 2]),
    left: AtomicUsize,
    failed: AtomicBool,
    _held: Held,
}

/// A contiguous write.
struct Run {
    offset: u64,
    parts: Vec<Buf>,
    bytes: usize,
}

/// The writes of a round, neighbours joined.
#[derive(Default)]
struct Runs(Vec<Run>);

impl Runs {
    fn add(&mut self, offset: u64, data: Buf, asize: u64) {
        let asize = usize::try_from(asize).unwrap_or(usize::MAX);
        let pad = asize.saturating_sub(data.len());
        let fits = self.0.last().is_some_and(|run| run.bytes + asize <= RUN && run.parts.len() + 2 <= PARTS);
        if !fits {
            self.0.push(Run { offset, parts: Vec::new(), bytes: 0 });
        }
        if let Some(run) = self.0.last_mut() {
            run.parts.push(data);
            if pad > 0 {
                run.parts.push(AlignedBuf::zeroed(pad).into());
            }
            run.bytes += asize;
        }
    }
}

impl L2arc {
    /// Bytes that a round may write.
    #[doc(alias = "l2arc_write_size")]
    pub(super) fn write_size(&self) -> u64 {
        let boost = if self.memory.is_warm() { 0 } else { self.limit(Limit::L2WriteBoost) };
        self.limit(Limit::L2WriteMax).saturating_add(boost)
    }

    /// Starts a round on the next device if one is due; `may` returns whether the dataset of that number
    /// allows its metadata (true) or data to be cached. Must be called often.
    #[doc(alias("l2arc_feed_thread", "l2arc_write_buffers"))]
    pub fn feed(self: &Arc<Self>, may: &mut dyn FnMut(u64, bool) -> bool) -> Fed {
        let now = self.env.clock.monotonic();
        let taken = {
            let mut state = self.state.lock();
            if state.devices.is_empty() {
                return Fed::NoDevice;
            }
            let Some(guid) = next_device(&state, now).filter(|_| !state.is_closed) else {
                return Fed::Nothing;
            };
            state.last = guid;
            let taken = self.take(&mut state, guid);
            if let Some(device) = state.devices.get_mut(&guid) {
                device.next = now + Duration::from_secs(self.limit(Limit::L2FeedSecs));
                self.memory.stats.second.add(L2::Feeds, 1);
            }
            taken.map(|taken| (guid, taken))
        };
        let Some((guid, (taken, held))) = taken else { return Fed::Nothing };
        // The properties are read without the lock.
        let chosen: Vec<(BlockId, Staged, L2arcProp)> = taken
            .into_iter()
            .filter_map(|(id, staged)| {
                let prop = self.choose(id, &staged)?;
                may(staged.objset, staged.bp.is_metadata()).then_some((id, staged, prop))
            })
            .collect();
        self.write(guid, chosen, (held, now))
    }

    /// Takes blocks for one round from the stage.
    fn take(&self, state: &mut State, guid: u64) -> Option<(Vec<(BlockId, Staged)>, Held)> {
        if self.is_full(state) {
            self.memory.stats.second.add(L2::AbortLowmem, 1);
            self.unstage_all(state);
            return None;
        }
        let device = state.devices.get(&guid)?;
        let (place, entries) = (device.place, device.log_entries.max(1));
        let target = self.write_size().min(place.size() / 4);
        let (mut taken, mut bytes) = (Vec::new(), 0_u64);
        let mut held = Held { memory: Arc::clone(&self.memory), bytes: 0 };
        while let Some(id) = state.queue.front().copied() {
            let Some(size) = state.staged.get(&id).map(|staged| place.asize(staged.bp.psize())) else {
                state.queue.pop_front();
                continue;
            };
            let logs = u64::try_from((taken.len() + 1) / entries + 1).unwrap_or(u64::MAX);
            let all = bytes.saturating_add(size).saturating_add(logs.saturating_mul(LOG_BLOCK_SIZE));
            if all > target && !(taken.is_empty() && size + LOG_BLOCK_SIZE > target) {
                break;
            }
            state.queue.pop_front();
            if let Some(staged) = state.staged.remove(&id) {
                let freed = footprint(&staged.data);
                state.staged_bytes = state.staged_bytes.saturating_sub(freed);
                held.bytes += freed;
                // A block that no round has room for is dropped.
                if all <= target {
                    bytes += size;
                    taken.push((id, staged));
                }
            }
        }
        (!taken.is_empty()).then_some((taken, held))
    }

    /// The property word of a staged block; `None`: it is not written.
    #[doc(alias = "l2arc_write_eligible")]
    fn choose(&self, id: BlockId, staged: &Staged) -> Option<L2arcProp> {
        let bp = &staged.bp;
        let standing = self.memory.standing(self.key(id, false));
        let standing = standing.or_else(|| self.memory.standing(self.key(id, true)));
        let (frequent, ahead) = standing.unwrap_or((false, staged.second == Second::Ahead));
        let only = self.limit(Limit::L2MfuOnly);
        let is_left_out = ahead && self.limit(Limit::L2NoPrefetch) != 0
            || !frequent && (only == 1 || only == 2 && !bp.is_metadata())
            || self.limit(Limit::L2ExcludeSpecial) != 0 && self.is_special(bp);
        (!is_left_out).then(|| prop_of(bp, (frequent, ahead)))
    }

    fn is_special(&self, bp: &Blkptr) -> bool {
        use crate::vdev::config::AllocBias;
        let top = bp.dva(0).and_then(|dva| self.zio.upgrade()?.tree().top(u64::from(dva.vdev)));
        top.is_some_and(|top| matches!(top.bias, AllocBias::Special | AllocBias::Dedup))
    }

    /// Starts the writes of a round.
    fn write(
        self: &Arc<Self>,
        guid: u64,
        chosen: Vec<(BlockId, Staged, L2arcProp)>,
        (held, now): (Held, Duration),
    ) -> Fed {
        let stats = &self.memory.stats.second;
        let ((round, runs), trims) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let Some(device) = state.devices.get_mut(&guid).filter(|device| device.mode == DeviceState::Idle)
            else {
                return Fed::Nothing;
            };
            if chosen.is_empty() || state.is_closed {
                return Fed::Nothing;
            }
            let blocks: u64 = chosen.iter().map(|(_, staged, _)| device.place.asize(staged.bp.psize())).sum();
            let logs = (device.pending.len() + chosen.len()).checked_div(device.log_entries).unwrap_or(0);
            let distance = blocks + u64::try_from(logs).unwrap_or(0) * LOG_BLOCK_SIZE;
            let ahead = self.trims_ahead(device, distance);
            let free = device.make_room(distance + ahead.unwrap_or(0), &mut state.index, stats);
            let trims = if ahead.is_some() { free } else { Vec::new() };
            device.mode = DeviceState::Writing;
            let wrote_much = blocks > self.write_size().min(device.place.size() / 4) / 2;
            if wrote_much && self.limit(Limit::L2FeedAgain) != 0 {
                device.next = now + Duration::from_millis(self.limit(Limit::L2FeedMinMs));
            }
            let planned = plan(device, chosen, stats);
            self.recount(state);
            (planned, trims)
        };
        let (leaf, entries, bytes, logs) = round;
        let count = entries.len();
        stats.add(L2::WritesSent, 1);
        stats.add(L2::WriteBytes, bytes);
        let (left, failed) = (AtomicUsize::new(runs.0.len()), AtomicBool::new(false));
        let l2 = Arc::clone(self);
        let round = Arc::new(Round { l2, leaf, entries, logs, left, failed, _held: held });
        round.trim(trims, runs);
        Fed::Blocks(count)
    }

    /// Bytes ahead of a round's `distance` that are to be trimmed; `None`: nothing is.
    #[doc(alias = "l2arc_trim_ahead")]
    fn trims_ahead(&self, device: &CacheDevice, distance: u64) -> Option<u64> {
        let percent = self.trim_ahead_of(&device.leaf)?;
        let ahead = (distance.saturating_mul(percent) / 100).max(LEAST_TRIM);
        Some(ahead.min((device.place.size() / 4).saturating_sub(distance)))
    }

    /// The setting, for a device that can trim; `None` when it is 0.
    pub(super) fn trim_ahead_of(&self, leaf: &Leaf) -> Option<u64> {
        let percent = self.limit(Limit::L2TrimAhead);
        let can_trim = leaf.device().is_some_and(|device| device.trim_support().trim);
        (percent > 0 && can_trim).then_some(percent)
    }
}

/// A round's leaf, blocks, bytes, and log blocks.
type Planned = (Arc<Leaf>, Vec<(BlockId, CachedBlock)>, u64, (usize, [L2arcLogBlkptr; 2]));

/// Assigns each block a place behind the hand, and adds log blocks.
fn plan(
    device: &mut CacheDevice,
    chosen: Vec<(BlockId, Staged, L2arcProp)>,
    stats: &crate::memory::stats::L2Stats,
) -> (Planned, Runs) {
    let (from, before) = (device.hands.hand, device.start);
    let (mut runs, mut entries, mut logs) = (Runs::default(), Vec::with_capacity(chosen.len()), 0);
    for (id, staged, prop) in chosen {
        let asize = device.place.asize(staged.bp.psize());
        let daddr = device.hands.hand;
        let entry = CachedBlock {
            device: device.leaf.guid,
            daddr,
            prop,
            asize: u32::try_from(asize).unwrap_or(u32::MAX),
        };
        runs.add(daddr, staged.data, asize);
        device.hands.hand += asize;
        entries.push((id, entry));
        if device.log_entries > 0
            && let Some(line) = log_entry(&staged.bp, &entry)
        {
            device.pending.push(line);
            device.payload += asize;
        }
        if device.log_entries > 0 && device.pending.len() >= device.log_entries {
            let lines = std::mem::take(&mut device.pending);
            let payload = (lines.first().map_or(0, |line| line.daddr), std::mem::take(&mut device.payload));
            let (block, log) = log_block(device.place, &device.start[1], &lines, payload, device.hands.hand);
            let size = L2arcProp(log.prop).psize();
            runs.add(log.daddr, block, size);
            device.hands.hand += size;
            device.push_log(log, stats);
            logs += 1;
            stats.add(L2::LogBlkWrites, 1);
            stats.set(L2::LogBlkAvgAsize, size);
            stats.set(L2::DataToMetaRatio, payload.1 / size.max(1));
        }
    }
    let bytes = device.hands.hand.saturating_sub(from);
    ((Arc::clone(&device.leaf), entries, bytes, (logs, before)), runs)
}

impl Round {
    /// Trims the ranges, whether that succeeds or not, and then starts the writes.
    fn trim(self: Arc<Self>, mut ranges: Vec<(u64, u64)>, runs: Runs) {
        let Some((from, to)) = ranges.pop() else { return self.start(runs) };
        let round = Arc::clone(&self);
        let executor = Arc::clone(&self.l2.env.executor);
        let done = Box::new(move |_: std::io::Result<()>| {
            executor.spawn(Box::new(move || round.trim(ranges, runs)));
        });
        self.leaf.trim(from, to - from, false, done);
    }

    fn start(self: Arc<Self>, runs: Runs) {
        for run in runs.0 {
            let theirs = Arc::clone(&self);
            let done = Box::new(move |result: std::io::Result<()>| theirs.written(result.is_ok()));
            self.leaf.write_parts(run.offset, run.parts, IoClass::AsyncWrite, done);
        }
    }

    /// A write has ended; the last one ends the round.
    fn written(self: Arc<Self>, ok: bool) {
        if !ok {
            self.failed.store(true, Ordering::Release);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let failed = self.failed.load(Ordering::Acquire);
        let header = {
            let mut state = self.l2.state.lock();
            if failed { self.undo(&mut state) } else { self.enter(&mut state) }
        };
        let Some((leaf, block)) = header else { return };
        let round = Arc::clone(&self);
        leaf.write_parts(
            LABEL_START_SIZE,
            vec![block],
            IoClass::AsyncWrite,
            Box::new(move |result| round.ended(result.is_ok())),
        );
    }

    /// Enters the blocks in the index; returns the header to be written.
    fn enter(&self, state: &mut State) -> Option<(Arc<Leaf>, Buf)> {
        let stats = &self.l2.memory.stats.second;
        let device = state.devices.get_mut(&self.leaf.guid)?;
        for (id, entry) in &self.entries {
            if !state.index.contains_key(id) {
                device.insert(*id, *entry, &mut state.index, stats);
            }
        }
        device.failures = 0;
        let block = header_block(&device.header(self.l2.pool_guid()), device.place.sector);
        let leaf = Arc::clone(&device.leaf);
        self.l2.recount(state);
        Some((leaf, block))
    }

    /// Takes the round back: where it wrote is nothing.
    fn undo(&self, state: &mut State) -> Option<(Arc<Leaf>, Buf)> {
        let stats = &self.l2.memory.stats.second;
        stats.add(L2::WritesDone, 1);
        stats.add(L2::WritesError, 1);
        let device = state.devices.get_mut(&self.leaf.guid)?;
        let (logs, before) = self.logs;
        device.pop_logs(logs, before, stats);
        // Entries of this round must not get into the next log block.
        device.pending.clear();
        device.payload = 0;
        device.failures += 1;
        device.mode = DeviceState::Idle;
        if device.failures >= MAX_FAILURES || device.leaf.is_out() {
            device.mode = DeviceState::Failed;
            device.clear(&mut state.index, stats);
            self.l2.recount(state);
        }
        None
    }

    /// The header is written, or not: the next round writes it again.
    fn ended(&self, ok: bool) {
        let stats = &self.l2.memory.stats.second;
        stats.add(L2::WritesDone, 1);
        if !ok {
            stats.add(L2::WritesError, 1);
        }
        let mut state = self.l2.state.lock();
        if let Some(device) = state.devices.get_mut(&self.leaf.guid)
            && device.mode == DeviceState::Writing
        {
            device.mode = DeviceState::Idle;
        }
    }
}

/// The device that is due: the one after the device that was fed last, in the order of guids.
#[doc(alias = "l2arc_dev_get_next")]
fn next_device(state: &State, now: Duration) -> Option<u64> {
    let is_due = |device: &CacheDevice| device.mode == DeviceState::Idle && device.next <= now;
    let after = state.devices.range(state.last.saturating_add(1)..);
    after.chain(state.devices.range(..=state.last)).find(|(_, device)| is_due(device)).map(|(guid, _)| *guid)
}
