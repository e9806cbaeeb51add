//! Writes the changes of one txg: data, then indirect blocks level by level, then dnodes, then the root.
//!
//! May be called several times for one txg: later passes write the changes caused by earlier ones (the MOS records
//! the locations of its own blocks). Blocks that this txg already wrote are then overwritten in place, so passes
//! converge.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::objset::ObjsetFlags;
use ondisk::{Blkptr, Dnode, ObjsetType, dnode};
use stdx::AlignedBuf;

use super::object_sync::{SyncPlace, SyncRequest, Wanted, Work};
use super::policy::Policy;
use super::{Handle, LiveObjset, META_BLOCK, slots, tree};
use crate::arc::write::{write_all, write_each};
use crate::dmu::{Object, SpecialObject, Tx};
use crate::error::{Error, Result};
use crate::txg::slot;
use crate::types::Bookmark;
use crate::zio::write::WriteRequest;

/// Accounts for an object set's blocks. Called in syncing context, in the order of objects and blocks.
pub(crate) trait BlockOps {
    /// A block was written and is now referenced.
    fn born(&self, bp: &Blkptr, tx: &Tx) -> Result<()>;
    /// A block is no longer referenced: free it, or record that a snapshot still references it.
    fn killed(&self, bp: &Blkptr, tx: &Tx) -> Result<()>;
}

/// The change of an object's space and flags, for the accounting of users, groups and projects.
#[derive(Debug, Clone)]
pub(crate) struct ChangedObject {
    /// The object's previous on-disk state (free if it is new).
    pub(crate) before: Arc<Object>,
    /// The object's current state (free if it is removed).
    pub(crate) after: Arc<Object>,
}

/// A written block: its place, with its old and new pointer.
type Pointers = (SyncPlace, Blkptr, Blkptr);

impl LiveObjset {
    /// Writes the objects that the txg changed; their dnodes are then ready for [`LiveObjset::sync_root`]. Returns
    /// the changes, in the order of object numbers.
    pub(crate) fn sync_objects(&self, tx: &Tx, ops: &dyn BlockOps) -> Result<Vec<ChangedObject>> {
        // An object that is written here is clean before its dnode is in its block.
        self.hold();
        let changed = self.sync_handles(self.take_dirty(tx.txg()), tx, ops)?;
        self.write_dnodes(tx, changed.iter().filter(|change| slots::is_ordinary(change.after.number)))?;
        self.set_special(&changed);
        Ok(changed)
    }

    /// Extends the root block of an older generation for the accounting of users, groups and (`projects`) projects.
    /// Existing objects are not included yet.
    #[doc(alias = "dmu_objset_open_impl")]
    pub(crate) fn grow_root(&self, projects: bool) {
        let phys = &mut self.root.write().phys;
        phys.userused.get_or_insert_default();
        phys.groupused.get_or_insert_default();
        if projects {
            phys.projectused.get_or_insert_default();
        }
    }

    /// Adds flags of the object set (syncing context); they are written with the root block.
    pub(crate) fn add_flags(&self, flags: ObjsetFlags) {
        self.root.write().phys.flags.0 |= flags.0;
    }

    /// Writes the blocks of dnodes and the root block; returns the root pointer.
    pub(crate) fn sync_root(&self, tx: &Tx, ops: &dyn BlockOps) -> Result<Blkptr> {
        let changed = self.sync_handles(self.take_dirty_meta(tx.txg()), tx, ops)?;
        self.set_special(&changed);
        self.sync_log(tx)?;
        let (bytes, old, fill) = {
            let mut root = self.root.write();
            if let Some(mac) = self.raw_mac() {
                (root.phys.portable_mac, root.phys.local_mac) = (mac, [0; 32]);
                root.phys.flags = ObjsetFlags::default();
            }
            let fill = root.phys.meta_dnode.blkptrs().iter().map(tree::fill_of).sum();
            (root.phys.to_bytes(), root.bp, fill)
        };
        let (txg, at) = (tx.txg(), Bookmark::root(self.id));
        let request = WriteRequest {
            stored: self.raw_root(bytes.len()),
            data: (&*bytes).into(),
            props: self.policy().root(),
            old,
            placed: None,
            keeps_birth: false,
            txg,
            at,
            may_wait: true,
        };
        let results = write_all(self.arc(), vec![request]);
        let mut bp = results.into_iter().next().ok_or_else(|| Error::corrupt("no block was written"))??;
        bp.set_fill(fill);
        if !old.same_block(&bp) {
            if !old.is_hole() {
                ops.killed(&old, tx)?;
            }
            ops.born(&bp, tx)?;
        }
        self.root.write().bp = bp;
        self.trim();
        Ok(bp)
    }

    fn sync_log(&self, tx: &Tx) -> Result<()> {
        let Some(log) = self.log.read().clone() else { return Ok(()) };
        let mut header = self.zil_header();
        log.sync(tx, &mut header)?;
        self.root.write().phys.zil_header = header;
        Ok(())
    }

    /// Takes the objects that a txg changed, but for the meta dnode, in the order of their numbers.
    fn take_dirty(&self, txg: u64) -> Vec<Arc<Handle>> {
        let Some(list) = self.dirty.get(slot(txg)) else { return Vec::new() };
        let mut list = list.lock();
        let mut taken = std::mem::take(&mut *list);
        list.extend(taken.remove_entry(&SpecialObject::Meta.number()));
        drop(list);
        taken.into_values().collect()
    }

    /// Takes the meta dnode if a txg changed it.
    fn take_dirty_meta(&self, txg: u64) -> Vec<Arc<Handle>> {
        let list = self.dirty.get(slot(txg));
        list.and_then(|list| list.lock().remove(&SpecialObject::Meta.number())).into_iter().collect()
    }

    /// Writes all blocks of some objects, which are sorted by number, and returns the changes in the same order.
    fn sync_handles(
        &self,
        dirty: Vec<Arc<Handle>>,
        tx: &Tx,
        ops: &dyn BlockOps,
    ) -> Result<Vec<ChangedObject>> {
        let policy = self.policy();
        let is_fs = self.objset_type() == ObjsetType::Zfs;
        let tree = self.arc().zio().tree();
        let dsize = |bp: &Blkptr| crate::zio::deflated(&tree, bp);
        let mut gone = |bp: &Blkptr| ops.killed(bp, tx).map(|()| dsize(bp));
        let is_counted = is_fs && !self.is_raw();
        let mut works = Vec::with_capacity(dirty.len());
        for handle in dirty {
            let mut work = Work::begin(handle, tx.txg(), &policy, &mut gone)?;
            if is_counted && slots::is_ordinary(work.handle.number) && !work.dnode.is_free() {
                work.dnode.flags.0 |= policy.accounted.0;
            }
            works.push(work);
        }
        let levels = works.iter().map(|w| w.dnode.nlevels).max().unwrap_or(0);
        for level in 0..levels {
            self.sync_level(&mut works, level, &policy)?;
        }
        let mut changed = Vec::with_capacity(works.len());
        for work in &mut works {
            for bp in work.dropped() {
                // It was never part of the object; accounting sees its birth and its free.
                ops.born(bp, tx)?;
                ops.killed(bp, tx)?;
            }
            for bp in &work.killed {
                ops.killed(bp, tx)?;
            }
            for bp in &work.born {
                ops.born(bp, tx)?;
            }
            work.finish(&dsize);
            let dnode = std::mem::take(&mut work.dnode);
            let after = Arc::new(Object::stored(&self.plain, work.handle.number, dnode));
            work.publish(&after);
            changed.push(ChangedObject { before: Arc::clone(&work.old), after });
        }
        Ok(changed)
    }

    /// Writes one level of all objects.
    fn sync_level(&self, works: &mut [Work], level: u8, policy: &Policy) -> Result<()> {
        // A txg that frees many objects has many that write nothing.
        let works: Vec<&mut Work> = works.iter_mut().filter(|work| level < work.dnode.nlevels).collect();
        let results: Vec<RefCell<Vec<Pointers>>> = works.iter().map(|_| RefCell::default()).collect();
        let failed: RefCell<Option<Error>> = RefCell::default();
        let fail = |e: Error| {
            failed.borrow_mut().get_or_insert(e);
        };
        let tell = |i: usize, pointers: Pointers| {
            if let Some(results) = results.get(i) {
                results.borrow_mut().push(pointers);
            }
        };
        let wanted = works.iter().enumerate().flat_map(|(i, work)| {
            let all: Box<dyn Iterator<Item = Result<Wanted>>> = match level {
                0 => Box::new(work.data(policy)),
                _ => Box::new(work.indirects(policy, level)),
            };
            all.map(move |wanted| (i, wanted))
        });
        // No more blocks are built after a failure.
        let wanted = wanted.map_while(|(i, wanted)| wanted.map_err(fail).ok().map(|wanted| (i, wanted)));
        let requests = wanted.filter_map(|(i, Wanted { place, old, request })| match request {
            SyncRequest::Write(request, fill) => Some(((i, place, old, fill), *request)),
            SyncRequest::Known(bp) => {
                tell(i, (place, old, bp));
                None
            }
        });
        write_each(self.arc(), requests, |(i, place, old, fill), written| match written {
            Ok(mut bp) => {
                if !bp.is_hole() && !bp.is_embedded() {
                    bp.set_fill(fill);
                }
                tell(i, (place, old, bp));
            }
            Err(e) => fail(e),
        });
        if let Some(e) = failed.take() {
            return Err(e);
        }
        for (work, results) in works.into_iter().zip(results) {
            work.written(level, results.into_inner());
        }
        Ok(())
    }

    /// Puts dnodes into their blocks.
    fn write_dnodes<'a>(&self, tx: &Tx, changed: impl Iterator<Item = &'a ChangedObject>) -> Result<()> {
        let meta = self.special(SpecialObject::Meta)?;
        let mut blocks: BTreeMap<u64, AlignedBuf> = BTreeMap::new();
        for change in changed {
            let (blkid, slot) = slots::place(change.after.number);
            let block = match blocks.entry(blkid) {
                std::collections::btree_map::Entry::Occupied(e) => e.into_mut(),
                std::collections::btree_map::Entry::Vacant(e) => e.insert(meta.block(blkid)?.into_owned()),
            };
            put_dnode(block, slot, &change.before.dnode, &change.after.dnode);
        }
        for (blkid, block) in blocks {
            assert!(u64::try_from(block.len()) == Ok(META_BLOCK), "a block of dnodes has 16 KiB");
            meta.write_block(tx, blkid, block.into())?;
        }
        Ok(())
    }

    /// Puts the dnodes of the special objects into the root block.
    fn set_special(&self, changed: &[ChangedObject]) {
        let mut root = self.root.write();
        let new = |which: SpecialObject| {
            let at = changed.binary_search_by_key(&which.number(), |change| change.after.number).ok()?;
            changed.get(at).map(|change| change.after.dnode.clone())
        };
        if let Some(dnode) = new(SpecialObject::Meta) {
            root.phys.meta_dnode = dnode;
        }
        for (which, place) in
            [(SpecialObject::UserUsed, 0), (SpecialObject::GroupUsed, 1), (SpecialObject::ProjectUsed, 2)]
        {
            let phys = &mut root.phys;
            let slot = match place {
                0 => &mut phys.userused,
                1 => &mut phys.groupused,
                _ => &mut phys.projectused,
            };
            if let (Some(dnode), Some(slot)) = (new(which), slot.as_mut()) {
                *slot = dnode;
            }
        }
    }
}

/// Replaces the dnode `before` that begins in `slot` of a block (free: none) by `after`.
fn put_dnode(block: &mut [u8], slot: usize, before: &Dnode, after: &Dnode) {
    let start = slot * dnode::DNODE_MIN_SIZE;
    if !before.is_free()
        && let Some(old) = block.get_mut(start..start + before.size())
    {
        old.fill(0);
    }
    if after.is_free() {
        return;
    }
    let place = block.get_mut(start..start + after.size());
    let written = place.is_some_and(|place| after.write_to(place));
    assert!(written, "a dnode fits its slots");
}
