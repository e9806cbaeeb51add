//! A leaf's request queue: sorts waiting requests by offset and joins neighbours into one device read.
//!
//! While few reads are on the device a request goes straight through. Above that, requests wait in offset order, and each
//! completion takes the next run ([`super::reads`]): requests a small gap apart are read together, up to 1 MiB (reading a small
//! gap is cheaper than another command). A run of several requests that fails is split, so that one bad sector fails
//! only the request that needs it.
//!
//! Small reads that a caller waits for are answered from [`super::window`]s. Others (reading ahead, scans)
//! come many at a time, and find their neighbours here.
//!
//! Requests of scans yield to all others ([`super::lanes`]).
//!
//! Writes wait likewise, neighbours without a gap between them are written together, and a joined write
//! that fails is split. The requests that one thread starts together are issued together ([`crate::plug`]). Reads go first:
//! while any wait, one write at most is on the device.
//!
//! Flushes run one at a time; those that arrive meanwhile share the next one. Linux reports a failed write-back to one
//! `fdatasync` only, so of two flushes at once the one that succeeds could be the one whose bytes are lost.
//!
//! Lock order: the queue's lock is a leaf lock; no completion is called under it.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkdev::{Device, Io, IoKind, WriteDone};
use parking_lot::Mutex;
use stdx::{AlignedBuf, Buf};

use super::lanes::{Lanes, Next};
use super::reads::{LeafRead, ReadRun};
use super::stats::{Departure, IoClass, LeafStats};
use super::window::{WINDOW, Waiter, WindowHit, Windows};
use super::writes;
use crate::plug;
use crate::taskq::{serves_cached, take_wait, will_wait};

/// Called once, on a device's thread: must be short and hand real work to an executor.
pub(crate) type LeafReadDone = Box<dyn FnOnce(io::Result<Buf>) + Send>;

#[derive(Default)]
struct State {
    lanes: Lanes,
    /// Device writes that have completed, and how many of them a completed flush covers.
    written: u64,
    flushed: u64,
    /// A flush is on the device.
    flushing: bool,
    /// Flushes that wait for it to end.
    flushes: Vec<WriteDone>,
    /// The error of a flush that no caller waited for: the next one's result. The system reports it once.
    owed: Option<io::Error>,
}

thread_local! {
    /// The queue whose requests this thread is issuing; 0: none.
    static ISSUING: Cell<usize> = const { Cell::new(0) };
}

/// This thread issues requests of a queue. Completions on this thread leave issuing to the outer
/// loop, which bounds the stack.
struct Issuing(usize);

impl Issuing {
    /// `None` if it does that already.
    fn begin(queue: &Arc<Queue>) -> Option<Self> {
        let number = Arc::as_ptr(queue).addr();
        let before = ISSUING.get();
        ISSUING.set(number);
        (before != number).then_some(Self(before))
    }
}

impl Drop for Issuing {
    fn drop(&mut self) {
        ISSUING.set(self.0);
    }
}

/// The queue of one leaf.
pub struct Queue {
    device: Device,
    state: Mutex<State>,
    windows: Windows<LeafReadDone>,
    /// Reads come from the device itself.
    past_caches: AtomicBool,
    stats: Arc<LeafStats>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({:?})", self.device)
    }
}

impl Queue {
    /// A queue in front of `device`, which counts its requests.
    pub fn new(device: Device, stats: Arc<LeafStats>) -> Arc<Self> {
        // The first flush always happens: new writes build upon data that an earlier process may have left
        // unflushed.
        let state = Mutex::new(State { written: 1, ..State::default() });
        let past_caches = AtomicBool::new(false);
        Arc::new(Self { device, state, windows: Windows::default(), past_caches, stats })
    }

    /// The device behind it.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// While it is on, reads come from the device itself, not from bytes that were kept in memory.
    pub(crate) fn read_past_caches(&self, on: bool) {
        self.device.read_past_caches(on);
        self.past_caches.store(on, Ordering::Release);
    }

    /// Reads `len` bytes at the device offset `offset`. `done` may be called before this returns.
    pub fn read(self: &Arc<Self>, offset: u64, len: u64, done: LeafReadDone) {
        if !will_wait() || self.past_caches.load(Ordering::Acquire) {
            return self.enqueue(offset, len, IoClass::AsyncRead, done);
        }
        match self.windows.find(Waiter { offset, len, done }, self.device.geometry().size) {
            WindowHit::Here(bytes, done) => done(Ok(bytes)),
            WindowHit::Joined => {}
            WindowHit::Not(waiter) => self.enqueue(waiter.offset, waiter.len, IoClass::SyncRead, waiter.done),
            WindowHit::Read(start) => {
                let queue = Arc::clone(self);
                let told = Box::new(move |result: io::Result<Buf>| queue.window(start, result.ok().as_ref()));
                self.enqueue(start, WINDOW, IoClass::SyncRead, told);
            }
        }
    }

    /// As [`Queue::read`], in a class of its own and past the windows.
    pub fn read_as(self: &Arc<Self>, offset: u64, len: u64, class: IoClass, done: LeafReadDone) {
        self.enqueue(offset, len, class, done);
    }

    /// A window has arrived; when it could not be read, each range that was wanted of it is tried alone.
    fn window(self: &Arc<Self>, start: u64, bytes: Option<&Buf>) {
        for (waiter, bytes) in self.windows.arrived(start, bytes) {
            match bytes {
                Some(bytes) => (waiter.done)(Ok(bytes)),
                None => self.enqueue(waiter.offset, waiter.len, IoClass::SyncRead, waiter.done),
            }
        }
    }

    /// The bytes in `[offset, offset + len)` of the device have been changed, and no read that begins after
    /// this may get the old ones. Must be called when a write has ended, before its callback runs.
    pub(crate) fn changed(&self, offset: u64, len: u64) {
        self.windows.forget(offset, len);
    }

    fn enqueue(self: &Arc<Self>, offset: u64, len: u64, class: IoClass, done: LeafReadDone) {
        let arrival = self.stats.arrived(class);
        self.state.lock().lanes.reads(class.is_scan()).push(offset, LeafRead { len, arrival, done });
        if class == IoClass::SyncRead {
            self.issue();
        } else {
            self.issue_soon(class);
        }
    }

    /// Issues requests, if the thread does not hold them back.
    fn issue_soon(self: &Arc<Self>, class: IoClass) {
        let held = plug::hold_back(Arc::as_ptr(self).addr(), class.is_scan(), || {
            let queue = Arc::clone(self);
            move || queue.issue()
        });
        if !held {
            self.issue();
        }
    }

    /// Writes `parts` at the device offset `offset`.
    pub fn write(self: &Arc<Self>, offset: u64, parts: Vec<Buf>, class: IoClass, done: WriteDone) {
        let arrival = self.stats.arrived(class);
        self.state.lock().lanes.writes(class.is_scan()).push(offset, parts, arrival, done);
        self.issue_soon(class);
    }

    /// Makes the writes durable that have completed.
    pub fn flush(self: &Arc<Self>, done: WriteDone) {
        let done = self.stats.watching_flush(done);
        {
            let mut state = self.state.lock();
            state.lanes.note(false);
            if state.flushed == state.written {
                drop(state);
                return done(Ok(()));
            }
            state.flushes.push(done);
            if std::mem::replace(&mut state.flushing, true) {
                return;
            }
        }
        self.start_flush();
    }

    fn start_flush(self: &Arc<Self>) {
        let (covers, waiting) = {
            let mut state = self.state.lock();
            (state.written, std::mem::take(&mut state.flushes))
        };
        let queue = Arc::clone(self);
        let done = Box::new(move |result: io::Result<()>, _| queue.finish_flush(covers, waiting, result));
        self.device.submit(Io { kind: IoKind::Flush, offset: 0, buf: AlignedBuf::zeroed(0), done });
    }

    fn finish_flush(self: &Arc<Self>, covers: u64, waiting: Vec<WriteDone>, result: io::Result<()>) {
        let result = {
            let mut state = self.state.lock();
            state.lanes.flushed(waiting.is_empty());
            let result = state.owed.take().map_or(result, Err);
            match &result {
                Ok(()) => state.flushed = state.flushed.max(covers),
                Err(e) if waiting.is_empty() => state.owed = Some(again(e)),
                Err(_) => {}
            }
            result
        };
        // They learn of a failure before the next flush can succeed.
        waiting.into_iter().for_each(|done| done(result.as_ref().copied().map_err(again)));
        let more = {
            let mut state = self.state.lock();
            state.flushing = !state.flushes.is_empty();
            state.flushing
        };
        if more {
            self.start_flush();
        }
        self.issue();
    }

    fn issue(self: &Arc<Self>) {
        let Some(_issuing) = Issuing::begin(self) else { return };
        // One run only: others may be waiting for long, and this thread is not to serve all of theirs.
        let mut serves = serves_cached();
        loop {
            let next = self.state.lock().next();
            match next {
                Some(Next::Flush) => self.start_flush(),
                Some(Next::Read(run)) => {
                    let then = self.stats.started(run.arrivals(), run.end - run.start);
                    self.start(run, then, std::mem::take(&mut serves));
                }
                Some(Next::Write(run)) => {
                    let then = self.stats.started(run.arrivals(), run.len());
                    self.start_write(run, then);
                }
                None => return,
            }
        }
    }

    fn start_write(self: &Arc<Self>, mut run: writes::WriteRun, then: Departure) {
        let (offset, parts) = (run.start, run.take_parts());
        let queue = Arc::clone(self);
        self.device.write_parts(offset, parts, Box::new(move |result| queue.finish_write(run, then, result)));
    }

    /// As for reads: a single write takes the error, several are tried again one by one.
    fn finish_write(self: &Arc<Self>, run: writes::WriteRun, then: Departure, result: io::Result<()>) {
        {
            let mut state = self.state.lock();
            state.lanes.writes(run.is_scan()).active -= 1;
            state.written += 1;
        }
        // No read that begins after a writer's callback may get old bytes.
        self.changed(run.start, run.len());
        let alone = run.writes.len() == 1;
        if result.is_ok() || alone {
            self.stats.finished(run.arrivals(), then);
        }
        for (offset, write) in run.writes {
            match &result {
                Ok(()) => (write.done)(Ok(())),
                Err(e) if alone => (write.done)(Err(again(e))),
                Err(_) => {
                    self.state.lock().lanes.writes(write.arrival.is_scan()).active += 1;
                    self.start_write(writes::WriteRun { start: offset, writes: vec![(offset, write)] }, then);
                }
            }
        }
        self.issue();
    }

    /// `serves`: bytes that are in the system's memory are read on this thread.
    fn start(self: &Arc<Self>, run: ReadRun, then: Departure, serves: bool) {
        let queue = Arc::clone(self);
        let Ok(len) = usize::try_from(run.end - run.start) else {
            return queue.finish(run, then, Err(io::Error::from(io::ErrorKind::InvalidInput)));
        };
        let offset = run.start;
        let done = Box::new(move |result: io::Result<()>, buf: AlignedBuf| {
            queue.finish(run, then, result.map(|()| buf.into()));
        });
        let io = Io { kind: IoKind::Read, offset, buf: AlignedBuf::scratch(len), done };
        // Another thread, which would have to be woken, has no advantage over bytes that are in the system's memory.
        let io = if serves { self.device.serve_if_cached(io) } else { Some(io) };
        match io {
            None => {}
            Some(io) if take_wait() => self.device.serve(io),
            Some(io) => self.device.submit(io),
        }
    }

    fn finish(self: &Arc<Self>, run: ReadRun, then: Departure, result: io::Result<Buf>) {
        self.state.lock().lanes.reads(run.is_scan()).active -= 1;
        if result.is_ok() || run.requests.len() == 1 {
            self.stats.finished(run.arrivals(), then);
        }
        match result {
            Ok(buf) => run.answer(&buf),
            Err(e) => self.fail(run, then, e),
        }
        self.issue();
    }

    /// A single request takes the error; several are read again one by one.
    fn fail(self: &Arc<Self>, run: ReadRun, then: Departure, error: io::Error) {
        let alone = run.requests.len() == 1;
        for (offset, request) in run.requests {
            if alone {
                (request.done)(Err(again(&error)));
            } else {
                self.state.lock().lanes.reads(request.arrival.is_scan()).active += 1;
                let end = offset + request.len;
                self.start(ReadRun { start: offset, end, requests: vec![(offset, request)] }, then, false);
            }
        }
    }
}

/// The same error once more: with its number, when the system gave it.
fn again(error: &io::Error) -> io::Error {
    let number = error.raw_os_error().map(io::Error::from_raw_os_error);
    number.unwrap_or_else(|| io::Error::new(error.kind(), error.to_string()))
}

impl State {
    fn next(&mut self) -> Option<Next> {
        let next = self.lanes.next(self.flushing)?;
        self.flushing |= matches!(next, Next::Flush);
        Some(next)
    }
}
