//! Counters of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

/// The purpose of a read, and the kind of block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// Read ahead: no request waits for it yet.
    pub prefetch: bool,
    /// An indirect block, a dnode, a directory and the like; not the content of a file or volume.
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

    /// Counts one event.
    pub fn count(&self, of: Purpose) {
        self.cell(of).fetch_add(1, Ordering::Relaxed);
    }

    /// The count of one purpose.
    pub fn get(&self, of: Purpose) -> u64 {
        self.cell(of).load(Ordering::Relaxed)
    }

    /// The count of all purposes.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).sum()
    }
}

/// Counters since the start of the process, of all pools.
#[derive(Debug, Default)]
pub struct Stats {
    /// Reads served from memory.
    pub hits: ByPurpose,
    /// Reads that joined one in progress.
    pub io_hits: ByPurpose,
    /// Reads that went to a device.
    pub misses: ByPurpose,
    /// Blocks that were read ahead and then requested.
    pub prefetch_used: AtomicU64,
    /// Those of [`Stats::prefetch_used`] whose read was still in progress.
    pub prefetch_joined: AtomicU64,
}
