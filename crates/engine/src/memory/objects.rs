//! Bounds the number of unused objects of open object sets in memory, over all pools.
//!
//! While there are few, each object set keeps all it has visited. Once there are many, each has an equal share of
//! them, so thousands of mounted file systems take no more than one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum unused objects in memory.
const OBJECTS: usize = 8192;
/// Minimum share of an object set.
const LEAST: usize = 32;

/// The counters.
#[derive(Debug, Default)]
pub struct Objects {
    sets: AtomicUsize,
    objects: AtomicUsize,
}

impl Objects {
    /// An object set with this many objects in memory is opened.
    pub fn opened(&self, objects: usize) {
        self.sets.fetch_add(1, Ordering::Relaxed);
        self.added(objects);
    }

    /// An object set with this many objects is closed.
    pub fn closed(&self, objects: usize) {
        self.sets.fetch_sub(1, Ordering::Relaxed);
        self.removed(objects);
    }

    /// Objects are added to memory.
    pub fn added(&self, objects: usize) {
        self.objects.fetch_add(objects, Ordering::Relaxed);
    }

    /// Objects are removed from memory.
    pub fn removed(&self, objects: usize) {
        self.objects.fetch_sub(objects, Ordering::Relaxed);
    }

    /// Number of objects in memory, including those in use.
    pub fn count(&self) -> usize {
        self.objects.load(Ordering::Relaxed)
    }

    /// Maximum unused objects of one object set.
    pub fn share(&self) -> usize {
        match self.objects.load(Ordering::Relaxed) > OBJECTS {
            true => (OBJECTS / self.sets.load(Ordering::Relaxed).max(1)).max(LEAST),
            false => OBJECTS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_set_has_its_share_once_there_are_many_objects() {
        let all = Objects::default();
        (0..100).for_each(|_| all.opened(4));
        assert_eq!(all.share(), OBJECTS);
        all.added(OBJECTS);
        assert_eq!(all.share(), OBJECTS / 100);
        (0..900).for_each(|_| all.opened(4));
        assert_eq!(all.share(), LEAST);
        all.removed(OBJECTS);
        (0..900).for_each(|_| all.closed(4));
        assert_eq!(all.share(), OBJECTS);
    }
}
