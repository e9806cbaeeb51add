//! Users other than the pools' owner: delegated operations work, nothing else does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../live/mod.rs"]
mod live;
mod mounted;
mod streams;
mod verbs;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use live::{Live, Run};

const DELEGATED: u32 = 65_534;

/// A daemon that serves delegated users, and a program that they can reach.
struct House {
    live: Live,
    program: PathBuf,
}

impl House {
    fn new() -> Self {
        let live = Live::new();
        fs::set_permissions(live.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = live.dir.path().join("aquifer");
        // A copy by this process would lend its write descriptor to each child that another thread forks meanwhile, and
        // `exec` of a file that is open for writing fails (ETXTBSY).
        let copied = std::process::Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_aquifer"))
            .arg(&program)
            .status()
            .unwrap();
        assert!(copied.success());
        Self { live, program }
    }

    fn owner(&self, line: &str) -> String {
        let run: Run = self.live.command(line).env("AQUIFER_GUESTS", self.door()).output().unwrap().into();
        assert_eq!(run.code, 0, "{line}: {}{}", run.out, run.err);
        run.out
    }

    fn door(&self) -> PathBuf {
        self.live.dir.path().join("guests")
    }

    fn delegated(&self, line: &str) -> Run {
        let mut command = std::process::Command::new(&self.program);
        command.args(line.split_whitespace()).uid(DELEGATED).gid(DELEGATED).current_dir("/");
        command.env("AQUIFER_GUESTS", self.door()).env("AQUIFER_RUN", self.live.dir.path().join("none"));
        command.output().unwrap().into()
    }

    /// Runs `line` with the file `stdin` as its standard input.
    fn delegated_fed(&self, line: &str, stdin: &std::path::Path) -> Run {
        let mut command = std::process::Command::new(&self.program);
        command.args(line.split_whitespace()).uid(DELEGATED).gid(DELEGATED).current_dir("/");
        command.env("AQUIFER_GUESTS", self.door()).env("AQUIFER_RUN", self.live.dir.path().join("none"));
        command.stdin(fs::File::open(stdin).unwrap()).output().unwrap().into()
    }

    /// A file with the stream that `line` writes.
    fn stream(&self, name: &str, line: &str) -> PathBuf {
        let path = self.live.dir.path().join(name);
        let mut command = self.live.command(line);
        command.env("AQUIFER_GUESTS", self.door()).stdout(fs::File::create(&path).unwrap());
        assert!(command.status().unwrap().success(), "{line}");
        path
    }

    fn may(&self, line: &str) -> String {
        let run = self.delegated(line);
        assert_eq!(run.code, 0, "{line}: {}{}\nlog: {}", run.out, run.err, self.live.log());
        run.out
    }

    fn may_not(&self, line: &str) {
        let run = self.delegated(line);
        assert!(
            matches!(run.code, 1 | 255) && run.err.contains("permission denied"),
            "{line}: {} {}{}",
            run.code,
            run.out,
            run.err
        );
    }
}

fn is_root() -> bool {
    let is_root = std::process::Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if !is_root {
        eprintln!("SKIPPED: only root can be somebody else");
    }
    is_root
}
