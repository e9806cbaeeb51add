//! `zfs inherit`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::Dir;
use engine::dsl::write::props::SettingSource;
use zcommon::props::{DatasetTypes, PropAttr, PropName, ZfsProp};
use zpl::write::QuotaKind;

use super::quota;
use super::remount::{mounted_followers, mounted_heads, unmounted, waiting_followers, with_moved};
use super::set::remount;

/// Clear properties of datasets, so that they inherit them.
#[derive(Debug, Args)]
pub struct Inherit {
    /// Clear the property of all descendants, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Revert to the received value.
    #[arg(short = 'S')]
    pub received: bool,
    /// The property.
    pub property: String,
    /// Datasets.
    #[arg(value_name = "DATASET", required = true)]
    pub names: Vec<String>,
}

impl Verb for Inherit {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let prop = self.name()?;
        let mut exit = Exit::OK;
        for name in &self.names {
            match self.one(&prop, name, ctx) {
                Ok(code) => exit = exit.worse(code),
                Err(failure) => {
                    ctx.warn(failure.message().unwrap_or_default());
                    exit = Exit::FAILED;
                }
            }
        }
        Ok(exit)
    }
}

impl Inherit {
    /// The property's name, if it can be inherited at all.
    fn name(&self) -> Result<String, Failure> {
        match PropName::parse(&self.property) {
            Some(PropName::User(name)) => Ok(name),
            Some(PropName::Native(prop)) => self.native(prop),
            _ => Err(Failure::usage(format!("invalid property '{}'", self.property))),
        }
    }

    fn native(&self, prop: ZfsProp) -> Result<String, Failure> {
        let (info, name) = (prop.info(), prop.name());
        if matches!(info.attr, PropAttr::ReadOnly | PropAttr::OneTime | PropAttr::OneTimeDefault) {
            return Err(Failure::failed(format!("{name} property is read-only")));
        }
        if self.received && matches!(prop, ZfsProp::Volsize | ZfsProp::Version) {
            return Err(Failure::failed(format!("'{name}' property cannot be reverted to a received value")));
        }
        if info.attr == PropAttr::Inherit || self.received {
            return Ok(name.to_owned());
        }
        let lead = format!("'{name}' property cannot be inherited");
        let hint = match prop {
            ZfsProp::Quota | ZfsProp::Refquota | ZfsProp::Reservation | ZfsProp::Refreservation => format!(
                "\nuse 'zfs set {name}=none' to clear\nuse 'zfs inherit -S {name}' to revert to received value"
            ),
            _ => String::new(),
        };
        Err(Failure::failed(lead + &hint))
    }

    fn one(&self, prop: &str, name: &str, ctx: &mut Ctx) -> Outcome {
        let target = Target::of(name, ctx)?;
        let types = target.types()?;
        let cannot = |what: String| Failure::failed(format!("cannot inherit {prop} for '{name}': {what}"));
        if let Some(native) = ZfsProp::from_name(prop)
            && !self.recurse
            && !native.info().types.intersects(types)
        {
            return Err(cannot("property doesn't apply to datasets of this type".to_owned()));
        }
        let names = self.datasets(prop, &target, types)?;
        if let Some(kind) = QuotaKind::of_default(prop) {
            for name in names {
                quota::set_default(&Target { name, ..target.clone() }, kind, 0).map_err(cannot)?;
            }
            ctx.log(&target.pool)?;
            return Ok(Exit::OK);
        }
        let source = if self.received { SettingSource::None } else { SettingSource::Inherited };
        let (mounted, waiting) = self.moved(prop, &target, &names)?;
        let word = prop.to_owned();
        let (refused, failures) = with_moved(&target, &mounted, &waiting, ctx, |ctx| {
            let done = ctx.change(&target.pool, move |tasks, _| match names.as_slice() {
                [only] => tasks.set(only, &[(word.as_str(), None)], source).map(|()| Vec::new()),
                _ => tasks.set_each(&names, &[(word.as_str(), None)], source),
            });
            done.map_err(|e| cannot(why(&e)))
        })?;
        for (name, e) in &refused {
            ctx.warn(format!("cannot inherit {prop} for '{name}': {}", why(e)));
        }
        let exit = remount(&target, &[prop], failures, ctx);
        Ok(if refused.is_empty() { exit } else { Exit::FAILED })
    }

    /// The datasets that are changed: with -r all at and below the target that can have the property, and their snapshots that
    /// have a setting of it.
    #[doc(alias = "inherit_recurse_cb")]
    fn datasets(&self, prop: &str, target: &Target, types: DatasetTypes) -> Result<Vec<String>, Failure> {
        if !self.recurse || types == DatasetTypes::SNAPSHOT {
            return Ok(vec![target.name.clone()]);
        }
        let native = ZfsProp::from_name(prop);
        let fits = |types: DatasetTypes| native.is_none_or(|native| native.info().types.intersects(types));
        let fits_all = fits(DatasetTypes::FILESYSTEM) && fits(DatasetTypes::VOLUME);
        let mut names = Vec::new();
        for dir in target.tree()? {
            let one = Target { name: dir.name.clone(), ..target.clone() };
            if fits_all || fits(one.types()?) {
                names.push(one.name);
            }
            if fits(DatasetTypes::SNAPSHOT) {
                let _quiet = target.pool.quiet();
                names.extend(snapshots_with(&dir, prop)?);
            }
        }
        Ok(names)
    }

    /// File systems that may move: mounted ones in the order in which they can be unmounted, and unmounted ones.
    fn moved(
        &self,
        prop: &str,
        target: &Target,
        names: &[String],
    ) -> Result<(Vec<String>, Vec<String>), Failure> {
        Ok(match (prop, self.recurse) {
            ("mountpoint", false) => (mounted_followers(target)?, waiting_followers(target)?),
            // Those with a mount point of their own follow, too.
            ("mountpoint", true) => (mounted_heads(target), unmounted(target, names.to_vec())),
            ("zoned", _) => (mounted_heads(target), Vec::new()),
            _ => (Vec::new(), Vec::new()),
        })
    }
}

/// The snapshots of a file system or volume that have a setting of a property.
fn snapshots_with(dir: &Dir, prop: &str) -> engine::Result<Vec<String>> {
    let entries = [prop.to_owned(), format!("{prop}$recvd"), format!("{prop}$inherit")];
    let mut names = Vec::new();
    for snapshot in dir.head()?.snapshots()? {
        let Some(zap) = snapshot.dsl.zap(snapshot.phys.props_obj)? else { continue };
        for entry in &entries {
            if zap.lookup(entry.as_bytes())?.is_some() {
                names.push(snapshot.name.clone());
                break;
            }
        }
    }
    Ok(names)
}
