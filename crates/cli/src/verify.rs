//! `aquifer verify`: read and check every block.

use clap::Args;

use crate::ctx::Ctx;
use crate::source::PoolSource;
use crate::verb::{Failure, Outcome, Verb};

/// Read and check every block of a pool.
#[derive(Debug, Args)]
pub struct Verify {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// The pool, by name or guid.
    pub pool: String,
}

impl Verb for Verify {
    fn run(self, _ctx: &mut Ctx) -> Outcome {
        Err(Failure::failed("aquifer verify: not supported yet: checking every block"))
    }
}
