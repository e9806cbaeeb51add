//! The blocks of a destroyed object set, from the leaves to the root and from front to back.
//!
//! A walk may stop before any data block; a bookmark has the position to continue from, in OpenZFS' form, so
//! either implementation continues where the other stopped. Blocks before the bookmark may be in other use
//! already and are not read.
//!
//! Source: dmu_traverse.c, OpenZFS 2.3.

use std::ops::ControlFlow;
use std::sync::Arc;

use ondisk::dsl::BptreeEntry;
use ondisk::{Blkptr, Bookmark as StoredBookmark, Dnode, ObjectType, dnode};

use super::mos_tx::MosTx;
use crate::dmu::{Objset, SpecialObject};
use crate::dsl::bptree::{FreeOutcome, first_object, has_passed};
use crate::error::{Error, Result};
use crate::types::Bookmark;
use crate::zio::Form;

/// The object set that bookmarks of destroyed ones name.
#[doc(alias = "ZB_DESTROYED_OBJSET")]
const DESTROYED: u64 = u64::MAX;

/// Called with each block, and whether the walk may stop before it: then `Break` stops it.
pub(super) type Tell<'a> = &'a mut dyn FnMut(&Blkptr, bool) -> Result<ControlFlow<()>>;

/// Why a walk ends early.
enum Stop {
    /// The callback asked for a pause; the walk continues here.
    Paused(StoredBookmark),
    /// A block needed from here on can't be read.
    Unreadable(StoredBookmark),
    /// The receiver failed.
    Failed(Error),
}

type Step = std::result::Result<(), Stop>;

/// Walks the rest of a destroyed tree; when it does not reach the end, the entry's bookmark has the position
/// to continue from.
pub(super) fn blocks(at: &MosTx<'_>, entry: &mut BptreeEntry, tell: Tell<'_>) -> Result<FreeOutcome> {
    let mut walk = Walk { at: *at, birth: entry.birth_txg, resume: entry.zb, tell };
    let (outcome, zb) = match walk.root(&entry.bp) {
        Ok(()) => return Ok(FreeOutcome::Freed),
        Err(Stop::Paused(zb)) => (FreeOutcome::Paused, zb),
        Err(Stop::Unreadable(zb)) => (FreeOutcome::Unreadable, zb),
        Err(Stop::Failed(error)) => return Err(error),
    };
    entry.zb = zb;
    Ok(outcome)
}

struct Walk<'a, 'b> {
    at: MosTx<'a>,
    birth: u64,
    resume: StoredBookmark,
    tell: Tell<'b>,
}

impl Walk<'_, '_> {
    fn wants(&self, bp: &Blkptr) -> bool {
        !bp.is_hole() && !bp.is_redacted() && bp.accounting_birth() > self.birth
    }

    /// Passes a block to the callback; the walk may stop before it when there is a bookmark for that.
    fn tell(&mut self, bp: &Blkptr, pause: Option<StoredBookmark>) -> Step {
        match ((self.tell)(bp, pause.is_some()).map_err(Stop::Failed)?, pause) {
            (ControlFlow::Break(()), Some(here)) => Err(Stop::Paused(here)),
            _ => Ok(()),
        }
    }

    fn root(&mut self, bp: &Blkptr) -> Step {
        if !self.wants(bp) {
            return Ok(());
        }
        let objset = Objset::open(self.at.mos.arc(), 0, bp, Form::NoKey);
        let objset = objset.map_err(|_| Stop::Unreadable(self.resume))?;
        // In the order of their numbers.
        let all = [
            SpecialObject::Meta,
            SpecialObject::ProjectUsed,
            SpecialObject::GroupUsed,
            SpecialObject::UserUsed,
        ];
        for which in all {
            if let Some(object) = objset.special(which) {
                self.dnode(&objset, which.number(), &object.dnode)?;
            }
        }
        self.tell(bp, None)
    }

    fn dnode(&mut self, objset: &Arc<Objset>, number: u64, dnode: &Dnode) -> Step {
        let (top, shift) = (dnode.nlevels.saturating_sub(1), dnode.blocks_per_indirect_shift());
        for (i, bp) in (0..).zip(dnode.blkptrs()) {
            self.block(objset, bp, Bookmark::new(0, number, i64::from(top), i), shift)?;
        }
        // No stop before a spill block: OpenZFS does not find it again.
        let passed = has_passed(&self.resume, number, (0, u64::MAX), shift);
        match dnode.spill().filter(|bp| self.wants(bp) && !passed) {
            Some(bp) => self.tell(bp, None),
            None => Ok(()),
        }
    }

    fn block(&mut self, objset: &Arc<Objset>, bp: &Blkptr, at: Bookmark, shift: u32) -> Step {
        if !self.wants(bp) || has_passed(&self.resume, at.object, (at.level, at.blkid), shift) {
            return Ok(());
        }
        let level = i64::from(bp.level());
        if level != at.level {
            return Err(Stop::Unreadable(unreadable(at, shift)));
        }
        if level > 0 {
            self.children(objset, bp, at, shift)?;
            return self.tell(bp, None);
        }
        if bp.object_type() == ObjectType::DNODE && at.object == 0 && !self.stopped_before(at) {
            self.objects(objset, bp, at, shift)?;
        }
        self.tell(bp, Some(stored(at.object, at.blkid)))
    }

    fn children(&mut self, objset: &Arc<Objset>, bp: &Blkptr, at: Bookmark, shift: u32) -> Step {
        let bytes = objset.arc().read(bp, at, objset.form());
        let bytes = bytes.map_err(|_| Stop::Unreadable(unreadable(at, shift)))?;
        let (pointers, _) = bytes.as_chunks::<{ ondisk::blkptr::BLKPTR_SIZE }>();
        let count = u64::try_from(pointers.len()).unwrap_or(0);
        for (i, bytes) in (0..).zip(pointers) {
            let child = Blkptr::from_bytes(bytes).unwrap_or_default();
            let below = at.blkid.saturating_mul(count).saturating_add(i);
            self.block(objset, &child, Bookmark::new(0, at.object, at.level - 1, below), shift)?;
        }
        Ok(())
    }

    /// All objects of a block of dnodes.
    fn objects(&mut self, objset: &Arc<Objset>, bp: &Blkptr, at: Bookmark, shift: u32) -> Step {
        let bytes = objset.arc().read(bp, at, objset.form());
        let bytes = bytes.map_err(|_| Stop::Unreadable(unreadable(at, shift)))?;
        let count = u64::try_from(bytes.len() / dnode::DNODE_MIN_SIZE).unwrap_or(0);
        for (slot, bytes) in dnode::slots(&bytes) {
            let number = at.blkid.saturating_mul(count).saturating_add(u64::try_from(slot).unwrap_or(0));
            if self.resume.object != 0 && number < self.resume.object {
                continue;
            }
            let Ok(dnode) = Dnode::from_bytes(bytes) else {
                return Err(Stop::Unreadable(stored(number.max(1), 0)));
            };
            if !dnode.is_free() {
                self.dnode(objset, number, &dnode)?;
            }
        }
        Ok(())
    }

    /// Whether an earlier walk stopped before this block of dnodes, after all that is in it.
    fn stopped_before(&self, at: Bookmark) -> bool {
        self.resume != StoredBookmark::default() && (self.resume.object, self.resume.blkid) == (0, at.blkid)
    }
}

fn stored(object: u64, blkid: u64) -> StoredBookmark {
    StoredBookmark { objset: DESTROYED, object, level: 0, blkid }
}

/// The position to continue from when blocks below `at` can't be read: the first data block there.
fn unreadable(at: Bookmark, shift: u32) -> StoredBookmark {
    let level = u32::try_from(at.level).unwrap_or(0);
    let first = at.blkid.checked_shl(level.saturating_mul(shift)).unwrap_or(0);
    match at.object {
        // A bookmark at a block of dnodes would mean that its objects are done.
        0 => stored(first_object(first), 0),
        object => stored(object, first),
    }
}
