//! A device that counts its requests and measures its busy time.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkdev::{BlockDevice, Device, Geometry, Io, IoKind};
use parking_lot::Mutex;

/// Counters of a device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Time with an active request.
    pub busy: Duration,
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    under_way: u32,
    since: Option<Instant>,
}

/// The device.
#[derive(Debug)]
pub struct Counting {
    inner: Device,
    state: Arc<Mutex<State>>,
}

impl Counting {
    /// Wraps `inner`.
    pub fn new(inner: Device) -> Arc<Self> {
        Arc::new(Self { inner, state: Arc::default() })
    }

    /// Returns and resets the counters.
    pub fn take(&self) -> Counts {
        std::mem::take(&mut self.state.lock().counts)
    }

    fn begin(&self, io: &Io) {
        let mut state = self.state.lock();
        let len = io.buf.len() as u64;
        match io.kind {
            IoKind::Read => state.counts.read += len,
            IoKind::Write => {
                state.counts.written += len;
                state.counts.writes += 1;
            }
            IoKind::Flush => state.counts.flushes += 1,
            IoKind::Trim(_) | IoKind::Erase(_) => {}
        }
        if state.under_way == 0 {
            state.since = Some(Instant::now());
        }
        state.under_way += 1;
    }
}

fn end(state: &Mutex<State>) {
    let mut state = state.lock();
    state.under_way -= 1;
    if state.under_way == 0
        && let Some(since) = state.since.take()
    {
        state.counts.busy += since.elapsed();
    }
}

impl BlockDevice for Counting {
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
        self.begin(&io);
        let (state, theirs) = (Arc::clone(&self.state), io.done);
        let ended = move |result: io::Result<()>, buf| {
            end(&state);
            theirs(result, buf);
        };
        self.inner.submit(Io { done: Box::new(ended), ..io });
    }
}
