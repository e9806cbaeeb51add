//! Space that waits to be free: the list of blocks of destroyed snapshots, the list of trees of destroyed heads.
//!
//! Each txg frees some of it. The rest belongs to `$FREE`; after a crash it is found as the last txg left it.
//!
//! A tree is freed from its leaves to its root ([`super::tree_walk`]); its entry has the position where the
//! next txg continues.

use std::ops::ControlFlow;

use ondisk::Blkptr;
use ondisk::dsl::{BptreeEntry, DslDataset, DslDir};
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use zcommon::features::Feature;

use super::hooks::version;
use super::mos_tx::MosTx;
use super::space;
use super::{lists, livelist, names, remap, tree_walk};
use crate::dmu::Objset;
use crate::dsl::Delta;
use crate::dsl::bpobj::BlockList;
use crate::dsl::bptree::{self, FreeOutcome};
use crate::error::{Error, Result};
use crate::zil;
use crate::zio::Form;

/// Outcome of [`process`].
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// Blocks that were freed.
    pub(crate) count: u64,
    /// The error that stopped the reading of a list; freed blocks are removed from it.
    pub(crate) unreadable: Option<Error>,
}

/// Frees up to `budget` blocks of the list and of trees that wait to be freed.
#[doc(alias = "dsl_process_async_destroys")]
pub(crate) fn process(at: &MosTx<'_>, budget: u64) -> Result<Freed> {
    let (mut left, mut unreadable) = (budget, None);
    if at.since(version::DEADLISTS) {
        unreadable = process_blocks(at, &mut left)?;
    }
    if left > 0 && at.active(Feature::AsyncDestroy) {
        process_trees(at, &mut left)?;
    }
    let of_clones = livelist::process(at, &mut left)?;
    remap::process(at)?;
    Ok(Freed { count: budget - left, unreadable: unreadable.or(of_clones) })
}

/// Frees blocks that other writers freed too late in their last txg. They are accounted for already.
#[doc(alias = "spa_sync_deferred_frees")]
pub(crate) fn process_deferred(at: &MosTx<'_>) -> Result<()> {
    let Some(list) = at.zap_word(MOS_DIRECTORY_OBJECT, mos::SYNC_BPOBJ)? else { return Ok(()) };
    let list = BlockList::open(at, list)?;
    if list.is_empty()? {
        return Ok(());
    }
    let freed = list.drain(&mut |bp, _| {
        at.free_block(bp)?;
        Ok(ControlFlow::Continue(()))
    });
    freed.map(|_| ())
}

/// Whether something waits to be freed.
pub(crate) fn is_waiting(at: &MosTx<'_>) -> Result<bool> {
    if at.active(Feature::AsyncDestroy) || livelist::is_waiting(at)? {
        return Ok(true);
    }
    Ok(at.since(version::DEADLISTS) && !BlockList::open(at, lists::free_bpobj(at)?)?.is_empty()?)
}

fn process_blocks(at: &MosTx<'_>, left: &mut u64) -> Result<Option<Error>> {
    let list = BlockList::open(at, lists::free_bpobj(at)?)?;
    if list.is_empty()? {
        return Ok(None);
    }
    let (mut freed, mut broke) = (Delta::default(), false);
    let done = list.drain(&mut |bp, _| {
        if *left == 0 {
            return Ok(ControlFlow::Break(()));
        }
        *left -= 1;
        freed = freed.plus(at.sizes(bp));
        at.free_block(bp).inspect_err(|_| broke = true)?;
        Ok(ControlFlow::Continue(()))
    });
    let unreadable = match done {
        Err(why) if !broke && why.is_damage() => Some(why),
        done => done.map(|_| None)?,
    };
    space::charge(at, names::free_dir(at)?, DslDir::USED_HEAD, freed.negated())?;
    Ok(unreadable)
}

fn process_trees(at: &MosTx<'_>, left: &mut u64) -> Result<()> {
    let Some(list) = at.zap_word(MOS_DIRECTORY_OBJECT, mos::BPTREE_OBJ)? else { return Ok(()) };
    let mut total = Delta::default();
    bptree::work(at, list, &mut |entry: &mut BptreeEntry| {
        if *left == 0 {
            return Ok((FreeOutcome::Paused, Delta::default()));
        }
        let mut freed = Delta::default();
        let outcome = tree_walk::blocks(at, entry, &mut |bp, may_pause| {
            if may_pause && *left == 0 {
                return Ok(ControlFlow::Break(()));
            }
            *left = left.saturating_sub(1);
            freed = freed.plus(at.sizes(bp));
            at.free_block(bp)?;
            Ok(ControlFlow::Continue(()))
        })?;
        total = total.plus(freed);
        Ok((outcome, freed))
    })?;
    space::charge(at, names::free_dir(at)?, DslDir::USED_HEAD, total.negated())?;
    if bptree::is_empty(at, list)? {
        at.count(Feature::AsyncDestroy, -1)?;
        at.zap_remove(MOS_DIRECTORY_OBJECT, mos::BPTREE_OBJ)?;
        at.free_object(list)?;
    }
    Ok(())
}

/// Frees a tree's blocks born after `birth` in this very txg.
pub(super) fn free_now(at: &MosTx<'_>, root: &Blkptr, birth: u64) -> Result<Delta> {
    let walk = |tell: &mut dyn FnMut(&Blkptr) -> Result<()>| {
        let mut entry = BptreeEntry { bp: *root, birth_txg: birth, ..BptreeEntry::default() };
        let outcome =
            tree_walk::blocks(at, &mut entry, &mut |bp, _| tell(bp).map(|()| ControlFlow::Continue(())))?;
        match outcome {
            FreeOutcome::Freed => Ok(()),
            _ => Err(Error::corrupt("the blocks of a dataset that is destroyed can't be read")),
        }
    };
    // A tree that can't be read stays whole. Walked twice, it takes no memory for each of its blocks.
    walk(&mut |_| Ok(()))?;
    let mut total = Delta::default();
    walk(&mut |bp| {
        total = total.plus(at.sizes(bp));
        at.free_block(bp)
    })?;
    Ok(total)
}

/// Frees the intent log of a head that is destroyed.
#[doc(alias = "zil_destroy_sync")]
pub(super) fn destroy_zil(at: &MosTx<'_>, head: &DslDataset) -> Result<()> {
    if head.bp.is_hole() {
        return Ok(());
    }
    let objset = Objset::open(at.mos.arc(), 0, &head.bp, Form::NoKey)?;
    let header = objset.phys.zil_header;
    if header.log.is_hole() {
        return Ok(());
    }
    // An unclaimed log has its first block only.
    if header.claim_txg == 0 {
        return at.free_block(&header.log);
    }
    let held = zil::held_by(&objset)?;
    held.blocks.iter().chain(&held.clones).try_for_each(|bp| at.free_block(bp))
}
