//! Reads blocks in device order, many at once, within a promise of memory.
//!
//! Requests wait in a map sorted by place. While fewer bytes are under way than allowed, the next one
//! after the last started on its top-level vdev goes out (and from the front again when the end is reached): each device sees
//! a nearly sequential stream, whose neighbours its queue joins. The vdev with least under way comes first. Every completion
//! starts the requests that may follow, so that the devices stay busy while the walk gathers more.
//!
//! Lock order: `state` is a leaf lock; zio and the callback run without it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ondisk::Blkptr;
use parking_lot::{Condvar, Mutex};

use crate::plug::plugged;
use crate::types::Bookmark;
use crate::zio::{Form, ReadOptions, ReadOutcome, Zio};

/// Bytes of devices that may be under way at once.
pub(crate) const INFLIGHT: u64 = 64 << 20;
/// Requests that may wait, about 250 bytes each.
const MAX_WAITING: usize = 1 << 18;
/// Requests that must wait before the first one starts: sorting needs something to sort.
const MIN_WAITING: usize = 1 << 13;

/// A block to be read.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Its pointer.
    pub bp: Blkptr,
    /// Its place.
    pub at: Bookmark,
    /// First byte of the object that it covers.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Other copies than the first one are read only if that is bad.
    pub lead: bool,
}

/// Called at the end of each read, on the executor's threads.
pub(crate) type Told = Box<dyn Fn(&Request, ReadOutcome) + Send + Sync>;

#[derive(Default)]
struct State {
    waiting: BTreeMap<(u32, u64, u64), Request>,
    arrivals: u64,
    /// By top-level vdev.
    tops: BTreeMap<u32, Load>,
    /// Bytes of waiting requests.
    queued: u64,
    inflight: u64,
    done: u64,
    /// Waiting requests go out however few they are: no more will come.
    draining: bool,
    /// Few requests may wait; a batch of them is as small.
    bounded: bool,
    /// A batch is being started.
    going: bool,
    /// Bytes and requests that may be left waiting when a thread wakes that waits for room.
    room: Option<(u64, usize)>,
}

impl State {
    /// Whether at most so many bytes and requests wait.
    fn has(&self, (bytes, requests): (u64, usize)) -> bool {
        self.queued <= bytes && self.waiting.len() <= requests
    }

    fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.inflight == 0
    }
}

/// The requests of a top-level vdev.
#[derive(Debug, Default, Clone, Copy)]
struct Load {
    /// Place of the last one that was started.
    head: (u64, u64),
    waiting: u64,
    inflight: u64,
}

/// A reader of many blocks.
pub(crate) struct Reader {
    zio: Arc<Zio>,
    options: ReadOptions,
    limit: u64,
    told: Told,
    state: Mutex<State>,
    change: Condvar,
    pumps: AtomicUsize,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        write!(f, "Reader({} waiting, {} bytes under way)", state.waiting.len(), state.inflight)
    }
}

impl Reader {
    /// A reader with at most `limit` bytes under way.
    pub(crate) fn new(zio: &Arc<Zio>, options: ReadOptions, limit: u64, told: Told) -> Arc<Self> {
        Arc::new(Self {
            zio: Arc::clone(zio),
            options: ReadOptions { form: Form::Physical, ..options },
            limit: limit.max(1),
            told,
            state: Mutex::default(),
            change: Condvar::new(),
            pumps: AtomicUsize::new(0),
        })
    }

    /// Takes a block; waits while too many wait.
    pub(crate) fn push(self: &Arc<Self>, request: Request) {
        self.add(request, false, (u64::MAX, MAX_WAITING));
    }

    /// As [`Reader::push`]; waits until at most so many bytes and requests wait, so that draining takes little time.
    pub(crate) fn push_within(self: &Arc<Self>, request: Request, bytes: u64, requests: usize) {
        self.add(request, true, (bytes, requests));
    }

    fn add(self: &Arc<Self>, request: Request, bounded: bool, most: (u64, usize)) {
        let Some(dva) = request.bp.dva(0) else { return };
        let is_full = {
            let mut state = self.state.lock();
            state.arrivals += 1;
            let key = (dva.vdev, dva.offset, state.arrivals);
            state.waiting.insert(key, request);
            state.queued = state.queued.saturating_add(cost(&request));
            state.tops.entry(dva.vdev).or_default().waiting += cost(&request);
            (state.draining, state.bounded) = (false, bounded);
            !state.has(most)
        };
        self.pump();
        if is_full {
            self.wait_for((most.0 / 2, most.1 / 2));
        }
    }

    /// Bytes of the requests of a top-level vdev, waiting and under way.
    pub(crate) fn load(&self, vdev: u32) -> u64 {
        self.state.lock().tops.get(&vdev).map_or(0, |load| load.waiting.saturating_add(load.inflight))
    }

    /// Bytes read so far, as allocated.
    pub(crate) fn done(&self) -> u64 {
        self.state.lock().done
    }

    /// Drops requests that were not started yet.
    pub(crate) fn cancel(&self) {
        let mut state = self.state.lock();
        state.waiting.clear();
        state.queued = 0;
        state.tops.values_mut().for_each(|load| load.waiting = 0);
        self.change.notify_all();
    }

    /// Waits until everything is read, calling `meanwhile` now and then; it may cancel.
    pub(crate) fn drain(self: &Arc<Self>, mut meanwhile: impl FnMut(&Self)) {
        self.state.lock().draining = true;
        self.pump();
        while !self.state.lock().is_over() {
            meanwhile(self);
            self.pause(State::is_over);
        }
    }

    fn wait_for(self: &Arc<Self>, room: (u64, usize)) {
        loop {
            {
                let mut state = self.state.lock();
                state.room = (!state.has(room)).then_some(room);
                if state.room.is_none() {
                    return;
                }
            }
            self.pump();
            self.pause(|state| state.has(room));
        }
    }

    /// Waits a moment, or until something is so.
    fn pause(&self, is_so: impl Fn(&State) -> bool) {
        if !self.zio.executor().help() {
            let mut state = self.state.lock();
            if !is_so(&state) {
                self.change.wait_for(&mut state, Duration::from_millis(50));
            }
        }
    }

    /// Starts the requests that may start. Only one caller does it at a time, so that a read that ends at
    /// once doesn't recurse; the others signal that there may be more.
    fn pump(self: &Arc<Self>) {
        if self.pumps.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            plugged(|| {
                while let Some(request) = self.next() {
                    let me = Arc::clone(self);
                    let done = Box::new(move |outcome| me.finish(&request, outcome));
                    let options = ReadOptions { lead: request.lead, ..self.options };
                    self.zio.read(&request.bp, request.at, options, done);
                }
            });
            match self.pumps.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn next(&self) -> Option<Request> {
        let mut state = self.state.lock();
        state.going = if state.going {
            state.inflight < self.limit && !state.waiting.is_empty()
        } else {
            state.inflight <= self.limit / 2 && self.has_enough(&state)
        };
        if !state.going {
            return None;
        }
        // The vdev with least under way, so that all have work.
        let busy = |(vdev, load): (&u32, &Load)| (load.waiting > 0).then_some((load.inflight, *vdev));
        let (_, vdev) = state.tops.iter().filter_map(busy).min()?;
        let head = state.tops.get(&vdev).map_or((0, 0), |load| load.head);
        let of_vdev = |from: (u64, u64)| (vdev, from.0, from.1)..=(vdev, u64::MAX, u64::MAX);
        let after = state.waiting.range(of_vdev(head)).next();
        let key = *after.or_else(|| state.waiting.range(of_vdev((0, 0))).next())?.0;
        let request = state.waiting.remove(&key)?;
        let bytes = cost(&request);
        if let Some(load) = state.tops.get_mut(&vdev) {
            load.head = (key.1, key.2);
            load.waiting = load.waiting.saturating_sub(bytes);
            load.inflight += bytes;
        }
        state.queued = state.queued.saturating_sub(bytes);
        state.inflight += bytes;
        Some(request)
    }

    /// Whether enough requests wait to start some.
    fn has_enough(&self, state: &State) -> bool {
        let is_enough = match state.bounded {
            true => state.queued >= self.limit / 4,
            false => state.inflight > 0,
        };
        is_enough || state.draining || state.room.is_some() || state.waiting.len() >= MIN_WAITING
    }

    fn finish(self: &Arc<Self>, request: &Request, outcome: ReadOutcome) {
        (self.told)(request, outcome);
        {
            let mut state = self.state.lock();
            state.inflight -= cost(request);
            let top = request.bp.dva(0).and_then(|dva| state.tops.get_mut(&dva.vdev));
            if let Some(load) = top {
                load.inflight = load.inflight.saturating_sub(cost(request));
            }
            state.done += request.bp.asize();
        }
        self.pump();
        let mut state = self.state.lock();
        if state.is_over() || state.room.is_some_and(|room| state.has(room)) {
            state.room = None;
            self.change.notify_all();
        }
    }
}

fn cost(request: &Request) -> u64 {
    request.bp.asize().max(request.bp.psize()).max(512)
}
