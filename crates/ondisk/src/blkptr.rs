//! Block pointers: where a block is, what it holds, and how to know that it is intact.
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

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{ChecksumType, CompressType, MAX_BLOCK_SIZE, MIN_BLOCK_SHIFT, Malformed, ObjectType};

/// Size of a block pointer on disk, in bytes.
#[doc(alias = "SPA_BLKPTRSHIFT")]
pub const BLKPTR_SIZE: usize = 128;
/// Copies that one pointer can name.
#[doc(alias = "SPA_DVAS_PER_BP")]
pub const DVAS_PER_BP: usize = 3;
/// Bytes of payload in an embedded pointer.
#[doc(alias = "BPE_PAYLOAD_SIZE")]
pub const EMBEDDED_PAYLOAD_SIZE: usize = 112;

/// A data virtual address as it lies on disk.
#[doc(alias = "dva_t")]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DvaPhys {
    /// The two words.
    pub word: [U64; 2],
}

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

/// A data virtual address, decoded: a place on a top-level vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dva {
    /// Index of the top-level vdev.
    pub vdev: u32,
    /// Byte offset in the vdev's allocatable space (the front labels are not counted).
    pub offset: u64,
    /// Allocated bytes, parity and padding included; of a gang block with all its members.
    pub asize: u64,
    /// Unused by every version; kept verbatim.
    pub grid: u8,
    /// The unused top byte of the first word; kept verbatim.
    pub pad: u8,
    /// There is a gang header at this place.
    pub gang: bool,
}

impl Dva {
    /// Decodes the two words.
    pub fn from_words(w0: u64, w1: u64) -> Self {
        Self {
            vdev: bits(w0, 32, 24) as u32,
            // A hostile offset past 2^64 must not wrap round to a valid one.
            offset: bits(w1, 0, 63).saturating_mul(1 << MIN_BLOCK_SHIFT),
            asize: bits(w0, 0, 24) << MIN_BLOCK_SHIFT,
            grid: bits(w0, 24, 8) as u8,
            pad: bits(w0, 56, 8) as u8,
            gang: bits(w1, 63, 1) != 0,
        }
    }

    /// Encodes the two words. Sizes are truncated to their units and field widths.
    pub fn to_words(self) -> [u64; 2] {
        let mut w0 = 0;
        set_bits(&mut w0, 32, 24, u64::from(self.vdev));
        set_bits(&mut w0, 24, 8, u64::from(self.grid));
        set_bits(&mut w0, 56, 8, u64::from(self.pad));
        set_bits(&mut w0, 0, 24, self.asize >> MIN_BLOCK_SHIFT);
        let mut w1 = 0;
        set_bits(&mut w1, 0, 63, self.offset >> MIN_BLOCK_SHIFT);
        set_bits(&mut w1, 63, 1, u64::from(self.gang));
        [w0, w1]
    }

    /// Whether the address names allocated space.
    #[doc(alias = "DVA_IS_VALID")]
    pub fn is_valid(self) -> bool {
        self.asize != 0
    }
}

/// What an embedded pointer's payload is.
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
/// Any words make one; [`Blkptr::verify`] says whether they make sense.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Blkptr {
    words: [u64; 16],
}

/// What [`Blkptr::verify`] may assume of the pool.
#[derive(Clone, Copy, Debug)]
pub struct BlkptrLimits<'a> {
    /// Largest block the pool may hold, in bytes.
    pub max_block_size: u64,
    /// Allocatable bytes of each top-level vdev, 0 where unknown (missing); `None` before the
    /// configuration is trusted, when addresses are not checked.
    pub vdev_asize: Option<&'a [u64]>,
}

impl Default for BlkptrLimits<'_> {
    fn default() -> Self {
        Self { max_block_size: MAX_BLOCK_SIZE, vdev_asize: None }
    }
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

    /// Unpacked bytes of an embedded pointer's payload.
    pub fn embedded_lsize(&self) -> u64 {
        self.prop_bits(0, 25) + 1
    }

    /// Packed bytes of an embedded pointer's payload (a hostile pointer may claim more than 112).
    pub fn embedded_psize(&self) -> u64 {
        self.prop_bits(25, 7) + 1
    }

    /// What the payload is; `None` when not embedded or unknown.
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

    /// What the block holds (at level 0) or leads to.
    pub fn object_type(&self) -> ObjectType {
        ObjectType(self.prop_bits(48, 8) as u8)
    }

    /// Levels of indirection below: 0 is data.
    pub fn level(&self) -> u8 {
        self.prop_bits(56, 5) as u8
    }

    /// Encrypted, authenticated, or a checksum of MACs (levels above 0).
    pub fn uses_crypt(&self) -> bool {
        self.prop_bits(61, 1) != 0
    }

    /// The block's bytes are ciphertext.
    pub fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && self.object_type().is_encrypted()
    }

    /// The block's bytes are clear, with a MAC.
    pub fn is_authenticated(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && !self.object_type().is_encrypted()
    }

    /// Either of the two above.
    pub fn is_protected(&self) -> bool {
        self.uses_crypt() && self.level() == 0
    }

    /// An indirect block of an encrypted dataset: its MAC words are a checksum of the MACs below.
    pub fn has_indirect_mac(&self) -> bool {
        self.uses_crypt() && self.level() > 0
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

    /// Txg in which the first copy was allocated; 0 when embedded.
    #[doc(alias = "BP_GET_BIRTH")]
    pub fn physical_birth(&self) -> u64 {
        match (self.is_embedded(), self.physical_birth_raw()) {
            (true, _) => 0,
            (false, 0) => self.logical_birth(),
            (false, txg) => txg,
        }
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

    /// Salt of an encrypted block, as a word.
    pub fn crypt_salt(&self) -> u64 {
        self.word::<4>()
    }

    /// First 64 bits of the IV of an encrypted block, as a word.
    pub fn crypt_iv1(&self) -> u64 {
        self.word::<5>()
    }

    /// Last 32 bits of the IV of an encrypted block, as a word.
    pub fn crypt_iv2(&self) -> u32 {
        bits(self.word::<FILL>(), 32, 32) as u32
    }

    fn ordered(&self, word: u64) -> [u8; 8] {
        if self.byteorder_is_little() { word.to_le_bytes() } else { word.to_be_bytes() }
    }

    /// The salt as the bytes that key derivation wants.
    pub fn salt_bytes(&self) -> [u8; 8] {
        self.ordered(self.crypt_salt())
    }

    /// The 96-bit IV as bytes.
    pub fn iv_bytes(&self) -> [u8; 12] {
        let iv2 = self.crypt_iv2();
        let tail = if self.byteorder_is_little() { iv2.to_le_bytes() } else { iv2.to_be_bytes() };
        let mut out = [0; 12];
        for (to, from) in out.iter_mut().zip(self.ordered(self.crypt_iv1()).into_iter().chain(tail)) {
            *to = from;
        }
        out
    }

    /// The 128-bit MAC of a protected block (or checksum of MACs); zero for an objset, which has its own.
    pub fn mac(&self) -> [u8; 16] {
        let mut out = [0; 16];
        if self.object_type() == ObjectType::OBJSET {
            return out;
        }
        let bytes = [self.word::<14>(), self.word::<15>()].map(|w| self.ordered(w));
        for (to, from) in out.iter_mut().zip(bytes.as_flattened()) {
            *to = *from;
        }
        out
    }

    /// The same block: same place, same births.
    #[doc(alias = "BP_EQUAL")]
    pub fn same_block(&self, other: &Self) -> bool {
        self.physical_birth() == other.physical_birth()
            && self.logical_birth() == other.logical_birth()
            && self.words.iter().take(6).eq(other.words.iter().take(6))
    }

    /// Replaces the property word.
    pub fn set_prop(&mut self, prop: u64) {
        *self.word_mut::<PROP>() = prop;
    }

    /// Checks that every field is one that OpenZFS could have written: known functions and type,
    /// sizes within limits, at least one copy, and copies within their vdevs.
    #[doc(alias = "zfs_blkptr_verify")]
    pub fn verify(&self, limits: &BlkptrLimits<'_>) -> Result<(), Malformed> {
        let bad = |detail: String| Err(Malformed::new("blkptr", detail));
        if !self.object_type().is_valid() {
            return bad(format!("unknown object type {}", self.object_type().raw()));
        }
        if self.compress().is_none() {
            return bad(format!("unknown compression {}", self.compress_raw()));
        }
        if self.lsize() > limits.max_block_size {
            return bad(format!("logical size {} above {}", self.lsize(), limits.max_block_size));
        }
        if self.is_embedded() {
            return self.verify_embedded();
        }
        if self.is_hole() {
            return Ok(());
        }
        if self.checksum().is_none() {
            return bad(format!("unknown checksum {}", self.checksum_raw()));
        }
        if self.psize() > limits.max_block_size {
            return bad(format!("physical size {} above {}", self.psize(), limits.max_block_size));
        }
        self.verify_dvas(limits)
    }

    fn verify_embedded(&self) -> Result<(), Malformed> {
        if self.embedded_type().is_none() {
            let raw = self.embedded_type_raw();
            return Err(Malformed::new("blkptr", format!("unknown embedded type {raw}")));
        }
        if self.embedded_psize() > EMBEDDED_PAYLOAD_SIZE as u64 {
            let size = self.embedded_psize();
            return Err(Malformed::new("blkptr", format!("embedded payload of {size} bytes")));
        }
        Ok(())
    }

    fn verify_dvas(&self, limits: &BlkptrLimits<'_>) -> Result<(), Malformed> {
        if !self.dva(0).is_some_and(Dva::is_valid) {
            return Err(Malformed::new("blkptr", "no valid DVA"));
        }
        let Some(vdevs) = limits.vdev_asize else { return Ok(()) };
        for dva in self.dvas() {
            let Some(&size) = vdevs.get(dva.vdev as usize) else {
                return Err(Malformed::new("blkptr", format!("no vdev {}", dva.vdev)));
            };
            // A gang's asize counts its members, which lie elsewhere.
            let here = if dva.gang { crate::MIN_BLOCK_SIZE } else { dva.asize };
            if size != 0 && dva.offset.checked_add(here).is_none_or(|end| end > size) {
                let Dva { vdev, offset, .. } = dva;
                return Err(Malformed::new("blkptr", format!("offset {offset:#x} past end of vdev {vdev}")));
            }
        }
        Ok(())
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

fn bits(word: u64, low: u32, len: u32) -> u64 {
    (word >> low) & (u64::MAX >> (64 - len))
}

fn set_bits(word: &mut u64, low: u32, len: u32, value: u64) {
    let mask = u64::MAX >> (64 - len);
    *word = (*word & !(mask << low)) | ((value & mask) << low);
}
