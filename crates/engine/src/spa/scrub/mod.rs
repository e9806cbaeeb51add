//! Scrub and resilver.
//!
//! A *scrub* reads every block of the pool with all its copies and parity, rewrites bad copies and counts
//! them. A *resilver* is a scrub of the blocks that some leaf may lack according to its DTL, and writes them
//! there. Both are one scan, with one state in the MOS ([`crate::dsl::write::scan_state`]), which OpenZFS can
//! continue, as this module continues its.
//!
//! Each txg does a *slice* of the scan in syncing context, after its tasks: the walk continues where the last
//! slice stopped. Its blocks are [gathered] in memory, sorted by their places, until the memory that they may take is full or the
//! walk is over. Then slices read them in device order, and the walk goes on. All reads and repairs of a slice end before the
//! slice does. So no block is freed and written anew while a read of it is under way: blocks that this txg frees are not
//! allocated in the next two. Blocks that are freed while they wait are not read any more. A slice is as long as nothing waits
//! for the txg, within bounds.
//!
//! States: none → scanning ⇄ paused → finished, or canceled. Why power may be lost at any moment: the state on disk has a
//! position before which all blocks have been read ([`live`]); after a crash the scan continues from there, and reads the blocks
//! gathered since then twice. Repairs only write the right bytes of a block.
//!
//! Lock order: the locks here are leaf locks.
//!
//! Differs from OpenZFS: gathered blocks are read to the last one, in one sweep over each device, where OpenZFS reads the largest
//! groups of neighbours until there is some room (`zfs_scan_mem_lim_soft_fact`, `zfs_scan_max_ext_gap`): each sweep ends with a
//! position that is saved. Blocks of the MOS are read in the slice that meets them. Blocks that dedup tables name are scanned
//! with the datasets that refer to them, never from the tables.

mod commands;
pub mod errors;
mod finish;
mod gathered;
mod live;
mod resilver;
mod slice;
mod walk;

pub(super) use commands::REBUILDING;
pub use commands::ScanCommand;
pub use live::ScanProgress;
pub(super) use resilver::is_cut;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ondisk::pool::DslScan;
use parking_lot::Mutex;

use self::errors::ErrorScrub;
use super::Spa;
use super::activity::{Activity, Due, SyncPoint};
use super::subjects::{ErrorLog, Scans};
use super::{ActivityCommand, WaitActivity};
use crate::dmu::Tx;
use crate::dsl::write::{MosView, scan_state};
use crate::error::Result;
use crate::memory::Limit;

/// The function of a scan (`pool_scan_func_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanFunc {
    /// Reads everything.
    Scrub,
    /// Reads blocks that leaves lack, and writes them there.
    Resilver,
}

impl ScanFunc {
    /// The number on disk.
    fn number(self) -> u64 {
        match self {
            Self::Scrub => 1,
            Self::Resilver => 2,
        }
    }

    /// The first part of its events' names.
    fn event(self) -> &'static str {
        match self {
            Self::Scrub => "scrub",
            Self::Resilver => "resilver",
        }
    }

    pub(super) fn of(scan: &DslScan) -> Option<Self> {
        [Self::Scrub, Self::Resilver].into_iter().find(|func| func.number() == scan.func)
    }
}

/// Progress of a scan during this run of the program, in bytes: see `pss_pass_*` of OpenZFS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[doc(alias = "pool_scan_stat_t")]
pub struct ScanPass {
    /// Seconds since 1970 when this pass began; 0: no scan has run since the import.
    pub start: u64,
    /// Bytes met in this pass.
    pub examined: u64,
    /// Bytes read and checked in this pass.
    pub issued: u64,
    /// Seconds since 1970 when it was paused; 0: it is not.
    pub paused_at: u64,
    /// Seconds of this pass that it was paused.
    pub paused: u64,
    /// The bytes read and the time taken are typical of the whole scan: blocks were not only gathered.
    pub is_typical: bool,
}

/// In-memory state of the scan under way.
#[derive(Debug, Default)]
pub(super) struct Scanning {
    /// A scan is under way and not paused.
    active: AtomicBool,
    /// The last slice met nothing, as a vdev is away: the next one has time.
    stalled: AtomicBool,
    /// The scrub under way reads blocks up to a time in the past, or may do so: it was begun by an earlier import.
    ranged: AtomicBool,
    /// Births of blocks that could not be read or repaired: leaves that lack them still do after the scan.
    #[doc(alias = "DTL_SCRUB")]
    failed: Mutex<BTreeSet<u64>>,
    /// The same of blocks that only one distributed spare still lacks, by its guid.
    unserved: Mutex<BTreeMap<u64, BTreeSet<u64>>>,
    /// An earlier import began the resilver under way and met errors, which are not known any more.
    blind: AtomicBool,
    pass: Mutex<ScanPass>,
    /// The scan under way between its slices.
    live: Mutex<Option<live::LiveScan>>,
    /// Its progress, also during a slice.
    shown: Mutex<Option<ScanProgress>>,
    gathered: gathered::GatheredBlocks,
    /// From this txg on a resilver is to begin for a leaf that joined; 0: none is.
    #[doc(alias = "scn_restart_txg")]
    restart: AtomicU64,
    /// Txgs that leaves still lacked when the last resilver ended: another one would not help before
    /// something changes.
    kept: Mutex<Option<(u64, u64)>>,
    errors: ErrorScrub,
}

impl Scanning {
    /// Whether slices are due.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Allows another resilver of blocks that leaves still lack: more may be readable than when the last one
    /// ended.
    pub(crate) fn look_again(&self) {
        *self.kept.lock() = None;
    }

    /// A block born in `birth` could not be repaired.
    pub(crate) fn note_failed(&self, birth: u64) {
        self.failed.lock().insert(birth);
    }

    /// A block born in `birth` could not be written where these distributed spares should have it.
    pub(crate) fn note_unserved(&self, birth: u64, spares: &BTreeSet<u64>) {
        let mut unserved = self.unserved.lock();
        for spare in spares {
            unserved.entry(*spare).or_default().insert(birth);
        }
    }

    /// Forgets the blocks that the last scan could not repair.
    fn forget_failed(&self) {
        self.failed.lock().clear();
        self.unserved.lock().clear();
    }
}

impl Activity for Scanning {
    fn is_due(&self, spa: &Spa) -> Due {
        match self.is_active() || self.errors.is_active() {
            true if self.stalled.load(Ordering::Acquire) || spa.limits().is_on(Limit::ScanSuspend) => {
                Due::Soon
            }
            true => Due::Now,
            false if spa.rebuilds().is_rebuilding() => Due::No,
            false if self.restart.load(Ordering::Acquire) != 0 => Due::Now,
            false if spa.scans().is_resilver_due() => Due::Soon,
            false => Due::No,
        }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if moment != SyncPoint::Last {
            return Ok(());
        }
        spa.scans().resilver_if_due(tx)?;
        if spa.limits().is_on(Limit::ScanSuspend) {
            return spa.scans().defer_while_suspended(tx);
        }
        spa.scans().slice(tx)?;
        spa.error_log().slice(tx)
    }

    fn left(&self, spa: &Spa, work: WaitActivity) -> Result<Option<u64>> {
        match work {
            WaitActivity::Scrub => {
                // The number of bytes of the blocks in the error log is not known.
                let errors = spa.error_log().scrub_left()?.map(|_| 0);
                Ok(scan_left(spa, ScanFunc::Scrub)?.or(errors))
            }
            WaitActivity::Resilver => {
                let due = spa.scans().is_resilver_due().then_some(0);
                Ok(scan_left(spa, ScanFunc::Resilver)?.or(due))
            }
            _ => Ok(None),
        }
    }

    fn command(&self, spa: &Spa, work: WaitActivity, command: ActivityCommand) -> Option<Result<()>> {
        matches!(work, WaitActivity::Scrub | WaitActivity::Resilver).then(|| spa.scans().stop(command))
    }
}

impl Scans<'_> {
    /// Whether a scan is under way and not paused.
    pub fn is_scanning(self) -> bool {
        self.spa.scanning.is_active()
    }

    /// Progress of the scan during this run of the program.
    pub fn pass(self) -> ScanPass {
        *self.spa.scanning.pass.lock()
    }

    /// Whether a resilver is under way or waits for its turn.
    #[doc(alias("dsl_scan_resilvering", "dsl_scan_resilver_scheduled"))]
    pub(super) fn is_resilvering(self) -> bool {
        let running = scan_state::running(&MosView { mos: &self.spa.mos }).ok().flatten();
        self.spa.scanning.restart.load(Ordering::Acquire) != 0
            || running.is_some_and(|scan| ScanFunc::of(&scan) == Some(ScanFunc::Resilver))
    }

    /// Continues a scan that an earlier import has begun.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    #[doc(alias = "dsl_scan_init")]
    pub(super) fn load(self) -> Result<()> {
        let scan = scan_state::running(&MosView { mos: &self.spa.mos })?;
        let known = scan.filter(|scan| ScanFunc::of(scan).is_some());
        if let Some(scan) = known {
            let now = self.spa.pool.env.now();
            let paused = scan.flags & scan_state::PAUSED != 0;
            *self.spa.scanning.pass.lock() =
                ScanPass { start: now, paused_at: if paused { now } else { 0 }, ..ScanPass::default() };
            self.spa.scanning.active.store(!paused, Ordering::Release);
            // The reason for its start is unknown.
            self.spa.scanning.ranged.store(true, Ordering::Release);
            if ScanFunc::of(&scan) == Some(ScanFunc::Resilver) && scan.errors > 0 {
                self.spa.scanning.blind.store(true, Ordering::Release);
                self.restart_resilver_at(1);
            }
        }
        self.spa.error_log().load_scrub()?;
        self.spa.rebuilds().resume();
        Ok(())
    }
}

impl ErrorLog<'_> {
    /// Whether a scrub of the error log is under way and not paused.
    pub fn is_scrubbing(self) -> bool {
        self.spa.scanning.errors.is_active()
    }
}

/// Bytes that a scan under way has still to read; `None` when no such scan runs, or it is paused.
fn scan_left(spa: &Spa, func: ScanFunc) -> Result<Option<u64>> {
    let runs = spa
        .scans()
        .progress()?
        .filter(|now| now.scan.func == func.number() && now.scan.flags & scan_state::PAUSED == 0);
    Ok(runs.map(|now| now.scan.to_examine.saturating_sub(now.scan.skipped).saturating_sub(now.issued)))
}
