//! A pool's file systems over FUSE: read-only as one tree, or one of them for writing ([`mod@live`]).
//!
//! Read-only, one mount shows the whole tree: the dataset that was asked for at the mount point, each child below
//! it by the last part of its name (whatever its `mountpoint` property says), volumes as files, and
//! `.zfs/snapshot/NAME` in each file system. Nothing changes underneath, so the kernel may keep entries,
//! attributes and pages for as long as it likes.
//!
//! An inode number says everything ([`node`]), so the kernel may forget and ask again at any time, and
//! nothing here grows with what was looked up, except the table of datasets ([`space`]).
//!
//! Differs from OpenZFS: one mount instead of one for each dataset, so `st_dev` is the same everywhere,
//! and inode numbers below child datasets carry the dataset in their upper bits.

mod attr;
mod dir;
mod fs;
mod live;
mod node;
mod space;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use engine::dsl::Dataset;
use engine::spa::Pool;
use fuser::{BackgroundSession, Config, MountOption, SessionACL};

pub use live::{LiveOptions, mount_live};
pub use space::Space;

/// How to mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountOptions {
    /// Let other users in, with permissions checked by the kernel. Needs root, or `user_allow_other` in
    /// the system's FUSE configuration.
    pub allow_other: bool,
    /// Threads that answer requests; 0 means as many as there are cores.
    pub threads: usize,
}

/// A mount; dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    session: BackgroundSession,
    at: PathBuf,
}

impl Mounted {
    /// True once somebody else has unmounted it.
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Takes the mount away and waits until the last request is answered; it stays when files are open. `force`: it
    /// disappears at once, and ends when the last file is closed.
    pub fn try_unmount(&self, force: bool) -> io::Result<()> {
        if !self.is_over() {
            detach(&self.at, force)?;
        }
        while !force && !self.is_over() {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Unmounts and waits until the last request is answered.
    pub fn unmount(self) -> io::Result<()> {
        self.session.umount_and_join()
    }
}

/// Takes away what is mounted at `at`: what another process left there, too. An ordinary user asks the helper of
/// the system's FUSE package.
pub fn detach(at: &Path, force: bool) -> io::Result<()> {
    use rustix::mount::{UnmountFlags, unmount};
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match unmount(at, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            let args: &[&str] = if force { &["-u", "-z"] } else { &["-u"] };
            let out = Command::new("fusermount3").args(args).arg("--").arg(at).output()?;
            let said = String::from_utf8_lossy(&out.stderr);
            match (out.status.success(), said.contains("busy")) {
                (true, _) => Ok(()),
                (false, true) => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
                _ => Err(io::Error::other(said.trim().to_owned())),
            }
        }
        Err(e) => Err(e.into()),
    }
}

/// Mounts `dataset` of `pool` and everything below it at `mountpoint`. A snapshot is mounted alone.
pub fn mount(
    pool: &Arc<Pool>,
    dataset: Dataset,
    mountpoint: &Path,
    options: MountOptions,
) -> io::Result<Mounted> {
    let name = dataset.name.clone();
    let space = Space::new(Arc::clone(pool), dataset);
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::FSName(name),
        MountOption::Subtype("zfs".to_owned()),
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    if options.allow_other {
        config.mount_options.push(MountOption::DefaultPermissions);
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(if options.threads == 0 { cores.max(2) } else { options.threads });
    config.clone_fd = true;
    let session = fuser::spawn_mount(fs::Fuse::new(space), mountpoint, &config)?;
    Ok(Mounted { session, at: mountpoint.to_path_buf() })
}
