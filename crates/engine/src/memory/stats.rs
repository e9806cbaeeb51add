//! What the cache did so far, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a block was read, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// Read ahead: nobody waits for it yet.
    pub prefetch: bool,
    /// An indirect block, a dnode, a directory and the like; not what a file or volume contains.
    pub metadata: bool,
}

/// One counter for each purpose.
#[derive(Debug, Default)]
pub struct ByPurpose([AtomicU64; 4]);

impl ByPurpose {
    fn cell(&self, of: Purpose) -> &AtomicU64 {
        let [data, metadata, ahead, metadata_ahead] = &self.0;
        match (of.prefetch, of.metadata) {
            (false, false) => data,
            (false, true) => metadata,
            (true, false) => ahead,
            (true, true) => metadata_ahead,
        }
    }

    /// Counts one.
    pub fn count(&self, of: Purpose) {
        self.cell(of).fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn get(&self, of: Purpose) -> u64 {
        self.cell(of).load(Ordering::Relaxed)
    }

    /// How many there were of all purposes.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).sum()
    }
}

/// Counters since the process began, of all pools.
#[derive(Debug, Default)]
pub struct Stats {
    /// Reads answered from memory.
    pub hits: ByPurpose,
    /// Reads that joined one that was under way.
    pub io_hits: ByPurpose,
    /// Reads that went to a device.
    pub misses: ByPurpose,
    /// Blocks that were read ahead, and then asked for.
    pub prefetch_used: AtomicU64,
    /// Of [`Stats::prefetch_used`], those whose read was still under way.
    pub prefetch_joined: AtomicU64,
}
