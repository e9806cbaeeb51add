//! An object set in the order in which it is sent: the meta dnode's blocks, in each its objects, of each
//! object its blocks by offset and then its spill block.

use std::collections::HashSet;
use std::sync::Arc;

use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::{Blkptr, Dnode, Dva, dnode};

use super::records::Sender;
use crate::dmu::{Object, Objset, SpecialObject};
use crate::error::{Error, Kind, Result};
use crate::types::Bookmark;
use crate::zio::Form;

/// Data blocks that are asked for before they are wanted.
const AHEAD: usize = 16;

/// Tells the sender of everything in the object set that is younger than `from_txg`. Holes are told of
/// whenever they were made: old ones don't know it.
pub(super) fn walk(objset: &Arc<Objset>, from_txg: u64, to: &mut Sender<'_>) -> Result<()> {
    let meta = objset.special(SpecialObject::Meta).ok_or_else(|| Error::corrupt("no meta dnode"))?;
    Walk { from_txg, to, seen: HashSet::new() }.object(&meta)
}

struct Walk<'a, 'b> {
    from_txg: u64,
    to: &'a mut Sender<'b>,
    /// Indirect blocks of the object at hand. One that comes twice is a forgery: it would let a few blocks claim
    /// any number of others.
    seen: HashSet<Dva>,
}

impl Walk<'_, '_> {
    fn object(&mut self, object: &Object) -> Result<()> {
        let outer = std::mem::take(&mut self.seen);
        let told = self.blocks(object);
        self.seen = outer;
        told
    }

    fn blocks(&mut self, object: &Object) -> Result<()> {
        let top = object.dnode.nlevels.saturating_sub(1);
        self.ahead(object, object.dnode.blkptrs().iter());
        for (blkid, bp) in (0_u64..).zip(object.dnode.blkptrs()) {
            self.visit(object, bp, top, blkid)?;
        }
        match object.dnode.spill() {
            Some(bp) if !self.is_old(bp) => self.to.spill(object, bp),
            _ => Ok(()),
        }
    }

    fn is_old(&self, bp: &Blkptr) -> bool {
        bp.logical_birth() != 0 && bp.logical_birth() <= self.from_txg
    }

    /// One pointer and what is below it; the level only goes down.
    fn visit(&mut self, object: &Object, bp: &Blkptr, level: u8, blkid: u64) -> Result<()> {
        if self.is_old(bp) {
            return Ok(());
        }
        if bp.is_hole() {
            return self.hole(object, level, blkid);
        }
        if level == 0 {
            return if object.number == 0 {
                self.dnodes(object, bp, blkid)
            } else {
                self.data(object, bp, blkid)
            };
        }
        if bp.dva(0).is_some_and(|dva| !self.seen.insert(dva)) {
            let at = Bookmark::new(object.objset.id, object.number, i64::from(level), blkid);
            let what = "an indirect block stands at two places of its object";
            return Err(Error::new(Kind::Loop, what).at_block(at));
        }
        let block = object.indirect(bp, level, blkid)?;
        let children: Vec<Blkptr> = block.chunks_exact(BLKPTR_SIZE).filter_map(Blkptr::from_bytes).collect();
        let shift = object.dnode.blocks_per_indirect_shift();
        for (slot, child) in children.iter().enumerate() {
            if level == 1 && slot % AHEAD == 0 {
                self.ahead(object, children.iter().skip(slot).take(2 * AHEAD));
            }
            let first = blkid.checked_shl(shift).unwrap_or(u64::MAX);
            self.visit(object, child, level - 1, first.saturating_add(u64::try_from(slot).unwrap_or(0)))?;
        }
        Ok(())
    }

    /// Starts reading what will be wanted in the form that the cache keeps.
    fn ahead<'c>(&self, object: &Object, pointers: impl Iterator<Item = &'c Blkptr>) {
        let form = object.objset.form();
        for bp in pointers.filter(|bp| !self.is_old(bp)) {
            if bp.level() > 0 || object.number == 0 || self.to.form_of(bp) != Form::Physical {
                let at = Bookmark::new(object.objset.id, object.number, i64::from(bp.level()), 0);
                object.objset.arc().prefetch(bp, at, form);
            }
        }
    }

    /// First block and number of blocks that a pointer of this level covers; `None` when there are no such
    /// numbers, or when a file ends before it: that it is a hole goes without saying.
    fn span(&self, object: &Object, level: u8, blkid: u64) -> Option<(u64, u64)> {
        let span = 1_u64.checked_shl(u32::from(level) * object.dnode.blocks_per_indirect_shift())?;
        let start = span.checked_mul(blkid)?;
        let inside = start <= object.dnode.maxblkid || object.dnode.object_type.is_metadata();
        inside.then_some((start, span))
    }

    fn hole(&mut self, object: &Object, level: u8, blkid: u64) -> Result<()> {
        match self.span(object, level, blkid) {
            Some((start, span)) => self.to.hole(object, start, start.wrapping_add(span)),
            None => Ok(()),
        }
    }

    fn data(&mut self, object: &Object, bp: &Blkptr, blkid: u64) -> Result<()> {
        match self.span(object, 0, blkid) {
            Some((start, _)) if bp.is_redacted() => self.to.redacted(object, start),
            Some((start, _)) => self.to.data(object, bp, start),
            None => Ok(()),
        }
    }

    /// A block of dnodes: each object, each free slot.
    fn dnodes(&mut self, meta: &Object, bp: &Blkptr, blkid: u64) -> Result<()> {
        self.to.object_range(bp, blkid, meta.dnode.datablksz() >> dnode::DNODE_SHIFT)?;
        let block = meta.block(blkid)?;
        let per_block = meta.dnode.datablksz() >> dnode::DNODE_SHIFT;
        for (slot, bytes) in dnode::slots(&block) {
            let number = blkid.saturating_mul(per_block).saturating_add(u64::try_from(slot).unwrap_or(0));
            if number == 0 {
                continue;
            }
            let at = Bookmark::new(meta.objset.id, number, 0, 0);
            let dnode = Dnode::from_bytes(bytes).map_err(|e| Error::corrupt(e.to_string()).at_block(at))?;
            if dnode.is_free() {
                self.to.free_objects(number, 1)?;
                continue;
            }
            let object = Object::stored(&meta.objset, number, dnode);
            self.to.object(&object, bp, bytes)?;
            self.object(&object)?;
        }
        Ok(())
    }
}
