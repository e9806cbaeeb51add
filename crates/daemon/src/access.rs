//! Who may do what by delegated permissions.
//!
//! On a dataset hold what was given there "locally", and what was given above for "descendents". A set means what datasets
//! above say that it means. Format source: `dsl_deleg_access_impl`, dsl_deleg.c, OpenZFS 2.3.

use std::collections::{BTreeMap, BTreeSet};

use engine::Result;
use engine::spa::Pool;

use crate::deleg::{Grant, Scope, Who, grants};

/// A user who is not the pools' owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// User.
    pub uid: u32,
    /// Groups, the first one and all others.
    pub groups: Vec<u32>,
}

impl Guest {
    /// A user with the group that it has now, and those that the machine's files say.
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

/// The groups that have a user as a member, by the text of `passwd` and `group`.
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

/// What was given on a dataset (the first) and on each above it, up to the pool's root.
fn given(pool: &Pool, dataset: &str) -> Result<Vec<Vec<Grant>>> {
    let mut levels = Vec::new();
    let mut name = Some(dataset);
    while let Some(at) = name {
        levels.push(grants(&pool.dsl.dir(at)?)?);
        name = at.rsplit_once('/').map(|(above, _)| above);
    }
    Ok(levels)
}

/// Everything that the user may do on a dataset.
#[doc(alias = "dsl_deleg_access")]
pub fn permissions(pool: &Pool, dataset: &str, guest: &Guest) -> Result<BTreeSet<String>> {
    if !is_delegating(pool)? {
        return Ok(BTreeSet::new());
    }
    Ok(of_levels(&given(pool, dataset)?, guest))
}

/// What whoever creates a dataset below `parent` is given there.
#[doc(alias = "dsl_deleg_set_create_perms")]
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

fn of_levels(levels: &[Vec<Grant>], guest: &Guest) -> BTreeSet<String> {
    let mut sets: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let (mut have, mut open) = (BTreeSet::new(), Vec::new());
    for (depth, level) in levels.iter().enumerate() {
        for grant in level {
            let perms = grant.perms.iter().map(String::as_str);
            match &grant.scope {
                Scope::Set(name) => sets.entry(name).or_default().extend(perms),
                Scope::Local(who) if depth == 0 && guest.is(who) => open.extend(perms),
                Scope::Descendent(who) if depth > 0 && guest.is(who) => open.extend(perms),
                _ => {}
            }
        }
    }
    // Sets may contain sets, themselves included.
    while let Some(perm) = open.pop() {
        if have.insert(perm.to_owned()) {
            open.extend(sets.get(perm).into_iter().flatten());
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
            of_levels(&levels, &Guest { uid, groups: groups.to_vec() }).into_iter().collect()
        };
        assert_eq!(may(7, &[]), ["snapshot"]);
        assert_eq!(may(8, &[1, 50]), ["@all", "hold", "send"]);
        assert!(may(8, &[]).is_empty());
    }
}
