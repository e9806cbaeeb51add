//! The walk: MOS, then each dataset and snapshot, in the order of their object numbers.
//!
//! A dataset is entered with a bound: blocks born at or before its previous snapshot belong to that
//! one and are passed over with everything below them. An object set's intent log comes before its
//! tree. Metadata is read without keys, through the cache, and read ahead in a window of children.
//!
//! The walk is one thread's; the work of reading ahead (checksum, decompression) is the executor's.
//!
//! Differs from OpenZFS: a pointer whose level contradicts its place is told as damage, not followed.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use ondisk::dsl::DslDataset;
use ondisk::{Blkptr, Dnode, Dva, ObjectType, dnode};
use stdx::Buf;

use super::{lists, log};
use crate::dmu::{Objset, SpecialObject};
use crate::error::{Error, Kind};
use crate::spa::Pool;
use crate::types::Bookmark;
use crate::zio::Form;

const BLKPTR_SHIFT: u32 = 7;
/// Block number that stands for an object's spill block.
#[doc(alias = "DMU_SPILL_BLKID")]
pub const SPILL: u64 = u64::MAX - 1;
/// Bytes of children that are read ahead in one block of pointers.
const WINDOW: u64 = 4 << 20;

/// What refers to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An object set's tree.
    Tree,
    /// An intent log, or a record in it.
    IntentLog,
    /// A list of blocks that wait to be freed.
    Deferred,
}

/// A block pointer met.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'a> {
    /// The pointer.
    pub bp: &'a Blkptr,
    /// Its place.
    pub at: Bookmark,
    /// What refers to it.
    pub origin: Origin,
    /// The object it belongs to; `None` for roots, logs and lists.
    pub dnode: Option<&'a Dnode>,
}

impl Visit<'_> {
    /// First byte of the object that the block covers, as zdb counts it.
    #[doc(alias = "blkid2offset")]
    pub fn offset(&self) -> u64 {
        match self.dnode {
            None if self.at.object == 0 => self.at.blkid,
            None => self.at.blkid.wrapping_mul(self.bp.lsize()),
            Some(dnode) => self.blocks_below(dnode, self.at.blkid).wrapping_mul(dnode.datablksz()),
        }
    }

    /// One past the last byte of the object that the block covers.
    pub fn end(&self) -> u64 {
        match self.dnode {
            Some(dnode) if self.at.blkid != SPILL => {
                let (next, below) = (self.at.blkid.saturating_add(1), self.shift_below(dnode));
                let fits = below < next.leading_zeros();
                let blocks = if fits { next << below } else { u64::MAX };
                blocks.saturating_mul(dnode.datablksz()).min(dnode.max_offset())
            }
            _ => self.offset().saturating_add(self.bp.lsize()),
        }
    }

    fn blocks_below(&self, dnode: &Dnode, blkid: u64) -> u64 {
        blkid.checked_shl(self.shift_below(dnode)).unwrap_or(0)
    }

    fn shift_below(&self, dnode: &Dnode) -> u32 {
        u32::try_from(self.at.level).unwrap_or(0).saturating_mul(dnode.blocks_per_indirect_shift())
    }
}

/// The visitor wants no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop;

/// Told of everything that the walk meets, on the walk's thread.
pub trait Visitor {
    /// A block pointer that is no hole: stored, embedded, or redacted.
    fn block(&mut self, visit: &Visit<'_>) -> Result<(), Stop>;

    /// A hole that was born (holes of old pools are not).
    fn hole(&mut self, _visit: &Visit<'_>) -> Result<(), Stop> {
        Ok(())
    }

    /// Something that leads to other blocks can't be read; the walk goes on behind it.
    fn unreadable(&mut self, at: Bookmark, error: &Error);
}

/// Meets every block pointer of the pool.
pub fn traverse(pool: &Pool, visitor: &mut dyn Visitor) -> Result<(), Stop> {
    lists::deferred(pool, visitor)?;
    let mut walk = Walk { pool, visitor, objset: 0, bound: 0, roots: HashSet::new() };
    walk.object_set(&pool.uberblock.rootbp, 0, 0, false)?;
    for object in pool.mos.objects() {
        match object {
            Ok(object) if object.dnode.bonustype == ObjectType::DSL_DATASET => {
                match DslDataset::from_bytes(object.dnode.bonus()) {
                    Ok(phys) => {
                        walk.object_set(&phys.bp, object.number, phys.prev_snap_txg, !phys.is_snapshot())?;
                    }
                    Err(e) => {
                        let at = Bookmark::new(0, object.number, 0, 0);
                        walk.visitor.unreadable(at, &Error::corrupt(e.to_string()).at_block(at));
                    }
                }
            }
            // The walk over the MOS itself has told of these.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Meets every block pointer below a root that belongs to no dataset any more.
pub(super) fn orphan(pool: &Pool, visitor: &mut dyn Visitor, bp: &Blkptr, bound: u64) -> Result<(), Stop> {
    /// No dataset has this number (`ZB_DESTROYED_OBJSET`).
    const DESTROYED: u64 = u64::MAX;
    Walk { pool, visitor, objset: DESTROYED, bound, roots: HashSet::new() }
        .object_set(bp, DESTROYED, bound, false)
}

pub(super) struct Walk<'a> {
    pub pool: &'a Pool,
    pub visitor: &'a mut dyn Visitor,
    pub objset: u64,
    bound: u64,
    /// Roots walked: the same one below two datasets would be met twice.
    roots: HashSet<Dva>,
}

/// The object whose blocks are walked.
struct Owner<'a> {
    dnode: &'a Dnode,
    object: u64,
    /// Blocks of it that lead to others: no such block can stand at two places.
    seen: RefCell<HashSet<Dva>>,
}

impl Walk<'_> {
    fn object_set(&mut self, root: &Blkptr, objset: u64, bound: u64, with_log: bool) -> Result<(), Stop> {
        (self.objset, self.bound) = (objset, bound);
        let at = Bookmark::root(objset);
        let new = root.logical_birth() > bound;
        if root.is_hole() || !(new || with_log) {
            return Ok(());
        }
        let opened = Objset::open(&self.pool.arc, objset, root, Form::NoKey);
        if let (Ok(objset), true) = (&opened, with_log) {
            log::walk(self, &objset.phys.zil_header)?;
        }
        if !new {
            return Ok(());
        }
        self.visitor.block(&Visit { bp: root, at, origin: Origin::Tree, dnode: None })?;
        if root.dva(0).is_some_and(|dva| !self.roots.insert(dva)) {
            self.visitor.unreadable(at, &twice(at));
            return Ok(());
        }
        match opened {
            Ok(objset) => self.special_objects(&objset),
            Err(e) => {
                self.visitor.unreadable(at, &e);
                Ok(())
            }
        }
    }

    fn special_objects(&mut self, objset: &Arc<Objset>) -> Result<(), Stop> {
        let phys = &objset.phys;
        self.object(&phys.meta_dnode, SpecialObject::Meta.number())?;
        let accounting = [
            (&phys.projectused, SpecialObject::ProjectUsed),
            (&phys.groupused, SpecialObject::GroupUsed),
            (&phys.userused, SpecialObject::UserUsed),
        ];
        for (dnode, which) in accounting {
            if let Some(dnode) = dnode.as_ref().filter(|d| !d.is_free()) {
                self.object(dnode, which.number())?;
            }
        }
        Ok(())
    }

    fn object(&mut self, dnode: &Dnode, object: u64) -> Result<(), Stop> {
        let owner = Owner { dnode, object, seen: RefCell::default() };
        let top = dnode.nlevels.saturating_sub(1);
        for (i, bp) in (0..).zip(dnode.blkptrs()) {
            self.visit(&owner, bp, Bookmark::new(self.objset, object, i64::from(top), i))?;
        }
        match dnode.spill() {
            Some(bp) => self.visit(&owner, bp, Bookmark::new(self.objset, object, 0, SPILL)),
            None => Ok(()),
        }
    }

    fn visit(&mut self, owner: &Owner<'_>, bp: &Blkptr, at: Bookmark) -> Result<(), Stop> {
        if bp.logical_birth() <= self.bound {
            return Ok(());
        }
        let visit = Visit { bp, at, origin: Origin::Tree, dnode: Some(owner.dnode) };
        if bp.is_hole() {
            return self.visitor.hole(&visit);
        }
        self.visitor.block(&visit)?;
        if bp.is_embedded() {
            return Ok(());
        }
        if i64::from(bp.level()) != at.level {
            let what = format!("a pointer of level {} stands here", bp.level());
            self.visitor.unreadable(at, &Error::corrupt(what).at_block(at));
            return Ok(());
        }
        if at.level == 0 && !(owner.object == 0 && bp.object_type() == ObjectType::DNODE) {
            return Ok(());
        }
        if bp.dva(0).is_some_and(|dva| !owner.seen.borrow_mut().insert(dva)) {
            self.visitor.unreadable(at, &twice(at));
            return Ok(());
        }
        match self.pool.arc.read(bp, at, Form::NoKey) {
            Err(e) => {
                self.visitor.unreadable(at, &e);
                Ok(())
            }
            Ok(block) if at.level > 0 => self.pointers(owner, &block, at),
            Ok(block) => self.dnodes(&block, at),
        }
    }

    fn pointers(&mut self, owner: &Owner<'_>, block: &Buf, at: Bookmark) -> Result<(), Stop> {
        let count = u64::try_from(block.len() >> BLKPTR_SHIFT).unwrap_or(0);
        let first = at.blkid.wrapping_mul(count);
        let place = |i: u64| Bookmark { level: at.level - 1, blkid: first.wrapping_add(i), ..at };
        let leads_on = at.level > 1 || owner.object == 0;
        let mut ahead = 0;
        for i in 0..count {
            if leads_on && ahead <= i {
                ahead = self.read_ahead(block, i, count, &place);
            }
            if let Some(bp) = pointer(block, i) {
                self.visit(owner, &bp, place(i))?;
            }
        }
        Ok(())
    }

    /// Starts reading children from `from` on; gives where to call again.
    fn read_ahead(&self, block: &Buf, from: u64, count: u64, place: &dyn Fn(u64) -> Bookmark) -> u64 {
        let mut bytes = 0;
        for i in from..count {
            if bytes >= WINDOW {
                return i;
            }
            if let Some(bp) = pointer(block, i).filter(|bp| bp.logical_birth() > self.bound) {
                bytes += bp.lsize();
                self.pool.arc.prefetch(&bp, place(i), Form::NoKey);
            }
        }
        count
    }

    fn dnodes(&mut self, block: &Buf, at: Bookmark) -> Result<(), Stop> {
        let per_block = u64::try_from(block.len() >> dnode::DNODE_SHIFT).unwrap_or(0);
        let first = at.blkid.wrapping_mul(per_block);
        let mut decoded = Vec::new();
        for (slot, bytes) in dnode::slots(block) {
            let object = first.wrapping_add(u64::try_from(slot).unwrap_or(0));
            match Dnode::from_bytes(bytes) {
                Ok(dnode) if dnode.is_free() => {}
                Ok(dnode) => decoded.push((object, dnode)),
                Err(e) => {
                    let at = Bookmark::new(self.objset, object, 0, 0);
                    self.visitor.unreadable(at, &Error::new(Kind::Corrupt, e.to_string()).at_block(at));
                }
            }
        }
        for (object, dnode) in decoded.iter().filter(|(_, d)| d.nlevels > 1) {
            let level = i64::from(dnode.nlevels) - 1;
            let new = (0..).zip(dnode.blkptrs()).filter(|(_, bp)| bp.logical_birth() > self.bound);
            for (i, bp) in new {
                self.pool.arc.prefetch(bp, Bookmark::new(self.objset, *object, level, i), Form::NoKey);
            }
        }
        for (object, dnode) in &decoded {
            self.object(dnode, *object)?;
        }
        Ok(())
    }
}

fn twice(at: Bookmark) -> Error {
    Error::new(Kind::Loop, "a block of pointers stands at two places").at_block(at)
}

fn pointer(block: &Buf, i: u64) -> Option<Blkptr> {
    let start = usize::try_from(i).ok()? << BLKPTR_SHIFT;
    block.get(start..).and_then(Blkptr::from_bytes)
}

/// Places already met, for lists in which a block may stand twice.
pub(super) type Places = HashSet<(u32, u64)>;
