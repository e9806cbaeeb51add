//! Where a block pointer keeps a block's encryption parameters, and which of its bits are
//! authenticated (`blkptr_t`, spa.h; `zio_crypt_decode_params_bp`, zio_crypt.c, OpenZFS 2.3).
//!
//! ```text
//! blkptr_t, 16 words      0..6        6        7 8 9 10  11      12..16
//!                         DVA 0,1,2   blk_prop           fill    checksum
//! encrypted block:        DVA 2 = salt, IV bytes 0..8    high half = IV bytes 8..12
//!                         checksum words 2 and 3 = MAC
//! ```

use crate::{Iv, Mac, Salt, bytes};

/// The byte order that a block was written in (bit 63 of its pointer's `blk_prop`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Bit 63 set.
    Little,
    /// Bit 63 clear.
    Big,
}

impl ByteOrder {
    /// The byte order in bit 63 of `blk_prop`.
    #[doc(alias = "BP_GET_BYTEORDER")]
    pub fn of_prop(blk_prop: u64) -> Self {
        if blk_prop >> 63 == 1 { Self::Little } else { Self::Big }
    }

    /// The number that these 8 bytes are.
    pub(crate) fn read(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    /// The bytes of this number.
    pub(crate) fn write(self, word: u64) -> [u8; 8] {
        match self {
            Self::Little => word.to_le_bytes(),
            Self::Big => word.to_be_bytes(),
        }
    }
}

/// Parameters for decrypting one block besides the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockParams {
    /// Chooses the block key.
    pub salt: Salt,
    /// Initialisation vector.
    pub iv: Iv,
    /// Message authentication code.
    pub mac: Mac,
}

impl BlockParams {
    /// The parameters in a block pointer whose words have been decoded to numbers: its third DVA, its
    /// `blk_prop`, `blk_fill` and checksum. For an intent-log block replace the MAC by
    /// [`zil_mac`](crate::zil_mac) of the block; for blocks that are authenticated only, salt and IV
    /// mean nothing.
    #[doc(alias = "zio_crypt_decode_params_bp")]
    pub fn from_bp_words(dva2: [u64; 2], blk_prop: u64, blk_fill: u64, cksum: [u64; 4]) -> Self {
        let order = ByteOrder::of_prop(blk_prop);
        let [salt, iv1] = dva2;
        let [_, _, mac0, mac1] = cksum;
        let (high, low) = (order.write(mac0), order.write(mac1));
        let iv1 = order.write(iv1);
        let iv2 = (blk_fill >> 32) as u32;
        let iv2 = if order == ByteOrder::Little { iv2.to_le_bytes() } else { iv2.to_be_bytes() };
        Self { salt: order.write(salt), iv: join(iv1, iv2), mac: join(high, low) }
    }

    /// The words that a writer puts into the block pointer, which has this `blk_prop`: the third DVA,
    /// the high half of `blk_fill`, and checksum words 2 and 3.
    #[doc(alias = "zio_crypt_encode_params_bp")]
    pub fn to_bp_words(&self, blk_prop: u64) -> ([u64; 2], u32, [u64; 2]) {
        let order = ByteOrder::of_prop(blk_prop);
        let word = |bytes: &[u8], at| order.read(bytes::array(bytes, at).unwrap_or_default());
        let iv2 = bytes::array(&self.iv, 8).unwrap_or_default();
        let iv2 = if order == ByteOrder::Little { u32::from_le_bytes(iv2) } else { u32::from_be_bytes(iv2) };
        ([order.read(self.salt), word(&self.iv, 0)], iv2, [word(&self.mac, 0), word(&self.mac, 8)])
    }
}

/// `a` followed by `b`; `N` is the sum of their lengths.
fn join<const A: usize, const B: usize, const N: usize>(a: [u8; A], b: [u8; B]) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(a.into_iter().chain(b)) {
        *to = from;
    }
    out
}

/// Size of a block pointer.
pub(crate) const BLKPTR_SIZE: usize = 128;
/// `DMU_OT_OBJSET`: keeps its MACs in the block, not in the pointer.
const TYPE_OBJSET: u64 = 11;

const PSIZE: u64 = 0xffff << 16;
const COMPRESS: u64 = 0x7f << 32;
const EMBEDDED: u64 = 1 << 39;
const CHECKSUM: u64 = 0xff << 40;
const LEVEL: u64 = 0x1f << 56;
const DEDUP: u64 = 1 << 62;
const BYTE_ORDER: u64 = 1 << 63;

/// The authenticated part of a block pointer: the portable bits of `blk_prop` and the MAC
/// (`blkptr_auth_buf_t`). 32 bytes; version 0 had 24.
#[derive(Clone, Copy)]
pub(crate) struct BpAuth {
    bytes: [u8; 32],
    len: usize,
}

impl BpAuth {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// From the 128 bytes of a pointer inside a block of this byte order.
    pub(crate) fn new(version: u64, order: ByteOrder, bp: &[u8; BLKPTR_SIZE]) -> Self {
        let word = |n: usize| order.read(bytes::array(bp, n * 8).unwrap_or_default());
        let prop = word(6);
        let hole = prop & EMBEDDED == 0 && word(0) == 0 && word(1) == 0;
        let mac = match prop >> 48 & 0xff {
            TYPE_OBJSET => [0; 16],
            _ => BlockParams::from_bp_words([0; 2], prop, 0, [0, 0, word(14), word(15)]).mac,
        };
        let portable = portable_prop(version, prop, hole).to_le_bytes();
        let with_mac: [u8; 24] = join(portable, mac);
        Self { bytes: join(with_mac, [0; 8]), len: if version == 0 { 24 } else { 32 } }
    }
}

/// `blk_prop` without the bits that a raw send does not carry over.
#[doc(alias = "zio_crypt_bp_zero_nonportable_blkprop")]
fn portable_prop(version: u64, prop: u64, hole: bool) -> u64 {
    if version == 0 {
        return prop & !(DEDUP | CHECKSUM | PSIZE);
    }
    match (hole, prop & LEVEL) {
        (true, _) => 0,
        (false, 0) => prop & !(DEDUP | CHECKSUM),
        (false, _) => prop & !(DEDUP | CHECKSUM | PSIZE | COMPRESS | BYTE_ORDER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: BlockParams = BlockParams {
        salt: [1, 2, 3, 4, 5, 6, 7, 8],
        iv: [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22],
        mac: [31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46],
    };

    #[test]
    fn params_round_trip_in_both_orders() {
        for prop in [0, 1 << 63] {
            let (dva2, iv2, [a, b]) = PARAMS.to_bp_words(prop);
            let back = BlockParams::from_bp_words(dva2, prop, u64::from(iv2) << 32 | 1, [9, 9, a, b]);
            assert_eq!(back, PARAMS);
        }
    }

    /// A pointer and its byte-swapped twin in a block of the other order authenticate alike.
    #[test]
    fn auth_does_not_depend_on_the_order_of_the_containing_block() {
        let mut words = [0_u64; 16];
        words[0] = 1;
        words[6] = 1 << 63 | 3 << 56 | 19 << 48 | 7 << 40 | 15 << 32 | 5 << 16 | 255;
        (words[14], words[15]) = (77, 88);
        let bytes = |order: ByteOrder| -> [u8; 128] {
            words.iter().flat_map(|w| order.write(*w)).collect::<Vec<_>>().try_into().unwrap()
        };
        let le = BpAuth::new(1, ByteOrder::Little, &bytes(ByteOrder::Little));
        let be = BpAuth::new(1, ByteOrder::Big, &bytes(ByteOrder::Big));
        assert_eq!(le.bytes(), be.bytes());
        assert_eq!(le.bytes().len(), 32);
        assert_eq!(&le.bytes()[..8], &(3_u64 << 56 | 19 << 48 | 255).to_le_bytes());
        assert_eq!(BpAuth::new(0, ByteOrder::Little, &bytes(ByteOrder::Little)).bytes().len(), 24);
    }

    #[test]
    fn holes_have_no_portable_bits_in_version_1() {
        let mut bp = [0; 128];
        bp[48..56].copy_from_slice(&(1_u64 << 63 | 255).to_le_bytes());
        assert_eq!(BpAuth::new(1, ByteOrder::Little, &bp).bytes(), &[0; 32]);
        assert_ne!(BpAuth::new(0, ByteOrder::Little, &bp).bytes(), &[0; 24]);
    }
}
