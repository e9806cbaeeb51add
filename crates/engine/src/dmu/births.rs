//! Which blocks of an object are older or newer than a txg, by the births in its pointers.
//!
//! A pointer is at least as new as everything below it, so only the indirect blocks on the way to wanted blocks are read.
//! Holes count: they record their birth where the feature `hole_birth` is enabled.

use ondisk::Blkptr;
use stdx::RangeSet;

use super::Object;
use crate::error::Result;

/// Which blocks are wanted.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// Born after this txg.
    After(u64),
    /// Born in this txg or before, or never.
    Until(u64),
}

impl Object {
    /// Numbers of the data blocks, holes included, that the tree on disk got after txg `txg`.
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub fn born_after(&self, txg: u64) -> Result<RangeSet> {
        self.births(Wanted::After(txg))
    }

    /// Numbers of the data blocks, holes included, that the tree on disk had in txg `txg`; holes without birth, too.
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub fn born_until(&self, txg: u64) -> Result<RangeSet> {
        self.births(Wanted::Until(txg))
    }

    fn births(&self, wanted: Wanted) -> Result<RangeSet> {
        let mut found = RangeSet::new();
        if self.dnode.is_free() {
            return Ok(found);
        }
        let top = self.dnode.nlevels.saturating_sub(1);
        for (blkid, bp) in (0..).zip(self.dnode.blkptrs()) {
            self.births_below(bp, (top, blkid), wanted, &mut found)?;
        }
        found.remove(self.dnode.maxblkid.saturating_add(1), u64::MAX);
        Ok(found)
    }

    fn births_below(
        &self,
        bp: &Blkptr,
        (level, blkid): (u8, u64),
        wanted: Wanted,
        found: &mut RangeSet,
    ) -> Result<()> {
        let shift = self.shift().saturating_mul(u32::from(level));
        let first = blkid.checked_shl(shift).unwrap_or(u64::MAX);
        if first > self.dnode.maxblkid {
            return Ok(());
        }
        let is_old = |txg: u64| bp.logical_birth() <= txg;
        let all = match wanted {
            Wanted::After(txg) if is_old(txg) => return Ok(()),
            Wanted::After(_) => level == 0 || bp.is_hole(),
            Wanted::Until(txg) if is_old(txg) => true,
            Wanted::Until(_) if level == 0 || bp.is_hole() => return Ok(()),
            Wanted::Until(_) => false,
        };
        if all {
            let span = 1_u64.checked_shl(shift).unwrap_or(u64::MAX);
            found.insert(first, first.saturating_add(span));
            return Ok(());
        }
        let block = self.indirect(bp, level, blkid)?;
        let children = blkid.checked_shl(self.shift()).unwrap_or(u64::MAX);
        for (child, bp) in (children..).zip(block.chunks_exact(128).filter_map(Blkptr::from_bytes)) {
            self.births_below(&bp, (level - 1, child), wanted, found)?;
        }
        Ok(())
    }
}
