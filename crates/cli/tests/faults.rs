//! What becomes of an error of this program, and what is left of keys.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod live;

use std::fs;
use std::path::{Path, PathBuf};

use live::{Live, Run};

/// A pool `tank`, mounted by a daemon with these variables; `None`, said so, where nothing can be mounted.
fn mounted(live: &Live, variables: &[(&str, &str)]) -> Option<PathBuf> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return None;
    }
    let at = live.dir.path().join("mnt");
    let line = format!("zpool create -O mountpoint={} tank {}", at.display(), live.disk("a", 128));
    let run: Run = live.command(&line).envs(variables.iter().copied()).output().unwrap().into();
    if run.err.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {}", run.err);
        return None;
    }
    assert_eq!(run.code, 0, "{}", run.err);
    Some(at)
}

#[test]
fn a_request_that_panics_suspends_the_pool_and_nothing_else() {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: this build has no fault on purpose");
        return;
    }
    let live = Live::new();
    let Some(at) = mounted(&live, &[("AQUIFER_PANIC_AT", "unlucky")]) else { return };
    live.ok(&format!("zpool create -O mountpoint=none other {}", live.disk("b", 128)));
    fs::write(at.join("before"), "on disk").unwrap();
    live.ok("zpool sync tank");
    let failed = fs::write(at.join("unlucky"), "x").unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(5), "{failed}");
    // The daemon lives, reads go on, changes are refused.
    assert_eq!(fs::read(at.join("before")).unwrap(), b"on disk");
    assert_eq!(fs::write(at.join("after"), "x").unwrap_err().raw_os_error(), Some(5));
    live.ok("zfs create other/child");
    let status = live.ok("zpool status tank");
    assert!(status.contains(" state: SUSPENDED\n"), "{status}");
    let said = "status: The pool is suspended because of an error of Aquifer; no device failed.\n";
    assert!(status.contains(said) && status.contains("broke off a change halfway"), "{status}");
    assert!(status.contains("zpool export -f") && !status.contains("errors experienced"), "{status}");
    // No device is blamed.
    let vdevs: Vec<_> = status.lines().filter(|line| line.ends_with("     0     0     0")).collect();
    assert_eq!(vdevs.len(), 2, "{status}");
    assert!(vdevs.iter().all(|line| line.contains("ONLINE")), "{status}");
    let log = live.log();
    assert!(log.contains("a fault on purpose"), "{log}");
    assert!(log.contains("pool tank is suspended because of an error of this program"), "{log}");
    live.fails("zpool clear tank");
    live.ok("zpool export -f tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    let names: Vec<_> = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["before"]);
    fs::write(at.join("after"), "x").unwrap();
    live.ok("zpool export -a");
}
