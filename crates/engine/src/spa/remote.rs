//! Signs that another machine has a pool with multihost protection, before an import.
//!
//! An import of a pool that another machine used last waits, forced or not, and refuses the pool when an uberblock newer than
//! those found appears; a machine without hostid cannot import it. The wait has a random part. Then an import for writing claims
//! the pool: ten times, it writes the newest uberblock with a random sequence number to the slot of heartbeats of all devices,
//! and finds it there after an interval. Of two machines that import at the same time at most one reads its own numbers ten
//! times. In the end the slot has the number of before, so that an import that fails later can be repeated.
//!
//! Source: `spa_activity_check_tryimport`, `spa_activity_check_claim`, `mmp_claim_uberblock`, OpenZFS 2.4.4.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nvpair::NvList;
use ondisk::Uberblock;
use zcommon::vdev::{PoolState, VdevState};

use super::multihost::{MIN_INTERVAL, millis};
use super::source::{ImportSource, Newest};
use crate::env::Env;
use crate::error::{Error, Kind, Result};
use crate::memory::{Limit, Limits};
use crate::vdev::config::{AllocBias, Kind as VdevKind, VdevConfig};
use crate::vdev::label::write_claim;
use crate::vdev::leaf::Leaf;
use crate::vdev::tree::Tree;

/// Safety factor of an import's wait over the time after which the owner gives up.
#[doc(alias = "MMP_IMPORT_SAFETY_FACTOR")]
const SAFETY: u64 = 2;
/// Time between two looks at the labels.
const POLL: Duration = Duration::from_secs(1);
/// Longest wait of an import.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// How often a claim is written and found again.
#[doc(alias = "MMP_IMPORT_VERIFY_ITERS")]
const CLAIMS: usize = 10;
/// Without a hostid a machine cannot be told from others.
#[doc(alias = "MMP_STATE_NO_HOSTID")]
const NO_HOSTID: &str = "pool has the multihost property on and the\nsystem's hostid is not set. Set a unique system hostid \
                         with the zgenhostid(8) command.";

/// A pool in which no other machine showed itself, and which is to be claimed before it is written.
#[derive(Debug)]
pub(super) struct Unclaimed {
    found: Uberblock,
    newest: Newest,
    /// The machine that used it last.
    host: String,
}

/// Waits for signs that another machine has the pool, where that may be. `None`: no machine needs to be told of an import.
///
/// # Errors
/// `Busy` when there is one, and when multihost is on and this machine has no hostid.
#[doc(alias("spa_activity_check", "spa_activity_check_tryimport"))]
pub(super) fn check_activity(env: &Env, source: &ImportSource, hostid: u64) -> Result<Option<Unclaimed>> {
    let (Some(found), Some(newest)) = (best(source.uberblocks.iter().map(|f| f.uberblock)), &source.newest)
    else {
        return Ok(None);
    };
    if !has_heartbeats(&found) {
        return Ok(None);
    }
    if hostid == 0 {
        return Err(Error::new(Kind::Busy, NO_HOSTID));
    }
    if !may_be_in_use(&source.config, hostid) {
        return Ok(None);
    }
    let host = source.config.str("hostname").unwrap_or("another machine").to_owned();
    let unclaimed = Unclaimed { found, newest: newest.clone(), host };
    let wait = wait(&found, &env.memory.limits);
    // Two machines that were started at the same time do not end their waits at the same time.
    let parts = u32::try_from(env.guid() % 250).unwrap_or(0);
    unclaimed.watch(wait + wait * parts / 1000)?;
    Ok(Some(unclaimed))
}

impl Unclaimed {
    #[expect(clippy::disallowed_methods, reason = "another machine writes in real time")]
    fn watch(&self, wait: Duration) -> Result<()> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(POLL));
            self.expect(&self.found, || {
                format!("the pool is imported by {} now (multihost is on): export it there first", self.host)
            })?;
            if left <= POLL {
                return Ok(());
            }
        }
    }

    /// Refuses the pool if its newest uberblock is another one.
    #[doc(alias = "vdev_uberblock_compare")]
    fn expect(&self, wanted: &Uberblock, what: impl FnOnce() -> String) -> Result<()> {
        let seen = |u: &Uberblock| (u.txg, u.timestamp, u.mmp_seq());
        match best(self.newest.read().into_iter()) {
            Some(now) if seen(&now) == seen(wanted) => Ok(()),
            _ => Err(Error::new(Kind::Busy, what())),
        }
    }

    /// Claims the pool.
    ///
    /// # Errors
    /// `Busy` when another machine has it or claims it, too; `NoDevice` when a device that may be another machine's only one
    /// cannot be written.
    #[doc(alias = "spa_activity_check_claim")]
    pub(super) fn claim(&self, env: &Env, tree: &Tree) -> Result<()> {
        self.expect(&self.found, contested)?;
        let claimed = self.claim_often(env, tree);
        // Not fatal: the next import has fewer numbers to choose from.
        let _ = write(env, tree, &self.found);
        claimed
    }

    #[expect(clippy::disallowed_methods, reason = "another machine writes in real time")]
    fn claim_often(&self, env: &Env, tree: &Tree) -> Result<()> {
        let interval = self.found.mmp_interval_ms().unwrap_or(millis(POLL)).max(millis(MIN_INTERVAL));
        let fails = self.found.mmp_fail_intervals().unwrap_or(0);
        let used = self.found.mmp_seq().filter(|&used| used != u16::MAX).unwrap_or(0);
        for _ in 0..CLAIMS {
            let mut token = self.found;
            let number = env.guid() % u64::from(u16::MAX - used);
            let number = used.saturating_add(u16::try_from(number).unwrap_or(0)).saturating_add(1);
            token.set_mmp(self.found.mmp_delay, interval, number, fails);
            write(env, tree, &token)?;
            std::thread::sleep(Duration::from_millis(interval));
            self.expect(&token, contested)?;
        }
        Ok(())
    }
}

fn contested() -> String {
    "another machine imports the pool, too, or uses it already (multihost is on)".to_owned()
}

/// Writes an uberblock to the slots of heartbeats of all devices, as many of which must take it as another machine needs to see
/// it.
#[doc(alias = "mmp_claim_uberblock")]
fn write(env: &Env, tree: &Tree, uberblock: &Uberblock) -> Result<()> {
    let (mut leaves, mut needed) = (Vec::new(), 0);
    for config in &tree.config.children {
        let Some(top) = tree.top(config.id).filter(|top| top.bias != AllocBias::Log) else { continue };
        let own: Vec<(Arc<Leaf>, u32)> =
            top.leaves().filter(|leaf| leaf.is_writable()).map(|leaf| (leaf, top.ashift)).collect();
        if top.leaves().next().is_some() {
            needed += needed_of(config, tree);
        }
        leaves.extend(own);
    }
    let written = write_claim(&leaves, uberblock, &*env.executor);
    if leaves.len() < needed {
        let what = "multihost is on, and devices are missing that another machine may use the pool with: bring them back, or \
                    import the pool read-only, or, if no other machine can have it, with -FX";
        return Err(Error::new(Kind::NoDevice, what));
    }
    match needed == 0 || written < needed {
        true => Err(Error::new(
            Kind::Io,
            "multihost is on, and the pool's devices do not take the claim of an import",
        )),
        false => Ok(()),
    }
}

/// How many devices of a top-level vdev must be written: of a mirror all that were not taken out of use, because another machine
/// may see any of them alone.
fn needed_of(top: &VdevConfig, tree: &Tree) -> usize {
    match top.kind {
        VdevKind::Raidz | VdevKind::Draid => {
            usize::try_from(top.nparity).unwrap_or(usize::MAX).saturating_add(1)
        }
        _ => {
            let is_out = |child: &VdevConfig| {
                tree.leaf(child.guid).is_some_and(|leaf| {
                    let state = leaf.health().state;
                    matches!(state, VdevState::Offline | VdevState::Faulted | VdevState::Removed)
                })
            };
            top.children.iter().filter(|child| !is_out(child)).count().max(1)
        }
    }
}

fn best(all: impl Iterator<Item = Uberblock>) -> Option<Uberblock> {
    all.max_by(Uberblock::preference)
}

/// Whether multihost was on when the uberblock was written.
pub fn has_heartbeats(uberblock: &Uberblock) -> bool {
    uberblock.mmp_valid() && uberblock.mmp_delay != 0
}

/// Whether another machine may have the pool. One that was exported may be imported by two others at the same time.
///
/// Differs from OpenZFS 2.4: a pool that this machine has not exported is imported again at once.
#[doc(alias = "spa_activity_check_required")]
fn may_be_in_use(labels: &NvList, hostid: u64) -> bool {
    let number = |name: &str| labels.u64(name).unwrap_or(0);
    number("state") != PoolState::Destroyed as u64 && number("hostid") != hostid
}

/// How long the labels are watched, so that a living owner is noticed, or has given up. An owner whose uberblock does not name
/// the number of intervals after which it gives up is watched for as many as the settings say.
#[doc(alias = "spa_activity_check_duration")]
fn wait(uberblock: &Uberblock, limits: &Limits) -> Duration {
    let intervals = limits.get(Limit::MultihostImport).max(1);
    let own = limits.get(Limit::MultihostInterval);
    let delay = uberblock.mmp_delay / 1_000_000;
    let of_interval = |interval: u64| {
        let least = own.saturating_mul(intervals).max(millis(POLL));
        interval.saturating_add(delay).saturating_mul(intervals).max(least)
    };
    let wait = match (uberblock.mmp_interval_ms(), uberblock.mmp_fail_intervals()) {
        (Some(interval), Some(fails)) if fails > 0 => interval.saturating_mul(fails).saturating_mul(SAFETY),
        (Some(interval), _) => of_interval(interval),
        (None, _) => of_interval(own),
    };
    Duration::from_millis(wait).min(MAX_WAIT)
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
