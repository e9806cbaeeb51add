//! An object set whose changes stay in memory: an intent log is replayed on it where nothing may be written.
//!
//! ```text
//!  Objset, as read ─▶ Scratch: a LiveObjset and one txg that is always open ─▶ views with the changes
//! ```
//!
//! It takes no space, no device is written, and bad copies of blocks are not repaired. As nothing will be written, the blocks
//! above a changed block are not read, and the number of a freed object can be used again at once. A write to a part of a block
//! keeps only these bytes, so that it needs neither the memory of the block nor its old content.

use std::sync::Arc;

use super::change::{DirtyRecord, TxgChanges};
use super::parts::Parts;
use super::policy::Policy;
use super::{Handle, LiveObjset};
use crate::dmu::Objset;
use crate::dmu::tx::{DirtyData, Tx};
use crate::error::Result;
use crate::txg::Txgs;

/// An object set whose changes are never written.
#[derive(Debug)]
pub struct Scratch {
    objset: Arc<LiveObjset>,
    txgs: Arc<Txgs>,
    dirty: Arc<DirtyData>,
}

impl Scratch {
    /// Over an object set as of txg `synced`.
    pub fn over(plain: &Arc<Objset>, synced: u64) -> Self {
        let policy = Policy { copies: 1, meta: false, ..Policy::meta() };
        let objset = LiveObjset::over(Arc::clone(plain), policy);
        Self { objset, txgs: Txgs::new(synced), dirty: Arc::default() }
    }

    /// The object set with its changes.
    pub fn objset(&self) -> &Arc<LiveObjset> {
        &self.objset
    }

    /// A transaction.
    pub fn begin(&self) -> Tx {
        Tx::begin(&self.txgs, &self.dirty)
    }

    /// Bytes of memory that the changes take, about.
    pub fn memory(&self) -> u64 {
        self.dirty.memory()
    }
}

impl LiveObjset {
    /// Whether its changes are never written.
    pub(super) fn is_scratch(&self) -> bool {
        !self.plain.is_current()
    }
}

impl TxgChanges {
    /// Writes a part of a block that is on disk, and of which nothing but parts was changed; false: that is another block.
    fn put_part(&mut self, blkid: u64, size: usize, skip: usize, bytes: &[u8]) -> bool {
        if let Some(DirtyRecord::Parts(parts)) = self.blocks.get_mut(&blkid) {
            self.touched_content = true;
            return parts.add(size, skip, bytes);
        }
        let mut parts = Parts::default();
        let is_put =
            !self.gives_up(blkid) && !self.blocks.contains_key(&blkid) && parts.add(size, skip, bytes);
        if is_put {
            self.put(blkid, DirtyRecord::Parts(parts));
        }
        is_put
    }
}

impl Handle {
    /// Writes a part of a block without the rest of it; false where the whole block is needed.
    pub(super) fn write_part(
        self: &Arc<Self>,
        tx: &Tx,
        blkid: u64,
        (size, skip): (usize, usize),
        bytes: &[u8],
    ) -> Result<bool> {
        if !self.objset()?.is_scratch() {
            return Ok(false);
        }
        let is_put = self.change(tx, |dnode, change| {
            let is_put = change.put_part(blkid, size, skip, bytes);
            dnode.maxblkid = if is_put { dnode.maxblkid.max(blkid) } else { dnode.maxblkid };
            is_put
        })?;
        if is_put {
            tx.dirtied(bytes.len());
        }
        Ok(is_put)
    }
}
