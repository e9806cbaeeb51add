//! A test device that records its requests in order.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{BlockDevice, Device, Geometry, Io, IoKind, TrimSupport};

/// One request, as it was submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A read of this byte range.
    Read(Range<u64>),
    /// These bytes were written at this offset.
    Write(u64, Arc<[u8]>),
    /// A flush: writes before it had to be durable when it completed.
    Flush,
    /// This byte range was trimmed.
    Trim(Range<u64>),
    /// This byte range was erased.
    Erase(Range<u64>),
}

/// Passes all requests to the inner device and records them.
///
/// The order is that of `submit`, in which a device may see the requests; a crash test takes any subset of the
/// writes after the last completed flush.
#[derive(Debug)]
pub struct RecordingDevice {
    inner: Device,
    events: Mutex<Vec<Event>>,
}

impl RecordingDevice {
    /// Starts with an empty list.
    pub fn new(inner: Device) -> Self {
        Self { inner, events: Mutex::new(Vec::new()) }
    }

    /// Takes the list and starts an empty one.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock())
    }
}

impl BlockDevice for RecordingDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn measure(&self) -> std::io::Result<u64> {
        self.inner.measure()
    }

    fn trim_support(&self) -> TrimSupport {
        self.inner.trim_support()
    }

    fn submit(&self, io: Io) {
        let span = |len: u64| io.offset..io.offset.saturating_add(len);
        let event = match io.kind {
            IoKind::Read => Event::Read(span(u64::try_from(io.buf.len()).unwrap_or(u64::MAX))),
            IoKind::Write => Event::Write(io.offset, Arc::from(&*io.buf)),
            IoKind::Flush => Event::Flush,
            IoKind::Trim(len) => Event::Trim(span(len)),
            IoKind::Erase(len) => Event::Erase(span(len)),
        };
        self.events.lock().push(event);
        self.inner.submit(io);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemDevice, flush, read_at, write_at};

    #[test]
    fn keeps_order_and_bytes() {
        let dev = RecordingDevice::new(Arc::new(MemDevice::new("m", vec![0; 100])));
        write_at(&dev, 3, b"ab").unwrap();
        flush(&dev).unwrap();
        read_at(&dev, 0, 10).unwrap();
        let expected = [Event::Write(3, Arc::from(&b"ab"[..])), Event::Flush, Event::Read(0..10)];
        assert_eq!(dev.take(), expected);
        assert!(dev.take().is_empty());
    }
}
