//! An object gets another block size while it is in use: all its blocks are exchanged in one txg.
//!
//! ```text
//!  few blocks    reshape: all old blocks are freed, and the caller writes all new ones, under one transaction
//!  many blocks   exchange: the new blocks are the tree of another object, complete on disk; the two dnodes exchange their
//!                trees, and keep their bonus buffers, spill blocks and numbers
//! ```
//!
//! Crash argument: both changes are part of one txg, so every uberblock refers to the old tree or to the new one. An exchange
//! writes two dnodes and nothing below them. It requires both trees to be on disk and without waiting changes: the exchanged
//! trees are then the base of all later changes, and no txg that is still being written can refer to the former ones.
//!
//! Lock order: the state of the object that keeps its name, then that of the other. Nothing else locks two states.
//!
//! Differs from OpenZFS, which changes the block size of an object only while it has at most one block.

use std::sync::Arc;

use ondisk::Dnode;

use super::change::{Spill, TxgChanges};
use super::handle::HandleState;
use super::{Handle, LiveObjset};
use crate::dmu::Object;
use crate::dmu::tx::Tx;
use crate::error::{Error, Kind, Result};

/// The fields of a dnode that describe its tree of blocks.
fn exchange_trees(a: &mut Dnode, b: &mut Dnode) {
    std::mem::swap(&mut a.nlevels, &mut b.nlevels);
    std::mem::swap(&mut a.indblkshift, &mut b.indblkshift);
    std::mem::swap(&mut a.datablkszsec, &mut b.datablkszsec);
    std::mem::swap(&mut a.maxblkid, &mut b.maxblkid);
    for index in 0..a.nblkptr().min(b.nblkptr()) {
        let pointer = |dnode: &Dnode| dnode.blkptrs().get(index).copied().unwrap_or_default();
        let (of_a, of_b) = (pointer(a), pointer(b));
        a.set_blkptr(index, of_b);
        b.set_blkptr(index, of_a);
    }
}

fn touches_blocks(change: &TxgChanges) -> bool {
    change.wipe
        || !change.freed.is_empty()
        || !change.marked.is_empty()
        || !change.blocks.is_empty()
        || !change.dropped.is_empty()
}

impl HandleState {
    /// Whether its tree is the one on disk, and no txg before `txg` is still to be written.
    fn is_settled(&self, txg: u64) -> bool {
        let settled = |change: &TxgChanges| change.txg == txg && !touches_blocks(change);
        !self.synced.dnode.is_free()
            && !self.now.is_free()
            && self.changes.iter().flatten().all(|change| settled(change))
    }
}

impl LiveObjset {
    /// Bytes of the blocks of an object without its spill block.
    fn tree_bytes(&self, dnode: &Dnode) -> u64 {
        let tree = self.arc().zio().tree();
        let spill = dnode.spill().filter(|bp| !bp.is_hole()).map_or(0, |bp| crate::zio::deflated(&tree, bp));
        dnode.used.saturating_sub(spill)
    }
}

impl Handle {
    /// Whether blocks wait to be written or freed.
    pub fn has_waiting_blocks(&self) -> bool {
        self.state.read().changes.iter().flatten().any(|change| touches_blocks(change))
    }

    /// Frees all blocks; the object keeps its bonus and its spill block, and its blocks have `bytes` bytes. The caller writes
    /// all of its content under the same transaction.
    ///
    /// # Errors
    /// Errors of reading the spill block, or indirect blocks.
    pub fn reshape(self: &Arc<Self>, tx: &Tx, bytes: u64) -> Result<()> {
        let spill = self.spill()?;
        self.check_readable(0, u64::MAX)?;
        tx.frees(self.max_block().saturating_add(1).min(super::LONG));
        self.change(tx, |dnode, change| {
            change.free_all();
            change.spill = spill.map_or(Spill::Same, Spill::Set);
            (dnode.maxblkid, dnode.nlevels) = (0, 1);
            dnode.datablkszsec = u16::try_from(bytes >> ondisk::MIN_BLOCK_SHIFT).unwrap_or(u16::MAX);
        })
    }

    /// Makes blocks `[start, end)` holes that are born in `tx`'s txg, also where they were holes before. The object reaches up
    /// to `end` afterwards.
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub fn mark_holes(self: &Arc<Self>, tx: &Tx, start: u64, end: u64) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        // One that is past the last block would be cut off by a free.
        self.change(tx, |dnode, _| dnode.maxblkid = dnode.maxblkid.max(end))?;
        self.free_blocks(tx, start, end)?;
        self.change(tx, |_, change| {
            change.marked.insert(start, end);
        })
    }

    /// Exchanges the trees of two objects of one object set under `tx`, when both are on disk and nothing waits to change them;
    /// returns whether they were.
    ///
    /// # Errors
    /// `Invalid` when the dnodes have different numbers of pointers, or the objects are one.
    pub fn exchange(self: &Arc<Self>, other: &Arc<Self>, tx: &Tx) -> Result<bool> {
        if Arc::ptr_eq(self, other) || !self.objset.ptr_eq(&other.objset) {
            return Err(Error::new(
                Kind::Invalid,
                "blocks are exchanged between two objects of one object set",
            ));
        }
        // Both dnodes are written with this txg.
        self.touch(tx)?;
        other.touch(tx)?;
        let objset = self.objset()?;
        let (mut ours, mut theirs) = (self.state.write(), other.state.write());
        if !ours.is_settled(tx.txg()) || !theirs.is_settled(tx.txg()) {
            return Ok(false);
        }
        if ours.now.nblkptr() != theirs.now.nblkptr() {
            return Err(Error::unsupported("the dnode of the file has another number of pointers"));
        }
        let (mut a, mut b) = (ours.synced.dnode.clone(), theirs.synced.dnode.clone());
        let sizes = (objset.tree_bytes(&a), objset.tree_bytes(&b));
        exchange_trees(&mut a, &mut b);
        let moved = |used: u64, from: u64, to: u64| used.saturating_sub(from).saturating_add(to);
        (a.used, b.used) = (moved(a.used, sizes.0, sizes.1), moved(b.used, sizes.1, sizes.0));
        let HandleState { now: our_now, .. } = &mut *ours;
        let HandleState { now: their_now, .. } = &mut *theirs;
        exchange_trees(our_now, their_now);
        (our_now.used, their_now.used) = (a.used, b.used);
        // Readers have the new tree from now on; the accounts of owners see no change, which is right when both have one owner.
        ours.synced = Arc::new(Object::stored(&ours.synced.objset, self.number, a));
        theirs.synced = Arc::new(Object::stored(&theirs.synced.objset, other.number, b));
        ours.names.content_changed();
        theirs.names.content_changed();
        Ok(true)
    }
}
