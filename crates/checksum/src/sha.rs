//! SHA-256 and SHA-512/256.
//!
//! `ring` has code for vector units, half as fast again as `sha2`'s on processors without SHA extensions, which most small
//! servers have.

use ring::digest::{Algorithm, SHA256, SHA512_256, digest};

/// The plain SHA-256 of `buf`.
pub(crate) fn sha256(buf: &[u8]) -> [u8; 32] {
    of(&SHA256, buf)
}

/// SHA-512/256 (FIPS 180-4) of `buf`.
pub(crate) fn sha512_256(buf: &[u8]) -> [u8; 32] {
    of(&SHA512_256, buf)
}

fn of(algorithm: &'static Algorithm, buf: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(algorithm, buf).as_ref());
    out
}
