//! Odd changes in the midst of a job.

use super::job::Begun;
use super::pool::{DISK, POOL, Pool};

impl Pool {
    /// Makes a random change; refusals are answers.
    pub(super) fn odd(&mut self, begun: &Begun) -> Result<(), String> {
        let leaves = self.leaves();
        let Some(leaf) = self.pick(&leaves) else { return Err("the pool has no disks".into()) };
        let number = self.random.below(1000);
        let (what, done) = match self.random.below(16) {
            0 | 1 => {
                let cancels = begun.cancels.clone();
                let line = self.pick(&cancels).unwrap_or_default();
                ("cancel", self.run(&format!("zpool {line}")))
            }
            2 => ("detach", self.run(&format!("zpool detach {POOL} {leaf}"))),
            3 => ("offline", self.run(&format!("zpool offline {POOL} {leaf}"))),
            4 => ("online", self.run(&format!("zpool online {POOL} {leaf}"))),
            5 => {
                let new = self.disk(DISK);
                ("another attach", self.run(&format!("zpool attach {POOL} {leaf} {new}")))
            }
            6 => {
                let new = self.disk(DISK);
                ("another replacement", self.run(&format!("zpool replace {POOL} {leaf} {new}")))
            }
            7 => ("scrub amid it", self.run(&format!("zpool scrub {POOL}"))),
            8 | 9 => {
                self.export()?;
                ("export", true)
            }
            10 | 11 => {
                self.kill()?;
                ("kill", true)
            }
            12 => ("snapshot", self.run(&format!("zfs snapshot -r {POOL}@s{number}"))),
            13 => {
                let snapshots = self.listed(&format!("zfs list -H -o name -t snapshot -d 1 {POOL}"));
                match self.pick(&snapshots) {
                    Some(old) => ("destroy", self.run(&format!("zfs destroy -r {old}"))),
                    None => return Ok(()),
                }
            }
            14 => {
                self.remove();
                ("removed file", true)
            }
            _ => {
                (0..3).for_each(|_| self.write());
                ("writes", true)
            }
        };
        self.course.count(if done { what } else { "refusals" });
        Ok(())
    }
}
