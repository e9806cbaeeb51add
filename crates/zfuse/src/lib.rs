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
mod front;
mod fs;
pub mod hands;
mod kernel;
mod live;
mod node;
mod space;
mod visitors;
mod way;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::dsl::Dataset;
use engine::spa::Pool;
use fuser::{BackgroundSession, INodeNo};
use kernel::{Readers, Spawned};
use live::gate::{Done, Gate};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use rustix::mount::MountFlags;

pub use hands::{Ready, Spot};
pub use kernel::{detach, raise_limits};
pub use live::{Asker, LiveOptions, Snapdir, SnapshotAdmin, mount_live};
pub use space::Space;
use zpl::differences::Differences;
use zpl::write::FsWriter;

/// How to mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountOptions {
    /// Let other users in, with permissions checked by the kernel. Needs root, or `user_allow_other` in
    /// the system's FUSE configuration.
    pub allow_other: bool,
    /// Threads that answer requests; 0 means as many as there are cores.
    pub threads: usize,
    /// What is to become of the mount point before.
    pub ready: Ready,
    /// As [`Spot::inherited`].
    pub inherited: usize,
}

/// How long the last requests may take: then it was not this mount that the kernel took away.
const UNMOUNTING: Duration = Duration::from_secs(60);

/// A mount; dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    session: Option<BackgroundSession>,
    at: PathBuf,
    /// Where it shows besides.
    also: Mutex<Vec<PathBuf>>,
    /// Of a live file system.
    options: Option<Arc<RwLock<LiveOptions>>>,
    gate: Option<Arc<Gate>>,
    /// Its snapshots.
    space: Arc<Space>,
    _readers: Readers,
}

impl Mounted {
    fn new(spawned: Spawned, live: Option<(Arc<RwLock<LiveOptions>>, Arc<Gate>)>, space: Arc<Space>) -> Self {
        let Spawned { session, at, readers } = spawned;
        let (options, gate) = live.unzip();
        Self { session: Some(session), at, also: Mutex::default(), options, gate, space, _readers: readers }
    }

    /// Where it is mounted, without links.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Shows the same file system at another place, too, until it is unmounted here or there. `options` counts there as
    /// far as it forbids something.
    ///
    /// # Errors
    /// What mounting there gives.
    pub fn show_at(&self, place: &Path, options: &LiveOptions) -> io::Result<()> {
        let at = kernel::again(&self.at, place, live::flags_of(options) & live::OF_ONE_PLACE)?;
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

    /// True once somebody else has unmounted it.
    pub fn is_over(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
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
        let asked = Instant::now();
        while !force && !self.is_over() {
            if asked.elapsed() > UNMOUNTING {
                let what = format!("{} is hidden by another mount", self.at.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Unmounts and waits until the last request is answered.
    pub fn unmount(mut self) -> io::Result<()> {
        self.try_unmount(false)?;
        self.session.take().map_or(Ok(()), BackgroundSession::join)
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
        let (gate, session) = self.gate.as_ref().zip(self.session.as_ref()).ok_or_else(not_live)?;
        match gate.exchange(work, open) {
            Ok(Done::Other(found)) => {
                gate.tell(&session.notifier(), &found);
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
        let flags = (live::flags_of(&old), live::flags_of(&options));
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
        if let Some(session) = self.session.as_ref().filter(|_| old.snapdir != options.snapdir) {
            // The root has a link more or less. A kernel that has not looked at it has nothing to forget.
            let _ = session.notifier().inval_inode(INodeNo::ROOT, -1, 0);
        }
        let lists = old.posix_acl != options.posix_acl;
        if let Some((session, gate)) = self.session.as_ref().zip(self.gate.as_ref()).filter(|_| lists) {
            gate.forget_attributes(&session.notifier());
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
    let name = dataset.name.clone();
    let space = Space::new(Arc::clone(pool), dataset);
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let place = kernel::Place {
        spot: Spot { at: mountpoint, ready: options.ready, inherited: options.inherited },
        source: &name,
        flags: MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME,
        everybody: options.allow_other,
        checked: options.allow_other,
        threads: if options.threads == 0 { cores.max(2) } else { options.threads },
    };
    let spawned = kernel::spawn(Arc::new(fs::Fuse::new(Arc::clone(&space))), &place)?;
    Ok(Mounted::new(spawned, None, space))
}
