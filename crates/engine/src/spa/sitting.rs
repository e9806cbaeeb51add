//! Slow disks of raidz and draid vdevs sit out reads (properties `sit_out` and `autosit`).
//!
//! Between two txgs, and at least every few ticks of the sync thread, the latencies of the disks of vdevs with `autosit=on` are
//! compared ([`crate::vdev::sit_out`]); the clock is that of the pool's environment, which is asked only when something may be
//! due. Nothing of it is on disk but the properties, of which only `autosit` is read at import.
//!
//! Source: `vdev_prop_set`, `vdev_load`, vdev.c; vdev_raidz.c; OpenZFS 2.4.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use zcommon::health::Health;

use super::Spa;
use super::subjects::Disks;
use super::vdev_props::object;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::vdev::config::VdevConfig;
use crate::vdev::leaf::Leaf;
use crate::vdev::sit_out::{Peer, Peers};
use crate::vdev::top::{Top, VdevLayout};
use crate::vdev::tree::Tree;
use crate::zap::Zap;

/// The property that lets slow disks sit out by themselves.
const AUTOSIT: &str = "autosit";

/// State of vdevs whose disks may sit out.
#[derive(Debug, Default)]
pub(super) struct Sitting {
    loaded: AtomicBool,
    /// Guids of the vdevs with `autosit=on`.
    auto: Mutex<BTreeSet<u64>>,
    peers: Mutex<BTreeMap<u64, Peers>>,
}

/// The parity of a vdev whose disks may sit out.
fn parity_of(top: &Top) -> Option<usize> {
    match &top.layout {
        VdevLayout::Raidz(geometry) => usize::try_from(geometry.nparity).ok(),
        VdevLayout::Draid(geometry) => usize::try_from(geometry.nparity()).ok(),
        _ => None,
    }
}

/// The leaves with devices at or below a vdev.
fn leaves_of(tree: &Tree, vdev: &VdevConfig) -> Vec<Arc<Leaf>> {
    let all = vdev.walk().into_iter().filter_map(|vdev| tree.leaf(vdev.guid));
    all.filter(|leaf| !leaf.is_distributed()).cloned().collect()
}

fn sits_out(tree: &Tree, vdev: &VdevConfig) -> bool {
    leaves_of(tree, vdev).iter().any(|leaf| leaf.sits_out())
}

impl Disks<'_> {
    /// Ends periods that are over, and begins one for each disk that is much slower than the others of its vdev.
    pub(super) fn tend_slow(self) {
        if !self.spa.sitting.loaded.swap(true, Ordering::AcqRel) {
            load_autosit(self.spa);
        }
        let (tree, time) = (self.spa.pool.zio.tree(), sit_out_time(self.spa));
        let mut now = || self.spa.pool.env.clock.monotonic();
        tree.leaves().for_each(|leaf| leaf.sit_out.check(&mut now, time.is_some()));
        let auto = self.spa.sitting.auto.lock().clone();
        let Some(time) = time.filter(|_| !auto.is_empty()) else { return };
        for vdev in tree.config.children.iter().filter(|vdev| auto.contains(&vdev.guid)) {
            let Some(parity) = tree.top(vdev.id).and_then(|top| parity_of(&top)) else { continue };
            let now = now();
            if let Some(slow) = find_slow(self.spa, &tree, vdev, (parity, now)) {
                for leaf in leaves_of(&tree, slow) {
                    leaf.sit_out.begin(Some(now.saturating_add(time)));
                    leaf.stats.slow.fetch_add(1, Ordering::Relaxed);
                    self.spa.reports().report_leaf("ereport.fs.zfs.sitout", &leaf);
                }
            }
        }
    }

    /// Whether disks of the vdev of this guid sit out by themselves from now on.
    ///
    /// # Errors
    /// `Unsupported` unless it is a raidz or draid.
    pub(super) fn set_autosit(self, vdev: u64, on: bool) -> Result<()> {
        let tree = self.spa.pool.zio.tree();
        let found = tree.config.children.iter().find(|top| top.guid == vdev);
        let found = found.filter(|found| tree.top(found.id).is_some_and(|top| parity_of(&top).is_some()));
        let found = found.ok_or_else(not_here)?;
        let mut auto = self.spa.sitting.auto.lock();
        if on {
            auto.insert(vdev);
        } else {
            auto.remove(&vdev);
            self.spa.sitting.peers.lock().remove(&vdev);
            leaves_of(&tree, found).iter().for_each(|leaf| leaf.stats.watch(None));
        }
        Ok(())
    }

    /// Has a disk sit out until it is told otherwise, or ends that.
    ///
    /// # Errors
    /// `Unsupported` unless it is a disk of a raidz or draid; `Busy` when as many others as there is parity sit out.
    pub(super) fn set_sit_out(self, guid: u64, on: bool) -> Result<()> {
        let tree = self.spa.pool.zio.tree();
        let (leaf, top) = tree.leaf(guid).zip(tree.top_of(guid)).ok_or_else(not_here)?;
        let parity = parity_of(&top).ok_or_else(not_here)?;
        if !on {
            leaf.sit_out.end();
            return Ok(());
        }
        let vdev = tree.config.children.iter().find(|vdev| vdev.id == top.id).ok_or_else(not_here)?;
        let is_other = |child: &&VdevConfig| child.walk().iter().all(|below| below.guid != guid);
        let others = vdev.children.iter().filter(is_other).filter(|child| sits_out(&tree, child));
        if others.count() >= parity {
            return Err(Error::new(Kind::Busy, "too many disks already sitting out"));
        }
        leaf.sit_out.begin(None);
        leaf.stats.slow.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A disk's errors were cleared: it does not sit out.
    #[doc(alias = "vdev_clear")]
    pub(super) fn end_sit_out(self, leaf: &Leaf) {
        leaf.sit_out.end();
        self.spa.sitting.peers.lock().values_mut().for_each(|peers| peers.forget(leaf.guid));
    }
}

fn sit_out_time(spa: &Spa) -> Option<Duration> {
    Some(spa.limits().get(Limit::SitOutSecs)).filter(|seconds| *seconds != 0).map(Duration::from_secs)
}

/// The child of a vdev that has been slow too often.
fn find_slow<'a>(
    spa: &Spa,
    tree: &Tree,
    vdev: &'a VdevConfig,
    (parity, now): (usize, Duration),
) -> Option<&'a VdevConfig> {
    let interval = Duration::from_millis(spa.limits().get(Limit::OutlierCheckMs));
    let mut all = spa.sitting.peers.lock();
    let known = all.entry(vdev.guid).or_default();
    if !known.is_due(now, interval) {
        return None;
    }
    let peer = |child: &VdevConfig| {
        let leaves = leaves_of(tree, child);
        leaves.iter().for_each(|leaf| leaf.stats.watch(Some(&spa.pool.env.clock)));
        Peer {
            guid: child.guid,
            latency: leaves.iter().filter_map(|leaf| leaf.stats.take_latency()).max(),
            is_out: leaves.iter().any(|leaf| leaf.sits_out() || leaf.health() != Health::ONLINE),
        }
    };
    let peers: Vec<Peer> = vdev.children.iter().map(peer).collect();
    let slow = known.judge(&peers, parity, spa.limits().get(Limit::OutlierInsensitivity))?;
    vdev.children.iter().find(|child| child.guid == slow)
}

/// Reads which vdevs have `autosit=on`. One whose properties cannot be read has it off.
#[doc(alias = "vdev_load")]
fn load_autosit(spa: &Spa) {
    let tops: Vec<(u64, u64)> = {
        let config = spa.config.lock();
        let tops = config.root().nvlist_array("children").unwrap_or_default().iter();
        tops.filter_map(|top| Some((top.u64("guid")?, object(top)?))).collect()
    };
    let view = spa.mos.view();
    let is_on = |number: u64| Zap::open(&view.object(number).ok()?).ok()?.u64(AUTOSIT).ok().flatten();
    let auto = tops.into_iter().filter(|(_, number)| is_on(*number) == Some(1)).map(|(guid, _)| guid);
    spa.sitting.auto.lock().extend(auto);
}

fn not_here() -> Error {
    Error::unsupported("operation not supported on this type of vdev")
}
