//! `aquifer mount`: a pool's file systems over FUSE.

use std::path::PathBuf;

use clap::Args;

use crate::ctx::Ctx;
use crate::source::PoolSource;
use crate::verb::{Failure, Outcome, Verb};

/// Mount a pool's file systems over FUSE.
#[derive(Debug, Args)]
pub struct Mount {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// Mount options, comma separated: only `ro` can be met so far.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Stay in the foreground.
    #[arg(short = 'f', long)]
    pub foreground: bool,
    /// The pool, a dataset or a snapshot.
    pub what: String,
    /// Where to mount it.
    pub mountpoint: PathBuf,
}

impl Verb for Mount {
    fn run(self, _ctx: &mut Ctx) -> Outcome {
        Err(Failure::failed("aquifer mount: not supported yet: mounting over FUSE"))
    }
}
