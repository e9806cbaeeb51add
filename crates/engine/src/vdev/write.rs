//! Writing a block to a top-level vdev: its plan's writes are issued together to every side of every child.
//!
//! A leaf that is absent or fails its write gets the txg into its DTL. The write as a whole succeeds when the
//! block can be read from those that took it; if not, it is the caller's to write the block elsewhere.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use stdx::Buf;

use super::leaf::Leaf;
use super::stats::IoClass;
use super::stripe::Column;
use super::top::{Side, Top, VdevLayout};
use super::write_plan::{ChildWrite, WritePlan};
use crate::error::{Error, Kind, Result};
use crate::txg::SIZE;

/// How a write ended: the guids of the leaves that lack it, ascending; or that too few took it for the block to
/// be readable.
pub(crate) type WriteOutcome = Result<Vec<u64>>;

/// Called once, on a device's thread or before the call returns: must be short and hand real work to an
/// executor.
pub(crate) type WriteBlockDone = Box<dyn FnOnce(WriteOutcome) + Send>;

/// Called when every leaf has been flushed, or with the error.
pub(crate) type FlushDone = Box<dyn FnOnce(Result<()>) + Send>;

struct Pending {
    top: Arc<Top>,
    txg: u64,
    offset: u64,
    plan: WritePlan,
    state: Mutex<State>,
}

struct State {
    left: usize,
    /// Numbers of writes and of their places that failed.
    failed: Vec<(usize, usize)>,
    done: Option<WriteBlockDone>,
}

impl Top {
    /// Writes a block (one copy of it) of any length at `offset`, to be born in `txg`. Parity is computed on the
    /// caller's thread. Not durable before the leaves are flushed.
    pub fn write(self: &Arc<Self>, offset: u64, data: Buf, txg: u64, done: WriteBlockDone) {
        self.write_as(IoClass::AsyncWrite, offset, data, txg, done);
    }

    /// As [`Top::write`], with the I/O class of a caller that waits, or does not.
    pub fn write_as(
        self: &Arc<Self>,
        class: IoClass,
        offset: u64,
        data: Buf,
        txg: u64,
        done: WriteBlockDone,
    ) {
        match self.write_plan(offset, &data, txg) {
            Ok(plan) => {
                let (top, len) = (Arc::clone(self), u64::try_from(data.len()).unwrap_or(0));
                self.in_flight.fetch_add(len, Ordering::Relaxed);
                self.writing.fetch_add(1, Ordering::SeqCst);
                let over = move |outcome| {
                    top.in_flight.fetch_sub(len, Ordering::Relaxed);
                    top.writing.fetch_sub(1, Ordering::AcqRel);
                    done(outcome);
                };
                let end = offset.saturating_add(self.asize_of(len, txg));
                let itself = Arc::clone(self);
                let write = Box::new(move || itself.issue(offset, plan, (txg, class), Box::new(over)));
                if let Some(write) = self.hold(offset, end, write) {
                    write();
                }
            }
            Err(e) => done(Err(e)),
        }
    }

    /// Whether a side of it is a raidz or draid vdev: `zpool create` makes no such vdev, OpenZFS's tester does.
    pub(crate) fn is_nested(&self) -> bool {
        self.children().iter().flatten().any(|side| matches!(side, Side::Nested(_)))
    }

    /// The writes that a block of these bytes becomes.
    ///
    /// # Errors
    /// `Invalid` for a place where no block can stand; `NoDevice` when the vdev was removed or is missing;
    /// `Unsupported` for mirrors of raidz.
    pub fn write_plan(&self, offset: u64, data: &Buf, txg: u64) -> Result<WritePlan> {
        if self.is_nested() {
            let what = "a mirror of raidz or draid vdevs can't be written";
            return Err(Error::unsupported(what).on_vdev(&self.name));
        }
        let plan = match &self.layout {
            VdevLayout::Mirror => Some(WritePlan::mirror(self.ashift, offset, data)),
            VdevLayout::Raidz(geometry) => WritePlan::raidz(geometry, offset, data, txg),
            VdevLayout::Draid(geometry) => WritePlan::draid(geometry, offset, data),
            VdevLayout::Indirect(_) | VdevLayout::Absent => {
                return Err(Error::new(Kind::NoDevice, "nothing can be written there").on_vdev(&self.name));
            }
        };
        self.planned(offset, plan)
    }

    fn planned(&self, offset: u64, plan: Option<WritePlan>) -> Result<WritePlan> {
        let what = "no block can be written there";
        plan.ok_or_else(|| Error::new(Kind::Invalid, what).on_vdev(&self.name).at_offset(offset))
    }

    /// As [`Top::write_plan`], to repair a block: columns that are not `wanted` may be left out.
    ///
    /// # Errors
    /// As [`Top::write_plan`].
    pub(super) fn repair_plan(
        &self,
        offset: u64,
        data: &Buf,
        txg: u64,
        wanted: impl Fn(&Column) -> bool,
    ) -> Result<WritePlan> {
        let size = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let grid = match &self.layout {
            VdevLayout::Raidz(geometry) if !geometry.is_reflowing() && !self.is_nested() => {
                geometry.grid(offset, size, txg)
            }
            VdevLayout::Draid(geometry) if !self.is_nested() => geometry.grid(offset, size),
            _ => return self.write_plan(offset, data, txg),
        };
        self.planned(offset, grid.and_then(|grid| WritePlan::columns(grid, data, wanted)))
    }

    fn issue(
        self: &Arc<Self>,
        offset: u64,
        plan: WritePlan,
        (txg, class): (u64, IoClass),
        done: WriteBlockDone,
    ) {
        // One more than there are writes: nothing can be over before all are issued.
        let state = State { left: 1, failed: Vec::new(), done: Some(done) };
        let pending =
            Arc::new(Pending { top: Arc::clone(self), txg, offset, plan, state: Mutex::new(state) });
        for (number, write) in pending.plan.writes.iter().enumerate() {
            let places = self.places(write.child, write.offset);
            pending.state.lock().left += places.len().max(1);
            if places.is_empty() {
                pending.arrived(Some((number, 0)));
            }
            for (place, path) in places.iter().enumerate() {
                pending.start((number, place), path.last(), write, class);
            }
        }
        pending.arrived(None);
    }

    /// Makes writes of an intent-log commit to the vdev durable. `began` was the next txg to be on disk when
    /// the commit began, `next` is that txg now. A leaf whose flush fails, or has failed since `began`,
    /// counts as lacking the writes. Returns an error when they could not be read without such leaves.
    pub(crate) fn flush(self: &Arc<Self>, began: u64, next: u64, done: FlushDone) {
        let leaves: Vec<Arc<Leaf>> = self.leaves().filter(|leaf| leaf.is_writable()).collect();
        let (left, any) = (leaves.len() + 1, !leaves.is_empty());
        let waiting = Arc::new(Mutex::new((left, Vec::<u64>::new(), Some(done))));
        let top = Arc::clone(self);
        let arrived = Arc::new(move |failed: Option<u64>| {
            let mut state = waiting.lock();
            state.0 -= 1;
            state.1.extend(failed);
            if state.0 > 0 {
                return;
            }
            let (failed, done) = (std::mem::take(&mut state.1), state.2.take());
            drop(state);
            if let Some(done) = done {
                let lost =
                    || Error::new(Kind::Io, "too few devices of it could be flushed").on_vdev(&top.name);
                let txgs = began..next.saturating_add(SIZE as u64);
                done(if any && top.survives(&failed, txgs) { Ok(()) } else { Err(lost()) });
            }
        });
        for leaf in leaves {
            let (arrived, flushed) = (Arc::clone(&arrived), Arc::clone(&leaf));
            leaf.flush(
                next,
                Box::new(move |result| {
                    let lacks = result.is_err() || flushed.is_doubted(began);
                    arrived(lacks.then_some(flushed.guid));
                }),
            );
        }
        arrived(None);
    }

    /// Whether everything written for these txgs can be read without the leaves whose flush failed. The rule
    /// is the same for intent logs and for txgs: leaves out of use, and leaves that missed a write of these
    /// txgs, count as lacking, too.
    pub(super) fn survives(&self, failed: &[u64], txgs: Range<u64>) -> bool {
        let missed = |leaf: &Leaf| {
            let dtl = leaf.dtl.read();
            txgs.clone().any(|txg| dtl.contains(txg))
        };
        let lacks = |leaf: &Leaf| failed.contains(&leaf.guid) || !leaf.takes_resilver() || missed(leaf);
        failed.is_empty() || self.can_lose(&lacks)
    }

    /// Whether blocks can still be read when all leaves that this names lack them.
    pub(crate) fn can_lose(&self, lost: &dyn Fn(&Leaf) -> bool) -> bool {
        let is_lost = |side: &Side| match side {
            Side::Leaf(leaf) => lost(leaf),
            // Its bytes are stored on other children, which are checked by themselves; its DTL is its own.
            Side::DistributedSpare { spare, .. } => spare.as_ref().is_some_and(|spare| lost(spare)),
            Side::Nested(_) => true,
        };
        let gone = self.children().iter().filter(|sides| sides.iter().all(is_lost)).count();
        let most = match &self.layout {
            VdevLayout::Raidz(geometry) => u64::from(geometry.nparity),
            VdevLayout::Draid(geometry) => geometry.nparity(),
            _ => 0,
        };
        u64::try_from(gone).is_ok_and(|gone| gone <= most)
    }

    /// All leaves below it, and those of distributed spares.
    pub(crate) fn leaves_and_spares(&self) -> impl Iterator<Item = Arc<Leaf>> {
        self.children().iter().flatten().filter_map(|side| match side {
            Side::Leaf(leaf) => Some(Arc::clone(leaf)),
            Side::DistributedSpare { spare, .. } => spare.clone(),
            Side::Nested(_) => None,
        })
    }

    /// All leaves below it, each once.
    pub fn leaves(&self) -> impl Iterator<Item = Arc<Leaf>> {
        self.children().iter().flatten().filter_map(|side| match side {
            Side::Leaf(leaf) => Some(Arc::clone(leaf)),
            Side::DistributedSpare { .. } | Side::Nested(_) => None,
        })
    }
}

impl Pending {
    fn start(
        self: &Arc<Self>,
        place: (usize, usize),
        leaf: Option<&Arc<Leaf>>,
        write: &ChildWrite,
        class: IoClass,
    ) {
        let leaf = leaf.filter(|leaf| leaf.is_writable());
        let (Some(leaf), Some(at)) = (leaf, write.area.leaf_offset(write.offset)) else {
            return self.arrived(Some(place));
        };
        let pending = Arc::clone(self);
        let done = Box::new(move |result: io::Result<()>| {
            pending.arrived(result.is_err().then_some(place));
        });
        leaf.write_parts(at, write.parts.clone(), class, done);
    }

    fn arrived(&self, failed: Option<(usize, usize)>) {
        let mut state = self.state.lock();
        state.failed.extend(failed);
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let (failed, done) = (std::mem::take(&mut state.failed), state.done.take());
        drop(state);
        if let Some(done) = done {
            done(self.outcome(&failed));
        }
    }

    fn outcome(&self, failed: &[(usize, usize)]) -> WriteOutcome {
        if failed.is_empty() {
            return Ok(Vec::new());
        }
        let (mut lost, mut missed) = (Vec::new(), Vec::new());
        for (number, write) in self.plan.writes.iter().enumerate() {
            let failures: Vec<usize> =
                failed.iter().filter(|(of, _)| *of == number).map(|(_, place)| *place).collect();
            if failures.is_empty() {
                continue;
            }
            let places = self.top.places(write.child, write.offset);
            let (bad, good): (Vec<_>, Vec<_>) =
                places.into_iter().enumerate().partition(|(place, _)| failures.contains(place));
            if good.is_empty() {
                lost.push(number);
            }
            // A distributed spare has what one of the leaves below it has.
            let has = |leaf: &Leaf| good.iter().any(|(_, path)| path.iter().any(|l| l.guid == leaf.guid));
            missed.extend(bad.into_iter().flat_map(|(_, path)| path).filter(|leaf| !has(leaf)));
        }
        if !self.plan.can_lose(&lost) {
            // Nothing will refer to the block there.
            let what = "too few devices took a write";
            return Err(Error::new(Kind::Io, what).on_vdev(&self.top.name).at_offset(self.offset));
        }
        missed.iter().for_each(|leaf| leaf.miss(self.txg));
        let mut missed: Vec<u64> = missed.into_iter().map(|leaf| leaf.guid).collect();
        missed.sort_unstable();
        missed.dedup();
        Ok(missed)
    }
}
