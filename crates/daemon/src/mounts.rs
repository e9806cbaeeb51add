//! Which file systems of a pool are mounted where. How they are mounted is a front's business ([`Mounter`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Error, Kind, Result};
use parking_lot::Mutex;
use zcommon::props::ZfsProp;

use crate::registry::Imported;

/// Number of the next mount.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What mounts file systems: a front such as FUSE.
pub trait Mounter: Debug + Send + Sync {
    /// Mounts a file system.
    fn mount(
        &self,
        pool: &Arc<Imported>,
        dataset: &str,
        at: &Path,
        options: &[String],
    ) -> Result<Box<dyn Mount>>;
}

/// A mount that stands.
pub trait Mount: Debug + Send + Sync {
    /// Unmounts it. `Busy` while files are open, unless forced.
    fn unmount(&self, force: bool) -> Result<()>;

    /// True once somebody else has unmounted it.
    fn is_over(&self) -> bool;

    /// Takes more options of a mount command, for as long as it stands.
    fn remount(&self, options: &[String]) -> Result<()>;

    /// Shows the file system at another place, too. It goes there with this mount.
    fn again(&self, _at: &Path, _options: &[String]) -> Result<()> {
        Err(Error::unsupported("it can't be mounted twice"))
    }

    /// Other places where it shows, without links.
    fn also_at(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// The number of its FUSE connection.
    fn connection(&self) -> Option<u32> {
        None
    }

    /// Where it is, without links.
    fn place(&self) -> Option<PathBuf> {
        None
    }

    /// Properties that options hide, with what is in force.
    fn hidden(&self) -> Hidden;

    /// Properties of the pool's datasets may have changed: what of them matters to the mount is to be read again.
    fn settings_changed(&self) {}

    /// Whether somebody works in a snapshot of the dataset, which this mount shows. By its guid.
    fn uses_snapshot(&self, _guid: u64) -> bool {
        false
    }

    /// The dataset has another name now.
    fn renamed(&self, _name: &str) {}

    /// Has `work` take the dataset back to the snapshot `to`, while nobody uses it. It stays mounted, and who has files
    /// of it open that the snapshot has, too, goes on with them.
    ///
    /// # Errors
    /// Those of `work`, and then nothing has changed; `Unsupported` when it must be unmounted for that.
    fn rollback(&self, _to: &str, _work: Work<'_>) -> Result<()> {
        Err(Error::unsupported("this mount can't stay"))
    }
}

/// Something that is done while a mount stands still.
pub type Work<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// Properties that are on or off for a mount, whatever is set.
pub type Hidden = Vec<(ZfsProp, bool)>;

/// How the error of a mount that keeps its pool begins.
pub const CANNOT_UNMOUNT: &str = "cannot unmount";

/// A file system and where it is mounted.
#[derive(Debug)]
struct Mounted {
    at: PathBuf,
    /// Number of the mount in this process: a later one may hide those before it, whatever their pools.
    order: u64,
    mount: Arc<dyn Mount>,
}

/// The mounts of a pool, by dataset.
///
/// Somebody may unmount without us (umount(8)). Such a mount is over at once for who asks what is mounted; closing its
/// file system takes a transaction group, so that is done by who is about to change something ([`Mounts::settle`]),
/// never by who asks: he may be keeping the pool quiet, and no group could end.
#[derive(Debug, Default)]
pub struct Mounts {
    table: Mutex<BTreeMap<String, Mounted>>,
    /// Held while ended mounts are closed, so that who settles after another finds them closed.
    closing: Mutex<()>,
}

impl Mounts {
    /// Closes what somebody unmounted without us. Waits for a transaction group: not for who keeps the pool quiet.
    pub fn settle(&self) {
        let _closing = self.closing.lock();
        let ended: Vec<Mounted> = {
            let mut mounts = self.table.lock();
            let over = mounts.iter().filter(|(_, mounted)| mounted.mount.is_over());
            let over: Vec<String> = over.map(|(name, _)| name.clone()).collect();
            over.iter().filter_map(|name| mounts.remove(name)).collect()
        };
        for mounted in ended {
            if let Err(e) = mounted.mount.unmount(true) {
                eprintln!("{}: its mount ended badly: {e}", mounted.at.display());
            }
        }
    }

    /// Something of each mount that stands.
    fn standing<T>(&self, show: impl Fn(&str, &Mounted) -> T) -> Vec<T> {
        let mounts = self.table.lock();
        let standing = mounts.iter().filter(|(_, mounted)| !mounted.mount.is_over());
        standing.map(|(name, mounted)| show(name, mounted)).collect()
    }

    /// Where a dataset is mounted.
    pub fn at(&self, dataset: &str) -> Option<PathBuf> {
        let mounts = self.table.lock();
        mounts.get(dataset).filter(|mounted| !mounted.mount.is_over()).map(|mounted| mounted.at.clone())
    }

    /// What is mounted at a place, which may be said without links; the latest, when there are several.
    pub fn mounted_at(&self, place: &Path) -> Option<String> {
        let here = |mounted: &Mounted| {
            let mount = &mounted.mount;
            mounted.at == place
                || mount.place().as_deref() == Some(place)
                || mount.also_at().iter().any(|at| at == place)
        };
        let all = self.standing(|name, mounted| here(mounted).then(|| (mounted.order, name.to_owned())));
        all.into_iter().flatten().max().map(|(_, name)| name)
    }

    /// All mounts: dataset and place.
    pub fn all(&self) -> Vec<(String, PathBuf)> {
        self.standing(|name, mounted| (name.to_owned(), mounted.at.clone()))
    }

    /// All mounts with their numbers: those of all pools that came later have higher ones.
    pub fn numbered(&self) -> Vec<(u64, String)> {
        self.standing(|name, mounted| (mounted.order, name.to_owned()))
    }

    /// Mounts at and below a place whose datasets are at and below one, in the order in which they can go: what
    /// came later may hide what came before, or be in it.
    pub fn below(&self, dataset: &str, place: &Path) -> Vec<String> {
        let inside = |name: &str| {
            name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let here = |name: &str, mounted: &Mounted| inside(name) && mounted.at.starts_with(place);
        let all =
            self.standing(|name, mounted| here(name, mounted).then(|| (mounted.order, name.to_owned())));
        let mut found: Vec<(u64, String)> = all.into_iter().flatten().collect();
        found.sort_by_key(|(order, _)| Reverse(*order));
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// Whether a snapshot is mounted by itself, or somebody works in it below `.zfs/snapshot`: it can't be destroyed.
    pub fn uses_snapshot(&self, name: &str, guid: u64) -> bool {
        let head = name.split('@').next().unwrap_or_default();
        let head = self.table.lock().get(head).map(|mounted| Arc::clone(&mounted.mount));
        self.at(name).is_some() || head.is_some_and(|mount| mount.uses_snapshot(guid))
    }

    /// Each mount's dataset, and what its options hide.
    pub fn hidden(&self) -> Vec<(String, Hidden)> {
        self.standing(|name, mounted| (name.to_owned(), mounted.mount.hidden()))
    }

    /// Gives a mount more options.
    ///
    /// # Errors
    /// `NotFound` when it isn't mounted; what the front says else.
    pub fn remount(&self, dataset: &str, options: &[String]) -> Result<()> {
        let found = self.table.lock().get(dataset).map(|mounted| Arc::clone(&mounted.mount));
        found.ok_or_else(|| Error::new(Kind::NotFound, "not currently mounted"))?.remount(options)
    }

    /// Shows a mounted dataset at another place, too, see [`Mount::again`].
    ///
    /// # Errors
    /// `NotFound` when it isn't mounted; what the front says else.
    pub fn again(&self, dataset: &str, at: &Path, options: &[String]) -> Result<()> {
        let found = self.table.lock().get(dataset).map(|mounted| Arc::clone(&mounted.mount));
        found.ok_or_else(|| Error::new(Kind::NotFound, "not currently mounted"))?.again(at, options)
    }

    /// Has `work` take a mounted dataset back to a snapshot, see [`Mount::rollback`].
    ///
    /// # Errors
    /// `NotFound` when it isn't mounted; what the mount says else.
    pub fn rollback(&self, dataset: &str, to: &str, work: Work<'_>) -> Result<()> {
        let mount = {
            let mounts = self.table.lock();
            let standing = mounts.get(dataset).filter(|mounted| !mounted.mount.is_over());
            standing.map(|mounted| Arc::clone(&mounted.mount))
        };
        mount.ok_or_else(|| Error::new(Kind::NotFound, "not currently mounted"))?.rollback(to, work)
    }

    /// Tells every mount that properties changed.
    pub fn settings_changed(&self) {
        // The table stays open meanwhile: the kernel may have to write out files, which waits for who asks.
        let all = self.standing(|_, mounted| Arc::clone(&mounted.mount));
        all.iter().for_each(|mount| mount.settings_changed());
    }

    /// A dataset was renamed with all below it, and stays mounted where it is.
    pub fn renamed(&self, old: &str, new: &str) {
        let mut mounts = self.table.lock();
        let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
        *mounts = std::mem::take(&mut *mounts)
            .into_iter()
            .map(|(name, mounted)| match name.strip_prefix(old).filter(|rest| below(rest)) {
                Some(rest) => {
                    let name = format!("{new}{rest}");
                    mounted.mount.renamed(&name);
                    (name, mounted)
                }
                None => (name, mounted),
            })
            .collect();
    }

    /// Notes a mount that was made.
    pub fn note(&self, dataset: &str, at: PathBuf, mount: Box<dyn Mount>) {
        let order = NEXT.fetch_add(1, Ordering::Relaxed);
        if let Some(number) = mount.connection() {
            crate::connections::note(number, dataset);
        }
        self.table.lock().insert(dataset.to_owned(), Mounted { at, order, mount: mount.into() });
    }

    /// Unmounts a dataset.
    ///
    /// # Errors
    /// `NotFound` when it isn't mounted; what the front says else, and then it stays in the table.
    pub fn unmount(&self, dataset: &str, force: bool) -> Result<()> {
        self.settle();
        let mounted = self.table.lock().remove(dataset);
        let mounted = mounted.ok_or_else(|| Error::new(Kind::NotFound, "not currently mounted"))?;
        let done = mounted.mount.unmount(force);
        if done.is_err() {
            self.table.lock().insert(dataset.to_owned(), mounted);
        }
        done
    }

    /// Unmounts everything, what came last first.
    ///
    /// # Errors
    /// Of the first that stays: a sentence that begins with [`CANNOT_UNMOUNT`] and names its place.
    pub fn unmount_all(&self, force: bool) -> Result<()> {
        self.settle();
        let tops: BTreeSet<String> =
            self.table.lock().keys().map(|name| name.split('/').next().unwrap_or(name).to_owned()).collect();
        let all: Vec<String> = tops.iter().flat_map(|top| self.below(top, Path::new("/"))).collect();
        all.iter().try_for_each(|dataset| {
            let at = self.at(dataset).unwrap_or_default();
            self.unmount(dataset, force).map_err(|e| {
                Error::new(e.kind(), format!("{CANNOT_UNMOUNT} '{}': {}", at.display(), e.what()))
            })
        })
    }
}
