//! Object sets that are being written.
//!
//! ```text
//!  LiveObjset ── handles: objects in memory ([`Handle`]), each with the changes of every unsynced txg
//!       │        dirty lists: the objects changed by each txg
//!       └─ sync: data blocks → indirect blocks, level by level → dnode blocks → the root block
//! ```
//!
//! An ordinary [`Objset`] made by [`LiveObjset::view`] reads through the handles, so every reader of object sets
//! sees changes before they are on disk.
//!
//! Crash argument: no block that an on-disk uberblock refers to is overwritten; new blocks go to free space, and
//! the new root is reachable only through the uberblock that the caller writes last.
//!
//! Lock order: handles map → handle state → dirty list.
//!
//! Differs from OpenZFS: indirect blocks have no buffers of their own: a sync reads, changes and writes them level
//! by level; data buffers belong to txgs, not to blocks with lists of dirty records.

mod block_size;
mod bonus;
mod change;
mod clone;
mod editor;
mod exchange;
mod handle;
mod names;
pub(crate) mod needs;
mod object_sync;
pub(crate) mod pending;
mod piece;
pub(crate) mod policy;
mod raw;
mod reach;
mod slots;
pub(crate) mod sync;
mod tree;
pub(crate) mod within;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ondisk::objset::ObjsetFlags;
use ondisk::{Blkptr, Dnode, ObjectType, ObjsetType, ZilHeader, dnode};
use parking_lot::{Mutex, RwLock};

pub use change::SameBytes;
pub(crate) use change::StoredBlock;
pub use clone::CloneSource;
pub use editor::Editor;
pub use handle::{Handle, PendingBlock};
use pending::Pending;
pub use piece::{LONG, PIECE, Piece};
use policy::Policy;
use slots::NumberSearch;

use super::{NewObject, Object, Objset, SpecialObject, tx::Tx};
use crate::arc::ArcCache;
use crate::error::{Error, Result};
use crate::memory::dataset_stats::DatasetStats;
use crate::txg::{SIZE, slot};
use crate::types::Bookmark;
use crate::zio::Form;

/// Keeps the head of an object set's intent log up to date.
pub(crate) trait IntentLog: Send + Sync + std::fmt::Debug {
    /// The object set is about to be written with `tx`'s txg: the log no longer needs records that the txg covers.
    #[doc(alias = "zil_sync")]
    fn sync(&self, tx: &Tx, header: &mut ZilHeader) -> Result<()>;
    /// Ends the chain on disk and writes none until [`IntentLog::resume`].
    #[doc(alias = "zil_suspend")]
    fn suspend(&self) -> Result<()>;
    /// Takes back one [`IntentLog::suspend`].
    #[doc(alias = "zil_resume")]
    fn resume(&self);
}

/// The fields of the root block besides the dnodes of the special objects.
#[derive(Debug)]
struct Root {
    phys: ondisk::Objset,
    bp: Blkptr,
}

/// An object set that is being written.
#[derive(Debug)]
pub struct LiveObjset {
    /// Object number of the dataset in the MOS; 0 for the MOS.
    pub id: u64,
    me: Weak<LiveObjset>,
    /// Reads the on-disk state.
    plain: Arc<Objset>,
    root: RwLock<Root>,
    handles: Mutex<BTreeMap<u64, Arc<Handle>>>,
    dirty: [Mutex<BTreeMap<u64, Arc<Handle>>>; SIZE],
    /// Held to give numbers to new objects.
    cursor: Mutex<NumberSearch>,
    policy: RwLock<Policy>,
    log: RwLock<Option<Arc<dyn IntentLog>>>,
    /// Set while a raw stream fills it.
    raw: RwLock<Option<raw::Raw>>,
    /// Blocks that open txgs write, and those of all datasets below each directory with a quota above it.
    pending: Pending,
    above: RwLock<Vec<Arc<Pending>>>,
    /// Number of times that clean objects were evicted.
    trims: AtomicU64,
    /// Counters of its dataset.
    pub stats: DatasetStats,
    /// Slots of the dnodes of objects in memory, about.
    weight: AtomicUsize,
    /// With more slots in memory, unused objects are evicted.
    crowded: AtomicUsize,
    /// A txg is being written: the block of a dnode may be older than the object. Changes under the lock of
    /// `handles`.
    syncing: AtomicBool,
}

impl Drop for LiveObjset {
    fn drop(&mut self) {
        self.counted().closed(self.weight.load(Ordering::Relaxed));
    }
}

impl LiveObjset {
    /// The object set whose root block is `rootbp`, for writing.
    pub(crate) fn open(
        arc: &Arc<ArcCache>,
        id: u64,
        rootbp: &Blkptr,
        form: Form,
        policy: Policy,
    ) -> Result<Arc<Self>> {
        let plain = Objset::open(arc, id, rootbp, form)?.current();
        Ok(Self::over(plain, policy))
    }

    /// Like [`LiveObjset::create`], with the given meta dnode.
    pub(crate) fn create_with(
        arc: &Arc<ArcCache>,
        id: u64,
        (kind, meta): (ObjsetType, Dnode),
        size: usize,
        form: Form,
        policy: Policy,
    ) -> Arc<Self> {
        let phys = ondisk::Objset::new(kind, meta, size);
        let plain = Objset::unwritten(arc, id, phys, form).current();
        Self::over(plain, policy)
    }

    /// An object set without objects, not yet on disk. It is written with the next txg when something in it is
    /// changed.
    pub(crate) fn create(
        arc: &Arc<ArcCache>,
        id: u64,
        kind: ObjsetType,
        size: usize,
        form: Form,
        policy: Policy,
    ) -> Arc<Self> {
        let mut meta = Dnode::new(ObjectType::DNODE, META_BLOCK, 1, ObjectType::NONE, 0);
        if kind != ObjsetType::Meta {
            // Deep enough for every object number from the start, as in OpenZFS.
            let per_block = META_BLOCK >> dnode::DNODE_SHIFT;
            meta.nlevels = tree::levels_for(&meta, (dnode::MAX_OBJECT / per_block).saturating_sub(1));
        }
        Self::create_with(arc, id, (kind, meta), size, form, policy)
    }

    fn over(plain: Arc<Objset>, policy: Policy) -> Arc<Self> {
        let (id, phys, bp) = (plain.id, plain.phys.clone(), plain.rootbp);
        plain.set_cached(policy.cached);
        let live = Arc::new_cyclic(|me| {
            let special = |which: SpecialObject, dnode: Option<Dnode>| {
                let object = Object::stored(&plain, which.number(), dnode.unwrap_or_default());
                (which.number(), Handle::new(me, object))
            };
            let handles = BTreeMap::from([
                special(SpecialObject::Meta, Some(phys.meta_dnode.clone())),
                special(SpecialObject::UserUsed, phys.userused.clone()),
                special(SpecialObject::GroupUsed, phys.groupused.clone()),
                special(SpecialObject::ProjectUsed, phys.projectused.clone()),
            ]);
            let weight = handles.len();
            Self {
                id,
                me: Weak::clone(me),
                plain,
                root: RwLock::new(Root { phys, bp }),
                handles: Mutex::new(handles),
                dirty: Default::default(),
                cursor: Mutex::new(NumberSearch::from(FIRST)),
                policy: RwLock::new(policy),
                log: RwLock::default(),
                raw: RwLock::default(),
                pending: Pending::default(),
                above: RwLock::default(),
                trims: AtomicU64::new(0),
                stats: DatasetStats::default(),
                weight: AtomicUsize::new(weight),
                crowded: AtomicUsize::new(0),
                syncing: AtomicBool::new(false),
            }
        });
        live.counted().opened(live.weight.load(Ordering::Relaxed));
        live
    }

    fn counted(&self) -> &crate::memory::objects::ObjectCounts {
        &self.arc().memory().objects
    }

    /// `slots` more are in memory; whether unused objects must go.
    fn grows(&self, slots: usize) -> bool {
        self.counted().added(slots);
        let weight = self.weight.fetch_add(slots, Ordering::Relaxed).saturating_add(slots);
        weight > self.crowded.load(Ordering::Relaxed).max(self.share())
    }

    /// Maximum unused objects in memory.
    pub fn share(&self) -> usize {
        self.arc().memory().object_share()
    }

    /// The cache of its blocks.
    pub fn arc(&self) -> &Arc<ArcCache> {
        self.plain.arc()
    }

    /// Whether reads leave blocks of files in memory (`primarycache=all`).
    pub fn keeps_data(&self) -> bool {
        self.plain.keeps_data()
    }

    /// Its type.
    pub fn objset_type(&self) -> ObjsetType {
        self.root.read().phys.objset_type
    }

    /// Its flags, as of the last txg on disk.
    pub fn flags(&self) -> ObjsetFlags {
        self.root.read().phys.flags
    }

    /// The location of its root block; a hole until the first sync.
    pub fn rootbp(&self) -> Blkptr {
        self.root.read().bp
    }

    /// The write policy of its blocks.
    pub(crate) fn policy(&self) -> Policy {
        self.policy.read().clone()
    }

    /// Changes the write policy of its blocks from the next txg on.
    pub(crate) fn set_policy(&self, policy: Policy) {
        self.plain.set_cached(policy.cached);
        *self.policy.write() = policy;
    }

    /// The head of its intent log.
    pub(crate) fn zil_header(&self) -> ZilHeader {
        self.root.read().phys.zil_header
    }

    /// Changes the root block's fields (syncing context): the header of the intent log, the flags. The object set
    /// is written with this txg.
    pub fn change_root(&self, tx: &Tx, work: impl FnOnce(&mut ondisk::Objset)) -> Result<()> {
        work(&mut self.root.write().phys);
        self.special(SpecialObject::Meta)?.change(tx, |_, _| ())
    }

    /// Writes the object set with `tx`'s txg even if nothing in it is changed. The meta dnode itself is not changed
    /// by that: while txgs are open, only the syncing one may change it.
    #[doc(alias = "dsl_dataset_dirty")]
    pub fn touch(&self, tx: &Tx) -> Result<()> {
        self.set_dirty(tx.txg(), &self.special(SpecialObject::Meta)?);
        Ok(())
    }

    /// Whether its intent log has an owner: it is mounted, or a volume in use.
    pub(crate) fn has_log(&self) -> bool {
        self.log.read().is_some()
    }

    /// The intent log in use.
    pub(crate) fn log(&self) -> Option<Arc<dyn IntentLog>> {
        self.log.read().clone()
    }

    /// Sets or removes the owner of the intent log header. Returns false if there already is one.
    pub(crate) fn set_log(&self, log: Option<Arc<dyn IntentLog>>) -> bool {
        let mut slot = self.log.write();
        let free = slot.is_none() || log.is_none();
        if free {
            *slot = log;
        }
        free
    }

    /// A reader's view.
    pub fn view(&self) -> Arc<Objset> {
        let root = self.root.read();
        Objset::live(&self.plain, &root.phys, &root.bp, self.me.clone())
    }

    /// One of the objects whose dnodes lie in the root block.
    pub fn special(&self, which: SpecialObject) -> Result<Arc<Handle>> {
        let handle = self.handles.lock().get(&which.number()).cloned();
        handle.ok_or_else(|| Error::not_found("the object set has no such object"))
    }

    /// The object of that number. `NotFound` if it does not exist.
    pub fn handle(&self, number: u64) -> Result<Arc<Handle>> {
        let handle = self.find(number)?;
        if handle.is_free() { Err(self.missing(number)) } else { Ok(handle) }
    }

    fn missing(&self, number: u64) -> Error {
        let at = Bookmark::new(self.id, number, 0, 0);
        Error::not_found(format!("object {number} does not exist")).at_block(at)
    }

    /// Like [`LiveObjset::handle`], including freed ones that are still in memory.
    fn find(&self, number: u64) -> Result<Arc<Handle>> {
        let before = self.trims.load(Ordering::Acquire);
        if let Some(handle) = self.handles.lock().get(&number) {
            return Ok(Arc::clone(handle));
        }
        let meta = self.special(SpecialObject::Meta)?;
        let (blkid, slot) = slots::place(number);
        if number >= dnode::MAX_OBJECT || blkid > meta.max_block() {
            return Err(self.missing(number));
        }
        let dnode = slots::dnode_at(&meta.block(blkid)?, slot)
            .map_err(|e| Error::corrupt(e.to_string()).at_block(Bookmark::new(self.id, number, 0, 0)))?;
        let dnode = dnode.filter(|d| !d.is_free()).ok_or_else(|| self.missing(number))?;
        let fresh = Handle::new(&self.me, Object::stored(&self.plain, number, dnode));
        let mut handles = self.handles.lock();
        if let Some(handle) = handles.get(&number) {
            return Ok(Arc::clone(handle));
        }
        if self.trims.load(Ordering::Acquire) != before {
            // The object may have been changed, written and evicted while its dnode was read.
            drop(handles);
            return self.find(number);
        }
        let handle = Arc::clone(handles.entry(number).or_insert(fresh));
        let many = self.grows(handle.slots());
        drop(handles);
        if many {
            self.forget_unused();
        }
        Ok(handle)
    }

    /// The object of that number for reading, including dirty blocks.
    pub fn object(&self, view: &Arc<Objset>, number: u64) -> Result<Object> {
        let handle = self.handle(number)?;
        Ok(Object::live(view, &handle))
    }

    /// Creates an object and returns its number.
    pub fn create_object(&self, tx: &Tx, new: NewObject) -> Result<Arc<Handle>> {
        let slots = new.dnode_size / dnode::DNODE_MIN_SIZE;
        let mut cursor = self.cursor.lock();
        let number = self.free_number(&mut cursor, slots)?;
        let handle = self.claim_number(number)?;
        handle.allocate(tx, new.dnode())?;
        cursor.gives(number, slots);
        Ok(handle)
    }

    /// Creates an object with a given number, which must be free (replay, receive).
    pub fn create_object_at(&self, tx: &Tx, number: u64, new: NewObject) -> Result<Arc<Handle>> {
        let slots = new.dnode_size / dnode::DNODE_MIN_SIZE;
        let mut cursor = self.cursor.lock();
        cursor.forget();
        if !self.is_number_free(number, slots)? {
            return Err(Error::new(crate::Kind::Exists, format!("object {number} exists")));
        }
        let handle = self.claim_number(number)?;
        handle.allocate(tx, new.dnode())?;
        Ok(handle)
    }

    /// Creates one of the objects whose dnodes are in the root block, unless it exists.
    pub(crate) fn create_special(
        &self,
        tx: &Tx,
        which: SpecialObject,
        new: NewObject,
    ) -> Result<Arc<Handle>> {
        let handle = self.special(which)?;
        if handle.is_free() {
            handle.allocate(tx, new.dnode())?;
        }
        Ok(handle)
    }

    /// Creates an object in the place of another one, whose content is freed: `new` takes as many slots.
    #[doc(alias = "dmu_object_reclaim")]
    pub(crate) fn replace_object(&self, tx: &Tx, number: u64, new: NewObject) -> Result<Arc<Handle>> {
        let handle = self.handle(number)?;
        assert!(handle.dnode().size() == new.dnode_size, "an object is replaced by one with as many slots");
        handle.free(tx)?;
        handle.allocate(tx, new.dnode())?;
        Ok(handle)
    }

    /// Whether an object of `slots` slots can be created at `number` now. It cannot where another exists, or
    /// existed until a txg that is not on disk yet.
    pub(crate) fn has_room_at(&self, number: u64, slots: usize) -> Result<bool> {
        self.is_number_free(number, slots)
    }

    /// A handle on a free number.
    fn claim_number(&self, number: u64) -> Result<Arc<Handle>> {
        let object = Object::stored(&self.plain, number, Dnode::default());
        let fresh = Handle::new(&self.me, object);
        let mut handles = self.handles.lock();
        let before = handles.len();
        let handle = Arc::clone(handles.entry(number).or_insert(fresh));
        self.grows(handles.len() - before);
        Ok(handle)
    }

    /// Frees an object and all its blocks.
    pub fn free_object(&self, tx: &Tx, number: u64) -> Result<()> {
        self.handle(number)?.free(tx)
    }

    fn set_dirty(&self, txg: u64, handle: &Arc<Handle>) {
        if let Some(list) = self.dirty.get(slot(txg)) {
            list.lock().insert(handle.number, Arc::clone(handle));
        }
    }

    /// Whether a txg changed something in it.
    pub(crate) fn is_dirty(&self, txg: u64) -> bool {
        self.dirty.get(slot(txg)).is_some_and(|list| !list.lock().is_empty())
    }

    /// Number of objects that the txg changed.
    pub(crate) fn dirty_objects(&self, txg: u64) -> usize {
        self.dirty.get(slot(txg)).map_or(0, |list| list.lock().len())
    }

    /// All objects in memory that exist, and those that were freed but are still on disk.
    fn in_memory(&self, first: u64, end: u64) -> Vec<Arc<Handle>> {
        self.handles.lock().range(first..end).map(|(_, h)| Arc::clone(h)).collect()
    }

    /// The number of the first object in memory from `first` on.
    fn first_in_memory(&self, first: u64) -> Option<u64> {
        // A caller may have the number from a stream.
        if first >= dnode::MAX_OBJECT {
            return None;
        }
        let handles = self.handles.lock();
        let mut all = handles.range(first..dnode::MAX_OBJECT);
        all.find(|(_, h)| !h.is_free()).map(|(&n, _)| n)
    }

    /// Evicts clean unused objects.
    fn trim(&self) {
        let mut handles = self.handles.lock();
        self.syncing.store(false, Ordering::Release);
        let lowest = self.trim_locked(&mut handles);
        drop(handles);
        self.search_from(lowest);
    }

    /// Objects stay in memory until [`Self::trim`].
    fn hold(&self) {
        let _handles = self.handles.lock();
        self.syncing.store(true, Ordering::Release);
    }

    /// Evicts unused objects, if there are many.
    pub fn forget_unused(&self) {
        let mut handles = self.handles.lock();
        if self.syncing.load(Ordering::Acquire) {
            return;
        }
        let lowest = self.trim_locked(&mut handles);
        drop(handles);
        self.search_from(lowest);
    }

    /// Returns the lowest number of an evicted freed object.
    fn trim_locked(&self, handles: &mut BTreeMap<u64, Arc<Handle>>) -> u64 {
        let (mut lowest, mut weight) = (u64::MAX, 0);
        self.trims.fetch_add(1, Ordering::Release);
        let crowded = self.weight.load(Ordering::Relaxed) > self.share();
        handles.retain(|&number, handle| {
            // Freed objects must be evicted, so that their numbers can be reused.
            let goes = slots::is_ordinary(number) && evictable(handle) && (crowded || handle.is_free());
            if goes && handle.is_free() {
                lowest = lowest.min(number);
            }
            if !goes {
                weight += handle.slots().max(1);
            }
            !goes
        });
        // Slots that were added meanwhile are counted by the next scan.
        let before = self.weight.swap(weight, Ordering::Relaxed);
        self.counted().removed(before.saturating_sub(weight));
        self.counted().added(weight.saturating_sub(before));
        // Objects in use stay: the next complete scan happens when as many others have been added.
        self.crowded.store(weight.saturating_mul(2), Ordering::Relaxed);
        lowest
    }

    /// Moves the search for a free number there, if that is lower. `lowest`: of the numbers that have become free; `u64::MAX`:
    /// none has.
    fn search_from(&self, lowest: u64) {
        // Not before: a search that begins at numbers that are not usable yet would visit all following ones each
        // time.
        self.cursor.lock().back_to(lowest);
    }
}

fn evictable(handle: &Arc<Handle>) -> bool {
    Arc::strong_count(handle) == 1 && handle.is_clean()
}

/// Bytes of a block of dnodes.
const META_BLOCK: u64 = 16384;
/// Where the search for object numbers begins; lower numbers are reserved for objects with fixed numbers.
const FIRST: u64 = 32;
