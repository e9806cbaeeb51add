//! Blocks of the log and how they are chained.
//!
//! The chain header comes first and its checksum covers only the used part (`zilog2`); in pools
//! before version 26 it comes last (`zilog`). The pointer's checksum words are pool and dataset
//! guids and the block's sequence number; the next pointer's must be the same with the number one
//! higher, else the chain ends here.

use super::layout::LrCommon;
use super::record::LogRecord;
use super::tx_type::TxType;
use crate::fields::{Field, field_struct};
use crate::{Blkptr, ChecksumType, Cursor, Endian, Malformed};

/// Unit that the checksum of a block is computed in: the used part is rounded up to it.
#[doc(alias = "ZIL_MIN_BLKSZ")]
pub const ZIL_MIN_BLOCK_SIZE: u64 = 4096;

field_struct! {
    /// The chain header of a log block.
    #[doc(alias = "zil_chain_t")]
    ZilChain, 184 bytes {
        /// Reserved.
        pad: u64,
        /// The next block; it may not have been written.
        next_blk: Blkptr,
        /// Bytes used: with a leading header it counts.
        nused: u64,
        /// Magic number of the trailer.
        eck_magic: u64,
        /// Checksum; its last two words are the MAC in an encrypted dataset.
        eck_cksum: [u64; 4],
    }
}

/// A block of the log.
#[derive(Clone, Debug)]
pub struct LogBlock<'a> {
    /// Its chain header.
    pub chain: ZilChain,
    /// The order its integers are in.
    pub endian: Endian,
    records: &'a [u8],
}

impl<'a> LogBlock<'a> {
    /// Reads the block of `bp`, after its checksum has been verified; `bytes` as on disk
    /// (decrypted), unswapped. An error also means the end of the chain.
    pub fn from_bytes(bytes: &'a [u8], bp: &Blkptr) -> Result<Self, Malformed> {
        let endian = if bp.byteorder_is_little() { Endian::Little } else { Endian::Big };
        let leading = bp.checksum() == Some(ChecksumType::Zilog2);
        let (head, body) = if leading {
            bytes.split_at_checked(ZilChain::SIZE)
        } else {
            bytes
                .len()
                .checked_sub(ZilChain::SIZE)
                .and_then(|at| bytes.split_at_checked(at))
                .map(|(b, h)| (h, b))
        }
        .ok_or_else(|| Malformed::short("log block", bytes.len(), ZilChain::SIZE))?;
        let chain = ZilChain::read(&mut Cursor::with_endian("log block", head, endian))?;
        if !continues(bp, &chain.next_blk) {
            return Err(Malformed::new("log block", "its next pointer doesn't continue the chain"));
        }
        let counted = if leading { ZilChain::SIZE as u64 } else { 0 };
        let used = chain.nused.checked_sub(counted).and_then(|n| usize::try_from(n).ok());
        let records = used.and_then(|n| body.get(..n));
        let records =
            records.ok_or_else(|| Malformed::new("log block", format!("{} bytes used", chain.nused)))?;
        Ok(Self { chain, endian, records })
    }

    /// The block's sequence number, from its pointer.
    pub fn sequence(bp: &Blkptr) -> u64 {
        let [.., seq] = bp.checksum_words();
        seq
    }

    /// The dataset's object number, from the block's pointer.
    pub fn objset(bp: &Blkptr) -> u64 {
        let [_, _, objset, _] = bp.checksum_words();
        objset
    }

    /// The records: common head, and the record decoded. Ends after a record whose length makes no
    /// sense; one that is only malformed inside is an error in place, and the walk goes on.
    pub fn records(&self) -> impl Iterator<Item = (LrCommon, Result<LogRecord<'a>, Malformed>)> + use<'a> {
        let (mut rest, endian) = (self.records, self.endian);
        std::iter::from_fn(move || {
            let head = LrCommon::read(&mut Cursor::with_endian("log record", rest, endian)).ok()?;
            let len = usize::try_from(head.reclen).ok().filter(|len| *len >= LrCommon::SIZE);
            let Some((record, next)) = len.and_then(|len| rest.split_at_checked(len)) else {
                rest = &[];
                let detail = format!("{} bytes long", head.reclen);
                return Some((head, Err(Malformed::new("log record", detail))));
            };
            rest = next;
            let body = record.get(LrCommon::SIZE..).unwrap_or(&[]);
            Some((head, LogRecord::decode(TxType(head.txtype), body, endian)))
        })
    }
}

fn continues(bp: &Blkptr, next: &Blkptr) -> bool {
    let [a, b, c, seq] = bp.checksum_words();
    next.checksum_words() == [a, b, c, seq.wrapping_add(1)]
}
