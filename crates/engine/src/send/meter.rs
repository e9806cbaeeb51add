//! Progress of a stream, and the means to stop it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Kind, Result};

/// Counters of one stream. Any thread may look at them.
#[derive(Debug, Default)]
pub struct Meter {
    bytes: AtomicU64,
    blocks: AtomicU64,
    stopped: AtomicBool,
}

impl Meter {
    /// Bytes of records and payloads so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Block pointers visited so far.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Ends the stream soon, with `Interrupted`.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn count(&self, bytes: usize) -> Result<()> {
        self.bytes.fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
        self.check()
    }

    pub(super) fn visit(&self) -> Result<()> {
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.check()
    }

    fn check(&self) -> Result<()> {
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::Interrupted, "the stream was stopped")),
            false => Ok(()),
        }
    }
}
