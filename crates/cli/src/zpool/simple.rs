//! Verbs of `zpool` that are one call: `sync`, `freeze`, `reguid`.

use std::sync::Arc;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
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
            crate::zfs::mount::mount_imported(&pool, &registry).iter().for_each(|why| ctx.warn(why));
            drop(pool);
            named(name, ctx)
        }
    }
}

/// These pools; all that are imported, without any.
pub(super) fn named_or_all(names: &[String], ctx: &mut Ctx) -> Result<Vec<Arc<Imported>>, Failure> {
    match names.is_empty() {
        true => Ok(ctx.all_pools()),
        false => names.iter().map(|name| named_or_retried(name, ctx)).collect(),
    }
}

impl Verb for Sync {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let pools = named_or_all(&self.pools, ctx)?;
        let mut exit = Exit::OK;
        for pool in pools {
            if let Err(e) = pool.spa().and_then(|spa| spa.sync_deferred()) {
                ctx.warn(format!("sync '{}' failed: {}", pool.name(), e.what()));
                exit = Exit::FAILED;
            }
        }
        Ok(exit)
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
