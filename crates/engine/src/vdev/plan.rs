//! The contract between a top-level vdev's geometry and the driver of its I/O.
//!
//! States of a plan: `start` → (`Issue` → `resume`)* → `Done`. A plan never issues the same
//! read twice (though it may ask for pieces of one that failed) and ends after a bounded number of steps.
//!
//! *Child* is the index of a direct child of the top-level vdev. A child that is itself a mirror,
//! `replacing` or `spare` has several *sides*, each a leaf that should hold the same bytes at the same
//! offset. The top-level mirror and the single disk have one child each for this purpose: mirrors are
//! all sides of child 0.

use stdx::Buf;

/// First byte of a leaf's data area: two labels and the boot area stand before it
/// (`VDEV_LABEL_START_SIZE`, vdev_impl.h).
pub const DATA_START: u64 = 4 << 20;

/// First byte of a leaf's boot area (`VDEV_BOOT_OFFSET`, vdev_impl.h), 3.5 MiB up to [`DATA_START`].
pub(crate) const BOOT_START: u64 = 512 << 10;

/// Which part of a leaf an offset counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Area {
    /// From [`DATA_START`]: everything that block pointers name.
    #[default]
    Data,
    /// From [`BOOT_START`]: raidz expansion parks its first rows there ("scratch area") until they
    /// can be written over their old places.
    Boot,
}

impl Area {
    /// Bytes from the start of the leaf, labels included, of byte `offset` of the area; `None` when that overflows.
    pub(crate) fn leaf_offset(self, offset: u64) -> Option<u64> {
        let start = match self {
            Self::Data => DATA_START,
            Self::Boot => BOOT_START,
        };
        offset.checked_add(start)
    }
}

/// One read from one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildRead {
    /// Index of the direct child of the top-level vdev.
    pub child: u32,
    /// Which of the child's equivalent leaves.
    pub side: u32,
    /// The area that `offset` counts from. `Data` but for a raidz expansion that was cut off in its first
    /// rows.
    pub area: Area,
    /// Bytes from the start of the area.
    pub offset: u64,
    /// Bytes to read.
    pub len: u64,
}

impl ChildRead {
    /// A read from the data area.
    pub(crate) fn data(child: u32, side: u32, offset: u64, len: u64) -> Self {
        Self { child, side, area: Area::Data, offset, len }
    }

    /// Bytes from the start of the leaf, labels included; `None` when that overflows.
    pub fn leaf_offset(&self) -> Option<u64> {
        self.area.leaf_offset(self.offset)
    }
}

/// How a read ended. The device's error is reported by the driver; a plan only needs to know that
/// there are no bytes.
#[derive(Debug)]
pub struct ChildResult {
    /// The request.
    pub read: ChildRead,
    /// The bytes, `None` when the device failed.
    pub data: Option<Buf>,
}

/// Why a copy could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The device is absent or failed the read.
    Unreadable,
    /// The device is known to lack writes of that txg (DTL).
    Stale,
    /// The bytes are wrong.
    Wrong,
}

/// A copy, or a column of one, that could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadCopy {
    /// Where it stands.
    pub(crate) read: ChildRead,
    /// The kind of its fault.
    pub(crate) fault: Fault,
}

/// The end of a plan.
#[derive(Debug, Default)]
pub struct PlanOutcome {
    /// The block's bytes, exactly the size asked, when some copy or combination was accepted.
    pub data: Option<Buf>,
    /// Everything found bad on the way: leaves that could not serve a read that was wanted, and bytes
    /// that turned out wrong. Leaves that were not needed are not listed.
    pub bad: Vec<BadCopy>,
}

/// Next step of a plan.
#[derive(Debug)]
pub enum PlanStep {
    /// Issue these reads together, then call `resume` with all their results.
    Issue(Vec<ChildRead>),
    /// It is over.
    Done(PlanOutcome),
}

/// The children's state, as far as a plan may use it before it reads.
pub trait Children {
    /// Number of direct children (1 for a disk or a mirror).
    fn count(&self) -> u32;
    /// Number of equivalent leaves that hold byte `offset` of a child.
    fn sides(&self, child: u32, offset: u64) -> u32;
    /// `None` when the leaf is present and up to date for this read, else why it should come last.
    /// A `Stale` leaf may still be tried when nothing else is left.
    fn fault(&self, child: u32, side: u32, offset: u64) -> Option<Fault>;
    /// Whether reads of byte `offset` of a child are to do without it where parity allows that: it is slow.
    #[doc(alias = "vdev_sit_out_reads")]
    fn sits_out(&self, _child: u32, _offset: u64) -> bool {
        false
    }
}

/// The part of a child that byte `offset` is in. The leaves behind a child are the same within a part: a distributed spare
/// stands on other leaves in each row of a draid. A read or write of several leaves stays within one part.
pub(super) fn part(offset: u64) -> u64 {
    offset / zcommon::draid::ROW_HEIGHT
}

/// How thorough a read is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// Read no more than good bytes need.
    #[default]
    First,
    /// The same of each copy, and name the sides that lack it: a resilver's read.
    Lacking,
    /// Read every copy, every side and all parity, and report each that is bad.
    All,
}

/// A state machine for reading one block (one DVA) from one top-level vdev.
pub trait ReadPlan: Send {
    /// The first step.
    fn start(&mut self, children: &dyn Children) -> PlanStep;
    /// Takes the results of the last `Issue`, in any order. `judge` returns whether candidate bytes are
    /// right; it is called with exactly the size asked.
    fn resume(
        &mut self,
        children: &dyn Children,
        results: Vec<ChildResult>,
        judge: &mut dyn FnMut(&[u8]) -> bool,
    ) -> PlanStep;
}
