//! An object set in the order in which it is sent: the meta dnode's blocks, in each its objects, of each
//! object its blocks by offset and then its spill block.

use std::collections::HashSet;
use std::sync::Arc;

use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::{Blkptr, DnodeRef, Dva, dnode};

use super::Meter;
use super::event::{DnodeAt, Dnodes, Event, Sink};
use crate::dmu::{Object, Objset, SpecialObject};
use crate::error::{Error, Kind, Result};
use crate::taskq::start_reads;
use crate::types::Bookmark;

/// Pointers of an indirect block whose targets are read before they are wanted.
const AHEAD: usize = 32;

/// Start of a walk, and the parts that it skips.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Begin {
    /// Blocks that are not younger are skipped.
    pub(crate) from_txg: u64,
    /// Objects before the first and blocks of it before the second are skipped.
    pub(crate) resume: (u64, u64),
    /// Holes behind the end of their object are met, too.
    pub(crate) past_end: bool,
    /// Encrypted blocks go as they are, with their MACs.
    pub(crate) raw: bool,
    /// Holes of unknown birth are not met where they are older than `from_txg`.
    pub(crate) skip_old_holes: bool,
}

impl Begin {
    /// Whether the receiver has the block (or what is below it) already. OpenZFS's `zfs rewrite -P` seals a block anew and
    /// keeps its logical birth; its indirect block authenticates the new MAC, so a raw stream needs the
    /// block.
    fn is_old(&self, bp: &Blkptr) -> bool {
        let birth = if self.raw && bp.is_encrypted() { bp.accounting_birth() } else { bp.logical_birth() };
        birth != 0 && birth <= self.from_txg
    }
}

/// Passes everything in the object set to `to`. Holes that don't record their birth are passed unless they are known to
/// be old.
pub(super) fn walk(objset: &Arc<Objset>, begin: Begin, to: &mut dyn Sink, meter: &Meter) -> Result<()> {
    let meta = objset.special(SpecialObject::Meta).ok_or_else(|| Error::corrupt("no meta dnode"))?;
    // With one block of dnodes no object number was used twice.
    let reuses_numbers = meta.dnode.maxblkid > 0;
    Walk { begin, to, meter, seen: HashSet::new(), reuses_numbers }.object(&Arc::new(meta))
}

struct Walk<'a> {
    begin: Begin,
    to: &'a mut dyn Sink,
    meter: &'a Meter,
    /// Indirect blocks of the object at hand. One that comes twice is a forgery: it would let a few blocks claim
    /// any number of others.
    seen: HashSet<Dva>,
    /// An object may have the number of an earlier one: its holes of unknown birth can be younger than they seem.
    reuses_numbers: bool,
}

impl Walk<'_> {
    fn object(&mut self, object: &Arc<Object>) -> Result<()> {
        let outer = std::mem::take(&mut self.seen);
        let told = self.blocks(object);
        self.seen = outer;
        told
    }

    fn blocks(&mut self, object: &Arc<Object>) -> Result<()> {
        let top = object.dnode.nlevels.saturating_sub(1);
        self.ahead(object, object.dnode.blkptrs().iter());
        for (blkid, bp) in (0_u64..).zip(object.dnode.blkptrs()) {
            self.visit(object, bp, top, blkid)?;
        }
        match object.dnode.spill() {
            Some(bp) if !self.is_old(bp) => {
                self.to.take(Event::Spill { object: Arc::clone(object), bp: *bp })
            }
            _ => Ok(()),
        }
    }

    fn is_old(&self, bp: &Blkptr) -> bool {
        self.begin.is_old(bp)
    }

    /// Whether all below a pointer comes before the place where the walk begins.
    #[doc(alias = "zbookmark_subtree_completed")]
    fn is_behind(&self, object: &Object, level: u8, blkid: u64) -> bool {
        let (first, block) = self.begin.resume;
        let below = u32::from(level) * object.dnode.blocks_per_indirect_shift();
        let next = blkid.saturating_add(1);
        let end = if below < next.leading_zeros() { next << below } else { u64::MAX };
        match object.number {
            0 => end.saturating_mul(object.dnode.datablksz() >> dnode::DNODE_SHIFT) <= first,
            number => number == first && end <= block,
        }
    }

    /// Visits one pointer and the blocks below it; the level only goes down.
    fn visit(&mut self, object: &Arc<Object>, bp: &Blkptr, level: u8, blkid: u64) -> Result<()> {
        if self.is_old(bp) || self.is_behind(object, level, blkid) {
            return Ok(());
        }
        self.meter.visit()?;
        if bp.is_hole() {
            return self.hole(object, bp, level, blkid);
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
        let first = blkid.checked_shl(object.dnode.blocks_per_indirect_shift()).unwrap_or(u64::MAX);
        let children = (0_u64..).zip(block.chunks_exact(BLKPTR_SIZE).filter_map(Blkptr::from_bytes));
        let young: Vec<(u64, Blkptr)> = children.filter(|(_, bp)| !self.is_old(bp)).collect();
        for (at, (slot, child)) in young.iter().enumerate() {
            if (level > 1 || object.number == 0) && at % AHEAD == 0 {
                self.ahead(object, young.iter().skip(at).take(2 * AHEAD).map(|(_, bp)| bp));
            }
            self.visit(object, child, level - 1, first.saturating_add(*slot))?;
        }
        Ok(())
    }

    /// Starts reading blocks that lead to others; data are read by the one that writes records. Many are started by
    /// another thread: to start a read takes about as long as to write the records of an object.
    fn ahead<'c>(&self, object: &Object, pointers: impl Iterator<Item = &'c Blkptr>) {
        let wanted = pointers.filter(|bp| !self.is_old(bp) && (bp.level() > 0 || object.number == 0));
        let wanted: Vec<Blkptr> = wanted.copied().collect();
        let (arc, form) = (Arc::clone(object.objset.arc()), object.objset.form());
        let (objset, number) = (object.objset.id, object.number);
        let start = move |bp: &Blkptr| {
            arc.prefetch(bp, Bookmark::new(objset, number, i64::from(bp.level()), 0), form);
        };
        match wanted.as_slice() {
            [] => {}
            [one] => start(one),
            _ => {
                let executor = Arc::clone(object.objset.arc().zio().executor());
                executor.spawn(Box::new(move || start_reads(|| wanted.iter().for_each(start))));
            }
        }
    }

    /// First block and number of blocks that a pointer of this level covers; `None` when there are no such
    /// numbers, or when a file ends before it: that it is a hole goes without saying.
    fn span(&self, object: &Object, level: u8, blkid: u64) -> Option<(u64, u64)> {
        let span = 1_u64.checked_shl(u32::from(level) * object.dnode.blocks_per_indirect_shift())?;
        let start = span.checked_mul(blkid)?;
        let inside =
            start <= object.dnode.maxblkid || object.dnode.object_type.is_metadata() || self.begin.past_end;
        inside.then_some((start, span))
    }

    fn hole(&mut self, object: &Arc<Object>, bp: &Blkptr, level: u8, blkid: u64) -> Result<()> {
        let is_stable = object.number == 0 || !self.reuses_numbers;
        if self.begin.skip_old_holes && bp.logical_birth() == 0 && is_stable {
            return Ok(());
        }
        let Some((start, span)) = self.span(object, level, blkid) else { return Ok(()) };
        let end = start.wrapping_add(span);
        self.to.take(match object.number {
            0 => Event::NoObjects { start, end },
            _ => Event::Hole { object: Arc::clone(object), start, end, birth: bp.logical_birth() },
        })
    }

    fn data(&mut self, object: &Arc<Object>, bp: &Blkptr, blkid: u64) -> Result<()> {
        let Some((start, _)) = self.span(object, 0, blkid) else { return Ok(()) };
        let size = object.dnode.datablksz();
        self.to.take(match bp.is_redacted() {
            true => Event::Redact { object: object.number, start, end: start.saturating_add(1), size },
            false => Event::Data { object: Arc::clone(object), bp: *bp, blkid: start },
        })
    }

    /// A block of dnodes: each object, each free slot.
    fn dnodes(&mut self, meta: &Object, bp: &Blkptr, blkid: u64) -> Result<()> {
        let per_block = meta.dnode.datablksz() >> dnode::DNODE_SHIFT;
        self.to.take(Event::Dnodes { bp: *bp, blkid, slots: per_block })?;
        let block = Arc::new(Dnodes { bp: *bp, bytes: meta.block(blkid)? });
        for (slot, bytes) in dnode::slots(&block.bytes) {
            let number = blkid.saturating_mul(per_block).saturating_add(u64::try_from(slot).unwrap_or(0));
            if number < self.begin.resume.0.max(1) {
                continue;
            }
            let at = Bookmark::new(meta.objset.id, number, 0, 0);
            let found =
                DnodeRef::from_bytes(bytes).map_err(|e| Error::corrupt(e.to_string()).at_block(at))?;
            let Some(found) = found else {
                self.to.take(Event::NoObject { number })?;
                continue;
            };
            let start = slot * dnode::DNODE_MIN_SIZE;
            let (dnodes, slots) = (Arc::clone(&block), start..start + bytes.len());
            let spill = found.spill();
            self.to.take(Event::Object(DnodeAt { number, dnodes, slots, has_spill: spill.is_some() }))?;
            // Most objects of a block have not changed.
            if found.blkptrs().chain(spill).any(|bp| !self.is_old(&bp)) {
                self.object(&Arc::new(Object::stored(&meta.objset, number, found.to_dnode())))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ondisk::blkptr::Properties;
    use ondisk::{ChecksumType, CompressType, Dva, ObjectType};

    use super::*;

    #[test]
    fn a_raw_stream_has_the_encrypted_blocks_that_moved() {
        let moved = |crypt: bool| {
            let mut bp = Blkptr::stored(&Properties {
                lsize: 4096,
                psize: 4096,
                compress: CompressType::Off,
                checksum: ChecksumType::Sha256,
                object_type: ObjectType::PLAIN_FILE_CONTENTS,
                level: 0,
                crypt,
                dedup: false,
            });
            bp.set_dvas(&[Dva { offset: 8192, asize: 4096, ..Dva::default() }]);
            bp.set_moved(5, 50);
            bp
        };
        let old = |raw: bool, from_txg: u64, crypt: bool| {
            Begin { from_txg, raw, ..Begin::default() }.is_old(&moved(crypt))
        };
        assert!(old(false, 10, false) && old(true, 10, false) && old(false, 10, true));
        assert!(!old(true, 10, true), "its MAC is new");
        assert!(old(true, 50, true) && !old(false, 4, false));
    }
}
