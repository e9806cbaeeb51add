//! `zpool reopen`: devices are measured again, and those that are back are used again.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Failure, Outcome, Verb};
use zcommon::vdev::VdevState;

use super::device::warn_of_later_states;
use super::simple::named_or_all;

/// Reopen all devices: uses devices that have returned, and detects those that have grown.
#[derive(Debug, Args)]
pub struct Reopen {
    /// Do not restart a scrub in progress (it is never restarted).
    #[arg(short = 'n')]
    pub keep_scrub: bool,
    /// Pools (default: all imported ones).
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

impl Verb for Reopen {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let mut named = named_or_all(&self.pools, ctx)?;
        named.pools.retain(|pool| !pool.is_read_only());
        named.each(ctx, |pool, ctx| {
            let cannot = |e: engine::Error| Failure::cannot("reopen", pool.name(), e.what());
            let spa = pool.spa().map_err(cannot)?;
            pool.validate().map_err(cannot)?;
            let tree = spa.pool.tree();
            let missing = tree.leaves().filter(|leaf| leaf.health().state == VdevState::CantOpen);
            let missing: Vec<u64> = missing.map(|leaf| leaf.guid).collect();
            let devices = missing.iter().map(|leaf| (*leaf, pool.reopen(*leaf))).collect();
            spa.disks().reopen(devices).map_err(cannot)?;
            warn_of_later_states(pool, &missing, ctx)?;
            ctx.registry()?.open_aux(pool);
            ctx.registry()?.note(pool);
            ctx.log(pool)
        })
    }
}
