//! Replay in memory: the log of a pool that is only read, and that was not exported.
//!
//! A synchronous write is promised when its record is in the log; the txg that makes it part of the dataset may never have been
//! synced. An import replays the log, which writes to the pool. Here the same records are replayed on an object set whose
//! changes stay in memory ([`Scratch`]): readers see the result, and the pool stays as it is.
//!
//! Records that count: those of a txg that was not synced (`claim_txg` when an import has claimed the log,
//! else one past the newest synced), with a sequence number above the highest that an interrupted replay has
//! done. An unclaimed log ends at a write whose block never reached the disk, as a claim ends it. A snapshot has no log, and
//! neither has a pool that was opened in an older state: the log belongs to later ones.
//!
//! Differs from OpenZFS: a record that can't be replayed is noted and the next one is tried, where an import stops.

use std::sync::Arc;

use ondisk::Endian;
use ondisk::objset::ZilHeader;
use ondisk::zil::{LogRecord, TxType};

use super::{chain, claim};
use crate::dmu::dirty::scratch::Scratch;
use crate::dmu::{LiveObjset, Objset, Tx};
use crate::error::{Error, Kind, Result};

/// Bytes of memory for the names, attributes and data that a log may change, counted as `zfs_dirty_data_max` counts those of
/// writers.
pub const MAX_BYTES: u64 = 512 << 20;
/// Failures that are kept one by one.
const MAX_NOTES: usize = 1000;

/// Transactions in memory.
#[derive(Debug)]
pub struct InMemory {
    /// The object set that is changed.
    pub scratch: Arc<Scratch>,
    /// Bytes of memory that the changes may take.
    pub max_bytes: u64,
}

impl InMemory {
    /// Over an object set as of txg `synced`.
    pub fn over(plain: &Arc<Objset>, synced: u64, max_bytes: u64) -> Self {
        Self { scratch: Arc::new(Scratch::over(plain, synced)), max_bytes }
    }

    /// A transaction that changes about `bytes` bytes.
    ///
    /// # Errors
    /// `Limit` when the changes take too much memory.
    pub fn begin(&self, bytes: u64) -> Result<Tx> {
        match self.scratch.memory().saturating_add(bytes) <= self.max_bytes {
            true => Ok(self.scratch.begin()),
            false => Err(Error::new(Kind::Limit, "the intent log is too long to be replayed in memory")),
        }
    }
}

/// Result of a replay in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryReplay {
    /// Records applied.
    pub applied: u64,
    /// Records that could not be applied, and why.
    pub notes: Vec<Error>,
}

impl MemoryReplay {
    /// That of a log of which nothing could be applied.
    pub fn failed(why: Error) -> Self {
        Self { applied: 0, notes: vec![why] }
    }

    pub(crate) fn note(&mut self, e: Error) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(e);
        }
    }
}

/// An object set as its log leaves it.
#[derive(Debug)]
pub struct WithLog {
    /// The object set.
    pub objset: Arc<LiveObjset>,
    /// The replay.
    pub replayed: MemoryReplay,
}

/// A record of a log that is read only.
#[derive(Debug)]
pub struct WaitingRecord<'a> {
    /// Its number.
    pub seq: u64,
    /// Its type, with the flag for case-insensitive names.
    pub txtype: TxType,
    /// Order of the integers in its ACL entries.
    pub endian: Endian,
    /// The record, unless it is damaged.
    pub record: Result<LogRecord<'a>>,
}

/// Calls `visit` with the records that wait, in order, until it returns false. The log need not be claimed: then its records
/// of txgs after `synced`, the last one on disk, wait, and it ends where a claim would end it.
///
/// # Errors
/// The reason why records that were acknowledged, or may have been, cannot be read; those that can be read have been visited.
pub fn visit_waiting(
    view: &Arc<Objset>,
    synced: u64,
    visit: &mut dyn FnMut(WaitingRecord<'_>) -> bool,
) -> Result<()> {
    let header = view.phys.zil_header;
    let is_claimed = header.claim_txg != 0;
    let first = if is_claimed { header.claim_txg } else { synced.saturating_add(1) };
    let mut blocks = chain(view);
    'log: for block in blocks.by_ref() {
        let endian = block.decode().map_or(Endian::Little, |b| b.endian);
        for (head, record) in block.records() {
            if !is_claimed && record.as_ref().is_ok_and(|record| claim::ends_at(view, record, first)) {
                break 'log;
            }
            let one = WaitingRecord { seq: head.seq, txtype: TxType(head.txtype), endian, record };
            if head.txg >= first && head.seq > header.replay_seq && !visit(one) {
                return Ok(());
            }
        }
    }
    if !is_claimed {
        let why = |e: Error| Error::new(e.kind(), "the devices do not return all of the log").because(e);
        return claim::check(view, first).map_err(why);
    }
    match blocks.unreached(header.replay_seq) {
        Some((why, lost)) if header.flags & ZilHeader::REPLAY_NEEDED != 0 => {
            let what = format!("a block of the log can no longer be read; {lost} records are missing");
            Err(Error::new(why.kind(), what).because(why.clone()))
        }
        _ => Ok(()),
    }
}
