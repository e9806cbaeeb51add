//! Checks pools of ours with the real zdb.

use std::path::Path;
use std::process::Command;

/// One of the installed zdbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judge(&'static str);

impl Judge {
    /// The zdb of the system.
    pub const USUAL: Self = Self("zdb");
    /// That of OpenZFS 2.4, which knows the features of 2.4 and detects leaks of dedup and clone tables.
    pub const NEWEST: Self = Self("zdb-2.4");

    /// Whether it is installed; prints a notice if not.
    pub fn installed(self) -> bool {
        let found = Command::new(self.0).arg("-h").output().is_ok();
        if !found {
            eprintln!("SKIPPED: {} is not installed, so nothing judges what was written", self.0);
        }
        found
    }

    /// Runs it on the exported pool `name` whose devices are in `dir`; returns its output, or the error.
    pub fn run(self, dir: &Path, name: &str, args: &[&str]) -> Result<String, String> {
        let out = Command::new(self.0).args(["-e", "-p"]).arg(dir).args(args).arg(name).output();
        let out = out.map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        if out.status.success() {
            Ok(text)
        } else {
            Err(format!("{} {args:?}: {}\n{text}", self.0, out.status))
        }
    }

    /// Checks that every block is readable with a correct checksum, that every allocated sector is referenced
    /// exactly once, and that the history can be printed.
    pub fn verify(self, dir: &Path, name: &str) -> Result<(), String> {
        self.run(dir, name, &["-h"])?;
        let text = self.run(dir, name, &["-bcc"])?;
        if text.contains("No leaks (block sum matches space maps exactly)") { Ok(()) } else { Err(text) }
    }
}

/// Whether the system's zdb is installed; prints a notice if not.
pub fn installed() -> bool {
    Judge::USUAL.installed()
}

/// [`Judge::run`] with the system's zdb.
pub fn run(dir: &Path, name: &str, args: &[&str]) -> Result<String, String> {
    Judge::USUAL.run(dir, name, args)
}

/// [`Judge::verify`] with the system's zdb.
pub fn verify(dir: &Path, name: &str) -> Result<(), String> {
    Judge::USUAL.verify(dir, name)
}
