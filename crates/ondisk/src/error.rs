//! The one error of this room: bytes that don't make the structure they should be.

use std::fmt;

/// A structure that failed its checks, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The structure, in ZFS's own words: "blkptr", "dnode", "zap leaf"...
    pub what: &'static str,
    /// The fault found, as text.
    pub detail: String,
}

impl Malformed {
    /// An error about `what`.
    #[cold]
    pub fn new(what: &'static str, detail: impl Into<String>) -> Self {
        Self { what, detail: detail.into() }
    }

    /// The common case: fewer bytes than the structure needs.
    #[cold]
    pub fn short(what: &'static str, have: usize, need: usize) -> Self {
        Self::new(what, format!("{have} bytes where {need} are needed"))
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed {}: {}", self.what, self.detail)
    }
}

impl std::error::Error for Malformed {}
