//! `zpool freeze`, for tests of intent logs: the state on disk does not change, and only intent logs are written, until the
//! pool is imported again, which replays them.
//!
//! Txgs go on in memory: their blocks go to free space, no label or uberblock refers to them, and no freed space is used again.
//! So the state on disk stays whole, and so do the chains of the logs that it names.

use std::sync::atomic::Ordering;

use super::Spa;
use crate::error::Result;

impl Spa {
    /// Freezes the pool once all changes so far are on disk.
    ///
    /// # Errors
    /// The errors of the last txg.
    #[doc(alias = "spa_freeze")]
    pub fn freeze(&self) -> Result<()> {
        self.sync()?;
        self.sync_task(|spa, tx| {
            spa.space.keep_freed();
            // A second freeze changes nothing: the first one's txg is the last on disk.
            let _ = spa.frozen.compare_exchange(0, tx.txg(), Ordering::AcqRel, Ordering::Acquire);
            Ok(())
        })
    }

    /// Whether a txg is not to be committed.
    pub(super) fn is_frozen_at(&self, txg: u64) -> bool {
        let frozen = self.frozen.load(Ordering::Acquire);
        frozen != 0 && txg > frozen
    }

    /// The last txg on disk, as intent logs must take it: `written`, or that of the freeze.
    pub(super) fn on_disk(&self, written: u64) -> u64 {
        match self.frozen.load(Ordering::Acquire) {
            0 => written,
            frozen => written.min(frozen),
        }
    }
}
