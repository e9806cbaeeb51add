//! Operations on mount points, in a separate process.
//!
//! A mount point may lie inside a file system that this process serves. A thread that looks it up then waits for an
//! answer of other threads of the same process, and cannot be killed meanwhile: if the process is killed at that
//! moment, the thread remains with its descriptors, and all of the process's mounts hang for ever. Therefore a
//! process that serves file systems uses a child for the lookup ([`work_apart`]): the child has none of the
//! connections, and its wait ends when they are gone.

use std::ffi::{CString, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use stdx::Secret;

use crate::way::{Folder, Way};

/// The verb by which this program calls itself as a child; the following words go to [`act`].
pub const VERB: &str = "mount-point";
/// The path of the program for that call: itself, even if its file has been replaced.
pub const PROGRAM: &str = "/proc/self/exe";
/// The type that `df -T` and `findmnt` show.
const TYPE: &str = "fuse.zfs";
/// Exit code of a child that failed without an errno.
const NO_NUMBER: u8 = 255;

/// The verb of a child that reads a file.
const READ: &str = "read";
/// Maximum bytes read of a file: they fit into a pipe.
const MOST: u64 = 32 << 10;
/// Timeout of reading a file.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

static APART: AtomicBool = AtomicBool::new(false);

/// Makes children of this program, called with [`VERB`], do all operations on mount points from now on.
pub fn work_apart() {
    APART.store(true, Ordering::Relaxed);
}

/// Preparation of a mount point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ready {
    /// None.
    #[default]
    AsIs,
    /// Removes a dead process's mount, creates a missing directory, and requires it to be empty.
    Empty,
    /// Like [`Ready::Empty`], but the directory may contain files.
    Overlay,
}

/// The location of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot<'a> {
    /// The mount point.
    pub at: &'a Path,
    /// Its preparation.
    pub ready: Ready,
    /// The number of trailing components that are dataset names below the dataset from which the mount point is
    /// inherited: users may own the directories there, so no symbolic link is followed.
    pub inherited: usize,
}

impl<'a> From<(&'a Path, Ready)> for Spot<'a> {
    fn from((at, ready): (&'a Path, Ready)) -> Self {
        Self { at, ready, inherited: 0 }
    }
}

/// An operation at a mount point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    /// Mount a FUSE connection.
    Mount { ready: Ready, strict: usize, source: String, flags: MountFlags, options: String },
    /// Show the mount of another path here, too.
    /// Fails with `EINVAL` if `from` is not a mount of that connection.
    Again { from: PathBuf, flags: MountFlags, connection: u32 },
    /// Change the flags of the mount of that connection; fails with `EINVAL` for another one.
    Change { flags: MountFlags, connection: u32 },
    /// Detach the mount. With the number of a connection, a mount of another file system stays (`EINVAL`).
    Unmount { flags: UnmountFlags, connection: Option<u32> },
    /// Remove the directory, if it is empty.
    Remove { strict: usize },
    /// Test whether it is a directory.
    IsFolder,
    /// Test whether it is an empty directory.
    IsEmpty,
}

/// Tests whether there is a directory at a path, which may lie in a mount of this process.
///
/// # Errors
/// The error of the lookup.
pub fn is_folder(at: &Path) -> io::Result<()> {
    run(at, &Work::IsFolder, None).map(drop)
}

/// Tests whether there is an empty directory at a path, which may lie in a mount of this process.
///
/// # Errors
/// `DirectoryNotEmpty`, or the error of the lookup.
pub fn is_empty_folder(at: &Path) -> io::Result<()> {
    run(at, &Work::IsEmpty, None).map(drop)
}

/// Removes a directory if it is empty; it may lie in a mount of this process. `inherited`: see [`crate::Spot`].
///
/// # Errors
/// The error of the removal, e.g. `DirectoryNotEmpty`.
pub fn remove_folder(at: &Path, inherited: usize) -> io::Result<()> {
    run(at, &Work::Remove { strict: inherited }, None).map(drop)
}

/// Returns the beginning of a file with a secret. The file may lie in a mount of this process, or never return a
/// byte.
///
/// # Errors
/// The error of the read; `TimedOut` if it takes too long.
pub fn read_secret(at: &Path, most: u64) -> io::Result<Secret> {
    if !APART.load(Ordering::Relaxed) {
        return begin_of(at, most);
    }
    let mut child = Command::new(PROGRAM);
    child.arg(VERB).arg(at).arg(READ).arg(most.to_string());
    let mut child = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > until {
            child.kill()?;
            // The child may run for long; a thread must reap it.
            thread::spawn(move || child.wait());
            return Err(Errno::TIMEDOUT.into());
        }
        thread::sleep(POLL);
    };
    match (status.code(), child.stdout.take()) {
        (Some(0), Some(mut out)) => Secret::read(&mut out, None, usize::try_from(MOST).unwrap_or(0)),
        (Some(code), _) if code != 0 && code != i32::from(NO_NUMBER) => {
            Err(io::Error::from_raw_os_error(code))
        }
        _ => Err(io::Error::other(format!("reading ended with {status}"))),
    }
}

fn begin_of(at: &Path, most: u64) -> io::Result<Secret> {
    Secret::read(&mut fs::File::open(at)?, None, usize::try_from(most.min(MOST)).unwrap_or(0))
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HelperResult {
    /// The mount point with links resolved.
    pub at: PathBuf,
    /// False if only root may do it.
    pub allowed: bool,
}

/// Runs the operation, here or in a child.
pub(crate) fn run(at: &Path, work: &Work, device: Option<&OwnedFd>) -> io::Result<HelperResult> {
    if !APART.load(Ordering::Relaxed) {
        return work.here(at, device.map_or(-1, AsRawFd::as_raw_fd));
    }
    let stdin = device.map_or(Ok(Stdio::null()), |device| device.try_clone().map(Stdio::from))?;
    let mut child = Command::new(PROGRAM);
    child.arg(VERB).arg(at).args(work.words()).stdin(stdin).stderr(Stdio::null());
    let out = child.output()?;
    let at = PathBuf::from(OsString::from_vec(out.stdout));
    let prepared = !at.as_os_str().is_empty();
    match out.status.code() {
        Some(0) => Ok(HelperResult { at, allowed: true }),
        Some(code) if code == Errno::PERM.raw_os_error() && prepared => {
            Ok(HelperResult { at, allowed: false })
        }
        Some(code) if code != i32::from(NO_NUMBER) => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::other(format!("the operation at the mount point ended with {}", out.status))),
    }
}

/// Runs the words after [`VERB`] in a child; returns the errno that it exits with, 0 without an error.
pub fn act(words: &[OsString]) -> u8 {
    let Some((at, words)) = words.split_first() else { return NO_NUMBER };
    let code = |e: io::Error| e.raw_os_error().and_then(|code| u8::try_from(code).ok()).unwrap_or(NO_NUMBER);
    if let [word, most] = words
        && word == READ
        && let Some(most) = most.to_str().and_then(|most| most.parse().ok())
    {
        let done = begin_of(Path::new(at), most).and_then(|bytes| {
            let out = io::stdout().as_fd().try_clone_to_owned()?;
            // Not through a buffer that would keep a copy.
            fs::File::from(out).write_all(&bytes)
        });
        return done.map_or_else(code, |()| 0);
    }
    let Some(work) = Work::parse(words) else { return NO_NUMBER };
    let done = work.here(Path::new(at), io::stdin().as_raw_fd()).and_then(|done| {
        io::stdout().write_all(done.at.as_os_str().as_bytes())?;
        Ok(done.allowed)
    });
    match done {
        Ok(true) => 0,
        Ok(false) => code(Errno::PERM.into()),
        Err(e) => code(e),
    }
}

impl Work {
    fn words(&self) -> Vec<OsString> {
        let words = match self {
            Self::Mount { ready, strict, source, flags, options } => {
                let ready = match ready {
                    Ready::AsIs => "as-is",
                    Ready::Empty => "empty",
                    Ready::Overlay => "overlay",
                };
                let (ready, strict, flags) = (ready.to_owned(), strict.to_string(), flags.bits().to_string());
                vec!["mount".into(), ready, strict, source.clone(), flags, options.clone()]
            }
            Self::Again { from, flags, connection } => {
                let numbers = [flags.bits(), *connection].map(|number| number.to_string().into());
                return ["again".into(), from.clone().into_os_string()].into_iter().chain(numbers).collect();
            }
            Self::Change { flags, connection } => {
                vec!["change".into(), flags.bits().to_string(), connection.to_string()]
            }
            Self::Unmount { flags, connection } => {
                let connection = connection.map(|number| number.to_string()).unwrap_or_default();
                vec!["unmount".into(), flags.bits().to_string(), connection]
            }
            Self::Remove { strict } => vec!["remove".into(), strict.to_string()],
            Self::IsFolder => vec!["is-folder".into()],
            Self::IsEmpty => vec!["is-empty".into()],
        };
        words.into_iter().map(OsString::from).collect()
    }

    fn parse(words: &[OsString]) -> Option<Self> {
        if let [word, from, flags, connection] = words
            && word == "again"
        {
            let flags = MountFlags::from_bits(flags.to_str()?.parse().ok()?)?;
            let connection = connection.to_str()?.parse().ok()?;
            return Some(Self::Again { from: from.into(), flags, connection });
        }
        let words: Vec<&str> = words.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
        match words.as_slice() {
            ["mount", ready, strict, source, flags, options] => Some(Self::Mount {
                strict: strict.parse().ok()?,
                ready: match *ready {
                    "as-is" => Ready::AsIs,
                    "empty" => Ready::Empty,
                    _ => Ready::Overlay,
                },
                source: (*source).to_owned(),
                flags: MountFlags::from_bits(flags.parse().ok()?)?,
                options: (*options).to_owned(),
            }),
            ["change", flags, connection] => Some(Self::Change {
                flags: MountFlags::from_bits(flags.parse().ok()?)?,
                connection: connection.parse().ok()?,
            }),
            ["unmount", flags, connection] => Some(Self::Unmount {
                flags: UnmountFlags::from_bits(flags.parse().ok()?)?,
                connection: if connection.is_empty() { None } else { Some(connection.parse().ok()?) },
            }),
            ["remove", strict] => Some(Self::Remove { strict: strict.parse().ok()? }),
            ["is-folder"] => Some(Self::IsFolder),
            ["is-empty"] => Some(Self::IsEmpty),
            _ => None,
        }
    }

    fn here(&self, at: &Path, device: i32) -> io::Result<HelperResult> {
        let allowed = |at: &Path, done: rustix::io::Result<()>| match done {
            Ok(()) => Ok(HelperResult { at: at.to_owned(), allowed: true }),
            Err(Errno::PERM) => Ok(HelperResult { at: at.to_owned(), allowed: false }),
            Err(e) => Err(e.into()),
        };
        match self {
            Self::Mount { ready, strict, source, flags, options } => {
                let folder = prepare(at, *ready, *strict)?;
                let data = CString::new(format!("fd={device},{options}"))?;
                let (to, data) = (folder.handle(), Some(data.as_c_str()));
                let done = rustix::mount::mount(source.as_str(), &to, TYPE, *flags, data);
                allowed(&folder.path()?, done)
            }
            Self::Again { from, flags, connection } => {
                let (from, folder) = (Way::default().walk(from)?, Way::default().walk(at)?);
                let at = folder.path()?;
                if !from.is_of(*connection) {
                    return Err(Errno::INVAL.into());
                }
                if let Err(e) = rustix::mount::mount_bind(from.handle(), folder.handle()) {
                    return allowed(&at, Err(e));
                }
                // The path now resolves to the new mount, not to the directory below it.
                let mounted = Way::default().walk(&at)?;
                if !mounted.is_of(*connection) {
                    return Err(Errno::INVAL.into());
                }
                let (none, flags) = (CString::default(), *flags | MountFlags::BIND);
                let done = rustix::mount::mount_remount(mounted.handle(), flags, none.as_c_str());
                if done.is_err() {
                    rustix::mount::unmount(mounted.handle(), UnmountFlags::DETACH)?;
                }
                allowed(&at, done)
            }
            Self::Change { flags, connection } => {
                let (folder, none) = (Way::default().walk(at)?, CString::default());
                // Users may mount over directories of theirs: their mount keeps its own flags.
                if !folder.is_of(*connection) {
                    return Err(Errno::INVAL.into());
                }
                rustix::mount::mount_remount(folder.handle(), *flags, none.as_c_str())?;
                allowed(at, Ok(()))
            }
            Self::Remove { strict } => {
                let (above, name) = Way { strict: *strict, make: false }.parent(at)?;
                above.remove(&name)?;
                allowed(at, Ok(()))
            }
            Self::IsFolder if std::fs::metadata(at)?.is_dir() => allowed(at, Ok(())),
            Self::IsFolder => Err(Errno::NOTDIR.into()),
            Self::IsEmpty if std::fs::read_dir(at)?.next().is_none() => allowed(at, Ok(())),
            Self::IsEmpty => Err(Errno::NOTEMPTY.into()),
            Self::Unmount { flags, connection } => {
                // A descriptor of the mount itself would keep it busy.
                let place = match Way::default().parent(at) {
                    Ok((above, name)) => (above.handle().join(name), Some(above)),
                    // The root of this process stays below a mount on it; only the way up leads to the topmost mount.
                    Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) => (at.join(".."), None),
                    Err(e) => return Err(e),
                };
                if connection.is_some_and(|number| is_other(&place.0, number)) {
                    return Err(Errno::INVAL.into());
                }
                allowed(at, rustix::mount::unmount(&place.0, *flags | UnmountFlags::NOFOLLOW))
            }
        }
    }
}

/// Whether the topmost mount at a path is not that of a connection. Asks the kernel alone: the server may be dead.
fn is_other(at: &Path, connection: u32) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(rustix::fs::CWD, at, flags, StatxFlags::empty());
    found.is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) != (0, connection))
}

/// Prepares a mount point.
fn prepare(at: &Path, ready: Ready, strict: usize) -> io::Result<Folder> {
    if ready == Ready::AsIs {
        return Way { strict, make: false }.walk(at);
    }
    let way = Way { strict, make: true };
    let mut folder = way.walk(at)?;
    // The kernel may answer a stat of a dead mount from its cache; statfs always needs the server.
    if folder.is_dead() {
        super::kernel::detach(&folder.path()?, true, None)?;
        folder = way.walk(at)?;
    }
    let empty = std::fs::read_dir(folder.handle())?.next().is_none();
    if empty || ready == Ready::Overlay { Ok(folder) } else { Err(Errno::NOTEMPTY.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_understand_what_they_are_told() {
        let mount = Work::Mount {
            ready: Ready::Overlay,
            strict: 2,
            source: "tank/a b".into(),
            flags: MountFlags::RDONLY | MountFlags::NOSUID,
            options: "rootmode=40000,user_id=0".into(),
        };
        for work in [
            mount,
            Work::Again { from: "/a b/c".into(), flags: MountFlags::RDONLY, connection: 47 },
            Work::Change { flags: MountFlags::NODEV, connection: 47 },
            Work::Unmount { flags: UnmountFlags::DETACH, connection: None },
            Work::Unmount { flags: UnmountFlags::empty(), connection: Some(47) },
            Work::Remove { strict: 1 },
            Work::IsFolder,
            Work::IsEmpty,
        ] {
            assert_eq!(Work::parse(&work.words()), Some(work));
        }
        assert_eq!(Work::parse(&["mount".into()]), None);
    }

    #[test]
    fn a_place_with_files_is_refused_unless_they_may_be_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a/b");
        prepare(&at, Ready::Empty, 1).unwrap();
        std::fs::write(at.join("file"), b"").unwrap();
        assert_eq!(prepare(&at, Ready::Empty, 1).unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
        prepare(&at, Ready::Overlay, 1).unwrap();
        prepare(&at, Ready::AsIs, 1).unwrap();
        is_folder(&at).unwrap();
        assert_eq!(is_folder(&at.join("file")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(is_folder(&at.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(is_empty_folder(&at).unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
        std::fs::remove_file(at.join("file")).unwrap();
        is_empty_folder(&at).unwrap();
    }
}
