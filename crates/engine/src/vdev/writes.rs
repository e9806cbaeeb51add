//! The writing half of a leaf's queue: waiting writes, sorted by offset, and runs of neighbours.

use std::collections::BTreeMap;

use blkdev::WriteDone;
use stdx::Buf;

use super::stats::Arrival;

/// Most buffers of a joined write.
const MAX_PARTS: usize = 256;
/// Most waiting writes for which a run has room from the start.
const BATCH: usize = 32;

/// A write that waits or is on the device.
pub(super) struct Write {
    pub(crate) parts: Vec<Buf>,
    pub(crate) len: u64,
    pub(crate) arrival: Arrival,
    pub(crate) done: WriteDone,
}

/// Writes that one device write will do: each begins where the one before ends.
pub(super) struct WriteRun {
    pub start: u64,
    pub(crate) writes: Vec<(u64, Write)>,
}

#[derive(Default)]
pub(super) struct Writes {
    /// By (device offset, arrival).
    waiting: BTreeMap<(u64, u64), Write>,
    arrivals: u64,
    /// Runs on the device.
    pub(crate) active: usize,
    /// Where the last run ended: the elevator continues from there.
    head: u64,
}

impl Writes {
    pub(crate) fn push(&mut self, offset: u64, parts: Vec<Buf>, arrival: Arrival, done: WriteDone) {
        let len = parts
            .iter()
            .fold(0u64, |len, part| len.saturating_add(u64::try_from(part.len()).unwrap_or(u64::MAX)));
        self.arrivals += 1;
        self.waiting.insert((offset, self.arrivals), Write { parts, len, arrival, done });
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the next run, of at most `longest` bytes unless one write is longer.
    pub(crate) fn next_run(&mut self, longest: u64) -> Option<WriteRun> {
        let first = self.waiting.range((self.head, 0)..).next().or_else(|| self.waiting.iter().next());
        let key = *first?.0;
        let write = self.waiting.remove(&key)?;
        let mut end = key.0.saturating_add(write.len);
        let mut parts = write.parts.len();
        // Blocks of a txg are written in batches, which mostly are one run.
        let mut run =
            WriteRun { start: key.0, writes: Vec::with_capacity(self.waiting.len().min(BATCH) + 1) };
        run.writes.push((key.0, write));
        while let Some((&next, write)) = self.waiting.range((end, 0)..).next() {
            parts = parts.saturating_add(write.parts.len());
            let stretched = end.saturating_add(write.len);
            if next.0 != end || stretched - run.start > longest || parts > MAX_PARTS {
                break;
            }
            let Some(write) = self.waiting.remove(&next) else { break };
            end = stretched;
            run.writes.push((next.0, write));
        }
        self.head = end;
        Some(run)
    }
}

impl WriteRun {
    /// Bytes of all writes.
    pub(crate) fn len(&self) -> u64 {
        self.writes.iter().fold(0u64, |len, (_, write)| len.saturating_add(write.len))
    }

    /// Whether it is of a scan: writes of scans are not joined with others.
    pub(crate) fn is_scan(&self) -> bool {
        self.arrivals().any(Arrival::is_scan)
    }

    /// When its writes came.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = &Arrival> {
        self.writes.iter().map(|(_, write)| &write.arrival)
    }

    /// The bytes. A run of one write moves them out; a run of several keeps them, to retry one by one.
    pub(crate) fn take_parts(&mut self) -> Vec<Buf> {
        match self.writes.as_mut_slice() {
            [(_, only)] => std::mem::take(&mut only.parts),
            all => all.iter().flat_map(|(_, write)| write.parts.iter().cloned()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stats::{IoClass, LeafStats};
    use super::*;

    fn push(writes: &mut Writes, offset: u64, len: usize) {
        let arrival = LeafStats::default().arrived(IoClass::AsyncWrite);
        writes.push(offset, vec![Buf::from(&vec![0u8; len][..])], arrival, Box::new(|_| {}));
    }

    fn runs(writes: &mut Writes) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| writes.next_run(1 << 20)).map(|run| (run.start, run.writes.len())).collect()
    }

    #[test]
    fn neighbours_are_joined_and_gaps_are_not() {
        let mut writes = Writes::default();
        for offset in [8192, 0, 4096, 16384, 20480] {
            push(&mut writes, offset, 4096);
        }
        assert_eq!(runs(&mut writes), [(0, 3), (16384, 2)]);
    }

    #[test]
    fn runs_are_bounded_and_the_same_place_twice_is_not_joined() {
        let mut writes = Writes::default();
        (0..20).for_each(|n| push(&mut writes, n << 16, 1 << 16));
        push(&mut writes, 0, 1 << 16);
        assert_eq!(runs(&mut writes), [(0, 16), (1 << 20, 4), (0, 1)]);
    }
}
