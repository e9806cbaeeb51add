//! What one transaction group changed in one object.

use std::collections::BTreeMap;

use ondisk::{Blkptr, Dnode};
use stdx::{Buf, RangeSet};

use super::needs::Touched;

/// A block's new content.
#[derive(Debug, Clone)]
pub enum Dirty {
    /// These bytes are to be written.
    Data(Buf),
    /// The block is on disk already (an intent-log write); this pointer takes its place.
    Written(Blkptr, Buf),
}

impl Dirty {
    /// The bytes.
    pub fn bytes(&self) -> &Buf {
        match self {
            Self::Data(buf) | Self::Written(_, buf) => buf,
        }
    }
}

/// What becomes of the spill block.
#[derive(Debug, Clone, Default)]
pub enum Spill {
    /// It stays.
    #[default]
    Same,
    /// It goes.
    Removed,
    /// It is written.
    Set(Buf),
}

/// Changes of one group. Frees come before blocks: a block that was freed and written again is in `blocks`.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// The group.
    pub txg: u64,
    /// All blocks that the object had before are freed.
    pub wipe: bool,
    /// Block numbers freed.
    pub freed: RangeSet,
    /// Blocks written.
    pub blocks: BTreeMap<u64, Dirty>,
    /// The spill block.
    pub spill: Spill,
    /// Indirect blocks that change with them.
    pub touched: Touched,
    /// Blocks that were written to disk for the intent log, and that nothing refers to but its records.
    pub dropped: Vec<Blkptr>,
    /// The dnode as this group left it, once a later group began to change it.
    pub left: Option<Dnode>,
}

/// What a change says of a block.
#[derive(Debug)]
pub enum Said {
    /// These bytes.
    Bytes(Buf),
    /// Zeros.
    Hole,
    /// Nothing: ask what was before.
    Nothing,
}

impl Change {
    /// An empty change.
    pub fn new(txg: u64) -> Self {
        Self { txg, ..Self::default() }
    }

    /// What it says of block `blkid`.
    pub fn says(&self, blkid: u64) -> Said {
        if let Some(dirty) = self.blocks.get(&blkid) {
            return Said::Bytes(dirty.bytes().clone());
        }
        if self.gives_up(blkid) { Said::Hole } else { Said::Nothing }
    }

    /// Whether it frees what block `blkid` was before.
    pub fn gives_up(&self, blkid: u64) -> bool {
        self.wipe || self.freed.contains(blkid, blkid.saturating_add(1))
    }

    /// Gives block `blkid` new content; true when the group did not have it yet.
    pub fn put(&mut self, blkid: u64, dirty: Dirty) -> bool {
        let before = self.blocks.insert(blkid, dirty);
        let first = before.is_none();
        self.drop_written(before);
        first
    }

    /// Writes into block `blkid` if the group has it, and it is long enough; true then.
    pub fn overwrite(&mut self, blkid: u64, skip: usize, bytes: &[u8]) -> bool {
        let mut block = match self.blocks.get_mut(&blkid) {
            Some(Dirty::Data(buf)) => std::mem::replace(buf, Buf::empty()).into_owned(),
            Some(Dirty::Written(_, buf)) => buf.clone().into_owned(),
            None => return false,
        };
        let fits = overwrite(&mut block, skip, bytes);
        self.put(blkid, Dirty::Data(block.into()));
        fits
    }

    fn drop_written(&mut self, before: Option<Dirty>) {
        if let Some(Dirty::Written(bp, _)) = before {
            self.drop_block(&bp);
        }
    }

    /// Only records point to this block any more. One that the group did not write is the object's, which frees it itself.
    pub fn drop_block(&mut self, bp: &Blkptr) {
        if !bp.is_hole() && bp.logical_birth() == self.txg {
            self.dropped.push(*bp);
        }
    }

    /// Frees blocks `[start, end)`.
    pub fn free(&mut self, start: u64, end: u64) {
        let gone: Vec<u64> = self.blocks.range(start..end).map(|(&b, _)| b).collect();
        for blkid in gone {
            let before = self.blocks.remove(&blkid);
            self.drop_written(before);
        }
        self.freed.insert(start, end);
    }

    /// Frees the object and everything that it had.
    pub fn free_all(&mut self) {
        self.free(0, u64::MAX);
        *self = Self { wipe: true, dropped: std::mem::take(&mut self.dropped), ..Self::new(self.txg) };
    }
}

/// Puts `bytes` into a block; false when it has no room for them there.
pub fn overwrite(block: &mut [u8], skip: usize, bytes: &[u8]) -> bool {
    let target = block.get_mut(skip..).and_then(|b| b.get_mut(..bytes.len()));
    target.is_some_and(|to| {
        to.copy_from_slice(bytes);
        true
    })
}
