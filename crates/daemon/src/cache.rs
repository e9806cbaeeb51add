//! The cache file: which pools are imported, and where their devices are.
//!
//! In OpenZFS's form (a packed list of configurations by pool name, XDR), so that its `zdb -U` can read it. It is
//! replaced as a whole and in one step, so a crash leaves the old or the new one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nvpair::{NvList, NvValue};
use parking_lot::Mutex;

/// The cache file.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    /// Held while the file is read, changed and replaced.
    writing: Mutex<()>,
}

impl Cache {
    /// The file of this path, which need not exist.
    pub fn at(path: PathBuf) -> Self {
        Self { path, writing: Mutex::default() }
    }

    /// Whether it names no pool.
    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// The pools and their configurations. A file that can't be read names none.
    pub fn pools(&self) -> Vec<(String, NvList)> {
        let of = |pair: &nvpair::NvPair| match &pair.value {
            NvValue::List(config) => Some((pair.name.to_string_lossy().into_owned(), config.clone())),
            _ => None,
        };
        self.read().iter().filter_map(of).collect()
    }

    /// Adds a pool or replaces what is said of it.
    pub fn put(&self, name: &str, config: NvList) -> io::Result<()> {
        self.change(|list| {
            list.remove(name);
            list.add(name, config);
        })
    }

    /// Forgets a pool.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|list| {
            list.remove(name);
        })
    }

    fn read(&self) -> NvList {
        fs::read(&self.path).ok().and_then(|bytes| NvList::decode(&bytes).ok()).unwrap_or_default()
    }

    fn change(&self, work: impl FnOnce(&mut NvList)) -> io::Result<()> {
        let _held = self.writing.lock();
        let old = self.read();
        let mut list = old.clone();
        work(&mut list);
        if list == old {
            return Ok(());
        }
        if list.is_empty() {
            return fs::remove_file(&self.path);
        }
        let bytes = list.encode_xdr().map_err(|e| io::Error::other(e.to_string()))?;
        let new = self.path.with_extension("cache.new");
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        // The name must survive a power cut as the content does.
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("zpool.cache"));
        assert!(cache.is_empty());
        let mut config = NvList::new();
        config.add("name", "tank");
        cache.put("tank", config.clone()).unwrap();
        cache.put("other", config.clone()).unwrap();
        cache.remove("other").unwrap();
        let again = Cache::at(dir.path().join("zpool.cache"));
        assert_eq!(again.pools(), [("tank".to_owned(), config)]);
        fs::write(dir.path().join("zpool.cache"), b"torn").unwrap();
        assert!(again.is_empty());
    }
}
