//! Space maps: which parts of a vdev are allocated.
//!
//! A top-level vdev is cut into metaslabs ([`table`]), each with a space map: the log of its allocations and
//! frees. With the feature `log_spacemap` recent changes stand in pool-wide logs ([`log`]) until a metaslab
//! is flushed, so both together define the free space.
//!
//! To write, a [`SpaceAllocator`] keeps the allocatable ranges in core and allocates from them; the sync
//! thread makes it write the changes ([`SpaceAllocator::sync`]) through a [`SpaceMapStore`].

mod allocator;
mod append;
pub(crate) mod check;
mod discard;
mod evacuate;
mod lend;
pub mod log;
mod mapping;
pub mod policy;
pub(crate) mod rebuild;
mod record;
mod reflow;
mod removed;
mod store;
mod sync;
pub mod table;
mod unit;
mod vdev;

#[cfg(test)]
mod model;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use ondisk::space_map::{SpaceMapDecoder, SpaceMapEntry, SpaceMapItem, SpaceMapPhys};
use stdx::RangeSet;

use crate::dmu::{Dense, Object};
use crate::error::{Error, Kind, Result};

pub use allocator::{SpaceAllocator, SpaceMapFeatures, SpaceStats};
pub use append::rewrite;
pub(crate) use mapping::births;
pub(crate) use mapping::{load_births, load_mapping};
pub use record::TopRecord;
pub use store::{SpaceMapSource, SpaceMapStore, SpaceObject};
pub(crate) use unit::DEFER;
pub use unit::MapState;

/// Bytes of a space map that one open may read.
const MAX_LENGTH: u64 = 1 << 30;
/// Ranges that a space map may leave allocated: a metaslab of 16 GiB whose every other sector is.
const MAX_RANGES: usize = 1 << 22;

/// Replays the space map in `object`, whose units are `1 << shift` bytes from `start` on, over `size`
/// bytes. Returns the allocated ranges.
pub fn load(object: &Object, shift: u32, start: u64, size: u64) -> Result<RangeSet> {
    let (mut allocated, mut many) = (RangeSet::new(), false);
    replay(object, SpaceMapDecoder::new(shift, start, size), &mut |entry| {
        let end = entry.offset.saturating_add(entry.run);
        if entry.free {
            allocated.remove(entry.offset, end);
        } else {
            allocated.insert(entry.offset, end);
        }
        many |= allocated.len() > MAX_RANGES;
        if many {
            allocated = RangeSet::new();
        }
    })?;
    match many {
        true => Err(Error::new(Kind::Limit, format!("space map {} has too many ranges", object.number))),
        false => Ok(allocated),
    }
}

/// The head of the space map in `object`.
pub fn head(object: &Object) -> Result<SpaceMapPhys> {
    SpaceMapPhys::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))
}

/// Calls `tell` with every entry of the space map in `object`, in the order they were written.
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
    let mut left = usize::try_from(length).unwrap_or(usize::MAX);
    for block in Dense::new(object, length) {
        let block = block?;
        let used = left.min(block.len());
        left -= used;
        for item in decoder.raw(&block.slice(0..used)) {
            tell(item.map_err(|e| Error::corrupt(format!("space map {}: {e}", object.number)))?);
        }
    }
    Ok(())
}
