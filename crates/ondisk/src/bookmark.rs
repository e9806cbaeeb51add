//! Block bookmarks: which block of which object of which dataset. In error logs, scans, traversals.
//!
//! Source: `zbookmark_phys_t`, `zbookmark_err_phys_t`, zio.h, OpenZFS 2.3.

use crate::words::word_struct;

/// Object and level of an object set's root block.
#[doc(alias = "ZB_ROOT_LEVEL")]
pub const ROOT_LEVEL: i64 = -1;
/// Level of an intent log block; its number is the log's sequence number.
#[doc(alias = "ZB_ZIL_LEVEL")]
pub const ZIL_LEVEL: i64 = -2;
/// Level that stands for a dnode itself.
#[doc(alias = "ZB_DNODE_LEVEL")]
pub const DNODE_LEVEL: i64 = -3;
/// Number that stands for a spill block.
#[doc(alias = "DMU_SPILL_BLKID")]
pub const SPILL_BLKID: u64 = u64::MAX - 1;
/// Number that stands for a bonus buffer.
#[doc(alias = "DMU_BONUS_BLKID")]
pub const BONUS_BLKID: u64 = u64::MAX;
/// Objset that stands for a destroyed one.
#[doc(alias = "ZB_DESTROYED_OBJSET")]
pub const DESTROYED_OBJSET: u64 = u64::MAX;

word_struct! {
    /// A block of the pool.
    #[doc(alias = "zbookmark_phys_t")]
    #[derive(PartialOrd, Ord, Hash)]
    Bookmark = "bookmark", 32 bytes {
        /// Object of the dataset in the MOS; 0: the MOS itself.
        objset: u64,
        /// Object; 0: the meta dnode.
        object: u64,
        /// Level of indirection, or one of the negative marks.
        level: i64,
        /// Block number at that level.
        blkid: u64,
    }
}

word_struct! {
    /// A damaged block in an error log of the `head_errlog` feature; the ZAP of the log identifies the dataset.
    #[doc(alias = "zbookmark_err_phys_t")]
    #[derive(PartialOrd, Ord, Hash)]
    ErrBookmark = "error bookmark", 32 bytes {
        /// Object.
        object: u64,
        /// Level of indirection.
        level: i64,
        /// Block number at that level.
        blkid: u64,
        /// Birth txg of the block.
        birth: u64,
    }
}

// Four hexadecimal numbers joined by colons; negative levels as their two's complement.
fn parse_name(name: &[u8]) -> Option<[u64; 4]> {
    let text = std::str::from_utf8(name).ok()?;
    let mut parts = text.split(':').map(|p| u64::from_str_radix(p, 16).ok());
    let words = [parts.next()??, parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(words)
}

impl Bookmark {
    /// The bookmark in a key of an error log without `head_errlog`.
    #[doc(alias = "name_to_bookmark")]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::from_words(&parse_name(name)?).ok()
    }

    /// Its key in an error log.
    #[doc(alias = "bookmark_to_name")]
    pub fn to_name(&self) -> String {
        format!("{:x}:{:x}:{:x}:{:x}", self.objset, self.object, self.level, self.blkid)
    }
}

impl ErrBookmark {
    /// The bookmark in a key of a dataset's error log.
    #[doc(alias = "name_to_errphys")]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::from_words(&parse_name(name)?).ok()
    }

    /// Its key in a dataset's error log.
    #[doc(alias = "errphys_to_name")]
    pub fn to_name(&self) -> String {
        format!("{:x}:{:x}:{:x}:{:x}", self.object, self.level, self.blkid, self.birth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let zb = Bookmark { objset: 0x36, object: 5, level: ROOT_LEVEL, blkid: 0x1f };
        assert_eq!(zb.to_name(), "36:5:ffffffffffffffff:1f");
        assert_eq!(Bookmark::from_name(zb.to_name().as_bytes()), Some(zb));
        for bad in ["", "1:2:3", "1:2:3:4:5", "1:2:3:x", "1:2:3:fffffffffffffffff"] {
            assert_eq!(ErrBookmark::from_name(bad.as_bytes()), None, "{bad}");
        }
    }
}
