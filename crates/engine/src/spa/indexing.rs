//! The keys of dedup tables are read into memory after an import, so that new blocks cost no look-up there.
//!
//! The activity reads small parts of the tables in open context and rests while the pool is written. It ends when all keys are
//! in memory, or as many as `zfs_dedup_index_max` allows; it waits while the machine is short of memory.

use std::sync::{Arc, Weak};

use super::Spa;
use super::activity::{Activity, ActivityStep, Pace};
use crate::ddt::index::IndexProgress;
use crate::error::Result;

/// The activity.
#[derive(Debug)]
pub(super) struct Indexing {
    spa: Weak<Spa>,
}

impl Indexing {
    /// The activity of a pool.
    pub(super) fn new(spa: Weak<Spa>) -> Self {
        Self { spa }
    }
}

impl Activity for Indexing {
    fn step(&self) -> Result<ActivityStep> {
        let Some(spa) = self.spa.upgrade() else { return Ok(ActivityStep::Done) };
        let memory = &spa.pool.env.memory;
        let progress = {
            let _quiet = spa.quiet();
            spa.shared.read_index(&spa.mos.view(), memory)
        };
        Ok(match progress {
            IndexProgress::Read if !spa.is_busy() => ActivityStep::More,
            IndexProgress::Read | IndexProgress::Changed => ActivityStep::Later,
            // Without threads, steps are done until none is left.
            IndexProgress::Done if memory.is_short() && spa.is_threaded() => ActivityStep::Later,
            IndexProgress::Done => ActivityStep::Done,
        })
    }

    fn pace(&self) -> Pace {
        Pace::ByStep
    }
}

impl Spa {
    /// Starts to read the keys of dedup tables into memory.
    pub(super) fn index_at_import(&self) {
        if self.shared.wants_index() {
            self.background().start_steps(&(Arc::clone(&self.indexing) as Arc<dyn Activity>));
        }
    }
}
