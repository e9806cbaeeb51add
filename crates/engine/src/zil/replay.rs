//! Replay: repeats the operations of the log from before an import, record by record, in its order.
//!
//! Each record is replayed in a transaction that also notes its number; the number reaches the log's header with
//! the same txg as the changes. So after a crash in the middle the replay continues where it was: no record is
//! replayed twice or omitted. When all are done the chain is freed.
//!
//! Skipped are: records of txgs that were on disk at the import, records that an earlier replay has done, and
//! operations on objects that no longer exist (writes and attributes may be logged after a removal).
//!
//! A record that cannot be replayed ends the replay, and the log stays from that record on: another version of the
//! program, or the same one after space has been freed, continues with it. [`discard`] discards the log.
//!
//! Differs from OpenZFS, which frees the log after a record that cannot be replayed, so that all records after it are lost.
//!
//! Source: `zil_replay`, zil.c, OpenZFS 2.3.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ondisk::Endian;
use ondisk::objset::ZilHeader;
use ondisk::zil::{LogRecord, LrCommon, TxType};
use stdx::{AlignedBuf, Buf};

use super::log::{LogHost, Zil};
use super::{ChainBlock, chain, write_data};
use crate::dmu::{LiveObjset, Objset};
use crate::error::{Error, Kind, Result};

/// Object number in a record; higher bits contain the number of slots of its dnode.
const OBJECT_MASK: u64 = (1 << 48) - 1;

/// A record to be replayed.
#[derive(Debug)]
pub struct Record<'a> {
    /// Its type, with the flag for case-insensitive names.
    pub txtype: TxType,
    /// Order of the integers in its ACL entries.
    pub endian: Endian,
    /// The record.
    pub record: LogRecord<'a>,
    /// For a write: the bytes, and their offset. They may be a whole block around the write; the file then ends
    /// where it did, or where the write did if that is later.
    pub data: Option<(u64, Buf)>,
}

/// Replays records: a file system, a volume.
pub trait Replayer {
    /// Replays a record, in a transaction in which it notifies the log: by [`Zil::assign`], as usual, or by
    /// [`Zil::replayed_in`].
    fn replay(&mut self, log: &Zil, record: &Record<'_>) -> Result<()>;
}

/// The result of a replay.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Replayed records.
    pub done: u64,
    /// Records without an effect any more.
    pub(crate) skipped: u64,
    /// The reason of an end before the end of the log, which is kept.
    pub error: Option<Error>,
    /// Waiting records: the one that could not be replayed, and those after it.
    pub lost: u64,
}

impl Replayed {
    /// The replay, unless it ended early.
    ///
    /// # Errors
    /// The reason of the early end, with the recommended action.
    pub fn complete(self) -> Result<Self> {
        match self.error {
            None => Ok(self),
            Some(e) => {
                let records = if self.lost == 1 {
                    "record of its intent log waits"
                } else {
                    "records of its intent log wait"
                };
                let what = format!("{e}; {} {records}; 'zfs discard-log' gives them up", self.lost);
                Err(Error::new(e.kind(), what))
            }
        }
    }
}

/// A record that was not replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreplayed {
    /// Its number.
    pub seq: u64,
    /// Its txg.
    pub txg: u64,
    /// Name of its type.
    pub kind: String,
    /// Its object.
    pub object: Option<u64>,
    /// For a write or truncation: offset, and number of bytes.
    pub range: Option<(u64, u64)>,
    /// For names: the last one that it adds or removes.
    pub name: Option<Vec<u8>>,
}

/// Unreplayed records of a log, in order. Without the key of an encrypted dataset only unencrypted fields are
/// returned.
pub fn waiting(view: &Arc<Objset>) -> Vec<Unreplayed> {
    let header = view.phys.zil_header;
    let due = |head: &LrCommon| head.seq > header.replay_seq && head.txg >= header.claim_txg;
    let told = |(head, record): (LrCommon, Result<LogRecord<'_>>)| {
        let mut one = Unreplayed {
            seq: head.seq,
            txg: head.txg,
            kind: TxType(head.txtype).name().to_owned(),
            object: None,
            range: None,
            name: None,
        };
        if let Ok(record) = record {
            one.object = object_of(&record);
            (one.range, one.name) = place_of(&record);
        }
        one
    };
    let all = chain(view)
        .flat_map(|block| block.records().filter(|(head, _)| due(head)).map(told).collect::<Vec<_>>());
    all.collect()
}

/// The range or the name of a record.
fn place_of(record: &LogRecord<'_>) -> (Option<(u64, u64)>, Option<Vec<u8>>) {
    match record {
        LogRecord::Write(w) | LogRecord::Write2(w) => (Some((w.lr.offset, w.lr.length)), None),
        LogRecord::Truncate(t) => (Some((t.offset, t.length)), None),
        LogRecord::Create(c) => (None, Some(c.name.to_vec())),
        LogRecord::CreateAcl(c) => (None, Some(c.name.to_vec())),
        LogRecord::Remove(r) => (None, Some(r.name.to_vec())),
        LogRecord::Link(l) => (None, Some(l.name.to_vec())),
        LogRecord::Rename(r) | LogRecord::RenameExchange(r) => (None, Some(r.target.to_vec())),
        _ => (None, None),
    }
}

/// Frees the log of a dataset that is not in use; its waiting records are lost. Returns those records.
///
/// # Errors
/// `Busy` if the dataset is in use.
pub fn discard(objset: &Arc<LiveObjset>, host: Arc<dyn LogHost>) -> Result<Vec<Unreplayed>> {
    let log = Zil::open(objset, host)?;
    let view = objset.view();
    let lost = waiting(&view);
    if !log.begin_replay() {
        return log.close().map(|()| Vec::new());
    }
    let ended = log.end_replay(&view, false);
    if ended.is_err() {
        log.abandon_replay();
    }
    log.close()?;
    ended.map(|()| lost)
}

/// Replays the log, if necessary, and frees it.
///
/// # Errors
/// The pool's error.
#[doc(alias = "zil_replay")]
pub fn replay(log: &Arc<Zil>, replayer: &mut dyn Replayer) -> Result<Replayed> {
    let objset = log.objset()?;
    if !log.begin_replay() {
        return Ok(Replayed::default());
    }
    let view = objset.view();
    let header = view.phys.zil_header;
    let mut outcome = Replayed::default();
    if header.flags & ZilHeader::REPLAY_NEEDED != 0 {
        let (mut reached, mut blocks) = (0, chain(&view));
        for block in blocks.by_ref() {
            outcome.error = replay_block(log, &view, &block, replayer, (&mut outcome, &mut reached)).err();
            if outcome.error.is_some() {
                outcome.lost = due_from(&view, reached);
                log.abandon_replay();
                return Ok(outcome);
            }
        }
        if let Some((why, lost)) = blocks.unreached(header.replay_seq) {
            let what = "a block of the log can no longer be read";
            (outcome.error, outcome.lost) = (Some(Error::new(why.kind(), what).because(why.clone())), lost);
            log.abandon_replay();
            return Ok(outcome);
        }
    }
    let ended = log.end_replay(&view, header.flags & ZilHeader::REPLAY_NEEDED == 0);
    if let Err(e) = ended {
        log.abandon_replay();
        return Err(e);
    }
    Ok(outcome)
}

/// Number of records from `seq` on that are to be replayed.
fn due_from(view: &Arc<Objset>, seq: u64) -> u64 {
    let claim = view.phys.zil_header.claim_txg;
    let due = |block: ChainBlock| block.records().filter(|(h, _)| h.seq >= seq && h.txg >= claim).count();
    chain(view).map(|block| u64::try_from(due(block)).unwrap_or(0)).sum()
}

fn replay_block(
    log: &Arc<Zil>,
    view: &Arc<Objset>,
    block: &ChainBlock,
    replayer: &mut dyn Replayer,
    (outcome, reached): (&mut Replayed, &mut u64),
) -> Result<()> {
    let (header, live) = (view.phys.zil_header, log.objset()?);
    let endian = block.decode().map_or(Endian::Little, |b| b.endian);
    for (head, record) in block.records() {
        let txtype = TxType(head.txtype);
        if head.seq <= header.replay_seq || head.txg < header.claim_txg {
            outcome.skipped += 1;
            continue;
        }
        *reached = head.seq;
        let named = |e: Error| {
            let what = format!("log record {} ({}) cannot be replayed", head.seq, txtype.name());
            Error::new(e.kind(), what).because(e)
        };
        let record = record.map_err(named)?;
        let object = object_of(&record).map_or_else(String::new, |object| format!(", object {object}"));
        let named = |e: Error| {
            let what = format!("log record {} ({}{object}) cannot be replayed", head.seq, txtype.name());
            Error::new(e.kind(), what).because(e)
        };
        if is_gone(&live, &record).map_err(named)? {
            outcome.skipped += 1;
            continue;
        }
        let data = data_of(view, &record).map_err(named)?;
        let record = Record { txtype, endian, record, data };
        log.set_replaying(head.seq);
        if one(log, replayer, &record).map_err(named)?.is_err() {
            // A removed object may keep its number until its txg is on disk.
            log.host.wait_all().map_err(named)?;
            one(log, replayer, &record).and_then(|done| done).map_err(named)?;
        }
        outcome.done += 1;
    }
    Ok(())
}

/// Replays one record. The inner error is the record's; the outer one is a panic, after which the replay stops.
fn one(log: &Arc<Zil>, replayer: &mut dyn Replayer, record: &Record<'_>) -> Result<Result<()>> {
    catch_unwind(AssertUnwindSafe(|| replayer.replay(log, record)))
        .map_err(|_| Error::new(Kind::Invalid, "this program has a fault"))
}

/// The existing object that a record changes.
fn object_of(record: &LogRecord<'_>) -> Option<u64> {
    let object = match record {
        LogRecord::Write(w) | LogRecord::Write2(w) => w.lr.foid,
        LogRecord::Truncate(t) => t.foid,
        LogRecord::Setattr(s) => s.lr.foid,
        LogRecord::AclV0(a) => a.lr.foid,
        LogRecord::Acl(a) => a.foid,
        LogRecord::Setsaxattr(s) => s.lr.foid,
        LogRecord::CloneRange(c) => c.lr.foid,
        _ => return None,
    };
    Some(object & OBJECT_MASK)
}

/// Whether a record that may come late refers to an object that no longer exists.
///
/// # Errors
/// Those of reading the object's dnode.
#[doc(alias = "TX_OOO")]
pub fn is_gone(objset: &LiveObjset, record: &LogRecord<'_>) -> Result<bool> {
    let Some(object) = object_of(record) else { return Ok(false) };
    match objset.handle(object) {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == Kind::NotFound => Ok(true),
        Err(e) => Err(e),
    }
}

/// The bytes of a write and their offset.
///
/// # Errors
/// Those of reading the block of a record that holds only a pointer to it.
pub fn data_of(view: &Arc<Objset>, record: &LogRecord<'_>) -> Result<Option<(u64, Buf)>> {
    let LogRecord::Write(write) = record else { return Ok(None) };
    if let Some(data) = write.data {
        return Ok(Some((write.lr.offset, data.into())));
    }
    let (start, size) = write.block_range();
    if size > MAX_DATA {
        return Err(Error::corrupt("a write is larger than any block"));
    }
    if write.lr.blkptr.is_hole() {
        return Ok(Some((start, AlignedBuf::zeroed(usize::try_from(size).unwrap_or(0)).into())));
    }
    Ok(Some((start, write_data(view, &write.lr)?)))
}

/// Maximum size of a block.
const MAX_DATA: u64 = 16 << 20;
