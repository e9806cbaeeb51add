//! Changes a fat ZAP.
//!
//! ```text
//! block 0        header, and the pointer table in its second half while that is enough
//! other blocks   leaves, and the pointer table's own blocks, handed out one after the other (freeblk)
//! ```
//!
//! The table is indexed by the first bits of a hash. A leaf holds the hashes of one prefix, which is at most as
//! long as the index, so 2^n neighbouring slots name it. A full leaf is split: its prefix grows by a bit, the
//! hashes with that bit set move to a new leaf, and the second half of the slots names that leaf. A leaf that is
//! named by only one slot requires a table of twice the size first.
//!
//! Two empty leaves of one prefix but for its last bit become one, and the other's block is free; the table stays.
//!
//! Differs from OpenZFS: a table grows in one step (OpenZFS copies a block with each split and keeps both in step
//! meanwhile; such a copy is finished before the first split here). A table never has more slots than 64 for each
//! entry: names made to collide cannot fill the disk.

use ondisk::zap::{FatHeader, Fit, Leaf, LeafArray, LeafEntry, LeafMut, NewEntry, table_index};
use stdx::{AlignedBuf, Buf};

use super::edit::{absent, exists};
use super::{KeyRef, Value};
use crate::dmu::edit::Edit;
use crate::error::{Error, Kind, Result};

/// Bits of hash that are never used for the index (OpenZFS stops two bits short of the full hash).
const SPARE_BITS: u32 = 2;
/// Slots that every table may have, in addition to those for each entry.
const FREE_SLOTS: u64 = 1 << 16;
const SLOTS_PER_ENTRY: u64 = 64;
/// log2 of the maximum slots that one split may change.
const MAX_SPAN: u32 = 24;
/// Maximum splits of a leaf for one entry: hashes have 48 bits.
const MAX_SPLITS: u32 = 64;

/// A key as it is stored, and its hash.
#[derive(Debug)]
pub(super) struct Hashed<'k> {
    pub(crate) hash: u64,
    /// Name with its NUL, or words in big-endian order.
    pub(crate) stored: Vec<u8>,
    /// 1 or 8.
    pub(crate) intlen: u8,
    /// For errors.
    pub(crate) key: KeyRef<'k>,
}

/// A fat ZAP open for changes.
pub(super) struct Fat<'a> {
    object: &'a mut dyn Edit,
    pub(crate) header: FatHeader,
    first: Buf,
    /// `first` has changes that are not written yet.
    changed: bool,
}

/// A leaf found for a hash. The block itself is not kept: without other readers it is changed in place.
struct Place {
    blkid: u64,
    entry: Option<LeafEntry>,
}

/// Two empty leaves whose prefixes differ in the last bit only.
struct Pair {
    /// The block of the one that stays.
    block: AlignedBuf,
    kept: u64,
    gone: u64,
    /// The first of the 2^`free` slots of the other.
    slot: u64,
    free: u32,
}

impl<'a> Fat<'a> {
    pub(super) fn open(object: &'a mut dyn Edit) -> Result<Self> {
        let first = object.read_block(0)?;
        Self::over(object, first)
    }

    /// As [`Fat::open`], where block 0 has been read.
    pub(super) fn over(object: &'a mut dyn Edit, first: Buf) -> Result<Self> {
        let header = FatHeader::from_bytes(&first).map_err(|e| corrupt(&*object, 0, &e))?;
        Ok(Self { object, header, first, changed: false })
    }

    /// Adds an entry, or replaces its value if that is allowed.
    pub(super) fn store(
        &mut self,
        key: &Hashed<'_>,
        cd: Option<u32>,
        value: &Value,
        replace: bool,
    ) -> Result<()> {
        let bytes = value.big_endian();
        let value = LeafArray { intlen: value.width, bytes: &bytes };
        for _ in 0..MAX_SPLITS {
            let Place { blkid, entry } = self.find(key)?;
            if entry.is_some() && !replace {
                return Err(exists(key.key));
            }
            self.object.check_change(0, 1)?;
            let fit = self.change_leaf(blkid, &mut |leaf| match entry {
                Some(entry) => leaf.set_value(entry.chunk, value),
                None => {
                    let name = LeafArray { intlen: key.intlen, bytes: &key.stored };
                    leaf.insert(&NewEntry { hash: key.hash, cd, name, value })
                }
            })?;
            match fit {
                Fit::Never => {
                    let what = format!("entry '{}' is too long for a block of this ZAP", key.key.text());
                    return Err(Error::new(Kind::TooLong, what));
                }
                Fit::Full => self.expand(key.hash, blkid)?,
                Fit::Done if entry.is_some() => return Ok(()),
                Fit::Done => return self.count(1),
            }
        }
        Err(self.full())
    }

    pub(super) fn remove(&mut self, key: &Hashed<'_>) -> Result<()> {
        let Place { blkid, entry } = self.find(key)?;
        let entry = entry.ok_or_else(|| absent(key.key))?;
        if self.header.num_entries == 0 {
            return Err(self.bad(0, &"more entries than the ZAP counts"));
        }
        self.object.check_change(0, 1)?;
        let mut is_empty = false;
        self.change_leaf(blkid, &mut |leaf| {
            leaf.remove(entry.chunk)?;
            is_empty = leaf.is_empty();
            Ok(Fit::Done)
        })?;
        self.count(-1)?;
        if !is_empty {
            return Ok(());
        }
        self.first = self.object.read_block(0)?;
        self.shrink(blkid)
    }

    /// Changes entries of a leaf, in place if the txg has it already and no reader holds it; a change that fails has changed
    /// nothing.
    fn change_leaf(
        &mut self,
        blkid: u64,
        work: &mut dyn FnMut(&mut LeafMut<'_>) -> std::result::Result<Fit, ondisk::Malformed>,
    ) -> Result<Fit> {
        let mut done = Ok(Fit::Never);
        self.object.patch_block_if(blkid, &mut |block| {
            done = LeafMut::attempt(block, &mut *work);
            matches!(done, Ok(Fit::Done))
        })?;
        done.map_err(|e| self.bad(blkid, &e))
    }

    /// Joins the empty leaf `blkid` with its sibling while that is empty, too.
    #[doc(alias = "zap_shrink")]
    fn shrink(&mut self, mut blkid: u64) -> Result<()> {
        let before = self.header.num_leafs;
        while let Some(pair) = self.empty_pair(blkid) {
            let Pair { mut block, kept, gone, slot, free } = pair;
            LeafMut::from_bytes(&mut block).and_then(|mut leaf| leaf.widen()).map_err(bad_leaf)?;
            // In this order, other readers find a valid leaf through the present table at any time.
            self.object.write_block(kept, block)?;
            self.point(slot, free, kept)?;
            self.header.num_leafs = self.header.num_leafs.saturating_sub(1);
            self.write_header()?;
            self.object.free_range(gone, 1)?;
            blkid = kept;
        }
        if self.header.num_leafs == before {
            return Ok(());
        }
        self.trim();
        self.write_header()
    }

    /// The empty leaf `blkid` with its empty sibling, if there is one, and nothing about them is broken.
    fn empty_pair(&self, blkid: u64) -> Option<Pair> {
        let empty = |blkid: u64| -> Option<(u64, u32, AlignedBuf)> {
            let block = self.object.read_block(blkid).ok()?;
            let header = *Leaf::from_bytes(&block).ok()?.header();
            (header.nentries == 0).then(|| (header.prefix, u32::from(header.prefix_len), block.into_owned()))
        };
        let (prefix, len, block) = empty(blkid)?;
        let free = self.header.ptrtbl.shift.checked_sub(len)?;
        if len == 0 || self.header.ptrtbl.nextblk != 0 || self.header.num_leafs < 2 {
            return None;
        }
        let other = self.slot((prefix ^ 1) << free).ok()?;
        let (theirs, their_len, their_block) = empty(other).filter(|_| other != blkid)?;
        if (theirs, their_len) != (prefix ^ 1, len) {
            return None;
        }
        let (kept, gone, block) =
            if prefix & 1 == 0 { (blkid, other, block) } else { (other, blkid, their_block) };
        let slot = (prefix | 1) << free;
        self.check_span(slot, free, gone).ok()?;
        self.check_point(slot, free).ok()?;
        [0, kept, gone].into_iter().try_for_each(|blkid| self.object.check_change(blkid, 1)).ok()?;
        Some(Pair { block, kept, gone, slot, free })
    }

    /// The blocks at the end that are free can be allocated again.
    #[doc(alias = "zap_trunc")]
    fn trim(&mut self) {
        // The number may be forged; a block that cannot be read is not free.
        self.header.freeblk = self.header.freeblk.min(self.object.max_block().saturating_add(1));
        while let Some(last) = self.header.freeblk.checked_sub(1).filter(|&last| last > 0) {
            let is_free = self.object.read_block(last).is_ok_and(|block| block.iter().all(|byte| *byte == 0));
            if !is_free {
                break;
            }
            self.header.freeblk = last;
        }
    }

    /// Counts entries: the last step of most changes, so that block 0 is not read again.
    fn count(&mut self, delta: i64) -> Result<()> {
        self.header.num_entries = self.header.num_entries.saturating_add_signed(delta);
        self.put_header()
    }

    fn write_header(&mut self) -> Result<()> {
        self.put_header()?;
        self.first = self.object.read_block(0)?;
        Ok(())
    }

    /// Writes the header; the caller reads `first` again before it is used.
    fn put_header(&mut self) -> Result<()> {
        let first = std::mem::replace(&mut self.first, Buf::empty());
        if self.changed {
            let mut block = first.into_owned();
            self.header.write_to(&mut block);
            self.object.write_block(0, block)?;
            self.changed = false;
        } else {
            drop(first);
            let header = &self.header;
            self.object.patch_block(0, &mut |block| header.write_to(block))?;
        }
        Ok(())
    }

    /// The leaf of a hash, and the entry of the key in it.
    fn find(&self, key: &Hashed<'_>) -> Result<Place> {
        let blkid = self.slot(table_index(key.hash, self.header.ptrtbl.shift))?;
        let block = self.object.read_block(blkid)?;
        let bad = |e| self.bad(blkid, &e);
        let leaf = Leaf::from_bytes(&block).map_err(bad)?;
        if !leaf.covers(key.hash) || u32::from(leaf.header().prefix_len) > self.header.ptrtbl.shift {
            return Err(self.bad(blkid, &"a ZAP leaf stands where it does not belong"));
        }
        let mut found = None;
        for entry in leaf.lookup(key.hash) {
            let entry = entry.map_err(bad)?;
            if leaf.key_is(&entry, &key.stored, key.intlen) {
                found = Some(entry);
                break;
            }
        }
        Ok(Place { blkid, entry: found })
    }

    /// The leaf named by slot `index` of the table.
    fn slot(&self, index: u64) -> Result<u64> {
        let broken = || self.bad(0, &"the ZAP's pointer table is broken");
        let (blk, at) = self.header.ptr_location(index).ok_or_else(broken)?;
        if blk > self.object.max_block() {
            return Err(broken());
        }
        let block = if blk == 0 { self.first.clone() } else { self.object.read_block(blk)? };
        let leaf = FatHeader::ptr_at(&block, at).ok_or_else(broken)?;
        if leaf == 0 || leaf > self.object.max_block() { Err(broken()) } else { Ok(leaf) }
    }

    /// Splits the full leaf `blkid`, after enlarging the table if only one slot names it.
    #[doc(alias = "zap_expand_leaf")]
    fn expand(&mut self, hash: u64, blkid: u64) -> Result<()> {
        let block = self.object.read_block(blkid)?;
        let leaf = Leaf::from_bytes(&block).map_err(|e| self.bad(blkid, &e))?;
        let prefix_len = u32::from(leaf.header().prefix_len);
        if !can_split(&leaf, hash, self.header.flags.hash_bits() - SPARE_BITS) {
            return Err(self.full());
        }
        if self.header.ptrtbl.nextblk != 0 || prefix_len == self.header.ptrtbl.shift {
            self.grow()?;
        }
        let shift = self.header.ptrtbl.shift;
        let free = shift.checked_sub(prefix_len + 1).ok_or_else(|| self.full())?;
        let sibling = (table_index(hash, prefix_len + 1) | 1) << free;
        self.check_span(sibling, free, blkid)?;
        self.check_point(sibling, free)?;
        let new_blkid = self.allocate(1)?;
        [0, blkid, new_blkid].into_iter().try_for_each(|blkid| self.object.check_change(blkid, 1))?;
        let sorted = self.header.normflags != 0;
        let mut old_block = block.into_owned();
        let mut new_block = AlignedBuf::zeroed(old_block.len());
        let mut new = LeafMut::init(&mut new_block, sorted).map_err(bad_leaf)?;
        let old = LeafMut::from_bytes(&mut old_block);
        old.and_then(|mut old| old.split(&mut new, sorted)).map_err(|e| self.bad(blkid, &e))?;
        self.object.write_block(new_blkid, new_block)?;
        self.point(sibling, free, new_blkid)?;
        self.header.num_leafs = self.header.num_leafs.saturating_add(1);
        self.write_header()?;
        // Last, because other readers must find each entry through the present table at any time.
        self.object.write_block(blkid, old_block)
    }

    /// Checks that all slots to be changed are readable and name the leaf.
    fn check_span(&self, first: u64, free: u32, blkid: u64) -> Result<()> {
        if free > MAX_SPAN {
            return Err(self.bad(0, &"the ZAP's pointer table is far too large"));
        }
        for index in first..first.saturating_add(1 << free) {
            if self.slot(index)? != blkid {
                return Err(self.bad(0, &"the ZAP's pointer table is broken"));
            }
        }
        Ok(())
    }

    /// Checks that the blocks of 2^`free` slots can be changed.
    fn check_point(&self, first: u64, free: u32) -> Result<()> {
        let block_of = |index| self.header.ptr_location(index).map_or(0, |(blk, _)| blk);
        let (from, to) = (block_of(first), block_of(first.saturating_add((1 << free) - 1)));
        self.object.check_change(from, to.saturating_sub(from).saturating_add(1))
    }

    /// Makes 2^`free` slots name `blkid`.
    fn point(&mut self, first: u64, free: u32, blkid: u64) -> Result<()> {
        let mut open: Option<(u64, AlignedBuf)> = None;
        for index in first..first.saturating_add(1 << free) {
            let Some((blk, at)) = self.header.ptr_location(index) else { break };
            if open.as_ref().is_none_or(|(open, _)| *open != blk) {
                self.close(open.take())?;
                let block = if blk == 0 { self.first.clone() } else { self.object.read_block(blk)? };
                open = Some((blk, block.into_owned()));
            }
            let slot = open.as_mut().and_then(|(_, block)| block.get_mut(at..at + 8));
            if let Some(slot) = slot {
                slot.copy_from_slice(&blkid.to_le_bytes());
            }
        }
        self.close(open)
    }

    fn close(&mut self, open: Option<(u64, AlignedBuf)>) -> Result<()> {
        match open {
            None => Ok(()),
            Some((0, block)) => {
                (self.first, self.changed) = (block.into(), true);
                Ok(())
            }
            Some((blk, block)) => self.object.write_block(blk, block),
        }
    }

    /// Allocates blocks. They must never have been used.
    #[doc(alias = "zap_allocate_blocks")]
    fn allocate(&mut self, count: u64) -> Result<u64> {
        let first = self.header.freeblk;
        let end = first.checked_add(count).filter(|_| first > 0).ok_or_else(|| self.full())?;
        for blkid in first..end.min(self.object.max_block().saturating_add(1)) {
            if self.object.read_block(blkid)?.iter().any(|b| *b != 0) {
                return Err(self.bad(blkid, &"a block that the ZAP counts as free is used"));
            }
        }
        self.header.freeblk = end;
        Ok(first)
    }

    /// Doubles the pointer table.
    #[doc(alias("zap_grow_ptrtbl", "zap_table_grow"))]
    fn grow(&mut self) -> Result<()> {
        let old = self.header.ptrtbl;
        let slots = self.header.ptrtbl_len().saturating_mul(2);
        let allowed = self.header.num_entries.saturating_mul(SLOTS_PER_ENTRY).saturating_add(FREE_SLOTS);
        if old.shift + SPARE_BITS >= self.header.flags.hash_bits() || slots > allowed {
            return Err(self.full());
        }
        let old_blocks = if self.header.is_embedded() { 0 } else { old.numblks };
        let new_blocks = (old_blocks * 2).max(1);
        let to = if old.nextblk != 0 { old.nextblk } else { self.allocate(new_blocks)? };
        for (blkid, count) in [(0, 1), (to, new_blocks), (old.blk, old_blocks)] {
            self.object.check_change(blkid, count)?;
        }
        if old_blocks == 0 {
            let (_, table) = self.first.as_chunks::<8>().0.split_at(self.first.len() / 16);
            let block = doubled(table, self.first.len());
            self.object.write_block(to, block)?;
        }
        for blkid in 0..old_blocks {
            let from = old.blk.checked_add(blkid).ok_or_else(|| self.full())?;
            let block = self.object.read_block(from)?;
            let (low, high) = block.as_chunks::<8>().0.split_at(block.len() / 16);
            self.object.write_block(to + 2 * blkid, doubled(low, block.len()))?;
            self.object.write_block(to + 2 * blkid + 1, doubled(high, block.len()))?;
        }
        self.header.ptrtbl = ondisk::zap::PtrTable {
            blk: to,
            numblks: new_blocks,
            shift: old.shift + 1,
            nextblk: 0,
            blks_copied: 0,
        };
        if old_blocks == 0 {
            let mut block = std::mem::replace(&mut self.first, Buf::empty()).into_owned();
            let half = block.len() / 2;
            block.iter_mut().skip(half).for_each(|b| *b = 0);
            (self.first, self.changed) = (block.into(), true);
        }
        self.write_header()?;
        self.object.free_range(old.blk, old_blocks)
    }

    fn bad(&self, blkid: u64, what: &dyn std::fmt::Display) -> Error {
        corrupt(&*self.object, blkid, what)
    }

    fn full(&self) -> Error {
        let what = format!("too many entries of one hash in ZAP object {}", self.object.number());
        Error::new(Kind::NoSpace, what)
    }
}

/// Whether splitting a leaf separates some of its entries from one of this `hash`, within the bits by which a table
/// may be indexed.
fn can_split(leaf: &Leaf<'_>, hash: u64, bits: u32) -> bool {
    leaf.entries().flatten().any(|e| table_index(e.hash ^ hash, bits) != 0)
}

fn doubled(slots: &[[u8; 8]], len: usize) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(len);
    for (pair, slot) in block.as_chunks_mut::<8>().0.chunks_mut(2).zip(slots) {
        pair.fill(*slot);
    }
    block
}

fn corrupt(object: &dyn Edit, blkid: u64, what: &dyn std::fmt::Display) -> Error {
    Error::corrupt(format!("{what} (object {}, block {blkid})", object.number()))
}

fn bad_leaf(e: ondisk::Malformed) -> Error {
    Error::corrupt(e.to_string())
}
