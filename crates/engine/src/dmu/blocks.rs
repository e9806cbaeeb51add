//! Walking the stored blocks of an object in order, hole by hole.
//!
//! The walk keeps the indirect blocks on its way, so a step costs a look at one slot. Nothing but data can
//! stand at two places of one object (only data is shared by dedup and cloning), so an indirect block that is
//! met twice is a forgery: it would let a few bytes claim any number of blocks.

use std::collections::HashSet;

use ondisk::{Blkptr, Dva};
use stdx::Buf;

use super::Object;
use crate::error::{Error, Kind, Result};

/// Where a walk can go on after an error (if anywhere), and the error.
pub type Stuck = (Option<u64>, Error);

/// Walks the data blocks of an object that are stored.
#[derive(Debug)]
pub struct Blocks<'a> {
    object: &'a Object,
    path: Path,
}

/// The state of a walk, for owners of the object.
#[derive(Debug, Default)]
pub struct Path {
    /// The indirect block in hand at each level from 1 on: its number and bytes.
    levels: Vec<Option<(u64, Buf)>>,
    seen: HashSet<Dva>,
}

/// What stands at a block number.
enum Found {
    Stored,
    /// A hole; the next block number that is not in it, if there is any.
    Hole(Option<u64>),
}

impl<'a> Blocks<'a> {
    /// A walk that has seen nothing.
    pub fn new(object: &'a Object) -> Self {
        Self { object, path: Path::default() }
    }

    /// The first stored block at or after `blkid`.
    pub fn next_from(&mut self, blkid: u64) -> std::result::Result<Option<u64>, Stuck> {
        self.path.next_from(self.object, blkid)
    }
}

impl Path {
    /// The first stored block of `object` at or after `blkid`.
    pub fn next_from(&mut self, object: &Object, blkid: u64) -> std::result::Result<Option<u64>, Stuck> {
        let mut at = blkid;
        while at <= object.dnode.maxblkid && at < object.reach() {
            match self.look(object, at) {
                Ok(Found::Stored) => return Ok(Some(at)),
                Ok(Found::Hole(Some(past))) => at = past,
                Ok(Found::Hole(None)) => return Ok(None),
                Err(e) if e.kind() == Kind::Loop => return Err((None, e)),
                Err(e) => {
                    let level = e.place().block.map_or(1, |b| u32::try_from(b.level.max(1)).unwrap_or(1));
                    return Err((past_span(at, object.shift().saturating_mul(level)), e));
                }
            }
        }
        Ok(None)
    }

    fn look(&mut self, object: &Object, blkid: u64) -> Result<Found> {
        let shift = object.shift();
        let top = object.dnode.nlevels.saturating_sub(1);
        let number = |level: u8| blkid.checked_shr(u32::from(level) * shift).unwrap_or(0);
        let first = usize::try_from(number(top)).ok().and_then(|i| object.dnode.blkptrs().get(i));
        let Some(mut bp) = first.copied() else { return Ok(Found::Hole(None)) };
        for level in (1..=top).rev() {
            if bp.is_hole() {
                return Ok(Found::Hole(past_span(blkid, u32::from(level) * shift)));
            }
            let block = self.indirect(object, &bp, level, number(level))?;
            bp = object.pointer_in(&block, level, number(level - 1))?;
        }
        Ok(if bp.is_hole() { Found::Hole(blkid.checked_add(1)) } else { Found::Stored })
    }

    fn indirect(&mut self, object: &Object, bp: &Blkptr, level: u8, number: u64) -> Result<Buf> {
        let slot = usize::from(level) - 1;
        if self.levels.len() <= slot {
            self.levels.resize(slot + 1, None);
        }
        if let Some(Some((at, block))) = self.levels.get(slot)
            && *at == number
        {
            return Ok(block.clone());
        }
        let block = object.indirect(bp, level, number)?;
        if bp.dva(0).is_some_and(|dva| !self.seen.insert(dva)) {
            let what = "an indirect block stands at two places of its object";
            return Err(Error::new(Kind::Loop, what).at_block(object.at(level, number)));
        }
        if let Some(kept) = self.levels.get_mut(slot) {
            *kept = Some((number, block.clone()));
        }
        Ok(block)
    }
}

/// The first block after the aligned span of `1 << shift` blocks that holds `blkid`.
fn past_span(blkid: u64, shift: u32) -> Option<u64> {
    let span = blkid.checked_shr(shift)?;
    let past = span.checked_add(1)?;
    (past.leading_zeros() >= shift).then(|| past.checked_shl(shift)).flatten()
}
