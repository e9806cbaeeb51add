//! The jobs.

use super::pool::{DISK, POOL, Pool};

/// A job that has begun.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    pub(super) name: &'static str,
    /// Commands that stop it or turn it back.
    pub(super) cancels: Vec<String>,
    /// Settings that hold it in its midst, with the values that let it go on.
    holds: &'static [(&'static str, &'static str, &'static str)],
}

/// Holds scans in their midst, or a removal, or an expansion.
const SCANS: &[(&str, &str, &str)] = &[("zfs_scan_suspend_progress", "1", "0")];
const REMOVALS: &[(&str, &str, &str)] = &[("zfs_removal_suspend_progress", "1", "0")];
const EXPANSIONS: &[(&str, &str, &str)] = &[("raidz_expand_max_reflow_bytes", "20000000", "0")];

impl Pool {
    /// Begins a random job that this pool can do; `None` if it was refused.
    pub(super) fn begin(&mut self) -> Option<Begun> {
        let leaves = self.leaves();
        let leaf = self.pick(&leaves)?;
        let new = self.disk(DISK);
        let (line, begun) = self.any_job(&leaf, &new);
        // Blocks move to a vdev that is removed only if there is something on it.
        if begun.name == "removal" {
            (0..4).for_each(|_| self.write());
        }
        let held = self.random.below(2) == 0;
        if held {
            self.hold(&begun, true);
        }
        match self.run(&line) {
            true => Some(begun),
            false => {
                self.hold(&begun, false);
                None
            }
        }
    }

    /// A random job on a disk or with a new one: the command that begins it, and the job.
    fn any_job(&mut self, leaf: &str, new: &str) -> (String, Begun) {
        let none: &[(&str, &str, &str)] = &[];
        let (name, line, cancels, holds) = match self.random.below(12) {
            0 | 1 => (
                "scrub",
                format!("zpool scrub {POOL}"),
                vec![format!("scrub -s {POOL}"), format!("scrub -p {POOL}")],
                SCANS,
            ),
            2 => (
                "replacement",
                format!("zpool replace {POOL} {leaf} {new}"),
                vec![format!("detach {POOL} {new}")],
                SCANS,
            ),
            3 => (
                "sequential replacement",
                format!("zpool replace -s {POOL} {leaf} {new}"),
                vec![format!("detach {POOL} {new}")],
                SCANS,
            ),
            4 => (
                "attach",
                format!("zpool attach {POOL} {leaf} {new}"),
                vec![format!("detach {POOL} {new}")],
                SCANS,
            ),
            5 => (
                "sequential attach",
                format!("zpool attach -s {POOL} {leaf} {new}"),
                vec![format!("detach {POOL} {new}")],
                SCANS,
            ),
            6 | 7 => (
                "expansion",
                format!("zpool attach {POOL} {}-0 {new}", self.parity()),
                vec![format!("detach {POOL} {new}")],
                EXPANSIONS,
            ),
            8 => {
                self.run(&format!("zpool add -f {POOL} {new}"));
                ("removal", format!("zpool remove {POOL} {new}"), vec![format!("remove -s {POOL}")], REMOVALS)
            }
            9 => (
                "initialization",
                format!("zpool initialize {POOL}"),
                vec![format!("initialize -s {POOL}"), format!("initialize -c {POOL}")],
                none,
            ),
            10 => (
                "trim",
                format!("zpool trim {POOL}"),
                vec![format!("trim -s {POOL}"), format!("trim -c {POOL}")],
                none,
            ),
            _ => (
                "checkpoint",
                format!("zpool checkpoint {POOL}"),
                vec![format!("checkpoint -d {POOL}")],
                none,
            ),
        };
        (line, Begun { name, cancels, holds })
    }

    /// Holds a job in its midst, or lets it go on.
    pub(super) fn hold(&mut self, begun: &Begun, on: bool) {
        for (setting, held, free) in begun.holds {
            self.run(&format!("set {setting}={}", if on { held } else { free }));
        }
    }
}
