//! Whether a group could write what is to be changed.
//!
//! Writing or freeing a block replaces the indirect blocks above it, which are read for that. One that is damaged would
//! stop the group, and with it the whole pool, long after the caller was told that all is well. So the caller of a
//! change learns of it instead: the indirect blocks on the way are read before anything is changed.
//!
//! The MOS is exempt: it is changed while a group is written, and the pool can't do without it.

use std::sync::Arc;

use super::Handle;
use crate::dmu::tx::Tx;
use crate::dmu::{Blocks, Object};
use crate::error::Result;
use crate::txg::slot;

impl Handle {
    /// The object on disk, when indirect blocks of it have to be read to change it.
    fn indirect_on_disk(&self) -> Option<Arc<Object>> {
        let state = self.state.read();
        let has_indirects = state.synced.dnode.nlevels > 1 && state.synced.bookmark().objset != 0;
        let is_replaced = || state.changes.iter().flatten().any(|change| change.wipe);
        (has_indirects && !is_replaced()).then(|| Arc::clone(&state.synced))
    }

    /// Whether this group changes a block under the same indirect block already.
    fn changes_beside(&self, tx: &Tx, blkid: u64) -> bool {
        let state = self.state.read();
        let shift = state.synced.shift();
        let first = blkid.checked_shr(shift).and_then(|n| n.checked_shl(shift)).unwrap_or(0);
        let last = first.saturating_add((1_u64 << shift.min(63)) - 1);
        let change = state.changes.get(slot(tx.txg())).and_then(Option::as_ref);
        change.is_some_and(|c| c.txg == tx.txg() && c.blocks.range(first..=last).next().is_some())
    }

    /// Reads the indirect blocks that block `blkid` is written under.
    pub(super) fn check_way_to(&self, tx: &Tx, blkid: u64) -> Result<()> {
        let Some(synced) = self.indirect_on_disk() else { return Ok(()) };
        if self.changes_beside(tx, blkid) {
            return Ok(());
        }
        // What is new behind the end has its upper indirect blocks in common with the last block.
        let at = blkid.min(synced.dnode.maxblkid);
        Blocks::new(&synced).check(at, at.saturating_add(1))
    }

    /// Reads the indirect blocks above blocks `[start, end)`, which are to be freed.
    ///
    /// # Errors
    /// Why they can't be freed.
    pub fn check_readable(&self, start: u64, end: u64) -> Result<()> {
        self.indirect_on_disk().map_or(Ok(()), |synced| Blocks::new(&synced).check(start, end))
    }
}
