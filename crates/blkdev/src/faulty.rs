//! A test device that fails like real disks. Equal seeds and equal requests produce equal failures.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stdx::AlignedBuf;
use stdx::rng::Rng;

use crate::{BlockDevice, Completion, Device, Geometry, Io, IoKind, TrimSupport, bounds};

/// `No such device or address`.
const ENXIO: i32 = 6;
/// `Input/output error`.
const EIO: i32 = 5;

/// One way to fail. A request that touches a fault's range triggers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Reads of the range fail with an input/output error.
    ReadError(Range<u64>),
    /// Writes to the range fail with an input/output error; nothing is written.
    WriteError(Range<u64>),
    /// Reads of the range return other bytes, the same ones each time, and report success.
    BitRot {
        /// Bytes affected.
        range: Range<u64>,
        /// One bit flips in each run of this many bytes (at least 1).
        every: u64,
    },
    /// Reads of the range return zeros: the writes never reached the medium.
    Missing(Range<u64>),
    /// Writes are torn: only some of the sectors, selected by the seed, reach the inner device.
    Torn(Range<u64>),
    /// Writes to the range are acknowledged and dropped.
    LostWrites(Range<u64>),
    /// Requests for the range take this much longer.
    Delay(Range<u64>, Duration),
    /// Each request fails with this probability out of 1,000.
    Flaky(u32),
    /// Every request fails.
    Dead,
    /// Every request fails with `ENXIO`: the disk was pulled out.
    Gone,
    /// The next flushes fail with an input/output error, as when the system cannot write back its page cache: of
    /// the writes since the fault was set or the last good flush, each is lost with a probability out of 1,000, and
    /// the system forgets that it has not written them. Until they are rewritten reads return them, except reads
    /// that bypass the caches.
    FlushErrors {
        /// Number of failing flushes.
        count: u32,
        /// Probability out of 1,000.
        lost: u32,
    },
    /// Flushes are acknowledged and not done.
    LyingFlush,
    /// Writes to the range succeed until one touches bytes that were written since the fault was set: that request and all
    /// later ones fail.
    DiesOnOverwrite(Range<u64>),
}

impl Fault {
    fn touches(&self, start: u64, end: u64) -> bool {
        match self {
            Self::ReadError(r)
            | Self::WriteError(r)
            | Self::BitRot { range: r, .. }
            | Self::Missing(r)
            | Self::Torn(r)
            | Self::LostWrites(r)
            | Self::DiesOnOverwrite(r)
            | Self::Delay(r, _) => start < r.end && r.start < end,
            Self::Flaky(_) | Self::Dead | Self::Gone | Self::FlushErrors { .. } | Self::LyingFlush => true,
        }
    }
}

/// Passes requests to the inner device, with faults that can be set at any time.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Device,
    seed: u64,
    past_caches: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    faults: Vec<Fault>,
    /// Previous contents of ranges written since the last good flush, while a fault needs them.
    unflushed: Vec<(u64, AlignedBuf)>,
    /// Lost writes that are still in memory.
    cached: Vec<(u64, Vec<u8>)>,
    /// Ranges written under [`Fault::DiesOnOverwrite`].
    written: Vec<Range<u64>>,
}

impl State {
    /// Consumes one of the pending flush errors; returns the probability of each write to be lost.
    fn take_flush_error(&mut self) -> Option<u64> {
        let due = self.faults.iter_mut().find_map(|fault| match fault {
            Fault::FlushErrors { count, lost } if *count > 0 => Some((count, *lost)),
            _ => None,
        });
        let (count, lost) = due?;
        *count -= 1;
        Some(u64::from(lost))
    }

    /// Notes a write; the disk dies if it overwrites another one.
    fn dies_on(&mut self, write: Range<u64>) -> bool {
        let again = self.written.iter().any(|old| old.start < write.end && write.start < old.end);
        self.written.push(write);
        if again {
            self.faults.push(Fault::Dead);
        }
        again
    }

    /// Applies a write to the bytes in memory, too.
    fn wrote(&mut self, offset: u64, bytes: &[u8]) {
        for (at, cached) in &mut self.cached {
            overlay(*at, cached, offset, bytes);
        }
    }
}

/// Copies the bytes at `from` over those at `to` where the ranges overlap.
fn overlay(to: u64, bytes: &mut [u8], from: u64, new: &[u8]) {
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    let (target, source) = (place(from.saturating_sub(to)), place(to.saturating_sub(from)));
    let (Some(target), Some(source)) = (bytes.get_mut(target..), new.get(source..)) else { return };
    target.iter_mut().zip(source).for_each(|(old, new)| *old = *new);
}

impl FaultyDevice {
    /// A device without faults yet.
    pub fn new(inner: Device, seed: u64) -> Self {
        let state = Mutex::new(State {
            rng: Rng::new(seed),
            faults: Vec::new(),
            unflushed: Vec::new(),
            cached: Vec::new(),
            written: Vec::new(),
        });
        Self { inner, seed, past_caches: AtomicBool::new(false), state }
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes all faults. Torn and lost writes stay so.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.faults.clear();
        state.written.clear();
        state.unflushed.clear();
    }

    /// The faults of a request, or the error with which it fails at once.
    fn meet(&self, io: &Io) -> io::Result<Vec<Fault>> {
        let len = match io.kind {
            IoKind::Trim(len) | IoKind::Erase(len) => len,
            _ => u64::try_from(io.buf.len()).unwrap_or(u64::MAX),
        };
        let end = io.offset.saturating_add(len);
        let mut state = self.state.lock();
        let met: Vec<Fault> = state.faults.iter().filter(|f| f.touches(io.offset, end)).cloned().collect();
        let fails = met.iter().any(|fault| match fault {
            Fault::Dead => true,
            Fault::ReadError(_) => io.kind == IoKind::Read,
            Fault::WriteError(_) => io.kind == IoKind::Write,
            Fault::Flaky(per_mille) => state.rng.below(1000) < u64::from(*per_mille),
            Fault::DiesOnOverwrite(_) => io.kind == IoKind::Write && state.dies_on(io.offset..end),
            _ => false,
        });
        if met.contains(&Fault::Gone) {
            return Err(io::Error::from_raw_os_error(ENXIO));
        }
        if fails { Err(io::Error::other("injected device error")) } else { Ok(met) }
    }

    fn read(&self, io: Io, met: Vec<Fault>) {
        let Io { kind, offset, buf, done } = io;
        let seed = self.seed;
        let cached = match self.past_caches.load(Ordering::Acquire) {
            true => Vec::new(),
            false => self.state.lock().cached.clone(),
        };
        let done: Completion = Box::new(move |result, mut buf: AlignedBuf| {
            cached.iter().for_each(|(at, bytes)| overlay(offset, &mut buf, *at, bytes));
            met.iter().for_each(|fault| spoil(fault, seed, offset, &mut buf));
            done(result, buf);
        });
        self.inner.submit(Io { kind, offset, buf, done });
    }

    fn write(&self, io: Io, met: &[Fault]) {
        if met.iter().any(|f| matches!(f, Fault::LostWrites(_))) {
            return bounds::finish(io, Ok(()));
        }
        if met.iter().any(|f| matches!(f, Fault::Torn(_))) {
            return self.tear(io);
        }
        let may_be_lost = met.iter().any(|f| matches!(f, Fault::FlushErrors { .. }));
        let before =
            may_be_lost.then(|| crate::read_at(&*self.inner, io.offset, io.buf.len()).ok()).flatten();
        let mut state = self.state.lock();
        state.wrote(io.offset, &io.buf);
        state.unflushed.extend(before.map(|before| (io.offset, before)));
        drop(state);
        self.inner.submit(io);
    }

    fn flush(&self, io: Io, met: &[Fault]) {
        let due = self.state.lock().take_flush_error();
        if let Some(chance) = due {
            let why = self.lose(chance).err();
            return bounds::finish(io, Err(why.unwrap_or_else(|| io::Error::from_raw_os_error(EIO))));
        }
        if met.contains(&Fault::LyingFlush) {
            return bounds::finish(io, Ok(()));
        }
        self.state.lock().unflushed.clear();
        self.inner.submit(io);
    }

    /// Reverts some of the writes since the last good flush; memory still has them.
    fn lose(&self, chance: u64) -> io::Result<()> {
        let mut lost = Vec::new();
        {
            let mut state = self.state.lock();
            for (offset, before) in std::mem::take(&mut state.unflushed) {
                if state.rng.below(1000) < chance {
                    lost.push((offset, before));
                }
            }
        }
        for (offset, before) in &lost {
            let now = crate::read_at(&*self.inner, *offset, before.len())?;
            self.state.lock().cached.push((*offset, now.to_vec()));
        }
        lost.iter().rev().try_for_each(|(offset, before)| crate::write_at(&*self.inner, *offset, before))
    }

    /// Writes or drops each sector according to the seed, then reports success.
    fn tear(&self, io: Io) {
        let sector = usize::try_from(self.geometry().logical_sector).unwrap_or(512).max(1);
        let mut offset = io.offset;
        for part in io.buf.chunks(sector) {
            let reaches = self.state.lock().rng.below(2) == 0;
            if reaches && let Err(err) = crate::write_at(&*self.inner, offset, part) {
                return bounds::finish(io, Err(err));
            }
            offset = offset.saturating_add(u64::try_from(part.len()).unwrap_or(u64::MAX));
        }
        bounds::finish(io, Ok(()));
    }
}

/// Applies a fault that changes the read bytes. `offset` is the position of `buf` on the device.
fn spoil(fault: &Fault, seed: u64, offset: u64, buf: &mut [u8]) {
    match fault {
        Fault::Missing(range) => each_byte(range, offset, buf, |_, byte| *byte = 0),
        Fault::BitRot { range, every } => each_byte(range, offset, buf, |at, byte| {
            let every = (*every).max(1);
            // The position within each run and the bit depend on the run alone, so that a second read returns the
            // same.
            let mut rng = Rng::new(seed ^ (at / every));
            if rng.below(every) == at % every {
                *byte ^= 1 << rng.below(8);
            }
        }),
        _ => {}
    }
}

fn each_byte(range: &Range<u64>, offset: u64, buf: &mut [u8], mut change: impl FnMut(u64, &mut u8)) {
    for (at, byte) in (offset..).zip(buf.iter_mut()) {
        if range.contains(&at) {
            change(at, byte);
        }
    }
}

impl BlockDevice for FaultyDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn measure(&self) -> io::Result<u64> {
        self.inner.measure()
    }

    fn read_past_caches(&self, on: bool) {
        self.inner.read_past_caches(on);
        self.past_caches.store(on, Ordering::Release);
    }

    fn trim_support(&self) -> TrimSupport {
        self.inner.trim_support()
    }

    fn submit(&self, io: Io) {
        let met = match self.meet(&io) {
            Ok(met) => met,
            Err(err) => return bounds::finish(io, Err(err)),
        };
        for fault in &met {
            if let Fault::Delay(_, time) = fault {
                std::thread::sleep(*time);
            }
        }
        match io.kind {
            IoKind::Read => self.read(io, met),
            IoKind::Write => self.write(io, &met),
            IoKind::Flush => self.flush(io, &met),
            IoKind::Trim(_) | IoKind::Erase(_) => self.inner.submit(io),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{MemDevice, read_at, write_at};

    fn faulty(seed: u64, faults: &[Fault]) -> FaultyDevice {
        let dev = FaultyDevice::new(Arc::new(MemDevice::new("m", vec![0xff; 8192])), seed);
        faults.iter().for_each(|fault| dev.inject(fault.clone()));
        dev
    }

    #[test]
    fn errors_only_in_the_range() {
        let dev = faulty(1, &[Fault::ReadError(512..1024)]);
        assert!(read_at(&dev, 0, 512).is_ok());
        assert!(read_at(&dev, 511, 2).is_err());
        assert!(read_at(&dev, 1024, 512).is_ok());
        assert!(write_at(&dev, 512, &[1]).is_ok());
        dev.clear();
        assert!(read_at(&dev, 511, 2).is_ok());
    }

    #[test]
    fn rot_is_repeatable_and_counted() {
        let dev = faulty(7, &[Fault::BitRot { range: 0..4096, every: 64 }]);
        let first = read_at(&dev, 0, 8192).unwrap();
        assert_eq!(*first, *read_at(&dev, 0, 8192).unwrap());
        assert_eq!(first[512..600], *read_at(&dev, 512, 88).unwrap());
        assert_eq!(first.iter().filter(|b| **b != 0xff).count(), 64);
    }

    #[test]
    fn missing_reads_zero_and_dead_reads_nothing() {
        let dev = faulty(1, &[Fault::Missing(10..12)]);
        assert_eq!(&*read_at(&dev, 9, 4).unwrap(), &[0xff, 0, 0, 0xff]);
        dev.inject(Fault::Dead);
        assert!(read_at(&dev, 4000, 1).is_err());
    }

    #[test]
    fn torn_writes_whole_sectors() {
        let dev = faulty(3, &[Fault::Torn(0..8192)]);
        write_at(&dev, 0, &[0; 8192]).unwrap();
        let now = read_at(&dev, 0, 8192).unwrap();
        let kept = now.chunks(512).filter(|s| s.iter().all(|b| *b == 0xff)).count();
        let new = now.chunks(512).filter(|s| s.iter().all(|b| *b == 0)).count();
        assert_eq!(kept + new, 16);
        assert!(kept > 0 && new > 0);
    }

    #[test]
    fn writes_lost_by_a_failed_flush_stay_in_memory_until_written_again() {
        let dev = faulty(3, &[Fault::FlushErrors { count: 1, lost: 1000 }]);
        write_at(&dev, 512, &[1; 512]).unwrap();
        write_at(&dev, 600, &[2; 8]).unwrap();
        assert!(crate::flush(&dev).is_err() && crate::flush(&dev).is_ok(), "it is reported once");
        let bytes = |past| {
            dev.read_past_caches(past);
            let read = read_at(&dev, 500, 200).unwrap();
            [read[11], read[12], read[100], read[108]]
        };
        assert_eq!((bytes(false), bytes(true)), ([0xff, 1, 2, 1], [0xff; 4]));
        write_at(&dev, 512, &[3; 90]).unwrap();
        assert_eq!((bytes(false), bytes(true)), ([0xff, 3, 3, 1], [0xff, 3, 3, 0xff]));
    }

    #[test]
    fn lost_writes_are_acknowledged() {
        let dev = faulty(3, &[Fault::LostWrites(0..10)]);
        write_at(&dev, 0, b"x").unwrap();
        assert_eq!(read_at(&dev, 0, 1).unwrap()[0], 0xff);
    }
}
