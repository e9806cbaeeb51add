//! An object set: the array of dnodes, and the few dnodes outside of it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use ondisk::{Blkptr, Dnode, dnode};
use stdx::Buf;

use super::Object;
use super::blocks::{Path, Stuck};
use super::dirty::LiveObjset;
use super::dirty::policy::Cached;
use crate::arc::ArcCache;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::types::Bookmark;
use crate::zio::{Form, ReadOptions};

/// An object set as read.
#[derive(Debug)]
pub struct Objset {
    arc: Arc<ArcCache>,
    /// Object number of the dataset in the MOS; 0 for the MOS.
    pub id: u64,
    /// The location of its root block.
    pub rootbp: Blkptr,
    /// The root block, checked.
    pub phys: ondisk::Objset,
    form: Form,
    live: Option<Weak<LiveObjset>>,
    /// Its pointers are those that the pool references now: reads repair bad copies.
    is_current: bool,
    /// The blocks that are kept in memory, as its writer sets it.
    cached: Arc<AtomicU8>,
}

/// Objects whose dnodes are in the root block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialObject {
    /// The array of all others.
    Meta,
    /// Bytes and objects used by each user.
    UserUsed,
    /// Bytes and objects used by each group.
    GroupUsed,
    /// Bytes and objects used by each project.
    ProjectUsed,
}

impl SpecialObject {
    /// The object number that bookmarks use.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Meta => 0,
            Self::UserUsed => u64::MAX,
            Self::GroupUsed => u64::MAX - 1,
            Self::ProjectUsed => u64::MAX - 2,
        }
    }
}

fn all_cached() -> Arc<AtomicU8> {
    Arc::new(AtomicU8::new(2))
}

impl Objset {
    /// Reads the root block `rootbp` of the object set `id`. With `Form::NoKey` an encrypted dataset's unencrypted
    /// parts can be read without its key.
    pub fn open(arc: &Arc<ArcCache>, id: u64, rootbp: &Blkptr, form: Form) -> Result<Arc<Self>> {
        let at = Bookmark::root(id);
        if rootbp.is_hole() {
            return Err(Error::new(Kind::NotFound, "the object set has no root block yet").at_block(at));
        }
        let block = arc.read(rootbp, at, form)?;
        let phys =
            ondisk::Objset::from_bytes(&block).map_err(|e| Error::corrupt(e.to_string()).at_block(at))?;
        Ok(Arc::new(Self {
            arc: Arc::clone(arc),
            id,
            rootbp: *rootbp,
            phys,
            form,
            live: None,
            is_current: false,
            cached: all_cached(),
        }))
    }

    /// An object set that has no root block yet.
    pub(super) fn unwritten(arc: &Arc<ArcCache>, id: u64, phys: ondisk::Objset, form: Form) -> Arc<Self> {
        Arc::new(Self {
            arc: Arc::clone(arc),
            id,
            rootbp: Blkptr::default(),
            phys,
            form,
            live: None,
            is_current: false,
            cached: all_cached(),
        })
    }

    /// A view of an object set that is being written.
    pub(super) fn live(
        plain: &Arc<Self>,
        phys: &ondisk::Objset,
        rootbp: &Blkptr,
        live: Weak<LiveObjset>,
    ) -> Arc<Self> {
        let (arc, phys) = (Arc::clone(&plain.arc), phys.clone());
        Arc::new(Self {
            arc,
            id: plain.id,
            rootbp: *rootbp,
            phys,
            form: plain.form,
            live: Some(live),
            is_current: true,
            cached: Arc::clone(&plain.cached),
        })
    }

    /// The object set in memory, if this is a view of one that is being written.
    pub fn writable(&self) -> Option<Arc<LiveObjset>> {
        self.live.as_ref()?.upgrade()
    }

    /// The same, with pointers that its writer keeps up to date.
    pub(super) fn current(self: Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            arc: Arc::clone(&self.arc),
            phys: self.phys.clone(),
            live: self.live.clone(),
            is_current: true,
            cached: Arc::clone(&self.cached),
            ..*self
        })
    }

    /// Sets the blocks that are kept in memory after reads of this object set and its views.
    pub(super) fn set_cached(&self, cached: Cached) {
        let number = match cached {
            Cached::None => 0,
            Cached::Metadata => 1,
            Cached::All => 2,
        };
        self.cached.store(number, Ordering::Relaxed);
    }

    /// Whether reads leave blocks of files in memory (`primarycache=all`).
    pub(super) fn keeps_data(&self) -> bool {
        Cached::from_number(self.cached.load(Ordering::Relaxed).into()).keeps(false)
    }

    fn options(&self, bp: &Blkptr, as_of: u64) -> ReadOptions {
        let cached = Cached::from_number(self.cached.load(Ordering::Relaxed).into());
        ReadOptions {
            form: self.form,
            heal: self.is_current,
            as_of: self.is_current.then_some(as_of),
            uncached: !cached.keeps(bp.is_metadata()),
            ..ReadOptions::default()
        }
    }

    /// The last txg on disk: the moment for [`Objset::read_as_of`].
    pub(super) fn moment(&self) -> u64 {
        self.arc.zio().synced()
    }

    /// Reads one of its blocks, to which it refers now.
    pub fn read(&self, bp: &Blkptr, at: Bookmark) -> Result<Buf> {
        self.read_as_of(bp, at, self.moment())
    }

    /// Reads one of its blocks through a pointer that was taken, or that leads down from one that was taken, at that moment.
    pub(super) fn read_as_of(&self, bp: &Blkptr, at: Bookmark, as_of: u64) -> Result<Buf> {
        self.arc.read_as(bp, at, self.options(bp, as_of))
    }

    /// As [`Objset::read_as_of`]; `paged`: for a stream that passes the bytes on to the system's page cache.
    pub(super) fn read_for(&self, bp: &Blkptr, at: Bookmark, as_of: u64, paged: bool) -> Result<Buf> {
        self.arc.read_as(bp, at, ReadOptions { paged, ..self.options(bp, as_of) })
    }

    /// As [`Objset::read_as_of`] for several blocks, which are read at the same time; whether they are kept in memory.
    pub(super) fn read_many_as_of(
        &self,
        blocks: &[(Blkptr, Bookmark)],
        as_of: u64,
        keep: bool,
    ) -> Vec<Result<Buf>> {
        let with_options = |(bp, at): &(Blkptr, Bookmark)| {
            let options = self.options(bp, as_of);
            (*bp, *at, ReadOptions { uncached: options.uncached || !keep, ..options })
        };
        self.arc.read_many(&blocks.iter().map(with_options).collect::<Vec<_>>())
    }

    /// Starts reading one of its blocks that will be needed soon; false where there is no space for more of them. `paged`: as
    /// in [`Objset::read_for`].
    pub(super) fn prefetch(&self, bp: &Blkptr, at: Bookmark, as_of: u64, paged: bool) -> bool {
        let options = ReadOptions { paged, ..self.options(bp, as_of) };
        let is_wanted = !options.uncached && !self.arc.limits().is_on(Limit::PrefetchDisable);
        !is_wanted || self.arc.prefetch_as(bp, at, options)
    }

    /// The cache of its blocks.
    pub fn arc(&self) -> &Arc<ArcCache> {
        &self.arc
    }

    /// The form in which blocks are read.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The object of that number; `NotFound` if the slot is free, inside another dnode, or past the end.
    pub fn object(self: &Arc<Self>, number: u64) -> Result<Object> {
        let at = Bookmark::new(self.id, number, 0, 0);
        let missing = || Error::not_found(format!("object {number} does not exist")).at_block(at);
        for special in [SpecialObject::UserUsed, SpecialObject::GroupUsed, SpecialObject::ProjectUsed] {
            if number == special.number() {
                return self.special(special).ok_or_else(missing);
            }
        }
        if number == 0 || number >= dnode::MAX_OBJECT {
            return Err(missing());
        }
        if let Some(live) = self.writable() {
            return live.object(self, number);
        }
        let meta = self.meta();
        let per_block = meta.dnode.datablksz() >> dnode::DNODE_SHIFT;
        let (blkid, slot) = (number.checked_div(per_block), number.checked_rem(per_block));
        let (Some(blkid), Some(slot)) = (blkid, slot) else { return Err(missing()) };
        if blkid > meta.dnode.maxblkid {
            return Err(missing());
        }
        let block = meta.block(blkid)?;
        let found = dnode::slots(&block).find(|(at, _)| u64::try_from(*at).is_ok_and(|at| at == slot));
        let (_, bytes) = found.ok_or_else(missing)?;
        let dnode = Dnode::from_bytes(bytes).map_err(|e| Error::corrupt(e.to_string()).at_block(at))?;
        if dnode.is_free() {
            return Err(missing());
        }
        Ok(Object::stored(self, number, dnode))
    }

    /// An object whose dnode is in the root block, if this object set has it.
    pub fn special(self: &Arc<Self>, which: SpecialObject) -> Option<Object> {
        if let Some(live) = self.writable() {
            let handle = live.special(which).ok().filter(|h| !h.is_free())?;
            return Some(Object::live(self, &handle));
        }
        let dnode = match which {
            SpecialObject::Meta => Some(self.phys.meta_dnode.clone()),
            SpecialObject::UserUsed => self.phys.userused.clone(),
            SpecialObject::GroupUsed => self.phys.groupused.clone(),
            SpecialObject::ProjectUsed => self.phys.projectused.clone(),
        };
        let dnode = dnode.filter(|d| !d.is_free())?;
        Some(Object::stored(self, which.number(), dnode))
    }

    fn meta(self: &Arc<Self>) -> Object {
        if let Some(handle) = self.writable().and_then(|live| live.special(SpecialObject::Meta).ok()) {
            return Object::live(self, &handle);
        }
        Object::stored(self, 0, self.phys.meta_dnode.clone())
    }

    /// All objects in ascending order. An unreadable dnode block yields one error and is skipped; so does a
    /// malformed dnode.
    pub fn objects(self: &Arc<Self>) -> ObjectIter {
        self.objects_from(0)
    }

    /// Like [`Objset::objects`], beginning with the block of dnodes that contains `first`.
    pub(crate) fn objects_from(self: &Arc<Self>, first: u64) -> ObjectIter {
        let meta = self.meta();
        let per_block = (meta.dnode.datablksz() >> dnode::DNODE_SHIFT).max(1);
        ObjectIter {
            meta,
            path: Path::default(),
            next: Some(first / per_block),
            ready: Vec::new().into_iter(),
        }
    }
}

/// Iterator over the objects of an object set.
#[derive(Debug)]
pub struct ObjectIter {
    meta: Object,
    path: Path,
    next: Option<u64>,
    ready: std::vec::IntoIter<Result<Object>>,
}

impl ObjectIter {
    /// Whether objects in this block have valid numbers.
    fn may_exist(&self, blkid: u64) -> bool {
        blkid
            .checked_mul(self.meta.dnode.datablksz() >> dnode::DNODE_SHIFT)
            .is_some_and(|first| first < dnode::MAX_OBJECT)
    }

    fn fill(&mut self, blkid: u64) -> Result<()> {
        let block = self.meta.block(blkid)?;
        let first = blkid.saturating_mul(self.meta.dnode.datablksz() >> dnode::DNODE_SHIFT);
        let objset = &self.meta.objset;
        if let Some(live) = objset.writable() {
            let all = live.numbers_in(&block, first)?.into_iter().map(|n| live.object(objset, n));
            // An object that was freed meanwhile is not listed.
            let there = |o: &Result<Object>| o.as_ref().map_or_else(|e| e.kind() != Kind::NotFound, |_| true);
            self.ready = all.filter(there).collect::<Vec<_>>().into_iter();
            return Ok(());
        }
        let decode = |(slot, bytes): (usize, &[u8])| {
            let number = first.saturating_add(u64::try_from(slot).unwrap_or(0));
            let at = Bookmark::new(objset.id, number, 0, 0);
            match Dnode::from_bytes(bytes) {
                Ok(dnode) if dnode.is_free() || number == 0 => None,
                Ok(dnode) => Some(Ok(Object::stored(objset, number, dnode))),
                Err(e) => Some(Err(Error::corrupt(e.to_string()).at_block(at))),
            }
        };
        self.ready = dnode::slots(&block).filter_map(decode).collect::<Vec<_>>().into_iter();
        Ok(())
    }
}

impl ObjectIter {
    /// The next block of dnodes, including those with objects that have no dnode on disk yet.
    fn with_unwritten(
        &self,
        from: u64,
        found: std::result::Result<Option<u64>, Stuck>,
    ) -> std::result::Result<Option<u64>, Stuck> {
        let live = self.meta.objset.writable().and_then(|live| live.next_block_in_memory(from));
        match (found?, live) {
            (Some(disk), Some(memory)) => Ok(Some(disk.min(memory))),
            (disk, memory) => Ok(disk.or(memory)),
        }
    }
}

impl Iterator for ObjectIter {
    type Item = Result<Object>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.ready.next() {
                return Some(item);
            }
            let from = self.next?;
            let found = self.path.next_from(&self.meta, from);
            match self.with_unwritten(from, found) {
                Ok(None) => self.next = None,
                Ok(Some(blkid)) => {
                    self.next = blkid.checked_add(1).filter(|_| self.may_exist(blkid));
                    self.meta.read_ahead(blkid, 4, false);
                    if let Err(e) = self.fill(blkid) {
                        return Some(Err(e));
                    }
                }
                Err((blkid, e)) => {
                    self.next = blkid;
                    return Some(Err(e));
                }
            }
        }
    }
}
