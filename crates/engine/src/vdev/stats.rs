//! Latencies and sizes of requests, counted per leaf; shown by `zpool iostat -l`, `-q`, `-r` and `-w`.
//!
//! Histograms have a bucket for each power of two. Counting is a few relaxed additions a request.
//!
//! Format source: `vdev_stat_ex_t`, fs/zfs.h, OpenZFS 2.3. Differs from OpenZFS: a request that is served together with
//! others counts in the device's time once, not also by itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use blkdev::WriteDone;
use stdx::clock::Clock;

use crate::memory::{Limit, Memory};
use crate::taskq::is_in_background;

/// Buckets for nanoseconds.
#[doc(alias = "VDEV_L_HISTO_BUCKETS")]
pub const LATENCIES: usize = 37;
/// Buckets for bytes.
#[doc(alias = "VDEV_RQ_HISTO_BUCKETS")]
pub const SIZES: usize = 25;
/// A request that takes longer is slow, unless a setting says otherwise.
const SLOW: Duration = Duration::from_secs(30);

/// Class of a request, by its kind and its urgency.
#[doc(alias = "zio_priority_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoClass {
    /// A read that a caller waits for.
    SyncRead,
    /// A write that a caller waits for: intent logs, labels.
    SyncWrite,
    /// Reading ahead.
    AsyncRead,
    /// Writes of a txg's sync.
    AsyncWrite,
    /// Trims.
    Trim,
    /// Reads that compare all copies of a block: scrubs and healing resilvers.
    Scrub,
    /// Reads of sequential reconstructions.
    RebuildRead,
    /// Their writes.
    RebuildWrite,
    /// Writes of scrubs and healing resilvers; counted as [`IoClass::AsyncWrite`], as in OpenZFS.
    Repair,
    /// Reads of the removal of a vdev, and of an expansion.
    RemovalRead,
    /// Their writes.
    RemovalWrite,
    /// Writes of `zpool initialize`.
    Initialize,
}

impl IoClass {
    /// The classes of ordinary reads and writes, in OpenZFS's order.
    pub const ALL: [Self; 4] = [Self::SyncRead, Self::SyncWrite, Self::AsyncRead, Self::AsyncWrite];

    /// Requests of scans, and of other work in the background, yield to all others.
    pub(super) fn is_scan(self) -> bool {
        !matches!(self, Self::SyncRead | Self::SyncWrite | Self::AsyncRead | Self::AsyncWrite | Self::Trim)
    }

    fn is_write(self) -> bool {
        match self {
            Self::SyncRead | Self::AsyncRead | Self::Scrub | Self::RebuildRead | Self::RemovalRead => false,
            Self::SyncWrite | Self::AsyncWrite | Self::Repair => true,
            Self::RebuildWrite | Self::RemovalWrite | Self::Initialize | Self::Trim => true,
        }
    }
}

/// A histogram with power-of-2 buckets; bucket `n` counts values of at least `1 << n`.
#[derive(Debug)]
pub struct Histogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Histogram<N> {
    fn add(&self, value: u64) {
        let bucket = value.checked_ilog2().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        if let Some(count) = self.0.get(bucket.min(N.saturating_sub(1))) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The counts.
    pub fn counts(&self) -> [u64; N] {
        std::array::from_fn(|bucket| self.0.get(bucket).map_or(0, |count| count.load(Ordering::Relaxed)))
    }
}

/// Statistics of one class of requests.
#[derive(Debug, Default)]
pub struct ClassStats {
    /// Nanoseconds in the queue.
    pub queued: Histogram<LATENCIES>,
    /// Bytes of device requests that served one request.
    pub single: Histogram<SIZES>,
    /// Bytes of device requests that served several.
    pub joined: Histogram<SIZES>,
    /// Requests in the queue.
    pub waiting: AtomicU64,
    /// Requests on the device.
    pub active: AtomicU64,
}

/// Statistics of reads, or of writes.
#[derive(Debug, Default)]
pub struct KindStats {
    /// Nanoseconds from the request to its end.
    pub total: Histogram<LATENCIES>,
    /// Nanoseconds of them on the device.
    pub disk: Histogram<LATENCIES>,
}

/// Reads of a device whose latency is compared with that of its peers, by the pool's clock.
#[derive(Debug, Default)]
struct LatencyWatch {
    on: AtomicBool,
    clock: OnceLock<Arc<dyn Clock>>,
    reads: AtomicU64,
    nanos: AtomicU64,
}

impl LatencyWatch {
    fn now(&self) -> Option<Duration> {
        let clock = self.clock.get().filter(|_| self.on.load(Ordering::Relaxed))?;
        Some(clock.monotonic())
    }

    fn add(&self, reads: u64, time: Duration) {
        self.reads.fetch_add(reads, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Requests of others than jobs in the background, flushes among them.
#[derive(Debug, Default)]
struct OtherRequests {
    came: AtomicU64,
    pending: AtomicU64,
}

impl OtherRequests {
    fn begin(&self) {
        self.came.fetch_add(1, Ordering::Relaxed);
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When requests went to the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Departure {
    at: Instant,
    /// By the pool's clock, if the device is watched.
    watched: Option<Duration>,
}

/// Statistics of one leaf.
#[derive(Debug, Default)]
pub struct LeafStats {
    classes: [ClassStats; 8],
    kinds: [KindStats; 2],
    /// Requests that took very long.
    pub slow: AtomicU64,
    /// Those that no event has reported yet.
    pub(crate) unreported: AtomicU64,
    /// How long the last of them took, in nanoseconds.
    pub(crate) last_slow: AtomicU64,
    /// The settings that say how long.
    settings: OnceLock<Arc<Memory>>,
    watch: LatencyWatch,
    others: OtherRequests,
}

/// A request in the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    class: IoClass,
    at: Instant,
    /// It is not of a job in the background.
    other: bool,
}

impl Arrival {
    /// Whether it is of a scan.
    pub(super) fn is_scan(&self) -> bool {
        self.class.is_scan()
    }
}

impl LeafStats {
    /// Takes the time after which a request is slow from these settings from now on.
    pub(crate) fn heed(&self, settings: &Arc<Memory>) {
        self.settings.get_or_init(|| Arc::clone(settings));
    }

    #[doc(alias = "zio_slow_io_ms")]
    fn slow_after(&self) -> Duration {
        self.settings.get().map_or(SLOW, |memory| Duration::from_millis(memory.limits.get(Limit::SlowIoMs)))
    }

    /// Statistics of one class; the reads and writes of reconstructions are counted together, and those of removals,
    /// expansions and initializations, which `zpool iostat` does not show.
    pub fn class(&self, class: IoClass) -> &ClassStats {
        let [sync_read, sync_write, async_read, async_write, trim, scrub, rebuild, unshown] = &self.classes;
        match class {
            IoClass::SyncRead => sync_read,
            IoClass::SyncWrite => sync_write,
            IoClass::AsyncRead => async_read,
            IoClass::AsyncWrite | IoClass::Repair => async_write,
            IoClass::Trim => trim,
            IoClass::Scrub => scrub,
            IoClass::RebuildRead | IoClass::RebuildWrite => rebuild,
            IoClass::RemovalRead | IoClass::RemovalWrite | IoClass::Initialize => unshown,
        }
    }

    /// Statistics of reads, or of writes.
    pub fn kind(&self, write: bool) -> &KindStats {
        let [reads, writes] = &self.kinds;
        if write { writes } else { reads }
    }

    /// A request comes into the queue.
    #[expect(
        clippy::disallowed_methods,
        reason = "times of real devices: statistics, and slow requests, of which a simulated device has none"
    )]
    pub(super) fn arrived(&self, class: IoClass) -> Arrival {
        self.class(class).waiting.fetch_add(1, Ordering::Relaxed);
        let other = !class.is_scan() && class != IoClass::Trim && !is_in_background();
        if other {
            self.others.begin();
        }
        Arrival { class, at: Instant::now(), other }
    }

    /// A flush begins; `done` is called at its end.
    pub(super) fn watching_flush(self: &Arc<Self>, done: WriteDone) -> WriteDone {
        if is_in_background() {
            return done;
        }
        self.others.begin();
        let stats = Arc::clone(self);
        Box::new(move |result| {
            stats.others.end();
            done(result);
        })
    }

    /// The number of requests that have come of others than jobs in the background, and whether one is under way.
    pub(crate) fn others(&self) -> (u64, bool) {
        let pending = self.others.pending.load(Ordering::Relaxed) > 0;
        (self.others.came.load(Ordering::Relaxed), pending)
    }

    /// Measures the reads of the device by this clock from now on, or no more.
    pub(crate) fn watch(&self, clock: Option<&Arc<dyn Clock>>) {
        if let Some(clock) = clock {
            self.watch.clock.get_or_init(|| Arc::clone(clock));
        }
        self.watch.on.store(clock.is_some(), Ordering::Relaxed);
    }

    /// Mean nanoseconds of the reads measured since the last call; `None` when there were none.
    pub(crate) fn take_latency(&self) -> Option<u64> {
        let nanos = self.watch.nanos.swap(0, Ordering::Relaxed);
        nanos.checked_div(self.watch.reads.swap(0, Ordering::Relaxed))
    }

    /// These requests go to the device, as one of `len` bytes.
    #[expect(
        clippy::disallowed_methods,
        reason = "times of real devices: statistics, and slow requests, of which a simulated device has none"
    )]
    pub(super) fn started<'a>(&self, arrivals: impl Iterator<Item = &'a Arrival>, len: u64) -> Departure {
        let now = Instant::now();
        let (mut count, mut last) = (0, None);
        for arrival in arrivals {
            let class = self.class(arrival.class);
            class.waiting.fetch_sub(1, Ordering::Relaxed);
            class.active.fetch_add(1, Ordering::Relaxed);
            class.queued.add_time(now.duration_since(arrival.at));
            (count, last) = (count + 1, Some(class));
        }
        match last {
            Some(class) if count == 1 => class.single.add(len),
            Some(class) => class.joined.add(len),
            None => {}
        }
        Departure { at: now, watched: self.watch.now() }
    }

    fn was_slow(&self, took: Duration) {
        self.last_slow.store(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.unreported.fetch_add(1, Ordering::Relaxed);
        self.slow.fetch_add(1, Ordering::Relaxed);
    }

    /// The completion of a request is held back by an injected delay, which the device's own time does not include.
    pub(super) fn held_back(&self, delay: Duration, is_read: bool) {
        if is_read && self.watch.on.load(Ordering::Relaxed) {
            self.watch.add(0, delay);
        }
        if delay > self.slow_after() {
            self.was_slow(delay);
        }
    }

    /// The device has finished the requests that it started `then`.
    #[expect(
        clippy::disallowed_methods,
        reason = "times of real devices: statistics, and slow requests, of which a simulated device has none"
    )]
    pub(super) fn finished<'a>(&self, arrivals: impl Iterator<Item = &'a Arrival>, then: Departure) {
        let (now, slow) = (Instant::now(), self.slow_after());
        let mut kind = None;
        for arrival in arrivals {
            self.class(arrival.class).active.fetch_sub(1, Ordering::Relaxed);
            if arrival.other {
                self.others.end();
            }
            let took = now.duration_since(arrival.at);
            if took > slow {
                self.was_slow(took);
            }
            if arrival.class == IoClass::Trim {
                continue;
            }
            let stats = self.kind(arrival.class.is_write());
            stats.total.add_time(took);
            kind = Some((stats, arrival.class));
        }
        let Some((kind, class)) = kind else { return };
        kind.disk.add_time(now.duration_since(then.at));
        if let Some((before, now)) = then.watched.filter(|_| !class.is_write()).zip(self.watch.now()) {
            self.watch.add(1, now.saturating_sub(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        let histogram = Histogram::<SIZES>::default();
        for bytes in [0, 1, 2, 3, 4095, 4096, u64::MAX] {
            histogram.add(bytes);
        }
        let counts = histogram.counts();
        assert_eq!((counts[0], counts[1], counts[11], counts[12], counts[24]), (2, 2, 1, 1, 1));
    }

    #[test]
    fn requests_are_counted_where_they_are() {
        let stats = LeafStats::default();
        let arrivals = [stats.arrived(IoClass::AsyncWrite), stats.arrived(IoClass::AsyncWrite)];
        let class = stats.class(IoClass::AsyncWrite);
        let now = || [&class.waiting, &class.active].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(now(), [2, 0]);
        let then = stats.started(arrivals.iter(), 8192);
        assert_eq!((now(), class.joined.counts()[13], class.single.counts()[13]), ([0, 2], 1, 0));
        stats.finished(arrivals.iter(), then);
        let sum = |histogram: &Histogram<LATENCIES>| histogram.counts().iter().sum::<u64>();
        assert_eq!((now(), sum(&class.queued)), ([0, 0], 2));
        assert_eq!((sum(&stats.kind(true).total), sum(&stats.kind(true).disk)), (2, 1));
        assert_eq!(sum(&stats.kind(false).total), 0);
        let trim = [stats.arrived(IoClass::Trim)];
        let then = stats.started(trim.iter(), 1 << 20);
        stats.finished(trim.iter(), then);
        assert_eq!((stats.class(IoClass::Trim).single.counts()[20], sum(&stats.kind(true).total)), (1, 2));
    }
}
