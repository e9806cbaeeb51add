//! Writing space maps: words appended to an object, and its head.

use ondisk::space_map::{SpaceMapEncoder, SpaceMapPhys};
use stdx::{AlignedBuf, RangeSet};

use super::store::SpaceMapStore;
use super::unit::MapState;
use crate::dmu::edit::Edit;
use crate::error::{Error, Result};

/// Txg and pass of the writer, for debug entries, and the form of entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(crate) txg: u64,
    pub(crate) pass: u64,
    pub(crate) two_words: bool,
}

/// Words that are to be appended to a map, with the head as it will then be.
#[derive(Debug)]
pub(super) struct Addition {
    /// The map after it.
    pub(crate) map: MapState,
    /// Bytes of the map before it; 0 when it is written anew.
    pub(crate) from: u64,
    /// The blocks that are there go first.
    pub(crate) anew: bool,
    words: Vec<u64>,
}

impl Addition {
    /// Nothing yet.
    pub(super) fn to(map: MapState) -> Self {
        Self { from: map.head.length, map, anew: false, words: Vec::new() }
    }

    /// Starts over, replacing the map's present content.
    pub(crate) fn anew(mut map: MapState) -> Self {
        map.head = SpaceMapPhys { object: map.head.object, ..SpaceMapPhys::default() };
        Self { map, from: 0, anew: true, words: Vec::new() }
    }

    /// Appends entries for all `ranges`, allocated or freed.
    #[doc(alias = "space_map_write")]
    pub(crate) fn ranges(
        &mut self,
        unit: (u32, u64),
        ranges: &RangeSet,
        free: bool,
        vdev: Option<u32>,
        stamp: Stamp,
    ) {
        self.each(unit, ranges.iter(), free, vdev, stamp);
    }

    /// As [`Self::ranges`]; `unit` is the map's shift and first byte.
    pub(crate) fn each(
        &mut self,
        unit: (u32, u64),
        ranges: impl Iterator<Item = (u64, u64)>,
        free: bool,
        vdev: Option<u32>,
        stamp: Stamp,
    ) {
        let mut ranges = ranges.peekable();
        if ranges.peek().is_none() {
            return;
        }
        let head = &mut self.map.head;
        let (shift, start) = unit;
        let mut out = SpaceMapEncoder::new(shift, start, self.map.block_size, head.length, stamp.two_words);
        out.debug(free, stamp.pass, stamp.txg);
        for (from, to) in ranges {
            out.entry(free, vdev, from, to);
            let bytes = i64::try_from(to - from).unwrap_or(i64::MAX);
            head.alloc = head.alloc.saturating_add(if free { -bytes } else { bytes });
        }
        let words = out.into_words();
        head.length += 8 * u64::try_from(words.len()).unwrap_or(0);
        self.words.extend(words);
    }

    /// Writes it all. `before`: the head as it was, to leave it alone when nothing changed.
    pub(super) fn write(
        mut self,
        store: &mut dyn SpaceMapStore,
        before: &SpaceMapPhys,
    ) -> Result<SpaceMapPhys> {
        self.map.head.object = self.map.object;
        let head = self.map.head;
        if self.words.is_empty() && !self.anew && head == *before {
            return Ok(head);
        }
        let mut object = store.open(self.map.object)?;
        if self.anew {
            object.free_from(0)?;
        }
        if object.block_size() != self.map.block_size {
            return Err(Error::corrupt(format!("space map {} has another block size", self.map.object)));
        }
        append(object.as_mut(), self.from, &self.words)?;
        let bytes = head.to_bytes();
        let len = if self.map.has_histogram { SpaceMapPhys::SIZE } else { SpaceMapPhys::MIN_SIZE };
        object.set_bonus(bytes.get(..len).unwrap_or(&bytes))?;
        Ok(head)
    }
}

/// Replaces the content of a map of single units: `ranges` are allocated, nothing else is. `(txg, pass)` are
/// those of the writer.
pub fn rewrite(
    store: &mut dyn SpaceMapStore,
    map: MapState,
    ranges: &RangeSet,
    (txg, pass): (u64, u64),
    two_words: bool,
) -> Result<()> {
    let mut addition = Addition::anew(map);
    addition.ranges((0, 0), ranges, false, None, Stamp { txg, pass, two_words });
    addition.write(store, &map.head).map(|_| ())
}

/// Puts words at byte `from` of an object, which is a multiple of 8.
fn append(object: &mut dyn Edit, from: u64, words: &[u64]) -> Result<()> {
    let block_words = (object.block_size() / 8).max(1);
    let (mut at, mut rest) = (from / 8, words);
    while !rest.is_empty() {
        let (blkid, within) = (at / block_words, at % block_words);
        let room = usize::try_from(block_words - within).unwrap_or(usize::MAX);
        let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
        put(object, blkid, within, now, within == 0)?;
        at += u64::try_from(now.len()).unwrap_or(0);
        rest = later;
    }
    Ok(())
}

/// Puts words at word `within` of a block; the rest of a `fresh` one is zeros.
fn put(object: &mut dyn Edit, blkid: u64, within: u64, words: &[u64], fresh: bool) -> Result<()> {
    let size = usize::try_from(object.block_size()).map_err(|_| Error::corrupt("block too long"))?;
    let mut block = AlignedBuf::zeroed(size);
    if !fresh {
        let old = object.read_block(blkid)?;
        block.iter_mut().zip(old.iter()).for_each(|(to, from)| *to = *from);
    }
    let skip = usize::try_from(within).unwrap_or(usize::MAX);
    let (slots, _) = block.as_chunks_mut::<8>();
    for (to, word) in slots.iter_mut().skip(skip).zip(words) {
        *to = word.to_le_bytes();
    }
    object.write_block(blkid, block)
}

/// Writes words `(index, value)`, sorted, into an object that is an array of them.
pub(super) fn put_words(object: &mut dyn Edit, words: &[(u64, u64)]) -> Result<()> {
    let block_words = (object.block_size() / 8).max(1);
    for same in words.chunk_by(|a, b| a.0 / block_words == b.0 / block_words) {
        let Some((first, _)) = same.first() else { continue };
        let (blkid, size) = (first / block_words, usize::try_from(object.block_size()).unwrap_or(0));
        let old = object.read_block(blkid)?;
        let mut block = AlignedBuf::zeroed(size);
        block.iter_mut().zip(old.iter()).for_each(|(to, from)| *to = *from);
        let (slots, _) = block.as_chunks_mut::<8>();
        for (index, value) in same {
            let slot = usize::try_from(index % block_words).ok().and_then(|i| slots.get_mut(i));
            if let Some(slot) = slot {
                *slot = value.to_le_bytes();
            }
        }
        object.write_block(blkid, block)?;
    }
    Ok(())
}
