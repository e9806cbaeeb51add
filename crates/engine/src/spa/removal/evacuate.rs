//! The copying of one txg.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ondisk::pool::SpaRemoving;

use super::{copy, objects, state};
use crate::dmu::Tx;
use crate::dsl::write::{Hooks as _, MosTx};
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::spa::Spa;
use crate::spa::subjects::Removal;
use crate::vdev::config::AllocBias;
use crate::vdev::indirect::MappingEntry;
use crate::vdev::top::Top;
use crate::zio::alloc::{AllocRequest, MetaslabClass};

/// Bytes that are copied at once.
const BATCH: u64 = 16 << 20;
/// Ranges that are copied at once.
const MAX_RANGES: usize = 1 << 12;
/// The same beside others.
const SHARED_BATCH: u64 = 4 << 20;
/// Bytes of a txg where no thread of the pool measures time.
const STEP: u64 = 256 << 10;

impl Removal<'_> {
    /// Copies a part of the vdev that is being removed (syncing context); ends the removal when nothing is left.
    ///
    /// # Errors
    /// When the MOS cannot be read or written. Errors of devices cancel the removal instead.
    #[doc(alias("spa_vdev_remove_thread", "vdev_mapping_sync"))]
    pub(super) fn evacuate(self, tx: &Tx) -> Result<()> {
        if !self.spa.removing.active.load(Ordering::Acquire) || self.spa.limits().is_on(Limit::RemovalSuspend)
        {
            return Ok(());
        }
        let at = self.spa.datasets.at(tx, self.spa);
        let Some(mut removal) = state::running(&at)? else {
            self.spa.removing.active.store(false, Ordering::Release);
            return Ok(());
        };
        let vdev = removal.removing_vdev;
        let started = self.spa.pool.env.clock.monotonic();
        let (mut any, mut turn) = (false, self.spa.jobs().turn());
        let outcome = loop {
            match copy_batch(self.spa, &at, vdev) {
                Ok(0) => break Ok(()),
                Ok(bytes) => {
                    any = true;
                    removal.copied = removal.copied.saturating_add(bytes);
                    self.spa.jobs().pace(&mut turn, || {});
                    if has_copied_enough(self.spa, started) {
                        break Ok(());
                    }
                }
                Err(why) => break Err(why),
            }
        };
        removal.copied = removal.copied.saturating_add(self.spa.space.take_spared(vdev));
        match outcome {
            // The copies of this txg are durable with it: the source is needed until then.
            Ok(()) if any => state::store(&at, &removal),
            Ok(()) => self.complete_removal(&at, removal),
            Err(why) => give_up_removal(self.spa, &at, removal, &why),
        }
    }

    /// Repeats the copies of the txg after a failed flush that followed them. Their sources are still there.
    ///
    /// # Errors
    /// When a device fails.
    pub(in crate::spa) fn copy_again(self, txg: u64) -> Result<()> {
        let copied = self.spa.removing.copied.lock().clone();
        let Some((vdev, _)) = copied.first().copied() else { return Ok(()) };
        let tree = self.spa.pool.zio.tree();
        let Some(top) = tree.top(vdev) else { return Ok(()) };
        let entries: Vec<MappingEntry> = copied.into_iter().map(|(_, entry)| entry).collect();
        let executor = &*self.spa.pool.env.executor;
        // In bounded parts, as they were made.
        entries
            .chunks(16)
            .try_for_each(|part| copy::copy(executor, &tree, &top, part, copy::How { txg, lenient: true }))
    }

    /// The objects of the mapping and of the births of a vdev that is being removed.
    pub(super) fn mapping_objects(self, vdev: u64) -> Result<(u64, u64)> {
        let config = self.spa.config.lock();
        let top = config.top(vdev);
        let number = |name| top.and_then(|top| top.u64(name)).filter(|number| *number != 0);
        let (mapping, births) = (number(super::MAPPING), number(super::BIRTHS));
        let lacks = || Error::corrupt(format!("vdev {vdev} is being removed and has no mapping"));
        Ok((mapping.ok_or_else(lacks)?, births.ok_or_else(lacks)?))
    }
}

fn give_up_removal(spa: &Spa, at: &MosTx<'_>, removal: SpaRemoving, why: &Error) -> Result<()> {
    let details = format!("{} vdev {} {why}", spa.pool.name, removal.removing_vdev);
    spa.log("vdev remove error", "", 0, &details, at.tx)?;
    spa.removal().cancel_removal(at, removal)
}

fn has_copied_enough(spa: &Spa, started: Duration) -> bool {
    if !spa.is_threaded() {
        return true;
    }
    let elapsed = spa.pool.env.clock.monotonic().saturating_sub(started);
    let least = Duration::from_millis(spa.limits().get(Limit::ScrubMinTime));
    let most = Duration::from_secs(spa.limits().get(Limit::TxgTimeout));
    elapsed >= most || elapsed >= least && spa.jobs().is_txg_awaited()
}

/// Copies the next ranges; returns their bytes, 0 when nothing is left.
fn copy_batch(spa: &Spa, at: &MosTx<'_>, vdev: u64) -> Result<u64> {
    let tree = spa.pool.zio.tree();
    let top = tree.top(vdev).ok_or_else(|| Error::corrupt("the vdev that is being removed is gone"))?;
    let most = match spa.is_threaded() {
        true if spa.pacing.is_shared() => SHARED_BATCH,
        true => BATCH,
        false => STEP,
    };
    let (mut entries, mut bytes) = (Vec::new(), 0_u64);
    let segment = spa.limits().get(Limit::RemoveMaxSegment).next_multiple_of(1 << top.ashift.min(16));
    while bytes < most && entries.len() < MAX_RANGES {
        let Some((start, end)) = spa.space.take_to_copy(vdev, segment.min(most - bytes))? else {
            break;
        };
        bytes = bytes.saturating_add(end - start);
        if let Err(why) = place(spa, &top, (start, end), at.tx.txg(), &mut entries) {
            release_places(spa, &entries, at.tx.txg());
            return Err(why);
        }
    }
    if entries.is_empty() {
        return Ok(0);
    }
    let executor = &*spa.pool.env.executor;
    let lenient = spa.limits().is_on(Limit::RemovalIgnoreErrors);
    if let Err(why) = copy::copy(executor, &tree, &top, &entries, copy::How { txg: at.tx.txg(), lenient }) {
        release_places(spa, &entries, at.tx.txg());
        return Err(why);
    }
    let (mapping, births) = spa.removal().mapping_objects(vdev)?;
    let with_counts: Vec<_> = entries.iter().map(|entry| (*entry, 0)).collect();
    objects::append(at, mapping, &with_counts)?;
    let end = entries.last().map_or(0, |last| last.source.saturating_add(last.len));
    objects::add_birth(at, births, end)?;
    spa.removing.births.lock().insert(at.tx.txg());
    for entry in &entries {
        spa.space.note_copied(vdev, *entry)?;
    }
    spa.removing.copied.lock().extend(entries.into_iter().map(|entry| (vdev, entry)));
    Ok(bytes)
}

/// Finds places for a range, in as many pieces as it takes.
#[doc(alias = "spa_vdev_copy_segment")]
fn place(
    spa: &Spa,
    top: &Top,
    (start, end): (u64, u64),
    txg: u64,
    entries: &mut Vec<MappingEntry>,
) -> Result<()> {
    let unit = 1_u64 << top.ashift;
    let class = match spa.vdevs().bias_of(top) {
        AllocBias::Special if spa.space.is_open(MetaslabClass::Special) => MetaslabClass::Special,
        AllocBias::Dedup if spa.space.is_open(MetaslabClass::Dedup) => MetaslabClass::Dedup,
        _ => MetaslabClass::Normal,
    };
    let allocator = spa.pool.zio.allocator()?;
    let (mut source, mut len) = (start, end - start);
    while source < end {
        len = len.min(end - source);
        let request = AllocRequest {
            psize: len,
            copies: 1,
            class,
            txg,
            gang: false,
            evens_out: false,
            fewer_will_do: false,
        };
        let dva = match allocator.allocate(&request) {
            Ok(dvas) => dvas.into_iter().next(),
            Err(why) if len <= unit => return Err(why),
            Err(_) => None,
        };
        match dva {
            Some(dva) if dva.asize == len => {
                let (vdev, offset) = (u64::from(dva.vdev), dva.offset);
                entries.push(MappingEntry { source, vdev, offset, len });
                source += len;
            }
            Some(dva) => {
                allocator.unallocate(&dva, txg);
                return Err(Error::new(Kind::Invalid, "a copy would take more space than the original"));
            }
            None => len = (len / 2).next_multiple_of(unit).min(len - unit),
        }
    }
    Ok(())
}

fn release_places(spa: &Spa, entries: &[MappingEntry], txg: u64) {
    let Ok(allocator) = spa.pool.zio.allocator() else { return };
    for entry in entries {
        let Ok(vdev) = u32::try_from(entry.vdev) else { continue };
        let dva = ondisk::Dva { vdev, offset: entry.offset, asize: entry.len, ..ondisk::Dva::default() };
        allocator.unallocate(&dva, txg);
    }
}
