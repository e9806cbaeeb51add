//! Claiming: marks the blocks of an unreplayed intent log as allocated.
//!
//! Blocks of the log, and blocks that its write records point to, were allocated in txgs that never reached the
//! disk: the space maps show them as free. So before anything else is written after an import, each chain is walked
//! and its blocks born in such a txg are claimed in the first txg. The header of the log then records the end of
//! the claim; no later reader looks beyond, even if a missing device returns with more.
//!
//! The block of a chain's last pointer is claimed, too, although it was never written: it was allocated, and
//! freeing the chain frees it.
//!
//! A write record whose block is unreadable ends the log: its commit was never acknowledged, because that happens
//! only when record and block are on disk.
//!
//! Before anything is claimed each chain is read to its end: if devices, and not checksums, fail, the import is
//! refused ([`check`]), unless logs may be lost.
//!
//! Crash argument: claims and the new header reach the disk with the same uberblock. Before it the log is unclaimed
//! and no part of it is overwritten, because all claims are made before the txg allocates its first block.
//!
//! Blocks that are to be cloned are on disk. Until the log is freed each record holds a reference to each of its
//! blocks ([`Claimed::clones`]), so that replay finds them whatever happens to the files that they were cloned from.
//!
//! Source: `zil_claim`, `zil_parse`, zil.c, OpenZFS 2.3. Differs from it: an already allocated block that is
//! new according to the log ends the log, like a failed claim.

use std::collections::BTreeSet;
use std::sync::Arc;

use ondisk::objset::ZilHeader;
use ondisk::zil::{CloneRange, LogRecord, LrCommon, LrWrite};
use ondisk::{Blkptr, Dva};

use super::{ChainBlock, chain_as};
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::types::Bookmark;
use crate::vdev::leaf::Leaf;
use crate::zio::alloc::Allocator;
use crate::zio::suspend::is_of_devices;
use crate::zio::{Form, ReadOptions, gang_parts};

/// The result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// The log's header to be written.
    pub(crate) header: ZilHeader,
    /// The highest birth txg of a claimed block: no earlier txg may be the pool's last.
    pub(crate) newest: u64,
    /// Blocks of the chain, including the one that was never written.
    pub(crate) blocks: u64,
    /// Records.
    pub(crate) records: u64,
    /// Blocks of clone records: each gets a reference for each time that it is listed.
    pub(crate) clones: Vec<Blkptr>,
}

/// Whether the log of an object set has to be claimed.
pub(crate) fn is_due(header: &ZilHeader) -> bool {
    header.claim_txg == 0 && !header.log.is_hole()
}

/// Claims the log of `objset`, in its on-disk state, in syncing txg `txg`, the first since the pool was opened.
/// Needs no key.
#[doc(alias = "zil_claim")]
pub(crate) fn claim(objset: &Arc<Objset>, allocator: &dyn Allocator, txg: u64) -> Claimed {
    let (claimed, clones) = (BTreeSet::new(), Vec::new());
    let mut walk = Walk { objset, allocator, txg, claimed, clones, newest: txg };
    let header = objset.phys.zil_header;
    let (mut block_seq, mut record_seq, mut blocks, mut records) = (0, 0, 0, 0);
    let mut chain = chain_as(objset, Form::NoKey);
    while let Some(bp) = chain.peek() {
        if walk.block(&bp).is_err() {
            break;
        }
        block_seq = ondisk::zil::LogBlock::sequence(&bp);
        blocks += 1;
        let Some(block) = chain.next() else { break };
        let (count, last, whole) = walk.records(&block);
        records += count;
        record_seq = if count > 0 { last } else { record_seq };
        if !whole {
            break;
        }
    }
    let needed = if records > 0 || blocks > 1 { ZilHeader::REPLAY_NEEDED } else { 0 };
    let header = ZilHeader {
        claim_txg: txg,
        claim_blk_seq: block_seq,
        claim_lr_seq: record_seq,
        flags: header.flags | needed | ZilHeader::CLAIM_LR_SEQ_VALID,
        ..header
    };
    Claimed { header, newest: walk.newest, blocks, records, clones: walk.clones }
}

/// Checks that devices return all of a log that is to be claimed in txg `txg`. A log ends at a block that was never
/// finished, which its checksum shows; when a device fails it is unknown whether the log continued, and a claim
/// would end it there for good.
///
/// # Errors
/// The devices' error.
#[doc(alias = "zil_check_log_chain")]
pub(crate) fn check(objset: &Arc<Objset>, txg: u64) -> Result<()> {
    let mut chain = chain_as(objset, Form::NoKey);
    while let Some(bp) = chain.peek() {
        let Some(block) = chain.next() else {
            return chain.end().map_or(Ok(()), |why| judge(objset, &bp, super::place(&bp), why));
        };
        for (_, record) in block.records() {
            if let Ok(LogRecord::Write(write)) = &record
                && write.data.is_none()
                && let Err(why) = read_placed(objset, &write.lr, txg)
            {
                return judge(objset, &write.lr.blkptr, super::place_of_write(objset, &write.lr), &why);
            }
        }
    }
    Ok(())
}

/// Whether devices are to blame for an unreadable block: they fail, and more of them than the redundancy covers. If
/// fewer fail, the block was reconstructed and is wrong.
fn judge(objset: &Arc<Objset>, bp: &Blkptr, at: Bookmark, why: &Error) -> Result<()> {
    let zio = objset.arc().zio();
    let options = ReadOptions { form: Form::Physical, speculative: true, ..ReadOptions::default() };
    let outcome = zio.read_wait(bp, at, options);
    let fails = |leaf: &Leaf| outcome.damage.iter().any(|damage| damage.leaf == leaf.guid);
    let is_there = |dva: Dva| zio.tree().top(u64::from(dva.vdev)).is_some_and(|top| top.can_lose(&fails));
    match is_of_devices(why) && outcome.data.is_err() && !bp.dvas().any(is_there) {
        true => Err(why.clone()),
        false => Ok(()),
    }
}

/// Whether a claim in txg `txg` ends the log at a record: at a write whose block is not on disk, and at a clone of such blocks.
/// Its commit was never acknowledged.
pub(super) fn ends_at(objset: &Arc<Objset>, record: &LogRecord<'_>, txg: u64) -> bool {
    match record {
        LogRecord::Write(write) if write.data.is_none() => read_placed(objset, &write.lr, txg).is_err(),
        LogRecord::CloneRange(clone) => names_unwritten(clone, txg),
        _ => false,
    }
}

/// Whether a clone record names a block that was not on disk before txg `txg`.
fn names_unwritten(clone: &CloneRange, txg: u64) -> bool {
    super::referenced(clone).any(|bp| bp.physical_birth() >= txg || bp.dva(0).is_none())
}

/// Reads the block of a write record, if it was born in a txg that never reached the disk; returns whether it was.
fn read_placed(objset: &Arc<Objset>, lr: &LrWrite, txg: u64) -> Result<bool> {
    if lr.blkptr.is_hole() || lr.blkptr.accounting_birth() < txg {
        return Ok(false);
    }
    let at = super::place_of_write(objset, lr);
    // Its write may have been incomplete when the power failed.
    let options = ReadOptions { form: Form::Physical, speculative: true, ..ReadOptions::default() };
    objset.arc().zio().read_wait(&lr.blkptr, at, options).data?;
    Ok(true)
}

struct Walk<'a> {
    objset: &'a Arc<Objset>,
    allocator: &'a dyn Allocator,
    txg: u64,
    /// Blocks by vdev and offset of their first copy: a record may name a block again.
    claimed: BTreeSet<(u32, u64)>,
    clones: Vec<Blkptr>,
    newest: u64,
}

impl Walk<'_> {
    /// Claims a block that was born in a txg that never reached the disk.
    fn block(&mut self, bp: &Blkptr) -> Result<()> {
        let Some(first) = bp.dvas().next().filter(|_| !bp.is_hole() && !bp.is_embedded()) else {
            return Ok(());
        };
        if bp.accounting_birth() < self.txg || !self.claimed.insert((first.vdev, first.offset)) {
            return Ok(());
        }
        self.newest = self.newest.max(bp.accounting_birth());
        let parts = if bp.is_gang() { gang_parts(self.objset.arc().zio(), bp)? } else { vec![*bp] };
        for dva in parts.iter().flat_map(|part| part.dvas()) {
            if !self.allocator.claim(&dva, self.txg)? {
                return Err(Error::corrupt("a block of an intent log is in use elsewhere"));
            }
        }
        Ok(())
    }

    /// Claims the blocks named by the records of a block. Returns the number of records, the number of the last,
    /// and whether the log continues after them.
    fn records(&mut self, block: &ChainBlock) -> (u64, u64, bool) {
        let (mut count, mut last) = (0, 0);
        for (head, record) in block.records() {
            if head.reclen < 32 {
                break;
            }
            if let Ok(LogRecord::Write(write)) = &record
                && write.data.is_none()
                && self.write(&head, &write.lr).is_err()
            {
                return (count, last, false);
            }
            if let Ok(LogRecord::CloneRange(clone)) = &record
                && self.clone_range(clone).is_err()
            {
                return (count, last, false);
            }
            (count, last) = (count + 1, head.seq);
        }
        (count, last, true)
    }

    /// Takes a reference to each block of a clone record. One that was never on disk ends the log.
    #[doc(alias = "zil_claim_clone_range")]
    fn clone_range(&mut self, clone: &CloneRange) -> Result<()> {
        if names_unwritten(clone, self.txg) {
            return Err(Error::corrupt("a clone record names a block that is not on disk"));
        }
        self.clones.extend(super::referenced(clone));
        Ok(())
    }

    /// Claims the block of a write record, if it is readable.
    fn write(&mut self, _: &LrCommon, lr: &LrWrite) -> Result<()> {
        if !read_placed(self.objset, lr, self.txg)? {
            return Ok(());
        }
        self.block(&lr.blkptr)
    }
}
