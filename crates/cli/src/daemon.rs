//! `aquifer daemon`: the process that owns imported pools.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};
use daemon::Commands;
use daemon::client::MALLOC;
use daemon::paths::RunPaths;

/// Own imported pools and run commands on them. Commands start it automatically.
///
/// It prints "ready" on its standard output once it accepts connections (and notifies systemd), exits when no pool
/// is imported, and exports all pools on SIGTERM; the next daemon imports them again. AQUIFER_RUN sets the
/// directory of its socket, lock, log, cache file and settings.
#[derive(Debug, Args)]
pub struct Daemon {
    /// Keep running while no pool is imported.
    #[arg(long = "stay")]
    pub stay: bool,
}

/// Restarts the program with the C library's memory settings in the environment, unless they are already set.
fn with_settings_of_malloc() {
    let missing = MALLOC.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let missing: Vec<_> = missing.copied().collect();
    let mut argv = std::env::args_os();
    if missing.is_empty() {
        return;
    }
    if let Some(name) = argv.next() {
        // `exec` returns only when it fails; then the daemon continues with the present settings.
        let _ = Command::new("/proc/self/exe").arg0(name).args(argv).envs(missing).exec();
    }
}

/// Has mounts use io_uring where the kernel offers it; root's daemon switches it on in the kernel.
fn choose_transport() {
    let choice = std::env::var_os("AQUIFER_IO_URING").unwrap_or_default();
    zfuse::use_io_uring(choice != "0");
    if choice == "0" {
        eprintln!("mounts use /dev/fuse, not io_uring: AQUIFER_IO_URING=0");
    } else {
        // Without the right to change the parameter mounts use `/dev/fuse`; the first of them logs that.
        let _ = zfuse::enable_in_kernel(choice == "1");
    }
}

impl Daemon {
    /// Serves until the process is stopped; `verbs` runs the commands.
    pub(crate) fn serve(self, verbs: Arc<dyn Commands>, ctx: &mut Ctx) -> Outcome {
        with_settings_of_malloc();
        // The process is named after `/proc/self/exe`, but tools search for it by its own name. Failure is harmless.
        let _ = rustix::thread::set_name(c"aquifer");
        zfuse::mount_helper::work_apart();
        zfuse::raise_limits();
        choose_transport();
        // The client that starts a daemon reads this process's standard output to its end, which another descriptor of it would
        // put off until the daemon ends.
        ctx.raw_out = None;
        let (place, stop) = (RunPaths::of_process(), ctx.interrupt.flag());
        let served = daemon::server::serve(&place, verbs, stop, self.stay);
        served.map(|()| Exit::OK).map_err(|e| Failure::failed(format!("daemon: {e}")))
    }
}
