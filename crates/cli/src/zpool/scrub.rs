//! `zpool scrub` and `zpool resilver`.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use daemon::Imported;
use engine::Kind;
use engine::spa::scrub::{ScanCommand, ScanFunc};
use zcommon::features::Feature;

use super::simple::{named, named_or_all};
use crate::ctx::Ctx;
use crate::verb::{Exit, Failure, Outcome, Verb};

/// How often a command that waits looks whether the scan has ended.
const TICK: Duration = Duration::from_millis(50);

/// Read all blocks of a pool with all their copies, and repair what is bad.
#[derive(Debug, Args)]
pub struct Scrub {
    /// Stop the scrub.
    #[arg(short = 's')]
    pub stop: bool,
    /// Pause the scrub; it goes on when it is started again.
    #[arg(short = 'p')]
    pub pause: bool,
    /// Return when the scrub has ended.
    #[arg(short = 'w')]
    pub wait: bool,
    /// Only blocks that were written since the last complete scrub.
    #[arg(short = 'C')]
    pub from_last: bool,
    /// Only blocks in the log of errors.
    #[arg(short = 'e')]
    pub errors_only: bool,
    /// All imported pools.
    #[arg(short = 'a')]
    pub all: bool,
    /// The pools.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

/// Begin the resilver of a pool anew.
#[derive(Debug, Args)]
pub struct Resilver {
    /// The pools.
    #[arg(value_name = "POOL", required = true)]
    pub pools: Vec<String>,
}

impl Scrub {
    fn command(&self) -> Result<ScanCommand, Failure> {
        let given = [('s', self.stop), ('p', self.pause), ('C', self.from_last)];
        let mut given = given.iter().filter(|(_, on)| *on).map(|(letter, _)| *letter);
        if let (Some(a), Some(b)) = (given.next(), given.next()) {
            let what = format!("invalid option combination: -{a} and -{b} are mutually exclusive");
            return Err(Failure::usage(what));
        }
        if self.errors_only && self.from_last {
            return Err(Failure::usage("invalid option combination: -e and -C are mutually exclusive"));
        }
        if self.wait && (self.stop || self.pause) {
            return Err(Failure::usage("invalid option combination: -w cannot be used with -p or -s"));
        }
        if self.pools.is_empty() && !self.all {
            return Err(Failure::usage("missing pool name argument"));
        }
        Ok(match (self.stop, self.pause, self.from_last) {
            (true, _, _) => ScanCommand::Stop,
            (_, true, _) => ScanCommand::Pause,
            (_, _, true) => ScanCommand::ScrubFromLast,
            _ => ScanCommand::Scrub,
        })
    }

    fn begin(&self, pool: &Imported, command: ScanCommand, ctx: &mut Ctx) -> Result<(), Failure> {
        let name = &pool.name();
        let action = match command {
            ScanCommand::Stop => "cancel scrubbing",
            ScanCommand::Pause => "pause scrubbing",
            _ => "scrub",
        };
        let cannot = |e: engine::Error| Failure::failed(format!("cannot {action} {name}: {}", e.what()));
        let spa = pool.spa().map_err(cannot)?;
        spa.scan(command).map_err(cannot)?;
        let starts = matches!(command, ScanCommand::Scrub | ScanCommand::ScrubFromLast);
        if starts && spa.features.is_active(Feature::ZpoolCheckpoint) {
            let what =
                format!("warning: will not scrub state that belongs to the checkpoint of pool '{name}'");
            writeln!(ctx.err, "{what}")?;
        }
        ctx.log(pool)
    }
}

impl Verb for Scrub {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let command = self.command()?;
        let pools = if self.all { ctx.pools() } else { named_or_all(&self.pools, ctx)? };
        if self.errors_only {
            return Err(Failure::failed(
                "zpool scrub -e: not supported yet: scrubbing only what is in the log of errors",
            ));
        }
        let mut first = None;
        for pool in &pools {
            if let Err(failure) = self.begin(pool, command, ctx) {
                first = first.or(Some(failure));
            }
        }
        if let Some(failure) = first {
            return Err(failure);
        }
        if self.wait {
            let names: Vec<String> = pools.iter().map(|pool| pool.name().to_owned()).collect();
            drop(pools);
            names.iter().try_for_each(|name| wait(name, ScanFunc::Scrub, ctx))?;
        }
        Ok(Exit::OK)
    }
}

impl Verb for Resilver {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        for pool in named_or_all(&self.pools, ctx)? {
            let cannot = |e: engine::Error| {
                Failure::failed(format!("cannot restart resilver on {}: {}", pool.name(), e.what()))
            };
            pool.spa().and_then(|spa| spa.scan(ScanCommand::Resilver)).map_err(cannot)?;
            ctx.log(&pool)?;
        }
        Ok(Exit::OK)
    }
}

/// Bytes that a scan under way has left; `None` when none runs, or it is paused.
pub(super) fn left(pool: &Arc<Imported>, func: ScanFunc) -> Result<Option<u64>, engine::Error> {
    match pool.spa() {
        Ok(spa) => spa.scan_left(func),
        Err(e) if e.kind() == Kind::ReadOnly => Ok(None),
        Err(e) => Err(e),
    }
}

fn wait(name: &str, func: ScanFunc, ctx: &mut Ctx) -> Result<(), Failure> {
    loop {
        let pool = named(name, ctx)?;
        if left(&pool, func)?.is_none() {
            return Ok(());
        }
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        drop(pool);
        ctx.release();
        std::thread::sleep(TICK);
    }
}
