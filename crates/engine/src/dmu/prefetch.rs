//! Read-ahead for a sequential reader.
//!
//! Differs from OpenZFS: a stream belongs to the reading handle, not to the dnode, so two readers of one file never
//! disturb each other's windows.

use super::Object;

/// Maximum bytes of read-ahead.
const WINDOW: u64 = 16 << 20;
/// First window after a sequential read was detected.
const FIRST: u64 = 1 << 20;

/// The state of one reader.
#[derive(Debug, Default, Clone)]
pub struct Prefetch {
    expected: u64,
    window: u64,
    ahead: u64,
}

impl Prefetch {
    /// Called before `[offset, offset + len)` is read: starts reading the following bytes if the reader is
    /// sequential.
    pub fn observe(&mut self, object: &Object, offset: u64, len: u64) {
        let size = object.dnode.datablksz().max(1);
        let end = offset.saturating_add(len);
        if offset == self.expected {
            self.window = (self.window * 2).clamp(FIRST.max(size), WINDOW.max(size));
        } else {
            self.window = 0;
            self.ahead = 0;
        }
        self.expected = end;
        if self.window == 0 {
            return;
        }
        let from = self.ahead.max(offset / size);
        let to = end.saturating_add(self.window) / size;
        if to > from {
            object.read_ahead(from, to - from);
            self.ahead = to;
        }
    }
}
