//! Freeing the blocks that destroyed datasets and snapshots leave behind, a bounded number of blocks in each
//! txg ([`crate::dsl::write::freeing`]).

use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};

use super::Spa;
use super::WaitActivity;
use super::activity::{Activity, Due, SyncPoint};
use crate::dmu::Tx;
use crate::dsl::write::{freeing, names};
use crate::error::Result;
use crate::memory::Limit;

/// The activity.
#[derive(Debug)]
pub(super) struct Freeing {
    /// Blocks wait to be freed, and the last txg could free some.
    waiting: AtomicBool,
    /// Nothing is freed: a list cannot be read, or is replaced by a rebuild.
    stopped: AtomicBool,
}

impl Default for Freeing {
    fn default() -> Self {
        // The first txg looks.
        Self { waiting: AtomicBool::new(true), stopped: AtomicBool::new(false) }
    }
}

impl Freeing {
    /// Whether blocks may wait to be freed.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) && !self.stopped.load(Ordering::Relaxed)
    }

    /// Frees nothing while `stopped`.
    pub(super) fn stop(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Relaxed);
    }

    /// Sync tasks of this txg may have left blocks to be freed.
    pub(super) fn look_again(&self) {
        self.waiting.store(true, Ordering::Relaxed);
    }
}

impl Activity for Freeing {
    fn is_due(&self, _: &Spa) -> Due {
        if self.is_waiting() { Due::Soon } else { Due::No }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        let at = spa.datasets.at(tx, spa);
        match moment {
            SyncPoint::BeforeTasks => {
                freeing::process_deferred(&at)?;
                let freed = freeing::process(&at, spa.limits().get(Limit::AsyncBlockMax))?;
                self.waiting.store(freed.count > 0, Ordering::Relaxed);
                // The rest waits for a rebuild: reading the list again in each txg would find the same.
                if let Some(why) = freed.unreadable {
                    self.stop(true);
                    spa.reports().report_pool("ereport.fs.zfs.data", &format!("freeing has stopped: {why}"));
                }
            }
            SyncPoint::AfterTasks if self.is_waiting() => {
                self.waiting.store(freeing::is_waiting(&at)?, Ordering::Relaxed);
            }
            _ => {}
        }
        Ok(())
    }

    fn left(&self, spa: &Spa, work: WaitActivity) -> Result<Option<u64>> {
        if work != WaitActivity::Free || self.stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let at = spa.datasets.view();
        // A pool of an old version has no directory for that space.
        let bytes = names::free_dir(&at).and_then(|dir| at.dir(dir)).map_or(0, |dir| dir.used_bytes);
        let has_trees = at.zap_word(MOS_DIRECTORY_OBJECT, mos::BPTREE_OBJ)?.is_some();
        Ok((bytes > 0 || has_trees).then_some(bytes))
    }
}
