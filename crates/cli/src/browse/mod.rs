//! Looking at and copying files of a pool that is not imported: one file a verb.

use clap::Subcommand;

use crate::ctx::Ctx;
use crate::verb::{Outcome, Verb};

/// The verbs that take `POOL/DATASET[@SNAPSHOT]:PATH`.
#[derive(Debug, Subcommand)]
pub enum Browse {}

impl Verb for Browse {
    fn run(self, _ctx: &mut Ctx) -> Outcome {
        match self {}
    }
}
