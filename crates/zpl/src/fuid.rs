//! FUIDs: owners that belong to a domain (a Windows SID prefix).
//!
//! A FUID has the index of its domain in the high half and the id within it in the low half; index 0
//! is the plain POSIX name space. Domains are kept in an object named by the master node: a packed
//! list of index, offset and string. Source: `zfs_fuid_table_load`, zfs_fuid.c, OpenZFS 2.3.

use std::collections::HashMap;
use std::sync::Arc;

use engine::dmu::Objset;
use engine::{Error, Result};
use nvpair::NvList;

/// Longest table read whole.
const MAX_TABLE: u64 = 16 << 20;

/// Domains by index.
#[derive(Debug, Default)]
pub(crate) struct FuidTable(HashMap<u64, String>);

impl FuidTable {
    /// Reads the table in object `number`.
    pub(crate) fn load(objset: &Arc<Objset>, number: u64) -> Result<Self> {
        let object = objset.object(number)?;
        let size = object.dnode.bonus().first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
        if size == 0 {
            return Ok(Self::default());
        }
        let size = usize::try_from(size.min(MAX_TABLE).min(object.max_offset())).unwrap_or(0);
        let bytes = object.read_vec(0, size)?;
        let list =
            NvList::decode(&bytes).map_err(|e| Error::corrupt(format!("the table of domains: {e}")))?;
        let entries = list.nvlist_array("fuid_nvlist").unwrap_or_default();
        let domain = |e: &NvList| Some((e.u64("fuid_idx")?, e.string("fuid_domain")?.to_string()));
        Ok(Self(entries.iter().filter_map(domain).collect()))
    }

    /// The domain of a FUID; `None` for a plain id or an unknown domain.
    pub(crate) fn domain(&self, fuid: u64) -> Option<&str> {
        self.0.get(&(fuid >> 32)).map(String::as_str).filter(|d| !d.is_empty())
    }
}
