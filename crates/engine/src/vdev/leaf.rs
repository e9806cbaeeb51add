//! A leaf vdev: one device, what it lacks (DTL), and what went wrong on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blkdev::Device;
use parking_lot::RwLock;

use super::queue::{Queue, ReadDone};

/// Errors seen on a leaf since the pool was opened.
#[derive(Debug, Default)]
pub struct LeafErrors {
    /// Reads that the device failed.
    pub read: AtomicU64,
    /// Reads whose bytes were wrong.
    pub checksum: AtomicU64,
}

/// Transaction groups a leaf may have missed, as half-open ranges in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dtl(Vec<(u64, u64)>);

impl Dtl {
    /// From `[start, end)` ranges in any order.
    pub fn new(mut ranges: Vec<(u64, u64)>) -> Self {
        ranges.sort_unstable();
        Self(ranges)
    }

    /// True when the leaf may lack what was written in `txg`.
    pub fn contains(&self, txg: u64) -> bool {
        self.0.iter().any(|&(start, end)| start <= txg && txg < end)
    }

    /// True when nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.0
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
    /// What went wrong on it.
    pub errors: LeafErrors,
}

impl Leaf {
    /// A leaf over a device, or an absent one.
    pub fn new(guid: u64, path: String, device: Option<Device>) -> Arc<Self> {
        let queue = device.map(Queue::new);
        Arc::new(Self { guid, path, queue, dtl: RwLock::default(), errors: LeafErrors::default() })
    }

    /// The device, when present.
    pub fn device(&self) -> Option<&Device> {
        self.queue.as_ref().map(|q| q.device())
    }

    /// The device's bytes in `[offset, offset + len)` have been changed: see [`Queue::changed`].
    pub fn changed(&self, offset: u64, len: u64) {
        if let Some(queue) = &self.queue {
            queue.changed(offset, len);
        }
    }

    /// Reads `len` bytes at `offset` from the start of the device, labels included.
    pub fn read(self: &Arc<Self>, offset: u64, len: u64, done: ReadDone) {
        let Some(queue) = &self.queue else {
            return done(Err(std::io::Error::from(std::io::ErrorKind::NotFound)));
        };
        let leaf = Arc::clone(self);
        let counted: ReadDone = Box::new(move |result| {
            if result.is_err() {
                leaf.errors.read.fetch_add(1, Ordering::Relaxed);
            }
            done(result);
        });
        queue.read(offset, len, counted);
    }
}
