//! The end of the stream of a partial receive.
//!
//! The dataset of a partial receive contains more than the received part: an incremental one begins as a clone, in which the
//! objects behind the place that was reached are those of the older snapshot, in the same blocks of dnodes as new ones.
//! A receiver of such objects would take the last of them for the place from which to go on, and all before it would never
//! be sent.

use ondisk::dnode;

use super::event::StreamEvent;
use crate::dmu::{Object, Objset};

/// The place up to which a dataset was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until {
    object: u64,
    offset: u64,
    /// Objects in a block of dnodes.
    per_block: u64,
}

impl Until {
    /// The end of the stream of `objset` at an object and a byte offset in it.
    pub(super) fn new(objset: &Objset, (object, offset): (u64, u64)) -> Self {
        let per_block = (objset.phys.meta_dnode.datablksz() >> dnode::DNODE_SHIFT).max(1);
        Self { object, offset, per_block }
    }

    /// Returns the part of an event before this place; `None` if there is none.
    pub(super) fn cut(&self, event: StreamEvent) -> Option<StreamEvent> {
        match event {
            StreamEvent::Dnodes { blkid, slots, .. } => {
                (blkid.saturating_mul(slots) <= self.object).then_some(event)
            }
            StreamEvent::Object(ref found) => {
                let is_begun = found.number == self.object && self.offset > 0;
                (found.number < self.object || is_begun).then_some(event)
            }
            StreamEvent::NoObject { number } => (number < self.object).then_some(event),
            StreamEvent::NoObjects { start, end } => {
                let end = end.min(self.object / self.per_block);
                (start < end).then_some(StreamEvent::NoObjects { start, end })
            }
            StreamEvent::Hole { object, start, end, birth } => {
                let end = self.end_of(&object, if end == 0 { u64::MAX } else { end });
                (start < end).then_some(StreamEvent::Hole { object, start, end, birth })
            }
            StreamEvent::Data { ref object, blkid, .. } => {
                (blkid < self.end_of(object, u64::MAX)).then_some(event)
            }
            StreamEvent::Redact { object, start, end, size } => {
                let end = self.end_in(object, size, end);
                (start < end).then_some(StreamEvent::Redact { object, start, end, size })
            }
            StreamEvent::Spill { ref object, .. } => (object.number < self.object).then_some(event),
        }
    }

    fn end_of(&self, object: &Object, end: u64) -> u64 {
        self.end_in(object.number, object.dnode.datablksz(), end)
    }

    /// The first block, of `size` bytes, of an object that is not sent, at most `end`.
    fn end_in(&self, object: u64, size: u64, end: u64) -> u64 {
        match object.cmp(&self.object) {
            std::cmp::Ordering::Less => end,
            std::cmp::Ordering::Equal => end.min(self.offset / size.max(1)),
            std::cmp::Ordering::Greater => 0,
        }
    }
}
