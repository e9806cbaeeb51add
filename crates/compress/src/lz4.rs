//! LZ4 with ZFS's length prefix: the prefix separates the stream from the padding behind it.

mod encoder;

use std::cell::RefCell;

use lzzzz::lz4;

use crate::DecompressError;

const PREFIX: usize = 4;
/// Bytes that each thread keeps for the result of its next block: enough for the default size of records.
const KEPT: usize = 128 << 10;

thread_local! {
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let (prefix, rest) = src.split_first_chunk::<PREFIX>().ok_or(DecompressError::Truncated)?;
    let len = usize::try_from(u32::from_be_bytes(*prefix)).map_err(|_| DecompressError::Truncated)?;
    let stream = rest.get(..len).ok_or(DecompressError::Truncated)?;
    let filled = lz4::decompress(stream, dst).map_err(|_| DecompressError::Corrupt)?;
    if filled == dst.len() { Ok(()) } else { Err(DecompressError::WrongLength) }
}

pub(crate) fn compress(src: &[u8], capacity: usize) -> Option<Vec<u8>> {
    if capacity > KEPT {
        let mut out = vec![0; capacity];
        let len = compress_into(src, &mut out)?;
        out.truncate(len);
        return Some(out);
    }
    ROOM.with_borrow_mut(|room| {
        room.resize(room.len().max(capacity), 0);
        let room = room.get_mut(..capacity)?;
        let len = compress_into(src, room)?;
        room.get(..len).map(<[u8]>::to_vec)
    })
}

/// Returns the length of the result.
fn compress_into(src: &[u8], out: &mut [u8]) -> Option<usize> {
    let (prefix, room) = out.split_first_chunk_mut::<PREFIX>()?;
    let len = encoder::encode(src, room)?;
    *prefix = u32::try_from(len).ok()?.to_be_bytes();
    Some(PREFIX + len)
}
