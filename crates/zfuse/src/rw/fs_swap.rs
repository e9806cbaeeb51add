//! The swap lock for requests, which holds them back while the file system's content is exchanged.
//!
//! ```text
//!  request ──▶ swap (shared) ──▶ Live ──▶ answer
//!  exchange: swap (alone) ─ file system closed ─ another content ─ opened again ─ swap over ─ kernel notified
//! ```
//!
//! **The kernel's caches** are dropped after the swap: dropping waits for pages that are being read, for
//! directories with lookups in progress, and for dirty pages, which the kernel writes first; all of these need
//! answers. Until a file's pages are dropped, the kernel's writes of them belong to the old content and are
//! discarded; the process that wrote into mapped memory did so before the command had ended. A thread that answers
//! requests must not notify the kernel.
//!
//! **An answer in progress** when the swap begins may reach the kernel's cache after the notification to drop it.
//! Names are entered under their directory's lock, which dropping a name takes, too; so in each directory a name
//! that no file can have is dropped before the files in it are. The kernel ignores attributes that it requested
//! before the drop.
//!
//! **A removed file** is still known to processes that have it open. Its number may belong to another file, at once
//! or later: numbers of removed files are refused until the kernel learns of the new file with that number, which
//! invalidates the old one there, and handles contain the generation of their file.
//!
//! The kernel keeps file locks; they stay.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crate::wire::{
    BsdFileFlags, Errno, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig, LockOwner, Notifier,
    OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCopied, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use engine::{Error, Result};
use parking_lot::RwLock;
use zpl::differences::Differences;
use zpl::write::FsWriter;

use super::Live;

/// A name that no file has: a path component cannot contain this.
const NO_NAME: &[u8] = b"/";

/// The bits of a handle for a file opened for writing, and for one that was not opened for reading; the others are those of its
/// generation.
pub(super) const WRITES: u64 = 1 << 63;
pub(super) const BLIND: u64 = 1 << 62;

/// A handle of a file of this generation, opened with these flags.
pub(super) fn handle_of(generation: u64, flags: OpenFlags) -> FileHandle {
    let access = match flags.acc_mode() {
        OpenAccMode::O_RDONLY => 0,
        OpenAccMode::O_WRONLY => WRITES | BLIND,
        OpenAccMode::O_RDWR => WRITES,
    };
    FileHandle(generation & !(WRITES | BLIND) | access)
}

/// State of earlier contents that the kernel may still use.
#[derive(Debug, Default)]
pub struct PriorContent {
    /// The content has been exchanged.
    happened: AtomicBool,
    /// Numbers of removed files that processes may still hold, now unused or used by another file.
    gone: RwLock<HashSet<u64>>,
    /// Files of which the kernel may still have old pages.
    outdated: RwLock<HashSet<u64>>,
}

impl PriorContent {
    /// The kernel learns of the file that has this number now.
    pub fn met(&self, object: u64) {
        if self.happened.load(Ordering::Acquire) && self.gone.read().contains(&object) {
            self.gone.write().remove(&object);
        }
    }

    fn is_gone(&self, object: u64) -> bool {
        self.happened.load(Ordering::Acquire) && self.gone.read().contains(&object)
    }

    fn is_outdated(&self, object: u64) -> bool {
        self.happened.load(Ordering::Acquire) && self.outdated.read().contains(&object)
    }
}

impl Live {
    /// Whether a handle belongs to the present file of the number.
    pub(super) fn is_of(&self, handle: FileHandle, object: u64) -> bool {
        !self.past.happened.load(Ordering::Acquire) || self.opened(handle, object)
    }

    /// Whether a handle counts as an open of the present file of the number. A file's number may have been reused before
    /// its handle is released.
    pub(super) fn opened(&self, handle: FileHandle, object: u64) -> bool {
        self.files.attrs().generation(object).is_ok_and(|now| (now ^ handle.0) & !(WRITES | BLIND) == 0)
    }

    /// A handle of a file that was opened with these flags.
    pub(super) fn handle(&self, object: u64, flags: OpenFlags) -> FileHandle {
        handle_of(self.files.attrs().generation(object).unwrap_or(0), flags)
    }

    fn is_stale(&self, ino: INodeNo) -> bool {
        self.object(ino.0).is_some_and(|object| self.past.is_gone(object))
    }

    /// Continues with another content.
    fn become_other(&mut self, files: Arc<FsWriter>, found: &Differences) {
        let open = std::mem::replace(&mut self.files, files).open_files();
        self.removed.clear();
        self.past.gone.write().extend(&found.gone);
        self.past.outdated.write().extend(found.files.iter().chain(&open));
        self.past.happened.store(true, Ordering::Release);
    }
}

/// The file system behind its swap lock.
#[derive(Debug)]
pub struct FsSwap(pub RwLock<Live>);

impl FsSwap {
    fn files(&self) -> Arc<FsWriter> {
        Arc::clone(&self.0.read().files)
    }

    /// See [`crate::Mounted::exchange`].
    pub fn exchange(
        &self,
        work: impl FnOnce() -> Result<Differences>,
        open: impl FnOnce(&FsWriter) -> Result<Arc<FsWriter>>,
    ) -> Result<SwapResult> {
        // Synced first: unwritten changes must not be lost by the close.
        if let Err(e) = self.files().fsync(0) {
            return Ok(SwapResult::Same(e));
        }
        let mut live = self.0.write();
        live.files.unmount()?;
        let done = work();
        match (done, open(&live.files)) {
            (Ok(found), Ok(files)) => {
                live.become_other(files, &found);
                Ok(SwapResult::Other(found))
            }
            (Err(e), Ok(files)) => {
                live.files = files;
                Ok(SwapResult::Same(e))
            }
            (Ok(_), Err(e)) => Err(e),
            (Err(why), Err(_)) => Err(why),
        }
    }

    /// Makes the kernel drop the attributes of all files, including access control lists. FUSE cannot tell us which
    /// inodes are cached, so every number is dropped.
    pub fn forget_attributes(&self, notifier: &Notifier) {
        let last = self.files().last_object();
        let _ = notifier.inval_inode(INodeNo::ROOT, -1, 0);
        for object in 1..=last {
            let _ = notifier.inval_inode(INodeNo(object), -1, 0);
        }
    }

    /// Makes the kernel drop its old state.
    pub fn tell(&self, notifier: &Notifier, found: &Differences) {
        let (root, outdated) = {
            let live = self.0.read();
            let outdated: Vec<u64> = live.past.outdated.read().iter().copied().collect();
            (live.files.root, outdated)
        };
        let ino = |object: u64| if object == root { INodeNo::ROOT } else { INodeNo(object) };
        // If the kernel has not cached them, there is nothing to drop.
        for parent in &found.parents {
            let _ = notifier.inval_entry(ino(*parent), os(NO_NAME));
        }
        for (dir, name) in &found.names {
            let _ = notifier.inval_entry(ino(*dir), os(name));
        }
        for object in outdated {
            let _ = notifier.inval_inode(ino(object), 0, 0);
            self.0.read().past.outdated.write().remove(&object);
        }
    }
}

/// The result of an exchange.
#[derive(Debug)]
pub enum SwapResult {
    /// The content was replaced.
    Other(Differences),
    /// The content stays, for this reason.
    Same(Error),
}

fn os(name: &[u8]) -> &OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name)
}

/// Answers a request. A request that panics returns EIO, when its reply is dropped, and its thread continues with
/// others; if it was in the middle of a change, the pool is suspended by then.
fn contained(answer: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(answer));
}

/// Passes requests to the file system while no swap is under way. Brackets contain the inode numbers that must belong to
/// existing files.
macro_rules! pass {
    ($($name:ident [$($node:ident)*] ($($arg:ident: $kind:ty),*; $reply:ty);)*) => {
        $(fn $name(&self, req: &Request, $($arg: $kind,)* reply: $reply) {
            let live = self.0.0.read();
            if false $(|| live.is_stale($node))* {
                return reply.error(Errno::ESTALE);
            }
            contained(|| Filesystem::$name(&*live, req, $($arg,)* reply));
        })*
    };
}

/// The file system served to the kernel.
#[derive(Debug)]
pub struct Front(pub Arc<FsSwap>);

impl Filesystem for Front {
    fn init(&mut self, req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.0.0.write().init(req, config)
    }

    fn forget(&self, ino: INodeNo) {
        // The thread that reads requests must not wait for an exchange, which forgets all of them.
        if let Some(live) = self.0.0.try_read() {
            live.removed.forget(ino);
        }
    }

    fn expect_fsync(&self, ino: INodeNo) -> Option<Duration> {
        let live = self.0.0.try_read()?;
        live.object(ino.0).and_then(|object| live.files.expect_fsync(object))
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let live = self.0.0.read();
        let kept = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        if kept && live.object(ino.0).is_some_and(|object| live.past.is_outdated(object)) {
            return reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
        }
        if live.is_stale(ino) {
            return reply.error(Errno::ESTALE);
        }
        contained(|| live.write(req, ino, fh, offset, data, how, flags, owner, reply));
    }

    pass! {
        lookup [parent] (parent: INodeNo, name: &OsStr; ReplyEntry);
        getattr [ino] (ino: INodeNo, fh: Option<FileHandle>; ReplyAttr);
        statx [ino] (ino: INodeNo, fh: Option<FileHandle>; ReplyStatx);
        setattr [ino] (
            ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
            atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, ctime: Option<SystemTime>,
            fh: Option<FileHandle>, crtime: Option<SystemTime>, chgtime: Option<SystemTime>,
            bkuptime: Option<SystemTime>, flags: Option<BsdFileFlags>; ReplyAttr
        );
        readlink [ino] (ino: INodeNo; ReplyData);
        mknod [parent] (parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32; ReplyEntry);
        mkdir [parent] (parent: INodeNo, name: &OsStr, mode: u32, umask: u32; ReplyEntry);
        unlink [parent] (parent: INodeNo, name: &OsStr; ReplyEmpty);
        rmdir [parent] (parent: INodeNo, name: &OsStr; ReplyEmpty);
        symlink [parent] (parent: INodeNo, name: &OsStr, target: &Path; ReplyEntry);
        rename [parent to] (
            parent: INodeNo, name: &OsStr, to: INodeNo, newname: &OsStr, flags: RenameFlags; ReplyEmpty
        );
        link [ino to] (ino: INodeNo, to: INodeNo, newname: &OsStr; ReplyEntry);
        open [ino] (ino: INodeNo, flags: OpenFlags; ReplyOpen);
        read [ino] (
            ino: INodeNo, fh: FileHandle, offset: u64, size: u32, flags: OpenFlags,
            owner: Option<LockOwner>; ReplyData
        );
        flush [] (ino: INodeNo, fh: FileHandle, owner: LockOwner; ReplyEmpty);
        release [] (
            ino: INodeNo, fh: FileHandle, flags: OpenFlags, owner: Option<LockOwner>, flush: bool;
            ReplyEmpty
        );
        fsync [ino] (ino: INodeNo, fh: FileHandle, datasync: bool; ReplyEmpty);
        fsyncdir [ino] (ino: INodeNo, fh: FileHandle, datasync: bool; ReplyEmpty);
        opendir [ino] (ino: INodeNo, flags: OpenFlags; ReplyOpen);
        readdir [ino] (ino: INodeNo, fh: FileHandle, offset: u64; ReplyDirectory);
        readdirplus [ino] (ino: INodeNo, fh: FileHandle, offset: u64; ReplyDirectoryPlus);
        releasedir [] (ino: INodeNo, fh: FileHandle, flags: OpenFlags; ReplyEmpty);
        statfs [] (ino: INodeNo; ReplyStatfs);
        setxattr [ino] (ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32; ReplyEmpty);
        getxattr [ino] (ino: INodeNo, name: &OsStr, size: u32; ReplyXattr);
        listxattr [ino] (ino: INodeNo, size: u32; ReplyXattr);
        removexattr [ino] (ino: INodeNo, name: &OsStr; ReplyEmpty);
        create [parent] (parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32; ReplyCreate);
        tmpfile [parent] (parent: INodeNo, mode: u32, umask: u32; ReplyCreate);
        ioctl [ino] (
            ino: INodeNo, fh: FileHandle, flags: IoctlFlags, cmd: u32, data: &[u8], size: u32; ReplyIoctl
        );
        fallocate [ino] (ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32; ReplyEmpty);
        copy_file_range [ino to] (
            ino: INodeNo, fh: FileHandle, offset: u64, to: INodeNo, to_fh: FileHandle, to_offset: u64, len: u64,
            wide: bool; ReplyCopied
        );
        lseek [ino] (ino: INodeNo, fh: FileHandle, offset: i64, whence: i32; ReplyLseek);
    }
}
