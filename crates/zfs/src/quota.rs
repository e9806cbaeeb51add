//! Quotas of users, groups and projects.

use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::settings::TOO_OLD;
use clikit::target::Target;
use clikit::users::Names;
use engine::dsl::props::PropValue;
use engine::env::Env;
use zcommon::props::UserQuotaProp;
use zpl::write::{FsWriter, Options, QuotaKind};

/// A quota: its kind, whose, how much.
pub type Quota = (UserQuotaProp, String, u64);

/// Parts quotas from properties.
pub fn split(settings: Vec<(String, PropValue)>) -> (Vec<Quota>, Vec<(String, PropValue)>) {
    let (mut quotas, mut others) = (Vec::new(), Vec::new());
    for (prop, value) in settings {
        match (UserQuotaProp::parse(&prop), value.number()) {
            (Some((kind, who)), Some(limit)) => quotas.push((kind, who.to_owned(), limit)),
            _ => others.push((prop, value)),
        }
    }
    (quotas, others)
}

/// The table of a quota, and the id in it.
///
/// # Errors
/// When no such user, group or project exists.
pub fn resolve(kind: UserQuotaProp, who: &str) -> Result<(QuotaKind, u64), String> {
    let (quota, names) = match kind {
        UserQuotaProp::UserQuota => (QuotaKind::User, Some(Names::users())),
        UserQuotaProp::GroupQuota => (QuotaKind::Group, Some(Names::groups())),
        UserQuotaProp::ProjectQuota => (QuotaKind::Project, None),
        UserQuotaProp::UserObjQuota => (QuotaKind::UserObjects, Some(Names::users())),
        UserQuotaProp::GroupObjQuota => (QuotaKind::GroupObjects, Some(Names::groups())),
        UserQuotaProp::ProjectObjQuota => (QuotaKind::ProjectObjects, None),
        _ => return Err("it can't be set".to_owned()),
    };
    let id = names.and_then(|names| names.id(who)).or_else(|| UserQuotaProp::id(who));
    let id = id.ok_or_else(|| format!("'{}{who}' has an invalid user/group name", kind.prefix()))?;
    // Higher numbers are those of Windows identities, which have no name here.
    let is_project = matches!(quota, QuotaKind::Project | QuotaKind::ProjectObjects);
    match u32::try_from(id) {
        Err(_) if !is_project => Err(format!("'{who}' is no id of a user or group")),
        _ => Ok((quota, id)),
    }
}

/// Refuses quotas of a new file system whose version has no accounts.
pub fn check(quotas: &[Quota], version: u64) -> Result<(), String> {
    match quotas.is_empty() || version >= zpl::VERSION_USERSPACE {
        true => Ok(()),
        false => Err(TOO_OLD.to_owned()),
    }
}

/// Sets a quota; 0: none.
pub fn set(target: &Target, kind: UserQuotaProp, who: &str, limit: u64, _: &mut Ctx) -> Result<(), String> {
    let (quota, id) = resolve(kind, who)?;
    change(target, |fs| fs.quotas().set(quota, id, limit))
}

/// Sets the quota of those without one of their own; 0: none.
pub fn set_default(target: &Target, kind: QuotaKind, limit: u64) -> Result<(), String> {
    change(target, |fs| fs.quotas().set_default(kind, limit))
}

fn change(target: &Target, work: impl FnOnce(&FsWriter) -> engine::Result<()>) -> Result<(), String> {
    let text = |e: engine::Error| e.what().to_owned();
    let spa = target.pool.spa().map_err(text)?;
    let dataset = target.dataset().map_err(|e| e.message().unwrap_or_default())?;
    let live = spa.datasets.open(&**spa, dataset.number).map_err(text)?;
    let env: &Env = &spa.pool.env;
    let txs = Arc::clone(spa);
    // Loaded without cleaning the delete queue: where it is mounted, removed files may still be open.
    let fs = FsWriter::load(&live.objset, txs, Arc::clone(&env.clock), Options::default(), env.guid());
    fs.and_then(|fs| work(&fs)).map_err(text)?;
    spa.sync().map_err(text)
}
