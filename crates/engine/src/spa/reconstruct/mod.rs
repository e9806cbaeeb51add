//! Sequential reconstruction of mirrors and draids: a new leaf, or a distributed spare, gets all allocated ranges of its
//! top-level vdev in the order of their offsets, without block pointers and checksums. A scrub follows.
//!
//! The state on disk is a record in the ZAP of the top-level vdev ([`record`]), with the offset up to which the leaves are
//! done. A leaf that is to be filled has a `rebuild_txg`, the txg that attached it. While the record is *active*, it holds
//! one reference of the feature `device_rebuild`, and OpenZFS can continue the work, as this module continues OpenZFS's.
//!
//! States: none → active → complete, or canceled. An attach of another leaf resets an active record to offset 0.
//! - *Begin*: [`NOT_YET`](super::vdev_change::NOT_YET) txgs after the attach. All txgs whose writes may have missed the leaf
//!   are on disk then, and `max_txg` of the record is the newest of them.
//! - *Slice*: at the end of a txg's work. The vdev is replaced by one that holds back writes to a range
//!   ([`Top::holding`]); the txg waits for requests that began before; the ranges that are not free are
//!   copied and the targets flushed; the writes continue; the record of the txg has the end of the range.
//!   Intent log blocks and direct writes, which are not bound to a txg, cannot overtake the copy. Later
//!   writes reach all leaves by themselves.
//! - *Complete*: the end of the last metaslab is reached. The leaves' DTLs lose the txgs up to `max_txg`, unless a range
//!   could not be read from any side: then all stays in the DTLs, and a healing resilver follows in place of the scrub.
//! - *Canceled*: no leaf is left to be filled; one cannot be written; there is no leaf that lacks nothing (of a draid: more
//!   leaves than its parity lack something), or the vdev is being removed. The DTLs stay: a healing resilver is due for
//!   every leaf that lacks something.
//!
//! Why power may be lost at any moment. The DTLs cover everything until completion, so that no read relies on the copies.
//! Before the uberblock of the attach nothing has happened. Between attach and begin there is no record: a healing resilver
//! fills the leaf. During a slice the record on disk has the offset before it, and the ranges are copied again; its
//! uberblock is written after the targets were flushed. A leaf attached during a reconstruction has a `rebuild_txg` above
//! the record's `max_txg`: whether it was reset before the crash or not, the slice after the import resets it. Completion
//! changes record, feature, DTLs, and the scrub's state in one txg.
//!
//! A leaf that is replaced is the source of its own copy wherever it can be read: no checksum shows whether
//! another side is right, and the copy must not have that side's damage when the old leaf, which was right,
//! is detached. A leaf that is degraded (by checksum errors) is not right: it is the last source, behind the other sides
//! and after reconstruction from parity.
//!
//! While a reconstruction is under way or about to begin, no resilver or scrub begins.
//!
//! Lock order: the locks here are leaf locks.
//!
//! Format source: vdev_rebuild.c, OpenZFS 2.4. Differs from OpenZFS: copies are made in syncing context, with writes to one
//! range held back, where OpenZFS closes a metaslab to allocation; a leaf that fails a write ends the reconstruction; of a
//! draid only the columns that are wanted are written.

mod copy;
mod draid;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nvpair::NvList;
use parking_lot::Mutex;
use zcommon::features::Feature;
use zcommon::vdev::VdevState;

use self::copy::{Copied, Sides};
use self::draid::Stripes;
use self::record::{Recorded, state};
use super::Spa;
use super::WaitActivity;
use super::activity::{Activity, Due, SyncPoint};
use super::layout::config::{edit, line};
use super::scrub::ScanFunc;
use super::space_store::set;
use super::subjects::Rebuilds;
use crate::dmu::Tx;
use crate::dsl::write::{Hooks as _, MosTx, MosView};
use crate::error::Result;
use crate::memory::Limit;
use crate::vdev::label::settle_filled;
use crate::vdev::leaf::Leaf;
use crate::vdev::top::{Top, VdevLayout};

/// In a leaf's configuration: the txg that attached it for a reconstruction.
const REBUILD_TXG: &str = "rebuild_txg";
/// Bytes whose writes are held back at once, about.
const STEP: u64 = 64 << 20;
/// The same beside others: their writes wait less.
const SHARED_STEP: u64 = 8 << 20;
/// The same where nothing else advances while a txg is written, which is then all that a txg copies.
const SMALL_STEP: u64 = 1 << 20;
/// How long a txg copies, at most.
const LONGEST: Duration = Duration::from_secs(1);

/// Progress of a reconstruction during this import.
#[doc(alias = "vdev_rebuild_stat_t")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RebuildPass {
    /// Milliseconds since its first slice.
    pub time_ms: u64,
    /// Bytes scanned.
    pub scanned: u64,
    /// Bytes issued.
    pub issued: u64,
}

/// A pass under way.
#[derive(Debug)]
struct Pass {
    began: Duration,
    /// `scan_time_ms` of the record when it began.
    before: u64,
    done: RebuildPass,
}

/// The reconstructions of a pool.
#[derive(Debug, Default)]
pub(super) struct Reconstruction {
    /// A record is active.
    active: AtomicBool,
    /// The last slice could not do anything.
    stalled: AtomicBool,
    /// Leaves that were attached, each with the first txg in which its reconstruction can begin.
    joined: Mutex<BTreeMap<u64, u64>>,
    /// By number of the top-level vdev.
    passes: Mutex<BTreeMap<u64, Pass>>,
    /// A reconstruction was completed, and the scrub has not begun.
    unchecked: AtomicBool,
}

/// How a slice of one vdev ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slice {
    /// There is more to be done.
    More,
    /// Nothing can be done now.
    Stalled,
    /// The record is active no more.
    Ended,
}

/// The next action for a vdev.
enum Plan {
    Copy(Work),
    /// Another leaf has joined: all begins anew, when its txgs are on disk.
    Reset,
    Wait,
    Cancel,
}

/// The method that fills the leaves of a vdev.
enum Work {
    /// Sides of a mirror are copied.
    Mirror(Sides),
    /// Columns of a draid are copied or computed.
    Draid(Stripes),
}

impl Activity for Reconstruction {
    fn is_due(&self, spa: &Spa) -> Due {
        let rests = || self.stalled.load(Ordering::Acquire) || spa.limits().is_on(Limit::ScanSuspend);
        match self.active.load(Ordering::Acquire) {
            _ if !self.joined.lock().is_empty() => Due::Now,
            true if rests() => Due::Soon,
            true => Due::Now,
            false if self.unchecked.load(Ordering::Acquire) => Due::Soon,
            false => Due::No,
        }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        match moment {
            SyncPoint::Last if spa.rebuilds().is_rebuilding() || self.unchecked.load(Ordering::Acquire) => {
                reconstruct(spa, tx)
            }
            _ => Ok(()),
        }
    }

    fn left(&self, spa: &Spa, work: WaitActivity) -> Result<Option<u64>> {
        if work != WaitActivity::Resilver || !spa.rebuilds().is_rebuilding() {
            return Ok(None);
        }
        let records = spa.rebuilds().records(&MosView { mos: &spa.mos });
        let left = |top: &Recorded| top.record.bytes_est.saturating_sub(top.record.bytes_scanned);
        Ok(Some(records.iter().filter(|top| top.is_active()).map(left).sum()))
    }
}

/// Adds the leaves that share a `replacing` or `spare` vdev below `vdev` with the leaf `guid`.
fn beside(vdev: &NvList, guid: u64, found: &mut BTreeSet<u64>) {
    let children = vdev.nvlist_array("children").unwrap_or_default();
    let guids = || children.iter().filter_map(|child| child.u64("guid"));
    if matches!(vdev.str("type"), Some("replacing" | "spare")) && guids().any(|one| one == guid) {
        found.extend(guids().filter(|one| *one != guid));
    }
    children.iter().for_each(|child| beside(child, guid, found));
}

/// The leaves below `top`, each with its `rebuild_txg`, that are to be filled.
fn wanted(top: &NvList, found: &mut Vec<(u64, u64)>) {
    if let (Some(guid), Some(txg)) = (top.u64("guid"), top.u64(REBUILD_TXG)) {
        found.push((guid, txg));
    }
    top.nvlist_array("children").unwrap_or_default().iter().for_each(|child| wanted(child, found));
}

/// Whether a leaf's bytes are not taken without need: it had too many checksum errors, or the administrator says so.
fn is_doubtful(leaf: &Leaf) -> bool {
    leaf.health().state == VdevState::Degraded
}

impl Rebuilds<'_> {
    /// Whether a device is being filled by a sequential reconstruction, or is about to be.
    #[doc(alias = "vdev_rebuild_active")]
    pub fn is_rebuilding(self) -> bool {
        self.spa.reconstruction.active.load(Ordering::Acquire)
            || !self.spa.reconstruction.joined.lock().is_empty()
    }

    /// Progress of the reconstruction of a top-level vdev during this import.
    pub fn pass(self, vdev: u64) -> RebuildPass {
        self.spa.reconstruction.passes.lock().get(&vdev).map(|pass| pass.done).unwrap_or_default()
    }

    /// Whether `top` (its configuration) can be reconstructed sequentially by this build.
    pub(super) fn can_rebuild(top: &NvList) -> bool {
        ["mirror", "draid", "disk", "file", "replacing", "spare"]
            .contains(&top.str("type").unwrap_or_default())
    }

    /// Has the reconstruction for a leaf that has joined begin with the txg `begins`.
    #[doc(alias = "vdev_rebuild")]
    pub(super) fn begin_at(self, leaf: u64, begins: u64) {
        self.spa.reconstruction.joined.lock().insert(leaf, begins);
    }

    /// Continues reconstructions that an earlier import began.
    #[doc(alias = "vdev_rebuild_restart")]
    pub(super) fn resume(self) {
        let is_active = self.has_record(&MosView { mos: &self.spa.mos });
        self.spa.reconstruction.active.store(is_active, Ordering::Release);
    }

    /// Whether a reconstruction is under way according to a record.
    pub(super) fn has_record(self, at: &MosView<'_>) -> bool {
        self.records(at).iter().any(Recorded::is_active)
    }
}

/// Begins reconstructions that are due, does a slice of the active ones, and ends finished ones (syncing
/// context).
fn reconstruct(spa: &Spa, tx: &Tx) -> Result<()> {
    let at = spa.datasets.at(tx, spa);
    begin_rebuilds(spa, &at)?;
    let (mut active, mut stalled) = (false, true);
    for top in spa.rebuilds().records(&at).into_iter().filter(Recorded::is_active) {
        let slice = rebuild_slice(spa, &at, top)?;
        active |= slice != Slice::Ended;
        stalled &= slice == Slice::Stalled;
    }
    spa.reconstruction.stalled.store(stalled, Ordering::Release);
    spa.reconstruction.active.store(active, Ordering::Release);
    match spa.rebuilds().is_rebuilding() {
        true => Ok(()),
        false => check_rebuilt(spa, &at),
    }
}

/// Begins the reconstructions of leaves that have joined.
#[doc(alias = "vdev_rebuild_initiate_sync")]
fn begin_rebuilds(spa: &Spa, at: &MosTx<'_>) -> Result<()> {
    let txg = at.tx.txg();
    let joined = spa.reconstruction.joined.lock().clone();
    for leaf in joined.into_iter().filter(|(_, begins)| *begins <= txg).map(|(leaf, _)| leaf) {
        let root = spa.config.lock().root().clone();
        let above = line(&root, leaf);
        let id = above.iter().rev().nth(1).and_then(|top| top.u64("id"));
        if id.and_then(|id| lacking_in(spa, id)).is_some_and(|(_, until)| until >= txg) {
            // Another leaf has joined meanwhile; writes of the txgs that are open may miss it still.
            continue;
        }
        spa.reconstruction.joined.lock().remove(&leaf);
        let records = spa.rebuilds().records(at);
        // None for a leaf that has left already, and where a slice finds it by itself.
        let Some(mut top) = records.into_iter().find(|top| Some(top.id) == id && !top.is_active()) else {
            continue;
        };
        top.record.rebuild_state = state::ACTIVE;
        reset(spa, at, &mut top)?;
        at.count(Feature::DeviceRebuild, 1)?;
        tell_rebuild(spa, at, &top, "started")?;
        spa.reports().notify_sequential("resilver_start");
    }
    Ok(())
}

/// Has a reconstruction begin at offset 0.
#[doc(alias = "vdev_rebuild_reset_sync")]
fn reset(spa: &Spa, at: &MosTx<'_>, top: &mut Recorded) -> Result<()> {
    let (min_txg, max_txg) = lacking_in(spa, top.id).unwrap_or((0, at.tx.txg()));
    top.record = ondisk::pool::VdevRebuild {
        rebuild_state: state::ACTIVE,
        min_txg,
        max_txg,
        start_time: at.seconds(),
        bytes_est: spa.space.vdev_stats(top.id).map_or(0, |stats| stats.allocated),
        ..ondisk::pool::VdevRebuild::default()
    };
    spa.reconstruction.passes.lock().remove(&top.id);
    top.store(at)
}

/// The txgs that the leaves to be filled lack, after the first, up to the second.
fn lacking_in(spa: &Spa, vdev: u64) -> Option<(u64, u64)> {
    let tree = spa.pool.zio.tree();
    let leaves = to_fill(spa, vdev);
    let leaves = leaves.iter().filter_map(|(guid, _)| tree.leaf(*guid));
    let spans = leaves.filter_map(|leaf| {
        let dtl = leaf.dtl.read();
        let (first, last) = (dtl.ranges().first()?.0, dtl.ranges().last()?.1);
        Some((first.saturating_sub(1), spa.scans().until_synced(&tree, leaf, last.saturating_sub(1))))
    });
    spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// The leaves of a vdev that are to be filled and lack something, each with the txg that attached it.
fn to_fill(spa: &Spa, vdev: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    if let Some(top) = spa.config.lock().top(vdev) {
        wanted(top, &mut found);
    }
    let tree = spa.pool.zio.tree();
    found.retain(|(guid, _)| tree.leaf(*guid).is_some_and(|leaf| !leaf.dtl.read().is_empty()));
    found
}

/// The leaves that some of `targets` replace.
fn replaced_by(spa: &Spa, vdev: u64, targets: &[Arc<Leaf>]) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    if let Some(top) = spa.config.lock().top(vdev) {
        targets.iter().for_each(|leaf| beside(top, leaf.guid, &mut found));
    }
    found
}

fn plan(spa: &Spa, top: &Arc<Top>, record: &Recorded) -> Plan {
    let wanted = to_fill(spa, top.id);
    let tree = spa.pool.zio.tree();
    let targets: Vec<Arc<Leaf>> = wanted.iter().filter_map(|(guid, _)| tree.leaf(*guid).cloned()).collect();
    let removing = spa.config.lock().top(top.id).is_some_and(|c| c.u64("removing") == Some(1));
    let all_there = !targets.is_empty() && targets.iter().all(|leaf| leaf.takes_resilver());
    if removing || !all_there || !matches!(top.layout, VdevLayout::Mirror | VdevLayout::Draid(_)) {
        return Plan::Cancel;
    }
    if wanted.iter().any(|(_, attached)| *attached > record.record.max_txg) {
        return Plan::Reset;
    }
    let guids: BTreeSet<u64> = targets.iter().map(|leaf| leaf.guid).collect();
    if let VdevLayout::Draid(_) = top.layout {
        return plan_draid(spa, top, guids, &targets);
    }
    let there: Vec<Arc<Leaf>> = top.leaves().filter(|leaf| leaf.device().is_some()).collect();
    let sources: Vec<Arc<Leaf>> =
        there.iter().filter(|leaf| leaf.dtl.read().is_empty()).map(Arc::clone).collect();
    let is_source = !sources.is_empty();
    let (doubtful, sources): (Vec<_>, Vec<_>) = sources.into_iter().partition(|leaf| is_doubtful(leaf));
    let leaving = replaced_by(spa, top.id, &targets);
    let (leaving, staying): (Vec<_>, Vec<_>) =
        sources.into_iter().partition(|leaf| leaving.contains(&leaf.guid));
    match (is_source, there.iter().all(|leaf| guids.contains(&leaf.guid))) {
        (true, _) => Plan::Copy(Work::Mirror(Sides { leaving, staying, doubtful, targets })),
        // The old sides are away: the vdev cannot be read at all.
        (false, true) => Plan::Wait,
        (false, false) => Plan::Cancel,
    }
}

fn plan_draid(spa: &Spa, top: &Arc<Top>, targets: BTreeSet<u64>, leaves: &[Arc<Leaf>]) -> Plan {
    let is_wanted = |leaf: &Leaf| targets.contains(&leaf.guid);
    let lacks = |leaf: &Leaf| is_wanted(leaf) || leaf.is_out() || !leaf.dtl.read().is_empty();
    if top.can_lose(&lacks) {
        let leaving = replaced_by(spa, top.id, leaves);
        return Plan::Copy(Work::Draid(Stripes { top: Arc::clone(top), targets, leaving }));
    }
    // An absent device may return; a resilver restores ranges that others lack as well.
    match top.can_lose(&|leaf: &Leaf| is_wanted(leaf) || leaf.is_out()) {
        true => Plan::Cancel,
        false => Plan::Wait,
    }
}

/// A slice of one vdev.
fn rebuild_slice(spa: &Spa, at: &MosTx<'_>, mut top: Recorded) -> Result<Slice> {
    let vdev = spa.pool.zio.tree().top(top.id);
    let plan = vdev.as_ref().map_or(Plan::Cancel, |vdev| plan(spa, vdev, &top));
    let work = match plan {
        Plan::Copy(work) => work,
        Plan::Cancel => return end_rebuild(spa, at, top, state::CANCELED),
        Plan::Wait => return Ok(Slice::Stalled),
        Plan::Reset => {
            // Writes of the txgs that are open may miss the leaf still.
            if lacking_in(spa, top.id).is_some_and(|(_, until)| until < at.tx.txg()) {
                reset(spa, at, &mut top)?;
            }
            return Ok(Slice::More);
        }
    };
    if spa.limits().is_on(Limit::ScanSuspend) {
        return Ok(Slice::Stalled);
    }
    let clock = || spa.pool.env.clock.monotonic();
    let (began, mut turn) = (clock(), spa.jobs().turn());
    while top.record.last_offset < spa.space.end_of_metaslabs(top.id) {
        let Ok(copied) = rebuild_range(spa, &mut top, &work, at.tx.txg()) else {
            return end_rebuild(spa, at, top, state::CANCELED);
        };
        note_rebuilt(spa, &mut top, copied);
        spa.jobs().pace(&mut turn, || {});
        if clock().saturating_sub(began) > LONGEST || !spa.is_threaded() || is_txg_wanted(spa) {
            break;
        }
    }
    match top.record.last_offset < spa.space.end_of_metaslabs(top.id) {
        true => top.store(at).map(|()| Slice::More),
        false => end_rebuild(spa, at, top, state::COMPLETE),
    }
}

/// Whether something waits for the txg.
fn is_txg_wanted(spa: &Spa) -> bool {
    spa.jobs().is_txg_awaited() || spa.is_suspended()
}

/// Copies the next range of a vdev while writes to it wait.
#[doc(alias("vdev_rebuild_ranges", "vdev_rebuild_range"))]
fn rebuild_range(spa: &Spa, top: &mut Recorded, work: &Work, txg: u64) -> std::io::Result<Copied> {
    let most = match spa.is_threaded() {
        true if spa.pacing.is_shared() => SHARED_STEP,
        true => STEP,
        false => SMALL_STEP,
    };
    let (from, end) = (top.record.last_offset, spa.space.end_of_metaslabs(top.id));
    let (_, reached) = spa.space.not_allocatable(top.id, from..end, most);
    let reached = match work {
        Work::Mirror(_) => reached,
        Work::Draid(stripes) => stripes.row_end(reached),
    };
    let Some(held) = hold_writes(spa, top.id, from..reached) else {
        return Err(std::io::Error::other("the vdev is gone"));
    };
    let (ranges, _) = spa.space.not_allocatable(top.id, from..reached, u64::MAX);
    let ranges: Vec<(u64, u64)> = ranges.iter().collect();
    let executor = &*spa.pool.env.executor;
    let copied = match work {
        Work::Mirror(sides) => copy::copy(executor, sides, &ranges, txg),
        Work::Draid(stripes) => stripes.copy(executor, &ranges, txg),
    };
    held.open_gate();
    let copied = copied?;
    top.record.last_offset = reached;
    top.record.errors = top.record.errors.saturating_add(copied.lost);
    let scanned = ranges.iter().map(|(start, end)| end - start).sum();
    top.record.bytes_scanned = top.record.bytes_scanned.saturating_add(scanned);
    top.record.bytes_issued = top.record.bytes_issued.saturating_add(copied.read);
    top.record.bytes_rebuilt = top.record.bytes_rebuilt.saturating_add(copied.written);
    Ok(Copied { read: scanned, ..copied })
}

/// Replaces a vdev by one that holds back writes to `range`, and waits for requests that began before.
fn hold_writes(spa: &Spa, vdev: u64, range: Range<u64>) -> Option<Arc<Top>> {
    let new = spa.pool.zio.tree().top(vdev)?.holding(range)?;
    spa.vdevs().exchange_top(&new);
    Some(new)
}

/// Adds a copy to the progress of this pass.
fn note_rebuilt(spa: &Spa, top: &mut Recorded, copied: Copied) {
    let now = spa.pool.env.clock.monotonic();
    let mut passes = spa.reconstruction.passes.lock();
    let fresh = || Pass { began: now, before: top.record.scan_time_ms, done: RebuildPass::default() };
    let pass = passes.entry(top.id).or_insert_with(fresh);
    pass.done.scanned = pass.done.scanned.saturating_add(copied.read);
    pass.done.issued = pass.done.issued.saturating_add(copied.read);
    let spent = now.saturating_sub(pass.began).as_millis();
    pass.done.time_ms = u64::try_from(spent).unwrap_or(u64::MAX);
    top.record.scan_time_ms = pass.before.saturating_add(pass.done.time_ms);
}

/// Ends a reconstruction, `COMPLETE` or `CANCELED`.
#[doc(alias("vdev_rebuild_complete_sync", "vdev_rebuild_cancel_sync"))]
fn end_rebuild(spa: &Spa, at: &MosTx<'_>, mut top: Recorded, how: u64) -> Result<Slice> {
    (top.record.rebuild_state, top.record.end_time) = (how, at.seconds());
    top.store(at)?;
    if at.active(Feature::DeviceRebuild) {
        at.count(Feature::DeviceRebuild, -1)?;
    }
    if how == state::COMPLETE {
        if top.record.errors == 0 {
            let next = at.tx.txg().max(top.record.max_txg.saturating_add(1));
            settle_filled(&spa.pool.zio.tree(), &*spa.pool.env.executor, next);
            excise_rebuilt(spa, &top);
        }
        spa.reconstruction.unchecked.store(true, Ordering::Release);
    } else {
        hand_to_resilver(spa, top.guid);
        spa.scans().restart_resilver_at(at.tx.txg());
    }
    spa.scanning.look_again();
    // One that was wanted meanwhile was refused.
    spa.spares().wanted();
    spa.reconstruction.passes.lock().remove(&top.id);
    tell_rebuild(spa, at, &top, if how == state::COMPLETE { "complete" } else { "canceled" })?;
    spa.reports().notify_sequential("resilver_finish");
    Ok(Slice::Ended)
}

/// The leaves have everything that was born up to the record's `max_txg`.
#[doc(alias = "vdev_dtl_should_excise")]
fn excise_rebuilt(spa: &Spa, top: &Recorded) {
    let tree = spa.pool.zio.tree();
    let mut whole = Vec::new();
    for leaf in to_fill(spa, top.id).into_iter().filter_map(|(guid, _)| tree.leaf(guid).cloned()) {
        let end = top.record.max_txg.saturating_add(1);
        // A leaf that missed writes later was away for a part of the work: a resilver finds the blocks that it lacks.
        if leaf.dtl.read().ranges().last().is_some_and(|range| range.1 > end) {
            continue;
        }
        leaf.has_again(0, end, &BTreeSet::new());
        if leaf.dtl.read().is_empty() {
            whole.push(leaf.guid);
        }
    }
    spa.scans().note_whole(&whole);
}

/// The leaves that were to be reconstructed are a healing resilver's.
fn hand_to_resilver(spa: &Spa, top: u64) {
    spa.config.lock().change_root(|root| {
        edit(root, top, &mut to_healing);
    });
}

/// Begins the scrub that checks the reconstructed blocks, after the resilver of blocks that leaves still
/// lack, if any.
fn check_rebuilt(spa: &Spa, at: &MosTx<'_>) -> Result<()> {
    if !spa.reconstruction.unchecked.load(Ordering::Acquire) {
        return Ok(());
    }
    // A running scrub has passed blocks that were not reconstructed yet.
    if let Some(mut scan) = spa.scans().running(at)? {
        match ScanFunc::of(&scan) {
            Some(ScanFunc::Scrub) => spa.scans().finish(at, &mut scan, ScanFunc::Scrub, false)?,
            _ => return Ok(()),
        }
    }
    if spa.scans().is_resilver_due() {
        return Ok(());
    }
    spa.reconstruction.unchecked.store(false, Ordering::Release);
    match spa.limits().is_on(Limit::RebuildScrub) {
        true => spa.scans().begin(at, ScanFunc::Scrub),
        false => Ok(()),
    }
}

fn tell_rebuild(spa: &Spa, at: &MosTx<'_>, top: &Recorded, what: &str) -> Result<()> {
    let details = format!("vdev_id={} vdev_guid={} {what}", top.id, top.guid);
    spa.log("rebuild", "", 0, &details, at.tx)
}

/// Leaves that a reconstruction was to fill are a resilver's.
fn to_healing(vdev: &mut NvList) {
    if let Some(txg) = vdev.u64(REBUILD_TXG) {
        vdev.remove(REBUILD_TXG);
        set(vdev, "resilver_txg", txg);
    }
    if let Some(nvpair::NvValue::ListArray(children)) = vdev.get_mut("children") {
        children.iter_mut().for_each(to_healing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_of_all_depths_become_a_resilvers() {
        let mut leaf = NvList::new();
        leaf.add("type", "file").add("guid", 5u64).add(REBUILD_TXG, 17u64);
        let mut above = NvList::new();
        above.add("type", "spare").add("children", vec![leaf]);
        let mut root = NvList::new();
        root.add("type", "root").add("children", vec![above]);
        let mut found = Vec::new();
        wanted(&root, &mut found);
        assert_eq!(found, [(5, 17)]);
        to_healing(&mut root);
        let leaf = &root.nvlist_array("children").unwrap()[0].nvlist_array("children").unwrap()[0];
        assert_eq!((leaf.u64(REBUILD_TXG), leaf.u64("resilver_txg")), (None, Some(17)));
    }
}
