//! Delayed completions: the lanes of a delay handler, and the thread that ends requests late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// When each lane of a handler is idle.
#[derive(Debug)]
pub(super) struct DelayLanes(Mutex<Vec<Option<Instant>>>);

impl DelayLanes {
    pub(crate) fn new(count: usize) -> Self {
        Self(Mutex::new(vec![None; count]))
    }

    /// When the lane that is idle first would end a request of `latency` that starts `now`.
    pub(crate) fn first(&self, now: Instant, latency: Duration) -> Option<Instant> {
        self.0.lock().iter().map(|idle| idle.map_or(now, |idle| idle.max(now)) + latency).min()
    }

    /// Takes that lane until `end`.
    pub(crate) fn take(&self, end: Instant) {
        if let Some(lane) = self.0.lock().iter_mut().min_by_key(|idle| **idle) {
            *lane = Some(end);
        }
    }
}

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    /// By time and order of arrival.
    waiting: BTreeMap<(Instant, u64), Work>,
    next: u64,
    runs: bool,
}

/// Runs work at given times, on a thread that exists only while some waits.
#[derive(Default)]
pub(super) struct Timer {
    state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for Timer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timer").field("waiting", &self.state.lock().waiting.len()).finish()
    }
}

impl Timer {
    /// Runs `work` at `when`; at once where no thread is to be had.
    #[expect(
        clippy::disallowed_methods,
        reason = "injected delays are of the machine's time; simulations have none"
    )]
    pub(crate) fn at(self: &Arc<Self>, when: Instant, work: Work) {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert((when, number), work);
        if !state.runs {
            let timer = Arc::clone(self);
            let thread = std::thread::Builder::new().name("zinject-delay".into());
            state.runs = thread.spawn(move || timer.run()).is_ok();
        }
        if !state.runs {
            let work = state.waiting.remove(&(when, number));
            drop(state);
            if let Some(work) = work {
                work();
            }
            return;
        }
        drop(state);
        self.changed.notify_one();
    }

    #[expect(clippy::disallowed_methods, reason = "as Timer::at")]
    fn run(&self) {
        let mut state = self.state.lock();
        while let Some((&(when, _), _)) = state.waiting.first_key_value() {
            if when > Instant::now() {
                self.changed.wait_until(&mut state, when);
                continue;
            }
            let work = state.waiting.pop_first().map(|(_, work)| work);
            // The work may start another request of the device.
            parking_lot::MutexGuard::unlocked(&mut state, || work.map(|work| work()));
        }
        state.runs = false;
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "injected delays are of the machine's time")]
mod tests {
    use super::*;

    #[test]
    fn one_lane_serves_one_request_at_a_time_and_two_serve_two() {
        let now = Instant::now();
        let latency = Duration::from_millis(10);
        for (lanes, ends) in [(1, [10, 20, 30]), (2, [10, 10, 20])] {
            let lanes = DelayLanes::new(lanes);
            for end in ends {
                let at = lanes.first(now, latency).unwrap();
                lanes.take(at);
                assert_eq!(at - now, Duration::from_millis(end));
            }
        }
    }

    #[test]
    fn the_timer_runs_work_in_the_order_of_its_times() {
        let (timer, (tell, told)) = (Arc::new(Timer::default()), std::sync::mpsc::channel());
        let now = Instant::now();
        for delay in [30, 10, 20] {
            let tell = tell.clone();
            timer.at(now + Duration::from_millis(delay), Box::new(move || tell.send(delay).unwrap()));
        }
        assert_eq!(told.iter().take(3).collect::<Vec<_>>(), [10, 20, 30]);
        assert!(now.elapsed() >= Duration::from_millis(30));
    }
}
