//! Replay: what the log of before an import says is done again, record by record, in its order.
//!
//! Each record is done in a transaction that also notes its number; the number reaches the log's head with the same
//! group as the changes. So a crash in the middle goes on where it was: no record is done twice or left out. When
//! all are done the chain is freed.
//!
//! Not done again are: records of groups that were on disk at the import, records that an earlier replay has done, and
//! what happened to objects that no longer exist (writes and attributes may be logged after a removal).
//!
//! A record that can't be done again ends the replay, and the log stays from that record on: the same program in another
//! version, or after more space is there, goes on with it. [`discard`] gives the log up.
//!
//! Differs from OpenZFS, which frees the log then, and all that is behind the record is lost.
//!
//! Source: `zil_replay`, zil.c, OpenZFS 2.3.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ondisk::Endian;
use ondisk::objset::ZilHeader;
use ondisk::zil::{LogRecord, LrCommon, LrWrite, TxType};
use stdx::{AlignedBuf, Buf};

use super::log::{LogHost, Zil};
use super::{ChainBlock, chain, write_data};
use crate::dmu::{LiveObjset, Objset};
use crate::error::{Error, Kind, Result};

/// Object number in a record; bits above say how many slots its dnode has.
const OBJECT_MASK: u64 = (1 << 48) - 1;

/// A record to be done again.
#[derive(Debug)]
pub struct Record<'a> {
    /// Its head.
    pub head: LrCommon,
    /// Its type, with the flag for names without case.
    pub txtype: TxType,
    /// Order of the integers in its ACL entries.
    pub endian: Endian,
    /// The record.
    pub record: LogRecord<'a>,
    /// For a write: the bytes, and the offset that they belong to. They may be a whole block around what was written;
    /// the file then ends where it did, or where the write did if that is later.
    pub data: Option<(u64, Buf)>,
}

/// Does records again: a file system, a volume.
pub trait Replayer {
    /// Does a record again, in a transaction in which it tells the log: by [`Zil::assign`], as always, or by
    /// [`Zil::replayed_in`].
    fn replay(&mut self, log: &Zil, record: &Record<'_>) -> Result<()>;
}

/// What a replay came to.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Records done again.
    pub done: u64,
    /// Records that had nothing to do any more.
    pub skipped: u64,
    /// Why it ended before the end of the log, which is kept.
    pub error: Option<Error>,
    /// Records that wait: the one that could not be done again, and those behind it.
    pub lost: u64,
}

impl Replayed {
    /// The replay, unless it ended early: then what to do is said.
    ///
    /// # Errors
    /// Why it ended early.
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

/// A record that was not done again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its number.
    pub seq: u64,
    /// Its group.
    pub txg: u64,
    /// Name of its type.
    pub kind: String,
    /// The object that it is about.
    pub object: Option<u64>,
    /// For a write or truncation: where, and how many bytes.
    pub range: Option<(u64, u64)>,
    /// For names: the last one that it gives or takes.
    pub name: Option<Vec<u8>>,
}

/// Records of a log that were not done again, in their order. Without the key of an encrypted dataset only what is clear
/// is told.
pub fn waiting(view: &Arc<Objset>) -> Vec<Waiting> {
    let header = view.phys.zil_header;
    let due = |head: &LrCommon| head.seq > header.replay_seq && head.txg >= header.claim_txg;
    let told = |(head, record): (LrCommon, Result<LogRecord<'_>>)| {
        let mut one = Waiting {
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

/// The range or the name that a record is about.
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

/// Frees the log of a dataset that is not in use, and what waits in it is lost. Gives those records.
///
/// # Errors
/// `Busy` when the dataset is in use.
pub fn discard(objset: &Arc<LiveObjset>, host: Arc<dyn LogHost>) -> Result<Vec<Waiting>> {
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

/// Replays the log, if that is due, and frees it.
///
/// # Errors
/// What the pool fails with.
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
            let what = "a block of the log can't be read any more";
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

/// Records from the number `seq` on that are to be done again.
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
    let header = view.phys.zil_header;
    let endian = block.decode().map_or(Endian::Little, |b| b.endian);
    for (head, record) in block.records() {
        let txtype = TxType(head.txtype);
        if head.seq <= header.replay_seq || head.txg < header.claim_txg {
            outcome.skipped += 1;
            continue;
        }
        *reached = head.seq;
        let named = |e: Error| {
            let what = format!("log record {} ({}) can't be replayed", head.seq, txtype.name());
            Error::new(e.kind(), what).because(e)
        };
        let record = record.map_err(named)?;
        let object = object_of(&record).map_or_else(String::new, |object| format!(", object {object}"));
        let named = |e: Error| {
            let what = format!("log record {} ({}{object}) can't be replayed", head.seq, txtype.name());
            Error::new(e.kind(), what).because(e)
        };
        if is_gone(log, &record).map_err(named)? {
            outcome.skipped += 1;
            continue;
        }
        let data = data_of(view, &record).map_err(named)?;
        let record = Record { head, txtype, endian, record, data };
        log.set_replaying(head.seq);
        if one(log, replayer, &record).map_err(named)?.is_err() {
            // What was removed may still take its number until its group is on disk.
            log.host.wait_all().map_err(named)?;
            one(log, replayer, &record).and_then(|done| done).map_err(named)?;
        }
        outcome.done += 1;
    }
    Ok(())
}

/// Does one record again. An error of its own is inside; outside is a panic, after which nothing is tried again.
fn one(log: &Arc<Zil>, replayer: &mut dyn Replayer, record: &Record<'_>) -> Result<Result<()>> {
    catch_unwind(AssertUnwindSafe(|| replayer.replay(log, record)))
        .map_err(|_| Error::new(Kind::Invalid, "this program has a fault"))
}

/// The object that a record changes, which is there before.
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

/// Whether a record that may come late is about an object that no longer exists.
#[doc(alias = "TX_OOO")]
fn is_gone(log: &Zil, record: &LogRecord<'_>) -> Result<bool> {
    let Some(object) = object_of(record) else { return Ok(false) };
    match log.objset()?.handle(object) {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == Kind::NotFound => Ok(true),
        Err(e) => Err(e),
    }
}

/// The bytes of a write and where they belong.
fn data_of(view: &Arc<Objset>, record: &LogRecord<'_>) -> Result<Option<(u64, Buf)>> {
    let LogRecord::Write(write) = record else { return Ok(None) };
    if let Some(data) = write.data {
        return Ok(Some((write.lr.offset, data.into())));
    }
    let LrWrite { offset, length, blkptr, .. } = write.lr;
    let size = if blkptr.is_hole() { length } else { blkptr.lsize() };
    if size > MAX_DATA {
        return Err(Error::corrupt("a write is larger than any block"));
    }
    // The block holds what was around the write, too.
    let start = if length < size { offset - offset % size } else { offset };
    if blkptr.is_hole() {
        return Ok(Some((start, AlignedBuf::zeroed(usize::try_from(size).unwrap_or(0)).into())));
    }
    Ok(Some((start, write_data(view, &write.lr)?)))
}

/// Largest block.
const MAX_DATA: u64 = 16 << 20;
