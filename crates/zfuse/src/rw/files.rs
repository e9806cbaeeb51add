//! Operations behind the requests: nodes, entries and attributes of the live file system.

use std::time::{Duration, SystemTime};

use crate::wire::{FileAttr, FileHandle, FileType, Generation, INodeNo, OpenAccMode, OpenFlags, TimeOrNow};
use engine::{Error, Kind, Result};
use stdx::Buf;
use zpl::write::{NewNode, ReadHow, Settings, XattrMode};
use zpl::{Attr, FileKind};

use super::privileges::Setter;
use super::{Live, Snapdir, convert, posix_acl};
use crate::attr::{file_type, of_file};
use crate::dir::{Item, UNKNOWN, cookie, directory, numbered};
use crate::node::{Node, What};

/// Cache lifetime of names in the kernel, which is the only writer.
pub const NAMES: Duration = Duration::from_secs(3600);
/// Cache lifetime of attributes of a changed file: its space is known when its txg has been written.
pub const CHANGED: Duration = Duration::from_secs(1);

/// Maximum transfer size advised to programs that begin a file. The C library allocates a buffer of that size for each stream.
const MAX_TRANSFER: u32 = 128 << 10;

/// The preferred transfer size (`st_blksize`): the file's block size, as in OpenZFS, or a record, to which the first block of a
/// short file has not grown yet.
fn best_transfer(size: u64, block: u32, recordsize: u64) -> u32 {
    let record = u32::try_from(recordsize).unwrap_or(MAX_TRANSFER);
    let grows = size <= u64::from(block) && (block < record || !block.is_power_of_two());
    if grows { record.min(MAX_TRANSFER) } else { block }
}

/// The caller of a request.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits to clear in modes of new files.
    pub umask: u32,
}

/// An answer to a lookup or creation.
#[derive(Debug)]
pub struct Entry {
    /// Its attributes.
    pub attr: FileAttr,
    /// Distinguishes successive files with the same object number.
    pub generation: Generation,
    /// Cache lifetime of the name.
    pub keep: Duration,
    /// Cache lifetime of the attributes.
    pub keep_attr: Duration,
}

/// A request to change attributes.
#[derive(Debug)]
pub struct Change {
    /// Mode.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Access and modification time.
    pub times: (Option<TimeOrNow>, Option<TimeOrNow>),
    /// The sender of the request.
    pub setter: Setter,
}

/// Whether it was opened so that reading it leaves its access time alone. The kernel passes the flags with each read.
pub(super) fn keeps_access_time(flags: OpenFlags) -> bool {
    flags.0 & libc::O_NOATIME != 0
}

impl Live {
    /// The object of an inode number of the live file system; `None` for `.zfs` and below.
    pub(super) fn object(&self, ino: u64) -> Option<u64> {
        match Node::decode(ino) {
            Node { slot: 0, what: What::Top } => Some(self.files.root),
            Node { slot: 0, what: What::Object(object) } => Some(object),
            _ => None,
        }
    }

    /// The same for a request that changes the file.
    pub(super) fn writable(&self, ino: u64) -> Result<u64> {
        if self.options.read().read_only {
            return Err(Error::new(Kind::ReadOnly, "the file system is mounted read-only"));
        }
        let object = self.object(ino);
        object.ok_or_else(|| Error::new(Kind::ReadOnly, "snapshots cannot be changed"))
    }

    /// Files of snapshots and of the file system cannot have names in each other: programs that move files then copy them.
    pub(super) fn check_same_tree(&self, ino: u64, other: u64) -> Result<()> {
        match self.object(ino).is_some() == self.object(other).is_some() {
            true => Ok(()),
            false => Err(Error::new(Kind::OtherDevice, "one of the two is in a snapshot")),
        }
    }

    /// Bytes and objects in use and left, where a directory's project has quotas of them.
    pub(super) fn project_limits(&self, ino: u64) -> Result<[Option<(u64, u64)>; 2]> {
        self.object(ino).map_or(Ok([None; 2]), |object| self.files.quotas().project_limits(object))
    }

    pub(super) fn ino(&self, object: u64) -> Result<u64> {
        let what = if object == self.files.root { What::Top } else { What::Object(object) };
        let node = Node { slot: 0, what };
        node.encode().ok_or_else(|| Error::not_found("object number out of bounds"))
    }

    /// Attributes of a file.
    pub(super) fn entry(&self, object: u64) -> Result<Entry> {
        let (attr, is_clean) = self.files.attrs().get_with_state(object)?;
        let keep_attr = if is_clean { NAMES } else { CHANGED };
        if attr.is_xattr() {
            return Err(Error::not_found("not a file of this tree"));
        }
        self.past.met(object);
        // Several names may mean one file: the kernel does not notice its removal under another name.
        let keep = if self.files.dirs().names_are_exact() { NAMES } else { Duration::ZERO };
        let generation = Generation(attr.generation);
        Ok(Entry { attr: self.file_attr(object, &attr)?, generation, keep, keep_attr })
    }

    /// A file's attributes as the kernel gets them.
    pub(super) fn file_attr(&self, object: u64, attr: &Attr) -> Result<FileAttr> {
        let mut attr = of_file(self.ino(object)?, attr);
        if attr.kind == FileType::RegularFile {
            attr.blksize = best_transfer(attr.size, attr.blksize, self.files.options().recordsize);
        }
        // `.zfs` is a directory in it, if visible.
        let shows_ctl = object == self.files.root && self.options.read().snapdir == Snapdir::Visible;
        attr.nlink = attr.nlink.saturating_add(u32::from(shows_ctl));
        Ok(attr)
    }

    /// Opens a file. Access that its flags forbid is refused now, because cached writes would be refused too late.
    pub(super) fn open_with(&self, object: u64, flags: OpenFlags) -> Result<FileHandle> {
        let mode = flags.acc_mode();
        if mode != OpenAccMode::O_RDONLY {
            self.files.restrictions().check_open_for_writing(object, flags.0 & libc::O_APPEND != 0)?;
        }
        self.files.open_file(object)?;
        if mode != OpenAccMode::O_WRONLY && !keeps_access_time(flags) {
            self.accessed(object);
        }
        let handle = self.handle(object, flags);
        self.writers.opened(object, handle);
        Ok(handle)
    }

    /// Records that a file or directory is about to be read; the kernel's cache serves most reads unseen.
    pub(super) fn accessed(&self, object: u64) {
        if self.options.read().read_only {
            return;
        }
        // An unchangeable file can still be read.
        if let (Ok(true), Ok(ino)) = (self.files.data().note_access(object), self.ino(object)) {
            self.tell_changed(INodeNo(ino));
        }
    }

    /// Resolves a name.
    pub(super) fn find(&self, dir: u64, name: &[u8]) -> Result<Entry> {
        if name.len() > self.files.options().max_name {
            return Err(Error::new(Kind::TooLong, "the name is too long"));
        }
        let found = self.files.dirs().lookup(dir, name)?;
        self.entry(found.ok_or_else(|| Error::not_found("no such file or directory"))?.object)
    }

    /// Creates a file of any type.
    pub(super) fn make(&self, dir: u64, name: &[u8], mode: u32, rdev: u32, who: Caller) -> Result<Entry> {
        let (kind, perm) = convert::mode(mode)
            .ok_or_else(|| Error::new(Kind::Invalid, "a mode that names no known file type"))?;
        let is_dir = kind == FileKind::Directory;
        let inherited = self.inherit(dir, is_dir, perm, who.umask)?;
        let new = NewNode::new(kind, inherited.perm, who.uid.into(), who.gid.into());
        let new = if kind.is_device() { new.device(convert::rdev(rdev)) } else { new };
        let object = self.files.dirs().create(dir, name, &new)?;
        for (list, value) in &inherited.lists {
            if let Err(e) = self.files.xattrs().set(object, list, Some(value), XattrMode::Set) {
                // No file is better than one with wrong permissions.
                if is_dir {
                    self.files.dirs().rmdir(dir, name)?
                } else {
                    self.files.dirs().unlink(dir, name)?
                }
                return Err(e);
            }
        }
        self.entry(object)
    }

    /// Creates a file without a name, open once.
    pub(super) fn make_unnamed(&self, dir: u64, mode: u32, caller: Caller) -> Result<Entry> {
        let inherited = self.inherit(dir, false, u64::from(mode & 0o7777), caller.umask)?;
        let new = NewNode::new(FileKind::Regular, inherited.perm, caller.uid.into(), caller.gid.into());
        let object = self.files.dirs().create_unnamed(dir, &new)?;
        let mut lists = inherited.lists.iter();
        let set = lists
            .try_for_each(|(list, value)| self.files.xattrs().set(object, list, Some(value), XattrMode::Set));
        let made = set.and_then(|()| self.entry(object));
        if made.is_err() {
            self.files.close_file(object)?;
        }
        made
    }

    /// Creates a symbolic link.
    pub(super) fn symlink(&self, dir: u64, name: &[u8], target: &[u8], who: Caller) -> Result<Entry> {
        let new = NewNode::symlink(target, who.uid.into(), who.gid.into());
        self.entry(self.files.dirs().create(dir, name, &new)?)
    }

    /// Sets attributes.
    pub(super) fn change(&self, object: u64, change: Change) -> Result<Entry> {
        let now = SystemTime::now();
        let moment = |time: &TimeOrNow| matches!(time, TimeOrNow::SpecificTime(_));
        let given = [&change.times.0, &change.times.1];
        // The current time for one of them alone counts as a time of the caller's choice: as in `vfs_utimes` of Linux.
        let one = change.size.is_none() && given.iter().filter(|time| time.is_some()).count() == 1;
        let times = one || given.into_iter().flatten().any(moment);
        if change.mode.is_some() || change.uid.is_some() || change.gid.is_some() || times {
            self.files.restrictions().check_settable(object)?;
        }
        let given = change.mode.map(|mode| u64::from(mode & 0o7777));
        let owner = change.uid.is_some() || change.gid.is_some();
        let cut = change.size.is_some() && !change.setter.is_privileged();
        let mode = match given {
            None if owner || cut => self.without_set_ids(object, &change.setter)?,
            given => given,
        };
        let settings = Settings {
            mode,
            uid: change.uid.map(u64::from),
            gid: change.gid.map(u64::from),
            size: change.size,
            atime: change.times.0.map(|time| convert::time(time, now)),
            mtime: change.times.1.map(|time| convert::time(time, now)),
            ..Settings::default()
        };
        if settings != Settings::default() {
            self.files.attrs().set(object, &settings)?;
        }
        if let Some(mode) = given {
            self.acl_follows(object, mode)?;
        }
        self.entry(object)
    }

    /// Entries of a directory from `offset` on; 0 is the beginning, with `.` and `..`.
    pub(super) fn list(&self, dir: u64, offset: u64) -> Result<impl Iterator<Item = Result<Item>>> {
        let mut others = vec![
            directory(b".", self.ino(dir)?),
            directory(b"..", self.ino(self.files.attrs().get(dir)?.parent)?),
        ];
        if dir == self.files.root && self.options.read().snapdir == Snapdir::Visible {
            let ctl = Node { slot: 0, what: What::Ctl }.encode().unwrap_or(UNKNOWN);
            others.push(directory(b".zfs", ctl));
        }
        let stored = self.files.dirs().entries_from(dir, cookie(offset))?;
        let stored = stored.map(|entry| {
            let (next, entry) = entry?;
            // Old file systems store no types in directories. An unreadable file shows its name all the same.
            let stored =
                entry.kind.or_else(|| self.files.attrs().get(entry.object).ok().map(|attr| attr.kind));
            let kind = file_type(stored.unwrap_or(FileKind::Regular));
            Ok(Item { name: entry.name, ino: self.ino(entry.object)?, kind, next })
        });
        Ok(numbered(others, offset).map(Ok).chain(stored))
    }

    /// Passes entries of a directory to `add` until it reports that there is no room. An error is returned alone:
    /// the entries before it are passed first, and the next request returns it.
    pub(super) fn each_listed(
        &self,
        dir: u64,
        offset: u64,
        mut add: impl FnMut(&Item) -> bool,
    ) -> Result<()> {
        for (n, item) in self.list(dir, offset)?.enumerate() {
            match item {
                Ok(item) if add(&item) => break,
                Ok(_) => {}
                Err(e) if n == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// The file of a listed entry.
    pub(super) fn listed(&self, dir: u64, item: &Item) -> Result<Entry> {
        match self.object(item.ino) {
            Some(object) => self.entry(object),
            None => self.lookup_any(dir, &item.name),
        }
    }

    /// Reads bytes of a file.
    pub(super) fn read(&self, object: u64, offset: u64, size: u32, flags: OpenFlags) -> Result<Vec<Buf>> {
        let len = usize::try_from(size).unwrap_or(0);
        let how = ReadHow { noticed: !keeps_access_time(flags), paged: flags.0 & libc::O_DIRECT == 0 };
        self.files.data().read_pieces(object, offset, len, how)
    }

    /// Writes bytes of a file: whether set-id bits stay, and whether the write goes past the kernel's page cache.
    pub(super) fn write_bytes(
        &self,
        object: u64,
        offset: u64,
        data: &[u8],
        (keep, is_direct): (bool, bool),
    ) -> Result<()> {
        match is_direct {
            true => self.files.data().write(object, offset, data, keep),
            false => self.files.data().write_paged(object, offset, data, keep),
        }
    }

    /// Changes the space of a file for `fallocate`.
    pub(super) fn allocate(&self, object: u64, offset: u64, len: u64, mode: i32) -> Result<()> {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_INSIDE: i32 = ZERO | libc::FALLOC_FL_KEEP_SIZE;
        match mode {
            0 => self.files.data().allocate(object, offset, len),
            // No space is reserved: blocks are never overwritten in place.
            libc::FALLOC_FL_KEEP_SIZE => self.files.data().reserve(object, offset, len),
            PUNCH => self.files.data().punch(object, offset, len),
            ZERO => self.files.data().zero_range(object, offset, len),
            ZERO_INSIDE => self.files.data().punch(object, offset, len),
            _ => Err(Error::unsupported("ranges of files cannot be collapsed or inserted")),
        }
    }

    /// Whether extended attributes of that name are supported.
    pub(super) fn check_xattr(&self, name: &[u8]) -> Result<()> {
        let options = *self.options.read();
        let acl = posix_acl::is_list(name);
        let spaces = [&b"user."[..], b"trusted.", b"security."];
        if spaces.contains(&name) {
            return Err(Error::new(
                Kind::Invalid,
                "the name of an extended attribute has nothing after its namespace",
            ));
        }
        // As in OpenZFS, the property is for those of users; capabilities of files stay in force.
        if !options.xattr && name.starts_with(b"user.") {
            return Err(Error::unsupported("xattr=off"));
        }
        let kept = spaces.iter().any(|space| name.starts_with(space));
        match (acl, options.posix_acl) {
            (true, true) => Ok(()),
            (true, false) => Err(Error::unsupported("acltype is not posix")),
            (false, _) if kept => Ok(()),
            _ => Err(Error::unsupported("no such kind of extended attributes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_file_is_best_written_by_records() {
        assert_eq!(best_transfer(0, 512, 128 << 10), 128 << 10);
        assert_eq!(best_transfer(1000, 1024, 8 << 10), 8 << 10);
        assert_eq!(best_transfer(0, 512, 1 << 20), 128 << 10);
        // A file of several blocks keeps their size.
        assert_eq!(best_transfer(1 << 20, 16 << 10, 128 << 10), 16 << 10);
        assert_eq!(best_transfer(9 << 20, 1 << 20, 128 << 10), 1 << 20);
    }
}
