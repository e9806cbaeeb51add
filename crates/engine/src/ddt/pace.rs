//! How many entries of the log of a dedup table a txg flushes.
//!
//! A txg flushes its share of the backlog, at least `zfs_dedup_log_flush_entries_min`, and a quarter more while time is left;
//! above `zfs_dedup_log_cap` a pressure that grows with the backlog raises the share. Both sides are in memory, so the
//! flushing side must also be empty by the time that the active side takes its half of `zfs_dedup_log_mem_max`: time does not
//! limit that part. `zfs_dedup_log_flush_entries_max` limits everything.
//!
//! Source of the settings' meaning: zfs(4), `ddt_sync_flush_log`, ddt.c, OpenZFS 2.4.

use std::time::Duration;

use crate::memory::{Limit, Limits};

/// Bytes of memory that an entry of a log takes, about.
pub const ENTRY_BYTES: u64 = 220;
/// Pressure of a log below its cap, in tenths.
const NO_PRESSURE: u64 = 10;
/// Txgs of a moving average.
#[doc(alias = "zfs_dedup_log_flush_flow_rate_txgs")]
const RATE_TXGS: u64 = 10;
/// The value of `zfs_dedup_log_cap` that means none.
const NO_CAP: u64 = u32::MAX as u64;

/// Entries of both sides of a log, and those that the active side took since the last txg.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogFill {
    pub(crate) active: usize,
    pub(crate) flushing: usize,
    pub(crate) added: usize,
}

/// The pressure of a log above its cap.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pressure {
    tenths: u64,
    /// The backlog in the last txg.
    backlog: u64,
}

impl Default for Pressure {
    fn default() -> Self {
        Self { tenths: NO_PRESSURE, backlog: 0 }
    }
}

impl Pressure {
    #[doc(alias = "ddt_log_flush_pressure")]
    fn update(&mut self, backlog: u64, cap: u64) {
        if cap != NO_CAP && backlog > cap && backlog > self.backlog {
            self.tenths = self.tenths.saturating_add(backlog.saturating_mul(10) / cap);
        } else if cap != NO_CAP && backlog < cap {
            let relief = 11_u64.saturating_sub(backlog.saturating_mul(10).div_ceil(cap));
            self.tenths = self.tenths.saturating_sub(relief).max(NO_PRESSURE);
        }
        self.backlog = backlog;
    }
}

/// The flush of one txg.
pub(super) struct FlushShare<'a> {
    done: u64,
    /// Entries that are flushed whatever time it takes.
    floor: u64,
    /// Entries after which the flush ends when its time is over.
    least: u64,
    most: u64,
    /// Time for `least` entries; twice that for `floor`.
    time: Duration,
    elapsed: &'a dyn Fn() -> (Duration, bool),
    began: Duration,
}

/// Moving averages over the last txgs, as integers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    /// Entries that the log took.
    pub(crate) ingest: u64,
    /// Entries that were flushed.
    pub(crate) flush: u64,
    /// Milliseconds that this took.
    pub(crate) millis: u64,
}

impl Rates {
    /// A txg added so many entries, and flushed its share.
    pub(crate) fn update(&mut self, added: usize, share: &FlushShare<'_>) {
        let next = |rate: u64, now: u64| {
            if now < rate { rate - (rate - now) / RATE_TXGS } else { rate + (now - rate) / RATE_TXGS }
        };
        let spent = (share.elapsed)().0.saturating_sub(share.began);
        self.ingest = next(self.ingest, u64::try_from(added).unwrap_or(u64::MAX));
        self.flush = next(self.flush, share.done);
        self.millis = next(self.millis, u64::try_from(spent.as_millis()).unwrap_or(u64::MAX));
    }
}

impl<'a> FlushShare<'a> {
    /// The share of a txg. `elapsed` tells the time, and whether the txg is waited for.
    pub(crate) fn of(
        fill: LogFill,
        limits: &Limits,
        pressure: &mut Pressure,
        elapsed: &'a dyn Fn() -> (Duration, bool),
    ) -> Self {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let (active, flushing) = (count(fill.active), count(fill.flushing));
        let backlog = active.saturating_add(flushing);
        let cap = limits.get(Limit::DedupLogCap).max(1);
        let floor = limits.get(Limit::DedupFlushMin);
        pressure.update(backlog, cap);
        let mut least = floor.max(backlog / limits.get(Limit::DedupFlushTxgs).max(1));
        let pressed = (least.saturating_mul(pressure.tenths) / 10).min(backlog.saturating_sub(cap));
        if cap != NO_CAP && limits.is_on(Limit::DedupLogHardCap) {
            least = least.max(pressed);
        }
        let most = least.saturating_mul(5) / 4;
        let due = due(limits, (active, flushing), count(fill.added));
        let most = most.max(least).max(if cap == NO_CAP { 0 } else { pressed }).max(due);
        let (began, is_waited_for) = elapsed();
        let half = Duration::from_secs(limits.get(Limit::TxgTimeout)) / 2;
        let least_time = Duration::from_millis(limits.get(Limit::DedupFlushTime));
        let time = if is_waited_for { half.min(least_time) } else { half };
        Self {
            done: 0,
            floor: floor.max(due),
            least: least.max(due),
            most: most.min(limits.get(Limit::DedupFlushMax)),
            time,
            elapsed,
            began,
        }
    }

    /// Flushes `count` entries whatever time it takes.
    pub(super) fn take(&mut self, count: usize, limits: &Limits) {
        self.most = u64::try_from(count).unwrap_or(u64::MAX).min(limits.get(Limit::DedupFlushMax).max(1));
        self.floor = self.most;
    }

    /// Entries that are flushed yet, if time allows.
    pub(crate) fn left(&self) -> usize {
        usize::try_from(self.most.saturating_sub(self.done)).unwrap_or(usize::MAX)
    }

    /// Whether another entry is flushed.
    pub(crate) fn goes_on(&self) -> bool {
        if self.done >= self.most {
            return false;
        }
        if self.done <= self.floor {
            return true;
        }
        let spent = (self.elapsed)().0.saturating_sub(self.began);
        spent < self.time || self.done <= self.least && spent < self.time * 2
    }

    /// An entry was flushed.
    pub(crate) fn flushed(&mut self) {
        self.done += 1;
    }
}

/// Entries of a side at which it is full.
fn side(limits: &Limits) -> u64 {
    (limits.get(Limit::DedupLogMemMax) / 2 / ENTRY_BYTES).max(1)
}

/// Entries to be flushed so that the flushing side is empty by the time that the active side is full.
fn due(limits: &Limits, (active, flushing): (u64, u64), added: u64) -> u64 {
    match side(limits).saturating_sub(active) {
        0 => flushing,
        room => flushing.saturating_mul(added).div_ceil(room).min(flushing),
    }
}

/// Whether an active side with so many entries, which has taken records for `age` txgs, is to be flushed.
#[doc(alias = "ddt_log_swap")]
pub(super) fn wants_swap(limits: &Limits, entries: usize, age: u64) -> bool {
    age >= limits.get(Limit::DedupLogTxgMax) || u64::try_from(entries).unwrap_or(u64::MAX) >= side(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_once() -> (Duration, bool) {
        (Duration::ZERO, true)
    }

    /// Entries that a txg flushes of a log.
    fn flushed(fill: LogFill, limits: &Limits, pressure: &mut Pressure) -> usize {
        let mut share = FlushShare::of(fill, limits, pressure, &at_once);
        let mut count = 0;
        while count < fill.flushing && share.goes_on() {
            share.flushed();
            count += 1;
        }
        count
    }

    fn of_flushing(flushing: usize) -> LogFill {
        LogFill { active: 0, flushing, added: 0 }
    }

    /// However many entries each txg brings, the log stays bounded.
    #[test]
    fn the_pace_bounds_both_sides() {
        let limits = Limits::default();
        let full = usize::try_from(side(&limits)).unwrap();
        for (per_txg, txgs) in [(100, 60), (3_000, 60), (40_000, 8), (150_000, 3)] {
            let (mut fill, mut pressure) = (of_flushing(0), Pressure::default());
            let (mut most, mut age) = (0, 0);
            for _ in 0..txgs {
                fill = LogFill { active: fill.active + per_txg, added: per_txg, ..fill };
                most = most.max(fill.active + fill.flushing);
                fill.flushing -= flushed(fill, &limits, &mut pressure);
                age += 1;
                if fill.flushing == 0 && wants_swap(&limits, fill.active, age) {
                    fill = of_flushing(fill.active);
                    age = 0;
                }
            }
            assert!(most <= 2 * full + 2 * per_txg, "{per_txg}: {most}");
        }
    }

    #[test]
    fn settings_bound_the_share() {
        let limits = Limits::default();
        let one =
            |limits: &Limits, flushing| flushed(of_flushing(flushing), limits, &mut Pressure::default());
        assert_eq!(one(&limits, 1000), 125);
        assert_eq!(one(&limits, 50_000), 625);
        limits.set(Limit::DedupFlushMax, 1).unwrap();
        assert_eq!(one(&limits, 1000), 1);
        limits.set(Limit::DedupFlushMax, 100_000).unwrap();
        limits.set(Limit::DedupFlushMin, 10_000).unwrap();
        assert_eq!(one(&limits, 1000), 1000);
        limits.set(Limit::DedupFlushMin, 0).unwrap();
        limits.set(Limit::DedupFlushTxgs, 10).unwrap();
        assert_eq!(one(&limits, 1000), 125);
    }

    /// Above the cap the share grows from txg to txg, and below it goes back.
    #[test]
    fn a_cap_presses() {
        let limits = Limits::default();
        limits.set(Limit::DedupLogCap, 10_000).unwrap();
        let (mut pressure, mut fill) = (Pressure::default(), of_flushing(20_000));
        let mut counts = Vec::new();
        for _ in 0..4 {
            fill = LogFill { active: fill.active + 2000, added: 2000, ..fill };
            counts.push(flushed(fill, &limits, &mut pressure));
        }
        assert!(counts.is_sorted() && counts[3] > 3 * counts[0] / 2, "{counts:?}");
        for _ in 0..100 {
            flushed(of_flushing(100), &limits, &mut pressure);
        }
        assert_eq!(pressure.tenths, NO_PRESSURE);
    }

    /// Time ends a flush, but not before its minimum.
    #[test]
    fn time_ends_a_flush() {
        let limits = Limits::default();
        limits.set(Limit::DedupFlushMin, 10).unwrap();
        limits.set(Limit::DedupFlushTxgs, 10).unwrap();
        let now = std::cell::Cell::new(Duration::ZERO);
        let clock = || (now.get(), true);
        let mut share = FlushShare::of(of_flushing(1000), &limits, &mut Pressure::default(), &clock);
        let mut count = 0;
        while share.goes_on() {
            share.flushed();
            now.set(now.get() + Duration::from_millis(50));
            count += 1;
        }
        assert_eq!(count, 40, "twice a second at 50 ms");
        limits.set(Limit::DedupFlushTime, 1).unwrap();
        let mut share = FlushShare::of(of_flushing(1000), &limits, &mut Pressure::default(), &clock);
        let mut count = 0;
        while share.goes_on() {
            share.flushed();
            now.set(now.get() + Duration::from_secs(1));
            count += 1;
        }
        assert_eq!(count, 11);
    }
}
