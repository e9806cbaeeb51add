//! Walks the stored blocks of an object in order, skipping holes.
//!
//! The walk keeps the indirect blocks of its current path, so a step examines one slot. Only data can appear at two
//! positions of one object (only data is shared by dedup and cloning), so an indirect block at a second position is
//! a forgery: it would let a few bytes claim any number of blocks. A walk that goes back visits a block again at
//! the same position, which is valid.

use std::collections::HashMap;

use ondisk::{Blkptr, Dva};
use stdx::Buf;

use super::{Handle, Object};
use crate::error::{Error, Kind, Result};

/// Blocks of an array that are read ahead.
const AHEAD: u64 = 16;

/// Where a walk can continue after an error (if anywhere), and the error.
pub type Stuck = (Option<u64>, Error);

/// Walks the stored data blocks of an object.
#[derive(Debug)]
pub struct Blocks<'a> {
    object: &'a Object,
    path: Path,
}

/// The state of a walk, for owners of the object.
#[derive(Debug, Default)]
pub(crate) struct Path {
    /// The current indirect block at each level from 1 on: its number and bytes.
    levels: Vec<Option<(u64, Buf)>>,
    /// The last txg on disk when the walk began.
    as_of: Option<u64>,
    /// The level and number at which each block was visited.
    seen: HashMap<Dva, (u8, u64)>,
}

/// The content of a block number.
enum Found {
    Stored(Blkptr),
    /// A hole; the next block number outside of it, if there is any.
    Hole(Option<u64>),
}

impl<'a> Blocks<'a> {
    /// A walk that has visited nothing.
    pub fn new(object: &'a Object) -> Self {
        Self { object, path: Path::default() }
    }

    /// The first stored block at or after `blkid`.
    pub fn next_from(&mut self, blkid: u64) -> std::result::Result<Option<u64>, Stuck> {
        self.path.next_from(self.object, blkid)
    }

    /// Reads the indirect blocks on the paths to blocks `[start, end)`, and no others.
    ///
    /// # Errors
    /// The error of reading one of them.
    pub fn check(&mut self, start: u64, end: u64) -> Result<()> {
        let (shift, end) = (self.object.shift(), end.min(self.object.reach()));
        let mut at = start;
        while at <= self.object.dnode.maxblkid && at < end {
            let behind_leaf = past_span(at, shift);
            let next = match self.path.look(self.object, at)? {
                Found::Stored(_) => behind_leaf,
                Found::Hole(past) => past.and_then(|past| behind_leaf.map(|leaf| leaf.max(past))),
            };
            let Some(next) = next else { return Ok(()) };
            at = next;
        }
        Ok(())
    }

    /// The first stored block at or after `blkid` and before `end`. Indirect blocks past `end` are not read.
    pub(crate) fn next_within(&mut self, blkid: u64, end: u64) -> std::result::Result<Option<u64>, Stuck> {
        self.path.next_within(self.object, blkid, end)
    }
}

impl Path {
    /// The first stored block of `object` at or after `blkid`.
    pub(super) fn next_from(
        &mut self,
        object: &Object,
        blkid: u64,
    ) -> std::result::Result<Option<u64>, Stuck> {
        self.next_within(object, blkid, u64::MAX)
    }

    fn next_within(
        &mut self,
        object: &Object,
        blkid: u64,
        end: u64,
    ) -> std::result::Result<Option<u64>, Stuck> {
        if let Some(handle) = object.handle() {
            return Ok(next_live(handle, blkid)?.filter(|&b| b < end));
        }
        let mut at = blkid;
        while at <= object.dnode.maxblkid && at < object.reach() && at < end {
            match self.look(object, at) {
                Ok(Found::Stored(_)) => return Ok(Some(at)),
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
        Ok(if bp.is_hole() { Found::Hole(blkid.checked_add(1)) } else { Found::Stored(bp) })
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
        let as_of = *self.as_of.get_or_insert_with(|| object.objset.moment());
        let block = object.indirect_as_of(bp, level, number, as_of)?;
        let place = (level, number);
        if bp.dva(0).is_some_and(|dva| *self.seen.entry(dva).or_insert(place) != place) {
            let what = "an indirect block stands at two places of its object";
            return Err(Error::new(Kind::Loop, what).at_block(object.at(level, number)));
        }
        if let Some(kept) = self.levels.get_mut(slot) {
            *kept = Some((number, block.clone()));
        }
        Ok(block)
    }
}

/// The first block at or after `blkid` of an object that is being written: on disk or not yet.
fn next_live(handle: &Handle, blkid: u64) -> std::result::Result<Option<u64>, Stuck> {
    let pending = handle.next_pending(blkid);
    let synced = handle.synced();
    if synced.dnode.is_free() {
        return Ok(pending);
    }
    let (mut path, mut at) = (Path::default(), blkid);
    loop {
        let stored = path.next_from(&synced, at)?.filter(|&b| pending.is_none_or(|p| b < p));
        match stored {
            Some(b) if handle.pending(b) == Some(false) => at = b + 1,
            Some(b) => return Ok(Some(b)),
            None => return Ok(pending),
        }
    }
}

/// The blocks of an array without holes, in order.
///
/// Arrays of entries (space maps, block lists, mappings) are written to their end and never shared, so a hole or a
/// repeated block is a forgery. The iterator ends with the first error.
#[derive(Debug)]
pub(crate) struct Dense<'a> {
    object: &'a Object,
    path: Path,
    next: u64,
    end: u64,
}

impl<'a> Dense<'a> {
    /// The blocks that hold the first `len` bytes of `object`.
    pub(crate) fn new(object: &'a Object, len: u64) -> Self {
        Self { object, path: Path::default(), next: 0, end: len.div_ceil(object.dnode.datablksz().max(1)) }
    }

    /// Reads one block out of order. Each can be read once.
    pub(crate) fn get(&mut self, blkid: u64) -> Result<Buf> {
        if self.object.handle().is_some() {
            return self.object.block(blkid);
        }
        let at = self.object.at(0, blkid);
        let bad = |what: &str| Error::corrupt(what).at_block(at);
        if blkid > self.object.dnode.maxblkid {
            return Err(bad("the object is shorter than its header states"));
        }
        let Found::Stored(bp) = self.path.look(self.object, blkid)? else {
            return Err(bad("an array has a hole"));
        };
        if bp.dva(0).is_some_and(|dva| self.path.seen.insert(dva, (0, blkid)).is_some()) {
            return Err(bad("a block stands at two places of its object"));
        }
        self.object.block(blkid)
    }
}

impl Iterator for Dense<'_> {
    type Item = Result<Buf>;

    fn next(&mut self) -> Option<Result<Buf>> {
        if self.next >= self.end {
            return None;
        }
        let blkid = self.next;
        if blkid.is_multiple_of(AHEAD) {
            self.object.read_ahead(blkid, AHEAD.min(self.end - blkid), false);
        }
        let block = self.get(blkid);
        self.next = if block.is_ok() { blkid + 1 } else { self.end };
        Some(block)
    }
}

/// The first block after the aligned span of `1 << shift` blocks that holds `blkid`.
fn past_span(blkid: u64, shift: u32) -> Option<u64> {
    let span = blkid.checked_shr(shift)?;
    let past = span.checked_add(1)?;
    (past.leading_zeros() >= shift).then(|| past.checked_shl(shift)).flatten()
}
