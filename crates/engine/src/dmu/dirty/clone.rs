//! Blocks that become references to blocks of other objects.
//!
//! A clone is a pointer in a change ([`DirtyRecord::Cloned`]): the source's, born in the txg of the change. Its reference is
//! counted when the txg is written, before the txg frees anything (`BlockSharing::count_clones`); a clone that the
//! same txg overwrites or frees again is never counted.
//!
//! The caller keeps the source as it is from [`Handle::clone_source`] until the transaction of [`Handle::clone_block`]
//! has ended. So the source's own reference ends in that txg at the earliest, after the new one is counted.
//!
//! Only blocks on disk are cloned: the intent log could not describe others.
//!
//! [`Handle::share_block`] replaces a block by a reference to an equal one while the object is in use. It needs no lock of
//! the file: the check that the block is still the one that was compared, and the change, are one step under the lock of
//! the handle's state, so a writer comes before it, and wins, or after it, and reads equal bytes. A crash leaves the same
//! bytes either way, so the intent log needs no record.

use std::sync::Arc;

use ondisk::Blkptr;

use super::change::{DirtyRecord, TxgChanges};
use super::handle::HandleState;
use super::needs::Needs;
use super::{Handle, LiveObjset};
use crate::dmu::Object;
use crate::dmu::tx::Tx;
use crate::error::{Error, Kind, Result};
use crate::txg::slot;

/// A block to be cloned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloneSource {
    /// Zeros.
    Hole,
    /// A stored block, or a pointer that embeds its bytes.
    Block(Blkptr),
    /// The block is not on disk yet: it can be cloned when all txgs until now are.
    Unwritten,
}

impl CloneSource {
    /// From a pointer that is on disk with txg `synced`; `bp` is `None` for a hole.
    fn of(bp: Option<Blkptr>, synced: u64) -> Result<Self> {
        let Some(bp) = bp.filter(|bp| !bp.is_hole()) else { return Ok(Self::Hole) };
        if bp.level() != 0 {
            return Err(Error::corrupt(format!("a pointer of level {} stands here", bp.level())));
        }
        if bp.is_redacted() {
            return Err(Error::unsupported("a redacted block cannot be cloned"));
        }
        Ok(if bp.physical_birth() > synced { Self::Unwritten } else { Self::Block(bp) })
    }
}

impl Object {
    /// Block `blkid` as the source of a clone; `synced` is the last txg on disk.
    ///
    /// # Errors
    /// Errors of reading indirect blocks; `Unsupported` for a redacted block.
    #[doc(alias = "dmu_read_l0_bps")]
    pub fn clone_source(&self, blkid: u64, synced: u64) -> Result<CloneSource> {
        if let Some(handle) = self.handle() {
            return handle.clone_source(blkid, synced);
        }
        let bp = self.blkptr(0, blkid)?;
        CloneSource::of(bp, synced).map_err(|e| e.at_block(self.at(0, blkid)))
    }
}

impl Handle {
    fn clone_source(&self, blkid: u64, synced: u64) -> Result<CloneSource> {
        let on_disk = {
            let state = self.state.read();
            for change in state.newest_first() {
                match change.blocks.get(&blkid) {
                    Some(DirtyRecord::Cloned(bp)) => return CloneSource::of(Some(*bp), synced),
                    Some(_) => return Ok(CloneSource::Unwritten),
                    None if change.gives_up(blkid) => return Ok(CloneSource::Hole),
                    None => {}
                }
            }
            // A block that is stored when the block size changes is rewritten at once.
            let is_same = state.synced.dnode.datablksz() == state.now.datablksz();
            if state.synced.dnode.is_free() || blkid > state.synced.dnode.maxblkid || !is_same {
                return Ok(CloneSource::Hole);
            }
            Arc::clone(&state.synced)
        };
        on_disk.clone_source(blkid, synced)
    }

    /// Makes block `blkid` another reference to `source`, whose logical size is the object's block size.
    ///
    /// # Errors
    /// `Invalid` if the sizes differ; errors of reading indirect blocks.
    #[doc(alias = "dmu_brt_clone")]
    pub fn clone_block(self: &Arc<Self>, tx: &Tx, blkid: u64, source: &Blkptr) -> Result<()> {
        if source.is_hole() {
            return self.free_blocks(tx, blkid, blkid.saturating_add(1));
        }
        if source.lsize() != self.dnode().datablksz() {
            return Err(Error::new(Kind::Invalid, "a cloned block has another size than the file's blocks"));
        }
        let mut bp = *source;
        bp.set_cloned(tx.txg());
        self.check_way_to(tx, blkid)?;
        let first = self.change(tx, |dnode, change| {
            dnode.maxblkid = dnode.maxblkid.max(blkid);
            change.put(blkid, DirtyRecord::Cloned(bp))
        })?;
        tx.cloned();
        if first { self.counts_clone(tx, blkid, &bp) } else { Ok(()) }
    }

    /// Makes block `blkid`, whose pointer is `was`, another reference to `source`, which has the same content. Returns false,
    /// and changes nothing, when the block is no longer that one or waits to be written.
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub(crate) fn share_block(
        self: &Arc<Self>,
        tx: &Tx,
        blkid: u64,
        was: &Blkptr,
        source: &Blkptr,
    ) -> Result<bool> {
        let synced = self.synced();
        let is_same = |pointer: Result<Blkptr>| match pointer {
            Ok(bp) => Ok(bp == *was),
            // The indirect block was freed, and its space reused, during the read.
            Err(_) if !Arc::ptr_eq(&synced, &self.synced()) => Ok(false),
            Err(e) => Err(e),
        };
        let is_there = !synced.dnode.is_free() && blkid <= synced.dnode.maxblkid;
        if !is_there || source.is_hole() || !is_same(synced.pointer(0, blkid))? {
            return Ok(false);
        }
        self.check_way_to(tx, blkid)?;
        let mut bp = *source;
        bp.set_cloned(tx.txg());
        let fits = |state: &HandleState| {
            let touches = |change: &TxgChanges| change.blocks.contains_key(&blkid) || change.gives_up(blkid);
            let changes = state.changes.iter().flatten();
            Arc::ptr_eq(&state.synced, &synced)
                && !changes.into_iter().any(|change| touches(change))
                && !state.now.is_free()
                && blkid <= state.now.maxblkid
                && state.now.datablksz() == source.lsize()
        };
        if self.change_if(tx, fits, |_, change| change.put(blkid, DirtyRecord::Cloned(bp)))?.is_none() {
            return Ok(false);
        }
        tx.cloned();
        self.counts_clone(tx, blkid, &bp)?;
        Ok(true)
    }

    /// Charges the blocks above a clone, and its bytes to the dataset's quotas, but no space.
    fn counts_clone(self: &Arc<Self>, tx: &Tx, blkid: u64, bp: &Blkptr) -> Result<()> {
        let objset = self.objset()?;
        let needs = self.change(tx, |dnode, change| {
            let mut needs = change.touched.path(&objset.policy.read(), dnode, blkid);
            needs += Needs::block(0, 1);
            needs
        })?;
        objset.needs(tx, needs);
        let copies = u8::try_from(bp.ndvas()).unwrap_or(u8::MAX);
        objset.pends(tx, Needs::block(bp.psize(), copies));
        tx.dirtied(ondisk::blkptr::BLKPTR_SIZE);
        Ok(())
    }
}

impl LiveObjset {
    /// Pointers that `txg` cloned, one for each new reference. Called when no transaction of the txg is open.
    pub(crate) fn cloned(&self, txg: u64) -> Vec<Blkptr> {
        let handles: Vec<Arc<Handle>> = match self.dirty.get(slot(txg)) {
            Some(list) => list.lock().values().cloned().collect(),
            None => return Vec::new(),
        };
        let mut all = Vec::new();
        for handle in handles {
            let state = handle.state.read();
            let change = state.changes.get(slot(txg)).and_then(Option::as_ref).filter(|c| c.txg == txg);
            all.extend(change.into_iter().flat_map(|change| change.cloned()).copied());
        }
        all
    }
}
