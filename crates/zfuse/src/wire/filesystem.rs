//! What answers requests.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::dispatch::Header;
use super::{
    BsdFileFlags, Errno, FileHandle, INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr, TimeOrNow,
    WriteFlags,
};

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    uid: u32,
    gid: u32,
    pid: u32,
}

impl Request {
    /// Of a request.
    pub fn of(header: &Header) -> Self {
        Self { uid: header.uid, gid: header.gid, pid: header.pid }
    }

    /// Of a user, without a connection.
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

    /// The process; 0 when the kernel asks by itself, or it can't be seen from here.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// Requests that are not answered by a file system are unknown to it.
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

/// A file system as the kernel sees it. An answer may be given later, from any thread.
pub trait Filesystem: Debug + Send + Sync {
    /// The connection begins.
    ///
    /// # Errors
    /// Why it must not.
    fn init(&mut self, _req: &Request, _config: &mut KernelConfig) -> io::Result<()> {
        Ok(())
    }

    requests! {
        /// What a name names.
        lookup(parent: INodeNo, name: &OsStr; ReplyEntry);
        /// Attributes.
        getattr(ino: INodeNo, fh: Option<FileHandle>; ReplyAttr);
        /// Attributes with the time of birth.
        statx(ino: INodeNo, fh: Option<FileHandle>; ReplyStatx);
        /// Changes attributes.
        setattr(
            ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
            atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, ctime: Option<SystemTime>,
            fh: Option<FileHandle>, crtime: Option<SystemTime>, chgtime: Option<SystemTime>,
            bkuptime: Option<SystemTime>, flags: Option<BsdFileFlags>; ReplyAttr
        );
        /// Where a symbolic link points.
        readlink(ino: INodeNo; ReplyData);
        /// Makes a file.
        mknod(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32; ReplyEntry);
        /// Makes a directory.
        mkdir(parent: INodeNo, name: &OsStr, mode: u32, umask: u32; ReplyEntry);
        /// Removes a file's name.
        unlink(parent: INodeNo, name: &OsStr; ReplyEmpty);
        /// Removes a directory.
        rmdir(parent: INodeNo, name: &OsStr; ReplyEmpty);
        /// Makes a symbolic link.
        symlink(parent: INodeNo, name: &OsStr, target: &Path; ReplyEntry);
        /// Gives a file another name.
        rename(parent: INodeNo, name: &OsStr, to: INodeNo, newname: &OsStr, flags: RenameFlags; ReplyEmpty);
        /// Gives a file one more name.
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
        /// What was written is to be on disk.
        fsync(ino: INodeNo, fh: FileHandle, datasync: bool; ReplyEmpty);
        /// The same of a directory.
        fsyncdir(ino: INodeNo, fh: FileHandle, datasync: bool; ReplyEmpty);
        /// Opens a directory.
        opendir(ino: INodeNo, flags: OpenFlags; ReplyOpen);
        /// Names of a directory.
        readdir(ino: INodeNo, fh: FileHandle, offset: u64; ReplyDirectory);
        /// Names and attributes.
        readdirplus(ino: INodeNo, fh: FileHandle, offset: u64; ReplyDirectoryPlus);
        /// A directory is closed.
        releasedir(ino: INodeNo, fh: FileHandle, flags: OpenFlags; ReplyEmpty);
        /// How full it is.
        statfs(ino: INodeNo; ReplyStatfs);
        /// Sets an extended attribute.
        setxattr(ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32; ReplyEmpty);
        /// Its value.
        getxattr(ino: INodeNo, name: &OsStr, size: u32; ReplyXattr);
        /// All names.
        listxattr(ino: INodeNo, size: u32; ReplyXattr);
        /// Removes one.
        removexattr(ino: INodeNo, name: &OsStr; ReplyEmpty);
        /// Makes and opens a file.
        create(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32; ReplyCreate);
        /// Makes and opens a file without a name.
        tmpfile(parent: INodeNo, mode: u32, umask: u32; ReplyCreate);
        /// Something else.
        ioctl(ino: INodeNo, fh: FileHandle, flags: IoctlFlags, cmd: u32, data: &[u8], size: u32; ReplyIoctl);
        /// Space of a file.
        fallocate(ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32; ReplyEmpty);
        /// The next hole or the next bytes.
        lseek(ino: INodeNo, fh: FileHandle, offset: i64, whence: i32; ReplyLseek);
    }
}
