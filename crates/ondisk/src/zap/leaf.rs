//! Leaves of a fat ZAP.
//!
//! ```text
//! 0    block type:64 next:64 prefix:64 magic:32 nfree:16 nentries:16 prefix_len:16 freelist:16
//!      flags:8 reserved:11*8
//! 48   hash table: block size / 32 chunk numbers of 16 bits, 0xffff ends a chain
//! then chunks of 24 bytes, the first byte says which:
//!   252 entry: value intlen:8 next:16 name chunk:16 name ints:16 value chunk:16 value ints:16
//!              cd:32 hash:64
//!   251 array: 21 bytes, next:16           253 free: 21 bytes, next:16
//! ```
//!
//! Integers inside array chunks are big-endian whatever the pool's order.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BLOCK_LEAF, LEAF_MAGIC};
use crate::Malformed;

pub(super) const CHUNK_SIZE: usize = 24;
pub(super) const ARRAY_BYTES: usize = 21;
const HEADER_SIZE: usize = 48;
pub(super) const CHAIN_END: u16 = 0xffff;
/// Type of an entry chunk.
pub(crate) const CHUNK_ENTRY: u8 = 252;
/// Type of an array chunk.
pub(crate) const CHUNK_ARRAY: u8 = 251;
/// Type of a free chunk.
pub(crate) const CHUNK_FREE: u8 = 253;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct LeafHeaderPhys {
    pub(super) block_type: U64,
    pub(super) pad1: U64,
    pub(super) prefix: U64,
    pub(super) magic: U32,
    pub(super) nfree: U16,
    pub(super) nentries: U16,
    pub(super) prefix_len: U16,
    pub(super) freelist: U16,
    pub(super) flags: u8,
    pub(super) pad2: [u8; 11],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct EntryPhys {
    pub(super) chunk_type: u8,
    pub(super) value_intlen: u8,
    pub(super) next: U16,
    pub(super) name_chunk: U16,
    pub(super) name_numints: U16,
    pub(super) value_chunk: U16,
    pub(super) value_numints: U16,
    pub(super) cd: U32,
    pub(super) hash: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ArrayPhys {
    pub(super) chunk_type: u8,
    pub(super) bytes: [u8; ARRAY_BYTES],
    pub(super) next: U16,
}

const _: () = assert!(size_of::<LeafHeaderPhys>() == HEADER_SIZE);
const _: () = assert!(size_of::<EntryPhys>() == CHUNK_SIZE && size_of::<ArrayPhys>() == CHUNK_SIZE);

/// Number of hash-table entries of a leaf block of `len` bytes.
pub(crate) fn hash_entries(len: usize) -> usize {
    len >> 5
}

/// Number of chunks of a leaf block of `len` bytes.
pub(crate) fn num_chunks(len: usize) -> usize {
    (len.saturating_sub(2 * hash_entries(len)) / CHUNK_SIZE).saturating_sub(2)
}

/// Byte offset of the first chunk.
pub(crate) fn chunks_offset(len: usize) -> usize {
    HEADER_SIZE + 2 * hash_entries(len)
}

/// A leaf's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafHeader {
    /// The `prefix_len` high bits of every hash in here.
    pub prefix: u64,
    /// Bits of the prefix.
    pub prefix_len: u16,
    /// Free chunks.
    pub nfree: u16,
    /// Entries.
    pub nentries: u16,
    /// First free chunk.
    pub freelist: u16,
    /// Bit 0: chains are sorted by cd.
    pub flags: u8,
}

/// An entry of a leaf; name and value are read through the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEntry {
    /// Its chunk.
    pub chunk: u16,
    /// Hash of its name.
    pub hash: u64,
    /// Distinguishes names with the same hash.
    pub cd: u32,
    /// Bytes of each integer of the value: 1, 2, 4 or 8.
    pub value_intlen: u8,
    /// Integers in the value.
    pub value_numints: u16,
    /// Integers in the name: bytes, NUL included, or 64-bit words.
    pub name_numints: u16,
    pub(super) name_chunk: u16,
    pub(super) value_chunk: u16,
    pub(super) next: u16,
}

/// A leaf block, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    header: LeafHeader,
    pub(super) hash: &'a [U16],
    pub(super) chunks: &'a [[u8; CHUNK_SIZE]],
}

impl<'a> Leaf<'a> {
    /// Reads and checks a leaf block; the block's length is the ZAP's block size.
    pub fn from_bytes(block: &'a [u8]) -> Result<Self, Malformed> {
        let short = || Malformed::short("zap leaf", block.len(), 512);
        let (phys, rest) = LeafHeaderPhys::ref_from_prefix(block).map_err(|_| short())?;
        if phys.block_type.get() != BLOCK_LEAF || phys.magic.get() != LEAF_MAGIC {
            let detail = format!("block type {:#x}, magic number {:#x}", phys.block_type, phys.magic);
            return Err(Malformed::new("zap leaf", detail));
        }
        if !block.len().is_power_of_two() || block.len() < 512 {
            return Err(Malformed::new("zap leaf", format!("block of {} bytes", block.len())));
        }
        if phys.prefix_len.get() > 64 {
            return Err(Malformed::new("zap leaf", format!("prefix of {} bits", phys.prefix_len)));
        }
        let (hash, rest) =
            <[U16]>::ref_from_prefix_with_elems(rest, hash_entries(block.len())).map_err(|_| short())?;
        let (chunks, _) = <[[u8; CHUNK_SIZE]]>::ref_from_prefix_with_elems(rest, num_chunks(block.len()))
            .map_err(|_| short())?;
        let header = LeafHeader {
            prefix: phys.prefix.get(),
            prefix_len: phys.prefix_len.get(),
            nfree: phys.nfree.get(),
            nentries: phys.nentries.get(),
            freelist: phys.freelist.get(),
            flags: phys.flags,
        };
        Ok(Self { header, hash, chunks })
    }

    /// The header.
    pub fn header(&self) -> &LeafHeader {
        &self.header
    }

    /// Whether entries with this hash belong here.
    pub fn covers(&self, hash: u64) -> bool {
        super::table_index(hash, self.header.prefix_len.into()) == self.header.prefix
    }

    pub(super) fn entry(&self, chunk: u16) -> Result<LeafEntry, Malformed> {
        let raw = self.chunks.get(usize::from(chunk));
        let phys =
            raw.and_then(|r| EntryPhys::ref_from_bytes(r).ok()).filter(|e| e.chunk_type == CHUNK_ENTRY);
        let phys =
            phys.ok_or_else(|| Malformed::new("zap leaf", format!("chunk {chunk} is not an entry")))?;
        if !matches!(phys.value_intlen, 1 | 2 | 4 | 8) {
            return Err(Malformed::new("zap leaf", format!("integers of {} bytes", phys.value_intlen)));
        }
        Ok(LeafEntry {
            chunk,
            hash: phys.hash.get(),
            cd: phys.cd.get(),
            value_intlen: phys.value_intlen,
            value_numints: phys.value_numints.get(),
            name_numints: phys.name_numints.get(),
            name_chunk: phys.name_chunk.get(),
            value_chunk: phys.value_chunk.get(),
            next: phys.next.get(),
        })
    }

    /// All entries in the order of their chunks. Damaged hash chains don't hide any.
    pub fn entries(&self) -> impl Iterator<Item = Result<LeafEntry, Malformed>> + use<'a> {
        let leaf = *self;
        let used = self.chunks.iter().enumerate().filter(|(_, raw)| raw.first() == Some(&CHUNK_ENTRY));
        used.map(move |(i, _)| leaf.entry(i as u16))
    }

    /// All sound entries in the order of OpenZFS's cursors: by hash, then cd.
    pub fn sorted(&self) -> Vec<LeafEntry> {
        let mut all: Vec<_> = self.entries().flatten().collect();
        all.sort_by_key(|e| (e.hash, e.cd));
        all
    }

    /// The slot of the hash table where entries of this hash are chained.
    pub(super) fn slot(&self, hash: u64) -> usize {
        let bits = self.hash.len().trailing_zeros();
        let shift = 64u32.saturating_sub(bits + u32::from(self.header.prefix_len));
        (hash >> shift) as usize & self.hash.len().saturating_sub(1)
    }

    /// Entries on the hash chain of `hash` that have exactly this hash.
    pub fn lookup(&self, hash: u64) -> impl Iterator<Item = Result<LeafEntry, Malformed>> + use<'a> {
        let leaf = *self;
        let mut next = self.hash.get(self.slot(hash)).map_or(CHAIN_END, |n| n.get());
        // A chain visits a chunk once at most, so a longer one is a loop.
        let mut left = self.chunks.len();
        let chain = std::iter::from_fn(move || {
            if next == CHAIN_END {
                return None;
            }
            if left == 0 {
                next = CHAIN_END;
                return Some(Err(Malformed::new("zap leaf", "hash chain is a loop")));
            }
            left -= 1;
            let entry = leaf.entry(next);
            next = entry.as_ref().map_or(CHAIN_END, |e| e.next);
            Some(entry)
        });
        chain.filter(move |e| e.as_ref().map_or(true, |e| e.hash == hash))
    }

    fn array(&self, first: u16, len: usize) -> Result<impl Iterator<Item = &'a [u8]> + use<'a>, Malformed> {
        let chunks = self.chunks;
        if len > chunks.len() * ARRAY_BYTES {
            return Err(Malformed::new("zap leaf", format!("array of {len} bytes")));
        }
        let (mut next, mut left) = (first, len);
        // Every piece but the last is full, so `left` bounds the walk even around a loop.
        Ok(std::iter::from_fn(move || {
            let raw = chunks.get(usize::from(next)).filter(|_| left > 0)?;
            let array = ArrayPhys::ref_from_bytes(raw).ok().filter(|a| a.chunk_type == CHUNK_ARRAY)?;
            let piece = array.bytes.get(..left.min(ARRAY_BYTES))?;
            left -= piece.len();
            next = array.next.get();
            Some(piece)
        }))
    }

    fn read_array(&self, first: u16, len: usize) -> Result<Vec<u8>, Malformed> {
        let mut out = Vec::with_capacity(len.min(self.chunks.len() * ARRAY_BYTES));
        self.array(first, len)?.for_each(|piece| out.extend_from_slice(piece));
        if out.len() < len {
            return Err(Malformed::new("zap leaf", format!("array ends {} bytes early", len - out.len())));
        }
        Ok(out)
    }

    /// An entry's name as a string, without its NUL.
    pub fn name(&self, entry: &LeafEntry) -> Result<Vec<u8>, Malformed> {
        let mut name = self.read_array(entry.name_chunk, entry.name_numints.into())?;
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    /// An entry's name, NUL not included, if it fits into `room`: without allocating, for names that are short by their form.
    pub fn short_name<'r>(&self, entry: &LeafEntry, room: &'r mut [u8]) -> Result<&'r [u8], Malformed> {
        let (len, mut filled) = (usize::from(entry.name_numints), 0);
        let long = || Malformed::new("zap leaf", format!("name of {len} bytes"));
        for piece in self.array(entry.name_chunk, len)? {
            let to = room.get_mut(filled..filled + piece.len()).ok_or_else(long)?;
            to.copy_from_slice(piece);
            filled += piece.len();
        }
        let name = room.get(..filled).filter(|_| filled == len).ok_or_else(long)?;
        Ok(name.split(|b| *b == 0).next().unwrap_or_default())
    }

    /// An entry's value, which must be a single integer of 64 bits.
    pub fn word(&self, entry: &LeafEntry) -> Result<u64, Malformed> {
        let other = || {
            let (count, width) = (entry.value_numints, entry.value_intlen);
            Malformed::new("zap leaf", format!("value of {count} integers of {width} bytes"))
        };
        if (entry.value_numints, entry.value_intlen) != (1, 8) {
            return Err(other());
        }
        let piece = self.array(entry.value_chunk, 8)?.next();
        piece.and_then(|piece| piece.first_chunk()).map(|b| u64::from_be_bytes(*b)).ok_or_else(other)
    }

    /// The first integer of an entry's value, whatever the others are; `None` for a value without integers.
    pub fn first_int(&self, entry: &LeafEntry) -> Result<Option<u64>, Malformed> {
        match (entry.value_numints, entry.value_intlen) {
            (1, 8) => self.word(entry).map(Some),
            _ => Ok(self.value_ints(entry)?.first().copied()),
        }
    }

    /// An entry's key as 64-bit words, in ZAPs with such keys.
    pub fn key_words(&self, entry: &LeafEntry) -> Result<Vec<u64>, Malformed> {
        let raw = self.read_array(entry.name_chunk, usize::from(entry.name_numints) * 8)?;
        Ok(raw.as_chunks::<8>().0.iter().map(|w| u64::from_be_bytes(*w)).collect())
    }

    /// Whether the entry's string name is `name`, without allocating.
    pub fn name_is(&self, entry: &LeafEntry, name: &[u8]) -> bool {
        let Ok(pieces) = self.array(entry.name_chunk, entry.name_numints.into()) else { return false };
        usize::from(entry.name_numints) == name.len() + 1 && pieces.flatten().eq(name.iter().chain([&0]))
    }

    /// Whether the entry's key is `stored` (a name with its NUL, or words in big-endian order) of integers of
    /// `intlen` bytes.
    pub fn key_is(&self, entry: &LeafEntry, stored: &[u8], intlen: u8) -> bool {
        let len = usize::from(entry.name_numints) * usize::from(intlen);
        let Ok(pieces) = self.array(entry.name_chunk, len) else { return false };
        len == stored.len() && pieces.flatten().eq(stored)
    }

    /// An entry's value: its integers one after the other, big-endian.
    pub fn value_bytes(&self, entry: &LeafEntry) -> Result<Vec<u8>, Malformed> {
        let len = usize::from(entry.value_intlen) * usize::from(entry.value_numints);
        self.read_array(entry.value_chunk, len)
    }

    /// An entry's value as integers, whatever their width.
    pub fn value_ints(&self, entry: &LeafEntry) -> Result<Vec<u64>, Malformed> {
        let raw = self.value_bytes(entry)?;
        let width = usize::from(entry.value_intlen).max(1);
        Ok(raw.chunks_exact(width).map(|int| int.iter().fold(0, |v, &b| (v << 8) | u64::from(b))).collect())
    }
}
