//! What the engine takes from outside: time, threads, promises of memory.

use std::sync::Arc;

use stdx::clock::{Clock, SystemClock};

use crate::error::Result;
use crate::taskq::{Executor, ThreadPool};

/// The outside world of an engine.
#[derive(Debug, Clone)]
pub struct Env {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where CPU work runs.
    pub executor: Arc<dyn Executor>,
    /// Bytes that the cache may hold.
    pub arc_max: u64,
}

impl Env {
    /// The machine's clock and as many threads as it has cores.
    pub fn system(arc_max: u64) -> Result<Self> {
        let width = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Ok(Self {
            clock: Arc::new(SystemClock::default()),
            executor: Arc::new(ThreadPool::new(width)?),
            arc_max,
        })
    }
}
