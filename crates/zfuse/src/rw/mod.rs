//! One file system over FUSE, for reading and writing.
//!
//! Each dataset is a mount of its own, as in OpenZFS: inode numbers are object numbers, `st_dev` differs. `.zfs` and the
//! snapshots in it are answered by the read-only half of this crate, in slots behind the live one ([`crate::node`]).
//!
//! The kernel checks permissions (`default_permissions`), keeps locks, and caches pages: it is the only writer, so
//! names, pages and attributes that it holds stay right by themselves; that a name names nothing, too. Attributes of a
//! file that was just changed expire after a second, because the space that it takes is known only when its group is
//! written. Writes go through the kernel's cache to us at once: a write that returned is in a transaction, what has no
//! room or quota is refused at the call, and `fsync` costs one log write. Large writes come in pieces of a megabyte,
//! requests in parallel.
//!
//! Differs from OpenZFS: `copy_file_range` copies; unnamed files (`O_TMPFILE`) are refused and the time of birth does
//! not show in `statx`; whoever opens a file for reading is taken to read it,
//! as cached reads are unseen; who asks for an access control list with `acltype=off` is told that a file has none, not
//! that there are none (the kernel asks, too). While the file system is rolled back it stays mounted
//! ([`gate`]).

mod convert;
mod ctl;
mod files;
mod flags;
pub(crate) mod fs_swap;
mod open_dirs;
mod posix_acl;
mod privileges;
mod requests;

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, OnceLock};

use crate::wire::{INodeNo, Notifier};
use engine::Result;
use engine::dsl::Dataset;
use engine::spa::Pool;
use parking_lot::{Mutex, RwLock};
use rustix::mount::MountFlags;
use zpl::write::FsWriter;

pub(crate) use posix_acl::is_list;

use crate::crew::Lane;
use crate::space::Space;
use crate::{Mounted, Spot, fs, kernel};

/// Ranges of pages that one mount has the kernel forget at a time.
const FORGETTING: usize = 8;

/// How `.zfs` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Snapdir {
    /// It can be entered, and is in no listing.
    #[default]
    Hidden,
    /// It is listed.
    Visible,
    /// There is none.
    Disabled,
}

/// Who changes snapshots when somebody makes, removes or renames a directory in `.zfs/snapshot`. Names are those
/// behind the `@`. Whoever asks may not be allowed to (`NotPermitted`).
pub trait SnapshotAdmin: Debug + Send + Sync {
    /// Takes a snapshot.
    fn create(&self, name: &str, who: Asker) -> Result<()>;
    /// Destroys one.
    fn destroy(&self, name: &str, who: Asker) -> Result<()>;
    /// Gives one another name.
    fn rename(&self, old: &str, new: &str, who: Asker) -> Result<()>;
}

/// The user and the group of a process that asks for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

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
    /// `.zfs`
    pub snapdir: Snapdir,
    /// Access times are kept.
    pub atime: bool,
    /// Only where they tell something.
    pub relatime: bool,
    /// Those of directories, too.
    pub dir_atime: bool,
    /// What is written is on disk when the call returns.
    pub sync: bool,
    /// What changes only times may wait.
    pub lazytime: bool,
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

/// Who answers the kernel for one file system.
#[derive(Debug)]
pub(crate) struct Live {
    /// The file system.
    pub(crate) files: Arc<FsWriter>,
    pub(crate) options: Arc<RwLock<LiveOptions>>,
    /// `.zfs` and snapshots.
    pub(crate) frozen: fs::Fuse,
    /// `None`: snapshots can't be changed from inside.
    pub(crate) admin: Option<Arc<dyn SnapshotAdmin>>,
    /// The way to tell the kernel what it does not know.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    pub(crate) past: fs_swap::PriorContent,
    /// Directories that are open.
    pub(crate) open_dirs: open_dirs::OpenDirs,
    /// Work that makes the kernel forget pages, which waits for reads of them.
    pub(crate) forgetting: Lane,
}

impl Live {
    /// The time of a file's last change is another, which the kernel did not see.
    fn tell_changed(&self, ino: INodeNo) {
        // Attributes only. A kernel that does not know the file has nothing to forget.
        let _ = self.notifier.get().map(|notifier| notifier.inval_inode(ino, -1, 0));
    }
}

/// What the kernel is told of the options.
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

/// Flags that each place of a file system has for itself.
pub(crate) const OF_ONE_PLACE: MountFlags = MountFlags::RDONLY
    .union(MountFlags::NOSUID)
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC)
    .union(MountFlags::NOATIME)
    .union(MountFlags::NODIRATIME)
    .union(MountFlags::RELATIME)
    .union(MountFlags::STRICTATIME);

/// Mounts the file system `files` (see [`zpl::write::mount()`]), which is the head `dataset` of `pool`, at `spot`,
/// which is made ready before. `admin`: who changes its snapshots.
///
/// # Errors
/// When the kernel refuses the mount.
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
        open_dirs: open_dirs::OpenDirs::default(),
        forgetting: Lane::new(FORGETTING),
    };
    let gate = Arc::new(fs_swap::FsSwap(RwLock::new(live)));
    let place = kernel::Place {
        spot: spot.into(),
        source: &name,
        flags: flags_of(&options),
        everybody: options.allow_other,
        checked: true,
    };
    let (line, at) = kernel::spawn(Box::new(fs_swap::Front(Arc::clone(&gate))), &place)?;
    // Nobody else sets it.
    let _ = notifier.set(line.notifier());
    let also = Mutex::default();
    Ok(Mounted { line, at, also, options: Some(shared), gate: Some(gate), space })
}
