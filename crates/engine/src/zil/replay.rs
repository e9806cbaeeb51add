//! Replay: what the log of before an import says is done again, record by record, in its order.
//!
//! Each record is done in a transaction that also notes its number; the number reaches the log's head with the same
//! group as the changes. So a crash in the middle goes on where it was: no record is done twice or left out. When
//! all are done the chain is freed.
//!
//! Not done again are: records of groups that were on disk at the import, records that an earlier replay has done, and
//! what happened to objects that no longer exist (writes and attributes may be logged after a removal).
//!
//! Source: `zil_replay`, zil.c, OpenZFS 2.3.

use std::sync::Arc;

use ondisk::Endian;
use ondisk::objset::ZilHeader;
use ondisk::zil::{LogRecord, LrCommon, LrWrite, TxType};
use stdx::{AlignedBuf, Buf};

use super::log::Zil;
use super::{ChainBlock, chain, write_data};
use crate::dmu::Objset;
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
    /// Why it ended before the end of the log. What came behind is lost, as in OpenZFS.
    pub error: Option<Error>,
    /// Records that are lost: the one that could not be done again, and those behind it.
    pub lost: u64,
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
        let mut reached = 0;
        for block in chain(&view) {
            outcome.error = replay_block(log, &view, &block, replayer, (&mut outcome, &mut reached)).err();
            if outcome.error.is_some() {
                outcome.lost = due_from(&view, reached);
                break;
            }
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
        if is_gone(log, &record)? {
            outcome.skipped += 1;
            continue;
        }
        let data = data_of(view, &record).map_err(named)?;
        let record = Record { head, txtype, endian, record, data };
        log.set_replaying(head.seq);
        if replayer.replay(log, &record).is_err() {
            // What was removed may still take its number until its group is on disk.
            log.host.wait_all()?;
            replayer.replay(log, &record).map_err(named)?;
        }
        outcome.done += 1;
    }
    Ok(())
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
