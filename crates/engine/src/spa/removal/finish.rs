//! The end of a removal: the vdev becomes indirect, or returns to normal use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvpair::NvList;
use ondisk::names::vdev_top;
use ondisk::pool::SpaRemoving;
use zcommon::features::Feature;

use super::{BIRTHS, MAPPING, PREVIOUS, REMOVING, objects, state};
use crate::dsl::write::{Hooks as _, MosTx};
use crate::error::{Error, Result};
use crate::metaslab::SpaceMapStore as _;
use crate::spa::Spa;
use crate::spa::layout::config::TOP_ZAP;
use crate::spa::space_store::SpaceStore;
use crate::spa::subjects::Removal;
use crate::spa::vdev_change::{Retired, VdevChange};
use crate::spa::vdev_props::{self, NON_ALLOCATING};

impl<'a> Removal<'a> {
    pub(super) fn top_config(self, vdev: u64) -> Result<NvList> {
        let top = self.spa.config.lock().top(vdev).cloned();
        top.ok_or_else(|| Error::corrupt(format!("the configuration has no top-level vdev {vdev}")))
    }

    /// Everything is copied, and durable: the vdev becomes indirect (syncing context).
    #[doc(alias("vdev_remove_complete", "vdev_remove_complete_sync", "spa_finish_removal"))]
    pub(super) fn complete_removal(self, at: &MosTx<'_>, mut removal: SpaRemoving) -> Result<()> {
        let vdev = removal.removing_vdev;
        let old = self.top_config(vdev)?;
        let (mapping, births) = self.mapping_objects(vdev)?;
        let number = |name: &str| old.u64(name).unwrap_or(0);
        let mut left = NvList::new();
        left.add("type", "indirect").add("id", vdev).add("guid", at.guid());
        for (name, value) in [
            ("whole_disk", 0),
            ("metaslab_array", 0),
            ("metaslab_shift", number("metaslab_shift")),
            ("ashift", number("ashift")),
            ("asize", number("asize")),
            ("is_log", 0),
            (NON_ALLOCATING, 1),
            (MAPPING, mapping),
            (BIRTHS, births),
            ("create_txg", number("create_txg")),
            (TOP_ZAP, number(TOP_ZAP)),
        ] {
            left.add(name, value);
        }
        if removal.prev_indirect_vdev != state::NONE {
            left.add(PREVIOUS, removal.prev_indirect_vdev);
        }
        let copies = self.spa.space.copied(vdev).ok_or_else(|| Error::corrupt("the removal is not known"))?;
        let copies = copies.with_births(objects::births(at, births)?);
        let mut change = self.departure(vdev, &old, Some(left))?;
        change.brings.mappings.insert(vdev, Arc::new(copies));
        self.spa.vdevs().change(change, at.tx)?;
        removal.prev_indirect_vdev = vdev;
        end_removal(self.spa, at, removal, state::FINISHED)?;
        self.spa.log(
            "vdev remove completed",
            "",
            0,
            &format!("{} vdev {vdev}", self.spa.pool.name),
            at.tx,
        )?;
        self.spa.reports().notify("vdev_remove_dev");
        Ok(())
    }

    /// The change that takes a top-level vdev out of the tree and puts `left` in its place.
    pub(super) fn departure(self, vdev: u64, old: &NvList, left: Option<NvList>) -> Result<VdevChange<'a>> {
        let mut change = VdevChange::of(self.spa);
        let is_it = |top: &NvList| top.u64("id") == Some(vdev);
        match left {
            Some(left) => {
                change.tops()?.iter_mut().filter(|top| is_it(top)).for_each(|top| *top = left.clone());
            }
            None => change.tops()?.retain(|top| !is_it(top)),
        }
        change.retired = leaves(old).into_iter().map(|guid| (guid, Retired::BlankAfterTxg)).collect();
        Ok(change)
    }

    /// Cancels the removal (syncing context): the copies are freed, the vdev is allocated from again.
    #[doc(alias = "spa_vdev_remove_cancel_sync")]
    pub(super) fn cancel_removal(self, at: &MosTx<'_>, removal: SpaRemoving) -> Result<()> {
        let vdev = removal.removing_vdev;
        let (mapping, births) = self.mapping_objects(vdev)?;
        let list = self.top_config(vdev)?;
        let zap = list.u64(TOP_ZAP).unwrap_or(0);
        if let Some((what, object)) = self.spa.space.cancel_evacuation(vdev, at.tx.txg())? {
            SpaceStore::of(self.spa, at.tx).free(&what, object)?;
        }
        if at.zap_word(zap, vdev_top::OBSOLETE_COUNTS_ARE_PRECISE)?.is_some() {
            at.zap_remove(zap, vdev_top::OBSOLETE_COUNTS_ARE_PRECISE)?;
            at.count(Feature::ObsoleteCounts, -1)?;
        }
        objects::free_mapping(at, mapping)?;
        at.free_object(births)?;
        at.count(Feature::DeviceRemoval, -1)?;
        let keeps_closed = at.zap_word(zap, "allocating")? == Some(0);
        let mut edit = |top: &mut NvList| {
            [MAPPING, BIRTHS, REMOVING].iter().for_each(|name| drop(top.remove(name)));
            if !keeps_closed {
                top.remove(NON_ALLOCATING);
            }
        };
        self.spa.vdevs().edit_top(vdev, &mut edit, at.tx)?;
        self.reopen_top(vdev);
        end_removal(self.spa, at, removal, state::CANCELED)?;
        let path = list.str("path").unwrap_or("-");
        let details = format!("{} vdev {vdev} {path}", self.spa.pool.name);
        self.spa.log("vdev remove canceled", "", 0, &details, at.tx)
    }

    /// Allocates on a vdev again, if nothing else forbids it.
    pub(super) fn reopen_top(self, vdev: u64) {
        if let Some(top) = self.spa.pool.zio.tree().top(vdev) {
            let closed = vdev_props::is_closed(&top, &self.spa.config.lock());
            self.spa.space.set_closed(vdev, closed);
        }
    }
}

fn end_removal(spa: &Spa, at: &MosTx<'_>, mut removal: SpaRemoving, how: u64) -> Result<()> {
    removal.state = how;
    removal.end_time = at.seconds();
    state::store(at, &removal)?;
    spa.removing.active.store(false, Ordering::Release);
    spa.removing.births.lock().clear();
    // Copies that a leaf missed can be found by a resilver from now on.
    spa.scanning.look_again();
    Ok(())
}

/// Guids of the leaves at or below a vdev.
fn leaves(vdev: &NvList) -> Vec<u64> {
    match vdev.nvlist_array("children") {
        Some(children) => children.iter().flat_map(leaves).collect(),
        None => vdev.u64("guid").into_iter().collect(),
    }
}
