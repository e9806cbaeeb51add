//! Verbs of `zpool` that are one call: `sync`, `freeze`, `reguid`.

use std::sync::Arc;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{self, Exit, Failure, Outcome, Verb};
use daemon::Imported;

pub(super) fn named(name: &str, ctx: &mut Ctx) -> Result<Arc<Imported>, Failure> {
    ctx.pool(name).ok_or_else(|| ctx.no_pool(name))
}

/// Write all changes to disk.
#[derive(Debug, Args)]
pub struct Sync {
    /// Write a txg even if nothing was changed.
    #[arg(short = 'f')]
    pub force: bool,
    /// Pools (default: all imported ones).
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

/// As [`named`]; a pool of the daemon's cache file that could not be imported is tried again: its devices may be back.
pub(super) fn named_or_retried(name: &str, ctx: &mut Ctx) -> Result<Arc<Imported>, Failure> {
    if let Some(pool) = ctx.pool(name) {
        return Ok(pool);
    }
    let registry = ctx.registry()?;
    match registry.retry(name) {
        None => named(name, ctx),
        Some(Err(e)) => Err(Failure::cannot("open", name, e)),
        Some(Ok(pool)) => {
            zfs::mount::mount_imported(&pool, &registry).iter().for_each(|why| ctx.warn(why));
            drop(pool);
            named(name, ctx)
        }
    }
}

/// The pools of a command that takes several.
#[derive(Debug)]
pub(super) struct Named {
    /// The pools, each once.
    pub pools: Vec<Arc<Imported>>,
    /// A failure if a name has no pool.
    pub exit: Exit,
}

/// These pools, or all that are imported if no name is given. A name without a pool is reported; it does not keep the command
/// from the other pools.
#[doc(alias = "for_each_pool")]
pub(super) fn named_or_all(names: &[String], ctx: &mut Ctx) -> Result<Named, Failure> {
    if names.is_empty() {
        return Ok(Named { pools: ctx.all_pools(), exit: Exit::OK });
    }
    let mut pools: Vec<Arc<Imported>> = Vec::new();
    let exit = verb::each(names, ctx, |name, ctx| {
        let pool = named_or_retried(name, ctx)?;
        if !pools.iter().any(|known| known.guid() == pool.guid()) {
            pools.push(pool);
        }
        Ok(())
    })?;
    pools.sort_by_key(|pool| pool.name());
    Ok(Named { pools, exit })
}

impl Named {
    /// Calls a function on each pool. A failed pool is reported, and the others are processed.
    pub(super) fn each(
        &self,
        ctx: &mut Ctx,
        work: impl FnMut(&Arc<Imported>, &mut Ctx) -> Result<(), Failure>,
    ) -> Outcome {
        Ok(verb::each(&self.pools, ctx, work)?.worse(self.exit))
    }
}

impl Verb for Sync {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        named_or_all(&self.pools, ctx)?.each(ctx, |pool, _| {
            let failed = |e: engine::Error| format!("sync '{}' failed: {}", pool.name(), e.what());
            pool.spa().and_then(|spa| spa.sync_deferred()).map_err(failed).map_err(Failure::failed)
        })
    }
}

/// Keep the state on disk until the next import: only intent logs are written, for tests of their replay.
#[derive(Debug, Args)]
pub struct Freeze {
    /// The pool.
    pub pool: String,
}

impl Verb for Freeze {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let pool = named(&self.pool, ctx)?;
        let cannot = |e: engine::Error| Failure::cannot("freeze", &self.pool, e.what());
        pool.spa().and_then(|spa| spa.freeze()).map_err(cannot)?;
        Ok(Exit::OK)
    }
}

/// Give a pool a new guid.
#[derive(Debug, Args)]
pub struct Reguid {
    /// The guid.
    #[arg(short = 'g', value_name = "GUID", allow_hyphen_values = true)]
    pub guid: Option<String>,
    /// The pool.
    pub pool: String,
}

impl Verb for Reguid {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let guid = self.guid.as_deref().map(guid_of).transpose()?;
        let pool = named(&self.pool, ctx)?;
        if ctx.pools().iter().any(|other| Some(other.guid()) == guid) {
            let why = "a pool with that guid already exists";
            return Err(Failure::cannot("reguid", &self.pool, why).as_minus_one());
        }
        let cannot = |e: engine::Error| Failure::cannot("reguid", &self.pool, e.what()).as_minus_one();
        pool.spa().and_then(|spa| spa.reguid(guid)).map_err(cannot)?;
        pool.look_again();
        ctx.registry()?.note(&pool);
        ctx.log(&pool)?;
        Ok(Exit::OK)
    }
}

/// The guid of a user's word, as `strtoull` reads it; 0 is none.
fn guid_of(word: &str) -> Result<u64, Failure> {
    let (digits, negative) = word.strip_prefix('-').map_or((word, false), |digits| (digits, true));
    let number = digits.trim_start_matches('+').parse::<u64>().ok();
    let number = number.map(|n| if negative { n.wrapping_neg() } else { n }).filter(|n| *n != 0);
    number.ok_or_else(|| Failure::usage(format!("invalid GUID: {word}")))
}
