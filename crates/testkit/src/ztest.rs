//! Fresh pools by `ztest`, the random tester of OpenZFS: made anew in each run, never the same twice.
//!
//! ztest sets up a pool and changes it from many threads (snapshots, clones, dedup, gangs, faults put in on
//! purpose, attached and removed devices). It is killed at work after a while, as a machine may lose its power,
//! so the pool is one that nobody exported. There are no POSIX objects in it.
//!
//! [`carry_on`] is the other way round: OpenZFS's engine goes on with a pool of ours.

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

/// ztest asks the kernel's module whether the pool is in use, through `/dev/zfs`. Where there is no module it wants
/// at least a file of that name: given by a layer over `/dev` that only ztest and its children see.
const WITH_DEV_ZFS: &str = "mount -t tmpfs none \"$0\" && mkdir \"$0/upper\" \"$0/work\" &&
    mount -t overlay -o lowerdir=/dev,upperdir=\"$0/upper\",workdir=\"$0/work\" none /dev &&
    touch /dev/zfs && exec \"$@\"";

/// Whether this process may give ztest what [`carry_on`] needs; says so when it may not.
pub fn can_carry_on() -> bool {
    let dir = std::env::temp_dir();
    let mut try_it = private(&dir);
    let can = is_here() && try_it.arg("true").stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    if !can {
        eprintln!("SKIPPED: no ztest or no namespaces here: OpenZFS's engine does not go on with our pools");
    }
    can
}

fn private(scratch: &Path) -> Command {
    // ztest deadlocks now and then, on its own pools too.
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "150", "unshare", "-m", "sh", "-c", WITH_DEV_ZFS]).arg(scratch);
    command
}

/// Lets ztest import the exported pool `ztest` whose devices are in `dir`, change it for `seconds` (datasets,
/// snapshots, clones, dedup, vdevs added, faults) and export it; what it said when it did not get that far.
///
/// # Errors
/// All that ztest printed.
pub fn carry_on(dir: &Path, seconds: u32) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let time = seconds.to_string();
    let mut ztest = private(scratch.path());
    // It is to add draid: it expands a raidz only where the first vdev is the one it made itself. By default it
    // kills itself in seven passes of ten (-k 70), and then nobody exports the pool.
    ztest.args(["ztest", "-E", "-K", "draid", "-k", "0", "-T", &time, "-P", &time, "-V", "-f"]).arg(dir);
    let out = ztest.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if out.status.success() && text.contains("0 killed") { Ok(()) } else { Err(text) }
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
