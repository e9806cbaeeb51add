//! Block pointers: location, type and checksum of a block.
//!
//! ```text
//! word 0,1   DVA 0: vdev:24 grid:8 asize:24 | gang:1 offset:63      (sizes in 512-byte units)
//! word 2,3   DVA 1
//! word 4,5   DVA 2, or salt and IV1 of an encrypted block
//! word 6     prop: byteorder:1 dedup:1 crypt:1 level:5 type:8 checksum:8 embedded:1 compress:7
//!            psize-1:16 lsize-1:16
//! word 7     prop2: rewritten:1, rest reserved          word 8  reserved
//! word 9     physical birth txg (0: the same as logical)
//! word 10    logical birth txg
//! word 11    fill count; of an encrypted level-0 block IV2:32 fill:32
//! word 12-15 checksum; of an encrypted block checksum:128, MAC:128
//! ```
//!
//! An embedded pointer (bit 39 of prop) has no block: every word but prop and logical birth is
//! payload. Source: `blkptr_t`, spa.h, OpenZFS 2.3; the rewritten bit is 2.4.

mod build;
mod crypt;
mod dump;
mod dva;
mod verify;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use build::Properties;
use dva::bits;
pub use dva::{Dva, DvaPhys};
pub use verify::BlkptrLimits;

use crate::{ChecksumType, CompressType, MIN_BLOCK_SHIFT, ObjectType};

/// Size of a block pointer on disk, in bytes.
#[doc(alias = "SPA_BLKPTRSHIFT")]
pub const BLKPTR_SIZE: usize = 128;
/// Copies that one pointer can name.
#[doc(alias = "SPA_DVAS_PER_BP")]
pub const DVAS_PER_BP: usize = 3;
/// Bytes of payload in an embedded pointer.
#[doc(alias = "BPE_PAYLOAD_SIZE")]
pub const EMBEDDED_PAYLOAD_SIZE: usize = 112;

/// A block pointer as it lies on disk; may hold any bytes.
#[doc(alias = "blkptr_t")]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlkptrPhys {
    /// Up to three copies.
    pub dva: [DvaPhys; DVAS_PER_BP],
    /// Sizes, functions, type, level, flags.
    pub prop: U64,
    /// Flags since 2.4.
    pub prop2: U64,
    /// Reserved.
    pub pad: U64,
    /// Physical, then logical birth txg.
    pub birth: [U64; 2],
    /// Non-zero blocks below.
    pub fill: U64,
    /// Checksum of the block.
    pub cksum: [U64; 4],
}

const _: () = assert!(size_of::<BlkptrPhys>() == BLKPTR_SIZE && align_of::<BlkptrPhys>() == 1);
const _: () = assert!(std::mem::offset_of!(BlkptrPhys, prop) == 48);
const _: () = assert!(std::mem::offset_of!(BlkptrPhys, birth) == 72);
const _: () = assert!(std::mem::offset_of!(BlkptrPhys, cksum) == 96);

/// Type of an embedded pointer's payload.
#[doc(alias = "bp_embedded_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EmbeddedType {
    /// The block's data, possibly compressed.
    Data,
    /// Never written.
    Reserved,
    /// No data: the block was left out of a redacted send.
    Redacted,
}

const PROP: usize = 6;
const PROP2: usize = 7;
const PHYS_BIRTH: usize = 9;
const BIRTH: usize = 10;
const FILL: usize = 11;
const CKSUM: usize = 12;

/// A block pointer in core: all 16 words kept, read through accessors.
///
/// Any words make one; [`Blkptr::verify`] checks them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Blkptr {
    words: [u64; 16],
}

impl Blkptr {
    /// The pointer in the first 128 bytes (little-endian), if there are that many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (phys, _) = BlkptrPhys::ref_from_prefix(bytes).ok()?;
        Some(phys.into())
    }

    /// A pointer from its 16 words.
    pub fn from_words(words: [u64; 16]) -> Self {
        Self { words }
    }

    /// Its 16 words.
    pub fn words(&self) -> &[u64; 16] {
        &self.words
    }

    /// Its bytes, little-endian.
    pub fn to_bytes(&self) -> [u8; BLKPTR_SIZE] {
        let mut out = [0; BLKPTR_SIZE];
        for (chunk, word) in out.chunks_exact_mut(8).zip(self.words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn word<const I: usize>(&self) -> u64 {
        const { assert!(I < 16) };
        #[expect(clippy::indexing_slicing, reason = "I is checked at compile time")]
        self.words[I]
    }

    fn word_mut<const I: usize>(&mut self) -> &mut u64 {
        const { assert!(I < 16) };
        #[expect(clippy::indexing_slicing, reason = "I is checked at compile time")]
        &mut self.words[I]
    }

    /// The raw property word.
    pub fn prop(&self) -> u64 {
        self.word::<PROP>()
    }

    fn prop_bits(&self, low: u32, len: u32) -> u64 {
        bits(self.prop(), low, len)
    }

    /// Payload in the pointer itself, no block.
    pub fn is_embedded(&self) -> bool {
        self.prop_bits(39, 1) != 0
    }

    /// No data: reads as zeros.
    pub fn is_hole(&self) -> bool {
        !self.is_embedded() && self.word::<0>() == 0 && self.word::<1>() == 0
    }

    /// Left out of a redacted send: there is no data to read.
    pub fn is_redacted(&self) -> bool {
        self.embedded_type() == Some(EmbeddedType::Redacted)
    }

    /// The first copy is a gang header.
    pub fn is_gang(&self) -> bool {
        !self.is_embedded() && bits(self.word::<1>(), 63, 1) != 0
    }

    /// Bytes of data that the block stands for (embedded: unpacked size; redacted: 0).
    pub fn lsize(&self) -> u64 {
        if !self.is_embedded() {
            return (self.prop_bits(0, 16) + 1) << MIN_BLOCK_SHIFT;
        }
        if self.embedded_type() == Some(EmbeddedType::Data) { self.embedded_lsize() } else { 0 }
    }

    /// Bytes stored on disk by one copy; 0 for an embedded pointer (see [`Self::embedded_psize`]).
    pub fn psize(&self) -> u64 {
        if self.is_embedded() { 0 } else { (self.prop_bits(16, 16) + 1) << MIN_BLOCK_SHIFT }
    }

    /// Bytes that count as uncompressed: of metadata those on disk.
    #[doc(alias = "BP_GET_UCSIZE")]
    pub fn ucsize(&self) -> u64 {
        if self.is_metadata() { self.psize() } else { self.lsize() }
    }

    /// Unpacked bytes of an embedded pointer's payload.
    pub fn embedded_lsize(&self) -> u64 {
        self.prop_bits(0, 25) + 1
    }

    /// Packed bytes of an embedded pointer's payload (a hostile pointer may claim more than 112).
    pub fn embedded_psize(&self) -> u64 {
        self.prop_bits(25, 7) + 1
    }

    /// Type of the payload; `None` when not embedded or unknown.
    pub fn embedded_type(&self) -> Option<EmbeddedType> {
        match (self.is_embedded(), self.prop_bits(40, 8)) {
            (true, 0) => Some(EmbeddedType::Data),
            (true, 1) => Some(EmbeddedType::Reserved),
            (true, 2) => Some(EmbeddedType::Redacted),
            _ => None,
        }
    }

    /// The raw embedded type (shares its bits with the checksum function).
    pub fn embedded_type_raw(&self) -> u8 {
        self.prop_bits(40, 8) as u8
    }

    /// All 14 payload words of an embedded pointer as bytes; the first [`Self::embedded_psize`] count.
    pub fn embedded_payload(&self) -> [u8; EMBEDDED_PAYLOAD_SIZE] {
        let mut out = [0; EMBEDDED_PAYLOAD_SIZE];
        let payload = self.words.iter().enumerate().filter(|(i, _)| !matches!(*i, PROP | BIRTH));
        for (chunk, (_, word)) in out.chunks_exact_mut(8).zip(payload) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Raw compression function number.
    pub fn compress_raw(&self) -> u8 {
        self.prop_bits(32, 7) as u8
    }

    /// Compression function, if known.
    pub fn compress(&self) -> Option<CompressType> {
        CompressType::from_raw(self.compress_raw())
    }

    /// Raw checksum function number; "off" for an embedded pointer.
    pub fn checksum_raw(&self) -> u8 {
        if self.is_embedded() { ChecksumType::Off.raw() } else { self.prop_bits(40, 8) as u8 }
    }

    /// Checksum function, if known.
    pub fn checksum(&self) -> Option<ChecksumType> {
        ChecksumType::from_raw(self.checksum_raw())
    }

    /// Type of the block's content (at level 0), or of the content below it.
    pub fn object_type(&self) -> ObjectType {
        ObjectType(self.prop_bits(48, 8) as u8)
    }

    /// Levels of indirection below: 0 is data.
    pub fn level(&self) -> u8 {
        self.prop_bits(56, 5) as u8
    }

    /// Written through the dedup table.
    pub fn dedup(&self) -> bool {
        self.prop_bits(62, 1) != 0
    }

    /// The block's contents are little-endian.
    pub fn byteorder_is_little(&self) -> bool {
        self.prop_bits(63, 1) != 0
    }

    /// The block's contents must be swapped before a little-endian decoder sees them.
    pub fn should_byteswap(&self) -> bool {
        !self.byteorder_is_little()
    }

    /// Txg in which the block became part of its dataset; of a hole the txg of the punch, or 0.
    pub fn logical_birth(&self) -> u64 {
        self.word::<BIRTH>()
    }

    /// Raw physical birth word: 0 means the same as logical.
    pub fn physical_birth_raw(&self) -> u64 {
        self.word::<PHYS_BIRTH>()
    }

    /// Txg in which the first copy was allocated; 0 when embedded. (`BP_GET_BIRTH` up to 2.3.)
    #[doc(alias = "BP_GET_PHYSICAL_BIRTH")]
    pub fn physical_birth(&self) -> u64 {
        match (self.is_embedded(), self.physical_birth_raw()) {
            (true, _) => 0,
            (false, 0) => self.logical_birth(),
            (false, txg) => txg,
        }
    }

    /// Txg that space accounting goes by (snapshots, deadlists): the physical birth of a rewritten
    /// block, else the logical birth.
    #[doc(alias = "BP_GET_BIRTH")]
    pub fn accounting_birth(&self) -> u64 {
        if self.is_rewritten() { self.physical_birth() } else { self.logical_birth() }
    }

    /// The block was moved by a physical rewrite (2.4): its physical birth is newer, its data is not.
    #[doc(alias = "BP_GET_REWRITE")]
    pub fn is_rewritten(&self) -> bool {
        !self.is_embedded() && bits(self.word::<PROP2>(), 63, 1) != 0
    }

    /// Number of non-zero blocks below (dnodes: allocated objects); 1 when embedded.
    pub fn fill(&self) -> u64 {
        if self.is_encrypted() {
            bits(self.word::<FILL>(), 0, 32)
        } else if self.is_embedded() {
            1
        } else {
            self.word::<FILL>()
        }
    }

    /// The third address of an encrypted block holds salt and IV instead.
    fn usable_dvas(&self) -> usize {
        match (self.is_embedded(), self.is_encrypted()) {
            (true, _) => 0,
            (false, true) => 2,
            (false, false) => 3,
        }
    }

    /// The addresses that are in use.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + '_ {
        let (pairs, _) = self.words.as_chunks::<2>();
        pairs
            .iter()
            .take(self.usable_dvas())
            .map(|&[w0, w1]| Dva::from_words(w0, w1))
            .filter(|d| d.is_valid())
    }

    /// Address `i`, in use or not; `None` past those the pointer can hold.
    pub fn dva(&self, i: usize) -> Option<Dva> {
        if i >= self.usable_dvas() {
            return None;
        }
        let (pairs, _) = self.words.as_chunks::<2>();
        pairs.get(i).map(|&[w0, w1]| Dva::from_words(w0, w1))
    }

    /// Number of copies.
    pub fn ndvas(&self) -> usize {
        self.dvas().count()
    }

    /// Allocated bytes of all copies together.
    pub fn asize(&self) -> u64 {
        self.dvas().map(|d| d.asize).sum()
    }

    /// Number of copies that are gang blocks.
    pub fn count_gang(&self) -> usize {
        self.dvas().filter(|d| d.gang).count()
    }

    /// Metadata: an indirect block, or a type that counts as metadata.
    pub fn is_metadata(&self) -> bool {
        self.level() > 0 || self.object_type().is_metadata()
    }

    /// The four checksum words.
    pub fn checksum_words(&self) -> [u64; 4] {
        [self.word::<CKSUM>(), self.word::<{ CKSUM + 1 }>(), self.word::<14>(), self.word::<15>()]
    }

    /// The same block: same place, same births. Of an encrypted block salt and IV may differ: it was written in place.
    #[doc(alias = "BP_EQUAL")]
    pub fn same_block(&self, other: &Self) -> bool {
        let places = |bp: &Self| 2 * if bp.is_encrypted() { DVAS_PER_BP - 1 } else { DVAS_PER_BP };
        self.physical_birth() == other.physical_birth()
            && self.logical_birth() == other.logical_birth()
            && places(self) == places(other)
            && self.words.iter().take(places(self)).eq(other.words.iter().take(places(other)))
    }

    /// Replaces the property word.
    pub fn set_prop(&mut self, prop: u64) {
        *self.word_mut::<PROP>() = prop;
    }
}

impl From<&BlkptrPhys> for Blkptr {
    fn from(phys: &BlkptrPhys) -> Self {
        let mut words = [0; 16];
        for (word, raw) in words.iter_mut().zip(phys.as_bytes().as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*raw);
        }
        Self { words }
    }
}

impl From<&Blkptr> for BlkptrPhys {
    fn from(bp: &Blkptr) -> Self {
        zerocopy::transmute!(bp.to_bytes())
    }
}
