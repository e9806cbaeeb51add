//! Events of a walk, in the order of objects and offsets.

use std::sync::Arc;

use ondisk::Blkptr;

use crate::dmu::Object;
use crate::error::Result;

/// One thing that a walk met. Blocks are counted in the object's own block size; `end` is one past the last.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A block of dnodes, before its objects.
    Dnodes { bp: Blkptr, blkid: u64, slots: u64 },
    /// An object: its dnode, as `slots` hold it in the block that `bp` names.
    Object { object: Arc<Object>, bp: Blkptr, slots: Vec<u8> },
    /// The object number is free.
    NoObject { number: u64 },
    /// Object numbers are free: those in blocks `start..end` of dnodes.
    NoObjects { start: u64, end: u64 },
    /// Blocks are holes since txg `birth` (0: unknown). An `end` of 0 is the end of all numbers.
    Hole { object: Arc<Object>, start: u64, end: u64, birth: u64 },
    /// A data block.
    Data { object: Arc<Object>, bp: Blkptr, blkid: u64 },
    /// Redacted blocks, of `size` bytes each.
    Redact { object: u64, start: u64, end: u64, size: u64 },
    /// A spill block, after all data of its object.
    Spill { object: Arc<Object>, bp: Blkptr },
}

/// Takes events in order.
pub(super) trait Sink {
    fn take(&mut self, event: Event) -> Result<()>;
}
