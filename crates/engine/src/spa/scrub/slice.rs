//! The part of a scan that one txg does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ondisk::Blkptr;
use ondisk::pool::DslScan;
use parking_lot::Mutex;

use super::ScanFunc;
use super::walk::{Walked, walk};
use crate::dmu::Tx;
use crate::dsl::write::{freeing, scan_state};
use crate::error::{Error, Result};
use crate::memory::Limit;
use crate::spa::Spa;
use crate::traverse::reader::{Reader, Request};
use crate::traverse::{Stop, Visit, Visitor};
use crate::types::Bookmark;
use crate::vdev::config::AllocBias;
use crate::vdev::plan::Depth;
use crate::vdev::top::{Layout, Top};
use crate::vdev::tree::Tree;
use crate::zio::{Form, ReadOptions, ReadOutcome, written_in};

/// Bytes and blocks that may wait to be read in device order: a slice ends when they are.
const WAITING: (u64, usize) = (64 << 20, 1 << 14);
/// Repairs that may be under way: their blocks are in memory, and a shared device takes few of them at a time.
const MENDING: u64 = 64;
/// Blocks of a slice where no thread of the pool measures time.
const STEP: u64 = 256;
/// How often the time is looked at, in blocks.
const LOOK: u64 = 64;

/// Whether a top-level vdev is out of reach: its blocks are not lost, they can be read when it is back.
pub(super) fn is_any_vdev_away(tree: &Tree) -> bool {
    // Logs can be done without, and nothing is scanned there.
    let counts = |top: &Arc<Top>| !matches!(top.layout, Layout::Absent) && top.bias != AllocBias::Log;
    tree.tops().any(|top| counts(top) && !top.is_readable())
}

/// Whether something waits for the txg.
pub(super) fn is_txg_awaited(spa: &Spa) -> bool {
    spa.txgs.wanted()
        || spa.dirty.memory() > spa.limits().dirty_share(Limit::DirtySyncPercent)
        || spa.stop.load(Ordering::Acquire)
}

/// Results of the reads of a slice.
#[derive(Debug, Default)]
struct Found {
    errors: AtomicU64,
    failed: Mutex<BTreeSet<u64>>,
}

/// A slice of a scan.
pub(super) struct Slice<'a> {
    pub(crate) spa: &'a Spa,
    func: ScanFunc,
    tree: Arc<Tree>,
    reader: Arc<Reader>,
    found: Arc<Found>,
    started: Duration,
    least: Duration,
    most: Duration,
    waiting: (u64, usize),
    met: u64,
    over: bool,
    examined: u64,
    skipped: u64,
    mended_before: u64,
}

impl<'a> Slice<'a> {
    fn new(spa: &'a Spa, func: ScanFunc) -> Self {
        let found = Arc::<Found>::default();
        let (theirs, zio) = (Arc::clone(&found), Arc::clone(&spa.pool.zio));
        let told = Box::new(move |request: &Request, outcome: ReadOutcome| {
            if outcome.data.is_err() {
                theirs.errors.fetch_add(1, Ordering::Relaxed);
                theirs.failed.lock().extend(written_in(&zio, &request.bp));
            }
        });
        let read = ReadOptions {
            depth: Depth::All,
            form: Form::Physical,
            heal: true,
            // A scrub, too, restores blocks that leaves lack: its end removes their txgs from the DTLs.
            resilver: true,
            ..ReadOptions::default()
        };
        let least = match func {
            ScanFunc::Scrub => Limit::ScrubMinTime,
            ScanFunc::Resilver => Limit::ResilverMinTime,
        };
        Self {
            spa,
            func,
            tree: spa.pool.zio.tree(),
            reader: Reader::new(&spa.pool.zio, read, spa.limits().get(Limit::ScanInflight), told),
            found,
            started: spa.pool.env.clock.monotonic(),
            least: Duration::from_millis(spa.limits().get(least)),
            most: Duration::from_secs(spa.limits().get(Limit::TxgTimeout)),
            waiting: if spa.limits().is_on(Limit::ScanLegacy) { (0, 0) } else { WAITING },
            met: 0,
            over: false,
            examined: 0,
            skipped: 0,
            mended_before: spa.pool.zio.stats.mended_bytes.load(Ordering::Relaxed),
        }
    }

    /// Whether the slice has done its part.
    #[doc(alias = "dsl_scan_check_suspend")]
    pub(crate) fn is_over(&mut self) -> bool {
        self.over = self.over || self.spa.is_suspended() || self.has_worked_enough() || self.is_vdev_away();
        self.over
    }

    fn is_vdev_away(&self) -> bool {
        self.met.is_multiple_of(LOOK) && is_any_vdev_away(&self.tree)
    }

    fn has_worked_enough(&self) -> bool {
        if !self.spa.is_threaded() {
            return self.met >= STEP;
        }
        if !self.met.is_multiple_of(LOOK) {
            return false;
        }
        let elapsed = self.spa.pool.env.clock.monotonic().saturating_sub(self.started);
        elapsed >= self.most || elapsed >= self.least && is_txg_awaited(self.spa)
    }

    /// Whether the scan reads the block: a resilver reads only blocks that some leaf may lack.
    #[doc(alias = "dsl_scan_need_resilver")]
    fn needs(&self, bp: &Blkptr) -> bool {
        let birth = bp.physical_birth();
        // Blocks moved from a removed vdev may be anywhere. A distributed spare has a DTL, too.
        let lacks = |top: Arc<Top>| {
            top.is_removed() || top.leaves_and_spares().any(|leaf| leaf.dtl.read().contains(birth))
        };
        self.func == ScanFunc::Scrub
            || bp.dvas().any(|dva| self.tree.top(u64::from(dva.vdev)).is_some_and(lacks))
    }

    /// Has a block read, if it is the scan's.
    pub(crate) fn take(&mut self, bp: &Blkptr, at: Bookmark) {
        self.met += 1;
        self.examined = self.examined.saturating_add(bp.asize());
        if !self.needs(bp) {
            self.skipped = self.skipped.saturating_add(bp.asize());
            return;
        }
        let request = Request { bp: *bp, at, start: 0, end: 0 };
        let (bytes, blocks) = self.waiting;
        self.reader.push_within(request, bytes, blocks);
        let zio = &self.spa.pool.zio;
        if zio.stats.mending.load(Ordering::Relaxed) > MENDING {
            // The device has work meanwhile.
            zio.wait_mending(MENDING / 2);
        }
    }

    /// Waits for all reads and repairs, and adds the slice's progress to the state.
    fn finish(self, scan: &mut DslScan) {
        let zio = &self.spa.pool.zio;
        self.reader.drain(|_| {});
        zio.wait_mended();
        let mended = zio.stats.mended_bytes.load(Ordering::Relaxed).saturating_sub(self.mended_before);
        scan.examined = scan.examined.saturating_add(self.examined);
        scan.skipped = scan.skipped.saturating_add(self.skipped);
        scan.processed = scan.processed.saturating_add(mended);
        scan.errors = scan.errors.saturating_add(self.found.errors.load(Ordering::Relaxed));
        self.spa.scanning.failed.lock().append(&mut self.found.failed.lock());
        let mut pass = self.spa.scanning.pass.lock();
        pass.examined = pass.examined.saturating_add(self.examined);
        pass.issued = pass.issued.saturating_add(self.examined.saturating_sub(self.skipped));
    }
}

impl Visitor for Slice<'_> {
    fn block(&mut self, visit: &Visit<'_>) -> std::result::Result<(), Stop> {
        if !visit.bp.is_embedded() && !visit.bp.is_redacted() {
            self.take(visit.bp, visit.at);
        }
        Ok(())
    }

    fn unreadable(&mut self, _: Bookmark, _: &Error) {
        // The block itself was met and is read, all copies of it: that read reports damage.
    }

    fn pauses(&mut self, _: Bookmark) -> bool {
        self.is_over()
    }
}

impl Spa {
    /// Does a slice of the scan under way (syncing context).
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias = "dsl_scan_sync")]
    pub(super) fn scan_slice(&self, tx: &Tx) -> Result<()> {
        if !self.scanning.is_active() {
            return Ok(());
        }
        let at = self.datasets.at(tx, self);
        // Trees under destruction are in no dataset: they are freed first, or the scan would miss their indirect blocks. A destroy that
        // is stuck frees nothing and is not waited for.
        if self.freeing.is_waiting() && freeing::is_waiting(&at)? {
            self.scanning.stalled.store(false, Ordering::Release);
            return Ok(());
        }
        // The logs of dedup tables are flushed first, as in OpenZFS.
        if self.shared.is_flush_forced() {
            self.scanning.stalled.store(false, Ordering::Release);
            return Ok(());
        }
        let running = scan_state::running(&at)?.filter(|scan| scan.flags & scan_state::PAUSED == 0);
        let Some((mut scan, func)) = running.and_then(|scan| Some((scan, ScanFunc::of(&scan)?))) else {
            self.scanning.active.store(false, Ordering::Release);
            return Ok(());
        };
        if func == ScanFunc::Resilver {
            self.defer_resilvers(&at, &scan)?;
        }
        forget_tables(&mut scan);
        let mut slice = Slice::new(self, func);
        let walked = walk(&at, &mut scan, &mut slice)?;
        let met = slice.met;
        slice.finish(&mut scan);
        self.scanning.stalled.store(walked == Walked::Paused && met == 0, Ordering::Release);
        match walked {
            Walked::Paused => scan_state::store(&at, &scan),
            Walked::Ended => self.finish_scan(&at, &mut scan, func, true),
        }
    }
}

/// A scan that OpenZFS began may be about to read dedup tables first, and to skip their blocks later.
/// Everything is scanned here, so nothing is missed.
fn forget_tables(scan: &mut DslScan) {
    scan.ddt_class_max = 0;
    scan.ddt_bookmark = ondisk::pool::DdtBookmark { class: 1, ..ondisk::pool::DdtBookmark::default() };
}
