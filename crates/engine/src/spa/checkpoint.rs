//! The pool's checkpoint: taken, and discarded.
//!
//! Taking one notes the last uberblock on disk in the MOS directory. From that txg on, blocks born up to the uberblock's txg
//! are kept when they are freed ([`crate::metaslab`]): they stay allocated in their metaslab's space map and go into their
//! vdev's checkpoint space map. Both commands run as *early* tasks, before anything of their txg frees a block, so that the
//! same rule holds for the whole txg.
//!
//! States: none → exists → discarding → none. Discarding begins with the removal of the noted uberblock; then each txg frees
//! a bounded part of the checkpoint space maps, and the feature's count goes down with the last of them. The feature active
//! without an uberblock is the state `discarding` on disk, which an import continues.
//!
//! Why power may be lost at any moment: each state and each part is written with one txg. Going back is import's work
//! ([`super::import`]).
//!
//! Source: spa_checkpoint.c, OpenZFS 2.4.

use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{Endian, Uberblock, space_map};
use zcommon::features::Feature;

use super::Spa;
use super::WaitActivity;
use super::activity::{Activity, Due, SyncPoint};
use super::space_store::SpaceStore;
use super::subjects::Checkpointing;
use crate::dmu::Tx;
use crate::dsl::write::{Hooks as _, MosTx};
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::vdev::config::VdevConfig;
use crate::zap::Value;

/// Bytes of memory that a byte of a checkpoint space map takes while it is discarded.
const MEMORY_PER_BYTE: u64 = 8;

/// State of a pool's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "checkpoint_state_t")]
pub enum CheckpointState {
    /// There is none.
    None,
    /// There is one.
    Exists,
    /// It is being discarded.
    Discarding,
}

/// The discarding of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Discarding {
    active: AtomicBool,
}

/// Whether entries of one word can name each sector of a top-level vdev. A checkpoint space map covers the whole vdev.
#[doc(alias = "vdev_is_spacemap_addressable")]
fn is_addressable(top: &VdevConfig) -> bool {
    let shift = top.ashift.saturating_add(space_map::OFFSET_BITS);
    shift >= u64::BITS - 1 || top.asize < 1 << shift
}

impl Activity for Discarding {
    fn is_due(&self, _: &Spa) -> Due {
        if self.active.load(Ordering::Acquire) { Due::Now } else { Due::No }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if moment != SyncPoint::Last || !self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        let budget = spa.limits().get(Limit::DiscardMemory) / MEMORY_PER_BYTE;
        let mut store = SpaceStore::of(spa, tx);
        if spa.space.discard_checkpoint(tx.txg(), budget, &mut store)? {
            return Ok(());
        }
        self.active.store(false, Ordering::Release);
        spa.count_feature(Feature::ZpoolCheckpoint, -1, tx)?;
        // Leaves that a scan could not make whole because of the checkpoint get a resilver.
        spa.scanning.look_again();
        let what = "finished discarding checkpointed state from the pool";
        spa.log("spa discard checkpoint", "", 0, what, tx)
    }

    fn left(&self, spa: &Spa, work: WaitActivity) -> Result<Option<u64>> {
        let runs = work == WaitActivity::Discard && self.active.load(Ordering::Acquire);
        Ok(runs.then(|| spa.space.checkpoint_space()))
    }
}

impl Checkpointing<'_> {
    /// Returns the state of the checkpoint.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    #[doc(alias = "spa_checkpoint_get_stats")]
    pub fn state(self) -> Result<CheckpointState> {
        if !self.spa.features.is_active(Feature::ZpoolCheckpoint) {
            return Ok(CheckpointState::None);
        }
        let noted = self.spa.datasets.view().zap_get(MOS_DIRECTORY_OBJECT, mos::ZPOOL_CHECKPOINT)?;
        Ok(if noted.is_some() { CheckpointState::Exists } else { CheckpointState::Discarding })
    }

    /// Refuses a change that a checkpoint forbids: one that going back to it could not undo.
    ///
    /// # Errors
    /// `Exists` while there is a checkpoint, `Busy` while one is being discarded.
    pub fn check_none(self) -> Result<()> {
        match self.state()? {
            CheckpointState::None => Ok(()),
            CheckpointState::Exists => Err(Error::new(Kind::Exists, "checkpoint exists")),
            CheckpointState::Discarding => Err(Error::new(Kind::Busy, "currently discarding checkpoint")),
        }
    }

    /// Takes a checkpoint of all that was changed so far; returns when it is on disk.
    ///
    /// # Errors
    /// `Unsupported` without the feature, or with a vdev for whose offsets the space map entries are too short; `Busy` during
    /// a removal or an expansion, and [`Checkpointing::check_none`]'s.
    #[doc(alias = "spa_checkpoint")]
    pub fn take(self) -> Result<()> {
        self.spa.sync()?;
        self.spa.early_sync_task(|spa, tx| {
            if !spa.features.is_enabled(Feature::ZpoolCheckpoint) {
                let what = "operation not supported on this type of pool";
                return Err(Error::new(Kind::Unsupported, what));
            }
            let has_two_words = spa.features.is_enabled(Feature::SpacemapV2);
            if !has_two_words && !spa.pool.zio.tree().config.children.iter().all(is_addressable) {
                return Err(Error::new(Kind::Unsupported, "device exceeds supported size"));
            }
            if spa.removal().is_active() {
                return Err(Error::new(Kind::Busy, "device removal in progress"));
            }
            if spa.expansion().is_active() {
                return Err(Error::new(Kind::Busy, super::expansion::BUSY));
            }
            spa.checkpoint().check_none()?;
            note_checkpoint(spa, tx)
        })
    }

    /// Discards the checkpoint. Returns when that is on disk; the space that it kept becomes free gradually.
    ///
    /// # Errors
    /// `NotFound` when there is none, `Busy` when it is being discarded.
    #[doc(alias = "spa_checkpoint_discard")]
    pub fn discard(self) -> Result<()> {
        self.spa.early_sync_task(|spa, tx| {
            match spa.checkpoint().state()? {
                CheckpointState::None => {
                    return Err(Error::new(Kind::NotFound, "checkpoint does not exist"));
                }
                CheckpointState::Discarding => return spa.checkpoint().check_none(),
                CheckpointState::Exists => {}
            }
            spa.datasets.at(tx, spa).zap_remove(MOS_DIRECTORY_OBJECT, mos::ZPOOL_CHECKPOINT)?;
            spa.space.set_checkpoint(0);
            spa.discarding.active.store(true, Ordering::Release);
            let what = "started discarding checkpointed state from the pool";
            spa.log("spa discard checkpoint", "", 0, what, tx)
        })
    }

    /// Continues a discard that an earlier import began.
    pub(super) fn load(self) -> Result<()> {
        let discarding = self.state()? == CheckpointState::Discarding;
        self.spa.discarding.active.store(discarding, Ordering::Release);
        Ok(())
    }
}

#[doc(alias = "spa_checkpoint_sync")]
fn note_checkpoint(spa: &Spa, tx: &Tx) -> Result<()> {
    let last = spa.uberblock();
    // The entry holds words, which have no byte order.
    let uberblock = Uberblock { checkpoint_txg: last.txg, endian: Endian::Little, ..last };
    let bytes = uberblock.to_bytes();
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let at: MosTx<'_> = spa.datasets.at(tx, spa);
    at.zap_add(MOS_DIRECTORY_OBJECT, mos::ZPOOL_CHECKPOINT, Value::from(words))?;
    spa.space.set_checkpoint(uberblock.txg);
    spa.count_feature(Feature::ZpoolCheckpoint, 1, tx)?;
    let what = format!("checkpointed uberblock txg={}", uberblock.txg);
    spa.log("spa checkpoint", "", 0, &what, tx)
}

#[cfg(test)]
mod tests {
    use nvpair::NvList;

    use super::*;

    /// The sizes of OpenZFS's `checkpoint_sm_scale`: 64 PiB less the labels, and 65 PiB.
    #[test]
    fn vdevs_of_more_than_64_pib_need_entries_of_two_words() {
        let top = |ashift: u64, asize: u64| {
            let mut list = NvList::new();
            list.add("type", "file");
            list.add("ashift", ashift);
            list.add("asize", asize);
            VdevConfig::parse(&list).unwrap()
        };
        assert!(is_addressable(&top(9, (64 << 50) - (5 << 20))));
        assert!(!is_addressable(&top(9, 64 << 50)));
        assert!(is_addressable(&top(12, 65 << 50)));
        assert!(is_addressable(&top(16, u64::MAX)));
    }
}
