//! Writes files to the destination.
//!
//! Every operation is relative to an open directory and never follows a symbolic link, so that a hostile tree (with
//! a link and a directory of one name, say) cannot lead a copy out of its destination. A file is written under a
//! partial name and renamed when it is complete: a file under its own name is whole, and an interrupted copy can be
//! resumed.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use blkdev::project::set_project;
use rustix::fs::{
    AtFlags, FileType, Gid, IFlags, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
    chmodat, chownat, fchmod, fchown, fsetxattr, futimens, ioctl_getflags, ioctl_setflags, linkat, lsetxattr,
    makedev, mkdirat, mknodat, openat, openat2, readlinkat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use zpl::{Attr, FileKind, Inode, Time, pflags};

/// A directory that is written to.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
}

/// The copying user and its privileges.
#[derive(Debug, Clone, Copy)]
pub struct Rights {
    root: bool,
    uid: u32,
}

impl Rights {
    /// The rights of this process.
    pub fn of_process() -> Self {
        let uid = rustix::process::geteuid();
        Self { root: uid.is_root(), uid: uid.as_raw() }
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Dir {
    /// The directory at `path` of this machine; links in the path are followed, because they are the user's own.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: openat(rustix::fs::CWD, path, flags, Mode::empty())? })
    }

    /// The directory `name` inside; created if it is missing.
    pub fn subdir(&self, name: &[u8]) -> io::Result<Self> {
        match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e.into()),
        }
        Ok(Self { fd: openat(&self.fd, name, DIRECTORY, Mode::empty())? })
    }

    /// The entry at `name`, if any.
    pub fn stat(&self, name: &[u8]) -> Option<Stat> {
        statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Whether `name` already equals a copy of the inode.
    pub fn has_copy(&self, name: &[u8], inode: &Inode) -> bool {
        let Some(stat) = self.stat(name) else { return false };
        let attr = inode.attr();
        match (FileType::from_raw_mode(stat.st_mode), attr.kind) {
            (FileType::RegularFile, FileKind::Regular) => {
                u64::try_from(stat.st_size) == Ok(attr.size) && same_time(&stat, attr.mtime)
            }
            (FileType::Symlink, FileKind::Symlink) => {
                let target = readlinkat(&self.fd, name, Vec::new());
                target.is_ok_and(|t| inode.readlink().is_ok_and(|ours| t.as_bytes() == ours))
            }
            (FileType::Fifo, FileKind::Fifo) => true,
            (FileType::CharacterDevice, FileKind::CharDevice)
            | (FileType::BlockDevice, FileKind::BlockDevice) => {
                attr.rdev.is_some_and(|r| stat.st_rdev == makedev(r.major, r.minor))
            }
            _ => false,
        }
    }

    /// Opens the partial file of a copy; returns the number of bytes it has from an earlier attempt.
    pub fn partial(&self, name: &[u8], resume: bool) -> io::Result<(File, u64)> {
        let mut flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !resume {
            flags |= OFlags::TRUNC;
        }
        let file = File::from(openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?);
        let len = file.metadata()?.len();
        Ok((file, len))
    }

    /// Renames a partial file to its name; replaces an existing entry unless it is a directory.
    pub fn finish(&self, partial: &[u8], name: &[u8]) -> io::Result<()> {
        Ok(renameat(&self.fd, partial, &self.fd, name)?)
    }

    /// Removes an entry that a rename cannot replace.
    fn clear(&self, name: &[u8]) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// A second name for a file copied before: `path` below `top`.
    pub fn link(&self, top: &Self, path: &[u8], name: &[u8]) -> io::Result<()> {
        self.clear(name)?;
        Ok(linkat(&top.fd, path, &self.fd, name, AtFlags::empty())?)
    }

    /// A symbolic link, fifo, socket or device, without its attributes.
    pub fn special(&self, name: &[u8], inode: &Inode) -> io::Result<()> {
        self.clear(name)?;
        let mode = Mode::RUSR | Mode::WUSR;
        let node = |kind, dev| mknodat(&self.fd, name, kind, mode, dev);
        let device = inode.attr().rdev.map_or(0, |r| makedev(r.major, r.minor));
        match inode.attr().kind {
            FileKind::Symlink => {
                let target = inode.readlink().map_err(|e| io::Error::other(e.to_string()))?;
                symlinkat(target, &self.fd, name)?;
            }
            FileKind::Fifo => node(FileType::Fifo, 0)?,
            FileKind::Socket => node(FileType::Socket, 0)?,
            FileKind::CharDevice => node(FileType::CharacterDevice, device)?,
            FileKind::BlockDevice => node(FileType::BlockDevice, device)?,
            FileKind::Regular | FileKind::Directory => {
                return Err(io::Error::new(ErrorKind::InvalidInput, "not a special file"));
            }
        }
        Ok(())
    }

    /// Makes the copy at `path` below this directory immutable or append-only.
    pub fn seal(&self, path: &[u8], attr: &Attr) -> io::Result<()> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let fd = openat2(&self.fd, path, flags, Mode::empty(), resolve)?;
        add_flags(fd, file_flags(attr).1)
    }

    /// Sets the attributes of a special file. Returns the number of extended attributes that could not be kept.
    pub fn special_attrs(
        &self,
        name: &[u8],
        attr: &Attr,
        xattrs: &[(Vec<u8>, Vec<u8>)],
        rights: Rights,
    ) -> io::Result<usize> {
        let mut perm = attr.perm;
        if rights.root {
            chownat(&self.fd, name, owner(attr.uid), group(attr.gid), AtFlags::SYMLINK_NOFOLLOW)?;
        } else if attr.uid != rights.uid {
            perm &= !0o6000;
        }
        // These cannot be opened for a descriptor; the path ends in the name itself.
        let path = [format!("/proc/self/fd/{}/", self.fd.as_raw_fd()).as_bytes(), name].concat();
        let set = |name: &[u8], value: &[u8]| lsetxattr(&path[..], name, value, XattrFlags::empty());
        let lost = set_xattrs(xattrs, rights, set);
        if attr.kind != FileKind::Symlink {
            chmodat(&self.fd, name, Mode::from_raw_mode(perm), AtFlags::empty())?;
        }
        utimensat(&self.fd, name, &times(attr), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(lost)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sets the attributes of an open file or directory. Returns the number of extended attributes that could not be
/// kept.
pub fn attrs(fd: impl AsFd, attr: &Attr, xattrs: &[(Vec<u8>, Vec<u8>)], rights: Rights) -> io::Result<usize> {
    let fd = fd.as_fd();
    let mut perm = attr.perm;
    if rights.root {
        fchown(fd, owner(attr.uid), group(attr.gid))?;
    } else if attr.uid != rights.uid {
        perm &= !0o6000;
    }
    let set = |name: &[u8], value: &[u8]| fsetxattr(fd, name, value, XattrFlags::empty());
    let lost = set_xattrs(xattrs, rights, set);
    fchmod(fd, Mode::from_raw_mode(perm))?;
    futimens(fd, &times(attr))?;
    Ok(lost)
}

/// Flags that can be set at once, and those that forbid later changes and renames.
fn file_flags(attr: &Attr) -> (IFlags, IFlags) {
    let pick = |map: &[(u64, IFlags)]| {
        map.iter().filter(|(flag, _)| attr.has_flag(*flag)).fold(IFlags::empty(), |all, (_, f)| all | *f)
    };
    let seals = [(pflags::IMMUTABLE, IFlags::IMMUTABLE), (pflags::APPENDONLY, IFlags::APPEND)];
    (pick(&[(pflags::NODUMP, IFlags::NODUMP)]), pick(&seals))
}

/// Whether a file has flags that must be set at the end.
pub fn has_seals(attr: &Attr) -> bool {
    !file_flags(attr).1.is_empty()
}

/// Sets project id and flags of an open file or directory, except immutable and append-only. Returns the number
/// that could not be kept: not every file system has them.
pub fn project_and_flags(fd: impl AsFd, attr: &Attr) -> usize {
    let inherit = attr.has_flag(pflags::PROJINHERIT);
    let mut lost = 0;
    if attr.projid != 0 || inherit {
        let set = u32::try_from(attr.projid).is_ok_and(|id| set_project(&fd, id, inherit).is_ok());
        lost += usize::from(!set);
    }
    lost + usize::from(add_flags(fd, file_flags(attr).0).is_err())
}

fn add_flags(fd: impl AsFd, flags: IFlags) -> io::Result<()> {
    if flags.is_empty() {
        return Ok(());
    }
    let now = ioctl_getflags(&fd)?;
    Ok(ioctl_setflags(&fd, now | flags)?)
}

fn set_xattrs(
    xattrs: &[(Vec<u8>, Vec<u8>)],
    rights: Rights,
    set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>,
) -> usize {
    let mine = |name: &[u8]| name.starts_with(b"user.") || name.starts_with(b"system.");
    let wanted = xattrs.iter().filter(|(name, _)| rights.root || mine(name));
    wanted.filter(|(name, value)| set(name, value).is_err()).count()
}

/// All ones mean "leave unchanged", so no owner can have that number.
fn owner(uid: u32) -> Option<Uid> {
    (uid != u32::MAX).then(|| Uid::from_raw(uid))
}

fn group(gid: u32) -> Option<Gid> {
    (gid != u32::MAX).then(|| Gid::from_raw(gid))
}

fn times(attr: &Attr) -> Timestamps {
    let spec = |t: Time| Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) };
    Timestamps { last_access: spec(attr.atime), last_modification: spec(attr.mtime) }
}

/// Compares times; file systems with coarse times keep whole seconds.
fn same_time(stat: &Stat, time: Time) -> bool {
    let nsec = u32::try_from(stat.st_mtime_nsec).unwrap_or(u32::MAX);
    stat.st_mtime == time.sec && (nsec == time.nsec || nsec == 0)
}

/// Raises the limit of open files to its maximum: a copy holds one per level.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A refusal only means that very deep trees cannot be copied, which is reported where it happens.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(flags: u64, projid: u64) -> Option<Attr> {
        let golden = testkit::golden::get("basic")?;
        let pool = golden.open().unwrap();
        let fs = zpl::Filesystem::open(&pool.dsl.dataset("tank").unwrap()).unwrap();
        let attr = fs.root().unwrap().attr().clone();
        Some(Attr { flags, projid, ..attr })
    }

    #[test]
    fn sealed_files_are_sealed_last() {
        let Some(sealed) = attr(pflags::IMMUTABLE | pflags::NODUMP | pflags::ARCHIVE, 0) else { return };
        assert!(has_seals(&sealed));
        let folder = tempfile::tempdir().unwrap();
        let (dir, path) = (Dir::open(folder.path()).unwrap(), folder.path().join("sub/file"));
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::write(&path, b"x").unwrap();
        let file = File::open(&path).unwrap();
        let kept = project_and_flags(&file, &sealed) == 0;
        assert!(std::fs::write(&path, b"y").is_ok(), "not sealed yet");
        // A link cannot lead out of the destination.
        std::os::unix::fs::symlink("sub", folder.path().join("link")).unwrap();
        assert!(dir.seal(b"link/file", &sealed).is_err());
        match dir.seal(b"sub/file", &sealed) {
            Ok(()) => {
                assert!(std::fs::write(&path, b"z").is_err());
                let now = ioctl_getflags(&file).unwrap();
                assert!(now.contains(IFlags::IMMUTABLE) && now.contains(IFlags::NODUMP) == kept);
                ioctl_setflags(&file, now - IFlags::IMMUTABLE).unwrap();
            }
            // Only root may do this, and not on every file system.
            Err(e) => eprintln!("SKIPPED: files can't be sealed here: {e}"),
        }
    }

    #[test]
    fn attributes_without_a_place_are_counted() {
        let Some(plain) = attr(pflags::ARCHIVE, 0) else { return };
        let null = File::open("/dev/null").unwrap();
        assert_eq!(project_and_flags(&null, &plain), 0, "nothing to keep");
        let wanted = Attr { projid: 7, flags: pflags::NODUMP | pflags::PROJID, ..plain };
        assert_eq!(project_and_flags(&null, &wanted), 2);
        assert_eq!(project_and_flags(&null, &Attr { projid: u64::MAX, flags: 0, ..wanted }), 1);
    }
}
