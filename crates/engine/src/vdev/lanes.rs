//! The order of a leaf's requests: those of scans (scrubs, resilvers, reconstructions) yield to all others.
//!
//! Requests that others wait for go first, and none of a scan starts while one of them waits, unless [`PASSED`] of them have gone
//! since the scan's last: a txg waits for the scan's requests, so they may not wait for ever. For some requests after the last
//! of them ([`RECENT`]), the device counts as shared: the scan has one short run on it at a time, none during a flush, and few
//! bytes that no flush has covered ([`UNFLUSHED`]), since the next flush of another caller has to wait for these. When they are
//! used up, the scan flushes by itself. Without other requests a scan has the whole device.
//!
//! All limits are counts, so that a simulated run repeats. Source of the idea: `vdev_queue_class_min_active`,
//! `zfs_vdev_nia_delay`, vdev_queue.c, OpenZFS 2.4. Differs from OpenZFS: flushes count as requests, and unflushed bytes are
//! limited.

use super::reads::{self, Reads};
use super::writes::{self, Writes};

/// Reads on the device at once, of scans and of others each.
pub(super) const MAX_ACTIVE: usize = 3;
/// Writes on the device at once, likewise.
pub(super) const MAX_WRITES: usize = 4;
/// Longest joined request.
const MAX_RUN: u64 = 1 << 20;
/// The same of a scan on a shared device.
const SHORT_RUN: u64 = 128 << 10;
/// Runs of a scan after the last request of another caller, during which the device counts as shared.
pub(super) const RECENT: u32 = 32;
/// Runs as which a flush of the scan itself counts.
const FLUSH_COUNTS: u32 = 8;
/// Bytes that a scan may have written since the last flush of a shared device.
pub(super) const UNFLUSHED: u64 = 256 << 10;

/// Requests of others, and flushes, after which one of a scan that waits has its turn.
pub(super) const PASSED: u32 = 4;

/// The next request for the device.
pub(super) enum Next {
    Read(reads::ReadRun),
    Write(writes::WriteRun),
    /// A flush that no caller waits for.
    Flush,
}

/// Requests that wait or are on the device.
#[derive(Default)]
pub(super) struct Lanes {
    reads: Reads,
    writes: Writes,
    scan_reads: Reads,
    scan_writes: Writes,
    /// Runs of a scan that still find the device shared.
    recent: u32,
    /// Bytes of a scan's writes since the last flush.
    unflushed: u64,
    /// Requests of others, and flushes, since a run of the scan that waits.
    passed: u32,
}

impl Lanes {
    /// The reads of a scan, or the others.
    pub(super) fn reads(&mut self, scan: bool) -> &mut Reads {
        self.note(scan);
        if scan { &mut self.scan_reads } else { &mut self.reads }
    }

    /// The writes of a scan, or the others.
    pub(super) fn writes(&mut self, scan: bool) -> &mut Writes {
        self.note(scan);
        if scan { &mut self.scan_writes } else { &mut self.writes }
    }

    /// A request comes or ends: the device is shared when it is not a scan's.
    pub(super) fn note(&mut self, scan: bool) {
        if !scan {
            self.recent = RECENT;
        }
    }

    /// A flush has ended. `own`: no caller waited for it.
    pub(crate) fn flushed(&mut self, own: bool) {
        self.unflushed = 0;
        if own {
            self.recent = self.recent.saturating_sub(FLUSH_COUNTS);
        } else {
            self.pass();
        }
    }

    /// Another request than the scan's has had the device.
    fn pass(&mut self) {
        let waits = !self.scan_reads.is_empty() || !self.scan_writes.is_empty();
        self.passed = if waits { self.passed.saturating_add(1) } else { 0 };
    }

    /// Takes the next request; `flushing`: a flush is on the device.
    pub(super) fn next(&mut self, flushing: bool) -> Option<Next> {
        if self.passed >= PASSED
            && let Some(turn) = self.next_of_scan(flushing)
        {
            return Some(turn);
        }
        if self.reads.active < MAX_ACTIVE
            && let Some(run) = self.reads.next_run(MAX_RUN)
        {
            self.reads.active += 1;
            self.pass();
            return Some(Next::Read(run));
        }
        let most = if self.reads.is_empty() { MAX_WRITES } else { 1 };
        if self.writes.active < most
            && let Some(run) = self.writes.next_run(MAX_RUN)
        {
            self.writes.active += 1;
            self.pass();
            return Some(Next::Write(run));
        }
        let none_waits = self.reads.is_empty() && self.writes.is_empty();
        if none_waits { self.next_of_scan(flushing) } else { None }
    }

    fn next_of_scan(&mut self, flushing: bool) -> Option<Next> {
        let shared = self.recent > 0;
        let active = self.scan_reads.active + self.scan_writes.active;
        let waits_for_flush = flushing && self.passed < PASSED;
        if shared && (active > 0 || waits_for_flush) {
            return None;
        }
        let longest = if shared { SHORT_RUN } else { MAX_RUN };
        if self.scan_reads.active < MAX_ACTIVE
            && let Some(run) = self.scan_reads.next_run(longest)
        {
            self.scan_reads.active += 1;
            self.started();
            return Some(Next::Read(run));
        }
        if shared && self.unflushed >= UNFLUSHED && !self.scan_writes.is_empty() {
            // The one under way will do.
            return (!flushing).then_some(Next::Flush);
        }
        let most = if self.scan_reads.is_empty() { MAX_WRITES } else { 1 };
        if self.scan_writes.active >= most {
            return None;
        }
        let run = self.scan_writes.next_run(longest)?;
        self.scan_writes.active += 1;
        self.started();
        self.unflushed = self.unflushed.saturating_add(run.len());
        Some(Next::Write(run))
    }

    /// A run of a scan goes to the device.
    fn started(&mut self) {
        self.recent = self.recent.saturating_sub(1);
        self.passed = 0;
    }
}
