//! The changes of one txg to one object.

use std::collections::BTreeMap;

use ondisk::Blkptr;
use stdx::{Buf, RangeSet};

use super::needs::Touched;
use super::parts::{Parts, overwrite};
use crate::error::{Error, Kind, Result};
use crate::zio::write::AsStored;
use crate::zio::{Form, transform};

/// A block of a send stream: its bytes in on-disk form, and their properties.
#[derive(Debug, Clone)]
pub(crate) struct StoredBlock {
    /// The bytes, a multiple of 512.
    pub(crate) bytes: Buf,
    /// Their form.
    pub(crate) form: AsStored,
}

impl StoredBlock {
    /// The logical bytes.
    ///
    /// # Errors
    /// `KeyMissing` for encrypted bytes, which can be read once they are on disk; `Corrupt` when they do not decompress.
    pub(crate) fn open(&self) -> Result<Buf> {
        if self.form.crypt.is_some() {
            return Err(Error::new(Kind::KeyMissing, "an encrypted block of a stream is not on disk yet"));
        }
        Ok(transform::decompress(self.form.compress, &self.bytes, self.form.lsize)?.into())
    }
}

/// How a block is written again with the same bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SameBytes {
    /// It keeps its logical birth.
    pub keeps_birth: bool,
    /// Whether it is deduplicated, whatever the property says; `None`: as that says.
    pub dedup: Option<bool>,
    /// It goes to the vdevs that are less full than the others of its class.
    pub evens_out: bool,
    /// It is written even if its checksum says that it is on disk as it would be.
    pub always: bool,
}

/// A block's new content.
#[derive(Debug, Clone)]
pub(crate) enum DirtyRecord {
    /// These bytes are to be written.
    Data(Buf),
    /// These bytes, which the block has already, are to be written again.
    #[doc(alias = "dr_rewrite")]
    Moved(Buf, SameBytes),
    /// The block is already on disk (an intent-log write); this pointer replaces the old one.
    Written(Blkptr, Buf),
    /// These bytes are to be written unchanged.
    Stored(StoredBlock),
    /// This pointer, which embeds its bytes or has none, replaces the block's.
    Pointer(Blkptr),
    /// This pointer to a block that is on disk and has other references replaces the block's. The reference counts
    /// when the txg is written, and not before.
    Cloned(Blkptr),
    /// These bytes replace some of the block's, in an object set that is never written.
    Parts(Parts),
}

impl DirtyRecord {
    /// Whether it takes neither memory nor space for the block's bytes.
    fn is_pointer(&self) -> bool {
        matches!(self, Self::Pointer(_) | Self::Cloned(_) | Self::Parts(_))
    }

    fn said(&self) -> Said {
        match self {
            Self::Data(buf) | Self::Moved(buf, _) | Self::Written(_, buf) => Said::Bytes(buf.clone()),
            Self::Stored(block) => Said::Stored(block.clone()),
            Self::Pointer(bp) => Said::Pointer(*bp),
            Self::Cloned(bp) => Said::Cloned(*bp),
            Self::Parts(parts) => Said::Parts(parts.clone()),
        }
    }
}

/// The change of the spill block.
#[derive(Debug, Clone, Default)]
pub(crate) enum Spill {
    /// It is unchanged.
    #[default]
    Same,
    /// It is removed.
    Removed,
    /// It is written.
    Set(Buf),
    /// It is written unchanged.
    Stored(StoredBlock),
}

/// Changes of one txg. Frees precede blocks: a block that was freed and rewritten is in `blocks`.
#[derive(Debug, Clone, Default)]
pub(crate) struct TxgChanges {
    /// The txg.
    pub(crate) txg: u64,
    /// All blocks that the object had before are freed.
    pub(crate) wipe: bool,
    /// With `wipe`: these blocks are not freed, the object only stops referring to them.
    pub(crate) forgets: bool,
    /// Block numbers freed.
    pub freed: RangeSet,
    /// Of these, the numbers of which holes get the txg as their birth, too.
    pub(crate) marked: RangeSet,
    /// Blocks written.
    pub(crate) blocks: BTreeMap<u64, DirtyRecord>,
    /// The spill block.
    pub(crate) spill: Spill,
    /// Indirect blocks that change with them.
    pub(crate) touched: Touched,
    /// Blocks that were written to disk for the intent log, and are referenced only by its records.
    pub(crate) dropped: Vec<Blkptr>,
    /// The content of blocks changed since this was last taken.
    pub(crate) touched_content: bool,
}

impl Said {
    /// The bytes of a block of `size` bytes; `None` when the change does not define all of them. `read` reads a
    /// block on disk.
    ///
    /// # Errors
    /// As [`StoredBlock::open`]; `Unsupported` for a redacted block; errors of `read`.
    pub(super) fn bytes(self, size: u64, read: impl FnOnce(&Blkptr) -> Result<Buf>) -> Result<Option<Buf>> {
        Ok(Some(match self {
            Self::Bytes(buf) => buf,
            Self::Stored(block) => block.open()?,
            Self::Pointer(bp) => transform::embedded(&bp, Form::Logical)?,
            Self::Cloned(bp) => read(&bp)?,
            Self::Hole => stdx::AlignedBuf::zeroed(usize::try_from(size).unwrap_or(0)).into(),
            Self::Nothing | Self::Parts(_) => return Ok(None),
        }))
    }
}

/// The content of a block according to a change.
#[derive(Debug)]
pub(crate) enum Said {
    /// These bytes.
    Bytes(Buf),
    /// The content of this stored block.
    Stored(StoredBlock),
    /// The data embedded in this pointer.
    Pointer(Blkptr),
    /// The content of the block at this location, which is on disk.
    Cloned(Blkptr),
    /// These bytes over the content on disk.
    Parts(Parts),
    /// Zeros.
    Hole,
    /// Unchanged: consult the earlier changes.
    Nothing,
}

impl TxgChanges {
    /// An empty change.
    pub(crate) fn new(txg: u64) -> Self {
        Self { txg, ..Self::default() }
    }

    /// The content of block `blkid`.
    pub(crate) fn says(&self, blkid: u64) -> Said {
        if let Some(dirty) = self.blocks.get(&blkid) {
            return dirty.said();
        }
        if self.gives_up(blkid) { Said::Hole } else { Said::Nothing }
    }

    /// Pointers to stored blocks that get one more reference each when the txg is written.
    pub(super) fn cloned(&self) -> impl Iterator<Item = &Blkptr> {
        self.blocks.values().filter_map(|dirty| match dirty {
            DirtyRecord::Cloned(bp) if !bp.is_embedded() => Some(bp),
            _ => None,
        })
    }

    /// Whether it frees the previous content of block `blkid`.
    pub(crate) fn gives_up(&self, blkid: u64) -> bool {
        self.wipe || self.freed.contains(blkid, blkid.saturating_add(1))
    }

    /// Sets the content of block `blkid`; returns true if the txg did not have the block yet, or had only a pointer where there
    /// are bytes now.
    pub(crate) fn put(&mut self, blkid: u64, dirty: DirtyRecord) -> bool {
        self.touched_content = true;
        let is_pointer = dirty.is_pointer();
        let before = self.blocks.insert(blkid, dirty);
        let first = before.as_ref().is_none_or(|before| before.is_pointer() && !is_pointer);
        self.drop_written(before);
        first
    }

    /// Appends zeros to block 0, up to `len` bytes, if the txg has its bytes, they have no other reader, and their memory
    /// suffices; returns whether it did.
    pub(super) fn grow(&mut self, len: usize) -> bool {
        let grown = match self.blocks.get_mut(&0) {
            Some(DirtyRecord::Data(buf)) => buf.grow(len),
            _ => false,
        };
        self.touched_content |= grown;
        grown
    }

    /// Overwrites part of block `blkid` if the txg has it, and it is long enough; returns whether it did.
    pub(crate) fn overwrite(&mut self, blkid: u64, skip: usize, bytes: &[u8]) -> bool {
        self.patch(blkid, |block| overwrite(block, skip, bytes)).unwrap_or(false)
    }

    /// Changes block `blkid` if the txg has its bytes, in place unless they have other readers; `None` if it does not have
    /// them.
    pub(crate) fn patch<T>(&mut self, blkid: u64, work: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut block = match self.blocks.get_mut(&blkid) {
            Some(DirtyRecord::Data(buf)) => {
                if let Some(bytes) = buf.get_mut() {
                    self.touched_content = true;
                    return Some(work(bytes));
                }
                std::mem::replace(buf, Buf::empty()).into_owned()
            }
            Some(DirtyRecord::Moved(buf, _)) => std::mem::replace(buf, Buf::empty()).into_owned(),
            Some(DirtyRecord::Written(_, buf)) => buf.clone().into_owned(),
            Some(
                DirtyRecord::Stored(_)
                | DirtyRecord::Pointer(_)
                | DirtyRecord::Cloned(_)
                | DirtyRecord::Parts(_),
            )
            | None => return None,
        };
        let done = work(&mut block);
        self.put(blkid, DirtyRecord::Data(block.into()));
        Some(done)
    }

    fn drop_written(&mut self, before: Option<DirtyRecord>) {
        if let Some(DirtyRecord::Written(bp, _)) = before {
            self.drop_block(&bp);
        }
    }

    /// Only records refer to this block any more. A block that the txg did not write is the object's, which frees
    /// it itself.
    pub(crate) fn drop_block(&mut self, bp: &Blkptr) {
        if !bp.is_hole() && bp.logical_birth() == self.txg {
            self.dropped.push(*bp);
        }
    }

    /// Frees blocks `[start, end)`.
    pub(crate) fn free(&mut self, start: u64, end: u64) {
        self.touched_content = true;
        let gone: Vec<u64> = self.blocks.range(start..end).map(|(&b, _)| b).collect();
        for blkid in gone {
            let before = self.blocks.remove(&blkid);
            self.drop_written(before);
        }
        self.freed.insert(start, end);
    }

    /// Frees the object and all its blocks.
    pub(crate) fn free_all(&mut self) {
        for dirty in std::mem::take(&mut self.blocks).into_values() {
            self.drop_written(Some(dirty));
        }
        let dropped = std::mem::take(&mut self.dropped);
        *self = Self { wipe: true, touched_content: true, dropped, ..Self::new(self.txg) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_the_place_of_a_pointer_count_as_a_new_block() {
        let mut change = TxgChanges::new(5);
        let bytes = || DirtyRecord::Data(Buf::from(&[1_u8; 512][..]));
        let clone = || DirtyRecord::Cloned(Blkptr::default());
        let counted = [clone(), clone(), bytes(), bytes(), clone(), bytes()].map(|new| change.put(3, new));
        assert_eq!(counted, [true, false, true, false, false, true]);
    }
}
