//! Small value types shared by every layer.
//!
//! Txgs, guids and object numbers are plain `u64` with clear names: nearly all of them come from the disk and go
//! back to it, and each has one meaning in its context.

use std::fmt;

/// The position of a block in the pool's tree of objects.
#[doc(alias = "zbookmark_phys_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bookmark {
    /// Object number of the dataset in the MOS; 0 is the MOS itself.
    pub objset: u64,
    /// Object within the object set; 0 is its meta dnode.
    pub object: u64,
    /// 0 for data, above for indirect blocks, [`Bookmark::ZIL`] and [`Bookmark::ROOT`] specially.
    pub level: i64,
    /// Index of the block among those of its level.
    pub blkid: u64,
}

impl Bookmark {
    /// Level of an object set's root block.
    pub const ROOT: i64 = -1;
    /// Level of an intent-log block.
    pub const ZIL: i64 = -2;

    /// The block `blkid` of `level` of an object.
    pub fn new(objset: u64, object: u64, level: i64, blkid: u64) -> Self {
        Self { objset, object, level, blkid }
    }

    /// The root block of an object set.
    pub fn root(objset: u64) -> Self {
        Self::new(objset, 0, Self::ROOT, 0)
    }
}

impl fmt::Display for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}, {}, {}, {:x}>", self.objset, self.object, self.level, self.blkid)
    }
}
