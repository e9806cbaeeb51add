//! A leaf vdev: one device, its health, its DTL (the txgs that it lacks), and its errors.
//!
//! States: in use (`ONLINE`, `DEGRADED`) with a device behind a queue; out of use (all others) without one,
//! so that nothing is read from it and every write misses it. `spa` decides on the state.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use blkdev::{Device, WriteDone};
use parking_lot::{Mutex, RwLock};
use stdx::Buf;
use zcommon::health::Health;
use zcommon::vdev::VdevAux;

use super::doubt::Doubt;
pub(crate) use super::dtl::Dtl;
use super::queue::{LeafReadDone, Queue};
use super::sit_out::SitOut;
use super::stats::{IoClass, LeafStats};
use crate::inject::device::{Decision, DeviceRequest};
use crate::inject::{IoType, LeafFaults};

/// Errors seen on a leaf since the pool was opened.
#[derive(Debug, Default)]
pub struct LeafErrors {
    /// Reads that the device failed.
    pub read: AtomicU64,
    /// Writes and flushes that the device failed.
    pub(crate) write: AtomicU64,
    /// Reads whose bytes were wrong.
    pub checksum: AtomicU64,
}

impl LeafErrors {
    /// Reads, writes, checksums.
    pub fn counts(&self) -> [u64; 3] {
        [&self.read, &self.write, &self.checksum].map(|count| count.load(Ordering::Relaxed))
    }

    /// Counts from 0 again.
    pub(crate) fn clear(&self) {
        [&self.read, &self.write, &self.checksum].iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// Reads of a leaf, writes to it, or trims, since the pool was opened.
#[derive(Debug, Default)]
pub struct LeafTraffic {
    /// Requests.
    pub count: AtomicU64,
    /// Bytes asked for.
    pub bytes: AtomicU64,
}

impl LeafTraffic {
    fn add(&self, len: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len, Ordering::Relaxed);
    }
}

/// Failures kept until the next [`Leaf::take_alarm`]; further ones are only counted.
const REMEMBERED: usize = 16;

/// A request that the device failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The kind of request.
    pub(crate) kind: FailedIo,
    /// From the start of the device.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// The system's number of the error; `EIO` when it has none.
    pub(crate) errno: i32,
}

/// Kind of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailedIo {
    /// Bytes.
    Read,
    /// To take bytes.
    Write,
    /// To make them durable.
    Flush,
}

/// `EIO`.
const EIO: i32 = 5;

/// The device, when in use, and the state.
#[derive(Debug)]
struct Slot {
    queue: Option<Arc<Queue>>,
    health: Health,
}

/// One device of the pool, present or not: its identity in one vdev tree, and its state, which outlives that tree. When a
/// change of the tree gives a device another guid or path ([`Leaf::renamed`]), both identities share the state, so that
/// requests under way under the old one are accounted to the device.
#[derive(Debug)]
pub struct Leaf {
    /// The leaf's guid, by which it is known.
    pub guid: u64,
    /// The device's own path when it is present, else the path its config remembers.
    pub path: String,
    pub(super) state: Arc<LeafState>,
}

impl std::ops::Deref for Leaf {
    type Target = LeafState;

    fn deref(&self) -> &LeafState {
        &self.state
    }
}

/// The state of a device, by whatever guid it is known.
#[derive(Debug)]
pub struct LeafState {
    /// A distributed spare: it has no device, and its bytes stand on other leaves.
    distributed: bool,
    slot: RwLock<Slot>,
    /// Bytes of its device when it was last measured; 0: it was never there.
    size: AtomicU64,
    /// The part of `size` that counts for the size of its vdev.
    counted: AtomicU64,
    /// A failure happened since the last [`Leaf::take_alarm`].
    alarm: AtomicBool,
    failures: Mutex<Vec<Failure>>,
    /// The flushes that failed.
    pub(super) doubt: Doubt,
    /// Txgs whose blocks the leaf may lack.
    pub dtl: RwLock<Dtl>,
    /// The DTL has changed since it was last written to the pool.
    dtl_changed: AtomicBool,
    /// The first txg that was not written to it since it went out of use; 0: that is unknown; `u64::MAX`: it is in use.
    out_since: AtomicU64,
    /// Error counters.
    pub errors: LeafErrors,
    /// How long requests took.
    pub stats: Arc<LeafStats>,
    /// Reads since the pool was opened.
    pub reads: LeafTraffic,
    /// Writes since the pool was opened.
    pub writes: LeafTraffic,
    /// Trims, secure ones too.
    pub trims: LeafTraffic,
    /// Faults injected by `zinject`.
    pub inject: LeafFaults,
    /// Bytes written here by the last scan of the pool, to repair or to resilver blocks.
    #[doc(alias = "vs_scan_processed")]
    pub scan_processed: AtomicU64,
    /// Bytes written here since the pool was opened, over blocks that should have been good.
    #[doc(alias = "vs_self_healed")]
    pub self_healed: AtomicU64,
    /// Whether reads do without it.
    pub(crate) sit_out: SitOut,
}

impl Leaf {
    /// A leaf over a device, or an absent one.
    pub(crate) fn new(guid: u64, path: String, device: Option<Device>) -> Arc<Self> {
        Self::with(guid, path, device, false)
    }

    /// The leaf of a distributed spare.
    pub(crate) fn distributed(guid: u64, path: String) -> Arc<Self> {
        let leaf = Self::with(guid, path, None, true);
        leaf.slot.write().health = Health::ONLINE;
        leaf
    }

    fn with(guid: u64, path: String, device: Option<Device>, distributed: bool) -> Arc<Self> {
        let health = if device.is_some() { Health::ONLINE } else { Health::cant_open(VdevAux::OpenFailed) };
        let stats = Arc::<LeafStats>::default();
        let size = device.as_ref().map_or(0, |device| device.geometry().size);
        let out_since = AtomicU64::new(if device.is_some() { u64::MAX } else { 0 });
        let queue = device.map(|device| Queue::new(device, Arc::clone(&stats)));
        let state = LeafState {
            distributed,
            slot: RwLock::new(Slot { queue, health }),
            stats,
            size: AtomicU64::new(size),
            counted: AtomicU64::new(size),
            alarm: AtomicBool::new(false),
            failures: Mutex::default(),
            doubt: Doubt::default(),
            dtl: RwLock::default(),
            dtl_changed: AtomicBool::new(false),
            out_since,
            errors: LeafErrors::default(),
            reads: LeafTraffic::default(),
            writes: LeafTraffic::default(),
            trims: LeafTraffic::default(),
            inject: LeafFaults::default(),
            scan_processed: AtomicU64::new(0),
            self_healed: AtomicU64::new(0),
            sit_out: SitOut::default(),
        };
        Arc::new(Self { guid, path, state: Arc::new(state) })
    }

    /// The same device under another guid and path.
    #[must_use]
    pub(crate) fn renamed(&self, guid: u64, path: String) -> Arc<Self> {
        Arc::new(Self { guid, path, state: Arc::clone(&self.state) })
    }

    /// Whether both are the same device.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    fn queue(&self) -> Option<Arc<Queue>> {
        self.slot.read().queue.clone()
    }

    /// The device, when in use.
    pub fn device(&self) -> Option<Device> {
        self.slot.read().queue.as_ref().map(|queue| Arc::clone(queue.device()))
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.slot.read().health
    }

    /// Sets the leaf's health. A leaf that goes out of use releases its device when requests in flight have
    /// ended; only [`Leaf::open`] brings it into use.
    #[doc(alias = "vdev_set_state")]
    pub(crate) fn set_health(&self, health: Health) {
        let mut slot = self.slot.write();
        slot.health = health;
        if !health.is_readable() {
            slot.queue = None;
            // Unless it was noted since when, that is unknown.
            let _ = self.out_since.compare_exchange(u64::MAX, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Takes it into use.
    #[doc(alias = "vdev_open")]
    pub(crate) fn open(&self, device: Device, health: Health) {
        let mut slot = self.slot.write();
        let size = device.geometry().size;
        // Space beyond the known size is not used before it is measured, as there are no labels at its end.
        for known in [&self.size, &self.counted] {
            if known.load(Ordering::Acquire) == 0 {
                known.store(size, Ordering::Release);
            }
            known.fetch_min(size, Ordering::AcqRel);
        }
        slot.queue = Some(Queue::new(device, Arc::clone(&self.stats)));
        slot.health = health;
        self.out_since.store(u64::MAX, Ordering::Release);
    }

    /// Notes that it goes out of use before `txg` is written.
    pub(crate) fn leaves_at(&self, txg: u64) {
        self.out_since.store(txg, Ordering::Release);
    }

    /// Whether a label of `txg` was written to the device while it was out of use here. The labels are written when a system
    /// takes the pool into use. Where it is unknown since when it is out of use, the writes that it lacks tell that.
    pub(crate) fn was_changed(&self, txg: u64) -> bool {
        let since = match self.out_since.load(Ordering::Acquire) {
            0 => self.dtl.read().ranges().first().map_or(u64::MAX, |range| range.0),
            since => since,
        };
        txg > since.saturating_add(1)
    }

    /// Bytes of its device when it was last measured: its labels stand at the end of these. 0: it was never there.
    #[doc(alias = "vdev_psize")]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// The part of [`Leaf::size`] that counts for the size of its vdev.
    pub(crate) fn counted(&self) -> u64 {
        self.counted.load(Ordering::Acquire)
    }

    /// Present size of its device; 0 when it is out of use or its size is unknown.
    pub(crate) fn measured(&self) -> u64 {
        self.device().and_then(|device| device.measure().ok()).unwrap_or(0)
    }

    /// Measures the device (syncing context, as labels move with its end); whether it has become larger.
    pub(crate) fn measure(&self) -> bool {
        let size = self.measured();
        self.size.fetch_max(size, Ordering::AcqRel) < size
    }

    /// From now on all of its bytes count.
    pub(crate) fn count_all(&self) {
        self.counted.store(self.size(), Ordering::Release);
    }

    /// The device's bytes in `[offset, offset + len)` have been changed by someone else.
    pub fn changed(&self, offset: u64, len: u64) {
        if let Some(queue) = self.queue() {
            queue.changed(offset, len);
        }
    }

    /// Whether reads do without it where parity allows that.
    #[doc(alias = "vdev_sit_out_reads")]
    pub fn sits_out(&self) -> bool {
        self.sit_out.is_on()
    }

    /// Whether a resilver may fill it: it is in use and takes writes, or others do for it.
    pub(crate) fn takes_resilver(&self) -> bool {
        self.distributed || self.is_writable()
    }

    /// Whether it is a distributed spare: it has no device, and its bytes stand on other leaves.
    pub(crate) fn is_distributed(&self) -> bool {
        self.distributed
    }

    /// Whether nothing can be had from it or by it.
    pub(crate) fn is_out(&self) -> bool {
        !self.distributed && self.device().is_none()
    }

    /// True when it is in use and takes writes.
    pub(crate) fn is_writable(&self) -> bool {
        self.slot.read().queue.as_ref().is_some_and(|queue| !queue.device().geometry().read_only)
    }

    /// Reads `len` bytes at `offset` from the start of the device, labels included.
    pub fn read(self: &Arc<Self>, offset: u64, len: u64, done: LeafReadDone) {
        self.read_as(offset, len, None, done);
    }

    /// As [`Leaf::read`], in a class of its own; without one the queue tells waiting callers from others.
    pub fn read_as(self: &Arc<Self>, offset: u64, len: u64, class: Option<IoClass>, done: LeafReadDone) {
        let Some(queue) = self.queue() else {
            return done(Err(absent()));
        };
        self.reads.add(len);
        let leaf = Arc::clone(self);
        let counted: LeafReadDone = Box::new(move |result| {
            if let Err(e) = &result {
                leaf.failed(FailedIo::Read, (offset, len), e);
            }
            done(result);
        });
        let start = |done: LeafReadDone| match class {
            Some(class) => queue.read_as(offset, len, class, done),
            None => queue.read(offset, len, done),
        };
        match self.injected(IoType::Read, offset, len) {
            None => start(counted),
            Some(decision) => decision.read(len, counted, start),
        }
    }

    /// Writes at `offset` from the start of the device, labels included. Not durable before a flush. Two writes
    /// that overlap must not be under way at the same time: which one wins is not defined.
    pub(crate) fn write(self: &Arc<Self>, offset: u64, data: Buf, done: WriteDone) {
        self.write_parts(offset, vec![data], IoClass::SyncWrite, done);
    }

    /// Writes several buffers one after the other, as [`Leaf::write`] does one.
    pub(crate) fn write_parts(
        self: &Arc<Self>,
        offset: u64,
        parts: Vec<Buf>,
        class: IoClass,
        done: WriteDone,
    ) {
        let Some(queue) = self.queue() else {
            return done(Err(absent()));
        };
        let len = parts.iter().map(|part| u64::try_from(part.len()).unwrap_or(0)).sum();
        self.writes.add(len);
        let done = self.watching(FailedIo::Write, (offset, len), done);
        match self.injected(IoType::Write, offset, len) {
            None => queue.write(offset, parts, class, done),
            Some(decision) => decision.write(done, |done| queue.write(offset, parts, class, done)),
        }
    }

    /// Trims bytes of the device; reads of them return arbitrary bytes afterwards, and `erase` leaves no copy of them on the
    /// device. No write may be in flight there.
    #[doc(alias = "zio_trim")]
    pub fn trim(self: &Arc<Self>, offset: u64, len: u64, erase: bool, done: WriteDone) {
        let Some(queue) = self.queue() else {
            return done(Err(absent()));
        };
        let leaf = Arc::clone(self);
        self.trims.add(len);
        let arrival = self.stats.arrived(IoClass::Trim);
        let then = self.stats.started(std::iter::once(&arrival), len);
        let start = move |done: WriteDone| {
            let told: blkdev::Completion = Box::new(move |result, _| {
                leaf.stats.finished(std::iter::once(&arrival), then);
                leaf.changed(offset, len);
                done(result);
            });
            let kind = if erase { blkdev::IoKind::Erase(len) } else { blkdev::IoKind::Trim(len) };
            let buf = stdx::AlignedBuf::zeroed(0);
            queue.device().submit(blkdev::Io { kind, offset, buf, done: told });
        };
        match self.injected(IoType::Trim, offset, len) {
            None => start(done),
            Some(decision) => decision.write(done, start),
        }
    }

    /// Makes all writes that completed before this call durable; `next` is the next txg to be on disk. Costs
    /// nothing when there were none since the last flush.
    ///
    /// Data written before a failed flush may be lost although later flushes succeed: the system reports a
    /// failed write-back once, and drops the pages that it could not write. See [`super::doubt`].
    pub(crate) fn flush(self: &Arc<Self>, next: u64, done: WriteDone) {
        let Some(queue) = self.queue() else { return done(Err(absent())) };
        let leaf = Arc::clone(self);
        let noted: WriteDone = Box::new(move |result| {
            if result.is_err() {
                leaf.flush_failed(next);
            }
            done(result);
        });
        let done = self.watching(FailedIo::Flush, (0, 0), noted);
        match self.injected(IoType::Flush, 0, 0) {
            None => queue.flush(done),
            Some(decision) => decision.write(done, |done| queue.flush(done)),
        }
    }

    /// The decision of injected faults on a request.
    #[inline]
    fn injected(&self, io: IoType, offset: u64, len: u64) -> Option<Decision> {
        let decision = self.inject.decide(|| DeviceRequest { io, offset, len, size: self.size() })?;
        if matches!(io, IoType::Read | IoType::Write) {
            self.stats.held_back(decision.delay(), io == IoType::Read);
        }
        Some(decision)
    }

    /// While it is on, reads come from the device itself, not from bytes that were kept in memory.
    pub(crate) fn read_past_caches(&self, on: bool) {
        if let Some(queue) = self.queue() {
            queue.read_past_caches(on);
        }
    }

    fn watching(self: &Arc<Self>, kind: FailedIo, place: (u64, u64), done: WriteDone) -> WriteDone {
        let leaf = Arc::clone(self);
        Box::new(move |result| {
            if let Err(e) = &result {
                leaf.failed(kind, place, e);
            }
            done(result);
        })
    }

    fn failed(&self, kind: FailedIo, (offset, len): (u64, u64), error: &io::Error) {
        let count = if kind == FailedIo::Read { &self.errors.read } else { &self.errors.write };
        count.fetch_add(1, Ordering::Relaxed);
        let mut failures = self.failures.lock();
        if failures.len() < REMEMBERED {
            failures.push(Failure { kind, offset, len, errno: error.raw_os_error().unwrap_or(EIO) });
        }
        drop(failures);
        self.alarm.store(true, Ordering::Release);
    }

    /// Counts bytes that were read and were wrong.
    pub(crate) fn gave_wrong_bytes(&self) {
        self.errors.checksum.fetch_add(1, Ordering::Relaxed);
        self.alarm.store(true, Ordering::Release);
    }

    /// Whether something went wrong since [`Leaf::take_alarm`].
    pub(crate) fn has_alarm(&self) -> bool {
        self.alarm.load(Ordering::Acquire)
    }

    /// Returns the first failed requests since the last call; `None` when nothing failed.
    pub(crate) fn take_alarm(&self) -> Option<Vec<Failure>> {
        self.alarm.swap(false, Ordering::AcqRel).then(|| std::mem::take(&mut *self.failures.lock()))
    }

    /// Counts `bytes` of a block born in `birth` that a repair has written, `scanned` for one by a scan of the pool.
    #[doc(alias = "vdev_stat_update")]
    pub(crate) fn note_repair(&self, bytes: u64, birth: u64, scanned: bool) {
        if scanned {
            self.scan_processed.fetch_add(bytes, Ordering::Relaxed);
        }
        if !self.dtl.read().contains(birth) {
            self.self_healed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Records that the leaf lacks everything of the txgs `[start, end)`: it is new, or was overwritten.
    #[doc(alias = "vdev_dtl_dirty")]
    pub(crate) fn miss_all(&self, start: u64, end: u64) {
        self.dtl.write().add_range(start, end);
        self.dtl_changed.store(true, Ordering::Release);
    }

    /// Removes the txgs `[start, end)` from the DTL: the leaf has their blocks again, except for txgs in
    /// `failed` that it lacked before.
    pub fn has_again(&self, start: u64, end: u64, failed: &std::collections::BTreeSet<u64>) {
        let mut dtl = self.dtl.write();
        let before = dtl.clone();
        dtl.remove(start, end);
        for txg in failed.range(start..end).filter(|txg| before.contains(**txg)) {
            dtl.add(*txg);
        }
        if *dtl != before {
            self.dtl_changed.store(true, Ordering::Release);
        }
    }

    /// Whether the DTL has changed since it was last taken.
    pub(crate) fn has_changed_dtl(&self) -> bool {
        self.dtl_changed.load(Ordering::Acquire)
    }

    /// The DTL's ranges when it has changed since the last call.
    pub(crate) fn take_changed_dtl(&self) -> Option<Vec<(u64, u64)>> {
        self.dtl_changed.swap(false, Ordering::AcqRel).then(|| self.dtl.read().ranges().to_vec())
    }
}

impl LeafState {
    /// Records that the leaf lacks something of `txg`.
    #[doc(alias = "vdev_dtl_dirty")]
    pub fn miss(&self, txg: u64) {
        if self.dtl.write().add(txg) {
            self.dtl_changed.store(true, Ordering::Release);
        }
    }
}

fn absent() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

/// Has leaves read from their devices themselves until it is dropped.
pub(crate) struct PastCaches(Vec<Arc<Leaf>>);

impl PastCaches {
    /// Makes reads of these leaves bypass caches from now on.
    pub(crate) fn of(leaves: Vec<Arc<Leaf>>) -> Self {
        leaves.iter().for_each(|leaf| leaf.read_past_caches(true));
        Self(leaves)
    }
}

impl Drop for PastCaches {
    fn drop(&mut self) {
        self.0.iter().for_each(|leaf| leaf.read_past_caches(false));
    }
}
