//! The walk over one object set: its intent log, if wanted, then its root and every block below.
//!
//! Blocks born up to a txg (that of the dataset's previous snapshot, say) are skipped with everything below
//! them. The visitor can pause the walk at a data block; another walk continues there, in the order of
//! OpenZFS's bookmarks. Metadata is read without keys, through the cache, and read ahead in a window of
//! children.
//!
//! The walk is one thread's; the work of reading ahead (checksum, decompression) is the executor's.
//!
//! Differs from OpenZFS: a pointer whose level contradicts its place is reported as damage, not followed.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use ondisk::{Blkptr, Dnode, Dva, ObjectType, dnode};
use stdx::Buf;

use super::log;
use crate::arc::ArcCache;
use crate::dmu::{Objset, SpecialObject};
use crate::error::{Error, Kind};
use crate::types::Bookmark;
use crate::zio::Form;

const BLKPTR_SHIFT: u32 = 7;
/// Block number that stands for an object's spill block.
#[doc(alias = "DMU_SPILL_BLKID")]
pub const SPILL: u64 = u64::MAX - 1;
/// Bytes of children that are read ahead in one block of pointers.
const WINDOW: u64 = 4 << 20;

/// The kind of reference to a block.
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
    /// The reference to it.
    pub origin: Origin,
    /// The object it belongs to; `None` for roots, logs and lists.
    pub(crate) dnode: Option<&'a Dnode>,
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
    pub(crate) fn end(&self) -> u64 {
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

/// Receives everything that the walk visits, on the walk's thread.
pub trait Visitor {
    /// A block pointer that is no hole: stored, embedded, or redacted.
    fn block(&mut self, visit: &Visit<'_>) -> Result<(), Stop>;

    /// A hole that was born (holes of old pools are not).
    fn hole(&mut self, _visit: &Visit<'_>) -> Result<(), Stop> {
        Ok(())
    }

    /// A block that leads to others can't be read; the walk continues behind it.
    fn unreadable(&mut self, at: Bookmark, error: &Error);

    /// Whether the walk stops before this place, to continue there later ([`dataset`]).
    fn pauses(&mut self, _at: Bookmark) -> bool {
        false
    }
}

/// Which blocks of an object set count: those born after the one txg and up to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Births {
    /// Blocks allocated up to this txg are skipped with everything below them ([`Blkptr::accounting_birth`]).
    pub(crate) after: u64,
    /// Blocks written after this txg ([`Blkptr::physical_birth`]) are only followed: something below them may be older.
    pub(crate) until: u64,
}

/// The visitor stopped the walk before this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paused(pub Bookmark);

/// Meets the block pointers of one object set, without its intent log, from `from` on (`None`: from its root).
///
/// # Errors
/// The position to continue from, when the visitor paused the walk or stopped it.
pub(crate) fn dataset(
    arc: &Arc<ArcCache>,
    visitor: &mut dyn Visitor,
    (root, objset): (&Blkptr, u64),
    births: Births,
    from: Option<Bookmark>,
) -> Result<(), Paused> {
    let resume = from.filter(|from| from.level != Bookmark::root(objset).level);
    let mut walk = Walk { births, resume, ..Walk::new(arc, visitor) };
    let ended = walk.object_set(root, objset, births.after, false);
    let stopped = || Paused(walk.paused.unwrap_or(Bookmark::root(objset)));
    ended.map_err(|Stop| stopped())
}

/// A walk over object sets, one after the other.
pub struct Walk<'a> {
    pub(super) arc: &'a Arc<ArcCache>,
    pub(super) visitor: &'a mut dyn Visitor,
    pub(super) objset: u64,
    /// The newest txg whose intent-log blocks count; `None`: logs are skipped.
    pub(super) log_until: Option<u64>,
    births: Births,
    /// Everything before this place was met by an earlier walk.
    resume: Option<Bookmark>,
    /// Where the visitor paused.
    paused: Option<Bookmark>,
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

/// A place in the order of a walk: object, first data block below it, depth.
#[doc(alias = "zbookmark_compare")]
type Position = (u64, u64, i64);

impl Owner<'_> {
    /// The place of a block of this object. A block of dnodes stands where its first object does.
    fn position(&self, at: Bookmark) -> Position {
        let level = u32::try_from(at.level).unwrap_or(0);
        let below = level.saturating_mul(self.dnode.blocks_per_indirect_shift());
        let first = match at.blkid {
            SPILL => u64::MAX,
            blkid if below < blkid.leading_zeros() => blkid << below,
            _ => u64::MAX - 1,
        };
        match at.object {
            0 => (first.saturating_mul(self.dnode.datablksz() >> dnode::DNODE_SHIFT), 0, -at.level),
            object => (object, first, -at.level),
        }
    }

    /// Whether everything below `at` comes before `last`.
    #[doc(alias = "zbookmark_subtree_completed")]
    fn is_before(&self, at: Bookmark, last: Bookmark) -> bool {
        at.blkid != SPILL
            && self.position(Bookmark { blkid: at.blkid.saturating_add(1), ..at }) <= self.position(last)
    }
}

impl<'a> Walk<'a> {
    /// A walk that visits everything except intent logs.
    pub fn new(arc: &'a Arc<ArcCache>, visitor: &'a mut dyn Visitor) -> Self {
        let births = Births { after: 0, until: u64::MAX };
        Self {
            arc,
            visitor,
            objset: 0,
            log_until: None,
            births,
            resume: None,
            paused: None,
            roots: HashSet::new(),
        }
    }

    /// The same with intent logs: of one that is not claimed, the blocks born up to this txg.
    #[must_use]
    pub(crate) fn with_logs(self, until: u64) -> Self {
        Self { log_until: Some(until), ..self }
    }

    /// Reports an unreadable block to the visitor.
    pub fn tell(&mut self, at: Bookmark, error: &Error) {
        self.visitor.unreadable(at, error);
    }
}

impl Walk<'_> {
    /// Lets the visitor pause before this place, and returns whether an earlier walk visited everything below
    /// it. Pauses are at roots and data blocks only, as OpenZFS can continue nowhere else, and not in objects
    /// of accounting.
    #[doc(alias("dsl_scan_check_suspend", "dsl_scan_check_resume"))]
    fn is_met(&mut self, owner: &Owner<'_>, at: Bookmark) -> Result<bool, Stop> {
        let Some(last) = self.resume else {
            let may_pause = at.level == 0 && at.blkid != SPILL && at.object.cast_signed() >= 0;
            if may_pause && self.visitor.pauses(at) {
                self.paused = Some(at);
                return Err(Stop);
            }
            return Ok(false);
        };
        if owner.is_before(at, last) {
            return Ok(true);
        }
        if owner.position(at) >= owner.position(last) {
            self.resume = None;
        }
        Ok(false)
    }

    /// Meets the blocks of an object set born after `bound`; `with_log`: also its intent log, if logs are met at all.
    ///
    /// # Errors
    /// When the visitor wants no more.
    pub(crate) fn object_set(
        &mut self,
        root: &Blkptr,
        objset: u64,
        bound: u64,
        with_log: bool,
    ) -> Result<(), Stop> {
        (self.objset, self.births.after) = (objset, bound);
        let at = Bookmark::root(objset);
        let new = root.accounting_birth() > bound;
        if self.resume.is_none() && self.visitor.pauses(at) {
            self.paused = Some(at);
            return Err(Stop);
        }
        if root.is_hole() || !(new || with_log) {
            return Ok(());
        }
        let opened = Objset::open(self.arc, objset, root, Form::NoKey);
        if let (Ok(objset), true) = (&opened, with_log) {
            log::walk(self, &objset.phys.zil_header)?;
        }
        if !new {
            return Ok(());
        }
        if self.resume.is_none() && root.physical_birth() <= self.births.until {
            self.visitor.block(&Visit { bp: root, at, origin: Origin::Tree, dnode: None })?;
        }
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

    /// Whether a resumed walk below this block visited the block itself before it paused.
    fn is_resuming(&self, owner: &Owner<'_>, at: Bookmark) -> bool {
        self.resume.is_some_and(|last| owner.position(at) < owner.position(last))
    }

    fn visit(&mut self, owner: &Owner<'_>, bp: &Blkptr, at: Bookmark) -> Result<(), Stop> {
        if bp.accounting_birth() <= self.births.after || self.is_met(owner, at)? {
            return Ok(());
        }
        let visit = Visit { bp, at, origin: Origin::Tree, dnode: Some(owner.dnode) };
        if bp.is_hole() {
            return self.visitor.hole(&visit);
        }
        if bp.physical_birth() <= self.births.until && !self.is_resuming(owner, at) {
            self.visitor.block(&visit)?;
        }
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
        match self.arc.read(bp, at, Form::NoKey) {
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

    /// Starts reading children from `from` on; returns the position from which to call again.
    fn read_ahead(&self, block: &Buf, from: u64, count: u64, place: &dyn Fn(u64) -> Bookmark) -> u64 {
        let mut bytes = 0;
        for i in from..count {
            if bytes >= WINDOW {
                return i;
            }
            if let Some(bp) = pointer(block, i).filter(|bp| bp.accounting_birth() > self.births.after) {
                bytes += bp.lsize();
                self.arc.prefetch(&bp, place(i), Form::NoKey);
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
            let new = (0..).zip(dnode.blkptrs()).filter(|(_, bp)| bp.accounting_birth() > self.births.after);
            for (i, bp) in new {
                self.arc.prefetch(bp, Bookmark::new(self.objset, *object, level, i), Form::NoKey);
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
pub type Places = HashSet<(u32, u64)>;
