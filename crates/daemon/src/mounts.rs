//! Which file systems of a pool are mounted where. How they are mounted is a front's business ([`Mounter`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Error, Kind, Result};
use parking_lot::Mutex;
use zcommon::props::ZfsProp;

use crate::registry::Imported;

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

    /// Properties that options hide, with what is in force.
    fn hidden(&self) -> Hidden;

    /// Properties of the pool's datasets may have changed: what of them matters to the mount is to be read again.
    fn settings_changed(&self) {}

    /// The dataset has another name now.
    fn renamed(&self, _name: &str) {}
}

/// Properties that are on or off for a mount, whatever is set.
pub type Hidden = Vec<(ZfsProp, bool)>;

/// A file system and where it is mounted.
#[derive(Debug)]
struct Mounted {
    at: PathBuf,
    /// Number of the mount: a later one may hide those before it.
    order: u64,
    mount: Box<dyn Mount>,
}

/// The mounts of a pool, by dataset.
#[derive(Debug, Default)]
pub struct Mounts(Mutex<BTreeMap<String, Mounted>>);

impl Mounts {
    /// What somebody unmounted without us is closed.
    fn forget_ended(&self) {
        let ended: Vec<Mounted> = {
            let mut mounts = self.0.lock();
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

    /// Where a dataset is mounted.
    pub fn at(&self, dataset: &str) -> Option<PathBuf> {
        self.forget_ended();
        self.0.lock().get(dataset).map(|mounted| mounted.at.clone())
    }

    /// All mounts: dataset and place.
    pub fn all(&self) -> Vec<(String, PathBuf)> {
        self.forget_ended();
        self.0.lock().iter().map(|(name, mounted)| (name.clone(), mounted.at.clone())).collect()
    }

    /// Mounts at and below a place whose datasets are at and below one, in the order in which they can go: what
    /// came later may hide what came before, or be in it.
    pub fn below(&self, dataset: &str, place: &Path) -> Vec<String> {
        let inside = |name: &str| {
            name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.forget_ended();
        let mounts = self.0.lock();
        let here = |(name, mounted): &(&String, &Mounted)| inside(name) && mounted.at.starts_with(place);
        let mut found: Vec<_> = mounts.iter().filter(here).collect();
        found.sort_by_key(|(_, mounted)| Reverse(mounted.order));
        found.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// Each mount's dataset, and what its options hide.
    pub fn hidden(&self) -> Vec<(String, Hidden)> {
        self.forget_ended();
        self.0.lock().iter().map(|(name, mounted)| (name.clone(), mounted.mount.hidden())).collect()
    }

    /// Gives a mount more options.
    ///
    /// # Errors
    /// `NotFound` when it isn't mounted; what the front says else.
    pub fn remount(&self, dataset: &str, options: &[String]) -> Result<()> {
        let mounts = self.0.lock();
        let mounted =
            mounts.get(dataset).ok_or_else(|| Error::new(Kind::NotFound, "not currently mounted"))?;
        mounted.mount.remount(options)
    }

    /// Tells every mount that properties changed.
    pub fn settings_changed(&self) {
        self.0.lock().values().for_each(|mounted| mounted.mount.settings_changed());
    }

    /// A dataset was renamed with all below it, and stays mounted where it is.
    pub fn renamed(&self, old: &str, new: &str) {
        let mut mounts = self.0.lock();
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
        let mut mounts = self.0.lock();
        let order =
            mounts.values().map(|mounted| mounted.order).max().map_or(0, |last| last.saturating_add(1));
        mounts.insert(dataset.to_owned(), Mounted { at, order, mount });
    }

    /// Unmounts a dataset.
    ///
    /// # Errors
    /// `NotFound` when it isn't mounted; what the front says else, and then it stays in the table.
    pub fn unmount(&self, dataset: &str, force: bool) -> Result<()> {
        let mounted = self.0.lock().remove(dataset);
        let mounted = mounted.ok_or_else(|| Error::new(Kind::NotFound, "not currently mounted"))?;
        let done = mounted.mount.unmount(force);
        if done.is_err() {
            self.0.lock().insert(dataset.to_owned(), mounted);
        }
        done
    }

    /// Unmounts everything, what came last first.
    pub fn unmount_all(&self, force: bool) -> Result<()> {
        let tops: BTreeSet<String> =
            self.0.lock().keys().map(|name| name.split('/').next().unwrap_or(name).to_owned()).collect();
        let all: Vec<String> = tops.iter().flat_map(|top| self.below(top, Path::new("/"))).collect();
        all.iter().try_for_each(|dataset| self.unmount(dataset, force))
    }
}
