//! `aquifer daemon`: the process that owns imported pools.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use clap::Args;
use daemon::client::MALLOC;
use daemon::paths::RunPaths;

use crate::ctx::Ctx;
use crate::session::Verbs;
use crate::verb::{Exit, Failure, Outcome, Verb};

/// Own imported pools and serve the commands on them. Commands start it themselves.
///
/// It says "ready" on its standard output once it can be reached (and tells systemd), ends when nothing is imported,
/// and exports all pools on SIGTERM; the next one imports them again. AQUIFER_RUN names the folder for its socket, lock,
/// log, cache file and settings.
#[derive(Debug, Args)]
pub struct Daemon {
    /// Stay, also while nothing is imported.
    #[arg(long = "stay")]
    pub stay: bool,
}

/// Begins again with what the C library has to be told of memory, unless somebody has told it.
fn with_settings_of_malloc() {
    let missing = MALLOC.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let missing: Vec<_> = missing.copied().collect();
    let mut argv = std::env::args_os();
    if missing.is_empty() {
        return;
    }
    if let Some(name) = argv.next() {
        // It comes back only when it can't be done; then it goes on as it is.
        let _ = Command::new("/proc/self/exe").arg0(name).args(argv).envs(missing).exec();
    }
}

impl Verb for Daemon {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        with_settings_of_malloc();
        // It was started as what it runs from, and who looks for it looks for its name; without it all works, too.
        let _ = rustix::thread::set_name(c"aquifer");
        zfuse::mount_helper::work_apart();
        zfuse::raise_limits();
        let (place, stop) = (RunPaths::of_process(), ctx.interrupt.flag());
        let served = daemon::server::serve(&place, Arc::new(Verbs), stop, self.stay);
        served.map(|()| Exit::OK).map_err(|e| Failure::failed(format!("daemon: {e}")))
    }
}
