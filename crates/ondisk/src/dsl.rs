//! Bonus buffers of the DSL: directories, datasets, deadlists, user bookmarks, redaction lists.
//!
//! Source: dsl_dir.h, dsl_dataset.h, dsl_deadlist.h, dsl_bookmark.h, bptree.h, OpenZFS 2.3.

use crate::words::word_struct;
use crate::{Blkptr, Bookmark, Malformed};

word_struct! {
    /// A DSL directory: the state that a dataset shares with its snapshots and children (space, properties).
    #[doc(alias = "dsl_dir_phys_t")]
    DslDir = "dsl dir", 256 bytes {
        /// Unused.
        creation_time: u64,
        /// The head dataset; 0 for `$MOS` and `$FREE`.
        head_dataset_obj: u64,
        /// Parent directory; 0 at the root.
        parent_obj: u64,
        /// Snapshot that a clone came from.
        origin_obj: u64,
        /// ZAP of children by name.
        child_dir_zapobj: u64,
        /// Space of the dataset, its snapshots and children, in bytes.
        used_bytes: u64,
        /// The same before redundancy.
        compressed_bytes: u64,
        /// The same before compression.
        uncompressed_bytes: u64,
        /// Quota, 0: none.
        quota: u64,
        /// Reservation, 0: none.
        reserved: u64,
        /// ZAP of local properties.
        props_zapobj: u64,
        /// ZAP of delegated permissions, 0: none.
        deleg_zapobj: u64,
        /// Bit 0: `used_breakdown` is kept.
        flags: u64,
        /// Space by kind: see [`DslDir::USED_HEAD`] and the others.
        used_breakdown: [u64; 5],
        /// ZAP of clones' directories.
        clones: u64,
        /// Reserved.
        pad: [u64; 13],
    }
}

impl DslDir {
    /// Flag: `used_breakdown` is kept.
    pub const FLAG_USED_BREAKDOWN: u64 = 1;
    /// Index in `used_breakdown`: the head dataset.
    pub const USED_HEAD: usize = 0;
    /// Index: snapshots.
    pub const USED_SNAP: usize = 1;
    /// Index: children.
    pub const USED_CHILD: usize = 2;
    /// Index: children's reservations.
    pub const USED_CHILD_RSRV: usize = 3;
    /// Index: the dataset's own refreservation.
    pub const USED_REFRSRV: usize = 4;
}

word_struct! {
    /// A dataset: a head, or a snapshot.
    #[doc(alias = "dsl_dataset_phys_t")]
    DslDataset = "dsl dataset", 320 bytes {
        /// Its directory.
        dir_obj: u64,
        /// The snapshot before it.
        prev_snap_obj: u64,
        /// Txg of that snapshot.
        prev_snap_txg: u64,
        /// The snapshot or head after it; 0 for a head.
        next_snap_obj: u64,
        /// ZAP of snapshots by name; 0 for a snapshot.
        snapnames_zapobj: u64,
        /// Clones plus the next snapshot; 0 for a head.
        num_children: u64,
        /// Seconds since 1970.
        creation_time: u64,
        /// Txg of creation.
        creation_txg: u64,
        /// Its deadlist.
        deadlist_obj: u64,
        /// Space it refers to, shared or not, in bytes.
        referenced_bytes: u64,
        /// The same before redundancy.
        compressed_bytes: u64,
        /// The same before compression.
        uncompressed_bytes: u64,
        /// Space that only it refers to.
        unique_bytes: u64,
        /// 56-bit id, may change.
        fsid_guid: u64,
        /// Id that never changes.
        guid: u64,
        /// See the `FLAG_` constants.
        flags: u64,
        /// Root of its object set.
        bp: Blkptr,
        /// ZAP of clones of this snapshot.
        next_clones_obj: u64,
        /// ZAP of properties of this snapshot.
        props_obj: u64,
        /// ZAP of holds.
        userrefs_obj: u64,
        /// Reserved.
        pad: [u64; 5],
    }
}

impl DslDataset {
    /// Flag: a receive has not finished.
    pub const FLAG_INCONSISTENT: u64 = 1 << 0;
    /// Flag: may not be promoted.
    pub const FLAG_NOPROMOTE: u64 = 1 << 1;
    /// Flag: `unique_bytes` is right for a head, too.
    pub const FLAG_UNIQUE_ACCURATE: u64 = 1 << 2;
    /// Flag: destroy when the last hold or clone is gone.
    pub const FLAG_DEFER_DESTROY: u64 = 1 << 3;
    /// Flag: names are case-insensitive.
    pub const FLAG_CI_DATASET: u64 = 1 << 16;

    /// Whether this is a snapshot.
    #[doc(alias = "ds_is_snapshot")]
    pub fn is_snapshot(&self) -> bool {
        self.num_children != 0
    }
}

word_struct! {
    /// A deadlist's head: space of the blocks in it. Its object is a ZAP from txg to block list
    /// (livelists have the same form).
    #[doc(alias = "dsl_deadlist_phys_t")]
    Deadlist = "deadlist", 320 bytes {
        /// Bytes allocated.
        used: u64,
        /// Bytes before redundancy.
        comp: u64,
        /// Bytes before compression.
        uncomp: u64,
        /// Reserved.
        pad: [u64; 37],
    }
}

word_struct! {
    /// A user's bookmark (`zfs bookmark`), a value of a ZAP.
    #[doc(alias = "zfs_bookmark_phys_t")]
    ZfsBookmark = "zfs bookmark", 96 bytes, at least 24 {
        /// Guid of the snapshot.
        guid: u64,
        /// Txg of the snapshot.
        creation_txg: u64,
        /// Seconds since 1970.
        creation_time: u64,
        /// Redaction list, 0: none.
        redaction_obj: u64,
        /// See the `FLAG_` constants.
        flags: u64,
        /// Referenced bytes of the snapshot.
        referenced_bytes_refd: u64,
        /// The same before redundancy.
        compressed_bytes_refd: u64,
        /// The same before compression.
        uncompressed_bytes_refd: u64,
        /// Bytes of these freed before the next snapshot.
        referenced_freed_before_next_snap: u64,
        /// The same before redundancy.
        compressed_freed_before_next_snap: u64,
        /// The same before compression.
        uncompressed_freed_before_next_snap: u64,
        /// Distinguishes the IV sets of encrypted snapshots.
        ivset_guid: u64,
    }
}

impl ZfsBookmark {
    /// Flag: the sizes are kept.
    pub const FLAG_HAS_FBN: u64 = 1;
    /// Flag: the snapshot still exists.
    pub const FLAG_SNAPSHOT_EXISTS: u64 = 2;
}

word_struct! {
    /// The fixed head of a redaction list's bonus buffer; guids of snapshots follow it.
    #[doc(alias = "redaction_list_phys_t")]
    RedactionListHead = "redaction list", 32 bytes {
        /// Object up to which the list is complete; all ones when it is.
        last_object: u64,
        /// Block up to which it is complete.
        last_blkid: u64,
        /// Entries.
        num_entries: u64,
        /// Snapshots.
        num_snaps: u64,
    }
}

/// A redaction list's bonus buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedactionList {
    /// The fixed fields.
    pub head: RedactionListHead,
    /// Guids of the snapshots that it redacts.
    pub snaps: Vec<u64>,
}

impl RedactionList {
    /// Decodes the bonus buffer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let head = RedactionListHead::from_bytes(bytes)?;
        let (words, _) = bytes.get(RedactionListHead::SIZE..).unwrap_or(&[]).as_chunks::<8>();
        let snaps = usize::try_from(head.num_snaps).ok().and_then(|n| words.get(..n));
        let snaps =
            snaps.ok_or_else(|| Malformed::new("redaction list", format!("{} snapshots", head.num_snaps)))?;
        Ok(Self { head, snaps: snaps.iter().map(|w| u64::from_le_bytes(*w)).collect() })
    }

    /// Encodes the bonus buffer. The head's number of snapshots is that of `snaps`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let num_snaps = u64::try_from(self.snaps.len()).unwrap_or(u64::MAX);
        let mut bytes = RedactionListHead { num_snaps, ..self.head }.to_bytes().to_vec();
        bytes.extend(self.snaps.iter().flat_map(|guid| guid.to_le_bytes()));
        bytes
    }
}

word_struct! {
    /// An entry of a redaction list: a run of redacted blocks.
    #[doc(alias = "redact_block_phys_t")]
    RedactBlock = "redaction entry", 32 bytes {
        /// Object.
        object: u64,
        /// First block.
        blkid: u64,
        /// Block size in sectors in the high 16 bits, number of blocks less one in the low 48.
        size_count: u64,
        /// Reserved.
        pad: u64,
    }
}

impl RedactBlock {
    /// Most blocks of one entry.
    #[doc(alias = "REDACT_BLOCK_MAX_COUNT")]
    pub const MAX_COUNT: u64 = 1 << 48;

    /// An entry for blocks `blkid..blkid + count` (1 to [`Self::MAX_COUNT`] of them) of `block_size` bytes, a
    /// multiple of 512 below 32 MiB.
    pub fn new(object: u64, blkid: u64, count: u64, block_size: u64) -> Self {
        let sectors = block_size >> crate::MIN_BLOCK_SHIFT;
        let size_count = sectors << 48 | count.saturating_sub(1) & (Self::MAX_COUNT - 1);
        Self { object, blkid, size_count, ..Self::default() }
    }

    /// Number of blocks.
    pub fn count(&self) -> u64 {
        (self.size_count & ((1 << 48) - 1)) + 1
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u64 {
        (self.size_count >> 48) << crate::MIN_BLOCK_SHIFT
    }
}

word_struct! {
    /// Head of the list of trees that wait to be freed (`async_destroy`).
    #[doc(alias = "bptree_phys_t")]
    Bptree = "bptree", 40 bytes {
        /// First entry that is left.
        begin: u64,
        /// One past the last entry.
        end: u64,
        /// Bytes left to free.
        bytes: u64,
        /// The same before redundancy.
        comp: u64,
        /// The same before compression.
        uncomp: u64,
    }
}

word_struct! {
    /// A tree that waits to be freed.
    #[doc(alias = "bptree_entry_phys_t")]
    BptreeEntry = "bptree entry", 168 bytes {
        /// Its root.
        bp: Blkptr,
        /// Blocks born in this txg or before stay.
        birth_txg: u64,
        /// Where freeing goes on.
        zb: Bookmark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_bookmarks_have_three_words() {
        let zbm = ZfsBookmark::from_words(&[1, 2, 3]).unwrap();
        assert_eq!((zbm.guid, zbm.creation_txg, zbm.creation_time, zbm.ivset_guid), (1, 2, 3, 0));
        assert!(ZfsBookmark::from_words(&[1, 2]).is_err());
        assert_eq!(ZfsBookmark::from_bytes(&zbm.to_bytes()), Ok(zbm));
    }

    #[test]
    fn a_redacted_run_has_one_block_at_least() {
        let run = RedactBlock { size_count: 2 << 48 | 3, ..Default::default() };
        assert_eq!((run.block_size(), run.count()), (1024, 4));
    }

    #[test]
    fn a_redaction_list_has_as_many_snapshots_as_it_says() {
        let words: Vec<u8> = [1u64, 2, 3, 2, 77, 88].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(RedactionList::from_bytes(&words).unwrap().snaps, [77, 88]);
        assert!(RedactionList::from_bytes(&words[..40]).is_err());
    }
}
