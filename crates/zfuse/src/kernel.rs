//! How a file system comes into the kernel's tree, changes there and leaves it.
//!
//! Root mounts by itself, so that the type reads `fuse.zfs` and the source is the dataset; an ordinary user through
//! the helper of the system's FUSE package, which says the same.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::{MountFlags, UnmountFlags};

use crate::helper;
use crate::mount_helper::{self, Spot, Work};
use crate::serve::{self, Line};
use crate::wire::Filesystem;

/// What `df -T` and `findmnt` show behind `fuse.`.
const SUBTYPE: &str = "zfs";

/// Descriptors that are kept for everything but mounts: commands, and the children that unmount.
const RESERVE: u64 = 128;

/// Where and how a file system is to be mounted.
#[derive(Debug)]
pub struct Place<'a> {
    /// The mount point.
    pub spot: Spot<'a>,
    /// The dataset.
    pub source: &'a str,
    /// Flags of the mount.
    pub flags: MountFlags,
    /// Other users are let in.
    pub everybody: bool,
    /// The kernel checks permissions.
    pub checked: bool,
}

/// Mounts a file system and answers its requests from then on. Gives the mount point without links, too.
pub fn spawn(files: Box<dyn Filesystem>, place: &Place<'_>) -> io::Result<(Arc<Line>, PathBuf)> {
    let (at, device) = attach(place)?;
    let device = device.map_or_else(|| helper::mount(&at, &helper_options(place)), Ok)?;
    let line = serve::enter(device, files).inspect_err(|_| {
        // The reason is why it could not be answered for.
        let _ = detach(&at, true);
    })?;
    Ok((line, at))
}

/// Fails while so many descriptors are open that a mount would leave too few for the rest.
fn check_reserve(device: &OwnedFd) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    // The system gives the lowest number that is free.
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

/// Lets the process have as many files open as the system allows it.
pub fn raise_limits() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // As it was, then.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Where it is mounted, and the connection of a mount made directly; `None` when only the helper may.
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

/// Gives a mount other flags. What has files open for writing can't become read-only (`EBUSY`); an ordinary user can't
/// change anything (`EPERM`).
pub fn change_flags(at: &Path, flags: MountFlags) -> io::Result<()> {
    mount_helper::run(at, &Work::Change(flags), None).map(drop)
}

/// Shows what is mounted at `from` at another place, too; gives that without links.
pub fn again(from: &Path, at: &Path, flags: MountFlags) -> io::Result<PathBuf> {
    let done = mount_helper::run(at, &Work::Again { from: from.to_owned(), flags }, None)?;
    if done.allowed { Ok(done.at) } else { Err(rustix::io::Errno::PERM.into()) }
}

/// Whether something is mounted at `at`, as `/proc/self/mountinfo` says.
pub fn is_listed(mounts: &[u8], at: &Path) -> bool {
    listed(mounts, at).next().is_some()
}

/// The number of the connection of what is mounted at `at`: the minor number of its device.
pub fn connection(mounts: &[u8], at: &Path) -> Option<u32> {
    let last = listed(mounts, at).last()?;
    let device = std::str::from_utf8(last.split(|byte| *byte == b' ').nth(2)?).ok()?;
    device.strip_prefix("0:")?.parse().ok()
}

/// Lines of the mounts at a place, what hides the others last.
fn listed<'a>(mounts: &'a [u8], at: &Path) -> impl Iterator<Item = &'a [u8]> {
    let escaped: Vec<u8> = at.as_os_str().as_bytes().iter().flat_map(|byte| escape(*byte)).collect();
    let lines = mounts.split(|byte| *byte == b'\n');
    lines.filter(move |line| line.split(|byte| *byte == b' ').nth(4).is_some_and(|place| place == escaped))
}

/// How the kernel writes a byte of a path there.
fn escape(byte: u8) -> Vec<u8> {
    match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![byte],
    }
}

/// Takes away what is mounted at `at`: what another process left there, too. An ordinary user asks the helper of
/// the system's FUSE package.
pub fn detach(at: &Path, force: bool) -> io::Result<()> {
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    if mount_helper::run(at, &Work::Unmount(flags), None)?.allowed {
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
        assert_eq!(connection(listed, Path::new("/mnt/c")), Some(5));
        assert_eq!(connection(listed, Path::new("/mnt/a b")), None);
    }
}
