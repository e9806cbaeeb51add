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
    /// 0: the following entries are allocations; 1: frees.
    pub action: u8,
    /// Sync pass.
    pub sync_pass: u64,
    /// Txg; 0 in padding.
    pub txg: u64,
}

/// Items of [`SpaceMapDecoder::raw`].
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

    /// For a log space map: its entries name their vdev and are in sectors.
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
        let offset = word >> 16 & (OFFSET_LIMIT - 1);
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

/// Units that an entry of one word can count.
const RUN_MAX: u64 = 1 << 15;
/// Bits of the offset in an entry of one word.
#[doc(alias = "SM_OFFSET_BITS")]
pub const OFFSET_BITS: u32 = 47;
/// First unit that an entry of one word can't name.
const OFFSET_LIMIT: u64 = 1 << OFFSET_BITS;
/// Units that an entry of two words can count.
const RUN2_MAX: u64 = 1 << 36;
/// A word that only fills a block up.
const PADDING: u64 = 0b10 << 62;

/// Builds the words to append to a space map.
#[derive(Clone, Debug)]
pub struct SpaceMapEncoder {
    shift: u32,
    start: u64,
    block_words: u64,
    at: u64,
    two_words: bool,
    words: Vec<u64>,
}

impl SpaceMapEncoder {
    /// For a map with units of `1 << shift` bytes from `start` on, in blocks of `block_size` bytes, that has
    /// `length` bytes of entries already. `two_words`: the pool has the feature `spacemap_v2`.
    pub fn new(shift: u32, start: u64, block_size: u64, length: u64, two_words: bool) -> Self {
        let block_words = (block_size / 8).max(2);
        Self { shift: shift.min(63), start, block_words, at: length / 8, two_words, words: Vec::new() }
    }

    /// Sets the kind and the txg of the entries that follow.
    pub fn debug(&mut self, free: bool, sync_pass: u64, txg: u64) {
        let fields = u64::from(free) << 60 | (sync_pass & 0x3ff) << 50 | txg & ((1 << 50) - 1);
        self.push(0b10 << 62 | fields);
    }

    /// An allocation or a free of the bytes from `from` to `to`, whole units. With a vdev only where the map
    /// has entries of two words.
    pub fn entry(&mut self, free: bool, vdev: Option<u32>, from: u64, to: u64) {
        let mut unit = from.saturating_sub(self.start) >> self.shift;
        let mut left = to.saturating_sub(from) >> self.shift;
        let two = self.two_words && (vdev.is_some() || unit >= OFFSET_LIMIT || left > RUN_MAX);
        while left > 0 {
            let run = left.min(if two { RUN2_MAX } else { RUN_MAX });
            if two {
                if self.at % self.block_words == self.block_words - 1 {
                    self.push(PADDING);
                }
                self.push(0b11 << 62 | (run - 1) << 24 | u64::from(vdev.unwrap_or(0) & 0xff_ffff));
                self.push(u64::from(free) << 63 | unit & (u64::MAX >> 1));
            } else {
                self.push((unit & (OFFSET_LIMIT - 1)) << 16 | u64::from(free) << 15 | (run - 1));
            }
            unit += run;
            left -= run;
        }
    }

    fn push(&mut self, word: u64) {
        self.words.push(word);
        self.at += 1;
    }

    /// The words.
    pub fn into_words(self) -> Vec<u64> {
        self.words
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

    /// Words as they lie in blocks of `size` bytes; the last block may be short.
    fn blocks(words: &[u64], size: usize) -> Vec<Vec<u8>> {
        words.chunks(size / 8).map(block).collect()
    }

    #[test]
    fn encoding_and_decoding_agree() {
        let mut rng = stdx::rng::Rng::new(3);
        for round in 0..300 {
            let shift = 9 + round % 8;
            let (two, with_vdev) = (round % 3 != 0, round % 3 == 1);
            let start = rng.below(1 << 20) << shift;
            let before = rng.below(64) * 8;
            let mut encoder = SpaceMapEncoder::new(shift as u32, start, 512, before, two);
            let mut model = Vec::new();
            for _ in 0..rng.below(100) {
                if rng.below(8) == 0 {
                    encoder.debug(rng.below(2) == 0, 1 + rng.below(1000), 1 + rng.below(1 << 40));
                }
                let (far, long) = (4 * (1 + rng.below(10)), 4 * rng.below(5));
                let from = start + (rng.below(1 << far) << shift);
                let to = from + ((1 + rng.below(1 << long)) << shift);
                let vdev = with_vdev.then(|| rng.below(1 << 24) as u32);
                let free = rng.below(2) == 0;
                encoder.entry(free, vdev, from, to);
                model.push((free, vdev, from, to));
            }
            let mut words = vec![PADDING; (before / 8) as usize];
            words.extend(encoder.into_words());
            let mut decoder = SpaceMapDecoder::new(shift as u32, start, u64::MAX >> 1);
            let mut found: Vec<(bool, Option<u32>, u64, u64)> = Vec::new();
            for bytes in blocks(&words, 512) {
                for entry in decoder.entries(&bytes) {
                    let e = entry.unwrap();
                    let vdev = e.vdev.filter(|_| with_vdev);
                    let wanted = found.len().checked_sub(1).map(|last| model[last].3);
                    match found.last_mut() {
                        // A run too long for one entry comes back in parts.
                        Some(last)
                            if last.3 == e.offset
                                && (last.0, last.1) == (e.free, vdev)
                                && wanted > Some(last.3) =>
                        {
                            last.3 = e.offset + e.run;
                        }
                        _ => found.push((e.free, vdev, e.offset, e.offset + e.run)),
                    }
                }
            }
            assert_eq!(found, model);
        }
    }

    #[test]
    fn each_form_of_entry_has_its_bits() {
        let mut one = SpaceMapEncoder::new(12, 1 << 20, 4096, 0, true);
        one.debug(true, 2, 77);
        one.entry(true, None, (1 << 20) + (5 << 12), (1 << 20) + (13 << 12));
        assert_eq!(one.into_words(), [0b10 << 62 | 1 << 60 | 2 << 50 | 77, 5 << 16 | 1 << 15 | 7]);
        let mut long = SpaceMapEncoder::new(12, 0, 4096, 0, true);
        long.entry(false, None, 0, (RUN_MAX + 1) << 12);
        assert_eq!(long.into_words(), [0b11 << 62 | RUN_MAX << 24, 0]);
        let mut old = SpaceMapEncoder::new(12, 0, 4096, 0, false);
        old.entry(false, None, 0, (RUN_MAX + 1) << 12);
        assert_eq!(old.into_words(), [RUN_MAX - 1, RUN_MAX << 16]);
        let mut vdev = SpaceMapEncoder::new(9, 0, 512, 504, true);
        vdev.entry(true, Some(9), 512, 1024);
        assert_eq!(vdev.into_words(), [PADDING, 0b11 << 62 | 9, 1 << 63 | 1]);
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
