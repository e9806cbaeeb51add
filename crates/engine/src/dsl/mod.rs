//! The dataset and snapshot layer: names, directories, datasets and their parts.
//!
//! A *directory* stands for a name (`tank/home`): its properties, children, space. Its *head dataset*
//! is the live file system or volume; snapshots are datasets that hang from the head by name and form
//! a chain through `prev_snap_obj`. A clone is a directory whose `origin_obj` is a snapshot elsewhere.

pub mod bpobj;
pub(crate) mod bptree;
pub mod crypto;
mod dataset;
pub mod deadlist;
mod delta;
mod dir;
pub mod due_log;
mod heads;
#[cfg(test)]
mod lists_tests;
pub(crate) mod lookup;
pub mod props;
mod walk;
pub mod write;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ondisk::Malformed;
use ondisk::dsl::{DslDataset, DslDir};
use parking_lot::Mutex;

pub use crypto::{EncryptionRoot, KeyStore, RootKey};
pub use dataset::{Dataset, DatasetKind};
pub use delta::Delta;
pub use dir::Dir;
pub use walk::DslDirs;

use crate::arc::ArcCache;
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::types::Bookmark;
use crate::zap::Zap;

/// Deepest nesting of names, with room for the limits of older versions.
#[doc(alias = "zfs_max_dataset_nesting")]
pub const MAX_NESTING: usize = 512;

/// Name of the hidden child that a receive into an existing dataset fills.
#[doc(alias = "recv_clone_name")]
pub const RECEIVE_CHILD: &str = "%recv";

/// The dsl state of an open pool.
#[derive(Debug)]
pub struct Dsl {
    /// The pool's name, which starts every dataset's.
    pub pool_name: String,
    /// The meta object set.
    pub mos: Arc<Objset>,
    /// The cache.
    pub(crate) arc: Arc<ArcCache>,
    /// Keys of encrypted datasets.
    pub keys: Arc<KeyStore>,
    /// Folder that mount points are below, for as long as the pool is imported.
    pub altroot: OnceLock<String>,
    /// The writer of the datasets, once the pool is imported for writing.
    pub(crate) writer: OnceLock<Weak<write::DslPool>>,
    /// Names that were looked for by number, by ZAP: see [`props::names`].
    names: Mutex<HashMap<(u64, u64), String>>,
    root_dir: u64,
    /// The pool was opened in an older state than its newest one.
    is_rewound: AtomicBool,
}

impl Dsl {
    /// Finds the root directory through the pool's directory.
    pub fn open(pool_name: &str, mos: &Arc<Objset>, directory: &Zap) -> Result<Arc<Self>> {
        let root_dir = directory.need("root_dataset")?;
        let (mos, arc) = (Arc::clone(mos), Arc::clone(mos.arc()));
        let keys = KeyStore::new(&mos);
        arc.zio().set_keys(Arc::clone(&keys) as _);
        Ok(Arc::new(Self {
            pool_name: pool_name.to_owned(),
            mos,
            arc,
            keys,
            altroot: OnceLock::new(),
            writer: OnceLock::new(),
            names: Mutex::default(),
            root_dir,
            is_rewound: AtomicBool::new(false),
        }))
    }

    /// Whether the pool was opened in an older state than its newest one: then its intent logs belong to later states.
    pub fn is_rewound(&self) -> bool {
        self.is_rewound.load(Ordering::Relaxed)
    }

    /// Says that the pool was opened in an older state.
    pub(crate) fn set_rewound(&self) {
        self.is_rewound.store(true, Ordering::Relaxed);
    }

    /// The root directory.
    pub fn root(self: &Arc<Self>) -> Result<Dir> {
        Dir::open(self, self.root_dir, self.pool_name.clone())
    }

    /// The directory called `name` (`tank/a/b`).
    pub fn dir(self: &Arc<Self>, name: &str) -> Result<Dir> {
        let number = lookup::dir(self.as_ref(), &self.pool_name, name)?;
        Dir::open(self, number, name.to_owned())
    }

    /// The dataset called `name`: a head (`tank/a`) or a snapshot (`tank/a@b`).
    pub fn dataset(self: &Arc<Self>, name: &str) -> Result<Dataset> {
        let (dir_name, snap) = match name.split_once('@') {
            Some((dir, snap)) => (dir, Some(snap)),
            None => (name, None),
        };
        let head = self.dir(dir_name)?.head()?;
        match snap {
            None => Ok(head),
            Some(snap) => {
                let found = head.snapshot(snap)?;
                found.ok_or_else(|| lookup::missing(name))
            }
        }
    }

    /// All directories from `dir` down, parents first, siblings in the order of their names. An unreadable
    /// directory yields one error and is skipped with everything below it.
    pub fn walk(self: &Arc<Self>, from: Dir) -> DslDirs {
        DslDirs::new(from)
    }

    /// Opens a ZAP of the MOS; `None` for object 0.
    pub fn zap(&self, number: u64) -> Result<Option<Zap>> {
        if number == 0 {
            return Ok(None);
        }
        Zap::open(&self.mos.object(number)?).map(Some)
    }
}

impl lookup::ReadNames for Dsl {
    fn root_dir(&self) -> Result<u64> {
        Ok(self.root_dir)
    }

    fn dir_phys(&self, number: u64) -> Result<DslDir> {
        let object = self.mos.object(number)?;
        DslDir::from_bytes(object.dnode.bonus()).map_err(|e| malformed(number, &e))
    }

    fn dataset_phys(&self, number: u64) -> Result<DslDataset> {
        let object = self.mos.object(number)?;
        DslDataset::from_bytes(object.dnode.bonus()).map_err(|e| malformed(number, &e))
    }

    fn open_zap(&self, number: u64) -> Result<Option<Zap>> {
        self.zap(number)
    }

    fn name_of(&self, zap: u64, number: u64) -> Result<String> {
        props::names::name_of(self, zap, number)
    }
}

impl Drop for Dsl {
    /// The read path refers to the keys, and the keys to the read path: this breaks the cycle.
    fn drop(&mut self) {
        self.arc.zio().clear_keys(&(Arc::clone(&self.keys) as _));
    }
}

/// A malformed structure of MOS object `number`.
pub fn malformed(number: u64, e: &Malformed) -> Error {
    Error::corrupt(e.to_string()).at_block(Bookmark::new(0, number, 0, 0))
}
