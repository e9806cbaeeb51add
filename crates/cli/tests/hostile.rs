//! The commands on pools that lie: each ends soon, in bounded memory, with an exit code of its own choosing.
//!
//! `AQUIFER_HOSTILE=TEXT` runs the lies whose names contain the text; without it a few of each kind run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use engine::env::Env;
use testkit::golden;
use testkit::hostile::{cases, forge::Forge};

/// Longest time for one command, not optimised and on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Address space of one command, in KiB: its threads' stacks and libraries included.
const MEMORY: &str = "3000000";

const COMMANDS: &[&str] = &[
    "zpool import -d DIR",
    "zpool list -v -d DIR",
    "zpool status -d DIR",
    "zpool history -i -d DIR tank",
    "zfs list -r -t all -d DIR",
    "zfs get -r all -d DIR",
    "ls -l -d DIR tank:/",
    "tar -q -f /dev/null -d DIR tank:/",
    "find -d DIR tank:/",
    "verify -d DIR tank",
    "zdb -e -p DIR -bcc tank",
    "zdb -e -p DIR -dddd tank",
    "zdb -e -p DIR -mmm tank",
    "zdb -e -p DIR -DDDD tank",
    "zdb -e -p DIR -ih tank",
    "zdb -e -p DIR -uC tank",
    "zdb -lu DIR/disk1",
];

/// Runs one command; returns an error when it did not end properly.
fn ends(line: &str, dir: &Path) -> Result<(), String> {
    let line = line.replace("DIR", &dir.display().to_string());
    let script = format!("ulimit -v {MEMORY}; exec \"$0\" {line} > /dev/null 2> '{}/err'", dir.display());
    let mut child = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_aquifer")])
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .spawn()
        .expect("the program starts");
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let said = std::fs::read_to_string(dir.join("err")).unwrap_or_default();
            let panicked = said.contains("panicked at") || status.code() == Some(101);
            return match status.signal() {
                None if !panicked => Ok(()),
                signal => {
                    Err(format!("{line}: signal {signal:?}, {}", said.chars().take(600).collect::<String>()))
                }
            };
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(format!("{line}: not over after {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn lie(case: cases::Case) -> Vec<String> {
    let Some(golden) = golden::get(case.pool) else { return Vec::new() };
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let mut forge = Forge::new(&golden, &env).unwrap();
    (case.make)(&mut forge).unwrap_or_else(|e| panic!("{}: not forged: {e:?}", case.name));
    forge.finish().unwrap();
    for (name, disk) in &forge.disks {
        disk.save(&dir.path().join(name)).unwrap();
    }
    let failed = COMMANDS.iter().filter_map(|line| ends(line, dir.path()).err());
    failed.map(|what| format!("{}: {what}", case.name)).collect()
}

#[test]
fn every_command_ends() {
    let wanted = std::env::var("AQUIFER_HOSTILE");
    let mut failed = Vec::new();
    for (i, case) in cases::all().into_iter().enumerate() {
        let picked = match &wanted {
            Ok(text) => case.name.contains(text.as_str()),
            Err(_) => i % 6 == 0,
        };
        if picked {
            failed.extend(lie(case));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
