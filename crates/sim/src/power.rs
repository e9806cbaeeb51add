//! Real devices that lose power together, with the content of their caches.
//!
//! [`Volatile`] passes all requests to the inner device, and keeps the previous content of each write until a flush
//! that was submitted after the write had ended has also ended. When the [`Switch`] trips (after a number of writes
//! on all of its devices) no request reaches the device any more, and [`Volatile::settle`] decides for each
//! unflushed write whether it stays, is lost, or is torn at its sectors.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use blkdev::{BlockDevice, Device, Geometry, Io, IoKind, write_at};
use parking_lot::Mutex;
use stdx::AlignedBuf;
use stdx::rng::Rng;

const SECTOR: usize = 512;

/// The machine's power.
#[derive(Debug)]
pub struct Switch {
    /// Writes that still reach a device.
    left: AtomicU64,
}

impl Default for Switch {
    fn default() -> Self {
        Self { left: AtomicU64::new(u64::MAX) }
    }
}

impl Switch {
    /// The power fails after that many more writes.
    pub fn trip_after(&self, writes: u64) {
        self.left.store(writes, Ordering::SeqCst);
    }

    /// Whether there is power.
    pub fn is_on(&self) -> bool {
        self.left.load(Ordering::SeqCst) > 0
    }

    /// Counts one write; returns false if it comes too late.
    fn count(&self) -> bool {
        let less = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }
}

/// A write that is not safe yet.
#[derive(Debug)]
struct Unsafe {
    offset: u64,
    before: AlignedBuf,
    done: Arc<AtomicBool>,
}

/// Records the previous content of the range of `io`; its completion records its end.
fn remember(cached: &Mutex<Vec<Unsafe>>, io: Io, before: AlignedBuf) -> Io {
    let done = Arc::new(AtomicBool::new(false));
    cached.lock().push(Unsafe { offset: io.offset, before, done: Arc::clone(&done) });
    let theirs = io.done;
    let ended = move |result, buf| {
        done.store(true, Ordering::SeqCst);
        theirs(result, buf);
    };
    Io { done: Box::new(ended), ..io }
}

/// A device with a volatile cache.
#[derive(Debug)]
pub struct Volatile {
    inner: Device,
    switch: Arc<Switch>,
    cached: Arc<Mutex<Vec<Unsafe>>>,
}

impl Volatile {
    /// Wraps `inner`, powered by `switch`.
    pub fn new(inner: Device, switch: &Arc<Switch>) -> Arc<Self> {
        Arc::new(Self { inner, switch: Arc::clone(switch), cached: Arc::default() })
    }

    /// After the power failure and the end of every request: each unflushed write stays, is lost, or keeps some of
    /// its sectors. Returns their number.
    pub fn settle(&self, random: &mut Rng) -> io::Result<usize> {
        let cached = std::mem::take(&mut *self.cached.lock());
        for lost in cached.iter().rev() {
            match random.below(4) {
                0 | 1 => write_at(&*self.inner, lost.offset, &lost.before)?,
                2 => self.tear(lost, random)?,
                _ => {}
            }
        }
        Ok(cached.len())
    }

    fn tear(&self, lost: &Unsafe, random: &mut Rng) -> io::Result<()> {
        for (at, sector) in (lost.offset..).step_by(SECTOR).zip(lost.before.chunks(SECTOR)) {
            if random.below(2) == 0 {
                write_at(&*self.inner, at, sector)?;
            }
        }
        Ok(())
    }

    /// Reads the previous content of the range of `io`, then submits it. Its completion records its end. No thread waits:
    /// the caller may be one of those that carry out requests of the inner device.
    fn write(&self, io: Io) {
        let (inner, cached, offset) = (Arc::clone(&self.inner), Arc::clone(&self.cached), io.offset);
        let before = AlignedBuf::scratch(io.buf.len());
        let read = move |result: io::Result<()>, before| match result {
            Ok(()) => inner.submit(remember(&cached, io, before)),
            Err(why) => (io.done)(Err(why), io.buf),
        };
        self.inner.submit(Io { kind: IoKind::Read, offset, buf: before, done: Box::new(read) });
    }

    /// When the flush has ended, the writes that had ended before it are safe.
    fn flushing(&self, io: Io) -> Io {
        let held = self.cached.lock();
        let safe: Vec<_> =
            held.iter().filter(|w| w.done.load(Ordering::SeqCst)).map(|w| Arc::clone(&w.done)).collect();
        drop(held);
        let (cached, switch, theirs) = (Arc::clone(&self.cached), Arc::clone(&self.switch), io.done);
        let ended = move |result: io::Result<()>, buf| {
            if result.is_ok() && switch.is_on() {
                cached.lock().retain(|w| !safe.iter().any(|s| Arc::ptr_eq(s, &w.done)));
            }
            theirs(result, buf);
        };
        Io { done: Box::new(ended), ..io }
    }
}

impl BlockDevice for Volatile {
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
        let on = if io.kind == IoKind::Write { self.switch.count() } else { self.switch.is_on() };
        if !on {
            (io.done)(Err(io::Error::other("there is no power")), io.buf);
            return;
        }
        match io.kind {
            IoKind::Write => self.write(io),
            IoKind::Flush => self.inner.submit(self.flushing(io)),
            IoKind::Read | IoKind::Trim(_) | IoKind::Erase(_) => self.inner.submit(io),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkdev::{FileDevice, MemDevice, flush, read_at};

    #[test]
    fn flushed_bytes_stay_and_nothing_comes_after_the_end() {
        let inner: Device = Arc::new(MemDevice::new("m", vec![0; 1 << 20]));
        let switch = Arc::new(Switch::default());
        let device = Volatile::new(Arc::clone(&inner), &switch);
        write_at(&*device, 0, &[1; 4096]).unwrap();
        flush(&*device).unwrap();
        switch.trip_after(40);
        (0..40u64).for_each(|n| write_at(&*device, n * 4096, &[2; 4096]).unwrap());
        assert!(!switch.is_on());
        assert!(write_at(&*device, 0, &[3; 512]).is_err() && flush(&*device).is_err());
        assert!(read_at(&*device, 0, 512).is_err());
        assert_eq!(device.settle(&mut Rng::new(5)).unwrap(), 40);
        let all = read_at(&*inner, 0, 40 * 4096).unwrap();
        let sectors: Vec<u8> = all.chunks(SECTOR).map(|s| s[0]).collect();
        assert!(all.chunks(SECTOR).all(|s| s.iter().all(|b| *b == s[0])));
        let (first, rest) = sectors.split_at(8);
        assert!(first.iter().all(|b| [1, 2].contains(b)) && rest.iter().all(|b| [0, 2].contains(b)));
        let torn = |page: &[u8]| page.contains(&0) && page.contains(&2);
        assert!(rest.chunks(8).any(torn) && rest.contains(&0) && rest.contains(&2));
    }

    /// Writes 512 bytes; its completion submits the next write, as the queue of a leaf does.
    fn chain(device: &Arc<Volatile>, left: u64, ended: std::sync::mpsc::Sender<()>) {
        let next = Arc::clone(device);
        let done = move |result: io::Result<()>, _| {
            result.unwrap();
            match left {
                0 => ended.send(()).unwrap(),
                _ => chain(&next, left - 1, ended),
            }
        };
        let (buf, offset) = (AlignedBuf::zeroed(SECTOR), left * 512);
        device.submit(Io { kind: IoKind::Write, offset, buf, done: Box::new(done) });
    }

    #[test]
    fn completions_that_write_do_not_wait_for_each_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let options = blkdev::OpenOptions { mode: blkdev::OpenMode::ReadWrite, ..Default::default() };
        let inner: Device = Arc::new(FileDevice::open(file.path(), options).unwrap());
        let device = Volatile::new(inner, &Arc::new(Switch::default()));
        let (ended, all) = std::sync::mpsc::channel();
        (0..64).for_each(|_| chain(&device, 20, ended.clone()));
        for _ in 0..64 {
            all.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        }
    }
}
