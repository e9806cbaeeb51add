//! A daemon for one test, with pools on files, driven by the built binary.
#![expect(clippy::expect_used, clippy::panic, reason = "only tests run this, and end with it")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::zdb;

/// The result of a command line.
#[derive(Debug)]
pub struct Run {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Its output.
    pub out: String,
    /// Its error output.
    pub err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Run {
    /// Its output if it succeeded, otherwise all of its output.
    pub fn worked(self) -> Result<String, String> {
        if self.code == 0 {
            Ok(self.out)
        } else {
            Err(format!("exit code {}: {}{}", self.code, self.out, self.err))
        }
    }
}

/// A run directory, disks in `disks`, and the daemon that the first command starts.
#[derive(Debug)]
pub struct Live {
    /// Contains everything, and is removed with the last owner.
    pub dir: tempfile::TempDir,
    binary: PathBuf,
}

impl Live {
    /// Nothing runs yet. `binary`: `aquifer`.
    pub fn new(binary: &Path) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(dir.path().join("disks")).expect("a folder for disks");
        Self { dir, binary: binary.to_path_buf() }
    }

    /// The directory of the disks.
    pub fn disks(&self) -> PathBuf {
        self.dir.path().join("disks")
    }

    /// The daemon's run directory.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// A new sparse disk of that many MiB; its path.
    pub fn disk(&self, name: &str, mib: u64) -> String {
        let path = self.disks().join(name);
        File::create(&path).and_then(|file| file.set_len(mib << 20)).expect("a disk");
        path.display().to_string()
    }

    /// The mount point of a new pool `tank` on one disk of 128 MiB; `None`, with a notice, where nothing can be mounted.
    pub fn mounted(&self) -> Option<PathBuf> {
        self.mounted_on("", &self.disk("a", 128))
    }

    /// Like [`Live::mounted`], with options of `zpool create` and on these vdevs.
    pub fn mounted_on(&self, options: &str, vdevs: &str) -> Option<PathBuf> {
        self.mounted_by(&[], options, vdevs)
    }

    /// Like [`Live::mounted_on`], by a daemon with these variables in its environment.
    pub fn mounted_by(&self, variables: &[(&str, &str)], options: &str, vdevs: &str) -> Option<PathBuf> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("SKIPPED: no /dev/fuse here");
            return None;
        }
        let at = self.dir.path().join("mnt");
        let mut create =
            self.command(&format!("zpool create -O mountpoint={} {options} tank {vdevs}", at.display()));
        let run = Run::from(create.envs(variables.iter().copied()).output().expect("it can be started"));
        if run.err.contains("not permitted") {
            eprintln!("SKIPPED: FUSE mounts are not allowed here: {}", run.err);
            return None;
        }
        assert_eq!(run.code, 0, "{}", run.err);
        Some(at)
    }

    /// `aquifer` with the words of `line`.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(line.split_whitespace()).env("AQUIFER_RUN", self.run_dir()).env("TZ", "UTC");
        // The pools of the machine that runs the test must not be visible.
        command.env("AQUIFER_GUESTS", "");
        command.current_dir(self.disks());
        command
    }

    /// Runs `aquifer` with the words of `line`.
    pub fn run(&self, line: &str) -> Run {
        self.command(line).output().expect("it can be started").into()
    }

    /// Like [`Live::run`], but it must succeed; returns its output.
    pub fn ok(&self, line: &str) -> String {
        let run = self.run(line);
        assert_eq!(run.code, 0, "{line}: {}{}\nlog: {}", run.out, run.err, self.log());
        run.out
    }

    /// Like [`Live::run`], but it must fail with exit code 1, or with 255, where OpenZFS's command returns -1;
    /// returns its error output.
    pub fn fails(&self, line: &str) -> String {
        let run = self.run(line);
        assert!(matches!(run.code, 1 | 255), "{line}: {}: {}{}", run.code, run.out, run.err);
        run.err
    }

    /// Runs lines, each with its exit code and its error output; after an exit code of 2 the output may go on, with usage.
    pub fn answers(&self, lines: &[(&str, i32, &str)]) {
        for (line, code, err) in lines {
            let run = self.run(line);
            let fits = if *code == 2 { run.err.starts_with(err) } else { run.err == *err };
            assert!(run.code == *code && fits, "{line}: {}: {}{}", run.code, run.err, run.out);
        }
    }

    /// The daemon's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.run_dir().join("log")).unwrap_or_default()
    }

    /// The daemon's process.
    pub fn pid(&self) -> Option<i32> {
        std::fs::read_to_string(self.run_dir().join("lock")).ok()?.trim().parse().ok()
    }

    /// Sends the daemon a signal and waits until it is gone.
    pub fn signal(&self, signal: &str) {
        let Some(pid) = self.pid() else { return };
        end(pid, signal);
    }

    /// Exports the pool and checks it with zdb.
    pub fn export_and_verify(&self, pool: &str) {
        self.ok(&format!("zpool export {pool}"));
        if zdb::installed()
            && let Err(why) = zdb::verify(&self.disks(), pool)
        {
            panic!("{why}");
        }
    }
}

/// Sends the process `pid` a signal that ends it, and waits up to 20 s until it is gone.
pub fn end(pid: i32, signal: &str) {
    // It may have ended by itself.
    let _ = Command::new("kill").arg(signal).arg(pid.to_string()).status();
    let until = Instant::now() + Duration::from_secs(20);
    while is_running(pid) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_running(pid: i32) -> bool {
    // A dead child of a process that does not wait for it stays as a zombie.
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

impl Drop for Live {
    fn drop(&mut self) {
        self.signal("-KILL");
    }
}
