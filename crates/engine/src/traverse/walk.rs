//! Walks one object set from the root down and continues past damage: its intent log, if wanted, then its root and every block
//! below.
//!
//! Blocks born up to a txg (that of the dataset's previous snapshot, say) are skipped with everything below
//! them. The visitor can pause the walk at a data block; another walk continues there, in the order of
//! OpenZFS's bookmarks. Metadata is read without keys, through the cache.
//!
//! Differs from OpenZFS: a pointer whose level or size contradicts its place is reported as damage, not followed.

use std::collections::HashSet;
use std::sync::Arc;

use ondisk::{Blkptr, Bookmark as StoredBookmark, Dnode};

use super::log;
use super::resume::{Resume, first_below};
use super::tree::{DeadEnd, Pointer, Starts, Traversal, TreeVisitor};
use crate::arc::ArcCache;
use crate::dmu::Objset;
use crate::error::{Error, Kind};
use crate::types::Bookmark;
use crate::zio::Form;

/// Block number that stands for an object's spill block.
#[doc(alias = "DMU_SPILL_BLKID")]
pub const SPILL: u64 = ondisk::bookmark::SPILL_BLKID;

/// The kind of reference to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReferenceKind {
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
    pub origin: ReferenceKind,
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
            Some(dnode) => first_below(dnode, self.at.level, self.at.blkid).wrapping_mul(dnode.datablksz()),
        }
    }

    /// One past the last byte of the object that the block covers.
    pub(crate) fn end(&self) -> u64 {
        match self.dnode {
            Some(dnode) if self.at.blkid != SPILL => {
                let blocks = first_below(dnode, self.at.level, self.at.blkid.saturating_add(1));
                blocks.saturating_mul(dnode.datablksz()).min(dnode.max_offset())
            }
            _ => self.offset().saturating_add(self.bp.lsize()),
        }
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
    let from = from.filter(|from| from.level != Bookmark::ROOT).map(Continue::Before);
    let mut walk = Walk { births, from, ..Walk::new(arc, visitor) };
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
    /// The place where an earlier walk stopped, or freeing.
    from: Option<Continue>,
    /// The visitor may pause: the walk is past the place from which it continues.
    may_pause: bool,
    /// Where the visitor paused.
    paused: Option<Bookmark>,
    /// Roots walked: the same one below two datasets would be met twice.
    roots: HashSet<(u32, u64)>,
}

/// The place from which a walk continues.
#[derive(Debug, Clone, Copy)]
enum Continue {
    /// A walk paused before this block.
    Before(Bookmark),
    /// Freeing has come to this block, from leaves to roots; the blocks above it are not freed yet.
    Freeing(StoredBookmark),
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
            from: None,
            may_pause: true,
            paused: None,
            roots: HashSet::new(),
        }
    }

    /// The same with intent logs: of one that is not claimed, the blocks born up to this txg.
    #[must_use]
    pub(crate) fn with_logs(self, until: u64) -> Self {
        Self { log_until: Some(until), ..self }
    }

    /// The same over a destroyed object set, without the blocks that are freed already.
    #[must_use]
    pub(crate) fn with_freed(self, until: StoredBookmark) -> Self {
        Self { from: Some(Continue::Freeing(until)), ..self }
    }

    /// Reports an unreadable block to the visitor.
    pub fn tell(&mut self, at: Bookmark, error: &Error) {
        self.visitor.unreadable(at, error);
    }
}

impl Walk<'_> {
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
        let continues = matches!(self.from, Some(Continue::Before(_)));
        if !continues {
            self.pause(at)?;
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
        if !continues && root.physical_birth() <= self.births.until {
            self.visitor.block(&Visit { bp: root, at, origin: ReferenceKind::Tree, dnode: None })?;
        }
        if root.dva(0).is_some_and(|dva| !self.roots.insert((dva.vdev, dva.offset))) {
            let twice = Error::new(Kind::Loop, "a block of pointers stands at two places").at_block(at);
            self.visitor.unreadable(at, &twice);
            return Ok(());
        }
        match opened {
            Ok(objset) => self.objects(&objset),
            Err(e) => {
                self.visitor.unreadable(at, &e);
                Ok(())
            }
        }
    }

    fn objects(&mut self, objset: &Arc<Objset>) -> Result<(), Stop> {
        let meta = &objset.phys.meta_dnode;
        let resume = match self.from {
            None => None,
            Some(Continue::Before(last)) => Some(Resume::before(last, meta)),
            Some(Continue::Freeing(last)) => Resume::freeing(&last, meta),
        };
        self.may_pause = resume.is_none();
        Traversal::new(objset, self, resume).all()
    }

    fn pause(&mut self, at: Bookmark) -> Result<(), Stop> {
        if self.visitor.pauses(at) {
            self.paused = Some(at);
            return Err(Stop);
        }
        Ok(())
    }
}

impl TreeVisitor for Walk<'_> {
    type Stop = Stop;
    const STARTS: Starts = Starts::Here;

    fn is_old(&self, bp: &Blkptr) -> bool {
        bp.accounting_birth() <= self.births.after
    }

    /// Lets the visitor pause. Pauses are at roots and data blocks only, as OpenZFS can continue nowhere else, and not in objects
    /// of accounting; never where the walk itself began, so that each one gets on.
    #[doc(alias("dsl_scan_check_suspend", "dsl_scan_check_resume"))]
    fn meet(&mut self, pointer: &Pointer<'_>) -> Result<(), Stop> {
        if pointer.again {
            return Ok(());
        }
        let at = pointer.at;
        let can_resume = at.level == 0 && at.blkid != SPILL && at.object.cast_signed() >= 0;
        if std::mem::replace(&mut self.may_pause, true) && can_resume {
            self.pause(at)?;
        }
        Ok(())
    }

    fn hole(&mut self, pointer: &Pointer<'_>) -> Result<(), Stop> {
        self.visitor.hole(&visit(pointer))
    }

    fn pre(&mut self, pointer: &Pointer<'_>) -> Result<(), Stop> {
        let is_met = pointer.again && !matches!(self.from, Some(Continue::Freeing(_)));
        if is_met || pointer.bp.physical_birth() > self.births.until {
            return Ok(());
        }
        self.visitor.block(&visit(pointer))
    }

    fn dead_end(&mut self, end: DeadEnd) -> Result<(), Stop> {
        self.visitor.unreadable(end.at, &end.error);
        Ok(())
    }
}

fn visit<'a>(pointer: &Pointer<'a>) -> Visit<'a> {
    let Pointer { bp, at, object, .. } = *pointer;
    Visit { bp, at, origin: ReferenceKind::Tree, dnode: Some(&object.dnode) }
}

/// Places already met, for lists in which a block may stand twice.
pub type Places = HashSet<(u32, u64)>;
