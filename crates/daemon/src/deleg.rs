//! The on-disk format of delegated permissions (`zfs allow`).
//!
//! A directory's ZAP names the holders of permissions; each entry leads to a ZAP whose keys are the permissions.
//!
//! ```text
//! ul$1000   user 1000, here      gd$50  group 50, below     el$  everyone, here
//! c-$       the creator of a dataset, there                 s-$@name  a named set
//! ```
//!
//! With capital letters the entry lists sets instead of permissions. Format source: `zfs_deleg_whokey`,
//! dsl_deleg.c, OpenZFS 2.3.

use engine::dsl::Dir;
use engine::dsl::write::{MosTx, MosView, Tasks, names};
use engine::zap::ZapEntry;
use engine::{Error, Kind, Result};
use ondisk::ObjectType;
use zcommon::version::SPA_VERSION_DELEGATED_PERMS;

/// The holder of a permission.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A user.
    User(u64),
    /// A group.
    Group(u64),
    /// All users.
    Everyone,
}

/// The scope of a permission.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// On the dataset itself.
    Local(Who),
    /// On the datasets below.
    Descendent(Who),
    /// For the creator of a dataset below, on that dataset.
    Create,
    /// None by itself: the definition of a set of this name (with its `@`).
    Set(String),
}

/// An entry: its scope, and its permissions; sets begin with `@`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The scope.
    pub scope: Scope,
    /// The permissions.
    pub perms: Vec<String>,
}

impl Scope {
    /// The entry's key, for permissions or for sets.
    #[doc(alias = "zfs_deleg_whokey")]
    fn key(&self, sets: bool) -> String {
        let (kind, place, data) = match self {
            Self::Local(who) => (who.letter(), 'l', who.number()),
            Self::Descendent(who) => (who.letter(), 'd', who.number()),
            Self::Create => ('c', '-', String::new()),
            Self::Set(name) => ('s', '-', name.clone()),
        };
        let kind = if sets { kind.to_ascii_uppercase() } else { kind };
        format!("{kind}{place}${data}")
    }

    fn parse(key: &str) -> Option<Self> {
        let (lead, data) = key.split_once('$')?;
        let mut letters = lead.chars();
        let (kind, place) = (letters.next()?.to_ascii_lowercase(), letters.next()?);
        let who = match kind {
            'u' => Who::User(data.parse().ok()?),
            'g' => Who::Group(data.parse().ok()?),
            'e' => Who::Everyone,
            'c' => return Some(Self::Create),
            's' => return Some(Self::Set(data.to_owned())),
            _ => return None,
        };
        match place {
            'l' => Some(Self::Local(who)),
            'd' => Some(Self::Descendent(who)),
            _ => None,
        }
    }
}

impl Who {
    fn letter(&self) -> char {
        match self {
            Self::User(_) => 'u',
            Self::Group(_) => 'g',
            Self::Everyone => 'e',
        }
    }

    fn number(&self) -> String {
        match self {
            Self::User(id) | Self::Group(id) => id.to_string(),
            Self::Everyone => String::new(),
        }
    }
}

/// The grants of a directory; entries of one scope are merged.
pub fn grants(dir: &Dir) -> Result<Vec<Grant>> {
    grants_of(dir.phys.deleg_zapobj, |number| {
        Ok(dir.dsl.zap(number)?.map(|zap| zap.to_vec()).transpose()?.unwrap_or_default())
    })
}

/// The grants of a directory as its txg has them (syncing context).
pub(crate) fn grants_now(at: &MosView<'_>, dir: u64) -> Result<Vec<Grant>> {
    grants_of(at.dir(dir)?.deleg_zapobj, |number| at.zap_entries(number))
}

/// The grants in the ZAP `number`; `entries` reads a ZAP, and none for object 0.
fn grants_of(number: u64, entries: impl Fn(u64) -> Result<Vec<ZapEntry>>) -> Result<Vec<Grant>> {
    let mut all: Vec<Grant> = Vec::new();
    for entry in entries(number)? {
        let (Some(scope), Some(number)) = (Scope::parse(&entry.name_lossy()), entry.value.first()) else {
            continue;
        };
        let perms = entries(number)?;
        let perms = perms.iter().map(|perm| perm.name_lossy());
        match all.iter_mut().find(|grant| grant.scope == scope) {
            Some(known) => known.perms.extend(perms),
            None => all.push(Grant { scope, perms: perms.collect() }),
        }
    }
    all.iter_mut().for_each(|grant| grant.perms.sort());
    all.sort_by(|a, b| a.scope.cmp(&b.scope));
    Ok(all)
}

fn dir_of(tasks: &Tasks<'_>, name: &str) -> Result<(u64, u64)> {
    let found = names::find_head(&tasks.at, tasks.pool, name)?;
    Ok((found.dir, found.head))
}

/// Splits permissions and sets, each with its key.
fn by_key(grant: &Grant) -> [(String, Vec<&str>); 2] {
    let of = |sets: bool| {
        let perms = grant.perms.iter().map(String::as_str).filter(|perm| perm.starts_with('@') == sets);
        (grant.scope.key(sets), perms.collect())
    };
    [of(false), of(true)]
}

/// Adds permissions (syncing context).
#[doc(alias = "dsl_deleg_set")]
pub fn allow(tasks: &Tasks<'_>, name: &str, grants: &[Grant]) -> Result<()> {
    let at = &tasks.at;
    if !at.since(SPA_VERSION_DELEGATED_PERMS) {
        return Err(Error::unsupported("the pool must be upgraded to have delegated permissions"));
    }
    tasks.check_room(2 * u64::try_from(grants.len()).unwrap_or(1))?;
    let (dir, head) = dir_of(tasks, name)?;
    let mut zap = at.dir(dir)?.deleg_zapobj;
    if zap == 0 {
        zap = at.create_zap(ObjectType::DSL_PERMS)?;
        at.change_dir(dir, |phys| phys.deleg_zapobj = zap)?;
    }
    for grant in grants {
        for (key, perms) in by_key(grant) {
            if perms.is_empty() {
                continue;
            }
            let known = at.zap_word(zap, key.as_str())?;
            let number = match known {
                Some(number) => number,
                None => {
                    let number = at.create_zap(ObjectType::DSL_PERMS)?;
                    at.zap_add(zap, &key, number)?;
                    number
                }
            };
            for perm in perms {
                at.zap_set(number, perm, 0)?;
                at.hooks.log("permission update", name, head, &format!("{key} {perm}"), at.tx)?;
            }
        }
    }
    Ok(())
}

/// Removes permissions (syncing context); without names, all of the scope.
#[doc(alias = "dsl_deleg_unset")]
pub fn unallow(tasks: &Tasks<'_>, name: &str, grants: &[Grant]) -> Result<()> {
    let at = &tasks.at;
    let (dir, head) = dir_of(tasks, name)?;
    let zap = at.dir(dir)?.deleg_zapobj;
    if zap == 0 {
        return Ok(());
    }
    for grant in grants {
        let all = grant.perms.is_empty();
        for (key, perms) in by_key(grant) {
            let Some(number) = at.zap_word(zap, key.as_str())? else { continue };
            if all {
                at.hooks.log("permission who remove", name, head, &key, at.tx)?;
                drop_entry(at, zap, &key, number)?;
                continue;
            }
            for perm in perms {
                match at.zap_remove(number, perm) {
                    Err(e) if e.kind() == Kind::NotFound => continue,
                    other => other?,
                }
                at.hooks.log("permission remove", name, head, &format!("{key} {perm}"), at.tx)?;
            }
            if at.zap_entries(number)?.is_empty() {
                drop_entry(at, zap, &key, number)?;
            }
        }
    }
    Ok(())
}

fn drop_entry(at: &MosTx<'_>, zap: u64, key: &str, number: u64) -> Result<()> {
    at.zap_remove(zap, key)?;
    at.free_object(number)
}

/// Refuses a word that is not a permission.
pub fn check(perm: &str, is_property: impl Fn(&str) -> bool) -> Result<()> {
    let set = perm.strip_prefix('@').is_some_and(|name| !name.is_empty() && name.len() < SET_NAME - 1);
    if set || PERMISSIONS.contains(&perm) || is_property(perm) {
        return Ok(());
    }
    Err(Error::new(Kind::Invalid, format!("invalid permission: '{perm}'")))
}

/// The exclusive maximum length of a set's name with its `@`.
#[doc(alias = "ZFS_PERMSET_MAXLEN")]
const SET_NAME: usize = 64;

/// Permissions other than property names.
#[doc(alias = "zfs_deleg_perm_tab")]
const PERMISSIONS: [&str; 37] = [
    "allow",
    "bookmark",
    "clone",
    "create",
    "destroy",
    "diff",
    "hold",
    "mount",
    "promote",
    "receive",
    "receive:append",
    "release",
    "rename",
    "rollback",
    "send",
    "send:encrypted",
    "send:raw",
    "share",
    "snapshot",
    "snapshot_limit",
    "filesystem_limit",
    "load-key",
    "change-key",
    "userprop",
    "userquota",
    "userused",
    "userobjquota",
    "userobjused",
    "groupquota",
    "groupused",
    "groupobjquota",
    "groupobjused",
    "projectquota",
    "projectused",
    "projectobjquota",
    "projectobjused",
    "zoned",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let scopes = [
            (Scope::Local(Who::User(1000)), "ul$1000", "Ul$1000"),
            (Scope::Descendent(Who::Group(5)), "gd$5", "Gd$5"),
            (Scope::Local(Who::Everyone), "el$", "El$"),
            (Scope::Create, "c-$", "C-$"),
            (Scope::Set("@a".into()), "s-$@a", "S-$@a"),
        ];
        for (scope, plain, sets) in scopes {
            assert_eq!((scope.key(false).as_str(), scope.key(true).as_str()), (plain, sets));
            assert_eq!((Scope::parse(plain), Scope::parse(sets)), (Some(scope.clone()), Some(scope)));
        }
        assert_eq!(Scope::parse("xl$1"), None);
    }
}
