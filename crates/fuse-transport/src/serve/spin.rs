//! Short waits for the next request without sleeping.
//!
//! A process that got an answer often sends its next request within microseconds, while putting a thread to sleep and
//! waking it again takes longer. Whether spinning pays depends on the load of the processors, so the last results
//! decide; without luck, one wait in [`PROBE`] is still tried.
//!
//! The process itself sleeps until its answer wakes it, and a wait that is shorter than that wake-up finds nothing. A
//! processor wakes in some microseconds, but an idle one of a virtual machine has halted and takes 20 to 40 µs. Therefore the
//! longest wait grows when requests come soon after it, and shrinks when they do not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bounds of the longest wait, in microseconds: the cost of a sleep and a wake-up where processors do not halt, and
/// where they do.
const SPIN: (u32, u32) = (20, 60);
/// A request within this time after the thread went to sleep is one that a longer wait would have found.
const SOON: Duration = Duration::from_micros(90);
/// Requests in succession that come later than that, after which the longest wait shrinks.
const LATE: u32 = 8;
/// Successes that are remembered.
const MOST: u32 = 8;
/// Luck that a failure takes: spinning continues while three of four waits find a request, since a failure
/// costs more processor time than a success saves.
const LOSS: u32 = 3;
/// Waits without luck until the next try.
const PROBE: u32 = 64;

/// The luck of one connection's readers. Threads of one connection may change it at the same time: the numbers are
/// guesses.
#[derive(Debug)]
pub struct Spin {
    luck: AtomicU32,
    skipped: AtomicU32,
    /// Microseconds of the longest wait.
    longest: AtomicU32,
    /// Requests in succession that came late.
    late: AtomicU32,
    /// When a thread last went to sleep, in nanoseconds since the first use; 0 once a request has come.
    asleep: AtomicU64,
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            luck: AtomicU32::new(MOST / 2),
            skipped: AtomicU32::new(0),
            longest: AtomicU32::new(SPIN.0),
            late: AtomicU32::new(0),
            asleep: AtomicU64::new(0),
        }
    }
}

impl Spin {
    /// Calls `poll` until it returns something or the time is over.
    pub fn wait<T>(&self, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        let luck = self.luck.load(Ordering::Relaxed);
        if luck > 0 || self.skipped.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE) {
            let longest = Duration::from_micros(self.longest.load(Ordering::Relaxed).into());
            let begun = Instant::now();
            while begun.elapsed() < longest {
                std::hint::spin_loop();
                if let Some(found) = poll() {
                    self.luck.store((luck + 1).min(MOST), Ordering::Relaxed);
                    return Some(found);
                }
            }
            self.luck.store(luck.saturating_sub(LOSS), Ordering::Relaxed);
        }
        self.asleep.store(now(), Ordering::Relaxed);
        None
    }

    /// A sleeping thread was woken by a request.
    pub fn woken(&self) {
        let asleep = self.asleep.swap(0, Ordering::Relaxed);
        if asleep > 0 {
            self.came_after(Duration::from_nanos(now().saturating_sub(asleep)));
        }
    }

    fn came_after(&self, time: Duration) {
        let longest = self.longest.load(Ordering::Relaxed);
        if time > SOON {
            if self.late.fetch_add(1, Ordering::Relaxed) >= LATE {
                self.late.store(0, Ordering::Relaxed);
                self.longest.store((longest / 2).max(SPIN.0), Ordering::Relaxed);
            }
            return;
        }
        self.late.store(0, Ordering::Relaxed);
        if longest < SPIN.1 {
            self.longest.store((longest * 2).min(SPIN.1), Ordering::Relaxed);
            // The longer wait is tried once.
            self.luck.fetch_max(LOSS, Ordering::Relaxed);
        }
    }
}

/// Nanoseconds since the first call, at least 1.
fn now() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = FIRST.get_or_init(Instant::now).elapsed().as_nanos();
    u64::try_from(since).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_luck_few_waits_spin_and_one_success_is_enough_to_try_again() {
        let (spin, mut polls) = (Spin::default(), 0);
        let mut waits_with_polls = 0;
        for _ in 0..10 * PROBE {
            let before = polls;
            let nothing = spin.wait(|| {
                polls += 1;
                None::<()>
            });
            assert_eq!(nothing, None);
            waits_with_polls += u32::from(polls > before);
        }
        // A thread that loses its processor at the wrong moment polls once less.
        assert!(waits_with_polls <= MOST / 2 + 10, "{waits_with_polls}");
        let found = (0..PROBE).filter_map(|_| spin.wait(|| Some(7))).count();
        assert!(found >= 1 && spin.luck.load(Ordering::Relaxed) > 0);
    }
    #[test]
    fn the_longest_wait_grows_while_requests_come_soon_after_it_and_shrinks_when_they_come_late() {
        let spin = Spin::default();
        let longest = |spin: &Spin| spin.longest.load(Ordering::Relaxed);
        let fail = |spin: &Spin| spin.luck.store(0, Ordering::Relaxed);
        fail(&spin);
        spin.came_after(SOON);
        assert_eq!((longest(&spin), spin.luck.load(Ordering::Relaxed)), (2 * SPIN.0, LOSS));
        spin.came_after(SOON);
        assert_eq!(longest(&spin), SPIN.1);
        // The longest one is not tried again and again in vain.
        fail(&spin);
        spin.came_after(SOON);
        assert_eq!((longest(&spin), spin.luck.load(Ordering::Relaxed)), (SPIN.1, 0));
        for _ in 0..10 * LATE {
            spin.came_after(SOON * 2);
        }
        assert_eq!(longest(&spin), SPIN.0);
    }
}
