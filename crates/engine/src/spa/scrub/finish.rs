//! The end of a scan.

use std::sync::atomic::Ordering;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::DslScan;
use zcommon::features::Feature;

use super::ScanFunc;
use crate::dsl::write::{Hooks as _, MosTx, scan_state};
use crate::error::Result;
use crate::spa::Spa;
use crate::spa::layout::config::{RESILVER_DEFER, edit, find};
use crate::spa::subjects::Scans;
use crate::vdev::label::settle_filled;
use crate::vdev::leaf::Leaf;

/// `dsl_scan_state_t`.
const FINISHED: u64 = 2;
const CANCELED: u64 = 3;

impl Scans<'_> {
    /// Ends the scan, `complete` or not (syncing context): restored txgs are removed from the leaves' DTLs,
    /// and this scan's log of errors becomes the current one.
    #[doc(alias = "dsl_scan_done")]
    pub(in crate::spa) fn finish(
        self,
        at: &MosTx<'_>,
        scan: &mut DslScan,
        func: ScanFunc,
        complete: bool,
    ) -> Result<()> {
        if scan.queue_obj != 0 {
            at.free_object(scan.queue_obj)?;
            scan.queue_obj = 0;
        }
        scan.flags &= !scan_state::PAUSED;
        scan.state = if complete { FINISHED } else { CANCELED };
        scan.end_time = at.seconds();
        if complete && func == ScanFunc::Scrub {
            at.zap_set(MOS_DIRECTORY_OBJECT, mos::LAST_SCRUBBED_TXG, scan.max_txg)?;
        }
        let details = format!("errors={}", self.spa.error_log().size(at)?);
        // Before others see that the scan has ended: they may look at the errors then.
        self.spa.error_log().rotate(at)?;
        scan_state::store(at, scan)?;
        self.spa.scanning.active.store(false, Ordering::Release);
        self.spa.scanning.forget_live(&self.spa.pool.env.memory);
        // Blocks that were written after the end of a range of dates may have been missed.
        // Those that an earlier import could not restore are not known.
        let is_ranged = func == ScanFunc::Scrub && self.spa.scanning.ranged.load(Ordering::Acquire);
        let is_whole = complete && !is_ranged && !self.spa.scanning.blind.swap(false, Ordering::AcqRel);
        // A scrub reads the MOS as of the txg before the one that began it, and does not know what leaves missed of that one.
        let until = match func {
            ScanFunc::Scrub => scan.max_txg.saturating_sub(1),
            ScanFunc::Resilver => scan.max_txg,
        };
        // A scan does not meet blocks that were freed and belong to the checkpoint: leaves may lack these still.
        if is_whole && !at.active(Feature::ZpoolCheckpoint) {
            // Otherwise a flush that fails at the end of this txg could lose what the leaves then have for their DTLs.
            let next = at.tx.txg().max(until.saturating_add(1));
            settle_filled(&self.spa.pool.zio.tree(), &*self.spa.pool.env.executor, next);
            excise(self.spa, scan.min_txg, until);
        }
        self.spa.scanning.forget_failed();
        self.spa.scanning.pass.lock().paused_at = 0;
        // A leaf that missed something since the scan began, or was away meanwhile, gets another one.
        *self.spa.scanning.kept.lock() =
            self.mendable().filter(|(_, newest)| !complete || is_whole && *newest <= until);
        self.undefer_resilvers(at, scan.errors)?;
        let what = if complete { "scan done" } else { "scan cancelled" };
        self.spa.log(what, "", 0, &details, at.tx)?;
        let word = if complete { "finish" } else { "abort" };
        self.spa.reports().notify(&format!("{}_{word}", if complete { func.event() } else { "scrub" }));
        Ok(())
    }

    /// Removes the marks of these leaves' resilver from the configuration.
    #[doc(alias("vdev_resilver_txg", "vdev_rebuild_txg"))]
    pub(in crate::spa) fn note_whole(self, leaves: &[u64]) {
        if leaves.is_empty() {
            return;
        }
        self.spa.config.lock().change_root(|root| {
            for guid in leaves {
                edit(root, *guid, &mut |leaf| {
                    for key in ["resilver_txg", "rebuild_txg"] {
                        leaf.remove(key);
                    }
                });
            }
        });
    }
}

/// Leaves that are there have the blocks born in `(after, until]`, but for those that could not be read or written.
/// A leaf that missed something since the scan began is left as it is: another scan is due.
#[doc(alias("vdev_dtl_reassess", "vdev_dtl_should_excise"))]
fn excise(spa: &Spa, after: u64, until: u64) {
    let mut failed = spa.scanning.failed.lock().clone();
    // Copies of a removal under way are no blocks yet: a leaf that missed some still lacks them.
    failed.append(&mut spa.removal().copied_in());
    let unserved = spa.scanning.unserved.lock().clone();
    let root = spa.config.lock().root().clone();
    // OpenZFS marks leaves that the scan has not known from its beginning.
    let waits = |leaf: &Leaf| find(&root, leaf.guid).is_some_and(|leaf| leaf.contains(RESILVER_DEFER));
    let mut whole = Vec::new();
    for leaf in spa.pool.zio.tree().leaves() {
        let newest = leaf.dtl.read().ranges().last().map(|range| range.1);
        let is_known = leaf.takes_resilver() && !waits(leaf);
        if is_known && newest.is_some_and(|end| end <= until.saturating_add(1)) {
            let lacks = unserved.get(&leaf.guid).map(|more| &failed | more);
            let lacks = lacks.as_ref().unwrap_or(&failed);
            leaf.has_again(after.saturating_add(1), until.saturating_add(1), lacks);
            if leaf.dtl.read().is_empty() {
                whole.push(leaf.guid);
            }
        }
    }
    spa.scans().note_whole(&whole);
}
