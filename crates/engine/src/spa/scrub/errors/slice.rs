//! The part of a scrub of the error log that one txg does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::DslErrorscrub;
use zcommon::features::Feature;

use super::find::{Finder, FoundBlock};
use super::{running, store};
use crate::dmu::Tx;
use crate::dsl::write::MosTx;
use crate::error::Result;
use crate::memory::Limit;
use crate::spa::Spa;
use crate::spa::errlog::LoggedError;
use crate::spa::faults::{is_errlog, log_entry, log_of};
use crate::spa::scrub::slice::is_any_vdev_away;
use crate::spa::subjects::ErrorLog;
use crate::traverse::reader::{Reader, Request};
use crate::types::Bookmark;
use crate::vdev::plan::Depth;
use crate::zap::{Zap, ZapEntry};
use crate::zio::{Form, ReadOptions, ReadOutcome};

/// Blocks that are looked for and read before the time is looked at.
const BATCH: usize = 256;

/// Datasets that are looked into for the blocks of one batch, before the time is looked at.
const LOOKS: usize = 1 << 12;

/// Results of reads.
const UNREAD: u8 = 0;
const INTACT: u8 = 1;
const DAMAGED: u8 = 2;

/// An entry of the log that is to be looked at.
struct Named {
    /// The list in which it stands, and its name there.
    list: u64,
    name: String,
    /// `None`: the name is malformed.
    error: Option<LoggedError>,
    /// The place after it: in the log, and in the dataset's list.
    after: (u64, Option<(u64, u64)>),
}

impl Named {
    fn of(list: u64, head: Option<u64>, entry: &ZapEntry, after: (u64, Option<(u64, u64)>)) -> Self {
        Self { list, name: entry.name_lossy(), error: LoggedError::of_name(head, entry.name()), after }
    }
}

/// The outcome of the search for an entry's block.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// The block is intact, or gone.
    intact: bool,
    /// Birth of the block that was read; 0: none was.
    birth: u64,
}

/// The next entries of the log, and the place after them.
struct Batch {
    entries: Vec<Named>,
    cursor: u64,
    within: Option<(u64, u64)>,
    /// The log has no more entries.
    ended: bool,
}

impl Batch {
    /// Leaves out all but the first entries.
    fn cut(&mut self, count: usize) {
        if count < self.entries.len() {
            self.entries.truncate(count);
            if let Some(last) = self.entries.last() {
                (self.cursor, self.within) = last.after;
            }
            self.ended = false;
        }
    }
}

/// Position at the end of a log.
const END: u64 = u64::MAX;

fn zap(at: &MosTx<'_>, number: u64) -> Result<Zap> {
    Zap::open(&at.mos.view().object(number)?)
}

/// Reads the next entries. Parts of the log that cannot be read are passed over: they stay as they are until the log goes.
fn next_batch(at: &MosTx<'_>, cursor: u64, within: Option<(u64, u64)>, most: usize) -> Result<Batch> {
    let mut batch = Batch { entries: Vec::new(), cursor, within: None, ended: false };
    let log = at.zap_word(MOS_DIRECTORY_OBJECT, mos::ERRLOG_LAST)?.filter(|&log| log != 0);
    let log = log.filter(|&number| is_errlog(at, number));
    let Some((number, log)) = log.and_then(|number| Some((number, zap(at, number).ok()?))) else {
        batch.ended = true;
        return Ok(batch);
    };
    let by_head = at.active(Feature::HeadErrlog);
    for entry in log.entries_from(cursor).flatten() {
        if !by_head {
            batch.entries.push(Named::of(number, None, &entry, (log.cookie_after(&entry), None)));
        } else if !fill(at, &entry, within, most, &mut batch) {
            return Ok(batch);
        }
        batch.cursor = log.cookie_after(&entry);
        if batch.entries.len() >= most {
            return Ok(batch);
        }
    }
    (batch.cursor, batch.ended) = (END, true);
    Ok(batch)
}

/// Adds entries of a dataset's list; returns whether that was the rest of them.
fn fill(at: &MosTx<'_>, head: &ZapEntry, within: Option<(u64, u64)>, most: usize, batch: &mut Batch) -> bool {
    let number = u64::from_str_radix(&head.name_lossy(), 16).ok();
    let (Some(number), Some(list)) = (number, head.value.first()) else { return true };
    if !is_errlog(at, list) {
        return true;
    }
    let Ok(zap) = zap(at, list) else { return true };
    let from = within.filter(|(head, _)| *head == number).map_or(0, |(_, cookie)| cookie);
    for entry in zap.entries_from(from).flatten() {
        if batch.entries.len() >= most {
            return false;
        }
        batch.within = Some((number, zap.cookie_after(&entry)));
        batch.entries.push(Named::of(list, Some(number), &entry, (batch.cursor, batch.within)));
    }
    batch.within = None;
    true
}

/// Looks for the blocks, reads them with all copies, and repairs those. Returns the outcomes of the first entries: of all, unless
/// the search for them takes long.
fn scrub(spa: &Spa, at: &MosTx<'_>, entries: &[Named]) -> Vec<Outcome> {
    let results: Arc<Vec<AtomicU8>> = Arc::new(entries.iter().map(|_| AtomicU8::new(UNREAD)).collect());
    let theirs = Arc::clone(&results);
    let told = Box::new(move |request: &Request, outcome: ReadOutcome| {
        let result = if outcome.data.is_err() { DAMAGED } else { INTACT };
        let of = usize::try_from(request.start).ok().and_then(|index| theirs.get(index));
        if let Some(of) = of {
            of.store(result, Ordering::Release);
        }
    });
    let read = ReadOptions { depth: Depth::All, form: Form::Physical, heal: true, ..ReadOptions::default() };
    let reader = Reader::new(&spa.pool.zio, read, spa.limits().get(Limit::ScanInflight), told);
    let (mut finder, mut births) = (Finder::new(at), Vec::new());
    for (index, (named, result)) in entries.iter().zip(results.iter()).enumerate() {
        if finder.looked() >= LOOKS {
            break;
        }
        births.push(0);
        let Some(error) = named.error else {
            result.store(INTACT, Ordering::Release);
            continue;
        };
        match finder.find(&error) {
            FoundBlock::Gone => result.store(INTACT, Ordering::Release),
            FoundBlock::Unknown => result.store(DAMAGED, Ordering::Release),
            FoundBlock::Here(bp) => {
                let LoggedError { objset, object, level, blkid, .. } = error;
                births.last_mut().into_iter().for_each(|birth| *birth = bp.physical_birth());
                let index = u64::try_from(index).unwrap_or(u64::MAX);
                let at = Bookmark { objset, object, level, blkid };
                reader.push(Request { bp, at, start: index, end: index, lead: false });
            }
        }
    }
    reader.drain(|_| {});
    spa.pool.zio.wait_mended();
    let outcome = |(birth, result): (u64, &AtomicU8)| Outcome {
        intact: result.load(Ordering::Acquire) == INTACT,
        birth,
    };
    births.into_iter().zip(results.iter()).map(outcome).collect()
}

impl ErrorLog<'_> {
    /// Does a slice of the scrub of the error log under way (syncing context).
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias = "dsl_errorscrub_sync")]
    pub(in crate::spa) fn slice(self, tx: &Tx) -> Result<()> {
        let errors = &self.spa.scanning.errors;
        if !errors.is_active() {
            return Ok(());
        }
        let at = self.spa.datasets.at(tx, self.spa);
        let Some(mut state) = running(&at)?.filter(|state| state.paused_flags == 0) else {
            errors.active.store(false, Ordering::Release);
            return Ok(());
        };
        // Blocks of a vdev that is away are not lost: they can be read when it is back.
        let away = is_any_vdev_away(&self.spa.pool.zio.tree());
        self.spa.scanning.stalled.store(away, Ordering::Release);
        if away || self.spa.is_suspended() {
            return Ok(());
        }
        if scrub_logged(self.spa, &at, &mut state)? {
            self.finish_error_scrub(&at, &mut state, true)
        } else {
            store(&at, &state)
        }
    }

    /// The entries of the newer log enter the older one: the scrub that found them was stopped.
    pub(super) fn join(self, at: &MosTx<'_>) -> Result<()> {
        let newer = at.zap_word(MOS_DIRECTORY_OBJECT, mos::ERRLOG_SCRUB)?.filter(|&log| log != 0);
        let Some(newer) = newer.filter(|&log| is_errlog(at, log)) else { return Ok(()) };
        let older = log_of(at, mos::ERRLOG_LAST)?;
        let by_head = at.active(Feature::HeadErrlog);
        for entry in zap(at, newer).iter().flat_map(Zap::entries).flatten() {
            if !by_head {
                let error = LoggedError::of_name(None, entry.name());
                error.map_or(Ok(()), |error| log_entry(at, older, &error))?;
                continue;
            }
            let Some(list) = entry.value.first().filter(|&list| is_errlog(at, list)) else { continue };
            let head = u64::from_str_radix(&entry.name_lossy(), 16).ok();
            for entry in zap(at, list).iter().flat_map(Zap::entries).flatten() {
                let error = head.and_then(|head| LoggedError::of_name(Some(head), entry.name()));
                error.map_or(Ok(()), |error| log_entry(at, older, &error))?;
            }
        }
        self.free(at, newer)?;
        at.zap_set(MOS_DIRECTORY_OBJECT, mos::ERRLOG_SCRUB, 0u64)
    }
}

/// Scrubs logged blocks until the txg has done its part. Returns whether the end of the log was reached.
fn scrub_logged(spa: &Spa, at: &MosTx<'_>, state: &mut DslErrorscrub) -> Result<bool> {
    let started = spa.pool.env.clock.monotonic();
    let least = Duration::from_millis(spa.limits().get(Limit::ScrubMinTime));
    let most = Duration::from_secs(spa.limits().get(Limit::TxgTimeout));
    let mut left = usize::try_from(spa.limits().get(Limit::ScrubErrorBlocks)).unwrap_or(BATCH);
    let mut turn = spa.jobs().turn();
    loop {
        let within = *spa.scanning.errors.within.lock();
        let mut batch = next_batch(at, state.cursor, within, BATCH.min(left))?;
        let outcomes = scrub(spa, at, &batch.entries);
        batch.cut(outcomes.len());
        let found = u64::try_from(outcomes.iter().filter(|outcome| !outcome.intact).count()).unwrap_or(0);
        settle(at, &batch.entries, &outcomes)?;
        let done = u64::try_from(batch.entries.len()).unwrap_or(0);
        state.examined = state.examined.saturating_add(done);
        state.to_examine = state.to_examine.saturating_sub(done);
        state.errors = state.errors.saturating_add(found);
        state.cursor = batch.cursor;
        *spa.scanning.errors.within.lock() = batch.within;
        if batch.ended {
            state.to_examine = 0;
            return Ok(true);
        }
        left = left.saturating_sub(batch.entries.len());
        // The batch has no requests under way.
        spa.jobs().pace(&mut turn, || {});
        let elapsed = spa.pool.env.clock.monotonic().saturating_sub(started);
        let enough = elapsed >= most || elapsed >= least && spa.jobs().is_txg_awaited();
        if left == 0 || enough || !spa.is_threaded() {
            return Ok(false);
        }
    }
}

/// Removes blocks that are intact or gone from the older log, and enters the others into the newer one. An entry without
/// a birth gets that of its block, under which the read has logged it, and moves.
fn settle(at: &MosTx<'_>, entries: &[Named], outcomes: &[Outcome]) -> Result<()> {
    let mut log = None;
    for (named, Outcome { intact, birth }) in entries.iter().zip(outcomes) {
        // A malformed name stays until the log goes.
        let Some(error) = &named.error else { continue };
        let is_born_now = error.birth == Some(0) && *birth != 0;
        if (*intact || is_born_now) && at.zap_get(named.list, &named.name)?.is_some() {
            at.zap_remove(named.list, &named.name)?;
        }
        if !*intact {
            let error = if is_born_now { LoggedError { birth: Some(*birth), ..*error } } else { *error };
            let log = match log {
                Some(log) => log,
                None => *log.insert(log_of(at, mos::ERRLOG_SCRUB)?),
            };
            log_entry(at, log, &error)?;
        }
    }
    Ok(())
}
