//! A few threads that serve one device's requests.
//!
//! A thread starts when there is work that no idle thread could take, up to the limit, so that opening a hundred
//! devices to read their labels does not start hundreds of threads.
//!
//! The queue is bounded without deadlocks:
//! - a caller that finds it full runs one waiting request itself, which slows the caller to the device's speed;
//! - a completion that submits more work (on a serving thread) only queues it, past the bound if necessary: it
//!   replaces the request that just ended, and running it there would recurse.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use stdx::Buf;

use crate::{Io, WriteDone, bounds};

/// Maximum queued requests before a caller has to help.
const QUEUE_LIMIT: usize = 256;

/// The next work of a thread.
pub(crate) enum Work {
    /// A request with a buffer of its own.
    Io(Io),
    /// A write of several shared buffers, in order.
    Write { offset: u64, parts: Vec<Buf>, done: WriteDone },
}

impl Work {
    fn finish(self, result: std::io::Result<()>) {
        match self {
            Self::Io(io) => bounds::finish(io, result),
            Self::Write { parts, done, .. } => {
                drop(parts);
                done(result);
            }
        }
    }
}

/// Serves one request and returns its result. It may block.
pub(crate) type Serve = dyn Fn(&mut Work) -> std::io::Result<()> + Send + Sync;

thread_local! {
    /// True while this thread runs a completion.
    static IN_COMPLETION: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct Pool {
    shared: Arc<Shared>,
    limit: usize,
}

struct Shared {
    serve: Box<Serve>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(limit: usize, serve: Box<Serve>) -> Self {
        let state = Mutex::new(State::default());
        Self { shared: Arc::new(Shared { serve, state, work: Condvar::new() }), limit: limit.max(1) }
    }

    pub(crate) fn submit(&self, work: Work) {
        let mut state = self.shared.state.lock();
        state.queue.push_back(work);
        if state.idle >= state.queue.len() {
            self.shared.work.notify_one();
        } else if state.threads < self.limit {
            state.threads += 1;
            drop(state);
            self.grow();
            return;
        }
        let help = state.queue.len() > QUEUE_LIMIT && !IN_COMPLETION.get();
        let oldest = if help { state.queue.pop_front() } else { None };
        drop(state);
        if let Some(work) = oldest {
            self.shared.run(work);
        }
    }

    /// Serves a request on this thread.
    pub(crate) fn serve(&self, work: Work) {
        self.shared.run(work);
    }

    /// Serves a request that does not wait on this thread, unless that runs a completion: those could follow one another without
    /// end.
    pub(crate) fn serve_or_submit(&self, work: Work) {
        if IN_COMPLETION.get() { self.submit(work) } else { self.shared.run(work) }
    }

    /// Completes a request that was served successfully on this thread.
    pub(crate) fn served(work: Work) {
        complete(work, Ok(()));
    }

    /// Starts a thread; if the system refuses, the caller does the queued work.
    fn grow(&self) {
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new().name("blkdev".into()).spawn(move || shared.work_loop());
        if started.is_err() {
            let mut state = self.shared.state.lock();
            state.threads -= 1;
            if state.threads == 0 {
                let waiting = std::mem::take(&mut state.queue);
                drop(state);
                waiting.into_iter().for_each(|work| self.shared.run(work));
            }
        }
    }
}

impl Drop for Pool {
    /// Threads finish the queue and end. They are not joined: a completion may drop the last handle.
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn work_loop(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                self.run(work);
                state = self.state.lock();
            } else if state.closed {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }

    fn run(&self, mut work: Work) {
        let result = (self.serve)(&mut work);
        complete(work, result);
    }
}

fn complete(work: Work, result: std::io::Result<()>) {
    let outer = IN_COMPLETION.replace(true);
    work.finish(result);
    IN_COMPLETION.set(outer);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use stdx::AlignedBuf;

    use super::*;
    use crate::IoKind;

    fn io(offset: u64, done: impl FnOnce() + Send + 'static) -> Work {
        Work::Io(Io { kind: IoKind::Read, offset, buf: AlignedBuf::zeroed(0), done: Box::new(|_, _| done()) })
    }

    #[test]
    fn serves_more_than_the_bound_and_what_is_left_at_drop() {
        let count = Arc::new(AtomicUsize::new(0));
        let (tx, rx) = mpsc::channel::<()>();
        let pool = Pool::new(2, Box::new(|_| Ok(())));
        for i in 0..2000 {
            let (count, tx) = (Arc::clone(&count), tx.clone());
            pool.submit(io(i, move || {
                count.fetch_add(1, Ordering::Relaxed);
                drop(tx);
            }));
        }
        drop(pool);
        drop(tx);
        assert!(rx.recv().is_err(), "ends when the last completion has run");
        assert_eq!(count.load(Ordering::Relaxed), 2000);
    }

    #[test]
    fn completions_may_submit_without_deadlock() {
        fn chain(pool: &Arc<Pool>, left: u32, tx: mpsc::Sender<()>) {
            let again = Arc::clone(pool);
            pool.submit(io(0, move || match left {
                0 => drop(tx),
                _ => chain(&again, left - 1, tx),
            }));
        }
        let pool = Arc::new(Pool::new(1, Box::new(|_| Ok(()))));
        let (tx, rx) = mpsc::channel();
        (0..600).for_each(|_| chain(&pool, 20, tx.clone()));
        drop(tx);
        assert!(rx.recv().is_err());
    }

    #[test]
    fn threads_are_limited() {
        let pool = Pool::new(3, Box::new(|_| Ok(())));
        let (tx, rx) = mpsc::channel::<()>();
        for i in 0..500 {
            let tx = tx.clone();
            pool.submit(io(i, move || drop(tx)));
        }
        drop(tx);
        assert!(rx.recv().is_err());
        assert!(pool.shared.state.lock().threads <= 3);
    }
}
