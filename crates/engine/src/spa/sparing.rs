//! Hot spares that take over by themselves.
//!
//! When a leaf is faulted, removed, cannot be opened, or failed too often, the first spare of the pool that fits is put in
//! its place, as `zpool replace POOL LEAF SPARE` does. The devices of spares are had from outside ([`SpareSource`]), as
//! pools may share them: a spare that another pool uses cannot be had.
//!
//! A spare leaves by [`super::detach`]: when the leaf is replaced, or is back ([`Spares::note_return`]).
//!
//! Source: `replace_with_spare`, `zfs_retire_recv`, zfs_retire.c, OpenZFS 2.4. Differs from OpenZFS: a daemon beside it does
//! that there.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkdev::Device;
use nvpair::NvList;
use parking_lot::{Mutex, RwLock};
use zcommon::features::Feature;
use zcommon::vdev::{VdevAux, VdevState};

use super::Spa;
use super::activity::{Activity, Due, SyncPoint};
use super::attach::{Attach, NewDevice};
use super::detach::UNSPARE;
use super::layout::config::{edit, line};
use super::space_store::set;
use super::subjects::Spares;
use crate::dmu::Tx;
use crate::error::Result;
use crate::memory::Limit;
use crate::vdev::config::{AllocBias, Kind, VdevConfig};
use crate::vdev::leaf::Leaf;
use crate::vdev::tree::Tree;

/// Opens the devices of hot spares.
pub trait SpareSource: Send + Sync + Debug {
    /// The device of a spare, open for writing; `None` when it is not there, or another pool uses it. Called in syncing
    /// context: it must not wait for the pool.
    fn device(&self, guid: u64, path: &str) -> Option<Device>;

    /// The pool has put the spare of the last [`SpareSource::device`] in a disk's place, or could not.
    fn decided(&self, _guid: u64) {}

    /// A spare has returned: other pools may need it. Called in syncing context.
    fn returned(&self) {}
}

/// Looks for spares when leaves need them.
#[derive(Debug, Default)]
pub(super) struct Sparing {
    source: RwLock<Option<Arc<dyn SpareSource>>>,
    wanted: AtomicBool,
    /// Leaves whose spare was detached by a command: none takes over until their state changes.
    declined: Mutex<BTreeSet<u64>>,
}

impl Activity for Sparing {
    fn is_due(&self, spa: &Spa) -> Due {
        let has_source = || self.source.read().is_some() && spa.limits().is_on(Limit::FaultAgents);
        if self.wanted.load(Ordering::Acquire) && has_source() { Due::Now } else { Due::No }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        let source = self.source.read().clone();
        let is_on = moment == SyncPoint::BeforeTasks && spa.limits().is_on(Limit::FaultAgents);
        let Some(source) = source.filter(|_| is_on) else { return Ok(()) };
        if self.wanted.swap(false, Ordering::AcqRel) {
            // A spare that can't be had or does not fit is tried again when something changes.
            let spares = spa.spares().entries().unwrap_or_default();
            if !spares.is_empty() {
                bring_spares(spa, &spares, &*source, tx);
            }
        }
        Ok(())
    }
}

impl Spares<'_> {
    /// Sets the source of hot spares' devices. From then on spares take over by themselves.
    pub fn set(self, source: Arc<dyn SpareSource>) {
        *self.spa.sparing.source.write() = Some(source);
        self.wanted();
    }

    /// Something has changed that may make a spare needed or free.
    pub fn wanted(self) {
        self.spa.sparing.wanted.store(true, Ordering::Release);
    }

    /// A spare has left a disk's place, or something else has changed that may make one free.
    pub(super) fn spare_returned(self) {
        self.wanted();
        if let Some(source) = self.spa.sparing.source.read().clone() {
            source.returned();
        }
    }

    /// Leaves beside a spare in use, which it stands in for.
    pub(super) fn spared_by(self, spare: u64) -> Vec<u64> {
        let root = self.spa.config.lock().root().clone();
        let (leaf, parent) = match line(&root, spare).as_slice() {
            [leaf, parent, ..] if parent.str("type") == Some("spare") => (*leaf, (*parent).clone()),
            _ => return Vec::new(),
        };
        if leaf.u64("is_spare") != Some(1) {
            return Vec::new();
        }
        let pair = VdevConfig::parse(&parent).ok();
        let leaves = pair.iter().flat_map(VdevConfig::walk).filter(|vdev| vdev.kind.is_leaf());
        leaves.map(|vdev| vdev.guid).filter(|guid| *guid != spare).collect()
    }

    /// No spare takes over for these leaves until their state changes.
    pub(super) fn decline_spares(self, leaves: Vec<u64>) {
        self.spa.sparing.declined.lock().extend(leaves);
    }

    /// The state of a leaf has changed: a spare may be needed, or free.
    pub(super) fn reconsider_spares(self, leaf: u64) {
        self.spa.sparing.declined.lock().remove(&leaf);
        self.wanted();
    }

    /// Whether a spare stands in for a leaf.
    pub(super) fn is_spared(self, guid: u64) -> bool {
        is_spared(self.spa.config.lock().root(), guid)
    }

    /// A leaf is in use again: a spare that stands in for it leaves when the leaf has caught up.
    #[doc(alias = "ZFS_ONLINE_UNSPARE")]
    pub(super) fn note_return(self, guid: u64) {
        self.spa.config.lock().change_root(|root| {
            if is_spared(root, guid) {
                edit(root, guid, &mut |leaf| set(leaf, UNSPARE, 1));
            }
        });
    }
}

fn bring_spares(spa: &Spa, spares: &[NvList], source: &dyn SpareSource, tx: &Tx) {
    // Each spare changes the tree; a leaf that got one is covered then.
    for _ in 0..spares.len() {
        let tree = spa.pool.zio.tree();
        let brought = uncovered(spa, &tree)
            .into_iter()
            .any(|target| spares.iter().any(|spare| bring(spa, target, spare, source, tx).is_some()));
        if !brought {
            return;
        }
    }
}

fn bring(spa: &Spa, target: u64, spare: &NvList, source: &dyn SpareSource, tx: &Tx) -> Option<u64> {
    let guid = spare.u64("guid")?;
    let tree = spa.pool.zio.tree();
    if tree.leaf(guid).is_some() {
        return None;
    }
    let distributed = spare.str("type") == Some("dspare");
    let device = match spare.str("type") {
        Some("dspare") => None,
        _ => Some(source.device(guid, spare.str("path").unwrap_or_default())?),
    };
    let device = NewDevice::Spare { guid, device };
    // As OpenZFS's daemon does for distributed spares.
    let rebuilds =
        distributed && spa.features.is_enabled(Feature::DeviceRebuild) && !spa.scans().is_resilvering();
    let brought =
        spa.disks().attach_now(Attach { target, device, replacing: true, sequential: rebuilds }, tx).ok();
    if !distributed {
        source.decided(guid);
    }
    brought
}

/// Leaves that a spare should stand in for.
fn uncovered(spa: &Spa, tree: &Tree) -> Vec<u64> {
    let tops = tree.config.children.iter();
    let ordinary = tops.filter(|top| spa.space.bias(top.id) == Some(AllocBias::Normal));
    let declined = spa.sparing.declined.lock();
    let wanting = ordinary.flat_map(|top| wanting(tree, top, None));
    wanting.filter(|leaf| !declined.contains(leaf)).collect()
}

fn is_spared(root: &NvList, guid: u64) -> bool {
    matches!(line(root, guid).as_slice(), [leaf, parent, ..]
        if parent.str("type") == Some("spare") && leaf.u64("id") == Some(0))
}

/// Leaves at or below `vdev` that need a spare.
fn wanting(tree: &Tree, vdev: &VdevConfig, parent: Option<&VdevConfig>) -> Vec<u64> {
    if !vdev.kind.is_leaf() {
        return vdev.children.iter().flat_map(|child| wanting(tree, child, Some(vdev))).collect();
    }
    let Some(leaf) = tree.leaf(vdev.guid).filter(|leaf| is_bad(leaf)) else { return Vec::new() };
    let pair = parent.filter(|parent| matches!(parent.kind, Kind::Spare | Kind::Replacing));
    let is_spare = vdev.nvlist.u64("is_spare").unwrap_or(0) != 0;
    let works = |other: &VdevConfig| {
        other.guid != vdev.guid
            && other.walk().iter().any(|v| tree.leaf(v.guid).is_some_and(|leaf| leaf.takes_resilver()))
    };
    let wants = match pair {
        None => true,
        Some(pair) if pair.kind == Kind::Replacing => false,
        // A spare can only be replaced by another.
        Some(pair) => is_spare && !pair.children.iter().any(works),
    };
    if wants { vec![leaf.guid] } else { Vec::new() }
}

fn is_bad(leaf: &Leaf) -> bool {
    let health = leaf.health();
    match health.state {
        VdevState::Faulted | VdevState::Removed | VdevState::CantOpen => true,
        VdevState::Degraded => health.aux == VdevAux::ErrorsExceeded,
        _ => false,
    }
}
