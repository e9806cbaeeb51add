//! Pacing of jobs in the background beside other users of the pool.
//!
//! The queue of each leaf lets requests of others go first ([`crate::vdev`], `lanes`). That does not suffice where leaves share
//! a disk, a controller or the processors, of which the engine knows nothing. So a job takes turns: when it has worked while
//! others used leaves of the pool, it ends its requests and rests, by default for one and a half times as long as it has
//! worked. Others have the shared resource to themselves during the rest, which is more than half of the time. The rest ends
//! early when no request of others came or was under way for a while ([`QUIET`]), so that a job has an idle pool to itself.
//!
//! Requests that a job makes itself, as for the metadata that leads to its blocks, are not others' ([`crate::taskq`],
//! `in_background`).
//!
//! Where a pool has no threads (tests, simulations) jobs do not rest.
//!
//! Differs from OpenZFS, which limits the requests of scans at each leaf (`zfs_vdev_nia_delay`, vdev_queue.c).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Spa;
use super::subjects::Jobs;
use crate::memory::Limit;

/// A job works at least so long before it rests: ending its requests takes time.
const LEAST: Duration = Duration::from_millis(10);
/// The longest rest.
const MOST: Duration = Duration::from_secs(2);
/// After such a time without requests of others the devices are the job's.
const QUIET: Duration = Duration::from_millis(10);
/// How often a resting job looks at the requests of others.
const LOOK: Duration = Duration::from_millis(1);

/// Requests of others to the leaves of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Others {
    /// Number of those that have come.
    came: u64,
    /// Some are under way.
    pending: bool,
}

/// The time for which a job has worked since its last rest.
#[derive(Debug)]
pub(super) struct JobTurn {
    began: Duration,
    came: u64,
}

/// Whether jobs share the pool's leaves with others.
#[derive(Debug, Default)]
pub(super) struct JobPacing(AtomicBool);

impl JobPacing {
    /// Whether others used the leaves during the last turn.
    pub(super) fn is_shared(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A job's rest.
#[derive(Debug)]
struct Rest {
    end: Duration,
    /// When a request of others was seen last.
    seen: Duration,
    came: u64,
}

impl Rest {
    /// The rest after a turn of `worked`; a job works for `percent` of the time.
    fn after(worked: Duration, percent: u64, now: Duration, came: u64) -> Self {
        let percent = u32::try_from(percent.clamp(1, 100)).unwrap_or(100);
        let length = worked.saturating_mul(100 - percent) / percent;
        Self { end: now.saturating_add(length.min(MOST)), seen: now, came }
    }

    fn is_over(&mut self, now: Duration, others: Others) -> bool {
        if others.pending || others.came != self.came {
            (self.seen, self.came) = (now, others.came);
        }
        now >= self.end || now.saturating_sub(self.seen) >= QUIET
    }
}

impl Jobs<'_> {
    /// Whether something waits for the txg that is being written.
    pub(super) fn is_txg_awaited(self) -> bool {
        self.spa.txgs.wanted()
            || self.spa.dirty.memory() > self.spa.limits().dirty_share(Limit::DirtySyncPercent)
            || self.spa.stop.load(Ordering::Acquire)
    }

    /// A job begins to work.
    pub(super) fn turn(self) -> JobTurn {
        JobTurn { began: self.spa.pool.env.clock.monotonic(), came: others_now(self.spa).came }
    }

    /// Has the job rest, if it has worked for long enough beside others. `end` ends its requests.
    pub(super) fn pace(self, turn: &mut JobTurn, end: impl FnOnce()) {
        let now = || self.spa.pool.env.clock.monotonic();
        let percent = self.spa.limits().get(Limit::JobShare);
        if !self.spa.is_threaded() || percent >= 100 || now().saturating_sub(turn.began) < LEAST {
            return;
        }
        let others = others_now(self.spa);
        let is_shared = others.pending || others.came != turn.came;
        self.spa.pacing.0.store(is_shared, Ordering::Relaxed);
        if is_shared {
            end();
            let worked = now().saturating_sub(turn.began);
            let mut rest = Rest::after(worked, percent, now(), others_now(self.spa).came);
            while !rest.is_over(now(), others_now(self.spa))
                && !self.is_txg_awaited()
                && !self.spa.is_suspended()
            {
                self.spa.txgs.wait_change(LOOK);
            }
        }
        *turn = self.turn();
    }
}

fn others_now(spa: &Spa) -> Others {
    let mut all = Others { came: 0, pending: false };
    for leaf in spa.pool.zio.tree().leaves() {
        let (came, pending) = leaf.stats.others();
        all.came = all.came.wrapping_add(came);
        all.pending |= pending;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Rests after `worked` at time 0, with a request of others at each of the times; returns when the rest is over.
    fn rest(worked: u64, percent: u64, requests: &[u64]) -> u64 {
        let mut rest = Rest::after(ms(worked), percent, ms(0), 0);
        let came = |now: u64| requests.iter().filter(|at| **at <= now).count() as u64;
        (0..10_000).find(|&now| rest.is_over(ms(now), Others { came: came(now), pending: false })).unwrap()
    }

    #[test]
    fn a_job_rests_for_as_long_as_it_worked_while_others_work() {
        let busy: Vec<u64> = (0..9000).step_by(3).collect();
        assert_eq!([10, 40, 300].map(|worked| rest(worked, 50, &busy)), [10, 40, 300]);
        assert_eq!([20, 80].map(|percent| rest(40, percent, &busy)), [160, 10]);
        assert_eq!(rest(8000, 50, &busy), 2000);
    }

    #[test]
    fn the_rest_ends_when_others_do() {
        assert_eq!(rest(300, 50, &[]), 10);
        assert_eq!(rest(300, 50, &[4, 9, 17, 40]), 27);
        let mut rest = Rest::after(ms(300), 50, ms(0), 0);
        let slow = Others { came: 0, pending: true };
        assert!((0..300).all(|now| !rest.is_over(ms(now), slow)), "one is under way for long");
    }
}
