//! A change of space, in the three sizes that a block has.

/// A change of space, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delta {
    /// Allocated.
    pub used: i64,
    /// Before redundancy.
    pub(crate) compressed: i64,
    /// Before compression.
    pub(crate) uncompressed: i64,
}

impl Delta {
    /// The opposite change.
    #[must_use]
    pub(crate) fn negated(self) -> Self {
        Self { used: -self.used, compressed: -self.compressed, uncompressed: -self.uncompressed }
    }

    /// Both changes.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            used: self.used + other.used,
            compressed: self.compressed + other.compressed,
            uncompressed: self.uncompressed + other.uncompressed,
        }
    }

    /// From sizes as they are on disk.
    pub fn of(used: u64, compressed: u64, uncompressed: u64) -> Self {
        Self {
            used: used.cast_signed(),
            compressed: compressed.cast_signed(),
            uncompressed: uncompressed.cast_signed(),
        }
    }
}
