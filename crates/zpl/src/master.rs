//! The master node: settings that are fixed for a whole file system, and the objects of its tables.

use std::sync::Arc;

use engine::dmu::Objset;
use engine::zap::{FORM, Zap};
use engine::{Error, Result};
use ondisk::names::{MASTER_NODE_OBJECT, master_node};

use crate::filesystem::{CaseSensitivity, MAX_VERSION};

/// A file system's master node. Objects are 0 where there are none.
#[derive(Debug)]
pub(crate) struct Master {
    /// All of it.
    pub zap: Zap,
    /// Version of the POSIX layer, 1 to 5.
    pub version: u64,
    /// Object of the root directory.
    pub root: u64,
    /// Object of the list of files that were unlinked while open.
    pub unlinked_set: u64,
    /// Object of the directory of SMB shares.
    pub shares: u64,
    /// Object of the tables of system attributes.
    pub sa_attrs: u64,
    /// Object of the tables of domains.
    pub fuids: u64,
    /// How the case of names counts.
    pub case: CaseSensitivity,
    /// Whether only names in UTF-8 can be created.
    pub utf8only: bool,
    /// Normal form of names, as bits.
    pub normalization: u64,
}

impl Master {
    /// Reads the master node of an object set.
    ///
    /// # Errors
    /// `Unsupported` for anything but a file system of a version that is known.
    pub fn read(objset: &Arc<Objset>) -> Result<Self> {
        let kind = objset.phys.objset_type;
        if kind != ondisk::ObjsetType::Zfs {
            return Err(Error::unsupported(format!("not a file system but {}", kind.name())));
        }
        let zap = Zap::open(&objset.object(MASTER_NODE_OBJECT)?)?;
        let version = zap.need(master_node::VERSION)?;
        if version == 0 || version > MAX_VERSION {
            return Err(Error::unsupported(format!("file system version {version}")));
        }
        let number = |name: &str| zap.u64(name).map(Option::unwrap_or_default);
        Ok(Self {
            version,
            root: zap.need(master_node::ROOT)?,
            unlinked_set: number(master_node::UNLINKED_SET)?,
            shares: number(master_node::SHARES_DIR)?,
            sa_attrs: number(master_node::SA_ATTRS)?,
            fuids: number(master_node::FUID_TABLES)?,
            case: CaseSensitivity::from_number(number(master_node::CASESENSITIVITY)?),
            utf8only: number(master_node::UTF8ONLY)? != 0,
            normalization: number(master_node::NORMALIZATION)? & FORM,
            zap,
        })
    }
}
