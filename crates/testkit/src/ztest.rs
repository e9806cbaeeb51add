//! Fresh pools by `ztest`, OpenZFS's random tester: created in each run, never the same twice.
//!
//! ztest creates a pool and changes it from many threads (snapshots, clones, dedup, gangs, injected faults,
//! attached and removed devices). It is killed during its work, like a machine that loses power, so the pool was
//! not exported. It contains no POSIX objects.
//!
//! [`carry_on`] does the reverse: OpenZFS's engine continues with a pool of ours.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use zutil::PoolCandidate;

/// A kind of pool: its name, and the arguments that make ztest build it.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The name for reports.
    pub name: &'static str,
    args: &'static [&'static str],
    /// Wait until a disk is being added to a raidz.
    expands: bool,
}

/// The tested kinds.
pub const KINDS: [Kind; 3] = [
    Kind { name: "raidz", args: &["-m", "0", "-K", "raidz"], expands: false },
    Kind { name: "draid", args: &["-m", "0", "-K", "draid"], expands: false },
    Kind { name: "expansion", args: &["-m", "0", "-X", "-K", "raidz"], expands: true },
];

/// Mirrors of raidz, which only ztest creates.
pub const MIRRORED: Kind =
    Kind { name: "mirrors of raidz", args: &["-m", "2", "-K", "raidz"], expands: false };

/// By then ztest has created the pool and its datasets.
const SET_UP: u64 = 12;
/// Time that ztest works on the created pool.
const WORK: Duration = Duration::from_secs(5);
/// Total time limit.
const LIMIT: Duration = Duration::from_secs(45);

/// Whether ztest is installed; prints a notice if not.
pub fn is_here() -> bool {
    let here = Command::new("ztest").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !here {
        eprintln!("SKIPPED: ztest is not installed: no fresh pools of OpenZFS are read");
    }
    here
}

/// Makes ztest create a pool called `ztest` in the empty directory `dir`; `false`, with a notice, if it did not
/// succeed.
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

/// ztest asks the kernel module through `/dev/zfs` whether the pool is in use. Without the module it still needs a
/// file of that name: a layer over `/dev`, visible only to ztest and its children, provides it.
/// Mounts of tests that run at the same time are not kept there.
const WITH_DEV_ZFS: &str =
    "awk '$3 == \"fuse.zfs\" { print $2 }' /proc/mounts | while read at; do umount -l \"$at\"; done;
    mount -t tmpfs none \"$0\" && mkdir \"$0/upper\" \"$0/work\" &&
    mount -t overlay -o lowerdir=/dev,upperdir=\"$0/upper\",workdir=\"$0/work\" none /dev &&
    touch /dev/zfs && exec \"$@\"";

/// Whether this process may give ztest the environment that [`carry_on`] needs; prints a notice if not.
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
    // ztest deadlocks occasionally, on its own pools too.
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "150", "unshare", "-m", "sh", "-c", WITH_DEV_ZFS]).arg(scratch);
    command
}

/// Makes ztest import the exported pool `ztest` whose devices are in `dir`, change it for `seconds` (datasets,
/// snapshots, clones, dedup, vdevs added, faults) and export it.
///
/// # Errors
/// The output of ztest, if it did not get that far.
pub fn carry_on(dir: &Path, seconds: u32) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let time = seconds.to_string();
    let mut ztest = private(scratch.path());
    // The draid mode is selected because ztest expands a raidz only if it created the first vdev itself. By default
    // it kills itself in seven passes of ten (-k 70), and the pool then stays unexported.
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
        // It has ended by itself, or `kill` is missing.
        let _ = child.kill();
    }
    let _ = child.wait();
}
