//! The part of a scan that one txg does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ondisk::Blkptr;
use ondisk::pool::DslScan;
use parking_lot::Mutex;

use super::gathered::GatherResult;
use super::live::{LiveScan, Phase, ScanProgress};
use super::walk::{MOS, Walked, walk};
use super::{ScanFunc, ScanPass};
use crate::dmu::Tx;
use crate::dsl::write::{MosTx, freeing, scan_state};
use crate::error::{Error, Result};
use crate::memory::Limit;
use crate::spa::Spa;
use crate::spa::pacing::JobTurn;
use crate::spa::subjects::Scans;
use crate::traverse::reader::{Reader, Request};
use crate::traverse::{Stop, Visit, Visitor};
use crate::types::Bookmark;
use crate::vdev::config::AllocBias;
use crate::vdev::plan::Depth;
use crate::vdev::top::{Top, VdevLayout};
use crate::vdev::tree::Tree;
use crate::zio::{Form, ReadOptions, ReadOutcome, written_in};

/// Bytes and blocks met by the walk that are read in the same slice and may wait to be read in device order.
const WAITING: (u64, usize) = (64 << 20, 1 << 14);
/// The same of gathered blocks, which are sorted already: enough for the devices to have work.
const SORTED: (u64, usize) = (8 << 20, 1 << 11);
/// Repairs that may be under way, and bytes of their blocks, which are in memory: a shared device takes few of them at a time,
/// and the txg waits for all. A device that the scan has for itself finds neighbours to join among them.
const MENDING: (u64, u64) = (128, 32 << 20);
/// Blocks of a slice where no thread of the pool measures time.
const STEP: u64 = 256;
/// How often time and memory are looked at, in blocks, and how often beside others.
const LOOK: u64 = 64;
const SHARED_LOOK: u64 = 16;

/// Whether a top-level vdev is out of reach: its blocks are not lost, they can be read when it is back.
pub(super) fn is_any_vdev_away(tree: &Tree) -> bool {
    // Logs can be done without, and nothing is scanned there.
    let counts = |top: &Arc<Top>| !matches!(top.layout, VdevLayout::Absent) && top.bias != AllocBias::Log;
    tree.tops().any(|top| counts(top) && !top.is_readable())
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
    is_sorted: bool,
    turn: JobTurn,
    txg: u64,
    /// Bytes that gathered blocks may take.
    gathered_most: u64,
    met: u64,
    /// Number of blocks met at which [`Slice::look`] looks.
    next_look: u64,
    over: bool,
    /// Gathered blocks take all the memory that they may.
    full: bool,
    counts: Counts,
    /// Progress as of the start, or as of the last [`Slice::settle`].
    before: ScanProgress,
    pass_before: (u64, u64),
    /// As [`ScanPass::is_typical`].
    is_typical: bool,
    mended_before: u64,
}

/// Bytes, as allocated.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    examined: u64,
    skipped: u64,
    issued: u64,
}

impl<'a> Slice<'a> {
    fn new(spa: &'a Spa, func: ScanFunc, txg: u64, before: ScanProgress) -> Self {
        let found = Arc::<Found>::default();
        let (theirs, zio) = (Arc::clone(&found), Arc::clone(&spa.pool.zio));
        let told = Box::new(move |request: &Request, outcome: ReadOutcome| {
            if outcome.data.is_err() {
                theirs.errors.fetch_add(1, Ordering::Relaxed);
                theirs.failed.lock().extend(written_in(&zio, &request.bp));
            }
        });
        let depth = match func {
            ScanFunc::Scrub => Depth::All,
            ScanFunc::Resilver => Depth::Lacking,
        };
        let read = ReadOptions {
            depth,
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
            is_sorted: !spa.limits().is_on(Limit::ScanLegacy),
            turn: spa.jobs().turn(),
            txg,
            gathered_most: spa.scans().gathered_most(),
            met: 0,
            next_look: 0,
            over: false,
            full: false,
            counts: Counts::default(),
            before,
            pass_before: {
                let pass = spa.scanning.pass.lock();
                (pass.examined, pass.issued)
            },
            is_typical: spa.limits().is_on(Limit::ScanLegacy),
            mended_before: spa.pool.zio.stats.mended_bytes.load(Ordering::Relaxed),
        }
    }

    /// Whether the slice has done its part.
    #[doc(alias = "dsl_scan_check_suspend")]
    fn is_over(&mut self) -> bool {
        self.look();
        let has_met_enough = !self.spa.is_threaded() && self.met >= STEP;
        self.over = self.over || self.spa.is_suspended() || has_met_enough;
        self.over
    }

    /// Looks at the time, the vdevs and the memory now and then.
    fn look(&mut self) {
        if self.met < self.next_look {
            return;
        }
        let spa = self.spa;
        let (reader, zio) = (&self.reader, &spa.pool.zio);
        spa.jobs().pace(&mut self.turn, || {
            reader.drain(|_| {});
            zio.wait_mended();
        });
        self.next_look = self.met
            + match self.met {
                0 => 1,
                _ if spa.pacing.is_shared() => SHARED_LOOK,
                _ => LOOK,
            };
        self.full |= spa.scanning.gathered().charge(&spa.pool.env.memory, self.gathered_most);
        self.over =
            self.over || is_any_vdev_away(&self.tree) || spa.is_threaded() && self.has_worked_enough();
        self.show();
    }

    fn has_worked_enough(&self) -> bool {
        let elapsed = self.now().saturating_sub(self.started);
        elapsed >= self.most || elapsed >= self.least && self.spa.jobs().is_txg_awaited()
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

    /// Whether the walk pauses: the slice is over, or gathered blocks have to be read first.
    pub(crate) fn is_paused(&mut self) -> bool {
        self.is_over() || self.full
    }

    /// Takes a block that the walk has met, if it is the scan's: it is gathered, or read within the slice.
    fn take(&mut self, bp: &Blkptr, at: Bookmark) {
        // Blocks of the MOS are free after the next txg often, and are read as of the last one; those of this txg may change
        // their place in it.
        let waits = self.is_sorted && at.objset != MOS && bp.physical_birth() < self.txg;
        if !waits || !self.needs(bp) {
            return self.take_now(bp, at);
        }
        match self.spa.scanning.gathered().add(bp, at) {
            GatherResult::Unsorted => self.take_now(bp, at),
            GatherResult::New => self.count(bp.asize(), 0, 0),
            GatherResult::Known => self.count(0, 0, 0),
        }
    }

    /// Has a block read within the slice, if it is the scan's.
    pub(crate) fn take_now(&mut self, bp: &Blkptr, at: Bookmark) {
        let bytes = bp.asize();
        if !self.needs(bp) {
            return self.count(bytes, bytes, 0);
        }
        self.count(bytes, 0, bytes);
        self.read(Request { bp: *bp, at, start: 0, end: 0, lead: false }, self.limit(WAITING));
    }

    /// Reads gathered blocks until the slice is over; returns whether none is left.
    #[doc(alias = "scan_io_queues_run")]
    fn read_gathered(&mut self) -> bool {
        let (spa, reader) = (self.spa, Arc::clone(&self.reader));
        loop {
            if self.is_over() {
                return spa.scanning.gathered().is_empty();
            }
            let Some((bp, at)) = spa.scanning.gathered().next(|vdev| reader.load(vdev)) else { return true };
            self.is_typical = true;
            self.count(0, 0, bp.dva(0).map_or(0, |dva| dva.asize));
            self.read(Request { bp, at, start: 0, end: 0, lead: true }, self.limit(SORTED));
        }
    }

    fn limit(&self, sorted: (u64, usize)) -> (u64, usize) {
        if self.is_sorted { sorted } else { (0, 0) }
    }

    fn read(&self, request: Request, (bytes, blocks): (u64, usize)) {
        self.reader.push_within(request, bytes, blocks);
        let zio = &self.spa.pool.zio;
        let (repairs, bytes) = MENDING;
        if zio.is_mending(repairs, bytes) {
            // The device has work meanwhile.
            zio.wait_mending(repairs / 2, bytes / 2);
        }
    }

    /// Counts a block: bytes met, bytes that need not be read, bytes read.
    fn count(&mut self, examined: u64, skipped: u64, issued: u64) {
        let counts = &mut self.counts;
        counts.examined = counts.examined.saturating_add(examined);
        counts.skipped = counts.skipped.saturating_add(skipped);
        counts.issued = counts.issued.saturating_add(issued);
        self.met += 1;
    }

    fn show(&self) {
        let mut now = self.before;
        now.add(&self.counts);
        now.scan.processed = now.scan.processed.saturating_add(self.mended());
        self.spa.scanning.show(now);
        let mut pass = self.spa.scanning.pass.lock();
        (pass.examined, pass.issued) = self.pass_before;
        pass.add(&self.counts);
        pass.is_typical |= self.is_typical;
    }

    fn mended(&self) -> u64 {
        self.spa.pool.zio.stats.mended_bytes.load(Ordering::Relaxed).saturating_sub(self.mended_before)
    }

    /// Waits for all reads and repairs, and adds the progress since the last call to the state.
    fn settle(&mut self, live: &mut LiveScan) {
        let zio = &self.spa.pool.zio;
        self.reader.drain(|_| {});
        zio.wait_mended();
        self.counts.skipped = self.counts.skipped.saturating_add(self.spa.scanning.gathered().take_freed());
        let mut now = live.progress();
        now.add(&self.counts);
        now.scan.processed = now.scan.processed.saturating_add(self.mended());
        now.scan.errors = now.scan.errors.saturating_add(self.found.errors.swap(0, Ordering::Relaxed));
        (live.scan, live.issued) = (now.scan, now.issued);
        self.spa.scanning.failed.lock().append(&mut self.found.failed.lock());
        self.show();
        self.pass_before = {
            let pass = self.spa.scanning.pass.lock();
            (pass.examined, pass.issued)
        };
        self.counts = Counts::default();
        self.mended_before = zio.stats.mended_bytes.load(Ordering::Relaxed);
        self.before = live.progress();
        self.spa.scanning.show(self.before);
        self.spa.scanning.gathered().charge(&self.spa.pool.env.memory, u64::MAX);
    }

    /// Gathers and reads by turns until the slice or the scan is over.
    fn run(&mut self, at: &MosTx<'_>, live: &mut LiveScan) -> Result<Walked> {
        loop {
            if live.phase == Phase::Gathering {
                let walked = walk(at, live, self)?;
                live.walked = walked == Walked::Ended;
                if walked == Walked::Paused && !std::mem::take(&mut self.full) {
                    return Ok(Walked::Paused);
                }
                live.phase = Phase::Reading;
                if live.walked && !self.spa.scanning.gathered().is_empty() {
                    self.settle(live);
                    self.begin_pass();
                }
            }
            if !self.read_gathered() {
                return Ok(Walked::Paused);
            }
            self.settle(live);
            if live.walked {
                return Ok(Walked::Ended);
            }
            live.phase = Phase::Gathering;
            live.save(at, self.now())?;
        }
    }

    /// Only reading is left: its pace tells how long it takes.
    #[doc(alias = "spa_scan_stat_init")]
    fn begin_pass(&mut self) {
        let start = self.spa.pool.env.now();
        *self.spa.scanning.pass.lock() = ScanPass { start, ..ScanPass::default() };
        self.pass_before = (0, 0);
    }

    fn now(&self) -> Duration {
        self.spa.pool.env.clock.monotonic()
    }
}

impl ScanProgress {
    fn add(&mut self, counts: &Counts) {
        self.scan.examined = self.scan.examined.saturating_add(counts.examined);
        self.scan.skipped = self.scan.skipped.saturating_add(counts.skipped);
        self.issued = self.issued.saturating_add(counts.issued);
    }
}

impl ScanPass {
    fn add(&mut self, counts: &Counts) {
        self.examined = self.examined.saturating_add(counts.examined);
        self.issued = self.issued.saturating_add(counts.issued);
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
        self.is_paused()
    }
}

impl Scans<'_> {
    /// Does a slice of the scan under way (syncing context).
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias = "dsl_scan_sync")]
    pub(super) fn slice(self, tx: &Tx) -> Result<()> {
        if !self.spa.scanning.is_active() {
            return Ok(());
        }
        let at = self.spa.datasets.at(tx, self.spa);
        // Trees under destruction are in no dataset: they are freed first, or the scan would miss their indirect blocks. A
        // destroy that is stuck frees nothing and is not waited for.
        if self.spa.freeing.is_waiting() && freeing::is_waiting(&at)? {
            self.spa.scanning.stalled.store(false, Ordering::Release);
            return Ok(());
        }
        // The logs of dedup tables are flushed first, as in OpenZFS.
        if self.spa.shared.is_flush_forced() {
            self.spa.scanning.stalled.store(false, Ordering::Release);
            return Ok(());
        }
        let running = scan_state::running(&at)?.filter(|scan| scan.flags & scan_state::PAUSED == 0);
        let Some((scan, func)) = running.and_then(|scan| Some((scan, ScanFunc::of(&scan)?))) else {
            self.spa.scanning.active.store(false, Ordering::Release);
            return Ok(());
        };
        let now = self.spa.pool.env.clock.monotonic();
        let live = self.spa.scanning.live.lock().take();
        let mut live = live.map_or_else(|| LiveScan::load(&at, scan, now), Ok)?;
        let done = scan_on(self.spa, &at, func, &mut live);
        if let Ok(Walked::Ended) = done {
            return self.finish(&at, &mut live.scan, func, true);
        }
        *self.spa.scanning.live.lock() = Some(live);
        done.map(|_| ())
    }
}

/// Does a slice of a scan.
fn scan_on(spa: &Spa, at: &MosTx<'_>, func: ScanFunc, live: &mut LiveScan) -> Result<Walked> {
    if func == ScanFunc::Resilver {
        spa.scans().defer_resilvers(at, &live.scan)?;
    }
    forget_tables(&mut live.scan);
    let mut slice = Slice::new(spa, func, at.tx.txg(), live.progress());
    let is_due = live.is_save_due(slice.now(), spa.scans().save_interval());
    if is_due && !spa.scanning.gathered().is_empty() {
        live.phase = Phase::Reading;
    }
    let done = slice.run(at, live)?;
    slice.settle(live);
    spa.scanning.stalled.store(done == Walked::Paused && slice.met == 0, Ordering::Release);
    if done == Walked::Paused && spa.scanning.gathered().is_empty() {
        live.save(at, slice.now())?;
    }
    Ok(done)
}

/// A scan that OpenZFS began may be about to read dedup tables first, and to skip their blocks later.
/// Everything is scanned here, so nothing is missed.
fn forget_tables(scan: &mut DslScan) {
    scan.ddt_class_max = 0;
    scan.ddt_bookmark = ondisk::pool::DdtBookmark { class: 1, ..ondisk::pool::DdtBookmark::default() };
}
