//! Top-level vdevs as targets of reads.
//!
//! A [`Top`] flattens its subtree: each direct child becomes a list of *sides*, the leaves that hold the same
//! bytes (a plain disk has one; a `replacing` or `spare` has more). The block address space of a top-level
//! vdev is then served by the plan of its layout.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::config::{AllocBias, Kind, VdevConfig};
use super::draid::{DraidGeometry, DraidPlan};
use super::draid_rows::LeafPath;
use super::indirect::{IndirectMapping, Segment};
use super::leaf::Leaf;
use super::mirror::MirrorPlan;
use super::plan::{ChildRead, Children, Depth, Fault, ReadPlan};
use super::queue::LeafReadDone;
use super::raidz::{RaidzGeometry, RaidzPlan};
use super::raidz_expand::ReflowState;
use super::stats::IoClass;
use crate::error::{Error, Kind as ErrorKind, Result};

/// Block size by whose cost raw space of a vdev is converted to usable space.
const DEFLATE_BLOCK: u64 = 128 << 10;

/// One leaf that holds a child's bytes.
#[derive(Debug, Clone)]
pub enum Side {
    /// A device.
    Leaf(Arc<Leaf>),
    /// A distributed spare: the bytes stand on another child of the same draid, which one depends on
    /// the offset.
    DistributedSpare {
        /// Which spare.
        id: u32,
        /// The spare's own vdev entry: a leaf without a device, with a DTL.
        spare: Option<Arc<Leaf>>,
    },
    /// A raidz or draid below a mirror: `zpool` makes no such vdevs, ztest does. They can be read, not written.
    Nested(Arc<Top>),
}

/// How a top-level vdev lays out blocks.
#[derive(Debug)]
pub enum VdevLayout {
    /// A disk, a file, or a mirror: all sides of child 0.
    Mirror,
    /// Raidz, expanded or not.
    Raidz(RaidzGeometry),
    /// Declustered raidz.
    Draid(DraidGeometry),
    /// Removed: its blocks are found through a mapping, which is loaded once the MOS can be read.
    Indirect(RwLock<Option<Arc<IndirectMapping>>>),
    /// Nothing was ever mapped here, or it is absent.
    Absent,
}

/// A top-level vdev.
#[derive(Debug)]
pub struct Top {
    /// Its number, as DVAs name it.
    pub id: u64,
    /// Its name for people.
    pub(crate) name: String,
    /// Its allocation class.
    pub bias: AllocBias,
    /// Sector shift.
    pub ashift: u32,
    /// Layout.
    pub layout: VdevLayout,
    /// Whether space is counted as its blocks use it, without parity, as in pools of version 3 and later.
    #[doc(alias = "spa_deflate")]
    deflates: bool,
    children: Vec<Vec<Side>>,
    /// Bytes of blocks that are being written here, shared with the tops that had its place in earlier trees.
    pub(super) in_flight: Arc<AtomicU64>,
    /// Reads and writes under way that were started through this top.
    pub(super) writing: AtomicU64,
    /// Another top has taken its place: repairs through it are refused.
    pub(super) replaced: AtomicBool,
    /// While set, writes to its range wait.
    pub(super) gate: Mutex<Option<Gate>>,
}

/// A write that waits until a range is copied.
pub(super) type HeldWrite = Box<dyn FnOnce() + Send>;

/// A range of the vdev that is being copied to its new place: its writes wait.
pub(super) struct Gate {
    range: std::ops::Range<u64>,
    held: Vec<HeldWrite>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gate({:?}, {} held)", self.range, self.held.len())
    }
}

/// A [`Top`] that is about to be read or written.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Top>);

impl Entered {
    /// The vdev.
    pub(crate) fn top(&self) -> &Arc<Top> {
        &self.0
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.writing.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A [`Top`] as one read's plan sees it.
pub(crate) struct View<'a> {
    top: &'a Top,
    txg: u64,
}

impl Top {
    /// Builds a top from a checked config; `find` returns each leaf, and each raidz or draid that is no
    /// top-level vdev, by guid. `before` is the top at the same place in the tree before the change: its
    /// bytes in flight count here, too. `deflates`: the pool counts space without parity.
    pub(crate) fn new(
        config: &VdevConfig,
        layout: VdevLayout,
        find: &dyn Fn(u64) -> Option<Side>,
        before: Option<&Top>,
        deflates: bool,
    ) -> Arc<Self> {
        let children = match config.kind {
            Kind::Raidz | Kind::Draid => config.children.iter().map(|c| sides(c, find)).collect(),
            _ => vec![sides(config, find)],
        };
        let top = Self {
            id: config.id,
            name: config.name(),
            bias: config.bias,
            ashift: config.ashift,
            layout,
            deflates,
            children,
            in_flight: before.map(|top| Arc::clone(&top.in_flight)).unwrap_or_default(),
            writing: AtomicU64::new(0),
            replaced: AtomicBool::new(false),
            gate: Mutex::default(),
        };
        let spares: Vec<Arc<Leaf>> = top.leaves_and_spares().filter(|leaf| leaf.is_distributed()).collect();
        top.leaves().for_each(|leaf| leaf.carry(&spares));
        Arc::new(top)
    }

    /// The same vdev with another state of the expansion of its raidz; `None` when it is no raidz. While `copied` is being
    /// copied, until [`Top::open_gate`], writes to that range of the new top wait.
    pub(crate) fn reflowing(
        &self,
        state: ReflowState,
        copied: Option<std::ops::Range<u64>>,
    ) -> Option<Arc<Self>> {
        let VdevLayout::Raidz(geometry) = &self.layout else { return None };
        Some(self.replaced_by(VdevLayout::Raidz(geometry.with_reflow(state)), copied))
    }

    /// The same mirror or draid, on which writes to `range` wait until [`Top::open_gate`]; `None` when it is neither, nor a
    /// disk.
    pub(crate) fn holding(&self, range: std::ops::Range<u64>) -> Option<Arc<Self>> {
        let layout = match &self.layout {
            VdevLayout::Mirror => VdevLayout::Mirror,
            VdevLayout::Draid(geometry) => VdevLayout::Draid(geometry.clone()),
            _ => return None,
        };
        Some(self.replaced_by(layout, Some(range)))
    }

    /// A top in the place of this one; its writes to `copied` wait.
    fn replaced_by(&self, layout: VdevLayout, copied: Option<std::ops::Range<u64>>) -> Arc<Self> {
        Arc::new(Self {
            id: self.id,
            name: self.name.clone(),
            bias: self.bias,
            ashift: self.ashift,
            layout,
            deflates: self.deflates,
            children: self.children.clone(),
            in_flight: Arc::clone(&self.in_flight),
            writing: AtomicU64::new(0),
            replaced: AtomicBool::new(false),
            gate: Mutex::new(copied.map(|range| Gate { range, held: Vec::new() })),
        })
    }

    /// Issues the writes that waited, and lets others pass.
    pub(crate) fn open_gate(&self) {
        let gate = self.gate.lock().take();
        gate.into_iter().flat_map(|gate| gate.held).for_each(|write| write());
    }

    /// Keeps a write of these bytes while their range is being copied, or returns it.
    pub(super) fn hold(&self, start: u64, end: u64, write: HeldWrite) -> Option<HeldWrite> {
        match &mut *self.gate.lock() {
            Some(gate) if start < gate.range.end && gate.range.start < end => {
                gate.held.push(write);
                None
            }
            _ => Some(write),
        }
    }

    /// Records that another top has taken its place in the tree.
    pub(crate) fn set_replaced(&self) {
        self.replaced.store(true, Ordering::SeqCst);
    }

    /// The state of the expansion of its raidz, while one is under way.
    pub(crate) fn reflow(&self) -> Option<ReflowState> {
        match &self.layout {
            VdevLayout::Raidz(geometry) => geometry.reflow(),
            _ => None,
        }
    }

    /// Counts a read or write that is about to begin as one under way.
    pub(crate) fn enter(top: Arc<Self>) -> Entered {
        top.writing.fetch_add(1, Ordering::SeqCst);
        Entered(top)
    }

    /// Reads and writes under way that were started through this top.
    pub(crate) fn writing(&self) -> u64 {
        self.writing.load(Ordering::SeqCst)
    }

    /// Bytes of blocks that are being written here now.
    #[doc(alias = "mg_alloc_queue_depth")]
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// From its parts, for tests.
    #[cfg(test)]
    pub(crate) fn of_parts(
        id: u64,
        name: &str,
        bias: AllocBias,
        ashift: u32,
        layout: VdevLayout,
        children: Vec<Vec<Side>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            name: name.to_owned(),
            bias,
            ashift,
            layout,
            deflates: true,
            children,
            in_flight: Arc::default(),
            writing: AtomicU64::new(0),
            replaced: AtomicBool::new(false),
            gate: Mutex::default(),
        })
    }

    /// The children's sides.
    pub fn children(&self) -> &[Vec<Side>] {
        &self.children
    }

    /// The children's state as a plan for a block born in `txg` sees it.
    pub(crate) fn view(&self, txg: u64) -> View<'_> {
        View { top: self, txg }
    }

    /// A plan for `size` bytes at `offset`, born in `birth` (physical).
    pub fn plan(&self, offset: u64, size: u64, birth: u64, depth: Depth) -> Result<Box<dyn ReadPlan>> {
        match &self.layout {
            VdevLayout::Mirror => Ok(Box::new(MirrorPlan::new(offset, size, depth, self.id))),
            VdevLayout::Raidz(geometry) => Ok(Box::new(RaidzPlan::new(geometry, offset, size, birth, depth))),
            VdevLayout::Draid(geometry) => Ok(Box::new(DraidPlan::new(geometry, offset, size, depth))),
            VdevLayout::Indirect(_) => Err(Error::corrupt("a removed vdev is read through its mapping")),
            VdevLayout::Absent => {
                Err(Error::new(ErrorKind::NoDevice, "the top-level vdev is missing").on_vdev(&self.name))
            }
        }
    }

    /// The indirect mapping, when this is a removed vdev whose mapping is loaded.
    pub fn mapping(&self) -> Option<Arc<IndirectMapping>> {
        match &self.layout {
            VdevLayout::Indirect(slot) => slot.read().clone(),
            _ => None,
        }
    }

    /// One removal further: the pieces of a range of this removed vdev.
    ///
    /// # Errors
    /// When the mapping is not known or damaged.
    pub(crate) fn moved(&self, offset: u64, len: u64) -> Result<Vec<Segment>> {
        let unknown = || Error::corrupt("the removed vdev's mapping could not be read");
        let pieces = self.mapping().ok_or_else(unknown).and_then(|mapping| mapping.resolve(offset, len));
        pieces.map_err(|e| e.on_vdev(&self.name))
    }

    /// True when this vdev was removed and its blocks live elsewhere.
    pub fn is_removed(&self) -> bool {
        matches!(self.layout, VdevLayout::Indirect(_))
    }

    /// True when something can be read here at all.
    pub fn is_readable(&self) -> bool {
        let present = |side: &Side| match side {
            Side::Leaf(leaf) => leaf.device().is_some(),
            Side::DistributedSpare { .. } => true,
            Side::Nested(top) => top.is_readable(),
        };
        match self.layout {
            VdevLayout::Absent => false,
            VdevLayout::Indirect(_) => true,
            _ => self.children.iter().flatten().any(present),
        }
    }

    /// The leaf behind one read.
    pub(crate) fn leaf(&self, read: &ChildRead) -> Option<Arc<Leaf>> {
        self.leaf_at(read.child, read.side, read.offset)
    }

    /// The leaf that holds byte `offset` of a child's side.
    pub(crate) fn leaf_at(&self, child: u32, side: u32, offset: u64) -> Option<Arc<Leaf>> {
        match self.side(child, side) {
            _ if self.is_spread(child) => self.place(child, side, offset)?.pop(),
            Some(Side::Leaf(leaf)) => Some(Arc::clone(leaf)),
            _ => None,
        }
    }

    /// How many sides a child has at byte `offset`: every leaf behind a distributed spare is one.
    pub(super) fn side_count(&self, child: u32, offset: u64) -> u32 {
        let sides = match self.is_spread(child) {
            true => self.places(child, offset).len(),
            false => self.sides_of(child).len(),
        };
        u32::try_from(sides).unwrap_or(u32::MAX)
    }

    fn sides_of(&self, child: u32) -> &[Side] {
        let sides = usize::try_from(child).ok().and_then(|child| self.children.get(child));
        sides.map_or(&[], Vec::as_slice)
    }

    /// Whether a distributed spare stands for a child, so that other leaves have its bytes in each row.
    fn is_spread(&self, child: u32) -> bool {
        self.sides_of(child).iter().any(|side| matches!(side, Side::DistributedSpare { .. }))
    }

    pub(super) fn place(&self, child: u32, side: u32, offset: u64) -> Option<LeafPath> {
        self.places(child, offset).into_iter().nth(usize::try_from(side).ok()?)
    }

    fn side(&self, child: u32, side: u32) -> Option<&Side> {
        self.sides_of(child).get(usize::try_from(side).ok()?)
    }

    /// The raidz or draid that this read is of, which needs a plan of its own.
    pub(crate) fn nested(&self, read: &ChildRead) -> Option<Arc<Self>> {
        match self.side(read.child, read.side)? {
            Side::Nested(top) => Some(Arc::clone(top)),
            _ => None,
        }
    }

    /// Starts one read, which is not of a nested vdev, in this class.
    pub fn read(&self, read: ChildRead, class: Option<IoClass>, done: LeafReadDone) {
        match (self.leaf(&read), read.leaf_offset()) {
            (Some(leaf), Some(at)) => leaf.read_as(at, read.len, class, done),
            _ => done(Err(std::io::Error::from(std::io::ErrorKind::NotFound))),
        }
    }

    /// Bytes of user space per sector of the vdev: 512 for mirrors and disks, and in pools that count parity, too.
    #[doc(alias = "vdev_set_deflate_ratio")]
    pub fn deflate_ratio(&self) -> u64 {
        if !self.deflates {
            return 1 << ondisk::MIN_BLOCK_SHIFT;
        }
        let sectors = self.asize_of(DEFLATE_BLOCK, 0) >> ondisk::MIN_BLOCK_SHIFT;
        DEFLATE_BLOCK.checked_div(sectors).unwrap_or(0)
    }

    /// Bytes of data that the smallest allocation of this vdev can hold.
    #[doc(alias = "vdev_get_min_alloc")]
    pub(crate) fn min_alloc(&self) -> u64 {
        match &self.layout {
            VdevLayout::Draid(geometry) => geometry.min_alloc(),
            _ => 1 << self.ashift.max(ondisk::MIN_BLOCK_SHIFT),
        }
    }

    /// Bytes that `psize` bytes take on this vdev.
    pub fn asize_of(&self, psize: u64, txg: u64) -> u64 {
        match &self.layout {
            VdevLayout::Raidz(geometry) => geometry.asize(psize, txg),
            VdevLayout::Draid(geometry) => geometry.asize(psize),
            _ => {
                let nested = self.children.iter().flatten().filter_map(|side| match side {
                    Side::Nested(top) => Some(top.asize_of(psize, txg)),
                    _ => None,
                });
                nested.fold(psize.next_multiple_of(1 << self.ashift), u64::max)
            }
        }
    }
}

impl Children for View<'_> {
    fn count(&self) -> u32 {
        u32::try_from(self.top.children.len()).unwrap_or(u32::MAX)
    }

    fn sides(&self, child: u32, offset: u64) -> u32 {
        self.top.side_count(child, offset)
    }

    fn fault(&self, child: u32, side: u32, offset: u64) -> Option<Fault> {
        if self.top.is_spread(child) {
            let place = self.top.place(child, side, offset);
            return place.map_or(Some(Fault::Unreadable), |path| self.fault_of(&path));
        }
        match self.top.side(child, side) {
            Some(Side::Nested(top)) => (!top.is_readable()).then_some(Fault::Unreadable),
            Some(Side::Leaf(leaf)) => self.fault_of(std::slice::from_ref(leaf)),
            _ => Some(Fault::Unreadable),
        }
    }

    fn sits_out(&self, child: u32, _: u64) -> bool {
        let sits = |side: &Side| matches!(side, Side::Leaf(leaf) if leaf.sits_out());
        self.top.sides_of(child).iter().any(sits)
    }
}

impl View<'_> {
    /// The fault of the last leaf that stands for a child. A distributed spare before it may lack what the leaf has, and the
    /// other way round.
    fn fault_of(&self, path: &[Arc<Leaf>]) -> Option<Fault> {
        let is_there = path.last().is_some_and(|leaf| leaf.device().is_some());
        let lacks = || path.iter().any(|leaf| leaf.dtl.read().contains(self.txg));
        match is_there {
            false => Some(Fault::Unreadable),
            true => lacks().then_some(Fault::Stale),
        }
    }
}

/// All that stands at or below a mirror-like vdev and holds its bytes, in order.
fn sides(config: &VdevConfig, find: &dyn Fn(u64) -> Option<Side>) -> Vec<Side> {
    if let Some((_, id)) = config.spare_of {
        let spare = match find(config.guid) {
            Some(Side::Leaf(spare)) => Some(spare),
            _ => None,
        };
        return vec![Side::DistributedSpare { id, spare }];
    }
    if config.kind.is_leaf() || matches!(config.kind, Kind::Raidz | Kind::Draid) {
        return find(config.guid).into_iter().collect();
    }
    config.children.iter().flat_map(|c| sides(c, find)).collect()
}
