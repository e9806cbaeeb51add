//! How old the blocks of a tree may be that is exchanged within an object set ([`crate::dmu::Handle::exchange`]).
//!
//! A tree that becomes that of another object brings blocks to places at which they were not before. Two kinds of walks leave
//! out blocks by their births, because they were at their place before: an incremental stream from a snapshot or a bookmark, and
//! a scan that has passed the place. So all blocks of the tree, holes included, must be newer than both.

use super::subjects::PoolDatasets;
use crate::dsl::write::{MosView, bookmarks, scan_state};
use crate::error::Result;

impl PoolDatasets<'_> {
    /// The txg after which all blocks of a tree have to be born that is exchanged in dataset `number` under a transaction of txg
    /// `txg`. Waits until the txg before is on disk: no snapshot is made between that and the transaction.
    ///
    /// # Errors
    /// The reason of the pool's suspension; errors of reading the MOS.
    pub fn tree_age(self, number: u64, txg: u64) -> Result<u64> {
        self.spa.wait_synced(txg.saturating_sub(1))?;
        let at = MosView { mos: &self.spa.mos };
        let snapshot = self.spa.datasets.view().dataset(number)?.prev_snap_txg;
        let bookmark = bookmarks::newest(&at, number)?;
        let scan = scan_state::running(&at)?.map_or(0, |scan| scan.max_txg);
        Ok(snapshot.max(bookmark).max(scan))
    }
}
