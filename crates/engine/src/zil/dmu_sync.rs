//! Large writes of a commit: their blocks are written to their final location, and records point to them.
//!
//! All blocks of a commit are written together, under one transaction, before its first record. A written block
//! replaces the waiting bytes in the object ([`Handle::place_block`]); if they were changed meanwhile, the block is
//! used by the record alone, and is freed with its txg.
//!
//! Crash argument: the block is born in the txg of the write, which is open. If that txg reaches the disk the
//! record is not needed; if not, the next import finds the block's space free, claims it with the log, and frees it
//! when the log has been replayed. A claim requires both record and block on disk, and both are flushed before the
//! commit returns.
//!
//! A block whose new bytes equal its present ones, under a sufficiently strong checksum, is not written: the record
//! points to its present location. That block was born in a txg on disk, so no import claims it or frees it with
//! the log; and it is not freed before the txg of the write, so it exists as long as the record may be needed. That
//! holds only for a block that no unsynced txg changes ([`Handle::settled`]).
//!
//! A write whose block was freed since is logged as a hole.
//!
//! Differs from OpenZFS: writes of a txg that is no longer open are copied into the log instead of written to a
//! block of their own; all records of one block point to it, where OpenZFS lets only the first do so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ondisk::Blkptr;
use ondisk::zil::LrWrite;

use super::itx::{Itx, Payload, pointing};
use super::log::Zil;
use crate::arc::write::write_all;
use crate::dmu::LiveObjset;
use crate::dmu::dirty::{Handle, PendingBlock};
use crate::error::{Kind, Result};
use crate::types::Bookmark;
use crate::zio::dedup::Dedup;
use crate::zio::write::{WriteProps, WriteRequest};

/// Records of a commit, ready for the log, and the vdevs of their blocks.
#[derive(Debug, Default)]
pub(super) struct PlacedRecords {
    pub(crate) itxs: Vec<Itx>,
    pub(crate) tops: BTreeSet<u32>,
}

/// The result for a block.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    /// It is at this location.
    At(Blkptr),
    /// The log takes the data.
    Copy,
}

/// A block to be written.
struct Job {
    handle: Arc<Handle>,
    key: (u64, u64),
    bytes: stdx::Buf,
}

/// The block that contains a write.
fn key_of(handle: &Handle, lr: &LrWrite) -> Option<(u64, u64)> {
    let size = handle.dnode().datablksz().max(1);
    let within = lr.offset % size + lr.length <= size;
    within.then(|| (lr.foid, lr.offset / size))
}

impl Zil {
    /// Writes the blocks of all writes that are to be placed.
    #[doc(alias = "dmu_sync")]
    pub(super) fn place(&self, objset: &Arc<LiveObjset>, itxs: Vec<Itx>) -> Result<PlacedRecords> {
        let wants = |itx: &Itx| matches!(itx.payload, Payload::Placed(_));
        if !itxs.iter().any(wants) {
            return Ok(PlacedRecords { itxs, tops: BTreeSet::new() });
        }
        let outcomes = self.write_blocks(objset, &itxs)?;
        let mut done = PlacedRecords::default();
        for itx in itxs {
            let Payload::Placed(lr) = itx.payload else {
                done.itxs.push(itx);
                continue;
            };
            let key = objset.handle(lr.foid).ok().and_then(|handle| key_of(&handle, &lr));
            let outcome = key.and_then(|key| outcomes.get(&(itx.txg, key)));
            let payload = match outcome {
                Some(Outcome::At(bp)) => {
                    done.tops.extend(bp.dvas().map(|dva| dva.vdev));
                    Payload::Whole(pointing(&LrWrite { blkptr: *bp, ..lr }, itx.txg))
                }
                Some(Outcome::Copy) | None => Payload::Read(lr),
            };
            done.itxs.push(Itx { payload, ..itx });
        }
        Ok(done)
    }

    /// The result for each block, by txg, object and number.
    fn write_blocks(
        &self,
        objset: &Arc<LiveObjset>,
        itxs: &[Itx],
    ) -> Result<BTreeMap<(u64, (u64, u64)), Outcome>> {
        let tx = self.host.begin()?;
        let (txg, mut outcomes, mut jobs, mut requests) = (tx.txg(), BTreeMap::new(), Vec::new(), Vec::new());
        for itx in itxs.iter().filter(|itx| itx.txg == txg) {
            let Payload::Placed(lr) = &itx.payload else { continue };
            let handle = match objset.handle(lr.foid) {
                Ok(handle) => handle,
                Err(e) if e.kind() == Kind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let Some(key) = key_of(&handle, lr).filter(|key| !outcomes.contains_key(&(txg, *key))) else {
                continue;
            };
            let outcome = match handle.waiting(txg, key.1) {
                PendingBlock::Nothing => Outcome::Copy,
                // The record that frees it may be missing yet, or belong to a long free that is not done: without this one,
                // bytes from before the write would come back.
                PendingBlock::Hole => Outcome::At(Blkptr::default()),
                PendingBlock::Written(bp) => Outcome::At(bp),
                PendingBlock::Bytes(bytes) => {
                    requests.push(self.request(objset, &handle, key, bytes.clone(), txg));
                    jobs.push(Job { handle, key, bytes });
                    Outcome::Copy
                }
            };
            outcomes.insert((txg, key), outcome);
        }
        for (job, written) in jobs.into_iter().zip(write_all(objset.arc(), requests)) {
            // A block that cannot be placed, or not in one piece, may still fit into the log.
            let Ok(mut bp) = written else { continue };
            if !bp.is_hole() && !bp.is_embedded() {
                bp.set_fill(1);
            }
            job.handle.place_block(&tx, job.key.1, bp, &job.bytes)?;
            outcomes.insert((txg, job.key), Outcome::At(bp));
        }
        Ok(outcomes)
    }

    fn request(
        &self,
        objset: &LiveObjset,
        handle: &Handle,
        (object, blkid): (u64, u64),
        data: stdx::Buf,
        txg: u64,
    ) -> WriteRequest {
        let props = objset.policy().block(&handle.dnode(), 0);
        let on_disk = || handle.settled(txg, blkid).filter(|bp| bp.physical_birth() <= self.host.synced());
        let old = props.nopwrite.then(on_disk).flatten();
        // The dedup tables change in syncing context only: there the block enters them, or gives way to a stored copy.
        let dedup = if props.dedup == Dedup::Off { Dedup::Off } else { Dedup::Later };
        let props = WriteProps { nopwrite: old.is_some(), dedup, ..props };
        let at = Bookmark::new(objset.id, object, 0, blkid);
        let old = old.unwrap_or_default();
        let (stored, placed, keeps_birth) = (None, None, false);
        WriteRequest { stored, data, props, old, placed, keeps_birth, txg, at, may_wait: false }
    }
}
