//! Space maps: logs of allocations and frees, in units of `1 << shift` bytes.
//!
//! ```text
//! debug     10 action:2 sync pass:10 txg:50        (txg 0: padding at the end of a block)
//! one word  0  offset:47 free:1 run-1:15
//! two words 11 reserved:2 run-1:36 vdev:24, then free:1 offset:63
//! ```
//!
//! A two-word entry never crosses a block's end. Source: space_map.h, OpenZFS 2.3.

use crate::words::word_struct;
use crate::{MIN_BLOCK_SHIFT, Malformed};

word_struct! {
    /// A space map's bonus buffer; before histograms it had three words.
    #[doc(alias = "space_map_phys_t")]
    SpaceMapPhys = "space map", 320 bytes, at least 24 {
        /// Its object number; unused.
        object: u64,
        /// Bytes of entries.
        length: u64,
        /// Bytes allocated.
        alloc: i64,
        /// Reserved.
        pad: [u64; 5],
        /// Free regions by size: bucket i counts those of `2^(i+shift)` up to twice that.
        histogram: [u64; 32],
    }
}

/// An allocation or a free.
#[doc(alias = "space_map_entry_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceMapEntry {
    /// Freed, else allocated.
    pub free: bool,
    /// Top-level vdev, in entries of two words.
    pub vdev: Option<u32>,
    /// Byte offset on the vdev.
    pub offset: u64,
    /// Bytes.
    pub run: u64,
    /// Txg of the last debug entry before it; 0: none.
    pub txg: u64,
    /// Sync pass of the last debug entry before it.
    pub sync_pass: u64,
}

/// A debug entry, for dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceMapDebug {
    /// 0: what follows are allocations; 1: frees.
    pub action: u8,
    /// Sync pass.
    pub sync_pass: u64,
    /// Txg; 0 in padding.
    pub txg: u64,
}

/// What [`SpaceMapDecoder::raw`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceMapItem {
    /// A debug entry.
    Debug(SpaceMapDebug),
    /// An allocation or a free, and the number of words it took.
    Entry(SpaceMapEntry, u8),
}

/// Decodes a space map block by block, remembering the txg of the last debug entry.
#[derive(Clone, Copy, Debug)]
pub struct SpaceMapDecoder {
    shift: u32,
    start: u64,
    size: u64,
    txg: u64,
    sync_pass: u64,
}

impl SpaceMapDecoder {
    /// For a map of `size` bytes from `start` on, in units of `1 << shift` bytes.
    pub fn new(shift: u32, start: u64, size: u64) -> Self {
        Self { shift: shift.min(63), start, size, txg: 0, sync_pass: 0 }
    }

    /// For a log space map, whose entries name their vdev and are in sectors.
    pub fn for_log() -> Self {
        Self::new(MIN_BLOCK_SHIFT, 0, u64::MAX)
    }

    /// Everything in a block (clipped to the map's length by the caller), debug entries included.
    /// Ends after the first error.
    pub fn raw<'a>(
        &'a mut self,
        block: &'a [u8],
    ) -> impl Iterator<Item = Result<SpaceMapItem, Malformed>> + use<'a> {
        let mut words = block.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w));
        let mut failed = false;
        std::iter::from_fn(move || {
            let word = words.next().filter(|_| !failed)?;
            let item = match word >> 62 {
                0b10 => Ok(SpaceMapItem::Debug(self.debug(word))),
                0b11 => self.two_words(word, words.next()).map(|e| SpaceMapItem::Entry(e, 2)),
                _ => self.one_word(word).map(|e| SpaceMapItem::Entry(e, 1)),
            };
            failed = item.is_err();
            Some(item)
        })
    }

    /// The allocations and frees in a block.
    pub fn entries<'a>(
        &'a mut self,
        block: &'a [u8],
    ) -> impl Iterator<Item = Result<SpaceMapEntry, Malformed>> + use<'a> {
        self.raw(block).filter_map(|item| match item {
            Ok(SpaceMapItem::Entry(entry, _)) => Some(Ok(entry)),
            Ok(SpaceMapItem::Debug(_)) => None,
            Err(error) => Some(Err(error)),
        })
    }

    fn debug(&mut self, word: u64) -> SpaceMapDebug {
        let action = (word >> 60 & 3) as u8;
        let debug = SpaceMapDebug { action, sync_pass: word >> 50 & 0x3ff, txg: word & ((1 << 50) - 1) };
        if debug.txg != 0 {
            (self.txg, self.sync_pass) = (debug.txg, debug.sync_pass);
        }
        debug
    }

    fn one_word(&self, word: u64) -> Result<SpaceMapEntry, Malformed> {
        let offset = word >> 16 & ((1 << 47) - 1);
        self.entry(word >> 15 & 1 != 0, None, offset, (word & 0x7fff) + 1)
    }

    fn two_words(&self, first: u64, second: Option<u64>) -> Result<SpaceMapEntry, Malformed> {
        let second = second.ok_or_else(|| Malformed::new("space map", "half an entry at a block's end"))?;
        let run = (first >> 24 & ((1 << 36) - 1)) + 1;
        self.entry(second >> 63 != 0, Some((first & 0xff_ffff) as u32), second & (u64::MAX >> 1), run)
    }

    fn entry(
        &self,
        free: bool,
        vdev: Option<u32>,
        offset: u64,
        run: u64,
    ) -> Result<SpaceMapEntry, Malformed> {
        let place = || {
            let offset = offset.checked_mul(1 << self.shift)?;
            let run = run.checked_mul(1 << self.shift)?;
            let end = offset.checked_add(run).filter(|end| *end <= self.size)?;
            self.start.checked_add(end)?;
            Some((self.start + offset, run))
        };
        let (offset, run) = place().ok_or_else(|| {
            Malformed::new("space map", format!("entry of {run} units at {offset} outside the map"))
        })?;
        Ok(SpaceMapEntry { free, vdev, offset, run, txg: self.txg, sync_pass: self.sync_pass })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn all_kinds_of_entries() {
        let debug = 0b10 << 62 | 1 << 60 | 3 << 50 | 77;
        let one = 5 << 16 | 1 << 15 | 7;
        let two = 0b11 << 62 | 99 << 24 | 4;
        let bytes = block(&[debug, one, two, 1000, 0b10 << 62]);
        let mut map = SpaceMapDecoder::new(9, 1 << 30, 1 << 30);
        let all: Vec<_> = map.entries(&bytes).map(Result::unwrap).collect();
        let base = SpaceMapEntry { free: true, vdev: None, offset: 0, run: 4096, txg: 77, sync_pass: 3 };
        assert_eq!(all[0], SpaceMapEntry { offset: (1 << 30) + 5 * 512, ..base });
        let second =
            SpaceMapEntry { free: false, vdev: Some(4), offset: (1 << 30) + 512_000, run: 51200, ..base };
        assert_eq!(all[1..], [second]);
    }

    #[test]
    fn entries_outside_the_map_and_cut_ones_are_errors() {
        let two = 0b11 << 62 | 99 << 24;
        for bytes in
            [block(&[((1 << 47) - 1) << 16]), block(&[two]), block(&[two, u64::MAX]), block(&[3 << 16 | 1])]
        {
            let mut map = SpaceMapDecoder::new(12, 0, 4 << 12);
            let all: Vec<_> = map.entries(&bytes).collect();
            assert!(all.len() == 1 && all[0].is_err());
        }
    }
}
