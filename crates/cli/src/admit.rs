//! Commands of users other than the pools' owner: enforces the permissions of `zfs allow`.
//!
//! The daemon serves them on a socket of their own. Every user may view pools, unless `aquifer_private_pools` is
//! set; refusals use OpenZFS's words ([`crate::refusal`]). Before such a command runs, [`admit`] derives from its
//! parsed form the permissions it needs on each dataset, and checks them. A command that is not listed here is
//! refused.
//!
//! Differs from OpenZFS: an operation that would do as root more than the user could do (mounts, keys in
//! files, clones of others' snapshots destroyed with `-R`, devices) stays the owner's; so do `unallow`,
//! streams, and delegating sets.

use clikit::ctx::Ctx;
use clikit::session::Home;
use clikit::target::Target;
use clikit::verb::Failure;
use daemon::access::DelegatedUser;
use zfs::ZfsVerb;
use zfs::delegated::{
    Need, are_given, are_kept_out, below, denied, destroys, made_below, need, need_on, promoted, renames,
    setting, settings, settings_of_new,
};
use zfs::receive::permissions;
use zpool::ZpoolVerb;

use crate::asked::Asked;
use crate::command::Command;
use crate::refusal::refusal;

/// Admits a command as far as its effect is known before it runs; otherwise returns the refusal.
pub(crate) fn admit(command: &mut Command, delegated: &DelegatedUser, ctx: &mut Ctx) -> Result<(), Failure> {
    if ctx.home == Home::Here {
        return Err(refusal(command));
    }
    let private = are_kept_out(&*ctx.registry()?);
    if looks(command) || refuses_itself(command) {
        return if private { Err(Failure::failed("permission denied")) } else { Ok(()) };
    }
    match (is_given(command, delegated, ctx), private) {
        (Ok(true), _) => Ok(()),
        (Ok(false), _) => Err(refusal(command)),
        // A user without permission to view pools must not learn which names exist.
        (Err(_), true) => Err(refusal(command)),
        (Err(why), false) => Err(why),
    }
}

/// Whether the permissions that a command needs are granted, as far as they are known before it runs.
fn is_given(command: &mut Command, delegated: &DelegatedUser, ctx: &mut Ctx) -> Result<bool, Failure> {
    let needs = match command {
        Command::Zfs(_) => of_zfs(command, ctx)?,
        Command::Zpool(_) => {
            exists(command, ctx)?;
            return Ok(false);
        }
        _ => return Ok(false),
    };
    are_given(needs, delegated, ctx)
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
        Some(name) if ctx.pool(name).is_none() => Err(ctx.no_pool(name)),
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
            let Some(delegated) = ctx.session()?.delegated.clone() else { return Err(refused) };
            permissions::needs(v, &delegated, ctx)?
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
        ZfsVerb::Destroy(v) => destroys(&v.name, (v.clones, v.force), ctx)?,
        ZfsVerb::Snapshot(v) => {
            let perms: &[&str] = if v.props.is_empty() { &["snapshot"] } else { &["snapshot", "userprop"] };
            let mut all = Vec::new();
            for name in &v.names {
                all.extend(below(name, v.recurse, perms, ctx)?);
            }
            all
        }
        ZfsVerb::Promote(v) => promoted(&v.name, ctx)?,
        ZfsVerb::Rename(v) => renames(&v.old, &v.new, (v.parents, v.recurse, v.force), ctx)?,
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
            let perms = settings(&words).map_err(Failure::as_minus_one)?;
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

/// Delegating permissions requires `allow` and the delegated permissions themselves. Only root can delegate `allow`.
#[doc(alias = "dsl_deleg_can_allow")]
fn allowed(v: &zfs::Allow) -> Result<Vec<Need>, Failure> {
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
fn sent(v: &zfs::send::Send, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
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
