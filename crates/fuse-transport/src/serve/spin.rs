//! Short waits for the next request without sleeping.
//!
//! A process that got an answer often sends its next request within microseconds, while putting a thread to sleep and
//! waking it again takes longer. Whether spinning pays depends on the load of the processors, so the last results
//! decide; without luck, one wait in [`PROBE`] is still tried.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait: about the cost of a sleep and a wake-up.
const SPIN: Duration = Duration::from_micros(20);
/// Successes that are remembered.
const MOST: u32 = 8;
/// Luck that a failure takes: spinning continues while three of four waits find a request, since a failure
/// costs more processor time than a success saves.
const LOSS: u32 = 3;
/// Waits without luck until the next try.
const PROBE: u32 = 64;

/// The luck of one connection's readers.
#[derive(Debug)]
pub struct Spin {
    luck: AtomicU32,
    skipped: AtomicU32,
}

impl Default for Spin {
    fn default() -> Self {
        Self { luck: AtomicU32::new(MOST / 2), skipped: AtomicU32::new(0) }
    }
}

impl Spin {
    /// Calls `poll` until it returns something or the time is over.
    pub fn wait<T>(&self, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        // Threads of one connection may do this at the same time: the numbers are guesses.
        let luck = self.luck.load(Ordering::Relaxed);
        if luck == 0 && !self.skipped.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE) {
            return None;
        }
        let begun = Instant::now();
        while begun.elapsed() < SPIN {
            std::hint::spin_loop();
            if let Some(found) = poll() {
                self.luck.store((luck + 1).min(MOST), Ordering::Relaxed);
                return Some(found);
            }
        }
        self.luck.store(luck.saturating_sub(LOSS), Ordering::Relaxed);
        None
    }
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
}
