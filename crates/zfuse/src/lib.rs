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
mod crew;
mod dir;
mod fs;
mod helper;
mod kernel;
pub mod mount_helper;
mod node;
mod rw;
mod serve;
mod space;
mod visitors;
mod way;
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::dsl::Dataset;
use engine::spa::Pool;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rw::fs_swap::{Done, FsSwap};
use serve::Line;
use wire::INodeNo;

pub use kernel::{detach, raise_limits};
pub use mount_helper::{Ready, Spot};
pub use rw::{Asker, LiveOptions, Snapdir, SnapshotAdmin, mount_live};
pub use space::Space;
use zpl::differences::Differences;
use zpl::write::FsWriter;

/// How to mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountOptions {
    /// Let other users in, with permissions checked by the kernel. Needs root, or `user_allow_other` in
    /// the system's FUSE configuration.
    pub allow_other: bool,
    /// What is to become of the mount point before.
    pub ready: Ready,
    /// As [`Spot::inherited`].
    pub inherited: usize,
}

/// How long the last requests may take: then it was not this mount that the kernel took away.
const UNMOUNTING: Duration = Duration::from_secs(60);
/// How long the last request of a connection that has ended is waited for.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// A mount; dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    line: Arc<Line>,
    at: PathBuf,
    /// Where it shows besides.
    also: Mutex<Vec<PathBuf>>,
    /// Of a live file system.
    options: Option<Arc<RwLock<LiveOptions>>>,
    gate: Option<Arc<FsSwap>>,
    /// Its snapshots.
    space: Arc<Space>,
}

impl Mounted {
    /// Where it is mounted, without links.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// The number of its connection, as `/sys/fs/fuse/connections` has it, by what `/proc/self/mountinfo` lists.
    pub fn connection(&self, listed: &[u8]) -> Option<u32> {
        kernel::connection(listed, &self.at)
    }

    /// Shows the same file system at another place, too, until it is unmounted here or there. `options` counts there as
    /// far as it forbids something.
    ///
    /// # Errors
    /// What mounting there gives.
    pub fn show_at(&self, place: &Path, options: &LiveOptions) -> io::Result<()> {
        let at = kernel::again(&self.at, place, rw::flags_of(options) & rw::OF_ONE_PLACE)?;
        self.also.lock().push(at);
        Ok(())
    }

    /// Other places where it is shown: somebody may have unmounted it there without us.
    pub fn also_at(&self) -> Vec<PathBuf> {
        let mut also = self.also.lock();
        if !also.is_empty() {
            let listed = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
            also.retain(|at| kernel::is_listed(&listed, at));
        }
        also.clone()
    }

    /// True once somebody else has unmounted it. Waits for the last request of a connection that the kernel has ended: a
    /// mount right after `umount` must not find the one that is gone.
    pub fn is_over(&self) -> bool {
        self.line.is_over() || self.line.device.is_hung_up() && self.line.wait(LAST_REQUEST)
    }

    /// Whether a file of a snapshot below `.zfs/snapshot` is open, or a process stands there. `guid` is the snapshot's.
    pub fn uses_snapshot(&self, guid: u64) -> bool {
        let Some(slot) = self.space.entered(guid).filter(|_| !self.is_over()) else { return false };
        let all = self.at.join(".zfs/snapshot");
        slot.is_open() || slot.names().iter().any(|name| visitors::stand_in(&all.join(name)))
    }

    /// Takes the mount away and waits until the last request is answered; it stays when files are open. `force`: it
    /// disappears at once, and ends when the last file is closed.
    pub fn try_unmount(&self, force: bool) -> io::Result<()> {
        for at in self.also_at().into_iter().rev().chain([self.at.clone()]) {
            match if self.is_over() { Ok(()) } else { detach(&at, force) } {
                // Nothing is mounted there any more: somebody else was faster, and it ends by itself.
                Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INVAL | Errno::NOENT)) => {}
                done => done?,
            }
            self.also.lock().retain(|other| *other != at);
        }
        if !force && !self.line.wait(UNMOUNTING) {
            let what = format!("{} is hidden by another mount", self.at.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
        }
        Ok(())
    }

    /// Unmounts and waits until the last request is answered.
    pub fn unmount(self) -> io::Result<()> {
        self.try_unmount(false)
    }

    /// Has `work` give a live file system another content, and say what differs, while it is closed and nobody is
    /// answered; `open` then opens it again, instead of what it was. The mount stays, and so does what is open of files
    /// that are still there; other handles are stale. When this returns, the kernel has forgotten all that was. A failed
    /// `work` has changed nothing, and the file system goes on as it was.
    ///
    /// Nobody who answers requests of the mount may call this.
    ///
    /// # Errors
    /// Those of `work`; those of `open`, and then the mount is taken away.
    #[doc(alias("zfs_suspend_fs", "zfs_resume_fs"))]
    pub fn exchange(
        &self,
        work: impl FnOnce() -> engine::Result<Differences>,
        open: impl FnOnce(&FsWriter) -> engine::Result<Arc<FsWriter>>,
    ) -> engine::Result<()> {
        let gate = self.gate.as_ref().ok_or_else(not_live)?;
        match gate.exchange(work, open) {
            Ok(Done::Other(found)) => {
                gate.tell(&self.line.notifier(), &found);
                Ok(())
            }
            Ok(Done::Same(why)) => Err(why),
            Err(e) => {
                // Whoever has files open is answered with errors.
                let _ = detach(&self.at, true);
                Err(e)
            }
        }
    }

    /// Gives a mounted live file system other options. What can only be said when mounting (other users) stays.
    ///
    /// # Errors
    /// When the kernel does not change its flags; the options count all the same.
    pub fn change(&self, options: LiveOptions) -> io::Result<()> {
        let Some(shared) = &self.options else { return Ok(()) };
        let old = *shared.read();
        let options = LiveOptions { allow_other: old.allow_other, ..options };
        if old == options || self.is_over() {
            return Ok(());
        }
        let flags = (rw::flags_of(&old), rw::flags_of(&options));
        let tell = || if flags.0 == flags.1 { Ok(()) } else { kernel::change_flags(&self.at, flags.1) };
        // Read-only last: until then what the kernel still holds is taken.
        let told = if options.read_only {
            let told = tell();
            *shared.write() = options;
            told
        } else {
            *shared.write() = options;
            tell()
        };
        if old.snapdir != options.snapdir {
            // The root has a link more or less. A kernel that has not looked at it has nothing to forget.
            let _ = self.line.notifier().inval_inode(INodeNo::ROOT, -1, 0);
        }
        let lists = old.posix_acl != options.posix_acl;
        if let Some(gate) = self.gate.as_ref().filter(|_| lists) {
            gate.forget_attributes(&self.line.notifier());
        }
        told
    }
}

fn not_live() -> engine::Error {
    engine::Error::new(engine::Kind::ReadOnly, "the file system is mounted read-only")
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.is_over() {
            // Nobody is left to be told.
            for at in self.also_at().iter().chain([&self.at]) {
                let _ = detach(at, true);
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
    let space = Space::new(Arc::clone(pool), dataset);
    let place = kernel::Place {
        spot: Spot { at: mountpoint, ready: options.ready, inherited: options.inherited },
        source: &name,
        flags: MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME,
        everybody: options.allow_other,
        checked: options.allow_other,
    };
    let (line, at) = kernel::spawn(Box::new(fs::Fuse::new(Arc::clone(&space), options.allow_other)), &place)?;
    let also = Mutex::default();
    Ok(Mounted { line, at, also, options: None, gate: None, space })
}
