//! One mount's connection: its active and queued requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::lane::{ALL_THREADS, BYTES, COST, LANES, Lane};
use super::spin::Spin;
use super::{Service, Work};
use crate::device::Device;

/// Time after which a request is taken for one that has waited.
pub(super) const LONG: Duration = Duration::from_micros(300);
/// Requests after two such ones in succession that are expected to wait, too. A single one has rather lost its processor than
/// waited for something: handing the next ones to other threads would cost more than it saves.
const WARY: u32 = 16;

/// The resources used by the requests of all mounts.
#[derive(Debug, Default)]
pub struct Load {
    threads: AtomicUsize,
    bytes: AtomicUsize,
}

/// A request that can wait.
pub trait Kept {
    /// Its bytes.
    fn len(&self) -> usize;
    /// Makes it independent of the reader's buffer.
    fn keep(self) -> Work;
}

/// A connection.
#[derive(Debug)]
pub struct Line {
    /// The channel to the kernel.
    pub device: Arc<Device>,
    files: Mutex<Option<Arc<dyn Service>>>,
    state: Mutex<State>,
    over: AtomicBool,
    ended: Condvar,
    /// Requests of each lane that are expected to wait, because those before them have.
    wary: [AtomicU32; LANES],
    /// Whether the last request of each lane took so long.
    long: [AtomicBool; LANES],
    /// Whether readers find requests by spinning.
    pub spin: Spin,
    over_rings: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    lanes: [Traffic; LANES],
    /// Bytes of active and queued requests.
    bytes: usize,
    /// No more requests are read until some have been answered.
    paused: bool,
    /// The kernel has ended the connection.
    gone: bool,
    /// Requests that were answered.
    answered: u64,
}

#[derive(Debug, Default)]
struct Traffic {
    threads: usize,
    waiting: VecDeque<Work>,
}

/// The fate of a request that was read.
#[derive(Debug)]
pub struct Verdict<R> {
    /// The request, if it is answered now; otherwise it queues in its lane.
    pub now: Option<R>,
    /// The next one may be read.
    pub more: bool,
}

/// The step after an answered request.
#[derive(Debug, Default)]
pub struct After {
    /// A request from the queue.
    pub next: Option<Work>,
    /// Requests may be read again.
    pub resume: bool,
}

/// Whether one more is allowed: always if the mount has none.
fn allowed(own: usize, most: usize, all: usize, most_of_all: usize) -> bool {
    own == 0 || (own < most && all < most_of_all)
}

impl Line {
    /// A connection that is served by `files`.
    pub fn new(device: Arc<Device>, files: Arc<dyn Service>) -> Arc<Self> {
        Arc::new(Self {
            device,
            files: Mutex::new(Some(files)),
            state: Mutex::default(),
            over: AtomicBool::new(false),
            ended: Condvar::new(),
            // A commit waits for a disk until it is seen that it does not.
            wary: std::array::from_fn(|lane| {
                AtomicU32::new(if lane == Lane::Sync.index() { WARY } else { 0 })
            }),
            long: Default::default(),
            spin: Spin::default(),
            over_rings: AtomicBool::new(false),
        })
    }

    /// The file system that answers its requests; `None` once the connection is over.
    pub fn files(&self) -> Option<Arc<dyn Service>> {
        self.files.lock().clone()
    }

    /// Requests come over io_uring from now on.
    pub(crate) fn joins_rings(&self) {
        self.over_rings.store(true, Ordering::Release);
    }

    /// They do not any more.
    pub(crate) fn leaves_rings(&self) {
        self.over_rings.store(false, Ordering::Release);
    }

    /// Whether requests come over io_uring.
    pub fn is_over_rings(&self) -> bool {
        self.over_rings.load(Ordering::Acquire)
    }

    /// Whether the kernel has ended it and the last request is answered.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits for the end; returns false on timeout.
    pub fn wait(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        while !self.is_over() {
            if self.ended.wait_until(&mut state, until).timed_out() {
                return self.is_over();
            }
        }
        true
    }

    /// Whether a request of a lane may wait, according to those before it.
    pub fn may_wait(&self, lane: Lane) -> bool {
        self.wary(lane).is_some_and(|wary| wary.load(Ordering::Relaxed) > 0)
    }

    /// A request of a lane took so long.
    pub fn took(&self, lane: Lane, time: Duration) {
        let (Some(wary), Some(long)) = (self.wary(lane), self.long.get(lane.index())) else { return };
        let is_long = time > LONG;
        let was_long = long.load(Ordering::Relaxed);
        if is_long != was_long {
            long.store(is_long, Ordering::Relaxed);
        }
        if is_long {
            if was_long {
                wary.store(WARY, Ordering::Relaxed);
            }
        } else if wary.load(Ordering::Relaxed) > 0 {
            // Threads may do this at the same time: the number is a guess.
            wary.store(wary.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
    }

    fn wary(&self, lane: Lane) -> Option<&AtomicU32> {
        self.wary.get(lane.index())
    }

    /// Registers a request that was read.
    pub fn take_in<R: Kept>(&self, lane: Lane, request: R, load: &Load) -> Verdict<R> {
        let mut state = self.state.lock();
        let cost = request.len().saturating_add(COST);
        state.bytes = state.bytes.saturating_add(cost);
        let all = load.bytes.fetch_add(cost, Ordering::AcqRel).saturating_add(cost);
        // Only `done` ends a pause: its caller re-arms the event, which the reader that met the limit left disarmed.
        state.paused |= !allowed(state.bytes, BYTES.0, all, BYTES.1);
        let more = !state.paused;
        let Some(traffic) = state.lanes.get_mut(lane.index()) else {
            return Verdict { now: Some(request), more };
        };
        let threads = load.threads.load(Ordering::Acquire);
        if traffic.waiting.is_empty() && allowed(traffic.threads, lane.threads(), threads, ALL_THREADS) {
            traffic.threads = traffic.threads.saturating_add(1);
            load.threads.fetch_add(1, Ordering::AcqRel);
            return Verdict { now: Some(request), more };
        }
        traffic.waiting.push_back(request.keep());
        Verdict { now: None, more }
    }

    /// Requests that were answered so far.
    pub fn answered(&self) -> u64 {
        self.state.lock().answered
    }

    /// Whether requests may be read: none has exceeded a bound, and the kernel has not ended the connection.
    pub fn may_read(&self) -> bool {
        let state = self.state.lock();
        !state.paused && !state.gone
    }

    /// A request of that length was answered.
    pub fn done(&self, lane: Lane, len: usize, load: &Load) -> After {
        let mut state = self.state.lock();
        state.answered += 1;
        let cost = len.saturating_add(COST);
        state.bytes = state.bytes.saturating_sub(cost);
        let all = load.bytes.fetch_sub(cost, Ordering::AcqRel).saturating_sub(cost);
        let mut after = After::default();
        if let Some(traffic) = state.lanes.get_mut(lane.index()) {
            after.next = traffic.waiting.pop_front();
            if after.next.is_none() {
                traffic.threads = traffic.threads.saturating_sub(1);
                load.threads.fetch_sub(1, Ordering::AcqRel);
            }
        }
        if state.paused && allowed(state.bytes, BYTES.0, all, BYTES.1) {
            state.paused = false;
            after.resume = !state.gone;
        }
        self.end_if_last(&state);
        after
    }

    /// The kernel has ended the connection: queued requests have no recipient any more.
    pub fn hang_up(&self, load: &Load) {
        let mut state = self.state.lock();
        state.gone = true;
        let waiting = state.lanes.iter_mut().flat_map(|traffic| traffic.waiting.drain(..));
        let bytes = waiting.map(|request| request.len().saturating_add(COST)).sum();
        state.bytes = state.bytes.saturating_sub(bytes);
        load.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.end_if_last(&state);
    }

    fn end_if_last(&self, state: &State) {
        if state.gone && state.lanes.iter().all(|traffic| traffic.threads == 0) {
            self.files.lock().take();
            self.over.store(true, Ordering::Release);
            self.ended.notify_all();
        }
    }
}
