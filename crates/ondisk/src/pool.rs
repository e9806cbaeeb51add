//! Small structures of the pool itself: scans, removals, history, the clone table's heads.
//!
//! Most are values in the MOS directory (see [`crate::names`]). Source: dsl_scan.h, spa_impl.h,
//! brt_impl.h, OpenZFS 2.3.

use crate::words::word_struct;
use crate::{Bookmark, Endian, Malformed};

word_struct! {
    /// Where a walk over the dedup tables stands.
    #[doc(alias = "ddt_bookmark_t")]
    DdtBookmark = "ddt bookmark", 32 bytes {
        /// Class of the table.
        class: u64,
        /// Kind of storage.
        ddt_type: u64,
        /// Checksum function.
        checksum: u64,
        /// ZAP cursor.
        cursor: u64,
    }
}

word_struct! {
    /// A scrub or resilver: under way, or the last one.
    #[doc(alias = "dsl_scan_phys_t")]
    DslScan = "dsl scan", 192 bytes {
        /// 0 none, 1 scrub, 2 resilver, 3 error scrub.
        func: u64,
        /// 0 none, 1 scanning, 2 finished, 3 canceled.
        state: u64,
        /// ZAP of datasets that wait.
        queue_obj: u64,
        /// Blocks born after this txg.
        min_txg: u64,
        /// Blocks born up to this txg.
        max_txg: u64,
        /// The same for the dataset at hand.
        cur_min_txg: u64,
        /// The same for the dataset at hand.
        cur_max_txg: u64,
        /// Seconds since 1970.
        start_time: u64,
        /// Seconds since 1970.
        end_time: u64,
        /// Bytes to scan.
        to_examine: u64,
        /// Bytes scanned.
        examined: u64,
        /// Bytes passed over.
        skipped: u64,
        /// Bytes repaired or copied.
        processed: u64,
        /// Blocks that failed.
        errors: u64,
        /// Up to which class dedup tables are scanned first.
        ddt_class_max: u64,
        /// Where the walk over the dedup tables stands.
        ddt_bookmark: DdtBookmark,
        /// Where the scan of datasets stands.
        bookmark: Bookmark,
        /// Bit 0: visit the dataset again; bit 1: paused.
        flags: u64,
    }
}

word_struct! {
    /// A scrub of the error log.
    #[doc(alias = "dsl_errorscrub_phys_t")]
    DslErrorscrub = "error scrub", 72 bytes {
        /// As in [`DslScan`].
        func: u64,
        /// As in [`DslScan`].
        state: u64,
        /// ZAP cursor.
        cursor: u64,
        /// Seconds since 1970.
        start_time: u64,
        /// Seconds since 1970.
        end_time: u64,
        /// Blocks to check.
        to_examine: u64,
        /// Blocks checked.
        examined: u64,
        /// Blocks that failed again.
        errors: u64,
        /// Not 0: paused.
        paused_flags: u64,
    }
}

word_struct! {
    /// The last or current removal of a top-level vdev.
    #[doc(alias = "spa_removing_phys_t")]
    SpaRemoving = "removal", 56 bytes {
        /// As a scan's state.
        state: u64,
        /// Vdev last tried, all ones: none.
        removing_vdev: u64,
        /// Vdev last removed, all ones: none.
        prev_indirect_vdev: u64,
        /// Seconds since 1970.
        start_time: u64,
        /// Seconds since 1970.
        end_time: u64,
        /// Bytes to copy.
        to_copy: u64,
        /// Bytes copied, or freed meanwhile.
        copied: u64,
    }
}

word_struct! {
    /// An indirect mapping that is being condensed.
    #[doc(alias = "spa_condensing_indirect_phys_t")]
    SpaCondensingIndirect = "condensing", 24 bytes {
        /// The indirect vdev.
        vdev: u64,
        /// Its former obsolete space map.
        prev_obsolete_sm_object: u64,
        /// The mapping being made.
        next_mapping_object: u64,
    }
}

word_struct! {
    /// A sequential rebuild of a top-level vdev, an array in the vdev's ZAP.
    #[doc(alias = "vdev_rebuild_phys_t")]
    VdevRebuild = "rebuild", 96 bytes {
        /// 0 none, 1 active, 2 canceled, 3 complete.
        rebuild_state: u64,
        /// Offset up to which it is done.
        last_offset: u64,
        /// Oldest missing txg.
        min_txg: u64,
        /// Newest missing txg.
        max_txg: u64,
        /// Seconds since 1970.
        start_time: u64,
        /// Seconds since 1970.
        end_time: u64,
        /// Milliseconds spent.
        scan_time_ms: u64,
        /// Bytes scanned.
        bytes_scanned: u64,
        /// Bytes issued.
        bytes_issued: u64,
        /// Bytes rebuilt.
        bytes_rebuilt: u64,
        /// Bytes estimated.
        bytes_est: u64,
        /// Errors.
        errors: u64,
    }
}

word_struct! {
    /// Bonus buffer of the pool's history: a ring of records, the first of which (the `zpool create`)
    /// is never overwritten. A record is a little-endian length and a packed nvlist.
    #[doc(alias = "spa_history_phys_t")]
    SpaHistory = "history", 40 bytes {
        /// Bytes of the create record.
        pool_create_len: u64,
        /// Bytes of the ring's object.
        phys_max_off: u64,
        /// Logical offset of the oldest record after the first.
        bof: u64,
        /// Logical offset of the end.
        eof: u64,
        /// Records overwritten.
        records_lost: u64,
    }
}

impl SpaHistory {
    /// Where in the object a logical offset lies; `None` when the header makes no sense.
    #[doc(alias = "spa_history_log_to_phys")]
    pub fn log_to_phys(&self, offset: u64) -> Option<u64> {
        if offset < self.pool_create_len {
            return Some(offset);
        }
        let ring = self.phys_max_off.checked_sub(self.pool_create_len).filter(|len| *len > 0)?;
        Some((offset - self.pool_create_len) % ring + self.pool_create_len)
    }
}

/// Splits history, read from a record's start on and unwrapped, into its records: packed nvlists.
/// Ends at the end of `bytes`, or after an error.
pub fn history_records(bytes: &[u8]) -> impl Iterator<Item = Result<&[u8], Malformed>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (len, tail) = rest.split_first_chunk::<8>()?;
        let len = u64::from_le_bytes(*len);
        let split =
            usize::try_from(len).ok().filter(|len| *len > 0).and_then(|len| tail.split_at_checked(len));
        let Some((record, next)) = split else {
            rest = &[];
            return Some(Err(Malformed::new("history", format!("record of {len} bytes"))));
        };
        rest = next;
        Some(Ok(record))
    })
}

word_struct! {
    /// Bonus buffer of a vdev's clone table: the object's data is a counter of 16 bits for each
    /// `rangesize` bytes of the vdev. Written in the byte order that it names.
    #[doc(alias = "brt_vdev_phys_t")]
    BrtVdev = "brt vdev", 56 bytes {
        /// ZAP from offset to reference count.
        mos_entries: u64,
        /// Counters.
        size: u64,
        /// Byte order of the counters: 0 little, 1 big.
        byteorder: u64,
        /// Entries.
        totalcount: u64,
        /// Bytes that a counter stands for.
        rangesize: u64,
        /// Bytes of cloned blocks.
        usedspace: u64,
        /// Bytes that cloning saves.
        savedspace: u64,
    }
}

impl BrtVdev {
    /// Byte order of the counters and of the counts in the ZAP.
    pub fn endian(&self) -> Endian {
        if self.byteorder == 0 { Endian::Little } else { Endian::Big }
    }

    /// A count as an entry of the ZAP holds it.
    pub fn count_bytes(&self, refcount: u64) -> [u8; 8] {
        match self.endian() {
            Endian::Little => refcount.to_le_bytes(),
            Endian::Big => refcount.to_be_bytes(),
        }
    }

    /// A counter of a region, from the object's data.
    pub fn counter(&self, bytes: [u8; 2]) -> u16 {
        match self.endian() {
            Endian::Little => u16::from_le_bytes(bytes),
            Endian::Big => u16::from_be_bytes(bytes),
        }
    }

    /// A counter of a region, for the object's data.
    pub fn counter_bytes(&self, counter: u16) -> [u8; 2] {
        match self.endian() {
            Endian::Little => counter.to_le_bytes(),
            Endian::Big => counter.to_be_bytes(),
        }
    }

    /// Reference count in an entry of the ZAP: eight bytes in the writer's order. (One reference is not
    /// counted: 1 means that two pointers share the block.)
    pub fn refcount(&self, value: &[u8]) -> Option<u64> {
        let raw = *value.first_chunk()?;
        Some(match self.endian() {
            Endian::Little => u64::from_le_bytes(raw),
            Endian::Big => u64::from_be_bytes(raw),
        })
    }
}

word_struct! {
    /// The txg from which a metaslab's changes are only in logs: one for each metaslab, in an object of the
    /// vdev.
    #[doc(alias = "metaslab_unflushed_phys_t")]
    MetaslabUnflushed = "unflushed txg", 8 bytes {
        /// Changes since this txg are only in log space maps.
        unflushed_txg: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_splits_into_records() {
        let bytes = [2, 0, 0, 0, 0, 0, 0, 0, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 1];
        let records: Vec<_> = history_records(&bytes).collect();
        assert_eq!(records[0], Ok(&[7, 8][..]));
        assert!(records.len() == 2 && records[1].is_err());
    }

    #[test]
    fn history_wraps_behind_the_create_record() {
        let his = SpaHistory { pool_create_len: 100, phys_max_off: 1000, ..Default::default() };
        assert_eq!(his.log_to_phys(50), Some(50));
        assert_eq!(his.log_to_phys(999), Some(999));
        assert_eq!(his.log_to_phys(1000), Some(100));
        assert_eq!(SpaHistory::default().log_to_phys(5), None);
    }
}
