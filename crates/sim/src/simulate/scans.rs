//! Commands for scrubs in the workload: they begin, pause, resume and stop.

use engine::Kind;
use engine::dsl::write::{MosView, scan_state};
use engine::spa::scrub::ScanCommand;
use engine::spa::{ActivityCommand, Spa, WaitActivity};
use ondisk::pool::DslScan;

use super::{MOST_GROUPS, Run};

/// Txgs of which a paused scrub makes no use.
const PAUSE: usize = 3;

/// The scrub under way that is paused.
pub(super) fn paused(spa: &Spa) -> Result<Option<DslScan>, String> {
    let progress = spa.scans().progress().map_err(|e| e.to_string())?;
    Ok(progress.map(|now| now.scan).filter(|scan| is_scrub(scan) && !spa.scans().is_scanning()))
}

/// The number of a scrub among scans.
#[doc(alias = "POOL_SCAN_SCRUB")]
const SCRUB: u64 = 1;

/// The state on disk of a scrub that is paused: the blocks that it has gathered since are found again after a restart.
pub(super) fn paused_on_disk(spa: &Spa) -> Result<Option<DslScan>, String> {
    match paused(spa)? {
        None => Ok(None),
        Some(_) => scan_state::load(&MosView { mos: &spa.mos }).map_err(|e| e.to_string()),
    }
}

fn is_scrub(scan: &DslScan) -> bool {
    scan.func == SCRUB
}

/// Waits until no scan runs or is due; paused ones go on.
pub(super) fn scanned(spa: &Spa) -> Result<(), String> {
    for command in [ScanCommand::Scrub, ScanCommand::ScrubErrors] {
        let waits = match command {
            ScanCommand::Scrub => paused(spa)?.is_some(),
            _ => {
                spa.error_log().scrub_left().map_err(|e| e.to_string())?.is_some()
                    && !spa.error_log().is_scrubbing()
            }
        };
        if waits {
            spa.scans().start(command).map_err(|e| format!("{command:?} does not go on: {e}"))?;
        }
    }
    for _ in 0..MOST_GROUPS {
        spa.sync().map_err(|e| e.to_string())?;
        let runs =
            spa.scans().is_scanning() || spa.rebuilds().is_rebuilding() || spa.error_log().is_scrubbing();
        // A spare may have joined meanwhile.
        let is_due = spa.background().left(WaitActivity::Resilver).map_err(|e| e.to_string())?.is_some();
        if !runs && !is_due {
            return Ok(());
        }
    }
    Err("a scan does not end".into())
}

impl Run {
    pub(super) fn begin_scrub(&mut self) -> Result<bool, String> {
        let command = match self.random.below(4) {
            0 => ScanCommand::ScrubErrors,
            1 => ScanCommand::ScrubFromLast,
            _ => ScanCommand::Scrub,
        };
        let resumes = paused(&self.actor.spa)?.is_some();
        let done = self.scan(command)?;
        if done && resumes && command == ScanCommand::Scrub {
            self.count("resume");
        }
        Ok(done)
    }

    pub(super) fn scan(&mut self, command: ScanCommand) -> Result<bool, String> {
        self.actor.tell(format!("scan: {command:?}"));
        self.ask(|run| run.actor.spa.scans().start(command))
    }

    /// Pauses or cancels the scan.
    pub(super) fn end_scan(&mut self, command: ActivityCommand) -> Result<bool, String> {
        self.actor.tell(format!("scan: {command:?}"));
        self.ask(|run| run.actor.spa.background().command(WaitActivity::Scrub, command))
    }

    /// A scrub pauses, and rests until it is resumed. One that has just begun is paused, too: most are over before a later
    /// command meets them.
    pub(super) fn pause(&mut self) -> Result<bool, String> {
        if self.random.below(4) > 0 {
            self.scan(ScanCommand::Scrub)?;
        }
        let done = self.end_scan(ActivityCommand::Pause)?;
        let spa = &self.actor.spa;
        let Some(before) = paused(spa)?.filter(|_| done) else { return Ok(done) };
        for _ in 0..PAUSE {
            spa.sync().map_err(|e| e.to_string())?;
            let now = spa.scans().progress().map_err(|e| e.to_string())?.map(|now| now.scan);
            // A resilver that has become due takes its place.
            let moved = now.filter(|now| is_scrub(now) && now.examined != before.examined);
            if moved.is_some() {
                return Err(format!("a paused scrub goes on: {before:?}, {moved:?}"));
            }
        }
        match spa.background().command(WaitActivity::Scrub, ActivityCommand::Pause) {
            Err(e) if matches!(e.kind(), Kind::Busy | Kind::NotFound) => Ok(true),
            other => Err(format!("a paused scrub is paused again: {other:?}")),
        }
    }

    /// A scrub that was paused before a restart still is, at the same place, unless a resilver took its place.
    pub(super) fn still_paused(&self, before: &DslScan) -> Result<(), String> {
        let now = self.actor.spa.scans().progress().map_err(|e| e.to_string())?.map(|now| now.scan);
        let is_same = |now: &DslScan| {
            !self.actor.spa.scans().is_scanning()
                && (now.bookmark, now.flags) == (before.bookmark, before.flags)
        };
        match now {
            Some(now) if is_scrub(&now) && !is_same(&now) => {
                Err(format!("a paused scrub is another one after the restart: {before:?}, {now:?}"))
            }
            _ => Ok(()),
        }
    }
}
