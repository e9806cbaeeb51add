//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use daemon::paths::RunPaths;

/// Run scripts when something happens to pools.
///
/// OpenZFS's event daemon: it follows the events of the daemon that owns the pools (zpool events -f) and runs the zedlets
/// for each. A zedlet is an executable in the directory whose name begins with the event's class or subclass, or with "all",
/// followed by a character other than a letter: statechange-notify.sh, all-syslog.sh. They are run in the order of their
/// names, several at once; one with "-sync-" after that word runs alone. Files must belong to root, or to the user that runs
/// zed, and other users must not be able to write to them, nor to the directory, the directories above it and the targets
/// of links.
///
/// The environment of a zedlet has a variable ZEVENT_NAME for each field of the event (zpool events -v shows them), and
/// ZEVENT_SUBCLASS, ZEVENT_TIME_SECS, ZEVENT_TIME_NSECS, ZEVENT_TIME_STRING, ZED_PID, ZED_ZEDLET_DIR, ZDB, ZED, ZFS, ZINJECT,
/// ZPOOL, ZFS_ALIAS, ZFS_VERSION, ZFS_RELEASE, PATH and IFS. It inherits TZ and AQUIFER_RUN from zed; users other
/// than root keep HOME and the XDG directories, by which their daemon is found.
///
/// SIGHUP reads the directory anew; SIGTERM and SIGINT end the daemon. If the daemon that owns the pools ends, zed waits for
/// the next one. Events that it has processed are not processed again after a restart.
#[derive(Debug, Args)]
#[command(disable_version_flag = true)]
pub struct Zed {
    /// Print the license.
    #[arg(short = 'L')]
    pub license: bool,
    /// Print the version.
    #[arg(short = 'V')]
    pub show_version: bool,
    /// Report details, too.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Run unsafe zedlets, and run although the PID file is locked.
    #[arg(short = 'f')]
    pub force: bool,
    /// Stay in the foreground, and report on standard error; otherwise in the system's log.
    #[arg(short = 'F')]
    pub foreground: bool,
    /// Wait for a daemon instead of ending; always done.
    #[arg(short = 'I')]
    pub idle: bool,
    /// Lock all memory.
    #[arg(short = 'M')]
    pub lock_memory: bool,
    /// Forget the last event: all events that are still kept are processed again.
    #[arg(short = 'Z')]
    pub zero: bool,
    /// Read zedlets from this directory.
    #[arg(short = 'd', value_name = "ZEDLETDIR", default_value = "/etc/zfs/zed.d")]
    pub zedlet_dir: PathBuf,
    /// Write the process id to this file: /run/zed.pid; a user other than root has it beside the daemon's socket.
    #[arg(short = 'p', value_name = "PIDFILE")]
    pub pid_file: Option<PathBuf>,
    /// The search path of zedlets, by which they find zpool and zfs, too.
    #[arg(short = 'P', value_name = "PATH")]
    pub path: Option<OsString>,
    /// Keep the last event in this file: /run/zed.state; a user other than root has it beside the daemon's socket.
    #[arg(short = 's', value_name = "STATEFILE")]
    pub state_file: Option<PathBuf>,
    /// Maximum zedlets at once.
    #[arg(short = 'j', value_name = "JOBS", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=32767))]
    pub jobs: u16,
    /// Maximum length of the kernel's list of events. Without effect: the setting zfs_zevent_len_max of the daemon that owns
    /// the pools limits their number.
    #[arg(short = 'b', value_name = "BUFLEN", default_value_t = 1 << 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=0x7fff_ffff))]
    pub buflen: u32,
    /// Maximum seconds of a zedlet; 0: no limit. One that runs longer is ended with its children.
    #[arg(long = "time-limit", value_name = "SECONDS", default_value_t = 600)]
    pub time_limit: u64,
    /// The process is in the background already.
    #[arg(long = "detached", hide = true)]
    pub detached: bool,
}

/// The settings of the event daemon, with absolute paths.
#[derive(Debug, Clone)]
pub struct Options {
    /// Details are reported.
    pub verbose: bool,
    /// Owners and modes do not matter.
    pub force: bool,
    /// The last event is forgotten.
    pub zero: bool,
    /// The directory of zedlets.
    pub zedlet_dir: PathBuf,
    /// The file with the process id.
    pub pid_file: PathBuf,
    /// The file with the last event.
    pub state_file: PathBuf,
    /// The search path of zedlets, unless it is the usual one.
    pub path: Option<OsString>,
    /// Maximum zedlets at once.
    pub jobs: usize,
    /// Time limit of a zedlet.
    pub time_limit: Option<Duration>,
}

impl Options {
    /// Whether a file is in the directory of the daemon's socket, which must have the right mode.
    pub fn is_beside(&self, place: &RunPaths) -> bool {
        [&self.pid_file, &self.state_file].iter().any(|file| file.starts_with(&place.run))
    }

    /// The settings of a command line, with the places of this user's daemon.
    pub fn of(line: &Zed, place: &RunPaths) -> Self {
        let is_system = std::env::var_os(daemon::paths::RUN).is_none_or(|dir| dir.is_empty())
            && rustix::process::geteuid().is_root();
        let folder = if is_system { "/run".into() } else { place.run.clone() };
        let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let placed =
            |path: &Option<PathBuf>, name: &str| path.as_ref().map_or_else(|| folder.join(name), whole);
        Self {
            verbose: line.verbose,
            force: line.force,
            zero: line.zero,
            zedlet_dir: whole(&line.zedlet_dir),
            pid_file: placed(&line.pid_file, "zed.pid"),
            state_file: placed(&line.state_file, "zed.state"),
            path: line.path.clone(),
            jobs: line.jobs.into(),
            time_limit: (line.time_limit > 0).then(|| Duration::from_secs(line.time_limit)),
        }
    }
}
