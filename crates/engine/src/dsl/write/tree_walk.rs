//! The blocks of a destroyed object set, from the leaves to the root and from front to back.
//!
//! A walk may stop before any data block; a bookmark has the position to continue from, in OpenZFS' form, so
//! either implementation continues where the other stopped. Blocks before the bookmark may be in other use
//! already and are not read.

use std::ops::ControlFlow;

use ondisk::dsl::BptreeEntry;
use ondisk::{Blkptr, Bookmark as StoredBookmark};

use super::mos_tx::MosTx;
use crate::dmu::Objset;
use crate::dsl::bptree::FreeOutcome;
use crate::error::{Error, Result};
use crate::traverse::SPILL;
use crate::traverse::resume::Resume;
use crate::traverse::tree::{DeadEnd, Pointer, Starts, Traversal, TreeVisitor};
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
    let (outcome, zb) = match root(at, entry, tell) {
        Ok(()) => return Ok(FreeOutcome::Freed),
        Err(Stop::Paused(zb)) => (FreeOutcome::Paused, zb),
        Err(Stop::Unreadable(zb)) => (FreeOutcome::Unreadable, zb),
        Err(Stop::Failed(error)) => return Err(error),
    };
    entry.zb = zb;
    Ok(outcome)
}

fn root(at: &MosTx<'_>, entry: &BptreeEntry, tell: Tell<'_>) -> Step {
    let mut walk = Walk { birth: entry.birth_txg, tell };
    if walk.is_old(&entry.bp) || entry.bp.is_hole() {
        return Ok(());
    }
    let objset = Objset::open(at.mos.arc(), 0, &entry.bp, Form::NoKey);
    let objset = objset.map_err(|_| Stop::Unreadable(entry.zb))?;
    let resume = Resume::freeing(&entry.zb, &objset.phys.meta_dnode);
    Traversal::new(&objset, &mut walk, resume).all()?;
    walk.tell(&entry.bp, None)
}

struct Walk<'a> {
    birth: u64,
    tell: Tell<'a>,
}

impl Walk<'_> {
    /// Passes a block to the callback; the walk may stop before it when there is a bookmark for that.
    fn tell(&mut self, bp: &Blkptr, pause: Option<StoredBookmark>) -> Step {
        match ((self.tell)(bp, pause.is_some()).map_err(Stop::Failed)?, pause) {
            (ControlFlow::Break(()), Some(here)) => Err(Stop::Paused(here)),
            _ => Ok(()),
        }
    }
}

impl TreeVisitor for Walk<'_> {
    type Stop = Stop;
    const STARTS: Starts = Starts::Here;

    fn is_old(&self, bp: &Blkptr) -> bool {
        bp.is_redacted() || bp.accounting_birth() <= self.birth
    }

    fn post(&mut self, pointer: &Pointer<'_>) -> Step {
        let at = pointer.at;
        // No stop before a spill block: OpenZFS does not find it again.
        let can_resume = at.level == 0 && at.blkid != SPILL;
        self.tell(pointer.bp, can_resume.then(|| stored(at.object, at.blkid)))
    }

    /// The blocks above a block are freed after it: the walk continues another time at the first place that it can't reach.
    fn dead_end(&mut self, end: DeadEnd) -> Step {
        let (object, blkid) = end.first;
        Err(Stop::Unreadable(stored(object, blkid)))
    }
}

fn stored(object: u64, blkid: u64) -> StoredBookmark {
    StoredBookmark { objset: DESTROYED, object, level: 0, blkid }
}
