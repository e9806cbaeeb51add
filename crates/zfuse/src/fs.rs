//! The read-only file system: answers the kernel's requests.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::wire::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx,
    ReplyXattr, Request,
};
use engine::dmu::prefetch::Prefetch;
use engine::{Error, Kind, Result};
use parking_lot::{Mutex, RwLock};
use zpl::{Inode, Reader};
use zvol::Volume;

use crate::attr::{errno, of_file, synthetic};
use crate::dir::{self, Item};
use crate::file_flags;
use crate::node::{Node, What};
use crate::rw::is_list;
use crate::space::{Content, Slot, Space};

/// The content never changes, so nothing expires.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Maximum read-ahead requested from the kernel.
pub(crate) const READ_AHEAD: u32 = 4 << 20;
/// Maximum size of an extended attribute list or value that Linux passes.
const MAX_XATTR: usize = 64 << 10;

/// An open file or directory.
#[derive(Debug)]
enum Handle {
    File(Mutex<Reader>),
    Volume(Arc<Volume>, Mutex<Prefetch>),
    Directory,
}

/// An open file or directory, and its dataset.
#[derive(Debug)]
struct Open {
    handle: Arc<Handle>,
    slot: Option<Arc<Slot>>,
}

/// The file system served to the kernel.
#[derive(Debug)]
pub struct Fuse {
    space: Arc<Space>,
    /// The kernel checks permissions, including access control lists.
    checked: bool,
    handles: RwLock<HashMap<u64, Open>>,
    next: AtomicU64,
}

/// The meaning of a node.
enum Thing {
    File(Inode),
    Volume(Arc<Volume>),
    Synthetic,
}

impl Fuse {
    /// Serves the datasets of `space`.
    pub fn new(space: Arc<Space>, checked: bool) -> Self {
        Self { space, checked, handles: RwLock::default(), next: AtomicU64::new(1) }
    }

    pub(crate) fn slot(&self, node: Node) -> Result<Arc<Slot>> {
        self.space.slot(node.slot).ok_or_else(|| Error::not_found("no such dataset in this mount"))
    }

    fn thing(&self, node: Node) -> Result<Thing> {
        let slot = self.slot(node)?;
        match (node.what, slot.content()) {
            (What::Ctl | What::SnapDir, _) => Ok(Thing::Synthetic),
            (What::Top, Content::Filesystem(fs)) => fs.root().map(Thing::File),
            (What::Top, Content::Volume(volume)) => Ok(Thing::Volume(Arc::clone(volume))),
            // The top of a dataset without its key is a directory that only shows its children.
            (What::Top, Content::Closed(e)) => match slot.children().is_empty() && node.slot != 0 {
                true => Err(e.clone()),
                false => Ok(Thing::Synthetic),
            },
            (What::Object(number), Content::Filesystem(fs)) => fs.inode(number).map(Thing::File),
            (What::Object(_), _) => Err(Error::not_found("not a file system")),
        }
    }

    pub(crate) fn inode(&self, node: Node) -> Result<Inode> {
        match self.thing(node)? {
            Thing::File(inode) => Ok(inode),
            _ => Err(Error::new(Kind::Invalid, "not a file")),
        }
    }

    pub(crate) fn attr(&self, node: Node) -> Result<FileAttr> {
        let ino = node.encode().ok_or_else(|| Error::not_found("object number out of bounds"))?;
        let created = self.slot(node)?.dataset.phys.creation_time;
        Ok(match self.thing(node)? {
            Thing::File(inode) => of_file(ino, inode.attr()),
            Thing::Volume(volume) => synthetic(ino, FileType::RegularFile, volume.size, created),
            Thing::Synthetic if node.what == What::SnapDir => {
                let changed = self.slot(node)?.snapshots_changed()?;
                let attr = synthetic(ino, FileType::Directory, 0, changed);
                // Permission to change snapshots there does not depend on modes.
                if self.may_change(node) { FileAttr { perm: 0o777, ..attr } } else { attr }
            }
            Thing::Synthetic => synthetic(ino, FileType::Directory, 0, created),
        })
    }

    pub(crate) fn find(&self, parent: Node, name: &[u8]) -> Result<Node> {
        let missing = || Error::not_found("no such file or directory");
        let text = std::str::from_utf8(name).ok();
        if name == b"." {
            // Only a holder of a file handle asks for this.
            return Ok(parent);
        }
        let found = match parent.what {
            What::Ctl if name == b"snapshot" => return Ok(Node { slot: parent.slot, what: What::SnapDir }),
            What::Ctl => None,
            What::SnapDir => match text {
                Some(text) => self.space.snapshot(parent.slot, text)?.map(Node::top),
                None => None,
            },
            What::Top if name == b".zfs" && self.slot(parent)?.has_ctl() => {
                return Ok(Node { slot: parent.slot, what: What::Ctl });
            }
            What::Top => match text {
                Some(text) => self.space.child(parent.slot, text)?.map(Node::top),
                None => None,
            },
            What::Object(_) => None,
        };
        match (found, parent.what) {
            (Some(node), _) => Ok(node),
            (None, What::Ctl | What::SnapDir) => Err(missing()),
            (None, _) => self.find_file(parent, name),
        }
    }

    fn find_file(&self, parent: Node, name: &[u8]) -> Result<Node> {
        let missing = || Error::not_found("no such file or directory");
        match self.thing(parent)? {
            Thing::File(dir) => {
                let entry = dir.lookup(name)?.ok_or_else(missing)?;
                Ok(Node { slot: parent.slot, what: What::Object(entry.object) })
            }
            _ => Err(missing()),
        }
    }

    /// Whether entries of a directory are added and removed: those of `.zfs/snapshot` of a file system in use.
    fn may_change(&self, dir: Node) -> bool {
        dir.what == What::SnapDir && self.space.slot(dir.slot).is_some_and(|slot| slot.is_live())
    }

    /// How long the kernel may cache a node's attributes, and a directory's names.
    fn keep_attr(&self, node: Node) -> Duration {
        if self.may_change(node) { Duration::ZERO } else { FOREVER }
    }

    fn keep(&self, node: Node, handle: Handle) -> FileHandle {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let slot = self.space.slot(node.slot);
        if let Some(slot) = &slot {
            slot.opened();
        }
        self.handles.write().insert(id, Open { handle: Arc::new(handle), slot });
        FileHandle(id)
    }

    fn handle(&self, fh: FileHandle) -> Option<Arc<Handle>> {
        self.handles.read().get(&fh.0).map(|open| Arc::clone(&open.handle))
    }

    fn close(&self, fh: FileHandle) {
        let open = self.handles.write().remove(&fh.0);
        if let Some(slot) = open.and_then(|open| open.slot) {
            slot.closed();
        }
    }

    fn read_handle(&self, fh: FileHandle, offset: u64, size: u32) -> Result<Vec<u8>> {
        let mut out = vec![0; usize::try_from(size).unwrap_or(0)];
        let read = match self.handle(fh).as_deref() {
            Some(Handle::File(reader)) => reader.lock().read_at(offset, &mut out)?,
            Some(Handle::Volume(volume, prefetch)) => {
                volume.read_ahead(&mut prefetch.lock(), offset, u64::from(size));
                volume.read_at(offset, &mut out)?
            }
            _ => return Err(Error::new(Kind::Invalid, "not an open file")),
        };
        out.truncate(read);
        Ok(out)
    }

    fn seek(&self, fh: FileHandle, offset: i64, whence: i32) -> Result<u64> {
        let invalid = || Error::new(Kind::Invalid, "seek before the start");
        let from = u64::try_from(offset).map_err(|_| invalid())?;
        let handle = self.handle(fh).ok_or_else(invalid)?;
        let Handle::File(reader) = &*handle else { return Err(invalid()) };
        let inode = reader.lock().inode().clone();
        let found = match whence {
            libc::SEEK_DATA => inode.next_data(from)?,
            libc::SEEK_HOLE => inode.next_hole(from)?,
            _ => return Err(invalid()),
        };
        found.ok_or_else(|| Error::new(Kind::NotFound, "past the end"))
    }

    /// Entries of a directory from `offset` on. Unreadable ones are skipped and logged.
    fn entries(&self, node: Node, offset: u64) -> Result<impl Iterator<Item = Item> + use<>> {
        let inode = match self.thing(node)? {
            Thing::File(inode) => Some(inode),
            _ => None,
        };
        let readable = |item: Result<Item>| {
            let said = |e| eprintln!("aquifer mount: a directory is damaged: an entry cannot be read: {e}");
            item.map_err(said).ok()
        };
        Ok(dir::list(&self.space, node, inode.as_ref(), offset)?.filter_map(readable))
    }

    /// The node of an entry, and its attributes.
    fn found(&self, parent: Node, item: &Item) -> Result<FileAttr> {
        let node = match item.name.as_slice() {
            b"." | b".." => Node::decode(item.ino),
            name => self.find(parent, name)?,
        };
        self.attr(node)
    }
}

/// Whether the sender of a request sees extended attributes with this name in lists.
#[doc(alias = "__zpl_xattr_trusted_list")]
pub(crate) fn is_shown(req: &Request, name: &[u8]) -> bool {
    req.uid() == 0 || !name.starts_with(b"trusted.")
}

pub(crate) fn reply_xattr(reply: ReplyXattr, size: u32, value: &[u8]) {
    let wanted = usize::try_from(size).unwrap_or(usize::MAX);
    match u32::try_from(value.len()) {
        _ if value.len() > MAX_XATTR => reply.error(Errno::E2BIG),
        Ok(len) if size == 0 => reply.size(len),
        Ok(_) if value.len() <= wanted => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

impl Fuse {
    /// Answers the requests that read a file's flags and project.
    pub(crate) fn answer_ioctl(&self, ino: INodeNo, command: u32, reply: ReplyIoctl) {
        match self.thing(Node::decode(ino.0)) {
            Ok(Thing::File(inode)) => match file_flags::answer(inode.attr(), command) {
                Some(answer) => reply.ioctl(0, &answer),
                None => reply.error(Errno::ENOTTY),
            },
            Ok(_) => reply.error(Errno::ENOTTY),
            Err(e) => reply.error(errno(&e)),
        }
    }
}

impl Filesystem for Fuse {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Optional capabilities.
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_CACHE_SYMLINKS,
        ];
        for flag in wanted {
            let _ = config.add_capabilities(flag);
        }
        if self.checked {
            // Otherwise the group bits, which represent the mask of a list, would grant more than the list does.
            // The flag makes the kernel check permissions, so an image that its own user reads is mounted without
            // it.
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_ACL);
        }
        config.set_max_readahead(READ_AHEAD);
        config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent = Node::decode(parent.0);
        let found = self.find(parent, name.as_bytes()).and_then(|node| Ok((node, self.attr(node)?)));
        match found {
            Ok((node, attr)) => {
                reply.entry_with_ttls(&self.keep_attr(node), &self.keep_attr(parent), &attr, Generation(0));
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let node = Node::decode(ino.0);
        match self.attr(node) {
            Ok(attr) => reply.attr(&self.keep_attr(node), &attr),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn statx(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyStatx) {
        let node = Node::decode(ino.0);
        match self.attr(node) {
            Ok(attr) => reply.statx(&self.keep_attr(node), &attr),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.inode(Node::decode(ino.0)).and_then(|inode| inode.readlink()) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let node = Node::decode(ino.0);
        match self.thing(node) {
            Ok(Thing::File(inode)) => {
                let handle = Handle::File(Mutex::new(Reader::new(&inode)));
                reply.opened(self.keep(node, handle), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Ok(Thing::Volume(volume)) => {
                let handle = Handle::Volume(volume, Mutex::default());
                reply.opened(self.keep(node, handle), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Ok(Thing::Synthetic) => reply.error(Errno::EISDIR),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_handle(fh, offset, size) {
            Ok(data) => reply.data(&data),
            Err(e) => {
                eprintln!("aquifer mount: {e}");
                reply.error(errno(&e));
            }
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.close(fh);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let node = Node::decode(ino.0);
        match self.thing(node) {
            Ok(Thing::File(inode)) if !inode.is_dir() => return reply.error(Errno::ENOTDIR),
            Ok(_) => {}
            Err(e) => return reply.error(errno(&e)),
        }
        let flags = match self.may_change(node) {
            true => FopenFlags::empty(),
            false => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
        };
        reply.opened(self.keep(node, Handle::Directory), flags);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let items = match self.entries(Node::decode(ino.0), offset) {
            Ok(items) => items,
            Err(e) => return reply.error(errno(&e)),
        };
        for item in items {
            if reply.add(INodeNo(item.ino), item.next, item.kind, OsStr::from_bytes(&item.name)) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let parent = Node::decode(ino.0);
        let items = match self.entries(parent, offset) {
            Ok(items) => items,
            Err(e) => return reply.error(errno(&e)),
        };
        let ttl = if self.may_change(parent) { Duration::ZERO } else { FOREVER };
        for item in items {
            let name = OsStr::from_bytes(&item.name);
            // More attributes of a snapshot would require opening it, and there may be thousands.
            let closed = parent.what == What::SnapDir && item.ino == dir::UNKNOWN;
            let full = match if closed { None } else { self.found(parent, &item).ok() } {
                Some(attr) => reply.add(attr.ino, item.next, name, &ttl, &attr, Generation(0)),
                // An unreadable file still shows its name; using it returns the error.
                None => reply.name_only(INodeNo(item.ino), item.next, item.kind, name),
            };
            if full {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.close(fh);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        const UNIT: u64 = 4096;
        let node = Node::decode(ino.0);
        let slot = self.space.slot(node.slot);
        let (used, objects) = match slot.as_deref().map(Slot::content) {
            Some(Content::Filesystem(fs)) => (fs.statfs().referenced, fs.statfs().objects),
            Some(Content::Volume(volume)) => (volume.size, 1),
            _ => (0, 0),
        };
        // Unreadable settings leave the used space as all the space.
        let available = slot.as_deref().and_then(|slot| self.space.available(slot).ok()).unwrap_or(0);
        let (blocks, free) = (used.saturating_add(available) / UNIT, available / UNIT);
        // As many files as there are free sectors, as in OpenZFS.
        let files_free = available / 512;
        reply.statfs(blocks, free, free, objects.saturating_add(files_free), files_free, 4096, 1023, 4096);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let node = Node::decode(ino.0);
        if is_list(name.as_bytes()) && !self.slot(node).is_ok_and(|slot| slot.has_posix_acls()) {
            return reply.error(Errno::ENODATA);
        }
        match self.thing(node) {
            Ok(Thing::File(inode)) => match inode.xattr(name.as_bytes()) {
                Ok(Some(value)) => reply_xattr(reply, size, &value),
                Ok(None) => reply.error(Errno::ENODATA),
                Err(e) => reply.error(errno(&e)),
            },
            Ok(_) => reply.error(Errno::ENODATA),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.answer_ioctl(ino, cmd, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let node = Node::decode(ino.0);
        let names = match self.thing(node) {
            Ok(Thing::File(inode)) => inode.xattr_names(),
            Ok(_) => Ok(Vec::new()),
            Err(e) => Err(e),
        };
        match names {
            Ok(names) => {
                let lists = self.slot(node).is_ok_and(|slot| slot.has_posix_acls());
                let shown = names.into_iter().filter(|name| (lists || !is_list(name)) && is_shown(req, name));
                let list: Vec<u8> = shown.flat_map(|n| n.into_iter().chain([0])).collect();
                reply_xattr(reply, size, &list);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.seek(fh, offset, whence) {
            Ok(at) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            Err(e) if e.kind() == Kind::NotFound => reply.error(Errno::ENXIO),
            Err(e) => reply.error(errno(&e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_trusted_attributes_are_for_root_alone() {
        let shown = |uid, name: &[u8]| is_shown(&Request::of_user(uid), name);
        assert!(shown(0, b"trusted.a") && shown(7, b"user.a") && shown(7, b"security.a"));
        assert!(!shown(7, b"trusted.a"));
    }
}
