//! Space and objects that each user, group and project uses in a file system, and their quotas.
//!
//! Use is counted in three objects in the object set's root block, keyed by id in hex (objects with the
//! prefix `obj-`); quotas are ZAPs that the master node names. An id whose high half is not 0 is a Windows
//! identity: the index of a domain in the file system's table, and a number within it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::names::{OBJACCT_PREFIX, master_node};
use ondisk::objset::ObjsetFlags;

use super::zpl::master_entry;
use crate::dmu::{Objset, SpecialObject};
use crate::error::Result;
use crate::zap::Zap;

/// Whose use is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccountKind {
    /// Owners of files.
    User,
    /// Groups of files.
    Group,
    /// Projects.
    Project,
}

impl AccountKind {
    fn object(self) -> SpecialObject {
        match self {
            AccountKind::User => SpecialObject::UserUsed,
            AccountKind::Group => SpecialObject::GroupUsed,
            AccountKind::Project => SpecialObject::ProjectUsed,
        }
    }

    /// Whether bytes and objects are counted for all that is in an object set. Until then figures are parts.
    #[doc(alias("dmu_objset_userspace_present", "dmu_objset_userobjspace_present"))]
    fn is_complete(self, flags: ObjsetFlags) -> (bool, bool) {
        let objects = flags.has(ObjsetFlags::USEROBJACCOUNTING_COMPLETE);
        match self {
            AccountKind::User | AccountKind::Group => {
                (flags.has(ObjsetFlags::USERACCOUNTING_COMPLETE), objects)
            }
            AccountKind::Project => {
                let projects = flags.has(ObjsetFlags::PROJECTQUOTA_COMPLETE);
                (projects, projects && objects)
            }
        }
    }

    fn default_quotas(self) -> (&'static str, &'static str) {
        match self {
            AccountKind::User => (master_node::DEFAULTUSERQUOTA, master_node::DEFAULTUSEROBJQUOTA),
            AccountKind::Group => (master_node::DEFAULTGROUPQUOTA, master_node::DEFAULTGROUPOBJQUOTA),
            AccountKind::Project => (master_node::DEFAULTPROJECTQUOTA, master_node::DEFAULTPROJECTOBJQUOTA),
        }
    }

    fn quotas(self) -> (&'static str, &'static str) {
        match self {
            AccountKind::User => (master_node::USERQUOTA, master_node::USEROBJQUOTA),
            AccountKind::Group => (master_node::GROUPQUOTA, master_node::GROUPOBJQUOTA),
            AccountKind::Project => (master_node::PROJECTQUOTA, master_node::PROJECTOBJQUOTA),
        }
    }
}

/// Use and quotas of one id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub used: Option<u64>,
    /// Bytes allowed.
    pub quota: Option<u64>,
    /// Objects.
    pub objused: Option<u64>,
    /// Objects allowed.
    pub objquota: Option<u64>,
}

/// Use and quotas by id. Needs the key of an encrypted file system.
#[doc(alias = "zfs_userspace_many")]
pub fn usage(objset: &Arc<Objset>, account: AccountKind) -> Result<BTreeMap<u64, Usage>> {
    let mut all: BTreeMap<u64, Usage> = BTreeMap::new();
    let complete = account.is_complete(objset.phys.flags);
    if let Some(object) = objset.special(account.object()) {
        let all_counts = counts(&Zap::open(&object)?)?;
        let told = |&(_, is_objects, _): &_| if is_objects { complete.1 } else { complete.0 };
        for (id, is_objects, value) in all_counts.into_iter().filter(told) {
            let entry = all.entry(id).or_default();
            let field = if is_objects { &mut entry.objused } else { &mut entry.used };
            *field = Some(value);
        }
    }
    let (bytes, objects) = account.quotas();
    for (name, is_objects) in [(bytes, false), (objects, true)] {
        let Some(number) = master_entry(objset, name)? else { continue };
        for (id, _, value) in counts(&Zap::open(&objset.object(number)?)?)? {
            let entry = all.entry(id).or_default();
            let field = if is_objects { &mut entry.objquota } else { &mut entry.quota };
            *field = Some(value);
        }
    }
    let (bytes, objects) = account.default_quotas();
    let of = |name| Ok::<_, crate::Error>(master_entry(objset, name)?.filter(|limit| *limit != 0));
    let (bytes, objects) = (of(bytes)?, of(objects)?);
    for usage in all.values_mut() {
        // As in OpenZFS, which takes the default from the table of usage.
        usage.quota = usage.quota.or(bytes.filter(|_| usage.used.is_some()));
        usage.objquota = usage.objquota.or(objects.filter(|_| usage.objused.is_some()));
    }
    Ok(all)
}

/// Id, whether objects are counted, and the number; entries that are no ids are skipped.
fn counts(zap: &Zap) -> Result<Vec<(u64, bool, u64)>> {
    let parse = |name: &str, value: Option<u64>| {
        let (id, is_objects) = match name.strip_prefix(OBJACCT_PREFIX) {
            Some(id) => (id, true),
            None => (name, false),
        };
        Some((u64::from_str_radix(id, 16).ok()?, is_objects, value?))
    };
    Ok(zap.to_vec()?.iter().filter_map(|e| parse(&e.name_lossy(), e.value.first())).collect())
}
