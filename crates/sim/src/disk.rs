//! Disks with a volatile cache, and a record of all their requests.
//!
//! A write is safe once a flush of its disk, submitted after the write had completed, has completed. Until then a
//! power cut may keep it, lose it, or keep some of its 512-byte sectors, independently of other writes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use blkdev::{BlockDevice, Geometry, Io, IoKind};
use parking_lot::{Condvar, Mutex};

use crate::image::Pages;

/// An event.
#[derive(Debug, Clone)]
pub enum Event {
    /// Bytes were written to a disk.
    Write(usize, u64, Arc<[u8]>),
    /// A disk was flushed.
    Flush(usize),
    /// The workload was promised that this state is durable.
    Mark(u64),
}

/// The events on all disks, in order.
#[derive(Debug, Default)]
pub struct Record {
    events: Mutex<Vec<Event>>,
}

impl Record {
    /// Records that state `number` must survive from now on.
    pub fn mark(&self, number: u64) {
        self.events.lock().push(Event::Mark(number));
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.events.lock().len()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all events.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock())
    }
}

/// Bytes of a trimmed range that become one event.
const TRIM_PIECE: usize = 1 << 20;

/// A disk in memory. Requests complete before `submit` returns.
#[derive(Debug)]
pub struct Disk {
    name: String,
    number: usize,
    size: u64,
    pages: Mutex<Pages>,
    /// Bytes at its end that are hidden.
    hidden: AtomicU64,
    record: Option<Arc<Record>>,
}

impl Disk {
    /// An empty disk that is recorded.
    pub fn new(number: usize, record: &Arc<Record>) -> Arc<Self> {
        Self::over(number, Pages::default(), Some(Arc::clone(record)))
    }

    /// A disk with the content of an image.
    pub fn over(number: usize, pages: Pages, record: Option<Arc<Record>>) -> Arc<Self> {
        let (name, size) = (format!("/sim/disk{number}"), pages.size);
        Arc::new(Self { name, number, size, pages: Mutex::new(pages), hidden: AtomicU64::new(0), record })
    }

    /// Hides this many bytes until it is measured again.
    pub fn hide(&self, bytes: u64) {
        self.hidden.store(bytes, Ordering::Relaxed);
    }

    fn shown(&self) -> u64 {
        self.size.saturating_sub(self.hidden.load(Ordering::Relaxed))
    }

    /// A copy of its content.
    pub fn pages(&self) -> Pages {
        self.pages.lock().clone()
    }

    fn run(&self, io: &mut Io) -> io::Result<()> {
        let len = u64::try_from(io.buf.len()).unwrap_or(u64::MAX);
        if io.offset.checked_add(len).is_none_or(|end| end > self.shown()) {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        match io.kind {
            IoKind::Read => self.pages.lock().read(io.offset, &mut io.buf),
            IoKind::Write => self.pages.lock().write(io.offset, &io.buf),
            IoKind::Trim(len) | IoKind::Erase(len) => return self.trim(io.offset, len),
            IoKind::Flush => {}
        }
        let event = match io.kind {
            IoKind::Write => Event::Write(self.number, io.offset, Arc::from(&*io.buf)),
            IoKind::Flush => Event::Flush(self.number),
            IoKind::Read | IoKind::Trim(_) | IoKind::Erase(_) => return Ok(()),
        };
        self.note(event);
        Ok(())
    }

    fn note(&self, event: Event) {
        if let Some(record) = &self.record {
            record.events.lock().push(event);
        }
    }

    /// Overwrites a range with zeros: whatever is still needed there is lost.
    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= self.shown());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let zeros: Arc<[u8]> = Arc::from(vec![0; TRIM_PIECE]);
        let mut at = offset;
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(TRIM_PIECE).min(TRIM_PIECE);
            let piece = if left == TRIM_PIECE { Arc::clone(&zeros) } else { Arc::from(vec![0; left]) };
            self.pages.lock().write(at, &piece);
            self.note(Event::Write(self.number, at, piece));
            at += u64::try_from(left).unwrap_or(u64::MAX);
        }
        Ok(())
    }
}

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.shown(),
            logical_sector: 512,
            physical_sector: 512,
            rotational: false,
            read_only: false,
        }
    }

    fn measure(&self) -> io::Result<u64> {
        self.hide(0);
        Ok(self.size)
    }

    fn submit(&self, mut io: Io) {
        let result = self.run(&mut io);
        (io.done)(result, io.buf);
    }
}

/// Maximum hold time of a thread: a thread that waits for it must not wait for ever.
const HELD_AT_MOST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Held {
    /// The held thread, and the number of its next writes that pass.
    whom: Option<(ThreadId, u64)>,
    /// It has reached that write, or its end.
    there: bool,
}

/// Holds one thread before one of its writes, while others use the same disks.
#[derive(Debug, Default)]
pub struct Gate {
    held: Mutex<Held>,
    changed: Condvar,
}

impl Gate {
    /// Runs `slow` on a thread of its own up to the write number `writes` that it submits itself, then `meanwhile`
    /// here, with whether `slow` has reached that write and is not finished, then the rest of `slow`. If
    /// `meanwhile` waits for `slow`, `slow` continues after a second.
    pub fn overlap<T>(
        &self,
        writes: u64,
        slow: impl FnOnce() + Send,
        meanwhile: impl FnOnce(bool) -> T,
    ) -> T {
        thread::scope(|scope| {
            let slow = scope.spawn(|| {
                self.held.lock().whom = Some((thread::current().id(), writes));
                slow();
                self.pass();
                self.held.lock().there = true;
                self.changed.notify_all();
            });
            let mut held = self.held.lock();
            while !held.there && !slow.is_finished() {
                self.changed.wait_for(&mut held, Duration::from_millis(50));
            }
            let is_held = held.whom.is_some();
            drop(held);
            let done = meanwhile(is_held);
            self.pass();
            if let Err(panic) = slow.join() {
                std::panic::resume_unwind(panic);
            }
            *self.held.lock() = Held::default();
            done
        })
    }

    fn pass(&self) {
        self.held.lock().whom = None;
        self.changed.notify_all();
    }

    fn hold(&self) {
        let mut held = self.held.lock();
        match &mut held.whom {
            Some((whom, left)) if *whom == thread::current().id() => {
                *left = left.saturating_sub(1);
                if *left > 0 {
                    return;
                }
            }
            _ => return,
        }
        held.there = true;
        self.changed.notify_all();
        while held.whom.is_some() {
            if self.changed.wait_for(&mut held, HELD_AT_MOST).timed_out() {
                held.whom = None;
            }
        }
    }
}

/// A disk behind a gate.
#[derive(Debug)]
pub struct Gated {
    /// The disk behind the gate.
    pub disk: Arc<Disk>,
    /// The gate, which may be shared by other disks.
    pub gate: Arc<Gate>,
}

impl BlockDevice for Gated {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn measure(&self) -> io::Result<u64> {
        self.disk.measure()
    }

    fn submit(&self, io: Io) {
        if matches!(io.kind, IoKind::Write) {
            self.gate.hold();
        }
        self.disk.submit(io);
    }
}
