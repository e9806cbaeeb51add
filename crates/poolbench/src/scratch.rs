//! The benchmark's own directory, and the removal of a killed benchmark's remains.
//!
//! `$TMPDIR/aquifer-bench-UID-PID` (mode 0700) contains `lock`, locked by the running benchmark; `run`, the files of its own
//! daemon; `mnt`, where its file systems are mounted; and `note`, one line for each thing outside of it. The note is written
//! before the thing is made. A directory whose lock is free belongs to a benchmark that was killed: [`sweep`] destroys its
//! pool or dataset and removes its files. Only directories of this user are considered, and only names that begin
//! with [`PREFIX`] are removed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use clikit::verb::{Failure, strerror};
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;

use super::commands::Commands;

/// Begins the names of everything that a benchmark makes.
pub const PREFIX: &str = "aquifer-bench";
/// The user property of a benchmark's dataset in an existing pool; its value is the scratch directory.
pub const PROPERTY: &str = "aquifer:bench";

/// The directory of the running benchmark.
#[derive(Debug)]
pub struct Scratch {
    /// The directory.
    pub dir: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Makes the directory of this process.
    ///
    /// # Errors
    /// If the temporary directory is not writable.
    pub fn new() -> Result<Self, Failure> {
        let dir = std::env::temp_dir().join(format!("{}{}", prefix(), std::process::id()));
        let make = || -> io::Result<Self> {
            fs::DirBuilder::new().mode(0o700).create(&dir)?;
            let lock = File::create(dir.join("lock"))?;
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            fs::create_dir(dir.join("mnt"))?;
            Ok(Self { dir: dir.clone(), _lock: lock })
        };
        make().map_err(|e| Failure::cannot("create", dir.display(), strerror(&e)))
    }

    /// The mount point.
    pub fn mount(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// The name of the benchmark's own pool.
    pub fn pool(&self) -> String {
        pool_of(&self.dir)
    }

    /// Commands in the benchmark's own daemon.
    pub fn commands(&self) -> Commands {
        Commands::apart(&self.dir.join("run"))
    }

    /// Records the object that is about to be created: `disks DIR` or `dataset NAME`.
    ///
    /// # Errors
    /// If it cannot be written; then the thing must not be made.
    pub fn note(&self, kind: &str, name: &str) -> Result<(), Failure> {
        let write = || -> io::Result<()> {
            let mut file = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("note"))?;
            writeln!(file, "{kind} {name}")?;
            file.sync_all()
        };
        write().map_err(|e| Failure::cannot("write", self.dir.join("note").display(), strerror(&e)))
    }

    /// Removes everything of this benchmark.
    ///
    /// # Errors
    /// The parts that could not be removed, with the way to remove them.
    pub fn finish(self) -> Result<(), Failure> {
        remove(&self.dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Only after a panic is anything left here; its message is the one that matters.
        if self.dir.exists() {
            let _ = remove(&self.dir);
        }
    }
}

fn prefix() -> String {
    format!("{PREFIX}-{}-", rustix::process::geteuid().as_raw())
}

fn pool_of(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    format!("{PREFIX}-{}", name.rsplit('-').next().unwrap_or_default())
}

/// Removes the remains of killed benchmarks of this user; returns a line for each.
pub fn sweep() -> Vec<String> {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return Vec::new() };
    let (start, user) = (prefix(), rustix::process::geteuid().as_raw());
    let mut lines = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with(&start)
            && fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
        let Some(_lock) = is_ours.then(|| left_lock(&path)).flatten() else { continue };
        lines.push(match remove(&path) {
            Ok(()) => format!("bench: removed what an interrupted benchmark had left ({})", path.display()),
            Err(e) => format!("bench: {}", e.message().unwrap_or_default()),
        });
    }
    lines
}

/// Destroys datasets below `parent` that carry the mark of a benchmark whose directory no longer exists: the machine was
/// restarted. Returns a line for each.
pub fn sweep_below(parent: &str) -> Vec<String> {
    let user = Commands::of_user();
    let words = ["zfs", "get", "-H", "-d", "1", "-s", "local", "-o", "name,value", PROPERTY, parent];
    let text = user.run(&words).unwrap_or_default();
    let start = format!("{parent}/{PREFIX}-");
    let is_left = |(name, dir): &(&str, &str)| name.starts_with(&start) && !Path::new(dir).exists();
    let left = text.lines().filter_map(|line| line.split_once('\t')).filter(is_left);
    left.map(|(name, dir)| match destroy_dataset(name, Path::new(dir)) {
        Ok(()) => format!("bench: destroyed what an interrupted benchmark had left ({name})"),
        Err(e) => format!("bench: {}", e.message().unwrap_or_default()),
    })
    .collect()
}

/// Takes the lock of a directory; `None` while its benchmark runs.
fn left_lock(dir: &Path) -> Option<File> {
    let lock = File::create(dir.join("lock")).ok()?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(lock)
}

/// Destroys the pool and datasets of a benchmark and removes its files. Things that are already gone are no error.
fn remove(dir: &Path) -> Result<(), Failure> {
    let own = Commands::apart(&dir.join("run"));
    let pool = pool_of(dir);
    // The daemon's files exist once a pool was to be made.
    if dir.join("run/zpool.cache").exists() || dir.join("run/socket").exists() {
        let pools = own.run(&["zpool", "list", "-H", "-o", "name"])?;
        if pools.lines().any(|name| name == pool) {
            own.run(&["zpool", "destroy", "-f", &pool])?;
        }
    }
    let note = fs::read_to_string(dir.join("note")).unwrap_or_default();
    for line in note.lines() {
        match line.split_once(' ') {
            Some(("dataset", name)) => destroy_dataset(name, dir)?,
            Some(("disks", path)) => remove_disks(Path::new(path))?,
            _ => {}
        }
    }
    remove_dir(dir).map_err(|e| Failure::cannot("remove", dir.display(), strerror(&e)))
}

/// Destroys a dataset that carries the benchmark's mark.
fn destroy_dataset(name: &str, dir: &Path) -> Result<(), Failure> {
    let user = Commands::of_user();
    let Ok(value) = user.run(&["zfs", "get", "-H", "-s", "local", "-o", "value", PROPERTY, name]) else {
        // It does not exist, or its pool is not imported.
        return Ok(());
    };
    if Path::new(value.trim()) != dir {
        return Ok(());
    }
    let destroyed = user.run(&["zfs", "destroy", "-r", name]).map(drop);
    let hint = |e: &Failure| {
        let why = e.message().unwrap_or_default();
        Failure::failed(format!("{why}\nremove the benchmark's dataset with: zfs destroy -r {name}"))
    };
    destroyed.map_err(|e| hint(&e))
}

fn remove_disks(path: &Path) -> Result<(), Failure> {
    let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    let real = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    if !named || !real {
        return Ok(());
    }
    fs::remove_dir_all(path).map_err(|e| Failure::cannot("remove", path.display(), strerror(&e)))
}

/// Removes the directory itself, but nothing below a mount point.
fn remove_dir(dir: &Path) -> io::Result<()> {
    let mount = dir.join("mnt");
    if is_mounted(&mount) {
        // The daemon was killed, too: its mount answers nothing. Only root may detach it; for others rmdir fails below.
        let _ = rustix::mount::unmount(&mount, UnmountFlags::DETACH);
    }
    if mount.exists() {
        fs::remove_dir(&mount)?;
    }
    fs::remove_dir_all(dir)
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_benchmarks_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (other, own) = (dir.path().join("photos"), dir.path().join("aquifer-bench-1"));
        for path in [&other, &own] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("disk1"), "x").unwrap();
            remove_disks(path).unwrap();
        }
        assert!(other.join("disk1").exists() && !own.exists());
        std::os::unix::fs::symlink(&other, &own).unwrap();
        remove_disks(&own).unwrap();
        assert!(other.join("disk1").exists());
        assert_eq!(pool_of(Path::new("/tmp/aquifer-bench-0-77")), "aquifer-bench-77");
    }
}
