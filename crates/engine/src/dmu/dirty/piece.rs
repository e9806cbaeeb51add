//! Frees long objects in pieces of a bounded number of blocks.

use std::sync::Arc;

use super::Handle;
use crate::dmu::{Blocks, Tx};
use crate::error::Result;

/// Ranges with more blocks are long: they are not freed in one transaction.
#[doc(alias = "zfs_delete_blocks")]
pub const LONG: u64 = 16 << 10;
/// Maximum blocks of a long range that one transaction frees.
pub const PIECE: u64 = 8 << 10;

/// Blocks that one transaction frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The first block after them.
    pub end: u64,
    /// The number of stored ones.
    pub blocks: u64,
    /// Nothing is stored after them.
    pub last: bool,
}

impl Handle {
    /// The blocks of `[start, end)` up to the last of `most` stored ones. Reads indirect blocks: call it outside of
    /// transactions.
    #[doc(alias = "get_next_chunk")]
    pub fn piece(&self, start: u64, end: u64, most: u64) -> Result<Piece> {
        let synced = self.synced();
        let mut blocks = Blocks::new(&synced);
        let (mut at, mut count) = (start, 0);
        let (mut pending, mut stored) = (self.next_pending(start), None);
        loop {
            if pending.is_some_and(|b| b < at) {
                pending = self.next_pending(at);
            }
            if !synced.dnode.is_free() && stored.is_none_or(|b| b < at) {
                stored = Some(blocks.next_from(at).map_err(|(_, e)| e)?.unwrap_or(u64::MAX));
            }
            let next = pending.into_iter().chain(stored).min().filter(|&b| b < end);
            match next {
                None => return Ok(Piece { end, blocks: count, last: true }),
                Some(_) if count == most => return Ok(Piece { end: at, blocks: count, last: false }),
                Some(blkid) => (at, count) = (blkid + 1, count + 1),
            }
        }
    }

    /// Frees blocks `[start, end)` but for the last ones, a bounded piece in each transaction that `begin`
    /// returns. Returns the start of the rest, which one transaction can free.
    #[doc(alias = "dmu_free_long_range")]
    pub fn free_long(self: &Arc<Self>, start: u64, end: u64, begin: &dyn Fn() -> Result<Tx>) -> Result<u64> {
        let mut at = start;
        while self.dnode().maxblkid.min(end).saturating_sub(at) >= LONG {
            let piece = self.piece(at, end, PIECE)?;
            if piece.last {
                break;
            }
            let tx = begin()?;
            tx.frees(piece.blocks);
            self.free_blocks(&tx, at, piece.end)?;
            at = piece.end;
        }
        Ok(at)
    }
}
