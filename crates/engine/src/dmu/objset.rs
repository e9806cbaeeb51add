//! An object set: the array of dnodes, and the few dnodes that stand outside of it.

use std::sync::Arc;

use ondisk::{Blkptr, Dnode, dnode};

use super::Object;
use super::blocks::Path;
use crate::arc::ArcCache;
use crate::error::{Error, Kind, Result};
use crate::types::Bookmark;
use crate::zio::Form;

/// An object set as read.
#[derive(Debug)]
pub struct Objset {
    arc: Arc<ArcCache>,
    /// Object number of the dataset in the MOS; 0 for the MOS.
    pub id: u64,
    /// Where its root block stands.
    pub rootbp: Blkptr,
    /// The root block, checked.
    pub phys: ondisk::Objset,
    form: Form,
}

/// Objects whose dnodes lie in the root block.
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
    pub fn number(self) -> u64 {
        match self {
            Self::Meta => 0,
            Self::UserUsed => u64::MAX,
            Self::GroupUsed => u64::MAX - 1,
            Self::ProjectUsed => u64::MAX - 2,
        }
    }
}

impl Objset {
    /// Reads the root block `rootbp` of the object set `id`. With `Form::NoKey` an encrypted dataset's
    /// clear parts can be read without its key.
    pub fn open(arc: &Arc<ArcCache>, id: u64, rootbp: &Blkptr, form: Form) -> Result<Arc<Self>> {
        let at = Bookmark::root(id);
        if rootbp.is_hole() {
            return Err(Error::new(Kind::NotFound, "the object set has no root block yet").at_block(at));
        }
        let block = arc.read(rootbp, at, form)?;
        let phys =
            ondisk::Objset::from_bytes(&block).map_err(|e| Error::corrupt(e.to_string()).at_block(at))?;
        Ok(Arc::new(Self { arc: Arc::clone(arc), id, rootbp: *rootbp, phys, form }))
    }

    /// The cache that its blocks are read through.
    pub fn arc(&self) -> &Arc<ArcCache> {
        &self.arc
    }

    /// In which form blocks are read.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The object of that number; `NotFound` when the slot is free, in the middle of another, or past
    /// the end.
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
        Ok(Object { objset: Arc::clone(self), number, dnode })
    }

    /// An object whose dnode lies in the root block, when this object set has it.
    pub fn special(self: &Arc<Self>, which: SpecialObject) -> Option<Object> {
        let dnode = match which {
            SpecialObject::Meta => Some(self.phys.meta_dnode.clone()),
            SpecialObject::UserUsed => self.phys.userused.clone(),
            SpecialObject::GroupUsed => self.phys.groupused.clone(),
            SpecialObject::ProjectUsed => self.phys.projectused.clone(),
        };
        let dnode = dnode.filter(|d| !d.is_free())?;
        Some(Object { objset: Arc::clone(self), number: which.number(), dnode })
    }

    fn meta(self: &Arc<Self>) -> Object {
        Object { objset: Arc::clone(self), number: 0, dnode: self.phys.meta_dnode.clone() }
    }

    /// All objects in ascending order. A dnode block that can't be read gives one error and is
    /// skipped; so does a dnode that contradicts the format.
    pub fn objects(self: &Arc<Self>) -> Objects {
        let meta = self.meta();
        Objects { meta, path: Path::default(), next: Some(0), ready: Vec::new().into_iter() }
    }
}

/// Iterator over the objects of an object set.
#[derive(Debug)]
pub struct Objects {
    meta: Object,
    path: Path,
    next: Option<u64>,
    ready: std::vec::IntoIter<Result<Object>>,
}

impl Objects {
    /// Whether objects in this block have numbers that can be.
    fn may_exist(&self, blkid: u64) -> bool {
        blkid
            .checked_mul(self.meta.dnode.datablksz() >> dnode::DNODE_SHIFT)
            .is_some_and(|first| first < dnode::MAX_OBJECT)
    }

    fn fill(&mut self, blkid: u64) -> Result<()> {
        let block = self.meta.block(blkid)?;
        let first = blkid.saturating_mul(self.meta.dnode.datablksz() >> dnode::DNODE_SHIFT);
        let objset = &self.meta.objset;
        let decode = |(slot, bytes): (usize, &[u8])| {
            let number = first.saturating_add(u64::try_from(slot).unwrap_or(0));
            let at = Bookmark::new(objset.id, number, 0, 0);
            match Dnode::from_bytes(bytes) {
                Ok(dnode) if dnode.is_free() || number == 0 => None,
                Ok(dnode) => Some(Ok(Object { objset: Arc::clone(objset), number, dnode })),
                Err(e) => Some(Err(Error::corrupt(e.to_string()).at_block(at))),
            }
        };
        self.ready = dnode::slots(&block).filter_map(decode).collect::<Vec<_>>().into_iter();
        Ok(())
    }
}

impl Iterator for Objects {
    type Item = Result<Object>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.ready.next() {
                return Some(item);
            }
            let from = self.next?;
            match self.path.next_from(&self.meta, from) {
                Ok(None) => self.next = None,
                Ok(Some(blkid)) => {
                    self.next = blkid.checked_add(1).filter(|_| self.may_exist(blkid));
                    self.meta.read_ahead(blkid, 4);
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
