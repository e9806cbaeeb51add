//! The intent log: this module reads the records that a crash left for replay; the log is claimed in [`claim`],
//! written in [`log`] and replayed in [`replay`].
//!
//! A dataset's log is a chain of blocks that starts in its object set's header. Every pointer of the chain names
//! the log (guid words), the dataset and the block's number in its checksum words, and a block is valid only if its
//! own trailer, computed over those words, is correct. So the chain needs no end mark: the last block points to
//! space where no block with the next number was ever finished.
//!
//! A log that an import has *claimed* also records its end: no block or record above the claimed numbers belongs to
//! it.
//!
//! A snapshot has no log: the log header in its root block is its file system's at that moment, synced since.
//!
//! Every block is read from its device, bypassing the cache: each is needed once.

pub(crate) mod claim;
mod commit_time;
mod dmu_sync;
pub mod in_memory;
mod itx;
mod log;
mod policy;
pub mod replay;
mod sync;
mod turn;
mod writer;

pub use itx::Itx;
pub use log::{LogHost, Zil};
pub use policy::{LogPolicy, Written};

use std::collections::BTreeSet;
use std::sync::Arc;

use ondisk::objset::ZilHeader;
use ondisk::zil::{CloneRange, LogBlock, LogRecord, LrCommon, LrWrite};
use ondisk::{Blkptr, Malformed, byteswap};
use stdx::Buf;

use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::types::Bookmark;
use crate::zio::{Form, ReadOptions};

/// Maximum blocks of a chain; no log is nearly as long.
const MAX_BLOCKS: u64 = 1 << 22;

/// A block of the log, read and verified.
#[derive(Debug, Clone)]
pub struct ChainBlock {
    /// Its pointer.
    pub bp: Blkptr,
    bytes: Buf,
    last_record: u64,
}

impl ChainBlock {
    /// Its number in the chain.
    pub(crate) fn sequence(&self) -> u64 {
        LogBlock::sequence(&self.bp)
    }

    /// The block, decoded.
    pub fn decode(&self) -> std::result::Result<LogBlock<'_>, Malformed> {
        LogBlock::from_bytes(&self.bytes, &self.bp)
    }

    /// Its records that belong to the log: common header and record. In an encrypted dataset without its key only
    /// the headers, and the fixed part of writes, are meaningful.
    pub fn records(&self) -> impl Iterator<Item = (LrCommon, Result<LogRecord<'_>>)> {
        let last = self.last_record;
        let at = place(&self.bp);
        let block = self.decode().ok();
        let records = block.into_iter().flat_map(|b| b.records());
        records
            .take_while(move |(head, _)| head.seq <= last)
            .map(move |(head, record)| (head, record.map_err(|e| Error::corrupt(e.to_string()).at_block(at))))
    }
}

/// The chain of an object set's log, block by block. It ends at the first missing block; [`Chain::end`] then
/// returns the reason.
#[derive(Debug)]
pub struct Chain {
    objset: Arc<Objset>,
    form: Form,
    next: Option<Blkptr>,
    last_block: u64,
    last_record: u64,
    /// The newest visited record.
    met: u64,
    read: u64,
    end: Option<Error>,
}

/// The log of `objset`, with decrypted records, for which the key is needed.
pub fn chain(objset: &Arc<Objset>) -> Chain {
    chain_as(objset, objset.form())
}

/// The log of `objset` in the given form: `Form::NoKey` leaves encrypted records as they are.
pub fn chain_as(objset: &Arc<Objset>, form: Form) -> Chain {
    let header = objset.phys.zil_header;
    let claimed = header.claim_txg != 0;
    let counted = claimed && header.flags & ZilHeader::CLAIM_LR_SEQ_VALID != 0;
    Chain {
        objset: Arc::clone(objset),
        form,
        next: Some(header.log),
        last_block: if claimed { header.claim_blk_seq } else { u64::MAX },
        last_record: if counted { header.claim_lr_seq } else { u64::MAX },
        met: 0,
        read: 0,
        end: None,
    }
}

impl Chain {
    /// The pointer to be read next: its block may not exist.
    pub fn peek(&self) -> Option<Blkptr> {
        self.next.filter(|bp| !bp.is_hole() && LogBlock::sequence(bp) <= self.last_block)
    }

    /// The reason of the chain's end, if it was not a hole or the last claimed block. A log that was never claimed
    /// always ends like this.
    pub fn end(&self) -> Option<&Error> {
        self.end.as_ref()
    }

    /// Once it has ended: the reason why claimed records are unreachable, and the number of those after the record
    /// `done`.
    fn unreached(&self, done: u64) -> Option<(&Error, u64)> {
        let counted = self.last_record != u64::MAX;
        let left = self.last_record.saturating_sub(self.met.max(done));
        self.end.as_ref().filter(|_| counted && left > 0).map(|why| (why, left))
    }

    /// Whether all claimed records have been visited and only the preallocated block is left: its content was never
    /// written, and is not damage.
    fn is_over(&self, bp: &Blkptr) -> bool {
        self.met == self.last_record && LogBlock::sequence(bp) == self.last_block
    }

    fn block(&self, bp: &Blkptr) -> Result<ChainBlock> {
        let at = place(bp);
        let trailer = bp.checksum().is_some_and(|c| c.is_embedded());
        if !trailer {
            return Err(Error::corrupt("a log block's pointer without a log checksum").at_block(at));
        }
        // The last block of an unclaimed chain was preallocated and maybe never written.
        let speculative = self.last_block == u64::MAX;
        let options = ReadOptions { form: self.form, speculative, ..ReadOptions::default() };
        let data = self.objset.arc().zio().read_wait(bp, at, options).data?;
        Ok(ChainBlock { bp: *bp, bytes: unswapped(bp, data), last_record: self.last_record })
    }

    /// The pointer after `block`.
    fn after(&self, block: &ChainBlock) -> Result<Option<Blkptr>> {
        let decoded = block.decode();
        let decoded = decoded.map_err(|e| Error::corrupt(e.to_string()).at_block(place(&block.bp)))?;
        let last = block.sequence() == self.last_block || self.read >= MAX_BLOCKS;
        // A block is bound to its number, so rising numbers make the chain end.
        let next = decoded.chain.next_blk;
        let follows = LogBlock::sequence(&next) > block.sequence();
        Ok((!last && follows).then_some(next))
    }
}

impl Iterator for Chain {
    type Item = ChainBlock;

    fn next(&mut self) -> Option<ChainBlock> {
        let bp = self.peek();
        self.next = None;
        let bp = bp.filter(|bp| !self.is_over(bp))?;
        self.read += 1;
        let block = self.block(&bp).and_then(|block| {
            let next = self.after(&block)?;
            self.met = block.records().last().map_or(self.met, |(head, _)| head.seq);
            Ok((block, next))
        });
        match block {
            Ok((block, next)) => {
                self.next = next;
                Some(block)
            }
            Err(e) => {
                self.end = Some(e);
                None
            }
        }
    }
}

fn place(bp: &Blkptr) -> Bookmark {
    Bookmark::new(LogBlock::objset(bp), 0, Bookmark::ZIL, LogBlock::sequence(bp))
}

/// Log blocks mix integers with names and data: reverts the word swap that every block of the other byte order gets
/// on input; the decoder gets the byte order instead.
fn unswapped(bp: &Blkptr, data: Buf) -> Buf {
    if !bp.should_byteswap() {
        return data;
    }
    let mut own = data.into_owned();
    byteswap::words(&mut own, byteswap::IntWidth::U64);
    own.into()
}

/// Blocks of a clone record that have references.
fn referenced(clone: &CloneRange) -> impl Iterator<Item = Blkptr> + '_ {
    clone.bps.iter().filter(|bp| !bp.is_hole() && !bp.is_embedded()).copied()
}

/// Content of a claimed log.
#[derive(Debug, Default)]
pub struct Held {
    /// Its own blocks, including the one that was never written, and those of its write records that were claimed with
    /// it.
    pub(crate) blocks: Vec<Blkptr>,
    /// The one that ends the chain because it can't be read: in general it was never written.
    pub(crate) end: Option<Blkptr>,
    /// References to blocks of its clone records.
    pub(crate) clones: Vec<Blkptr>,
}

/// All that a claimed log holds.
#[doc(alias("zil_parse", "zil_free_clone_range"))]
pub(crate) fn held_by(view: &Arc<Objset>) -> Result<Held> {
    let claim_txg = view.phys.zil_header.claim_txg;
    let (mut seen, mut blocks, mut clones) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut end = None;
    let mut add = |bp: &Blkptr| {
        let first = bp.dvas().next().filter(|_| !bp.is_hole() && !bp.is_embedded());
        if first.is_some_and(|dva| seen.insert((dva.vdev, dva.offset))) {
            blocks.push(*bp);
        }
    };
    let mut chain = chain_as(view, Form::NoKey);
    while let Some(bp) = chain.peek() {
        add(&bp);
        let Some(block) = chain.next() else {
            end = Some(bp);
            break;
        };
        for (_, record) in block.records() {
            match record {
                Ok(LogRecord::Write(w))
                    if w.data.is_none() && claim_txg != 0 && w.lr.blkptr.accounting_birth() >= claim_txg =>
                {
                    add(&w.lr.blkptr);
                }
                Ok(LogRecord::CloneRange(clone)) if claim_txg != 0 => clones.extend(referenced(&clone)),
                _ => {}
            }
        }
    }
    Ok(Held { blocks, end, clones })
}

/// The data of a write whose record holds only a pointer to them, as long as the block: the relevant part is
/// `length` bytes from `offset % size`. Zeros for a hole.
#[doc(alias = "zil_read_log_data")]
pub fn write_data(objset: &Arc<Objset>, write: &LrWrite) -> Result<Buf> {
    let at = place_of_write(objset, write);
    let options = ReadOptions { form: objset.form(), ..ReadOptions::default() };
    objset.arc().zio().read_wait(&write.blkptr, at, options).data
}

/// The position of the block of a write record.
fn place_of_write(objset: &Objset, write: &LrWrite) -> Bookmark {
    let blkid = write.offset.checked_div(write.blkptr.lsize()).unwrap_or(0);
    Bookmark::new(objset.id, write.foid, Bookmark::ZIL, blkid)
}
