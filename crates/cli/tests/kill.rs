//! The daemon killed under load, a few times; `make kill` continues from any seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::process::Command;

use sim::kill::{KillPlan, Layout, run, serve};

/// This program again, as a process that works on a mount.
fn worker() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["works_when_it_is_told_to", "--exact", "--nocapture"]);
    command
}

#[test]
fn works_when_it_is_told_to() {
    serve();
}

#[test]
fn nothing_synced_is_lost_when_the_daemon_is_killed_under_load() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    for (seed, layout) in (1..).zip([Layout::MirrorAndLogs, Layout::Raidz]) {
        let binary = env!("CARGO_BIN_EXE_aquifer").into();
        let plan = KillPlan { binary, seed, layout, kills: 5, judged_every: 5, longest: 1200 };
        let course = run(&plan, &worker).unwrap_or_else(|why| panic!("{layout:?}: {why}"));
        println!("{layout:?}: {course:?}");
        assert!(course.syncs > 0 && course.kills == 5);
    }
}
