//! How many objects of open object sets are in memory without being in use, over all pools.
//!
//! While there are few, each object set keeps what it has met. Once there are many, each has an equal share of them, so
//! thousands of mounted file systems take no more than one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Objects without a use that stay in memory.
const OBJECTS: usize = 8192;
/// An object set's share is never less.
const LEAST: usize = 32;

/// What there is.
#[derive(Debug, Default)]
pub struct Objects {
    sets: AtomicUsize,
    objects: AtomicUsize,
}

impl Objects {
    /// An object set is opened that has so many objects in memory.
    pub fn opened(&self, objects: usize) {
        self.sets.fetch_add(1, Ordering::Relaxed);
        self.added(objects);
    }

    /// One is closed that had so many.
    pub fn closed(&self, objects: usize) {
        self.sets.fetch_sub(1, Ordering::Relaxed);
        self.removed(objects);
    }

    /// Objects come into memory.
    pub fn added(&self, objects: usize) {
        self.objects.fetch_add(objects, Ordering::Relaxed);
    }

    /// Objects leave it.
    pub fn removed(&self, objects: usize) {
        self.objects.fetch_sub(objects, Ordering::Relaxed);
    }

    /// Objects in memory, those in use included.
    pub fn count(&self) -> usize {
        self.objects.load(Ordering::Relaxed)
    }

    /// Objects that one object set may keep without a use.
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
