//! Handling of devices that fail while the pool is in use.
//!
//! The sync thread checks them between two txgs. A device that failed a request is probed; if nothing can be
//! read from it or written to it, it is faulted, or removed if there is no device any more. One that works,
//! but failed too often, is faulted; one that returned wrong bytes or was slow too often is degraded, and stays in use. A
//! device without which something could not be read is never faulted: it is degraded, and if it does not work
//! at all the pool is suspended.
//!
//! From then on nothing is written to a faulted device; its DTL records the txgs that it lacks, and the
//! configuration its state.
//!
//! Format source: `vdev_probe`, `vdev_fault`, `spa_async_fault_vdev`, OpenZFS 2.3; the limits are those of its
//! `zfs-diagnosis` module. Differs from OpenZFS: the daemon that decides there is part of the engine, and the rule
//! that devices with one parent are not judged while several of them fail in the same way counts for slow ones only.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use zcommon::health::Health;
use zcommon::vdev::{VdevAux, VdevKind, VdevState};

use super::Spa;
use super::layout::config::edit;
use super::subjects::Disks;
use super::vdev_props::is_closed;
use crate::error::{Error, Kind};
use crate::vdev::config::{AllocBias, VdevConfig};
use crate::vdev::health::record;
use crate::vdev::leaf::{FailedIo, Leaf};
use crate::vdev::probe::probe;
use crate::vdev::top::Top;
use crate::vdev::tree::Tree;

/// How many in which time are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    count: usize,
    within: Duration,
}

/// Limit of errors, unless properties of the vdev or its parents set another.
const ERRORS: Limit = Limit { count: 10, within: Duration::from_secs(600) };
/// Limit of slow requests, where a property sets one of the two numbers: without any they are only counted.
const SLOW: Limit = Limit { count: 10, within: Duration::from_secs(30) };
/// Errors that are remembered of a device, at most.
const REMEMBERED: usize = 10_000;
/// Properties that set the limits: count and seconds of each kind.
#[doc(alias = "VDEV_PROP_IO_N")]
const LIMITS: [&str; 6] = ["io_n", "io_t", "checksum_n", "checksum_t", "slow_io_n", "slow_io_t"];

/// Maximum error reports of a device per second.
#[doc(alias = "zfs_checksum_events_per_second")]
const REPORTS: u64 = 20;

/// When the last errors were.
#[derive(Debug, Default)]
struct Serd(VecDeque<Duration>);

impl Serd {
    /// Adds `count` errors; returns whether there are now too many, once.
    #[doc(alias = "fmd_serd_eng_record")]
    fn note(&mut self, count: u64, limit: Limit, now: Duration) -> bool {
        let most = limit.count.clamp(1, REMEMBERED);
        for _ in 0..count.min(most as u64) {
            self.0.push_back(now);
        }
        while self.0.len() > most {
            self.0.pop_front();
        }
        let first = self.0.front().filter(|_| self.0.len() == most);
        let fires = first.is_some_and(|first| now.saturating_sub(*first) <= limit.within);
        if fires {
            self.0.clear();
        }
        fires
    }
}

/// The limits of a device.
#[derive(Debug, Clone, Copy)]
struct Limits {
    io: Limit,
    checksum: Limit,
    slow: Option<Limit>,
}

impl Limits {
    /// From the values of [`LIMITS`] that are set.
    fn of(set: [Option<u64>; 6]) -> Self {
        let [io_n, io_t, checksum_n, checksum_t, slow_n, slow_t] = set;
        let limit = |count: Option<u64>, seconds: Option<u64>, or: Limit| Limit {
            count: count.map_or(or.count, |count| usize::try_from(count).unwrap_or(usize::MAX)),
            within: seconds.map_or(or.within, Duration::from_secs),
        };
        Self {
            io: limit(io_n, io_t, ERRORS),
            checksum: limit(checksum_n, checksum_t, ERRORS),
            slow: slow_n.or(slow_t).map(|_| limit(slow_n, slow_t, SLOW)),
        }
    }
}

/// Error record of one device.
#[derive(Debug, Default)]
struct Record {
    /// The part of each counter that was already processed; slow requests last.
    seen: [u64; 4],
    io: Serd,
    checksum: Serd,
    slow: Serd,
    /// When slow requests were last seen, if they count at all.
    slow_at: Option<Duration>,
    reports: Rate,
    slow_reports: Rate,
}

/// How many reports there were in a second.
#[derive(Debug, Default)]
struct Rate {
    since: Duration,
    count: u64,
}

impl Rate {
    #[doc(alias = "zfs_ratelimit")]
    fn allows(&mut self, now: Duration, most: u64) -> bool {
        if now.saturating_sub(self.since) >= Duration::from_secs(1) {
            *self = Self { since: now, count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count <= most
    }
}

/// Error records of all devices.
#[derive(Debug, Default)]
pub(super) struct Diagnosis(Mutex<HashMap<u64, Record>>);

/// Verdict on a device with too many errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fine,
    Fails,
    /// It returns wrong bytes, or is slow.
    IsPoor,
}

/// Read errors, write errors, wrong bytes and slow requests of a device until now.
fn counts_of(leaf: &Leaf) -> [u64; 4] {
    let [reads, writes, wrong] = leaf.errors.counts();
    [reads, writes, wrong, leaf.stats.slow.load(Ordering::Relaxed)]
}

impl Diagnosis {
    /// Judges a device by what happened since the last time. Slow requests speak against it only when no device in `peers`, those
    /// with the same parent, has any: else their cause is not in the device.
    fn judge(&self, leaf: &Leaf, peers: &[u64], limits: Limits, now: Duration) -> Verdict {
        let mut all = self.0.lock();
        let is_slow = |guid, within| {
            let at = all.get(guid).and_then(|record| record.slow_at);
            at.is_some_and(|at| now.saturating_sub(at) <= within)
        };
        let has_peer = limits.slow.is_some_and(|limit| peers.iter().any(|guid| is_slow(guid, limit.within)));
        let record = all.entry(leaf.guid).or_default();
        let counts = counts_of(leaf);
        let seen = std::mem::replace(&mut record.seen, counts);
        // Counters may have been cleared meanwhile.
        let new = |at: usize| match (counts.get(at), seen.get(at)) {
            (Some(&now), Some(&old)) if now >= old => now - old,
            (now, _) => now.copied().unwrap_or(0),
        };
        let fails = record.io.note(new(0).saturating_add(new(1)), limits.io, now);
        let lies = record.checksum.note(new(2), limits.checksum, now);
        let slow = limits.slow.is_some_and(|limit| record.slow.note(new(3), limit, now));
        match (fails, lies || slow && !has_peer) {
            (true, _) => Verdict::Fails,
            (false, true) => Verdict::IsPoor,
            (false, false) => Verdict::Fine,
        }
    }

    /// Whether requests were slow that were not judged yet.
    fn was_slow(&self, leaf: &Leaf) -> bool {
        let [.., slow] = counts_of(leaf);
        let seen = self.0.lock().get(&leaf.guid).map_or(0, |record| record.seen[3]);
        slow != seen
    }

    /// Slow requests of the device count from now on against those of its peers.
    #[doc(alias = "fmd_serd_active")]
    fn note_slow(&self, leaf: &Leaf, now: Duration) {
        if self.was_slow(leaf) {
            self.0.lock().entry(leaf.guid).or_default().slow_at = Some(now);
        }
    }

    /// The number of `new` slow requests that may be reported: `most` per second.
    fn slow_to_report(&self, guid: u64, new: u64, now: Duration, most: u64) -> usize {
        let mut all = self.0.lock();
        let rate = &mut all.entry(guid).or_default().slow_reports;
        (0..new.min(most)).take_while(|_| rate.allows(now, most)).count()
    }

    /// Whether one more error of the device may be reported now: a bad device must not push all other events
    /// out of the list.
    pub(crate) fn may_report(&self, guid: u64, now: Duration) -> bool {
        self.0.lock().entry(guid).or_default().reports.allows(now, REPORTS)
    }

    /// Drops the record of a device.
    pub(crate) fn forget(&self, guid: u64) {
        self.0.lock().remove(&guid);
    }
}

/// How long a state is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Until it is changed: it is in the configuration.
    Recorded,
    /// Until the pool is exported.
    UntilExport,
}

impl Disks<'_> {
    /// Looks after devices that something went wrong on.
    #[doc(alias = "spa_async_thread")]
    pub(super) fn tend(self) {
        let tree = self.spa.pool.zio.tree();
        tree.leaves().for_each(|leaf| leaf.stats.heed(&self.spa.pool.env.memory));
        let wanting = |leaf: &&Arc<Leaf>| leaf.has_alarm() || self.spa.diagnosis.was_slow(leaf);
        let mut alarmed: Vec<&Arc<Leaf>> = tree.leaves().filter(wanting).collect();
        alarmed.sort_unstable_by_key(|leaf| leaf.guid);
        // All of them before one is judged.
        let now = self.spa.pool.env.clock.monotonic();
        let counts = |leaf: &&&Arc<Leaf>| limits_of(self.spa, leaf).slow.is_some();
        alarmed.iter().filter(counts).for_each(|leaf| self.spa.diagnosis.note_slow(leaf, now));
        for leaf in alarmed {
            let failures = leaf.take_alarm().unwrap_or_default();
            for failure in failures.iter().filter(|failure| failure.kind != FailedIo::Read) {
                self.spa.reports().report_failure(leaf, failure);
            }
            let Some(top) = tree.top_of(leaf.guid).filter(|_| leaf.device().is_some()) else { continue };
            examine(self.spa, leaf, &top, &peers_of(&tree, leaf.guid), !failures.is_empty());
        }
    }

    /// Whether the pool needs the device to stay in use. Logs are never needed.
    pub(super) fn is_needed(self, leaf: &Leaf, top: &Top) -> bool {
        top.bias != AllocBias::Log && top.requires(leaf)
    }

    /// Whether a device that is declared faulted stays in use all the same: the pool needs it, or would need it if disks of its vdev
    /// that are being replaced failed, too, as these may well do.
    pub(super) fn stays_though_faulty(self, leaf: &Leaf, top: &Top) -> bool {
        let tree = self.spa.pool.zio.tree();
        let has = |vdev: &VdevConfig| vdev.walk().iter().any(|below| below.guid == leaf.guid);
        let all = tree.config.walk();
        let pairs = all.into_iter().filter(|vdev| vdev.kind == VdevKind::Replacing && !has(vdev));
        let doubted: BTreeSet<u64> = pairs.flat_map(VdevConfig::walk).map(|vdev| vdev.guid).collect();
        top.bias != AllocBias::Log && top.requires_without(leaf, &|other| doubted.contains(&other.guid))
    }

    #[doc(alias = "vdev_degrade")]
    pub(super) fn degrade(self, leaf: &Leaf, why: VdevAux, keep: Keep) {
        self.set_health(leaf, Health { state: VdevState::Degraded, aux: why }, keep);
    }

    /// Sets a device's state, records it in the configuration, and posts an event. A device that goes out of
    /// use lacks the writes of txgs that are not on disk yet, as they may not be durable on it.
    #[doc(alias("vdev_set_state", "vdev_state_dirty"))]
    pub(super) fn set_health(self, leaf: &Leaf, health: Health, keep: Keep) {
        let before = leaf.health();
        if before.is_readable() && !health.is_readable() {
            leaf.leaves_at(self.spa.txgs.synced() + 1);
            (self.spa.txgs.synced() + 1..=self.spa.txgs.open()).for_each(|txg| leaf.miss(txg));
        }
        leaf.set_health(health);
        self.note_health(leaf, before, keep);
    }

    /// Records a device's new state and posts an event.
    pub(super) fn note_health(self, leaf: &Leaf, before: Health, keep: Keep) {
        let health = leaf.health();
        let shown = if keep == Keep::Recorded { health } else { Health::ONLINE };
        self.spa.config.lock().change_root(|root| {
            edit(root, leaf.guid, &mut |config| record(config, shown));
        });
        if let Some(top) = self.spa.pool.zio.tree().top_of(leaf.guid) {
            // Only logs can be out of use as a whole: blocks go elsewhere.
            self.spa.space.set_closed(top.id, is_closed(&top, &self.spa.config.lock()));
        }
        if before.state != health.state {
            self.spa.reports().report_state(leaf, before);
            self.spa.spares().reconsider_spares(leaf.guid);
        }
    }
}

fn limits_of(spa: &Spa, leaf: &Leaf) -> Limits {
    Limits::of(spa.disks().set_numbers(leaf.guid, LIMITS))
}

/// The other vdevs with the same parent.
fn peers_of(tree: &Tree, leaf: u64) -> Vec<u64> {
    let all = tree.config.walk();
    let parent = all.into_iter().find(|vdev| vdev.children.iter().any(|child| child.guid == leaf));
    let children = parent.into_iter().flat_map(|parent| &parent.children);
    children.map(|child| child.guid).filter(|guid| *guid != leaf).collect()
}

fn examine(spa: &Spa, leaf: &Leaf, top: &Top, peers: &[u64], failed: bool) {
    let found = failed.then(|| probe(leaf));
    if let Some(found) = found.filter(|found| !found.is_fine()) {
        spa.reports().report_leaf("ereport.fs.zfs.probe_failure", leaf);
        if !lose(spa, leaf, top, VdevAux::ErrorsExceeded, found.gone) {
            let what = "a device without which the pool can't go on does not work any more";
            spa.suspending().suspend(Error::new(Kind::Io, what).on_vdev(&leaf.path));
        }
        return;
    }
    report_slow(spa, leaf);
    match spa.diagnosis.judge(leaf, peers, limits_of(spa, leaf), spa.pool.env.clock.monotonic()) {
        _ if !spa.limits().is_on(crate::memory::Limit::FaultAgents) => {}
        Verdict::Fine => {}
        Verdict::Fails if spa.disks().stays_though_faulty(leaf, top) => {
            spa.disks().degrade(leaf, VdevAux::ErrorsExceeded, Keep::Recorded);
        }
        Verdict::Fails => drop(lose(spa, leaf, top, VdevAux::ErrorsExceeded, false)),
        Verdict::IsPoor => spa.disks().degrade(leaf, VdevAux::ErrorsExceeded, Keep::Recorded),
    }
}

/// Posts an event for each slow request of a device, unless its property `slow_io_events` is off.
///
/// Differs from OpenZFS: the events do not say where on the device the requests were.
#[doc(alias = "FM_EREPORT_ZFS_DELAY")]
fn report_slow(spa: &Spa, leaf: &Leaf) {
    let new = leaf.stats.unreported.swap(0, Ordering::Relaxed);
    if new == 0 || spa.disks().set_numbers(leaf.guid, ["slow_io_events"]) == [Some(0)] {
        return;
    }
    let most = spa.limits().get(crate::memory::Limit::SlowIoEvents);
    let now = spa.pool.env.clock.monotonic();
    (0..spa.diagnosis.slow_to_report(leaf.guid, new, now, most))
        .for_each(|_| spa.reports().report_delay(leaf));
}

/// Takes a device out of use, or, when something depends on it, only calls it degraded; whether it is out.
#[doc(alias = "vdev_fault")]
fn lose(spa: &Spa, leaf: &Leaf, top: &Top, why: VdevAux, gone: bool) -> bool {
    if spa.disks().is_needed(leaf, top) {
        spa.disks().degrade(leaf, why, Keep::Recorded);
        return false;
    }
    let health = if gone { Health::REMOVED } else { Health::faulted(why) };
    spa.disks().set_health(leaf, health, Keep::Recorded);
    if gone {
        spa.reports().report_leaf("resource.fs.zfs.removed", leaf);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_errors_in_ten_minutes_are_too_many() {
        let at = Duration::from_secs;
        let mut serd = Serd::default();
        assert!((0..9).all(|n| !serd.note(1, ERRORS, at(n * 60))));
        assert!(serd.note(1, ERRORS, at(600)), "the tenth within 600 seconds");
        let mut again = |count, second| serd.note(count, ERRORS, at(second));
        assert!(!again(9, 601) && again(1, 602), "counted anew after it was told");
        let mut slow = Serd::default();
        assert!((0..40).all(|n| !slow.note(1, ERRORS, at(n * 67))), "ten in 603 seconds");
        assert!(Serd::default().note(1000, ERRORS, at(0)));
    }

    #[test]
    fn limits_are_those_that_were_set() {
        let limits = Limits::of([Some(3), None, None, Some(7), None, None]);
        let limit = |count, seconds| Limit { count, within: Duration::from_secs(seconds) };
        assert_eq!((limits.io, limits.checksum, limits.slow), (limit(3, 600), limit(10, 7), None));
        assert_eq!(Limits::of([None, None, None, None, None, Some(5)]).slow, Some(limit(10, 5)));
        let mut serd = Serd::default();
        assert!(!serd.note(2, limits.io, Duration::ZERO) && serd.note(1, limits.io, Duration::ZERO));
        assert!(Serd::default().note(1, limit(0, 1), Duration::ZERO), "none is no limit that can be kept");
    }

    #[test]
    fn twenty_errors_are_told_in_a_second() {
        let mut rate = Rate::default();
        let told =
            |rate: &mut Rate, ms| (0..50).filter(|_| rate.allows(Duration::from_millis(ms), REPORTS)).count();
        assert_eq!([told(&mut rate, 5000), told(&mut rate, 5999), told(&mut rate, 6000)], [20, 0, 20]);
    }
}
