//! Trees that wait to be freed: root blocks of destroyed datasets, with the progress of freeing.
//!
//! The object is an array of entries, worked off from its front: `begin` is the first that is left. An entry
//! whose tree can't be read is left for later, and those behind it are worked off meanwhile; as `begin` can't
//! pass it, they say that they are done by a birth that no block has.
//!
//! Source: bptree.c, OpenZFS 2.3.

use ondisk::dsl::{Bptree, BptreeEntry};
use ondisk::{Blkptr, Byteswap, ObjectType};

use super::delta::Delta;
use crate::dmu::NewObject;
use crate::dmu::edit::{Edit, Objects};
use crate::error::{Error, Result};

/// Block size of the object.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
const BLOCK: u64 = 128 << 10;
/// `DMU_OTN_UINT64_METADATA`.
const KIND: ObjectType = ObjectType::newtype(Byteswap::Uint64, true, false);
/// An entry that is done has this birth: all blocks stay.
const DONE: u64 = u64::MAX;
/// Bytes of an entry.
const ENTRY: u64 = BptreeEntry::SIZE as u64;

/// Outcome of freeing a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreeOutcome {
    /// All its blocks are freed.
    Freed,
    /// Paused; the entry's bookmark has the position to continue from.
    Paused,
    /// A block can't be read; the entry's bookmark has its position.
    Unreadable,
}

/// Makes an empty list of trees.
#[doc(alias = "bptree_alloc")]
pub(crate) fn create(objects: &dyn Objects) -> Result<u64> {
    objects.create(&NewObject::with_bonus(KIND, BLOCK, KIND, Bptree::SIZE))
}

/// The list's head.
pub(crate) fn head(objects: &dyn Objects, number: u64) -> Result<Bptree> {
    let edit = objects.edit(number)?;
    let head = Bptree::from_bytes(&edit.bonus()).map_err(|e| corrupt(number, &e.to_string()))?;
    let held = edit.max_block().saturating_add(1).saturating_mul(edit.block_size());
    let fits = head.end.checked_mul(ENTRY).is_some_and(|end| end <= held) || head.begin == head.end;
    if head.begin > head.end || !fits {
        return Err(corrupt(number, "the object is shorter than the list that it holds"));
    }
    Ok(head)
}

/// Adds a tree: blocks under `bp` born after `birth_txg`, which have `space` together.
#[doc(alias = "bptree_add")]
pub(crate) fn add(
    objects: &dyn Objects,
    number: u64,
    bp: &Blkptr,
    birth_txg: u64,
    space: Delta,
) -> Result<()> {
    let mut head = head(objects, number)?;
    let entry = BptreeEntry { bp: *bp, birth_txg, ..BptreeEntry::default() };
    put(&mut *objects.edit(number)?, head.end, &entry)?;
    head.end += 1;
    charge(&mut head, space);
    objects.edit(number)?.set_bonus(&head.to_bytes())
}

/// Whether nothing is left.
#[doc(alias = "bptree_is_empty")]
pub(crate) fn is_empty(objects: &dyn Objects, number: u64) -> Result<bool> {
    let head = head(objects, number)?;
    Ok(head.begin == head.end)
}

/// Trees that are left.
#[cfg(test)]
pub(crate) fn entries(objects: &dyn Objects, number: u64) -> Result<Vec<BptreeEntry>> {
    let head = head(objects, number)?;
    let edit = objects.edit(number)?;
    let all: Result<Vec<_>> = (head.begin..head.end).map(|i| get(&*edit, i)).collect();
    Ok(all?.into_iter().filter(|entry| entry.birth_txg != DONE).collect())
}

/// Frees trees with `free`, which frees blocks, returns their space, and sets the entry's bookmark when it
/// doesn't reach the end. Returns whether it stopped at a pause.
#[doc(alias = "bptree_iterate")]
pub(crate) fn work(
    objects: &dyn Objects,
    number: u64,
    free: &mut dyn FnMut(&mut BptreeEntry) -> Result<(FreeOutcome, Delta)>,
) -> Result<bool> {
    let mut head = head(objects, number)?;
    let mut stuck = false;
    for i in head.begin..head.end {
        let mut entry = get(&*objects.edit(number)?, i)?;
        let (outcome, freed) = match entry.birth_txg {
            DONE => (FreeOutcome::Freed, Delta::default()),
            _ => free(&mut entry)?,
        };
        charge(&mut head, freed.negated());
        match outcome {
            FreeOutcome::Freed if stuck => {
                entry.birth_txg = DONE;
                put(&mut *objects.edit(number)?, i, &entry)?;
            }
            FreeOutcome::Freed => {
                head.begin = i + 1;
                clear(&mut *objects.edit(number)?, i)?;
            }
            FreeOutcome::Paused | FreeOutcome::Unreadable => put(&mut *objects.edit(number)?, i, &entry)?,
        }
        stuck |= outcome == FreeOutcome::Unreadable;
        objects.edit(number)?.set_bonus(&head.to_bytes())?;
        if outcome == FreeOutcome::Paused {
            return Ok(true);
        }
    }
    Ok(false)
}

fn charge(head: &mut Bptree, delta: Delta) {
    head.bytes = head.bytes.wrapping_add_signed(delta.used);
    head.comp = head.comp.wrapping_add_signed(delta.compressed);
    head.uncomp = head.uncomp.wrapping_add_signed(delta.uncompressed);
}

fn get(edit: &dyn Edit, index: u64) -> Result<BptreeEntry> {
    let at = index.checked_mul(ENTRY).ok_or_else(|| corrupt(edit.number(), "too many entries"))?;
    let bytes = edit.read_at(at, BptreeEntry::SIZE)?;
    BptreeEntry::from_bytes(&bytes).map_err(|e| corrupt(edit.number(), &e.to_string()))
}

fn put(edit: &mut dyn Edit, index: u64, entry: &BptreeEntry) -> Result<()> {
    let at = index.checked_mul(ENTRY).ok_or_else(|| corrupt(edit.number(), "too many entries"))?;
    edit.write_at(at, &entry.to_bytes())
}

/// Zeroes an entry that is done, and frees the block that ends in it.
fn clear(edit: &mut dyn Edit, index: u64) -> Result<()> {
    put(edit, index, &BptreeEntry::default())?;
    let size = edit.block_size().max(1);
    let (first, after) = (index * ENTRY / size, (index + 1) * ENTRY / size);
    // The last block stays: the object must not become shorter than its entries.
    if after > first && after <= edit.max_block() {
        edit.free_range(first, after - first)?;
    }
    Ok(())
}

fn corrupt(number: u64, what: &str) -> Error {
    Error::corrupt(format!("{what} (list of destroyed trees {number})"))
}
