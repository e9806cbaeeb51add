//! One object: its dnode and its blocks.

use std::sync::Arc;

use ondisk::{Blkptr, Dnode};
use stdx::{AlignedBuf, Buf};

use super::Objset;
use super::blocks::{Blocks, Stuck};
use super::dirty::Handle;
use crate::error::{Error, Result};
use crate::taskq::start_reads;
use crate::types::Bookmark;

/// Size of a block pointer, as a shift.
const BLKPTR_SHIFT: u32 = 7;
/// Windows of less than a block by this factor are parts for which it does not stay in memory.
const PART_OF_BLOCK: usize = 16;
/// Bytes of a part that is copied in any case.
const SMALL_PART: usize = 64 << 10;
/// Bytes of the largest block that answers may keep in memory.
const SMALL_BLOCK: usize = 128 << 10;

/// An object of an object set.
#[derive(Debug, Clone)]
pub struct Object {
    /// Its object set.
    pub objset: Arc<Objset>,
    /// Its number.
    pub number: u64,
    /// Its dnode, checked. For an object that is being written: the state at the lookup.
    pub dnode: Dnode,
    /// The source of unwritten changes.
    live: Option<Arc<Handle>>,
}

/// The blocks that a read passes on to the system's page cache, so that they need not stay in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// None: the reader keeps no pages.
    Nothing,
    /// Those that are read whole, or up to the end of the content at byte `end`.
    Whole {
        /// Bytes of the content.
        end: u64,
    },
    /// All: the read is part of a stream, which reads the rest of them as well.
    Stream,
}

/// A run of bytes that is either stored or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl Object {
    /// An object as described by its dnode on disk.
    pub(crate) fn stored(objset: &Arc<Objset>, number: u64, dnode: Dnode) -> Self {
        Self { objset: Arc::clone(objset), number, dnode, live: None }
    }

    /// An object that is being written.
    pub(super) fn live(objset: &Arc<Objset>, handle: &Arc<Handle>) -> Self {
        let dnode = handle.dnode();
        Self { objset: Arc::clone(objset), number: handle.number, dnode, live: Some(Arc::clone(handle)) }
    }

    /// The object in memory, if it is being written.
    pub fn handle(&self) -> Option<&Arc<Handle>> {
        self.live.as_ref()
    }

    /// The pointer to block `blkid` of `level`, including the birth of holes; zeros past the end.
    pub(super) fn pointer(&self, level: u8, blkid: u64) -> Result<Blkptr> {
        let Some(top) = self.dnode.nlevels.checked_sub(1).filter(|&top| level <= top) else {
            return Ok(Blkptr::default());
        };
        let index = blkid.checked_shr(u32::from(top - level) * self.shift()).unwrap_or(0);
        let first = usize::try_from(index).ok().and_then(|i| self.dnode.blkptrs().get(i));
        let (mut bp, as_of) = (first.copied().unwrap_or_default(), self.objset.moment());
        for at in (level..top).rev() {
            if bp.is_hole() {
                // Everything below a hole has the hole's birth.
                return Ok(bp);
            }
            let down = u32::from(at - level) * self.shift();
            bp = self.child(&bp, at + 1, blkid.checked_shr(down).unwrap_or(0), as_of)?;
        }
        Ok(bp)
    }

    pub(crate) fn at(&self, level: u8, blkid: u64) -> Bookmark {
        Bookmark::new(self.objset.id, self.number, i64::from(level), blkid)
    }

    /// Its position, as the location of an error.
    pub fn bookmark(&self) -> Bookmark {
        self.at(0, 0)
    }

    pub(super) fn shift(&self) -> u32 {
        self.dnode.blocks_per_indirect_shift()
    }

    /// The pointer to block `blkid` of `level`; `None` for a hole or past the end.
    ///
    /// For an object that is being written: the on-disk pointer.
    pub fn blkptr(&self, level: u8, blkid: u64) -> Result<Option<Blkptr>> {
        let as_of = self.objset.moment();
        match &self.live {
            Some(handle) => handle.synced().blkptr_as_of(level, blkid, as_of),
            None => self.blkptr_as_of(level, blkid, as_of),
        }
    }

    /// The on-disk pointer to a block, of an object whose dnode was taken at that moment.
    fn blkptr_as_of(&self, level: u8, blkid: u64, as_of: u64) -> Result<Option<Blkptr>> {
        let Some(top) = self.dnode.nlevels.checked_sub(1).filter(|&top| level <= top) else {
            return Ok(None);
        };
        let above = u32::from(top - level) * self.shift();
        let index = blkid.checked_shr(above).unwrap_or(0);
        let first = usize::try_from(index).ok().and_then(|i| self.dnode.blkptrs().get(i));
        let Some(mut bp) = first.copied() else { return Ok(None) };
        for at in (level..top).rev() {
            if bp.is_hole() {
                return Ok(None);
            }
            let down = u32::from(at - level) * self.shift();
            let child = blkid.checked_shr(down).unwrap_or(0);
            bp = self.child(&bp, at + 1, child, as_of)?;
        }
        Ok((!bp.is_hole()).then_some(bp))
    }

    /// The pointer to block `child` (of the level below) in the indirect block that `bp` references.
    fn child(&self, bp: &Blkptr, level: u8, child: u64, as_of: u64) -> Result<Blkptr> {
        let parent = child >> self.shift();
        self.pointer_in(&self.indirect_as_of(bp, level, parent, as_of)?, level, child)
    }

    /// The pointer to block `child` (of the level below) in the bytes of its indirect block.
    pub(super) fn pointer_in(&self, block: &Buf, level: u8, child: u64) -> Result<Blkptr> {
        let slot = usize::try_from(child & ((1 << self.shift()) - 1)).unwrap_or(usize::MAX);
        let start = slot << BLKPTR_SHIFT;
        let bytes = block.get(start..start + (1 << BLKPTR_SHIFT));
        let pointer = bytes.and_then(Blkptr::from_bytes);
        pointer.ok_or_else(|| {
            Error::corrupt("indirect block is too short").at_block(self.at(level, child >> self.shift()))
        })
    }

    /// Reads the indirect block `blkid` of `level` through its pointer, after checking the pointer's level and
    /// size.
    pub fn indirect(&self, bp: &Blkptr, level: u8, blkid: u64) -> Result<Buf> {
        self.indirect_as_of(bp, level, blkid, self.objset.moment())
    }

    /// The same through a pointer that was taken at that moment.
    pub(super) fn indirect_as_of(&self, bp: &Blkptr, level: u8, blkid: u64, as_of: u64) -> Result<Buf> {
        let at = self.at(level, blkid);
        if bp.level() != level || bp.lsize() != self.dnode.indirect_size() {
            let what = format!("a pointer of level {} and {} bytes stands here", bp.level(), bp.lsize());
            return Err(Error::corrupt(what).at_block(at));
        }
        self.objset.read_as_of(bp, at, as_of)
    }

    /// Bytes of the data blocks that are cached, before compression. Blocks below an unreadable indirect block do not count, nor
    /// does an object without indirect blocks.
    #[doc(alias = "dmu_object_cached_size")]
    pub(crate) fn cached_bytes(&self) -> u64 {
        if self.dnode.nlevels < 2 {
            return 0;
        }
        let (mut bytes, mut blkid) = (0_u64, 0_u64);
        while blkid <= self.dnode.maxblkid {
            match self.blkptr(0, blkid) {
                Ok(Some(bp)) if self.objset.arc().has(&bp) => bytes = bytes.saturating_add(bp.lsize()),
                Ok(_) => {}
                Err(_) => blkid |= (1_u64 << self.shift()) - 1,
            }
            let Some(next) = blkid.checked_add(1) else { break };
            blkid = next;
        }
        bytes
    }

    /// Data block `blkid`: `datablksz` bytes, zeros for a hole.
    pub fn block(&self, blkid: u64) -> Result<Buf> {
        self.block_for(blkid, false)
    }

    /// As [`Object::block`]; `paged`: for a stream that passes the bytes on to the system's page cache.
    fn block_for(&self, blkid: u64, paged: bool) -> Result<Buf> {
        match &self.live {
            Some(handle) => handle.block_for(blkid, paged),
            None => self.block_as_of(blkid, self.objset.moment(), paged),
        }
    }

    /// Data blocks, as [`Object::block`] returns each; those on disk are read at the same time. The caller bounds their
    /// number; without `keep`, those that are not in memory do not stay there.
    pub fn blocks(&self, blkids: &[u64], keep: bool) -> Vec<Result<Buf>> {
        match &self.live {
            Some(handle) => handle.blocks(blkids, keep),
            None => self.blocks_as_of(blkids, self.objset.moment(), keep),
        }
    }

    /// As [`Object::blocks`] on disk, of an object whose dnode was taken at that moment.
    pub(super) fn blocks_as_of(&self, blkids: &[u64], as_of: u64, keep: bool) -> Vec<Result<Buf>> {
        let size = self.dnode.datablksz();
        let is_sound = |bp: &Blkptr| bp.level() == 0 && bp.lsize() == size;
        let stored = |&blkid: &u64| {
            let bp = self.blkptr_as_of(0, blkid, as_of).ok().flatten().filter(is_sound)?;
            Some((bp, self.at(0, blkid)))
        };
        let places: Vec<_> = blkids.iter().map(stored).collect();
        let reads: Vec<_> = places.iter().flatten().copied().collect();
        let mut read = self.objset.read_many_as_of(&reads, as_of, keep).into_iter();
        let of_each = blkids.iter().zip(places).map(|(&blkid, place)| {
            // Holes and unreadable blocks fall back to the lookup of single blocks.
            place.and_then(|_| read.next()).unwrap_or_else(|| self.block_as_of(blkid, as_of, false))
        });
        of_each.collect()
    }

    /// The block on disk, of an object whose dnode was taken at that moment.
    pub(super) fn block_as_of(&self, blkid: u64, as_of: u64, paged: bool) -> Result<Buf> {
        let size = self.dnode.datablksz();
        match self.blkptr_as_of(0, blkid, as_of)? {
            None => Ok(AlignedBuf::zeroed(usize::try_from(size).unwrap_or(0)).into()),
            Some(bp) => {
                let at = self.at(0, blkid);
                if bp.level() != 0 || bp.lsize() != size {
                    let what =
                        format!("a pointer of level {} and {} bytes stands here", bp.level(), bp.lsize());
                    return Err(Error::corrupt(what).at_block(at));
                }
                self.objset.read_for(&bp, at, as_of, paged)
            }
        }
    }

    /// The spill block, if there is one.
    pub fn spill(&self) -> Result<Option<Buf>> {
        if let Some(handle) = &self.live {
            return handle.spill();
        }
        self.spill_as_of(self.objset.moment())
    }

    /// The spill block on disk, of an object whose dnode was taken at that moment.
    pub(super) fn spill_as_of(&self, as_of: u64) -> Result<Option<Buf>> {
        let Some(bp) = self.dnode.spill().filter(|bp| !bp.is_hole()) else { return Ok(None) };
        let at = self.at(0, u64::MAX);
        self.objset.read_as_of(bp, at, as_of).map(Some)
    }

    /// Bytes that the object's blocks can cover: one past the last block.
    pub fn max_offset(&self) -> u64 {
        self.dnode.max_offset()
    }

    /// Bytes from the start up to the first hole: the real capacity of an array, whatever its header claims.
    pub fn stored_prefix(&self) -> u64 {
        let mut blocks = Blocks::new(self);
        let mut end = 0;
        while blocks.next_from(end).is_ok_and(|next| next == Some(end)) {
            end += 1;
        }
        end.saturating_mul(self.dnode.datablksz())
    }

    /// Fills `out` from `offset`; holes and bytes past the last block read as zeros.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut rest = out;
        let mut at = offset;
        while !rest.is_empty() {
            let (take, bytes) = self.piece(at, rest.len(), Passes::Nothing)?;
            let (now, later) = rest.split_at_mut(take);
            match bytes {
                Some(bytes) => now.copy_from_slice(&bytes),
                None => now.fill(0),
            }
            rest = later;
            at = at.saturating_add(u64::try_from(take).unwrap_or(0));
        }
        Ok(())
    }

    /// `len` bytes from `offset`, as [`Object::read_at`] reads them, in windows of the blocks. The caller bounds `len`.
    pub(super) fn pieces(&self, offset: u64, len: usize, passes: Passes) -> Result<Vec<Buf>> {
        let (mut pieces, mut done) = (Vec::with_capacity(1), 0);
        while done < len {
            let at = offset.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
            let (take, bytes) = self.piece(at, len - done, passes)?;
            pieces.push(bytes.map_or_else(|| AlignedBuf::zeroed(take).into(), detached));
            done += take;
        }
        Ok(pieces)
    }

    /// The bytes from `at` to the end of their block, at most `len`: their number, and `None` past the last block.
    fn piece(&self, at: u64, len: usize, passes: Passes) -> Result<(usize, Option<Buf>)> {
        let size = self.dnode.datablksz().max(1);
        let skip = usize::try_from(at % size).unwrap_or(0);
        let take = len.min(usize::try_from(size).unwrap_or(usize::MAX) - skip);
        if at / size > self.dnode.maxblkid && self.live.is_none() {
            return Ok((take, None));
        }
        let paged = match passes {
            Passes::Nothing => false,
            Passes::Whole { end } => {
                skip == 0
                    && at.saturating_add(u64::try_from(take).unwrap_or(0)) >= end.min(at.saturating_add(size))
            }
            Passes::Stream => true,
        };
        let bytes = self.block_for(at / size, paged)?.slice(skip..skip + take);
        let short = || Error::corrupt("data block is too short").at_block(self.at(0, at / size));
        if bytes.len() < take { Err(short()) } else { Ok((take, Some(bytes))) }
    }

    /// `len` bytes from `offset`. The caller bounds `len`.
    pub fn read_vec(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        self.read_at(offset, &mut out)?;
        Ok(out)
    }

    /// One past the last block that the dnode's pointers can reach.
    pub(super) fn reach(&self) -> u64 {
        let shift = u32::from(self.dnode.nlevels.saturating_sub(1)) * self.shift();
        let pointers = u64::try_from(self.dnode.nblkptr()).unwrap_or(0);
        // A dnode has at most three pointers, which two bits hold.
        if shift > 61 { u64::MAX } else { pointers << shift }
    }

    /// The first data block at or after `blkid` that is not a hole. An unreadable indirect block returns the block
    /// where the search can continue (if any) and the error. For many, see [`Blocks`].
    pub fn next_block(&self, blkid: u64) -> std::result::Result<Option<u64>, Stuck> {
        Blocks::new(self).next_from(blkid)
    }

    /// The stored extents within `[start, end)`, with adjacent blocks merged.
    pub fn next_extent(&self, start: u64, end: u64) -> Result<Option<Extent>> {
        let size = self.dnode.datablksz().max(1);
        let mut blocks = Blocks::new(self);
        let first = blocks.next_from(start / size).map_err(|(_, e)| e)?;
        let Some(first) = first.filter(|b| b.saturating_mul(size) < end) else { return Ok(None) };
        let mut last = first;
        while last < self.dnode.maxblkid && last.saturating_add(1).saturating_mul(size) < end {
            match blocks.next_from(last + 1).map_err(|(_, e)| e)? {
                Some(next) if next == last + 1 => last = next,
                _ => break,
            }
        }
        let from = first.saturating_mul(size).max(start);
        let to = last.saturating_add(1).saturating_mul(size).min(end);
        Ok(Some(Extent { start: from, end: to }))
    }

    /// Whether block `blkid` is stored, on disk or not yet.
    pub fn is_stored(&self, blkid: u64) -> Result<bool> {
        match self.live.as_ref().and_then(|handle| handle.pending(blkid)) {
            Some(stored) => Ok(stored),
            None => Ok(self.blkptr(0, blkid)?.is_some()),
        }
    }

    /// Starts reading up to `count` data blocks from `blkid` on, as long as there is space for blocks that are read ahead. Errors
    /// appear when the blocks are read. `paged`: for a stream that passes the bytes on to the system's page cache.
    pub(crate) fn read_ahead(&self, blkid: u64, count: u64, paged: bool) {
        let end = blkid.saturating_add(count).min(self.dnode.maxblkid.saturating_add(1));
        for b in blkid..end {
            let as_of = self.objset.moment();
            if let Ok(Some(bp)) = self.blkptr(0, b)
                && !self.objset.prefetch(&bp, self.at(0, b), as_of, paged)
            {
                return;
            }
        }
    }

    /// Has another thread call [`Object::read_ahead`] for each of the ranges: a first block and a number of blocks.
    pub(super) fn read_ahead_elsewhere(&self, ranges: Vec<(u64, u64)>, paged: bool) {
        let object = self.clone();
        self.objset.arc().zio().executor().spawn_waiting(Box::new(move || {
            start_reads(|| {
                ranges.into_iter().for_each(|(blkid, count)| object.read_ahead(blkid, count, paged))
            });
        }));
    }

    /// Bytes that the cache of its blocks may take.
    pub(super) fn cache_target(&self) -> u64 {
        self.objset.arc().memory().target()
    }
}

/// A window of a block for an answer. One of a large block is a copy, if it is small or the cache does not keep the block:
/// answers on their way would hold as many large blocks, which nothing counts.
fn detached(window: Buf) -> Buf {
    let bytes = window.footprint();
    let is_part = bytes > SMALL_BLOCK && bytes / PART_OF_BLOCK >= window.len();
    let copies = is_part && (window.len() <= SMALL_PART || !window.is_shared());
    if copies { Buf::from(&*window) } else { window }
}
