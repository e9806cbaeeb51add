//! Walks the path to a mount point so that no other user can redirect it.
//!
//! Root mounts for users who own directories on the path and may put symbolic links there. So a path is walked
//! component by component, each opened below the previous one, and the operation is done on the descriptor of the
//! last. A link is followed only if root or this process's user created it, in a directory in which no other user
//! could have exchanged it, and never in the components that a mount point has from datasets below the one with the
//! property.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;

/// Maximum number of followed links, as in the kernel.
const LINKS: usize = 40;
/// Permissions of created directories.
const MADE: Mode = Mode::from_raw_mode(0o755);

/// The mode of walking a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Way {
    /// Number of last components in which no link is followed.
    pub strict: usize,
    /// Missing directories are created.
    pub make: bool,
}

/// A directory, by its descriptor.
#[derive(Debug)]
pub(crate) struct Folder(OwnedFd);

impl Folder {
    /// A path that leads to this very directory, even if its name changes.
    pub(crate) fn handle(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// Its path with links resolved.
    pub(crate) fn path(&self) -> io::Result<PathBuf> {
        fs::read_link(self.handle())
    }

    /// Removes an empty directory in it.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Whether it is in the FUSE file system of that connection. Asks the kernel alone.
    pub(crate) fn is_of(&self, connection: u32) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let found = rustix::fs::statx(&self.0, "", flags, StatxFlags::empty());
        found.is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == (0, connection))
    }

    /// Whether the file system mounted on it no longer answers.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(rustix::fs::fstatvfs(&self.0), Err(Errno::NOTCONN))
    }
}

/// Remaining components, and whether a link among them is followed.
type Steps = VecDeque<(OsString, bool)>;

fn steps(path: &Path, follow: bool) -> impl DoubleEndedIterator<Item = (OsString, bool)> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.map(move |name| (name, follow)).collect::<Vec<_>>().into_iter()
}

impl Way {
    /// Walks to a directory.
    ///
    /// # Errors
    /// `ELOOP` at a link that is not followed; the error of opening or creating a directory.
    pub(crate) fn walk(self, path: &Path) -> io::Result<Folder> {
        let mut left: Steps = steps(path, true).collect();
        left.iter_mut().rev().take(self.strict).for_each(|(_, follow)| *follow = false);
        let mut at = start(path)?;
        let mut links = 0;
        while let Some((name, follow)) = left.pop_front() {
            if !follow && name == ".." {
                return Err(Errno::LOOP.into());
            }
            at = match self.step(&at, &name)? {
                Step::Folder(next) => next,
                Step::Link(link) => {
                    links += 1;
                    if !follow || links > LINKS || !is_safe(&at, &link)? {
                        return Err(Errno::LOOP.into());
                    }
                    let to = rustix::fs::readlinkat(&link, "", Vec::new())?;
                    let to = PathBuf::from(<OsString as std::os::unix::ffi::OsStringExt>::from_vec(
                        to.into_bytes(),
                    ));
                    steps(&to, true).rev().for_each(|step| left.push_front(step));
                    if to.is_absolute() { start(&to)? } else { at }
                }
            };
        }
        Ok(Folder(at))
    }

    /// The directory that contains a path, and its name there.
    pub(crate) fn parent(self, path: &Path) -> io::Result<(Folder, OsString)> {
        let (above, name) = path.parent().zip(path.file_name()).ok_or(io::Error::from(Errno::BUSY))?;
        let way = Self { strict: self.strict.saturating_sub(1), ..self };
        Ok((way.walk(above)?, name.to_owned()))
    }

    fn step(self, at: &OwnedFd, name: &OsStr) -> io::Result<Step> {
        let once = || {
            let resolve = if name == ".." { ResolveFlags::empty() } else { ResolveFlags::BENEATH };
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let resolve = resolve | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(at, name, flags | OFlags::DIRECTORY, Mode::empty(), resolve)
        };
        let opened = match once() {
            Err(Errno::NOENT) if self.make => {
                match rustix::fs::mkdirat(at, name, MADE) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                once()
            }
            opened => opened,
        };
        match opened {
            Ok(next) => Ok(Step::Folder(next)),
            // A link, or not a directory.
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let link = rustix::fs::openat(at, name, flags, Mode::empty())?;
                let stat = rustix::fs::fstat(&link)?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Symlink => Ok(Step::Link(link)),
                    _ => Err(Errno::NOTDIR.into()),
                }
            }
            Err(e) => Err(e.into()),
        }
    }
}

enum Step {
    Folder(OwnedFd),
    Link(OwnedFd),
}

fn start(path: &Path) -> io::Result<OwnedFd> {
    let from = if path.is_absolute() { "/" } else { "." };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(from, flags, Mode::empty())?)
}

/// Whether only root and this process's user can have put a link into a directory.
fn is_safe(folder: &OwnedFd, link: &OwnedFd) -> io::Result<bool> {
    let me = rustix::process::geteuid().as_raw();
    let ours = |stat: &Stat| stat.st_uid == 0 || stat.st_uid == me;
    let (folder, link) = (rustix::fs::fstat(folder.as_fd())?, rustix::fs::fstat(link.as_fd())?);
    let (written_by_others, sticky) = (folder.st_mode & 0o022 != 0, folder.st_mode & 0o1000 != 0);
    Ok(ours(&folder) && ours(&link) && (!written_by_others || sticky))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const FREE: Way = Way { strict: 0, make: false };

    #[test]
    fn folders_are_made_and_names_lead_where_they_led() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a/b");
        assert_eq!(FREE.walk(&at).unwrap_err().kind(), io::ErrorKind::NotFound);
        let made = Way { strict: 1, make: true }.walk(&at).unwrap();
        assert_eq!(made.path().unwrap(), at.canonicalize().unwrap());
        fs::write(at.join("file"), "").unwrap();
        assert_eq!(FREE.walk(&at.join("file")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        fs::rename(&at, dir.path().join("moved")).unwrap();
        assert!(made.handle().join("file").exists());
        let up = FREE.walk(&dir.path().join("a/../moved")).unwrap();
        assert_eq!(up.path().unwrap(), made.path().unwrap());
        fs::remove_file(dir.path().join("moved/file")).unwrap();
        let (above, name) = FREE.parent(&dir.path().join("moved")).unwrap();
        above.remove(&name).unwrap();
        assert!(!dir.path().join("moved").exists());
    }

    #[test]
    fn links_are_followed_where_only_their_owner_could_make_them() {
        let dir = tempfile::tempdir().unwrap();
        let (real, open) = (dir.path().join("real/deep"), dir.path().join("open"));
        [&real, &open].iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        symlink(&real, dir.path().join("absolute")).unwrap();
        symlink("../real", open.join("relative")).unwrap();
        symlink("round", dir.path().join("round")).unwrap();
        let wanted = real.canonicalize().unwrap();
        let refused = |way: Way, path: &Path| {
            assert_eq!(Errno::from_io_error(&way.walk(path).unwrap_err()), Some(Errno::LOOP), "{path:?}");
        };
        let (absolute, relative) = (dir.path().join("absolute"), open.join("relative/deep"));
        for path in [&absolute, &relative] {
            assert_eq!(FREE.walk(path).unwrap().path().unwrap(), wanted);
        }
        refused(FREE, &dir.path().join("round"));
        // Below the dataset with the mountpoint property no link is followed.
        refused(Way { strict: 1, make: true }, &absolute);
        refused(Way { strict: 2, make: true }, &relative);
        refused(Way { strict: 2, make: true }, &dir.path().join("a/../b"));
        // Where others can write, a link may be theirs, unless no one can exchange it.
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        refused(FREE, &relative);
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
        FREE.walk(&relative).unwrap();
    }

    #[test]
    fn links_of_other_users_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (theirs, link) = (dir.path().join("theirs"), dir.path().join("link"));
        fs::create_dir(&theirs).unwrap();
        symlink("/etc", theirs.join("link")).unwrap();
        symlink("/etc", &link).unwrap();
        let give = |path: &Path| std::os::unix::fs::lchown(path, Some(65_534), None);
        if give(&theirs).and_then(|()| give(&link)).is_err() {
            eprintln!("SKIPPED: only root can give files away");
            return;
        }
        for path in [theirs.join("link"), link] {
            let why = FREE.walk(&path).unwrap_err();
            assert_eq!(Errno::from_io_error(&why), Some(Errno::LOOP), "{path:?}");
        }
    }
}
