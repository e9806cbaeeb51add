//! ZAP objects: ZFS's name-to-value tables (directories, properties, everything).
//!
//! A *micro* ZAP is one block of fixed 64-byte entries: short names, one 64-bit value each. A *fat*
//! ZAP is an extendible hash table: a header block, a pointer table (in the header's second half
//! until it outgrows it), and leaf blocks. Source: zap_impl.h, zap_leaf.h, OpenZFS 2.3.

mod fat;
mod hash;
mod leaf;
mod leaf_check;
mod leaf_mut;
mod micro;
mod micro_index;
mod swap;

pub use fat::{FatHeader, PtrTable};
pub use hash::{HASH_POLY, hash_name, hash_words, table_index};
pub use leaf::{Leaf, LeafEntry, LeafHeader};
pub use leaf_mut::{Fit, LEAF_CDSORTED, LeafArray, LeafMut, NewEntry};
pub use micro::{MicroEntry, MicroZap, MicroZapMut, NAME_SIZE as MICRO_NAME_SIZE};
pub use micro_index::MicroIndex;
pub(crate) use swap::swap_leaf;

/// First word of a leaf block.
#[doc(alias = "ZBT_LEAF")]
pub const BLOCK_LEAF: u64 = 1 << 63;
/// First word of a fat ZAP's header block.
#[doc(alias = "ZBT_HEADER")]
pub const BLOCK_HEADER: u64 = (1 << 63) + 1;
/// First word of a micro ZAP.
#[doc(alias = "ZBT_MICRO")]
pub const BLOCK_MICRO: u64 = (1 << 63) + 3;
/// Second word of a fat ZAP's header block.
pub const FAT_MAGIC: u64 = 0x2_F52A_B2AB;
/// Magic number in a leaf's header.
pub const LEAF_MAGIC: u32 = 0x2AB_1EAF;

/// Kind of a ZAP block, by its first word. Pointer-table blocks carry no mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// A whole micro ZAP.
    Micro,
    /// Block 0 of a fat ZAP.
    Header,
    /// A leaf.
    Leaf,
    /// Anything else: a block of a pointer table, if the ZAP is sound.
    PtrTable,
}

impl BlockKind {
    /// The kind of a (little-endian) block.
    pub fn of(block: &[u8]) -> Self {
        match block.first_chunk().map(|raw| u64::from_le_bytes(*raw)) {
            Some(BLOCK_MICRO) => Self::Micro,
            Some(BLOCK_HEADER) => Self::Header,
            Some(BLOCK_LEAF) => Self::Leaf,
            _ => Self::PtrTable,
        }
    }
}

/// Flags in a fat ZAP's header.
#[doc(alias = "zap_flags_t")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ZapFlags(pub u64);

impl ZapFlags {
    /// 48 bits of hash instead of 28.
    pub const HASH64: Self = Self(1);
    /// Keys are arrays of 64-bit integers, not strings.
    pub const UINT64_KEY: Self = Self(2);
    /// The first word of the key is its hash.
    pub const PRE_HASHED_KEY: Self = Self(4);

    /// Whether all bits of `flag` are set.
    pub fn has(self, flag: Self) -> bool {
        self.0 & flag.0 == flag.0
    }

    /// High bits of the hash that count; the rest are zero.
    pub fn hash_bits(self) -> u32 {
        if self.has(Self::HASH64) { 48 } else { 28 }
    }
}
