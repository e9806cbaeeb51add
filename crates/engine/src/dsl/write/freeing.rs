//! Space that waits to be free: the list of blocks of destroyed snapshots, the list of trees of destroyed heads.
//!
//! Each group works some of it off. What is left belongs to `$FREE`, and is found again after a crash as it was
//! after the last group.
//!
//! Differs from OpenZFS: a tree is freed whole within one group, so none is left half freed; one that another
//! writer left so waits for that writer.

use std::ops::ControlFlow;

use ondisk::dsl::{BptreeEntry, DslDataset, DslDir};
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos, special_dir};
use ondisk::{Blkptr, Bookmark as StoredBookmark, Dnode, ObjectType, dnode};
use zcommon::features::Feature;

use super::account::sizes;
use super::at::{MosAt, MosView, version};
use super::destroy::hidden_dir;
use super::space::{self, Delta};
use super::{livelist, remap};
use crate::dmu::{Objset, SpecialObject};
use crate::dsl::bpobj::BlockList;
use crate::dsl::bptree::{self, Outcome};
use crate::error::{Error, Result};
use crate::types::Bookmark;
use crate::zil;
use crate::zio::Form;
use std::sync::Arc;

/// The list of blocks to be freed.
pub(super) fn free_bpobj(at: &MosView<'_>) -> Result<u64> {
    let number = at.zap_word(MOS_DIRECTORY_OBJECT, mos::FREE_BPOBJ)?;
    number.ok_or_else(|| Error::corrupt("the pool has no list of blocks to be freed"))
}

/// The directory that what is to be freed belongs to.
pub(super) fn free_dir(at: &MosView<'_>) -> Result<u64> {
    hidden_dir(at, special_dir::FREE)
}

/// Frees a block, if it takes space at all.
pub(super) fn free(at: &MosAt<'_>, bp: &Blkptr) -> Result<()> {
    if bp.is_embedded() || bp.is_hole() { Ok(()) } else { at.hooks.free(bp, at.tx) }
}

/// Works off what waits to be freed: `budget` blocks of the list, and a tree as long as the budget lasts. Says how many
/// blocks that were.
#[doc(alias = "dsl_process_async_destroys")]
pub fn process(at: &MosAt<'_>, budget: u64) -> Result<u64> {
    let mut left = budget;
    if at.since(version::DEADLISTS) {
        process_blocks(at, &mut left)?;
    }
    if left > 0 && at.active(Feature::AsyncDestroy) {
        process_trees(at, &mut left)?;
    }
    livelist::process(at, &mut left)?;
    remap::process(at)?;
    Ok(budget - left)
}

/// Frees what other writers freed too late in their last group. It is accounted for already.
#[doc(alias = "spa_sync_deferred_frees")]
pub fn process_deferred(at: &MosAt<'_>) -> Result<()> {
    let Some(list) = at.zap_word(MOS_DIRECTORY_OBJECT, mos::SYNC_BPOBJ)? else { return Ok(()) };
    let list = BlockList::open(at, list)?;
    if list.is_empty()? {
        return Ok(());
    }
    let freed = list.drain(&mut |bp, _| {
        free(at, bp)?;
        Ok(ControlFlow::Continue(()))
    });
    freed.map(|_| ())
}

/// Whether something waits to be freed.
pub fn is_waiting(at: &MosAt<'_>) -> Result<bool> {
    if at.active(Feature::AsyncDestroy) || livelist::is_waiting(at)? {
        return Ok(true);
    }
    Ok(at.since(version::DEADLISTS) && !BlockList::open(at, free_bpobj(at)?)?.is_empty()?)
}

fn process_blocks(at: &MosAt<'_>, left: &mut u64) -> Result<()> {
    let list = BlockList::open(at, free_bpobj(at)?)?;
    if list.is_empty()? {
        return Ok(());
    }
    let mut freed = Delta::default();
    let _ = list.drain(&mut |bp, _| {
        if *left == 0 {
            return Ok(ControlFlow::Break(()));
        }
        *left -= 1;
        freed = freed.plus(sizes(at, bp));
        free(at, bp)?;
        Ok(ControlFlow::Continue(()))
    })?;
    space::charge(at, free_dir(at)?, DslDir::USED_HEAD, freed.negated())
}

fn process_trees(at: &MosAt<'_>, left: &mut u64) -> Result<()> {
    let Some(list) = at.zap_word(MOS_DIRECTORY_OBJECT, mos::BPTREE_OBJ)? else { return Ok(()) };
    let mut total = Delta::default();
    bptree::work(at, list, &mut |entry: &mut BptreeEntry| {
        if *left == 0 {
            return Ok((Outcome::Paused, Delta::default()));
        }
        if entry.zb != StoredBookmark::default() {
            return Ok((Outcome::Unreadable, Delta::default()));
        }
        let mut tree = Tree::open(at, &entry.bp, entry.birth_txg);
        // Everything is found before anything is freed: a tree that can't be read stays whole.
        if tree.root(&entry.bp).is_err() {
            return Ok((Outcome::Unreadable, Delta::default()));
        }
        *left = left.saturating_sub(u64::try_from(tree.found.len()).unwrap_or(u64::MAX));
        let freed = tree.free()?;
        total = total.plus(freed);
        Ok((Outcome::Freed, freed))
    })?;
    space::charge(at, free_dir(at)?, DslDir::USED_HEAD, total.negated())?;
    if bptree::is_empty(at, list)? {
        at.count(Feature::AsyncDestroy, -1)?;
        at.zap_remove(MOS_DIRECTORY_OBJECT, mos::BPTREE_OBJ)?;
        at.free_object(list)?;
    }
    Ok(())
}

/// Frees a tree's blocks born after `birth` in this very group.
pub(super) fn free_now(at: &MosAt<'_>, root: &Blkptr, birth: u64) -> Result<Delta> {
    let mut tree = Tree::open(at, root, birth);
    tree.root(root)?;
    tree.free()
}

/// Frees the intent log of a head that is destroyed.
#[doc(alias = "zil_destroy_sync")]
pub(super) fn destroy_zil(at: &MosAt<'_>, head: &DslDataset) -> Result<()> {
    if head.bp.is_hole() {
        return Ok(());
    }
    let objset = Objset::open(at.mos.arc(), 0, &head.bp, Form::NoKey)?;
    let header = objset.phys.zil_header;
    if header.log.is_hole() {
        return Ok(());
    }
    // A log that nobody claimed has its first block only.
    if header.claim_txg == 0 {
        return free(at, &header.log);
    }
    zil::blocks_of(&objset)?.iter().try_for_each(|bp| free(at, bp))
}

/// The blocks of an object set that are younger than a snapshot.
struct Tree<'a> {
    at: MosAt<'a>,
    birth: u64,
    found: Vec<Blkptr>,
}

impl<'a> Tree<'a> {
    fn open(at: &MosAt<'a>, _: &Blkptr, birth: u64) -> Self {
        Self { at: *at, birth, found: Vec::new() }
    }

    fn wants(&self, bp: &Blkptr) -> bool {
        !bp.is_hole() && !bp.is_redacted() && bp.logical_birth() > self.birth
    }

    fn root(&mut self, bp: &Blkptr) -> Result<()> {
        if !self.wants(bp) {
            return Ok(());
        }
        let objset = Objset::open(self.at.mos.arc(), 0, bp, Form::NoKey)?;
        let all = [
            SpecialObject::Meta,
            SpecialObject::UserUsed,
            SpecialObject::GroupUsed,
            SpecialObject::ProjectUsed,
        ];
        for which in all {
            if let Some(object) = objset.special(which) {
                self.dnode(&objset, which.number(), &object.dnode)?;
            }
        }
        self.found.push(*bp);
        Ok(())
    }

    fn dnode(&mut self, objset: &Arc<Objset>, number: u64, dnode: &Dnode) -> Result<()> {
        let top = dnode.nlevels.saturating_sub(1);
        for (i, bp) in dnode.blkptrs().iter().enumerate() {
            let at = Bookmark::new(0, number, i64::from(top), u64::try_from(i).unwrap_or(0));
            self.block(objset, bp, at)?;
        }
        if let Some(bp) = dnode.spill().filter(|bp| self.wants(bp)) {
            self.found.push(*bp);
        }
        Ok(())
    }

    fn block(&mut self, objset: &Arc<Objset>, bp: &Blkptr, at: Bookmark) -> Result<()> {
        if !self.wants(bp) {
            return Ok(());
        }
        let level = i64::from(bp.level());
        if level != at.level {
            return Err(Error::corrupt("a block pointer of another level").at_block(at));
        }
        if level > 0 {
            let bytes = objset.arc().read(bp, at, objset.form())?;
            let (pointers, _) = bytes.as_chunks::<{ ondisk::blkptr::BLKPTR_SIZE }>();
            let count = u64::try_from(pointers.len()).unwrap_or(0);
            for (i, bytes) in (0..).zip(pointers) {
                let child = Blkptr::from_bytes(bytes).unwrap_or_default();
                let below = at.blkid.saturating_mul(count).saturating_add(i);
                self.block(objset, &child, Bookmark::new(0, at.object, level - 1, below))?;
            }
        } else if bp.object_type() == ObjectType::DNODE {
            let bytes = objset.arc().read(bp, at, objset.form())?;
            for (_, bytes) in dnode::slots(&bytes) {
                let dnode =
                    Dnode::from_bytes(bytes).map_err(|e| Error::corrupt(e.to_string()).at_block(at))?;
                if !dnode.is_free() {
                    self.dnode(objset, at.object, &dnode)?;
                }
            }
        }
        self.found.push(*bp);
        Ok(())
    }

    fn free(self) -> Result<Delta> {
        let mut total = Delta::default();
        for bp in &self.found {
            total = total.plus(sizes(&self.at, bp));
            free(&self.at, bp)?;
        }
        Ok(total)
    }
}
