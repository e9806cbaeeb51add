//! A pool's file systems over FUSE: read-only as one tree, or a single one for writing ([`rw`]).
//!
//! Read-only, one mount shows the whole tree: the requested dataset at the mount point, each child below it under
//! the last component of its name (whatever its `mountpoint` property), volumes as files, and `.zfs/snapshot/NAME`
//! in each file system. The content never changes, so the kernel may cache entries, attributes and pages without
//! limit.
//!
//! An inode number contains all information about its file ([`node`]), so the kernel may forget and ask again at
//! any time, and no table grows with the lookups, except the table of datasets ([`space`]).
//!
//! Differs from OpenZFS: one mount instead of one for each dataset, so `st_dev` is the same everywhere, and inode
//! numbers below child datasets contain the dataset in their upper bits.

mod attr;
mod dir;
mod elsewhere;
mod file_flags;
mod fs;
mod helper;
mod kernel;
pub mod mount_helper;
mod node;
mod nothing;
mod rw;
mod space;
mod visitors;
mod way;
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use engine::dsl::Dataset;
use engine::spa::Pool;
use fuse_transport::Line;
use kernel::Seen;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rw::fs_swap::{FsSwap, SwapResult};
use wire::{INodeNo, Notifier};

pub use fuse_transport::{enable_in_kernel, use_io_uring, uses_io_uring};
pub use kernel::{detach, raise_limits};
pub use mount_helper::{Ready, Spot};
pub use nothing::serve_nothing;
pub use rw::{Asker, LiveOptions, Snapdir, SnapshotAdmin, mount_live};
pub use space::Space;
use zpl::differences::Differences;
use zpl::write::FsWriter;

/// Mount options.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountOptions {
    /// Give other users access, with permissions checked by the kernel. Needs root, or `user_allow_other` in the
    /// system's FUSE configuration.
    pub allow_other: bool,
    /// Preparation of the mount point.
    pub ready: Ready,
    /// Same as [`Spot::inherited`].
    pub inherited: usize,
    /// Leave the datasets below out of a read-only tree: for pools that are imported, where each is mounted by itself.
    pub alone: bool,
}

/// The system's list of mounts.
const LISTED: &str = "/proc/self/mountinfo";
/// Timeout of the last requests: after it the kernel must have removed another mount.
const UNMOUNTING: Duration = Duration::from_secs(60);
/// How long a private copy of a mount in another mount namespace is waited for: many processes there are short.
const ELSEWHERE: Duration = Duration::from_secs(5);
/// The time between two looks for it.
const LOOK: Duration = Duration::from_millis(250);
/// Timeout of the last request of a connection that has ended.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// A mount; dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    line: Arc<Line>,
    at: PathBuf,
    /// The dataset, by its name at the time of mounting.
    source: String,
    /// Its numbers in the system's list, once they were looked up.
    seen: OnceLock<Seen>,
    /// Other mounts of ours that show it.
    also: Mutex<Vec<Seen>>,
    /// The options of a writable file system.
    options: Option<Arc<RwLock<LiveOptions>>>,
    /// The flags that the kernel has: it refuses others while the mount is hidden, or files are open for writing. `None`: another
    /// program may have changed them.
    flags: Mutex<Option<MountFlags>>,
    swap: Option<Arc<FsSwap>>,
    /// Its snapshots.
    space: Arc<Space>,
}

fn hidden_error(at: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, format!("{} is hidden by another mount", at.display()))
}

impl Mounted {
    /// The mount point, with links resolved.
    pub fn at(&self) -> &Path {
        &self.at
    }

    fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.line.device))
    }

    /// Whether its requests come over io_uring; otherwise over `/dev/fuse`.
    pub fn is_over_io_uring(&self) -> bool {
        self.line.is_over_rings()
    }

    /// Requests of the kernel that were answered so far.
    pub fn answered(&self) -> u64 {
        self.line.answered()
    }

    /// The number of its connection in `/sys/fs/fuse/connections`, derived from the text of `/proc/self/mountinfo`.
    pub fn connection(&self, listed: &[u8]) -> Option<u32> {
        self.seen(listed).map(|seen| seen.connection)
    }

    fn seen(&self, listed: &[u8]) -> Option<Seen> {
        if let Some(seen) = self.seen.get() {
            return Some(*seen);
        }
        let found = kernel::find(listed, &self.at, &self.source)?;
        Some(*self.seen.get_or_init(|| found))
    }

    /// Shows the same file system at another path, too, until it is unmounted here or there. The restrictions in
    /// `options` apply there.
    ///
    /// # Errors
    /// The error of mounting there.
    pub fn show_at(&self, place: &Path, options: &LiveOptions) -> io::Result<()> {
        let (from, number) = self.listed()?;
        let at = kernel::again(&from, number, place, rw::flags_of(options) & rw::OF_ONE_PLACE)?;
        // Another process may have unmounted it already.
        self.also.lock().extend(kernel::topmost(&std::fs::read(LISTED)?, &at, number));
        Ok(())
    }

    /// Other paths where it appears; omits those unmounted by another process.
    pub fn also_at(&self) -> Vec<PathBuf> {
        let mut also = self.also.lock();
        if also.is_empty() {
            return Vec::new();
        }
        let listed = std::fs::read(LISTED).unwrap_or_default();
        also.retain(|seen| seen.place(&listed).is_some());
        also.iter().filter_map(|seen| seen.place(&listed)).collect()
    }

    /// Whether another process has unmounted it. Waits for the last request of a connection that the kernel has
    /// ended: a mount right after `umount` must not find the old one.
    pub fn is_over(&self) -> bool {
        self.line.is_over() || self.line.device.is_hung_up() && self.line.wait(LAST_REQUEST)
    }

    /// Whether a file of a snapshot below `.zfs/snapshot` is open, or a process has its working directory there.
    /// `guid` is the snapshot's.
    pub fn uses_snapshot(&self, guid: u64) -> bool {
        let Some(slot) = self.space.entered(guid).filter(|_| !self.is_over()) else { return false };
        let all = self.at.join(".zfs/snapshot");
        slot.is_open() || slot.names().iter().any(|name| visitors::stand_in(&all.join(name)))
    }

    /// Detaches the mount and waits until the last request is answered; fails while files are open. `force`: it
    /// disappears at once, and ends when the last file is closed. A mount of another file system at the same path
    /// stays, and so does this one below it.
    pub fn try_unmount(&self, force: bool) -> io::Result<()> {
        let listed = std::fs::read(LISTED).unwrap_or_default();
        let seen = self.seen(&listed);
        let places = match seen {
            Some(seen) => self.places(&listed, seen),
            None => [self.at.clone()].into_iter().chain(self.also_at()).collect(),
        };
        let number = seen.map(|seen| seen.connection);
        let hidden = |at: &&PathBuf| number.is_some_and(|number| kernel::is_hidden(&listed, at, number));
        if let Some(at) = places.iter().find(hidden) {
            return Err(hidden_error(at));
        }
        if let Some(seen) = seen.filter(|_| !force) {
            self.check_bound(&listed, seen)?;
            self.check_elsewhere(&listed, seen.connection)?;
        }
        // Another process has detached it (`umount -l`): it ends with the last open file.
        let mut patience = if places.is_empty() { LAST_REQUEST } else { UNMOUNTING };
        for at in places.iter().rev() {
            match if self.is_over() { Ok(()) } else { self.detach_from(at, force) } {
                Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INVAL | Errno::NOENT)) => {
                    // A later mount on a directory above keeps the path from leading there.
                    let listed = std::fs::read(LISTED).unwrap_or_default();
                    if number.is_some_and(|number| kernel::places(&listed, number).contains(at)) {
                        return Err(hidden_error(at));
                    }
                    patience = LAST_REQUEST;
                }
                done => done?,
            }
        }
        if !force && !self.line.wait(patience) {
            let what = format!("{} is detached and in use", self.at.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
        }
        Ok(())
    }

    /// Fails if another process has bound the mount, or a directory in it, to another place: detached here, the file system would
    /// go on there.
    fn check_bound(&self, listed: &[u8], seen: Seen) -> io::Result<()> {
        let ours: Vec<u64> = self.also.lock().iter().chain([&seen]).map(|seen| seen.id).collect();
        match elsewhere::bound(listed, seen.connection, &ours).filter(|_| !self.is_over()) {
            Some(at) => {
                let what = format!("it is bound to {}", at.display());
                Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
            }
            None => Ok(()),
        }
    }

    /// Fails if another mount namespace has a private copy, and keeps it: detached here, the file system would go on there, and
    /// could not be mounted again.
    fn check_elsewhere(&self, listed: &[u8], number: u32) -> io::Result<()> {
        let until = Instant::now() + ELSEWHERE;
        while !self.is_over() {
            let Some(process) = elsewhere::holder(listed, number) else { break };
            if Instant::now() >= until {
                let what = format!("process {process} has it mounted in a mount namespace of its own");
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The places that are ours, the main one first: mounts that others bound elsewhere stay. A directory above may
    /// have another name than at the time of mounting.
    fn places(&self, listed: &[u8], seen: Seen) -> Vec<PathBuf> {
        seen.place(listed).into_iter().chain(self.also_at()).collect()
    }

    /// Whether another process has detached it while files are open (`umount -l`).
    pub fn is_detached(&self) -> bool {
        let listed = std::fs::read(LISTED).unwrap_or_default();
        let is_shown = match self.connection(&listed) {
            Some(number) => !kernel::places(&listed, number).is_empty(),
            None => kernel::is_listed(&listed, &self.at),
        };
        !listed.is_empty() && !self.is_over() && !is_shown
    }

    /// A place where it is now, and its connection.
    fn listed(&self) -> io::Result<(PathBuf, u32)> {
        let listed = std::fs::read(LISTED)?;
        let seen = self.seen(&listed).ok_or(io::Error::from(Errno::INVAL))?;
        let place = self.places(&listed, seen).into_iter().next();
        place.map(|place| (place, seen.connection)).ok_or_else(|| Errno::INVAL.into())
    }

    fn detach_from(&self, at: &Path, force: bool) -> io::Result<()> {
        kernel::detach(at, force, self.seen.get().map(|seen| seen.connection))
    }

    /// Unmounts and waits until the last request is answered.
    pub fn unmount(self) -> io::Result<()> {
        self.try_unmount(false)
    }

    /// Runs `work`, which replaces the content of a writable file system and returns the differences, while it is
    /// closed and all requests are held back; `open` then opens the new content in its place. The mount stays, and
    /// so do open files that still exist; other handles become stale. On return, the kernel has dropped all old
    /// cached state. A failed `work` has changed nothing, and the file system continues with the old content.
    ///
    /// A thread that answers requests of the mount must not call this.
    ///
    /// # Errors
    /// The errors of `work`; those of `open`, and then the mount is detached.
    #[doc(alias("zfs_suspend_fs", "zfs_resume_fs"))]
    pub fn exchange(
        &self,
        work: impl FnOnce() -> engine::Result<Differences>,
        open: impl FnOnce(&FsWriter) -> engine::Result<Arc<FsWriter>>,
    ) -> engine::Result<()> {
        let swap = self.swap.as_ref().ok_or_else(not_live)?;
        match swap.exchange(work, open) {
            Ok(SwapResult::Other(found)) => {
                swap.tell(&self.notifier(), &found);
                Ok(())
            }
            Ok(SwapResult::Same(why)) => Err(why),
            Err(e) => {
                // Processes with open files get errors.
                let _ = self.detach_from(&self.at, true);
                Err(e)
            }
        }
    }

    /// Has the next [`Mounted::change`] tell the kernel the flags even if they are those that it was told last: other programs
    /// with the right to mount can change them, too.
    pub fn forget_flags(&self) {
        *self.flags.lock() = None;
    }

    /// Changes the options of a mounted writable file system. Options that are fixed at mount time (access of other
    /// users) stay.
    ///
    /// # Errors
    /// If the kernel refuses the new flags; the options apply nevertheless, and the next call tries again.
    pub fn change(&self, options: LiveOptions) -> io::Result<()> {
        let Some(shared) = &self.options else { return Ok(()) };
        let old = *shared.read();
        let options = LiveOptions { allow_other: old.allow_other, ..options };
        let flags = rw::flags_of(&options);
        if (old == options && *self.flags.lock() == Some(flags)) || self.is_over() {
            return Ok(());
        }
        // Read-only comes last: until then the kernel's pending writes are accepted.
        let told = if options.read_only {
            let told = self.tell_flags(flags);
            *shared.write() = options;
            told
        } else {
            *shared.write() = options;
            self.tell_flags(flags)
        };
        if old.snapdir != options.snapdir {
            // The root's link count changes. A kernel without the root in its cache has nothing to drop.
            let _ = self.notifier().inval_inode(INodeNo::ROOT, -1, 0);
        }
        let lists = old.posix_acl != options.posix_acl;
        if let Some(swap) = self.swap.as_ref().filter(|_| lists) {
            swap.forget_attributes(&self.notifier());
        }
        told
    }
}

impl Mounted {
    fn tell_flags(&self, flags: MountFlags) -> io::Result<()> {
        let mut told = self.flags.lock();
        if *told != Some(flags) {
            let (at, number) = self.listed()?;
            kernel::change_flags(&at, number, flags)?;
            *told = Some(flags);
        }
        Ok(())
    }
}

fn not_live() -> engine::Error {
    engine::Error::new(engine::Kind::ReadOnly, "the file system is mounted read-only")
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.is_over() {
            // There is no caller left to get an error.
            for at in self.also_at().iter().chain([&self.at]) {
                let _ = self.detach_from(at, true);
            }
        }
    }
}

/// Mounts `dataset` of `pool` and everything below it at `mountpoint`. A snapshot is mounted alone.
pub fn mount(
    pool: &Arc<Pool>,
    dataset: Dataset,
    mountpoint: &Path,
    options: MountOptions,
) -> io::Result<Mounted> {
    // Children of such a dataset can still be mounted by themselves.
    space::check_complete(&dataset).map_err(io::Error::other)?;
    let name = dataset.name.clone();
    let space = Space::new(Arc::clone(pool), dataset, options.alone);
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    let place = kernel::Place {
        spot: Spot { at: mountpoint, ready: options.ready, inherited: options.inherited },
        source: &name,
        flags,
        everybody: options.allow_other,
        checked: options.allow_other,
    };
    let (line, at) = kernel::spawn(Box::new(fs::Fuse::new(Arc::clone(&space), options.allow_other)), &place)?;
    let (also, flags) = (Mutex::default(), Mutex::new(Some(flags)));
    Ok(Mounted {
        line,
        at,
        source: name,
        seen: OnceLock::new(),
        also,
        options: None,
        flags,
        swap: None,
        space,
    })
}
