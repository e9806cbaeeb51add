//! Leaf devices: one trait, several kinds (file or disk, memory, test devices).
//!
//! A device accepts requests and answers each by calling its completion, on any thread, in any order. No caller
//! depends on the kind of device, so a simulator can replace it.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, mpsc};

use stdx::{AlignedBuf, Buf};

mod behind;
mod bounds;
mod cached;
mod discard;
mod faulty;
mod file;
mod geometry;
mod memory;
mod pool;
pub mod project;
mod recording;

pub use faulty::{Fault, FaultyDevice};
pub use file::{CacheMode, FileDevice, Identity, OpenMode, OpenOptions};
pub use memory::MemDevice;
pub use recording::{Event, RecordingDevice};

/// The properties reported by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Usable bytes.
    pub size: u64,
    /// Smallest unit that can be addressed, in bytes.
    pub logical_sector: u32,
    /// Unit that the medium writes atomically, in bytes.
    pub physical_sector: u32,
    /// True for a spinning disk.
    pub rotational: bool,
    /// True when writes are refused.
    pub read_only: bool,
}

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoKind {
    /// Fill the buffer from the device.
    Read,
    /// Put the buffer's bytes on the device.
    Write,
    /// Make every completed write durable; the buffer is empty.
    Flush,
    /// Tell the device that this many bytes are unused; the buffer is empty.
    Trim(u64),
    /// As [`IoKind::Trim`], and no copy of the bytes may be left on the device.
    Erase(u64),
}

/// The requests for unused bytes that a device supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimSupport {
    /// [`IoKind::Trim`].
    pub trim: bool,
    /// [`IoKind::Erase`].
    pub erase: bool,
}

/// Called once, on any thread, with the buffer returned.
pub type Completion = Box<dyn FnOnce(io::Result<()>, AlignedBuf) + Send>;

/// Called once, on any thread, when a write from shared buffers has ended.
pub type WriteDone = Box<dyn FnOnce(io::Result<()>) + Send>;

/// One request to one device.
pub struct Io {
    /// The operation.
    pub kind: IoKind,
    /// Byte offset on the device.
    pub offset: u64,
    /// Source or destination; its length is the request's length.
    pub buf: AlignedBuf,
    /// Called at the end.
    pub done: Completion,
}

impl Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Io({:?} {}+{})", self.kind, self.offset, self.buf.len())
    }
}

/// A leaf device.
pub trait BlockDevice: Send + Sync + Debug {
    /// A human-readable name: the path by which it was opened.
    fn name(&self) -> &str;
    /// Size and sector sizes.
    fn geometry(&self) -> Geometry;
    /// Measures the device again, which may have grown since it was opened, and returns its size in bytes; from
    /// then on [`BlockDevice::geometry`] reports it, too. A device that became smaller keeps its size, and requests
    /// past its end fail.
    fn measure(&self) -> io::Result<u64> {
        Ok(self.geometry().size)
    }
    /// The requests for unused bytes that are worth starting. By default trims, as for a file.
    fn trim_support(&self) -> TrimSupport {
        TrimSupport { trim: true, erase: false }
    }
    /// While this is on, reads return the content of the device itself, not that of the system's cache. A device
    /// without a cache ignores it.
    fn read_past_caches(&self, _on: bool) {}
    /// Starts a request. A request that can't be started completes with an error.
    fn submit(&self, io: Io);
    /// Like [`BlockDevice::submit`], for a caller that only waits for the end: the request may be served on the
    /// calling thread, which saves two thread switches.
    fn serve(&self, io: Io) {
        self.submit(io);
    }
    /// Serves a read on the calling thread if it need not wait for the device. Returns the request otherwise, whose buffer may
    /// have other bytes then.
    fn serve_if_cached(&self, io: Io) -> Option<Io> {
        Some(io)
    }
    /// Starts a write of `parts`, in order, from `offset` on. By default this is a plain write of a copy; a single
    /// unshared part is not copied.
    fn write_parts(&self, offset: u64, parts: Vec<Buf>, done: WriteDone) {
        let buf = joined(parts);
        self.submit(Io { kind: IoKind::Write, offset, buf, done: Box::new(|result, _| done(result)) });
    }
}

/// The parts as one buffer.
fn joined(mut parts: Vec<Buf>) -> AlignedBuf {
    if parts.len() == 1
        && let Some(only) = parts.pop()
    {
        return only.into_owned();
    }
    let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
    AlignedBuf::concat(&parts)
}

/// Reads `len` bytes at `offset` and waits for them.
pub fn read_at(dev: &dyn BlockDevice, offset: u64, len: usize) -> io::Result<AlignedBuf> {
    wait(dev, IoKind::Read, offset, AlignedBuf::scratch(len))
}

/// Writes `bytes` at `offset` and waits.
pub fn write_at(dev: &dyn BlockDevice, offset: u64, bytes: &[u8]) -> io::Result<()> {
    wait(dev, IoKind::Write, offset, AlignedBuf::copy_of(bytes)).map(|_| ())
}

/// Makes all completed writes durable, and waits.
pub fn flush(dev: &dyn BlockDevice) -> io::Result<()> {
    wait(dev, IoKind::Flush, 0, AlignedBuf::zeroed(0)).map(|_| ())
}

/// Trims a range and waits.
pub fn trim(dev: &dyn BlockDevice, offset: u64, len: u64) -> io::Result<()> {
    wait(dev, IoKind::Trim(len), offset, AlignedBuf::zeroed(0)).map(|_| ())
}

fn wait(dev: &dyn BlockDevice, kind: IoKind, offset: u64, buf: AlignedBuf) -> io::Result<AlignedBuf> {
    let (tx, rx) = mpsc::sync_channel(1);
    let done = Box::new(move |result: io::Result<()>, buf| {
        // The receiver waits below until this is sent.
        let _ = tx.send((result, buf));
    });
    // Not by a thread of the device: this may be one, and the others may wait here, too.
    dev.serve(Io { kind, offset, buf, done });
    let (result, buf) = rx.recv().map_err(|_| io::Error::other("device dropped a request"))?;
    result.map(|()| buf)
}

/// A shared device handle.
pub type Device = Arc<dyn BlockDevice>;
