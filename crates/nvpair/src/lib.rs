//! Name-value lists, the self-describing trees that ZFS keeps its configuration in: vdev labels, the pool config
//! object, history records, send stream headers, feature lists, the cache file.
//!
//! A list is a sequence of named, typed pairs; a pair's value may be a list again. Two encodings exist and both are
//! read and written here:
//!
//! - **XDR** (`xdr.rs`): big-endian, four-byte units. Everything on disk that must be readable anywhere.
//! - **native** (`native.rs`): the memory image of libnvpair on a 64-bit machine. Send streams and ioctl packages.
//!
//! Both start with a four-byte header: encoding (0 native, 1 XDR), byte order of the writer (0 big, 1 little), two
//! reserved bytes.
//!
//! ```
//! use nvpair::NvList;
//! let mut config = NvList::new();
//! config.add("version", 5000u64);
//! config.add("name", "tank");
//! let bytes = config.encode_xdr().unwrap();
//! assert_eq!(NvList::decode(&bytes).unwrap().u64("version"), Some(5000));
//! ```
//!
//! Input is hostile until proved otherwise: each length is checked against the bytes that are left before anything is
//! allocated, lists nest at most [`MAX_DEPTH`] deep, and an error names the byte offset where it was met.
//!
//! Differs from OpenZFS: native lists of the other byte order are read, where libnvpair refuses them.

mod cursor;
mod dump;
mod error;
mod json;
mod list;
mod native;
mod print;
mod value;
mod xdr;

pub use error::{DecodeError, DecodeErrorKind, EncodeError};
pub use list::{NvFlags, NvList, NvPair};
pub use value::{NvString, NvType, NvValue};

/// Deepest nesting of lists that the decoders accept. libnvpair's user-space limit is the same.
#[doc(alias = "nvpair_max_recursion")]
pub const MAX_DEPTH: u32 = 100;

/// Byte order of the machine that wrote a packed list; it matters for the native encoding only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// Most significant byte first (sparc, s390x).
    Big,
    /// Least significant byte first (x86, arm).
    Little,
}

/// How a packed list is laid out in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Memory image of libnvpair.
    #[doc(alias = "NV_ENCODE_NATIVE")]
    Native(Endian),
    /// External data representation (RFC 4506).
    #[doc(alias = "NV_ENCODE_XDR")]
    Xdr,
}
