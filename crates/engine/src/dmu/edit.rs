//! What a structure that is kept in an object (a ZAP, a space map, a block list) needs to change it.

use stdx::{AlignedBuf, Buf};

use crate::error::Result;

/// An object open for change within one transaction. Reads see what was written before in the same or an earlier
/// transaction.
pub trait Edit {
    /// Object number, for errors.
    fn number(&self) -> u64;
    /// Bytes of a data block.
    fn block_size(&self) -> u64;
    /// Changes the block size (a multiple of 512). Only while the object has one block at most: its bytes are
    /// kept, cut or followed by zeros.
    fn set_block_size(&mut self, bytes: u64) -> Result<()>;
    /// Largest block number ever written; 0 also for an object without blocks.
    fn max_block(&self) -> u64;
    /// A block's bytes: `block_size` of them, zeros for a hole or past the end.
    fn read_block(&self, blkid: u64) -> Result<Buf>;
    /// Replaces a block; `bytes` has `block_size` bytes.
    fn write_block(&mut self, blkid: u64, bytes: AlignedBuf) -> Result<()>;
    /// Frees blocks `from..` up to the end.
    fn free_from(&mut self, blkid: u64) -> Result<()>;
    /// Frees `count` blocks from `blkid` on. What can't make holes there may write zeros.
    fn free_range(&mut self, blkid: u64, count: u64) -> Result<()> {
        let len = usize::try_from(self.block_size()).unwrap_or(0);
        (blkid..blkid.saturating_add(count)).try_for_each(|b| self.write_block(b, AlignedBuf::zeroed(len)))
    }
    /// The bonus buffer.
    fn bonus(&self) -> Vec<u8>;
    /// Replaces the bonus buffer; its length may change within what the dnode holds.
    fn set_bonus(&mut self, bytes: &[u8]) -> Result<()>;
}

/// An object in memory: for structures that are tested without a pool.
#[derive(Debug, Clone, Default)]
pub struct MemObject {
    /// Its number.
    pub number: u64,
    block_size: u64,
    blocks: std::collections::BTreeMap<u64, Buf>,
    bonus: Vec<u8>,
}

impl MemObject {
    /// An empty object.
    pub fn new(number: u64, block_size: u64) -> Self {
        Self { number, block_size, ..Self::default() }
    }
}

impl Edit for MemObject {
    fn number(&self) -> u64 {
        self.number
    }

    fn block_size(&self) -> u64 {
        self.block_size
    }

    fn set_block_size(&mut self, bytes: u64) -> Result<()> {
        assert!(self.max_block() == 0, "the block size of an object with several blocks is fixed");
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(old) = self.blocks.remove(&0) {
            let mut new = AlignedBuf::zeroed(len);
            for (to, from) in new.iter_mut().zip(old.iter()) {
                *to = *from;
            }
            self.blocks.insert(0, new.into());
        }
        self.block_size = bytes;
        Ok(())
    }

    fn max_block(&self) -> u64 {
        self.blocks.keys().next_back().copied().unwrap_or(0)
    }

    fn read_block(&self, blkid: u64) -> Result<Buf> {
        let len = usize::try_from(self.block_size).unwrap_or(usize::MAX);
        Ok(self.blocks.get(&blkid).cloned().unwrap_or_else(|| AlignedBuf::zeroed(len).into()))
    }

    fn write_block(&mut self, blkid: u64, bytes: AlignedBuf) -> Result<()> {
        assert!(u64::try_from(bytes.len()) == Ok(self.block_size), "a block is written whole");
        self.blocks.insert(blkid, bytes.into());
        Ok(())
    }

    fn free_from(&mut self, blkid: u64) -> Result<()> {
        self.blocks.split_off(&blkid);
        Ok(())
    }

    fn bonus(&self) -> Vec<u8> {
        self.bonus.clone()
    }

    fn set_bonus(&mut self, bytes: &[u8]) -> Result<()> {
        self.bonus = bytes.to_vec();
        Ok(())
    }
}
