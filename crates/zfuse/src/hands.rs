//! Work on mount points, done by a process of its own.
//!
//! A mount point may lie inside a file system that this process serves. A thread that looks it up then waits for an
//! answer of other threads of the same process, and can't be killed meanwhile: when the process is killed at that
//! moment the thread stays, its descriptors with it, and all of its mounts hang for good. So who serves file systems
//! lets a child look ([`work_apart`]): the child has none of the connections, and its wait ends when they are gone.

use std::ffi::{CString, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

/// The word by which this program is called as a child; what follows goes to [`act`].
pub const VERB: &str = "mount-point";
/// How it is called then: itself, whatever has become of its file.
pub const PROGRAM: &str = "/proc/self/exe";
/// What `df -T` and `findmnt` show.
const TYPE: &str = "fuse.zfs";
/// Exit code of a child that failed for a reason without a number.
const NO_NUMBER: u8 = 255;

/// The word of a child that reads a file.
const READ: &str = "read";
/// Bytes of a file that are read at most: they fit into a pipe whose other end waits.
const MOST: u64 = 32 << 10;
/// How long a file is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

static APART: AtomicBool = AtomicBool::new(false);

/// From now on children of this program, called with [`VERB`], touch mount points.
pub fn work_apart() {
    APART.store(true, Ordering::Relaxed);
}

/// What is to become of a mount point before it is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ready {
    /// It is taken as it is.
    #[default]
    AsIs,
    /// What a dead process left there goes, a missing directory is made, and it must be empty.
    Empty,
    /// As [`Ready::Empty`], but it may have files.
    Overlay,
}

/// Something to be done at a mount point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    /// Mount what is behind a connection of FUSE.
    Mount { ready: Ready, source: String, flags: MountFlags, options: String },
    /// Show what is mounted at another place here, too.
    Again { from: PathBuf, flags: MountFlags },
    /// Give a mount other flags.
    Change(MountFlags),
    /// Take the mount away.
    Unmount(UnmountFlags),
    /// Say whether it is a folder.
    IsFolder,
    /// Say whether it is an empty folder.
    IsEmpty,
}

/// Whether there is a folder at a place, which may lie in a mount of this process. Errors: what looking there gives.
pub fn is_folder(at: &Path) -> io::Result<()> {
    run(at, &Work::IsFolder, None).map(drop)
}

/// Whether there is an empty folder at a place, which may lie in a mount of this process.
///
/// # Errors
/// `DirectoryNotEmpty`, or what looking there gives.
pub fn is_empty_folder(at: &Path) -> io::Result<()> {
    run(at, &Work::IsEmpty, None).map(drop)
}

/// The begin of a file, which may lie in a mount of this process, or be nothing that ever gives a byte.
///
/// # Errors
/// What reading it gives; `TimedOut` when it takes too long.
pub fn read_file(at: &Path, most: u64) -> io::Result<Vec<u8>> {
    if !APART.load(Ordering::Relaxed) {
        return begin_of(at, most);
    }
    let mut child = Command::new(PROGRAM);
    child.arg(VERB).arg(at).arg(READ).arg(most.to_string());
    let mut child = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let until = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
            // It may be long until it can end; somebody has to see it.
            thread::spawn(move || child.wait());
            return Err(Errno::TIMEDOUT.into());
        }
        thread::sleep(POLL);
    }
    let out = child.wait_with_output()?;
    match out.status.code() {
        Some(0) => Ok(out.stdout),
        Some(code) if code != i32::from(NO_NUMBER) => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::other(format!("reading ended with {}", out.status))),
    }
}

fn begin_of(at: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(at)?.take(most.min(MOST)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// The mount point without links.
    pub at: PathBuf,
    /// False when the system lets only root do it.
    pub allowed: bool,
}

/// Does it, here or in a child.
pub(crate) fn run(at: &Path, work: &Work, device: Option<&OwnedFd>) -> io::Result<Done> {
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
        Some(0) => Ok(Done { at, allowed: true }),
        Some(code) if code == Errno::PERM.raw_os_error() && prepared => Ok(Done { at, allowed: false }),
        Some(code) if code != i32::from(NO_NUMBER) => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::other(format!("the work at the mount point ended with {}", out.status))),
    }
}

/// What a child does with the words behind [`VERB`]: the number of the error that it exits with, 0 when there is none.
pub fn act(words: &[OsString]) -> u8 {
    let Some((at, words)) = words.split_first() else { return NO_NUMBER };
    let code = |e: io::Error| e.raw_os_error().and_then(|code| u8::try_from(code).ok()).unwrap_or(NO_NUMBER);
    if let [word, most] = words
        && word == READ
        && let Some(most) = most.to_str().and_then(|most| most.parse().ok())
    {
        let done = begin_of(Path::new(at), most).and_then(|bytes| io::stdout().write_all(&bytes));
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
            Self::Mount { ready, source, flags, options } => {
                let ready = match ready {
                    Ready::AsIs => "as-is",
                    Ready::Empty => "empty",
                    Ready::Overlay => "overlay",
                };
                vec!["mount".into(), ready.into(), source.clone(), flags.bits().to_string(), options.clone()]
            }
            Self::Again { from, flags } => {
                return vec!["again".into(), from.clone().into_os_string(), flags.bits().to_string().into()];
            }
            Self::Change(flags) => vec!["change".into(), flags.bits().to_string()],
            Self::Unmount(flags) => vec!["unmount".into(), flags.bits().to_string()],
            Self::IsFolder => vec!["is-folder".into()],
            Self::IsEmpty => vec!["is-empty".into()],
        };
        words.into_iter().map(OsString::from).collect()
    }

    fn parse(words: &[OsString]) -> Option<Self> {
        if let [word, from, flags] = words
            && word == "again"
        {
            let flags = MountFlags::from_bits(flags.to_str()?.parse().ok()?)?;
            return Some(Self::Again { from: from.into(), flags });
        }
        let words: Vec<&str> = words.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
        match words.as_slice() {
            ["mount", ready, source, flags, options] => Some(Self::Mount {
                ready: match *ready {
                    "as-is" => Ready::AsIs,
                    "empty" => Ready::Empty,
                    _ => Ready::Overlay,
                },
                source: (*source).to_owned(),
                flags: MountFlags::from_bits(flags.parse().ok()?)?,
                options: (*options).to_owned(),
            }),
            ["change", flags] => MountFlags::from_bits(flags.parse().ok()?).map(Self::Change),
            ["unmount", flags] => UnmountFlags::from_bits(flags.parse().ok()?).map(Self::Unmount),
            ["is-folder"] => Some(Self::IsFolder),
            ["is-empty"] => Some(Self::IsEmpty),
            _ => None,
        }
    }

    fn here(&self, at: &Path, device: i32) -> io::Result<Done> {
        let allowed = |at: &Path, done: rustix::io::Result<()>| match done {
            Ok(()) => Ok(Done { at: at.to_owned(), allowed: true }),
            Err(Errno::PERM) => Ok(Done { at: at.to_owned(), allowed: false }),
            Err(e) => Err(e.into()),
        };
        match self {
            Self::Mount { ready, source, flags, options } => {
                prepare(at, *ready)?;
                let at = at.canonicalize()?;
                let data = CString::new(format!("fd={device},{options}"))?;
                let done = rustix::mount::mount(source.as_str(), &at, TYPE, *flags, Some(data.as_c_str()));
                allowed(&at, done)
            }
            Self::Again { from, flags } => {
                let at = at.canonicalize()?;
                if let Err(e) = rustix::mount::mount_bind(from, &at) {
                    return allowed(&at, Err(e));
                }
                let none = CString::default();
                let flags = *flags | MountFlags::BIND;
                let done = rustix::mount::mount_remount(&at, flags, none.as_c_str());
                if done.is_err() {
                    rustix::mount::unmount(&at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
                }
                allowed(&at, done)
            }
            Self::Change(flags) => {
                let none = CString::default();
                rustix::mount::mount_remount(at, *flags, none.as_c_str())?;
                allowed(at, Ok(()))
            }
            Self::IsFolder if std::fs::metadata(at)?.is_dir() => allowed(at, Ok(())),
            Self::IsFolder => Err(Errno::NOTDIR.into()),
            Self::IsEmpty if std::fs::read_dir(at)?.next().is_none() => allowed(at, Ok(())),
            Self::IsEmpty => Err(Errno::NOTEMPTY.into()),
            Self::Unmount(flags) => allowed(at, rustix::mount::unmount(at, *flags | UnmountFlags::NOFOLLOW)),
        }
    }
}

/// Makes a place ready to be mounted on.
fn prepare(at: &Path, ready: Ready) -> io::Result<()> {
    if ready == Ready::AsIs {
        return Ok(());
    }
    // What is there of a file may be in the kernel's memory still; how full it is, only the one who serves can say.
    if matches!(rustix::fs::statvfs(at), Err(Errno::NOTCONN)) {
        super::kernel::detach(at, true)?;
    }
    std::fs::create_dir_all(at)?;
    let empty = std::fs::read_dir(at)?.next().is_none();
    if empty || ready == Ready::Overlay { Ok(()) } else { Err(Errno::NOTEMPTY.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_understand_what_they_are_told() {
        let mount = Work::Mount {
            ready: Ready::Overlay,
            source: "tank/a b".into(),
            flags: MountFlags::RDONLY | MountFlags::NOSUID,
            options: "rootmode=40000,user_id=0".into(),
        };
        for work in [
            mount,
            Work::Again { from: "/a b/c".into(), flags: MountFlags::RDONLY },
            Work::Change(MountFlags::NODEV),
            Work::Unmount(UnmountFlags::DETACH),
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
        prepare(&at, Ready::Empty).unwrap();
        std::fs::write(at.join("file"), b"").unwrap();
        assert_eq!(prepare(&at, Ready::Empty).unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
        prepare(&at, Ready::Overlay).unwrap();
        prepare(&at, Ready::AsIs).unwrap();
        is_folder(&at).unwrap();
        assert_eq!(is_folder(&at.join("file")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(is_folder(&at.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(is_empty_folder(&at).unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
        std::fs::remove_file(at.join("file")).unwrap();
        is_empty_folder(&at).unwrap();
    }
}
