//! The place where an earlier traversal of an object set stopped, and the blocks that it has passed.

use ondisk::bookmark::SPILL_BLKID as SPILL;
use ondisk::{Bookmark as StoredBookmark, Dnode, dnode};

use crate::types::Bookmark;

/// The place from which a traversal continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resume {
    /// Objects before this one are passed, with all their blocks.
    pub(super) object: u64,
    /// Data blocks of that object before this one are passed.
    block: u64,
    /// Blocks of dnodes whose last object comes before this one are passed.
    dnodes: u64,
}

/// Objects in a block of the array of dnodes `meta`.
pub(super) fn dnodes_per_block(meta: &Dnode) -> u64 {
    (meta.datablksz() >> dnode::DNODE_SHIFT).max(1)
}

/// First data block below the block `blkid` of `level`.
pub(super) fn first_below(dnode: &Dnode, level: i64, blkid: u64) -> u64 {
    let below = u32::try_from(level).unwrap_or(0).saturating_mul(dnode.blocks_per_indirect_shift());
    match blkid {
        0 => 0,
        _ if below <= blkid.leading_zeros() => blkid << below,
        _ => u64::MAX,
    }
}

impl Resume {
    /// From the data block `block` of `object` on.
    pub(crate) fn at(object: u64, block: u64) -> Self {
        Self { object, block, dnodes: object }
    }

    /// Continues a traversal of the object set with the array of dnodes `meta` that stopped before the block `last` and
    /// everything below it.
    pub(crate) fn before(last: Bookmark, meta: &Dnode) -> Self {
        match (last.object, last.level) {
            (0, level) => {
                let first = first_below(meta, level, last.blkid);
                Self::at(first.saturating_mul(dnodes_per_block(meta)), 0)
            }
            (object, 0) => Self::at(object, last.blkid),
            // OpenZFS does not stop at indirect blocks.
            (object, _) => Self::at(object, 0),
        }
    }

    /// Continues the freeing of a destroyed object set, which goes from leaves to roots: at the data block `last`, or, where
    /// that is a block of dnodes, after all objects in it. `None`: from the start, before freeing began.
    pub(crate) fn freeing(last: &StoredBookmark, meta: &Dnode) -> Option<Self> {
        let per_block = dnodes_per_block(meta);
        match last.object {
            _ if *last == StoredBookmark::default() => None,
            0 => Some(Self {
                object: last.blkid.saturating_add(1).saturating_mul(per_block),
                block: 0,
                dnodes: last.blkid.saturating_mul(per_block),
            }),
            object => Some(Self::at(object, last.blkid)),
        }
    }

    /// Whether the block at `at` of the object with `dnode`, and everything below it, is passed.
    #[doc(alias = "zbookmark_subtree_completed")]
    pub(super) fn has_passed(&self, dnode: &Dnode, at: Bookmark) -> bool {
        let end = || first_below(dnode, at.level, at.blkid.saturating_add(1));
        match at.object {
            0 => end().saturating_mul(dnodes_per_block(dnode)) <= self.dnodes,
            object if object == self.object => at.blkid != SPILL && end() <= self.block,
            object => object < self.object,
        }
    }

    /// Whether an earlier traversal, from roots to leaves, met the block at `at` on its way to the place where it stopped.
    #[doc(alias = "zbookmark_compare")]
    pub(super) fn is_below(&self, dnode: &Dnode, at: Bookmark) -> bool {
        let first = if at.blkid == SPILL { u64::MAX } else { first_below(dnode, at.level, at.blkid) };
        let place = match at.object {
            0 => (first.saturating_mul(dnodes_per_block(dnode)), 0, -at.level),
            object => (object, first, -at.level),
        };
        place < (self.object, self.block, 0)
    }
}

#[cfg(test)]
mod tests {
    use ondisk::ObjectType;

    use super::*;

    /// Indirect blocks of 128 KiB: 1,024 pointers. Blocks of 16 KiB: 32 dnodes.
    fn dnode() -> Dnode {
        Dnode::new(ObjectType::DNODE, 16 << 10, 1, ObjectType::NONE, 0)
    }

    fn passed(resume: Resume, object: u64, level: i64, blkid: u64) -> bool {
        resume.has_passed(&dnode(), Bookmark::new(1, object, level, blkid))
    }

    fn met(resume: Resume, object: u64, level: i64, blkid: u64) -> bool {
        resume.is_below(&dnode(), Bookmark::new(1, object, level, blkid))
    }

    #[test]
    fn everything_before_a_data_block_is_passed() {
        let resume = Resume::before(Bookmark::new(1, 40, 0, 1025), &dnode());
        assert_eq!(resume, Resume::at(40, 1025));
        assert!(passed(resume, 40, 0, 1024) && !passed(resume, 40, 0, 1025));
        assert!(passed(resume, 40, 1, 0) && !passed(resume, 40, 1, 1), "of which block 1,024 only is passed");
        assert!(passed(resume, 0, 0, 0) && !passed(resume, 0, 0, 1), "a block with the object itself");
        assert!(passed(resume, 39, 0, SPILL) && !passed(resume, 40, 0, SPILL));
        assert!(met(resume, 0, 0, 1) && met(resume, 40, 1, 1) && met(resume, 0, 1, 0));
        assert!(!met(resume, 40, 0, 1025) && !met(resume, 40, 1, 2) && !met(resume, 0, 0, 2));
        assert!(!met(resume, 40, 0, SPILL) && !met(resume, u64::MAX - 2, 1, 0));
    }

    #[test]
    fn a_block_of_dnodes_comes_before_its_objects() {
        let resume = Resume::before(Bookmark::new(1, 0, 0, 3), &dnode());
        assert_eq!(resume, Resume::at(96, 0));
        assert!(passed(resume, 0, 0, 2) && !passed(resume, 0, 0, 3));
        assert!(met(resume, 0, 1, 0) && !met(resume, 0, 0, 3));
    }

    #[test]
    fn freeing_passes_objects_before_their_block() {
        assert_eq!(Resume::freeing(&StoredBookmark::default(), &dnode()), None);
        let at = |object, blkid| StoredBookmark { objset: u64::MAX, object, level: 0, blkid };
        let resume = Resume::freeing(&at(0, 3), &dnode()).unwrap();
        assert!(passed(resume, 0, 0, 2) && !passed(resume, 0, 0, 3) && !passed(resume, 0, 1, 0));
        assert!(passed(resume, 127, 0, SPILL) && !passed(resume, 128, 0, 0));
        let resume = Resume::freeing(&at(100, 5), &dnode()).unwrap();
        assert!(passed(resume, 0, 0, 2) && !passed(resume, 0, 0, 3));
        assert!(passed(resume, 100, 0, 4) && !passed(resume, 100, 0, 5) && !passed(resume, 100, 0, SPILL));
    }

    #[test]
    fn numbers_that_no_object_has_do_not_overflow() {
        let dnode = dnode();
        assert_eq!(first_below(&dnode, 1, 1 << 53), 1 << 63);
        assert_eq!((first_below(&dnode, 1, 1 << 54), first_below(&dnode, 9, 0)), (u64::MAX, 0));
        assert!(!passed(Resume::at(5, 5), 0, 6, u64::MAX) && !passed(Resume::at(5, 5), 5, 6, u64::MAX));
    }
}
