//! The pool imported into this process, without a mount: `--no-mount`.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use blkdev::OpenMode;
use clikit::verb::Failure;
use engine::env::Env;
use engine::spa::{ImportOptions, Spa, import};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, mount};

use super::store::{Opened, Store};

/// A pool of this process, and its file systems.
#[derive(Debug)]
pub struct EnginePool {
    spa: Arc<Spa>,
    systems: BTreeMap<String, Arc<FsWriter>>,
}

fn failed(e: engine::Error) -> Failure {
    Failure::from(e)
}

fn os(e: engine::Error) -> io::Error {
    io::Error::other(e.to_string())
}

impl EnginePool {
    /// Imports pool `name` from exactly these devices, with a cache of `cache` bytes, and opens its file systems `datasets`.
    ///
    /// # Errors
    /// If it cannot be imported or one of its file systems cannot be opened.
    pub fn import(disks: &[PathBuf], name: &str, datasets: &[String], cache: u64) -> Result<Self, Failure> {
        let candidate = zutil::import::select(zutil::import::candidates(disks), name).map_err(failed)?;
        let options = blkdev::OpenOptions { mode: OpenMode::ReadWrite, ..blkdev::OpenOptions::default() };
        let host = ImportOptions {
            hostid: zutil::import_status::system_hostid(),
            hostname: "aquifer-bench".to_owned(),
            ..ImportOptions::default()
        };
        let env = Env::system(cache).map_err(failed)?;
        let spa = import(&env, zutil::import::source_with(&candidate, options), &host).map_err(failed)?;
        let mut pool = Self { spa, systems: BTreeMap::new() };
        pool.spa.start_thread().map_err(failed)?;
        for dataset in datasets {
            match mount(&pool.spa, &format!("{name}/{dataset}"), Overrides::default()) {
                Ok(fs) => drop(pool.systems.insert(dataset.clone(), fs)),
                Err(e) => {
                    // The first failure is the one to report.
                    let _ = pool.export();
                    return Err(failed(e));
                }
            }
        }
        Ok(pool)
    }

    /// Waits until everything is on disk.
    ///
    /// # Errors
    /// Errors of the devices.
    pub fn sync(&self) -> Result<(), Failure> {
        self.spa.sync().map(drop).map_err(failed)
    }

    /// Closes the file systems and exports the pool.
    ///
    /// # Errors
    /// Errors of the devices.
    pub fn export(self) -> Result<(), Failure> {
        for fs in self.systems.values() {
            fs.unmount().map_err(failed)?;
        }
        drop(self.systems);
        self.spa.export().map_err(failed)
    }

    /// The file system, the directory's object and the last name of a path.
    fn place<'a>(&self, path: &'a str) -> io::Result<(&Arc<FsWriter>, u64, &'a str)> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let (dataset, rest) = path.split_once('/').ok_or_else(missing)?;
        let fs = self.systems.get(dataset).ok_or_else(missing)?;
        let Some((dir, name)) = rest.split_once('/') else { return Ok((fs, fs.root, rest)) };
        let dir = fs.dirs().lookup(fs.root, dir.as_bytes()).map_err(os)?.ok_or_else(missing)?;
        Ok((fs, dir.object, name))
    }

    fn make(&self, path: &str, kind: FileKind, perm: u64) -> io::Result<EngineFile<'_>> {
        let (fs, dir, name) = self.place(path)?;
        let number = fs.dirs().create(dir, name.as_bytes(), &NewNode::new(kind, perm, 0, 0)).map_err(os)?;
        Ok(EngineFile { fs, number })
    }

    fn find(&self, path: &str) -> io::Result<EngineFile<'_>> {
        let (fs, dir, name) = self.place(path)?;
        let entry = fs.dirs().lookup(dir, name.as_bytes()).map_err(os)?;
        let entry = entry.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(EngineFile { fs, number: entry.object })
    }
}

impl Store for EnginePool {
    fn mkdir(&self, path: &str) -> io::Result<()> {
        self.make(path, FileKind::Directory, 0o755).map(drop)
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn Opened + '_>> {
        Ok(Box::new(self.make(path, FileKind::Regular, 0o644)?))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn Opened + '_>> {
        Ok(Box::new(self.find(path)?))
    }

    fn stat(&self, path: &str) -> io::Result<u64> {
        let file = self.find(path)?;
        // As st_blocks: units of 512 bytes.
        file.fs.attrs().get(file.number).map(|attr| attr.blocks * 512).map_err(os)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let (fs, dir, name) = self.place(path)?;
        fs.dirs().unlink(dir, name.as_bytes()).map_err(os)
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        let (fs, dir, name) = self.place(path)?;
        fs.dirs().rmdir(dir, name.as_bytes()).map_err(os)
    }
}

#[derive(Debug)]
struct EngineFile<'a> {
    fs: &'a Arc<FsWriter>,
    number: u64,
}

impl Opened for EngineFile<'_> {
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
        self.fs.data().read(self.number, at, out).map_err(os)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.fs.data().write(self.number, at, data, false).map_err(os)
    }

    fn append(&self, data: &[u8]) -> io::Result<()> {
        self.fs.data().append(self.number, data, false).map(drop).map_err(os)
    }

    fn fsync(&self) -> io::Result<()> {
        self.fs.fsync(self.number).map_err(os)
    }
}
