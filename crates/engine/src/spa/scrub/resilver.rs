//! When a resilver is due: a leaf that is there lacks blocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvpair::{NvList, NvValue};
use ondisk::pool::DslScan;
use zcommon::features::Feature;

use super::ScanFunc;
use crate::dmu::Tx;
use crate::dsl::write::{Hooks as _, MosTx, scan_state};
use crate::error::Result;
use crate::memory::Limit;
use crate::spa::Spa;
use crate::spa::layout::config::{RESILVER_DEFER, edit, find};
use crate::spa::subjects::Scans;
use crate::vdev::leaf::{Dtl, Leaf};
use crate::vdev::top::Top;
use crate::vdev::tree::Tree;

/// No leaf waits for a resilver any more.
fn unmark(vdev: &mut NvList) {
    vdev.remove(RESILVER_DEFER);
    if let Some(NvValue::ListArray(children)) = vdev.get_mut("children") {
        children.iter_mut().for_each(unmark);
    }
}

/// Whether a leaf lacks copies that a removal has made. Their blocks are older, as old as the pool perhaps.
///
/// Differs from OpenZFS: its resilver visits only blocks born in the txgs that the leaf lacks.
fn lacks_copies(tree: &Tree, dtl: &Dtl) -> bool {
    let mut mappings = tree.tops().filter_map(|top| top.mapping());
    mappings.any(|mapping| mapping.births().iter().any(|birth| dtl.contains(birth.txg)))
}

/// Whether the leaf is a distributed spare that has rows on a disk that is out of use: it misses writes in every txg.
pub(in crate::spa) fn is_cut(tree: &Tree, leaf: &Leaf) -> bool {
    let has = |top: &Arc<Top>| top.leaves_and_spares().any(|spare| spare.guid == leaf.guid);
    leaf.is_distributed() && tree.tops().any(|top| top.lacks_child() && has(top))
}

/// Whether a resilver has done so little that it begins anew for a leaf that has joined.
#[doc(alias = "zfs_resilver_defer_percent")]
fn is_young(scan: &DslScan, issued: u64, percent: u64) -> bool {
    percent >= 100 || issued < scan.to_examine.saturating_sub(scan.skipped) / 100 * percent
}

impl Scans<'_> {
    /// Marks leaves that lack more than the resilver under way knows of: they get another one when it has ended. The feature
    /// is active as long as leaves are marked.
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias("vdev_defer_resilver", "dsl_scan_assess_vdev"))]
    pub(super) fn defer_resilvers(self, at: &MosTx<'_>, scan: &DslScan) -> Result<()> {
        if !may_defer(self.spa) {
            return Ok(());
        }
        let lacks_more = |leaf: &&Arc<Leaf>| {
            let newest = leaf.dtl.read().ranges().last().map(|range| range.1);
            leaf.takes_resilver() && newest.is_some_and(|end| end > scan.max_txg.saturating_add(1))
        };
        let tree = self.spa.pool.zio.tree();
        let late: Vec<u64> = tree.leaves().filter(lacks_more).map(|leaf| leaf.guid).collect();
        let is_new = !late.is_empty() && {
            let mut config = self.spa.config.lock();
            let unmarked =
                |guid: &&u64| find(config.root(), **guid).is_some_and(|leaf| !leaf.contains(RESILVER_DEFER));
            let late: Vec<u64> = late.iter().filter(unmarked).copied().collect();
            if !late.is_empty() {
                config.change_root(|root| {
                    for guid in &late {
                        edit(root, *guid, &mut |leaf| {
                            leaf.add(RESILVER_DEFER, NvValue::Boolean);
                        });
                    }
                });
            }
            !late.is_empty()
        };
        match is_new && !at.active(Feature::ResilverDefer) {
            true => at.count(Feature::ResilverDefer, 1),
            false => Ok(()),
        }
    }

    /// As [`Scans::defer_resilvers`], in a txg in which scans make no progress (`zfs_scan_suspend_progress`).
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    pub(super) fn defer_while_suspended(self, tx: &Tx) -> Result<()> {
        let at = self.spa.datasets.at(tx, self.spa);
        let running = self.running(&at)?.filter(|scan| scan.flags & scan_state::PAUSED == 0);
        match running.filter(|scan| ScanFunc::of(scan) == Some(ScanFunc::Resilver)) {
            Some(scan) => self.defer_resilvers(&at, &scan),
            None => Ok(()),
        }
    }

    /// A scan has ended: the turn of the leaves that waited for that has come.
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias = "vdev_clear_resilver_deferred")]
    pub(super) fn undefer_resilvers(self, at: &MosTx<'_>, errors: u64) -> Result<()> {
        if !at.active(Feature::ResilverDefer) {
            return Ok(());
        }
        self.spa.config.lock().change_root(unmark);
        at.count(Feature::ResilverDefer, -1)?;
        match self.lacking() {
            Some(_) => self.spa.log("starting deferred resilver", "", 0, &format!("errors={errors}"), at.tx),
            None => Ok(()),
        }
    }

    /// The txgs that leaves may lack which could have them now: after the first, up to the second.
    #[doc(alias = "vdev_resilver_needed")]
    pub(in crate::spa) fn lacking(self) -> Option<(u64, u64)> {
        lacking_of(self.spa, &|_| true)
    }

    /// The same of leaves that a resilver can make whole.
    pub(super) fn mendable(self) -> Option<(u64, u64)> {
        let tree = self.spa.pool.zio.tree();
        lacking_of(self.spa, &|leaf| !is_cut(&tree, leaf))
    }

    /// The newest txg that a leaf lacks and that is on disk. A distributed spare that misses writes in every txg lacks those
    /// of the open ones, too: nothing waits for them.
    pub(in crate::spa) fn until_synced(self, tree: &Tree, leaf: &Leaf, newest: u64) -> u64 {
        if is_cut(tree, leaf) { newest.min(self.spa.txgs.synced()) } else { newest }
    }

    /// Whether the next txg begins a resilver.
    pub(in crate::spa) fn is_resilver_due(self) -> bool {
        let lacking = self.mendable();
        lacking.is_some()
            && lacking != *self.spa.scanning.kept.lock()
            && !self.is_scanning()
            && !self.spa.rebuilds().is_rebuilding()
    }

    /// Whether leaves still lack blocks that the last scan could not read or write: none begins by itself until something changes.
    pub fn is_left_incomplete(self) -> bool {
        let lacking = self.mendable();
        let has_checkpoint = self.spa.features.is_active(Feature::ZpoolCheckpoint);
        lacking.is_some()
            && lacking == *self.spa.scanning.kept.lock()
            && !self.is_scanning()
            && !has_checkpoint
    }

    /// A device is back while a scan is under way, which may have passed blocks that it lacks: the end of the scan does not
    /// make it whole, and a resilver begins anew, as for a leaf that joins.
    #[doc(alias = "dsl_scan_assess_vdev")]
    pub(in crate::spa) fn assess_returned(self, leaf: &Leaf, tx: &Tx) {
        let newest = leaf.dtl.read().ranges().last().map(|range| range.1);
        let running = self.running(&self.spa.datasets.at(tx, self.spa)).ok().flatten();
        let (Some(newest), Some(scan)) = (newest, running) else { return };
        if newest <= scan.max_txg.saturating_add(1) {
            leaf.miss(tx.txg());
        }
        if ScanFunc::of(&scan) == Some(ScanFunc::Resilver) {
            self.restart_resilver_at(tx.txg().saturating_add(1));
        }
    }

    /// Makes a resilver begin for leaves whose DTLs are as they were at the end of the last scan, which was canceled or could not
    /// read or write some blocks.
    #[doc(alias = "dsl_scan_assess_vdev")]
    pub(in crate::spa) fn assess_again(self) {
        *self.spa.scanning.kept.lock() = None;
    }

    /// Makes a resilver begin with the txg `begins` for a leaf that joined the pool.
    #[doc(alias = "dsl_scan_restart_resilver")]
    pub(in crate::spa) fn restart_resilver_at(self, begins: u64) {
        self.spa.scanning.restart.fetch_max(begins, Ordering::AcqRel);
        self.assess_again();
    }

    /// Begins a resilver when one is due (syncing context). For a leaf that joined the pool a scrub under way is given up,
    /// and so is a resilver, unless the pool may defer the new one (`resilver_defer`): leaves that lack more than the
    /// resilver under way knows of get another one when it has ended.
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias = "SPA_ASYNC_RESILVER")]
    pub(super) fn resilver_if_due(self, tx: &Tx) -> Result<()> {
        if self.spa.rebuilds().is_rebuilding() {
            return Ok(());
        }
        let restart = self.spa.scanning.restart.load(Ordering::Acquire);
        let joined = restart != 0 && restart <= tx.txg();
        if joined {
            self.spa.scanning.restart.store(0, Ordering::Release);
        } else if !self.is_resilver_due() {
            return Ok(());
        }
        // Writes that a leaf missed in this txg, or may miss in an open one, can't be read yet.
        let Some((_, until)) = self.lacking() else { return Ok(()) };
        if until >= tx.txg() {
            return Ok(());
        }
        let at = self.spa.datasets.at(tx, self.spa);
        match self.running(&at)? {
            // The txg of an import that claims logs: the reconstruction continues in the next one.
            None if self.spa.rebuilds().has_record(&at) => Ok(()),
            None => self.begin(&at, ScanFunc::Resilver),
            Some(mut scan) if joined => match ScanFunc::of(&scan) {
                Some(ScanFunc::Resilver)
                    if may_defer(self.spa)
                        && !self.spa.scanning.blind.load(Ordering::Acquire)
                        && !is_young(
                            &scan,
                            self.issued(&scan),
                            self.spa.limits().get(Limit::ResilverDefer),
                        ) =>
                {
                    Ok(())
                }
                Some(func) => {
                    if func == ScanFunc::Resilver && may_defer(self.spa) {
                        let details = format!("errors={}", scan.errors);
                        self.spa.log("starting deferred resilver", "", 0, &details, at.tx)?;
                    }
                    self.finish(&at, &mut scan, func, false)?;
                    self.begin(&at, ScanFunc::Resilver)
                }
                None => Ok(()),
            },
            // A paused scrub gives way: the disk would lack its blocks until an administrator resumes it.
            Some(mut scan) if scan.flags & scan_state::PAUSED != 0 => {
                let func = ScanFunc::of(&scan).unwrap_or(ScanFunc::Scrub);
                self.finish(&at, &mut scan, func, false)?;
                self.begin(&at, ScanFunc::Resilver)
            }
            Some(_) => Ok(()),
        }
    }
}

fn may_defer(spa: &Spa) -> bool {
    spa.features.is_enabled(Feature::ResilverDefer)
}

fn lacking_of(spa: &Spa, counts: &dyn Fn(&Leaf) -> bool) -> Option<(u64, u64)> {
    let tree = spa.pool.zio.tree();
    let mut span: Option<(u64, u64)> = None;
    for leaf in tree.leaves().filter(|leaf| leaf.takes_resilver() && counts(leaf)) {
        let dtl = leaf.dtl.read();
        if let (Some(first), Some(last)) = (dtl.ranges().first(), dtl.ranges().last()) {
            let after = if lacks_copies(&tree, &dtl) { 0 } else { first.0.saturating_sub(1) };
            let until = spa.scans().until_synced(&tree, leaf, last.1.saturating_sub(1));
            span = Some(span.map_or((after, until), |(a, u)| (a.min(after), u.max(until))));
        }
    }
    span
}
