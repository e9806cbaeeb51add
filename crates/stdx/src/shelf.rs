//! Memory of freed buffers, kept for the next buffer of its size.
//!
//! A large allocation comes fresh from the kernel: each of its pages faults and is zeroed, which costs
//! about as much as reading it from a fast disk. Streams of equal reads need the same few sizes again and
//! again, so a few megabytes of them are kept.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smallest and largest blocks that are kept, in bytes. The allocator handles smaller ones as well, but those of columns and
/// short records would have to be zeroed each time.
const KEPT: std::ops::RangeInclusive<usize> = 16 << 10..=4 << 20;
/// Bytes that are kept at most.
const LIMIT: usize = 32 << 20;

/// A block of memory whose owner released it.
pub(crate) struct Block {
    pub(crate) ptr: NonNull<u8>,
    /// Allocated bytes.
    pub(crate) cap: usize,
    /// Bytes at the front that have been written at least once.
    pub(crate) written: usize,
}

// SAFETY: the holder of a block owns it, and plain memory has no thread affinity.
unsafe impl Send for Block {}

struct Shelf {
    by_cap: BTreeMap<usize, Vec<Block>>,
    bytes: usize,
}

static SHELF: Mutex<Shelf> = Mutex::new(Shelf { by_cap: BTreeMap::new(), bytes: 0 });

fn shelf() -> MutexGuard<'static, Shelf> {
    SHELF.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes to allocate for `len`: rounded up by at most a quarter where blocks are kept, so that similar
/// lengths share them.
pub(crate) fn capacity(len: usize) -> usize {
    if KEPT.contains(&len) { len.next_multiple_of(len.next_power_of_two() / 8) } else { len }
}

/// A kept block of exactly this capacity.
pub(crate) fn take(cap: usize) -> Option<Block> {
    if !KEPT.contains(&cap) {
        return None;
    }
    let mut shelf = shelf();
    let block = shelf.by_cap.get_mut(&cap)?.pop()?;
    shelf.bytes -= cap;
    Some(block)
}

/// Keeps a block, or returns it to be freed.
pub(crate) fn put(block: Block) -> Option<Block> {
    if !KEPT.contains(&block.cap) {
        return Some(block);
    }
    let mut shelf = shelf();
    if shelf.bytes + block.cap > LIMIT {
        return Some(block);
    }
    shelf.bytes += block.cap;
    shelf.by_cap.entry(block.cap).or_default().push(block);
    None
}

/// Frees everything that is kept.
pub(crate) fn clear() {
    let kept = {
        let mut shelf = shelf();
        shelf.bytes = 0;
        std::mem::take(&mut shelf.by_cap)
    };
    kept.into_values().flatten().for_each(crate::buf::free);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_cover_and_waste_little() {
        for len in [1, 4095, 65_536, 65_537, 131_072, 135_168, 1_000_000, 1 << 20, 4 << 20, (4 << 20) + 1] {
            let cap = capacity(len);
            assert!(cap >= len && cap - len <= len / 4, "{len} {cap}");
            assert_eq!(capacity(cap), cap, "a kept block serves its own size again");
        }
        assert_eq!(capacity(131_072), 131_072);
    }
}
