//! The interface of file systems that answer requests.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuse_transport::Header;

use super::{
    BsdFileFlags, Errno, FileHandle, INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCopied, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
    TimeOrNow, WriteFlags,
};

/// The sender of a request.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    uid: u32,
    gid: u32,
    pid: u32,
}

impl Request {
    /// From a request.
    pub fn of(header: &Header) -> Self {
        Self { uid: header.uid, gid: header.gid, pid: header.pid }
    }

    /// A user without a connection.
    #[cfg(test)]
    pub fn of_user(uid: u32) -> Self {
        Self { uid, gid: uid, pid: 0 }
    }

    /// The user.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The group.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The process; 0 if the kernel itself is the sender, or the process cannot be seen from here.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// By default a file system answers each of these requests as unknown.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*; $reply:ty);)*) => {
        $($(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "as many as the protocol has")]
        fn $name(&self, _req: &Request, $($arg: $kind,)* reply: $reply) {
            $(let _ = $arg;)*
            reply.error(Errno::ENOSYS);
        })*
    };
}

/// A file system as the kernel sees it. An answer may be sent later, from any thread.
pub trait Filesystem: Debug + Send + Sync {
    /// The connection begins.
    ///
    /// # Errors
    /// The reason to refuse it.
    fn init(&mut self, _req: &Request, _config: &mut KernelConfig) -> io::Result<()> {
        Ok(())
    }

    /// The kernel drops a file or directory; it may have looked it up again meanwhile.
    fn forget(&self, _ino: INodeNo) {}

    /// An `fsync` or `fsyncdir` of this file follows soon: one of another file before it may do its work, too. Returns the time
    /// that it will take, if that is known. Must not wait.
    fn expect_fsync(&self, _ino: INodeNo) -> Option<Duration> {
        None
    }

    requests! {
        /// Looks up a name.
        lookup(parent: INodeNo, name: &OsStr; ReplyEntry);
        /// Returns attributes.
        getattr(ino: INodeNo, fh: Option<FileHandle>; ReplyAttr);
        /// Returns attributes with the birth time.
        statx(ino: INodeNo, fh: Option<FileHandle>; ReplyStatx);
        /// Changes attributes.
        setattr(
            ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
            atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, ctime: Option<SystemTime>,
            fh: Option<FileHandle>, crtime: Option<SystemTime>, chgtime: Option<SystemTime>,
            bkuptime: Option<SystemTime>, flags: Option<BsdFileFlags>; ReplyAttr
        );
        /// Returns the target of a symbolic link.
        readlink(ino: INodeNo; ReplyData);
        /// Creates a file.
        mknod(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32; ReplyEntry);
        /// Creates a directory.
        mkdir(parent: INodeNo, name: &OsStr, mode: u32, umask: u32; ReplyEntry);
        /// Removes a file's name.
        unlink(parent: INodeNo, name: &OsStr; ReplyEmpty);
        /// Removes a directory.
        rmdir(parent: INodeNo, name: &OsStr; ReplyEmpty);
        /// Creates a symbolic link.
        symlink(parent: INodeNo, name: &OsStr, target: &Path; ReplyEntry);
        /// Renames a file.
        rename(parent: INodeNo, name: &OsStr, to: INodeNo, newname: &OsStr, flags: RenameFlags; ReplyEmpty);
        /// Adds a name to a file.
        link(ino: INodeNo, to: INodeNo, newname: &OsStr; ReplyEntry);
        /// Opens a file.
        open(ino: INodeNo, flags: OpenFlags; ReplyOpen);
        /// Reads.
        read(
            ino: INodeNo, fh: FileHandle, offset: u64, size: u32, flags: OpenFlags,
            owner: Option<LockOwner>; ReplyData
        );
        /// Writes.
        write(
            ino: INodeNo, fh: FileHandle, offset: u64, data: &[u8], how: WriteFlags, flags: OpenFlags,
            owner: Option<LockOwner>; ReplyWrite
        );
        /// A descriptor is closed.
        flush(ino: INodeNo, fh: FileHandle, owner: LockOwner; ReplyEmpty);
        /// The last descriptor of an opened file is closed.
        release(
            ino: INodeNo, fh: FileHandle, flags: OpenFlags, owner: Option<LockOwner>, flush: bool; ReplyEmpty
        );
        /// Makes all writes durable.
        fsync(ino: INodeNo, fh: FileHandle, datasync: bool; ReplyEmpty);
        /// The same for a directory.
        fsyncdir(ino: INodeNo, fh: FileHandle, datasync: bool; ReplyEmpty);
        /// Opens a directory.
        opendir(ino: INodeNo, flags: OpenFlags; ReplyOpen);
        /// Lists names of a directory.
        readdir(ino: INodeNo, fh: FileHandle, offset: u64; ReplyDirectory);
        /// Lists names and attributes.
        readdirplus(ino: INodeNo, fh: FileHandle, offset: u64; ReplyDirectoryPlus);
        /// A directory is closed.
        releasedir(ino: INodeNo, fh: FileHandle, flags: OpenFlags; ReplyEmpty);
        /// Returns the usage of the file system.
        statfs(ino: INodeNo; ReplyStatfs);
        /// Sets an extended attribute.
        setxattr(ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32; ReplyEmpty);
        /// Returns the value of an extended attribute.
        getxattr(ino: INodeNo, name: &OsStr, size: u32; ReplyXattr);
        /// Lists the names of extended attributes.
        listxattr(ino: INodeNo, size: u32; ReplyXattr);
        /// Removes an extended attribute.
        removexattr(ino: INodeNo, name: &OsStr; ReplyEmpty);
        /// Creates and opens a file.
        create(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32; ReplyCreate);
        /// Creates and opens a file without a name.
        tmpfile(parent: INodeNo, mode: u32, umask: u32; ReplyCreate);
        /// Other operations.
        ioctl(ino: INodeNo, fh: FileHandle, flags: IoctlFlags, cmd: u32, data: &[u8], size: u32; ReplyIoctl);
        /// Changes the space of a file.
        fallocate(ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32; ReplyEmpty);
        /// Copies a range of one file into another; `wide`: the answer has 64 bits.
        copy_file_range(
            ino: INodeNo, fh: FileHandle, offset: u64, to: INodeNo, to_fh: FileHandle, to_offset: u64, len: u64,
            wide: bool; ReplyCopied
        );
        /// Finds the next hole or data.
        lseek(ino: INodeNo, fh: FileHandle, offset: i64, whence: i32; ReplyLseek);
    }
}
