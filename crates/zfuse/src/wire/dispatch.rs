//! Dispatches the bytes of a request to the method that answers it.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fuse_transport::{Header, Opcode, Reply, Service, Words};

use super::encode::moment;
use super::filesystem::{Filesystem, Request};
use super::reply::Answer;
use super::{
    Errno, FileHandle, INodeNo, IoctlFlags, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCopied,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr, TimeOrNow, WriteFlags,
};

/// A file system as a service of the transport.
#[derive(Debug)]
pub struct Served(pub Arc<dyn Filesystem>);

impl Service for Served {
    fn answer(&self, header: &Header, words: Words<'_>, reply: Reply) {
        dispatch(&*self.0, header, words, reply);
    }

    fn announce(&self, header: &Header) -> Option<Duration> {
        let is_fsync = matches!(header.opcode, Opcode::Fsync | Opcode::Fsyncdir);
        is_fsync.then(|| self.0.expect_fsync(INodeNo(header.node))).flatten()
    }
}

/// Makes `files` answer a request. A malformed request is answered with an error.
fn dispatch(files: &dyn Filesystem, header: &Header, words: Words<'_>, reply: Reply) {
    let call = Call { files, reply: Cell::new(Some(reply)), header, req: Request::of(header) };
    let done = match header.opcode {
        // These have no answer.
        Opcode::Forget | Opcode::BatchForget => {
            if let Some(reply) = call.reply.take() {
                reply.forget();
            }
            call.forget(words)
        }
        Opcode::Destroy => {
            call.answer().send(&[]);
            Some(())
        }
        // A request that has begun is not interrupted; the kernel does not ask again.
        Opcode::Interrupt | Opcode::Other => {
            call.answer().fail(Errno::ENOSYS);
            Some(())
        }
        _ => call.name_or_attributes(words).or_else(|| call.content(words)).or_else(|| call.extra(words)),
    };
    if done.is_none() {
        call.answer().fail(Errno::EIO);
    }
}

struct Call<'a> {
    files: &'a dyn Filesystem,
    reply: Cell<Option<Reply>>,
    header: &'a Header,
    req: Request,
}

/// Bytes of a range whose copied bytes fit into 32 bits, whole blocks of any size.
const MAX_NARROW: u64 = 1 << 31;
const MODE: u32 = 1 << 0;
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
const SIZE: u32 = 1 << 3;
const ATIME: u32 = 1 << 4;
const MTIME: u32 = 1 << 5;
const FH: u32 = 1 << 6;
const ATIME_NOW: u32 = 1 << 7;
const MTIME_NOW: u32 = 1 << 8;
const CTIME: u32 = 1 << 10;

impl Call<'_> {
    fn answer(&self) -> Answer {
        // A second one, after a request that was too short, has nothing to send.
        Answer::new(self.reply.take().unwrap_or_else(Reply::closed))
    }

    fn node(&self) -> INodeNo {
        INodeNo(self.header.node)
    }

    fn forget(&self, mut words: Words<'_>) -> Option<()> {
        if self.header.opcode == Opcode::Forget {
            self.files.forget(self.node());
            return Some(());
        }
        let (count, _) = (words.u32()?, words.u32()?);
        for _ in 0..count {
            let (node, _times) = (words.u64()?, words.u64()?);
            self.files.forget(INodeNo(node));
        }
        Some(())
    }

    /// Names and attributes. `None` for another kind of request, or one that is too short; nothing is answered
    /// then.
    fn name_or_attributes(&self, mut words: Words<'_>) -> Option<()> {
        let (files, req, node) = (self.files, &self.req, self.node());
        let entry = || ReplyEntry::new(self.answer());
        let empty = || ReplyEmpty::new(self.answer());
        match self.header.opcode {
            Opcode::Lookup => files.lookup(req, node, words.name()?, entry()),
            Opcode::Getattr => {
                let (flags, _, handle) = (words.u32()?, words.u32()?, words.u64()?);
                let handle = (flags & 1 != 0).then_some(FileHandle(handle));
                files.getattr(req, node, handle, ReplyAttr::new(self.answer()));
            }
            Opcode::Statx => {
                let (flags, _, handle) = (words.u32()?, words.u32()?, words.u64()?);
                let handle = (flags & 1 != 0).then_some(FileHandle(handle));
                files.statx(req, node, handle, ReplyStatx::new(self.answer()));
            }
            Opcode::Setattr => self.setattr(words)?,
            Opcode::Readlink => files.readlink(req, node, ReplyData::new(self.answer())),
            Opcode::Symlink => {
                let (name, target) = (words.name()?, words.name()?);
                files.symlink(req, node, name, Path::new(target), entry());
            }
            Opcode::Mknod => {
                let (mode, rdev, umask, _) = (words.u32()?, words.u32()?, words.u32()?, words.u32()?);
                files.mknod(req, node, words.name()?, mode, umask, rdev, entry());
            }
            Opcode::Mkdir => {
                let (mode, umask) = (words.u32()?, words.u32()?);
                files.mkdir(req, node, words.name()?, mode, umask, entry());
            }
            Opcode::Unlink => files.unlink(req, node, words.name()?, empty()),
            Opcode::Rmdir => files.rmdir(req, node, words.name()?, empty()),
            Opcode::Rename => {
                let (to, name, newname) = (INodeNo(words.u64()?), words.name()?, words.name()?);
                files.rename(req, node, name, to, newname, RenameFlags::empty(), empty());
            }
            Opcode::Rename2 => {
                let (to, flags, _) = (INodeNo(words.u64()?), words.u32()?, words.u32()?);
                let (name, newname) = (words.name()?, words.name()?);
                files.rename(req, node, name, to, newname, RenameFlags::from_bits_retain(flags), empty());
            }
            Opcode::Link => {
                let (old, name) = (INodeNo(words.u64()?), words.name()?);
                files.link(req, old, node, name, entry());
            }
            Opcode::Statfs => files.statfs(req, node, ReplyStatfs::new(self.answer())),
            _ => return None,
        }
        Some(())
    }

    fn setattr(&self, mut words: Words<'_>) -> Option<()> {
        let (valid, _, handle) = (words.u32()?, words.u32()?, words.u64()?);
        let (size, _owner) = (words.u64()?, words.u64()?);
        let seconds = [words.i64()?, words.i64()?, words.i64()?];
        let nanos = [words.u32()?, words.u32()?, words.u32()?];
        let (mode, _, uid, gid) = (words.u32()?, words.u32()?, words.u32()?, words.u32()?);
        let has = |bit: u32| valid & bit != 0;
        let ([atime, mtime, ctime], [atime_ns, mtime_ns, ctime_ns]) = (seconds, nanos);
        let time = |bit, now, seconds, nanos| match (has(bit), has(now)) {
            (false, _) => None,
            (true, true) => Some(TimeOrNow::Now),
            (true, false) => Some(TimeOrNow::SpecificTime(moment(seconds, nanos))),
        };
        self.files.setattr(
            &self.req,
            self.node(),
            has(MODE).then_some(mode),
            has(UID).then_some(uid),
            has(GID).then_some(gid),
            has(SIZE).then_some(size),
            time(ATIME, ATIME_NOW, atime, atime_ns),
            time(MTIME, MTIME_NOW, mtime, mtime_ns),
            has(CTIME).then(|| moment(ctime, ctime_ns)),
            has(FH).then_some(FileHandle(handle)),
            None,
            None,
            None,
            None,
            ReplyAttr::new(self.answer()),
        );
        Some(())
    }

    /// Handles, and reads and writes through them.
    fn content(&self, mut words: Words<'_>) -> Option<()> {
        let (files, req, node) = (self.files, &self.req, self.node());
        let empty = || ReplyEmpty::new(self.answer());
        match self.header.opcode {
            Opcode::Open => {
                files.open(req, node, OpenFlags(words.i32()?), ReplyOpen::new(self.answer()));
            }
            Opcode::Opendir => {
                files.opendir(req, node, OpenFlags(words.i32()?), ReplyOpen::new(self.answer()));
            }
            Opcode::Create => {
                let (flags, mode, umask, _) = (words.i32()?, words.u32()?, words.u32()?, words.u32()?);
                let reply = ReplyCreate::new(self.answer());
                files.create(req, node, words.name()?, mode, umask, flags, reply);
            }
            // The following name has no meaning.
            Opcode::Tmpfile => {
                let (_flags, mode, umask) = (words.i32()?, words.u32()?, words.u32()?);
                files.tmpfile(req, node, mode, umask, ReplyCreate::new(self.answer()));
            }
            Opcode::Read => {
                let io = Io::read(&mut words)?;
                let reply = ReplyData::new(self.answer());
                files.read(req, node, io.handle, io.offset, io.size, io.flags, io.owner, reply);
            }
            Opcode::Write => {
                let io = Io::read(&mut words)?;
                let data = words.bytes(io.size)?;
                let how = WriteFlags::from_bits_retain(io.how);
                let reply = ReplyWrite::new(self.answer());
                files.write(req, node, io.handle, io.offset, data, how, io.flags, io.owner, reply);
            }
            Opcode::Readdir => {
                let io = Io::read(&mut words)?;
                let reply = ReplyDirectory::new(self.answer(), usize::try_from(io.size).ok()?);
                files.readdir(req, node, io.handle, io.offset, reply);
            }
            Opcode::Readdirplus => {
                let io = Io::read(&mut words)?;
                let reply = ReplyDirectoryPlus::new(self.answer(), usize::try_from(io.size).ok()?);
                files.readdirplus(req, node, io.handle, io.offset, reply);
            }
            Opcode::Flush => {
                let (handle, _, _) = (FileHandle(words.u64()?), words.u32()?, words.u32()?);
                files.flush(req, node, handle, LockOwner(words.u64()?), empty());
            }
            Opcode::Release => {
                let (handle, flags, how) = (FileHandle(words.u64()?), OpenFlags(words.i32()?), words.u32()?);
                let owner = (how & 2 != 0).then_some(LockOwner(words.u64()?));
                files.release(req, node, handle, flags, owner, how & 1 != 0, empty());
            }
            Opcode::Releasedir => {
                let (handle, flags) = (FileHandle(words.u64()?), OpenFlags(words.i32()?));
                files.releasedir(req, node, handle, flags, empty());
            }
            Opcode::Fsync => {
                let (handle, how) = (FileHandle(words.u64()?), words.u32()?);
                files.fsync(req, node, handle, how & 1 != 0, empty());
            }
            Opcode::Fsyncdir => {
                let (handle, how) = (FileHandle(words.u64()?), words.u32()?);
                files.fsyncdir(req, node, handle, how & 1 != 0, empty());
            }
            _ => return None,
        }
        Some(())
    }

    /// Extended attributes and other requests.
    fn extra(&self, mut words: Words<'_>) -> Option<()> {
        let (files, req, node) = (self.files, &self.req, self.node());
        let empty = || ReplyEmpty::new(self.answer());
        let xattr = || ReplyXattr::new(self.answer());
        match self.header.opcode {
            Opcode::Setxattr => {
                let (size, flags, name) = (words.u32()?, words.i32()?, words.name()?);
                files.setxattr(req, node, name, words.bytes(size)?, flags, 0, empty());
            }
            Opcode::Getxattr => {
                let (size, _) = (words.u32()?, words.u32()?);
                files.getxattr(req, node, words.name()?, size, xattr());
            }
            Opcode::Listxattr => files.listxattr(req, node, words.u32()?, xattr()),
            Opcode::Removexattr => files.removexattr(req, node, words.name()?, empty()),
            Opcode::Ioctl => {
                let (handle, flags, cmd) = (FileHandle(words.u64()?), words.u32()?, words.u32()?);
                let (_arg, len, size) = (words.u64()?, words.u32()?, words.u32()?);
                let flags = IoctlFlags::from_bits_retain(flags);
                let reply = ReplyIoctl::new(self.answer());
                files.ioctl(req, node, handle, flags, cmd, words.bytes(len)?, size, reply);
            }
            Opcode::Fallocate => {
                let (handle, offset, length) = (FileHandle(words.u64()?), words.u64()?, words.u64()?);
                files.fallocate(req, node, handle, offset, length, words.i32()?, empty());
            }
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                let (from, offset, to) = (FileHandle(words.u64()?), words.u64()?, INodeNo(words.u64()?));
                let (to_handle, to_offset, len) = (FileHandle(words.u64()?), words.u64()?, words.u64()?);
                let wide = self.header.opcode == Opcode::CopyFileRange64;
                // The answer of the older form has 32 bits.
                let len = if wide { len } else { len.min(MAX_NARROW) };
                let reply = ReplyCopied::new(self.answer());
                files.copy_file_range(req, node, from, offset, to, to_handle, to_offset, len, wide, reply);
            }
            Opcode::Lseek => {
                let (handle, offset) = (FileHandle(words.u64()?), words.i64()?);
                files.lseek(req, node, handle, offset, words.i32()?, ReplyLseek::new(self.answer()));
            }
            _ => return None,
        }
        Some(())
    }
}

/// The position of a read or write.
#[doc(alias("fuse_read_in", "fuse_write_in"))]
struct Io {
    handle: FileHandle,
    offset: u64,
    size: u32,
    how: u32,
    owner: Option<LockOwner>,
    flags: OpenFlags,
}

impl Io {
    fn read(words: &mut Words<'_>) -> Option<Self> {
        let (handle, offset, size) = (FileHandle(words.u64()?), words.u64()?, words.u32()?);
        let (how, owner) = (words.u32()?, LockOwner(words.u64()?));
        let (flags, _) = (OpenFlags(words.i32()?), words.u32()?);
        Some(Self { handle, offset, size, how, owner: (how & 2 != 0).then_some(owner), flags })
    }
}
