//! Block lists and deadlists of the forms that a pool's version has.

use std::collections::BTreeSet;

use ondisk::bpobj::BpobjPhys;
use ondisk::dsl::Deadlist;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{Blkptr, CompressType, ObjectType};
use zcommon::features::Feature;

use super::hooks::version;
use super::mos_tx::{MosTx, MosView};
use crate::dmu::NewObject;
use crate::dsl::bpobj::Lists;
use crate::dsl::deadlist::DeadList;
use crate::error::{Error, Result};

/// Bytes of a block of a block list.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
pub(crate) const BLOCK: u64 = 128 << 10;
/// Bytes of a block of the list of late frees.
const DEFERRED_BLOCK: u64 = 16 << 10;

/// Makes a block list.
#[doc(alias = "bpobj_alloc")]
pub(crate) fn alloc(at: &MosTx<'_>, block_size: u64) -> Result<u64> {
    let bonus = if !at.since(version::BPOBJ_ACCOUNT) {
        16
    } else if !at.since(version::DEADLISTS) {
        32
    } else if !at.active(Feature::Livelist) {
        48
    } else {
        BpobjPhys::SIZE
    };
    at.create_object(NewObject::with_bonus(ObjectType::BPOBJ, block_size, ObjectType::BPOBJ_HDR, bonus))
}

/// Makes the list of frees that came too late in their txg (`sync_bplist`).
pub(crate) fn alloc_deferred(at: &MosTx<'_>) -> Result<u64> {
    let number = alloc(at, DEFERRED_BLOCK)?;
    at.mos.handle(number)?.set_functions(at.tx, 0, CompressType::Off.raw())?;
    Ok(number)
}

/// Makes block lists that stay empty for some time: all such lists may be one object.
#[doc(alias = "bpobj_alloc_empty")]
fn alloc_empty(at: &MosTx<'_>, count: usize) -> Result<Vec<u64>> {
    if !at.enabled(Feature::EmptyBpobj) {
        return (0..count).map(|_| alloc(at, BLOCK)).collect();
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    let number = match at.shared()? {
        Some(number) => number,
        None => {
            let number = alloc(at, BLOCK)?;
            at.zap_set(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ, number)?;
            number
        }
    };
    at.count(Feature::EmptyBpobj, i64::try_from(count).unwrap_or(i64::MAX))?;
    Ok(vec![number; count])
}

/// Makes a deadlist.
#[doc(alias = "dsl_deadlist_alloc")]
pub(crate) fn alloc_deadlist(at: &MosTx<'_>) -> Result<u64> {
    if !at.since(version::DEADLISTS) {
        return alloc(at, BLOCK);
    }
    at.create_zap_with(ObjectType::DEADLIST, ObjectType::DEADLIST_HDR, Deadlist::SIZE, 0)
}

/// Makes an empty deadlist with the keys of another that are less than `before`. Where that one has none yet,
/// keys are made for `snapshot` and all before it.
#[doc(alias("dsl_deadlist_clone", "dsl_deadlist_regenerate"))]
pub(crate) fn clone_deadlist(at: &MosTx<'_>, deadlist: u64, before: u64, snapshot: u64) -> Result<u64> {
    let new = alloc_deadlist(at)?;
    let (old, list) = (DeadList::open(at, deadlist)?, DeadList::open(at, new)?);
    if old.is_old() {
        let keys: BTreeSet<u64> = previous_txgs(at, snapshot)?.into_iter().collect();
        keys.into_iter().try_for_each(|key| list.add_key(key))?;
    } else {
        list.take_keys(&old, before)?;
    }
    Ok(new)
}

fn previous_txgs(at: &MosTx<'_>, snapshot: u64) -> Result<Vec<u64>> {
    let (mut keys, mut next) = (Vec::new(), snapshot);
    while next != 0 && keys.len() < 1 << 20 {
        let phys = at.dataset(next)?;
        keys.push(phys.prev_snap_txg);
        next = phys.prev_snap_obj;
    }
    Ok(keys)
}

/// Removes a key of a deadlist that has it.
pub(crate) fn remove_key(at: &MosTx<'_>, deadlist: u64, txg: u64) -> Result<()> {
    remove_key_of(&DeadList::open(at, deadlist)?, txg)
}

/// The same of an open one.
pub(super) fn remove_key_of(list: &DeadList<'_>, txg: u64) -> Result<()> {
    match !list.is_old() && list.has_key(txg)? {
        true => list.remove_key(txg),
        false => Ok(()),
    }
}

/// The list of blocks to be freed.
pub(super) fn free_bpobj(at: &MosView<'_>) -> Result<u64> {
    let number = at.zap_word(MOS_DIRECTORY_OBJECT, mos::FREE_BPOBJ)?;
    number.ok_or_else(|| Error::corrupt("the pool has no list of blocks to be freed"))
}

impl Lists for MosTx<'_> {
    fn dsize(&self, bp: &Blkptr) -> u64 {
        MosView::dsize(self, bp)
    }

    fn new_list(&self) -> Result<u64> {
        alloc(self, BLOCK)
    }

    fn empty_lists(&self, count: usize) -> Result<Vec<u64>> {
        alloc_empty(self, count)
    }

    fn shared(&self) -> Result<Option<u64>> {
        match self.active(Feature::EmptyBpobj) {
            true => self.zap_word(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ),
            false => Ok(None),
        }
    }

    fn release_shared(&self, uses: usize) -> Result<()> {
        if uses == 0 {
            return Ok(());
        }
        self.count(Feature::EmptyBpobj, -i64::try_from(uses).unwrap_or(i64::MAX))?;
        if self.active(Feature::EmptyBpobj) {
            return Ok(());
        }
        let shared = self.zap_word(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ)?;
        self.zap_remove(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ)?;
        shared.map_or(Ok(()), |number| self.free_object(number))
    }
}
