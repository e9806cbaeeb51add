//! ZFS's block compression: pure functions between a logical and a physical block, framing included.
//!
//! A compressed block is padded with zeros to whole sectors, so every decoder here accepts bytes past
//! the end of its stream. The logical size is known from the block pointer: a stream that decodes to more or
//! less than that is damaged.
//!
//! | algorithm | stream |
//! |---|---|
//! | [`lzjb`](Algorithm::Lzjb), [`zle`](Algorithm::Zle) | bare; end with the logical size |
//! | [`gzip`](Algorithm::Gzip) | zlib (RFC 1950), whatever the level |
//! | [`lz4`](Algorithm::Lz4) | length as 4 big-endian bytes, then one raw LZ4 block |
//! | [`zstd`](Algorithm::Zstd) | an 8-byte header ([`zstd::Header`]), then one frame without its magic number |
//!
//! Decoder contexts are kept per thread and reused; zstd's encoders, which may be large, are shared and have a limit
//! ([`zstd::Encoder`]). Input may be hostile: nothing here panics, writes
//! outside `dst`, or allocates by sizes from the input.
//!
//! Format source: `zio_compress.c`, `lzjb.c`, `zle.c`, `lz4_zfs.c`, `zfs_zstd.c`, OpenZFS 2.3.

mod gzip;
mod lz4;
mod lzjb;
mod zle;
pub mod zstd;

use thiserror::Error;

/// How a block is compressed (`enum zio_compress` without the values that mean a choice).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "zio_compress")]
pub enum Algorithm {
    /// Stored as it is.
    Off,
    /// Lempel-Ziv by Jeff Bonwick: the oldest.
    Lzjb,
    /// zlib streams; levels 1 to 9 (`gzip-1` to `gzip-9`), 6 by default.
    Gzip,
    /// Zero-length encoding: runs of zeros only.
    Zle,
    /// LZ4: fast, the default of OpenZFS, whose bytes it has.
    Lz4,
    /// Zstandard; levels as in [`zstd::Level`].
    Zstd,
}

/// Why a block can't be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecompressError {
    /// The block ends before its stream does, or its header promises more bytes than there are.
    #[error("compressed data is truncated")]
    Truncated,
    /// The stream breaks the rules of its format.
    #[error("compressed data is damaged")]
    Corrupt,
    /// The stream is whole but doesn't give exactly the logical size.
    #[error("compressed data has the wrong length when decompressed")]
    WrongLength,
    /// The library's decoder couldn't be set up (out of memory).
    #[error("no memory for decompression")]
    NoMemory,
}

/// Fills `dst` with the decompressed contents of `src`.
///
/// # Errors
/// Any [`DecompressError`]; `dst` then holds unspecified bytes.
pub fn decompress(alg: Algorithm, src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    match alg {
        Algorithm::Off => {
            dst.copy_from_slice(src.get(..dst.len()).ok_or(DecompressError::Truncated)?);
            Ok(())
        }
        Algorithm::Lzjb => lzjb::decompress(src, dst),
        Algorithm::Gzip => gzip::decompress(src, dst),
        Algorithm::Zle => zle::decompress(src, dst),
        Algorithm::Lz4 => lz4::decompress(src, dst),
        Algorithm::Zstd => zstd::decompress(src, dst),
    }
}

/// The compressed form of `src`, or `None` when that needs more than `dst_capacity` bytes.
///
/// `level`: 0 and 255 mean the algorithm's default; 1 to 9 for gzip; [`zstd::Level`]'s numbers for
/// zstd; the others have no levels. A level that doesn't exist returns `None`. The result isn't padded.
/// Callers that want ZFS's rule pass seven eighths of the logical size.
pub fn compress(alg: Algorithm, level: u8, src: &[u8], dst_capacity: usize) -> Option<Vec<u8>> {
    match alg {
        Algorithm::Off => (src.len() <= dst_capacity).then(|| src.to_vec()),
        Algorithm::Lzjb => lzjb::compress(src, dst_capacity),
        Algorithm::Gzip => gzip::compress(level, src, dst_capacity),
        Algorithm::Zle => zle::compress(src, dst_capacity),
        Algorithm::Lz4 => lz4::compress(src, dst_capacity),
        Algorithm::Zstd => zstd::compress(level, src, dst_capacity),
    }
}

/// As [`compress`], but with OpenZFS's bytes where a faster encoder gives others: for blocks that are to equal, checksum and
/// all, those that OpenZFS has written. Slower for gzip, equal for the others. zstd's bytes are those of the library's
/// release, here as in OpenZFS.
pub fn compress_as_openzfs(alg: Algorithm, level: u8, src: &[u8], dst_capacity: usize) -> Option<Vec<u8>> {
    match alg {
        Algorithm::Gzip => gzip::compress_as_zlib(level, src, dst_capacity),
        _ => compress(alg, level, src, dst_capacity),
    }
}

/// Whether `level` asks for the default: inherited (0) or unset (255).
const fn is_default_level(level: u8) -> bool {
    matches!(level, 0 | u8::MAX)
}
