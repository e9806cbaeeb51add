//! Indirect vdevs: where the data of a removed top-level vdev went.
//!
//! The mapping is an array sorted by source offset; the births are the txgs in which each part was copied.
//! Source: vdev_indirect_mapping.h, vdev_indirect_births.h, OpenZFS 2.3.

use crate::words::word_struct;
use crate::{Dva, MIN_BLOCK_SHIFT};

word_struct! {
    /// Bonus buffer of a mapping object; the last word came with `obsolete_counts`.
    #[doc(alias = "vdev_indirect_mapping_phys_t")]
    IndirectMapping = "indirect mapping", 32 bytes, at least 24 {
        /// End of the last entry.
        max_offset: u64,
        /// Bytes mapped.
        bytes_mapped: u64,
        /// Entries.
        num_entries: u64,
        /// Object with 32-bit counts of obsolete bytes, one for each entry; 0: none.
        counts_object: u64,
    }
}

word_struct! {
    /// An entry of a mapping.
    #[doc(alias = "vdev_indirect_mapping_entry_phys_t")]
    IndirectMappingEntryPhys = "indirect mapping entry", 24 bytes {
        /// Mark in bit 63, source offset in sectors.
        src: u64,
        /// Destination.
        dst: [u64; 2],
    }
}

/// An entry of a mapping, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectMappingEntry {
    /// Byte offset on the removed vdev.
    pub src_offset: u64,
    /// Used by zdb to collect garbage; never set on disk.
    pub mark: bool,
    /// Where the bytes are now; its `asize` is the length of the run.
    pub dst: Dva,
}

impl IndirectMappingEntry {
    /// Whether a byte offset on the removed vdev falls into the run.
    pub fn contains(&self, offset: u64) -> bool {
        offset.checked_sub(self.src_offset).is_some_and(|delta| delta < self.dst.asize)
    }
}

impl From<IndirectMappingEntryPhys> for IndirectMappingEntry {
    fn from(phys: IndirectMappingEntryPhys) -> Self {
        let [w0, w1] = phys.dst;
        Self {
            src_offset: (phys.src & (u64::MAX >> 1)) << MIN_BLOCK_SHIFT,
            mark: phys.src >> 63 != 0,
            dst: Dva::from_words(w0, w1),
        }
    }
}

impl From<IndirectMappingEntry> for IndirectMappingEntryPhys {
    fn from(entry: IndirectMappingEntry) -> Self {
        let mark = u64::from(entry.mark) << 63;
        Self { src: mark | entry.src_offset >> MIN_BLOCK_SHIFT, dst: entry.dst.to_words() }
    }
}

word_struct! {
    /// Bonus buffer of a births object.
    #[doc(alias = "vdev_indirect_birth_phys_t")]
    IndirectBirths = "indirect births", 8 bytes {
        /// Entries.
        count: u64,
    }
}

word_struct! {
    /// An entry of the births: the range before `offset` (and after the previous entry) was copied in
    /// this txg.
    #[doc(alias = "vdev_indirect_birth_entry_phys_t")]
    IndirectBirth = "indirect birth", 16 bytes {
        /// Byte offset on the removed vdev.
        offset: u64,
        /// Txg of the copy.
        phys_birth_txg: u64,
    }
}
