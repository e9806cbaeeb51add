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

/// Environment word that names the file of settings.
pub const CONF: &str = "AQUIFER_CONF";
/// Environment word that names the folder of the socket for users who are not the owner.
pub const GUESTS: &str = "AQUIFER_GUESTS";
const GUESTS_AT: &str = "/run/aquifer-guests";
const CONF_NAME: &str = "aquifer.conf";

/// The daemon's files.
#[derive(Debug, Clone)]
pub struct Place {
    /// Folder of the socket: its owner's alone.
    pub run: PathBuf,
    /// Folder of the cache file.
    pub state: PathBuf,
    /// The file of settings.
    pub conf: PathBuf,
    /// Folder of the socket for users who are not the owner; `None`: they have none.
    pub guests: Option<PathBuf>,
}

impl Place {
    /// The place of this process's user. Nothing is created.
    pub fn of_process() -> Self {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let place = Self::of_user();
        let own = var(RUN).is_some() || !rustix::process::geteuid().is_root();
        let guests = var(GUESTS).or_else(|| (!own).then(|| GUESTS_AT.into()));
        Self { conf: var(CONF).unwrap_or(place.conf), guests, ..place }
    }

    fn of_user() -> Self {
        if let Some(dir) = std::env::var_os(RUN).filter(|dir| !dir.is_empty()) {
            let dir = std::path::absolute(&dir).unwrap_or_else(|_| PathBuf::from(dir));
            return Self { run: dir.clone(), conf: dir.join(CONF_NAME), state: dir, guests: None };
        }
        let uid = rustix::process::geteuid();
        if uid.is_root() {
            let conf = Path::new("/etc/aquifer").join(CONF_NAME);
            return Self { run: "/run/aquifer".into(), state: "/var/lib/aquifer".into(), conf, guests: None };
        }
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let run = match var("XDG_RUNTIME_DIR") {
            Some(dir) => dir.join("aquifer"),
            None => std::env::temp_dir().join(format!("aquifer-{}", uid.as_raw())),
        };
        let home = || var("HOME").map(|home| home.join(".local/state"));
        let state = var("XDG_STATE_HOME").or_else(home).map(|dir| dir.join("aquifer"));
        let home = || var("HOME").map(|home| home.join(".config"));
        let conf = var("XDG_CONFIG_HOME").or_else(home).map(|dir| dir.join("aquifer"));
        let conf = conf.unwrap_or_else(|| run.clone()).join(CONF_NAME);
        Self { state: state.unwrap_or_else(|| run.clone()), run, conf, guests: None }
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.run.join("socket")
    }

    /// The file whose lock the daemon holds.
    pub fn lock(&self) -> PathBuf {
        self.run.join("lock")
    }

    /// Where somebody who is not the owner of the system's daemon asks it.
    pub fn as_guest() -> PathBuf {
        let dir = std::env::var_os(GUESTS).filter(|dir| !dir.is_empty());
        dir.map_or_else(|| GUESTS_AT.into(), PathBuf::from).join("socket")
    }

    /// Stands once permissions were given: from then on users who are not the owner are served.
    pub fn has_guests(&self) -> PathBuf {
        self.state.join("guests")
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
