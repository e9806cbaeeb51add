//! An object in memory: its on-disk state, and the later changes of each txg.
//!
//! Reads consult the changes, newest first, then the disk. A change stays until its blocks can be read from disk,
//! so a reader sees every byte at every moment.
//!
//! Lock order: a handle's state is taken before the object set's dirty lists; no I/O is done under it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ondisk::{Blkptr, Dnode};
use parking_lot::RwLock;
use stdx::{AlignedBuf, Buf};

use super::Editor;
use super::LiveObjset;
use super::change::{DirtyRecord, Said, SameBytes, StoredBlock, TxgChanges};
use super::names::NameIndex;
use super::needs::Needs;
use super::parts::overwrite;
use crate::dmu::Object;
use crate::dmu::tx::Tx;
use crate::error::{Error, Kind, Result};
use crate::txg::{SIZE, slot};

/// The object's state.
#[derive(Debug)]
pub(super) struct HandleState {
    /// The on-disk state, including pointers.
    pub(crate) synced: Arc<Object>,
    /// The dnode after the newest change; its pointers have no meaning.
    pub(crate) now: Dnode,
    /// The changes of each txg. A sync shares them with the object, and nothing changes them from then on.
    pub(crate) changes: [Option<Arc<TxgChanges>>; SIZE],
    /// The dnodes as these txgs left them, once a later txg began to change the object.
    pub(crate) left: [Option<Box<Dnode>>; SIZE],
    /// The index of its names, if it is a micro ZAP.
    pub(crate) names: NameIndex,
}

/// The content of a block in a txg that is not on disk yet.
#[derive(Debug)]
pub enum PendingBlock {
    /// None of these: the txg did not change the block, or its content is that of a stored block.
    Nothing,
    /// A hole: the txg freed the block.
    Hole,
    /// Bytes to be written.
    Bytes(Buf),
    /// The block is written; this pointer will refer to it.
    Written(Blkptr),
}

/// An object in memory.
#[derive(Debug)]
pub struct Handle {
    pub(super) objset: Weak<LiveObjset>,
    /// Its number.
    pub number: u64,
    pub(super) state: RwLock<HandleState>,
    /// Its blocks are placed as those of dedup tables.
    #[doc(alias = "dn_storage_type")]
    pub(super) with_tables: AtomicBool,
    /// The newest write came through the system's page cache.
    pub(super) paged: AtomicBool,
}

impl HandleState {
    /// Changes, newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = &TxgChanges> {
        let mut newer = u64::MAX;
        std::iter::from_fn(move || {
            let older = self.changes.iter().flatten().filter(|change| change.txg < newer);
            let next = older.max_by_key(|change| change.txg)?;
            newer = next.txg;
            Some(&**next)
        })
    }

    pub(super) fn says(&self, blkid: u64) -> Said {
        for change in self.newest_first() {
            match change.says(blkid) {
                Said::Nothing => {}
                said => return said,
            }
        }
        Said::Nothing
    }

    pub(super) fn is_clean(&self) -> bool {
        self.changes.iter().all(Option::is_none)
    }
}

impl Handle {
    pub(super) fn new(objset: &Weak<LiveObjset>, synced: Object) -> Arc<Self> {
        let (now, changes, names) = (synced.dnode.clone(), Default::default(), NameIndex::default());
        let state = HandleState { now, changes, left: Default::default(), names, synced: Arc::new(synced) };
        let number = state.synced.number;
        let (with_tables, paged) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { objset: Weak::clone(objset), number, state: RwLock::new(state), with_tables, paged })
    }

    pub(super) fn objset(&self) -> Result<Arc<LiveObjset>> {
        self.objset.upgrade().ok_or_else(|| Error::new(Kind::Invalid, "the object set has been closed"))
    }

    /// The current dnode. Its block pointers are those on disk.
    pub fn dnode(&self) -> Dnode {
        self.state.read().now.clone()
    }

    /// Calls `read` on the current dnode, without copying it, and returns its result. `read` must not use the
    /// object.
    pub fn with_dnode<T>(&self, read: impl FnOnce(&Dnode) -> T) -> T {
        read(&self.state.read().now)
    }

    /// Bytes of a data block.
    pub fn block_size(&self) -> u64 {
        self.with_dnode(Dnode::datablksz)
    }

    /// Largest block number ever written.
    pub fn max_block(&self) -> u64 {
        self.with_dnode(|dnode| dnode.maxblkid)
    }

    /// Slots of its dnode.
    pub fn slots(&self) -> usize {
        self.with_dnode(Dnode::slots)
    }

    /// Whether the object has been freed, or never existed.
    pub fn is_free(&self) -> bool {
        self.state.read().now.is_free()
    }

    /// Whether no change waits to be written.
    pub fn is_clean(&self) -> bool {
        self.state.read().is_clean()
    }

    /// The object as on disk.
    pub fn synced(&self) -> Arc<Object> {
        Arc::clone(&self.state.read().synced)
    }

    /// Whether block `blkid` is stored, if unwritten changes determine it; `None` if the disk does.
    pub fn pending(&self, blkid: u64) -> Option<bool> {
        match self.state.read().says(blkid) {
            Said::Bytes(_) | Said::Stored(_) | Said::Pointer(_) | Said::Cloned(_) | Said::Parts(_) => {
                Some(true)
            }
            Said::Hole => Some(false),
            Said::Nothing => None,
        }
    }

    /// The first block at or after `blkid` that is written but not on disk.
    pub(crate) fn next_pending(&self, blkid: u64) -> Option<u64> {
        let state = self.state.read();
        let changes = state.changes.iter().flatten();
        changes.filter_map(|c| c.blocks.range(blkid..).next().map(|(&b, _)| b)).min()
    }

    /// Block `blkid`: zeros for a hole.
    pub fn block(&self, blkid: u64) -> Result<Buf> {
        self.block_for(blkid, false)
    }

    /// Tells whether the writes that follow come through the system's page cache.
    pub fn set_paged(&self, paged: bool) {
        if self.paged.load(Ordering::Relaxed) != paged {
            self.paged.store(paged, Ordering::Relaxed);
        }
    }

    /// As [`Handle::block`]; `paged`: for a stream that passes the bytes on to the system's page cache.
    pub(crate) fn block_for(&self, blkid: u64, paged: bool) -> Result<Buf> {
        let (said, synced, size, as_of) = {
            let state = self.state.read();
            // Under the lock, as the pointers on disk change before the moment does.
            let as_of = state.synced.objset.moment();
            (state.says(blkid), Arc::clone(&state.synced), state.now.datablksz(), as_of)
        };
        let zeros = || AlignedBuf::zeroed(usize::try_from(size).unwrap_or(0)).into();
        let read = |bp: &Blkptr| synced.objset.read_as_of(bp, synced.at(0, blkid), as_of);
        // When the block size changes, a stored block is rewritten at once: an unwritten one was a hole.
        let is_resized = synced.dnode.datablksz() != size;
        let is_hole = synced.dnode.is_free() || blkid > synced.dnode.maxblkid || is_resized;
        if let Said::Parts(parts) = said {
            // In an object set that is never written, nothing changes on disk either.
            return parts.over(if is_hole { zeros() } else { synced.block_as_of(blkid, as_of, paged)? });
        }
        match said.bytes(size, read) {
            Ok(Some(bytes)) => return Ok(bytes),
            Ok(None) => {}
            // The block was written, freed and its space reused during the read.
            Err(e) if e.kind() == Kind::Checksum && !Arc::ptr_eq(&synced, &self.synced()) => {
                return self.block_for(blkid, paged);
            }
            Err(e) => return Err(e.at_block(synced.at(0, blkid))),
        }
        if is_hole {
            return Ok(zeros());
        }
        match synced.block_as_of(blkid, as_of, paged) {
            // The block was freed and its space reused during the read.
            Err(e) if e.kind() == Kind::Checksum && !Arc::ptr_eq(&synced, &self.synced()) => {
                self.block_for(blkid, paged)
            }
            other => other,
        }
    }

    /// As [`Handle::block`] for several blocks; those on disk are read at the same time.
    pub(crate) fn blocks(&self, blkids: &[u64], keep: bool) -> Vec<Result<Buf>> {
        let (on_disk, synced, as_of): (Vec<bool>, _, _) = {
            let state = self.state.read();
            let synced = &state.synced;
            let is_kept = !synced.dnode.is_free() && synced.dnode.datablksz() == state.now.datablksz();
            let is_on_disk = |&blkid: &u64| {
                let is_there = is_kept && blkid <= synced.dnode.maxblkid;
                is_there && matches!(state.says(blkid), Said::Nothing)
            };
            (blkids.iter().map(is_on_disk).collect(), Arc::clone(synced), synced.objset.moment())
        };
        let flagged = || blkids.iter().copied().zip(on_disk.iter().copied());
        let plain: Vec<u64> = flagged().filter(|(_, on_disk)| *on_disk).map(|(blkid, _)| blkid).collect();
        let mut read = synced.blocks_as_of(&plain, as_of, keep).into_iter();
        let of_each = flagged().map(|(blkid, on_disk)| {
            // A block that was freed and its space reused meanwhile is read again.
            let block = if on_disk { read.next().and_then(Result::ok) } else { None };
            block.map_or_else(|| self.block(blkid), Ok)
        });
        of_each.collect()
    }

    /// Calls `read` on the current dnode with the bytes of the blocks that wait to be written, before compression: a block that
    /// replaces another counts, too. `None`: no change at all waits. `read` must not use the object.
    pub fn with_waiting<T>(&self, read: impl FnOnce(&Dnode, Option<u64>) -> T) -> T {
        let state = self.state.read();
        let blocks = |blocks: usize| u64::try_from(blocks).unwrap_or(u64::MAX);
        let count = || state.changes.iter().flatten().map(|change| change.blocks.len()).sum();
        let waiting = (!state.is_clean()).then(|| blocks(count()).saturating_mul(state.now.datablksz()));
        read(&state.now, waiting)
    }

    /// Changes the object under `tx`.
    pub(super) fn change<T>(
        self: &Arc<Self>,
        tx: &Tx,
        work: impl FnOnce(&mut Dnode, &mut TxgChanges) -> T,
    ) -> Result<T> {
        let done = self.change_if(tx, |_| true, work)?;
        done.ok_or_else(|| Error::new(Kind::Invalid, "the object is not changed"))
    }

    /// Changes the object under `tx` if its state fits; `None` if it does not, and nothing is changed.
    pub(super) fn change_if<T>(
        self: &Arc<Self>,
        tx: &Tx,
        fits: impl FnOnce(&HandleState) -> bool,
        work: impl FnOnce(&mut Dnode, &mut TxgChanges) -> T,
    ) -> Result<Option<T>> {
        self.change_fit(tx, fits, |dnode, change, names| {
            let done = work(dnode, change);
            if std::mem::take(&mut change.touched_content) {
                names.content_changed();
            }
            done
        })
    }

    /// Changes the object and the index of its names, in step, under `tx`.
    pub(super) fn change_state<T>(
        self: &Arc<Self>,
        tx: &Tx,
        work: impl FnOnce(&mut Dnode, &mut TxgChanges, &mut NameIndex) -> T,
    ) -> Result<T> {
        let done = self.change_fit(tx, |_| true, work)?;
        done.ok_or_else(|| Error::new(Kind::Invalid, "the object is not changed"))
    }

    fn change_fit<T>(
        self: &Arc<Self>,
        tx: &Tx,
        fits: impl FnOnce(&HandleState) -> bool,
        work: impl FnOnce(&mut Dnode, &mut TxgChanges, &mut NameIndex) -> T,
    ) -> Result<Option<T>> {
        tx.begins_change();
        let objset = self.objset()?;
        let mut state = self.state.write();
        if !fits(&state) {
            return Ok(None);
        }
        let HandleState { now, changes, left, names, .. } = &mut *state;
        let at = slot(tx.txg());
        // The first change of a txg fixes the state left by the previous txgs.
        if changes.get(at).is_some_and(Option::is_none) {
            for (earlier, left) in changes.iter().zip(left.iter_mut()) {
                let Some(earlier) = earlier else { continue };
                assert!(earlier.txg < tx.txg(), "changes are made in the newest txg");
                left.get_or_insert_with(|| Box::new(now.clone()));
            }
            objset.needs(tx, objset.dnode_needs(tx.txg(), self.number));
            objset.set_dirty(tx.txg(), self);
            tx.dirtied_object();
        }
        let (place, left) = (changes.get_mut(at), left.get(at).and_then(Option::as_ref));
        let Some(place) = place else { return Err(Error::new(Kind::Invalid, "no such txg")) };
        let change = Arc::make_mut(place.get_or_insert_with(|| Arc::new(TxgChanges::new(tx.txg()))));
        assert!(
            change.txg == tx.txg() && left.is_none(),
            "changes of object {} are made in the newest txg: {} after {}, fixed: {}",
            self.number,
            tx.txg(),
            change.txg,
            left.is_some()
        );
        Ok(Some(work(now, change, names)))
    }

    /// Replaces a block; `bytes` has the object's block size.
    pub fn write_block(self: &Arc<Self>, tx: &Tx, blkid: u64, bytes: Buf) -> Result<()> {
        let len = bytes.len();
        self.check_way_to(tx, blkid)?;
        let first = self.change(tx, |dnode, change| {
            assert!(u64::try_from(bytes.len()) == Ok(dnode.datablksz()), "a block is written whole");
            dnode.maxblkid = dnode.maxblkid.max(blkid);
            change.put(blkid, DirtyRecord::Data(bytes))
        })?;
        if first { self.counts_block(tx, blkid, len) } else { Ok(()) }
    }

    /// Replaces a block; it is written even if it has the content that it had.
    pub fn write_anew(self: &Arc<Self>, tx: &Tx, blkid: u64, bytes: Buf) -> Result<()> {
        let len = bytes.len();
        self.check_way_to(tx, blkid)?;
        let first = self.change(tx, |dnode, change| {
            assert!(u64::try_from(bytes.len()) == Ok(dnode.datablksz()), "a block is written whole");
            dnode.maxblkid = dnode.maxblkid.max(blkid);
            change.put(blkid, DirtyRecord::Moved(bytes, SameBytes { always: true, ..SameBytes::default() }))
        })?;
        if first { self.counts_block(tx, blkid, len) } else { Ok(()) }
    }

    /// Writes block `blkid` again, as `how` says: `bytes` are its content on disk. A later write of the same txg replaces
    /// this.
    #[doc(alias = "dmu_buf_will_rewrite")]
    pub fn move_block(self: &Arc<Self>, tx: &Tx, blkid: u64, bytes: Buf, how: SameBytes) -> Result<()> {
        let len = bytes.len();
        self.check_way_to(tx, blkid)?;
        let first = self.change(tx, |dnode, change| {
            assert!(u64::try_from(bytes.len()) == Ok(dnode.datablksz()), "a block is written whole");
            // Blocks that the txg writes or frees anyway keep their new state.
            let is_new = !change.gives_up(blkid) && !change.blocks.contains_key(&blkid);
            is_new && change.put(blkid, DirtyRecord::Moved(bytes, how))
        })?;
        if first { self.counts_block(tx, blkid, len) } else { Ok(()) }
    }

    /// Replaces a block by one of a send stream, which is written unchanged. Its logical size is the object's block
    /// size.
    pub(crate) fn write_stored(self: &Arc<Self>, tx: &Tx, blkid: u64, block: StoredBlock) -> Result<()> {
        let len = block.bytes.len();
        self.check_way_to(tx, blkid)?;
        let first = self.change(tx, |dnode, change| {
            assert!(block.form.lsize == dnode.datablksz(), "a block is written whole");
            dnode.maxblkid = dnode.maxblkid.max(blkid);
            change.put(blkid, DirtyRecord::Stored(block))
        })?;
        if first { self.counts_block(tx, blkid, len) } else { Ok(()) }
    }

    /// Replaces a block by a pointer that takes no space: embedded or redacted, born in `tx`'s txg.
    #[doc(alias("dmu_write_embedded", "dmu_redact"))]
    pub(crate) fn write_pointer(self: &Arc<Self>, tx: &Tx, blkid: u64, bp: Blkptr) -> Result<()> {
        assert!(bp.is_embedded() && bp.logical_birth() == tx.txg(), "the pointer is new and takes no space");
        self.check_way_to(tx, blkid)?;
        let first = self.change(tx, |dnode, change| {
            dnode.maxblkid = dnode.maxblkid.max(blkid);
            change.put(blkid, DirtyRecord::Pointer(bp))
        })?;
        if first { self.counts_block(tx, blkid, ondisk::blkptr::BLKPTR_SIZE) } else { Ok(()) }
    }

    /// The content of block `blkid` in txg `txg`.
    pub fn waiting(&self, txg: u64, blkid: u64) -> PendingBlock {
        let state = self.state.read();
        let change = state.changes.get(slot(txg)).and_then(Option::as_ref).filter(|c| c.txg == txg);
        let Some(change) = change else { return PendingBlock::Nothing };
        match change.blocks.get(&blkid) {
            None if change.gives_up(blkid) => PendingBlock::Hole,
            None => PendingBlock::Nothing,
            Some(DirtyRecord::Data(bytes) | DirtyRecord::Moved(bytes, _)) => {
                PendingBlock::Bytes(bytes.clone())
            }
            Some(DirtyRecord::Written(bp, _) | DirtyRecord::Pointer(bp)) => PendingBlock::Written(*bp),
            // Only receives write stored blocks, and they have no intent log.
            Some(DirtyRecord::Stored(_) | DirtyRecord::Cloned(_) | DirtyRecord::Parts(_)) => {
                PendingBlock::Nothing
            }
        }
    }

    /// The on-disk location of block `blkid`, if no change reaches it before the content waiting in `txg`: then the
    /// pointer stays valid, and the block keeps its content, until that txg is on disk.
    pub(crate) fn settled(&self, txg: u64, blkid: u64) -> Option<Blkptr> {
        let synced = {
            let state = self.state.read();
            let (on_disk, now) = (&state.synced.dnode, &state.now);
            let kept = !on_disk.is_free() && !now.is_free() && on_disk.datablksz() == now.datablksz();
            let changed = |c: &TxgChanges| c.gives_up(blkid) || c.txg != txg && c.blocks.contains_key(&blkid);
            if !kept || blkid > on_disk.maxblkid || state.changes.iter().flatten().any(|c| changed(c)) {
                return None;
            }
            Arc::clone(&state.synced)
        };
        synced.pointer(0, blkid).ok()
    }

    /// `bytes`, which wait to be written to block `blkid`, have been written to the location of `bp`. If they were
    /// replaced since, the block is freed with the txg.
    #[doc(alias("dmu_sync_done", "dbuf_unoverride"))]
    pub(crate) fn place_block(self: &Arc<Self>, tx: &Tx, blkid: u64, bp: Blkptr, bytes: &Buf) -> Result<()> {
        self.change(tx, |_, change| {
            let same =
                |dirty: &DirtyRecord| matches!(dirty, DirtyRecord::Data(now) if std::ptr::eq(&**now, &**bytes));
            if change.blocks.get(&blkid).is_some_and(same) {
                change.put(blkid, DirtyRecord::Written(bp, bytes.clone()));
            } else {
                change.drop_block(&bp);
            }
        })
    }

    /// Bytes of the blocks that a change of `len` bytes at `offset` touches.
    pub fn covering(&self, offset: u64, len: u64) -> u64 {
        let block = self.block_size().max(1);
        let blocks = offset.saturating_add(len).div_ceil(block).saturating_sub(offset / block);
        blocks.saturating_mul(block)
    }

    /// Writes `bytes` at `offset`, block by block.
    pub fn write(self: &Arc<Self>, tx: &Tx, offset: u64, bytes: &[u8]) -> Result<()> {
        let size = self.state.read().now.datablksz().max(1);
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let skip = usize::try_from(at % size).unwrap_or(0);
            let room = usize::try_from(size).unwrap_or(usize::MAX) - skip;
            let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            self.write_within(tx, at / size, skip, now)?;
            rest = later;
            at = at.saturating_add(u64::try_from(now.len()).unwrap_or(0));
        }
        Ok(())
    }

    /// Writes into one block.
    fn write_within(self: &Arc<Self>, tx: &Tx, blkid: u64, skip: usize, bytes: &[u8]) -> Result<()> {
        let size = usize::try_from(self.state.read().now.datablksz()).unwrap_or(usize::MAX);
        if skip == 0 && bytes.len() == size {
            return self.write_block(tx, blkid, bytes.into());
        }
        // Changed in place if this txg already has it.
        if self.change(tx, |_, change| change.overwrite(blkid, skip, bytes))? {
            return Ok(());
        }
        if self.write_part(tx, blkid, (size, skip), bytes)? {
            return Ok(());
        }
        self.check_way_to(tx, blkid)?;
        let mut block = self.block(blkid)?.into_owned();
        if !overwrite(&mut block, skip, bytes) {
            return Err(Error::corrupt("data block is too short"));
        }
        let len = block.len();
        let first = self.change(tx, |dnode, change| {
            // Another thread may have written another part of the block during the read.
            if change.overwrite(blkid, skip, bytes) {
                return false;
            }
            dnode.maxblkid = dnode.maxblkid.max(blkid);
            change.put(blkid, DirtyRecord::Data(block.into()))
        })?;
        if first { self.counts_block(tx, blkid, len) } else { Ok(()) }
    }

    /// Charges block `blkid` and the blocks above it.
    pub(super) fn counts_block(self: &Arc<Self>, tx: &Tx, blkid: u64, bytes: usize) -> Result<()> {
        let objset = self.objset()?;
        let needs = self.change(tx, |dnode, change| {
            let policy = objset.policy.read();
            let mut needs = change.touched.path(&policy, dnode, blkid);
            needs += Needs::block(u64::try_from(bytes).unwrap_or(0), policy.block(dnode, 0).copies);
            needs
        })?;
        objset.needs(tx, needs);
        tx.dirtied(bytes);
        Ok(())
    }

    /// Frees blocks `[start, end)`. With `end` past the last block the object ends before `start`.
    pub fn free_blocks(self: &Arc<Self>, tx: &Tx, start: u64, end: u64) -> Result<()> {
        self.check_readable(start, end)?;
        let objset = self.objset()?;
        // Indirect blocks between the first and the last become holes.
        let needs = self.change(tx, |dnode, change| {
            let (policy, last) = (objset.policy.read(), end.saturating_sub(1).min(dnode.maxblkid));
            let mut needs = Needs::default();
            for blkid in [start, last].into_iter().filter(|blkid| *blkid <= dnode.maxblkid) {
                needs += change.touched.path(&policy, dnode, blkid);
            }
            needs
        })?;
        objset.needs(tx, needs);
        self.change(tx, |dnode, change| {
            change.free(start, end);
            if end > dnode.maxblkid && start <= dnode.maxblkid {
                dnode.maxblkid = start.saturating_sub(1);
            }
        })
    }

    pub(super) fn stored_on_disk(&self) -> bool {
        let synced = self.synced();
        !synced.dnode.is_free() && !matches!(synced.blkptr(0, 0), Ok(None))
    }

    /// Writes the object's dnode with `tx`'s txg although nothing in it changes; a freed one stays freed.
    pub fn touch(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        self.change(tx, |_, _| ())?;
        tx.dirtied(ondisk::dnode::DNODE_MIN_SIZE);
        Ok(())
    }

    /// Frees the object and all its blocks.
    pub fn free(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        self.check_readable(0, u64::MAX)?;
        self.change(tx, |dnode, change| {
            change.free_all();
            *dnode = Dnode::default();
        })
    }

    /// Frees the object, but not its blocks: their space is accounted for elsewhere. Nothing of the object is read, so that
    /// damage below its dnode does not matter.
    pub fn forget(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        self.change(tx, |dnode, change| {
            change.free_all();
            change.forgets = true;
            *dnode = Dnode::default();
        })
    }

    /// Empties the object as [`Handle::forget`] does; it keeps its number and its bonus.
    pub(crate) fn forget_content(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        self.change(tx, |dnode, change| {
            change.free_all();
            change.forgets = true;
            (dnode.maxblkid, dnode.nlevels) = (0, 1);
        })
    }

    /// Allocates a new object in a free slot.
    pub(super) fn allocate(self: &Arc<Self>, tx: &Tx, new: Dnode) -> Result<()> {
        self.change(tx, |dnode, change| {
            assert!(dnode.is_free(), "a new object takes a free place");
            change.wipe = true;
            *dnode = new;
        })
    }

    /// A target of edits under `tx`.
    pub fn edit<'a>(self: &Arc<Self>, tx: &'a Tx) -> Editor<'a> {
        Editor::new(Arc::clone(self), tx)
    }
}
