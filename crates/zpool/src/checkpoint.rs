//! `zpool checkpoint`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::spa::WaitActivity;

use super::simple::named;
use super::wait::until_done;

/// Checkpoint the current state of a pool, to return to it with zpool import --rewind-to-checkpoint.
#[derive(Debug, Args)]
pub struct Checkpoint {
    /// Discard the checkpoint.
    #[arg(short = 'd', long = "discard")]
    pub discard: bool,
    /// Wait until the checkpoint is discarded completely.
    #[arg(short = 'w', long = "wait")]
    pub wait: bool,
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

impl Verb for Checkpoint {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.wait && !self.discard {
            return Err(Failure::usage("--wait only valid when --discard also specified"));
        }
        let name = match self.pools.as_slice() {
            [] => return Err(Failure::usage("missing pool argument")),
            [name] => name,
            _ => return Err(Failure::usage("too many arguments")),
        };
        if name.contains('/') {
            return Err(Failure::failed(format!(
                "cannot open '{name}': invalid character '/' in pool name\n'zpool checkpoint' doesn't work on datasets. To \
                 save the state of a dataset from a specific point in time please use 'zfs snapshot'"
            )));
        }
        let pool = named(name, ctx)?;
        let what = if self.discard { "discard checkpoint in" } else { "checkpoint" };
        let cannot = |e: engine::Error| Failure::cannot(what, name, e.what());
        let spa = pool.spa().map_err(cannot)?;
        match self.discard {
            true => spa.checkpoint().discard(),
            false => spa.checkpoint().take(),
        }
        .map_err(cannot)?;
        ctx.log(&pool)?;
        drop(pool);
        if self.wait {
            until_done(name, ctx, WaitActivity::Discard)?;
        }
        Ok(Exit::OK)
    }
}
