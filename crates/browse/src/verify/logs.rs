//! Intent logs that wait for their replay, and cannot be read whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::dsl::Dataset;
use engine::spa::Pool;
use engine::zil::in_memory::DueLog;
use engine::zio::Form;
use engine::{Error, Result};

/// Maximum number of logs that are listed.
const MAX_LOGS: usize = 1000;

/// A log of which acknowledged records cannot be read, or may be missing.
#[derive(Debug)]
pub struct BadLog {
    /// The dataset.
    pub dataset: String,
    /// The reason.
    pub why: Error,
}

/// All of them. The walk over the pool's blocks ends each log at its first unreadable block: only here it shows whether the log
/// had more.
pub fn bad_logs(pool: &Arc<Pool>, stop: &AtomicBool) -> Vec<BadLog> {
    let Ok(root) = pool.dsl.root() else { return Vec::new() };
    let heads = pool.dsl.walk(root).flatten().take_while(|_| !stop.load(Ordering::Relaxed));
    // Datasets that cannot be opened are in the report already.
    let heads = heads.filter_map(|dir| dir.head().ok());
    heads
        .filter_map(|head| Some(BadLog { why: check(&head).err()?, dataset: head.name }))
        .take(MAX_LOGS)
        .collect()
}

fn check(head: &Dataset) -> Result<()> {
    let Ok(objset) = head.objset_as(Form::NoKey) else { return Ok(()) };
    DueLog::of(head, &objset).map_or(Ok(()), |log| log.check())
}
