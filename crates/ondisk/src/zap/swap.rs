//! Byte swap of a leaf block.

use super::leaf::{CHUNK_ARRAY, CHUNK_ENTRY, CHUNK_FREE, chunks_offset, num_chunks};
use crate::byteswap::{IntWidth, words};

/// Swaps a leaf in place. A block too small to be one is left alone.
#[doc(alias = "zap_leaf_byteswap")]
pub(crate) fn swap_leaf(bytes: &mut [u8]) {
    // OpenZFS takes the largest power of two that fits as the block size.
    let Some(len) = bytes.len().checked_ilog2().map(|shift| 1usize << shift).filter(|len| *len >= 512) else {
        return;
    };
    let (start, count) = (chunks_offset(len), num_chunks(len));
    let Some((head, chunks)) = bytes.split_at_mut_checked(start) else { return };
    let Some((header, hash)) = head.split_at_mut_checked(48) else { return };
    part(header, 0, 8, IntWidth::U64);
    part(header, 16, 8, IntWidth::U64);
    part(header, 24, 4, IntWidth::U32);
    part(header, 28, 8, IntWidth::U16);
    words(hash, IntWidth::U16);
    for chunk in chunks.as_chunks_mut::<24>().0.iter_mut().take(count) {
        swap_chunk(chunk);
    }
}

fn swap_chunk(chunk: &mut [u8; 24]) {
    match chunk.first() {
        Some(&CHUNK_ENTRY) => {
            part(chunk, 2, 10, IntWidth::U16);
            part(chunk, 12, 4, IntWidth::U32);
            part(chunk, 16, 8, IntWidth::U64);
        }
        // Only the link: array bytes are big-endian in every pool.
        Some(&(CHUNK_ARRAY | CHUNK_FREE)) => part(chunk, 22, 2, IntWidth::U16),
        _ => {}
    }
}

fn part(bytes: &mut [u8], start: usize, len: usize, width: IntWidth) {
    if let Some(part) = bytes.get_mut(start..start + len) {
        words(part, width);
    }
}
