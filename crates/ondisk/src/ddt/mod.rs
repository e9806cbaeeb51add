//! Dedup tables: from a block's checksum to its places and reference count.
//!
//! Each checksum function has up to three ZAPs (ditto, duplicate, unique). The key is five words,
//! the value a byte with compression and byte order, then words, zle-compressed or plain. A traditional value
//! has four variants (ditto, one, two, three copies); a flat one (`fast_dedup`) has one, and new entries
//! first go to a log. Source: ddt.h, ddt_impl.h, ddt_zap.c, OpenZFS 2.3.

mod encode;

pub use encode::{compress_value, encode_value, log_record};

use crate::byteswap::{self, IntWidth};
use crate::words::word_struct;
use crate::{Blkptr, ChecksumType, CompressType, Dva, MIN_BLOCK_SHIFT, Malformed, ObjectType};

/// Version of tables without `fast_dedup`.
pub const DDT_VERSION_LEGACY: u64 = 0;
/// Version of tables with `fast_dedup`.
pub const DDT_VERSION_FDT: u64 = 1;
/// Table flag: values are flat.
pub const DDT_FLAG_FLAT: u64 = 1;
/// Table flag: there is a log.
pub const DDT_FLAG_LOG: u64 = 2;

word_struct! {
    /// The key of an entry.
    #[doc(alias = "ddt_key_t")]
    #[derive(Hash, PartialOrd, Ord)]
    DdtKey = "ddt key", 40 bytes {
        /// Checksum of the block.
        cksum: [u64; 4],
        /// Encrypted:1 compression:7 psize-1:16 lsize-1:16, from bit 39 down.
        prop: u64,
    }
}

impl DdtKey {
    /// Bytes of data.
    pub fn lsize(&self) -> u64 {
        ((self.prop & 0xffff) + 1) << MIN_BLOCK_SHIFT
    }

    /// Bytes stored.
    pub fn psize(&self) -> u64 {
        ((self.prop >> 16 & 0xffff) + 1) << MIN_BLOCK_SHIFT
    }

    /// Raw compression function.
    pub fn compress_raw(&self) -> u8 {
        (self.prop >> 32 & 0x7f) as u8
    }

    /// Compression function, if known.
    pub fn compress(&self) -> Option<CompressType> {
        CompressType::from_raw(self.compress_raw())
    }

    /// The block is encrypted.
    pub fn crypt(&self) -> bool {
        self.prop >> 39 & 1 != 0
    }

    /// The key of a block.
    #[doc(alias = "ddt_key_fill")]
    pub fn of(bp: &Blkptr) -> Self {
        let prop = (bp.prop() & 0x7f_ffff_ffff) | u64::from(bp.uses_crypt()) << 39;
        Self { cksum: bp.checksum_words(), prop }
    }
}

word_struct! {
    /// One variant of a traditional value.
    #[doc(alias = "ddt_phys_t")]
    DdtPhysTrad = "ddt phys", 64 bytes {
        /// Three addresses.
        dva: [[u64; 2]; 3],
        /// References.
        refcnt: u64,
        /// Birth txg; 0: the variant is unused.
        phys_birth: u64,
    }
}

word_struct! {
    /// A flat value.
    DdtPhysFlat = "ddt flat phys", 72 bytes {
        /// Three addresses.
        dva: [[u64; 2]; 3],
        /// References.
        refcnt: u64,
        /// Birth txg.
        phys_birth: u64,
        /// Seconds since 1970 when it entered its class.
        class_start: u64,
    }
}

/// Bytes of a traditional value.
pub const DDT_TRAD_SIZE: usize = 4 * DdtPhysTrad::SIZE;

/// Places and references of a deduplicated block: one variant of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdtPhys {
    /// 0 ditto, 1 to 3 copies, 4 flat.
    pub variant: u8,
    /// Three addresses; unused ones are zero. Of an encrypted block the third is salt and IV.
    pub dva_words: [[u64; 2]; 3],
    /// References.
    pub refcnt: u64,
    /// Birth txg.
    pub phys_birth: u64,
    /// Seconds since 1970 when a flat entry entered its class.
    pub class_start: Option<u64>,
}

impl DdtPhys {
    /// The addresses in use. Pass the key's `crypt`.
    pub fn dvas(&self, crypt: bool) -> impl Iterator<Item = Dva> + '_ {
        let usable = if crypt { 2 } else { 3 };
        self.dva_words.iter().take(usable).map(|&[w0, w1]| Dva::from_words(w0, w1)).filter(|d| d.is_valid())
    }

    /// The block pointer that zdb and scrub use for an entry. Encrypted blocks lack the fields that only a
    /// real pointer has (IV2, MAC), so they can be checked but not decrypted.
    #[doc(alias = "ddt_bp_create")]
    pub fn blkptr(&self, key: &DdtKey, checksum: ChecksumType) -> Blkptr {
        let [c0, c1, c2, c3] = key.cksum;
        let [[a0, a1], [b0, b1], [d0, d1]] = self.dva_words;
        let prop = (key.prop & 0x7f_ffff_ffff)
            | u64::from(checksum.raw()) << 40
            | u64::from(ObjectType::DEDUP.raw()) << 48
            | u64::from(key.crypt()) << 61
            | 1 << 62
            | 1 << 63;
        let birth = self.phys_birth;
        Blkptr::from_words([a0, a1, b0, b1, d0, d1, prop, 0, 0, 0, birth, 1, c0, c1, c2, c3])
    }
}

/// Decodes a value (decompressed, little-endian) into its used variants.
pub fn decode_value(flat: bool, bytes: &[u8]) -> Result<Vec<DdtPhys>, Malformed> {
    if flat {
        let DdtPhysFlat { dva, refcnt, phys_birth, class_start } = DdtPhysFlat::from_bytes(bytes)?;
        let class_start = Some(class_start);
        return Ok(vec![DdtPhys { variant: 4, dva_words: dva, refcnt, phys_birth, class_start }]);
    }
    if bytes.len() < DDT_TRAD_SIZE {
        return Err(Malformed::short("ddt phys", bytes.len(), DDT_TRAD_SIZE));
    }
    let variants = bytes.chunks_exact(DdtPhysTrad::SIZE).zip(0..4);
    let decoded = variants.map(|(raw, variant)| {
        let DdtPhysTrad { dva, refcnt, phys_birth } = DdtPhysTrad::from_bytes(raw)?;
        Ok(DdtPhys { variant, dva_words: dva, refcnt, phys_birth, class_start: None })
    });
    let all: Result<Vec<_>, Malformed> = decoded.collect();
    Ok(all?.into_iter().filter(|p| p.phys_birth != 0).collect())
}

/// Unpacks a ZAP value into `out` bytes (little-endian): a byte with the byte order in bit 7 and the
/// compression in the rest, then the words.
#[doc(alias = "ddt_zap_decompress")]
pub fn decompress_value(stored: &[u8], size: usize) -> Result<Vec<u8>, Malformed> {
    let (&version, packed) = stored.split_first().ok_or_else(|| Malformed::new("ddt value", "empty"))?;
    let mut out = match CompressType::from_raw(version & 0x7f) {
        Some(CompressType::Zle) => unzle(packed, size),
        Some(CompressType::Off) => packed.get(..size).map(<[u8]>::to_vec),
        _ => return Err(Malformed::new("ddt value", format!("compression {}", version & 0x7f))),
    }
    .ok_or_else(|| Malformed::new("ddt value", format!("does not unpack to {size} bytes")))?;
    if version & 0x80 == 0 {
        byteswap::words(&mut out, IntWidth::U64);
    }
    Ok(out)
}

// zle with its usual limit: a byte up to 63 is the number of literal bytes that follow (less one), above that
// the number of zeros (plus 63).
fn unzle(mut packed: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(size.min(1 << 16));
    while out.len() < size {
        let (&head, rest) = packed.split_first()?;
        let len = usize::from(head) + 1;
        let (literal, zeros) = if len <= 64 { (len, 0) } else { (0, len - 64) };
        let (bytes, rest) = rest.split_at_checked(literal)?;
        out.extend_from_slice(bytes);
        out.resize(out.len() + zeros, 0);
        packed = rest;
    }
    (out.len() == size).then_some(out)
}

word_struct! {
    /// Bonus buffer of a log.
    #[doc(alias = "ddt_log_header_t")]
    DdtLogHeader = "ddt log header", 64 bytes {
        /// Version:8, flags:8.
        info: u64,
        /// Bytes of records.
        length: u64,
        /// Txg since which it takes new entries.
        first_txg: u64,
        /// Last entry that was flushed.
        checkpoint: DdtKey,
    }
}

impl DdtLogHeader {
    /// Flag: it is being flushed.
    pub const FLAG_FLUSHING: u8 = 1;
    /// Flag: entries up to `checkpoint` are flushed.
    pub const FLAG_CHECKPOINT: u8 = 2;

    /// Version; OpenZFS 2.3 knows 1.
    pub fn version(&self) -> u8 {
        self.info as u8
    }

    /// Flags.
    pub fn flags(&self) -> u8 {
        (self.info >> 8) as u8
    }
}

/// A record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdtLogEntry {
    /// Kind of storage that has an older entry of the key; 1: none has.
    pub ddt_type: u8,
    /// Class of that entry: 0 ditto, 1 duplicate, 2 unique; 3: there is none.
    pub class: u8,
    /// Its key.
    pub key: DdtKey,
    /// Its variants.
    pub phys: Vec<DdtPhys>,
}

/// The records of a log block; the rest of a partly filled block is zero. Ends after an error.
pub fn log_entries(flat: bool, block: &[u8]) -> impl Iterator<Item = Result<DdtLogEntry, Malformed>> {
    let mut rest = block;
    std::iter::from_fn(move || {
        let info = rest.first_chunk().map(|raw| u64::from_le_bytes(*raw))?;
        let (kind, len) = (info as u8, usize::from((info >> 8) as u16));
        if kind == 0 {
            return None;
        }
        let (record, next) = rest.split_at_checked(len).unwrap_or((&[], &[]));
        rest = next;
        let entry = log_entry(flat, kind, info, record);
        if entry.is_err() {
            rest = &[];
        }
        Some(entry)
    })
}

fn log_entry(flat: bool, kind: u8, info: u64, record: &[u8]) -> Result<DdtLogEntry, Malformed> {
    let payload = record.get(8..).filter(|_| kind == 1);
    let payload = payload.ok_or_else(|| Malformed::new("ddt log", format!("record of type {kind}")))?;
    let key = DdtKey::from_bytes(payload)?;
    let phys = decode_value(flat, payload.get(DdtKey::SIZE..).unwrap_or(&[]))?;
    Ok(DdtLogEntry { ddt_type: (info >> 48) as u8, class: (info >> 56) as u8, key, phys })
}

word_struct! {
    /// Statistics of some blocks.
    #[doc(alias = "ddt_stat_t")]
    DdtStat = "ddt statistics", 64 bytes {
        /// Blocks.
        blocks: u64,
        /// Their bytes of data.
        lsize: u64,
        /// Their bytes stored.
        psize: u64,
        /// Their bytes allocated.
        dsize: u64,
        /// References.
        ref_blocks: u64,
        /// Bytes of data, each reference counted.
        ref_lsize: u64,
        /// Bytes stored, each reference counted.
        ref_psize: u64,
        /// Bytes allocated, each reference counted.
        ref_dsize: u64,
    }
}

word_struct! {
    /// Statistics by reference count: bucket i counts blocks with `2^i` up to twice that.
    #[doc(alias = "ddt_histogram_t")]
    DdtHistogram = "ddt histogram", 4096 bytes {
        /// 64 buckets.
        stat: [DdtStat; 64],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zle_values_unpack() {
        // 64-byte prefix zeros, then two literals, then zeros up to 72.
        let packed = [63 + 64, 1, 0xaa, 0xbb, 63 + 6];
        let out = unzle(&packed, 72).unwrap();
        assert_eq!(&out[62..68], [0, 0, 0xaa, 0xbb, 0, 0]);
        assert_eq!(unzle(&packed, 73), None);
        assert_eq!(unzle(&[255], 100), None);
        assert!(decompress_value(&[], 72).is_err());
    }

    #[test]
    fn values_of_the_other_byte_order_are_swapped() {
        let mut stored = vec![2];
        stored.extend((0..9u64).flat_map(|w| w.to_be_bytes()));
        let out = decompress_value(&stored, 72).unwrap();
        let phys = decode_value(true, &out).unwrap();
        assert_eq!((phys[0].refcnt, phys[0].phys_birth, phys[0].class_start), (6, 7, Some(8)));
    }

    #[test]
    fn a_log_ends_at_zeros_and_at_nonsense() {
        let mut block = vec![0; 4096];
        let info: u64 = 1 | (8 + 40 + 72) << 8 | 2 << 56;
        block[..8].copy_from_slice(&info.to_le_bytes());
        let all: Vec<_> = log_entries(true, &block).collect();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].as_ref().unwrap().class, 2);
        block[120] = 7;
        let all: Vec<_> = log_entries(true, &block).collect();
        assert!(all.len() == 2 && all[1].is_err());
    }
}
