//! An object set in the order in which it is sent: the meta dnode's blocks, in each its objects, of each
//! object its blocks by offset and then its spill block.

use std::sync::Arc;

use ondisk::Blkptr;

use super::Meter;
use super::event::{DnodeAt, Sink, StreamEvent};
use crate::dmu::{Objset, SpecialObject};
use crate::error::{Error, Result};
use crate::traverse::SPILL;
use crate::traverse::resume::Resume;
use crate::traverse::tree::{DeadEnd, DnodeSlot, Pointer, Starts, Traversal, TreeVisitor};

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
    let resume = (begin.resume != (0, 0)).then(|| Resume::at(begin.resume.0, begin.resume.1));
    let mut walk = Walk { begin, to, meter, reuses_numbers };
    Traversal::new(objset, &mut walk, resume).special(SpecialObject::Meta)
}

struct Walk<'a> {
    begin: Begin,
    to: &'a mut dyn Sink,
    meter: &'a Meter,
    /// An object may have the number of an earlier one: its holes of unknown birth can be younger than they seem.
    reuses_numbers: bool,
}

impl Walk<'_> {
    /// First block and number of blocks that a pointer covers; `None` when there are no such
    /// numbers, or when a file ends before it: that it is a hole goes without saying.
    fn span(&self, pointer: &Pointer<'_>) -> Option<(u64, u64)> {
        let (start, span) = pointer.span()?;
        let dnode = &pointer.object.dnode;
        let inside = start <= dnode.maxblkid || dnode.object_type.is_metadata() || self.begin.past_end;
        inside.then_some((start, span))
    }

    fn data(&mut self, pointer: &Pointer<'_>) -> Result<()> {
        let Some((start, _)) = self.span(pointer) else { return Ok(()) };
        let (bp, object) = (*pointer.bp, pointer.object);
        let (number, size) = (object.number, object.dnode.datablksz());
        self.to.take(match bp.is_redacted() {
            true => StreamEvent::Redact { object: number, start, end: start.saturating_add(1), size },
            false => StreamEvent::Data { object: Arc::clone(object), bp, blkid: start },
        })
    }
}

impl TreeVisitor for Walk<'_> {
    type Stop = Error;
    const STARTS: Starts = Starts::Elsewhere;

    fn is_old(&self, bp: &Blkptr) -> bool {
        self.begin.is_old(bp)
    }

    fn meet(&mut self, pointer: &Pointer<'_>) -> Result<()> {
        // A spill block belongs to its object.
        if pointer.at.blkid == SPILL { Ok(()) } else { self.meter.visit() }
    }

    fn hole(&mut self, pointer: &Pointer<'_>) -> Result<()> {
        let (object, birth) = (pointer.object, pointer.bp.logical_birth());
        let is_stable = object.number == 0 || !self.reuses_numbers;
        if pointer.at.blkid == SPILL || self.begin.skip_old_holes && birth == 0 && is_stable {
            return Ok(());
        }
        let Some((start, span)) = self.span(pointer) else { return Ok(()) };
        let end = start.wrapping_add(span);
        self.to.take(match object.number {
            0 => StreamEvent::NoObjects { start, end },
            _ => StreamEvent::Hole { object: Arc::clone(object), start, end, birth },
        })
    }

    fn pre(&mut self, pointer: &Pointer<'_>) -> Result<()> {
        let Pointer { bp, at, object, .. } = *pointer;
        match (object.number, at.level, at.blkid) {
            (_, _, SPILL) => self.to.take(StreamEvent::Spill { object: Arc::clone(object), bp: *bp }),
            (0, 0, blkid) if pointer.is_of_dnodes() => {
                self.to.take(StreamEvent::Dnodes { bp: *bp, blkid, slots: pointer.dnodes_per_block() })
            }
            (0, 0, _) => Err(Error::corrupt("no block of dnodes stands here").at_block(at)),
            (_, 0, _) => self.data(pointer),
            _ => Ok(()),
        }
    }

    fn object(&mut self, slot: &DnodeSlot<'_>) -> Result<()> {
        self.to.take(StreamEvent::Object(DnodeAt {
            number: slot.number,
            dnodes: Arc::clone(slot.block),
            slots: slot.bytes.clone(),
            has_spill: slot.dnode.spill().is_some(),
        }))
    }

    fn free_slot(&mut self, number: u64) -> Result<()> {
        self.to.take(StreamEvent::NoObject { number })
    }

    fn dead_end(&mut self, end: DeadEnd) -> Result<()> {
        Err(end.error)
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
