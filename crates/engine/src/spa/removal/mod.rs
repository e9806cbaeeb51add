//! Removal of top-level vdevs.
//!
//! The content of a disk or mirror is copied to the other top-level vdevs. Block pointers are not changed:
//! the vdev becomes an *indirect* one, with a mapping from its offsets to the copies.
//!
//! States: none → *scanning* (the vdev is closed to allocation, its allocated ranges are copied in ascending order) →
//! *finished* (the vdev is indirect), or *canceled* (the copies are freed, the vdev is open again). The state stands in the
//! MOS directory ([`state`]), the mapping and the births (which txg copied up to which offset) are objects that the vdev's
//! configuration names ([`objects`]).
//!
//! - [`start`] checks, closes the vdev, empties the intent logs, and writes the state.
//! - [`evacuate`] copies in syncing context, as much as one txg has time for, and appends to the mapping in the same txg.
//! - Frees go to both places: [`crate::metaslab`]'s `moved`. So only allocated space has copies.
//! - [`finish`] ends it: space maps, DTLs and ZAPs of the vdev go, its configuration becomes that of an indirect vdev.
//! - [`condense`] makes the mapping smaller when much of it has become obsolete.
//! - [`log_vdev`] removes log devices, which leave a hole, and [`spare`] spares and cache devices.
//!
//! Why power may be lost at any moment: a copy is written to space that the last uberblock knows as free, the mapping that
//! names it belongs to the same txg. The source is read until the vdev is indirect, in a txg of its own after the last copy
//! was made durable; its labels are cleared when that txg is on disk. The MOS directory and the configuration, which are read
//! before any mapping is known, are rewritten after the vdev was closed, so that they are on other vdevs.
//!
//! A device that fails while something is copied from or to it ends the removal: it is canceled.
//!
//! Lock order: the locks here are leaf locks.
//!
//! Format source: vdev_removal.c, vdev_indirect.c, vdev_indirect_mapping.c, vdev_indirect_births.c, OpenZFS 2.3.
//!
//! Differs from OpenZFS: copies are made in syncing context, not by a thread beside it, so no free can meet a copy that is
//! under way; ranges that nothing refers to are never copied with their neighbours.

mod condense;
pub(super) mod copy;
mod evacuate;
mod finish;
mod interrupted;
mod log_vdev;
mod logs;
mod objects;
mod spare;
mod start;
mod state;

pub(super) use interrupted::settle_interrupted;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use parking_lot::Mutex;

use super::Spa;
use super::activity::{Activity, Due, SyncPoint};
use super::copy_pass::{CopyPace, CopyPass};
use super::subjects::Removal;
use super::{ActivityCommand, WaitActivity};
use crate::dmu::Tx;
use crate::dsl::write::MosView;
use crate::error::Result;
use crate::memory::Limit;
use crate::metaslab::load_births;
use crate::vdev::indirect::MappingEntry;

/// In the configuration of a vdev that is being removed or was: the mapping's object.
#[doc(alias = "ZPOOL_CONFIG_INDIRECT_OBJECT")]
pub(super) const MAPPING: &str = "com.delphix:indirect_object";
/// The births' object.
#[doc(alias = "ZPOOL_CONFIG_INDIRECT_BIRTHS")]
pub(super) const BIRTHS: &str = "com.delphix:indirect_births";
/// The vdev that was removed before.
#[doc(alias = "ZPOOL_CONFIG_PREV_INDIRECT_VDEV")]
pub(super) const PREVIOUS: &str = "com.delphix:prev_indirect_vdev";
/// The vdev is being removed.
#[doc(alias = "ZPOOL_CONFIG_REMOVING")]
pub(super) const REMOVING: &str = "removing";

/// In-memory state of the removal and the condensing under way.
#[derive(Debug, Default)]
pub(super) struct Removing {
    /// Ranges are copied.
    active: AtomicBool,
    pace: CopyPace,
    /// A command begins a removal.
    starting: AtomicBool,
    /// A mapping is being condensed.
    condensing: AtomicBool,
    /// When entries of the mapping were condensed last, where the settings slow that down.
    condensed_at: Mutex<Option<Duration>>,
    /// Copies of the txg that is being written.
    copied: Mutex<Vec<(u64, MappingEntry)>>,
    /// Txgs that made copies since the import.
    births: Mutex<BTreeSet<u64>>,
}

impl Activity for Removing {
    fn is_due(&self, spa: &Spa) -> Due {
        let busy = self.active.load(Ordering::Acquire) || self.condensing.load(Ordering::Acquire);
        match busy {
            true if spa.limits().is_on(Limit::RemovalSuspend) => Due::Soon,
            true if spa.limits().get(Limit::CondenseDelay) > 0 => Due::Soon,
            true => Due::Now,
            false if spa.removal().to_condense().is_some() => Due::Soon,
            false => Due::No,
        }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if moment != SyncPoint::Last {
            return Ok(());
        }
        self.copied.lock().clear();
        spa.removal().evacuate(tx)?;
        spa.removal().condense(tx)
    }

    fn left(&self, spa: &Spa, work: WaitActivity) -> Result<Option<u64>> {
        if work != WaitActivity::Remove {
            return Ok(None);
        }
        let running = state::running(&MosView { mos: &spa.mos })?;
        Ok(running.map(|removal| removal.to_copy.saturating_sub(removal.copied)))
    }

    fn command(&self, spa: &Spa, work: WaitActivity, command: ActivityCommand) -> Option<Result<()>> {
        let cancels = work == WaitActivity::Remove && command == ActivityCommand::Cancel;
        cancels.then(|| spa.removal().cancel())
    }
}

impl Removal<'_> {
    /// Bytes that the removal under way has copied since this import.
    pub fn pass(self) -> Option<CopyPass> {
        self.spa.removing.active.load(Ordering::Acquire).then(|| self.spa.removing.pace.pass())
    }

    /// Whether a top-level vdev is being removed, or about to be.
    pub(super) fn is_active(self) -> bool {
        self.spa.removing.active.load(Ordering::Acquire) || self.spa.removing.starting.load(Ordering::Acquire)
    }

    /// Txgs that made copies for the removal under way: no scan finds the writes of these that a leaf missed
    /// before the removal ends.
    pub(super) fn copied_in(self) -> BTreeSet<u64> {
        self.spa.removing.births.lock().clone()
    }

    /// Continues a removal that an earlier import began.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    #[doc(alias("spa_restart_removal", "spa_remove_init", "spa_condense_init"))]
    pub(super) fn load(self) -> Result<()> {
        let view = MosView { mos: &self.spa.mos };
        if let Some(removal) = state::running(&view)? {
            let births = births_of(self.spa, removal.removing_vdev)?;
            *self.spa.removing.births.lock() = births;
            self.spa.removing.pace.begins(self.spa.pool.env.now(), removal.copied);
            self.spa.removing.active.store(true, Ordering::Release);
        }
        self.end_of_logs()?;
        let condensing = condense::state(&view)?.is_some();
        self.spa.removing.condensing.store(condensing, Ordering::Release);
        Ok(())
    }
}

fn births_of(spa: &Spa, vdev: u64) -> Result<BTreeSet<u64>> {
    let (_, births) = spa.removal().mapping_objects(vdev)?;
    let births = load_births(&spa.mos.view().object(births)?)?;
    Ok(births.iter().map(|birth| birth.txg).collect())
}
