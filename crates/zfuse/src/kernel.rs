//! Attaches file systems to the kernel's tree, changes their flags and detaches them.
//!
//! Root mounts directly, so that the type reads `fuse.zfs` and the source is the dataset; an ordinary user mounts
//! through the helper of the system's FUSE package, with the same result.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::{MountFlags, UnmountFlags};

use fuse_transport::{Device, Line};

use crate::helper;
use crate::mount_helper::{self, Spot, Work};
use crate::wire::{Filesystem, Served, greet};

/// The subtype that `df -T` and `findmnt` show after `fuse.`.
const SUBTYPE: &str = "zfs";

/// Descriptors reserved for everything except mounts: commands, and the children that unmount.
const RESERVE: u64 = 128;

/// The location and parameters of a mount.
#[derive(Debug)]
pub struct Place<'a> {
    /// The mount point.
    pub spot: Spot<'a>,
    /// The dataset.
    pub source: &'a str,
    /// Flags of the mount.
    pub flags: MountFlags,
    /// Other users have access.
    pub everybody: bool,
    /// The kernel checks permissions.
    pub checked: bool,
}

/// Mounts a file system and serves its requests from then on. Also returns the mount point with links resolved.
pub fn spawn(files: Box<dyn Filesystem>, place: &Place<'_>) -> io::Result<(Arc<Line>, PathBuf)> {
    let (at, device) = attach(place)?;
    let device = device.map_or_else(|| helper::mount(&at, &helper_options(place)), Ok)?;
    let line = serve(device, files).inspect_err(|_| {
        // The error to return is that of the failed start.
        let _ = detach(&at, true, None);
    })?;
    Ok((line, at))
}

fn serve(device: OwnedFd, mut files: Box<dyn Filesystem>) -> io::Result<Arc<Line>> {
    let device = Device::new(device);
    let reserved = greet(&device, files.as_mut())?;
    fuse_transport::enter(device, Arc::new(Served(Arc::from(files))), reserved)
}

/// Fails if the open descriptors would leave too few for other purposes after a mount.
fn check_reserve(device: &OwnedFd) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    // The system assigns the lowest free number.
    let open = u64::try_from(device.as_raw_fd()).unwrap_or(0);
    if open.saturating_add(RESERVE.min(limit / 4)) < limit {
        return Ok(());
    }
    let what = format!(
        "too many file systems are mounted for the limit of {limit} open files: raise it (LimitNOFILE= of the service, \
         ulimit -Hn) and start the daemon again"
    );
    Err(io::Error::other(what))
}

/// Raises the limit of open files to the maximum that the system allows.
pub fn raise_limits() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // On failure the limit stays.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Returns the mount point, and the connection of a direct mount; `None` if only the helper may mount.
fn attach(place: &Place<'_>) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    let device: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/fuse")?.into();
    check_reserve(&device)?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut options = format!("rootmode=40000,user_id={uid},group_id={gid}");
    let wanted = [(place.checked, ",default_permissions"), (place.everybody, ",allow_other")];
    wanted.iter().filter(|(on, _)| *on).for_each(|(_, option)| options.push_str(option));
    let Spot { at, ready, inherited: strict } = place.spot;
    let work = Work::Mount { ready, strict, source: place.source.to_owned(), flags: place.flags, options };
    let done = mount_helper::run(at, &work, Some(&device))?;
    Ok((done.at, done.allowed.then_some(device)))
}

fn helper_options(place: &Place<'_>) -> String {
    let flag = |flag, yes, no| if place.flags.contains(flag) { yes } else { no };
    let words = [
        flag(MountFlags::RDONLY, "ro", "rw"),
        flag(MountFlags::NOSUID, "nosuid", "suid"),
        flag(MountFlags::NODEV, "nodev", "dev"),
        flag(MountFlags::NOEXEC, "noexec", "exec"),
    ];
    let checked = if place.checked { ",default_permissions" } else { "" };
    format!("fsname={},subtype={SUBTYPE},{}{checked}", place.source, words.join(","))
}

/// Changes the flags of the mount of that connection. With files open for writing it cannot become read-only (`EBUSY`); an
/// ordinary user cannot change anything (`EPERM`); `EINVAL` if another file system is there.
pub fn change_flags(at: &Path, connection: u32, flags: MountFlags) -> io::Result<()> {
    mount_helper::run(at, &Work::Change { flags, connection }, None).map(drop)
}

/// Shows the mount of that connection at `from` at another path, too; returns that path with links resolved. `EINVAL` if
/// another file system is there.
pub fn again(from: &Path, connection: u32, at: &Path, flags: MountFlags) -> io::Result<PathBuf> {
    let done = mount_helper::run(at, &Work::Again { from: from.to_owned(), flags, connection }, None)?;
    if done.allowed { Ok(done.at) } else { Err(rustix::io::Errno::PERM.into()) }
}

/// Whether `at` is a mount point according to `/proc/self/mountinfo`.
pub fn is_listed(mounts: &[u8], at: &Path) -> bool {
    listed(mounts, at).next().is_some()
}

/// A mount in the system's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Its number, which it keeps when a directory above it is renamed. The kernel reuses numbers.
    pub id: u64,
    /// The number of its connection.
    pub connection: u32,
}

impl Seen {
    fn of(line: &[u8]) -> Option<Self> {
        let id = std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?.parse().ok()?;
        Some(Self { id, connection: number(line)? })
    }

    /// Where it is now; `None` once it was unmounted.
    pub fn place(self, mounts: &[u8]) -> Option<PathBuf> {
        let mut lines = mounts.split(|byte| *byte == b'\n');
        let line = lines.find(|line| Self::of(line) == Some(self))?;
        line.split(|byte| *byte == b' ').nth(4).map(unescape)
    }
}

/// The topmost mount of a connection at `at`; `None` if there is none.
pub fn topmost(mounts: &[u8], at: &Path, connection: u32) -> Option<Seen> {
    listed(mounts, at).filter_map(Seen::of).filter(|seen| seen.connection == connection).last()
}

/// The topmost mount of `source` at `at` that this user has made; `None` if there is none.
pub fn find(mounts: &[u8], at: &Path, source: &str) -> Option<Seen> {
    // Others may have mounted over it, this process another dataset at the same time.
    let ours = format!("user_id={}", rustix::process::getuid().as_raw());
    let source: Vec<u8> = source.bytes().flat_map(escape).collect();
    let is_ours = |line: &&[u8]| {
        let mut words = line.rsplit(|byte| *byte == b' ');
        let options = String::from_utf8_lossy(words.next().unwrap_or_default()).into_owned();
        words.next() == Some(&source) && options.split(',').any(|option| option == ours)
    };
    listed(mounts, at).filter(is_ours).filter_map(Seen::of).last()
}

/// The places where a connection's whole file system is mounted, in the order of mounting.
pub fn places(mounts: &[u8], connection: u32) -> Vec<PathBuf> {
    let is_whole = |line: &&[u8]| line.split(|byte| *byte == b' ').nth(3) == Some(b"/");
    let lines = mounts.split(|byte| *byte == b'\n').filter(is_whole);
    let lines = lines.filter(|line| number(line) == Some(connection));
    lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescape).collect()
}

/// Whether the mount of that connection at `at` is below another one.
pub fn is_hidden(mounts: &[u8], at: &Path, connection: u32) -> bool {
    let numbers: Vec<_> = listed(mounts, at).map(number).collect();
    numbers.contains(&Some(connection)) && numbers.last() != Some(&Some(connection))
}

/// The connection number in the line of a FUSE mount: the minor number of its device.
pub fn number(line: &[u8]) -> Option<u32> {
    let line = String::from_utf8_lossy(line);
    let (before, after) = line.split_once(" - ")?;
    let device = before.split(' ').nth(2)?.strip_prefix("0:")?;
    after.starts_with("fuse").then(|| device.parse().ok())?
}

/// A path without the kernel's escapes.
pub fn unescape(path: &[u8]) -> PathBuf {
    let (mut out, mut left) = (Vec::with_capacity(path.len()), path);
    while let Some((&first, rest)) = left.split_first() {
        let octal = rest.get(..3).filter(|_| first == b'\\');
        let byte = octal.and_then(|three| u8::from_str_radix(std::str::from_utf8(three).ok()?, 8).ok());
        out.push(byte.unwrap_or(first));
        left = if byte.is_some() { rest.get(3..).unwrap_or_default() } else { rest };
    }
    PathBuf::from(<OsString as OsStringExt>::from_vec(out))
}

/// Lines of the mounts at a path, the topmost one last.
fn listed<'a>(mounts: &'a [u8], at: &Path) -> impl Iterator<Item = &'a [u8]> {
    let escaped: Vec<u8> = at.as_os_str().as_bytes().iter().flat_map(|byte| escape(*byte)).collect();
    let lines = mounts.split(|byte| *byte == b'\n');
    lines.filter(move |line| line.split(|byte| *byte == b' ').nth(4).is_some_and(|place| place == escaped))
}

/// The kernel's escape of a path byte in that file.
fn escape(byte: u8) -> Vec<u8> {
    match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![byte],
    }
}

/// Detaches the mount at `at`, even one of another process; with the number of a connection, only a mount of that one
/// (otherwise `EINVAL`). An ordinary user needs the helper of the system's FUSE package.
pub fn detach(at: &Path, force: bool, connection: Option<u32>) -> io::Result<()> {
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    if mount_helper::run(at, &Work::Unmount { flags, connection }, None)?.allowed {
        return Ok(());
    }
    helper::unmount(at, force)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_mounts_are_read_as_the_kernel_writes_them() {
        let listed =
            b"36 35 98:0 / /mnt/a\\040b rw - ext4 /dev/x rw\n37 35 0:5 / /mnt/c rw - fuse.zfs tank rw\n";
        assert!(is_listed(listed, Path::new("/mnt/a b")) && is_listed(listed, Path::new("/mnt/c")));
        assert!(!is_listed(listed, Path::new("/mnt/a")) && !is_listed(b"", Path::new("/")));
        let connection = |listed: &[u8], at: &str, source: &str| {
            find(listed, Path::new(at), source).map(|seen| seen.connection)
        };
        assert_eq!(connection(listed, "/mnt/c", "tank"), None);
        let uid = rustix::process::getuid().as_raw();
        let line = |id: u32, device: u32, place: &str, uid: u32| {
            format!("{id} 1 0:{device} / {place} rw - fuse.zfs tank rw,user_id={uid},group_id=0\n")
        };
        // Two datasets are mounted at one place at the same time.
        let both = line(37, 5, "/mnt/c", uid) + &line(38, 9, "/mnt/c", uid).replace("tank", "tank/a\\040b");
        let numbers =
            ["tank", "tank/a b", "tank/a"].map(|source| connection(both.as_bytes(), "/mnt/c", source));
        assert_eq!(numbers, [Some(5), Some(9), None]);
        // Another user has mounted over it, and a part of the tree was renamed.
        let over =
            line(37, 5, "/mnt/c", uid) + &line(38, 9, "/mnt/c", uid + 1) + &line(39, 5, "/mnt/a\\040b", uid);
        let over = over.as_bytes();
        assert_eq!(connection(over, "/mnt/c", "tank"), Some(5));
        let renamed = Seen { id: 39, connection: 5 };
        assert_eq!(topmost(over, Path::new("/mnt/a b"), 5), Some(renamed));
        assert_eq!(renamed.place(over), Some(PathBuf::from("/mnt/a b")));
        assert_eq!(Seen { id: 38, ..renamed }.place(over), None);
        assert!(is_hidden(over, Path::new("/mnt/c"), 5) && !is_hidden(over, Path::new("/mnt/c"), 9));
        assert!(!is_hidden(over, Path::new("/mnt/a b"), 5));
        assert_eq!(places(over, 5), [Path::new("/mnt/c"), Path::new("/mnt/a b")]);
        assert_eq!(connection(b"36 35 98:0 / /mnt/c rw - ext4 /dev/x rw\n", "/mnt/c", "/dev/x"), None);
    }
}
