//! Condensing: the mapping of a removed vdev is written anew without entries of which everything is obsolete.
//!
//! States: none → *condensing* (a new mapping grows entry by entry, in source order) → none (it is the vdev's mapping). The
//! state stands in the MOS directory. How far it has come is the end of the new mapping: after a crash or an import the
//! entries behind it follow. Ranges that become obsolete meanwhile go into another obsolete space map, for
//! the next time.
//!
//! Why power may be lost at any moment: the old mapping counts until the txg that names the new one in the configuration.
//!
//! Source: vdev_indirect.c, OpenZFS 2.3.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::SpaCondensingIndirect;
use ondisk::space_map::{SpaceMapDecoder, SpaceMapPhys};
use zcommon::features::Feature;

use super::{MAPPING, objects, state::words};
use crate::dmu::Tx;
use crate::dsl::write::{MosTx, MosView};
use crate::error::{Error, Result};
use crate::memory::Limit;
use crate::metaslab::{self, SpaceMapStore as _, SpaceObject};
use crate::spa::Spa;
use crate::spa::space_store::{SpaceStore, set};
use crate::spa::subjects::Removal;
use crate::vdev::indirect::{IndirectMapping, MappingEntry};
use crate::vdev::top::{Top, VdevLayout};
use crate::zap::Value;

/// Entries that one txg looks at.
const STEP: usize = 1 << 16;
/// Bytes of an entry.
const ENTRY: u64 = 24;

/// The condensing under way.
pub(super) fn state(at: &MosView<'_>) -> Result<Option<SpaCondensingIndirect>> {
    let value = at.zap_get(MOS_DIRECTORY_OBJECT, mos::CONDENSING_INDIRECT)?;
    let state = value.and_then(|value| SpaCondensingIndirect::from_words(&value.ints).ok());
    Ok(state.filter(|state| state.next_mapping_object != 0))
}

impl Removal<'_> {
    /// A removed vdev whose mapping should be condensed.
    #[doc(alias = "vdev_indirect_should_condense")]
    pub(super) fn to_condense(self) -> Option<u64> {
        let obsolete = self.spa.space.obsolete();
        if obsolete.is_empty() {
            return None;
        }
        let limits = self.spa.limits();
        let tree = self.spa.pool.zio.tree();
        let percent = u128::from(limits.get(Limit::CondenseObsoletePercent));
        let due = |&(vdev, bytes, length): &(u64, u64, u64)| {
            let mapping = tree.top(vdev).and_then(|top| top.mapping());
            let Some(mapping) = mapping.filter(|_| length > 0) else { return false };
            let entries = u64::try_from(mapping.entries().len()).unwrap_or(u64::MAX);
            let large = entries.saturating_mul(ENTRY) > limits.get(Limit::CondenseMinMapping);
            let mapped: u64 = mapping.entries().iter().map(|entry| entry.len).sum();
            let much = u128::from(bytes) * 100 >= percent * u128::from(mapped);
            large && much || length >= limits.get(Limit::CondenseMaxObsolete)
        };
        obsolete.into_iter().find(due).map(|(vdev, ..)| vdev)
    }

    /// Begins to condense a mapping, or does a part of that (syncing context).
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias("spa_sync_condense_indirect", "spa_condense_indirect_thread"))]
    pub(super) fn condense(self, tx: &Tx) -> Result<()> {
        let at = self.spa.datasets.at(tx, self.spa);
        if !self.spa.removing.condensing.load(Ordering::Acquire) {
            let Some(vdev) = self.to_condense() else { return Ok(()) };
            // The first txgs of an import precede its background jobs: condensing that is recorded is not begun anew.
            if state(&at)?.is_none() {
                return begin_condensing(self.spa, &at, vdev);
            }
            self.spa.removing.condensing.store(true, Ordering::Release);
        }
        match state(&at)? {
            Some(state) => condense_some(self.spa, &at, &state),
            None => {
                self.spa.removing.condensing.store(false, Ordering::Release);
                Ok(())
            }
        }
    }
}

#[doc(alias = "spa_condense_indirect_start_sync")]
fn begin_condensing(spa: &Spa, at: &MosTx<'_>, vdev: u64) -> Result<()> {
    let zap = spa.removal().top_config(vdev)?.u64(super::super::layout::config::TOP_ZAP).unwrap_or(0);
    let prev_obsolete_sm_object = spa.space.take_obsolete(vdev);
    at.zap_remove(zap, ondisk::names::vdev_top::INDIRECT_OBSOLETE_SM)?;
    let next_mapping_object = objects::create_mapping(at)?;
    let state = SpaCondensingIndirect { vdev, prev_obsolete_sm_object, next_mapping_object };
    at.zap_set(MOS_DIRECTORY_OBJECT, mos::CONDENSING_INDIRECT, Value::from(words(&state.to_bytes())))?;
    spa.removing.condensing.store(true, Ordering::Release);
    Ok(())
}

/// The mapping that is condensed, with the bytes of each entry that are obsolete.
fn obsolete_counts(
    spa: &Spa,
    at: &MosTx<'_>,
    state: &SpaCondensingIndirect,
) -> Result<(Arc<IndirectMapping>, Vec<u32>)> {
    let mapping = spa.pool.zio.tree().top(state.vdev).and_then(|top| top.mapping());
    let mapping = mapping.ok_or_else(|| Error::corrupt("the mapping that is condensed is not known"))?;
    let object = spa.removal().top_config(state.vdev)?.u64(MAPPING).unwrap_or(0);
    let mut counts = objects::counts(at, object, mapping.entries().len())?;
    if state.prev_obsolete_sm_object != 0 {
        let map = spa.mos.view().object(state.prev_obsolete_sm_object)?;
        metaslab::replay(&map, SpaceMapDecoder::new(0, 0, u64::MAX), &mut |entry| {
            add(&mapping, &mut counts, entry.offset, entry.offset.saturating_add(entry.run));
        })?;
    }
    Ok((mapping, counts))
}

/// How many entries this txg may condense.
#[doc(alias = "zfs_condense_indirect_commit_entry_delay_ms")]
fn entries_now(spa: &Spa) -> usize {
    let delay = u128::from(spa.limits().get(Limit::CondenseDelay));
    if delay == 0 {
        return STEP;
    }
    let now = spa.pool.env.clock.monotonic();
    let mut last = spa.removing.condensed_at.lock();
    let elapsed = now.saturating_sub(*last.get_or_insert(now)).as_millis();
    let count = usize::try_from(elapsed / delay).unwrap_or(STEP).min(STEP);
    if count > 0 {
        *last = Some(now);
    }
    count
}

fn condense_some(spa: &Spa, at: &MosTx<'_>, state: &SpaCondensingIndirect) -> Result<()> {
    let most = entries_now(spa);
    if most == 0 {
        return Ok(());
    }
    let (mapping, counts) = obsolete_counts(spa, at, state)?;
    let done = objects::head(at, state.next_mapping_object)?.max_offset;
    let first = mapping.entries().partition_point(|entry| entry.source < done);
    let left = mapping.entries().iter().zip(&counts).skip(first);
    let kept = |(entry, count): &(&MappingEntry, &u32)| u64::from(**count) < entry.len;
    let kept: Vec<(MappingEntry, u32)> =
        left.filter(kept).take(most).map(|(entry, count)| (*entry, *count)).collect();
    objects::append(at, state.next_mapping_object, &kept)?;
    if kept.len() < most { end_condensing(spa, at, state) } else { Ok(()) }
}

#[doc(alias = "spa_condense_indirect_complete_sync")]
fn end_condensing(spa: &Spa, at: &MosTx<'_>, state: &SpaCondensingIndirect) -> Result<()> {
    let vdev = state.vdev;
    let old = spa.removal().top_config(vdev)?.u64(MAPPING).unwrap_or(0);
    let new = metaslab::load_mapping(&spa.mos.view(), state.next_mapping_object)?;
    spa.vdevs().edit_top(vdev, &mut |top| set(top, MAPPING, state.next_mapping_object), at.tx)?;
    let tree = spa.pool.zio.tree();
    if let Some(VdevLayout::Indirect(slot)) = tree.top(vdev).as_deref().map(|top: &Top| &top.layout) {
        let mut slot = slot.write();
        let births = slot.as_ref().map(|old| old.births()).unwrap_or_default();
        *slot = Some(Arc::new(new.with_births(births)));
    }
    objects::free_mapping(at, old)?;
    if state.prev_obsolete_sm_object != 0 {
        let map = spa.mos.view().object(state.prev_obsolete_sm_object)?;
        let head = map.dnode.bonus().len().min(SpaceMapPhys::SIZE);
        let block_size = u64::from(map.dnode.datablkszsec) << ondisk::MIN_BLOCK_SHIFT;
        let what = SpaceObject::Map { block_size, head };
        SpaceStore::of(spa, at.tx).free(&what, state.prev_obsolete_sm_object)?;
        at.count(Feature::ObsoleteCounts, -1)?;
    }
    at.zap_remove(MOS_DIRECTORY_OBJECT, mos::CONDENSING_INDIRECT)?;
    spa.removing.condensing.store(false, Ordering::Release);
    *spa.removing.condensed_at.lock() = None;
    Ok(())
}

/// The bytes `[start, end)` of the vdev are obsolete.
#[doc(alias = "vdev_indirect_mapping_increment_obsolete_count")]
fn add(mapping: &IndirectMapping, counts: &mut [u32], start: u64, end: u64) {
    let entries = mapping.entries();
    let first = entries.partition_point(|entry| entry.source.saturating_add(entry.len) <= start);
    let touched = entries.iter().zip(counts).skip(first).take_while(|(entry, _)| entry.source < end);
    for (entry, count) in touched {
        let bytes = end.min(entry.source.saturating_add(entry.len)).saturating_sub(start.max(entry.source));
        *count = count.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obsolete_bytes_count_for_the_entries_that_they_are_in() {
        let entry = |source, len| MappingEntry { source, vdev: 0, offset: 0, len };
        let mapping =
            IndirectMapping::new(vec![entry(0, 1024), entry(2048, 1024), entry(3072, 512)]).unwrap();
        let mut counts = vec![0, 7, 0];
        add(&mapping, &mut counts, 512, 3584);
        assert_eq!(counts, [512, 1031, 512]);
        add(&mapping, &mut counts, 4096, 8192);
        assert_eq!(counts, [512, 1031, 512]);
    }
}
