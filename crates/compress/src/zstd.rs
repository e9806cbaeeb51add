//! Zstandard under ZFS's header.
//!
//! The header is 8 bytes: the frame's length, big-endian, and a word with encoder version and level.
//! That word was once a C bit field, so hosts of either byte order wrote it their own way; in each
//! layout the version's top byte is 0, which distinguishes them ([`Header::parse`]). Decoding needs neither
//! version nor level. The frame has no magic number, content size or checksum.
//!
//! Differs from OpenZFS: a level that it doesn't know isn't an error (the block's checksum has been
//! verified already); the encoder is newer than 1.4.5, so the same level produces other (valid) bytes.

mod encoder;

use std::cell::RefCell;

use zstd_safe::{DCtx, DParameter, FrameFormat};

pub use encoder::{Encoder, release_idle, workspace};

use crate::{DecompressError, is_default_level};

const HEADER_LEN: usize = 8;
/// The first level that is slow enough to be preceded by faster attempts.
#[doc(alias = "zstd_cutoff_level")]
const CUTOFF: i32 = 3;

/// The header before the frame (`zfs_zstdhdr_t`, zstd.h).
#[doc(alias = "zfs_zstdhdr_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the frame, without header and padding.
    pub len: u32,
    /// The encoder's version as zstd counts it: 10405 is 1.4.5.
    pub version: u32,
    /// The level's number ([`Level::number`]); 0 when the word makes no sense.
    pub level: u8,
}

impl Header {
    /// The header of a block, and the bytes behind it.
    pub fn parse(src: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, rest) = src.split_first_chunk::<HEADER_LEN>()?;
        let [l0, l1, l2, l3, word @ ..] = *bytes;
        let (version, level) = match word {
            [high, mid, low, level] if high == 0 => ([high, mid, low], level),
            [level, high, mid, low] if high == 0 => ([high, mid, low], level),
            [low, mid, high, level] if high == 0 => ([high, mid, low], level),
            [level, low, mid, high] if high == 0 => ([high, mid, low], level),
            _ => ([0; 3], 0),
        };
        let [high, mid, low] = version;
        let header = Self {
            len: u32::from_be_bytes([l0, l1, l2, l3]),
            version: u32::from_be_bytes([0, high, mid, low]),
            level,
        };
        Some((header, rest))
    }

    /// The layout that little-endian hosts wrote first, which OpenZFS now writes everywhere.
    fn to_bytes(self) -> [u8; HEADER_LEN] {
        let [l0, l1, l2, l3] = self.len.to_be_bytes();
        let [_, high, mid, low] = self.version.to_be_bytes();
        [l0, l1, l2, l3, self.level, high, mid, low]
    }
}

/// A compression level: `zstd-1` to `zstd-19`, `zstd-fast-1` to `zstd-fast-1000`.
#[doc(alias = "zio_zstd_levels")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level(u8);

/// Number of `zstd-fast` without a figure; those with one follow it. OpenZFS reads no block with this number.
const FAST_BASE: u8 = 102;
/// The figures that `zstd-fast-N` may have, in the order of their numbers.
const FAST: [i32; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000];

impl Level {
    /// `zstd` without a figure.
    pub const DEFAULT: Self = Self(3);

    /// The level that a header or a property's value names: 1 to 19, 102 to 123; 0 and 255 are the default,
    /// 102 (`zstd-fast`) is `zstd-fast-1`.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            _ if is_default_level(number) => Some(Self::DEFAULT),
            1..=19 => Some(Self(number)),
            FAST_BASE => Some(Self(FAST_BASE + 1)),
            _ => number
                .checked_sub(FAST_BASE + 1)
                .filter(|nth| usize::from(*nth) < FAST.len())
                .map(|_| Self(number)),
        }
    }

    /// `zstd-fast-figure`, if there is one.
    pub fn fast(figure: i32) -> Option<Self> {
        let index = FAST.iter().position(|known| *known == figure)?;
        Some(Self(FAST_BASE + 1 + u8::try_from(index).ok()?))
    }

    /// The number that is stored on disk.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The encoder's number of the level: negative for the fast ones.
    pub fn for_encoder(self) -> i32 {
        let fast = self.0.checked_sub(FAST_BASE + 1).and_then(|nth| FAST.get(usize::from(nth)));
        fast.map_or(i32::from(self.0), |figure| -figure)
    }
}

thread_local! {
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

pub(crate) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let (header, rest) = Header::parse(src).ok_or(DecompressError::Truncated)?;
    let len = usize::try_from(header.len).map_err(|_| DecompressError::Truncated)?;
    let frame = rest.get(..len).ok_or(DecompressError::Truncated)?;
    DECODER.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = decoder();
        }
        let decoder = slot.as_mut().ok_or(DecompressError::NoMemory)?;
        let filled = decoder.decompress(dst, frame).map_err(|_| DecompressError::Corrupt)?;
        if filled == dst.len() { Ok(()) } else { Err(DecompressError::WrongLength) }
    })
}

fn decoder() -> Option<DCtx<'static>> {
    let mut context = DCtx::try_create()?;
    context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
    Some(context)
}

pub(crate) fn compress(level: u8, src: &[u8], capacity: usize) -> Option<Vec<u8>> {
    Encoder::new(Level::from_number(level)?, src.len())?.compress(src, capacity)
}

/// Default length of blocks from which on [`promises`] is asked.
#[doc(alias = "zstd_abort_size")]
pub const ABORT_SIZE: usize = 128 << 10;

/// Whether it is worth trying `level` on `src`: LZ4 or level 1, which are fast, fit it into `capacity` bytes. Lower levels
/// than 3 are always worth trying.
#[doc(alias("zstd_earlyabort_pass", "zfs_zstd_compress_buf"))]
pub fn promises(level: Level, src: &[u8], capacity: usize) -> bool {
    level.for_encoder() < CUTOFF
        || crate::lz4::compress(src, capacity).is_some_and(|fast| fast.len() < capacity)
        || Encoder::new(Level(1), src.len()).is_some_and(|mut fast| fast.compress(src, capacity).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_of_the_version_word() {
        // 1.4.5 (0x0028a5), level 3, as each kind of host wrote it.
        for word in [[3, 0, 0x28, 0xa5], [0, 0x28, 0xa5, 3], [0xa5, 0x28, 0, 3], [3, 0xa5, 0x28, 0]] {
            let bytes = [&[0, 0, 1, 0], word.as_slice()].concat();
            let (header, rest) = Header::parse(&bytes).unwrap();
            assert_eq!(header, Header { len: 256, version: 10405, level: 3 });
            assert!(rest.is_empty());
        }
        assert_eq!(Header::parse(&[0, 0, 0, 1, 9, 9, 9, 9]).unwrap().0.level, 0);
        assert!(Header::parse(&[0; 7]).is_none());
    }

    #[test]
    fn header_survives_writing() {
        let header = Header { len: 77, version: 10507, level: 19 };
        assert_eq!(Header::parse(&header.to_bytes()).unwrap().0, header);
    }

    #[test]
    fn level_numbers() {
        assert_eq!(Level::from_number(0), Some(Level::DEFAULT));
        assert_eq!(Level::from_number(255).unwrap().for_encoder(), 3);
        assert_eq!(Level::from_number(19).unwrap().for_encoder(), 19);
        assert_eq!(Level::from_number(102), Level::fast(1));
        assert_eq!(Level::from_number(103).unwrap().for_encoder(), -1);
        assert_eq!(Level::fast(1).unwrap().number(), 103);
        assert_eq!(Level::fast(20).unwrap().number(), 113);
        assert_eq!(Level::fast(1000).unwrap().number(), 123);
        assert_eq!(Level::from_number(122).unwrap().for_encoder(), -500);
        assert_eq!([20, 101, 124, 251].map(Level::from_number), [None; 4]);
        assert_eq!(Level::fast(11), None);
    }

    #[test]
    fn noise_promises_nothing_at_slow_levels() {
        let mut word = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (word >> 56) as u8
        })
        .take(ABORT_SIZE)
        .collect();
        // Without repetitions, but of few different bytes: LZ4 cannot shorten it, zstd can.
        let coded: Vec<u8> = noise.iter().map(|byte| byte & 0x1f).collect();
        let (plain, room) = (vec![7; ABORT_SIZE], ABORT_SIZE - ABORT_SIZE / 8);
        for (number, least) in [(1, true), (2, true), (103, true), (3, false), (9, false), (19, false)] {
            let level = Level::from_number(number).unwrap();
            assert_eq!(promises(level, &noise, room), least, "{level:?}");
            assert!(promises(level, &coded, room) && promises(level, &plain, room), "{level:?}");
        }
        assert!(crate::lz4::compress(&coded, room).is_none());
    }
}
