//! The record of a sequential reconstruction in the ZAP of its top-level vdev.
//!
//! Format source: `vdev_rebuild_phys_t`, vdev_rebuild.h; `vdev_rebuild_load`, vdev_rebuild.c; OpenZFS 2.4.

use ondisk::names::vdev_top;
use ondisk::pool::VdevRebuild;

use crate::dsl::write::{MosTx, MosView};
use crate::error::Result;
use crate::spa::layout::config::TOP_ZAP;
use crate::spa::subjects::Rebuilds;

/// Words of a record.
#[doc(alias = "REBUILD_PHYS_ENTRIES")]
const WORDS: usize = 12;

/// `vdev_rebuild_state_t`.
pub(super) mod state {
    pub(in super::super) const NONE: u64 = 0;
    pub(in super::super) const ACTIVE: u64 = 1;
    pub(in super::super) const CANCELED: u64 = 2;
    pub(in super::super) const COMPLETE: u64 = 3;
}

/// A top-level vdev and its record.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    /// Number of the vdev.
    pub(crate) id: u64,
    /// Guid of the vdev.
    pub(crate) guid: u64,
    zap: u64,
    pub(crate) record: VdevRebuild,
}

impl Recorded {
    pub(crate) fn is_active(&self) -> bool {
        self.record.rebuild_state == state::ACTIVE
    }

    /// Writes the record.
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    pub(super) fn store(&self, at: &MosTx<'_>) -> Result<()> {
        at.zap_set(self.zap, vdev_top::VDEV_REBUILD_PHYS, words(&self.record).as_slice())
    }
}

/// The record from the words of a ZAP entry: missing words are 0, further ones are ignored.
fn record(from: &[u64]) -> VdevRebuild {
    let mut words = [0; WORDS];
    words.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    VdevRebuild::from_words(&words).unwrap_or_default()
}

fn words(record: &VdevRebuild) -> [u64; WORDS] {
    [
        record.rebuild_state,
        record.last_offset,
        record.min_txg,
        record.max_txg,
        record.start_time,
        record.end_time,
        record.scan_time_ms,
        record.bytes_scanned,
        record.bytes_issued,
        record.bytes_rebuilt,
        record.bytes_est,
        record.errors,
    ]
}

impl Rebuilds<'_> {
    /// The top-level vdevs that have a ZAP, each with its record. As in OpenZFS, a record that is missing or cannot be read
    /// counts as empty: the DTLs show which leaves lack something.
    #[doc(alias = "vdev_rebuild_load")]
    pub(super) fn records(self, mos: &MosView<'_>) -> Vec<Recorded> {
        let root = self.spa.config.lock().root().clone();
        let tops = root.nvlist_array("children").unwrap_or_default();
        let of = |top: &nvpair::NvList| {
            let zap = top.u64(TOP_ZAP).filter(|zap| *zap != 0)?;
            let value = mos.zap_get(zap, vdev_top::VDEV_REBUILD_PHYS).ok().flatten();
            let record = value.map(|value| record(&value.ints)).unwrap_or_default();
            Some(Recorded { id: top.u64("id")?, guid: top.u64("guid")?, zap, record })
        };
        tops.iter().filter_map(of).collect()
    }

    /// Empties the records of reconstructions that have ended: a resilver begins, and `zpool status` reports that.
    ///
    /// # Errors
    /// When the MOS cannot be written.
    #[doc(alias = "vdev_rebuild_clear_sync")]
    pub(in crate::spa) fn clear(self, at: &MosTx<'_>) -> Result<()> {
        let ended = |top: &Recorded| ![state::NONE, state::ACTIVE].contains(&top.record.rebuild_state);
        for mut top in self.records(at).into_iter().filter(ended) {
            top.record = VdevRebuild::default();
            top.store(at)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_its_words_and_takes_any_number_of_them() {
        let all: Vec<u64> = (1..=12).collect();
        assert_eq!(words(&record(&all)).as_slice(), all);
        assert_eq!(words(&record(&[1])), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(words(&record(&[7; 14])), [7; 12]);
        assert_eq!((record(&all).rebuild_state, record(&all).last_offset, record(&all).errors), (1, 2, 12));
    }
}
