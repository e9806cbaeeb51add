//! Block lists and deadlists of the forms that a pool's version has.

use std::collections::BTreeSet;

use ondisk::bpobj::BpobjPhys;
use ondisk::dsl::Deadlist;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{Blkptr, ObjectType};
use zcommon::features::Feature;

use super::at::{MosAt, MosView, version};
use crate::dmu::NewObject;
use crate::dsl::bpobj::Lists;
use crate::dsl::deadlist::DeadList;
use crate::error::Result;

/// Bytes of a block of a block list.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
pub const BLOCK: u64 = 128 << 10;

/// Makes a block list.
#[doc(alias = "bpobj_alloc")]
pub fn alloc(at: &MosAt<'_>, block_size: u64) -> Result<u64> {
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

/// Makes a block list that stays empty for some time: all such lists may be one object.
#[doc(alias = "bpobj_alloc_empty")]
pub fn alloc_empty(at: &MosAt<'_>) -> Result<u64> {
    if !at.enabled(Feature::EmptyBpobj) {
        return alloc(at, BLOCK);
    }
    let shared = match at.active(Feature::EmptyBpobj) {
        true => at.zap_word(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ)?,
        false => None,
    };
    let number = match shared {
        Some(number) => number,
        None => {
            let number = alloc(at, BLOCK)?;
            at.zap_set(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ, number)?;
            number
        }
    };
    at.count(Feature::EmptyBpobj, 1)?;
    Ok(number)
}

/// Makes a deadlist.
#[doc(alias = "dsl_deadlist_alloc")]
pub fn alloc_deadlist(at: &MosAt<'_>) -> Result<u64> {
    if !at.since(version::DEADLISTS) {
        return alloc(at, BLOCK);
    }
    at.create_zap_with(ObjectType::DEADLIST, ObjectType::DEADLIST_HDR, Deadlist::SIZE, 0)
}

/// Makes an empty deadlist with the keys of another that are less than `before`. Where that one has none yet,
/// keys are made for `snapshot` and all before it.
#[doc(alias("dsl_deadlist_clone", "dsl_deadlist_regenerate"))]
pub fn clone_deadlist(at: &MosAt<'_>, deadlist: u64, before: u64, snapshot: u64) -> Result<u64> {
    let new = alloc_deadlist(at)?;
    let old = DeadList::open(at, deadlist)?;
    let keys: BTreeSet<u64> = match old.is_old() {
        false => old.entries()?.into_keys().take_while(|key| *key < before).collect(),
        true => previous_txgs(at, snapshot)?.into_iter().collect(),
    };
    let list = DeadList::open(at, new)?;
    keys.into_iter().try_for_each(|key| list.add_key(key))?;
    Ok(new)
}

fn previous_txgs(at: &MosAt<'_>, snapshot: u64) -> Result<Vec<u64>> {
    let (mut keys, mut next) = (Vec::new(), snapshot);
    while next != 0 && keys.len() < 1 << 20 {
        let phys = at.dataset(next)?;
        keys.push(phys.prev_snap_txg);
        next = phys.prev_snap_obj;
    }
    Ok(keys)
}

/// Removes a key of a deadlist that has it.
pub fn remove_key(at: &MosAt<'_>, deadlist: u64, txg: u64) -> Result<()> {
    let list = DeadList::open(at, deadlist)?;
    match !list.is_old() && list.entries()?.contains_key(&txg) {
        true => list.remove_key(txg),
        false => Ok(()),
    }
}

impl Lists for MosAt<'_> {
    fn dsize(&self, bp: &Blkptr) -> u64 {
        MosView::dsize(self, bp)
    }

    fn new_list(&self) -> Result<u64> {
        alloc(self, BLOCK)
    }

    fn empty_list(&self) -> Result<u64> {
        alloc_empty(self)
    }

    fn is_shared(&self, list: u64) -> Result<bool> {
        if !self.active(Feature::EmptyBpobj) {
            return Ok(false);
        }
        Ok(self.zap_word(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ)? == Some(list))
    }

    fn release_shared(&self) -> Result<()> {
        self.count(Feature::EmptyBpobj, -1)?;
        if self.active(Feature::EmptyBpobj) {
            return Ok(());
        }
        let shared = self.zap_word(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ)?;
        self.zap_remove(MOS_DIRECTORY_OBJECT, mos::EMPTY_BPOBJ)?;
        shared.map_or(Ok(()), |number| self.free_object(number))
    }
}
