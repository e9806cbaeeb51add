//! The pace of a removal or an expansion: bytes copied since it began or resumed.
//!
//! Differs from OpenZFS, which divides all copied bytes by the time since the start, even if the pool was exported for most of
//! it.

use parking_lot::Mutex;

/// When copying began, was continued by an import, or went on after a wait for devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyPass {
    /// Seconds since 1970.
    pub start: u64,
    /// Bytes that had been copied before.
    pub before: u64,
}

/// The pass under way.
#[derive(Debug, Default)]
pub(super) struct CopyPace(Mutex<CopyPass>);

impl CopyPace {
    /// A pass begins, after so many bytes.
    pub(super) fn begins(&self, now: u64, before: u64) {
        *self.0.lock() = CopyPass { start: now, before };
    }

    /// The pass that began last.
    pub(super) fn pass(&self) -> CopyPass {
        *self.0.lock()
    }
}
