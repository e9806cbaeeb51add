//! SHA-256 and SHA-512/256.

use sha2::{Digest, Sha256, Sha512_256};

/// The plain SHA-256 of `buf`.
pub(crate) fn sha256(buf: &[u8]) -> [u8; 32] {
    Sha256::digest(buf).into()
}

/// SHA-512/256 (FIPS 180-4) of `buf`.
pub(crate) fn sha512_256(buf: &[u8]) -> [u8; 32] {
    Sha512_256::digest(buf).into()
}
