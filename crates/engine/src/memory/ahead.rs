//! Bounds the bytes that send streams have read before they are wanted, over all streams of the process.
//!
//! A stream takes at most as much as it leaves free: one stream gets half of [`LIMIT`], `n` equal ones get a part of
//! `n + 1` each, and a stream whose reader is slow never holds so much that others get nothing. A stream may always read
//! the block that it writes next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Memory;

/// Bytes of all streams together, beside one block for each.
pub(crate) const LIMIT: u64 = 48 << 20;

/// The bytes of all streams.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead(AtomicU64);

/// The bytes of one stream; they are given back when it ends.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Share {
    /// The share of a new stream.
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        Self { memory, bytes: 0 }
    }

    /// Counts bytes that are going to be read.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.memory.ahead.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives bytes back that were added.
    pub(crate) fn remove(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.memory.ahead.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that the stream holds.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the stream holds more than it may.
    pub(crate) fn is_over(&self) -> bool {
        let free = LIMIT.saturating_sub(self.memory.ahead.0.load(Ordering::Relaxed));
        self.bytes > free
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.remove(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 128 << 10;

    /// Reads ahead as far as it may.
    fn fill(share: &mut Share) {
        loop {
            share.add(BLOCK);
            if share.is_over() {
                return share.remove(BLOCK);
            }
        }
    }

    #[test]
    fn all_streams_together_stay_below_one_limit_and_none_takes_all() {
        let memory = Arc::new(Memory::of_size(1));
        let mut shares: Vec<Share> = (0..40).map(|_| Share::new(Arc::clone(&memory))).collect();
        shares.iter_mut().for_each(fill);
        let all: u64 = shares.iter().map(|share| share.bytes).sum();
        assert!(all <= LIMIT, "{all}");
        assert!(shares[0].bytes >= LIMIT / 2 - BLOCK && shares[1].bytes >= LIMIT / 4 - BLOCK);
        shares.truncate(1);
        assert_eq!(memory.ahead.0.load(Ordering::Relaxed), shares[0].bytes);
        shares.clear();
        assert_eq!(memory.ahead.0.load(Ordering::Relaxed), 0);
    }
}
