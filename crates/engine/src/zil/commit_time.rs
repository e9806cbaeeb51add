//! The time that a commit takes, for callers that decide by it on which thread to commit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The average time of the last commits that wrote something, without their wait for other commits.
#[derive(Debug, Default)]
pub(super) struct CommitTime(AtomicU64);

impl CommitTime {
    /// A commit took so long. It counts for a quarter.
    pub(super) fn record(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        let old = self.0.load(Ordering::Relaxed);
        let new = if old == 0 { time } else { old - old / 4 + time / 4 };
        // One commit is written at a time.
        self.0.store(new.max(1), Ordering::Relaxed);
    }

    /// The average; `None` before the first commit.
    pub(super) fn get(&self) -> Option<Duration> {
        let time = self.0.load(Ordering::Relaxed);
        (time > 0).then(|| Duration::from_nanos(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_commit_is_soon_forgotten() {
        let average = CommitTime::default();
        assert_eq!(average.get(), None);
        average.record(Duration::from_micros(50));
        assert_eq!(average.get(), Some(Duration::from_micros(50)));
        average.record(Duration::from_millis(5));
        assert!(average.get() > Some(Duration::from_millis(1)));
        let later = (0..20).find(|_| {
            average.record(Duration::from_micros(50));
            average.get() < Some(Duration::from_micros(300))
        });
        assert!(later < Some(8), "{later:?}");
        average.record(Duration::from_secs(u64::MAX));
        assert!(average.get() > Some(Duration::from_secs(1)));
    }
}
