//! `zinject`: faults injected into imported pools, in OpenZFS's words.
//!
//! The handlers live in the daemon ([`engine::inject`]). The client adds the object number of a file to the command line and
//! drops the kernel's cached pages of it, because the daemon never looks into its own mounts.
//!
//! Differs from OpenZFS: panics (`-p`), ignored writes (`-I`) and delays of the pipeline (`-E`) are refused; `zpool destroy`
//! removes the handlers of its pool instead of failing.

mod data;
mod list;
mod pool_delay;
mod words;

use std::ffi::OsString;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::Home;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use engine::inject::{Action, FaultError, Handler, IoType};
use zfs::by_path::with_mount_points;
use zpool::device;

/// Inject faults into imported pools: failing, corrupting or slow devices, and unreadable blocks.
///
/// Without options the active handlers are listed. Handlers end with the export of the pool. The data on the devices stays
/// intact, except that writes that fail by injection do not reach the device.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Zinject {
    /// Flush the cache first.
    #[arg(short = 'a')]
    pub flush: bool,
    /// Degrade or fault the device.
    #[arg(short = 'A', value_name = "ACTION")]
    pub action: Option<String>,
    /// A block: objset:object:level:start[-end], hexadecimal.
    #[arg(short = 'b', value_name = "BOOKMARK")]
    pub bookmark: Option<String>,
    /// Cancel the handler of this number, or all.
    #[arg(short = 'c', value_name = "ID")]
    pub cancel: Option<String>,
    /// Fail only these DVAs: 0-based, separated by commas.
    #[arg(short = 'C', value_name = "DVAS")]
    pub dvas: Option<String>,
    /// A device: path or guid.
    #[arg(short = 'd', value_name = "VDEV")]
    pub device: Option<String>,
    /// Delay requests: milliseconds and the number of requests served at once.
    #[arg(short = 'D', value_name = "LATENCY:LANES")]
    pub delay: Option<String>,
    /// The error: io, checksum, decompress, decrypt, nxio, dtl, corrupt or noop.
    #[arg(short = 'e', value_name = "ERROR")]
    pub error: Option<String>,
    /// Delay of the pipeline: not supported.
    #[arg(short = 'E', value_name = "DELAY", hide = true)]
    pub ready_delay: Option<String>,
    /// Percentage of matching requests to fail: 0.0001 to 100.
    #[arg(short = 'f', value_name = "FREQUENCY")]
    pub frequency: Option<String>,
    /// Fail only requests that are not retried: accepted; no request is retried here.
    #[arg(short = 'F')]
    pub fail_fast: bool,
    /// Ignored writes by txgs: not supported.
    #[arg(short = 'g', value_name = "TXGS", hide = true)]
    pub txgs: Option<String>,
    /// Ignored writes: not supported.
    #[arg(short = 'I', hide = true)]
    pub ignored: bool,
    /// Print the usage.
    #[arg(short = 'h', long = "help")]
    pub help: bool,
    /// Level of the blocks.
    #[arg(short = 'l', value_name = "LEVEL")]
    pub level: Option<String>,
    /// Part of the labels: nvlist, uber, pad1 or pad2.
    #[arg(short = 'L', value_name = "PART")]
    pub label: Option<String>,
    /// Remount the file system: drops the kernel's pages of the file, which has the same effect.
    #[arg(short = 'm')]
    pub remount: bool,
    /// Panic in a function: not supported.
    #[arg(short = 'p', value_name = "FUNCTION", hide = true)]
    pub panic: Option<String>,
    /// Delay the next import or export of a pool: import or export.
    #[arg(short = 'P', value_name = "COMMAND")]
    pub pool_delay: Option<String>,
    /// Print only the number of the handler.
    #[arg(short = 'q')]
    pub quiet: bool,
    /// Bytes of the object: start[,end].
    #[arg(short = 'r', value_name = "RANGE")]
    pub range: Option<String>,
    /// Seconds that the import or export takes at least.
    #[arg(short = 's', value_name = "SECONDS")]
    pub seconds: Option<String>,
    /// The failing blocks: data, dnode, mos, mosdir, metaslab, config, bpobj, spacemap or errlog.
    #[arg(short = 't', value_name = "TYPE")]
    pub kind: Option<String>,
    /// Requests: read, write, free, claim, flush, trim, probe or all.
    #[arg(short = 'T', value_name = "IO")]
    pub io: Option<String>,
    /// Unload the pool first: drops its cached blocks, which has the same effect.
    #[arg(short = 'u')]
    pub unload: bool,
    /// The object of a file; added by the client.
    #[arg(long, hide = true)]
    pub object: Option<u64>,
    /// The pool, or the path of a file.
    #[arg(value_name = "OBJECT")]
    pub names: Vec<String>,
}

/// Refused options.
const UNSUPPORTED: [(&str, &str); 3] = [
    ("-p", "panics are not injected: the daemon serves other pools, too"),
    ("-I", "ignored writes are not supported by this build"),
    ("-E", "delays of the pipeline are not supported by this build; -D delays a device"),
];

impl Zinject {
    /// The process in which it runs.
    pub fn home(&self) -> Home {
        if self.help { Home::Here } else { Home::Pools }
    }

    /// Whether the operand is the path of a file.
    fn names_file(&self) -> bool {
        self.cancel.is_none() && self.kind.as_deref().is_some_and(|kind| matches!(kind, "data" | "dnode"))
    }

    /// The command line as the daemon takes it: the mount point and the object number in place of a path. Pages of the file
    /// are written and dropped, so that the next read reaches the pool.
    pub fn located(&self, argv: &[OsString]) -> Vec<OsString> {
        use std::os::unix::fs::MetadataExt as _;
        let Some(path) = self.names.first().filter(|_| self.names_file()) else { return argv.to_vec() };
        let Ok(found) = std::fs::metadata(path) else { return argv.to_vec() };
        if let Ok(file) = std::fs::File::open(path).filter_file(self.flush || self.remount) {
            // Blocks that stay in the cache are read from it, as with OpenZFS without -a.
            let _ = file.sync_all();
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
        let mut argv = with_mount_points(argv, &self.names, &[]);
        argv.push(format!("--object={}", found.ino()).into());
        argv
    }

    fn refuse(&self) -> Result<(), Failure> {
        let given = [self.panic.is_some(), self.ignored, self.ready_delay.is_some()];
        match UNSUPPORTED.iter().zip(given).find(|(_, given)| *given) {
            Some(((option, why), _)) => Err(Failure::failed(format!("invalid option '{option}': {why}"))),
            None => Ok(()),
        }
    }

    /// The only operand.
    fn only(&self, or: &str) -> Result<&str, Failure> {
        match self.names.as_slice() {
            [name] => Ok(name),
            _ => Err(Failure::usage(or)),
        }
    }

    fn error(&self) -> Result<Option<FaultError>, Failure> {
        self.error.as_deref().map(words::error).transpose()
    }

    fn frequency(&self) -> Result<u64, Failure> {
        self.frequency.as_deref().map_or(Ok(0), words::frequency)
    }

    /// The action of a device handler.
    fn device_action(&self) -> Result<Action, Failure> {
        let io = self.io.as_deref().map(words::io).transpose()?;
        if let Some(delay) = &self.delay {
            if !matches!(io, None | Some(IoType::Read | IoType::Write)) {
                return Err(Failure::usage("I/O type for a delay must be 'read' or 'write'"));
            }
            let (latency, lanes) = words::delay(delay)?;
            return Ok(Action::Delay {
                latency: Duration::from_millis(latency),
                lanes,
                io: io.unwrap_or(IoType::All),
            });
        }
        let error = self.error()?.unwrap_or(FaultError::Nxio);
        if error == FaultError::Checksum {
            return Err(Failure::usage("device error type must be 'io', 'nxio' or 'corrupt'"));
        }
        if error == FaultError::Corrupt && (io != Some(IoType::Read) || self.frequency.is_none()) {
            return Err(Failure::usage("device corrupt errors require io type read and a frequency value"));
        }
        match &self.label {
            None => Ok(Action::Device { error, io: io.unwrap_or(IoType::All) }),
            Some(part) => {
                let (start, end) = words::label(part)?;
                // Both errors of labels are EIO.
                Ok(Action::Label { error: FaultError::Io, start, end })
            }
        }
    }

    fn on_device(&self, word: &str, ctx: &mut Ctx) -> Outcome {
        let name = self.only("device (-d) injection requires a single pool name")?.to_owned();
        let change = self.action.as_deref().map(words::change).transpose()?;
        let action = if change.is_none() { Some(self.device_action()?) } else { None };
        let frequency = self.frequency()?;
        let pool = pool(&name, ctx)?;
        let guid = device::find(&pool, word).map(|vdev| vdev.guid);
        let missing = || Failure::failed(format!("cannot find device '{word}' in pool '{name}'"));
        let guid = guid.ok_or_else(missing)?;
        let spa = pool.spa()?;
        match (action, change) {
            (Some(action), _) => {
                self.flush(&pool)?;
                let handler = spa.injections().inject(guid, action, frequency)?;
                return self.added(&handler, &pool, ctx);
            }
            (None, Some(words::Change::Fault)) => spa.disks().fault(guid, false)?,
            (None, _) => spa.disks().declare_degraded(guid)?,
        }
        Ok(Exit::OK)
    }

    fn flush(&self, pool: &Imported) -> Result<(), Failure> {
        if self.flush || self.unload {
            pool.view()?.arc.forget_all();
        }
        Ok(())
    }

    fn added(&self, handler: &Handler, pool: &Imported, ctx: &mut Ctx) -> Outcome {
        match self.quiet {
            true => writeln!(ctx.out, "{}", handler.id)?,
            false => write!(ctx.out, "{}", list::added(handler, &pool.name()))?,
        }
        Ok(Exit::OK)
    }

    fn cancel(&self, id: &str, ctx: &mut Ctx) -> Outcome {
        if !self.names.is_empty() {
            return Err(Failure::usage("extraneous argument to '-c'"));
        }
        let spas: Vec<_> = ctx.pools().iter().filter_map(|pool| pool.spa().ok().cloned()).collect();
        if id == "all" {
            for spa in &spas {
                spa.injections().list().iter().for_each(|handler| {
                    spa.injections().cancel(handler.id);
                });
            }
            pool_delay::cancel_all(ctx)?;
            writeln!(ctx.out, "removed all registered handlers")?;
            return Ok(Exit::OK);
        }
        let invalid = || Failure::usage(format!("invalid handle id '{id}': must be an integer or 'all'"));
        let number: u64 = id.parse().map_err(|_| invalid())?;
        let is_delay = ctx.registry()?.delays.cancel(number);
        if !is_delay && !spas.iter().any(|spa| spa.injections().cancel(number)) {
            return Err(Failure::failed(format!(
                "failed to remove handler {number}: No such file or directory"
            )));
        }
        writeln!(ctx.out, "removed handler {number}")?;
        Ok(Exit::OK)
    }

    fn has_work(&self) -> bool {
        let words =
            [&self.action, &self.bookmark, &self.cancel, &self.dvas, &self.device, &self.delay, &self.error];
        let more = [
            &self.frequency,
            &self.level,
            &self.label,
            &self.range,
            &self.kind,
            &self.io,
            &self.pool_delay,
            &self.seconds,
        ];
        words.iter().chain(&more).any(|word| word.is_some())
            || self.flush
            || self.unload
            || self.remount
            || self.quiet
            || !self.names.is_empty()
    }
}

/// `Result::filter` for a file that is wanted only under a condition.
trait FilterFile {
    fn filter_file(self, wanted: bool) -> Self;
}

impl FilterFile for std::io::Result<std::fs::File> {
    fn filter_file(self, wanted: bool) -> Self {
        if wanted { self } else { Err(std::io::ErrorKind::Other.into()) }
    }
}

fn pool(name: &str, ctx: &mut Ctx) -> Result<Arc<Imported>, Failure> {
    ctx.pool(name).ok_or_else(|| ctx.no_pool(name))
}

impl Verb for Zinject {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.help {
            write!(ctx.out, "{}", list::USAGE)?;
            return Ok(Exit::OK);
        }
        self.refuse()?;
        if !self.has_work() {
            let pools = ctx.pools();
            return list::all(&pools, ctx);
        }
        if let Some(id) = self.cancel.clone() {
            return self.cancel(&id, ctx);
        }
        if let Some(command) = self.pool_delay.clone() {
            return self.on_pool(&command, ctx);
        }
        if self.seconds.is_some() {
            return Err(Failure::usage("a duration (-s) needs an import|export delay (-P)"));
        }
        if let Some(device) = self.device.clone() {
            return self.on_device(&device, ctx);
        }
        if self.bookmark.is_some() || self.kind.is_some() {
            return self.on_blocks(ctx);
        }
        if !self.flush && !self.unload {
            return Err(Failure::usage(
                "at least one of '-b', '-d', '-t', '-a', '-p', '-I' or '-u' must be specified",
            ));
        }
        for pool in ctx.pools() {
            self.flush(&pool)?;
        }
        Ok(Exit::OK)
    }
}
