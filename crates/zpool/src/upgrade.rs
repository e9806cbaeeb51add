//! `zpool upgrade`: lists versions and features, and the pools that lack some, and upgrades pools.

use std::io::Write;
use std::sync::Arc;

use clap::Args;
use clikit::compatibility::compatible;
use clikit::ctx::Ctx;
use clikit::refused::quoted;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use zcommon::features::{FEATURES, Feature, by_upgrade};
use zcommon::version::{SPA_VERSION_FEATURES, SPA_VERSIONS};

use super::simple::named_or_all;

/// Enable the features that a pool lacks.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// Upgrade all pools.
    #[arg(short = 'a')]
    pub all: bool,
    /// List the supported versions and features.
    #[arg(short = 'v')]
    pub list: bool,
    /// Upgrade to this version, not to features.
    #[arg(short = 'V', value_name = "VERSION")]
    pub version: Option<String>,
    /// Pools.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

impl Verb for Upgrade {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let version = self.version.as_deref().map(version_of).transpose()?;
        let named_some = !self.pools.is_empty();
        match () {
            () if self.list && (self.all || named_some || version.is_some()) => {
                return Err(Failure::usage("-v option is incompatible with other arguments"));
            }
            () if self.all && named_some => {
                return Err(Failure::usage("-a option should not be used along with a pool name"));
            }
            () if version.is_some() && !self.all && !named_some => {
                return Err(Failure::usage("-V option is incompatible with other arguments"));
            }
            () => {}
        }
        // A missing pool is reported first.
        let pools = named_or_all(&self.pools, ctx)?;
        writeln!(ctx.out, "This system supports ZFS pool feature flags.\n")?;
        let version = version.unwrap_or(SPA_VERSION_FEATURES);
        match () {
            () if self.list => list_all(ctx),
            () if self.all => all(version, ctx),
            () if named_some => pools.each(ctx, |pool, ctx| one(pool, version, ctx)),
            () => report(ctx),
        }
    }
}

fn version_of(word: &str) -> Result<u64, Failure> {
    let version = word.parse().ok().filter(|version| engine::spa::is_version(*version));
    version.ok_or_else(|| Failure::usage(format!("invalid version '{word}'")))
}

fn current(pool: &Imported) -> Result<u64, Failure> {
    Ok(pool.config().u64("version").unwrap_or(pool.view()?.version()))
}

/// The features that a pool could have and has not: its property `compatibility` may forbid some.
fn lacking(pool: &Imported) -> Result<Vec<Feature>, Failure> {
    let view = pool.view()?;
    let allowed = view.config.str("compatibility").map(compatible).transpose().map_err(Failure::failed)?;
    let lacks = |f: &Feature| {
        view.features.count(f.info().guid).is_none() && allowed.as_ref().is_none_or(|all| all.contains(f))
    };
    Ok(FEATURES.iter().copied().filter(lacks).collect())
}

/// The features of [`lacking`] that an upgrade enables.
fn missing(pool: &Imported) -> Result<Vec<Feature>, Failure> {
    let enabled = by_upgrade();
    Ok(lacking(pool)?.into_iter().filter(|feature| enabled.contains(feature)).collect())
}

/// Every pool that lacks something.
#[doc(alias = "upgrade_cb")]
fn all(version: u64, ctx: &mut Ctx) -> Outcome {
    let mut done = false;
    let pools = ctx.all_pools();
    let exit = clikit::verb::each(&pools, ctx, |pool, ctx| {
        let older = current(pool)? < version;
        if older || (version == SPA_VERSION_FEATURES && !missing(pool)?.is_empty()) {
            done = true;
            one(pool, version, ctx)?;
        }
        Ok(())
    })?;
    if !done && exit == Exit::OK {
        match version {
            SPA_VERSION_FEATURES => writeln!(
                ctx.out,
                "All pools are already formatted using feature flags.\n\nEvery feature flags pool already has all \
                 supported and requested features enabled."
            )?,
            _ => writeln!(ctx.out, "All pools are already formatted with version {version} or higher.")?,
        }
    }
    Ok(exit)
}

#[doc(alias = "upgrade_one")]
fn one(pool: &Arc<Imported>, version: u64, ctx: &mut Ctx) -> Result<(), Failure> {
    let (name, old) = (pool.name(), current(pool)?);
    if old > version {
        writeln!(ctx.out, "Pool '{name}' is already formatted using more current version '{old}'.\n")?;
        return Ok(());
    }
    if old == version && version != SPA_VERSION_FEATURES {
        writeln!(ctx.out, "Pool '{name}' is already formatted using version {version}.\n")?;
        return Ok(());
    }
    let cannot = |e: engine::Error| Failure::cannot("upgrade", &name, e.what());
    if ctx.is_delegated() {
        let lacks = version == SPA_VERSION_FEATURES && !missing(pool)?.is_empty();
        match () {
            () if old != version => return Err(quoted("upgrade", &name)),
            () if lacks => return Err(quoted("set property for", &name)),
            () => return all_enabled(&name, ctx),
        }
    }
    let spa = pool.spa().map_err(cannot)?;
    if old != version {
        if pool.config().str("compatibility") == Some("legacy") {
            let what = "Upgrade not performed because 'compatibility' property set to 'legacy'.";
            return Err(Failure::failed(what));
        }
        spa.props().upgrade(version).map_err(cannot)?;
        match version {
            SPA_VERSION_FEATURES => {
                writeln!(ctx.out, "Successfully upgraded '{name}' from version {old} to feature flags.")?;
            }
            _ => {
                writeln!(ctx.out, "Successfully upgraded '{name}' from version {old} to version {version}.")?;
            }
        }
    }
    let missing = if version == SPA_VERSION_FEATURES { missing(pool)? } else { Vec::new() };
    if !missing.is_empty() {
        spa.props().enable_features(missing.clone()).map_err(cannot)?;
        writeln!(ctx.out, "Enabled the following features on '{name}':")?;
        for feature in &missing {
            writeln!(ctx.out, "  {}", feature.info().name)?;
        }
    }
    if missing.is_empty() && old == SPA_VERSION_FEATURES {
        return all_enabled(&name, ctx);
    }
    writeln!(ctx.out)?;
    ctx.registry()?.note(pool);
    ctx.log(pool)
}

fn all_enabled(name: &str, ctx: &mut Ctx) -> Result<(), Failure> {
    Ok(writeln!(ctx.out, "Pool '{name}' already has all supported and requested features enabled.")?)
}

fn list_all(ctx: &mut Ctx) -> Outcome {
    writeln!(ctx.out, "The following features are supported:\n")?;
    writeln!(ctx.out, "FEAT DESCRIPTION")?;
    writeln!(ctx.out, "-------------------------------------------------------------")?;
    for feature in FEATURES {
        let info = feature.info();
        let note = if info.read_only_compatible() { " (read-only compatible)" } else { "" };
        writeln!(ctx.out, "{:<37}{note}\n     {}", info.name, info.description)?;
    }
    writeln!(ctx.out, "\nThe following legacy versions are also supported:\n")?;
    writeln!(ctx.out, "VER  DESCRIPTION\n---  --------------------------------------------------------")?;
    for row in SPA_VERSIONS.iter().filter(|row| row.version != SPA_VERSION_FEATURES) {
        writeln!(ctx.out, " {:<3} {}", row.version, row.description)?;
    }
    writeln!(ctx.out, "\nFor more information on a particular version, including supported releases,")?;
    writeln!(ctx.out, "see the ZFS Administration Guide.\n")?;
    Ok(Exit::OK)
}

const OLDER: &str = "The following pools are formatted with legacy version numbers and can
be upgraded to use feature flags.  After being upgraded, these pools
will no longer be accessible by software that does not support feature
flags.

Note that setting a pool's 'compatibility' feature to 'legacy' will
inhibit upgrades.

VER  POOL
---  ------------";

const LACKING: &str = "Some supported features are not enabled on the following pools. Once a
feature is enabled the pool may become incompatible with software
that does not support the feature. See zpool-features(7) for details.

Note that the pool 'compatibility' feature can be used to inhibit
feature upgrades.

Features marked with (*) are not applied automatically on upgrade, and
must be applied explicitly with zpool-set(7).

POOL  FEATURE
---------------";

/// Which pools are old, and which lack features.
#[doc(alias("upgrade_list_older_cb", "upgrade_list_disabled_cb"))]
fn report(ctx: &mut Ctx) -> Outcome {
    let (mut older, mut lines) = (Vec::new(), Vec::new());
    let enabled = by_upgrade();
    for pool in ctx.all_pools() {
        let (name, version) = (pool.name(), current(&pool)?);
        if version < SPA_VERSION_FEATURES {
            older.push(format!("{version:>2}   {name}"));
            continue;
        }
        let lacking = lacking(&pool)?;
        if !lacking.is_empty() {
            lines.push(name);
            let mark = |feature: &Feature| if enabled.contains(feature) { "" } else { "(*)" };
            lines.extend(lacking.iter().map(|one| format!("      {}{}", one.info().name, mark(one))));
        }
    }
    if older.is_empty() {
        writeln!(ctx.out, "All pools are formatted using feature flags.\n")?;
    } else {
        let hint = "\nUse 'zpool upgrade -v' for a list of available legacy versions.";
        writeln!(ctx.out, "{OLDER}\n{}\n{hint}", older.join("\n"))?;
    }
    if lines.is_empty() {
        writeln!(ctx.out, "Every feature flags pool has all supported and requested features enabled.")?;
    } else {
        writeln!(ctx.out, "\n{LACKING}\n{}\n", lines.join("\n"))?;
    }
    Ok(Exit::OK)
}
