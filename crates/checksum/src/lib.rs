//! ZFS's block checksums, as pure functions from bytes to the four 64-bit words of `zio_cksum_t`.
//!
//! Word order. A checksum is four *numbers*; a block pointer stores them in the byte order of the
//! host that wrote it. The decoder of the block pointer turns them into numbers first, so comparisons here
//! never depend on the byte order of this machine. `byteswap` says that the *block* was written by a
//! big-endian host: the Fletcher sums then read their input as big-endian integers, and the cryptographic
//! digests are cut into big-endian words. SHA-256 is the exception: its words are big-endian in pools of
//! either order.
//!
//! Salt. Skein, Edon-R and BLAKE3 are keyed with the pool's 32-byte salt
//! (`org.illumos:checksum_salt` in the MOS directory). [`Salted`] does the keying once per pool.
//!
//! Layout: [`fletcher`] (scalar, incremental), `fletcher4_x86` (SIMD twins), `sha`, `skein`, `edonr`.
//! Format source: `zio_checksum.c`, `zfs_fletcher.c`, `*_zfs.c`, OpenZFS 2.3.
//!
//! Differs from OpenZFS: embedded checksums (labels, gang headers, intent log) aren't known here:
//! they are these same functions over a buffer whose trailer the caller has prepared.

mod edonr;
pub mod fletcher;
#[cfg(target_arch = "x86_64")]
mod fletcher4_x86;
mod sha;
mod skein;

pub use fletcher::Fletcher4;

/// The four words of a block checksum, as numbers (`zio_cksum_t`, spa.h).
#[doc(alias = "zio_cksum_t")]
pub type Cksum = [u64; 4];

/// The pool-wide key of the salted checksums (`zio_cksum_salt_t`).
#[doc(alias = "zio_cksum_salt_t")]
pub type Salt = [u8; 32];

/// The functions that can stand behind a block's checksum.
///
/// Label, gang header and log trailers (`ZIO_CHECKSUM_LABEL`, `_GANG_HEADER`: SHA-256; `_ZILOG`:
/// Fletcher-2; `_ZILOG2`: Fletcher-4) use these same functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// No checksum: four zero words.
    Off,
    /// Two interleaved Fletcher sums of 64-bit words.
    Fletcher2,
    /// Fourth-order Fletcher sum of 32-bit words.
    Fletcher4,
    /// SHA-256; words big-endian in every pool.
    Sha256,
    /// SHA-512/256 (own initial value, not a truncated SHA-512).
    Sha512,
    /// Skein-512-256, keyed with the salt.
    Skein,
    /// Edon-R-512 cut to 256 bits, prefixed by an expanded salt.
    Edonr,
    /// BLAKE3, keyed with the salt.
    Blake3,
}

impl Algorithm {
    /// Whether the result depends on the pool's salt.
    pub const fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::Edonr | Self::Blake3)
    }
}

/// The checksum of `buf`.
///
/// `byteswap`: the block was written by a big-endian host. `salt` is used by the salted algorithms
/// alone; `None` there means 32 zero bytes. For many blocks of one pool prefer [`Salted`].
pub fn digest(alg: Algorithm, buf: &[u8], salt: Option<&Salt>, byteswap: bool) -> Cksum {
    let salt = salt.unwrap_or(&[0; 32]);
    match alg {
        Algorithm::Skein => words(&skein::keyed(salt).digest(buf), byteswap),
        Algorithm::Edonr => words(&edonr::salted(salt).digest(buf), byteswap),
        Algorithm::Blake3 => words(blake3::keyed_hash(salt, buf).as_bytes(), byteswap),
        _ => unsalted(alg, buf, byteswap),
    }
}

/// The keyed states of one pool: made once when the pool opens, then shared by every thread.
#[doc(alias = "spa_cksum_tmpls")]
#[derive(Clone)]
pub struct Salted {
    salt: Salt,
    skein: skein::Skein512,
    edonr: edonr::Edonr512,
}

impl Salted {
    /// Derives every keyed state from the pool's salt.
    pub fn new(salt: &Salt) -> Self {
        Self { salt: *salt, skein: skein::keyed(salt), edonr: edonr::salted(salt) }
    }

    /// The checksum of `buf`; as [`digest`] with this salt.
    pub fn digest(&self, alg: Algorithm, buf: &[u8], byteswap: bool) -> Cksum {
        match alg {
            Algorithm::Skein => words(&self.skein.digest(buf), byteswap),
            Algorithm::Edonr => words(&self.edonr.digest(buf), byteswap),
            Algorithm::Blake3 => words(blake3::keyed_hash(&self.salt, buf).as_bytes(), byteswap),
            _ => unsalted(alg, buf, byteswap),
        }
    }
}

impl std::fmt::Debug for Salted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Salted").finish_non_exhaustive()
    }
}

/// The algorithms that need no salt; the salted ones never get here and give zeros.
fn unsalted(alg: Algorithm, buf: &[u8], byteswap: bool) -> Cksum {
    match alg {
        Algorithm::Fletcher2 => fletcher::fletcher2(buf, byteswap),
        Algorithm::Fletcher4 => fletcher::fletcher4(buf, byteswap),
        Algorithm::Sha256 => words(&sha::sha256(buf), true),
        Algorithm::Sha512 => words(&sha::sha512_256(buf), byteswap),
        Algorithm::Off | Algorithm::Skein | Algorithm::Edonr | Algorithm::Blake3 => [0; 4],
    }
}

/// Cuts a 32-byte digest into four words of the given byte order.
fn words(digest: &[u8; 32], big_endian: bool) -> Cksum {
    let mut out = [0; 4];
    for (word, bytes) in out.iter_mut().zip(digest.as_chunks::<8>().0) {
        *word = if big_endian { u64::from_be_bytes(*bytes) } else { u64::from_le_bytes(*bytes) };
    }
    out
}
