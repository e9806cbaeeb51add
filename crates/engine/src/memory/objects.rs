//! Bounds the number of unused objects of open object sets in memory, over all pools.
//!
//! While there are few, each object set keeps all it has visited. Once there are many, each has an equal share of
//! them, so thousands of mounted file systems take no more than one. [`OBJECTS`] are kept besides the cache of blocks; part of a
//! large cache serves for more of them, because the lookup of a file whose attributes are in memory takes a third of the time.

use std::collections::VecDeque;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Maximum unused objects in memory that take no space of the cache.
const OBJECTS: usize = 8192;
/// Maximum unused objects in memory: a txg looks at all of them.
const MOST: usize = 8 * OBJECTS;
/// Bytes that an object in memory takes, about.
const SIZE: u64 = 3 << 10;
/// The part of the cache that further objects may take.
pub(super) const PART: u64 = 16;
/// Minimum share of an object set.
const LEAST: usize = 32;
/// Maximum bytes of indexes of names: of one hundred of the largest micro ZAPs.
const INDEXES: usize = 4 << 20;

/// An object set whose objects keep indexes of their names.
pub(crate) trait KeepsIndexes: Send + Sync + std::fmt::Debug {
    /// Object `number` shall drop its index.
    fn drop_index(&self, number: u64);
}

/// Objects that keep an index, the oldest index first.
#[derive(Debug, Default)]
struct Indexes {
    kept: VecDeque<(Weak<dyn KeepsIndexes>, u64, usize)>,
    bytes: usize,
}

/// The counters.
#[derive(Debug, Default)]
pub struct ObjectCounts {
    sets: AtomicUsize,
    objects: AtomicUsize,
    indexes: Mutex<Indexes>,
}

impl ObjectCounts {
    /// An object set with this many objects in memory is opened.
    pub(crate) fn opened(&self, objects: usize) {
        self.sets.fetch_add(1, Ordering::Relaxed);
        self.added(objects);
    }

    /// An object set with this many objects is closed.
    pub(crate) fn closed(&self, objects: usize) {
        self.sets.fetch_sub(1, Ordering::Relaxed);
        self.removed(objects);
    }

    /// Objects are added to memory.
    pub(crate) fn added(&self, objects: usize) {
        self.objects.fetch_add(objects, Ordering::Relaxed);
    }

    /// Objects are removed from memory.
    pub(crate) fn removed(&self, objects: usize) {
        self.objects.fetch_sub(objects, Ordering::Relaxed);
    }

    /// Number of objects in memory, including those in use.
    pub fn count(&self) -> usize {
        self.objects.load(Ordering::Relaxed)
    }

    /// Object `number` of `set` keeps an index of `bytes` from now on; the oldest ones of all object sets go. The caller holds
    /// no lock of an object.
    pub(crate) fn keeps_index(&self, set: Weak<dyn KeepsIndexes>, number: u64, bytes: usize) {
        let mut gone = Vec::new();
        {
            let mut indexes = self.indexes.lock();
            indexes.kept.push_back((set, number, bytes));
            indexes.bytes = indexes.bytes.saturating_add(bytes);
            while indexes.bytes > INDEXES && indexes.kept.len() > 1 {
                let Some((set, number, bytes)) = indexes.kept.pop_front() else { break };
                indexes.bytes = indexes.bytes.saturating_sub(bytes);
                gone.push((set, number));
            }
        }
        for (set, number) in gone {
            if let Some(set) = set.upgrade() {
                set.drop_index(number);
            }
        }
    }

    /// Maximum bytes that the indexes of names take at present.
    pub fn index_bytes(&self) -> usize {
        self.indexes.lock().bytes
    }

    /// Bytes of the objects that take space of the cache.
    pub(crate) fn beyond(&self) -> u64 {
        let beyond = self.count().clamp(OBJECTS, MOST) - OBJECTS;
        u64::try_from(beyond).unwrap_or(0).saturating_mul(SIZE)
    }

    /// Maximum unused objects of one object set, where the cache may have `cache` bytes.
    pub fn share(&self, cache: u64) -> usize {
        let most = usize::try_from(cache / PART / SIZE).unwrap_or(MOST).clamp(OBJECTS, MOST);
        match self.count() > most {
            true => (most / self.sets.load(Ordering::Relaxed).max(1)).max(LEAST),
            false => most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_set_has_its_share_once_there_are_many_objects() {
        let all = ObjectCounts::default();
        (0..100).for_each(|_| all.opened(4));
        assert_eq!(all.share(0), OBJECTS);
        all.added(OBJECTS);
        assert_eq!(all.share(0), OBJECTS / 100);
        (0..900).for_each(|_| all.opened(4));
        assert_eq!(all.share(0), LEAST);
        all.removed(OBJECTS);
        (0..900).for_each(|_| all.closed(4));
        assert_eq!(all.share(0), OBJECTS);
    }

    #[test]
    fn a_large_cache_gives_a_part_of_itself_for_more_objects() {
        let all = ObjectCounts::default();
        all.opened(OBJECTS);
        assert_eq!([64 << 20, 1 << 30, 1 << 40].map(|cache| all.share(cache)), [OBJECTS, 21_845, MOST]);
        assert_eq!(all.beyond(), 0);
        all.added(1000);
        assert_eq!(all.beyond(), 1000 * SIZE);
        // Objects in use may be more; the cache keeps the rest of its space.
        all.added(10 * MOST);
        assert_eq!(all.beyond(), (MOST - OBJECTS) as u64 * SIZE);
    }
}
