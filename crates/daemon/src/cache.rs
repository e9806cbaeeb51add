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
    /// Held while the file is read, changed and replaced: the content that this process has read or written last.
    last: Mutex<Option<NvList>>,
    /// The notice on a damaged file that was replaced.
    replaced: Mutex<Option<String>>,
}

impl Cache {
    /// The file of this path, which may be missing.
    pub fn at(path: PathBuf) -> Self {
        Self { path, lock: None, last: Mutex::default(), replaced: Mutex::default() }
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

    /// Whether it names no pool. A file that another user prevents this one from reading counts as empty.
    ///
    /// # Errors
    /// If it cannot be read otherwise, or is damaged: it may name some. The text says what to do.
    pub fn is_empty(&self) -> io::Result<bool> {
        match self.read() {
            Ok(list) => Ok(list.is_empty()),
            Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory) => {
                Ok(true)
            }
            Err(e) => Err(io::Error::new(e.kind(), format!("{e}; {}", self.way_out()))),
        }
    }

    fn way_out(&self) -> String {
        let path = self.path.display();
        format!(
            "the pools that it names are not imported: move it away ('mv {path} {path}.damaged') and use 'zpool import'"
        )
    }

    /// Notices since the last call: a damaged file was replaced.
    pub fn take_note(&self) -> Option<String> {
        self.replaced.lock().take()
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

    /// Like [`Cache::read`], before writing a new file. A damaged file is set aside, because it may still name pools that this
    /// process does not know; those that it knows are in the new file.
    fn read_to_replace(&self, last: Option<&NvList>) -> io::Result<NvList> {
        match self.read() {
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                let aside = self.aside();
                fs::rename(&self.path, &aside)?;
                let lost = match last {
                    Some(_) => "the pools that are imported are in the new file",
                    None => "the pools that it named are not imported: search for them with 'zpool import'",
                };
                let note = format!("{e}; it was moved to {}; {lost}", aside.display());
                *self.replaced.lock() = Some(note);
                Ok(last.cloned().unwrap_or_default())
            }
            other => other,
        }
    }

    /// A free name for a damaged file.
    fn aside(&self) -> PathBuf {
        let first = self.path.with_extension("cache.damaged");
        let others = (2..).map(|number: u64| self.path.with_extension(format!("cache.damaged{number}")));
        let mut all = std::iter::once(first.clone()).chain(others);
        all.find(|path| fs::symlink_metadata(path).is_err()).unwrap_or(first)
    }

    fn change(&self, work: impl FnOnce(&mut NvList)) -> io::Result<()> {
        let mut last = self.last.lock();
        self.check_owner()?;
        let old = self.read_to_replace(last.as_ref())?;
        let mut list = old.clone();
        work(&mut list);
        if list == old && self.path.exists() != list.is_empty() {
            return Ok(());
        }
        let named =
            |e: io::Error| io::Error::new(e.kind(), format!("the cache file {}: {e}", self.path.display()));
        self.write(&list).map_err(named)?;
        *last = Some(list);
        Ok(())
    }

    fn write(&self, list: &NvList) -> io::Result<()> {
        if list.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
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
        assert!(cache.is_empty().unwrap());
        let mut config = NvList::new();
        config.add("name", "tank");
        cache.put("tank", config.clone()).unwrap();
        cache.put("other", config.clone()).unwrap();
        cache.remove("other").unwrap();
        let again = Cache::at(dir.path().join("zpool.cache"));
        assert_eq!(again.pools().unwrap(), [("tank".to_owned(), config.clone())]);

        // An unreadable file is not an empty one, and is not replaced. The entries of this process stay.
        fs::write(dir.path().join("zpool.cache"), b"torn").unwrap();
        let why = again.is_empty().unwrap_err();
        assert!(
            why.kind() == io::ErrorKind::InvalidData && why.to_string().contains("zpool import"),
            "{why}"
        );
        assert_eq!(again.pools().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(cache.take_note(), None);
        cache.put("other", config.clone()).unwrap();
        assert_eq!(fs::read(dir.path().join("zpool.cache.damaged")).unwrap(), b"torn");
        let both = ["tank", "other"].map(|name| (name.to_owned(), config.clone()));
        assert_eq!(again.pools().unwrap(), both);
        assert!(cache.take_note().unwrap().contains("zpool.cache.damaged") && cache.take_note().is_none());
        // A process that knows nothing of the pools says so, and keeps the second damaged file, too.
        fs::write(dir.path().join("zpool.cache"), b"torn again").unwrap();
        let later = Cache::at(dir.path().join("zpool.cache"));
        later.put("new", config.clone()).unwrap();
        assert!(later.take_note().unwrap().contains("not imported"));
        assert_eq!(fs::read(dir.path().join("zpool.cache.damaged")).unwrap(), b"torn");
        assert_eq!(fs::read(dir.path().join("zpool.cache.damaged2")).unwrap(), b"torn again");
        fs::remove_file(dir.path().join("zpool.cache")).unwrap();
        fs::create_dir(dir.path().join("zpool.cache")).unwrap();
        let why = cache.put("tank", config).unwrap_err().to_string();
        assert!(why.contains("zpool.cache: "), "{why}");
        assert!(again.is_empty().is_err());
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
