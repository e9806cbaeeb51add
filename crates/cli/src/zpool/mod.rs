//! `zpool`: one file a verb.

pub mod history;
mod import;

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::ctx::Ctx;
use crate::multicall;
use crate::unsupported::{ZPOOL_VERBS, refuse};
use crate::verb::{Outcome, Verb};

/// Pools: find, open, describe.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Zpool {
    /// What to do.
    #[command(subcommand)]
    pub verb: ZpoolVerb,
}

/// The verbs of `zpool`.
#[derive(Debug, Subcommand)]
pub enum ZpoolVerb {
    /// Print what was done to pools
    History(history::History),
    /// List pools that can be imported
    Import(import::Import),
    /// Print the version
    Version,
    /// A verb that has no module here.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

impl Verb for Zpool {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self.verb {
            ZpoolVerb::History(v) => v.run(ctx),
            ZpoolVerb::Import(v) => v.run(ctx),
            ZpoolVerb::Version => multicall::version(ctx),
            ZpoolVerb::Other(words) => refuse("zpool", ZPOOL_VERBS, &words),
        }
    }
}
