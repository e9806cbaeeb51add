//! Vdevs that grow because their devices did.
//!
//! A device is measured when it is opened, and when an administrator brings it online, opens the pool's devices anew or
//! sets `autoexpand`; with `autoexpand=on` also every few seconds. Its new space does not *count* before
//! `zpool online -e` (for that one device) or `autoexpand=on` (for all) releases it. The size of a top-level
//! vdev follows from its devices' counted bytes, and it gains metaslabs when there is room for a whole one
//! more. `EXPANDSZ` shows the difference between the devices' full sizes and the counted ones. Nothing ever
//! shrinks: a device that has less than its vdev needs is not opened, and one that becomes smaller while it
//! is in use fails requests at its end.
//!
//! All of this happens in syncing context, in a txg `n`. Why power may be lost at any moment:
//! - The labels at a grown device's end are written first by the sync of `n`, elsewhere than those before. If
//!   they are lost, the first two labels are in their place, written one before and one after the uberblock
//!   ([`crate::vdev::label`]).
//! - The size stands in the configuration of `n`, in the MOS and in labels: until the uberblock of `n` is
//!   there, the configurations of `n - 1` only have the old size. Blocks that `n` or later txgs put into the
//!   new metaslabs are referred to from there only; they overwrite the place of the old last labels, which
//!   are not looked for on a device of the new size, and bytes that never belonged to the pool.
//! - The uberblock of `n` refers to everything: new metaslabs have no space map yet, which means that they
//!   are free, and the allocations of `n` in them are in its log or their first maps, as everywhere.
//!
//! Source: `vdev_open`, `vdev_online`, `vdev_expand`, vdev.c; `spa_async_autoexpand`, `spa_config_update`, OpenZFS 2.3.
//! Differs from OpenZFS: there a separate daemon notices that disks have grown, and growth of files goes
//! unnoticed; a partition that `zpool create` made of a whole disk is not made larger here: the disk's
//! partition table is the administrator's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ondisk::names::mos;
use parking_lot::Mutex;
use zcommon::health::Health;

use super::Spa;
use super::activity::{Activity, Due, SyncPoint};
use super::layout::config::edit;
use super::layout::size::{expand_size, leaf_asize};
use super::space_store::set;
use super::subjects::VdevTree;
use super::vdev_change::VdevChange;
use crate::dmu::Tx;
use crate::dsl::write::Hooks as _;
use crate::error::Result;
use crate::vdev::config::{Kind, VdevConfig};
use crate::vdev::label_moved::copy_uberblocks;
use crate::vdev::leaf::Leaf;
use crate::vdev::top::{Top, VdevLayout};
use crate::vdev::tree::Tree;
use crate::zap::Zap;
use crate::zio::alloc::MetaslabClass;

/// The property.
pub(super) const AUTOEXPAND: &str = "autoexpand";

/// How often devices are measured that could make their pool grow.
const MEASURE: Duration = Duration::from_secs(3);

/// Vdevs grow with their devices while `autoexpand` is on.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// The property is on.
    on: AtomicBool,
    /// A device has grown, and the next txg uses that.
    found: AtomicBool,
    /// When devices were last measured.
    measured: Mutex<Duration>,
}

impl Growth {
    /// Measures devices every [`MEASURE`]; whether one has grown.
    fn look(&self, spa: &Spa) -> bool {
        if !self.on.load(Ordering::Relaxed) || spa.is_suspended() {
            return false;
        }
        let now = spa.pool.env.clock.monotonic();
        let mut measured = self.measured.lock();
        if now.saturating_sub(*measured) >= MEASURE {
            *measured = now;
            let grown = spa.pool.zio.tree().leaves().any(|leaf| leaf.measured() > leaf.size());
            self.found.fetch_or(grown, Ordering::Relaxed);
        }
        self.found.load(Ordering::Relaxed)
    }
}

impl Activity for Growth {
    fn is_due(&self, spa: &Spa) -> Due {
        if self.look(spa) { Due::Soon } else { Due::No }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if moment == SyncPoint::AfterTasks && self.look(spa) {
            self.found.store(false, Ordering::Relaxed);
            // A vdev that cannot grow stays as it is; the next command that asks for it reports why.
            let _ = spa.vdevs().measure_all(tx);
        }
        Ok(())
    }
}

/// Allocatable bytes of a vdev whose leaves have so many bytes each; `None` when none of them is known.
#[doc(alias = "vdev_op_open")]
fn asize(vdev: &VdevConfig, top: &Top, bytes: &dyn Fn(&Leaf) -> u64, tree: &Tree) -> Option<u64> {
    match vdev.kind {
        Kind::Disk | Kind::File => {
            let leaf = tree.leaf(vdev.guid).filter(|leaf| leaf.device().is_some())?;
            return leaf_asize(bytes(leaf)).ok();
        }
        Kind::DraidSpare => return None,
        _ => {}
    }
    let smallest = vdev.children.iter().filter_map(|child| asize(child, top, bytes, tree)).min()?;
    match (vdev.kind, &top.layout) {
        // The disk that an expansion adds counts when the expansion has ended.
        (Kind::Raidz, _) => {
            let width = u64::try_from(vdev.children.len()).ok()?.checked_sub(u64::from(vdev.expanding))?;
            smallest.checked_mul(width)
        }
        (Kind::Draid, VdevLayout::Draid(geometry)) => Some(geometry.capacity(smallest)),
        (Kind::Draid, _) => None,
        _ => Some(smallest),
    }
}

/// Bytes by which a vdev of the pool could grow, in whole metaslabs.
#[doc(alias = "vs_esize")]
pub fn expandable(tree: &Tree, guid: u64) -> u64 {
    let found = tree.config.children.iter().find_map(|config| {
        let vdev = config.walk().into_iter().find(|vdev| vdev.guid == guid)?;
        Some((config, vdev, tree.top(config.id)?))
    });
    let Some((config, vdev, top)) = found else { return 0 };
    let possible = asize(vdev, &top, &Leaf::size, tree).unwrap_or(0);
    let now = match vdev.guid == config.guid {
        true => config.asize,
        false => asize(vdev, &top, &Leaf::counted, tree).unwrap_or(0),
    };
    expand_size(possible, now, config.metaslab_shift)
}

impl VdevTree<'_> {
    /// Whether vdevs grow with their devices.
    pub(super) fn expands_by_itself(self) -> bool {
        self.spa.growth.on.load(Ordering::Relaxed)
    }

    pub(super) fn set_autoexpand(self, on: bool) {
        self.spa.growth.on.store(on, Ordering::Relaxed);
    }

    /// Measures the devices of a vdev (syncing context). Leaves selected by `counts` now use their full size,
    /// if they are healthy.
    pub(super) fn measure(self, top: &Top, counts: &dyn Fn(&Leaf) -> bool) {
        for leaf in top.leaves() {
            if leaf.measure() {
                copy_uberblocks(&leaf, top.ashift, &*self.spa.pool.env.executor);
                // The labels at the new end are to be written.
                self.spa.config.lock().change_root(|_| ());
                if self.expands_by_itself() {
                    self.spa.reports().report_leaf("sysevent.fs.zfs.vdev_autoexpand", &leaf);
                }
            }
            if leaf.health() == Health::ONLINE && (self.expands_by_itself() || counts(&leaf)) {
                leaf.count_all();
            }
        }
    }

    /// Measures all devices (syncing context); with `autoexpand=on` vdevs grow.
    pub(super) fn measure_all(self, tx: &Tx) -> Result<()> {
        let tree = self.spa.pool.zio.tree();
        tree.tops().for_each(|top| self.measure(top, &|_| false));
        if !self.expands_by_itself() {
            return Ok(());
        }
        let all: Vec<u64> = tree.tops().map(|top| top.id).collect();
        self.grow(&all, tx)
    }

    /// Records the time of a request to use a device in full.
    pub(super) fn note_expansion(self, leaf: u64) {
        let now = self.spa.pool.env.now();
        self.spa.config.lock().change_root(|root| {
            edit(root, leaf, &mut |config| set(config, "expansion_time", now));
        });
    }

    /// Grows top-level vdevs to the counted size of their devices (syncing context); those with devices that
    /// are not healthy stay as they are.
    ///
    /// # Errors
    /// When that can't be.
    #[doc(alias("vdev_expand", "spa_config_update"))]
    pub(super) fn grow(self, tops: &[u64], tx: &Tx) -> Result<()> {
        let tree = self.spa.pool.zio.tree();
        let larger: Vec<(u64, u64)> = tops.iter().filter_map(|id| Some((*id, larger(&tree, *id)?))).collect();
        if larger.is_empty() {
            return Ok(());
        }
        let mut change = VdevChange::of(self.spa);
        for (id, asize) in &larger {
            let config = tree.config.children.iter().find(|child| child.id == *id);
            edit(&mut change.root, config.map_or(0, |config| config.guid), &mut |top| {
                set(top, "asize", *asize)
            });
        }
        let described = VdevConfig::parse(&change.root)?;
        let before = counted_space(self.spa);
        for (id, _) in &larger {
            if let Some(grown) = described.children.iter().find(|child| child.id == *id) {
                self.spa.space.grow_top(grown)?;
            }
        }
        self.change(change, tx)?;
        let size = counted_space(self.spa);
        if size > before {
            let text = format!("pool '{}' size: {size}(+{})", self.spa.pool.name, size - before);
            self.spa.log("vdev online", "", 0, &text, tx)?;
        }
        Ok(())
    }

    /// Devices may have grown while the pool was not in use.
    #[doc(alias = "SPA_ASYNC_AUTOEXPAND")]
    pub(super) fn expand_at_import(self) -> Result<()> {
        let view = self.spa.mos.view();
        let on = match self.spa.directory()?.u64(mos::PROPS)?.filter(|number| *number != 0) {
            None => false,
            Some(number) => Zap::open(&view.object(number)?)?.u64(AUTOEXPAND)?.is_some_and(|word| word != 0),
        };
        self.set_autoexpand(on);
        let tree = self.spa.pool.zio.tree();
        if !on || tree.tops().all(|top| larger(&tree, top.id).is_none()) {
            return Ok(());
        }
        self.spa.sync_task(|spa, tx| spa.vdevs().measure_all(tx))
    }
}

fn counted_space(spa: &Spa) -> u64 {
    COUNTED.iter().map(|class| spa.space.class_stats(*class).space).sum()
}

/// Whose space makes up the pool's, in its history.
const COUNTED: [MetaslabClass; 4] =
    [MetaslabClass::Normal, MetaslabClass::Special, MetaslabClass::Dedup, MetaslabClass::EmbeddedLog];

/// Returns the new size of a top-level vdev, if that is larger than the present one and its devices are
/// healthy.
fn larger(tree: &Tree, id: u64) -> Option<u64> {
    let config = tree.config.children.iter().find(|child| child.id == id)?;
    let top = tree.top(id)?;
    let well = top.leaves().all(|leaf| leaf.health() == Health::ONLINE);
    let now = asize(config, &top, &Leaf::counted, tree)?;
    (well && config.metaslab_shift != 0 && now > config.asize).then_some(now)
}
