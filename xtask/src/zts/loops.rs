//! The loop devices of one group.
//!
//! Loop devices belong to the whole machine, so each group reserves a range of their numbers for as long as it runs: a
//! locked file stands for the range, and the lock ends with the process. The group's `/dev` contains the nodes of this
//! range and no `loop-control`; `losetup -f` then takes a free node of the range instead of the machine's next device.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::room::output;

/// Number of the first loop device of the first range: far from those that `losetup -f` takes.
const FIRST: u32 = 256;
/// Loop devices beside the disks, for the tests' own use.
const SPARE: u32 = 8;
/// Numbers in a range.
const RANGE: u32 = 64;
/// Ranges: groups that may run at once on one machine.
const RANGES: u32 = 64;
/// The locks of the ranges: one folder for the machine, as its loop devices are, whatever `TMPDIR` is.
const LOCKS: &str = "/dev/shm/zts-loops";
/// Major number of loop devices.
const MAJOR: &str = "7";

/// A range of loop devices that no other group uses.
#[derive(Debug)]
pub struct Loops {
    first: u32,
    count: u32,
    _lock: File,
}

impl Loops {
    /// Reserves a range for some disks and makes its nodes.
    pub fn reserve(disks: u32) -> Result<Self, String> {
        let count = disks.saturating_add(SPARE);
        if count > RANGE {
            return Err(format!("at most {} disks are possible", RANGE - SPARE));
        }
        let (range, lock) = lock_one(Path::new(LOCKS))?;
        let loops = Self { first: FIRST + range * RANGE, count, _lock: lock };
        loops.detach();
        loops.nodes().try_for_each(|(number, node)| make(number, &node))?;
        Ok(loops)
    }

    /// Name of a device below `/dev`.
    pub fn name(&self, index: u32) -> String {
        format!("loop{}", self.first + index)
    }

    /// Names of all devices.
    pub fn names(&self) -> Vec<String> {
        (0..self.count).map(|index| self.name(index)).collect()
    }

    /// Releases the files behind the devices: at the end, and at the start those of a run that was killed.
    pub fn detach(&self) {
        for (number, node) in self.nodes() {
            if Path::new(&format!("/sys/block/loop{number}/loop/backing_file")).exists() {
                let _ = output(Command::new("losetup").arg("-d").arg(node));
            }
        }
    }

    fn nodes(&self) -> impl Iterator<Item = (u32, PathBuf)> {
        (self.first..self.first + self.count).map(|number| (number, format!("/dev/loop{number}").into()))
    }
}

/// Locks the first free range.
fn lock_one(folder: &Path) -> Result<(u32, File), String> {
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for range in 0..RANGES {
        let path = folder.join(range.to_string());
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|e| format!("{}: {e}", path.display()))?;
        if file.try_lock().is_ok() {
            return Ok((range, file));
        }
    }
    Err(format!("{RANGES} groups run already"))
}

fn make(number: u32, node: &Path) -> Result<(), String> {
    if node.exists() {
        return Ok(());
    }
    output(Command::new("mknod").args(["-m", "600"]).arg(node).args(["b", MAJOR, &number.to_string()]))
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::lock_one;

    #[test]
    fn two_groups_have_different_ranges_and_the_next_takes_over_a_free_one() {
        let folder = std::env::temp_dir().join(format!("zts-loops-test-{}", std::process::id()));
        let first = lock_one(&folder).unwrap();
        let second = lock_one(&folder).unwrap();
        assert_eq!((first.0, second.0), (0, 1));
        drop(first);
        assert_eq!(lock_one(&folder).unwrap().0, 0);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
