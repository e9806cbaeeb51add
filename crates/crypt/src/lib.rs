//! OpenZFS native encryption as pure transforms: no I/O, no clock, no randomness of its own.
//!
//! # From a passphrase to a byte
//!
//! ```text
//! passphrase, hex or raw ──► WrappingKey (32 bytes)             one for each encryption root
//!        WrappedKey (the "DSL Crypto Key" ZAP) ──unwrap──► DatasetKey = master key + HMAC key
//!                master key + salt of the block ──HKDF──► block key ──AES-CCM/GCM──► bytes
//! ```
//!
//! # What protects which block
//!
//! | block | protection | here |
//! |---|---|---|
//! | file data, directories, SA, … at level 0 | whole block encrypted | [`BlockKind::Data`] |
//! | dnodes at level 0 | bonus buffers encrypted, the rest authenticated | [`BlockKind::Dnode`] |
//! | intent log | record bodies encrypted, headers and block pointers authenticated | [`BlockKind::Zil`] |
//! | other types at level 0 (master node, …) | HMAC-SHA512, 16 bytes | [`DatasetKey::verify_authenticated`] |
//! | indirect blocks | SHA-512 of the MACs below, no key needed | [`verify_indirect`] |
//! | objset | two HMACs of 32 bytes inside the block | [`DatasetKey::verify_objset`] |
//!
//! All of them work on blocks *as they are on disk*: after the checksum has been checked and before
//! decompression and before any byte swap (indirect blocks: decompressed, not swapped). Hence the
//! [`ByteOrder`] argument, which is the order the block was written in.
//!
//! Salt, IV and MAC of an encrypted block lie in its block pointer: [`BlockParams::from_bp_words`].
//!
//! Differs from OpenZFS: the caller brings salts, IVs and key material for writing, so that a
//! simulated run replays exactly; a portable objset MAC that doesn't match is an error even where no
//! user accounting exists (OpenZFS lets it pass then).

mod aead;
mod block;
mod bp;
mod bytes;
mod ccm;
mod dnode;
mod error;
mod key;
mod mac;
mod objset;
mod segments;
mod suite;
mod types;
mod wrapping;
mod zil;

pub use block::BlockKind;
pub use bp::{BlockParams, ByteOrder};
pub use error::{Error, Result};
pub use key::{DatasetKey, WrappedKey};
pub use mac::{indirect_mac, verify_indirect};
pub use objset::ObjsetMacs;
pub use suite::{
    CURRENT_VERSION, HMAC_KEY_LEN, IV_LEN, MAC_LEN, MASTER_KEY_MAX_LEN, MAX_SALT_USES, OBJSET_MAC_LEN,
    SALT_LEN, Suite, WRAPPING_KEY_LEN,
};
pub use types::is_encrypted_type;
pub use wrapping::{
    KeyFormat, MAX_PASSPHRASE_LEN, MAX_PBKDF2_ITERS, MIN_PASSPHRASE_LEN, MIN_PBKDF2_ITERS, Pbkdf2,
    WrappingKey, read_material,
};
pub use zil::{set_zil_mac, zil_mac};

/// A 16-byte message authentication code.
pub type Mac = [u8; MAC_LEN];
/// The 8-byte salt from which a block key is derived.
pub type Salt = [u8; SALT_LEN];
/// A 12-byte initialisation vector.
pub type Iv = [u8; IV_LEN];
