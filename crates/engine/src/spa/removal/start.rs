//! How a removal begins, and the commands on it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvpair::NvList;
use ondisk::names::{MOS_DIRECTORY_OBJECT, vdev_top};
use ondisk::pool::SpaRemoving;
use zcommon::features::Feature;
use zcommon::version::SPA_VERSION_HOLES;

use super::{BIRTHS, MAPPING, REMOVING, objects, state};
use crate::dmu::edit::Edit as _;
use crate::dsl::lookup::ReadNames as _;
use crate::dsl::write::{Hooks as _, MosTx};
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::spa::Spa;
use crate::spa::layout::TreeLayout;
use crate::spa::layout::config::TOP_ZAP;
use crate::spa::space_store::set;
use crate::spa::subjects::Removal;
use crate::spa::vdev_props::{self, NON_ALLOCATING};
use crate::vdev::config::{AllocBias, Kind as VdevKind, VdevConfig};
use crate::vdev::leaf::Leaf;
use crate::vdev::top::Top;
use crate::zio::alloc::MetaslabClass;

/// The pool or the vdev is not of a kind that can be removed.
pub(super) const NOT_SUPPORTED: &str = "operation not supported on this type of pool";
/// Another removal is under way.
pub(super) const BUSY: &str = "Pool busy; removal may already be in progress";
const NO_SPACE: &str = "out of space";
const BAD_CONFIG: &str =
    "invalid config; all top-level vdevs must have the same sector size and not be raidz.";
const NO_STRIPES: &str =
    "invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs";
/// Bytes of an entry of a mapping.
const ENTRY: u64 = 24;

impl Removal<'_> {
    /// Removes the device or top-level vdev of this guid: spares, cache and log devices at once, others by
    /// copying their content, which continues after this returns.
    ///
    /// # Errors
    /// In the words of `zpool remove`; nothing has changed then.
    #[doc(alias = "spa_vdev_remove")]
    pub fn remove(self, guid: u64) -> Result<()> {
        self.spa.checkpoint().check_none()?;
        if self.remove_aux(guid)? {
            return Ok(());
        }
        let top = removable(self.spa, guid)?;
        if top.bias == AllocBias::Log && self.spa.version() < SPA_VERSION_HOLES {
            return Err(Error::unsupported("pool must be upgraded to support log removal"));
        }
        if self.spa.removing.starting.swap(true, Ordering::AcqRel) {
            return Err(Error::new(Kind::Busy, BUSY));
        }
        let done =
            if top.bias == AllocBias::Log { self.remove_log(top.id) } else { remove_top(self.spa, top.id) };
        self.spa.removing.starting.store(false, Ordering::Release);
        done
    }

    /// Bytes of memory that the mapping of a vdev would take, about; 0 for vdevs that are not copied.
    ///
    /// # Errors
    /// When no such vdev could be removed.
    #[doc(alias = "ZPOOL_CONFIG_INDIRECT_SIZE")]
    pub fn memory(self, guid: u64) -> Result<u64> {
        if self.is_aux(guid)? {
            return Ok(0);
        }
        let top = removable(self.spa, guid)?;
        if top.bias == AllocBias::Log {
            return Ok(0);
        }
        let bytes = self.spa.space.bytes_in_use(top.id);
        let segment = self.spa.limits().get(Limit::RemoveMaxSegment).max(1);
        Ok(self.spa.space.free_pieces(top.id).saturating_add(bytes / segment).saturating_mul(ENTRY))
    }

    /// Cancels the removal under way: the copies are freed.
    ///
    /// # Errors
    /// When there is none.
    #[doc(alias = "spa_vdev_remove_cancel")]
    pub(super) fn cancel(self) -> Result<()> {
        self.spa.sync_task(move |spa, tx| {
            let at = spa.datasets.at(tx, spa);
            match state::running(&at)? {
                Some(removal) => spa.removal().cancel_removal(&at, removal),
                // OpenZFS' errno when no removal is active.
                None => Err(Error::not_found("operation is not in progress")),
            }
        })
    }

    /// Refuses new vdevs to which nothing could be copied.
    ///
    /// # Errors
    /// `Invalid`.
    pub(in crate::spa) fn check_beside_removed(self, layout: &TreeLayout) -> Result<()> {
        let tree = self.spa.pool.zio.tree();
        let removing = self.is_active();
        if !removing && !tree.tops().any(|top| top.is_removed()) {
            return Ok(());
        }
        let ashift = self.spa.vdevs().common_ashift();
        let refused = |top: &NvList| {
            let striped = matches!(top.str("type"), Some("raidz" | "draid"));
            striped || removing && ashift.is_some_and(|ashift| top.u64("ashift") != Some(ashift))
        };
        match layout.tops.iter().any(refused) {
            true => Err(Error::new(Kind::Invalid, NO_STRIPES)),
            false => Ok(()),
        }
    }

    /// Allocates nothing on a vdev from now on, until [`Removal::abandon_start`] or a crash (syncing context).
    #[doc(alias = "vdev_passivate")]
    pub(in crate::spa) fn close_top(self, vdev: u64) {
        self.spa.config.lock().set_passive(vdev, true);
        self.spa.space.set_closed(vdev, true);
    }

    /// Waits until nothing of a closed vdev is about to be written.
    pub(in crate::spa) fn drain(self, _: u64) -> Result<()> {
        self.spa.sync()?;
        self.spa.sync()?;
        self.spa.logs().reset()?;
        self.spa.sync()
    }

    /// The vdev is as before [`Removal::close_top`].
    #[doc(alias = "vdev_activate")]
    pub(in crate::spa) fn abandon_start(self, vdev: u64) {
        let reopened = self.spa.sync_task(move |spa, _| {
            spa.config.lock().set_passive(vdev, false);
            spa.removal().reopen_top(vdev);
            Ok(())
        });
        // A pool that takes no change any more is not allocated from either.
        drop(reopened);
    }
}

/// The top-level vdev of that guid.
fn removable(spa: &Spa, guid: u64) -> Result<Arc<Top>> {
    let tree = spa.pool.zio.tree();
    let config = tree.config.children.iter().find(|top| top.guid == guid);
    match config.and_then(|config| tree.top(config.id)) {
        Some(top) if !top.is_removed() => Ok(top),
        Some(_) => Err(Error::unsupported(NOT_SUPPORTED)),
        None if tree.config.walk().iter().any(|vdev| vdev.guid == guid) => {
            Err(Error::unsupported(NOT_SUPPORTED))
        }
        None => Err(Error::not_found("no such device in pool")),
    }
}

#[doc(alias = "spa_vdev_remove_top")]
fn remove_top(spa: &Spa, vdev: u64) -> Result<()> {
    spa.sync_task(move |spa, tx| {
        check_removal(spa, &spa.datasets.at(tx, spa), vdev)?;
        spa.removal().close_top(vdev);
        Ok(())
    })?;
    // Txgs that may have allocated on it end first; then no intent log is there any more.
    let begun = spa.removal().drain(vdev).and_then(|()| {
        spa.sync_task(move |spa, tx| {
            let at = spa.datasets.at(tx, spa);
            check_removal(spa, &at, vdev)?;
            begin_removal(spa, &at, vdev)
        })
    });
    if begun.is_err() {
        spa.removal().abandon_start(vdev);
    }
    begun
}

/// Why a vdev cannot be removed.
#[doc(alias = "spa_vdev_remove_top_check")]
fn check_removal(spa: &Spa, at: &MosTx<'_>, vdev: u64) -> Result<()> {
    let tree = spa.pool.zio.tree();
    let top = tree.top(vdev).ok_or_else(|| Error::not_found("no such device in pool"))?;
    spa.checkpoint().check_none()?;
    let invalid = || Err(Error::new(Kind::Invalid, BAD_CONFIG));
    if !at.enabled(Feature::DeviceRemoval) {
        return Err(Error::unsupported(NOT_SUPPORTED));
    }
    match state::running(at)? {
        Some(removal) if removal.removing_vdev == vdev => {
            return Err(Error::new(Kind::Busy, "removal for this vdev is already in progress."));
        }
        Some(_) => return Err(Error::new(Kind::Busy, BUSY)),
        None => {}
    }
    check_room(spa, at, &top)?;
    let has_all = |leaf: &Arc<Leaf>| leaf.device().is_some() && leaf.dtl.read().ranges().is_empty();
    if !top.leaves().any(|leaf| has_all(&leaf)) {
        return Err(Error::new(Kind::Busy, BUSY));
    }
    if !top.is_readable() {
        return Err(Error::new(Kind::Io, "I/O error"));
    }
    let Some(ashift) = spa.vdevs().common_ashift() else { return invalid() };
    let concrete = |config: &&VdevConfig| !matches!(config.kind, VdevKind::Indirect | VdevKind::Hole);
    for config in tree.config.children.iter().filter(concrete) {
        let layered = config.kind == VdevKind::Mirror && config.children.iter().any(|c| !c.kind.is_leaf());
        let striped = matches!(config.kind, VdevKind::Raidz | VdevKind::Draid);
        let of_class =
            tree.top(config.id).is_some_and(|other| spa.vdevs().bias_of(&other) == spa.vdevs().bias_of(&top));
        if layered || striped || of_class && u64::from(config.ashift) != ashift {
            return invalid();
        }
    }
    if u64::from(top.ashift) == ashift { Ok(()) } else { invalid() }
}

fn check_room(spa: &Spa, at: &MosTx<'_>, top: &Top) -> Result<()> {
    let stats = spa.space.vdev_stats(top.id).unwrap_or_default();
    let config = spa.config.lock();
    let forbidden = config.top(top.id).and_then(|list| list.u64(NON_ALLOCATING)).unwrap_or(0) != 0;
    let closed = forbidden || config.is_passive(top.id);
    let tree = spa.pool.zio.tree();
    let elsewhere = tree.tops().any(|other| {
        other.id != top.id
            && spa.vdevs().bias_of(other) == AllocBias::Normal
            && !other.is_removed()
            && !vdev_props::is_closed(other, &config)
    });
    drop(config);
    let fits = if spa.vdevs().bias_of(top) != AllocBias::Normal {
        spa.space.class_stats(MetaslabClass::Normal).free() >= stats.allocated
    } else if closed {
        true
    } else {
        spa.pool_space(false).saturating_sub(at.dir(at.root_dir()?)?.used_bytes) >= stats.dspace
    };
    if fits && elsewhere { Ok(()) } else { Err(Error::new(Kind::NoSpace, NO_SPACE)) }
}

#[doc(alias = "vdev_remove_initiate_sync")]
fn begin_removal(spa: &Spa, at: &MosTx<'_>, vdev: u64) -> Result<()> {
    let top = spa.pool.zio.tree().top(vdev).ok_or_else(|| Error::corrupt("the vdev is gone"))?;
    let list = spa.removal().top_config(vdev)?;
    let before = state::load(at)?;
    let zap = list.u64(TOP_ZAP).unwrap_or(0);
    at.count(Feature::DeviceRemoval, 1)?;
    if zap != 0 && at.enabled(Feature::ObsoleteCounts) {
        at.zap_add(zap, vdev_top::OBSOLETE_COUNTS_ARE_PRECISE, 1)?;
        at.count(Feature::ObsoleteCounts, 1)?;
    }
    let mapping = objects::create_mapping(at)?;
    let births = objects::create_births(at)?;
    let removal = SpaRemoving {
        state: state::SCANNING,
        removing_vdev: vdev,
        prev_indirect_vdev: before.map_or(state::NONE, |removal| removal.prev_indirect_vdev),
        start_time: at.seconds(),
        end_time: 0,
        to_copy: spa.space.bytes_in_use(vdev),
        copied: 0,
    };
    state::store(at, &removal)?;
    let mut edit = |top: &mut NvList| {
        set(top, NON_ALLOCATING, 1);
        set(top, REMOVING, 1);
        set(top, MAPPING, mapping);
        set(top, BIRTHS, births);
    };
    spa.vdevs().edit_top(vdev, &mut edit, at.tx)?;
    spa.config.lock().set_passive(vdev, false);
    spa.space.begin_evacuation(top);
    rewrite(at, MOS_DIRECTORY_OBJECT)?;
    let path = list.str("path").unwrap_or("-");
    let details = format!("{} vdev {vdev} {path}", spa.pool.name);
    spa.log("vdev remove started", "", 0, &details, at.tx)?;
    spa.removing.births.lock().clear();
    spa.removing.pace.begins(removal.start_time, 0);
    spa.removing.active.store(true, Ordering::Release);
    Ok(())
}

/// Writes all blocks of an object anew, so that none of them is on the vdev that is being removed: it is read before any
/// mapping is known.
fn rewrite(at: &MosTx<'_>, object: u64) -> Result<()> {
    let handle = at.handle(object)?;
    let mut edit = handle.edit(at.tx);
    for block in 0..=edit.max_block() {
        let bytes = edit.read_block(block)?.into_owned();
        edit.write_block(block, bytes)?;
    }
    Ok(())
}
