//! `aquifer mount`: a pool's file systems over FUSE.
//!
//! In the background a second process does the work: this one starts it with the same arguments, waits until it
//! reports the mount (or a failure), and exits. It does not fork without exec, because threads and `fork` do not
//! combine.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::source::PoolSource;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use zfuse::{MountOptions, Mounted};

/// Set in the environment of the working process.
const CHILD: &str = "AQUIFER_MOUNT_CHILD";
/// The child's report of a successful mount.
const READY: &[u8] = b"ready\n";
/// Interval of polling for the end of the mount.
const POLL: Duration = Duration::from_millis(200);

/// Mount a pool's file systems over FUSE.
#[derive(Debug, Args)]
pub struct Mount {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// Mount options, comma separated: `ro` (always in effect), `allow_other`.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Stay in the foreground.
    #[arg(short = 'f', long)]
    pub foreground: bool,
    /// The pool, a dataset or a snapshot.
    pub what: String,
    /// The directory to mount it on.
    pub mountpoint: PathBuf,
}

impl Verb for Mount {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let options = self.mount_options()?;
        let child = std::env::var_os(CHILD).is_some();
        if !self.foreground && !child {
            return background();
        }
        let mounted = self.mount(options, ctx)?;
        if child {
            detach()?;
        }
        wait(mounted, ctx)
    }
}

impl Mount {
    fn mount_options(&self) -> Result<MountOptions, Failure> {
        // Root mounts for every user, as OpenZFS does.
        let mut options =
            MountOptions { allow_other: rustix::process::geteuid().is_root(), ..MountOptions::default() };
        for option in &self.options {
            match option.as_str() {
                "ro" => {}
                "allow_other" => options.allow_other = true,
                "rw" => return Err(Failure::failed("mounting for writing is not supported yet: use -o ro")),
                other => return Err(Failure::usage(format!("unknown mount option '{other}'"))),
            }
        }
        Ok(options)
    }

    fn mount(&self, options: MountOptions, ctx: &mut Ctx) -> Result<Mounted, Failure> {
        let pool_name = self.what.split(['/', '@']).next().unwrap_or_default();
        let pool = self.source.open(pool_name, ctx)?;
        // The pool may have been named by its guid.
        let name = self.what.replacen(pool_name, &pool.name, 1);
        let cannot = |why: &dyn std::fmt::Display| Failure::cannot("mount", &self.what, why);
        let dataset = pool.dsl.dataset(&name).map_err(|e| cannot(&e.what()))?;
        zfuse::mount(&pool, dataset, &self.mountpoint, options).map_err(|e| cannot(&e))
    }
}

/// Starts the working process and waits for its report.
fn background() -> Outcome {
    let failed = |e: std::io::Error| Failure::failed(format!("cannot start the background process: {e}"));
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg0(name).args(args).env(CHILD, "1").stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut said = Vec::new();
    if let Some(out) = child.stdout.take() {
        let limit = u64::try_from(READY.len()).unwrap_or(0);
        out.take(limit).read_to_end(&mut said).map_err(failed)?;
    }
    if said == READY {
        return Ok(Exit::OK);
    }
    // The child has printed the reason on the shared standard error.
    let code = child.wait().map_err(failed)?.code();
    Ok(code.and_then(|c| u8::try_from(c).ok()).filter(|&c| c != 0).map_or(Exit::FAILED, Exit))
}

/// Reports the mount and releases the caller's terminal and pipes.
fn detach() -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("cannot go to the background: {e}"));
    let mut out = std::io::stdout();
    out.write_all(READY).and_then(|()| out.flush()).map_err(failed)?;
    // Fails for a process group leader, which has no group to leave.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").map_err(failed)?;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    let done = rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .and_then(|()| rustix::stdio::dup2_stderr(&null));
    done.map_err(|e| failed(e.into()))
}

fn wait(mounted: Mounted, ctx: &mut Ctx) -> Outcome {
    while !mounted.is_over() {
        if ctx.interrupt.is_set() {
            let done = mounted.unmount();
            done.map_err(|e| Failure::failed(format!("cannot unmount: {e}")))?;
            return Ok(Exit::OK);
        }
        std::thread::sleep(POLL);
    }
    Ok(Exit::OK)
}
