//! Cleans up after a killed daemon that had a pool in one of its own mounts: one of its threads waits for an answer
//! of its own process, so the process does not exit, and keeps its lock, its socket and all of its mounts.
//!
//! A daemon records the number of each mount's FUSE connection in its run directory. A process that finds a dying
//! daemon aborts those connections: they have no server any more, the waiting threads get errors, and the process
//! exits.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where the kernel lists connections, if fusectl is mounted.
const CONTROL: &str = "/sys/fs/fuse/connections";
/// Connection numbers are valid for one boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
const MOUNTS: &str = "/proc/self/mountinfo";
/// The kernel's type of our mounts.
const TYPE: &str = "fuse.zfs";
/// The bit of SIGKILL in the mask of pending signals.
const KILLED: u64 = 1 << 8;
/// Timeout and poll interval for the end of a process whose connections were aborted.
const ENDING: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(20);

/// The kernel's read-ahead of a mount.
const READ_AHEAD_KIB: &str = "1024";

/// The file of this process's daemon.
static NOTES: OnceLock<PathBuf> = OnceLock::new();

/// Starts recording connections in this file; its previous content belongs to an earlier daemon.
pub(crate) fn begin(notes: PathBuf) -> io::Result<()> {
    fs::write(&notes, boot_id())?;
    // A process serves one directory.
    let _ = NOTES.set(notes);
    Ok(())
}

/// Records the connection of a mount, and the dataset that the kernel shows as its source.
pub(crate) fn note(number: u32, dataset: &str) {
    let Some(notes) = NOTES.get() else { return };
    let written = OpenOptions::new().append(true).open(notes);
    if let Err(e) = written.and_then(|mut file| writeln!(file, "{number} {dataset}")) {
        eprintln!("the connection of {dataset} cannot be recorded in {}: {e}", notes.display());
    }
}

/// Has the kernel read ahead more than its usual 128 KiB for files of this connection, which costs fewer requests.
pub(crate) fn widen_read_ahead(number: u32) {
    // Only root may, and not in every container. Without it the file system's own reading ahead works all the same.
    let _ = fs::write(format!("/sys/class/bdi/0:{number}/read_ahead_kb"), READ_AHEAD_KIB);
}

/// Whether a process was killed and has not exited yet.
pub(crate) fn is_dying(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| says_dying(&status))
}

fn says_dying(status: &str) -> bool {
    let word = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()).unwrap_or_default()
    };
    let killed = |name: &str| u64::from_str_radix(word(name), 16).is_ok_and(|pending| pending & KILLED != 0);
    matches!(word("State"), "Z" | "X") || killed("SigPnd") || killed("ShdPnd")
}

/// Aborts the connections that a dying daemon recorded, and waits until `ended` reports its end.
pub(crate) fn abort(notes: &Path, mut ended: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let until = Instant::now() + ENDING;
    let text = fs::read_to_string(notes).unwrap_or_default();
    let mounts = fs::read_to_string(MOUNTS).unwrap_or_default();
    let all = orphans(&text, &boot_id(), &mounts);
    if !all.is_empty() {
        eprintln!("a killed daemon waits for its own mounts: {} connections are aborted", all.len());
    }
    for number in all {
        if let Err(e) = abort_one(number) {
            eprintln!("connection {number} cannot be aborted (write 1 to {CONTROL}/{number}/abort): {e}");
        }
    }
    loop {
        if ended()? {
            return Ok(true);
        }
        if Instant::now() > until {
            return Ok(false);
        }
        std::thread::sleep(TICK);
    }
}

fn boot_id() -> String {
    fs::read_to_string(BOOT).unwrap_or_default()
}

/// The recorded connections that still belong to the same mounts: a number may be reused later.
fn orphans(notes: &str, boot: &str, mounts: &str) -> Vec<u32> {
    let Some(notes) = notes.strip_prefix(boot).filter(|_| !boot.is_empty()) else { return Vec::new() };
    let stands = |number: u32, dataset: &str| {
        let (device, source) = (format!("0:{number}"), dataset.replace(' ', "\\040"));
        mounts.lines().any(|line| {
            let (head, tail) = line.split_once(" - ").unwrap_or_default();
            let mut words = tail.split(' ');
            head.split(' ').nth(2) == Some(&device)
                && words.next() == Some(TYPE)
                && words.next() == Some(&source)
        })
    };
    let noted = notes.lines().filter_map(|line| {
        let (number, dataset) = line.split_once(' ')?;
        Some((number.parse().ok()?, dataset))
    });
    let mut all: Vec<u32> =
        noted.filter(|(number, dataset)| stands(*number, dataset)).map(|(n, _)| n).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn abort_one(number: u32) -> io::Result<()> {
    let name = format!("{number}/abort");
    let mut file = match OpenOptions::new().write(true).open(Path::new(CONTROL).join(&name)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            // It is not mounted; it does not have to be attached anywhere.
            let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&control)?;
            let root = fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            File::from(openat(&root, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
        }
        opened => opened?,
    };
    file.write_all(b"1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_that_has_not_ended_is_dying() {
        assert!(says_dying("Name:\taquifer\nState:\tZ (zombie)\nSigPnd:\t0000000000000000\n"));
        assert!(says_dying("State:\tD (disk sleep)\nSigPnd:\t0000000000000100\n"));
        assert!(!says_dying("State:\tS (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n"));
        assert!(!is_dying(0) && !is_dying(std::process::id().cast_signed()));
    }

    #[test]
    fn only_connections_that_are_still_ours_are_aborted() {
        let mounts = "36 35 0:51 / /mnt/a rw - fuse.zfs tank/a\\040b rw\n37 35 0:52 / /b rw - fuse.sshfs x rw\n\
                      38 35 0:53 / /c rw - fuse.zfs tank/other rw\n39 35 0:54 / /d rw - fuse.zfs tank rw\n";
        let notes = "boot\n51 tank/a b\n52 x\n53 tank/c\n54 tank\n55 tank/gone\n54 tank\nnonsense\n";
        assert_eq!(orphans(notes, "boot\n", mounts), [51, 54]);
        assert_eq!(orphans(notes, "later\n", mounts), [] as [u32; 0]);
        assert_eq!(orphans("", "", mounts), [] as [u32; 0]);
    }
}
