//! Waiting for another thread and for the clock at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

/// Tells a watcher that work has ended: dropped by the worker, also in a panic.
#[derive(Debug)]
pub struct Wake {
    watcher: Thread,
    ended: Arc<AtomicBool>,
}

/// The side of the thread that watches, and looks at other things at each tick.
#[derive(Debug)]
pub struct Watch(Arc<AtomicBool>);

impl Watch {
    /// For work that the calling thread watches: the first goes to it, which keeps it until it ends.
    pub fn new() -> (Wake, Self) {
        let ended = Arc::new(AtomicBool::new(false));
        (Wake { watcher: thread::current(), ended: Arc::clone(&ended) }, Self(ended))
    }

    /// Waits until the work has ended, at most for `tick`. Returns whether it goes on.
    pub fn goes_on(&self, tick: Duration) -> bool {
        if !self.0.load(Ordering::Acquire) {
            thread::park_timeout(tick);
        }
        !self.0.load(Ordering::Acquire)
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.watcher.unpark();
    }
}

/// Pauses between looks at something that does not announce its end: one millisecond, then twice as long each time.
#[derive(Debug)]
pub struct Naps {
    next: Duration,
    longest: Duration,
}

impl Naps {
    /// Pauses up to `longest`.
    pub fn up_to(longest: Duration) -> Self {
        Self { next: Duration::from_millis(1).min(longest), longest }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(self.longest);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let mut naps = Naps::up_to(Duration::from_millis(5));
        let all: Vec<u128> = (0..5).map(|_| naps.pause().as_millis()).collect();
        assert_eq!(all, [1, 2, 4, 5, 5]);
    }

    #[test]
    fn a_watcher_does_not_wait_for_the_next_tick() {
        let (wake, watch) = Watch::new();
        thread::scope(|scope| {
            scope.spawn(move || drop(wake));
            while watch.goes_on(Duration::from_secs(3600)) {}
        });
    }
}
