//! Space written between two moments of a file system's history.
//!
//! The bytes written since a snapshot are the growth of the referenced bytes, plus the older data freed
//! since: those blocks are in the deadlists of the snapshots (and the head) in between.

use ondisk::bpobj::Bpobj;
use ondisk::dsl::{Deadlist, ZfsBookmark};
use ondisk::{Blkptr, Byteswap};

use crate::dmu::{Dense, Object};
use crate::dsl::{Dataset, Dsl, malformed};
use crate::error::{Error, Kind, Result};
use crate::zap::Zap;

/// Bytes of one block list that are read to count its blocks by birth.
const MAX_LIST: u64 = 1 << 32;

/// Space in three measures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes allocated.
    pub used: u64,
    /// Bytes before redundancy.
    pub comp: u64,
    /// Bytes before compression.
    pub uncomp: u64,
}

impl Space {
    fn plus(self, other: Self) -> Self {
        Self {
            used: self.used.wrapping_add(other.used),
            comp: self.comp.wrapping_add(other.comp),
            uncomp: self.uncomp.wrapping_add(other.uncomp),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            used: self.used.wrapping_sub(other.used),
            comp: self.comp.wrapping_sub(other.comp),
            uncomp: self.uncomp.wrapping_sub(other.uncomp),
        }
    }
}

/// A moment that space can be measured from: a snapshot, or a bookmark that has sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenSince {
    /// Its txg.
    pub txg: u64,
    /// Its referenced space.
    pub referenced: Space,
    /// The snapshot.
    at: At,
}

/// The snapshot of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// It is there, and has this number.
    Number(u64),
    /// It may be gone. The bookmark counts the space that it referenced and the snapshot after it, or the head, does not.
    Freed(Space),
}

impl WrittenSince {
    /// The moment of a snapshot.
    pub fn of(snapshot: &Dataset) -> Self {
        let (phys, at) = (&snapshot.phys, At::Number(snapshot.number));
        Self { txg: phys.creation_txg, referenced: referenced(snapshot), at }
    }

    /// The moment of a bookmark; `None` for a bookmark without sizes.
    pub fn of_bookmark(phys: &ZfsBookmark) -> Option<Self> {
        let referenced = Space {
            used: phys.referenced_bytes_refd,
            comp: phys.compressed_bytes_refd,
            uncomp: phys.uncompressed_bytes_refd,
        };
        let freed = Space {
            used: phys.referenced_freed_before_next_snap,
            comp: phys.compressed_freed_before_next_snap,
            uncomp: phys.uncompressed_freed_before_next_snap,
        };
        let has_sizes = phys.flags & ZfsBookmark::FLAG_HAS_FBN != 0;
        has_sizes.then_some(Self { txg: phys.creation_txg, referenced, at: At::Freed(freed) })
    }
}

/// Space written in `new` since its snapshot `old`; `Invalid` when `old` is not before it.
#[doc(alias = "dsl_dataset_space_written")]
pub fn since_snapshot(old: &Dataset, new: &Dataset) -> Result<Space> {
    since(WrittenSince::of(old), new)
}

/// Space written in `new` since `old`.
///
/// # Errors
/// `Invalid` when `old` is not before it. A bookmark is taken for one of the same file system or volume.
///
/// Source: `dsl_dataset_space_written_impl`, dsl_dataset.c, OpenZFS 2.4.
#[doc(alias = "dsl_dataset_space_written_impl")]
pub fn since(old: WrittenSince, new: &Dataset) -> Result<Space> {
    let stray = || Error::new(Kind::Invalid, "not an earlier snapshot of it").in_dataset(&new.name);
    if old.at == At::Number(new.number) {
        return Ok(Space::default());
    }
    if new.is_snapshot() && new.phys.creation_txg <= old.txg {
        return Err(stray());
    }
    let (mut freed, mut at) = (Space::default(), new.clone());
    while at.phys.prev_snap_txg > old.txg {
        freed = freed.plus(deadlist_space(&new.dsl, at.phys.deadlist_obj, old.txg)?);
        at = one_before(&at)?.ok_or_else(stray)?;
    }
    let before_next = match old.at {
        At::Freed(space) => space,
        At::Number(number) if at.phys.prev_snap_obj == number => {
            deadlist_space(&new.dsl, at.phys.deadlist_obj, u64::MAX)?
        }
        At::Number(_) => return Err(stray()),
    };
    Ok(referenced(new).minus(old.referenced).plus(freed).plus(before_next))
}

/// The snapshot before a dataset; `None` before the first one, and where the chain does not go back in time and so would never
/// end.
fn one_before(at: &Dataset) -> Result<Option<Dataset>> {
    if at.phys.prev_snap_obj == 0 {
        return Ok(None);
    }
    let before = Dataset::open(&at.dsl, at.phys.prev_snap_obj, at.name.clone())?;
    Ok(Some(before).filter(|before| before.phys.prev_snap_txg < at.phys.prev_snap_txg))
}

/// Space that is freed with the snapshots from `first` to `last` of one file system or volume: blocks that only these refer to.
///
/// # Errors
/// `Invalid` when `first` is neither `last` nor before it.
#[doc(alias = "dsl_dataset_space_wouldfree")]
pub fn freed_with(first: &Dataset, last: &Dataset) -> Result<Space> {
    let stray = || Error::new(Kind::Invalid, "not an earlier snapshot of it").in_dataset(&first.name);
    let (dsl, since) = (&first.dsl, first.phys.prev_snap_txg);
    let mut freed = Space::default();
    // Blocks that the snapshots share died before one of those that follow, or in the head.
    let mut at = Dataset::open(dsl, last.phys.next_snap_obj, last.name.clone())?;
    while at.number != first.number {
        let dead = |max_txg: u64| deadlist_space(dsl, at.phys.deadlist_obj, max_txg);
        freed = freed.plus(dead(u64::MAX)?.minus(dead(since)?));
        at = one_before(&at)?.ok_or_else(stray)?;
    }
    Ok(freed)
}

/// Space written in a dataset since the snapshot before it; `None` where there is none.
#[doc(alias = "dsl_get_written")]
pub(crate) fn since_previous(dataset: &Dataset) -> Result<Option<u64>> {
    if dataset.phys.prev_snap_obj == 0 {
        return Ok(None);
    }
    let previous = Dataset::open(&dataset.dsl, dataset.phys.prev_snap_obj, dataset.name.clone())?;
    since_snapshot(&previous, dataset).map(|space| Some(space.used))
}

fn referenced(dataset: &Dataset) -> Space {
    let p = &dataset.phys;
    Space { used: p.referenced_bytes, comp: p.compressed_bytes, uncomp: p.uncompressed_bytes }
}

/// Space of the blocks in a deadlist that were born at or before `max_txg`; all of them for `u64::MAX`.
#[doc(alias = "dsl_deadlist_space_range")]
pub(crate) fn deadlist_space(dsl: &Dsl, number: u64, max_txg: u64) -> Result<Space> {
    if number == 0 {
        return Ok(Space::default());
    }
    let object = dsl.mos.object(number)?;
    if object.dnode.object_type.byteswap() != Some(Byteswap::Zap) {
        // Before version 26 a deadlist was one block list.
        return list_space(dsl, &object, max_txg);
    }
    if max_txg == u64::MAX {
        let head = Deadlist::from_bytes(object.dnode.bonus()).map_err(|e| malformed(number, &e))?;
        return Ok(Space { used: head.used, comp: head.comp, uncomp: head.uncomp });
    }
    let mut total = Space::default();
    for entry in Zap::open(&object)?.to_vec()? {
        // Keys are the lowest birth of each list, in hex; a list holds births above its key only.
        let from = u64::from_str_radix(&entry.name_lossy(), 16).unwrap_or(u64::MAX);
        if from < max_txg {
            let list = entry.value.first().ok_or_else(|| Error::corrupt("deadlist entry without a list"))?;
            let list = dsl.mos.object(list)?;
            total = total.plus(bonus_space(&list)?);
        }
    }
    Ok(total)
}

fn bonus_space(list: &Object) -> Result<Space> {
    let bpo = Bpobj::from_bonus(list.dnode.bonus()).map_err(|e| malformed(list.number, &e))?;
    Ok(Space { used: bpo.phys.bytes, comp: bpo.phys.comp, uncomp: bpo.phys.uncomp })
}

/// Space of a block list, counting block by block when only some births are wanted.
fn list_space(dsl: &Dsl, list: &Object, max_txg: u64) -> Result<Space> {
    if max_txg == u64::MAX {
        return bonus_space(list);
    }
    let bpo = Bpobj::from_bonus(list.dnode.bonus()).map_err(|e| malformed(list.number, &e))?;
    let bytes = bpo.phys.num_blkptrs.saturating_mul(128);
    if bytes > MAX_LIST || bytes > list.max_offset() {
        return Err(Error::new(Kind::Limit, format!("block list {} is too long", list.number)));
    }
    let mut total = Space::default();
    let mut left = usize::try_from(bpo.phys.num_blkptrs).unwrap_or(usize::MAX);
    for block in Dense::new(list, bytes) {
        let block = block?;
        let pointers: Vec<Blkptr> =
            block.as_chunks::<128>().0.iter().take(left).filter_map(|raw| Blkptr::from_bytes(raw)).collect();
        left = left.saturating_sub(pointers.len());
        for bp in pointers.into_iter().filter(|bp| bp.accounting_birth() <= max_txg) {
            let used = crate::zio::deflated(&dsl.arc.zio().tree(), &bp);
            total = total.plus(Space { used, comp: bp.psize(), uncomp: bp.ucsize() });
        }
    }
    Ok(total)
}
