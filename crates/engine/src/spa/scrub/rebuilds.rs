//! Sequential rebuilds that OpenZFS began: recorded as canceled, and their leaves handed to a healing resilver.
//!
//! A rebuild's record is an array of words in its top-level vdev's ZAP; while its state is *active*, the record holds one
//! reference of `device_rebuild`, and the leaves that it fills have a `rebuild_txg`. Without this module a healed pool would
//! go on calling itself rebuilding, with the feature active, and OpenZFS would start the rebuild again.
//!
//! Crash safety: record, feature and leaves change in one txg. The DTLs of the leaves stay as they are, so a crash on either
//! side leaves a pool in which some resilver is due.
//!
//! Format source: `vdev_rebuild_phys_t`, vdev_rebuild.h; `vdev_rebuild_cancel_sync`, vdev_rebuild.c; OpenZFS 2.4.
//!
//! Differs from OpenZFS: no rebuild is continued in device order. The resilver that takes over reads block pointers, so it
//! checks every checksum and needs no scrub afterwards.

use std::sync::atomic::Ordering;

use nvpair::NvList;
use ondisk::names::vdev_top;
use zcommon::features::Feature;

use crate::dmu::Tx;
use crate::dsl::write::{Hooks as _, MosTx, MosView};
use crate::error::Result;
use crate::spa::Spa;
use crate::spa::layout::config::TOP_ZAP;
use crate::spa::space_store::set;

/// Words of a record.
#[doc(alias = "REBUILD_PHYS_ENTRIES")]
const WORDS: usize = 12;
/// `vdev_rebuild_state_t`.
const NONE: u64 = 0;
const ACTIVE: u64 = 1;
const CANCELED: u64 = 2;

/// The record of a top-level vdev's last rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "vdev_rebuild_phys_t")]
struct Record([u64; WORDS]);

impl Record {
    const EMPTY: Self = Self([0; WORDS]);

    /// Takes the words of a ZAP entry; missing words are 0, further ones are ignored.
    fn of(words: &[u64]) -> Self {
        let mut record = Self::EMPTY;
        record.0.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
        record
    }

    /// `vrp_rebuild_state`.
    fn state(&self) -> u64 {
        let [state, ..] = self.0;
        state
    }

    /// The record of a rebuild that ends at `time` (seconds since 1970) without having been completed.
    fn canceled(mut self, time: u64) -> Self {
        let [state, _, _, _, _, end_time, ..] = &mut self.0;
        (*state, *end_time) = (CANCELED, time);
        self
    }
}

/// A top-level vdev with a record.
struct Rebuilt {
    id: u64,
    guid: u64,
    zap: u64,
    record: Record,
}

impl Spa {
    /// Notes at import whether a rebuild is recorded as active.
    pub(super) fn find_rebuilds(&self) {
        let active =
            self.rebuilds(&MosView { mos: &self.mos }).iter().any(|top| top.record.state() == ACTIVE);
        self.scanning.rebuilds.store(active, Ordering::Release);
    }

    /// Cancels the rebuilds that [`Spa::find_rebuilds`] saw (syncing context). A healing resilver is due afterwards wherever
    /// a leaf still lacks something.
    ///
    /// # Errors
    /// When the MOS cannot be written.
    #[doc(alias = "vdev_rebuild_cancel_sync")]
    pub(super) fn cancel_rebuilds(&self, tx: &Tx) -> Result<()> {
        if !self.scanning.rebuilds.load(Ordering::Acquire) {
            return Ok(());
        }
        let at = self.datasets.at(tx, self);
        for top in self.rebuilds(&at).iter().filter(|top| top.record.state() == ACTIVE) {
            store(&at, top, top.record.canceled(at.seconds()))?;
            if at.active(Feature::DeviceRebuild) {
                at.count(Feature::DeviceRebuild, -1)?;
            }
            let details = format!("vdev_id={} vdev_guid={} canceled", top.id, top.guid);
            self.log("rebuild", "", 0, &details, tx)?;
            self.notify("resilver_finish");
        }
        self.config.lock().change_root(to_healing);
        self.scanning.rebuilds.store(false, Ordering::Release);
        Ok(())
    }

    /// Empties the records of rebuilds that have ended: the resilver that begins is what the pool's status is about.
    ///
    /// # Errors
    /// When the MOS cannot be written.
    #[doc(alias = "vdev_rebuild_clear_sync")]
    pub(super) fn clear_rebuilds(&self, at: &MosTx<'_>) -> Result<()> {
        let tops = self.rebuilds(at);
        let ended = tops.iter().filter(|top| ![NONE, ACTIVE].contains(&top.record.state()));
        ended.into_iter().try_for_each(|top| store(at, top, Record::EMPTY))
    }

    /// The records that can be read. As in OpenZFS, a damaged one counts as none: the DTLs say what leaves lack.
    #[doc(alias = "vdev_rebuild_load")]
    fn rebuilds(&self, mos: &MosView<'_>) -> Vec<Rebuilt> {
        let mut found = Vec::new();
        let root = self.config.lock().root().clone();
        for top in root.nvlist_array("children").unwrap_or_default() {
            let word = |name: &str| top.u64(name).unwrap_or(0);
            let (id, guid, zap) = (word("id"), word("guid"), word(TOP_ZAP));
            if zap == 0 {
                continue;
            }
            if let Ok(Some(value)) = mos.zap_get(zap, vdev_top::VDEV_REBUILD_PHYS) {
                found.push(Rebuilt { id, guid, zap, record: Record::of(&value.ints) });
            }
        }
        found
    }
}

fn store(at: &MosTx<'_>, top: &Rebuilt, record: Record) -> Result<()> {
    at.zap_set(top.zap, vdev_top::VDEV_REBUILD_PHYS, record.0.as_slice())
}

/// Leaves that a rebuild was to fill are a resilver's.
fn to_healing(vdev: &mut NvList) {
    if let Some(txg) = vdev.u64("rebuild_txg") {
        vdev.remove("rebuild_txg");
        set(vdev, "resilver_txg", txg);
    }
    if let Some(nvpair::NvValue::ListArray(children)) = vdev.get_mut("children") {
        children.iter_mut().for_each(to_healing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canceled_record_keeps_its_other_words() {
        let words: Vec<u64> = (1..=12).collect();
        let canceled = Record::of(&words).canceled(99);
        assert_eq!(canceled.0, [2, 2, 3, 4, 5, 99, 7, 8, 9, 10, 11, 12]);
        assert_eq!(Record::of(&[1]).0, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Record::of(&[7; 14]).0, [7; 12]);
    }

    #[test]
    fn leaves_of_all_depths_become_a_resilvers() {
        let mut leaf = NvList::new();
        leaf.add("type", "file").add("rebuild_txg", 17u64);
        let mut above = NvList::new();
        above.add("type", "spare").add("children", vec![leaf]);
        let mut root = NvList::new();
        root.add("type", "root").add("children", vec![above]);
        to_healing(&mut root);
        let leaf = &root.nvlist_array("children").unwrap()[0].nvlist_array("children").unwrap()[0];
        assert_eq!((leaf.u64("rebuild_txg"), leaf.u64("resilver_txg")), (None, Some(17)));
    }
}
