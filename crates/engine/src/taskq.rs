//! Threads from outside: executes the engine's CPU work, and lets callers wait for it.
//!
//! A [`Job`] never waits for another job or for a device (those of [`Executor::spawn_waiting`] may); it starts I/O
//! with a completion and returns. Only outside callers (a command, a FUSE worker, an actor) wait, through
//! [`Promise::wait`]. A simulated executor runs jobs one by one from `help` in an order determined by its seed.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::plug;

/// A piece of CPU work that never waits.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Executes jobs.
pub trait Executor: Send + Sync + Debug {
    /// Queues a job.
    fn spawn(&self, job: Job);
    /// Queues a job that may wait for jobs of [`Executor::spawn`] (a write, whose allocation may have to read a
    /// space map): it must not occupy their threads.
    fn spawn_waiting(&self, job: Job) {
        self.spawn(job);
    }
    /// Called by a waiter: runs a queued job on the waiter's thread if this executor has no threads of its own.
    /// Returns whether a job ran.
    fn help(&self) -> bool;
    /// The number of jobs that run concurrently.
    fn width(&self) -> usize;
}

thread_local! {
    /// This thread will only wait for the operation it is starting.
    static WILL_WAIT: Cell<bool> = const { Cell::new(false) };
    /// The same, and no request was served on this thread yet.
    static MAY_SERVE: Cell<bool> = const { Cell::new(false) };
    /// This thread has nothing else to do than the reads it is starting.
    static READS: Cell<bool> = const { Cell::new(false) };
    /// This thread does a part of a job in the background.
    static BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Does a part of a job in the background: the requests that this thread starts are the job's, not those of others for whom a
/// job makes room.
pub(crate) fn in_background<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            BACKGROUND.set(self.0);
        }
    }
    let _restored = Restore(BACKGROUND.replace(true));
    work()
}

/// Whether this thread does a part of a job in the background.
pub(crate) fn is_in_background() -> bool {
    BACKGROUND.get()
}

/// Starts reads that nothing waits for, on a thread of its own for that: those of bytes in the system's memory are served on it.
pub(crate) fn start_reads(start: impl FnOnce()) {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            READS.set(self.0);
        }
    }
    let _restored = Restore(READS.replace(true));
    start();
}

/// Whether reads of bytes that are in the system's memory are to be served on this thread: others would have to be woken.
pub(crate) fn serves_cached() -> bool {
    WILL_WAIT.get() || READS.get()
}

/// Starts an operation for which this thread will then only wait: a device may serve one of its requests on this
/// thread.
pub(crate) fn start_and_wait<T>(start: impl FnOnce() -> T) -> T {
    struct Restore(bool, bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            WILL_WAIT.set(self.0);
            MAY_SERVE.set(self.1);
        }
    }
    let _restored = Restore(WILL_WAIT.replace(true), MAY_SERVE.replace(true));
    start()
}

/// Whether this thread will wait for the operation it is starting.
pub(crate) fn will_wait() -> bool {
    WILL_WAIT.get()
}

/// Whether one request may be served on this thread; the next one may not, until the flag is set again.
pub(crate) fn take_wait() -> bool {
    MAY_SERVE.replace(false)
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stop: bool,
}

/// A fixed pool of threads.
pub(crate) struct ThreadPool {
    shared: Arc<(Mutex<Queue>, Condvar)>,
    /// For jobs that may wait for others.
    waiting: Arc<(Mutex<Queue>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
    width: usize,
}

impl Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ThreadPool({})", self.threads.len())
    }
}

impl ThreadPool {
    /// A pool of `width` threads (at least one). Fails if the system refuses to start any.
    #[expect(clippy::disallowed_methods, reason = "the threads of Env::executor")]
    pub(crate) fn new(width: usize) -> std::io::Result<Self> {
        let queue = || Arc::new((Mutex::new(Queue::default()), Condvar::new()));
        let (shared, waiting, width) = (queue(), queue(), width.max(1));
        let mut threads = Vec::new();
        for i in 0..width {
            for (name, queue, waits) in [("zio", &shared, false), ("zio-w", &waiting, true)] {
                let queue = Arc::clone(queue);
                let work = move || {
                    if !waits {
                        plug::hold_scans_back();
                    }
                    work(&queue);
                };
                let thread = std::thread::Builder::new().name(format!("{name}-{i}")).spawn(work)?;
                threads.push(thread);
            }
        }
        Ok(Self { shared, waiting, threads, width })
    }
}

/// Jobs after which requests that were held back start.
const JOBS: u32 = 16;

fn work(shared: &(Mutex<Queue>, Condvar)) {
    let mut done: u32 = 0;
    loop {
        let job = {
            let mut queue = shared.0.lock();
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if plug::holds_scans() {
                    MutexGuard::unlocked(&mut queue, plug::release);
                    continue;
                }
                if queue.stop {
                    return;
                }
                shared.1.wait(&mut queue);
            }
        };
        // A job that panics has reported itself; its waiter notices its end. Other jobs continue.
        let _ = catch_unwind(AssertUnwindSafe(job));
        done = done.wrapping_add(1);
        if done.is_multiple_of(JOBS) {
            plug::release();
        }
    }
}

impl Executor for ThreadPool {
    fn spawn(&self, job: Job) {
        self.shared.0.lock().jobs.push_back(job);
        self.shared.1.notify_one();
    }

    fn spawn_waiting(&self, job: Job) {
        self.waiting.0.lock().jobs.push_back(job);
        self.waiting.1.notify_one();
    }

    fn help(&self) -> bool {
        false
    }

    fn width(&self) -> usize {
        self.width
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for queue in [&self.shared, &self.waiting] {
            queue.0.lock().stop = true;
            queue.1.notify_all();
        }
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // A job may be the last owner: a thread cannot join itself.
            if thread.thread().id() != me {
                // A job that panicked has already reported itself.
                let _ = thread.join();
            }
        }
    }
}

/// An executor without threads: jobs run, first in first out, when a caller waits.
#[derive(Default)]
pub struct Inline {
    queue: Mutex<VecDeque<Job>>,
}

impl Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inline({} queued)", self.queue.lock().len())
    }
}

impl Executor for Inline {
    fn spawn(&self, job: Job) {
        self.queue.lock().push_back(job);
    }

    fn help(&self) -> bool {
        let job = self.queue.lock().pop_front();
        match job {
            Some(job) => {
                job();
                true
            }
            None => false,
        }
    }

    fn width(&self) -> usize {
        1
    }
}

/// A value that becomes available later.
#[derive(Debug)]
pub struct Promise<T>(Arc<(Mutex<Option<T>>, Condvar)>);

impl<T> Clone for Promise<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Self(Arc::new((Mutex::new(None), Condvar::new())))
    }
}

impl<T> Promise<T> {
    /// Sets the value; wakes the waiter.
    pub fn set(&self, value: T) {
        *self.0.0.lock() = Some(value);
        self.0.1.notify_all();
    }

    /// Whether the value is there, and not taken.
    pub(crate) fn is_set(&self) -> bool {
        self.0.0.lock().is_some()
    }

    /// Waits for the value and leaves it there: cheaper than one wait for each of several values is a first one for
    /// the last of them. Panics like [`Promise::wait`].
    pub(crate) fn wait_until_set(&self, executor: &dyn Executor) {
        let value = self.wait(executor);
        *self.0.0.lock() = Some(value);
    }

    /// Waits for the value and takes it. Panics if the setter is gone: it has panicked, and waiting would never
    /// end.
    pub fn wait(&self, executor: &dyn Executor) -> T {
        plug::release();
        let mut slot = self.0.0.lock();
        loop {
            if let Some(value) = slot.take() {
                return value;
            }
            let helped = MutexGuard::unlocked(&mut slot, || executor.help());
            if !helped && slot.is_none() {
                assert!(Arc::strong_count(&self.0) > 1, "the job that was waited for is gone");
                self.0.1.wait_for(&mut slot, std::time::Duration::from_millis(50));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs_a_job(executor: &dyn Executor) {
        let promise = Promise::default();
        let theirs = promise.clone();
        executor.spawn(Box::new(move || theirs.set(7)));
        assert_eq!(promise.wait(executor), 7);
    }

    #[test]
    #[should_panic(expected = "is gone")]
    fn a_job_that_panics_leaves_no_one_waiting() {
        let pool = ThreadPool::new(1).unwrap();
        let promise = Promise::<u32>::default();
        let theirs = promise.clone();
        pool.spawn(Box::new(move || {
            let _theirs = theirs;
            panic!("a fault in a job");
        }));
        promise.wait(&pool);
    }

    #[test]
    fn a_thread_that_waits_serves_one_request() {
        assert!(!take_wait());
        assert_eq!(start_and_wait(|| (take_wait(), take_wait(), will_wait())), (true, false, true));
        start_and_wait(|| ());
        assert!(!take_wait() && !will_wait());
    }

    #[test]
    fn jobs_that_wait_do_not_take_the_place_of_those_they_wait_for() {
        let pool = Arc::new(ThreadPool::new(1).unwrap());
        let all: Vec<Promise<u32>> = (0..20).map(|_| Promise::default()).collect();
        for outer in all.clone() {
            let theirs = Arc::clone(&pool);
            pool.spawn_waiting(Box::new(move || {
                let inner = Promise::default();
                let given = inner.clone();
                theirs.spawn(Box::new(move || given.set(3)));
                outer.set(inner.wait(&*theirs));
            }));
        }
        assert_eq!(all.into_iter().map(|p| p.wait(&*pool)).sum::<u32>(), 60);
    }

    #[test]
    fn both_executors_answer_a_waiter() {
        runs_a_job(&ThreadPool::new(2).unwrap());
        runs_a_job(&Inline::default());
    }
}
