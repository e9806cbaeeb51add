//! Removed vdevs: where the bytes of an offset went.
//!
//! A removal copies every allocated segment elsewhere and records `source → destination` in a sorted
//! table. A block of the removed vdev may have been split over several segments, and a destination
//! may itself be on a vdev that was removed later.
//!
//! Format source: `vdev_indirect_mapping_entry_phys_t`, vdev_indirect_mapping.h, OpenZFS 2.3.

use crate::error::{Error, Result};

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

/// The table of one removed vdev, sorted by source offset.
#[derive(Debug, Default, Clone)]
pub struct IndirectMapping(Vec<MappingEntry>);

/// A piece of a block, where it stands now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Top-level vdev.
    pub vdev: u64,
    /// Offset there.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl IndirectMapping {
    /// Takes the entries in source order; refuses a table that overlaps or is out of order.
    pub fn new(entries: Vec<MappingEntry>) -> Result<Self> {
        let mut mapping = Self::default();
        entries.into_iter().try_for_each(|entry| mapping.push(entry))?;
        Ok(mapping)
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
        self.0.push(entry);
        Ok(())
    }

    /// First byte of the vdev after the last entry; 0 without entries.
    #[doc(alias = "vdev_indirect_mapping_max_offset")]
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |last| last.source.saturating_add(last.len))
    }

    /// The entries.
    pub fn entries(&self) -> &[MappingEntry] {
        &self.0
    }

    /// The pieces that hold `[offset, offset + len)`, in order.
    pub fn resolve(&self, offset: u64, len: u64) -> Result<Vec<Segment>> {
        let end = offset.checked_add(len).ok_or_else(|| Error::corrupt("offset overflows"))?;
        let first = self.0.partition_point(|e| e.source + e.len <= offset);
        let mut at = offset;
        let mut pieces = Vec::new();
        for entry in self.0.iter().skip(first) {
            if at >= end {
                break;
            }
            if entry.source > at {
                break;
            }
            let skip = at - entry.source;
            let take = (entry.len - skip).min(end - at);
            pieces.push(Segment { vdev: entry.vdev, offset: entry.offset + skip, len: take });
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
        let map = IndirectMapping::new(vec![entry(0, 4096, 1024), entry(1024, 65536, 1024)]).unwrap();
        let pieces = map.resolve(512, 1024).unwrap();
        assert_eq!(pieces[0], Segment { vdev: 1, offset: 4608, len: 512 });
        assert_eq!(pieces[1], Segment { vdev: 1, offset: 65536, len: 512 });
        assert!(map.resolve(1536, 1024).is_err());
        assert!(IndirectMapping::new(vec![entry(0, 0, 1024), entry(512, 0, 512)]).is_err());
    }
}
