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

thread_local! {
    static DECODER: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    /// The encoder of the level used last: a thread works on one dataset for long.
    static ENCODER: RefCell<Option<(u8, Compressor)>> = const { RefCell::new(None) };
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

pub(crate) fn compress_as_zlib(level: u8, src: &[u8], capacity: usize) -> Option<Vec<u8>> {
    let level = valid(level)?;
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
