//! What a long object is freed in: pieces of a bounded number of blocks.

use super::Handle;
use crate::dmu::Blocks;
use crate::error::Result;

/// Blocks that one transaction frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The first block after them.
    pub end: u64,
    /// How many of them are stored.
    pub blocks: u64,
    /// Nothing is stored behind them.
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
}
