//! Chooses the block to evict: recency against frequency, adapted by cache misses.
//!
//! Four lists, as in Megiddo and Modha's paper: blocks seen once and blocks seen again, each with a ghost list of
//! evicted identities. A miss that a ghost list contains shows that its side was too small, and moves the target.
//! A fifth list has the blocks that were passed on to the system's page cache: they leave first. A miss that their ghost list
//! contains shows that the page cache did not keep them, so that the block stays here from then on.
//! Pure decisions: no I/O, no locks.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::BlockKey;
use super::chains::{Chains, Slot};
use super::stats::ReadPurpose;

/// The lists; the values are their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Recent,
    Frequent,
    GhostRecent,
    GhostFrequent,
    #[doc(alias = "arc_uncached")]
    Uncached,
    GhostUncached,
}

#[derive(Debug)]
struct Entry<V> {
    key: BlockKey,
    /// `None` in a ghost list.
    value: Option<V>,
    side: Side,
    size: u64,
    metadata: bool,
    /// Read ahead, and not yet requested.
    ahead: bool,
    /// All requests so far passed it on to the page cache.
    paged: bool,
}

/// Counters of one list.
#[derive(Debug, Default)]
struct List {
    bytes: Size,
    hits: u64,
}

/// Bytes of one list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Content of files and volumes.
    pub data: u64,
    /// All other blocks.
    pub metadata: u64,
}

impl Size {
    fn part(&mut self, metadata: bool) -> &mut u64 {
        if metadata { &mut self.metadata } else { &mut self.data }
    }

    /// Both.
    pub fn total(self) -> u64 {
        self.data + self.metadata
    }
}

/// Bytes of all lists, and the hits of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Blocks seen once.
    pub recent: Size,
    /// Blocks seen again.
    pub frequent: Size,
    /// Evicted blocks that were seen once.
    pub ghost_recent: Size,
    /// Evicted blocks that were seen again.
    pub ghost_frequent: Size,
    /// Blocks that the system's page cache has as well.
    pub uncached: Size,
    /// Reads that each of the five would have answered, in this order.
    pub hits: [u64; 5],
}

#[cfg(test)]
impl Sizes {
    /// Bytes of cached blocks.
    pub(crate) fn total(&self) -> u64 {
        self.recent.total() + self.frequent.total() + self.uncached.total()
    }
}

/// The result of using a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockUse {
    /// The use for which it had been read ahead.
    ReadAhead,
    /// An ordinary use.
    Plain,
}

/// The lists and the adapted target. Blocks outside the ghost lists have a value.
#[derive(Debug)]
pub(super) struct RecencyLists<V> {
    entries: HashMap<BlockKey, Slot, RandomState>,
    chains: Chains<Entry<V>, 6>,
    lists: [List; 6],
    /// Target bytes of the recent side.
    target: u64,
}

impl<V> Default for RecencyLists<V> {
    fn default() -> Self {
        let (entries, chains) = (HashMap::default(), Chains::default());
        Self { entries, chains, lists: Default::default(), target: 0 }
    }
}

impl<V> RecencyLists<V> {
    fn entry(&self, key: BlockKey) -> Option<&Entry<V>> {
        self.chains.get(*self.entries.get(&key)?)
    }

    /// The content of a cached block.
    pub(super) fn value(&self, key: BlockKey) -> Option<&V> {
        self.entry(key)?.value.as_ref()
    }

    /// The content of a cached block, to be changed. Its size stays the same.
    pub(super) fn value_mut(&mut self, key: BlockKey) -> Option<&mut V> {
        self.chains.get_mut(*self.entries.get(&key)?)?.value.as_mut()
    }

    fn unlink(&mut self, key: BlockKey) -> Option<Entry<V>> {
        let entry = self.chains.remove(self.entries.remove(&key)?)?;
        self.count(entry.side, entry.metadata, |bytes| bytes.saturating_sub(entry.size));
        Some(entry)
    }

    fn link(&mut self, entry: Entry<V>) {
        let (key, side, metadata, size) = (entry.key, entry.side, entry.metadata, entry.size);
        if let Some(slot) = self.chains.insert(side as usize, entry) {
            self.entries.insert(key, slot);
            self.count(side, metadata, |bytes| bytes.saturating_add(size));
        }
    }

    fn count(&mut self, side: Side, metadata: bool, change: impl FnOnce(u64) -> u64) {
        if let Some(list) = self.lists.get_mut(side as usize) {
            let bytes = list.bytes.part(metadata);
            *bytes = change(*bytes);
        }
    }

    fn hit(&mut self, side: Side) {
        if let Some(list) = self.lists.get_mut(side as usize) {
            list.hits += 1;
        }
    }

    /// A cached block is used again: returns its content. The first use of a block that was read ahead is not a second use, nor
    /// is that by a stream through the page cache, which reads each block in several pieces.
    pub(super) fn touch(&mut self, key: BlockKey, purpose: ReadPurpose) -> Option<(&V, BlockUse)> {
        let ReadPurpose { prefetch, paged, .. } = purpose;
        let slot = *self.entries.get(&key)?;
        let entry = self.chains.get_mut(slot).filter(|entry| entry.value.is_some())?;
        let (before, read_ahead, size, metadata) = (entry.side, entry.ahead, entry.size, entry.metadata);
        let passes = paged && entry.paged;
        let (side, ahead) = match (read_ahead, passes) {
            (_, true) if prefetch => (before, read_ahead),
            (_, true) => (Side::Uncached, false),
            (true, false) => (before, prefetch),
            (false, false) => (Side::Frequent, false),
        };
        (entry.side, entry.ahead, entry.paged) = (side, ahead, passes);
        self.chains.use_again(slot, side as usize);
        self.hit(before);
        if side != before {
            self.count(before, metadata, |bytes| bytes.saturating_sub(size));
            self.count(side, metadata, |bytes| bytes.saturating_add(size));
        }
        let touched = if read_ahead && !prefetch { BlockUse::ReadAhead } else { BlockUse::Plain };
        Some((self.chains.get(slot)?.value.as_ref()?, touched))
    }

    /// A block of `size` bytes was read into a cache of `limit` bytes.
    pub(super) fn insert(&mut self, key: BlockKey, value: V, size: u64, purpose: ReadPurpose, limit: u64) {
        let before = self.unlink(key).map(|e| e.side);
        if let Some(side) = before {
            self.hit(side);
        }
        match before {
            Some(Side::GhostRecent) => self.target = (self.target + size).min(limit),
            Some(Side::GhostFrequent) => self.target = self.target.saturating_sub(size),
            Some(Side::Recent | Side::Frequent | Side::Uncached | Side::GhostUncached) | None => {}
        }
        let ReadPurpose { metadata, prefetch: ahead, .. } = purpose;
        let paged = purpose.paged && before.is_none();
        let side = match before {
            Some(_) => Side::Frequent,
            None if paged && !ahead => Side::Uncached,
            None => Side::Recent,
        };
        self.link(Entry { key, value: Some(value), side, size, metadata, ahead, paged });
        self.forget(limit);
    }

    /// The standing of a block: whether it was seen more than once, and whether it was read ahead and not used since.
    pub(super) fn standing(&self, key: BlockKey) -> Option<(bool, bool)> {
        let entry = self.entry(key)?;
        Some((matches!(entry.side, Side::Frequent | Side::GhostFrequent), entry.ahead))
    }

    /// Removes a cached block; returns its bytes. A ghost stays.
    pub(super) fn remove(&mut self, key: BlockKey) -> Option<u64> {
        self.value(key)?;
        self.unlink(key).map(|entry| entry.size)
    }

    /// Removes a pool's blocks, including their ghosts. Returns the bytes of its cached blocks.
    pub(super) fn forget_pool(&mut self, pool: u32) -> u64 {
        let keys: Vec<BlockKey> = self.entries.keys().filter(|key| key.pool == pool).copied().collect();
        let removed = keys.into_iter().filter_map(|key| self.unlink(key));
        removed.filter(|entry| entry.value.is_some()).map(|entry| entry.size).sum()
    }

    /// Chooses the block to evict from a cache of `limit` bytes, and moves its identity to a ghost list. Returns its bytes.
    pub(super) fn evict(&mut self, limit: u64) -> Option<u64> {
        if let Some(bytes) = self.evict_uncached(0, limit) {
            return Some(bytes);
        }
        let target = self.target.min(limit);
        let (recent, frequent) = (self.oldest(Side::Recent), self.oldest(Side::Frequent));
        let recent_first = self.bytes(Side::Recent).total() > target || frequent.is_none();
        let (key, ghost) = match (recent, frequent) {
            (Some(key), _) if recent_first => (key, Side::GhostRecent),
            (_, frequent) => (frequent?, Side::GhostFrequent),
        };
        self.make_ghost(key, ghost, limit)
    }

    /// Moves the oldest of the blocks that the page cache has as well to their ghost list, if all of them have more than `most`
    /// bytes. Returns its bytes. `limit`: bytes of the cache.
    pub(super) fn evict_uncached(&mut self, most: u64, limit: u64) -> Option<u64> {
        let all = self.bytes(Side::Uncached).total();
        let key = self.oldest(Side::Uncached).filter(|_| all > most)?;
        self.make_ghost(key, Side::GhostUncached, limit)
    }

    fn make_ghost(&mut self, key: BlockKey, ghost: Side, limit: u64) -> Option<u64> {
        let entry = self.unlink(key)?;
        let size = entry.size;
        self.link(Entry { side: ghost, value: None, ..entry });
        self.forget(limit);
        Some(size)
    }

    fn oldest(&self, side: Side) -> Option<BlockKey> {
        Some(self.chains.get(self.chains.oldest(side as usize)?)?.key)
    }

    fn bytes(&self, side: Side) -> Size {
        self.lists.get(side as usize).map_or_else(Size::default, |list| list.bytes)
    }

    /// Number of blocks, including ghosts.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Target bytes of the recent side.
    pub(super) fn target(&self) -> u64 {
        self.target
    }

    /// Bytes of all lists.
    pub(super) fn sizes(&self) -> Sizes {
        let [recent, frequent, ghost_recent, ghost_frequent, uncached, _] = &self.lists;
        let hits = [recent.hits, frequent.hits, ghost_recent.hits, ghost_frequent.hits, uncached.hits];
        let (recent, frequent) = (recent.bytes, frequent.bytes);
        Sizes {
            recent,
            frequent,
            ghost_recent: ghost_recent.bytes,
            ghost_frequent: ghost_frequent.bytes,
            uncached: uncached.bytes,
            hits,
        }
    }

    /// Ghosts represent at most as many bytes as the cache has.
    fn forget(&mut self, limit: u64) {
        for side in [Side::GhostRecent, Side::GhostFrequent, Side::GhostUncached] {
            while self.bytes(side).total() > limit {
                let Some(key) = self.oldest(side) else { break };
                self.unlink(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: ReadPurpose = ReadPurpose { prefetch: false, metadata: false, paged: false };
    const AHEAD: ReadPurpose = ReadPurpose { prefetch: true, ..DATA };

    fn key(offset: u64) -> BlockKey {
        BlockKey { pool: 0, vdev: 0, offset, birth: 1, keyless: false }
    }

    fn held(lists: &RecencyLists<u64>) -> u64 {
        lists.sizes().total()
    }

    #[test]
    fn a_scan_does_not_drive_out_what_is_used_again() {
        for ahead in [false, true] {
            let mut lists = RecencyLists::default();
            lists.insert(key(1), 1, 10, DATA, 100);
            lists.touch(key(1), DATA);
            for i in 2..50 {
                lists.insert(key(i), i, 10, if ahead { AHEAD } else { DATA }, 100);
                if ahead {
                    assert_eq!(lists.touch(key(i), DATA), Some((&i, BlockUse::ReadAhead)));
                }
                while held(&lists) > 100 {
                    lists.evict(100).unwrap();
                }
            }
            assert_eq!(lists.value(key(1)), Some(&1));
            assert!(lists.value(key(2)).is_none() && lists.standing(key(40)).is_some());
            assert_eq!(held(&lists), 100);
            assert!(lists.sizes().ghost_recent.total() <= 100);
        }
    }

    #[test]
    fn a_ghost_hit_moves_the_target() {
        let mut lists = RecencyLists::default();
        lists.insert(key(1), 1, 10, DATA, 10);
        lists.evict(10);
        lists.insert(key(1), 1, 10, DATA, 10);
        assert_eq!((lists.target(), lists.sizes().frequent.data), (10, 10));
        assert_eq!(lists.sizes().hits, [0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_stream_through_the_page_cache_leaves_no_more_than_its_part() {
        let paged = |prefetch| ReadPurpose { prefetch, paged: true, ..DATA };
        let mut lists = RecencyLists::default();
        lists.insert(key(1), 1, 10, DATA, 1000);
        for i in 2..50 {
            // Read ahead, then passed on in two pieces.
            lists.insert(key(i), i, 10, paged(true), 1000);
            assert_eq!(lists.sizes().recent.data, 20);
            assert_eq!(lists.touch(key(i), paged(false)), Some((&i, BlockUse::ReadAhead)));
            assert_eq!(lists.touch(key(i), paged(false)), Some((&i, BlockUse::Plain)));
            while lists.evict_uncached(30, 1000).is_some() {}
        }
        assert_eq!((lists.sizes().uncached.data, lists.sizes().recent.data), (30, 10));
        // Any other use is one that the page cache did not answer.
        lists.touch(key(49), DATA);
        lists.touch(key(49), paged(false));
        assert_eq!((lists.sizes().uncached.data, lists.sizes().frequent.data), (20, 10));
        assert_eq!((lists.evict(1000), lists.evict(1000), lists.evict(1000)), (Some(10), Some(10), Some(10)));
        assert_eq!((lists.value(key(49)), lists.value(key(1))), (Some(&49), None));
        // A block that another read wanted before stays.
        lists.insert(key(60), 60, 10, paged(true), 1000);
        lists.touch(key(60), DATA);
        lists.touch(key(60), paged(false));
        assert_eq!((lists.sizes().uncached.data, lists.remove(key(60))), (0, Some(10)));
        // The page cache did not keep it.
        let target = lists.target();
        lists.insert(key(2), 2, 10, paged(false), 1000);
        assert_eq!((lists.sizes().frequent.data, lists.target()), (20, target));
    }
}
