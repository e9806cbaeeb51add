//! Log devices leave at once: their intent logs are ended, and a hole remains, or nothing when it was the
//! last vdev.

use nvpair::NvList;
use ondisk::names::vdev_top;

use super::start::BUSY;
use crate::dsl::write::{Hooks as _, MosTx};
use crate::error::{Error, Kind, Result};
use crate::spa::import::missing_logs;
use crate::spa::layout::config::TOP_ZAP;
use crate::spa::subjects::Removal;

impl Removal<'_> {
    #[doc(alias("spa_vdev_remove_log", "vdev_remove_make_hole_and_free"))]
    pub(super) fn remove_log(self, vdev: u64) -> Result<()> {
        self.spa.sync_task(move |spa, _| {
            spa.removal().close_top(vdev);
            Ok(())
        })?;
        let done = self.drain(vdev).and_then(|()| {
            self.spa.sync_task(move |spa, tx| {
                // A log vdev that is gone only holds blocks of chains that were given up.
                let is_gone = missing_logs(&spa.pool).contains(&vdev);
                if spa.space.bytes_in_use(vdev) != 0 && !is_gone {
                    return Err(Error::new(Kind::Busy, BUSY));
                }
                let path = spa.removal().top_config(vdev)?.str("path").unwrap_or("-").to_owned();
                spa.removal().leave_hole(&spa.datasets.at(tx, spa), vdev)?;
                spa.log("vdev remove", "", 0, &format!("{} vdev (log) {path}", spa.pool.name), tx)?;
                spa.reports().notify("vdev_remove_dev");
                Ok(())
            })
        });
        match &done {
            Ok(()) => self.spa.disks().settle_left(),
            Err(_) => self.abandon_start(vdev),
        }
        done
    }

    /// A log vdev from which nothing is allocated leaves the configuration (syncing context).
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    pub(in crate::spa) fn leave_hole(self, at: &MosTx<'_>, vdev: u64) -> Result<()> {
        let old = self.top_config(vdev)?;
        let tops = self.spa.config.lock().root().nvlist_array("children").map_or(0, <[_]>::len);
        let is_last = u64::try_from(tops).is_ok_and(|tops| vdev.saturating_add(1) == tops);
        if let Some(zap) = old.u64(TOP_ZAP).filter(|zap| *zap != 0) {
            debug_assert!(
                at.zap_word(zap, vdev_top::POOL_CHECKPOINT_SM)?.is_none(),
                "refused with a checkpoint"
            );
        }
        let change = self.departure(vdev, &old, (!is_last).then(|| hole(vdev)))?;
        self.spa.vdevs().change(change, at.tx)?;
        self.spa.config.lock().set_passive(vdev, false);
        Ok(())
    }
}

/// The configuration's entry in place of a removed vdev.
fn hole(vdev: u64) -> NvList {
    let mut hole = NvList::new();
    hole.add("type", "hole").add("id", vdev).add("guid", 0_u64);
    for name in ["whole_disk", "metaslab_array", "metaslab_shift", "ashift", "asize", "is_log"] {
        hole.add(name, 0_u64);
    }
    hole.add("is_hole", 1_u64);
    hole
}
