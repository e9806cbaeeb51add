//! Checks pools of ours with the real zdb.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::golden;

/// Replaces the shutdown of OpenZFS's engine in user space.
const NO_SHUTDOWN: &str = "void kernel_fini(void) {}\n";

/// One of the installed zdbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judge(&'static str);

impl Judge {
    /// The zdb of the system.
    pub const USUAL: Self = Self("zdb");
    /// The `zdb` of OpenZFS 2.4, which knows the features of 2.4 and detects leaks of dedup and clone tables.
    pub const NEWEST: Self = Self("zdb-2.4");

    /// Whether it is installed; prints a notice if not.
    pub fn installed(self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).any(|folder| folder.join(self.0).is_file());
        if !found {
            eprintln!("SKIPPED: {} is not installed, so the result is not verified", self.0);
        }
        found
    }

    /// Runs it on the exported pool `name` whose devices are in `dir`; returns its output, or the error.
    pub fn run(self, dir: &Path, name: &str, args: &[&str]) -> Result<String, String> {
        let out = command(self.0).args(["-e", "-p"]).arg(dir).args(args).arg(name).output();
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
        let text = self.run(dir, name, &["-h", "-bcc"])?;
        if text.contains("No leaks (block sum matches space maps exactly)") { Ok(()) } else { Err(text) }
    }
}

/// A command of OpenZFS's zdb, called `program`, that exits when its work is done.
///
/// By itself zdb waits at its end until the cache is empty, in which prefetched blocks stay for six seconds: most of
/// its time and, in 2.4, of its processor time. A library that is loaded before its own leaves that shutdown out;
/// output and exit code are the same. Without a C compiler zdb waits.
pub fn command(program: &str) -> Command {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let mut command = Command::new(program);
    let library = LIBRARY.get_or_init(|| no_shutdown().inspect_err(|e| eprintln!("zdb waits: {e}")).ok());
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command
}

/// Compiles the library, once for all test binaries.
fn no_shutdown() -> std::io::Result<PathBuf> {
    let folder = golden::target().join("zdb");
    let (library, own) = (folder.join("no_shutdown.so"), format!("no_shutdown.{}.so", std::process::id()));
    if library.is_file() {
        return Ok(library);
    }
    std::fs::create_dir_all(&folder)?;
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-shared", "-nostdlib", "-fPIC", "-x", "c", "-", "-o", &own]).current_dir(&folder);
    let mut child = cc.stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(NO_SHUTDOWN.as_bytes())?;
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(std::io::Error::other(format!("the C compiler: {status}")));
    }
    // Others may be compiling it, too; a rename never shows half of one.
    std::fs::rename(folder.join(own), &library)?;
    Ok(library)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Damage still shows in the exit code of a zdb whose shutdown is left out.
    #[test]
    fn a_zdb_that_does_not_wait_has_its_exit_code() {
        for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
            let sound = golden::get("basic").unwrap();
            judge.verify(&sound.dir, "tank").unwrap();
            let Some(hurt) = golden::get("known-errors") else { continue };
            let why = judge.verify(&hurt.dir, "tank").unwrap_err();
            assert!(why.contains("exit status: 3") && why.contains("No leaks"), "{why}");
            let mut traced = command(judge.0);
            traced.env("LD_DEBUG", "bindings").args(["-e", "-p"]).arg(&hurt.dir).args(["-bcc", "tank"]);
            let out = traced.output().unwrap();
            let bindings = String::from_utf8_lossy(&out.stderr);
            let shutdown = bindings.lines().find(|line| line.contains("`kernel_fini'")).unwrap();
            assert!(shutdown.contains("/no_shutdown.so") && out.status.code() == Some(3), "{shutdown}");
        }
    }
}
