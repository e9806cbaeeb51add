//! One file system over FUSE, for reading and writing.
//!
//! Each dataset is a mount of its own, as in OpenZFS: inode numbers are object numbers, `st_dev` differs. The
//! read-only half of this crate serves `.zfs` and the snapshots in it, in slots after the live one
//! ([`crate::node`]).
//!
//! The kernel checks permissions (`default_permissions`), keeps locks, and caches pages: it is the only writer, so
//! its cached names, negative names, pages and attributes stay valid. Attributes of a changed file expire after a
//! second, because its space is known only when its txg is written. Writes pass through the kernel's cache to us at
//! once: a write that returned is in a transaction, a write without space or quota is refused at the call, and
//! `fsync` costs one log write. Large writes come in pieces of a megabyte, requests in parallel.
//!
//! Differs from OpenZFS: `FICLONE` and its kin never arrive ([`copy`]); unnamed files (`O_TMPFILE`) and the birth time in
//! `statx` depend on the kernel's FUSE (Linux 6.1 and 6.6); opening a file for reading counts as reading it, because cached reads
//! are unseen; with `acltype=off` a request for an access control list is answered as if the file had none, not as
//! unsupported (the kernel asks, too). A rollback keeps the file system mounted ([`fs_swap`]).

mod convert;
mod copy;
mod ctl;
mod dos_flags;
mod files;
mod flags;
pub(crate) mod fs_swap;
mod offers;
mod open_dirs;
mod pages;
mod posix_acl;
mod privileges;
mod removed;
mod requests;
mod rewriting;
mod writers;

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::wire::{INodeNo, Notifier};
use engine::Result;
use engine::dsl::Dataset;
use engine::spa::Pool;
use fuse_transport::{Late, WorkLane};
use parking_lot::{Mutex, RwLock};
use rustix::mount::MountFlags;
use zpl::write::FsWriter;

pub(crate) use posix_acl::is_list;

use crate::space::Space;
use crate::{Mounted, Spot, fs, kernel};

/// Page ranges that one mount makes the kernel drop concurrently.
const FORGETTING: usize = 8;
/// Time after which a write is answered although the kernel has not dropped its pages: it may hold them locked for that write.
const PATIENCE: Duration = Duration::from_millis(100);

/// The visibility of `.zfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Snapdir {
    /// It can be entered, but is not listed.
    #[default]
    Hidden,
    /// It is listed.
    Visible,
    /// It does not exist.
    Disabled,
}

/// Changes snapshots on behalf of processes that create, remove or rename a directory in `.zfs/snapshot`. Names are
/// those after the `@`. The caller may lack the permission (`NotPermitted`).
pub trait SnapshotAdmin: Debug + Send + Sync {
    /// Takes a snapshot.
    fn create(&self, name: &str, who: Asker) -> Result<()>;
    /// Destroys a snapshot.
    fn destroy(&self, name: &str, who: Asker) -> Result<()>;
    /// Renames a snapshot.
    fn rename(&self, old: &str, new: &str, who: Asker) -> Result<()>;
}

/// The user and the group of a requesting process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Mount options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveOptions {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Set-id bits take effect.
    pub setuid: bool,
    /// Device files can be opened.
    pub devices: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// `.zfs`
    pub snapdir: Snapdir,
    /// Access times are updated.
    pub atime: bool,
    /// Only if the previous one is older than the last change or a day.
    pub relatime: bool,
    /// Also updates access times of directories.
    pub dir_atime: bool,
    /// Writes are on disk when the call returns.
    pub sync: bool,
    /// Changes of times only may wait.
    pub lazytime: bool,
    /// POSIX access control lists are kept and checked (`acltype=posix`).
    pub posix_acl: bool,
    /// Extended attributes of users (`user.*`) are supported (`xattr` is not `off`).
    pub xattr: bool,
    /// Other users have access.
    pub allow_other: bool,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            setuid: true,
            devices: true,
            exec: true,
            snapdir: Snapdir::Hidden,
            atime: true,
            relatime: true,
            dir_atime: true,
            sync: false,
            lazytime: false,
            posix_acl: false,
            xattr: true,
            allow_other: false,
        }
    }
}

/// Answers the kernel's requests for one file system.
#[derive(Debug)]
pub(crate) struct Live {
    /// The file system.
    pub(crate) files: Arc<FsWriter>,
    pub(crate) options: Arc<RwLock<LiveOptions>>,
    /// `.zfs` and snapshots.
    pub(crate) frozen: fs::Fuse,
    /// `None`: snapshots cannot be changed from inside.
    pub(crate) admin: Option<Arc<dyn SnapshotAdmin>>,
    /// Notifies the kernel of changes it has not seen.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    pub(crate) past: fs_swap::PriorContent,
    /// Removed files that the kernel refers to.
    pub(crate) removed: removed::Removed,
    /// Files that are open for writing.
    pub(crate) writers: writers::Writers,
    /// Open directories.
    pub(crate) open_dirs: open_dirs::OpenDirs,
    /// Work that makes the kernel drop pages, which waits for reads of them.
    pub(crate) forgetting: WorkLane,
    /// Answers to writes that wait for that.
    pub(crate) late: Late,
}

impl Live {
    /// Notifies the kernel that the time of a file's last change has changed.
    fn tell_changed(&self, ino: INodeNo) {
        // Attributes only. If the kernel has not cached the file, there is nothing to drop.
        let _ = self.notifier.get().map(|notifier| notifier.inval_inode(ino, -1, 0));
    }
}

/// The kernel's mount flags for the options.
pub(crate) fn flags_of(options: &LiveOptions) -> MountFlags {
    let times = match (options.atime, options.relatime) {
        (false, _) => MountFlags::NOATIME,
        (true, true) => MountFlags::RELATIME,
        (true, false) => MountFlags::STRICTATIME,
    };
    let flags = [
        (options.read_only, MountFlags::RDONLY),
        (!options.setuid, MountFlags::NOSUID),
        (!options.devices, MountFlags::NODEV),
        (!options.exec, MountFlags::NOEXEC),
        (!options.dir_atime, MountFlags::NODIRATIME),
        (options.sync, MountFlags::SYNCHRONOUS),
        (options.lazytime, MountFlags::LAZYTIME),
    ];
    flags.into_iter().filter(|(on, _)| *on).fold(times, |all, (_, flag)| all | flag)
}

/// Flags that each mount point of a file system has separately.
pub(crate) const OF_ONE_PLACE: MountFlags = MountFlags::RDONLY
    .union(MountFlags::NOSUID)
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC)
    .union(MountFlags::NOATIME)
    .union(MountFlags::NODIRATIME)
    .union(MountFlags::RELATIME)
    .union(MountFlags::STRICTATIME);

/// Mounts the file system `files` (see [`zpl::write::mount()`]), the head `dataset` of `pool`, at `spot`, which is
/// prepared first. `admin` changes its snapshots.
///
/// # Errors
/// If the kernel refuses the mount.
pub fn mount_live<'a>(
    pool: &Arc<Pool>,
    dataset: Dataset,
    files: Arc<FsWriter>,
    spot: impl Into<Spot<'a>>,
    options: LiveOptions,
    admin: Option<Arc<dyn SnapshotAdmin>>,
) -> io::Result<Mounted> {
    let name = dataset.name.clone();
    let space = Space::live(Arc::clone(pool), dataset);
    let frozen = fs::Fuse::new(Arc::clone(&space), true);
    let shared = Arc::new(RwLock::new(options));
    let notifier = Arc::new(OnceLock::new());
    let theirs = Arc::clone(&notifier);
    let past = fs_swap::PriorContent::default();
    let live = Live {
        files,
        options: Arc::clone(&shared),
        frozen,
        admin,
        notifier: theirs,
        past,
        removed: removed::Removed::default(),
        writers: writers::Writers::default(),
        open_dirs: open_dirs::OpenDirs::default(),
        forgetting: WorkLane::new(FORGETTING),
        late: Late::new(PATIENCE),
    };
    let swap = Arc::new(fs_swap::FsSwap(RwLock::new(live)));
    let place = kernel::Place {
        spot: spot.into(),
        source: &name,
        flags: flags_of(&options),
        everybody: options.allow_other,
        checked: true,
    };
    let (line, at) = kernel::spawn(Box::new(fs_swap::Front(Arc::clone(&swap))), &place)?;
    // It is set only here.
    let _ = notifier.set(Notifier::new(Arc::clone(&line.device)));
    let (also, flags) = (Mutex::default(), Mutex::new(Some(flags_of(&options))));
    let (seen, options, swap) = (OnceLock::new(), Some(shared), Some(swap));
    Ok(Mounted { line, at, source: name, seen, also, options, flags, swap, space })
}
