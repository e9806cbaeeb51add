//! Unreferenced blocks that still hold their space: the lists that a later sync processes.
//!
//! - `sync_bplist`: frees that came too late in a sync;
//! - `free_bpobj`: blocks of destroyed snapshots that are not freed yet;
//! - the bptree: whole object sets of destroyed heads;
//! - deleted livelists: blocks of destroyed clones (allocations without their free).
//!
//! Format source: bpobj.c, bptree.c, dsl_deadlist.c, OpenZFS 2.3.

use std::collections::{HashMap, HashSet};

use ondisk::bpobj::{Bpobj, is_free_entry};
use ondisk::dsl::{Bptree, BptreeEntry};
use ondisk::{Blkptr, names};

use super::traverse::{ReferenceKind, Stop, Visit, Visitor, orphan};
use crate::dmu::{Dense, Object};
use crate::error::{Error, Result};
use crate::spa::Pool;
use crate::types::Bookmark;
use crate::zap::Zap;

/// Maximum sublists of one list.
const MAX_LISTS: usize = 1 << 20;
/// Maximum blocks of one part of a livelist: OpenZFS starts a new part after half a million.
const MAX_LIVE: u64 = 1 << 20;
const BLKPTR: u64 = 128;

/// Visits every block that is still to be freed.
pub(crate) fn deferred(pool: &Pool, visitor: &mut dyn Visitor) -> std::result::Result<(), Stop> {
    for name in [names::mos::SYNC_BPOBJ, names::mos::FREE_BPOBJ] {
        let mut tell = |bp: &Blkptr, at| visitor.block(&deferred_visit(bp, at));
        let met = entry(pool, name).and_then(|number| match number {
            Some(number) => bpobj(pool, number, &mut tell),
            None => Ok(Ok(())),
        });
        stop_or_tell(met, visitor)?;
    }
    stop_or_tell(trees(pool, visitor), visitor)?;
    let met = livelists(pool, visitor);
    stop_or_tell(met, visitor)
}

fn deferred_visit(bp: &Blkptr, at: Bookmark) -> Visit<'_> {
    Visit { bp, at, origin: ReferenceKind::Deferred, dnode: None }
}

type Met = Result<std::result::Result<(), Stop>>;

fn stop_or_tell(met: Met, visitor: &mut dyn Visitor) -> std::result::Result<(), Stop> {
    met.unwrap_or_else(|e| {
        visitor.unreadable(e.place().block.unwrap_or_default(), &e);
        Ok(())
    })
}

/// An object number in the pool's directory.
fn entry(pool: &Pool, name: &str) -> Result<Option<u64>> {
    Ok(pool.directory()?.u64(name)?.filter(|&n| n != 0))
}

/// Visits each pointer in a block list and its sublists.
pub fn bpobj(
    pool: &Pool,
    number: u64,
    tell: &mut dyn FnMut(&Blkptr, Bookmark) -> std::result::Result<(), Stop>,
) -> Met {
    let mut todo = vec![number];
    let mut seen = HashSet::new();
    while let Some(number) = todo.pop() {
        if !seen.insert(number) || seen.len() > MAX_LISTS {
            return Err(Error::corrupt(format!("block list {number} contains itself")));
        }
        let object = pool.mos.object(number)?;
        let head = Bpobj::from_bonus(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
        if head.have_subobj && head.phys.subobjs != 0 {
            todo.extend(sublists(pool, head.phys.subobjs, head.phys.num_subobjs)?);
        }
        if let Err(stop) = pointers(&object, head.phys.num_blkptrs, tell)? {
            return Ok(Err(stop));
        }
    }
    Ok(Ok(()))
}

fn sublists(pool: &Pool, number: u64, count: u64) -> Result<Vec<u64>> {
    let object = pool.mos.object(number)?;
    let bytes = count.checked_mul(8).filter(|&n| n <= object.max_offset() && count <= MAX_LISTS as u64);
    let bytes = bytes.and_then(|n| usize::try_from(n).ok());
    let bytes = bytes.ok_or_else(|| Error::corrupt(format!("object {number} cannot hold {count} lists")))?;
    let mut raw = Vec::new();
    for block in Dense::new(&object, count.saturating_mul(8)) {
        raw.extend_from_slice(&block?);
    }
    raw.truncate(bytes);
    Ok(raw.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect())
}

/// The first `count` pointers of an array object, the last first: the order of freeing.
fn pointers(
    object: &Object,
    count: u64,
    tell: &mut dyn FnMut(&Blkptr, Bookmark) -> std::result::Result<(), Stop>,
) -> Met {
    let per_block = (object.dnode.datablksz() / BLKPTR).max(1);
    let mut blocks = Dense::new(object, count.saturating_mul(BLKPTR));
    for blkid in (0..count.div_ceil(per_block)).rev() {
        if blkid % 16 == 0 {
            object.read_ahead(blkid.saturating_sub(16), 16, false);
        }
        let block = blocks.get(blkid)?;
        let here = (count - blkid * per_block).min(per_block);
        let raw = block.as_chunks::<128>().0.iter().take(usize::try_from(here).unwrap_or(usize::MAX));
        for bp in raw.rev().filter_map(|raw| Blkptr::from_bytes(raw)) {
            if let Err(stop) = tell(&bp, Bookmark::new(0, object.number, 0, blkid)) {
                return Ok(Err(stop));
            }
        }
    }
    Ok(Ok(()))
}

/// Object sets under destruction.
fn trees(pool: &Pool, visitor: &mut dyn Visitor) -> Met {
    let Some(number) = entry(pool, names::mos::BPTREE_OBJ)? else { return Ok(Ok(())) };
    let object = pool.mos.object(number)?;
    let head = Bptree::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
    if head.end.saturating_sub(head.begin) > MAX_LISTS as u64 {
        return Err(Error::corrupt("the list of destroyed trees is too long"));
    }
    for i in head.begin..head.end {
        let at = i.checked_mul(BptreeEntry::SIZE as u64).filter(|at| *at < object.max_offset());
        let at = at.ok_or_else(|| Error::corrupt("the list of destroyed trees is shorter than it says"))?;
        let raw = object.read_vec(at, BptreeEntry::SIZE)?;
        let entry = BptreeEntry::from_bytes(&raw).map_err(|e| Error::corrupt(e.to_string()))?;
        if let Err(stop) = orphan(pool, &mut Orphans { visitor }, &entry) {
            return Ok(Err(stop));
        }
    }
    Ok(Ok(()))
}

/// Passes blocks of a destroyed tree on as still to be freed.
struct Orphans<'a> {
    visitor: &'a mut dyn Visitor,
}

impl Visitor for Orphans<'_> {
    fn block(&mut self, visit: &Visit<'_>) -> std::result::Result<(), Stop> {
        if visit.bp.is_redacted() {
            return Ok(());
        }
        self.visitor.block(&deferred_visit(visit.bp, visit.at))
    }

    fn unreadable(&mut self, at: Bookmark, error: &Error) {
        self.visitor.unreadable(at, error);
    }
}

/// The livelists of destroyed clones.
fn livelists(pool: &Pool, visitor: &mut dyn Visitor) -> Met {
    let Some(number) = entry(pool, names::mos::DELETED_CLONES)? else { return Ok(Ok(())) };
    for list in Zap::open(&pool.mos.object(number)?)?.to_vec()? {
        let Some(list) = list.value.first() else { continue };
        for part in Zap::open(&pool.mos.object(list)?)?.to_vec()? {
            let Some(part) = part.value.first() else { continue };
            for (bp, count) in alive(pool, part)? {
                for _ in 0..count {
                    if let Err(stop) = visitor.block(&deferred_visit(&bp, Bookmark::new(0, part, 0, 0))) {
                        return Ok(Err(stop));
                    }
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Blocks that a part of a livelist has allocated more often than freed.
fn alive(pool: &Pool, number: u64) -> Result<Vec<(Blkptr, i64)>> {
    let mut counts: HashMap<(u32, u64), (Blkptr, i64)> = HashMap::new();
    let mut met = 0_u64;
    let mut tell = |bp: &Blkptr, _| {
        met += 1;
        if met > MAX_LIVE {
            return Err(Stop);
        }
        if let Some(dva) = bp.dva(0) {
            let slot = counts.entry((dva.vdev, dva.offset)).or_insert((*bp, 0));
            slot.1 += if is_free_entry(bp) { -1 } else { 1 };
        }
        Ok(())
    };
    if bpobj(pool, number, &mut tell)?.is_err() {
        return Err(Error::new(crate::Kind::Limit, format!("livelist {number} is too long")));
    }
    let mut alive: Vec<(Blkptr, i64)> = counts.into_values().filter(|(_, n)| *n > 0).collect();
    alive.sort_unstable_by_key(|(bp, _)| bp.dva(0).map(|d| (d.vdev, d.offset)));
    Ok(alive)
}
