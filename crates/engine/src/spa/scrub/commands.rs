//! Administrative commands for scans.

use std::sync::atomic::Ordering;

use ondisk::Bookmark as Stored;
use ondisk::pool::DslScan;
use zcommon::features::Feature;

use super::{ScanFunc, ScanPass, errors};
use crate::dsl::write::{Hooks as _, MosTx, scan_state};
use crate::error::{Error, Kind, Result};
use crate::spa::subjects::Scans;
use crate::spa::{ActivityCommand, Spa};
use crate::zio::alloc::MetaslabClass;

/// Why no scan begins while a device is reconstructed.
#[doc(alias = "EZFS_REBUILDING")]
pub(in crate::spa) const REBUILDING: &str = "currently sequentially resilvering";

/// A command that begins a scan or resumes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanCommand {
    /// Begins a scrub, or resumes a paused one.
    Scrub,
    /// As `Scrub`, of the blocks born after the last scrubbed txg.
    #[doc(alias = "zpool scrub -C")]
    ScrubFromLast,
    /// As `Scrub`, of the blocks written between two times, in seconds since 1970; 0: no bound.
    #[doc(alias("zpool scrub -S", "zpool scrub -E"))]
    ScrubBetween(u64, u64),
    /// Begins a scrub of the blocks in the error log, or resumes a paused one.
    #[doc(alias = "zpool scrub -e")]
    ScrubErrors,
    /// A resilver begins anew.
    Resilver,
}

impl Scans<'_> {
    /// Begins or resumes a scan; waits until its txg is on disk.
    ///
    /// # Errors
    /// `Busy` when a scan runs.
    #[doc(alias = "spa_scan")]
    pub fn start(self, command: ScanCommand) -> Result<()> {
        self.spa.sync_task(move |spa, tx| {
            let at = spa.datasets.at(tx, spa);
            let running = spa.scans().running(&at)?;
            if command == ScanCommand::Resilver && !spa.features.is_enabled(Feature::ResilverDefer) {
                return Err(Error::unsupported("this action requires the resilver_defer feature"));
            }
            if running.is_none() && spa.rebuilds().is_rebuilding() {
                return Err(Error::new(Kind::Busy, REBUILDING));
            }
            if let Some(errors) = errors::running(&at)? {
                match command {
                    ScanCommand::ScrubErrors | ScanCommand::Resilver => {}
                    _ => return Err(errors::busy(&errors)),
                }
            }
            match (command, running) {
                (ScanCommand::ScrubErrors, None) => spa.error_log().scrub(&at),
                (ScanCommand::ScrubErrors, Some(scan)) => Err(errors::excluded_by(&scan)),
                (ScanCommand::Scrub | ScanCommand::ScrubFromLast | ScanCommand::ScrubBetween(..), None) => {
                    begin_scrub(spa, &at, command)
                }
                (
                    ScanCommand::Scrub | ScanCommand::ScrubFromLast | ScanCommand::ScrubBetween(..),
                    Some(scan),
                ) => resume_scrub(spa, &at, scan),
                (ScanCommand::Resilver, running) => restart_resilver(spa, &at, running),
            }
        })
    }

    /// Pauses a scrub, or cancels a scrub or resilver; waits until its txg is on disk.
    ///
    /// # Errors
    /// `Busy` when it is paused already, `NotFound` when there is none.
    #[doc(alias("spa_scrub_pause_resume", "spa_scan_stop"))]
    pub(super) fn stop(self, command: ActivityCommand) -> Result<()> {
        self.spa.sync_task(move |spa, tx| {
            let at = spa.datasets.at(tx, spa);
            let running = spa.scans().running(&at)?;
            if let Some(errors) = errors::running(&at)? {
                return match command {
                    ActivityCommand::Pause => spa.error_log().pause_scrub(&at, errors),
                    ActivityCommand::Cancel => spa.error_log().stop_scrub(&at, errors),
                };
            }
            match (command, running) {
                (ActivityCommand::Pause, Some(scan)) if ScanFunc::of(&scan) == Some(ScanFunc::Scrub) => {
                    pause_scrub(spa, &at, scan)
                }
                (ActivityCommand::Cancel, Some(mut scan)) => {
                    let func = ScanFunc::of(&scan).unwrap_or(ScanFunc::Scrub);
                    spa.scans().finish(&at, &mut scan, func, false)
                }
                _ => Err(Error::new(Kind::NotFound, "there is no active scrub")),
            }
        })
    }

    /// Begins a scan of the whole pool, or a resilver of the blocks that leaves lack.
    #[doc(alias = "dsl_scan_setup_sync")]
    pub(in crate::spa) fn begin(self, at: &MosTx<'_>, func: ScanFunc) -> Result<()> {
        let all = (0, at.tx.txg());
        let births = match func {
            ScanFunc::Scrub => all,
            ScanFunc::Resilver => self.lacking().unwrap_or(all),
        };
        begin_scan_of(self.spa, at, func, births)
    }

    /// Bytes allocated on all vdevs.
    pub(super) fn allocated_bytes(self) -> u64 {
        let classes = [
            MetaslabClass::Normal,
            MetaslabClass::Special,
            MetaslabClass::Dedup,
            MetaslabClass::Log,
            MetaslabClass::EmbeddedLog,
        ];
        classes.iter().map(|class| self.spa.space.class_stats(*class).allocated).sum()
    }
}

fn begin_scrub(spa: &Spa, at: &MosTx<'_>, command: ScanCommand) -> Result<()> {
    let (after, until) = match command {
        ScanCommand::ScrubFromLast => {
            let name = ondisk::names::mos::LAST_SCRUBBED_TXG;
            (at.zap_word(ondisk::names::MOS_DIRECTORY_OBJECT, name)?.unwrap_or(0), 0)
        }
        ScanCommand::ScrubBetween(from, until) => spa.scans().txgs_between(at, (from, until)),
        _ => (0, 0),
    };
    let is_ranged = until != 0;
    let until = if until == 0 { at.tx.txg() } else { until };
    begin_scan_of(spa, at, ScanFunc::Scrub, (after, until))?;
    spa.scanning.ranged.store(is_ranged, Ordering::Release);
    Ok(())
}

/// Begins a scan of the blocks born after the first of two txgs, and up to the second.
fn begin_scan_of(spa: &Spa, at: &MosTx<'_>, func: ScanFunc, (min_txg, max_txg): (u64, u64)) -> Result<()> {
    spa.scanning.forget_live(&spa.pool.env.memory);
    spa.error_log().forget_scrub(at)?;
    if func == ScanFunc::Resilver {
        spa.rebuilds().clear(at)?;
    }
    let scan = DslScan {
        func: func.number(),
        state: scan_state::SCANNING,
        queue_obj: scan_state::create_queue(at)?,
        min_txg,
        max_txg,
        cur_min_txg: min_txg,
        cur_max_txg: max_txg,
        start_time: at.seconds(),
        to_examine: spa.scans().allocated_bytes(),
        bookmark: Stored { objset: 0, object: 0, level: 0, blkid: 0 },
        ..DslScan::default()
    };
    scan_state::store(at, &scan)?;
    spa.shared.force_flush(max_txg.min(at.tx.txg()));
    spa.scanning.ranged.store(false, Ordering::Release);
    *spa.scanning.pass.lock() = ScanPass { start: scan.start_time, ..ScanPass::default() };
    spa.scanning.forget_failed();
    spa.pool.zio.tree().leaves().for_each(|leaf| leaf.scan_processed.store(0, Ordering::Relaxed));
    spa.scanning.active.store(true, Ordering::Release);
    spa.config.lock().change_root(|_| ());
    let details = format!("func={} mintxg={min_txg} maxtxg={max_txg}", scan.func);
    spa.log("scan setup", "", 0, &details, at.tx)?;
    spa.reports().notify(&format!("{}_start", func.event()));
    Ok(())
}

fn resume_scrub(spa: &Spa, at: &MosTx<'_>, scan: DslScan) -> Result<()> {
    if scan.flags & scan_state::PAUSED == 0 {
        let what = match ScanFunc::of(&scan) {
            Some(ScanFunc::Resilver) => "currently resilvering",
            _ => "currently scrubbing; use 'zpool scrub -s' to cancel scrub",
        };
        return Err(Error::new(Kind::Busy, what));
    }
    let now = at.seconds();
    {
        let mut pass = spa.scanning.pass.lock();
        pass.paused = pass.paused.saturating_add(now.saturating_sub(pass.paused_at));
        pass.paused_at = 0;
    }
    spa.scans().set_paused(at, false)?;
    spa.reports().notify("scrub_resume");
    Ok(())
}

fn pause_scrub(spa: &Spa, at: &MosTx<'_>, scan: DslScan) -> Result<()> {
    if scan.flags & scan_state::PAUSED != 0 {
        let what = "scrub is paused; use 'zpool scrub' to resume scrub";
        return Err(Error::new(Kind::Busy, what));
    }
    spa.scanning.pass.lock().paused_at = at.seconds();
    spa.scans().set_paused(at, true)?;
    spa.reports().notify("scrub_paused");
    Ok(())
}

/// A running scan ends for it, unless no leaf lacks anything.
fn restart_resilver(spa: &Spa, at: &MosTx<'_>, running: Option<DslScan>) -> Result<()> {
    if spa.scans().lacking().is_none() {
        return Ok(());
    }
    if let Some(mut scan) = running {
        let func = ScanFunc::of(&scan).unwrap_or(ScanFunc::Scrub);
        spa.scans().finish(at, &mut scan, func, false)?;
    }
    spa.scans().begin(at, ScanFunc::Resilver)
}
