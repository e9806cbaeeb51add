//! Space maps: which parts of a vdev are allocated.
//!
//! A top-level vdev is cut into metaslabs ([`table`]), each with a space map: the log of its allocations and
//! frees. With the feature `log_spacemap` recent changes stand in pool-wide logs ([`log`]) until a metaslab
//! is flushed, so what is free is told by both.

pub mod log;
pub mod table;

use ondisk::space_map::{SpaceMapDecoder, SpaceMapEntry, SpaceMapItem, SpaceMapPhys};
use stdx::RangeSet;

use crate::dmu::Object;
use crate::error::{Error, Result};

/// Bytes of a space map that one open may read.
const MAX_LENGTH: u64 = 16 << 30;

/// Replays the space map in `object`, whose units are `1 << shift` bytes from `start` on, over `size`
/// bytes. Gives what is allocated.
pub fn load(object: &Object, shift: u32, start: u64, size: u64) -> Result<RangeSet> {
    let mut allocated = RangeSet::new();
    replay(object, SpaceMapDecoder::new(shift, start, size), &mut |entry| {
        let end = entry.offset.saturating_add(entry.run);
        if entry.free {
            allocated.remove(entry.offset, end);
        } else {
            allocated.insert(entry.offset, end);
        }
    })?;
    Ok(allocated)
}

/// The head of the space map in `object`.
pub fn head(object: &Object) -> Result<SpaceMapPhys> {
    SpaceMapPhys::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))
}

/// Tells of every entry of the space map in `object`, in the order they were written.
pub fn replay(object: &Object, decoder: SpaceMapDecoder, tell: &mut dyn FnMut(SpaceMapEntry)) -> Result<()> {
    each(object, decoder, &mut |item| {
        if let SpaceMapItem::Entry(entry, _) = item {
            tell(entry);
        }
    })
}

/// As [`replay`], debug entries included.
pub fn each(object: &Object, mut decoder: SpaceMapDecoder, tell: &mut dyn FnMut(SpaceMapItem)) -> Result<()> {
    let length = head(object)?.length;
    if length > MAX_LENGTH || length > object.max_offset() {
        return Err(Error::corrupt(format!("space map {} of {length} bytes", object.number)));
    }
    let block_size = object.dnode.datablksz().max(1);
    for blkid in 0..length.div_ceil(block_size) {
        if blkid % 16 == 0 {
            object.read_ahead(blkid, 16);
        }
        let block = object.block(blkid)?;
        let used = usize::try_from(length - blkid * block_size).unwrap_or(usize::MAX);
        for item in decoder.raw(&block.slice(0..used.min(block.len()))) {
            tell(item.map_err(|e| Error::corrupt(format!("space map {}: {e}", object.number)))?);
        }
    }
    Ok(())
}
