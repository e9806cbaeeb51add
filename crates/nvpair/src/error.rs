//! Errors of packed lists, with their places.

use thiserror::Error;

use crate::MAX_DEPTH;

/// A packed list that can't be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("nvlist at byte {offset}: {kind}")]
pub struct DecodeError {
    /// Offset in the input of the field at fault.
    pub offset: usize,
    /// The fault.
    pub kind: DecodeErrorKind,
}

/// The fault of the field that a [`DecodeError`] points at.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeErrorKind {
    /// The input ends inside a field.
    #[error("{need} bytes needed, {have} left")]
    Truncated {
        /// Bytes that the field takes.
        need: u64,
        /// Bytes that were left.
        have: u64,
    },
    /// Only zeros. They would decode as an empty native list of the other byte order, which no system writes.
    #[error("only zeros")]
    Blank,
    /// The header names an encoding that doesn't exist.
    #[error("unknown encoding {0}")]
    Encoding(u8),
    /// The header names a byte order that doesn't exist.
    #[error("unknown byte order {0}")]
    Endian(u8),
    /// No system writes this version of a list.
    #[error("unknown nvlist version {0}")]
    Version(i32),
    /// Lists nest deeper than [`MAX_DEPTH`].
    #[error("lists nest deeper than {MAX_DEPTH}")]
    Depth,
    /// A pair's type number is unknown.
    #[error("unknown data type {0}")]
    Type(i32),
    /// A pair's element count doesn't suit its type.
    #[error("{count} elements in a pair of type {data_type}")]
    Count {
        /// The type's number.
        data_type: i32,
        /// The element count found.
        count: i64,
    },
    /// A pair's size field is impossible.
    #[error("impossible pair size {0}")]
    Size(i64),
    /// A name is empty, unterminated or has a NUL inside.
    #[error("malformed name")]
    Name,
    /// A string is unterminated or has a NUL inside.
    #[error("malformed string")]
    String,
}

/// A list that has no packed form.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// A name is longer than the format's 32766 bytes, or empty.
    #[error("name of {0} bytes")]
    NameLength(usize),
    /// A name or string has a NUL byte inside.
    #[error("NUL byte inside the name or value of {0:?}")]
    Nul(String),
    /// A value takes more than the 2 GiB that a pair's size field can hold.
    #[error("value of {0:?} is too large")]
    TooLarge(String),
    /// Lists nest deeper than the decoders accept.
    #[error("lists nest deeper than {MAX_DEPTH}")]
    Depth,
}
