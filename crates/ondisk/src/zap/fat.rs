//! Header and pointer table of a fat ZAP.
//!
//! ```text
//! 0    block type:64 magic:64
//! 16   pointer table: first block:64 blocks:64 shift:64 next copy:64 blocks copied:64
//! 56   free block:64 leaves:64 entries:64 salt:64 normflags:64 flags:64
//! half of the block: embedded pointer table (while "blocks" is 0)
//! ```
//!
//! A pointer is the number of a leaf block; 2^k neighbouring slots share a leaf whose prefix is
//! shorter than the table's shift.

use super::{BLOCK_HEADER, FAT_MAGIC, ZapFlags};
use crate::Malformed;

/// Words of the header.
const WORDS: usize = 13;

/// Where a fat ZAP's pointer table is.
#[doc(alias = "zap_table_phys_t")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PtrTable {
    /// First block; 0 when embedded.
    pub blk: u64,
    /// Blocks; 0 when embedded in the header.
    pub numblks: u64,
    /// Bits of hash that index it.
    pub shift: u32,
    /// First block of the larger copy being made; 0: none.
    pub nextblk: u64,
    /// Blocks copied to it so far.
    pub blks_copied: u64,
}

/// Block 0 of a fat ZAP.
#[doc(alias = "zap_phys_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatHeader {
    /// log2 of the ZAP's block size.
    pub block_shift: u32,
    /// The pointer table.
    pub ptrtbl: PtrTable,
    /// Next block number to allocate.
    pub freeblk: u64,
    /// Leaves.
    pub num_leafs: u64,
    /// Entries.
    pub num_entries: u64,
    /// Seed of the hash.
    pub salt: u64,
    /// How names are normalised; 0: not at all.
    pub normflags: u64,
    /// Kind of keys and length of hashes.
    pub flags: ZapFlags,
}

impl FatHeader {
    /// Decodes and checks block 0; the block's length is the ZAP's block size.
    pub fn from_bytes(block: &[u8]) -> Result<Self, Malformed> {
        let bad = |detail: String| Err(Malformed::new("fat zap", detail));
        let short = || Malformed::short("fat zap", block.len(), WORDS * 8);
        let words: &[[u8; 8]; WORDS] = block.as_chunks::<8>().0.first_chunk().ok_or_else(short)?;
        let [block_type, magic, blk, numblks, shift, nextblk, blks_copied, rest @ ..] =
            words.map(u64::from_le_bytes);
        let [freeblk, num_leafs, num_entries, salt, normflags, flags] = rest;
        if block_type != BLOCK_HEADER || magic != FAT_MAGIC {
            return bad(format!("block type {block_type:#x}, magic number {magic:#x}"));
        }
        if !block.len().is_power_of_two() || !(512..=16 << 20).contains(&block.len()) {
            return bad(format!("block of {} bytes", block.len()));
        }
        let block_shift = block.len().trailing_zeros();
        // A table of more than 2^48 pointers could not be addressed by 48 bits of hash.
        let shift = u32::try_from(shift).ok().filter(|s| *s <= 48);
        let Some(shift) = shift else { return bad("pointer table shift".into()) };
        let ptrtbl = PtrTable { blk, numblks, shift, nextblk, blks_copied };
        let header = Self {
            block_shift,
            ptrtbl,
            freeblk,
            num_leafs,
            num_entries,
            salt,
            normflags,
            flags: ZapFlags(flags),
        };
        header.verify_ptrtbl()?;
        Ok(header)
    }

    fn verify_ptrtbl(&self) -> Result<(), Malformed> {
        let PtrTable { numblks, shift, .. } = self.ptrtbl;
        let fits = match numblks {
            0 => shift == self.embedded_shift(),
            _ => shift
                .checked_sub(self.block_shift - 3)
                .and_then(|s| 1u64.checked_shl(s))
                .is_some_and(|blocks| blocks == numblks),
        };
        if fits {
            return Ok(());
        }
        Err(Malformed::new("fat zap", format!("pointer table of {numblks} blocks indexed by {shift} bits")))
    }

    /// Bits that index an embedded pointer table.
    #[doc(alias = "ZAP_EMBEDDED_PTRTBL_SHIFT")]
    pub fn embedded_shift(&self) -> u32 {
        self.block_shift - 4
    }

    /// Whether the pointer table lies in the header block.
    pub fn is_embedded(&self) -> bool {
        self.ptrtbl.numblks == 0
    }

    /// Entries of the pointer table.
    pub fn ptrtbl_len(&self) -> u64 {
        1 << self.ptrtbl.shift
    }

    /// Block of the object and byte offset in it where pointer `index` lies; `None` past the table.
    pub fn ptr_location(&self, index: u64) -> Option<(u64, usize)> {
        if index >= self.ptrtbl_len() {
            return None;
        }
        if self.is_embedded() {
            return Some((0, ((index + (1 << self.embedded_shift())) * 8) as usize));
        }
        let per_block = self.block_shift - 3;
        let blk = self.ptrtbl.blk.checked_add(index >> per_block)?;
        Some((blk, ((index & ((1 << per_block) - 1)) * 8) as usize))
    }

    /// Writes the header to the front of block 0; the following part (an embedded table) is left alone.
    pub fn write_to(&self, block: &mut [u8]) {
        let PtrTable { blk, numblks, shift, nextblk, blks_copied } = self.ptrtbl;
        let words = [BLOCK_HEADER, FAT_MAGIC, blk, numblks, shift.into(), nextblk, blks_copied, self.freeblk];
        let more = [self.num_leafs, self.num_entries, self.salt, self.normflags, self.flags.0];
        let words = words.into_iter().chain(more);
        for (to, word) in block.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
    }

    /// Pointer at `offset` in a block, as [`Self::ptr_location`] gave it.
    pub fn ptr_at(block: &[u8], offset: usize) -> Option<u64> {
        let raw = block.get(offset..)?.first_chunk()?;
        Some(u64::from_le_bytes(*raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(numblks: u64, shift: u64) -> Vec<u8> {
        let words = [BLOCK_HEADER, FAT_MAGIC, 3, numblks, shift, 0, 0, 9, 2, 100, 55, 0, 0];
        let mut block: Vec<u8> = words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
        block.resize(16384, 0);
        block
    }

    #[test]
    fn embedded_table_is_the_second_half() {
        let fat = FatHeader::from_bytes(&header(0, 10)).unwrap();
        assert_eq!(fat.ptr_location(0), Some((0, 8192)));
        assert_eq!(fat.ptr_location(1023), Some((0, 16376)));
        assert_eq!(fat.ptr_location(1024), None);
    }

    #[test]
    fn decoded_leaves_are_encoded_alike() {
        let block = header(2, 12);
        let mut again = vec![0; block.len()];
        FatHeader::from_bytes(&block).unwrap().write_to(&mut again);
        assert_eq!(again, block);
    }

    #[test]
    fn external_table_must_be_as_long_as_its_shift() {
        let fat = FatHeader::from_bytes(&header(2, 12)).unwrap();
        assert_eq!(fat.ptr_location(2049), Some((4, 8)));
        for (numblks, shift) in [(3, 12), (0, 11), (1, 5), (1, u64::MAX), (u64::MAX, 48)] {
            assert!(FatHeader::from_bytes(&header(numblks, shift)).is_err());
        }
    }
}
