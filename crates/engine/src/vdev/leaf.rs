//! A leaf vdev: one device, what it lacks (DTL), and what went wrong on it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use blkdev::{Device, WriteDone};
use parking_lot::RwLock;
use stdx::Buf;

pub use super::dtl::Dtl;
use super::queue::{Queue, ReadDone};

/// Errors seen on a leaf since the pool was opened.
#[derive(Debug, Default)]
pub struct LeafErrors {
    /// Reads that the device failed.
    pub read: AtomicU64,
    /// Writes and flushes that the device failed.
    pub write: AtomicU64,
    /// Reads whose bytes were wrong.
    pub checksum: AtomicU64,
}

impl LeafErrors {
    /// Reads, writes, checksums.
    pub fn counts(&self) -> [u64; 3] {
        [&self.read, &self.write, &self.checksum].map(|count| count.load(Ordering::Relaxed))
    }

    /// Counts from 0 again.
    pub fn clear(&self) {
        [&self.read, &self.write, &self.checksum].iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// What was read from a leaf, or written to it, since the pool was opened.
#[derive(Debug, Default)]
pub struct LeafTraffic {
    /// Requests.
    pub count: AtomicU64,
    /// Bytes asked for.
    pub bytes: AtomicU64,
}

impl LeafTraffic {
    fn add(&self, len: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len, Ordering::Relaxed);
    }
}

/// One device of the pool, present or not.
#[derive(Debug)]
pub struct Leaf {
    /// The leaf's guid, by which it is known.
    pub guid: u64,
    /// The device's own path when it is present, else the path its config remembers.
    pub path: String,
    queue: Option<Arc<Queue>>,
    /// What it may lack.
    pub dtl: RwLock<Dtl>,
    /// The DTL has changed since it was last written to the pool.
    dtl_changed: AtomicBool,
    /// What went wrong on it.
    pub errors: LeafErrors,
    /// What was read from it.
    pub reads: LeafTraffic,
    /// What was written to it.
    pub writes: LeafTraffic,
}

impl Leaf {
    /// A leaf over a device, or an absent one.
    pub fn new(guid: u64, path: String, device: Option<Device>) -> Arc<Self> {
        let queue = device.map(Queue::new);
        Arc::new(Self {
            guid,
            path,
            queue,
            dtl: RwLock::default(),
            dtl_changed: AtomicBool::new(false),
            errors: LeafErrors::default(),
            reads: LeafTraffic::default(),
            writes: LeafTraffic::default(),
        })
    }

    /// The device, when present.
    pub fn device(&self) -> Option<&Device> {
        self.queue.as_ref().map(|q| q.device())
    }

    /// The device's bytes in `[offset, offset + len)` have been changed by someone else.
    pub fn changed(&self, offset: u64, len: u64) {
        if let Some(queue) = &self.queue {
            queue.changed(offset, len);
        }
    }

    /// True when it is there and takes writes.
    pub fn is_writable(&self) -> bool {
        self.device().is_some_and(|device| !device.geometry().read_only)
    }

    /// Reads `len` bytes at `offset` from the start of the device, labels included.
    pub fn read(self: &Arc<Self>, offset: u64, len: u64, done: ReadDone) {
        let Some(queue) = &self.queue else {
            return done(Err(absent()));
        };
        self.reads.add(len);
        let leaf = Arc::clone(self);
        let counted: ReadDone = Box::new(move |result| {
            if result.is_err() {
                leaf.errors.read.fetch_add(1, Ordering::Relaxed);
            }
            done(result);
        });
        queue.read(offset, len, counted);
    }

    /// Writes at `offset` from the start of the device, labels included. Not durable before a flush. Two writes
    /// that overlap must not be under way at the same time: which one wins is not defined.
    pub fn write(self: &Arc<Self>, offset: u64, data: Buf, done: WriteDone) {
        self.write_parts(offset, vec![data], done);
    }

    /// Writes several buffers one after the other, as [`Leaf::write`] does one.
    pub fn write_parts(self: &Arc<Self>, offset: u64, parts: Vec<Buf>, done: WriteDone) {
        self.writes.add(parts.iter().map(|part| u64::try_from(part.len()).unwrap_or(0)).sum());
        match &self.queue {
            Some(queue) => queue.write(offset, parts, self.counting(done)),
            None => done(Err(absent())),
        }
    }

    /// Makes all writes durable that completed before this call. Costs nothing when there were none since the
    /// last flush.
    pub fn flush(self: &Arc<Self>, done: WriteDone) {
        match &self.queue {
            Some(queue) => queue.flush(self.counting(done)),
            None => done(Err(absent())),
        }
    }

    fn counting(self: &Arc<Self>, done: WriteDone) -> WriteDone {
        let leaf = Arc::clone(self);
        Box::new(move |result| {
            if result.is_err() {
                leaf.errors.write.fetch_add(1, Ordering::Relaxed);
            }
            done(result);
        })
    }

    /// Records that the leaf lacks something of `txg`.
    #[doc(alias = "vdev_dtl_dirty")]
    pub fn miss(&self, txg: u64) {
        if self.dtl.write().add(txg) {
            self.dtl_changed.store(true, Ordering::Release);
        }
    }

    /// Whether the DTL has changed since it was last taken.
    pub fn has_changed_dtl(&self) -> bool {
        self.dtl_changed.load(Ordering::Acquire)
    }

    /// The DTL's ranges when it has changed since the last call.
    pub fn take_changed_dtl(&self) -> Option<Vec<(u64, u64)>> {
        self.dtl_changed.swap(false, Ordering::AcqRel).then(|| self.dtl.read().ranges().to_vec())
    }
}

fn absent() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}
