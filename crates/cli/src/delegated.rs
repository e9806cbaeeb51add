//! Commands of users other than the pools' owner: enforces the permissions of `zfs allow`.
//!
//! The daemon serves them on a socket of their own. Every user may view pools, unless `aquifer_private_pools` is
//! set; refusals use OpenZFS's words ([`crate::refused`]). Before such a command runs, [`admit`] derives from its
//! parsed form the permissions it needs on each dataset, and checks them. A command that is not listed here is
//! refused.
//!
//! Differs from OpenZFS: an operation that would do as root more than the user could do (mounts, keys in
//! files, clones of others' snapshots destroyed with `-R`, devices) stays the owner's; so do `unallow`,
//! streams, and delegating sets.

mod receive;

use daemon::Registry;
use daemon::access::{Guest, permissions, permissions_on_snapshots};
use engine::dsl::props::names::dataset_name;
use engine::memory::Limit;
use zcommon::props::ZfsProp;

use crate::asked::Asked;
use crate::ctx::Ctx;
use crate::multicall::Command;
use crate::refused::refusal;
use crate::session::Home;
use crate::verb::Failure;
use crate::zfs::ZfsVerb;
use crate::zfs::target::Target;
use crate::zpool::ZpoolVerb;

pub(crate) use receive::{may_change_key, may_hold, may_receive, received, settable};

/// The permissions that a command needs on one dataset.
#[derive(Debug, PartialEq, Eq)]
struct Need {
    dataset: String,
    perms: Vec<String>,
    /// Any of these is enough, too.
    instead: Vec<String>,
    /// The permissions must hold for its snapshots.
    on_snapshot: bool,
}

impl Need {
    fn is_given(&self, guest: &Guest, ctx: &mut Ctx) -> Result<bool, Failure> {
        let target = Target::of(&self.dataset, ctx)?;
        target.dataset()?;
        let _quiet = target.pool.quiet();
        let have = match self.on_snapshot {
            true => permissions_on_snapshots(&target.view, &self.dataset, guest)?,
            false => permissions(&target.view, &self.dataset, guest)?,
        };
        let has = |perm: &String| have.contains(perm);
        Ok(self.perms.iter().all(has) || self.instead.iter().any(has))
    }
}

fn need(dataset: &str, perms: &[&str]) -> Need {
    let dataset = dataset.split(['@', '#']).next().unwrap_or_default().to_owned();
    let perms = perms.iter().map(|perm| (*perm).to_owned()).collect();
    Need { dataset, perms, instead: Vec::new(), on_snapshot: false }
}

/// The permissions on a dataset or snapshot itself. [`need`] asks a snapshot's dataset.
fn need_on(name: &str, perms: &[&str]) -> Need {
    Need { on_snapshot: name.contains('@'), ..need(name, perms) }
}

fn denied(action: &str, name: &str) -> Failure {
    Failure::cannot(action, name, "permission denied")
}

/// Whether a setting of the pools' owner prevents other users from viewing them.
pub(crate) fn are_kept_out(registry: &Registry) -> bool {
    registry.memory.limits.get(Limit::PrivatePools) != 0
}

/// Admits a command as far as its effect is known before it runs; otherwise returns the refusal.
pub(crate) fn admit(command: &mut Command, guest: &Guest, ctx: &mut Ctx) -> Result<(), Failure> {
    if ctx.home == Home::Here {
        return Err(refusal(command));
    }
    let private = are_kept_out(&*ctx.registry()?);
    if looks(command) || refuses_itself(command) {
        return if private { Err(Failure::failed("permission denied")) } else { Ok(()) };
    }
    match (is_given(command, guest, private, ctx), private) {
        (Ok(true), _) => Ok(()),
        (Ok(false), _) => Err(refusal(command)),
        // A user without permission to view pools must not learn which names exist.
        (Err(_), true) => Err(refusal(command)),
        (Err(why), false) => Err(why),
    }
}

/// Whether the permissions that a command needs are granted, as far as they are known before it runs.
fn is_given(command: &mut Command, guest: &Guest, private: bool, ctx: &mut Ctx) -> Result<bool, Failure> {
    let mut needs = match command {
        Command::Zfs(_) => of_zfs(command, ctx)?,
        Command::Zpool(_) => {
            exists(command, ctx)?;
            return Ok(false);
        }
        _ => return Ok(false),
    };
    if let (true, Command::Zfs(zfs)) = (private, &*command)
        && let ZfsVerb::Destroy(v) = &zfs.verb
    {
        needs.push(need_on(&v.name, &["destroy"]));
    }
    for need in needs {
        if !need.is_given(guest, ctx)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the caller, if not the owner, may destroy a dataset or snapshots of it. Only root can unmount.
pub(crate) fn may_destroy(name: &str, ctx: &mut Ctx) -> Result<bool, Failure> {
    let Some(guest) = ctx.session()?.guest.clone() else { return Ok(true) };
    let need = need_on(name, &["destroy", "mount"]);
    let given = need.is_given(&guest, ctx)?;
    if given && need.dataset == name {
        unmounted("destroy", name, ctx)?;
    }
    Ok(given)
}

/// Whether a command only prints information about pools, which every user may do.
fn looks(command: &Command) -> bool {
    match command {
        Command::Zpool(zpool) => match &zpool.verb {
            ZpoolVerb::List(_) | ZpoolVerb::Status(_) | ZpoolVerb::Iostat(_) | ZpoolVerb::Get(_) => true,
            ZpoolVerb::History(_) | ZpoolVerb::Wait(_) => true,
            ZpoolVerb::Events(v) => !v.clear,
            ZpoolVerb::Upgrade(v) => !v.all && v.pools.is_empty(),
            _ => false,
        },
        Command::Zfs(zfs) => match &zfs.verb {
            ZfsVerb::List(_) | ZfsVerb::Get(_) | ZfsVerb::Holds(_) | ZfsVerb::Wait(_) => true,
            ZfsVerb::Mount(v) => !v.all && !v.recurse && v.names.is_empty(),
            ZfsVerb::Upgrade(v) => !v.all && v.names.is_empty(),
            ZfsVerb::Allow(v) => v.words.len() == 1,
            _ => false,
        },
        Command::Arcstat(v) => v.output.is_none(),
        Command::ArcSummary(_) | Command::Zilstat(_) | Command::Kstat(_) | Command::Get(_) => true,
        // The daemon runs it for its cache file only.
        Command::Zdb(v) => v.home() == Home::Pools,
        _ => false,
    }
}

/// Whether a command may have nothing to do; it refuses each change itself.
fn refuses_itself(command: &Command) -> bool {
    match command {
        Command::Zpool(zpool) => matches!(&zpool.verb, ZpoolVerb::Upgrade(_)),
        Command::Zfs(zfs) => match &zfs.verb {
            ZfsVerb::Upgrade(_) => true,
            ZfsVerb::Mount(v) => v.all && v.names.is_empty() && !v.load_keys,
            _ => false,
        },
        _ => false,
    }
}

/// Reports a missing pool before anything else.
fn exists(command: &Command, ctx: &mut Ctx) -> Result<(), Failure> {
    match Asked::by(command).names.first() {
        Some(name) if ctx.pool(name).is_none() => Err(Failure::cannot("open", name, "no such pool")),
        _ => Ok(()),
    }
}

fn of_zfs(command: &mut Command, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    let refused = refusal(command);
    let Command::Zfs(zfs) = command else { return Err(refused) };
    Ok(match &mut zfs.verb {
        ZfsVerb::Userspace(v) => vec![need(&v.options.space.name, &["userused"])],
        ZfsVerb::Groupspace(v) => vec![need(&v.options.space.name, &["groupused"])],
        ZfsVerb::Projectspace(v) => vec![need(&v.options.name, &["projectused"])],
        ZfsVerb::Diff(v) => {
            let ends = std::iter::once(&v.from).chain(&v.to).filter(|name| !name.starts_with('@'));
            ends.map(|name| Need { on_snapshot: true, ..need(name, &["diff"]) }).collect()
        }
        ZfsVerb::Receive(v) => {
            // Only root can mount.
            v.unmounted = true;
            let Some(guest) = ctx.session()?.guest.clone() else { return Err(refused) };
            receive::needs(v, &guest, ctx)?
        }
        ZfsVerb::Create(v) => {
            // Only root can mount.
            v.stays_unmounted = v.volume.is_none() && !v.unmounted;
            v.unmounted = v.volume.is_none();
            let mut all = made_below(&v.name, v.parents, ctx)?;
            all.perms.extend(settings_of_new(&v.props)?);
            if v.volume.is_some() && !v.sparse {
                all.perms.push("refreservation".to_owned());
            }
            vec![all]
        }
        ZfsVerb::Clone(v) => {
            v.stays_unmounted = !v.unmounted;
            v.unmounted = true;
            let mut all = made_below(&v.name, v.parents, ctx)?;
            all.perms.extend(settings_of_new(&v.props)?);
            vec![need_on(&v.snapshot, &["clone"]), all]
        }
        ZfsVerb::Destroy(v) => {
            if v.clones || v.force {
                return Err(denied("destroy", &v.name));
            }
            // The other destroyed datasets are known only after the lookup: see [`may_destroy`].
            let perms: &[&str] = if v.name.contains('#') { &["destroy"] } else { &[] };
            vec![need(&v.name, perms)]
        }
        ZfsVerb::Snapshot(v) => {
            let perms: &[&str] = if v.props.is_empty() { &["snapshot"] } else { &["snapshot", "userprop"] };
            let mut all = Vec::new();
            for name in &v.names {
                all.extend(below(name, v.recurse, perms, ctx)?);
            }
            all
        }
        ZfsVerb::Promote(v) => promoted(&v.name, ctx)?,
        ZfsVerb::Rename(v) if v.force => return Err(denied("rename", &v.old)),
        ZfsVerb::Rename(v) if v.old.contains('@') => renamed_snapshot(&v.old, v.recurse, ctx)?,
        ZfsVerb::Rename(v) => renamed(&v.old, &v.new, v.parents, ctx)?,
        ZfsVerb::Rollback(v) => {
            if v.force {
                return Err(denied("rollback", &v.snapshot));
            }
            // The lookup decides which datasets are destroyed: see [`may_destroy`].
            vec![need(&v.snapshot, &["rollback"])]
        }
        ZfsVerb::Set(v) => {
            let (words, names): (Vec<_>, Vec<_>) =
                v.words.iter().cloned().partition(|word| word.contains('='));
            let perms = settings(&words)?;
            names.iter().map(|name| Need { perms: perms.clone(), ..need_on(name, &[]) }).collect()
        }
        ZfsVerb::Inherit(v) => inherited(&v.property, &v.names, v.recurse, ctx)?,
        ZfsVerb::Hold(v) => tagged(&v.names, v.recurse, "hold", ctx)?,
        ZfsVerb::Release(v) => tagged(&v.names, v.recurse, "release", ctx)?,
        ZfsVerb::Bookmark(v) => {
            // The permission counts on the dataset that gets the bookmark, not on the source's.
            vec![need(&v.names()?.1, &["bookmark"])]
        }
        ZfsVerb::Send(v) => sent(v, ctx)?,
        ZfsVerb::Allow(v) => allowed(v)?,
        _ => return Err(refused),
    })
}

fn inherited(property: &str, names: &[String], recurse: bool, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    let perm = setting(property)?;
    let mut all = Vec::new();
    for name in names {
        let on_snapshot = name.contains('@');
        let below = below(name, recurse, &[&perm], ctx)?.into_iter();
        all.extend(below.map(|need| Need { on_snapshot, ..need }));
    }
    Ok(all)
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

/// Delegating permissions requires `allow` and the delegated permissions themselves. Only root can delegate `allow`.
#[doc(alias = "dsl_deleg_can_allow")]
fn allowed(v: &crate::zfs::Allow) -> Result<Vec<Need>, Failure> {
    let Some((name, words)) = v.words.split_last() else { return Ok(Vec::new()) };
    let given = words.last().map(|perms| perms.split(',').collect::<Vec<_>>()).unwrap_or_default();
    if v.options.set.is_some() || given.iter().any(|perm| *perm == "allow" || perm.starts_with('@')) {
        return Err(denied("set permissions on", name));
    }
    let mut all = need(name, &given);
    all.perms.push("allow".to_owned());
    Ok(vec![all])
}

/// A raw stream of encrypted data reveals only sizes, so other permissions are enough for it.
#[doc(alias = "zfs_secpolicy_send_impl")]
fn sent(v: &crate::zfs::send::Send, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    let names = v.names();
    let Some(name) = names.first() else { return Ok(Vec::new()) };
    let mut all = below(name, v.options.replicate, &["send"], ctx)?;
    all.iter_mut().for_each(|need| need.on_snapshot = name.contains('@'));
    if !v.options.raw {
        return Ok(all);
    }
    for need in &mut all {
        need.instead.push("send:raw".to_owned());
        let target = Target::of(&need.dataset, ctx)?;
        let dir = target.dir()?;
        let _quiet = target.pool.quiet();
        if target.view.dsl.keys.root_of(&dir)?.is_some() {
            need.instead.push("send:encrypted".to_owned());
        }
    }
    Ok(all)
}

fn tagged(names: &[String], recurse: bool, perm: &str, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    let mut all = Vec::new();
    for name in names {
        all.extend(below(name, recurse, &[perm], ctx)?);
    }
    Ok(all)
}

/// The same permissions on a dataset, and with `recurse` on all datasets below.
fn below(name: &str, recurse: bool, perms: &[&str], ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    let top = need(name, perms);
    if !recurse {
        return Ok(vec![top]);
    }
    let tree = Target::of(&top.dataset, ctx)?.tree()?;
    Ok(tree.into_iter().map(|dir| need(&dir.name, perms)).collect())
}

/// The permissions that creating a dataset requires on the nearest existing ancestor.
fn made_below(name: &str, parents: bool, ctx: &mut Ctx) -> Result<Need, Failure> {
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
fn unmounted(action: &str, dataset: &str, ctx: &mut Ctx) -> Result<(), Failure> {
    let mounted = ctx.pool_of(dataset).is_some_and(|pool| pool.mounts.at(dataset).is_some());
    if mounted {
        Err(Failure::cannot(action, dataset, "it is mounted, and only root can unmount it"))
    } else {
        Ok(())
    }
}

fn promoted(name: &str, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
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
fn settings(words: &[String]) -> Result<Vec<String>, Failure> {
    let pairs = words.iter().flat_map(|word| word.split_once('='));
    pairs.map(|(name, _)| setting(name)).collect()
}

/// The permission that each `PROPERTY=VALUE` of a new dataset needs. It is not mounted, so `canmount` unmounts nothing.
fn settings_of_new(words: &[String]) -> Result<Vec<String>, Failure> {
    let names = words.iter().filter_map(|word| word.split_once('=')).map(|(name, _)| name);
    names.map(|name| if name == "canmount" { Ok(name.to_owned()) } else { setting(name) }).collect()
}

/// The permission that a property needs.
fn setting(name: &str) -> Result<String, Failure> {
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
