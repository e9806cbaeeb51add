//! gzip, which in ZFS means a zlib stream.
//!
//! Two encoders. [`compress`] is the fast one: its streams are valid, but not those that OpenZFS gives. [`compress_as_zlib`]
//! gives the bytes of zlib, which are OpenZFS's in the kernel and in user space: zlib's choice of matches and blocks has
//! not changed since 1.1. The library is built from source, because a system's own may be another implementation.

use std::cell::RefCell;

use flate2::{Compress, Compression, FlushCompress, Status};
use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};

use crate::{DecompressError, is_default_level};

const DEFAULT_LEVEL: u8 = 6;
/// Blocks of this size are tried with the fast encoder before zlib: first so many bytes of one, then all.
const TRIED_FIRST: usize = 16 << 10;
/// The level of that: 150 to 300 MB/s.
const TRIAL_LEVEL: u8 = 1;

thread_local! {
    static DECODER: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    /// The encoder of the level used last: a thread works on one dataset for long.
    static ENCODER: RefCell<Option<(u8, Compressor)>> = const { RefCell::new(None) };
    static TRIAL: RefCell<Option<(Compressor, Vec<u8>)>> = const { RefCell::new(None) };
    static ZLIB: RefCell<Option<(u8, Compress)>> = const { RefCell::new(None) };
}

pub(crate) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let done = DECODER.with_borrow_mut(|decoder| decoder.zlib_decompress(src, dst));
    match done {
        Ok(len) if len == dst.len() => Ok(()),
        Ok(_) | Err(DecompressionError::InsufficientSpace) => Err(DecompressError::WrongLength),
        Err(DecompressionError::BadData) => Err(DecompressError::Corrupt),
    }
}

pub(crate) fn compress(level: u8, src: &[u8], capacity: usize) -> Option<Vec<u8>> {
    let level = valid(level)?;
    ENCODER.with_borrow_mut(|slot| {
        if slot.as_ref().is_none_or(|(kept, _)| *kept != level) {
            *slot = Some((level, Compressor::new(CompressionLvl::new(i32::from(level)).ok()?)));
        }
        let (_, encoder) = slot.as_mut()?;
        let mut out = vec![0; capacity];
        let len = encoder.zlib_compress(src, &mut out).ok()?;
        out.truncate(len);
        Some(out)
    })
}

/// Whether zlib will not shrink a block by the eighth that ZFS wants, which takes zlib as long as other blocks: the fast encoder
/// does not shrink it by a 32nd. Of 13,000 blocks of 8 KiB and 128 KiB of programs, texts, archives and images that zlib
/// shrinks enough, the fast encoder shrinks each by at least a twelfth.
fn is_hopeless(src: &[u8], capacity: usize) -> bool {
    if src.len() < TRIED_FIRST || capacity > src.len() - src.len() / 8 {
        return false;
    }
    TRIAL.with_borrow_mut(|slot| {
        if slot.is_none() {
            let Ok(level) = CompressionLvl::new(i32::from(TRIAL_LEVEL)) else { return false };
            *slot = Some((Compressor::new(level), Vec::new()));
        }
        let Some((encoder, out)) = slot.as_mut() else { return false };
        let mut fails = |part: &[u8]| {
            out.resize(part.len() - part.len() / 32, 0);
            encoder.deflate_compress(part, out).is_err()
        };
        // Most blocks show in a part that they are not of this kind.
        src.get(..TRIED_FIRST).is_some_and(&mut fails) && (src.len() == TRIED_FIRST || fails(src))
    })
}

pub(crate) fn compress_as_zlib(level: u8, src: &[u8], capacity: usize) -> Option<Vec<u8>> {
    let level = valid(level)?;
    if is_hopeless(src, capacity) { None } else { zlib(level, src, capacity) }
}

fn zlib(level: u8, src: &[u8], capacity: usize) -> Option<Vec<u8>> {
    ZLIB.with_borrow_mut(|slot| {
        if slot.as_ref().is_none_or(|(kept, _)| *kept != level) {
            *slot = Some((level, Compress::new(Compression::new(u32::from(level)), true)));
        }
        let (_, encoder) = slot.as_mut()?;
        encoder.reset();
        let mut out = vec![0; capacity];
        let status = encoder.compress(src, &mut out, FlushCompress::Finish).ok()?;
        out.truncate(usize::try_from(encoder.total_out()).ok()?);
        (status == Status::StreamEnd).then_some(out)
    })
}

fn valid(level: u8) -> Option<u8> {
    let level = if is_default_level(level) { DEFAULT_LEVEL } else { level };
    (level <= 9).then_some(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_zlib_shrinks_are_tried_with_it() {
        // Numbers in decimal, and noise: so many bytes of a block are noise.
        let block = |len: usize, noise: usize| -> Vec<u8> {
            let mut word = 1_u64;
            let mut next = || {
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (word >> 56) as u8
            };
            // At the start, which is tried first.
            (0..len).map(|at| if at < noise { next() } else { b'0' + next() % 10 }).collect()
        };
        for len in [TRIED_FIRST, 3 * TRIED_FIRST / 2, 128 << 10] {
            let most = len - len / 8;
            for part in 0..=32 {
                let src = block(len, len / 32 * part);
                let small = zlib(9, &src, most);
                assert!(small.is_none() || !is_hopeless(&src, most), "{len} {part}");
                assert!(if small.is_some() { part < 28 } else { part > 16 }, "{len} {part}");
                assert_eq!(compress_as_zlib(9, &src, most), small);
                assert!(!is_hopeless(&src, len), "only by ZFS's rule");
            }
            assert!(is_hopeless(&block(len, len), most));
        }
        assert!(!is_hopeless(&block(TRIED_FIRST / 2, TRIED_FIRST / 2), TRIED_FIRST / 2 / 8 * 7));
    }
}
