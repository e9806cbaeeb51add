//! The traversal of an object set: every block pointer below its root once, in the order of objects and blocks.
//!
//! The one place that knows the geometry of these trees: which pointers stand in which block, which are skipped, where an earlier
//! traversal stopped, and which blocks are read before their turn. A visitor says which blocks are old, is told of each pointer
//! before and after the blocks below it, and decides whether damage ends the traversal:
//!
//! - [`super::walk`]: verification, the leak check, scrub and resilver: from roots to leaves, past damage;
//! - `dsl::write::tree_walk`: the freeing of destroyed datasets: from leaves to roots, up to damage;
//! - `send::walk`: streams, and the search for redacted blocks: without the objects of accounting, up to damage.
//!
//! The traversal is one thread's; the work of reading ahead (checksum, decompression) is the executor's.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::bookmark::SPILL_BLKID as SPILL;
use ondisk::{Blkptr, Dnode, DnodeRef, ObjectType, dnode};
use stdx::Buf;

use super::resume::{Resume, dnodes_per_block, first_below};
use crate::dmu::{Object, Objset, SpecialObject};
use crate::error::{Error, Kind};
use crate::taskq::start_reads;
use crate::types::Bookmark;

/// Bytes of blocks that are read ahead in one block of pointers at a time; up to twice as many are ahead.
const AHEAD: u64 = 2 << 20;

/// A block pointer met.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pointer<'a> {
    pub(crate) bp: &'a Blkptr,
    pub(crate) at: Bookmark,
    /// The object that it belongs to.
    pub(crate) object: &'a Arc<Object>,
    /// An earlier traversal met it on its way down to the place where it stopped.
    pub(crate) again: bool,
}

impl Pointer<'_> {
    /// Whether it leads to a block of dnodes.
    pub(crate) fn is_of_dnodes(&self) -> bool {
        self.at.object == 0 && self.at.level == 0 && self.bp.object_type() == ObjectType::DNODE
    }

    /// Objects in a block of dnodes, of a pointer to one.
    pub(crate) fn dnodes_per_block(&self) -> u64 {
        dnodes_per_block(&self.object.dnode)
    }

    /// First data block that it covers, and their number; `None` when there are no such numbers.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        let level = u32::try_from(self.at.level).unwrap_or(0);
        let span = 1_u64.checked_shl(level.saturating_mul(self.object.dnode.blocks_per_indirect_shift()))?;
        Some((span.checked_mul(self.at.blkid)?, span))
    }
}

/// A block of dnodes.
#[derive(Debug)]
pub(crate) struct DnodeBlock {
    pub(crate) bp: Blkptr,
    pub(crate) bytes: Buf,
}

/// A slot of a block of dnodes that is in use.
#[derive(Debug)]
pub(crate) struct DnodeSlot<'a> {
    /// Number of the object.
    pub(crate) number: u64,
    pub(crate) dnode: DnodeRef<'a>,
    pub(crate) block: &'a Arc<DnodeBlock>,
    /// Its bytes in the block.
    pub(crate) bytes: Range<usize>,
}

/// A block that leads to others and can't be read, or isn't the kind of block that belongs there.
#[derive(Debug)]
pub(crate) struct DeadEnd {
    pub(crate) at: Bookmark,
    /// The first object and data block of it that are below.
    pub(crate) first: (u64, u64),
    pub(crate) error: Error,
}

/// The thread that starts reads of blocks before their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starts {
    /// The thread of the traversal: a read that starts late would find blocks that were freed and written anew.
    Here,
    /// One of the executor: to start a read takes as long as the visitor's work for an object.
    Elsewhere,
}

/// Receives the pointers that a traversal meets.
pub(crate) trait TreeVisitor {
    /// Ends the traversal early.
    type Stop;
    /// The thread that starts reads of blocks before their turn.
    const STARTS: Starts;

    /// Whether a pointer is skipped with everything below it, which is no younger.
    fn is_old(&self, bp: &Blkptr) -> bool;

    /// Called first for each pointer that is not skipped.
    fn meet(&mut self, _pointer: &Pointer<'_>) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// A hole.
    fn hole(&mut self, _pointer: &Pointer<'_>) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// A block, before everything below it.
    #[doc(alias = "TRAVERSE_PRE")]
    fn pre(&mut self, _pointer: &Pointer<'_>) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// A block, after everything below it.
    #[doc(alias = "TRAVERSE_POST")]
    fn post(&mut self, _pointer: &Pointer<'_>) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// An object, before its blocks.
    fn object(&mut self, _slot: &DnodeSlot<'_>) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// A slot of a block of dnodes that is free.
    fn free_slot(&mut self, _number: u64) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// The blocks below here can't be met; the traversal continues behind them.
    fn dead_end(&mut self, end: DeadEnd) -> Result<(), Self::Stop>;
}

/// A traversal of one object set.
pub(crate) struct Traversal<'a, V> {
    objset: &'a Arc<Objset>,
    visitor: &'a mut V,
    resume: Option<Resume>,
}

/// The object whose blocks are visited.
struct Owner<'a> {
    object: &'a Arc<Object>,
    /// Blocks of it that lead to others. One that stands at two places is a forgery: it would let a few blocks claim any number
    /// of others.
    seen: RefCell<HashSet<(u32, u64)>>,
}

impl<'a, V: TreeVisitor> Traversal<'a, V> {
    /// A traversal from `resume` on (`None`: from the start).
    pub(crate) fn new(objset: &'a Arc<Objset>, visitor: &'a mut V, resume: Option<Resume>) -> Self {
        Self { objset, visitor, resume }
    }

    /// Visits all objects: the array of dnodes and those in it, then the objects of accounting.
    pub(crate) fn all(&mut self) -> Result<(), V::Stop> {
        let accounting = [SpecialObject::ProjectUsed, SpecialObject::GroupUsed, SpecialObject::UserUsed];
        self.special(SpecialObject::Meta)?;
        accounting.into_iter().try_for_each(|which| self.special(which))
    }

    /// Visits the array of dnodes and the objects in it, or the blocks of an object of accounting; nothing where there is none.
    pub(crate) fn special(&mut self, which: SpecialObject) -> Result<(), V::Stop> {
        let Some(object) = self.objset.special(which) else { return Ok(()) };
        let object = Arc::new(object);
        self.start(&self.wanted_of(&object.dnode, object.number));
        self.object(&object)
    }

    fn object(&mut self, object: &Arc<Object>) -> Result<(), V::Stop> {
        let owner = Owner { object, seen: RefCell::default() };
        let top = i64::from(object.dnode.nlevels.saturating_sub(1));
        for (blkid, bp) in (0..).zip(object.dnode.blkptrs()) {
            self.visit(&owner, bp, self.place(object.number, top, blkid))?;
        }
        match object.dnode.spill() {
            Some(bp) => self.visit(&owner, bp, self.place(object.number, 0, SPILL)),
            None => Ok(()),
        }
    }

    fn place(&self, object: u64, level: i64, blkid: u64) -> Bookmark {
        Bookmark::new(self.objset.id, object, level, blkid)
    }

    fn is_skipped(&self, bp: &Blkptr, dnode: &Dnode, at: Bookmark) -> bool {
        self.visitor.is_old(bp) || self.resume.is_some_and(|resume| resume.has_passed(dnode, at))
    }

    /// Visits one pointer and the blocks below it; the level only goes down.
    fn visit(&mut self, owner: &Owner<'_>, bp: &Blkptr, at: Bookmark) -> Result<(), V::Stop> {
        let object = owner.object;
        if self.is_skipped(bp, &object.dnode, at) {
            return Ok(());
        }
        let again = self.resume.is_some_and(|resume| resume.is_below(&object.dnode, at));
        let pointer = Pointer { bp, at, object, again };
        self.visitor.meet(&pointer)?;
        if bp.is_hole() {
            return self.visitor.hole(&pointer);
        }
        self.visitor.pre(&pointer)?;
        if !bp.is_embedded() {
            self.below(owner, &pointer)?;
        }
        self.visitor.post(&pointer)
    }

    /// Visits the blocks that a block leads to.
    fn below(&mut self, owner: &Owner<'_>, pointer: &Pointer<'_>) -> Result<(), V::Stop> {
        let (bp, at) = (pointer.bp, pointer.at);
        if let Some(error) = unfit(pointer) {
            return self.dead_end(pointer, error);
        }
        if at.level == 0 && (!pointer.is_of_dnodes() || self.has_passed_objects(pointer)) {
            return Ok(());
        }
        if bp.dva(0).is_some_and(|dva| !owner.seen.borrow_mut().insert((dva.vdev, dva.offset))) {
            return self.dead_end(pointer, twice(at));
        }
        match self.objset.read(bp, at) {
            Err(e) => self.dead_end(pointer, e),
            Ok(block) if at.level > 0 => self.pointers(owner, &block, at),
            Ok(bytes) => self.dnodes(pointer, &Arc::new(DnodeBlock { bp: *bp, bytes })),
        }
    }

    fn dead_end(&mut self, pointer: &Pointer<'_>, error: Error) -> Result<(), V::Stop> {
        let at = pointer.at;
        let first = match (at.object, first_below(&pointer.object.dnode, at.level, at.blkid)) {
            (0, first) => (first.saturating_mul(dnodes_per_block(&pointer.object.dnode)).max(1), 0),
            place => place,
        };
        self.visitor.dead_end(DeadEnd { at, first, error })
    }

    /// Whether an earlier traversal, from leaves to roots, has passed all objects of a block of dnodes.
    fn has_passed_objects(&self, pointer: &Pointer<'_>) -> bool {
        let per_block = dnodes_per_block(&pointer.object.dnode);
        let end = pointer.at.blkid.saturating_add(1).saturating_mul(per_block);
        self.resume.is_some_and(|resume| end <= resume.object)
    }

    fn pointers(&mut self, owner: &Owner<'_>, block: &Buf, at: Bookmark) -> Result<(), V::Stop> {
        let (object, level) = (owner.object.number, at.level - 1);
        let count = u64::try_from(block.len() / BLKPTR_SIZE).unwrap_or(0);
        let first = at.blkid.wrapping_mul(count);
        let leads_on = level > 0 || object == 0;
        let (mut begun, mut refill) = (0, 0);
        for i in 0..count {
            while leads_on && begun < count && refill <= i {
                (begun, refill) = (self.read_ahead(owner, block, (begun, count), (level, first)), begun);
            }
            if let Some(bp) = pointer(block, i) {
                self.visit(owner, &bp, self.place(object, level, first.wrapping_add(i)))?;
            }
        }
        Ok(())
    }

    /// Starts to read children from `from` on; returns the first that is left for later.
    fn read_ahead(
        &self,
        owner: &Owner<'_>,
        block: &Buf,
        (from, count): (u64, u64),
        (level, first): (i64, u64),
    ) -> u64 {
        let (mut wanted, mut bytes, mut next) = (Vec::new(), 0, from);
        while next < count && bytes < AHEAD {
            let at = self.place(owner.object.number, level, first.wrapping_add(next));
            let new = pointer(block, next).filter(|bp| !self.is_skipped(bp, &owner.object.dnode, at));
            if let Some(bp) = new.filter(|bp| !bp.is_hole()) {
                bytes += bp.lsize();
                wanted.push((bp, at));
            }
            next += 1;
        }
        self.start(&wanted);
        next
    }

    /// The blocks of pointers, or of dnodes, that a dnode leads to.
    fn wanted_of(&self, dnode: &Dnode, number: u64) -> Vec<(Blkptr, Bookmark)> {
        let level = i64::from(dnode.nlevels.saturating_sub(1));
        if level == 0 && number != 0 {
            return Vec::new();
        }
        let places = (0..).zip(dnode.blkptrs()).map(|(i, bp)| (*bp, self.place(number, level, i)));
        places.filter(|(bp, at)| !bp.is_hole() && !self.is_skipped(bp, dnode, *at)).collect()
    }

    fn start(&self, wanted: &[(Blkptr, Bookmark)]) {
        let (arc, form) = (Arc::clone(self.objset.arc()), self.objset.form());
        match (V::STARTS, wanted) {
            (_, []) => {}
            (Starts::Here, _) | (_, [_]) => wanted.iter().for_each(|(bp, at)| arc.prefetch(bp, *at, form)),
            (Starts::Elsewhere, _) => {
                let (wanted, executor) = (wanted.to_vec(), Arc::clone(arc.zio().executor()));
                let start = move || wanted.iter().for_each(|(bp, at)| arc.prefetch(bp, *at, form));
                executor.spawn(Box::new(move || start_reads(start)));
            }
        }
    }

    /// A block of dnodes: each object, each free slot.
    fn dnodes(&mut self, pointer: &Pointer<'_>, block: &Arc<DnodeBlock>) -> Result<(), V::Stop> {
        let first = pointer.at.blkid.saturating_mul(dnodes_per_block(&pointer.object.dnode));
        let from = self.resume.map_or(0, |resume| resume.object).max(1);
        let decode = |(slot, bytes)| Decoded {
            number: first.saturating_add(u64::try_from(slot).unwrap_or(0)),
            bytes: slot * dnode::DNODE_MIN_SIZE..slot * dnode::DNODE_MIN_SIZE + <[u8]>::len(bytes),
            dnode: DnodeRef::from_bytes(bytes),
        };
        let slots = dnode::slots(&block.bytes).map(decode).filter(|slot| slot.number >= from);
        let slots: Vec<_> = slots.collect();
        self.start(&self.wanted_of_objects(&slots));
        for Decoded { number, bytes, dnode } in slots {
            match dnode {
                Ok(Some(dnode)) => self.slot(&DnodeSlot { number, dnode, block, bytes })?,
                Ok(None) => self.visitor.free_slot(number)?,
                Err(e) => {
                    let at = self.place(number, 0, 0);
                    let error = Error::corrupt(e.to_string()).at_block(at);
                    self.visitor.dead_end(DeadEnd { at, first: (number, 0), error })?;
                }
            }
        }
        Ok(())
    }

    /// The first blocks of pointers of the objects in a block of dnodes.
    fn wanted_of_objects(&self, slots: &[Decoded<'_>]) -> Vec<(Blkptr, Bookmark)> {
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        for slot in slots {
            let Ok(Some(dnode)) = &slot.dnode else { continue };
            let level = i64::from(dnode.phys().nlevels.saturating_sub(1));
            if level == 0 || bytes >= 2 * AHEAD {
                continue;
            }
            let young =
                (0..).zip(dnode.blkptrs()).filter(|(_, bp)| !bp.is_hole() && !self.visitor.is_old(bp));
            for (blkid, bp) in young {
                bytes += bp.lsize();
                wanted.push((bp, self.place(slot.number, level, blkid)));
            }
        }
        wanted
    }

    fn slot(&mut self, slot: &DnodeSlot<'_>) -> Result<(), V::Stop> {
        self.visitor.object(slot)?;
        // Most objects of a block have not changed.
        let mut pointers = slot.dnode.blkptrs().chain(slot.dnode.spill());
        if pointers.any(|bp| !self.visitor.is_old(&bp)) {
            let object = Object::stored(self.objset, slot.number, slot.dnode.to_dnode());
            self.object(&Arc::new(object))?;
        }
        Ok(())
    }
}

/// A slot of a block of dnodes.
struct Decoded<'a> {
    number: u64,
    bytes: Range<usize>,
    dnode: Result<Option<DnodeRef<'a>>, ondisk::Malformed>,
}

/// Why a pointer leads nowhere: its level or size contradicts its place.
fn unfit(pointer: &Pointer<'_>) -> Option<Error> {
    let (bp, dnode) = (pointer.bp, &pointer.object.dnode);
    let size = match pointer.at.level {
        0 if pointer.is_of_dnodes() => dnode.datablksz(),
        0 => bp.lsize(),
        _ => dnode.indirect_size(),
    };
    let fits = i64::from(bp.level()) == pointer.at.level && bp.lsize() == size;
    let what = || format!("a pointer of level {} and {} bytes stands here", bp.level(), bp.lsize());
    (!fits).then(|| Error::corrupt(what()).at_block(pointer.at))
}

fn twice(at: Bookmark) -> Error {
    Error::new(Kind::Loop, "a block of pointers stands at two places of its object").at_block(at)
}

fn pointer(block: &Buf, i: u64) -> Option<Blkptr> {
    let start = usize::try_from(i).ok()?.checked_mul(BLKPTR_SIZE)?;
    block.get(start..start.checked_add(BLKPTR_SIZE)?).and_then(Blkptr::from_bytes)
}
