//! `aquifer replicate`: keeps a dataset, or a tree of them, equal to another one, here or on another machine.
//!
//! ```text
//! place      the location of a side, and how commands reach it
//! host       runs zfs on a side
//! look       datasets, snapshots and bookmarks of a side
//! plan       the streams to send, from both sides' states alone
//! retention  the snapshots that a rule keeps
//! words      the command lines of a step, and its description
//! pump       bytes from one command to the other: counted, limited, stopped
//! run        one replication: snapshot, plan, send, hold, prune
//! verify     compares both sides' content of a snapshot
//! status     whether a target is behind
//! config     standing jobs from a file
//! report     lines, a bar, JSON
//! ```
//!
//! Both sides are driven by `zfs` command lines only, so either can be Aquifer or another OpenZFS. A step of a plan is
//! one stream of one snapshot of one dataset, received with `-s`. An interruption at any point leaves each dataset of the
//! target at a snapshot of the source, with or without a partial receive beside it; nothing else is kept between runs,
//! and the next run looks at both sides again. The newest common snapshot is held on both sides and has a bookmark on the
//! source, and a prune never removes it.
//!
//! Exit codes of a run: 0 everything is at the target; 1 something failed; 130 interrupted. Of the status: 0 up to
//! date, 3 behind, 4 cannot be continued, 1 failed.

pub mod config;
mod host;
mod look;
mod marks;
pub mod place;
mod plan;
mod pretended;
mod pump;
pub mod report;
pub mod retention;
mod run;
mod status;
mod streams;
mod time;
mod verify;
mod words;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use host::Failed;
use marks::Marks;
use place::Place;
use retention::Rule;
pub use run::{Done, run};
pub use status::{State, status};
pub use streams::write_items;

/// How encrypted datasets are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Raw {
    /// As they are on disk, unless the target's dataset is not encrypted.
    #[default]
    WhenEncrypted,
    /// Everything is sent as it is on disk.
    Always,
    /// Decrypted; the source's keys must be loaded.
    Never,
}

/// One replication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its name: part of the names of its snapshots, bookmarks and holds.
    pub name: String,
    /// The source.
    pub source: Place,
    /// Where it is copied to.
    pub target: Place,
    /// Everything below, too.
    pub recursive: bool,
    /// Datasets below the source that are skipped, with all below them; names relative to the source.
    pub exclude: Vec<String>,
    /// Take a snapshot of the source first.
    pub snapshot: bool,
    /// Send only the newest snapshot, without those between it and the last common one.
    pub newest: bool,
    /// Which of the job's own snapshots stay on the source; `None`: all.
    pub keep: Option<Rule>,
    /// Which of them stay on the target; `None`: all.
    pub keep_target: Option<Rule>,
    /// Most bytes a second; `None`: no limit.
    pub rate: Option<u64>,
    /// How encrypted datasets are sent.
    pub raw: Raw,
    /// Roll the target back when it changed or has newer snapshots.
    pub force: bool,
    /// New datasets of the target may be changed there; otherwise they get `readonly=on`.
    pub writable: bool,
    /// Properties are sent, too.
    pub props: bool,
    /// Keep no holds.
    pub no_holds: bool,
    /// Compare both sides at the end.
    pub verify: bool,
    /// Age in seconds from which the status reports a target as behind; `None`: as soon as a snapshot is missing.
    pub max_age: Option<u64>,
}

impl Job {
    /// A job with defaults.
    pub fn new(name: &str, source: Place, target: Place) -> Self {
        Self {
            name: name.to_owned(),
            source,
            target,
            recursive: false,
            exclude: Vec::new(),
            snapshot: false,
            newest: false,
            keep: None,
            keep_target: None,
            rate: None,
            raw: Raw::default(),
            force: false,
            writable: false,
            props: false,
            no_holds: false,
            verify: false,
            max_age: None,
        }
    }

    /// Checks that the target is none of the datasets that are sent: each run would send what the last one received.
    ///
    /// # Errors
    /// A message with both names. The names of one machine over different ways are not compared.
    pub fn check(&self) -> Result<(), String> {
        if self.source.reach != self.target.reach {
            return Ok(());
        }
        let (source, target) = (&self.source.dataset, &self.target.dataset);
        match target.strip_prefix(source.as_str()) {
            Some("") => Err(format!("'{target}' is both the source and the target")),
            Some(below) if below.starts_with('/') && self.recursive && !self.leaves_out(below) => {
                Err(format!("the target '{target}' is below the source '{source}' and would be sent, too"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a dataset below the source, by its relative name, is excluded, or below one that is.
    pub(crate) fn leaves_out(&self, relative: &str) -> bool {
        self.exclude.iter().any(|name| {
            let rest = relative.strip_prefix(&format!("/{}", name.trim_matches('/')));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Prefix of the names of its own snapshots.
    pub(crate) fn prefix(&self) -> String {
        format!("aquifer_{}_", self.name)
    }

    /// The names of its holds and bookmarks. `pool`: what distinguishes the target's pool from others of its name.
    pub(crate) fn marks(&self, pool: &str) -> Marks {
        Marks::of(&self.name, &format!("{pool} {}", self.target.dataset))
    }
}

/// Context of a run in its process.
#[derive(Debug, Clone)]
pub struct Around {
    /// The program that has a `zfs` command: `aquifer`.
    pub program: PathBuf,
    /// Set when the run is to stop.
    pub stop: Arc<AtomicBool>,
}

impl Around {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_none_of_the_datasets_that_are_sent() {
        let job = |source: &str, target: &str, via: Option<&str>| {
            Job::new("j", Place::parse(source, None).unwrap(), Place::parse(target, via).unwrap())
        };
        let whole = |job: Job| Job { recursive: true, ..job };
        assert!(job("s/p", "s/p", None).check().unwrap_err().contains("both the source and the target"));
        assert!(whole(job("s/p", "s/p/a/b", None)).check().unwrap_err().contains("below the source"));
        let excluded = Job { exclude: vec!["a".to_owned()], ..whole(job("s/p", "s/p/a/b", None)) };
        let fine = [
            excluded,
            job("s/p", "s/p/a", None),
            whole(job("s/p", "s/pa", None)),
            whole(job("s/p", "s", None)),
            whole(job("s/p", "s/p", Some("far"))),
        ];
        for job in fine {
            assert_eq!(job.check(), Ok(()), "{job:?}");
        }
    }
}
