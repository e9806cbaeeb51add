//! The permissions of `zfs allow` that commands need of users other than the pools' owner.
//!
//! Verbs whose datasets are known only while they run ask here for each dataset.

use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::Failure;
use daemon::Registry;
use daemon::access::{DelegatedUser, permissions, permissions_on_snapshots};
use engine::dsl::props::names::dataset_name;
use engine::memory::Limit;
use zcommon::props::ZfsProp;

/// The permissions that a command needs on one dataset.
#[derive(Debug, PartialEq, Eq)]
pub struct Need {
    /// The dataset.
    pub dataset: String,
    /// The permissions.
    pub perms: Vec<String>,
    /// Any of these is enough, too.
    pub instead: Vec<String>,
    /// The permissions must hold for its snapshots.
    pub on_snapshot: bool,
}

impl Need {
    /// Whether the user has them.
    pub fn is_given(&self, delegated: &DelegatedUser, ctx: &mut Ctx) -> Result<bool, Failure> {
        let target = Target::of(&self.dataset, ctx)?;
        target.dataset()?;
        let _quiet = target.pool.quiet();
        let have = match self.on_snapshot {
            true => permissions_on_snapshots(&target.view, &self.dataset, delegated)?,
            false => permissions(&target.view, &self.dataset, delegated)?,
        };
        let has = |perm: &String| have.contains(perm);
        Ok(self.perms.iter().all(has) || self.instead.iter().any(has))
    }
}

/// The permissions on a dataset, for its snapshots and bookmarks, too.
pub fn need(dataset: &str, perms: &[&str]) -> Need {
    let dataset = dataset.split(['@', '#']).next().unwrap_or_default().to_owned();
    let perms = perms.iter().map(|perm| (*perm).to_owned()).collect();
    Need { dataset, perms, instead: Vec::new(), on_snapshot: false }
}

/// The permissions on a dataset or snapshot itself. [`need`] asks a snapshot's dataset.
pub fn need_on(name: &str, perms: &[&str]) -> Need {
    Need { on_snapshot: name.contains('@'), ..need(name, perms) }
}

/// The refusal of an action on `name`.
pub fn denied(action: &str, name: &str) -> Failure {
    Failure::cannot(action, name, "permission denied")
}

/// Whether a setting of the pools' owner prevents other users from viewing them.
pub fn are_kept_out(registry: &Registry) -> bool {
    registry.memory.limits.get(Limit::PrivatePools) != 0
}

/// Whether the caller, if not the owner, may destroy a dataset or snapshots of it. Only root can unmount.
pub fn may_destroy(name: &str, ctx: &mut Ctx) -> Result<bool, Failure> {
    let Some(delegated) = ctx.session()?.delegated.clone() else { return Ok(true) };
    let need = need_on(name, &["destroy", "mount"]);
    let given = need.is_given(&delegated, ctx)?;
    if given && need.dataset == name {
        unmounted("destroy", name, ctx)?;
    }
    Ok(given)
}

fn renamed_snapshot(old: &str, recurse: bool, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    // The dataset is the parent of the new name.
    let mut all = below(old, recurse, &["create", "mount"], ctx)?;
    let snapshots = below(old, recurse, &["rename", "mount"], ctx)?.into_iter();
    all.extend(snapshots.map(|need| Need { on_snapshot: true, ..need }));
    Ok(all)
}

fn renamed(old: &str, new: &str, parents: bool, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    for below in below(old, true, &[], ctx)? {
        unmounted("rename", &below.dataset, ctx)?;
    }
    Ok(vec![need(old, &["rename", "mount"]), made_below(new, parents, ctx)?])
}

/// The same permissions on a dataset, and with `recurse` on all datasets below.
pub fn below(name: &str, recurse: bool, perms: &[&str], ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    let top = need(name, perms);
    if !recurse {
        return Ok(vec![top]);
    }
    let tree = Target::of(&top.dataset, ctx)?.tree()?;
    Ok(tree.into_iter().map(|dir| need(&dir.name, perms)).collect())
}

/// The permissions that creating a dataset requires on the nearest existing ancestor.
pub fn made_below(name: &str, parents: bool, ctx: &mut Ctx) -> Result<Need, Failure> {
    let mut above = name.rsplit_once('/').map_or(name, |(above, _)| above);
    while parents
        && let Some((higher, _)) = above.rsplit_once('/')
        && !Target::of(above, ctx)?.exists()
    {
        above = higher;
    }
    Ok(need(above, &["create", "mount"]))
}

/// Only root can unmount.
pub fn unmounted(action: &str, dataset: &str, ctx: &mut Ctx) -> Result<(), Failure> {
    let mounted = ctx.pool_of(dataset).is_some_and(|pool| pool.mounts.at(dataset).is_some());
    if mounted {
        Err(Failure::cannot(action, dataset, "it is mounted, and only root can unmount it"))
    } else {
        Ok(())
    }
}

/// The permissions to promote a clone.
pub fn promoted(name: &str, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    let target = Target::of(name, ctx)?;
    let dir = target.dir()?;
    let _quiet = target.pool.quiet();
    let mut all = vec![need(name, &["promote", "mount"])];
    if dir.phys.origin_obj != 0 {
        all.push(need_on(&dataset_name(&dir.dsl, dir.phys.origin_obj)?, &["promote"]));
    }
    Ok(all)
}

/// The permission that each `PROPERTY=VALUE` needs.
pub fn settings(words: &[String]) -> Result<Vec<String>, Failure> {
    let pairs = words.iter().flat_map(|word| word.split_once('='));
    pairs.map(|(name, _)| setting(name)).collect()
}

/// The permission that each `PROPERTY=VALUE` of a new dataset needs. It is not mounted, so `canmount` unmounts nothing.
pub fn settings_of_new(words: &[String]) -> Result<Vec<String>, Failure> {
    let names = words.iter().filter_map(|word| word.split_once('=')).map(|(name, _)| name);
    names.map(|name| if name == "canmount" { Ok(name.to_owned()) } else { setting(name) }).collect()
}

/// The permission that a property needs.
pub fn setting(name: &str) -> Result<String, Failure> {
    // These would read a key from the user while the pool waits.
    const OWNERS: [&str; 9] = [
        "mountpoint",
        "canmount",
        "sharenfs",
        "sharesmb",
        "keylocation",
        "keyformat",
        "encryption",
        "pbkdf2iters",
        "zoned",
    ];
    let owners =
        || Failure::failed(format!("cannot set property '{name}': permission denied (only its owner can)"));
    if let Some(prop) = ZfsProp::from_user(name) {
        return if OWNERS.contains(&prop.name()) { Err(owners()) } else { Ok(prop.name().to_owned()) };
    }
    match name.split_once('@') {
        Some((kind, _)) => Ok(kind.to_owned()),
        None if name.contains(':') => Ok("userprop".to_owned()),
        None => Err(owners()),
    }
}

/// The permissions to rename a dataset or snapshot.
pub fn renames(
    old: &str,
    new: &str,
    (parents, recurse, force): (bool, bool, bool),
    ctx: &mut Ctx,
) -> Result<Vec<Need>, Failure> {
    match (force, old.contains('@')) {
        (true, _) => Err(denied("rename", old)),
        (false, true) => renamed_snapshot(old, recurse, ctx),
        (false, false) => renamed(old, new, parents, ctx),
    }
}

/// The permissions to destroy `name` that are known before the lookup of everything that goes with it: see
/// [`may_destroy`].
pub fn destroys(name: &str, (clones, force): (bool, bool), ctx: &Ctx) -> Result<Vec<Need>, Failure> {
    if clones || force {
        return Err(denied("destroy", name));
    }
    let perms: &[&str] = if name.contains('#') { &["destroy"] } else { &[] };
    let mut needs = vec![need(name, perms)];
    if are_kept_out(&*ctx.registry()?) {
        needs.push(need_on(name, &["destroy"]));
    }
    Ok(needs)
}

/// Whether the user has all of these permissions.
pub fn are_given(needs: Vec<Need>, delegated: &DelegatedUser, ctx: &mut Ctx) -> Result<bool, Failure> {
    for need in needs {
        if !need.is_given(delegated, ctx)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_need_their_own_names() {
        assert_eq!(setting("compress").unwrap(), "compression");
        assert_eq!(setting("userquota@7").unwrap(), "userquota");
        assert_eq!(setting("com.example:a").unwrap(), "userprop");
        assert!(setting("mountpoint").is_err() && setting("nonsense").is_err());
        let of_new = |word: &str| settings_of_new(&[word.to_owned()]);
        assert_eq!(of_new("canmount=off").unwrap(), ["canmount"]);
        assert!(of_new("mountpoint=/etc").is_err() && setting("canmount").is_err());
        assert_eq!(
            need("a/b@c", &["x"]),
            Need { dataset: "a/b".into(), perms: vec!["x".into()], instead: Vec::new(), on_snapshot: false }
        );
    }
}
