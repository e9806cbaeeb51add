//! Chooses the block to evict: recency against frequency, adapted by cache misses.
//!
//! Four lists, as in Megiddo and Modha's paper: blocks seen once and blocks seen again, each with a ghost list of
//! evicted identities. A miss that a ghost list contains shows that its side was too small, and moves the target.
//! Pure decisions: no I/O, no locks.

use std::collections::{BTreeMap, HashMap};

use super::Key;
use super::stats::Purpose;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Recent,
    Frequent,
    GhostRecent,
    GhostFrequent,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    side: Side,
    tick: u64,
    size: u64,
    metadata: bool,
    /// Read ahead, and not yet requested.
    ahead: bool,
}

#[derive(Debug, Default)]
struct List {
    order: BTreeMap<u64, Key>,
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

impl Sizes {
    /// Bytes of cached blocks.
    pub fn total(&self) -> u64 {
        self.recent.total() + self.frequent.total()
    }
}

/// The result of using a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touched {
    /// The use for which it had been read ahead.
    ReadAhead,
    /// An ordinary use.
    Plain,
}

/// The lists and the adapted target.
#[derive(Debug, Default)]
pub(super) struct Lists {
    entries: HashMap<Key, Entry>,
    recent: List,
    frequent: List,
    ghost_recent: List,
    ghost_frequent: List,
    tick: u64,
    /// Target bytes of the recent side.
    target: u64,
}

impl Lists {
    fn list(&mut self, side: Side) -> &mut List {
        match side {
            Side::Recent => &mut self.recent,
            Side::Frequent => &mut self.frequent,
            Side::GhostRecent => &mut self.ghost_recent,
            Side::GhostFrequent => &mut self.ghost_frequent,
        }
    }

    fn unlink(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        let list = self.list(entry.side);
        list.order.remove(&entry.tick);
        let bytes = list.bytes.part(entry.metadata);
        *bytes = bytes.saturating_sub(entry.size);
        Some(entry)
    }

    fn link(&mut self, key: Key, entry: Entry) {
        self.tick += 1;
        let tick = self.tick;
        let list = self.list(entry.side);
        list.order.insert(tick, key);
        *list.bytes.part(entry.metadata) += entry.size;
        self.entries.insert(key, Entry { tick, ..entry });
    }

    /// A cached block was used again. The first use of a block that was read ahead is not a second use.
    pub(super) fn touch(&mut self, key: Key, prefetch: bool) -> Touched {
        let Some(entry) = self.unlink(key) else { return Touched::Plain };
        self.list(entry.side).hits += 1;
        let (side, ahead) = match (entry.ahead, prefetch) {
            (true, _) => (entry.side, prefetch),
            (false, _) => (Side::Frequent, false),
        };
        self.link(key, Entry { side, ahead, ..entry });
        if entry.ahead && !prefetch { Touched::ReadAhead } else { Touched::Plain }
    }

    /// A block of `size` bytes was read into a cache of `limit` bytes.
    pub(super) fn insert(&mut self, key: Key, size: u64, purpose: Purpose, limit: u64) {
        let before = self.unlink(key).map(|e| e.side);
        if let Some(side) = before {
            self.list(side).hits += 1;
        }
        match before {
            Some(Side::GhostRecent) => self.target = (self.target + size).min(limit),
            Some(Side::GhostFrequent) => self.target = self.target.saturating_sub(size),
            _ => {}
        }
        let side = if before.is_some() { Side::Frequent } else { Side::Recent };
        self.link(key, Entry { side, tick: 0, size, metadata: purpose.metadata, ahead: purpose.prefetch });
        self.forget(limit);
    }

    /// The standing of a block: whether it was seen more than once, and whether it was read ahead and not used since.
    pub(super) fn standing(&self, key: Key) -> Option<(bool, bool)> {
        let entry = self.entries.get(&key)?;
        Some((matches!(entry.side, Side::Frequent | Side::GhostFrequent), entry.ahead))
    }

    /// Removes a cached block; returns its bytes.
    pub(super) fn remove(&mut self, key: Key) -> u64 {
        self.unlink(key).map_or(0, |entry| entry.size)
    }

    /// Removes a pool's blocks, including their ghosts.
    pub(super) fn forget_pool(&mut self, pool: u32) {
        let keys: Vec<Key> = self.entries.keys().filter(|key| key.pool == pool).copied().collect();
        for key in keys {
            self.unlink(key);
        }
    }

    /// Chooses the block to evict from a cache of `limit` bytes, and moves its identity to a ghost list.
    pub(super) fn evict(&mut self, limit: u64) -> Option<(Key, u64)> {
        let target = self.target.min(limit);
        let recent_first = self.recent.bytes.total() > target || self.frequent.order.is_empty();
        let (side, ghost) = if recent_first && !self.recent.order.is_empty() {
            (Side::Recent, Side::GhostRecent)
        } else {
            (Side::Frequent, Side::GhostFrequent)
        };
        let key = *self.list(side).order.first_key_value()?.1;
        let entry = self.unlink(key)?;
        self.link(key, Entry { side: ghost, ..entry });
        self.forget(limit);
        Some((key, entry.size))
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
        let lists = [&self.recent, &self.frequent, &self.ghost_recent, &self.ghost_frequent];
        let [recent, frequent, ghost_recent, ghost_frequent] = lists.map(|list| list.bytes);
        Sizes { recent, frequent, ghost_recent, ghost_frequent, hits: lists.map(|list| list.hits) }
    }

    /// Ghosts represent at most as many bytes as the cache has.
    fn forget(&mut self, limit: u64) {
        for side in [Side::GhostRecent, Side::GhostFrequent] {
            while self.list(side).bytes.total() > limit {
                let Some(key) = self.list(side).order.first_key_value().map(|(_, &key)| key) else { break };
                self.unlink(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Purpose = Purpose { prefetch: false, metadata: false };

    fn key(offset: u64) -> Key {
        Key { pool: 0, vdev: 0, offset, birth: 1, keyless: false }
    }

    fn held(lists: &Lists) -> u64 {
        lists.sizes().total()
    }

    #[test]
    fn a_scan_does_not_drive_out_what_is_used_again() {
        for ahead in [false, true] {
            let mut lists = Lists::default();
            lists.insert(key(1), 10, DATA, 100);
            lists.touch(key(1), false);
            let mut gone = Vec::new();
            for i in 2..50 {
                lists.insert(key(i), 10, Purpose { prefetch: ahead, metadata: false }, 100);
                if ahead {
                    assert_eq!(lists.touch(key(i), false), Touched::ReadAhead);
                }
                while held(&lists) > 100 {
                    gone.push(lists.evict(100).unwrap().0);
                }
            }
            assert!(!gone.contains(&key(1)));
            assert_eq!(held(&lists), 100);
            assert!(lists.ghost_recent.bytes.total() <= 100);
        }
    }

    #[test]
    fn a_ghost_hit_moves_the_target() {
        let mut lists = Lists::default();
        lists.insert(key(1), 10, DATA, 10);
        lists.evict(10);
        lists.insert(key(1), 10, DATA, 10);
        assert_eq!((lists.target(), lists.frequent.bytes.data), (10, 10));
        assert_eq!(lists.sizes().hits, [0, 0, 1, 0]);
    }
}
