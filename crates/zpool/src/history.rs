//! `zpool history`: the operations on a pool.

use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::history::{HistoryFormat, record};
use clikit::source::PoolSource;
use clikit::users::Names;
use clikit::verb::{Exit, Outcome, Verb};
use engine::spa::Pool;
use engine::spa::history::history;

/// Print the command history of pools.
#[derive(Debug, Args)]
pub struct History {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// Print internally logged events, too.
    #[arg(short = 'i')]
    pub internal: bool,
    /// Print user, host and zone of each record.
    #[arg(short = 'l')]
    pub long: bool,
    /// Pools (default: all that are found).
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

impl Verb for History {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let format = HistoryFormat { internal: self.internal, long: self.long };
        let users = if self.long { Names::users() } else { Names::default() };
        self.source.each(&self.pools, ctx, |pool, _, ctx| print(pool, format, &users, ctx))
    }
}

fn print(pool: &Pool, format: HistoryFormat, users: &Names, ctx: &mut Ctx) -> Outcome {
    let history = history(pool)?;
    writeln!(ctx.out, "History for '{}':", pool.name)?;
    for rec in &history.records {
        if let Some(text) = record(rec, format, users) {
            ctx.out.write_all(text.as_bytes())?;
        }
    }
    writeln!(ctx.out)?;
    history.damage.iter().for_each(|e| ctx.warn(format!("{}: history: {e}", pool.name)));
    Ok(if history.damage.is_empty() { Exit::OK } else { Exit::FAILED })
}
