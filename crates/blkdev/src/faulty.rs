//! A test twin that fails as disks fail. Equal seeds and equal requests give equal failures.

use std::io;
use std::ops::Range;
use std::time::Duration;

use parking_lot::Mutex;
use stdx::AlignedBuf;
use stdx::rng::Rng;

use crate::{BlockDevice, Completion, Device, Geometry, Io, IoKind, bounds};

/// `No such device or address`.
const ENXIO: i32 = 6;

/// One way to fail. A request that touches a fault's range meets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Reads of the range end with an input/output error.
    ReadError(Range<u64>),
    /// Writes to the range end with an input/output error; nothing is written.
    WriteError(Range<u64>),
    /// Reads of the range give other bytes, the same ones each time, and report success.
    BitRot {
        /// Bytes affected.
        range: Range<u64>,
        /// One bit flips in each run of this many bytes (at least 1).
        every: u64,
    },
    /// Reads of the range give zeros: the writes never reached the medium.
    Missing(Range<u64>),
    /// Writes are cut: only a part of the sectors, chosen by the seed, reaches the device inside.
    Torn(Range<u64>),
    /// Writes to the range are acknowledged and dropped.
    LostWrites(Range<u64>),
    /// Requests for the range take this much longer.
    Delay(Range<u64>, Duration),
    /// Each request fails with this chance out of 1,000.
    Flaky(u32),
    /// Every request fails.
    Dead,
    /// Every request fails with `ENXIO`: the disk was pulled out.
    Gone,
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
            | Self::Delay(r, _) => start < r.end && r.start < end,
            Self::Flaky(_) | Self::Dead | Self::Gone => true,
        }
    }
}

/// Passes requests on to the device inside, with faults that can be set while it runs.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Device,
    seed: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    faults: Vec<Fault>,
}

impl FaultyDevice {
    /// A device without faults yet.
    pub fn new(inner: Device, seed: u64) -> Self {
        Self { inner, seed, state: Mutex::new(State { rng: Rng::new(seed), faults: Vec::new() }) }
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Takes all faults away. What was torn or lost stays so.
    pub fn clear(&self) {
        self.state.lock().faults.clear();
    }

    /// The faults that a request meets, or the error that it ends with at once.
    fn meet(&self, io: &Io) -> io::Result<Vec<Fault>> {
        let len = match io.kind {
            IoKind::Trim(len) => len,
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
        let done: Completion = Box::new(move |result, mut buf: AlignedBuf| {
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
        self.inner.submit(io);
    }

    /// Writes each sector or not, as the seed says, then reports success.
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

/// Applies a fault that changes what was read. `offset` is where `buf` lies on the device.
fn spoil(fault: &Fault, seed: u64, offset: u64, buf: &mut [u8]) {
    match fault {
        Fault::Missing(range) => each_byte(range, offset, buf, |_, byte| *byte = 0),
        Fault::BitRot { range, every } => each_byte(range, offset, buf, |at, byte| {
            let every = (*every).max(1);
            // The place within each run and the bit depend on the run alone, so that a second read agrees.
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
            IoKind::Flush | IoKind::Trim(_) => self.inner.submit(io),
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
    fn lost_writes_are_acknowledged() {
        let dev = faulty(3, &[Fault::LostWrites(0..10)]);
        write_at(&dev, 0, b"x").unwrap();
        assert_eq!(read_at(&dev, 0, 1).unwrap()[0], 0xff);
    }
}
