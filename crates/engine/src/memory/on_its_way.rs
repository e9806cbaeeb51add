//! Blocks that are being read ahead: their bytes count until they have arrived in the cache, which counts them from then on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Memory;

/// All blocks on their way take at most one in so many bytes of the cache's target,
const PART: u64 = 16;
/// within these bounds.
const BOUNDS: (u64, u64) = (1 << 20, 64 << 20);

/// The bytes of a block on its way, until this is dropped.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    memory: Arc<Memory>,
    bytes: u64,
}

impl OnItsWay {
    /// Counts a block; `None` if there is no space for it.
    pub(crate) fn take(memory: &Arc<Memory>, bytes: u64) -> Option<Self> {
        let most = (memory.target() / PART).clamp(BOUNDS.0, BOUNDS.1);
        // One block of any size is always possible.
        let with =
            |now: u64| (now == 0 || now.saturating_add(bytes) <= most).then(|| now.saturating_add(bytes));
        let counted = memory.on_their_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
        counted.ok().map(|_| Self { memory: Arc::clone(memory), bytes })
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.memory.on_their_way.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_on_their_way_have_a_bound_and_one_is_always_possible() {
        let memory = Arc::new(Memory::of_size(64 << 20));
        let blocks: Vec<_> = std::iter::from_fn(|| OnItsWay::take(&memory, 128 << 10)).collect();
        assert_eq!(blocks.len(), 32);
        drop(blocks);
        let large = OnItsWay::take(&memory, 16 << 20);
        assert!(large.is_some() && OnItsWay::take(&memory, 512).is_none());
        drop(large);
        assert!(OnItsWay::take(&memory, 512).is_some());
    }
}
