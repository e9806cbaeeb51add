//! A cache of stored bytes: a read asks it before the pool's vdevs, and offers it the bytes that the vdevs
//! delivered.
//!
//! Bytes from there are judged by the block pointer's checksum like those of any copy. Wrong or unreadable ones cost a read
//! of the pool, and nothing else.

use std::sync::Arc;

use ondisk::Blkptr;
use stdx::Buf;

use crate::types::Bookmark;
use crate::vdev::leaf::Leaf;

/// Whether a read concerns the second place of stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Second {
    /// It does not.
    #[default]
    No,
    /// A request waits for the block.
    Demand,
    /// The block is read ahead.
    Ahead,
}

/// Where the stored bytes of a block are.
#[derive(Debug, Clone)]
pub(crate) struct StoredPlace {
    /// The device.
    pub(crate) leaf: Arc<Leaf>,
    /// Byte offset from its start.
    pub(crate) offset: u64,
    /// Bytes, a multiple of its sectors.
    pub(crate) size: u64,
}

/// The end of a read at a [`StoredPlace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The bytes are the block's.
    Good,
    /// The device failed.
    Unreadable,
    /// The bytes do not match the block's checksum.
    Wrong,
}

/// Keeps stored bytes of blocks outside of the pool's vdevs.
pub(crate) trait StoredCache: Send + Sync + std::fmt::Debug {
    /// Where a block is kept.
    fn find(&self, bp: &Blkptr, second: Second) -> Option<StoredPlace>;

    /// How the read of a block ended.
    fn judged(&self, bp: &Blkptr, found: &StoredPlace, verdict: Verdict);

    /// The bytes of a block that were read from the pool. Returns at once.
    fn offer(&self, bp: &Blkptr, at: Bookmark, stored: &Buf, second: Second);
}
