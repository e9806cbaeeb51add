//! Data virtual addresses: places on top-level vdevs.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::MIN_BLOCK_SHIFT;

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

pub(super) fn bits(word: u64, low: u32, len: u32) -> u64 {
    (word >> low) & (u64::MAX >> (64 - len))
}

fn set_bits(word: &mut u64, low: u32, len: u32, value: u64) {
    let mask = u64::MAX >> (64 - len);
    *word = (*word & !(mask << low)) | ((value & mask) << low);
}
