//! Writing through the cache: blocks that were just written are read from memory.

use std::collections::VecDeque;
use std::sync::Arc;

use ondisk::Blkptr;
use parking_lot::Mutex;
use stdx::Buf;

use super::ArcCache;
use crate::error::Result;
use crate::memory::limits::Limit;
use crate::taskq::{Executor, Promise};
use crate::zio::write::{WriteDone, WriteRequest};
use crate::zio::{Form, Zio};

/// Most bytes of blocks that are on their way at once.
const WINDOW: usize = 32 << 20;
/// Least.
const SMALLEST_WINDOW: usize = 4 << 20;
/// Bytes, and blocks, that one job writes: small blocks cost less than to wake a thread for each of them.
const BATCH: (usize, usize) = (128 << 10, 32);
/// Memory of a block in flight besides its content.
const OVERHEAD: usize = 2048;

/// The bytes on their way, and the waiter for room.
#[derive(Debug)]
struct Flow {
    window: usize,
    state: Mutex<(usize, Option<Room>)>,
}

/// The wait of a block for room.
#[derive(Debug)]
struct Room {
    promise: Promise<()>,
    /// Its own bytes, which are counted already. A block larger than the window has room when it is alone.
    own: usize,
}

impl Flow {
    /// A share of the limit of dirty data: blocks made for writing count against it.
    fn of(arc: &ArcCache) -> Arc<Self> {
        let most = usize::try_from(arc.memory().limits.get(Limit::DirtyMax)).unwrap_or(usize::MAX);
        Arc::new(Self { window: (most / 8).clamp(SMALLEST_WINDOW, WINDOW), state: Mutex::default() })
    }

    /// Waits while too much is on its way; called by one thread. Any end makes room: one slow device does not hold up the others.
    /// `before` a wait everything is started.
    fn enter(&self, bytes: usize, executor: &dyn Executor, before: impl FnOnce()) {
        let room = {
            let mut state = self.state.lock();
            state.0 = state.0.saturating_add(bytes);
            (state.0 > self.window.max(bytes)).then(|| {
                let promise = Promise::default();
                state.1 = Some(Room { promise: promise.clone(), own: bytes });
                promise
            })
        };
        if let Some(room) = room {
            before();
            room.wait(executor);
        }
    }

    fn leave(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.0 = state.0.saturating_sub(bytes);
        let (all, window) = (state.0, self.window);
        if let Some(room) = state.1.take_if(|room| all <= window.max(room.own)) {
            drop(state);
            room.promise.set(());
        }
    }
}

/// A block whose write was started.
struct Started<T> {
    tag: T,
    promise: Promise<Result<Blkptr>>,
    data: Buf,
    /// Whether `data` are kept: the logical bytes (those of a stream can be compressed or encrypted) of blocks that are cached.
    logical: bool,
    paged: bool,
}

/// Blocks that will be written by one job.
struct Batch<'a> {
    zio: &'a Arc<Zio>,
    blocks: Vec<(WriteRequest, WriteDone)>,
    bytes: usize,
}

impl<'a> Batch<'a> {
    fn new(zio: &'a Arc<Zio>) -> Self {
        Self { zio, blocks: Vec::new(), bytes: 0 }
    }

    fn add(&mut self, request: WriteRequest, done: WriteDone) {
        self.bytes = self.bytes.saturating_add(request.data.len());
        self.blocks.push((request, done));
        if self.bytes >= BATCH.0 || self.blocks.len() >= BATCH.1 {
            self.start();
        }
    }

    fn start(&mut self) {
        self.bytes = 0;
        if !self.blocks.is_empty() {
            self.zio.write_batch(std::mem::take(&mut self.blocks));
        }
    }
}

/// Writes blocks in the order in which `requests` makes them, and waits for all; `done` receives the pointer
/// of each, in that order. A block is made only when there is room for it, so memory use does not grow with
/// their number. The written blocks are in the cache afterwards.
pub(crate) fn write_each<T>(
    arc: &Arc<ArcCache>,
    requests: impl Iterator<Item = (T, WriteRequest)>,
    mut done: impl FnMut(T, Result<Blkptr>),
) {
    let (zio, flow) = (arc.zio(), Flow::of(arc));
    let mut finish = |started: Started<T>| {
        let result = started.promise.wait(&**zio.executor());
        match &result {
            Ok(bp) if started.logical => arc.insert(bp, Form::Logical, &started.data, started.paged),
            // Written in place, it has the identity of the block before it.
            Ok(bp) => arc.freed(bp),
            Err(_) => {}
        }
        done(started.tag, result);
    };
    let (mut waiting, mut held) = (VecDeque::<Started<T>>::new(), 0_usize);
    let mut batch = Batch::new(zio);
    for (tag, request) in requests {
        let (promise, data) = (Promise::default(), request.data.clone());
        let paged = request.props.paged;
        let logical = request.stored.is_none_or(|form| form.is_logical()) && !request.props.uncached;
        let (theirs, bytes, room) = (promise.clone(), data.len().saturating_add(OVERHEAD), Arc::clone(&flow));
        flow.enter(bytes, &**zio.executor(), || batch.start());
        let over = move |result| {
            room.leave(bytes);
            theirs.set(result);
        };
        batch.add(request, Box::new(over));
        waiting.push_back(Started { tag, promise, data, logical, paged });
        held = held.saturating_add(bytes);
        // Finished requests wait for their turn; a slow one at the front must not let them accumulate.
        while held > flow.window.saturating_mul(2)
            && let Some(first) = waiting.pop_front()
        {
            batch.start();
            held = held.saturating_sub(first.data.len().saturating_add(OVERHEAD));
            finish(first);
        }
    }
    batch.start();
    // Then most of the others need no wait of their own.
    if let Some(last) = waiting.back() {
        last.promise.wait_until_set(&**zio.executor());
    }
    waiting.into_iter().for_each(finish);
}

/// Writes many blocks and waits; returns pointers in the order of the requests. The written blocks are in the
/// cache afterwards.
pub(crate) fn write_all(arc: &Arc<ArcCache>, requests: Vec<WriteRequest>) -> Vec<Result<Blkptr>> {
    let mut results = Vec::with_capacity(requests.len());
    write_each(arc, requests.into_iter().map(|request| ((), request)), |(), result| results.push(result));
    results
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taskq::Inline;

    #[test]
    fn a_block_larger_than_the_window_waits_until_it_is_alone() {
        let flow = Flow { window: 4 << 20, state: Mutex::default() };
        let (block, small) = (16 << 20, 1 << 20);
        flow.enter(block, &Inline::default(), || unreachable!("nothing else is on its way"));
        let (sender, waits) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                flow.enter(block, &Inline::default(), || sender.send(()).unwrap());
                flow.leave(block);
                flow.enter(small, &Inline::default(), || unreachable!("there is room"));
            });
            waits.recv().unwrap();
            assert!(!second.is_finished());
            flow.leave(block);
        });
        assert_eq!(flow.state.lock().0, small);
    }
}
