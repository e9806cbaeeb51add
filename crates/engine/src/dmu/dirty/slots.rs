//! Object numbers as slots in blocks of dnodes, and the search for free ones.
//!
//! A number is free if its slot is free on disk and no object in memory uses it; the number of a freed object
//! becomes free once the free is on disk, or at once where nothing is written. A large dnode takes several slots of one block.

use std::sync::Arc;

use ondisk::{Dnode, Malformed, dnode};

use super::needs::{self, Needs};
use super::{Handle, LiveObjset, META_BLOCK};
use crate::dmu::SpecialObject;
use crate::error::{Error, Kind, Result};
use crate::txg::slot;

/// Slots in a block of dnodes.
const PER_BLOCK: u64 = META_BLOCK >> dnode::DNODE_SHIFT;

/// Block and slot of an object number.
pub(crate) fn place(number: u64) -> (u64, usize) {
    (number / PER_BLOCK, usize::try_from(number % PER_BLOCK).unwrap_or(0))
}

/// Whether a number is that of an object in the array, not in the root block.
pub(crate) fn is_ordinary(number: u64) -> bool {
    number != 0 && number < dnode::MAX_OBJECT
}

/// The dnode that begins in `slot` of a block; `None` if the slot is inside another one.
pub(crate) fn dnode_at(block: &[u8], slot: usize) -> std::result::Result<Option<Dnode>, Malformed> {
    let found = dnode::slots(block).find(|(at, _)| *at == slot);
    found.map(|(_, bytes)| Dnode::from_bytes(bytes)).transpose()
}

/// One bit for each used slot.
fn taken_on_disk(block: &[u8]) -> u32 {
    let mut bits = 0u32;
    for (slot, bytes) in dnode::slots(block) {
        if bytes.first().is_some_and(|&kind| kind != 0) {
            bits |= mask(slot, bytes.len() / dnode::DNODE_MIN_SIZE);
        }
    }
    bits
}

fn mask(slot: usize, count: usize) -> u32 {
    let ones = if count >= 32 { u32::MAX } else { (1u32 << count) - 1 };
    u32::try_from(slot).ok().and_then(|slot| ones.checked_shl(slot)).unwrap_or(0)
}

/// Where the search for a free object number continues.
#[derive(Debug)]
pub(super) struct NumberSearch {
    from: u64,
    /// The used slots of a block, as they were found there and with the numbers given since: a slot that has become free may
    /// be among them. To find them, all objects of the block are looked at.
    taken: Option<(u64, u32)>,
}

impl NumberSearch {
    /// A search that begins at that number.
    pub(super) fn from(from: u64) -> Self {
        Self { from, taken: None }
    }

    /// The search has found `number`, and an object of so many slots is there now.
    pub(super) fn gives(&mut self, number: u64, slots: usize) {
        let (blkid, slot) = place(number);
        self.from = number + u64::try_from(slots).unwrap_or(1);
        self.taken =
            self.taken.filter(|(of, _)| *of == blkid).map(|(of, bits)| (of, bits | mask(slot, slots)));
    }

    /// Objects get numbers that were not searched for.
    pub(super) fn forget(&mut self) {
        self.taken = None;
    }

    /// Numbers from `lowest` on have become free; none, if that is `u64::MAX`.
    pub(super) fn back_to(&mut self, lowest: u64) {
        if lowest < u64::MAX {
            self.forget();
        }
        self.from = self.from.min(lowest);
    }
}

impl LiveObjset {
    /// The used slots of a block.
    fn taken(&self, blkid: u64) -> Result<u32> {
        let meta = self.special(SpecialObject::Meta)?;
        let mut bits = if blkid <= meta.max_block() { taken_on_disk(&meta.block(blkid)?) } else { 0 };
        let first = blkid * PER_BLOCK;
        let handles = self.handles.lock();
        let in_memory = || handles.range(first..first + PER_BLOCK);
        let is_usable = |handle: &Handle| self.is_scratch() && handle.is_free();
        for (&number, handle) in in_memory().filter(|(_, handle)| is_usable(handle)) {
            bits &= !mask(place(number).1, handle.synced().dnode.slots());
        }
        for (&number, handle) in in_memory().filter(|(_, handle)| !is_usable(handle)) {
            bits |= mask(place(number).1, handle.slots());
        }
        drop(handles);
        Ok(bits | u32::from(blkid == 0))
    }

    /// Numbers of the objects of a block of dnodes, including those only in memory.
    pub(in crate::dmu) fn numbers_in(&self, block: &[u8], first: u64) -> Result<Vec<u64>> {
        let used = |(_, bytes): &(usize, &[u8])| bytes.first().is_some_and(|&kind| kind != 0);
        let on_disk =
            dnode::slots(block).filter(used).map(|(slot, _)| first + u64::try_from(slot).unwrap_or(0));
        let mut all: Vec<u64> = on_disk.collect();
        all.extend(self.in_memory(first, first + PER_BLOCK).iter().map(|h| h.number));
        all.sort_unstable();
        all.dedup();
        all.retain(|&n| is_ordinary(n));
        Ok(all)
    }

    /// The first block of dnodes from `blkid` on that has an object in memory.
    pub(in crate::dmu) fn next_block_in_memory(&self, blkid: u64) -> Option<u64> {
        let first = blkid.checked_mul(PER_BLOCK)?.max(1);
        self.first_in_memory(first).map(|number| place(number).0)
    }

    /// The first free number of the search with room for `slots`.
    pub(super) fn free_number(&self, search: &mut NumberSearch, slots: usize) -> Result<u64> {
        let (mut blkid, mut slot) = place(search.from);
        loop {
            if blkid.saturating_mul(PER_BLOCK) >= dnode::MAX_OBJECT {
                return Err(Error::new(Kind::NoSpace, "the object set has no object numbers left"));
            }
            let taken = match search.taken {
                Some((of, bits)) if of == blkid => bits,
                _ => self.taken(blkid)?,
            };
            search.taken = Some((blkid, taken));
            let room = usize::try_from(PER_BLOCK).unwrap_or(0).saturating_sub(slots);
            if let Some(found) = (slot..=room).find(|&at| taken & mask(at, slots) == 0) {
                return Ok(blkid * PER_BLOCK + u64::try_from(found).unwrap_or(0));
            }
            (blkid, slot) = (blkid + 1, 0);
        }
    }

    /// Whether a number and the following slots are free.
    pub(super) fn is_number_free(&self, number: u64, slots: usize) -> Result<bool> {
        let (blkid, slot) = place(number);
        let fits = slot + slots <= usize::try_from(PER_BLOCK).unwrap_or(0);
        Ok(is_ordinary(number) && fits && self.taken(blkid)? & mask(slot, slots) == 0)
    }
}

impl LiveObjset {
    /// The blocks needed to write the dnode of object `number`, which the txg has not changed yet.
    pub(super) fn dnode_needs(&self, txg: u64, number: u64) -> Needs {
        let list = self.dirty.get(slot(txg)).filter(|_| is_ordinary(number));
        let Some(list) = list else { return Needs::default() };
        let (list, (blkid, _)) = (list.lock(), place(number));
        let block = |(&n, _): (&u64, &Arc<Handle>)| place(n).0;
        let below = list.range(1..number).next_back().map(block);
        if below == Some(blkid) {
            return Needs::default();
        }
        let above = list.range(number.saturating_add(1)..dnode::MAX_OBJECT).next().map(block);
        drop(list);
        let root = self.root.read();
        needs::of_dnode(&self.policy.read(), &root.phys.meta_dnode, blkid, [below, above])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_cover_their_slots() {
        assert_eq!((mask(0, 1), mask(31, 1), mask(4, 2), mask(0, 32)), (1, 1 << 31, 0b11_0000, u32::MAX));
    }

    #[test]
    fn a_search_knows_the_numbers_it_gave_until_others_become_free() {
        let mut search = NumberSearch { from: 33, taken: Some((1, 0b11)) };
        search.gives(34, 2);
        assert_eq!((search.from, search.taken), (36, Some((1, 0b1111))));
        search.back_to(u64::MAX);
        assert_eq!((search.from, search.taken), (36, Some((1, 0b1111))));
        search.back_to(40);
        assert_eq!((search.from, search.taken), (36, None));
        search.taken = Some((1, 0b1111));
        search.back_to(35);
        assert_eq!((search.from, search.taken), (35, None));
        search.gives(64, 1);
        assert_eq!((search.from, search.taken), (65, None));
    }

    #[test]
    fn numbers_have_places() {
        assert_eq!((place(0), place(33)), ((0, 0), (1, 1)));
        assert!(!is_ordinary(0) && !is_ordinary(u64::MAX) && is_ordinary(5));
    }
}
