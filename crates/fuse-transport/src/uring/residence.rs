//! Bounds the memory that the payloads of entries hold.
//!
//! The kernel writes large requests to an entry's payload and reads large answers from it; the touched pages stay. While
//! all entries together hold more than [`KEPT`], an entry returns the pages that its present answer does not need, before
//! it is committed. So only the answers to large reads can exceed the bound: by as much as were in progress at once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of all payloads that are kept for later requests.
const KEPT: usize = 16 << 20;

static ALL: AtomicUsize = AtomicUsize::new(0);

/// The touched bytes at the start of one payload. Only the present user of the entry changes it.
#[derive(Debug, Default)]
pub struct Residence(AtomicUsize);

impl Residence {
    /// The first `len` bytes are used.
    pub fn used(&self, len: usize) {
        let more = len.saturating_sub(self.0.load(Ordering::Relaxed));
        if more > 0 {
            self.0.fetch_add(more, Ordering::Relaxed);
            ALL.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Whether bytes after the first `keep` are to be returned.
    pub fn is_excessive(&self, keep: usize) -> bool {
        self.0.load(Ordering::Relaxed) > keep && ALL.load(Ordering::Relaxed) > KEPT
    }

    /// The bytes after the first `keep` were returned.
    pub fn trimmed(&self, keep: usize) {
        let less = self.0.load(Ordering::Relaxed).saturating_sub(keep);
        self.0.fetch_sub(less, Ordering::Relaxed);
        ALL.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for Residence {
    fn drop(&mut self) {
        self.trimmed(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_return_pages_only_beyond_the_bound_and_count_once() {
        let (one, other) = (Residence::default(), Residence::default());
        one.used(4096);
        one.used(4096);
        assert!(!one.is_excessive(0));
        other.used(KEPT);
        assert!(one.is_excessive(0) && !one.is_excessive(4096) && other.is_excessive(4096));
        other.trimmed(4096);
        assert!(!one.is_excessive(0) && !other.is_excessive(0));
        other.used(KEPT);
        assert!(other.is_excessive(4096));
        drop(other);
        assert!(!one.is_excessive(0));
    }
}
