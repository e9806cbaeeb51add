//! Where the daemon lives: its socket and lock, and the cache file that outlives it.
//!
//! `AQUIFER_RUN` names a folder for everything, which makes a daemon of its own: tests use it, and whoever wants two
//! that know nothing of each other.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Environment word that names the folder.
pub const RUN: &str = "AQUIFER_RUN";

/// The daemon's files.
#[derive(Debug, Clone)]
pub struct Place {
    /// Folder of the socket: its owner's alone.
    pub run: PathBuf,
    /// Folder of the cache file.
    pub state: PathBuf,
}

impl Place {
    /// The place of this process's user. Nothing is created.
    pub fn of_process() -> Self {
        if let Some(dir) = std::env::var_os(RUN).filter(|dir| !dir.is_empty()) {
            let dir = std::path::absolute(&dir).unwrap_or_else(|_| PathBuf::from(dir));
            return Self { run: dir.clone(), state: dir };
        }
        let uid = rustix::process::geteuid();
        if uid.is_root() {
            return Self { run: "/run/aquifer".into(), state: "/var/lib/aquifer".into() };
        }
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let run = match var("XDG_RUNTIME_DIR") {
            Some(dir) => dir.join("aquifer"),
            None => std::env::temp_dir().join(format!("aquifer-{}", uid.as_raw())),
        };
        let home = || var("HOME").map(|home| home.join(".local/state"));
        let state = var("XDG_STATE_HOME").or_else(home).map(|dir| dir.join("aquifer"));
        Self { state: state.unwrap_or_else(|| run.clone()), run }
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.run.join("socket")
    }

    /// The file whose lock the daemon holds.
    pub fn lock(&self) -> PathBuf {
        self.run.join("lock")
    }

    /// What the daemon had to say.
    pub fn log(&self) -> PathBuf {
        self.run.join("log")
    }

    /// Imported pools and their devices.
    pub fn cache(&self) -> PathBuf {
        self.state.join("zpool.cache")
    }

    /// Makes the folders.
    ///
    /// # Errors
    /// When they can't be made, or the socket's belongs to someone else or lets others in.
    pub fn prepare(&self) -> io::Result<()> {
        make(&self.run)?;
        make(&self.state)?;
        let meta = fs::symlink_metadata(&self.run)?;
        let mine = meta.uid() == rustix::process::geteuid().as_raw();
        if !meta.is_dir() || !mine || meta.mode() & 0o077 != 0 {
            let what = format!("{} must be a folder that only its owner can enter", self.run.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(())
    }
}

fn make(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}
