//! Livelists: the blocks of a clone's own, recorded as they are written, so that destroying the clone needs
//! no walk.
//!
//! A new clone gets an empty list; each sync of the clone adds births and frees ([`super::account`]). A clone
//! that has little in common with its origin any more is better walked: its list is dropped. When a clone is
//! destroyed, its list waits among the *deleted clones*, and each txg frees the remaining blocks of some of
//! its parts. Where a list begins, older ones that are mostly freed are joined ([`DeadList::note_live`]); OpenZFS does that in
//! a thread of its own.

use ondisk::Blkptr;
use ondisk::dsl::{DslDataset, DslDir};
use ondisk::names::{MOS_DIRECTORY_OBJECT, dsl_dir, mos};
use zcommon::features::Feature;

use super::mos_tx::{MosTx, MosView, ZAPIFIED};
use super::space;
use super::{lists, names};
use crate::dsl::Delta;
use crate::dsl::bpobj::{BlockList, Lists};
use crate::dsl::deadlist::{DeadList, unfreed};
use crate::error::{Error, Result};
use crate::memory::Limit;
use crate::memory::limits::MINUS_ONE;

/// The livelist of a directory.
pub(super) fn of(at: &MosView<'_>, dir: u64) -> Result<Option<u64>> {
    Ok(at.extra(dir, dsl_dir::LIVELIST)?.and_then(|value| value.first()))
}

/// A new clone's directory gets a livelist.
pub(super) fn begin(at: &MosTx<'_>, dir: u64) -> Result<()> {
    if !at.enabled(Feature::Livelist) {
        return Ok(());
    }
    let list = lists::alloc_deadlist(at)?;
    at.set_extra(dir, dsl_dir::LIVELIST, list)?;
    at.count(Feature::Livelist, 1)
}

/// Blocks after which a list is closed.
pub(super) fn most(at: &MosTx<'_>) -> u64 {
    at.mos.view().arc().limits().get(Limit::LivelistMax)
}

/// A directory no longer has a livelist.
#[doc(alias = "dsl_dir_remove_livelist")]
pub(super) fn remove(at: &MosTx<'_>, dir: u64) -> Result<()> {
    let Some(list) = of(at, dir)? else { return Ok(()) };
    at.zap_remove(dir, dsl_dir::LIVELIST)?;
    DeadList::open(at, list)?.free()?;
    at.count(Feature::Livelist, -1)
}

/// Drops the livelist of a clone that has become too much of its own.
#[doc(alias = "dsl_livelist_should_disable")]
pub(super) fn review(at: &MosTx<'_>, head: &DslDataset) -> Result<()> {
    let dir = at.dir(head.dir_obj)?;
    let own = dir.used_breakdown.get(DslDir::USED_HEAD).copied().unwrap_or(0);
    let referenced = head.referenced_bytes;
    let least = at.mos.view().arc().limits().get(Limit::LivelistShared);
    if least == MINUS_ONE {
        return Ok(());
    }
    let shared = u128::from(referenced.saturating_sub(own)) * 100;
    match shared <= u128::from(referenced) * u128::from(least) && referenced > 0 {
        true => remove(at, head.dir_obj),
        false => Ok(()),
    }
}

/// A clone is destroyed: the blocks in its livelist are freed over time.
#[doc(alias = "dsl_async_clone_destroy")]
pub(super) fn doom(at: &MosTx<'_>, head: &DslDataset, list: u64) -> Result<()> {
    let doomed = match at.zap_word(MOS_DIRECTORY_OBJECT, mos::DELETED_CLONES)? {
        Some(doomed) => doomed,
        None => {
            let doomed = at.create_zap(ZAPIFIED)?;
            at.zap_add(MOS_DIRECTORY_OBJECT, mos::DELETED_CLONES, doomed)?;
            doomed
        }
    };
    at.zap(doomed, |zap| zap.add_int(list))?;
    at.zap_remove(head.dir_obj, dsl_dir::LIVELIST)?;
    let dir = at.dir(head.dir_obj)?;
    let all = Delta::of(dir.used_bytes, dir.compressed_bytes, dir.uncompressed_bytes);
    space::charge(at, head.dir_obj, DslDir::USED_HEAD, all.negated())?;
    space::charge(at, names::free_dir(at)?, DslDir::USED_HEAD, all)
}

/// Whether destroyed clones wait to be freed.
pub(super) fn is_waiting(at: &MosView<'_>) -> Result<bool> {
    Ok(at.zap_word(MOS_DIRECTORY_OBJECT, mos::DELETED_CLONES)?.is_some())
}

/// Frees blocks of destroyed clones, part by part as long as the budget lasts. Returns the error that stopped the
/// reading of a list, if any.
#[doc(alias = "spa_livelist_delete_cb")]
pub(super) fn process(at: &MosTx<'_>, left: &mut u64) -> Result<Option<Error>> {
    let Some(doomed) = at.zap_word(MOS_DIRECTORY_OBJECT, mos::DELETED_CLONES)? else { return Ok(None) };
    for entry in at.zap_entries(doomed)? {
        let Some(number) = entry.value.first() else { continue };
        let list = DeadList::open(at, number)?;
        let parts = match list.entries() {
            Err(why) if why.is_damage() => return Ok(Some(why)),
            parts => parts?,
        };
        for (key, part) in parts {
            if *left == 0 {
                return Ok(None);
            }
            match unfreed_of(at, part, *left) {
                Err(why) if why.is_damage() => return Ok(Some(why)),
                found => {
                    if !free_part(at, &list, found?, left)? {
                        return Ok(None);
                    }
                }
            }
            list.remove_entry(key)?;
        }
        list.free()?;
        at.zap(doomed, |zap| zap.remove_int(number))?;
        at.count(Feature::Livelist, -1)?;
    }
    at.zap_remove(MOS_DIRECTORY_OBJECT, mos::DELETED_CLONES)?;
    at.free_object(doomed)?;
    Ok(None)
}

/// Blocks that a part of a livelist has left, `most` of them, and whether there are more. It changes nothing.
fn unfreed_of(at: &MosTx<'_>, part: u64, most: u64) -> Result<(Vec<Blkptr>, bool)> {
    if at.is_shared(part)? { Ok((Vec::new(), false)) } else { unfreed(&BlockList::open(at, part)?, most) }
}

/// Frees blocks of a part; true when none is left. Blocks freed from a part that remains are recorded in it, as if the clone had
/// freed them: so the next txg, or the next import, frees the rest.
fn free_part(
    at: &MosTx<'_>,
    list: &DeadList<'_>,
    (blocks, more): (Vec<Blkptr>, bool),
    left: &mut u64,
) -> Result<bool> {
    let mut freed = Delta::default();
    for bp in &blocks {
        freed = freed.plus(at.sizes(bp));
        at.free_block(bp)?;
        *left = left.saturating_sub(1);
    }
    if more {
        list.insert(&blocks, true)?;
    }
    space::charge(at, names::free_dir(at)?, DslDir::USED_HEAD, freed.negated())?;
    Ok(!more)
}
