//! Evaluates delegated permissions.
//!
//! On a dataset the permissions granted there "locally" apply, and those granted above for "descendents". A
//! permission set is defined by the datasets above. Format source: `dsl_deleg_access_impl`, dsl_deleg.c, OpenZFS
//! 2.3.

use std::collections::{BTreeMap, BTreeSet};

use engine::Result;
use engine::dsl::write::{Limited, MosView, Tasks, names};
use engine::spa::Pool;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};

use crate::deleg::{Grant, Scope, Who, allow, grants, grants_now};

/// A user other than the pools' owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelegatedUser {
    /// User.
    pub uid: u32,
    /// Groups, the first one and all others.
    pub groups: Vec<u32>,
}

impl DelegatedUser {
    /// A user with its current group, and the groups in the machine's files.
    pub fn of_machine(uid: u32, gid: u32) -> Self {
        let read =
            |path: &str| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let mut groups = groups_of(uid, &read("/etc/passwd"), &read("/etc/group"));
        groups.push(gid);
        Self { uid, groups }
    }

    fn is(&self, who: &Who) -> bool {
        match who {
            Who::User(uid) => *uid == u64::from(self.uid),
            Who::Group(gid) => self.groups.iter().any(|group| u64::from(*group) == *gid),
            Who::Everyone => true,
        }
    }
}

/// The groups that contain a user, by the text of `passwd` and `group`.
fn groups_of(uid: u32, passwd: &str, group: &str) -> Vec<u32> {
    let row = |line: &str| -> Option<(String, u32, String)> {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let id = fields.nth(1)?.parse().ok()?;
        Some((name, id, fields.next().unwrap_or_default().to_owned()))
    };
    let name = passwd.lines().filter_map(row).find(|(_, id, _)| *id == uid).map(|(name, ..)| name);
    let Some(name) = name else { return Vec::new() };
    let has = |members: &str| members.split(',').any(|member| member == name);
    group.lines().filter_map(row).filter(|(.., members)| has(members)).map(|(_, id, _)| id).collect()
}

/// The grants of a dataset (the first) and of each above it, up to the pool's root.
fn given(pool: &Pool, dataset: &str) -> Result<Vec<Vec<Grant>>> {
    let mut levels = Vec::new();
    let mut name = Some(dataset);
    while let Some(at) = name {
        levels.push(grants(&pool.dsl.dir(at)?)?);
        name = at.rsplit_once('/').map(|(above, _)| above);
    }
    Ok(levels)
}

/// All permissions of the user on a dataset.
#[doc(alias = "dsl_deleg_access")]
pub fn permissions(pool: &Pool, dataset: &str, delegated: &DelegatedUser) -> Result<BTreeSet<String>> {
    permissions_as(pool, dataset, false, delegated)
}

/// All permissions of the user on the snapshots of a dataset: they are descendents of it.
#[doc(alias = "dsl_deleg_access_impl")]
pub fn permissions_on_snapshots(
    pool: &Pool,
    dataset: &str,
    delegated: &DelegatedUser,
) -> Result<BTreeSet<String>> {
    permissions_as(pool, dataset, true, delegated)
}

fn permissions_as(
    pool: &Pool,
    dataset: &str,
    snapshot: bool,
    delegated: &DelegatedUser,
) -> Result<BTreeSet<String>> {
    if !is_delegating(pool)? {
        return Ok(BTreeSet::new());
    }
    Ok(of_levels(&given(pool, dataset)?, snapshot, delegated))
}

impl Limited for DelegatedUser {
    fn may_change(&self, at: &MosView<'_>, dir: u64, limit: &str) -> Result<bool> {
        let props = at.zap_word(MOS_DIRECTORY_OBJECT, mos::PROPS)?.unwrap_or(0);
        if props != 0 && at.zap_word(props, "delegation")? == Some(0) {
            return Ok(false);
        }
        let levels = at.ancestors(dir).map(|step| grants_now(at, step?.0)).collect::<Result<Vec<_>>>()?;
        Ok(of_levels(&levels, false, self).contains(limit))
    }
}

/// Grants the create-time permissions of the datasets above to the creator of a dataset.
#[doc(alias = "dsl_deleg_set_create_perms")]
pub fn grant_at_creation(tasks: &Tasks<'_>, name: &str, uid: u32) -> Result<()> {
    let at = &tasks.at;
    let found = names::find_head(at, tasks.pool, name)?;
    let mut perms = BTreeSet::new();
    for step in at.ancestors(found.dir).skip(1) {
        let all = grants_now(at, step?.0)?.into_iter().filter(|grant| grant.scope == Scope::Create);
        perms.extend(all.flat_map(|grant| grant.perms));
    }
    if perms.is_empty() {
        return Ok(());
    }
    let grant = Grant { scope: Scope::Local(Who::User(u64::from(uid))), perms: perms.into_iter().collect() };
    allow(tasks, name, &[grant])
}

/// The permissions that the creator of a dataset below `parent` gets there.
pub fn at_creation(pool: &Pool, parent: &str) -> Result<Vec<String>> {
    let all = given(pool, parent)?.into_iter().flatten();
    let created = all.filter(|grant| grant.scope == Scope::Create).flat_map(|grant| grant.perms);
    Ok(created.collect::<BTreeSet<_>>().into_iter().collect())
}

/// The pool's property `delegation`.
fn is_delegating(pool: &Pool) -> Result<bool> {
    let set = engine::spa::props::settings(pool)?;
    Ok(set.get("delegation").and_then(|value| value.number()) != Some(0))
}

/// A set has the meaning of the nearest dataset that defines it, from the granting dataset upwards. `snapshot`: a snapshot of
/// the first dataset is meant, where its local grants do not hold.
#[doc(alias = "dsl_deleg_access_impl")]
fn of_levels(levels: &[Vec<Grant>], snapshot: bool, delegated: &DelegatedUser) -> BTreeSet<String> {
    let mut have = BTreeSet::new();
    // Granted sets that are not resolved yet.
    let mut open: BTreeSet<String> = BTreeSet::new();
    let mut met: BTreeSet<String> = BTreeSet::new();
    for (depth, level) in levels.iter().enumerate() {
        let holds = |scope: &Scope| match scope {
            Scope::Local(who) => depth == 0 && !snapshot && delegated.is(who),
            Scope::Descendent(who) => (depth > 0 || snapshot) && delegated.is(who),
            Scope::Create | Scope::Set(_) => false,
        };
        let given = level.iter().filter(|grant| holds(&grant.scope)).flat_map(|grant| &grant.perms);
        let mut new: Vec<&String> = given.collect();
        let mut defined: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
        for grant in level {
            if let Scope::Set(name) = &grant.scope {
                defined.entry(name).or_default().extend(&grant.perms);
            }
        }
        // Sets may contain sets, including themselves.
        loop {
            for perm in new.drain(..) {
                let unknown = !perm.starts_with('@') || !met.contains(perm);
                if unknown {
                    if perm.starts_with('@') { &mut open } else { &mut have }.insert(perm.clone());
                }
            }
            let Some(set) = open.iter().find(|set| defined.contains_key(set.as_str())).cloned() else {
                break;
            };
            open.remove(&set);
            new.extend(defined.get(set.as_str()).into_iter().flatten());
            met.insert(set);
        }
    }
    have
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_that_name_the_user() {
        let passwd = "root:x:0:0::/:\nme:x:7:7::/:\n";
        let group = "root:x:0:\nstaff:x:50:you,me\nme:x:7:\nothers:x:51:mean\n";
        assert_eq!(groups_of(7, passwd, group), [50]);
        assert!(groups_of(9, passwd, group).is_empty());
    }

    fn grant(scope: Scope, perms: &[&str]) -> Grant {
        Grant { scope, perms: perms.iter().map(|perm| (*perm).to_owned()).collect() }
    }

    #[test]
    fn local_descendent_and_sets_hold_where_they_were_given() {
        let levels = [
            vec![
                grant(Scope::Local(Who::User(7)), &["snapshot"]),
                grant(Scope::Descendent(Who::User(7)), &["destroy"]),
            ],
            vec![
                grant(Scope::Local(Who::Everyone), &["mount"]),
                grant(Scope::Descendent(Who::Group(50)), &["@all", "hold"]),
                grant(Scope::Set("@all".into()), &["send", "@all"]),
            ],
        ];
        let may = |uid, groups: &[u32]| -> Vec<String> {
            of_levels(&levels, false, &DelegatedUser { uid, groups: groups.to_vec() }).into_iter().collect()
        };
        assert_eq!(may(7, &[]), ["snapshot"]);
        assert_eq!(may(8, &[1, 50]), ["hold", "send"]);
        assert!(may(8, &[]).is_empty());
        let on_snapshot = of_levels(&levels, true, &DelegatedUser { uid: 7, groups: Vec::new() });
        assert_eq!(on_snapshot.into_iter().collect::<Vec<_>>(), ["destroy"]);
    }

    #[test]
    fn a_set_means_what_the_nearest_dataset_says() {
        let user = || Who::User(7);
        let set = |perms| grant(Scope::Set("@set".into()), perms);
        let delegated = DelegatedUser { uid: 7, groups: Vec::new() };
        let here = vec![grant(Scope::Local(user()), &["@set"]), set(&["send"])];
        let above = vec![grant(Scope::Descendent(user()), &["@set"]), set(&["hold"])];
        let may = |levels: &[Vec<Grant>]| -> Vec<String> {
            of_levels(levels, false, &delegated).into_iter().collect()
        };
        assert_eq!(may(&[here.clone(), above.clone()]), ["send"]);
        assert_eq!(may(&[vec![here[0].clone()], above.clone()]), ["hold"]);
        // Granted only above: definitions below do not apply.
        assert_eq!(may(&[vec![set(&["send"])], above]), ["hold"]);
    }
}
