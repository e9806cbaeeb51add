//! Expansion of raidz vdevs: sectors move, txg by txg, to rows that have one more child.
//!
//! The geometry of reads and writes while sectors move is [`crate::vdev::raidz_expand`]'s. This module moves them.
//!
//! The state on disk is `ub_raidz_reflow_info` of the uberblock, a position and whether the moved bytes stand in the
//! scratch area; the vdev's configuration marks it as being expanded, its ZAP has the number of copied bytes
//! and the times.
//!
//! States, each a position (`n` is the width before):
//! 1. *Attached*: position 0. Every block is read at width `n`.
//! 2. *Scratch*: the first rows, as many as the boot areas hold, stand in the boot areas at width `n + 1`, and are read there.
//! 3. *Moving*: rows before the position stand in their new places. Each txg copies the next ranges that are in use.
//! 4. *Finished*: the configuration lists the expansion, the position is 0 again, the vdev has the new disk's space, and a
//!    scrub begins. Blocks have the new width from a later txg on, which follows at once ([`RaidzExpansion::is_widening`]).
//!
//! One txg makes one step, at the end of its work: the vdev gets the next position ([`crate::vdev::raidz_expand::ReflowState`]);
//! reads and writes that know only the position before are waited for; the ranges between the positions are copied while
//! writes to them wait; from then on such writes go to both places; the children are flushed; and the uberblock of the txg
//! has the next position.
//!
//! Why power may be lost at any moment: until that uberblock is on disk, everything is read from where the position before
//! has it. No copy overwrites that: the new place of sector `s` covers old places in row `s / (n + 1)`, and a step ends
//! before that row comes within a row of the position on disk ([`safe_end`]). From position 0 there is no such step, so
//! the first rows go to the boot areas first, which nothing else uses. From there they are copied to their new places, as
//! often as it takes. Rows that a position cuts are read from their old places.
//!
//! A step needs all children. While one is absent, lacks something, is being replaced, or fails a request, the position
//! stays; the vdev can be read and written, and resilvered.
//!
//! Lock order: the locks here are leaf locks.
//!
//! Source: vdev_raidz.c, OpenZFS 2.4. Differs from OpenZFS: copies are made in syncing context, not by a thread beside it;
//! the scratch state takes two txgs, where OpenZFS writes the uberblock of one txg three times; no metaslab is closed to
//! allocation, as writes to ranges being copied go to both places; copies are read back from the devices.

mod copy;
mod start;
mod step_size;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nvpair::NvList;
use ondisk::names::vdev_top;
use parking_lot::Mutex;
use zcommon::vdev::VdevState;

pub(super) use self::start::BUSY;

use self::copy::SectorSpread;
use self::step_size::{StepSpeed, StepWaiters};
use super::Spa;
use super::WaitActivity;
use super::activity::{Activity, Due, SyncPoint};
use super::copy_pass::{CopyPace, CopyPass};
use super::layout::config::{TOP_ZAP, edit};
use super::scrub::ScanFunc;
use super::subjects::RaidzExpansion;
use super::vdev_change::{NOT_YET, VdevChange};
use crate::dmu::Tx;
use crate::dsl::write::{Hooks as _, scan_state};
use crate::error::{Error, Result};
use crate::memory::Limit;
use crate::vdev::leaf::Leaf;
use crate::vdev::plan::{Area, BOOT_START, DATA_START};
use crate::vdev::raidz_expand::{Moved, ReflowState};
use crate::vdev::top::{Top, VdevLayout};
use crate::zap::{Zap, ZapEdit};

/// In a vdev's configuration: it is being expanded.
const EXPANDING: &str = "raidz_expanding";
/// In a vdev's configuration: the txgs of its expansions.
const EXPAND_TXGS: &str = "raidz_expand_txgs";
/// `DSS_FINISHED` of the expansion's state.
const FINISHED: u64 = 2;
/// Bytes that a txg copies where nothing else advances while it is written.
const SMALL_STEP: u64 = 1 << 20;
/// How long a paused expansion rests before it looks at its devices again.
const REST: Duration = Duration::from_secs(2);
/// Bytes of the boot area.
#[doc(alias = "VDEV_BOOT_SIZE")]
const BOOT_SIZE: u64 = DATA_START - BOOT_START;

/// The expansion under way.
#[derive(Debug, Default)]
pub(super) struct Expanding {
    active: AtomicBool,
    /// It waits for its devices.
    paused: AtomicBool,
    /// When it looks at them again.
    rest_until: Mutex<Duration>,
    /// Value for the uberblock of the txg being written.
    next: Mutex<Option<u64>>,
    pace: CopyPace,
    speed: StepSpeed,
    /// The first txg whose blocks have the new width, of the expansion that ended last; 0: none has ended.
    wider_from: AtomicU64,
}

impl Activity for Expanding {
    fn is_due(&self, spa: &Spa) -> Due {
        let rests = || *self.rest_until.lock() > spa.pool.env.clock.monotonic();
        match self.active.load(Ordering::Acquire) && !rests() {
            true if is_expansion_limited(spa) => Due::Soon,
            true => Due::Now,
            false if spa.expansion().is_widening() => Due::Now,
            false => Due::No,
        }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if !self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        match moment {
            SyncPoint::BeforeTasks => Ok(()),
            SyncPoint::AfterTasks => end_expansion(spa, tx),
            SyncPoint::Last => expand_step(spa, tx),
        }
    }

    fn left(&self, spa: &Spa, work: WaitActivity) -> Result<Option<u64>> {
        if work != WaitActivity::RaidzExpand {
            return Ok(None);
        }
        let ends = || (spa.expansion().is_active() || spa.expansion().is_widening()).then_some(0);
        Ok(expansion_left(spa).or_else(ends))
    }
}

/// The first sector that may not be copied while the position on disk is sector `position`, for a vdev that had `width`
/// children: the row of its new place would come within a row of sectors still read at the old width.
#[doc(alias = "raidz_reflow_impl")]
fn safe_end(position: u64, width: u64) -> u64 {
    let rows = position.checked_div(width).unwrap_or(0).saturating_sub(1);
    rows.saturating_mul(width.saturating_add(1))
}

/// Bytes of the vdev that its boot areas hold at the new width.
fn scratch_size(top: &Top) -> u64 {
    let width = u64::try_from(top.children().len()).unwrap_or(0);
    ((BOOT_SIZE >> top.ashift) << top.ashift).saturating_mul(width)
}

/// Whether a raidz that gets its `width`th child can be expanded: from the scratch area on each step must come further.
#[doc(alias = "vdev_raidz_attach_check")]
pub(super) fn can_expand(width: u64, ashift: u32) -> bool {
    let scratch = (BOOT_SIZE >> ashift).saturating_mul(width);
    width > 1 && safe_end(scratch, width - 1) > scratch
}

/// Whether every child is there and lacks nothing. One that has returned wrong bytes is still used.
fn is_whole(top: &Top) -> bool {
    let well = |leaf: &Arc<Leaf>| {
        let is_used = matches!(leaf.health().state, VdevState::Healthy | VdevState::Degraded);
        leaf.is_writable() && is_used && leaf.dtl.read().ranges().is_empty()
    };
    copy::leaves(top).is_some_and(|leaves| leaves.iter().all(well))
}

impl RaidzExpansion<'_> {
    /// Whether a raidz is being expanded.
    #[doc(alias = "spa_raidz_expand")]
    pub fn is_active(self) -> bool {
        self.spa.expanding.active.load(Ordering::Acquire)
    }

    /// Whether an expansion has ended, and blocks written now still have the old width.
    pub fn is_widening(self) -> bool {
        self.spa.expanding.wider_from.load(Ordering::Acquire) > self.spa.txgs.open()
    }

    /// Whether the expansion waits for its devices (`pres_waiting_for_resilver`).
    pub fn waits(self) -> bool {
        self.is_active() && self.spa.expanding.paused.load(Ordering::Acquire)
    }

    /// Continues an expansion that an earlier import began.
    pub(super) fn load(self) {
        let top = expanding_top(self.spa);
        self.spa.expanding.active.store(top.is_some(), Ordering::Release);
        // The pace is only shown.
        let copied = top.and_then(|top| copied_bytes(self.spa, top.id).ok()).unwrap_or(0);
        self.spa.expanding.pace.begins(self.spa.pool.env.now(), copied);
    }

    /// Bytes that the expansion under way has copied since this import, or since it waited for devices.
    pub fn pass(self) -> Option<CopyPass> {
        self.is_active().then(|| self.spa.expanding.pace.pass())
    }

    /// Returns `ub_raidz_reflow_info` for the uberblock of the txg; `last` is the one of the uberblock
    /// before.
    pub(super) fn reflow_info(self, last: u64) -> u64 {
        let next = self.spa.expanding.next.lock().take();
        // A child that has missed something since the copy may lack it at the new place.
        let whole = || expanding_top(self.spa).is_none_or(|top| is_whole(&top));
        next.filter(|next| *next == 0 || whole()).unwrap_or(last)
    }

    fn expanding_zap(self, vdev: u64) -> Result<u64> {
        let zap = self.spa.config.lock().top(vdev).and_then(|top| top.u64(TOP_ZAP));
        zap.ok_or_else(|| Error::corrupt(format!("vdev {vdev} has no ZAP")))
    }
}

/// The vdev that is being expanded.
fn expanding_top(spa: &Spa) -> Option<Arc<Top>> {
    spa.pool.zio.tree().tops().find(|top| top.reflow().is_some()).cloned()
}

/// Bytes that the expansion under way has still to copy, about; `None` when there is none.
fn expansion_left(spa: &Spa) -> Option<u64> {
    let top = expanding_top(spa)?;
    let at = top.reflow().map_or(0, |reflow| reflow.offset);
    let allocated = spa.space.vdev_stats(top.id).map_or(0, |stats| stats.allocated);
    let size = u128::from(spa.space.end_of_metaslabs(top.id)).max(1);
    let done = u128::from(allocated) * u128::from(at).min(size) / size;
    Some(allocated.saturating_sub(u64::try_from(done).unwrap_or(u64::MAX)))
}

/// Puts the vdev into another state of its expansion, and waits for requests that began in the state
/// before.
fn set_reflow(
    spa: &Spa,
    top: &Top,
    state: ReflowState,
    copied: Option<std::ops::Range<u64>>,
) -> Option<Arc<Top>> {
    let new = top.reflowing(state, copied)?;
    spa.vdevs().exchange_top(&new);
    Some(new)
}

/// Whether the expansion has reached the position of the setting that stops it.
#[doc(alias = "raidz_expand_max_reflow_bytes")]
fn is_expansion_limited(spa: &Spa) -> bool {
    let most = spa.limits().get(Limit::ExpandMaxReflow);
    let at = ReflowState::from_uberblock(spa.uberblock.lock().raidz_reflow_info).synced();
    most != 0 && at.offset >= most && !at.scratch
}

/// Returns the end of the next step, and the ranges to copy for it; `None` when no step can be made
/// safely.
fn next_step(spa: &Spa, top: &Top, synced: Moved) -> Option<(Moved, Vec<(u64, u64)>)> {
    if synced.offset == 0 {
        let offset = scratch_size(top);
        return Some((Moved { offset, scratch: true }, vec![(0, offset)]));
    }
    if synced.scratch {
        return Some((Moved { scratch: false, ..synced }, vec![(0, synced.offset)]));
    }
    let width = u64::try_from(top.children().len()).ok()?.checked_sub(1)?;
    let limit = safe_end(synced.offset >> top.ashift, width).checked_shl(top.ashift)?;
    let limit = limit.min(spa.space.end_of_metaslabs(top.id));
    let waiting = match spa.jobs().is_txg_awaited() {
        true => StepWaiters::Now,
        false if spa.pacing.is_shared() => StepWaiters::Soon,
        false => StepWaiters::NotSeen,
    };
    let most = if spa.is_threaded() { spa.expanding.speed.next(waiting) } else { SMALL_STEP };
    let (_, offset) = spa.space.not_allocatable(top.id, synced.offset..limit, most);
    (offset > synced.offset).then_some((Moved { offset, scratch: false }, Vec::new()))
}

/// One step of the expansion.
fn expand_step(spa: &Spa, tx: &Tx) -> Result<()> {
    let Some(top) = expanding_top(spa) else { return Ok(()) };
    if is_expansion_limited(spa) {
        return Ok(());
    }
    let synced = ReflowState::from_uberblock(spa.uberblock.lock().raidz_reflow_info);
    let step = match is_whole(&top) {
        true => next_step(spa, &top, synced.synced()),
        false => None,
    };
    let Some((next, ranges)) = step else { return pause_expansion(spa, &top, synced) };
    let from = if synced.offset == next.offset { 0 } else { synced.offset };
    let (state, mut turn) = (ReflowState { next: Some(next), ..synced }, spa.jobs().turn());
    let range = from..next.offset;
    let Some(top) = set_reflow(spa, &top, state, Some(range.clone())) else { return Ok(()) };
    let done = copy_step(spa, &top, synced.synced(), (next, range), ranges, tx);
    top.open_gate();
    spa.jobs().pace(&mut turn, || {});
    match done {
        Ok(bytes) => {
            if spa.expanding.paused.swap(false, Ordering::AcqRel) {
                spa.expanding.pace.begins(spa.pool.env.now(), copied_bytes(spa, top.id)?);
            }
            *spa.expanding.next.lock() = Some(next.to_uberblock());
            note_copied_bytes(spa, top.id, bytes, tx)
        }
        Err(_) => pause_expansion(spa, &top, synced),
    }
}

/// Copies the ranges between two positions; returns the number of bytes.
fn copy_step(
    spa: &Spa,
    top: &Top,
    synced: Moved,
    (next, range): (Moved, std::ops::Range<u64>),
    ranges: Vec<(u64, u64)>,
    tx: &Tx,
) -> Result<u64> {
    let width = u64::try_from(top.children().len()).unwrap_or(0);
    let area = |scratch: bool| if scratch { Area::Boot } else { Area::Data };
    let from = match synced.scratch {
        true => SectorSpread { width, area: Area::Boot },
        false => SectorSpread { width: width.saturating_sub(1), area: Area::Data },
    };
    let to = SectorSpread { width, area: area(next.scratch) };
    let ranges = match ranges.is_empty() {
        true => spa.space.not_allocatable(top.id, range, u64::MAX).0.iter().collect(),
        false => ranges,
    };
    let now = || spa.pool.env.clock.monotonic();
    let begun = now();
    copy::copy(&*spa.pool.env.executor, top, &ranges, (from, to), tx.txg())?;
    let bytes = ranges.iter().map(|(start, end)| end - start).sum();
    spa.expanding.speed.took(bytes, now().saturating_sub(begun));
    // Steps through the scratch area take its free space, too: as in OpenZFS they do not count.
    Ok(if next.scratch || synced.scratch { 0 } else { bytes })
}

/// The position stays where it is on disk until the devices are well.
fn pause_expansion(spa: &Spa, top: &Top, synced: ReflowState) -> Result<()> {
    let end = spa.space.end_of_metaslabs(top.id);
    if synced.offset >= end && !synced.scratch {
        return Ok(());
    }
    spa.expanding.paused.store(true, Ordering::Release);
    *spa.expanding.rest_until.lock() = spa.pool.env.clock.monotonic().saturating_add(REST);
    if top.reflow() != Some(synced) {
        set_reflow(spa, top, synced, None);
    }
    Ok(())
}

fn copied_bytes(spa: &Spa, vdev: u64) -> Result<u64> {
    let object = spa.mos.view().object(spa.expansion().expanding_zap(vdev)?)?;
    Ok(Zap::open(&object)?.u64(vdev_top::RAIDZ_EXPAND_BYTES_COPIED)?.unwrap_or(0))
}

fn note_copied_bytes(spa: &Spa, vdev: u64, bytes: u64, tx: &Tx) -> Result<()> {
    let copied = copied_bytes(spa, vdev)?.saturating_add(bytes);
    let object = spa.mos.handle(spa.expansion().expanding_zap(vdev)?)?;
    ZapEdit::open(&mut object.edit(tx))?.update(vdev_top::RAIDZ_EXPAND_BYTES_COPIED, copied)
}

/// Ends the expansion when everything has moved according to the uberblock on disk.
#[doc(alias = "raidz_reflow_complete_sync")]
fn end_expansion(spa: &Spa, tx: &Tx) -> Result<()> {
    let Some(top) = expanding_top(spa) else { return Ok(()) };
    let synced = ReflowState::from_uberblock(spa.uberblock.lock().raidz_reflow_info);
    if synced.offset < spa.space.end_of_metaslabs(top.id) || synced.scratch {
        return Ok(());
    }
    let VdevLayout::Raidz(geometry) = &top.layout else { return Ok(()) };
    let mut txgs = geometry.expansion.as_ref().map(|grown| grown.txgs.clone()).unwrap_or_default();
    let wider_from = tx.txg().saturating_add(NOT_YET);
    txgs.push(wider_from);
    let mut change = VdevChange::of(spa);
    let guid = spa.config.lock().top(top.id).and_then(|top| top.u64("guid")).unwrap_or(0);
    edit(&mut change.root, guid, &mut |vdev: &mut NvList| {
        vdev.remove(EXPANDING);
        vdev.remove(EXPAND_TXGS);
        vdev.add(EXPAND_TXGS, txgs.clone());
    });
    spa.vdevs().change(change, tx)?;
    spa.expanding.wider_from.store(wider_from, Ordering::Release);
    spa.expanding.active.store(false, Ordering::Release);
    spa.expanding.paused.store(false, Ordering::Release);
    *spa.expanding.next.lock() = Some(0);
    let number = spa.expansion().expanding_zap(top.id)?;
    let object = spa.mos.handle(number)?;
    ZapEdit::open(&mut object.edit(tx))?.update(vdev_top::RAIDZ_EXPAND_STATE, FINISHED)?;
    ZapEdit::open(&mut object.edit(tx))?.update(vdev_top::RAIDZ_EXPAND_END_TIME, spa.pool.env.now())?;
    let (name, width) = (&spa.pool.name, top.children().len());
    let text = format!("{name} vdev {} new width {width}", top.id);
    spa.log("raidz vdev expansion completed", "", 0, &text, tx)?;
    // Without the space of the new disk the vdev is whole, too; `zpool online -e` tries again.
    let _ = spa.vdevs().grow(&[top.id], tx);
    let at = spa.datasets.at(tx, spa);
    let wanted = spa.limits().is_on(Limit::ScrubAfterExpand);
    if wanted
        && scan_state::running(&at)?.is_none()
        && !spa.scans().is_resilver_due()
        && !spa.rebuilds().is_rebuilding()
    {
        spa.scans().begin(&at, ScanFunc::Scrub)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Below the end that [`safe_end`] returns, no new place covers an old one that is still read.
    #[test]
    fn no_copy_covers_what_is_still_read_at_the_old_width() {
        for width in 2..12_u64 {
            for position in (width * 3..width * 60).step_by(7) {
                let end = safe_end(position, width);
                for sector in position..end {
                    let row = sector / (width + 1);
                    // The last old sector of that row; rows of `width` sectors that the position cuts are still read.
                    assert!(row * width + width - 1 + width <= position, "{width} {position} {sector}");
                }
            }
        }
    }

    #[test]
    fn steps_advance_from_the_scratch_area_on() {
        assert!(can_expand(3, 9) && can_expand(255, 12) && can_expand(20, 16) && !can_expand(60, 16));
        let mut position = (BOOT_SIZE >> 12) * 5;
        for _ in 0..40 {
            let next = safe_end(position, 4);
            assert!(next > position);
            position = next;
        }
    }
}
