//! `aquifer daemon`: the process that owns imported pools.

use std::sync::Arc;

use clap::Args;
use daemon::place::Place;

use crate::ctx::Ctx;
use crate::session::Verbs;
use crate::verb::{Exit, Failure, Outcome, Verb};

/// Own imported pools and serve the commands on them. Commands start it themselves.
///
/// It says "ready" on its standard output once it can be reached, ends when nothing is imported, and exports all
/// pools on SIGTERM; the next one imports them again. AQUIFER_RUN names the folder for its socket, lock, log and
/// cache file.
#[derive(Debug, Args)]
pub struct Daemon {}

impl Verb for Daemon {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let served = daemon::server::serve(&Place::of_process(), Arc::new(Verbs), ctx.interrupt.flag());
        served.map(|()| Exit::OK).map_err(|e| Failure::failed(format!("daemon: {e}")))
    }
}
