//! `zpool set`.

use std::io::Write as _;

use clap::Args;
use clikit::compatibility::{compatible, load_or_tell};
use clikit::ctx::Ctx;
use clikit::settings::{PoolSetting, When, of_pool, of_vdev};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use engine::dsl::DatasetKind;
use engine::dsl::props::PropValue;
use zcommon::features::{FEATURES, Feature};
use zcommon::version::SPA_VERSION_BOOTFS;

use super::get_vdev;
use super::prop::PoolView;

/// Set a property of a pool, or of one of its vdevs.
#[derive(Debug, Args)]
pub struct Set {
    /// The property and its value.
    #[arg(value_name = "PROPERTY=VALUE")]
    pub setting: String,
    /// The pool.
    pub pool: String,
    /// A vdev of the pool.
    pub vdev: Option<String>,
}

impl Verb for Set {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let Some((name, value)) = self.setting.split_once('=') else {
            return Err(Failure::usage("missing value in property=value argument"));
        };
        let Some(pool) = ctx.pool(&self.pool) else {
            if ctx.is_coming(&self.pool) {
                return Err(ctx.no_pool(&self.pool));
            }
            ctx.warn(format_args!("cannot open '{}': is not a pool", self.pool));
            return Ok(Exit::EINVAL);
        };
        let cannot = |what: String| self.cannot(&what);
        if let Some(vdev) = &self.vdev {
            return self.of_vdev(vdev, (name, value), &pool, ctx);
        }
        if name == "compatibility" {
            load_or_tell(value, ctx)?;
        }
        let setting = of_pool(name, value, When::Later).map_err(cannot)?;
        pool.spa().map_err(|e| cannot(e.what().to_owned()))?;
        match setting {
            PoolSetting::Stored(name, value) => {
                if let ("compatibility", PropValue::Text(files)) = (name.as_str(), &value) {
                    self.warn_of_excess(files, &pool, ctx)?;
                }
                let value = self.stored(&name, value, &pool).map_err(cannot)?;
                ctx.change(&pool, move |tasks, spa| spa.props().set(&[(name, value)], tasks.at.tx))
                    .map_err(|e| cannot(e.what().to_owned()))?;
            }
            PoolSetting::Enable(feature) => {
                self.check_compatible(feature, &pool)?;
                let spa = pool.spa().map_err(|e| cannot(e.what().to_owned()))?;
                spa.props().enable_features(vec![feature]).map_err(|e| cannot(e.what().to_owned()))?;
                ctx.log(&pool)?;
            }
            PoolSetting::Cachefile(path) => {
                ctx.registry()?.set_cachefile(&pool, &path);
                ctx.log(&pool)?;
            }
            PoolSetting::Ashift(n) => {
                let value = PropValue::Number(n);
                ctx.change(&pool, move |tasks, spa| {
                    spa.props().set(&[("ashift".into(), value)], tasks.at.tx)
                })
                .map_err(|e| cannot(e.what().to_owned()))?;
            }
            PoolSetting::Version(version) => {
                let old = pool.config().u64("version").unwrap_or(0);
                if version < old {
                    return Err(cannot(format!("property 'version' number {version} is invalid.")));
                }
                let spa = pool.spa().map_err(|e| cannot(e.what().to_owned()))?;
                spa.props().upgrade(version).map_err(|e| cannot(e.what().to_owned()))?;
                ctx.log(&pool)?;
            }
            PoolSetting::NoEffect => writeln!(ctx.out, "Note: property '{name}' no longer has any effect")?,
            PoolSetting::Disable(_) | PoolSetting::Altroot(_) | PoolSetting::Readonly(_) => {
                return Err(cannot(format!("property '{name}' can't be set now")));
            }
        }
        ctx.registry()?.note(&pool);
        Ok(Exit::OK)
    }
}

impl Set {
    fn cannot(&self, what: &str) -> Failure {
        Failure::failed(format!("cannot set property for '{}': {what}", self.pool))
    }

    /// Refuses a feature that the pool's property `compatibility` excludes: enabling it cannot be undone.
    #[doc(alias = "set_pool_callback")]
    fn check_compatible(&self, feature: Feature, pool: &Imported) -> Result<(), Failure> {
        let files = pool.config().str("compatibility").unwrap_or("off").to_owned();
        let lead = format!("Error: cannot enable feature '{}' on pool '{}'", feature.info().name, self.pool);
        match compatible(&files) {
            Ok(allowed) if allowed.contains(&feature) => Ok(()),
            Ok(_) => Err(Failure::failed(format!(
                "{lead}\nas it is not specified in this pool's current compatibility set.\n\
                 Consider setting 'compatibility' to a less restrictive set, or to 'off'."
            ))),
            Err(_) => Err(Failure::failed(format!(
                "{lead}\nbecause the pool's 'compatibility' property cannot be parsed."
            ))),
        }
    }

    /// Warns when the pool has features that a compatibility set does not have.
    fn warn_of_excess(&self, files: &str, pool: &Imported, ctx: &mut Ctx) -> Result<(), Failure> {
        let allowed = compatible(files).map_err(|what| self.cannot(&what))?;
        let spa = pool.spa().map_err(|e| self.cannot(e.what()))?;
        let is_excess = |feature: &&Feature| spa.features.is_enabled(**feature) && !allowed.contains(feature);
        if FEATURES.iter().any(|feature| is_excess(&feature)) {
            ctx.warn(format_args!(
                "Warning: one or more features already enabled on pool '{}'\n\
                 are not present in this compatibility set.",
                self.pool
            ));
        }
        Ok(())
    }

    /// Sets a property of a vdev.
    #[doc(alias = "zpool_set_vdev_prop")]
    fn of_vdev(&self, vdev: &str, (name, value): (&str, &str), pool: &Imported, ctx: &mut Ctx) -> Outcome {
        let cannot = |what: String| {
            let pool = &self.pool;
            Failure::failed(format!("cannot set property {name} for {vdev} on {pool}: {what}"))
        };
        let (guid, setting) = {
            let (view, candidate) = (pool.view()?, pool.candidate());
            let view = PoolView::new(&view, &candidate, ctx);
            let found = get_vdev::all(&view).into_iter().find(|found| found.is_called(vdev));
            let Some(found) = found else {
                ctx.warn(format_args!("cannot find '{vdev}' in '{}': device not in pool", self.pool));
                return Ok(Exit::EINVAL);
            };
            let setting = of_vdev(name, value).map_err(cannot)?;
            let is_possible = match setting.0.as_str() {
                "autosit" => found.has_parity(),
                "sit_out" => found.may_sit_out(),
                _ => true,
            };
            if !is_possible {
                return Err(cannot("operation not supported on this type of vdev".to_owned()));
            }
            (found.node.guid, setting)
        };
        ctx.change(pool, move |tasks, spa| spa.disks().set_props(guid, &[setting], tasks.at.tx))
            .map_err(|e| cannot(e.what().to_owned()))?;
        ctx.registry()?.note(pool);
        Ok(Exit::OK)
    }

    /// `bootfs` is kept as a number.
    fn stored(&self, name: &str, value: PropValue, pool: &Imported) -> Result<PropValue, String> {
        let PropValue::Text(text) = &value else { return Ok(value) };
        if name != "bootfs" {
            return Ok(value);
        }
        if text.is_empty() {
            return Ok(PropValue::Number(0));
        }
        let bad = || format!("'{text}' is an invalid name");
        let view = pool.view().map_err(|e| e.to_string())?;
        if !text.starts_with(&format!("{}/", self.pool)) && *text != self.pool {
            return Err(bad());
        }
        if view.version() < SPA_VERSION_BOOTFS {
            return Err("pool must be upgraded to support 'bootfs' property".into());
        }
        let head = view.dsl.dataset(text).map_err(|_| bad())?;
        match head.kind().map_err(|e| e.to_string())? {
            DatasetKind::Filesystem => Ok(PropValue::Number(head.number)),
            _ => Err("operation not supported on this type of pool".into()),
        }
    }
}
