//! Properties that a file system or volume keeps in its own object set.

use std::collections::BTreeMap;

use ondisk::names::DEFAULT_QUOTAS;

use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::zap::Zap;
use std::sync::Arc;

/// Object of the directory of a file system (`MASTER_NODE_OBJ`) and of a volume's bytes.
const MASTER_NODE: u64 = 1;
/// Object of a volume's own ZAP (`ZVOL_ZAP_OBJ`).
const VOLUME_ZAP: u64 = 2;

/// Properties in a file system's master node, by name: `version`, `utf8only`, `normalization`, `casesensitivity`, and the default
/// quotas. An object set of an encrypted one that was opened without its key is enough.
#[doc(alias = "zfs_get_zplprop")]
pub fn file_system(objset: &Arc<Objset>) -> Result<BTreeMap<&'static str, u64>> {
    let master = Zap::open(&objset.object(MASTER_NODE)?)?;
    let version = master.u64("VERSION")?.ok_or_else(|| Error::corrupt("file system without a version"))?;
    let mut found = BTreeMap::from([("version", version)]);
    for name in ["utf8only", "normalization", "casesensitivity"].into_iter().chain(DEFAULT_QUOTAS) {
        // Older file systems lack the entries: off, none, sensitive, none.
        found.insert(name, master.u64(name)?.unwrap_or(0));
    }
    Ok(found)
}

/// A quota or another number that the master node keeps for all its users.
pub(crate) fn master_entry(objset: &Arc<Objset>, name: &str) -> Result<Option<u64>> {
    Zap::open(&objset.object(MASTER_NODE)?)?.u64(name)
}

/// A volume's size and the size of its blocks, in bytes. An object set that was opened without its key is enough.
#[doc(alias = "zvol_get_stats")]
pub fn volume(objset: &Arc<Objset>) -> Result<(u64, u64)> {
    let size = Zap::open(&objset.object(VOLUME_ZAP)?)?.need("size")?;
    Ok((size, objset.object(MASTER_NODE)?.dnode.datablksz()))
}
