//! Chooses the block to evict: recency against frequency, adapted by cache misses.
//!
//! Four lists, as in Megiddo and Modha's paper: blocks seen once and blocks seen again, each with a ghost list of
//! evicted identities. A miss that a ghost list contains shows that its side was too small, and moves the target.
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
    /// Reads that each of the four would have answered, in this order.
    pub hits: [u64; 4],
}

#[cfg(test)]
impl Sizes {
    /// Bytes of cached blocks.
    pub(crate) fn total(&self) -> u64 {
        self.recent.total() + self.frequent.total()
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
    chains: Chains<Entry<V>, 4>,
    lists: [List; 4],
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

    /// A cached block is used again: returns its content. The first use of a block that was read ahead is not a second use.
    pub(super) fn touch(&mut self, key: BlockKey, prefetch: bool) -> Option<(&V, BlockUse)> {
        let slot = *self.entries.get(&key)?;
        let entry = self.chains.get_mut(slot).filter(|entry| entry.value.is_some())?;
        let (before, read_ahead, size, metadata) = (entry.side, entry.ahead, entry.size, entry.metadata);
        let (side, ahead) = if read_ahead { (before, prefetch) } else { (Side::Frequent, false) };
        (entry.side, entry.ahead) = (side, ahead);
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
            _ => {}
        }
        let side = if before.is_some() { Side::Frequent } else { Side::Recent };
        let ReadPurpose { metadata, prefetch: ahead } = purpose;
        self.link(Entry { key, value: Some(value), side, size, metadata, ahead });
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
        let target = self.target.min(limit);
        let (recent, frequent) = (self.oldest(Side::Recent), self.oldest(Side::Frequent));
        let recent_first = self.bytes(Side::Recent).total() > target || frequent.is_none();
        let (key, ghost) = match (recent, frequent) {
            (Some(key), _) if recent_first => (key, Side::GhostRecent),
            (_, frequent) => (frequent?, Side::GhostFrequent),
        };
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
        let [recent, frequent, ghost_recent, ghost_frequent] = &self.lists;
        let hits = [recent.hits, frequent.hits, ghost_recent.hits, ghost_frequent.hits];
        let (recent, frequent) = (recent.bytes, frequent.bytes);
        Sizes {
            recent,
            frequent,
            ghost_recent: ghost_recent.bytes,
            ghost_frequent: ghost_frequent.bytes,
            hits,
        }
    }

    /// Ghosts represent at most as many bytes as the cache has.
    fn forget(&mut self, limit: u64) {
        for side in [Side::GhostRecent, Side::GhostFrequent] {
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

    const DATA: ReadPurpose = ReadPurpose { prefetch: false, metadata: false };

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
            lists.touch(key(1), false);
            for i in 2..50 {
                lists.insert(key(i), i, 10, ReadPurpose { prefetch: ahead, metadata: false }, 100);
                if ahead {
                    assert_eq!(lists.touch(key(i), false), Some((&i, BlockUse::ReadAhead)));
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
        assert_eq!(lists.sizes().hits, [0, 0, 1, 0]);
    }
}
