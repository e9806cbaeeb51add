//! `zpool export`.

use std::collections::HashSet;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use zfs::remount::Left;

use super::destroy::gone;

/// Export pools, so that other systems can import them.
#[derive(Debug, Args)]
pub struct Export {
    /// Export all pools.
    #[arg(short = 'a')]
    pub all: bool,
    /// Forcibly unmount active file systems.
    #[arg(short = 'f')]
    pub force: bool,
    /// Leave labels and the cache file as after a crash of the machine.
    #[arg(short = 'F', hide = true)]
    pub hard: bool,
    /// Pools.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

impl Verb for Export {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.all && !self.pools.is_empty() {
            return Err(Failure::usage("too many arguments"));
        }
        if !self.all && self.pools.is_empty() {
            return Err(Failure::usage("missing pool argument"));
        }
        let names: Vec<String> = match self.all {
            true => ctx.all_pools().iter().map(|pool| pool.name()).collect(),
            false => {
                let mut seen = HashSet::new();
                self.pools.iter().filter(|name| seen.insert(*name)).cloned().collect()
            }
        };
        let mut exit = Exit::OK;
        for wanted in names {
            let done = self.one(&wanted, ctx);
            if let Err(failure) = done {
                ctx.warn(failure.message().unwrap_or_default());
                exit = Exit::FAILED;
            }
        }
        Ok(exit)
    }
}

impl Export {
    fn one(&self, wanted: &str, ctx: &mut Ctx) -> Result<(), Failure> {
        let Some(pool) = ctx.pool(wanted) else {
            return match ctx.registry()?.forget_failed(wanted) {
                Ok(true) => Ok(()),
                Ok(false) => Err(ctx.no_pool(wanted)),
                Err(e) => Err(Failure::cannot("export", wanted, e)),
            };
        };
        let name = pool.name();
        if !pool.is_read_only() {
            // A suspended pool can't record its history, and must be exported all the same.
            ctx.log(&pool).or_else(|e| if self.force { Ok(()) } else { Err(e) })?;
        }
        let is_injected = pool.spa().is_ok_and(|spa| !spa.injections().list().is_empty());
        if is_injected {
            return Err(Failure::cannot("export", &name, "pool is busy"));
        }
        if !self.force && !self.hard && pool.uses_shared_spare(&*ctx.registry()?) {
            let why = format!(
                "use '-f' to override the following errors:\n'{name}' has an active shared spare which could be used \
                 by other pools once '{name}' is exported."
            );
            return Err(Failure::cannot("export", &name, why));
        }
        let left = Left::by_pool(&pool);
        drop(pool);
        ctx.release();
        let registry = ctx.registry()?;
        let done =
            if self.hard { registry.leave(&name, self.force) } else { registry.export(&name, self.force) };
        done.map_err(|e| gone("export", &name, &e))?;
        left.remove();
        Ok(())
    }
}
