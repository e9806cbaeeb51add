//! The kernel's cached pages of files: answers that wait until the kernel has dropped some of them.
//!
//! Dropping waits for pages that are being read and writes changed ones, which needs answers, so threads that answer requests
//! must not do it.

use std::ops::Range;
use std::sync::Arc;

use crate::wire::{Errno, INodeNo, Notifier, ReplyEmpty, ReplyLseek, ReplyWrite};
use engine::Result;
use zpl::write::{Found, FsWriter, Seek};

use super::Live;
use crate::attr::errno;

/// Whether `fallocate` with this mode removes bytes.
pub(super) fn removes(mode: i32) -> bool {
    mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0
}

/// A seek in a file that is open for writing.
struct Search {
    files: Arc<FsWriter>,
    notifier: Notifier,
    ino: INodeNo,
    object: u64,
    from: u64,
    what: Seek,
}

impl Search {
    /// Searches until the hole that decides the answer has no changed pages.
    fn found(&self, mut hole: Range<u64>) -> Result<Found> {
        loop {
            let (from, len) = (i64::try_from(hole.start), i64::try_from(hole.end.saturating_sub(hole.start)));
            if let (Ok(from), Ok(len)) = (from, len) {
                // The kernel writes the changed pages before it drops them.
                let _ = self.notifier.inval_inode(self.ino, from, len);
            }
            let found = self.files.data().seek_hole(self.object, self.from, self.what)?;
            match &found.hole {
                // All of that one was filled.
                Some(next) if next.start >= hole.end => hole = next.clone(),
                _ => return Ok(found),
            }
        }
    }
}

fn answer_seek(found: Result<Found>, reply: ReplyLseek) {
    match found.map(|found| found.at) {
        Ok(Some(at)) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
        Ok(None) => reply.error(Errno::ENXIO),
        Err(e) => reply.error(errno(&e)),
    }
}

impl Live {
    /// Answers a seek for data or a hole from an offset on. The kernel asks without writing the pages that were changed through a
    /// shared mapping, so a hole of a file that is open for writing may have data there.
    #[doc(alias = "zfs_holey_common")]
    pub(super) fn seek(&self, ino: INodeNo, object: u64, (from, what): (u64, Seek), reply: ReplyLseek) {
        let found = self.files.data().seek_hole(object, from, what);
        let hole = found.as_ref().ok().and_then(|found| found.hole.clone());
        let (Some(hole), Some(notifier)) = (hole.filter(|_| self.writers.has(object)), self.notifier.get())
        else {
            return answer_seek(found, reply);
        };
        let (files, notifier) = (Arc::clone(&self.files), notifier.clone());
        let search = Search { files, notifier, ino, object, from, what };
        self.forgetting.submit(move || {
            let found = search.found(hole);
            // An unmount that waits for this answer finds no other user of the file system.
            drop(search);
            answer_seek(found, reply);
        });
    }

    /// Answers a write that bypassed the kernel's page cache. Pages read meanwhile may be old: after an
    /// asynchronous write the kernel does not drop them itself.
    ///
    /// A program that sets `O_DIRECT` while it writes makes a write through the page cache look so. The kernel then holds its
    /// pages locked until the answer, which therefore does not wait for ever.
    pub(super) fn written_around_pages(&self, ino: INodeNo, offset: u64, len: usize, reply: ReplyWrite) {
        let bytes = u64::try_from(len).unwrap_or(u64::MAX);
        let notifier = self.notifier.get().cloned();
        self.late.submit(
            &self.forgetting,
            move || drop_pages(notifier, ino, (offset, bytes)),
            move || reply.written(u32::try_from(len).unwrap_or(u32::MAX)),
        );
    }

    /// Answers that bytes of a range could not be removed. Some may be gone: the kernel drops its pages only after a success.
    pub(super) fn removed_in_part(&self, ino: INodeNo, range: (u64, u64), error: Errno, reply: ReplyEmpty) {
        self.after_dropping_pages(ino, range, move || reply.error(error));
    }

    /// Makes the kernel drop its pages of a range (offset, length), then calls `answer`.
    pub(super) fn after_dropping_pages(
        &self,
        ino: INodeNo,
        (offset, len): (u64, u64),
        answer: impl FnOnce() + Send + 'static,
    ) {
        let notifier = self.notifier.get().cloned();
        self.forgetting.submit(move || {
            drop_pages(notifier, ino, (offset, len));
            answer();
        });
    }
}

/// Makes the kernel drop its pages of a range (offset, length), and waits for it.
fn drop_pages(notifier: Option<Notifier>, ino: INodeNo, (offset, len): (u64, u64)) {
    if let (Some(notifier), Ok(from), Ok(bytes)) = (notifier, i64::try_from(offset), i64::try_from(len)) {
        // If the kernel has not cached the file, there is nothing to drop.
        let _ = notifier.inval_inode(ino, from, bytes);
    }
}
