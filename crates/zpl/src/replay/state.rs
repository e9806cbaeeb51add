//! The files that the log touches, while it is read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use engine::dmu::Object;
use engine::{Error, Kind, Result};
use ondisk::{Dnode, Endian};

use super::patch::Patch;
use super::{Overlay, Replayed};
use crate::attr::Attr;
use crate::dir::Dirent;
use crate::filesystem::Filesystem;
use crate::inode::{AclSource, Inode};

/// Failures that are kept one by one.
const MAX_NOTES: usize = 1000;

/// Changes relative to the file's object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// The file is not in the committed state: its object holds nothing.
    pub fresh: bool,
    /// Names added to a directory, and taken away (`None`).
    pub entries: BTreeMap<Vec<u8>, Option<Dirent>>,
    /// Data written and freed.
    pub data: Patch,
}

/// A file of the overlay.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub attr: Attr,
    pub object: Object,
    pub symlink: Option<Vec<u8>>,
    pub dxattr: Option<Vec<u8>>,
    pub acl: AclSource,
    pub changes: Arc<Changes>,
}

impl Stored {
    fn of(inode: Inode) -> Self {
        let Inode { attr, object, symlink, dxattr, acl, .. } = inode;
        Self { attr, object, symlink, dxattr, acl, changes: Arc::default() }
    }

    /// Its changes, to add to.
    pub fn changes(&mut self) -> &mut Changes {
        Arc::make_mut(&mut self.changes)
    }
}

/// The overlay in the making.
pub(crate) struct OverlayState<'a> {
    pub fs: &'a Arc<Filesystem>,
    nodes: HashMap<u64, Option<Stored>>,
    pub replayed: Replayed,
    /// Byte order of the block that is being replayed.
    pub endian: Endian,
}

impl<'a> OverlayState<'a> {
    pub fn new(fs: &'a Arc<Filesystem>) -> Self {
        Self { fs, nodes: HashMap::new(), replayed: Replayed::default(), endian: Endian::Little }
    }

    pub fn note(&mut self, e: Error) {
        if self.replayed.notes.len() < MAX_NOTES {
            self.replayed.notes.push(e.in_dataset(&self.fs.name));
        }
    }

    pub fn finish(self) -> Overlay {
        Overlay { nodes: self.nodes, replayed: self.replayed }
    }

    /// The file as it is so far; `NotFound` when it is not there (any more).
    pub fn get(&mut self, number: u64) -> Result<&mut Stored> {
        let missing = || self.fs.error(Kind::NotFound, "no such file", number);
        let node = match self.nodes.entry(number) {
            std::collections::hash_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::hash_map::Entry::Vacant(slot) => {
                let inode = Inode::load_committed(self.fs, number).map_err(|e| self.fs.place(e, number))?;
                slot.insert(Some(Stored::of(inode)))
            }
        };
        node.as_mut().ok_or_else(missing)
    }

    /// As [`OverlayState::get`] for a record that may be late: `None` when the file is gone.
    pub fn find(&mut self, number: u64) -> Result<Option<&mut Stored>> {
        match self.get(number) {
            Ok(_) => self.get(number).map(Some),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Takes a file away.
    pub fn remove(&mut self, number: u64) {
        self.nodes.insert(number, None);
    }

    /// Puts a new file in its place.
    pub fn create(&mut self, number: u64, attr: Attr, symlink: Option<Vec<u8>>, acl: AclSource) {
        let objset = Arc::clone(&self.fs.objset);
        let object = Object::stored(&objset, number, Dnode::default());
        let changes = Arc::new(Changes { fresh: true, ..Changes::default() });
        self.nodes.insert(number, Some(Stored { attr, object, symlink, dxattr: None, acl, changes }));
    }

    /// The entry called `name` in a directory, as it is so far.
    pub fn entry(&mut self, dir: u64, name: &[u8]) -> Result<Option<Dirent>> {
        let fs = Arc::clone(self.fs);
        let stored = self.get(dir)?;
        Inode::from_stored(&fs, dir, stored).lookup(name)
    }
}
