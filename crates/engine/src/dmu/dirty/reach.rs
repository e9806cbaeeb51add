//! Checks whether a txg can write a change.
//!
//! Writing or freeing a block replaces the indirect blocks above it, which must be read first. A damaged one would
//! stop the txg, and with it the whole pool, long after the call has returned success. So the indirect blocks
//! of the path are read before anything is changed, and the caller of the change gets the error.
//!
//! The MOS is exempt: it is changed while a txg is written, and the pool cannot work without it.

use std::sync::Arc;

use super::Handle;
use crate::dmu::tx::Tx;
use crate::dmu::{Blocks, Object};
use crate::error::Result;
use crate::txg::slot;

impl Handle {
    /// The object on disk, if indirect blocks of it have to be read to change it.
    fn indirect_on_disk(&self) -> Option<Arc<Object>> {
        let state = self.state.read();
        // In an object set that is never written no indirect block changes.
        let is_written = state.synced.objset.is_current() && state.synced.bookmark().objset != 0;
        let has_indirects = state.synced.dnode.nlevels > 1 && is_written;
        let is_replaced = || state.changes.iter().flatten().any(|change| change.wipe);
        (has_indirects && !is_replaced()).then(|| Arc::clone(&state.synced))
    }

    /// Whether this txg already changes a block under the same indirect block.
    fn changes_beside(&self, tx: &Tx, blkid: u64) -> bool {
        let state = self.state.read();
        let shift = state.synced.shift();
        let first = blkid.checked_shr(shift).and_then(|n| n.checked_shl(shift)).unwrap_or(0);
        let last = first.saturating_add((1_u64 << shift.min(63)) - 1);
        let change = state.changes.get(slot(tx.txg())).and_then(Option::as_ref);
        change.is_some_and(|c| c.txg == tx.txg() && c.blocks.range(first..=last).next().is_some())
    }

    /// Reads the indirect blocks above block `blkid`.
    pub(super) fn check_way_to(&self, tx: &Tx, blkid: u64) -> Result<()> {
        let Some(synced) = self.indirect_on_disk() else { return Ok(()) };
        if self.changes_beside(tx, blkid) {
            return Ok(());
        }
        // A new block past the end shares its upper indirect blocks with the last block.
        let at = blkid.min(synced.dnode.maxblkid);
        Blocks::new(&synced).check(at, at.saturating_add(1))
    }

    /// Reads the indirect blocks above `count` blocks from `blkid` on, which are to be written or freed.
    pub(super) fn check_change(&self, tx: &Tx, blkid: u64, count: u64) -> Result<()> {
        if count == 1 {
            return self.check_way_to(tx, blkid);
        }
        let Some(synced) = self.indirect_on_disk() else { return Ok(()) };
        let at = blkid.min(synced.dnode.maxblkid);
        Blocks::new(&synced).check(at, blkid.saturating_add(count))
    }

    /// Reads the indirect blocks above blocks `[start, end)`, which are to be freed.
    ///
    /// # Errors
    /// The reason why they cannot be freed.
    pub fn check_readable(&self, start: u64, end: u64) -> Result<()> {
        self.indirect_on_disk().map_or(Ok(()), |synced| Blocks::new(&synced).check(start, end))
    }
}
