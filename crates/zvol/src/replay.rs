//! A volume's intent log, replayed: writes, clones and discards of its one object. At an import they reach the disk; for a pool
//! that is only read they stay in memory ([`engine::zil::in_memory`]).

use std::sync::Arc;

use engine::dmu::dirty::LONG;
use engine::dmu::{Handle, LiveObjset, Objset, Tx};
use engine::dsl::Dataset;
use engine::dsl::due_log::DueLog;
use engine::spa::Spa;
use engine::types::Bookmark;
use engine::zil::Zil;
use engine::zil::in_memory::{InMemory, MAX_BYTES, WithLog};
use engine::zil::replay::{Record, Replayer, data_of};
use engine::zio::ReadOptions;
use engine::{Error, Result};
use ondisk::names::ZVOL_OBJECT;
use ondisk::zil::{CloneRange, LogRecord, TxType};
use ondisk::{Blkptr, MAX_BLOCK_SIZE};
use stdx::Buf;

/// Does the records of a volume's log again.
#[doc(alias = "zvol_replay_vector")]
#[derive(Debug)]
pub struct VolumeReplay {
    spa: Arc<Spa>,
    objset: Arc<LiveObjset>,
}

impl VolumeReplay {
    /// For the volume in `objset`.
    pub fn new(spa: &Arc<Spa>, objset: &Arc<LiveObjset>) -> Self {
        Self { spa: Arc::clone(spa), objset: Arc::clone(objset) }
    }
}

impl Replayer for VolumeReplay {
    fn replay(&mut self, log: &Zil, record: &Record<'_>) -> Result<()> {
        let data = record.data.as_ref().map(|(offset, bytes)| (*offset, &**bytes));
        let done = |tx: &Tx| {
            log.replayed_in(tx);
        };
        apply(&self.objset, &*self.spa, (record.txtype, &record.record), data, &done)
    }
}

/// The transactions of a replay.
trait Transactions {
    /// For a change of about `bytes` bytes.
    fn begin(&self, bytes: u64) -> Result<Tx>;
    /// For one that frees space.
    fn begin_free(&self) -> Result<Tx>;
}

impl Transactions for Spa {
    fn begin(&self, _: u64) -> Result<Tx> {
        Spa::begin(self)
    }

    fn begin_free(&self) -> Result<Tx> {
        Spa::begin_free(self, None)
    }
}

impl Transactions for InMemory {
    fn begin(&self, bytes: u64) -> Result<Tx> {
        InMemory::begin(self, bytes)
    }

    fn begin_free(&self) -> Result<Tx> {
        InMemory::begin(self, 0)
    }
}

/// Applies a record; `done` is called in the last of its transactions.
fn apply(
    objset: &Arc<LiveObjset>,
    txs: &dyn Transactions,
    (txtype, record): (TxType, &LogRecord<'_>),
    data: Option<(u64, &[u8])>,
    done: &dyn Fn(&Tx),
) -> Result<()> {
    let handle = objset.handle(ZVOL_OBJECT)?;
    if let LogRecord::Truncate(t) = record {
        let (size, end) = (handle.dnode().datablksz().max(1), t.offset.saturating_add(t.length));
        handle.free_long(t.offset.div_ceil(size), end / size, &|| txs.begin_free())?;
    }
    if let LogRecord::CloneRange(clone) = record {
        return copy_clones(objset, txs, &handle, clone, done);
    }
    let bytes = data.map_or(0, |(_, data)| data.len());
    let tx = txs.begin(u64::try_from(bytes).unwrap_or(u64::MAX))?;
    match (record, data) {
        (LogRecord::Write(_), Some((offset, data))) => handle.write(&tx, offset, data)?,
        (LogRecord::Truncate(t), _) => discard(&handle, &tx, t.offset, t.length)?,
        (LogRecord::Commit, _) => {}
        _ => {
            let what = format!("a volume's log has no {} records", txtype.name());
            return Err(Error::unsupported(what));
        }
    }
    done(&tx);
    Ok(())
}

/// Writes the bytes of cloned blocks; the log has references of its own to them.
#[doc(alias = "zvol_replay_clone_range")]
fn copy_clones(
    objset: &Arc<LiveObjset>,
    txs: &dyn Transactions,
    handle: &Arc<Handle>,
    clone: &CloneRange,
    done: &dyn Fn(&Tx),
) -> Result<()> {
    let (lr, mut at) = (clone.lr, clone.lr.offset);
    let end = lr.offset.saturating_add(lr.length);
    if lr.blksz == 0 || lr.blksz > MAX_BLOCK_SIZE {
        return Err(Error::corrupt("blocks of a clone are larger than any block"));
    }
    let mut left = clone.bps.iter().peekable();
    while let Some(bp) = left.next() {
        let len = lr.blksz.min(end.saturating_sub(at));
        let bytes = if bp.is_hole() { None } else { Some(cloned(objset, bp, at)?) };
        let tx = txs.begin(if bytes.is_some() { len } else { 0 })?;
        match bytes {
            None => discard(handle, &tx, at, len)?,
            Some(bytes) => {
                let bytes = usize::try_from(len).ok().and_then(|len| bytes.get(..len));
                let bytes = bytes.ok_or_else(|| Error::corrupt("a cloned block is too short"))?;
                handle.write(&tx, at, bytes)?;
            }
        }
        // The record is done with its last block.
        if left.peek().is_none() {
            done(&tx);
        }
        at = at.saturating_add(lr.blksz);
    }
    Ok(())
}

fn cloned(objset: &Arc<LiveObjset>, bp: &Blkptr, offset: u64) -> Result<Buf> {
    let blkid = offset.checked_div(bp.lsize()).unwrap_or(0);
    let place = Bookmark::new(objset.id, ZVOL_OBJECT, 0, blkid);
    objset.arc().zio().read_wait(bp, place, ReadOptions::default()).data
}

/// The volume `dataset`, whose object set is `plain`, with what its log holds, replayed in memory; `None` when there is nothing
/// to replay.
pub(crate) fn with_log(dataset: &Dataset, plain: &Arc<Objset>) -> Option<WithLog> {
    let due = DueLog::of(dataset, plain)?;
    let txs = InMemory::over(plain, due.synced, MAX_BYTES);
    let objset = Arc::clone(txs.scratch.objset());
    let replayed = due.replay(&mut |txtype, _, record| {
        let data = data_of(plain, record)?;
        let data = data.as_ref().map(|(offset, bytes)| (*offset, &**bytes));
        apply(&objset, &txs, (txtype, record), data, &|_| ())
    });
    (replayed.applied > 0 || !replayed.notes.is_empty()).then_some(WithLog { objset, replayed })
}

/// Makes a range read as zeros: whole blocks are freed, parts of blocks overwritten.
#[doc(alias = "dmu_free_long_range")]
pub fn discard(handle: &Arc<Handle>, tx: &Tx, offset: u64, length: u64) -> Result<()> {
    let size = handle.dnode().datablksz().max(1);
    let end = offset.saturating_add(length);
    let (first, last) = (offset.div_ceil(size), end / size);
    let zero = |from: u64, to: u64| {
        let len = usize::try_from(to.saturating_sub(from)).unwrap_or(0);
        handle.write(tx, from, &vec![0; len])
    };
    if first > last {
        return zero(offset, end);
    }
    zero(offset, first.saturating_mul(size))?;
    if first < last {
        tx.frees(last.min(handle.dnode().maxblkid.saturating_add(1)).saturating_sub(first).min(LONG));
        handle.free_blocks(tx, first, last)?;
    }
    zero(last.saturating_mul(size), end)
}
