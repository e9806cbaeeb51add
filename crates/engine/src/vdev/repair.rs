//! Self-healing: copies that a read found bad are overwritten with the right bytes.
//!
//! The write plan of the good bytes computes the content of each child, parity included; only its writes that
//! touch a bad column are issued, and only to the bad side. A column is always rewritten whole.
//!
//! The caller answers for two things: that the bytes are right, by the block's checksum; and that the block is
//! still the pool's. Space of a block that was freed meanwhile may hold another by now, and mending the old one
//! would destroy it. Freed space is not used again for two txgs, so a block that was referred to
//! when the read began may be mended when it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use stdx::Buf;

use super::draid_rows::unserved;
use super::leaf::Leaf;
use super::plan::{BadCopy, ChildRead, Fault};
use super::stats::IoClass;
use super::stripe::Column;
use super::top::Top;
use super::write_plan::ChildWrite;

/// Outcome of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Repaired {
    /// The leaves that were written, by guid: the bytes written to each.
    pub(crate) leaves: BTreeMap<u64, u64>,
    /// Some write failed.
    pub(crate) failed: bool,
    /// Distributed spares that still lack bytes: the leaf that would have them is out of use.
    pub(crate) unserved: BTreeSet<u64>,
}

impl Repaired {
    /// Bytes written to all leaves.
    pub(crate) fn bytes(&self) -> u64 {
        self.leaves.values().sum()
    }
}

/// Called with the outcome of a repair.
pub(crate) type RepairDone = Box<dyn FnOnce(Repaired) + Send>;

/// Which bad copies are overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mend {
    /// Only copies that were expected to be good.
    Unexpected,
    /// Also those on leaves that are known to lack the block: a resilver's work.
    Stale,
    /// All copies on all leaves, whatever the read found: no copy was good.
    All,
}

/// A write of a repair: leaf, offset on the device, bytes.
type LeafWrite = (Arc<Leaf>, u64, Vec<Buf>);

struct Pending {
    left: usize,
    mended: Repaired,
    done: Option<RepairDone>,
}

impl Top {
    /// Overwrites the copies in `bad` of the block at `offset` with birth txg `birth`, from its right bytes
    /// `data`. Leaves that are absent or not writable are skipped; their DTLs do not change, as nothing is
    /// lost, except that a resilver of a distributed spare adds the block to those of the leaves that the spare stands on.
    pub(crate) fn repair(
        self: &Arc<Self>,
        (offset, birth): (u64, u64),
        data: &Buf,
        bad: &[BadCopy],
        mend: Mend,
        done: RepairDone,
    ) {
        let entered = Self::enter(Arc::clone(self));
        // The places of another state of an expansion may hold something else by now.
        let is_old = self.replaced.load(Ordering::SeqCst);
        let Some((writes, unserved)) = self.repairs((offset, birth), data, bad, mend).filter(|_| !is_old)
        else {
            return done(Repaired { failed: true, ..Repaired::default() });
        };
        let done: RepairDone = Box::new(move |repaired| {
            drop(entered);
            done(repaired);
        });
        let mended = Repaired { unserved, ..Repaired::default() };
        let pending = Pending { left: writes.len() + 1, mended, done: Some(done) };
        let pending = Arc::new(Mutex::new(pending));
        let class = if mend == Mend::Stale { IoClass::Repair } else { IoClass::AsyncWrite };
        for (leaf, at, parts) in writes {
            let (pending, guid) = (Arc::clone(&pending), leaf.guid);
            let bytes = parts.iter().map(|part| u64::try_from(part.len()).unwrap_or(0)).sum();
            let told = move |result: io::Result<()>| match result {
                Ok(()) => {
                    arrived(&pending, &Repaired { leaves: [(guid, bytes)].into(), ..Repaired::default() });
                }
                Err(_) => arrived(&pending, &Repaired { failed: true, ..Repaired::default() }),
            };
            leaf.write_parts(at, parts, class, Box::new(told));
        }
        arrived(&pending, &Repaired::default());
    }

    /// Returns the writes of a repair, and the distributed spares that cannot be repaired. `None` when the vdev can't be
    /// written now.
    fn repairs(
        &self,
        (offset, birth): (u64, u64),
        data: &Buf,
        bad: &[BadCopy],
        mend: Mend,
    ) -> Option<(Vec<LeafWrite>, BTreeSet<u64>)> {
        let wanted = |copy: &&BadCopy| mend != Mend::Unexpected || copy.fault != Fault::Stale;
        let bad: Vec<&ChildRead> = bad.iter().filter(wanted).map(|copy| &copy.read).collect();
        if bad.is_empty() && mend != Mend::All {
            return Some((Vec::new(), BTreeSet::new()));
        }
        // A column on a disk out of use is no damage that may have been copied.
        let is_there = bad.iter().any(|read| {
            self.leaf_at(read.child, read.side, read.offset).is_some_and(|leaf| leaf.is_writable())
        });
        let mend = match mend == Mend::All || is_there {
            true => self.mend_while_moving((offset, birth), data, mend)?,
            false => mend,
        };
        // A block that can't be written now can be mended later.
        let is_wanted = |column: &Column| mend == Mend::All || bad.iter().any(|read| is_in(read, column));
        let plan = self.repair_plan(offset, data, birth, is_wanted).ok()?;
        let (mut writes, mut lacking) = (Vec::new(), BTreeSet::new());
        for write in &plan.writes {
            if mend == Mend::All || bad.iter().any(|read| touches(write, read)) {
                lacking.append(&mut unserved(&self.places(write.child, write.offset)));
            }
            for side in 0..self.side_count(write.child, write.offset) {
                let of_side = |read: &&ChildRead| read.side == side && touches(write, read);
                let is_bad = mend == Mend::All || bad.iter().any(of_side);
                if is_bad && mend == Mend::Stale {
                    self.note_late(write, side, birth);
                }
                let leaf = self.leaf_at(write.child, side, write.offset).filter(|leaf| leaf.is_writable());
                if let (true, Some(leaf), Some(at)) = (is_bad, leaf, write.area.leaf_offset(write.offset)) {
                    writes.push((leaf, at, write.parts.clone()));
                }
            }
        }
        Some((writes, lacking))
    }

    /// A leaf out of use on which a distributed spare stands lacks the spare's blocks when it comes back, though it had its own.
    fn note_late(&self, write: &ChildWrite, side: u32, birth: u64) {
        if let Some([_, .., leaf]) = self.place(write.child, side, write.offset).as_deref()
            && !leaf.is_writable()
        {
            leaf.miss(birth);
        }
    }

    /// Selects the copies to mend while an expansion moves sectors. A block that stands partly in two places
    /// is written to both: the bad bytes may have been copied, and no read compares the other place. `None`
    /// while it is being copied.
    fn mend_while_moving(&self, (offset, birth): (u64, u64), data: &Buf, mend: Mend) -> Option<Mend> {
        let Some(reflow) = self.reflow() else { return Some(mend) };
        let end = offset.saturating_add(self.asize_of(u64::try_from(data.len()).ok()?, birth));
        let doubled = reflow.doubled();
        match offset < doubled.end && doubled.start < end {
            true => self.gate.lock().is_none().then_some(Mend::All),
            false => Some(mend),
        }
    }
}

fn touches(write: &ChildWrite, read: &ChildRead) -> bool {
    (write.child, write.area) == (read.child, read.area)
        && read.offset < write.offset.saturating_add(write.len())
        && write.offset < read.offset.saturating_add(read.len)
}

/// Whether a read has bytes of a column, or of its padding.
fn is_in(read: &ChildRead, column: &Column) -> bool {
    let len = column.len.saturating_add(column.zeros);
    (column.child, column.area) == (read.child, read.area)
        && read.offset < column.offset.saturating_add(len)
        && column.offset < read.offset.saturating_add(read.len)
}

fn arrived(pending: &Mutex<Pending>, one: &Repaired) {
    let mut state = pending.lock();
    for (guid, bytes) in &one.leaves {
        *state.mended.leaves.entry(*guid).or_default() += bytes;
    }
    state.mended.failed |= one.failed;
    state.left -= 1;
    if state.left > 0 {
        return;
    }
    let (mended, done) = (std::mem::take(&mut state.mended), state.done.take());
    drop(state);
    if let Some(done) = done {
        done(mended);
    }
}
