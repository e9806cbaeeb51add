//! Multihost protection: a heartbeat shows other machines that the pool is in use.
//!
//! While the property `multihost` is on, an uberblock with the time and a sequence number goes to a reserved slot of one
//! label at a time, about once a second for all devices together. Imports look for it ([`super::remote`]).
//!
//! When no heartbeat could be written for long enough that another machine may believe the pool abandoned, the pool is
//! suspended. The time counts from the last heartbeat, whatever the reason for the missing one: a device, a suspension, or
//! this process, which may have been stopped and continued (a paused virtual machine). So the time is checked
//! before writing a heartbeat, a txg, its uberblock, or the intent log, and before a suspended pool is
//! resumed.
//!
//! Source: mmp.c, OpenZFS 2.3.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ondisk::Uberblock;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use parking_lot::Mutex;

use super::Spa;
use super::subjects::MultihostClaim;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::vdev::label::write_heartbeat;
use crate::vdev::leaf::Leaf;
use crate::vdev::tree::Tree;
use crate::zap::Zap;

/// The property's name.
const PROPERTY: &str = "multihost";
/// Least time between two heartbeats.
#[doc(alias = "MMP_MIN_INTERVAL")]
pub(super) const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The heartbeat of an imported pool.
#[derive(Debug, Default)]
pub(super) struct Multihost {
    on: AtomicBool,
    beat: Mutex<Beat>,
}

#[derive(Debug, Default)]
struct Beat {
    /// When the last one was written.
    last: Option<Duration>,
    /// When the next one is due.
    due: Duration,
    /// Seconds of the last one, and its number in that second.
    second: u64,
    sequence: u16,
    /// Index of the leaf for the next heartbeat.
    turn: usize,
}

impl Multihost {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }
}

impl MultihostClaim<'_> {
    /// Learns whether the property is on.
    pub(super) fn refresh(self) -> Result<()> {
        let view = self.spa.mos.view();
        let props = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(mos::PROPS)?;
        let value = match props.filter(|&number| number != 0) {
            Some(number) => Zap::open(&view.object(number)?)?.u64(PROPERTY)?,
            None => None,
        };
        let on = value.is_some_and(|value| value != 0);
        if self.spa.multihost.on.swap(on, Ordering::Relaxed) != on {
            *self.spa.multihost.beat.lock() = Beat::default();
        }
        Ok(())
    }

    /// Puts into an uberblock that is to be written how often others come.
    pub(super) fn sign(self, uberblock: &mut Uberblock) {
        let interval = multihost_interval(self.spa);
        match self.spa.multihost.is_on() {
            true => uberblock.set_mmp(nanos(interval), millis(interval), 0, multihost_fails(self.spa)),
            false => uberblock.clear_mmp(),
        }
    }

    /// Writes a heartbeat when one is due. For a thread of its own: it must not wait for txgs.
    #[doc(alias = "mmp_write_uberblock")]
    pub fn heartbeat(self) {
        if !self.spa.multihost.is_on() || self.spa.txgs.suspended().is_some() {
            return;
        }
        let tree = self.spa.pool.zio.tree();
        let leaves = leaves(&tree);
        let now = self.spa.pool.env.clock.monotonic();
        let mut beat = self.spa.multihost.beat.lock();
        if now < beat.due || check_beat(self.spa, beat.last).is_err() {
            return;
        }
        let many = u32::try_from(leaves.len()).unwrap_or(u32::MAX).max(1);
        let interval = multihost_interval(self.spa);
        beat.due = now + (interval / many).max(MIN_INTERVAL);
        let mut uberblock = self.spa.uberblock();
        let second = self.spa.pool.env.now();
        beat.sequence = if beat.second == second { beat.sequence.saturating_add(1) } else { 1 };
        beat.second = second;
        uberblock.timestamp = second;
        let since = beat.last.map_or(interval, |last| now.saturating_sub(last).max(interval));
        uberblock.set_mmp(nanos(since), millis(interval), beat.sequence, multihost_fails(self.spa));
        beat.turn = beat.turn.wrapping_add(1);
        let chosen = leaves.get(beat.turn % leaves.len().max(1));
        let label = u32::try_from(self.spa.pool.env.guid() % 4).unwrap_or(0);
        let executor = &*self.spa.pool.env.executor;
        let written =
            chosen.is_some_and(|(leaf, ashift)| write_heartbeat(leaf, *ashift, label, &uberblock, executor));
        beat.last.get_or_insert(now);
        if written {
            beat.last = Some(now);
        }
    }

    /// Refuses to write when another machine may have the pool already, and suspends it for good.
    ///
    /// # Errors
    /// `Suspended`.
    #[doc(alias = "ZIO_SUSPEND_MMP")]
    pub(super) fn check_claim(self) -> Result<()> {
        if !self.spa.multihost.is_on() {
            return Ok(());
        }
        check_beat(self.spa, self.spa.multihost.beat.lock().last)
    }
}

/// The time between two heartbeats of a device.
#[doc(alias = "zfs_multihost_interval")]
fn multihost_interval(spa: &Spa) -> Duration {
    Duration::from_millis(spa.limits().get(Limit::MultihostInterval))
}

/// Intervals without a heartbeat after which the pool is suspended; 0: it never is.
#[doc(alias = "zfs_multihost_fail_intervals")]
fn multihost_fails(spa: &Spa) -> u64 {
    match spa.limits().get(Limit::MultihostFail) {
        1 => 2,
        fails => fails,
    }
}

fn check_beat(spa: &Spa, last: Option<Duration>) -> Result<()> {
    let silent = last.map_or(Duration::ZERO, |last| spa.pool.env.clock.monotonic().saturating_sub(last));
    let fails = u32::try_from(multihost_fails(spa)).unwrap_or(u32::MAX);
    if fails == 0 || silent <= multihost_interval(spa) * fails {
        return Ok(());
    }
    let what = "the pool is suspended: the multihost heartbeat could not be written";
    // Another machine may have it already.
    spa.broken.store(true, Ordering::Release);
    let why = Error::new(Kind::Io, "no heartbeat was written for too long");
    let why = Error::new(Kind::Suspended, what).because(why);
    spa.suspending().suspend_because(why.clone());
    Err(why)
}

/// Leaves that take heartbeats, and their top-level vdevs' sector shifts.
fn leaves(tree: &Tree) -> Vec<(Arc<Leaf>, u32)> {
    let all = tree.tops().flat_map(|top| top.leaves().map(|leaf| (leaf, top.ashift)).collect::<Vec<_>>());
    let mut all: Vec<_> = all.filter(|(leaf, _)| leaf.is_writable()).collect();
    all.sort_by_key(|(leaf, _)| leaf.guid);
    all
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
