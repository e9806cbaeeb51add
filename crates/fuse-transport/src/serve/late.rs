//! Answers that wait for work, but not for ever: the work may wait for the answer.
//!
//! The kernel cannot be asked in advance whether dropping pages of a file waits for a request: a write through the page cache
//! holds its pages locked, and looks like one that bypasses it if the program sets `O_DIRECT` meanwhile (`fcntl`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::crew::{self, Job, WorkLane};

/// An answer that is given once: after the work, or when it is late.
type Answer = Arc<Mutex<Option<Job>>>;

#[derive(Default)]
struct Queue {
    /// Answers in the order of their deadlines.
    waiting: VecDeque<(Instant, Answer)>,
    /// A thread looks after them.
    attended: bool,
}

/// Gives answers after work on a lane, or after `patience` if the work takes longer.
#[derive(Clone)]
pub struct Late {
    patience: Duration,
    queue: Arc<Mutex<Queue>>,
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Late {
    /// All answers get the same patience.
    pub fn new(patience: Duration) -> Self {
        Self { patience, queue: Arc::default() }
    }

    /// Runs `work` on the lane and `answer` after it, or `answer` alone when the patience ends first; the work then
    /// goes on.
    pub fn submit(
        &self,
        lane: &WorkLane,
        work: impl FnOnce() + Send + 'static,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let answer: Answer = Arc::new(Mutex::new(Some(Box::new(answer))));
        let mut queue = self.queue.lock();
        queue.waiting.push_back((Instant::now() + self.patience, Arc::clone(&answer)));
        let attended = std::mem::replace(&mut queue.attended, true);
        drop(queue);
        // First: where no thread can be started, this one does both, and the answer must not wait for the work.
        if !attended {
            let queue = Arc::clone(&self.queue);
            crew::run(Box::new(move || attend(&queue)));
        }
        lane.submit(move || {
            work();
            give(&answer);
        });
    }
}

fn give(answer: &Mutex<Option<Job>>) {
    // The lock is free while the answer is given.
    let answer = answer.lock().take();
    if let Some(answer) = answer {
        answer();
    }
}

/// Gives late answers until no answer waits. The deadlines ascend, so none passes during the sleep until the first.
fn attend(queue: &Mutex<Queue>) {
    loop {
        let mut waiting = queue.lock();
        let Some((deadline, answer)) = waiting.waiting.pop_front() else {
            waiting.attended = false;
            return;
        };
        drop(waiting);
        if answer.lock().is_none() {
            continue;
        }
        thread::sleep(deadline.saturating_duration_since(Instant::now()));
        give(&answer);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn work_that_waits_for_its_own_answer_ends() {
        let (late, lane) = (Late::new(Duration::from_millis(5)), WorkLane::new(1));
        let (said, heard) = channel();
        for number in 0..3 {
            let (answered, answer) = channel();
            let said = said.clone();
            late.submit(
                &lane,
                move || {
                    answer.recv().unwrap();
                    said.send(number).unwrap();
                },
                move || answered.send(()).unwrap(),
            );
        }
        assert_eq!((0..3).map(|_| heard.recv().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn an_answer_waits_for_its_work_and_is_given_once() {
        let (late, lane) = (Late::new(Duration::from_secs(3600)), WorkLane::new(2));
        let (said, heard) = channel();
        let done = said.clone();
        late.submit(&lane, move || done.send("work").unwrap(), move || said.send("answer").unwrap());
        assert_eq!(heard.recv().unwrap(), "work");
        assert_eq!(heard.recv().unwrap(), "answer");
        assert!(heard.recv_timeout(Duration::from_millis(20)).is_err());
    }
}
