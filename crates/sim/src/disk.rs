//! Disks with a volatile cache, and a record of everything that was asked of them.
//!
//! A write is safe once a flush of its disk, submitted after the write had completed, has completed. Until then
//! a power cut may keep it, lose it, or keep some of its 512-byte sectors, whatever happens to others.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blkdev::{BlockDevice, Geometry, Io, IoKind};
use parking_lot::Mutex;

use crate::image::Pages;

/// One thing that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// Bytes were written to a disk.
    Write(usize, u64, Arc<[u8]>),
    /// A disk was flushed.
    Flush(usize),
    /// The workload was promised that its state number is durable.
    Mark(u64),
}

/// What happened, in order, on all disks.
#[derive(Debug, Default)]
pub struct Record {
    events: Mutex<Vec<Event>>,
}

impl Record {
    /// Notes that state `number` must survive from now on.
    pub fn mark(&self, number: u64) {
        self.events.lock().push(Event::Mark(number));
    }

    /// How much happened so far.
    pub fn len(&self) -> usize {
        self.events.lock().len()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that happened so far.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock())
    }
}

/// A disk in memory. Requests complete before `submit` returns.
#[derive(Debug)]
pub struct Disk {
    name: String,
    number: usize,
    size: u64,
    pages: Mutex<Pages>,
    /// Bytes at its end that are not there yet.
    hidden: AtomicU64,
    record: Option<Arc<Record>>,
}

impl Disk {
    /// An empty disk that is recorded.
    pub fn new(number: usize, record: &Arc<Record>) -> Arc<Self> {
        Self::over(number, Pages::default(), Some(Arc::clone(record)))
    }

    /// A disk that holds an image.
    pub fn over(number: usize, pages: Pages, record: Option<Arc<Record>>) -> Arc<Self> {
        let (name, size) = (format!("/sim/disk{number}"), pages.size);
        Arc::new(Self { name, number, size, pages: Mutex::new(pages), hidden: AtomicU64::new(0), record })
    }

    /// It has so many bytes less until it is measured again.
    pub fn hide(&self, bytes: u64) {
        self.hidden.store(bytes, Ordering::Relaxed);
    }

    fn shown(&self) -> u64 {
        self.size.saturating_sub(self.hidden.load(Ordering::Relaxed))
    }

    /// A copy of what it holds.
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
            IoKind::Flush | IoKind::Trim(_) => {}
        }
        let event = match io.kind {
            IoKind::Write => Event::Write(self.number, io.offset, Arc::from(&*io.buf)),
            IoKind::Flush => Event::Flush(self.number),
            IoKind::Read | IoKind::Trim(_) => return Ok(()),
        };
        if let Some(record) = &self.record {
            record.events.lock().push(event);
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
