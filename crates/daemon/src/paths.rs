//! The daemon's paths: its socket and lock, and the cache file that outlives it.
//!
//! `AQUIFER_RUN` names a directory for all files; each directory has a daemon of its own, for tests and for users
//! with two daemons.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Environment variable with the directory.
pub const RUN: &str = "AQUIFER_RUN";

/// Environment variable with the settings file.
pub const CONF: &str = "AQUIFER_CONF";
/// Environment variable with the directory of the socket for users other than the owner.
pub const GUESTS: &str = "AQUIFER_GUESTS";
const GUESTS_AT: &str = "/run/aquifer-guests";
/// Name of a socket in its directory.
pub(crate) const SOCKET: &str = "socket";
const CONF_NAME: &str = "aquifer.conf";

/// The daemon's files.
#[derive(Debug, Clone)]
pub struct RunPaths {
    /// Directory of the socket: accessible to its owner only.
    pub run: PathBuf,
    /// Directory of the cache file.
    pub state: PathBuf,
    /// The settings file.
    pub conf: PathBuf,
    /// Directory of the socket for users other than the owner; `None` if there is none.
    pub delegated: Option<PathBuf>,
}

impl RunPaths {
    /// The paths of this process's user. Creates nothing.
    pub fn of_process() -> Self {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let place = Self::of_user();
        let own = var(RUN).is_some() || !rustix::process::geteuid().is_root();
        let delegated = var(GUESTS).or_else(|| (!own).then(|| GUESTS_AT.into()));
        Self { conf: var(CONF).unwrap_or(place.conf), delegated, ..place }
    }

    fn of_user() -> Self {
        if let Some(dir) = std::env::var_os(RUN).filter(|dir| !dir.is_empty()) {
            let dir = std::path::absolute(&dir).unwrap_or_else(|_| PathBuf::from(dir));
            return Self { run: dir.clone(), conf: dir.join(CONF_NAME), state: dir, delegated: None };
        }
        let uid = rustix::process::geteuid();
        if uid.is_root() {
            let conf = Path::new("/etc/aquifer").join(CONF_NAME);
            return Self {
                run: "/run/aquifer".into(),
                state: "/var/lib/aquifer".into(),
                conf,
                delegated: None,
            };
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
        Self { state: state.unwrap_or_else(|| run.clone()), run, conf, delegated: None }
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.run.join(SOCKET)
    }

    /// The file that the daemon locks.
    pub fn lock(&self) -> PathBuf {
        self.run.join("lock")
    }

    /// The system daemon's socket for users other than its owner; `None` if an empty `AQUIFER_GUESTS` disables it.
    pub fn as_delegated() -> Option<PathBuf> {
        let dir = std::env::var_os(GUESTS).map_or_else(|| GUESTS_AT.into(), PathBuf::from);
        (!dir.as_os_str().is_empty()).then(|| dir.join(SOCKET))
    }

    /// FUSE connections of its mounts, for the next daemon.
    pub(crate) fn connections(&self) -> PathBuf {
        self.run.join("connections")
    }

    /// The daemon's log.
    pub fn log(&self) -> PathBuf {
        self.run.join("log")
    }

    /// Intent logs whose replay has suspended a pool.
    pub(crate) fn bad_logs(&self) -> PathBuf {
        self.state.join("bad-logs")
    }

    /// Imported pools and their devices.
    pub fn cache(&self) -> PathBuf {
        self.state.join("zpool.cache")
    }

    /// Creates the directories.
    ///
    /// # Errors
    /// If they cannot be created, or if the socket's directory belongs to another user or admits others.
    pub fn prepare(&self) -> io::Result<()> {
        make(&self.run)?;
        make(&self.state)?;
        self.check()
    }

    /// Checks owner and mode of the socket's directory, if it exists. The state directory may be inaccessible: `su`
    /// and `sudo` may leave a user with another user's `HOME`, who then has no pools.
    ///
    /// # Errors
    /// The actual and the required mode or owner.
    pub fn check(&self) -> io::Result<()> {
        private(&self.run)
    }

    /// Connects to the daemon. The directory is checked first and the server's user afterwards: a client passes its
    /// streams, and another user may have created a directory of that name in `/tmp` before.
    ///
    /// # Errors
    /// `PermissionDenied` if the directory or the server is not trusted; otherwise the error of the connection.
    pub fn connect(&self) -> io::Result<UnixStream> {
        self.check()?;
        trusted(UnixStream::connect(self.socket())?, &self.run)
    }
}

/// Connects to the socket on which the system's daemon serves users other than its owner.
///
/// # Errors
/// Like [`RunPaths::connect`]; the directory must be writable by root or this user only.
pub fn connect_as_delegated(socket: &Path) -> io::Result<UnixStream> {
    let dir = socket.parent().unwrap_or(Path::new("/"));
    let meta = fs::symlink_metadata(dir)?;
    let (owner, mode, shown) = (meta.uid(), meta.mode() & 0o7777, dir.display());
    if !meta.is_dir() || !is_trusted(owner) || mode & 0o022 != 0 {
        return Err(denied(format!(
            "the folder '{shown}' of the system's daemon belongs to user {owner} and has mode {mode:03o}: \
             it must belong to root, who alone may write to it"
        )));
    }
    trusted(UnixStream::connect(socket)?, dir)
}

/// Whether the user is root or runs this process.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// A connection to a server of root or of this process's user.
fn trusted(stream: UnixStream, dir: &Path) -> io::Result<UnixStream> {
    let server = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
    if crate::connections::is_dying(server.pid.as_raw_nonzero().get()) {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the daemon was killed"));
    }
    let server = server.uid.as_raw();
    if is_trusted(server) {
        return Ok(stream);
    }
    Err(denied(format!("the server in '{}' runs as user {server}: nothing is sent to it", dir.display())))
}

/// Checks that the directory of the socket is a real one and admits only its owner: the user that runs this
/// process, or root.
fn private(dir: &Path) -> io::Result<()> {
    let shown = dir.display();
    let meta = match fs::symlink_metadata(dir) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(denied(format!("cannot access the run directory '{shown}': {}", words(&e)))),
    };
    let (me, owner, mode) = (rustix::process::geteuid().as_raw(), meta.uid(), meta.mode() & 0o7777);
    if !meta.is_dir() {
        return Err(denied(format!("the run directory '{shown}' is not a directory")));
    }
    if !is_trusted(owner) {
        let what =
            format!("the run directory '{shown}' belongs to user {owner}: it must belong to user {me}");
        return Err(denied(what));
    }
    if mode & 0o077 != 0 || mode & 0o700 != 0o700 {
        return Err(denied(format!(
            "the run directory '{shown}' has mode {mode:03o}: it must have mode 700"
        )));
    }
    Ok(())
}

fn denied(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

/// The system's error message, without the number.
fn words(e: &io::Error) -> String {
    e.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

fn make(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_run_folder_that_others_can_enter_is_named_with_the_mode_it_must_have() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let place =
            RunPaths { run: run.clone(), state: run.clone(), conf: run.join(CONF_NAME), delegated: None };
        place.check().unwrap();
        place.prepare().unwrap();
        for (mode, shown) in [(0o755, "mode 755"), (0o500, "mode 500")] {
            fs::set_permissions(&run, fs::Permissions::from_mode(mode)).unwrap();
            let why = place.check().unwrap_err().to_string();
            assert!(why.contains(run.to_str().unwrap()), "{why}");
            assert!(why.contains(shown) && why.contains("must have mode 700"), "{why}");
            assert!(crate::client::is_wanted(&place).is_err());
        }
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
        // A link to a correct directory is not trusted itself: its creator can change it.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&run, &link).unwrap();
        let linked = RunPaths { run: link, ..place.clone() };
        assert!(linked.check().unwrap_err().to_string().contains("is not a directory"));
        // Another user's state does not matter.
        let gone = RunPaths { run: dir.path().join("none"), state: run.join("file"), ..place.clone() };
        fs::write(run.join("file"), "").unwrap();
        assert!(!crate::client::is_wanted(&gone).unwrap());
        fs::remove_file(run.join("file")).unwrap();
        fs::remove_dir(&run).unwrap();
        fs::write(&run, "").unwrap();
        assert!(place.check().unwrap_err().to_string().contains("is not a directory"));
    }
}
