//! Writes one object to disk.
//!
//! Levels are written from the data up: each round writes the blocks of one level of all objects together, so that
//! devices always have work, and the next round puts their pointers into the blocks above.

mod frees;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::{Blkptr, Dnode, Endian, byteswap};
use stdx::Buf;

use super::change::{DirtyRecord, Spill, StoredBlock, TxgChanges};
use super::handle::{Handle, HandleState};
use super::policy::Policy;
use super::tree;
use crate::dmu::Object;
use crate::error::{Error, Kind, Result};
use crate::txg::slot;
use crate::zio::alloc::MetaslabClass;
use crate::zio::dedup::Dedup;
use crate::zio::write::{AsStored, WriteRequest};

/// The role of a written block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncPlace {
    /// The block of that level and number.
    Block(u8, u64),
    /// The spill block.
    Spill,
}

/// A block to be written, and the fill count of its pointer.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) place: SyncPlace,
    pub(crate) old: Blkptr,
    pub(crate) request: SyncRequest,
}

/// The source of the new pointer.
#[derive(Debug)]
pub(crate) enum SyncRequest {
    /// A write.
    Write(Box<WriteRequest>, u64),
    /// It is known.
    Known(Blkptr),
}

/// Called with each block that the object no longer refers to; returns the bytes of the block. A txg may free any
/// number of blocks, so they are not listed.
pub(super) type Gone<'a> = &'a mut dyn FnMut(&Blkptr) -> Result<u64>;

/// One object's sync.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) handle: Arc<Handle>,
    /// The previous on-disk state.
    pub(crate) old: Arc<Object>,
    /// The future dnode; pointers are filled in as they become known.
    pub(crate) dnode: Dnode,
    change: Arc<TxgChanges>,
    /// New pointers of the level that was written last.
    below: BTreeMap<u64, Blkptr>,
    /// Holes in place of blocks of each level that were freed with everything below them.
    holes: Vec<BTreeMap<u64, Blkptr>>,
    /// Bytes of the freed blocks.
    freed: u64,
    /// Replaced pointers.
    pub(crate) killed: Vec<Blkptr>,
    /// Pointers of new blocks.
    pub(crate) born: Vec<Blkptr>,
    /// Blocks that were written for the intent log and have been written elsewhere since.
    replaced: Vec<Blkptr>,
    txg: u64,
}

impl Work {
    /// Blocks that were written for the intent log only.
    pub(crate) fn dropped(&self) -> impl Iterator<Item = &Blkptr> {
        self.change.dropped.iter().chain(&self.replaced)
    }

    /// Collects the changes of `txg`, and frees its freed blocks.
    pub(super) fn begin(handle: Arc<Handle>, txg: u64, policy: &Policy, gone: Gone<'_>) -> Result<Self> {
        let (old, mut dnode, change) = {
            let (state, at) = (handle.state.read(), slot(txg));
            let change = state.changes.get(at).and_then(Option::as_ref).filter(|c| c.txg == txg);
            let left = state.left.get(at).and_then(Option::as_deref).filter(|_| change.is_some());
            let dnode = left.unwrap_or(&state.now).clone();
            let change = change.map_or_else(|| Arc::new(TxgChanges::new(txg)), Arc::clone);
            (Arc::clone(&state.synced), dnode, change)
        };
        let keeps = !change.wipe && !old.dnode.is_free();
        if !dnode.is_free() {
            dnode.nlevels = dnode.nlevels.max(tree::levels_for(&dnode, dnode.maxblkid));
            dnode.used = if keeps { old.dnode.used } else { 0 };
            if keeps {
                dnode.nlevels = dnode.nlevels.max(old.dnode.nlevels);
            }
            for i in 0..dnode.nblkptr() {
                let from = old.dnode.blkptrs().get(i).copied().filter(|_| keeps);
                dnode.set_blkptr(i, from.unwrap_or_default());
            }
            let same = matches!(change.spill, Spill::Same) && keeps;
            if let Some(spill) = old.dnode.spill().filter(|_| same && dnode.spill().is_some()) {
                dnode.set_spill(Some(*spill));
            }
        }
        let (below, killed, born, replaced) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let (holes, freed) = (Vec::new(), 0);
        let mut work = Self { handle, old, dnode, change, below, holes, freed, killed, born, replaced, txg };
        (work.holes, work.freed) = frees::free(&work, policy, gone)?;
        Ok(work)
    }

    /// Whether the on-disk content stays part of the object.
    fn keeps(&self) -> bool {
        !self.change.wipe && !self.old.dnode.is_free()
    }

    fn old_pointer(&self, level: u8, blkid: u64) -> Result<Blkptr> {
        if !self.keeps() {
            return Ok(Blkptr::default());
        }
        // Holes are needed too: they record their birth.
        self.old.pointer(level, blkid)
    }

    fn kill(&mut self, bp: &Blkptr) {
        if !bp.is_hole() {
            self.killed.push(*bp);
        }
    }

    /// The blocks to be written first: data and spill. Each is built on demand.
    pub(super) fn data<'a>(&'a self, policy: &'a Policy) -> impl Iterator<Item = Result<Wanted>> + 'a {
        let there = !self.dnode.is_free();
        let blocks = there.then_some(&self.change.blocks).into_iter().flatten();
        let blocks = blocks.map(|(&blkid, dirty)| self.data_block(policy, blkid, dirty));
        let spill = there.then(|| self.spill_block(policy)).flatten();
        blocks.chain(spill.map(Ok))
    }

    fn data_block(&self, policy: &Policy, blkid: u64, dirty: &DirtyRecord) -> Result<Wanted> {
        let old = self.old_pointer(0, blkid)?;
        let request = match dirty {
            DirtyRecord::Written(bp, bytes) if self.enters_tables(policy, bp) => {
                let mut request =
                    self.write(policy.block(&self.dnode, 0), (0, blkid), (bytes.clone(), None), old, 1);
                if let SyncRequest::Write(request, _) = &mut request {
                    request.placed = Some(*bp);
                }
                request
            }
            DirtyRecord::Written(bp, _) | DirtyRecord::Pointer(bp) | DirtyRecord::Cloned(bp) => {
                SyncRequest::Known(*bp)
            }
            DirtyRecord::Data(bytes) => self.content(policy, blkid, bytes, old)?,
            DirtyRecord::Moved(bytes, how) => {
                let mut request = self.content(policy, blkid, bytes, old)?;
                if let SyncRequest::Write(request, _) = &mut request {
                    if let Some(dedup) = how.dedup {
                        request.props = policy.deduplicating(dedup).block(&self.dnode, 0);
                    }
                    request.props.nopwrite &= !how.always;
                    request.props.evens_out = how.evens_out;
                    // A sealed block gets another MAC, and the dnode above authenticates it: a raw stream without the block
                    // could not be opened.
                    request.keeps_birth =
                        how.keeps_birth && !old.is_hole() && !old.is_redacted() && !request.props.encrypt;
                }
                request
            }
            DirtyRecord::Stored(StoredBlock { bytes, form }) => {
                self.write(policy.block(&self.dnode, 0), (0, blkid), (bytes.clone(), Some(*form)), old, 1)
            }
            DirtyRecord::Parts(_) => {
                return Err(Error::new(Kind::Invalid, "the object set is never written"));
            }
        };
        Ok(Wanted { place: SyncPlace::Block(0, blkid), old, request })
    }

    fn content(&self, policy: &Policy, blkid: u64, bytes: &Buf, old: Blkptr) -> Result<SyncRequest> {
        let fill = tree::data_fill(self.dnode.object_type, bytes);
        let raw = self.handle.objset()?.raw_form(self.handle.number, blkid, bytes.len());
        let mut bytes = bytes.clone();
        if raw.is_some_and(|form| form.endian == Endian::Big) {
            let mut dnodes = bytes.into_owned();
            byteswap::dnodes(&mut dnodes);
            bytes = dnodes.into();
        }
        Ok(self.write(policy.block(&self.dnode, 0), (0, blkid), (bytes, raw), old, fill))
    }

    /// Whether a block that was written for the intent log is still to be deduplicated.
    fn enters_tables(&self, policy: &Policy, bp: &Blkptr) -> bool {
        let is_new = (bp.logical_birth(), bp.physical_birth()) == (self.txg, self.txg);
        let is_stored = !bp.is_hole() && !bp.is_embedded();
        is_new && is_stored && policy.block(&self.dnode, 0).dedup != Dedup::Off
    }

    fn spill_block(&self, policy: &Policy) -> Option<Wanted> {
        let old = self.old.dnode.spill().copied().filter(|_| self.keeps()).unwrap_or_default();
        let request = match &self.change.spill {
            Spill::Same => return None,
            Spill::Removed => SyncRequest::Known(Blkptr::default()),
            Spill::Set(bytes) => {
                self.write(policy.spill(&self.dnode), (0, u64::MAX), (bytes.clone(), None), old, 1)
            }
            Spill::Stored(StoredBlock { bytes, form }) => {
                self.write(policy.spill(&self.dnode), (0, u64::MAX), (bytes.clone(), Some(*form)), old, 1)
            }
        };
        Some(Wanted { place: SyncPlace::Spill, old, request })
    }

    fn write(
        &self,
        mut props: crate::zio::write::WriteProps,
        at: (u8, u64),
        (data, stored): (Buf, Option<AsStored>),
        old: Blkptr,
        fill: u64,
    ) -> SyncRequest {
        let at = self.old.at(at.0, at.1);
        if self.handle.with_tables.load(Ordering::Relaxed) {
            props.class = MetaslabClass::Dedup;
        }
        // A rewritten block is likely to be patched again, for which it is needed here.
        props.paged = at.level == 0 && old.is_hole() && self.handle.paged.load(Ordering::Relaxed);
        SyncRequest::Write(
            Box::new(WriteRequest {
                data,
                stored,
                props,
                old,
                placed: None,
                keeps_birth: false,
                txg: self.txg,
                at,
                may_wait: true,
            }),
            fill,
        )
    }

    /// The indirect blocks of `level` to be written, after those below. Each is built on demand: together they are
    /// far larger than the data if few blocks of each change.
    pub(crate) fn indirects<'a>(
        &'a self,
        policy: &'a Policy,
        level: u8,
    ) -> impl Iterator<Item = Result<Wanted>> + 'a {
        let shift = self.dnode.blocks_per_indirect_shift();
        let wanted = !self.dnode.is_free() && level < self.dnode.nlevels;
        let mut parents: Vec<u64> = Vec::new();
        if wanted {
            // A tree that grew: the dnode's previous pointers go into the first block of the new level.
            parents.extend(self.moves_down(level).next().map(|_| 0));
            parents.extend(self.below.keys().map(|child| child >> shift));
            parents.dedup();
        }
        parents
            .into_iter()
            .map(move |blkid| self.indirect(policy, level, blkid, &self.children(level, blkid)))
    }

    /// Pointers of the dnode that move into the first block of `level`, which is new.
    fn moves_down(&self, level: u8) -> impl Iterator<Item = (usize, Blkptr)> + '_ {
        let grows = self.keeps() && level == self.old.dnode.nlevels;
        let pointers = grows.then(|| self.old.dnode.blkptrs()).into_iter().flatten().copied().enumerate();
        pointers.filter(|(_, bp)| !bp.is_hole() || bp.logical_birth() != 0)
    }

    /// New pointers of block `blkid` of `level`, by their index in it.
    fn children(&self, level: u8, blkid: u64) -> BTreeMap<usize, Blkptr> {
        let shift = self.dnode.blocks_per_indirect_shift();
        let first = blkid << shift;
        let last = first | ((1 << shift) - 1);
        let mut children: BTreeMap<usize, Blkptr> = match blkid {
            0 => self.moves_down(level).collect(),
            _ => BTreeMap::new(),
        };
        let changed = self.below.range(first..=last);
        children.extend(changed.map(|(&child, bp)| (usize::try_from(child - first).unwrap_or(0), *bp)));
        children
    }

    fn indirect(
        &self,
        policy: &Policy,
        level: u8,
        blkid: u64,
        children: &BTreeMap<usize, Blkptr>,
    ) -> Result<Wanted> {
        let had = self.keeps() && level < self.old.dnode.nlevels;
        let old = if had { self.old_pointer(level, blkid)? } else { Blkptr::default() };
        let before = (!old.is_hole()).then(|| self.old.indirect(&old, level, blkid)).transpose()?;
        let size = usize::try_from(self.dnode.indirect_size()).unwrap_or(0);
        if before.as_ref().is_some_and(|b| b.len() != size) {
            return Err(
                Error::corrupt("indirect block of the wrong size").at_block(self.old.at(level, blkid))
            );
        }
        let new = tree::rebuild(before.as_ref(), size, children);
        let request = match new.empty {
            true => SyncRequest::Known(hole(policy, &self.dnode, level, self.txg)),
            false => {
                self.write(policy.block(&self.dnode, level), (level, blkid), (new.bytes, None), old, new.fill)
            }
        };
        Ok(Wanted { place: SyncPlace::Block(level, blkid), old, request })
    }

    /// Takes the pointers of a written level: place, old and new pointer.
    pub(crate) fn written(&mut self, level: u8, results: Vec<(SyncPlace, Blkptr, Blkptr)>) {
        if level >= self.dnode.nlevels {
            return;
        }
        let mut pointers: BTreeMap<u64, Blkptr> = BTreeMap::new();
        for (place, old, new) in results {
            let unchanged = old == new || (old.same_block(&new) && !new.is_hole() && !new.is_embedded());
            if !unchanged {
                self.kill(&old);
                if !new.is_hole() {
                    self.born.push(new);
                }
            }
            if let SyncPlace::Block(0, blkid) = place
                && let Some(DirtyRecord::Written(placed, _)) = self.change.blocks.get(&blkid)
                && !placed.is_hole()
                && !placed.is_embedded()
                && placed.dvas().next() != new.dvas().next()
            {
                self.replaced.push(*placed);
            }
            match place {
                SyncPlace::Spill if new.is_hole() => {}
                SyncPlace::Spill => self.dnode.set_spill(Some(new)),
                SyncPlace::Block(_, blkid) => {
                    pointers.insert(blkid, new);
                }
            }
        }
        if let Some(holes) = self.holes.get_mut(usize::from(level)) {
            pointers.extend(std::mem::take(holes));
        }
        self.below = pointers;
    }

    /// All levels are written: sets the pointers and the space of the dnode.
    pub(crate) fn finish(&mut self, dsize: &dyn Fn(&Blkptr) -> u64) {
        if self.dnode.is_free() {
            return;
        }
        let below = std::mem::take(&mut self.below);
        let grown = self.keeps() && self.dnode.nlevels > self.old.dnode.nlevels;
        if grown {
            for i in 0..self.dnode.nblkptr() {
                self.dnode.set_blkptr(i, Blkptr::default());
            }
        }
        for (index, bp) in below {
            self.dnode.set_blkptr(usize::try_from(index).unwrap_or(usize::MAX), bp);
        }
        let sum = |all: &[Blkptr]| all.iter().map(dsize).fold(0, u64::saturating_add);
        self.dnode.used = self.dnode.used.saturating_add(sum(&self.born));
        if self.keeps() {
            self.dnode.used = self.dnode.used.saturating_sub(sum(&self.killed)).saturating_sub(self.freed);
        }
    }

    /// Publishes the object's new state for readers.
    pub(crate) fn publish(&self, stored: &Arc<Object>) {
        let dnode = &stored.dnode;
        let mut state = self.handle.state.write();
        state.synced = Arc::clone(stored);
        let newer = state.changes.iter().flatten().any(|c| c.txg > self.txg);
        let HandleState { changes, left, .. } = &mut *state;
        if let (Some(change), Some(left)) = (changes.get_mut(slot(self.txg)), left.get_mut(slot(self.txg))) {
            (*change, *left) = (None, None);
        }
        if !newer {
            state.now = dnode.clone();
            return;
        }
        if !state.now.is_free() && !dnode.is_free() {
            (state.now.used, state.now.nlevels) = (dnode.used, state.now.nlevels.max(dnode.nlevels));
            if let Some(spill) = dnode.spill().filter(|_| state.now.spill().is_some()) {
                state.now.set_spill(Some(*spill));
            }
        }
    }
}

/// The hole in place of a freed block.
fn hole(policy: &Policy, dnode: &Dnode, level: u8, txg: u64) -> Blkptr {
    if !policy.hole_birth {
        return Blkptr::default();
    }
    let size = if level == 0 { dnode.datablksz() } else { dnode.indirect_size() };
    Blkptr::hole(size, dnode.object_type, level, txg)
}
