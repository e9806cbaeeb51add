//! The pool or dataset that is measured: made, cooled and destroyed.
//!
//! A pool of its own lives in a daemon of its own ([`super::scratch`]), so that nothing of it meets the user's pools. In an
//! existing pool all datasets are below one dataset that carries the mark [`PROPERTY`], and only that one is destroyed.

use std::fs::{self, File};
use std::path::PathBuf;

use clikit::verb::{Failure, strerror};
use rustix::fs::FlockOperation;

use super::commands::Commands;
use super::engine::EnginePool;
use super::scratch::{PREFIX, PROPERTY, Scratch};
use super::store::{Mounted, Store};

/// A dataset to measure, and its properties as `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Its last name.
    pub name: String,
    /// Its properties.
    pub props: Vec<String>,
}

impl Spec {
    /// A dataset of that name.
    pub fn new(name: impl Into<String>, props: &[&str]) -> Self {
        Self { name: name.into(), props: props.iter().map(|prop| (*prop).to_owned()).collect() }
    }
}

/// A place for datasets.
pub struct Bed {
    commands: Commands,
    /// The pool or dataset that has the datasets.
    parent: String,
    disks: Vec<PathBuf>,
    is_own: bool,
    /// Bytes of the engine's cache in this process; `None`: through the mount.
    cache: Option<u64>,
    datasets: Vec<String>,
    mounted: Mounted,
    engine: Option<EnginePool>,
    /// The devices carry this pool. Nothing is cleared before: they may be another pool's.
    is_made: bool,
    is_gone: bool,
    /// Bytes that the pool or dataset can hold, used ones included.
    pub capacity: Option<u64>,
    /// Datasets that an existing pool refused, for lack of a feature.
    pub skipped: Vec<String>,
}

impl Bed {
    /// Makes a pool of these vdevs with these datasets. `cache`: bytes of the cache; `mounts`: measured through the mount.
    ///
    /// # Errors
    /// If it cannot be made; nothing is left then.
    pub fn create(
        scratch: &Scratch,
        disks: &[PathBuf],
        vdevs: &[String],
        specs: &[Spec],
        (cache, mounts): (u64, bool),
    ) -> Result<Self, Failure> {
        let mount = scratch.mount();
        let mut bed = Self {
            commands: scratch.commands(),
            parent: scratch.pool(),
            disks: disks.to_vec(),
            is_own: true,
            cache: (!mounts).then_some(cache),
            datasets: specs.iter().map(|spec| spec.name.clone()).collect(),
            mounted: Mounted(mount.clone()),
            engine: None,
            is_made: false,
            is_gone: false,
            capacity: None,
            skipped: Vec::new(),
        };
        let at = format!("mountpoint={}", mount.display());
        // The checks before a first pool are the benchmark's own; the layouts overwrite each other's labels.
        let mut words = vec!["zpool", "create", "-f", "-O", &at];
        if !mounts {
            words.extend(["-O", "canmount=off"]);
        }
        words.push(&bed.parent);
        words.extend(vdevs.iter().map(String::as_str));
        let made = bed.commands.run(&words);
        // The pool exists, too, if only its file system cannot be mounted.
        bed.is_made = made.is_ok() || bed.is_imported().unwrap_or(false);
        let made = made.and_then(|_| {
            bed.commands.run(&["set", &format!("zfs_arc_max={cache}")])?;
            bed.make(specs)?;
            bed.capacity = bed.measured_capacity();
            if mounts { Ok(()) } else { bed.export().and_then(|()| bed.import()) }
        });
        match made {
            Ok(()) => Ok(bed),
            Err(e) => {
                // The first failure is the one to report; the scratch directory's removal tries again.
                let _ = bed.destroy();
                Err(e)
            }
        }
    }

    /// Makes datasets below `parent`, a dataset of an existing pool.
    ///
    /// # Errors
    /// If one of that name exists that is not a benchmark's, or it cannot be made.
    pub fn within(scratch: &Scratch, parent: &str, specs: &[Spec]) -> Result<Self, Failure> {
        let commands = Commands::of_user();
        let name = format!("{parent}/{PREFIX}-{}", std::process::id());
        scratch.note("dataset", &name)?;
        let (at, mark) = (
            format!("mountpoint={}", scratch.mount().display()),
            format!("{PROPERTY}={}", scratch.dir.display()),
        );
        commands.run(&["zfs", "create", "-o", &at, "-o", &mark, "-o", "canmount=on", &name])?;
        let mut bed = Self {
            commands,
            parent: name,
            disks: Vec::new(),
            is_own: false,
            cache: None,
            datasets: specs.iter().map(|spec| spec.name.clone()).collect(),
            mounted: Mounted(scratch.mount()),
            engine: None,
            is_made: false,
            is_gone: false,
            capacity: None,
            skipped: Vec::new(),
        };
        bed.make(specs)?;
        bed.capacity = bed.measured_capacity();
        Ok(bed)
    }

    fn measured_capacity(&self) -> Option<u64> {
        let words = ["zfs", "list", "-H", "-p", "-o", "used,available", self.pool()];
        let text = self.commands.run(&words).ok()?;
        text.split_whitespace().map(|word| word.parse::<u64>().ok()).sum()
    }

    fn make(&mut self, specs: &[Spec]) -> Result<(), Failure> {
        for spec in specs {
            let name = format!("{}/{}", self.parent, spec.name);
            let mut words = vec!["zfs", "create"];
            spec.props.iter().for_each(|prop| words.extend(["-o", prop.as_str()]));
            words.extend(["-o", if self.cache.is_some() { "canmount=noauto" } else { "canmount=on" }]);
            words.push(&name);
            match self.commands.run(&words) {
                Ok(_) => {}
                // An older pool may not have blocks of 1 MiB or every algorithm.
                Err(_) if !self.is_own && specs.len() > 1 => self.skipped.push(spec.name.clone()),
                Err(e) => return Err(e),
            }
        }
        self.datasets.retain(|name| !self.skipped.contains(name));
        self.check_mounted()
    }

    /// A file system that is not mounted would let the benchmark write into the directory below it.
    fn check_mounted(&self) -> Result<(), Failure> {
        if self.cache.is_some() {
            return Ok(());
        }
        let text = self.commands.run(&["zfs", "get", "-H", "-r", "-o", "value", "mounted", &self.parent])?;
        if text.lines().all(|value| value == "yes") {
            return Ok(());
        }
        let what = "the file systems cannot be mounted here (FUSE: /dev/fuse, and for ordinary users fusermount3)\n\
                    --no-mount measures the engine alone";
        Err(Failure::failed(what))
    }

    /// The file systems.
    pub fn store(&self) -> &dyn Store {
        match &self.engine {
            Some(engine) => engine,
            None => &self.mounted,
        }
    }

    /// Waits until everything is on disk.
    ///
    /// # Errors
    /// Errors of the pool.
    pub fn sync(&self) -> Result<(), Failure> {
        match &self.engine {
            Some(engine) => engine.sync(),
            None => self.commands.run(&["zpool", "sync", self.pool()]).map(drop),
        }
    }

    fn pool(&self) -> &str {
        self.parent.split('/').next().unwrap_or_default()
    }

    /// Empties caches. A pool of its own is exported and imported, and the machine's cache of its files is dropped; datasets
    /// of an existing pool are unmounted and mounted, which leaves the daemon's cache.
    ///
    /// # Errors
    /// Errors of the pool.
    pub fn cool(&mut self) -> Result<(), Failure> {
        if self.is_own {
            self.export()?;
            return self.import();
        }
        for dataset in &self.datasets {
            let name = format!("{}/{dataset}", self.parent);
            self.commands.run(&["zfs", "unmount", &name])?;
            self.commands.run(&["zfs", "mount", &name])?;
        }
        self.check_mounted()
    }

    fn export(&mut self) -> Result<(), Failure> {
        match self.engine.take() {
            Some(engine) => engine.export()?,
            None => self.commands.run(&["zpool", "export", &self.parent]).map(drop)?,
        }
        for disk in &self.disks {
            // Pages that cannot be dropped make cold reads warmer; it is no error.
            let _ = File::open(disk)
                .and_then(|file| Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?));
        }
        Ok(())
    }

    fn import(&mut self) -> Result<(), Failure> {
        if let Some(cache) = self.cache {
            self.engine = Some(EnginePool::import(&self.disks, &self.parent, &self.datasets, cache)?);
            return Ok(());
        }
        let disks: Vec<String> = self.disks.iter().map(|disk| disk.display().to_string()).collect();
        let mut words = vec!["zpool", "import"];
        disks.iter().for_each(|disk| words.extend(["-d", disk.as_str()]));
        words.push(&self.parent);
        self.commands.run(&words)?;
        self.check_mounted()
    }

    /// Destroys the pool or the dataset, and clears the labels.
    ///
    /// # Errors
    /// Errors of the pool, with the remaining parts.
    pub fn destroy(mut self) -> Result<(), Failure> {
        self.remove()
    }

    fn remove(&mut self) -> Result<(), Failure> {
        self.is_gone = true;
        if !self.is_own {
            return self.commands.run(&["zfs", "destroy", "-r", &self.parent]).map(drop);
        }
        if !self.is_made {
            return Ok(());
        }
        if let Some(engine) = self.engine.take() {
            engine.export()?;
        } else if self.is_imported()? {
            self.commands.run(&["zpool", "destroy", "-f", &self.parent])?;
        }
        self.disks.iter().try_for_each(|disk| self.clear(disk))
    }

    fn is_imported(&self) -> Result<bool, Failure> {
        let pools = self.commands.run(&["zpool", "list", "-H", "-o", "name"])?;
        Ok(pools.lines().any(|name| name == self.parent))
    }

    /// Removes the pool's labels; a file becomes a hole of its size.
    fn clear(&self, disk: &PathBuf) -> Result<(), Failure> {
        let cannot = |e: std::io::Error| Failure::cannot("clear", disk.display(), strerror(&e));
        let meta = fs::metadata(disk).map_err(cannot)?;
        if meta.is_file() {
            let file = fs::OpenOptions::new().write(true).open(disk).map_err(cannot)?;
            // Refused while another process has it as a device.
            let lock = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            lock.map_err(|e| cannot(e.into()))?;
            return file.set_len(0).and_then(|()| file.set_len(meta.len())).map_err(cannot);
        }
        let shown = disk.display().to_string();
        // A disk on which no pool was completed has no label.
        match daemon::devices::in_use(disk) {
            None if zutil::discover::probe(disk).map_or(true, |found| found.is_none()) => Ok(()),
            _ => self.commands.run(&["zpool", "labelclear", "-f", &shown]).map(drop),
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if !self.is_gone {
            // Another failure ended the measurement and is reported; the scratch directory tries again.
            let _ = self.remove();
        }
    }
}
