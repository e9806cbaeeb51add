//! Errors of keys and protected blocks.

use thiserror::Error;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a key was refused or a block can't be opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The wrapping key does not open this dataset's key: a wrong passphrase or key file, or a
    /// damaged "DSL Crypto Key".
    #[error("incorrect key")]
    WrongKey,
    /// A block's MAC does not match its contents: damage or tampering.
    #[error("authentication failed: the MAC does not match the block")]
    BadMac,
    /// An objset's own MACs do not match: which of the two.
    #[error("authentication failed: objset MAC does not match (portable: {portable}, local: {local})")]
    BadObjsetMac {
        /// The portable MAC (metadnode) is wrong.
        portable: bool,
        /// The local MAC (user, group and project accounting) is wrong.
        local: bool,
    },
    /// The block contradicts itself, so the encrypted parts can't be found.
    #[error("malformed {what} block at byte {offset}")]
    Malformed {
        /// Which kind of block.
        what: &'static str,
        /// Where in the block, in bytes.
        offset: usize,
    },
    /// The block is larger than the suite can encrypt (AES-CCM with a 12-byte nonce: 2²⁴−1 bytes).
    #[error("block of {0} bytes is too long for this encryption suite")]
    TooLong(usize),
    /// No such suite number on disk (`zio_encrypt` 3 to 8).
    #[error("unsupported encryption suite {0}")]
    UnknownSuite(u64),
    /// No such version of the "DSL Crypto Key" (0 and 1 exist).
    #[error("unsupported encryption version {0}")]
    UnknownVersion(u64),
    /// No such `keyformat` number.
    #[error("unsupported key format {0}")]
    UnknownKeyFormat(u64),
    /// A raw or hex key is too short; the expected number of bytes or digits.
    #[error("{format} key too short (expected {expected})")]
    KeyTooShort {
        /// `Raw` or `Hex`.
        format: &'static str,
        /// Bytes (raw) or digits (hex).
        expected: usize,
    },
    /// A raw or hex key is too long; the expected number of bytes or digits.
    #[error("{format} key too long (expected {expected})")]
    KeyTooLong {
        /// `Raw` or `Hex`.
        format: &'static str,
        /// Bytes (raw) or digits (hex).
        expected: usize,
    },
    /// A hex key with something that is no hexadecimal digit.
    #[error("Invalid hex character detected")]
    BadHex,
    /// A passphrase below 8 bytes.
    #[error("Passphrase too short (min 8)")]
    PassphraseTooShort,
    /// A passphrase above 512 bytes.
    #[error("Passphrase too long (max 512)")]
    PassphraseTooLong,
    /// A passphrase needs salt and iteration count from the dataset, and it has none, or a count of 0.
    #[error("dataset has no usable pbkdf2 salt and iteration count")]
    BadPbkdf2,
    /// More PBKDF2 iterations than are run.
    #[error("pbkdf2iters is {iters}, and at most {most} are run: the key would take too long to derive")]
    TooManyPbkdf2Iters {
        /// The dataset's number of iterations.
        iters: u64,
        /// [`crate::MAX_PBKDF2_ITERS`].
        most: u64,
    },
}
