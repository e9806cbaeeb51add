//! `copy_file_range`: blocks are cloned. The kernel sends it for two files of one mount, which includes those in
//! `.zfs/snapshot`; it copies ranges that cannot be cloned through its page cache, when the answer is that
//! the request is not supported. It writes back cached pages of both ranges before, and drops those of the
//! target after.
//!
//! A clone request (`FICLONE`, `FICLONERANGE`, `FIDEDUPERANGE`) never arrives: the kernel has no such request in FUSE.

use engine::{Error, Kind, Result};
use zpl::write::CloneFrom;

use super::Live;
use crate::node::Node;

/// Whether the kernel copies the range after this error of a clone.
pub(super) fn is_left_to_kernel(e: &Error) -> bool {
    matches!(e.kind(), Kind::Invalid | Kind::OtherDevice | Kind::Unsupported | Kind::Busy)
}

impl Live {
    /// Clones `len` bytes of file or snapshot's file `from` into file `to` and returns how many bytes it cloned.
    ///
    /// # Errors
    /// As [`zpl::write::Clones::clone_range`].
    pub(super) fn clone_range(&self, (from, at): (u64, u64), to: (u64, u64), len: u64) -> Result<u64> {
        if let Some(object) = self.object(from) {
            return self.files.clones().clone_range(
                (CloneFrom::File(&self.files, object), at),
                to,
                len,
                true,
            );
        }
        let inode = self.frozen.inode(Node::decode(from))?;
        let source =
            inode.stored().ok_or_else(|| Error::unsupported("the file is changed by an intent log"))?;
        self.files.clones().clone_range((CloneFrom::Snapshot(source, inode.attr().size), at), to, len, true)
    }
}
