//! Which file systems of a pool are mounted where. How they are mounted is a front's business ([`Mounter`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use engine::{Error, Kind, Result};
use parking_lot::Mutex;
use zcommon::props::ZfsProp;

use crate::registry::Imported;
use crate::server::STACK;

/// Mounts that are made or taken away at the same time: each waits for the kernel and a child.
const AT_ONCE: usize = 8;

/// The system's list of mounts.
const LISTED: &str = "/proc/self/mountinfo";

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
    /// Takes it out of the tree, and begins what [`Mount::unmount`] ends: who unmounts many detaches all of them first, and
    /// waits once. `Busy` as there.
    fn detach(&self, _force: bool) -> Result<()> {
        Ok(())
    }

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

    /// The number of its FUSE connection, of which the system's list of mounts tells.
    fn connection(&self, _listed: &[u8]) -> Option<u32> {
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
        at_once(&all, |mount| mount.settings_changed());
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
        self.note_all(vec![Made { dataset: dataset.to_owned(), at, mount }]);
    }

    /// Notes mounts that were made. The system's list of mounts is read once for all of them.
    pub fn note_all(&self, made: Vec<Made>) {
        let listed = if made.is_empty() { Vec::new() } else { std::fs::read(LISTED).unwrap_or_default() };
        for Made { dataset, at, mount } in made {
            let order = NEXT.fetch_add(1, Ordering::Relaxed);
            if let Some(number) = mount.connection(&listed) {
                crate::connections::note(number, &dataset);
            }
            self.table.lock().insert(dataset, Mounted { at, order, mount: mount.into() });
        }
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

    /// Unmounts datasets, which are named in an order in which they can go: those that have nothing to do with one another
    /// at the same time, and all with one transaction group. What is not mounted is passed over. Gives those that stay.
    /// `stop`: after a failure what is not yet gone stays, too.
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
        // The first waits for the group of all.
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

    /// Takes what was unmounted out of the table, under the name that it has now.
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

/// A mount that was made and is not noted yet.
#[derive(Debug)]
pub struct Made {
    /// The dataset.
    pub dataset: String,
    /// Where it is mounted.
    pub at: PathBuf,
    /// The mount.
    pub mount: Box<dyn Mount>,
}

/// A mount that is to go.
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

/// A mount that did not go.
#[derive(Debug)]
pub struct Stays {
    /// The dataset.
    pub name: String,
    /// Where it is mounted.
    pub at: PathBuf,
    /// Why.
    pub why: Error,
}

/// Divides mounts, given in an order that is right, into rounds: those of one round have places apart from one another,
/// and each comes in a later round than all before it that are at, above or below its place.
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

/// Does the same with many things side by side; gives what came of each, in their order.
pub fn at_once<T: Sync, R: Send>(things: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let some = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(thing) = things.get(at) else { return done };
            done.push((at, work(thing)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let helper = |_| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, some).ok();
        let helpers: Vec<_> = (1..things.len().min(AT_ONCE)).filter_map(helper).collect();
        let mut done = some();
        for helper in helpers {
            match helper.join() {
                Ok(theirs) => done.extend(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, done)| done).collect()
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

    /// A mount that stays when it is told so, and writes down what was done.
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
        // What is below the one that stays is tried in a later round, and so it stays, too.
        assert_eq!(*log.lock(), ["detach p/a", "detach p/b", "unmount p/a"]);
        assert_eq!(mounts.all().len(), 2);
    }
}
