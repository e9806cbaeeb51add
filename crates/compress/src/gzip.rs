//! gzip, which in ZFS means a zlib stream.
//!
//! Differs from OpenZFS: another deflate encoder, so the same level produces other (valid) bytes.

use std::cell::RefCell;

use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};

use crate::{DecompressError, is_default_level};

const DEFAULT_LEVEL: u8 = 6;

thread_local! {
    static DECODER: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    /// The encoder of the level used last: a thread works on one dataset for long.
    static ENCODER: RefCell<Option<(u8, Compressor)>> = const { RefCell::new(None) };
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
    let level = if is_default_level(level) { DEFAULT_LEVEL } else { level };
    if level > 9 {
        return None;
    }
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
