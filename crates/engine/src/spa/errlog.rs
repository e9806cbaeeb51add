//! The pool's error logs: blocks that could not be read, as the pool remembers them.
//!
//! There are two, of the current scrub (or since the last one) and of the one before. Without the feature
//! `head_errlog` a log is one ZAP whose names are bookmarks; with it, a ZAP from dataset to another ZAP,
//! whose names also have the birth of the block, so that a snapshot that shares it is found too.
//!
//! Format source: spa_errlog.c, OpenZFS 2.3.

use std::sync::Arc;

use ondisk::names::mos;
use ondisk::{Blkptr, Bookmark, ErrBookmark};

use super::Pool;
use crate::dmu::{Objset, SpecialObject};
use crate::error::{Error, Kind, Result};
use crate::traverse::SPILL;
use crate::zap::Zap;

/// Feature that changes the logs' form.
const HEAD_ERRLOG: &str = "com.delphix:head_errlog";
/// Errors that are listed at most.
const MAX_ERRORS: usize = 1 << 20;

/// A damaged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoggedError {
    /// Object number of the dataset; with `head_errlog` the live one that the block belongs to. 0: the MOS.
    pub objset: u64,
    /// Object in it.
    pub object: u64,
    /// Level of indirection.
    pub level: i64,
    /// Block number at that level.
    pub blkid: u64,
    /// Birth of the block, where the log has it.
    pub birth: Option<u64>,
}

/// The errors of both logs, sorted, each once. Parts that can't be read are named in `notes`.
pub fn errors(pool: &Pool, notes: &mut Vec<Error>) -> Vec<LoggedError> {
    let mut found = Vec::new();
    for log in [mos::ERRLOG_LAST, mos::ERRLOG_SCRUB] {
        if let Err(e) = one_log(pool, log, &mut found, notes) {
            notes.push(e);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn one_log(pool: &Pool, name: &str, found: &mut Vec<LoggedError>, notes: &mut Vec<Error>) -> Result<()> {
    let number = pool.directory()?.u64(name)?.unwrap_or(0);
    let Some(log) = pool.dsl.zap(number)? else { return Ok(()) };
    if !pool.features.is_active(HEAD_ERRLOG) {
        return flat(&log, found);
    }
    for head in log.entries() {
        let of_head = head.and_then(|head| {
            let objset = u64::from_str_radix(&head.name_lossy(), 16);
            let objset = objset.map_err(|_| Error::corrupt("error log entry without a dataset"))?;
            let Some(list) = pool.dsl.zap(head.value.first().unwrap_or(0))? else { return Ok(()) };
            of_dataset(objset, &list, found)
        });
        match of_head {
            Err(e) if e.kind() == Kind::Limit => return Err(e),
            Err(e) => notes.push(e),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn flat(log: &Zap, found: &mut Vec<LoggedError>) -> Result<()> {
    for entry in log.entries() {
        push(found, LoggedError::of_name(None, entry?.name()).ok_or_else(no_bookmark)?)?;
    }
    Ok(())
}

fn of_dataset(objset: u64, list: &Zap, found: &mut Vec<LoggedError>) -> Result<()> {
    for entry in list.entries() {
        push(found, LoggedError::of_name(Some(objset), entry?.name()).ok_or_else(no_bookmark)?)?;
    }
    Ok(())
}

fn no_bookmark() -> Error {
    Error::corrupt("error log entry that is no bookmark")
}

impl LoggedError {
    /// The error that an entry of a log names. With `head_errlog` the entry stands in the list of the dataset `head`; without,
    /// it names its dataset itself. `None` if the name is malformed.
    pub(super) fn of_name(head: Option<u64>, name: &[u8]) -> Option<Self> {
        let Some(objset) = head else {
            let Bookmark { objset, object, level, blkid } = Bookmark::from_name(name)?;
            return Some(Self { objset, object, level, blkid, birth: None });
        };
        let ErrBookmark { object, level, blkid, birth } = ErrBookmark::from_name(name)?;
        Some(Self { objset, object, level, blkid, birth: Some(birth) })
    }
}

/// The pointer to a block that an error log names; `None` for a hole.
///
/// # Errors
/// `NotFound` without such an object or block; otherwise what is above the block cannot be read.
pub fn block_at(objset: &Arc<Objset>, object: u64, level: u8, blkid: u64) -> Result<Option<Blkptr>> {
    use SpecialObject::{GroupUsed, Meta, ProjectUsed, UserUsed};
    let special = [Meta, UserUsed, GroupUsed, ProjectUsed].into_iter().find(|which| which.number() == object);
    let object = match special {
        Some(which) => objset.special(which).ok_or_else(|| Error::not_found("no such object"))?,
        None => objset.object(object)?,
    };
    if level == 0 && blkid == SPILL {
        return Ok(object.dnode.spill().copied().filter(|bp| !bp.is_hole()));
    }
    object.blkptr(level, blkid)
}

fn push(found: &mut Vec<LoggedError>, error: LoggedError) -> Result<()> {
    if found.len() >= MAX_ERRORS {
        return Err(Error::new(Kind::Limit, format!("more than {MAX_ERRORS} errors are logged")));
    }
    found.push(error);
    Ok(())
}
