//! The frees of a txg in one object: each block is reported when it is visited, and none is remembered.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ondisk::{Blkptr, Dva};
use stdx::Buf;

use super::{Gone, Policy, Work, hole};
use crate::dmu::Object;
use crate::error::{Error, Kind, Result};

/// Calls `gone` with every block that `work` frees. Returns the remaining holes, by level and number, and the bytes
/// of the blocks.
pub(super) fn free(
    work: &Work,
    policy: &Policy,
    gone: Gone<'_>,
) -> Result<(Vec<BTreeMap<u64, Blkptr>>, u64)> {
    let mut frees = Frees { work, policy, gone, seen: HashSet::new(), holes: Vec::new(), bytes: 0 };
    match work.change.wipe {
        true if work.change.forgets => {}
        true => frees.all()?,
        false if work.keeps() => {
            frees.ranges()?;
            frees.marks()?;
        }
        false => {}
    }
    Ok((frees.holes, frees.bytes))
}

/// The frees of one object's sync.
struct Frees<'a, 'b> {
    work: &'a Work,
    policy: &'a Policy,
    gone: Gone<'b>,
    /// Visited indirect blocks.
    seen: HashSet<Dva>,
    holes: Vec<BTreeMap<u64, Blkptr>>,
    bytes: u64,
}

impl Frees<'_, '_> {
    /// Frees everything that the object had.
    fn all(&mut self) -> Result<()> {
        let old = Arc::clone(&self.work.old);
        if old.dnode.is_free() {
            return Ok(());
        }
        self.top(&old, |frees, bp, level, blkid| frees.tree(bp, level, blkid))?;
        old.dnode.spill().map_or(Ok(()), |spill| self.kill(spill))
    }

    /// Turns blocks of freed ranges into holes, and also indirect blocks with nothing else below them.
    fn ranges(&mut self) -> Result<()> {
        let old = Arc::clone(&self.work.old);
        for range in self.work.change.freed.iter() {
            self.seen.clear();
            self.top(&old, |frees, bp, level, blkid| frees.range(bp, level, blkid, range))?;
        }
        Ok(())
    }

    /// Holes of marked ranges are born in this txg.
    fn marks(&mut self) -> Result<()> {
        if !self.policy.hole_birth || self.work.dnode.is_free() {
            return Ok(());
        }
        let top = self.work.dnode.nlevels.saturating_sub(1);
        let pointers = u64::try_from(self.work.dnode.nblkptr()).unwrap_or(0);
        for range in self.work.change.marked.iter() {
            for blkid in 0..pointers {
                self.mark(top, blkid, range)?;
            }
        }
        Ok(())
    }

    /// Marks the holes of data blocks `[start, end)` below a block of the new tree, each at the highest level at which it is one.
    fn mark(&mut self, level: u8, blkid: u64, (start, end): (u64, u64)) -> Result<()> {
        let shift = self.work.old.dnode.blocks_per_indirect_shift();
        let below = shift.saturating_mul(u32::from(level));
        let first = blkid.checked_shl(below).unwrap_or(u64::MAX);
        let last = 1_u64.checked_shl(below).map_or(u64::MAX, |span| first.saturating_add(span - 1));
        let is_freed = self.holes.get(usize::from(level)).is_some_and(|holes| holes.contains_key(&blkid));
        if first >= end || last < start || is_freed {
            return Ok(());
        }
        let written = self.work.change.blocks.range(first..=last).next().is_some();
        let is_hole = !written && self.was_hole(level, blkid)?;
        if is_hole && start <= first && last < end {
            return self.hole(level, blkid);
        }
        if level == 0 {
            return Ok(());
        }
        let children = blkid.checked_shl(shift).unwrap_or(u64::MAX);
        let child_of = |at: u64| at.checked_shr(below - shift).unwrap_or(0);
        let last = child_of(end.saturating_sub(1)).min(children.saturating_add((1 << shift) - 1));
        (child_of(start).max(children)..=last).try_for_each(|child| self.mark(level - 1, child, (start, end)))
    }

    /// Whether the tree on disk has nothing there; one that grows is the first block of its new levels.
    fn was_hole(&self, level: u8, blkid: u64) -> Result<bool> {
        let old = &self.work.old;
        match level < old.dnode.nlevels {
            true => Ok(old.pointer(level, blkid)?.is_hole()),
            false => Ok(blkid > 0 || old.dnode.blkptrs().iter().all(Blkptr::is_hole)),
        }
    }

    /// Calls a function for each pointer of the dnode.
    fn top(
        &mut self,
        old: &Object,
        mut work: impl FnMut(&mut Self, &Blkptr, u8, u64) -> Result<()>,
    ) -> Result<()> {
        let top = old.dnode.nlevels.saturating_sub(1);
        (0..).zip(old.dnode.blkptrs()).try_for_each(|(blkid, bp)| work(self, bp, top, blkid))
    }

    fn kill(&mut self, bp: &Blkptr) -> Result<()> {
        if !bp.is_hole() {
            self.bytes = self.bytes.saturating_add((self.gone)(bp)?);
        }
        Ok(())
    }

    /// The pointers in an indirect block and their numbers. Only data may appear at two positions.
    fn children(&mut self, bp: &Blkptr, level: u8, blkid: u64) -> Result<(Buf, u64)> {
        let old = &self.work.old;
        if bp.dva(0).is_some_and(|dva| !self.seen.insert(dva)) {
            let what = "an indirect block stands at two places of its object";
            return Err(Error::new(Kind::Loop, what).at_block(old.at(level, blkid)));
        }
        let first = blkid.checked_shl(old.dnode.blocks_per_indirect_shift()).unwrap_or(u64::MAX);
        Ok((old.indirect(bp, level, blkid)?, first))
    }

    /// A block and all below it.
    fn tree(&mut self, bp: &Blkptr, level: u8, blkid: u64) -> Result<()> {
        if level > 0 && !bp.is_hole() {
            let (block, first) = self.children(bp, level, blkid)?;
            for (child, bp) in (first..).zip(block.chunks_exact(128).filter_map(Blkptr::from_bytes)) {
                self.tree(&bp, level - 1, child)?;
            }
        }
        self.kill(bp)
    }

    /// Frees data blocks `[start, end)` below a block, except those that the txg wrote.
    fn range(&mut self, bp: &Blkptr, level: u8, blkid: u64, (start, end): (u64, u64)) -> Result<()> {
        let shift = self.work.old.dnode.blocks_per_indirect_shift().saturating_mul(u32::from(level));
        let first = blkid.checked_shl(shift).unwrap_or(u64::MAX);
        let last = 1_u64.checked_shl(shift).map_or(u64::MAX, |span| first.saturating_add(span - 1));
        if bp.is_hole() || first >= end || last < start {
            return Ok(());
        }
        let written = self.work.change.blocks.range(first..=last).next().is_some();
        if start <= first && last < end && !written {
            self.tree(bp, level, blkid)?;
            return self.hole(level, blkid);
        }
        if level == 0 {
            return Ok(());
        }
        let (block, first) = self.children(bp, level, blkid)?;
        for (child, bp) in (first..).zip(block.chunks_exact(128).filter_map(Blkptr::from_bytes)) {
            self.range(&bp, level - 1, child, (start, end))?;
        }
        Ok(())
    }

    fn hole(&mut self, level: u8, blkid: u64) -> Result<()> {
        let at = usize::from(level);
        if self.holes.len() <= at {
            self.holes.resize(at + 1, BTreeMap::new());
        }
        if let Some(holes) = self.holes.get_mut(at) {
            holes.insert(blkid, hole(self.policy, &self.work.dnode, level, self.work.txg));
        }
        Ok(())
    }
}
