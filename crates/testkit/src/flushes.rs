//! A disk of which one flush fails, as when the system cannot write back its page cache.

use std::sync::atomic::{AtomicU32, Ordering};

use blkdev::{BlockDevice, Device, Fault, FaultyDevice, Geometry, Io, IoKind};

/// A disk of which one flush fails and loses all that was written since the one before.
#[derive(Debug)]
pub struct FailsOnce {
    inner: FaultyDevice,
    /// Good flushes before that one; 0: none is to fail, or it has its fault.
    left: AtomicU32,
}

impl FailsOnce {
    /// Passes everything until [`FailsOnce::fail_after`].
    pub fn new(inner: Device) -> Self {
        Self { inner: FaultyDevice::new(inner, 7), left: AtomicU32::new(0) }
    }

    /// From now on, `good` flushes succeed and the next one fails.
    pub fn fail_after(&self, good: u32) {
        self.left.store(good, Ordering::SeqCst);
        if good == 0 {
            self.begin();
        }
    }

    fn begin(&self) {
        self.inner.inject(Fault::FlushErrors { count: 1, lost: 1000 });
    }
}

impl BlockDevice for FailsOnce {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_past_caches(&self, on: bool) {
        self.inner.read_past_caches(on);
    }

    fn submit(&self, io: Io) {
        let is_flush = matches!(io.kind, IoKind::Flush);
        self.inner.submit(io);
        if is_flush
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) == Ok(1)
        {
            self.begin();
        }
    }
}
