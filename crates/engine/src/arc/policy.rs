//! Which block leaves the cache: recency against frequency, learnt from what was missed.
//!
//! Four lists, as in Megiddo and Modha's paper: blocks seen once and blocks seen again, each with a
//! ghost list of identities that left. A miss that a ghost list remembers says that its side was too
//! small, and moves the target. Pure decisions: no I/O, no locks.

use std::collections::{BTreeMap, HashMap};

use super::Key;

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
}

#[derive(Debug, Default)]
struct List {
    order: BTreeMap<u64, Key>,
    bytes: u64,
}

/// The lists and the learnt target.
#[derive(Debug, Default)]
pub struct Lists {
    entries: HashMap<Key, Entry>,
    recent: List,
    frequent: List,
    ghost_recent: List,
    ghost_frequent: List,
    tick: u64,
    /// Bytes that the recent side should have.
    target: u64,
    /// Bytes that the cache may hold, as last told.
    limit: u64,
}

/// What an insertion learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lookup {
    /// Bytes that the recent side should have now.
    pub target: u64,
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
        list.bytes = list.bytes.saturating_sub(entry.size);
        Some(entry)
    }

    fn link(&mut self, key: Key, side: Side, size: u64) {
        self.tick += 1;
        let tick = self.tick;
        let list = self.list(side);
        list.order.insert(tick, key);
        list.bytes += size;
        self.entries.insert(key, Entry { side, tick, size });
    }

    /// A cached block was used again.
    pub fn touch(&mut self, key: Key) {
        if let Some(entry) = self.unlink(key) {
            self.link(key, Side::Frequent, entry.size);
        }
    }

    /// A block of `size` bytes was read into a cache of `limit` bytes.
    pub fn insert(&mut self, key: Key, size: u64, limit: u64) -> Lookup {
        let before = self.unlink(key).map(|e| e.side);
        match before {
            Some(Side::GhostRecent) => self.target = (self.target + size).min(limit),
            Some(Side::GhostFrequent) => self.target = self.target.saturating_sub(size),
            _ => {}
        }
        let side = if before.is_some() { Side::Frequent } else { Side::Recent };
        self.link(key, side, size);
        self.limit = limit;
        self.forget(limit);
        Lookup { target: self.target }
    }

    /// A cached block is no longer; gives its bytes.
    pub fn remove(&mut self, key: Key) -> u64 {
        self.unlink(key).map_or(0, |entry| entry.size)
    }

    /// The block that should leave; its identity goes to a ghost list.
    pub fn evict(&mut self, target: u64) -> Option<(Key, u64)> {
        let recent_first = self.recent.bytes > target || self.frequent.order.is_empty();
        let (side, ghost) = if recent_first && !self.recent.order.is_empty() {
            (Side::Recent, Side::GhostRecent)
        } else {
            (Side::Frequent, Side::GhostFrequent)
        };
        let key = *self.list(side).order.first_key_value()?.1;
        let entry = self.unlink(key)?;
        self.link(key, ghost, entry.size);
        self.forget(self.limit);
        Some((key, entry.size))
    }

    /// Ghosts stand for at most as many bytes as the cache has.
    fn forget(&mut self, limit: u64) {
        for side in [Side::GhostRecent, Side::GhostFrequent] {
            while self.list(side).bytes > limit {
                let Some(key) = self.list(side).order.first_key_value().map(|(_, &key)| key) else { break };
                self.unlink(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(offset: u64) -> Key {
        Key { vdev: 0, offset, birth: 1, keyless: false }
    }

    #[test]
    fn a_scan_does_not_drive_out_what_is_used_again() {
        let mut lists = Lists::default();
        lists.insert(key(1), 10, 100);
        lists.touch(key(1));
        let mut gone = Vec::new();
        for i in 2..50 {
            let Lookup { target } = lists.insert(key(i), 10, 100);
            while lists.recent.bytes + lists.frequent.bytes > 100 {
                gone.push(lists.evict(target).unwrap().0);
            }
        }
        assert!(!gone.contains(&key(1)));
        assert_eq!(lists.recent.bytes + lists.frequent.bytes, 100);
        assert!(lists.ghost_recent.bytes <= 100);
    }

    #[test]
    fn a_ghost_hit_moves_the_target() {
        let mut lists = Lists::default();
        lists.insert(key(1), 10, 10);
        lists.evict(0);
        assert_eq!(lists.insert(key(1), 10, 10), Lookup { target: 10 });
        assert_eq!(lists.frequent.bytes, 10);
    }
}
