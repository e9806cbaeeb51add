//! A volume's intent log, replayed: writes, clones and discards of its one object.

use std::sync::Arc;

use engine::dmu::dirty::LONG;
use engine::dmu::{Handle, LiveObjset, Tx};
use engine::spa::Spa;
use engine::types::Bookmark;
use engine::zil::Zil;
use engine::zil::replay::{Record, Replayer};
use engine::zio::ReadOptions;
use engine::{Error, Result};
use ondisk::names::ZVOL_OBJECT;
use ondisk::zil::{CloneRange, LogRecord};
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
        let handle = self.objset.handle(ZVOL_OBJECT)?;
        if let LogRecord::Truncate(t) = &record.record {
            let (size, end) = (handle.dnode().datablksz().max(1), t.offset.saturating_add(t.length));
            handle.free_long(t.offset.div_ceil(size), end / size, &|| self.spa.begin_free(None))?;
        }
        if let LogRecord::CloneRange(clone) = &record.record {
            return self.copy_clones(log, &handle, clone);
        }
        let tx = self.spa.begin()?;
        match (&record.record, &record.data) {
            (LogRecord::Write(_), Some((offset, data))) => handle.write(&tx, *offset, data)?,
            (LogRecord::Truncate(t), _) => discard(&handle, &tx, t.offset, t.length)?,
            (LogRecord::Commit, _) => {}
            _ => {
                let what = format!("a volume's log has no {} records", record.txtype.name());
                return Err(Error::unsupported(what));
            }
        }
        log.replayed_in(&tx);
        Ok(())
    }
}

impl VolumeReplay {
    /// Writes the bytes of cloned blocks; the log has references of its own to them.
    #[doc(alias = "zvol_replay_clone_range")]
    fn copy_clones(&self, log: &Zil, handle: &Arc<Handle>, clone: &CloneRange) -> Result<()> {
        let (lr, mut at) = (clone.lr, clone.lr.offset);
        let end = lr.offset.saturating_add(lr.length);
        if lr.blksz == 0 || lr.blksz > MAX_BLOCK_SIZE {
            return Err(Error::corrupt("blocks of a clone are larger than any block"));
        }
        let mut left = clone.bps.iter().peekable();
        while let Some(bp) = left.next() {
            let len = lr.blksz.min(end.saturating_sub(at));
            let bytes = if bp.is_hole() { None } else { Some(self.cloned(bp, at)?) };
            let tx = self.spa.begin()?;
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
                log.replayed_in(&tx);
            }
            at = at.saturating_add(lr.blksz);
        }
        Ok(())
    }

    fn cloned(&self, bp: &Blkptr, offset: u64) -> Result<Buf> {
        let blkid = offset.checked_div(bp.lsize()).unwrap_or(0);
        let place = Bookmark::new(self.objset.id, ZVOL_OBJECT, 0, blkid);
        self.objset.arc().zio().read_wait(bp, place, ReadOptions::default()).data
    }
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
