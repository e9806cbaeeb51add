//! Intent logs, emptied: a vdev that leaves must hold no block of a log, which is allocated long before it is written.

use std::sync::Arc;

use ondisk::ObjsetType;
use ondisk::objset::ZilHeader;

use crate::dmu::Objset;
use crate::dsl::props::names::dataset_name;
use crate::error::{Error, Kind, Result};
use crate::spa::Spa;
use crate::spa::import::drop_log;
use crate::spa::subjects::IntentLogs;
use crate::zil::Zil;
use crate::zio::Form;

/// Records wait for the key, or for a mount.
const WAITING: &str = "Mount encrypted datasets to replay logs.";

impl IntentLogs<'_> {
    /// Ends the chains of all intent logs. Logs in use begin a new one when they are next written.
    ///
    /// # Errors
    /// `Busy` when records wait to be replayed.
    #[doc(alias("spa_reset_logs", "zil_reset"))]
    pub(in crate::spa) fn reset(self) -> Result<()> {
        for log in self.spa.datasets.logs() {
            let suspended = log.suspend();
            log.resume();
            suspended?;
        }
        for objset in self.logged()? {
            reset_log(self.spa, &objset)?;
        }
        Ok(())
    }

    /// Names of the volumes whose intent logs from before the import wait for their replay. Those whose keys are not loaded are
    /// left out.
    pub fn volumes_to_replay(self) -> Result<Vec<String>> {
        let waits = |objset: &Arc<Objset>| {
            objset.phys.objset_type == ObjsetType::Zvol
                && objset.phys.zil_header.flags & ZilHeader::REPLAY_NEEDED != 0
                && self.spa.datasets.open(self.spa, objset.id).is_ok()
        };
        let waiting = self.logged()?.into_iter().filter(waits);
        waiting.map(|objset| dataset_name(&self.spa.pool.dsl, objset.id)).collect()
    }

    /// Object sets of file systems and volumes that name a log.
    pub(in crate::spa) fn logged(self) -> Result<Vec<Arc<Objset>>> {
        let mut found = Vec::new();
        for (number, phys) in self.spa.pool.dsl.heads(&self.spa.mos.view())? {
            if phys.bp.is_hole() {
                continue;
            }
            let Ok(objset) = Objset::open(&self.spa.pool.arc, number, &phys.bp, Form::NoKey) else {
                continue;
            };
            if !objset.phys.zil_header.log.is_hole() {
                found.push(objset);
            }
        }
        Ok(found)
    }
}

/// Resets a log whose dataset is not open.
fn reset_log(spa: &Spa, objset: &Arc<Objset>) -> Result<()> {
    if objset.phys.zil_header.flags & ZilHeader::REPLAY_NEEDED != 0 {
        return Err(Error::new(Kind::Busy, WAITING));
    }
    match spa.datasets.open(spa, objset.id) {
        Ok(dataset) if dataset.objset.has_log() => Ok(()),
        Ok(dataset) => {
            let log = Zil::open(&dataset.objset, spa.logs().host())?;
            let suspended =
                if log.needs_replay() { Err(Error::new(Kind::Busy, WAITING)) } else { log.suspend() };
            log.resume();
            log.close()?;
            suspended
        }
        Err(e) if e.kind() == Kind::KeyMissing => {
            let objset = Arc::clone(objset);
            spa.sync_task(move |spa, tx| drop_log(spa, tx, &objset, u64::MAX))
        }
        Err(e) => Err(e),
    }
}
