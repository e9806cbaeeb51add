//! The kernel's cached pages of files: answers that wait until the kernel has dropped some of them.
//!
//! Dropping waits for pages that are being read and writes changed ones, which needs answers, so threads that answer requests
//! must not do it.

use crate::wire::{Errno, INodeNo, ReplyEmpty, ReplyWrite};

use super::Live;

/// Whether `fallocate` with this mode removes bytes.
pub(super) fn removes(mode: i32) -> bool {
    mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0
}

impl Live {
    /// Answers a write that bypassed the kernel's page cache. Pages read meanwhile may be old: after an
    /// asynchronous write the kernel does not drop them itself.
    pub(super) fn written_around_pages(&self, ino: INodeNo, offset: u64, len: usize, reply: ReplyWrite) {
        let bytes = u64::try_from(len).unwrap_or(u64::MAX);
        self.after_dropping_pages(ino, (offset, bytes), move || {
            reply.written(u32::try_from(len).unwrap_or(u32::MAX));
        });
    }

    /// Answers that bytes of a range could not be removed. Some may be gone: the kernel drops its pages only after a success.
    pub(super) fn removed_in_part(&self, ino: INodeNo, range: (u64, u64), error: Errno, reply: ReplyEmpty) {
        self.after_dropping_pages(ino, range, move || reply.error(error));
    }

    /// Makes the kernel drop its pages of a range (offset, length), then calls `answer`.
    fn after_dropping_pages(
        &self,
        ino: INodeNo,
        (offset, len): (u64, u64),
        answer: impl FnOnce() + Send + 'static,
    ) {
        let notifier = self.notifier.get().cloned();
        self.forgetting.submit(move || {
            let (from, bytes) = (i64::try_from(offset), i64::try_from(len));
            if let (Some(notifier), Ok(from), Ok(bytes)) = (notifier, from, bytes) {
                // If the kernel has not cached the file, there is nothing to drop.
                let _ = notifier.inval_inode(ino, from, bytes);
            }
            answer();
        });
    }
}
