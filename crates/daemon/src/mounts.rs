//! Which file systems of a pool are mounted where. How they are mounted is a front's business ([`Mounter`]).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Error, Kind, Result};
use parking_lot::Mutex;

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

    /// Properties of the pool's datasets may have changed: what of them matters to the mount is to be read again.
    fn settings_changed(&self) {}
}

/// A file system and where it is mounted.
#[derive(Debug)]
struct Mounted {
    at: PathBuf,
    mount: Box<dyn Mount>,
}

/// The mounts of a pool, by dataset.
#[derive(Debug, Default)]
pub struct Mounts(Mutex<BTreeMap<String, Mounted>>);

impl Mounts {
    /// Where a dataset is mounted.
    pub fn at(&self, dataset: &str) -> Option<PathBuf> {
        self.0.lock().get(dataset).map(|mounted| mounted.at.clone())
    }

    /// All mounts: dataset and place.
    pub fn all(&self) -> Vec<(String, PathBuf)> {
        self.0.lock().iter().map(|(name, mounted)| (name.clone(), mounted.at.clone())).collect()
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
                Some(rest) => (format!("{new}{rest}"), mounted),
                None => (name, mounted),
            })
            .collect();
    }

    /// Notes a mount that was made.
    pub fn note(&self, dataset: &str, at: PathBuf, mount: Box<dyn Mount>) {
        self.0.lock().insert(dataset.to_owned(), Mounted { at, mount });
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

    /// Unmounts everything, deepest places first.
    pub fn unmount_all(&self, force: bool) -> Result<()> {
        let mut all = self.all();
        all.sort_by(|a, b| b.1.cmp(&a.1));
        all.iter().try_for_each(|(dataset, _)| self.unmount(dataset, force))
    }
}
