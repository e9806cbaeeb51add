//! The cache file: the imported pools, and the paths of their devices.
//!
//! In OpenZFS's format (a packed list of configurations by pool name, XDR), so that its `zdb -U` can read it. It is
//! replaced as a whole in one step, so a crash leaves the old or the new one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nvpair::{NvList, NvValue};
use parking_lot::Mutex;

/// The cache file.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    /// The lock file of the daemon that writes this file, with its device and inode.
    lock: Option<(PathBuf, (u64, u64))>,
    /// Held while the file is read, changed and replaced.
    writing: Mutex<()>,
}

impl Cache {
    /// The file of this path, which may be missing.
    pub fn at(path: PathBuf) -> Self {
        Self { path, lock: None, writing: Mutex::default() }
    }

    /// The file of the daemon that holds `lock`. When the run folder was removed and made again, the same paths belong to another
    /// daemon, and nothing is written.
    pub fn of_daemon(path: PathBuf, lock: PathBuf) -> Self {
        let id = id_of(&lock);
        Self { lock: id.map(|id| (lock, id)), ..Self::at(path) }
    }

    /// Refuses to write a file that belongs to another daemon.
    fn check_owner(&self) -> io::Result<()> {
        let Some((lock, id)) = &self.lock else { return Ok(()) };
        match id_of(lock).is_some_and(|now| now != *id) {
            true => {
                let what = "another daemon writes it now, because this one's run folder was replaced";
                Err(io::Error::other(format!("the cache file {}: {what}", self.path.display())))
            }
            false => Ok(()),
        }
    }

    /// Whether it names no pool. An unreadable file may name some, unless another user prevents this one from
    /// reading it.
    pub fn is_empty(&self) -> bool {
        match self.read() {
            Ok(list) => list.is_empty(),
            Err(e) => matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory),
        }
    }

    /// The pools and their configurations.
    ///
    /// # Errors
    /// If a file exists but cannot be read, or is damaged (`InvalidData`).
    pub fn pools(&self) -> io::Result<Vec<(String, NvList)>> {
        let of = |pair: &nvpair::NvPair| match &pair.value {
            NvValue::List(config) => Some((pair.name.to_string_lossy().into_owned(), config.clone())),
            _ => None,
        };
        Ok(self.read()?.iter().filter_map(of).collect())
    }

    /// Adds a pool or replaces its configuration.
    pub fn put(&self, name: &str, config: NvList) -> io::Result<()> {
        self.change(|list| {
            list.remove(name);
            list.add(name, config);
        })
    }

    /// Removes a pool.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|list| {
            list.remove(name);
        })
    }

    /// The content; empty if there is no file.
    fn read(&self) -> io::Result<NvList> {
        let named = |e: &dyn std::fmt::Display| format!("the cache file {}: {e}", self.path.display());
        match fs::read(&self.path) {
            Ok(bytes) => NvList::decode(&bytes).map_err(|e| {
                io::Error::new(io::ErrorKind::InvalidData, named(&format!("it is damaged: {e}")))
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(NvList::default()),
            Err(e) => Err(io::Error::new(e.kind(), named(&e))),
        }
    }

    /// Like [`Cache::read`], before writing a new file. A damaged file is set aside, because it may still name the
    /// pools.
    fn read_to_replace(&self) -> io::Result<NvList> {
        match self.read() {
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                fs::rename(&self.path, self.path.with_extension("cache.damaged"))?;
                Ok(NvList::default())
            }
            other => other,
        }
    }

    fn change(&self, work: impl FnOnce(&mut NvList)) -> io::Result<()> {
        let _held = self.writing.lock();
        self.check_owner()?;
        let old = self.read_to_replace()?;
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
        // The name must survive a power cut like the content.
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }
}

/// Device and inode of a file that exists.
fn id_of(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
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
        assert_eq!(again.pools().unwrap(), [("tank".to_owned(), config.clone())]);

        // An unreadable file is not an empty one, and is not replaced.
        fs::write(dir.path().join("zpool.cache"), b"torn").unwrap();
        assert_eq!(
            (again.is_empty(), again.pools().unwrap_err().kind()),
            (false, io::ErrorKind::InvalidData)
        );
        cache.put("other", config.clone()).unwrap();
        assert_eq!(fs::read(dir.path().join("zpool.cache.damaged")).unwrap(), b"torn");
        assert_eq!(again.pools().unwrap(), [("other".to_owned(), config.clone())]);
        fs::remove_file(dir.path().join("zpool.cache")).unwrap();
        fs::create_dir(dir.path().join("zpool.cache")).unwrap();
        let why = cache.put("tank", config).unwrap_err().to_string();
        assert!(why.contains("zpool.cache: "), "{why}");
        assert!(!again.is_empty());
    }

    #[test]
    fn a_daemon_whose_folder_was_replaced_leaves_its_successors_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, lock) = (dir.path().join("zpool.cache"), dir.path().join("lock"));
        let config = NvList::new();
        fs::write(&lock, b"1").unwrap();
        let old = Cache::of_daemon(path.clone(), lock.clone());
        old.put("tank", config.clone()).unwrap();
        // The first lock file still exists, so that its inode is not reused.
        fs::rename(&lock, dir.path().join("old")).unwrap();
        old.put("data", config.clone()).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&lock, b"2").unwrap();
        let new = Cache::of_daemon(path, lock);
        new.put("other", config.clone()).unwrap();
        let why = old.put("tank", config.clone()).unwrap_err().to_string();
        assert!(why.contains("another daemon"), "{why}");
        assert!(old.remove("other").is_err());
        assert_eq!(new.pools().unwrap(), [("other".to_owned(), config)]);
    }
}
