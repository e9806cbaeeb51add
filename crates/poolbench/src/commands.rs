//! Runs commands of this program: in the user's daemon, or in a daemon of the benchmark's own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use std::os::unix::process::CommandExt;

use clikit::verb::Failure;

/// The daemon that commands run in.
#[derive(Debug, Clone)]
pub struct Commands {
    /// `AQUIFER_RUN` of the benchmark's own daemon; `None`: the user's daemon.
    run: Option<PathBuf>,
}

impl Commands {
    /// Commands in the user's daemon, or the system's.
    pub fn of_user() -> Self {
        Self { run: None }
    }

    /// Commands in a daemon of its own, whose files are in `run`. It ends with its last pool.
    pub fn apart(run: &Path) -> Self {
        Self { run: Some(run.to_path_buf()) }
    }

    /// Runs a command to its end and returns its output. Ctrl-C does not reach it: the benchmark stops between commands.
    ///
    /// # Errors
    /// If it fails: its error output.
    pub fn run(&self, words: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("aquifer").args(words).stdin(Stdio::null()).process_group(0);
        if let Some(run) = &self.run {
            command.env(daemon::paths::RUN, run).env(daemon::paths::GUESTS, "");
            command.env(daemon::paths::CONF, run.join("aquifer.conf"));
        }
        let cannot = |e| Failure::failed(format!("'{}' cannot be run: {e}", words.join(" ")));
        let output = command.output().map_err(cannot)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(Failure::failed(format!("{}\n(from '{}')", text.trim_end(), words.join(" "))))
    }
}
