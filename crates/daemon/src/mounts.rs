//! The mounted file systems of a pool and their paths. A front end does the mounting ([`Mounter`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Error, Kind, Result};
use parking_lot::Mutex;
use zcommon::props::ZfsProp;

use crate::imported::Imported;
use crate::parallel;

/// Maximum concurrent mounts and unmounts: each waits for the kernel and a child.
const AT_ONCE: usize = 8;

/// The system's list of mounts.
const LISTED: &str = "/proc/self/mountinfo";

/// Number of the next mount.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Mounts file systems: a front end such as FUSE.
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

/// An active mount.
pub trait Mount: Debug + Send + Sync {
    /// Removes it from the tree and begins the work that [`Mount::unmount`] completes: to unmount many, detach all
    /// of them first, and wait once. `Busy` as there.
    fn detach(&self, _force: bool) -> Result<()> {
        Ok(())
    }

    /// Unmounts it. `Busy` while files are open, unless forced.
    fn unmount(&self, force: bool) -> Result<()>;

    /// Whether another process has unmounted it.
    fn is_over(&self) -> bool;

    /// Whether another process has detached it while files are open: no path leads to it.
    fn is_detached(&self) -> bool {
        false
    }

    /// Applies more options of a mount command, until the unmount.
    fn remount(&self, options: &[String]) -> Result<()>;

    /// Shows the file system at another path, too. It disappears from there with this mount.
    fn again(&self, _at: &Path, _options: &[String]) -> Result<()> {
        Err(Error::unsupported("it cannot be mounted twice"))
    }

    /// The other paths where it appears, with links resolved.
    fn also_at(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// The number of its FUSE connection, from the system's list of mounts.
    fn connection(&self, _listed: &[u8]) -> Option<u32> {
        None
    }

    /// Its path, with links resolved.
    fn place(&self) -> Option<PathBuf> {
        None
    }

    /// Properties that options override, with the effective values.
    fn hidden(&self) -> Hidden;

    /// Properties of the pool's datasets may have changed: the mount must read its own again.
    ///
    /// # Errors
    /// If the kernel cannot be told; the properties apply nevertheless as far as the front end can apply them.
    fn settings_changed(&self) -> Result<()> {
        Ok(())
    }

    /// Has the next [`Mount::settings_changed`] tell the kernel all flags of the mount: another program may have changed them.
    fn forget_flags(&self) {}

    /// Whether a snapshot of the dataset is in use through this mount. By its guid.
    fn uses_snapshot(&self, _guid: u64) -> bool {
        false
    }

    /// The dataset has been renamed.
    fn renamed(&self, _name: &str) {}

    /// Runs `work`, which rolls the dataset back to the snapshot `to`, while all access is held back. It stays
    /// mounted, and open files that also exist in the snapshot stay open.
    ///
    /// # Errors
    /// Errors of `work`, and then nothing has changed; `Unsupported` if it must be unmounted first.
    fn rollback(&self, _to: &str, _work: Work<'_>) -> Result<()> {
        Err(Error::unsupported("this mount cannot stay"))
    }
}

/// Work to be done while a mount is quiescent.
pub type Work<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// Properties with a fixed value for a mount, whatever is set.
pub type Hidden = Vec<(ZfsProp, bool)>;

/// The prefix of the error of a mount that holds its pool.
pub const CANNOT_UNMOUNT: &str = "cannot unmount";

/// A file system and its mountpoint.
#[derive(Debug)]
struct Mounted {
    at: PathBuf,
    /// Number of the mount in this process: a later one may hide earlier ones of any pool.
    order: u64,
    mount: Arc<dyn Mount>,
}

/// The mounts of a pool, by dataset.
///
/// Another process may unmount (umount(8)). Such a mount no longer appears in queries; closing its file system
/// takes a txg, so a caller that is about to change something does it ([`Mounts::settle`]), never a query: the
/// caller of a query may be keeping the pool quiet, and no txg could end.
#[derive(Debug, Default)]
pub struct Mounts {
    table: Mutex<BTreeMap<String, Mounted>>,
    /// Held while ended mounts are closed, so that a concurrent caller of `settle` finds them closed.
    closing: Mutex<()>,
}

impl Mounts {
    /// Closes mounts that were unmounted by another process. Waits for a txg, so a caller that keeps the pool quiet
    /// must not call it.
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
                eprintln!("{}: closing its mount failed: {e}", mounted.at.display());
            }
        }
    }

    /// Applies `show` to each active mount.
    fn standing<T>(&self, show: impl Fn(&str, &Mounted) -> T) -> Vec<T> {
        let mounts = self.table.lock();
        let standing = mounts.iter().filter(|(_, mounted)| !mounted.mount.is_over());
        standing.map(|(name, mounted)| show(name, mounted)).collect()
    }

    /// The mountpoint of a dataset.
    pub fn at(&self, dataset: &str) -> Option<PathBuf> {
        let mounts = self.table.lock();
        mounts.get(dataset).filter(|mounted| !mounted.mount.is_over()).map(|mounted| mounted.at.clone())
    }

    /// The dataset mounted at a path with or without links; the latest if there are several.
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

    /// All mounts: dataset and path.
    pub fn all(&self) -> Vec<(String, PathBuf)> {
        self.standing(|name, mounted| (name.to_owned(), mounted.at.clone()))
    }

    /// All mounts with their numbers: later mounts of any pool have higher ones.
    pub fn numbered(&self) -> Vec<(u64, String)> {
        self.standing(|name, mounted| (mounted.order, name.to_owned()))
    }

    /// Mounts at and below a path whose datasets are at and below one, in a valid order of unmounting: a later
    /// mount may hide an earlier one, or be inside it.
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

    /// Whether a snapshot is mounted by itself, or in use below `.zfs/snapshot`: it cannot be destroyed.
    pub fn uses_snapshot(&self, name: &str, guid: u64) -> bool {
        let head = name.split('@').next().unwrap_or_default();
        let head = self.table.lock().get(head).map(|mounted| Arc::clone(&mounted.mount));
        self.at(name).is_some() || head.is_some_and(|mount| mount.uses_snapshot(guid))
    }

    /// Each mount's dataset, and the properties that its options override.
    pub fn hidden(&self) -> Vec<(String, Hidden)> {
        self.standing(|name, mounted| (name.to_owned(), mounted.mount.hidden()))
    }

    /// Adds options to a mount.
    ///
    /// # Errors
    /// `NotFound` if it is not mounted; otherwise the front end's error.
    pub fn remount(&self, dataset: &str, options: &[String]) -> Result<()> {
        let found = self.table.lock().get(dataset).map(|mounted| Arc::clone(&mounted.mount));
        found.ok_or_else(|| Error::new(Kind::NotFound, "not currently mounted"))?.remount(options)
    }

    /// Shows a mounted dataset at another path, too, see [`Mount::again`].
    ///
    /// # Errors
    /// `NotFound` if it is not mounted; otherwise the front end's error.
    pub fn again(&self, dataset: &str, at: &Path, options: &[String]) -> Result<()> {
        let found = self.table.lock().get(dataset).map(|mounted| Arc::clone(&mounted.mount));
        found.ok_or_else(|| Error::new(Kind::NotFound, "not currently mounted"))?.again(at, options)
    }

    /// Runs `work`, which rolls a mounted dataset back to a snapshot, see [`Mount::rollback`].
    ///
    /// # Errors
    /// `NotFound` if it is not mounted; otherwise the mount's error.
    pub fn rollback(&self, dataset: &str, to: &str, work: Work<'_>) -> Result<()> {
        let mount = {
            let mounts = self.table.lock();
            let standing = mounts.get(dataset).filter(|mounted| !mounted.mount.is_over());
            standing.map(|mounted| Arc::clone(&mounted.mount))
        };
        mount.ok_or_else(|| Error::new(Kind::NotFound, "not currently mounted"))?.rollback(to, work)
    }

    /// Has the next [`Mounts::settings_changed`] tell the kernel all flags of a dataset's mount, whatever it was told before.
    pub fn forget_flags(&self, dataset: &str) {
        let found = self.table.lock().get(dataset).map(|mounted| Arc::clone(&mounted.mount));
        if let Some(mount) = found {
            mount.forget_flags();
        }
    }

    /// Notifies the mounts at and below `dataset` that properties changed; returns the failures.
    pub fn settings_changed(&self, dataset: &str) -> Vec<(PathBuf, Error)> {
        // The table stays unlocked meanwhile: the kernel may have to write out files, which waits for callers of
        // queries.
        let concerned = |name: &str| {
            name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let all = self.standing(|name, mounted| {
            concerned(name).then(|| (mounted.at.clone(), Arc::clone(&mounted.mount)))
        });
        let all: Vec<_> = all.into_iter().flatten().collect();
        let done = at_once(&all, |(_, mount)| mount.settings_changed());
        let failed = all.into_iter().zip(done).filter_map(|((at, _), done)| Some((at, done.err()?)));
        failed.collect()
    }

    /// A dataset was renamed with all below it, and stays mounted at its path.
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

    /// Records a new mount.
    pub fn note(&self, dataset: &str, at: PathBuf, mount: Box<dyn Mount>) {
        self.note_all(vec![Made { dataset: dataset.to_owned(), at, mount }]);
    }

    /// Records new mounts. The system's list of mounts is read once for all of them.
    pub fn note_all(&self, made: Vec<Made>) {
        let listed = if made.is_empty() { Vec::new() } else { std::fs::read(LISTED).unwrap_or_default() };
        for Made { dataset, at, mount } in made {
            let order = NEXT.fetch_add(1, Ordering::Relaxed);
            if let Some(number) = mount.connection(&listed) {
                crate::connections::note(number, &dataset);
                crate::connections::widen_read_ahead(number);
            }
            self.table.lock().insert(dataset, Mounted { at, order, mount: mount.into() });
        }
    }

    /// Whether another process has detached the dataset's mount while files are open, see [`Mount::is_detached`].
    pub fn is_detached(&self, dataset: &str) -> bool {
        let mount = self.table.lock().get(dataset).map(|mounted| Arc::clone(&mounted.mount));
        mount.is_some_and(|mount| mount.is_detached())
    }

    /// Unmounts a dataset.
    ///
    /// # Errors
    /// `NotFound` if it is not mounted; otherwise the front end's error, and then it stays in the table.
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

    /// Unmounts everything, the latest first.
    ///
    /// # Errors
    /// The error of the first mount that stays: a message that begins with [`CANNOT_UNMOUNT`] and names its path.
    pub fn unmount_all(&self, force: bool) -> Result<()> {
        let mut all = self.numbered();
        all.sort_by_key(|(order, _)| Reverse(*order));
        let names: Vec<String> = all.into_iter().map(|(_, name)| name).collect();
        match self.unmount_many(&names, force, true).into_iter().next() {
            Some(Stays { at, why, .. }) => {
                let what = format!("{CANNOT_UNMOUNT} '{}': {}", at.display(), why.what());
                Err(Error::new(why.kind(), what))
            }
            None => Ok(()),
        }
    }

    /// Unmounts datasets, listed in a valid order of unmounting: unrelated ones concurrently, and all with one txg.
    /// Skips those that are not mounted. Returns those that stay. `stop`: after a failure the remaining ones stay,
    /// too.
    pub fn unmount_many(&self, names: &[String], force: bool, stop: bool) -> Vec<Stays> {
        self.settle();
        let _closing = self.closing.lock();
        let all = self.going(names);
        let places: Vec<&Path> = all.iter().map(|one| one.at.as_path()).collect();
        let (mut gone, mut stay) = (Vec::new(), Vec::new());
        for round in rounds(&places) {
            let together: Vec<&Going> = round.into_iter().filter_map(|at| all.get(at)).collect();
            let done = at_once(&together, |one| one.mount.detach(force));
            for (one, done) in together.into_iter().zip(done) {
                match done {
                    Ok(()) => gone.push(one),
                    Err(why) => stay.push(one.stays(why)),
                }
            }
            if stop && !stay.is_empty() {
                break;
            }
        }
        // The first one waits for the txg of all.
        for one in gone {
            match one.mount.unmount(force) {
                Ok(()) => self.forget(one),
                Err(why) => stay.push(one.stays(why)),
            }
        }
        stay
    }

    fn going(&self, names: &[String]) -> Vec<Going> {
        let table = self.table.lock();
        let of = |name: &String| {
            let Mounted { at, mount, .. } = table.get(name)?;
            Some(Going { name: name.clone(), at: at.clone(), mount: Arc::clone(mount) })
        };
        names.iter().filter_map(of).collect()
    }

    /// Removes an unmounted file system from the table, under its current name.
    fn forget(&self, one: &Going) {
        let mut table = self.table.lock();
        let is_it = |mounted: &Mounted| Arc::ptr_eq(&mounted.mount, &one.mount);
        if table.get(&one.name).is_some_and(is_it) {
            table.remove(&one.name);
        } else {
            table.retain(|_, mounted| !is_it(mounted));
        }
    }
}

/// A new mount that is not recorded yet.
#[derive(Debug)]
pub struct Made {
    /// The dataset.
    pub dataset: String,
    /// Its mountpoint.
    pub at: PathBuf,
    /// The mount.
    pub mount: Box<dyn Mount>,
}

/// A mount to be unmounted.
struct Going {
    name: String,
    at: PathBuf,
    mount: Arc<dyn Mount>,
}

impl Going {
    fn stays(&self, why: Error) -> Stays {
        Stays { name: self.name.clone(), at: self.at.clone(), why }
    }
}

/// A mount that could not be unmounted.
#[derive(Debug)]
pub struct Stays {
    /// The dataset.
    pub name: String,
    /// Its mountpoint.
    pub at: PathBuf,
    /// The reason.
    pub why: Error,
}

/// Divides mounts, listed in a valid order, into rounds: the paths of one round are unrelated, and each comes in a
/// later round than all earlier ones that are at, above or below its path.
pub fn rounds(places: &[&Path]) -> Vec<Vec<usize>> {
    let (mut here, mut below): (HashMap<&Path, usize>, HashMap<&Path, usize>) = Default::default();
    let mut all: Vec<Vec<usize>> = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let above = place.ancestors().filter_map(|at| here.get(at));
        let last = above.chain(below.get(place)).max();
        let round = last.map_or(0, |last| last + 1);
        here.insert(place, round);
        for at in place.ancestors() {
            let last = below.entry(at).or_default();
            *last = round.max(*last);
        }
        all.resize_with(all.len().max(round + 1), Vec::new);
        if let Some(round) = all.get_mut(round) {
            round.push(index);
        }
    }
    all
}

/// Applies `work` to many mounts concurrently; returns the results in order.
pub fn at_once<T: Sync, R: Send>(things: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    parallel::map(things, AT_ONCE, work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_are_apart_go_in_one_round() {
        let places = ["/p", "/p/a", "/p/b", "/p/b/c", "/q", "/p/b", "/p/ab"].map(Path::new);
        assert_eq!(rounds(&places), [vec![0, 4], vec![1, 2, 6], vec![3], vec![5]]);
        let back = ["/p/b/c", "/p/b", "/p/a", "/p", "/"].map(Path::new);
        assert_eq!(rounds(&back), [vec![0, 2], vec![1], vec![3], vec![4]]);
    }

    #[test]
    fn answers_come_in_order() {
        let numbers: Vec<usize> = (0..100).collect();
        assert_eq!(at_once(&numbers, |n| n * 2), numbers.iter().map(|n| n * 2).collect::<Vec<_>>());
    }

    /// A mount that fails to unmount on request, and logs the calls.
    #[derive(Debug)]
    struct Fake(&'static str, bool, Arc<Mutex<Vec<String>>>);

    impl Mount for Fake {
        fn detach(&self, _: bool) -> Result<()> {
            self.2.lock().push(format!("detach {}", self.0));
            if self.1 { Err(Error::new(Kind::Busy, "busy")) } else { Ok(()) }
        }

        fn unmount(&self, _: bool) -> Result<()> {
            self.2.lock().push(format!("unmount {}", self.0));
            Ok(())
        }

        fn is_over(&self) -> bool {
            false
        }

        fn remount(&self, _: &[String]) -> Result<()> {
            Ok(())
        }

        fn hidden(&self) -> Hidden {
            Hidden::new()
        }
    }

    #[test]
    fn all_are_detached_before_the_first_is_waited_for() {
        let (mounts, log) = (Mounts::default(), Arc::<Mutex<Vec<String>>>::default());
        for (name, stays) in [("p", false), ("p/a", false), ("p/b", true)] {
            mounts.note(name, format!("/{name}").into(), Box::new(Fake(name, stays, Arc::clone(&log))));
        }
        let why = mounts.unmount_all(false).unwrap_err();
        assert!(why.to_string().contains("cannot unmount '/p/b': busy"), "{why}");
        log.lock().sort();
        // A mount below the one that stays is tried in a later round, and so it stays, too.
        assert_eq!(*log.lock(), ["detach p/a", "detach p/b", "unmount p/a"]);
        assert_eq!(mounts.all().len(), 2);
    }
}
