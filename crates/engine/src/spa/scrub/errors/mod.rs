//! The scrub of the error log: reads only blocks that the log names, and takes those from the log that turn out intact.
//!
//! Its state stands under `error_scrub` in the MOS directory. Its cursor is a place in the older log (`errlog_last`): with
//! `head_errlog` between two datasets, otherwise between two blocks. The place within a dataset's list is kept in memory only,
//! as in OpenZFS's format; after an import the list of that dataset is begun again, without the blocks that are gone from it.
//!
//! Blocks that are still damaged enter the other log (`errlog_scrub`), which replaces the older one at the end. Blocks that are
//! intact, or gone, are removed from the older log at once. A scrub that is stopped leaves both kinds of the rest in the log.
//!
//! States: none → scrubbing ⇄ paused → finished, or canceled. It excludes scrubs; a resilver cancels it.
//!
//! Differs from OpenZFS: blocks are counted and looked for where their dataset's key is not loaded, too; a block that cannot be
//! looked for stays in the log; a list of more blocks than a txg takes is scrubbed to its end; stopping keeps blocks in the log
//! that were not looked at.
//!
//! Format source: dsl_scan.c (`dsl_errorscrub_sync`), OpenZFS 2.4.

pub(in crate::spa) mod find;
mod slice;

use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::DslErrorscrub;
use parking_lot::Mutex;
use zcommon::features::Feature;

use crate::dsl::write::{Hooks as _, MosTx, MosView, scan_state};
use crate::error::{Error, Kind, Result};
use crate::spa::Spa;
use crate::spa::subjects::ErrorLog;
use crate::zap::Value;

/// `pool_scan_func_t`.
const ERROR_SCRUB: u64 = 3;
/// `dsl_scan_state_t`.
const FINISHED: u64 = 2;
const CANCELED: u64 = 3;
#[doc(alias = "DSS_ERRORSCRUBBING")]
const SCRUBBING: u64 = 4;

/// In-memory state of the scrub of the error log.
#[derive(Debug, Default)]
pub(in crate::spa) struct ErrorScrub {
    /// One is under way and not paused.
    active: AtomicBool,
    /// The dataset whose list was scrubbed in part, and the cookie of the place in it.
    within: Mutex<Option<(u64, u64)>>,
    /// Seconds since 1970 when it was paused in this import; 0: it is not.
    paused_at: Mutex<u64>,
}

impl ErrorScrub {
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }
}

/// The last scrub of the error log; `None` if there was none since the last scan of the pool.
///
/// # Errors
/// When the MOS cannot be read. A state that cannot be decoded counts as none.
pub fn load(at: &MosView<'_>) -> Result<Option<DslErrorscrub>> {
    let value = at.zap_get(MOS_DIRECTORY_OBJECT, mos::ERRORSCRUB)?;
    let state = value.and_then(|value| DslErrorscrub::from_words(&value.ints).ok());
    Ok(state.filter(|state| state.func == ERROR_SCRUB))
}

#[doc(alias = "dsl_errorscrub_sync_state")]
fn store(at: &MosTx<'_>, state: &DslErrorscrub) -> Result<()> {
    let words = state.to_bytes();
    let words: Vec<u64> = words.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    at.zap_set(MOS_DIRECTORY_OBJECT, mos::ERRORSCRUB, Value::from(words))
}

/// The one under way, if there is one; a paused one counts.
pub(in crate::spa) fn running(at: &MosView<'_>) -> Result<Option<DslErrorscrub>> {
    Ok(load(at)?.filter(|state| state.state == SCRUBBING))
}

/// Why a scan of the pool, or another scrub of the error log, cannot begin now.
#[doc(alias("EZFS_ERRORSCRUBBING", "EZFS_ERRORSCRUB_PAUSED"))]
pub(super) fn busy(state: &DslErrorscrub) -> Error {
    let what = match state.paused_flags {
        0 => "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub",
        _ => "error scrub is paused; use 'zpool scrub -e' to resume error scrub",
    };
    Error::new(Kind::Busy, what)
}

impl ErrorLog<'_> {
    /// When the scrub of the error log was paused, in seconds since 1970; 0: it is not paused.
    #[doc(alias = "pss_pass_error_scrub_pause")]
    pub fn scrub_paused(self) -> u64 {
        *self.spa.scanning.errors.paused_at.lock()
    }

    /// Begins a scrub of the error log, or resumes a paused one (syncing context). With an empty log nothing happens.
    ///
    /// # Errors
    /// `Busy` when a scan runs or is paused; `Unsupported` in pools without `head_errlog`.
    #[doc(alias = "dsl_errorscrub_setup_sync")]
    pub(super) fn scrub(self, at: &MosTx<'_>) -> Result<()> {
        if !at.enabled(Feature::HeadErrlog) {
            return Err(Error::new(Kind::Unsupported, "operation not supported on this type of pool"));
        }
        match running(at)? {
            Some(state) if state.paused_flags != 0 => return resume_error_scrub(self.spa, at, state),
            Some(state) => return Err(busy(&state)),
            None => {}
        }
        let to_examine = logged_blocks(at, mos::ERRLOG_LAST)?;
        if to_examine == 0 {
            return Ok(());
        }
        let state = DslErrorscrub {
            func: ERROR_SCRUB,
            state: SCRUBBING,
            start_time: at.seconds(),
            to_examine,
            ..DslErrorscrub::default()
        };
        store(at, &state)?;
        *self.spa.scanning.errors.within.lock() = None;
        *self.spa.scanning.errors.paused_at.lock() = 0;
        self.spa.scanning.errors.active.store(true, Ordering::Release);
        self.spa.config.lock().change_root(|_| ());
        let details = format!("func={ERROR_SCRUB} mintxg=0 maxtxg={}", at.tx.txg());
        self.spa.log("error scrub setup", "", 0, &details, at.tx)?;
        self.spa.reports().notify("errorscrub_start");
        Ok(())
    }

    /// Pauses the scrub of the error log (syncing context).
    #[doc(alias = "dsl_errorscrub_pause_resume_sync")]
    pub(super) fn pause_scrub(self, at: &MosTx<'_>, mut state: DslErrorscrub) -> Result<()> {
        if state.paused_flags != 0 {
            return Err(busy(&state));
        }
        state.paused_flags = 1;
        store(at, &state)?;
        *self.spa.scanning.errors.paused_at.lock() = at.seconds();
        self.spa.scanning.errors.active.store(false, Ordering::Release);
        self.spa.reports().notify("errorscrub_paused");
        Ok(())
    }

    /// Stops the scrub of the error log (syncing context).
    #[doc(alias = "dsl_errorscrub_cancel_sync")]
    pub(super) fn stop_scrub(self, at: &MosTx<'_>, mut state: DslErrorscrub) -> Result<()> {
        self.finish_error_scrub(at, &mut state, false)
    }

    /// A scan of the pool begins: the state of the last scrub of the error log goes, and one under way ends.
    pub(super) fn forget_scrub(self, at: &MosTx<'_>) -> Result<()> {
        if let Some(state) = running(at)? {
            self.stop_scrub(at, state)?;
        }
        store(at, &DslErrorscrub::default())
    }

    #[doc(alias = "dsl_errorscrub_done")]
    fn finish_error_scrub(self, at: &MosTx<'_>, state: &mut DslErrorscrub, complete: bool) -> Result<()> {
        let errors = self.size(at)?;
        match complete {
            true => self.rotate(at)?,
            false => self.join(at)?,
        }
        state.state = if complete { FINISHED } else { CANCELED };
        state.paused_flags = 0;
        state.end_time = at.seconds();
        store(at, state)?;
        self.spa.scanning.errors.active.store(false, Ordering::Release);
        *self.spa.scanning.errors.within.lock() = None;
        *self.spa.scanning.errors.paused_at.lock() = 0;
        let (what, event) = match complete {
            true => ("error scrub done", "errorscrub_finish"),
            false => ("error scrub canceled", "errorscrub_abort"),
        };
        self.spa.log(what, "", 0, &format!("errors={errors}"), at.tx)?;
        self.spa.reports().notify(event);
        Ok(())
    }

    /// Continues a scrub of the error log that an earlier import has begun.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub(super) fn load_scrub(self) -> Result<()> {
        let Some(state) = running(&MosView { mos: &self.spa.mos })? else { return Ok(()) };
        let paused = state.paused_flags != 0;
        *self.spa.scanning.errors.paused_at.lock() = if paused { self.spa.pool.env.now() } else { 0 };
        self.spa.scanning.errors.active.store(!paused, Ordering::Release);
        Ok(())
    }

    /// Blocks that a scrub of the error log has still to look at; `None` when none runs, or it is paused.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn scrub_left(self) -> Result<Option<u64>> {
        let state = running(&MosView { mos: &self.spa.mos })?;
        Ok(state.filter(|state| state.paused_flags == 0).map(|state| state.to_examine))
    }

    /// Number of blocks in both error logs, as far as they can be read.
    #[doc(alias = "spa_approx_errlog_size")]
    pub(super) fn size(self, at: &MosTx<'_>) -> Result<u64> {
        Ok(logged_blocks(at, mos::ERRLOG_LAST)?.saturating_add(logged_blocks(at, mos::ERRLOG_SCRUB)?))
    }
}

fn resume_error_scrub(spa: &Spa, at: &MosTx<'_>, mut state: DslErrorscrub) -> Result<()> {
    state.paused_flags = 0;
    store(at, &state)?;
    *spa.scanning.errors.paused_at.lock() = 0;
    spa.scanning.errors.active.store(true, Ordering::Release);
    spa.reports().notify("errorscrub_resume");
    Ok(())
}

/// Number of blocks in an error log, as far as it can be read.
#[doc(alias = "spa_get_last_errlog_size")]
fn logged_blocks(at: &MosTx<'_>, log: &str) -> Result<u64> {
    let Some(log) = at.zap_word(MOS_DIRECTORY_OBJECT, log)?.filter(|&log| log != 0) else { return Ok(0) };
    if !at.active(Feature::HeadErrlog) {
        return Ok(at.zap_count(log).unwrap_or(0));
    }
    let lists = at.zap_entries(log).unwrap_or_default().into_iter().filter_map(|head| head.value.first());
    Ok(lists.map(|list| at.zap_count(list).unwrap_or(0)).fold(0, u64::saturating_add))
}

/// Whether the state of a scan of the pool forbids a scrub of the error log, and why.
pub(super) fn excluded_by(scan: &ondisk::pool::DslScan) -> Error {
    let what = match super::ScanFunc::of(scan) {
        Some(super::ScanFunc::Resilver) => "currently resilvering",
        _ if scan.flags & scan_state::PAUSED != 0 => {
            "scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub"
        }
        _ => "currently scrubbing; use 'zpool scrub -s' to cancel scrub",
    };
    Error::new(Kind::Busy, what)
}
