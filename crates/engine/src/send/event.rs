//! Events of a walk, in the order of objects and offsets.

use std::ops::Range;
use std::sync::Arc;

use ondisk::{Blkptr, DnodeRef};

use crate::dmu::Object;
use crate::error::{Error, Result};
use crate::traverse::tree::DnodeBlock;

/// One thing that a walk met. Blocks are counted in the object's own block size; `end` is one past the last.
#[derive(Debug, Clone)]
pub(super) enum StreamEvent {
    /// A block of dnodes, before its objects.
    Dnodes { bp: Blkptr, blkid: u64, slots: u64 },
    /// An object.
    Object(DnodeAt),
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

/// An object as its block of dnodes holds it: most of those that a stream names have nothing else to tell.
#[derive(Debug, Clone)]
pub(super) struct DnodeAt {
    pub number: u64,
    pub dnodes: Arc<DnodeBlock>,
    /// The bytes of its slots.
    pub slots: Range<usize>,
    /// Whether it has a spill block: few do, and each object is asked.
    pub has_spill: bool,
}

impl DnodeAt {
    /// The bytes of its slots.
    pub(super) fn bytes(&self) -> &[u8] {
        self.dnodes.bytes.get(self.slots.clone()).unwrap_or_default()
    }

    /// Its dnode. The walk has checked it.
    pub(super) fn dnode(&self) -> Result<DnodeRef<'_>> {
        let found = DnodeRef::from_bytes(self.bytes()).map_err(|e| Error::corrupt(e.to_string()))?;
        found.ok_or_else(|| Error::corrupt("a free dnode in place of an object"))
    }

    /// The pointer of its spill block.
    pub(super) fn spill(&self) -> Option<Blkptr> {
        if self.has_spill { self.dnode().ok()?.spill() } else { None }
    }
}

/// Takes events in order.
pub(super) trait Sink {
    fn take(&mut self, event: StreamEvent) -> Result<()>;
}
