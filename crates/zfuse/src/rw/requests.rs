//! The kernel's requests. Those below `.zfs` go to the read-only half.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use crate::wire::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCopied, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use engine::{Error, Kind, Result};
use zpl::write::{RenameKind, Seek, XattrMode};

use super::ctl::is_snapdir;
use super::files::{CHANGED, Caller, Change, Entry, NAMES, keeps_access_time};
use super::fs_swap::handle_of;
use super::privileges::Setter;
use super::{Asker, Live, convert, copy, pages, posix_acl};
use crate::attr::{errno, nothing};
use crate::dir::Item;
use crate::fs::{READ_AHEAD, is_shown, reply_xattr};

/// Bytes of one write request.
const MAX_WRITE: u32 = 1 << 20;
/// Maximum background requests of the kernel.
const BACKGROUND: u16 = 64;

fn caller(req: &Request, umask: u32) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), umask }
}

fn asker(req: &Request) -> Asker {
    Asker { uid: req.uid(), gid: req.gid() }
}

fn entry(found: Result<Entry>, reply: ReplyEntry) {
    match found {
        Ok(found) => reply.entry_with_ttls(&found.keep_attr, &found.keep, &found.attr, found.generation),
        Err(e) => reply.error(errno(&e)),
    }
}

fn empty(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

impl Live {
    fn created(&self, made: Result<Entry>, flags: OpenFlags, reply: ReplyCreate) {
        match made {
            Ok(made) => {
                let keep = made.keep_attr.min(made.keep);
                let handle = handle_of(made.generation.0, flags);
                self.object(made.attr.ino.0).into_iter().for_each(|file| self.writers.opened(file, handle));
                reply.created(&keep, &made.attr, made.generation, handle, FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }
}

impl Filesystem for Live {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            // The umask applies only without a default access control list.
            InitFlags::FUSE_DONT_MASK,
            // Otherwise each write first requests the file's capabilities.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            // `acltype` decides whether there are any, and may change at any time.
            InitFlags::FUSE_POSIX_ACL,
        ];
        // Optional capabilities.
        for flag in wanted {
            let _ = config.add_capabilities(flag);
        }
        config.set_max_readahead(READ_AHEAD);
        config.set_max_write(MAX_WRITE);
        config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.object(parent.0) {
            Some(dir) => match self.lookup_any(dir, name.as_bytes()) {
                // A negative answer is worth caching, too; only the kernel creates new names.
                Err(e) if e.kind() == Kind::NotFound && self.is_kept(name.as_bytes()) => {
                    reply.entry_with_ttls(&CHANGED, &NAMES, &nothing(), Generation(0));
                }
                found => entry(found, reply),
            },
            None => self.frozen.lookup(req, parent, name, reply),
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let Some(object) = self.object(ino.0) else { return self.frozen.getattr(req, ino, fh, reply) };
        match self.entry_or_removed(ino, object) {
            Ok(found) => reply.attr(&found.keep_attr, &found.attr),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn statx(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyStatx) {
        let Some(object) = self.object(ino.0) else { return self.frozen.statx(req, ino, fh, reply) };
        match self.entry_or_removed(ino, object) {
            Ok(found) => reply.statx(&found.keep_attr, &found.attr),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let setter = Setter::of(req);
        let change = Change { mode, uid, gid, size, times: (atime, mtime), setter };
        match self.writable(ino.0).and_then(|object| self.change(object, change)) {
            Ok(found) => reply.attr(&found.keep_attr, &found.attr),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let Some(object) = self.object(ino.0) else { return self.frozen.readlink(req, ino, reply) };
        match self.files.data().readlink(object) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let dir = self.writable(parent.0);
        entry(dir.and_then(|dir| self.make(dir, name.as_bytes(), mode, rdev, caller(req, umask))), reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        if is_snapdir(parent.0) {
            return entry(self.take_snapshot(name.as_bytes(), asker(req)), reply);
        }
        let mode = mode & 0o7777 | libc::S_IFDIR;
        let dir = self.writable(parent.0);
        entry(dir.and_then(|dir| self.make(dir, name.as_bytes(), mode, 0, caller(req, umask))), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.writable(parent.0).and_then(|dir| self.remove_file(dir, name.as_bytes())), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if is_snapdir(parent.0) {
            return empty(self.destroy_snapshot(name.as_bytes(), asker(req)), reply);
        }
        empty(self.writable(parent.0).and_then(|dir| self.remove_dir(dir, name.as_bytes())), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let dir = self.writable(parent.0);
        entry(dir.and_then(|dir| self.symlink(dir, name.as_bytes(), target, caller(req, 0))), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if is_snapdir(parent.0) && is_snapdir(newparent.0) {
            return empty(self.rename_snapshot(name.as_bytes(), newname.as_bytes(), asker(req)), reply);
        }
        let rename = || {
            self.check_same_tree(parent.0, newparent.0)?;
            let (from, to) = (self.writable(parent.0)?, self.writable(newparent.0)?);
            let excluded = || Error::new(Kind::Invalid, "these ways to rename exclude each other");
            let kind = convert::rename(flags).ok_or_else(excluded)?;
            let ids = (req.uid().into(), req.gid().into());
            let (name, newname) = (name.as_bytes(), newname.as_bytes());
            let work = || self.files.dirs().rename((from, name), (to, newname), kind, ids);
            if kind == RenameKind::Exchange { work() } else { self.removing(to, newname, work) }
        };
        empty(rename(), reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let link = || {
            self.check_same_tree(ino.0, newparent.0)?;
            let (object, dir) = (self.writable(ino.0)?, self.writable(newparent.0)?);
            self.files.dirs().link(object, dir, newname.as_bytes())?;
            self.entry(object)
        };
        entry(link(), reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let Some(object) = self.object(ino.0) else { return self.frozen.open(req, ino, flags, reply) };
        match self.open_with(object, flags) {
            // Otherwise the kernel drops its pages of the file with each open.
            Ok(handle) if self.files.keeps_data() => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE),
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(object) = self.object(ino.0) else {
            return self.frozen.read(req, ino, fh, offset, size, flags, lock_owner, reply);
        };
        if !self.is_of(fh, object) {
            return reply.error(Errno::ESTALE);
        }
        match self.read(object, offset, size, flags) {
            Ok(pieces) => reply.pieces(&pieces),
            Err(e) => reply.error(errno(&e)),
        }
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
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let keep = !how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        if self.object(ino.0).is_some_and(|object| !self.is_of(fh, object)) {
            return reply.error(Errno::ESTALE);
        }
        let setter = Some(Setter::of(req)).filter(|_| !keep);
        // A write from the page cache has no reader waiting for those pages.
        let is_direct = flags.0 & libc::O_DIRECT != 0 && !how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let write = || self.write_bytes(self.writable(ino.0)?, offset, data, (keep, is_direct));
        match self.writable(ino.0).and_then(|object| self.dropping_set_ids(object, setter.as_ref(), write)) {
            Ok(()) if is_direct => self.written_around_pages(ino, offset, data.len(), reply),
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        // A close has nothing to write back: a write that returned is in a transaction. The kernel asks once.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        flush: bool,
        reply: ReplyEmpty,
    ) {
        self.end_offers(ino, fh);
        let Some(object) = self.object(ino.0) else {
            return self.frozen.release(req, ino, fh, flags, lock_owner, flush, reply);
        };
        self.writers.closed(object, fh);
        // A handle of a removed file does not count as an open handle of its successor.
        empty(if self.opened(fh, object) { self.files.close_file(object) } else { Ok(()) }, reply);
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        empty(self.object(ino.0).map_or(Ok(()), |object| self.files.fsync(object)), reply);
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        empty(self.object(ino.0).map_or(Ok(()), |object| self.files.fsync(object)), reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let Some(object) = self.object(ino.0) else {
            return self.frozen.opendir(req, ino, flags, reply);
        };
        if let Err(e) = self.files.open_file(object) {
            return self.open_removed(ino, flags, &e, reply);
        }
        if self.options.read().dir_atime && !keeps_access_time(flags) {
            self.accessed(object);
        }
        // The visibility of `.zfs` in the root may change at any time.
        let keep = if object == self.files.root {
            FopenFlags::empty()
        } else {
            FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
        };
        let handle = self.open_dirs.opened(object, self.handle(object, flags));
        reply.opened(handle, keep);
    }

    fn readdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(dir) = self.object(ino.0) else { return self.frozen.readdir(req, ino, fh, offset, reply) };
        let add =
            |item: &Item| reply.add(INodeNo(item.ino), item.next, item.kind, OsStr::from_bytes(&item.name));
        match self.each_listed(dir, offset, add) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let Some(dir) = self.object(ino.0) else {
            return self.frozen.readdirplus(req, ino, fh, offset, reply);
        };
        let add = |item: &Item| {
            let name = OsStr::from_bytes(&item.name);
            match self.listed(dir, item) {
                Ok(found) => {
                    let keep = found.keep_attr.min(found.keep);
                    reply.add(found.attr.ino, item.next, name, &keep, &found.attr, found.generation)
                }
                // An unreadable file still shows its name; using it returns the error.
                Err(_) => reply.name_only(INodeNo(item.ino), item.next, item.kind, name),
            }
        };
        match self.each_listed(dir, offset, add) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn releasedir(&self, req: &Request, ino: INodeNo, fh: FileHandle, flags: OpenFlags, reply: ReplyEmpty) {
        if self.object(ino.0).is_none() {
            return self.frozen.releasedir(req, ino, fh, flags, reply);
        }
        // A removed directory has no open count any more.
        let open = self.open_dirs.closed(fh).filter(|(object, of)| self.opened(*of, *object));
        empty(open.map_or(Ok(()), |(object, _)| self.files.close_file(object)), reply);
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        const UNIT: u64 = 4096;
        if self.object(ino.0).is_none() {
            return self.frozen.statfs(req, ino, reply);
        }
        let room = self.files.space().and_then(|room| Ok((room, self.project_limits(ino.0)?)));
        match room {
            Ok((room, [bytes, objects])) => {
                // A project's quota is the size of its directories, as in OpenZFS.
                let (used, left) = bytes.unwrap_or((room.referenced, room.available));
                let available = left.min(room.available);
                let (free, blocks) = (available / UNIT, used.saturating_add(left) / UNIT);
                // As many files as there are free sectors, as in OpenZFS.
                let (used, left) = objects.unwrap_or((room.objects, room.available / 512));
                let files_free = left.min(room.available / 512);
                let unit = u32::try_from(UNIT).unwrap_or(4096);
                let longest = u32::try_from(self.files.options().max_name).unwrap_or(255);
                reply.statfs(blocks, free, free, used.saturating_add(left), files_free, unit, longest, unit);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = || {
            let object = self.writable(ino.0)?;
            self.check_xattr(name.as_bytes())?;
            match posix_acl::is_list(name.as_bytes()) {
                true => self.set_acl(object, name.as_bytes(), Some(value), &Setter::of(req)),
                false => {
                    let mode = convert::xattr_mode(flags);
                    self.files.xattrs().set(object, name.as_bytes(), Some(value), mode)
                }
            }
        };
        match set() {
            Err(e) if e.kind() == Kind::NotFound => reply.error(Errno::ENODATA),
            done => empty(done, reply),
        }
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let Some(object) = self.object(ino.0) else {
            return self.frozen.getxattr(req, ino, name, size, reply);
        };
        let value = match self.check_xattr(name.as_bytes()) {
            // The kernel asks before granting access, and would take any other error for a failure of the access.
            Err(_) if posix_acl::is_list(name.as_bytes()) => Ok(None),
            allowed => allowed.and_then(|()| self.files.xattrs().get(object, name.as_bytes())),
        };
        match value {
            Ok(Some(value)) => reply_xattr(reply, size, &value),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let Some(object) = self.object(ino.0) else { return self.frozen.listxattr(req, ino, size, reply) };
        match self.files.xattrs().names(object) {
            Ok(names) => {
                let seen = |name: &Vec<u8>| self.check_xattr(name).is_ok() && is_shown(req, name);
                let shown = names.into_iter().filter(seen);
                let list: Vec<u8> = shown.flat_map(|name| name.into_iter().chain([0])).collect();
                reply_xattr(reply, size, &list);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        let remove = || {
            let object = self.writable(ino.0)?;
            self.check_xattr(name)?;
            match posix_acl::is_list(name) {
                true => self.set_acl(object, name, None, &Setter::Privileged),
                false => self.files.xattrs().set(object, name, None, XattrMode::Set),
            }
        };
        match remove() {
            Err(e) if e.kind() == Kind::NotFound => reply.error(Errno::ENODATA),
            done => empty(done, reply),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let create = || {
            let dir = self.writable(parent.0)?;
            let made =
                self.make(dir, name.as_bytes(), mode & 0o7777 | libc::S_IFREG, 0, caller(req, umask))?;
            self.files.open_file(self.writable(made.attr.ino.0)?)?;
            Ok(made)
        };
        self.created(create(), OpenFlags(flags), reply);
    }

    fn tmpfile(&self, req: &Request, parent: INodeNo, mode: u32, umask: u32, reply: ReplyCreate) {
        let dir = self.writable(parent.0);
        let made = dir.and_then(|dir| self.make_unnamed(dir, mode, caller(req, umask)));
        // It is never opened for reading only.
        self.created(made, OpenFlags(libc::O_RDWR), reply);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.answer_ioctl(req, ino, fh, cmd, in_data, reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocate = || {
            let object = self.writable(ino.0)?;
            let setter = Some(Setter::of(req)).filter(|setter| !setter.is_privileged());
            self.dropping_set_ids(object, setter.as_ref(), || self.allocate(object, offset, length, mode))
        };
        match allocate() {
            Err(e) if pages::removes(mode) => self.removed_in_part(ino, (offset, length), errno(&e), reply),
            done => empty(done, reply),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        to: INodeNo,
        to_fh: FileHandle,
        to_offset: u64,
        len: u64,
        wide: bool,
        reply: ReplyCopied,
    ) {
        let is_ours = |ino: INodeNo, fh| self.object(ino.0).is_none_or(|object| self.is_of(fh, object));
        if !is_ours(ino, fh) || !is_ours(to, to_fh) {
            return reply.error(Errno::ESTALE);
        }
        let setter = Some(Setter::of(req)).filter(|setter| !setter.is_privileged());
        let clone = || {
            let object = self.writable(to.0)?;
            self.dropping_set_ids(object, setter.as_ref(), || {
                self.clone_range((ino.0, offset), (object, to_offset), len)
            })
        };
        match clone() {
            Ok(bytes) => reply.copied(bytes, wide),
            // The kernel then copies the bytes itself.
            Err(e) if copy::is_left_to_kernel(&e) => reply.error(Errno::ENOTSUP),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Some(object) = self.object(ino.0) else {
            return self.frozen.lseek(req, ino, fh, offset, whence, reply);
        };
        let what = if whence == libc::SEEK_DATA { Seek::Data } else { Seek::Hole };
        let Ok(from) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.seek(ino, object, (from, what), reply);
    }
}
