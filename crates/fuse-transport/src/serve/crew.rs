//! Threads for work that may wait, shared by all mounts of the process.
//!
//! A thread starts when work finds none idle, and ends after an idle period. [`WorkLane`]s bound the concurrent work of
//! one mount, not the threads, because the work of one mount may wait for that of another: a pool can lie on a file
//! in a mount.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Maximum idle time of a thread.
const IDLE: Duration = Duration::from_secs(5);

/// Work.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs a job on a thread that may wait.
pub fn run(job: Job) {
    CREW.run(job);
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    idle: usize,
}

/// The threads.
struct Crew {
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

static CREW: Crew =
    Crew { waiting: Mutex::new(Waiting { jobs: VecDeque::new(), idle: 0 }), wake: Condvar::new() };

impl Crew {
    /// Runs the job on a thread; without one (the system refuses) the caller runs it.
    fn run(&'static self, job: Job) {
        let mut waiting = self.waiting.lock();
        waiting.jobs.push_back(job);
        if waiting.idle >= waiting.jobs.len() {
            drop(waiting);
            self.wake.notify_one();
            return;
        }
        drop(waiting);
        if thread::Builder::new().name("fuse-crew".to_owned()).spawn(|| self.work()).is_err() {
            let job = self.waiting.lock().jobs.pop_back();
            if let Some(job) = job {
                job();
            }
        }
    }

    fn work(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            while let Some(job) = waiting.jobs.pop_front() {
                drop(waiting);
                job();
                waiting = self.waiting.lock();
            }
            waiting.idle += 1;
            let late = self.wake.wait_for(&mut waiting, IDLE).timed_out();
            waiting.idle -= 1;
            if late && waiting.jobs.is_empty() {
                return;
            }
        }
    }
}

#[derive(Default)]
struct Line {
    running: usize,
    jobs: VecDeque<Job>,
}

/// One kind of work of one mount: a limited number of jobs run at a time, the rest wait in order.
#[derive(Clone)]
pub struct WorkLane {
    most: usize,
    line: Arc<Mutex<Line>>,
}

impl fmt::Debug for WorkLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("most", &self.most).finish_non_exhaustive()
    }
}

impl WorkLane {
    /// At most `most` jobs at a time.
    pub fn new(most: usize) -> Self {
        Self { most, line: Arc::default() }
    }

    /// Runs the job on another thread, now or later.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut line = self.line.lock();
        line.jobs.push_back(Box::new(job));
        if line.running >= self.most {
            return;
        }
        line.running += 1;
        drop(line);
        let line = Arc::clone(&self.line);
        CREW.run(Box::new(move || Self::drain(&line)));
    }

    fn drain(line: &Mutex<Line>) {
        loop {
            let mut waiting = line.lock();
            let Some(job) = waiting.jobs.pop_front() else {
                waiting.running -= 1;
                return;
            };
            drop(waiting);
            // A panic loses the answer to one request, but no slot of the lane.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_lane_that_waits_keeps_no_other_from_going_on() {
        let (slow, quick) = (WorkLane::new(2), WorkLane::new(2));
        let (release, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (said, heard) = channel();
        for number in 0..4 {
            let (gate, said) = (Arc::clone(&gate), said.clone());
            slow.submit(move || {
                gate.lock().recv().unwrap();
                said.send(number).unwrap();
            });
        }
        let other = said.clone();
        quick.submit(move || other.send(100).unwrap());
        assert_eq!(heard.recv().unwrap(), 100);
        (0..4).for_each(|_| release.send(()).unwrap());
        let mut done: Vec<i32> = (0..4).map(|_| heard.recv().unwrap()).collect();
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2, 3]);
        assert!(heard.try_recv().is_err());
    }

    #[test]
    fn a_job_that_panics_leaves_its_place() {
        let lane = WorkLane::new(1);
        let (said, heard) = channel();
        lane.submit(|| panic!("meant"));
        lane.submit(move || said.send(()).unwrap());
        heard.recv().unwrap();
    }
}
