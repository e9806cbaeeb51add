//! How much a step of an expansion copies: as much as its time permits.
//!
//! A step is made while a txg is written, and commands wait for that txg. So it is short beside others, and shorter still when
//! a command waits for this very txg; on slow devices it copies less.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Most bytes of a step, and fewest: a txg costs more than so little.
const MOST: u64 = 64 << 20;
const LEAST: u64 = 1 << 20;
/// Bytes of a step before any has been measured.
const FIRST: u64 = 8 << 20;
/// Steps that took less time than this, or copied less than [`LEAST`], say nothing about the speed.
const SHORTEST: Duration = Duration::from_millis(1);

/// Waiters for the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepWaiters {
    /// Others do not use the pool.
    NotSeen,
    /// Others use it, and may wait for a txg soon.
    Soon,
    /// A command waits for this txg.
    Now,
}

impl StepWaiters {
    /// The time that a step may take.
    fn time(self) -> Duration {
        Duration::from_millis(match self {
            Self::NotSeen => 400,
            Self::Soon => 100,
            Self::Now => 30,
        })
    }
}

/// The measured speed of steps.
#[derive(Debug, Default)]
pub(super) struct StepSpeed {
    /// Bytes a second; 0: not known.
    speed: AtomicU64,
}

impl StepSpeed {
    /// Bytes of the next step.
    pub(super) fn next(&self, waiting: StepWaiters) -> u64 {
        match self.speed.load(Ordering::Relaxed) {
            0 => FIRST,
            speed => {
                let millis = u64::try_from(waiting.time().as_millis()).unwrap_or(0);
                (speed / 1000).saturating_mul(millis).clamp(LEAST, MOST)
            }
        }
    }

    /// A step has copied so many bytes in that time.
    pub(super) fn took(&self, bytes: u64, time: Duration) {
        if bytes < LEAST || time < SHORTEST {
            return;
        }
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let now = bytes.saturating_mul(1_000_000) / micros;
        let new = match self.speed.load(Ordering::Relaxed) {
            0 => now,
            // A slower step counts at once; a faster one may have found its bytes in a cache.
            old => now.min(old / 2 + now / 2),
        };
        self.speed.store(new.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_copies_what_its_time_permits() {
        let speed = StepSpeed::default();
        assert_eq!(speed.next(StepWaiters::NotSeen), FIRST);
        speed.took(8 << 20, Duration::from_millis(400));
        let slow = [StepWaiters::NotSeen, StepWaiters::Soon, StepWaiters::Now]
            .map(|waiting| speed.next(waiting) >> 20);
        assert_eq!(slow, [7, 1, 1]);
        for _ in 0..8 {
            speed.took(64 << 20, Duration::from_millis(64));
        }
        assert_eq!(speed.next(StepWaiters::NotSeen), MOST);
        assert!((20 << 20..34 << 20).contains(&speed.next(StepWaiters::Now)));
        // Empty steps say nothing, a slow one does.
        speed.took(0, Duration::from_millis(50));
        assert_eq!(speed.next(StepWaiters::NotSeen), MOST);
        speed.took(8 << 20, Duration::from_secs(1));
        assert_eq!(speed.next(StepWaiters::Soon), LEAST);
    }
}
