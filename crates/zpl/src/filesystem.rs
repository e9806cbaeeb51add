//! A file system: its master node and the properties of all of its files.

use std::sync::Arc;

use engine::dmu::Objset;
use engine::dsl::Dataset;
use engine::sa::SaTables;
use engine::types::Bookmark;
use engine::zap::TOUPPER;
use engine::zil::in_memory::{MemoryReplay, WithLog};
use engine::{Error, Kind, Result};

use crate::fuid::FuidTable;
use crate::inode::Inode;
use crate::master::Master;

/// Newest version of the POSIX layer that is known.
#[doc(alias = "ZPL_VERSION")]
pub const MAX_VERSION: u64 = 5;
/// First version with system attributes.
#[doc(alias = "ZPL_VERSION_SA")]
pub(crate) const VERSION_SA: u64 = 5;
/// First version whose directory entries have the type.
#[doc(alias = "ZPL_VERSION_DIRENT_TYPE")]
pub(crate) const VERSION_DIRENT_TYPE: u64 = 2;
/// First version that accounts space by user, which quotas of users need.
#[doc(alias = "ZPL_VERSION_USERSPACE")]
pub const VERSION_USERSPACE: u64 = 4;
/// First version with FUIDs, and with lists of access control entries of their form.
#[doc(alias = "ZPL_VERSION_FUID")]
pub(crate) const VERSION_FUID: u64 = 3;

/// The newest version of file systems in a pool of this version.
#[doc(alias("zfs_zpl_version_map", "zfs_fill_zplprops"))]
pub fn version_for(pool: u64) -> u64 {
    match pool {
        0..9 => 2,
        9..15 => 3,
        15..24 => 4,
        _ => MAX_VERSION,
    }
}

/// The first version of pools that can have file systems of this version.
#[doc(alias = "zfs_spa_version_map")]
pub fn pool_version_for(version: u64) -> u64 {
    match version {
        0..=2 => 1,
        3 => 9,
        4 => 15,
        _ => 24,
    }
}

/// How the case of names counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CaseSensitivity {
    /// Names differ by case.
    Sensitive,
    /// They don't.
    Insensitive,
    /// They do, but a caller may ask for either.
    Mixed,
}

impl CaseSensitivity {
    /// From the property's number.
    pub fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Insensitive,
            2 => Self::Mixed,
            _ => Self::Sensitive,
        }
    }
}

/// Space and objects, as `statfs` wants them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statfs {
    /// Bytes that the file system references.
    pub referenced: u64,
    /// Objects in use.
    pub objects: u64,
}

/// A file system open for reading.
#[derive(Debug)]
pub struct Filesystem {
    /// Name of the dataset.
    pub name: String,
    /// Its object set.
    pub objset: Arc<Objset>,
    /// Version of the POSIX layer, 1 to 5.
    pub version: u64,
    /// Guid of the dataset, which identifies the file system across renames.
    pub guid: u64,
    /// Object of the root directory.
    pub root: u64,
    /// Object of the list of files that were unlinked while open; 0: none.
    pub unlinked_set: u64,
    /// Object of the directory of SMB shares; 0: none.
    pub shares: u64,
    /// How the case of names counts.
    pub case: CaseSensitivity,
    /// Whether only names in UTF-8 could be created.
    pub utf8only: bool,
    /// Normal form of names, as bits (see [`crate::names`]).
    normalization: u64,
    referenced: u64,
    sa: Option<SaTables>,
    fuids: FuidTable,
    /// The object set with what the intent log holds, which `objset` is a view of.
    log: Option<WithLog>,
}

impl Filesystem {
    /// As [`Filesystem::open`], but exactly as the newest txg left it.
    pub fn open_committed(dataset: &Dataset) -> Result<Arc<Self>> {
        let open = || -> Result<Self> { Self::load(dataset, dataset.objset()?, None) };
        open().map(Arc::new).map_err(|e| e.in_dataset(&dataset.name))
    }

    /// The in-memory replay of the intent log; `None` when there was none.
    pub fn replayed(&self) -> Option<&MemoryReplay> {
        self.log.as_ref().map(|log| &log.replayed)
    }

    /// The file system of `dataset` in `objset`.
    pub(crate) fn load(dataset: &Dataset, objset: Arc<Objset>, log: Option<WithLog>) -> Result<Self> {
        let master = Master::read(&objset)?;
        let version = master.version;
        let sa = match master.sa_attrs {
            0 => None,
            object if version >= VERSION_SA => Some(SaTables::load(&objset, object)?),
            _ => None,
        };
        let fuids = match master.fuids {
            0 => FuidTable::default(),
            object => FuidTable::load(&objset, object).unwrap_or_default(),
        };
        Ok(Self {
            name: dataset.name.clone(),
            version,
            guid: dataset.phys.guid,
            root: master.root,
            unlinked_set: master.unlinked_set,
            shares: master.shares,
            case: master.case,
            utf8only: master.utf8only,
            normalization: master.normalization,
            referenced: dataset.phys.referenced_bytes,
            objset,
            sa,
            fuids,
            log,
        })
    }

    /// The root directory.
    pub fn root(self: &Arc<Self>) -> Result<Inode> {
        self.inode(self.root)
    }

    /// The file of that object number. `NotFound` when there is none; `Corrupt` when the object is not
    /// a file.
    pub fn inode(self: &Arc<Self>, number: u64) -> Result<Inode> {
        Inode::load(self, number).map_err(|e| self.place(e, number))
    }

    /// Space and objects.
    pub fn statfs(&self) -> Statfs {
        Statfs { referenced: self.referenced, objects: self.objset.rootbp.fill() }
    }

    /// The domain (a SID prefix) of an owner or group as stored; `None` for plain ids.
    pub fn domain(&self, fuid: u64) -> Option<&str> {
        self.fuids.domain(fuid)
    }

    /// How names given by a caller are compared with stored ones; 0: byte for byte.
    pub(crate) fn match_flags(&self) -> u64 {
        match self.case {
            CaseSensitivity::Insensitive => self.normalization | TOUPPER,
            CaseSensitivity::Sensitive | CaseSensitivity::Mixed => self.normalization,
        }
    }

    pub(crate) fn entries_have_type(&self) -> bool {
        self.version >= VERSION_DIRENT_TYPE
    }

    pub(crate) fn sa(&self) -> Result<&SaTables> {
        self.sa.as_ref().ok_or_else(|| Error::corrupt("the file system has no attribute tables"))
    }

    /// Adds dataset and object to an error.
    pub(crate) fn place(&self, e: Error, number: u64) -> Error {
        e.at_block(Bookmark::new(self.objset.id, number, 0, 0)).in_dataset(&self.name)
    }

    pub(crate) fn error(&self, kind: Kind, what: &str, number: u64) -> Error {
        self.place(Error::new(kind, what), number)
    }
}
