//! `zpool attach` and `zpool replace`: another leaf takes its place beside one of the pool.
//!
//! Where the old leaf stands alone, a new vdev is put above both: a `mirror` for attach, `replacing` for replace, `spare`
//! when the new leaf is a hot spare. A mirror just gets one more child. The new leaf lacks everything: its
//! DTL covers all txgs up to the one that adds it, and a resilver fills it. `replacing` and `spare` are
//! dissolved by [`super::detach`].
//!
//! In a leaf's place with the same path, the old leaf is renamed to `path/old`, which cannot be opened.
//!
//! Crash safety is that of [`super::vdev_change`].
//!
//! Format source: `spa_vdev_attach`, spa.c; `vdev_add_parent`, `vdev_top_transfer`, vdev.c; OpenZFS 2.4. The texts of
//! errors are those of `zpool_vdev_attach`, libzfs_pool.c, without "cannot … : ".

use blkdev::Device;
use nvpair::{NvList, NvValue};
use zcommon::features::Feature;

use super::Spa;
use super::layout::config::{TOP_ZAP, edit, find, line, put_in_order};
use super::layout::size::{self, Sectors, leaf_asize, least_asize};
use super::layout::{LeafSpec, describe, leaf_kind};
use super::removal::{BIRTHS, MAPPING, PREVIOUS, REMOVING};
use super::scrub::REBUILDING;
use super::space_store::set;
use super::subjects::{Disks, Rebuilds};
use super::vdev_change::{NOT_YET, VdevChange};
use crate::dmu::Tx;
use crate::dsl::write::Hooks as _;
use crate::error::{Error, Kind, Result};
use crate::vdev::config::{AllocBias, VdevConfig};

/// Entries of a top-level vdev that its successor in that place takes over.
const OF_TOP: [&str; 12] = [
    "metaslab_array",
    "metaslab_shift",
    "ashift",
    "asize",
    "min_alloc",
    "is_log",
    "non_allocating",
    REMOVING,
    MAPPING,
    BIRTHS,
    PREVIOUS,
    TOP_ZAP,
];

/// The device that joins.
#[derive(Debug, Clone)]
pub enum NewDevice {
    /// One that belongs to no pool.
    Fresh {
        /// The device.
        leaf: LeafSpec,
        /// Sector shift, when not to be detected.
        ashift: Option<u32>,
    },
    /// A hot spare of the pool's list.
    Spare {
        /// Its guid in the list.
        guid: u64,
        /// Its device; a distributed spare has none.
        device: Option<Device>,
    },
}

/// Parameters of an attach.
#[derive(Debug, Clone)]
pub struct Attach {
    /// Guid of the leaf (or raidz) that the device is attached to.
    pub target: u64,
    /// The device.
    pub device: NewDevice,
    /// It replaces the leaf.
    pub replacing: bool,
    /// Fills the device by a sequential reconstruction, which a scrub follows: refused where OpenZFS has none.
    pub sequential: bool,
}

/// The new leaf as the configuration is to have it.
pub(super) struct Joining {
    pub(crate) list: NvList,
    pub(crate) guid: u64,
    pub(crate) path: String,
    pub(crate) is_spare: bool,
    pub(crate) asize: Option<u64>,
    pub(crate) ashift: Option<u32>,
}

/// Sets a path that cannot be opened on a leaf that another one with the same path replaces.
fn rename_old(change: &mut VdevChange<'_>, guid: u64, path: &str) {
    edit(&mut change.root, guid, &mut |leaf| {
        leaf.remove("path");
        leaf.remove("devid");
        leaf.add("path", format!("{path}/old"));
    });
    change.brings.renamed.insert(guid, guid);
}

/// The kind of vdev that old and new leaf are put under, when the old one stands in a vdev of the kind `above`; `None`: they
/// cannot be put together there. `spares`: whether the old and the new leaf are hot spares.
fn pair_of(above: &str, replacing: bool, spares: (bool, bool)) -> Option<&'static str> {
    let (was_spare, is_spare) = spares;
    match replacing {
        false => ["mirror", "root"].contains(&above).then_some("mirror"),
        true if above == "spare" && is_spare != was_spare => None,
        true => Some(if is_spare { "spare" } else { "replacing" }),
    }
}

impl Disks<'_> {
    /// Attaches a device, and returns when its resilver has begun or waits for its turn.
    ///
    /// # Errors
    /// In OpenZFS's words: `Unsupported` where nothing can be attached, `Invalid` for a device that doesn't fit, `Busy`
    /// while something else stands in the way. Nothing has changed then.
    #[doc(alias = "spa_vdev_attach")]
    pub fn attach(self, what: Attach) -> Result<()> {
        let until = self.spa.sync_task(move |spa, tx| spa.disks().attach_now(what, tx))?;
        self.spa.wait_synced(until)
    }

    /// As [`Disks::attach`], in syncing context; returns the txg in which the resilver begins.
    pub(super) fn attach_now(self, what: Attach, tx: &Tx) -> Result<u64> {
        may_attach(self.spa, what.sequential)?;
        let tree = self.spa.pool.zio.tree();
        let root = self.spa.config.lock().root().clone();
        let missing = || Error::new(Kind::NotFound, "no such device in pool");
        let above = line(&root, what.target);
        let (&[old, parent, ref beyond @ ..], Some(top)) = (above.as_slice(), above.iter().rev().nth(1))
        else {
            return Err(missing());
        };
        let refused = |text: &str| Err(Error::unsupported(text));
        let rebuilds = ["mirror", "draid", "disk", "file"].contains(&top.str("type").unwrap_or_default());
        if what.sequential && !rebuilds {
            return refused("only mirror and dRAID vdevs support sequential reconstruction");
        }
        if old.str("type") == Some("raidz") && !what.replacing {
            return self.spa.expansion().attach(&what, old, tx);
        }
        let not_here = match what.replacing {
            true => "cannot replace a replacing device",
            false => "can only attach to mirrors and top-level disks",
        };
        if old.contains("children") || tree.leaf(what.target).is_none() {
            return refused(not_here);
        }
        let top_id = top.u64("id").unwrap_or(u64::MAX);
        let joining = self.joining(&what.device, old, tx)?;
        let bias = self.spa.space.bias(top_id).unwrap_or(AllocBias::Normal);
        if bias != AllocBias::Normal && joining.is_spare {
            let is_log = bias == AllocBias::Log;
            return refused(if is_log { "cannot replace a log with a spare" } else { not_here });
        }
        if joining.list.str("type") == Some("dspare") && joining.list.u64("top_guid") != top.u64("guid") {
            return refused("dRAID spares can only replace child devices in their parent's dRAID vdev");
        }
        let above = parent.str("type").unwrap_or_default();
        let was_spare = old.u64("is_spare").unwrap_or(0) != 0;
        let op = match pair_of(above, what.replacing, (was_spare, joining.is_spare)) {
            Some(op) => op,
            None if what.replacing && was_spare => {
                return refused("can only be replaced by another hot spare");
            }
            None => return refused(not_here),
        };
        // OpenZFS 2.4 refuses such a tree, too.
        let is_spared = || beyond.first().is_some_and(|vdev| vdev.str("type") == Some("spare"));
        if joining.is_spare && above == "replacing" && is_spared() {
            return refused("a spare already stands in for this device");
        }
        self.fits(&joining, what.target, top)?;

        let mut change = VdevChange::of(self.spa);
        if let NewDevice::Fresh { leaf, .. } = &what.device {
            change.brings.devices.insert(joining.guid, Device::clone(&leaf.device));
        }
        if let NewDevice::Spare { device: Some(device), .. } = &what.device {
            change.brings.devices.insert(joining.guid, Device::clone(device));
        }
        change.blank.push(joining.guid);
        let old_path = old.str("path").unwrap_or_default().to_owned();
        if old_path == joining.path {
            rename_old(&mut change, what.target, &old_path);
        }
        let mut list = joining.list.clone();
        let rebuilds = what.sequential && Rebuilds::can_rebuild(top);
        set(&mut list, if rebuilds { "rebuild_txg" } else { "resilver_txg" }, tx.txg());
        let parent_guid = parent.u64("guid").unwrap_or(0);
        match above == op {
            true => edit(&mut change.root, parent_guid, &mut |parent| add_child(parent, &list)),
            false => {
                let guid = self.spa.pool.env.guid();
                edit(&mut change.root, what.target, &mut |old| put_above(old, op, guid, &list))
            }
        };
        self.spa.vdevs().change(change, tx)?;
        self.told_attached(&what, &joining, &old_path, tx)?;
        let begins = tx.txg() + NOT_YET;
        match rebuilds {
            true => self.spa.rebuilds().begin_at(joining.guid, begins),
            false => self.spa.scans().restart_resilver_at(begins),
        }
        Ok(begins)
    }

    /// The configuration of the leaf that joins.
    pub(super) fn joining(self, device: &NewDevice, old: &NvList, tx: &Tx) -> Result<Joining> {
        let mut list = NvList::new();
        let joining = match device {
            NewDevice::Fresh { leaf, ashift } => {
                let geometry = leaf.device.geometry();
                let guid = self.spa.pool.env.guid();
                list.add("type", leaf_kind(leaf)).add("id", 0u64).add("guid", guid);
                describe(&mut list, leaf);
                Joining {
                    guid,
                    path: leaf.path.clone(),
                    is_spare: false,
                    asize: Some(leaf_asize(geometry.size).map_err(|_| too_small())?),
                    ashift: Some(size::ashift(Sectors::of(&geometry).without_physical(), *ashift)?),
                    list,
                }
            }
            NewDevice::Spare { guid, device } => {
                let entry =
                    self.spa.spares().spare_entry(*guid)?.ok_or_else(|| Error::not_found("no such spare"))?;
                if find(self.spa.config.lock().root(), *guid).is_some() {
                    return Err(is_busy(entry.str("path").unwrap_or_default()));
                }
                list.add("type", entry.str("type").unwrap_or("disk")).add("id", 0u64).add("guid", *guid);
                for key in ["path", "devid", "phys_path", "top_guid", "spareid", "whole_disk"] {
                    if let Some(value) = entry.get(key) {
                        list.add(key, value.clone());
                    }
                }
                list.add("is_spare", 1u64);
                let geometry = device.as_ref().map(|device| device.geometry());
                let sectors = geometry.as_ref().map(|geometry| Sectors::of(geometry).without_physical());
                Joining {
                    guid: *guid,
                    path: entry.str("path").unwrap_or_default().to_owned(),
                    is_spare: true,
                    asize: geometry.map(|g| leaf_asize(g.size)).transpose().map_err(|_| too_small())?,
                    ashift: sectors.map(|sectors| size::ashift(sectors, None)).transpose()?,
                    list,
                }
            }
        };
        let Joining { mut list, .. } = joining;
        list.add("create_txg", old.u64("create_txg").unwrap_or(tx.txg()));
        put_in_order(&mut list);
        Ok(Joining { list, ..joining })
    }

    /// Whether the device is large enough, and its sectors small enough. A spare's sectors are taken as they come.
    pub(super) fn fits(self, joining: &Joining, target: u64, top: &NvList) -> Result<()> {
        let tree = self.spa.pool.zio.tree();
        let id = top.u64("id").unwrap_or(u64::MAX);
        let config: Option<&VdevConfig> = tree.config.children.iter().find(|config| config.id == id);
        let least = config.and_then(|config| least_asize(config, target)).unwrap_or(0);
        if joining.asize.is_some_and(|asize| asize < least) {
            return Err(too_small());
        }
        let own = top.u64("ashift").and_then(|ashift| u32::try_from(ashift).ok()).unwrap_or(0);
        if joining.ashift.is_some_and(|ashift| ashift > own) {
            let what = "The new device cannot have a higher alignment requirement than the top-level vdev.";
            return Err(Error::new(Kind::Invalid, what));
        }
        Ok(())
    }

    pub(super) fn told_attached(self, what: &Attach, joining: &Joining, old: &str, tx: &Tx) -> Result<()> {
        let tree = self.spa.pool.zio.tree();
        if let Some(leaf) = tree.leaf(joining.guid) {
            if joining.is_spare {
                self.spa.reports().report_leaf("sysevent.fs.zfs.vdev_spare", leaf);
            }
            self.spa.reports().report_leaf("sysevent.fs.zfs.vdev_attach", leaf);
        }
        let (how, to) = match (what.replacing, joining.is_spare) {
            (true, true) => ("spare in", "for"),
            (true, false) => ("replace", "for"),
            (false, _) => ("attach", "to"),
        };
        let old = find(self.spa.config.lock().root(), what.target)
            .and_then(|old| old.str("path"))
            .unwrap_or(old)
            .to_owned();
        let details = format!("{how} vdev={} {to} vdev={old}", joining.path);
        self.spa.log("vdev attach", "", 0, &details, tx)
    }
}

/// Whether the pool's state allows it.
fn may_attach(spa: &Spa, sequential: bool) -> Result<()> {
    let busy = |what: &str| Err(Error::new(Kind::Busy, what));
    spa.checkpoint().check_none()?;
    if sequential && !spa.features.is_enabled(Feature::DeviceRebuild) {
        let what = "device_rebuild feature must be enabled in order to use sequential reconstruction";
        return Err(Error::unsupported(what));
    }
    if sequential && spa.scans().is_resilvering() {
        return busy("currently resilvering");
    }
    if !sequential && spa.rebuilds().is_rebuilding() {
        return busy(REBUILDING);
    }
    if spa.removal().is_active() {
        return busy("device removal in progress");
    }
    Ok(())
}

fn too_small() -> Error {
    Error::new(Kind::Invalid, "device is too small")
}

/// The device is in use.
pub(super) fn is_busy(path: &str) -> Error {
    Error::new(Kind::Busy, format!("{path} is busy"))
}

/// Adds a child at the end.
pub(super) fn add_child(parent: &mut NvList, child: &NvList) {
    if let Some(NvValue::ListArray(children)) = parent.get_mut("children") {
        let mut child = child.clone();
        set(&mut child, "id", u64::try_from(children.len()).unwrap_or(u64::MAX));
        children.push(child);
    }
}

/// Puts a vdev of this kind and guid in the place of `old`, which becomes its first child; `new` is its second.
#[doc(alias("vdev_add_parent", "vdev_top_transfer"))]
fn put_above(old: &mut NvList, kind: &str, guid: u64, new: &NvList) {
    let mut above = NvList::new();
    above.add("type", kind).add("id", old.u64("id").unwrap_or(0)).add("guid", guid).add("whole_disk", 0u64);
    above.add("create_txg", old.u64("create_txg").unwrap_or(0));
    let mut first = old.clone();
    move_top(&mut first, &mut above);
    set(&mut first, "id", 0);
    above.add("children", vec![first]);
    add_child(&mut above, new);
    *old = above;
}

/// Moves the entries that only a top-level vdev has.
#[doc(alias = "vdev_top_transfer")]
pub(super) fn move_top(from: &mut NvList, to: &mut NvList) {
    for key in OF_TOP {
        if let Some(value) = from.get(key).cloned() {
            from.remove(key);
            to.remove(key);
            to.add(key, value);
        }
    }
}
