//! Changes of datasets and features that the error log follows.
//!
//! With `head_errlog` the errors stand in lists, one for each head. The list of a destroyed head goes with it. A promotion
//! moves the errors of the snapshots that change their head to the promoted one. Enabling the feature turns a flat log into
//! lists.
//!
//! Format source: spa_errlog.c, OpenZFS 2.4.

use ondisk::ObjectType;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};

use super::errlog::LoggedError;
use super::faults::{is_errlog, log_entry};
use super::scrub::errors::find::{Finder, FoundBlock};
use crate::dsl::write::MosTx;
use crate::error::Result;
use crate::zap::{Zap, int_name};

const LOGS: [&str; 2] = [mos::ERRLOG_LAST, mos::ERRLOG_SCRUB];
/// Errors that are in memory at once.
const BATCH: usize = 1 << 12;

/// The logs that there are, with their names. A log that cannot be found out about counts as none.
fn logs(at: &MosTx<'_>) -> impl Iterator<Item = (&'static str, u64)> {
    LOGS.into_iter().filter_map(|name| {
        let log = at.zap_word(MOS_DIRECTORY_OBJECT, name).ok().flatten()?;
        (log != 0 && is_errlog(at, log)).then_some((name, log))
    })
}

/// The list of a head in a log. A damaged log has none.
fn list_of(at: &MosTx<'_>, log: u64, head: u64) -> Option<u64> {
    at.zap_word(log, int_name(head).as_str()).ok().flatten()
}

/// Removes the lists of a head that was destroyed: no dataset has their blocks any more.
#[doc(alias("spa_delete_dataset_errlog", "delete_dataset_errlog"))]
pub(super) fn delete_list(at: &MosTx<'_>, head: u64) -> Result<()> {
    for (_, log) in logs(at) {
        if let Some(list) = list_of(at, log, head) {
            at.zap_remove(log, &int_name(head))?;
            if is_errlog(at, list) {
                at.free_object(list)?;
            }
        }
    }
    Ok(())
}

/// Visits the errors of a list, a batch at a time. Entries that cannot be read, or are no bookmarks, are passed over.
fn each(
    at: &MosTx<'_>,
    list: u64,
    head: Option<u64>,
    work: &mut dyn FnMut(&str, LoggedError) -> Result<()>,
) -> Result<()> {
    let mut cursor = 0;
    loop {
        let Ok(zap) = at.mos.view().object(list).and_then(|object| Zap::open(&object)) else { return Ok(()) };
        let mut batch = Vec::new();
        for entry in zap.entries_from(cursor).flatten().take(BATCH) {
            cursor = zap.cookie_after(&entry);
            batch.push((entry.name_lossy(), LoggedError::of_name(head, entry.name())));
        }
        let ended = batch.len() < BATCH;
        for (name, error) in batch {
            error.map_or(Ok(()), |error| work(&name, error))?;
        }
        if ended {
            return Ok(());
        }
    }
}

/// Gives the errors in blocks born until a txg to the list of another head, which has the snapshots with these blocks now.
#[doc(alias("spa_swap_errlog", "swap_errlog"))]
pub(super) fn hand_over(at: &MosTx<'_>, (from, to): (u64, u64), until: u64) -> Result<()> {
    for (_, log) in logs(at) {
        let Some(list) = list_of(at, log, from).filter(|&list| is_errlog(at, list)) else { continue };
        each(at, list, Some(to), &mut |name, error| {
            // A birth of 0 is none.
            if !error.birth.is_some_and(|birth| (1..=until).contains(&birth)) {
                return Ok(());
            }
            log_entry(at, log, &error)?;
            at.zap_remove(list, name)
        })?;
    }
    Ok(())
}

/// Turns flat logs into logs with lists. Errors in blocks that are not where the log says any more are left out.
#[doc(alias("spa_upgrade_errlog", "sync_upgrade_errlog"))]
pub(super) fn convert(at: &MosTx<'_>) -> Result<()> {
    let mut finder = Finder::new(at);
    for (name, old) in logs(at) {
        let new = at.create_zap(ObjectType::ERROR_LOG)?;
        each(at, old, None, &mut |_, error| {
            let birth = match finder.find(&error) {
                FoundBlock::Gone => return Ok(()),
                FoundBlock::Here(bp) => bp.physical_birth(),
                FoundBlock::Unknown => 0,
            };
            log_entry(at, new, &LoggedError { birth: Some(birth), ..error })
        })?;
        at.zap_set(MOS_DIRECTORY_OBJECT, name, new)?;
        // A damaged one only leaks.
        let _ = at.free_object(old);
    }
    Ok(())
}
