//! One file system over FUSE, for reading and writing.
//!
//! Each dataset is a mount of its own, as in OpenZFS: inode numbers are object numbers, `st_dev` differs. `.zfs` and the
//! snapshots in it are answered by the read-only half of this crate, in slots behind the live one ([`crate::node`]).
//!
//! The kernel checks permissions (`default_permissions`), keeps locks, and caches pages: it is the only writer, so
//! names and attributes that it holds stay right by themselves. Attributes still expire after a second, because the
//! space that a file takes is known only when its group is written. Writes go through the kernel's cache to us at
//! once: a write that returned is in a transaction, and `fsync` costs one log write. Large writes come in pieces of
//! a megabyte, requests in parallel.
//!
//! Differs from OpenZFS: `copy_file_range` copies; unnamed files (`O_TMPFILE`) are refused, as the FUSE library does
//! not pass them on; access times of cached reads are the kernel's.

mod convert;
mod files;
mod flags;
mod requests;

use std::io;
use std::path::Path;
use std::sync::Arc;

use engine::dsl::Dataset;
use engine::spa::Pool;
use fuser::{Config, MountOption, SessionACL};
use zpl::write::FsWriter;

use crate::space::Space;
use crate::{Mounted, fs};

/// How to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveOptions {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Set-id bits count.
    pub setuid: bool,
    /// Device files work.
    pub devices: bool,
    /// Programs can be run.
    pub exec: bool,
    /// `.zfs` shows in listings (`snapdir=visible`).
    pub show_ctl: bool,
    /// POSIX access control lists are kept and checked (`acltype=posix`).
    pub posix_acl: bool,
    /// There are extended attributes (`xattr` is not `off`).
    pub xattr: bool,
    /// Other users are let in.
    pub allow_other: bool,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            setuid: true,
            devices: true,
            exec: true,
            show_ctl: false,
            posix_acl: false,
            xattr: true,
            allow_other: false,
        }
    }
}

/// Who answers the kernel for one file system.
#[derive(Debug)]
pub(crate) struct Live {
    /// The file system.
    pub(crate) files: Arc<FsWriter>,
    pub(crate) options: LiveOptions,
    /// `.zfs` and snapshots.
    pub(crate) frozen: fs::Fuse,
    pub(crate) listings: requests::Listings,
}

/// Mounts the file system `files` (see [`zpl::write::mount()`]), which is the head `dataset` of `pool`, at `mountpoint`.
///
/// # Errors
/// When the kernel refuses the mount.
pub fn mount_live(
    pool: &Arc<Pool>,
    dataset: Dataset,
    files: Arc<FsWriter>,
    mountpoint: &Path,
    options: LiveOptions,
) -> io::Result<Mounted> {
    let name = dataset.name.clone();
    let frozen = fs::Fuse::new(Space::live(Arc::clone(pool), dataset));
    let live = Live { files, options, frozen, listings: requests::Listings::default() };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(name),
        MountOption::Subtype("zfs".to_owned()),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
        if options.setuid { MountOption::Suid } else { MountOption::NoSuid },
        if options.devices { MountOption::Dev } else { MountOption::NoDev },
        if options.exec { MountOption::Exec } else { MountOption::NoExec },
    ];
    if options.allow_other {
        config.acl = SessionACL::All;
    }
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    // More than cores: a request may wait for a disk or a transaction group.
    config.n_threads = Some(cores.max(2) * 2);
    config.clone_fd = true;
    let session = fuser::spawn_mount(live, mountpoint, &config)?;
    Ok(Mounted { session, at: mountpoint.to_path_buf() })
}
