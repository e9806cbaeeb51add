//! The reading half of a leaf's queue: waiting reads, sorted by offset, and runs of neighbours.

use std::collections::BTreeMap;

use stdx::Buf;

use super::queue::LeafReadDone;
use super::stats::Arrival;

/// Unwanted bytes between two requests that are still read together.
const GAP: u64 = 32 << 10;

/// A read that waits or is on the device.
pub(super) struct LeafRead {
    pub len: u64,
    pub arrival: Arrival,
    pub done: LeafReadDone,
}

/// Requests that one device read will answer.
pub(super) struct ReadRun {
    pub start: u64,
    pub end: u64,
    pub requests: Vec<(u64, LeafRead)>,
}

#[derive(Default)]
pub(super) struct Reads {
    /// By (device offset, arrival).
    waiting: BTreeMap<(u64, u64), LeafRead>,
    arrivals: u64,
    /// Runs on the device.
    pub active: usize,
    /// Where the last run ended: the elevator continues from there.
    head: u64,
}

impl Reads {
    pub(super) fn push(&mut self, offset: u64, request: LeafRead) {
        self.arrivals += 1;
        self.waiting.insert((offset, self.arrivals), request);
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the next run, of at most `longest` bytes unless one request is longer.
    pub(crate) fn next_run(&mut self, longest: u64) -> Option<ReadRun> {
        let first = self.waiting.range((self.head, 0)..).next().or_else(|| self.waiting.iter().next());
        let key = *first?.0;
        let request = self.waiting.remove(&key)?;
        let mut run = ReadRun {
            start: key.0,
            end: key.0.saturating_add(request.len),
            requests: vec![(key.0, request)],
        };
        while let Some((&next, request)) = self.waiting.range((run.start, 0)..).next() {
            let end = run.end.max(next.0.saturating_add(request.len));
            if next.0 > run.end.saturating_add(GAP) || end - run.start > longest {
                break;
            }
            let Some(request) = self.waiting.remove(&next) else { break };
            run.end = end;
            run.requests.push((next.0, request));
        }
        self.head = run.end;
        Some(run)
    }
}

impl ReadRun {
    /// Whether it is of a scan: requests of scans are not joined with others.
    pub(crate) fn is_scan(&self) -> bool {
        self.arrivals().any(Arrival::is_scan)
    }

    /// When its requests came.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = &Arrival> {
        self.requests.iter().map(|(_, request)| &request.arrival)
    }

    /// Gives each request its part.
    pub(super) fn answer(self, buf: &Buf) {
        for (offset, request) in self.requests {
            let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
            let len = usize::try_from(request.len).unwrap_or(usize::MAX);
            (request.done)(Ok(buf.slice(from..from.saturating_add(len))));
        }
    }
}
