//! Jobs of pools with odd changes in their midst, by the built program.
//!
//! ```text
//!  files    files on the mounts of the pool, whose content follows from their names and versions
//!  pool     daemon, pool, disks; the judges
//!  job      the jobs: how each begins, is held in its midst, and is canceled
//!  odd      the odd changes: cancel, detach, offline, attach, export, kill, writes, snapshots
//! ```
//!
//! A pool has a layout from the seed and some files. A job begins, a few odd changes follow, and everything is carried to its
//! end: disks come back, paused jobs go on. Then all files are compared, a scrub repairs nothing, and both `zdb`s find neither
//! error nor leak in the exported pool. Commands may be refused; a refusal is an answer.
//!
//! Runs are not exactly repeatable: how far a job has come at a change depends on the machine.

mod files;
mod job;
mod odd;
mod pool;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use self::pool::Pool;

/// Jobs of one pool.
const JOBS: u64 = 4;
/// Odd changes in the midst of a job, at most.
const CHANGES: u64 = 4;

/// The number of operations of each kind.
#[derive(Debug, Default, Clone)]
pub struct JobCourse {
    layout: &'static str,
    done: BTreeMap<&'static str, u64>,
}

impl JobCourse {
    fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }
}

impl fmt::Display for JobCourse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.layout)?;
        self.done.iter().try_for_each(|(what, count)| write!(f, ", {count} {what}"))
    }
}

/// The life of the pool of a seed.
///
/// # Errors
/// The violated expectation, with the commands that led to it; the images are kept.
pub fn live(binary: &Path, seed: u64) -> Result<JobCourse, String> {
    let mut pool = Pool::new(binary, seed)?;
    let done = (0..JOBS).try_for_each(|_| pool.job());
    match done {
        Ok(()) => Ok(pool.course.clone()),
        Err(why) => {
            let kept = pool.keep();
            Err(format!("{}: {why}\ncommands:\n{}\nkept: {kept}", pool.course.layout, pool.said.join("\n")))
        }
    }
}
