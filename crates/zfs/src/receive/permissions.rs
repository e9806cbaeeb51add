//! Permissions of `zfs receive`.
//!
//! The stream decides which datasets are written: with `-d` and `-e` it completes the name on the command line, a package
//! names any number of datasets, and a guid selects a renamed dataset or the origin of a clone. So permissions are checked
//! twice: [`needs`] before anything of the stream is read, and [`may_receive`] for each dataset when its name is known.

use std::collections::BTreeSet;

use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::Failure;
use daemon::access::{DelegatedUser, at_creation, grant_at_creation, permissions};

use super::Receive;
use crate::delegated::{Need, below, need, need_on, setting, settings, settings_of_new, unmounted};

/// The permissions of a receive that are known before its stream is read. The datasets of the stream are checked
/// one by one when their names are known: see [`may_receive`].
pub fn needs(verb: &Receive, delegated: &DelegatedUser, ctx: &mut Ctx) -> Result<Vec<Need>, Failure> {
    let name = verb.name.split('@').next().unwrap_or_default();
    if verb.abort {
        return Ok(vec![need(name, &["destroy", "mount"])]);
    }
    if !verb.without_pool && !verb.last_part {
        return Ok(vec![receives(verb, name, delegated, ctx)?]);
    }
    // With -d and -e the stream names a dataset below. Without a permission on any of them nothing is read.
    for below in below(name, true, &[], ctx)? {
        let need = receives(verb, &below.dataset, delegated, ctx)?;
        if need.is_given(delegated, ctx)? {
            return Ok(Vec::new());
        }
    }
    Ok(vec![receives(verb, name, delegated, ctx)?])
}

/// The permissions that a receive into `dataset` requires: on it, or on its parent if it does not exist.
#[doc(alias = "zfs_secpolicy_recv")]
fn receives(
    verb: &Receive,
    dataset: &str,
    delegated: &DelegatedUser,
    ctx: &mut Ctx,
) -> Result<Need, Failure> {
    let exists = Target::of(dataset, ctx)?.exists();
    let parent = dataset.rsplit_once('/').map_or(dataset, |(parent, _)| parent);
    let name = if exists { dataset } else { parent };
    if exists && verb.force {
        unmounted("receive", name, ctx)?;
    }
    let mut all = need(name, &["mount", "create"]);
    let append = need(name, &["receive:append"]);
    let may_append = !verb.force && append.is_given(delegated, ctx)?;
    all.perms.push(if may_append { "receive:append" } else { "receive" }.to_owned());
    // The origin is no property: see [`may_receive`].
    let props: Vec<_> = verb.props.iter().filter(|word| !word.starts_with("origin=")).cloned().collect();
    all.perms.extend(if exists { settings(&props) } else { settings_of_new(&props) }?);
    for name in &verb.exclude {
        all.perms.push(setting(name)?);
    }
    Ok(all)
}

/// Whether the caller may receive a stream into `dataset`, which may be new, as a clone of the snapshot `origin` if
/// given. Returns true for the owner. The names come from the stream and from guids in it.
///
/// Differs from OpenZFS: a forged stream can name any snapshot of the pool as the origin of a clone, which then shows the
/// contents of the snapshot. So `clone`, `receive` or `receive:append` is required on the origin's dataset, too.
pub(crate) fn may_receive(
    verb: &Receive,
    dataset: &str,
    origin: Option<&str>,
    ctx: &mut Ctx,
) -> Result<bool, Failure> {
    let Some(delegated) = ctx.session()?.delegated.clone() else { return Ok(true) };
    if let Some(origin) = origin {
        let mut of_origin = need(origin, &["receive"]);
        of_origin.instead = vec!["receive:append".to_owned()];
        if !of_origin.is_given(&delegated, ctx)? && !need_on(origin, &["clone"]).is_given(&delegated, ctx)? {
            return Ok(false);
        }
    }
    let mut there = dataset;
    // With -d parents are created, which requires permissions on the nearest that exists.
    while !Target::of(there, ctx)?.exists() {
        let Some((parent, _)) = there.rsplit_once('/') else { break };
        if Target::of(parent, ctx)?.exists() {
            break;
        }
        there = parent;
    }
    let need = receives(verb, there, &delegated, ctx)?;
    need.is_given(&delegated, ctx)
}

/// The properties of a stream that the caller may set and clear.
#[derive(Debug, Clone)]
pub(crate) struct Settable(Option<BTreeSet<String>>);

impl Settable {
    /// Whether the property `name`, as a stream spells it, is among them.
    pub(crate) fn allows(&self, name: &str) -> bool {
        let Some(have) = &self.0 else { return true };
        setting(name).is_ok_and(|perm| have.contains(&perm))
    }
}

/// The properties of a stream that the caller may set and clear on `dataset`: all of them for the owner.
#[doc(alias = "zfs_check_settable")]
pub(crate) fn settable(dataset: &str, ctx: &mut Ctx) -> Result<Settable, Failure> {
    let Some(delegated) = ctx.session()?.delegated.clone() else { return Ok(Settable(None)) };
    let dataset = dataset.split('@').next().unwrap_or_default();
    let target = Target::of(dataset, ctx)?;
    target.dataset()?;
    let _quiet = target.pool.quiet();
    Ok(Settable(Some(permissions(&target.view, dataset, &delegated)?)))
}

/// Grants the create-time permissions to the receiver of a new dataset.
pub(crate) fn received(dataset: &str, ctx: &mut Ctx) -> Result<(), Failure> {
    let uid = ctx.session()?.caller.uid;
    let target = Target::of(dataset, ctx)?;
    let Some((parent, _)) = dataset.rsplit_once('/') else { return Ok(()) };
    let is_granted = {
        let _quiet = target.pool.quiet();
        !at_creation(&target.view, parent)?.is_empty()
    };
    if !is_granted || !target.exists() {
        return Ok(());
    }
    let name = dataset.to_owned();
    Ok(ctx.change(&target.pool, move |tasks, _| grant_at_creation(tasks, &name, uid))?)
}

/// Whether the caller may hold snapshots of `dataset`, as a package asks for. Returns true for the owner.
pub(crate) fn may_hold(dataset: &str, ctx: &mut Ctx) -> Result<bool, Failure> {
    match ctx.session()?.delegated.clone() {
        Some(delegated) => need(dataset, &["hold"]).is_given(&delegated, ctx),
        None => Ok(true),
    }
}

/// Whether the caller may change the key of `dataset`. Returns true for the owner.
#[doc(alias = "zfs_secpolicy_change_key")]
pub(crate) fn may_change_key(dataset: &str, ctx: &mut Ctx) -> Result<bool, Failure> {
    match ctx.session()?.delegated.clone() {
        Some(delegated) => need(dataset, &["change-key"]).is_given(&delegated, ctx),
        None => Ok(true),
    }
}
