//! Removed vdevs: where the bytes of an offset went.
//!
//! A removal copies every allocated segment elsewhere and records `source → destination` in a sorted
//! table. A block of the removed vdev may have been split over several segments, and a destination
//! may itself be on a vdev that was removed later.
//!
//! Format source: `vdev_indirect_mapping_entry_phys_t`, vdev_indirect_mapping.h, OpenZFS 2.3.

use std::sync::Arc;

use crate::error::{Error, Kind, Result};

/// Vdevs removed one after another that a block may have moved through.
pub(crate) const MAX_HOPS: u32 = 64;
/// Maximum pieces of one range, those on the way included: a block of 32 MiB in single sectors, several times over.
pub(crate) const MAX_PIECES: usize = 1 << 18;

/// One copied segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingEntry {
    /// Offset on the removed vdev.
    pub source: u64,
    /// Vdev of the copy.
    pub vdev: u64,
    /// Offset of the copy.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The bytes that one txg of a removal has copied: those before `end`, and behind the end of the txg before.
#[doc(alias = "vdev_indirect_birth_entry_phys_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyBirth {
    /// End of the bytes.
    pub(crate) end: u64,
    /// The txg that wrote the copies.
    pub(crate) txg: u64,
}

/// The table of one removed vdev, sorted by source offset.
#[derive(Debug, Default, Clone)]
pub struct IndirectMapping {
    entries: Vec<MappingEntry>,
    births: Arc<[CopyBirth]>,
}

/// A piece of a block, at its present location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Top-level vdev.
    pub vdev: u64,
    /// Offset there.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The txg that wrote the copy, when it is known.
    pub born: Option<u64>,
}

impl Segment {
    /// A range of a top-level vdev, of no known birth.
    pub(crate) fn new(vdev: u64, offset: u64, len: u64) -> Self {
        Self { vdev, offset, len, born: None }
    }
}

/// One step of [`follow`].
#[derive(Debug)]
pub(crate) enum Hop {
    /// The range lies on a vdev that is there.
    Here,
    /// The range lies on a removed vdev; its pieces are these, in order.
    Moved(Vec<Segment>),
    /// The range lies on a vdev that is being removed, and these are its copies.
    Copied(Vec<Segment>),
}

/// The pieces of a range on vdevs that are there, in order. `hop` maps one range; each removal is followed, so that no
/// result lies on a removed vdev. A piece without a birth of its own has that of the range it is a piece of.
///
/// # Errors
/// The errors of `hop`; [`Kind::Loop`] for mappings that lead through more than [`MAX_HOPS`] removals or to more than
/// [`MAX_PIECES`] pieces.
#[doc(alias = "vdev_indirect_remap")]
pub(crate) fn follow(range: Segment, mut hop: impl FnMut(&Segment) -> Result<Hop>) -> Result<Vec<Segment>> {
    let too_far = |why| Error::new(Kind::Loop, why).at_offset(range.offset);
    let (mut pieces, mut count) = (Vec::new(), 0);
    let mut todo = vec![(range, 0)];
    while let Some((segment, hops)) = todo.pop() {
        let further = match hop(&segment)? {
            Hop::Here => {
                pieces.push(segment);
                continue;
            }
            Hop::Copied(copies) => {
                pieces.push(segment);
                copies
            }
            Hop::Moved(further) => further,
        };
        if hops >= MAX_HOPS {
            return Err(too_far("removed vdevs map to each other in a circle"));
        }
        count += further.len();
        if count > MAX_PIECES {
            return Err(too_far("removed vdevs map a block to too many pieces"));
        }
        let of_segment = |piece: Segment| (Segment { born: piece.born.or(segment.born), ..piece }, hops + 1);
        todo.extend(further.into_iter().rev().map(of_segment));
    }
    Ok(pieces)
}

impl IndirectMapping {
    /// Takes the entries in source order; refuses a table that overlaps or is out of order.
    pub fn new(entries: Vec<MappingEntry>) -> Result<Self> {
        let mut mapping = Self::default();
        entries.into_iter().try_for_each(|entry| mapping.push(entry))?;
        Ok(mapping)
    }

    /// The table with the txgs of its copies, ascending by offset.
    pub(crate) fn with_births(self, births: Arc<[CopyBirth]>) -> Self {
        Self { births, ..self }
    }

    /// The txgs of the copies.
    pub(crate) fn births(&self) -> Arc<[CopyBirth]> {
        Arc::clone(&self.births)
    }

    /// The txg that wrote the copy of the byte at `offset`; `None` when that is not known.
    #[doc(alias = "vdev_indirect_births_physbirth")]
    fn born(&self, offset: u64) -> Option<u64> {
        let at = self.births.partition_point(|birth| birth.end <= offset);
        self.births.get(at).map(|birth| birth.txg)
    }

    /// Where `len` bytes were that `txg` copied to `offset` of `vdev`. Without a txg, or with a table that lacks the
    /// txgs of its copies, any copy counts.
    pub(crate) fn source_of(&self, (vdev, offset, len): (u64, u64, u64), txg: Option<u64>) -> Option<u64> {
        let spans: Vec<(u64, u64)> = match txg.filter(|_| !self.births.is_empty()) {
            None => vec![(0, u64::MAX)],
            Some(txg) => {
                let starts = std::iter::once(0).chain(self.births.iter().map(|birth| birth.end));
                let all = starts.zip(self.births.iter());
                all.filter(|(_, birth)| birth.txg == txg).map(|(from, birth)| (from, birth.end)).collect()
            }
        };
        let end = offset.checked_add(len)?;
        let holds = |entry: &&MappingEntry| {
            entry.vdev == vdev && entry.offset <= offset && end <= entry.offset.saturating_add(entry.len)
        };
        spans.into_iter().find_map(|(from, to)| {
            let first = self.entries.partition_point(|entry| entry.source.saturating_add(entry.len) <= from);
            let those = self.entries.iter().skip(first).take_while(|entry| entry.source < to);
            those.filter(holds).map(|entry| entry.source + (offset - entry.offset)).next()
        })
    }

    /// Adds the entry that follows; refuses one that overlaps or is out of order.
    pub fn push(&mut self, entry: MappingEntry) -> Result<()> {
        let end = self.end();
        if entry.source < end || entry.len == 0 {
            return Err(Error::corrupt("the indirect mapping is out of order").at_offset(entry.source));
        }
        let overflows = [entry.source, entry.offset].iter().any(|at| at.checked_add(entry.len).is_none());
        if overflows {
            return Err(Error::corrupt("a mapping entry ends past 2^64").at_offset(entry.source));
        }
        self.entries.push(entry);
        Ok(())
    }

    /// First byte of the vdev after the last entry; 0 without entries.
    #[doc(alias = "vdev_indirect_mapping_max_offset")]
    pub(crate) fn end(&self) -> u64 {
        self.entries.last().map_or(0, |last| last.source.saturating_add(last.len))
    }

    /// The entries.
    pub fn entries(&self) -> &[MappingEntry] {
        &self.entries
    }

    /// The pieces that hold `[offset, offset + len)`, in order.
    pub fn resolve(&self, offset: u64, len: u64) -> Result<Vec<Segment>> {
        let end = offset.checked_add(len).ok_or_else(|| Error::corrupt("offset overflows"))?;
        let first = self.entries.partition_point(|e| e.source + e.len <= offset);
        let mut at = offset;
        let mut pieces = Vec::new();
        for entry in self.entries.iter().skip(first) {
            if at >= end {
                break;
            }
            if entry.source > at {
                break;
            }
            let skip = at - entry.source;
            let take = (entry.len - skip).min(end - at);
            let (vdev, offset) = (entry.vdev, entry.offset + skip);
            pieces.push(Segment { vdev, offset, len: take, born: self.born(at) });
            at += take;
        }
        if at < end {
            return Err(Error::corrupt("the removed vdev has no mapping for this range").at_offset(at));
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(source: u64, offset: u64, len: u64) -> MappingEntry {
        MappingEntry { source, vdev: 1, offset, len }
    }

    #[test]
    fn a_block_over_two_segments_is_split() {
        let births = [CopyBirth { end: 1024, txg: 7 }, CopyBirth { end: 1536, txg: 9 }];
        let map = IndirectMapping::new(vec![entry(0, 4096, 1024), entry(1024, 65536, 1024)]).unwrap();
        let map = map.with_births(births.into());
        let pieces = map.resolve(512, 1024).unwrap();
        assert_eq!(pieces[0], Segment { vdev: 1, offset: 4608, len: 512, born: Some(7) });
        assert_eq!(pieces[1], Segment { vdev: 1, offset: 65536, len: 512, born: Some(9) });
        assert_eq!(map.resolve(1536, 512).unwrap()[0].born, None);
        assert_eq!(map.source_of((1, 4608, 512), Some(7)), Some(512));
        assert_eq!(map.source_of((1, 65536, 512), Some(9)), Some(1024));
        assert_eq!(map.source_of((1, 65536, 512), Some(7)), None, "another txg copied them");
        assert_eq!(map.source_of((1, 65536, 1024), None), Some(1024));
        assert_eq!(map.source_of((1, 4608, 1024), None), None, "they are split");
        assert_eq!(map.source_of((2, 4608, 512), None), None);
        assert!(map.resolve(1536, 1024).is_err());
        assert!(IndirectMapping::new(vec![entry(0, 0, 1024), entry(512, 0, 512)]).is_err());
    }

    /// Vdev 0 moved to 1, 1 to 2, and so on; `last` is there. Each removal halves the range, down to sectors.
    fn chain(last: u64) -> impl FnMut(&Segment) -> Result<Hop> {
        move |segment| {
            if segment.vdev == last {
                return Ok(Hop::Here);
            }
            let first = if segment.len > 512 { segment.len / 2 } else { segment.len };
            let halves = [(segment.offset, first), (segment.offset + first, segment.len - first)];
            let to = |(offset, len)| Segment {
                born: (segment.vdev == 1).then_some(7),
                ..Segment::new(segment.vdev + 1, offset, len)
            };
            Ok(Hop::Moved(halves.into_iter().filter(|(_, len)| *len > 0).map(to).collect()))
        }
    }

    #[test]
    fn removals_are_followed_to_the_limits_and_no_further() {
        let places = follow(Segment::new(0, 4096, 2048), chain(3)).unwrap();
        let want = |i: u64| Segment { born: Some(7), ..Segment::new(3, 4096 + 512 * i, 512) };
        assert_eq!(places, (0..4).map(want).collect::<Vec<_>>());
        let far = |last| follow(Segment::new(0, 0, 512), chain(last));
        assert_eq!(
            far(u64::from(MAX_HOPS)).unwrap(),
            [Segment { born: Some(7), ..Segment::new(u64::from(MAX_HOPS), 0, 512) }]
        );
        assert_eq!(far(u64::from(MAX_HOPS) + 1).unwrap_err().kind(), Kind::Loop);
        let largest = follow(Segment::new(0, 0, ondisk::MAX_BLOCK_SIZE), chain(17)).unwrap();
        assert_eq!(largest.iter().map(|piece| piece.len).sum::<u64>(), ondisk::MAX_BLOCK_SIZE);
        let forged = |segment: &Segment| Ok(Hop::Moved(vec![*segment; 2]));
        assert_eq!(follow(Segment::new(0, 0, 512), forged).unwrap_err().kind(), Kind::Loop);
    }

    #[test]
    fn a_vdev_that_is_being_removed_has_a_range_and_its_copies() {
        let copied = |segment: &Segment| match segment.vdev {
            0 => Ok(Hop::Copied(vec![Segment::new(1, 0, 512), Segment::new(2, 512, 512)])),
            _ => Ok(Hop::Here),
        };
        let places = follow(Segment::new(0, 8192, 1024), copied).unwrap();
        assert_eq!(places.iter().map(|piece| piece.vdev).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
