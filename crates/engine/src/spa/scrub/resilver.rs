//! When a resilver is due: a leaf that is there lacks blocks.

use super::ScanFunc;
use crate::spa::Spa;

impl Spa {
    /// The txgs that leaves may lack which could have them now: after the first, up to the second.
    #[doc(alias = "vdev_resilver_needed")]
    pub(super) fn lacking(&self) -> Option<(u64, u64)> {
        let tree = self.pool.zio.tree();
        let mut span: Option<(u64, u64)> = None;
        for leaf in tree.leaves().filter(|leaf| leaf.is_writable()) {
            let dtl = leaf.dtl.read();
            if let (Some(first), Some(last)) = (dtl.ranges().first(), dtl.ranges().last()) {
                let (after, until) = (first.0.saturating_sub(1), last.1.saturating_sub(1));
                span = Some(span.map_or((after, until), |(a, u)| (a.min(after), u.max(until))));
            }
        }
        span
    }

    /// Whether the next txg begins a resilver.
    pub(super) fn is_resilver_due(&self) -> bool {
        let lacking = self.lacking();
        lacking.is_some()
            && lacking != *self.scanning.kept.lock()
            && !self.is_scanning()
            && !self.is_scrub_paused()
    }

    /// Begins a resilver when one is due and nothing else runs (syncing context).
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias = "SPA_ASYNC_RESILVER")]
    pub(super) fn resilver_if_due(&self, tx: &crate::dmu::Tx) -> crate::error::Result<()> {
        if !self.is_resilver_due() {
            return Ok(());
        }
        let at = self.datasets.at(tx, self);
        match crate::dsl::write::scan_state::running(&at)? {
            // A scrub that is paused waits for its administrator.
            Some(_) => Ok(()),
            None => self.begin_scan(&at, ScanFunc::Resilver),
        }
    }
}
