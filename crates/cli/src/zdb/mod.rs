//! `zdb`: on-disk structures as OpenZFS's debugger prints them.

use std::ffi::OsString;

use clap::Args;

use crate::ctx::Ctx;
use crate::verb::{Failure, Outcome, Verb};

/// On-disk structures, as OpenZFS's debugger prints them.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Zdb {
    /// Options and names.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub words: Vec<OsString>,
}

impl Verb for Zdb {
    fn run(self, _ctx: &mut Ctx) -> Outcome {
        Err(Failure::failed("zdb: not supported yet: printing on-disk structures"))
    }
}
