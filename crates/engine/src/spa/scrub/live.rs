//! The state of the scan under way in memory. It is ahead of the one on disk by the blocks that are [gathered](super::gathered)
//! and not yet read.
//!
//! States: *gathering* → (memory is full, the walk is over, or it is time to save the position) → *reading* → all are read: the
//! position is saved → gathering, or the end. After a crash or an export the scan continues from the position on disk, and
//! gathers the blocks after it again.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ondisk::pool::DslScan;

use super::{Scanning, gathered};
use crate::dsl::write::scan_moves::DatasetMove;
use crate::dsl::write::{MosTx, MosView, scan_state};
use crate::error::Result;
use crate::memory::{Limit, Memory};
use crate::spa::subjects::Scans;

/// The work of a scan at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The walk meets blocks.
    Gathering,
    /// Gathered blocks are read in the order of their places.
    #[doc(alias = "scn_clearing")]
    Reading,
}

/// A scan.
#[derive(Debug)]
pub(super) struct LiveScan {
    /// Position of the walk, and counters.
    pub(super) scan: DslScan,
    /// Datasets that wait for the walk, with the txg after which their blocks count.
    pub(super) queue: BTreeMap<u64, u64>,
    pub(super) phase: Phase,
    /// The walk is over.
    pub(super) walked: bool,
    /// Bytes read, as allocated.
    pub(super) issued: u64,
    /// When the position was saved.
    saved: Duration,
}

/// Progress of the scan under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanProgress {
    /// Its state: blocks up to its position were met, and not all of them read.
    pub scan: DslScan,
    /// Bytes that were read and checked, those of earlier imports included.
    #[doc(alias = "pss_issued")]
    pub issued: u64,
}

impl LiveScan {
    /// The scan as it is on disk.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub(super) fn load(at: &MosTx<'_>, scan: DslScan, now: Duration) -> Result<Self> {
        let (queue, issued) =
            (scan_state::load_queue(at, &scan)?, scan.examined.saturating_sub(scan.skipped));
        Ok(Self { scan, queue, phase: Phase::Gathering, walked: false, issued, saved: now })
    }

    /// Saves the position: all blocks before it have been read.
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias = "dsl_scan_sync_state")]
    pub(super) fn save(&mut self, at: &MosTx<'_>, now: Duration) -> Result<()> {
        self.saved = now;
        scan_state::store_queue(at, &self.scan, &self.queue)?;
        scan_state::store(at, &self.scan)
    }

    /// Whether the position was saved long ago.
    pub(super) fn is_save_due(&self, now: Duration, after: u64) -> bool {
        now.saturating_sub(self.saved) >= Duration::from_secs(after)
    }

    /// The progress to be shown.
    pub(super) fn progress(&self) -> ScanProgress {
        ScanProgress { scan: self.scan, issued: self.issued }
    }
}

impl Scanning {
    /// Blocks that wait to be read.
    pub(super) fn gathered(&self) -> &gathered::GatheredBlocks {
        &self.gathered
    }

    /// Forgets the state that is not on disk: the scan has ended, or begins again from there.
    pub(in crate::spa) fn forget_live(&self, memory: &Memory) {
        *self.live.lock() = None;
        *self.shown.lock() = None;
        self.gathered.clear(memory);
    }

    /// Datasets have changed: the scan in memory follows.
    pub(in crate::spa) fn moved(&self, moved: DatasetMove) -> Result<()> {
        let mut live = self.live.lock();
        let Some(live) = live.as_mut() else { return Ok(()) };
        moved.place(&mut live.scan);
        moved.queue(&mut live.queue)?;
        *self.shown.lock() = Some(live.progress());
        Ok(())
    }

    /// Changes the scan in memory, if there is one.
    pub(super) fn change_live(&self, change: impl FnOnce(&mut DslScan)) {
        if let Some(live) = self.live.lock().as_mut() {
            change(&mut live.scan);
            *self.shown.lock() = Some(live.progress());
        }
    }

    /// Shows a progress.
    pub(super) fn show(&self, progress: ScanProgress) {
        *self.shown.lock() = Some(progress);
    }
}

impl Scans<'_> {
    /// Progress of the scan under way; `None` when there is none.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn progress(self) -> Result<Option<ScanProgress>> {
        let Some(scan) = scan_state::running(&MosView { mos: &self.spa.mos })? else { return Ok(None) };
        let issued = scan.examined.saturating_sub(scan.skipped);
        let shown = self.spa.scanning.shown.lock().filter(|shown| shown.scan.start_time == scan.start_time);
        Ok(Some(shown.unwrap_or(ScanProgress { scan, issued })))
    }

    /// The scan under way, as it is in memory.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub(in crate::spa) fn running(self, at: &MosView<'_>) -> Result<Option<DslScan>> {
        let live = self.spa.scanning.live.lock().as_ref().map(|live| live.scan);
        Ok(scan_state::running(at)?.map(|scan| live.unwrap_or(scan)))
    }

    /// Bytes that the scan has read and checked.
    pub(super) fn issued(self, scan: &DslScan) -> u64 {
        let live = self.spa.scanning.live.lock().as_ref().map(|live| live.issued);
        live.unwrap_or_else(|| scan.examined.saturating_sub(scan.skipped))
    }

    /// Pauses the scan, or resumes it.
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    pub(super) fn set_paused(self, at: &MosTx<'_>, paused: bool) -> Result<()> {
        let change = |scan: &mut DslScan| {
            scan.flags &= !scan_state::PAUSED;
            scan.flags |= if paused { scan_state::PAUSED } else { 0 };
        };
        if let Some(mut scan) = scan_state::running(at)? {
            change(&mut scan);
            scan_state::store(at, &scan)?;
        }
        self.spa.scanning.change_live(change);
        self.spa.scanning.active.store(!paused, Ordering::Release);
        Ok(())
    }

    /// A block was freed: a scan that has met it does not read it any more.
    pub(in crate::spa) fn freed(self, bp: &ondisk::Blkptr) {
        self.spa.scanning.gathered.forget(bp);
    }

    /// Maximum bytes that gathered blocks of this pool may take: a twentieth of its data, as in OpenZFS.
    pub(super) fn gathered_most(self) -> u64 {
        (self.allocated_bytes() / 20).max(LEAST)
    }

    /// Seconds between two saved positions.
    pub(super) fn save_interval(self) -> u64 {
        self.spa.limits().get(Limit::ScanCheckpoint)
    }
}

/// Bytes that gathered blocks may take in a pool of any size.
const LEAST: u64 = 1 << 20;
