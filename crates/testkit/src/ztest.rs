//! Fresh pools by `ztest`, the random tester of OpenZFS: made anew in each run, never the same twice.
//!
//! ztest sets up a pool and changes it from many threads (snapshots, clones, dedup, gangs, faults put in on
//! purpose, attached and removed devices). It is killed at work after a while, as a machine may lose its power,
//! so the pool is one that nobody exported. There are no POSIX objects in it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use zutil::PoolCandidate;

/// A kind of pool: its name, and the arguments that make ztest build it.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// For people.
    pub name: &'static str,
    args: &'static [&'static str],
    /// Wait until a disk is being added to a raidz.
    expands: bool,
}

/// The kinds that are tried.
pub const KINDS: [Kind; 3] = [
    Kind { name: "raidz", args: &["-m", "0", "-K", "raidz"], expands: false },
    Kind { name: "draid", args: &["-m", "0", "-K", "draid"], expands: false },
    Kind { name: "expansion", args: &["-m", "0", "-X", "-K", "raidz"], expands: true },
];

/// Mirrors of raidz, which only ztest makes.
pub const MIRRORED: Kind =
    Kind { name: "mirrors of raidz", args: &["-m", "2", "-K", "raidz"], expands: false };

/// By then ztest has set the pool up and made its datasets.
const SET_UP: u64 = 12;
/// How long ztest works on the pool that it has set up.
const WORK: Duration = Duration::from_secs(5);
/// How long it may take in all.
const LIMIT: Duration = Duration::from_secs(45);

/// Whether ztest is there; says so when it is not.
pub fn is_here() -> bool {
    let here = Command::new("ztest").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !here {
        eprintln!("SKIPPED: ztest is not installed: no fresh pools of OpenZFS are read");
    }
    here
}

/// Lets ztest make a pool called `ztest` in the empty folder `dir`; `false`, with a notice, when none came of it.
pub fn make(kind: Kind, dir: &Path) -> bool {
    let mut ztest = Command::new("ztest");
    ztest.arg("-f").arg(dir).args(["-s", "256m", "-T", "600", "-P", "600"]).args(kind.args);
    ztest.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let Ok(mut child) = ztest.spawn() else { return false };
    let start = Instant::now();
    let mut ready = None;
    while start.elapsed() < LIMIT && ready.is_none_or(|at: Instant| at.elapsed() < WORK) {
        std::thread::sleep(Duration::from_millis(250));
        if matches!(child.try_wait(), Ok(Some(_))) {
            break;
        }
        if ready.is_none() && is_ready(kind, dir) {
            ready = Some(Instant::now());
        }
    }
    end(&mut child);
    if ready.is_none() {
        eprintln!("SKIPPED: ztest made no pool of kind {} within {:?}", kind.name, start.elapsed());
    }
    ready.is_some()
}

fn is_ready(kind: Kind, dir: &Path) -> bool {
    let found = zutil::import::candidates(&[dir.to_owned()]);
    let is_set_up = |pool: &PoolCandidate| pool.name == "ztest" && pool.txg > SET_UP;
    found.iter().any(|pool| is_set_up(pool) && (!kind.expands || expands(pool)))
}

fn expands(pool: &PoolCandidate) -> bool {
    let tops = pool.config.nvlist("vdev_tree").and_then(|tree| tree.nvlist_array("children"));
    let grown = ["raidz_expanding", "raidz_expand_txgs"];
    tops.unwrap_or_default().iter().any(|top| grown.iter().any(|word| top.contains(word)))
}

/// Kills it and its children, which are a process group of their own.
fn end(child: &mut Child) {
    let group = format!("-{}", child.id());
    let killed = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    if !killed.is_ok_and(|status| status.success()) {
        // It has ended by itself, or there is no `kill`.
        let _ = child.kill();
    }
    let _ = child.wait();
}
