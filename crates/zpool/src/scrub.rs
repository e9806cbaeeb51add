//! `zpool scrub` and `zpool resilver`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::time::parse_date;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use engine::Kind;
use engine::spa::scrub::ScanCommand;
use engine::spa::{ActivityCommand, WaitActivity};
use zcommon::features::Feature;

use super::simple::named_or_all;
use super::wait::until_done;

/// Read all blocks of a pool with all their copies, and repair bad ones.
#[derive(Debug, Args)]
pub struct Scrub {
    /// Stop the scrub.
    #[arg(short = 's')]
    pub stop: bool,
    /// Pause the scrub; starting a scrub resumes it.
    #[arg(short = 'p')]
    pub pause: bool,
    /// Wait until the scrub completes.
    #[arg(short = 'w')]
    pub wait: bool,
    /// Scrub only blocks that were written since the last complete scrub.
    #[arg(short = 'C')]
    pub from_last: bool,
    /// Scrub only blocks in the error log.
    #[arg(short = 'e')]
    pub errors_only: bool,
    /// Scrub only blocks that were written since this date.
    #[arg(short = 'S', value_name = "DATE")]
    pub since: Option<String>,
    /// Scrub only blocks that were written until this date.
    #[arg(short = 'E', value_name = "DATE")]
    pub until: Option<String>,
    /// Scrub all imported pools, if none is named.
    #[arg(short = 'a', long = "all")]
    pub all: bool,
    /// The pools.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

/// Restart the resilver of a pool.
#[derive(Debug, Args)]
pub struct Resilver {
    /// The pools.
    #[arg(value_name = "POOL", required = true)]
    pub pools: Vec<String>,
}

/// The action of a command line on the scrub of a pool.
#[derive(Clone, Copy)]
enum Action {
    /// Begins or resumes it.
    Start(ScanCommand),
    /// Pauses or cancels it.
    End(ActivityCommand),
}

impl Scrub {
    fn action(&self) -> Result<Action, Failure> {
        let given = [('s', self.stop), ('p', self.pause), ('C', self.from_last)];
        let mut given = given.iter().filter(|(_, on)| *on).map(|(letter, _)| *letter);
        if let (Some(a), Some(b)) = (given.next(), given.next()) {
            let what = format!("invalid option combination: -{a} and -{b} are mutually exclusive");
            return Err(Failure::usage(what));
        }
        if self.errors_only && self.from_last {
            return Err(Failure::usage("invalid option combination: -e and -C are mutually exclusive"));
        }
        let date = |text: &Option<String>, end| match text {
            None => Ok(0),
            Some(text) => parse_date(text, end).ok_or_else(|| Failure::usage("Failed to parse the date.")),
        };
        let (since, until) = (date(&self.since, false)?, date(&self.until, true)?);
        let dated = self.since.is_some() || self.until.is_some();
        if dated && (self.stop || self.pause || self.from_last || self.errors_only) {
            let what = "invalid option combination: start/end date is available only with normal scrub";
            return Err(Failure::usage(what));
        }
        if until != 0 && since > until {
            return Err(Failure::usage("invalid arguments: end date has to be later than start date"));
        }
        if self.wait && (self.stop || self.pause) {
            return Err(Failure::usage("invalid option combination: -w cannot be used with -p or -s"));
        }
        if self.pools.is_empty() && !self.all {
            return Err(Failure::usage("missing pool name argument"));
        }
        Ok(match (self.stop, self.pause, self.from_last) {
            (true, _, _) => Action::End(ActivityCommand::Cancel),
            (_, true, _) => Action::End(ActivityCommand::Pause),
            (_, _, true) => Action::Start(ScanCommand::ScrubFromLast),
            _ if self.errors_only => Action::Start(ScanCommand::ScrubErrors),
            _ if dated => Action::Start(ScanCommand::ScrubBetween(since, until)),
            _ => Action::Start(ScanCommand::Scrub),
        })
    }

    fn carry_out(&self, pool: &Imported, action: Action, ctx: &mut Ctx) -> Result<(), Failure> {
        let name = &pool.name();
        let verb = match action {
            Action::End(ActivityCommand::Cancel) => "cancel scrubbing",
            Action::End(ActivityCommand::Pause) => "pause scrubbing",
            Action::Start(_) => "scrub",
        };
        let cannot = |e: engine::Error| Failure::failed(format!("cannot {verb} {name}: {}", e.what()));
        let spa = pool.spa().map_err(cannot)?;
        let starts = matches!(action, Action::Start(command) if command != ScanCommand::ScrubErrors);
        if starts {
            pool.validate().map_err(cannot)?;
        }
        let done = match action {
            Action::Start(command) => spa.scans().start(command),
            Action::End(command) => spa.background().command(WaitActivity::Scrub, command),
        };
        match done {
            // As in OpenZFS, a pause with nothing to pause succeeds.
            Err(e) if e.kind() == Kind::NotFound && self.pause => {}
            done => done.map_err(cannot)?,
        }
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
        let action = self.action()?;
        let named = named_or_all(&self.pools, ctx)?;
        let exit = named.each(ctx, |pool, ctx| self.carry_out(pool, action, ctx))?;
        if self.wait && exit == Exit::OK {
            let names: Vec<String> = named.pools.iter().map(|pool| pool.name().to_owned()).collect();
            drop(named);
            names.iter().try_for_each(|name| until_done(name, ctx, WaitActivity::Scrub))?;
        }
        Ok(exit)
    }
}

impl Verb for Resilver {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        named_or_all(&self.pools, ctx)?.each(ctx, |pool, ctx| {
            let cannot = |e: engine::Error| {
                Failure::failed(format!("cannot restart resilver on {}: {}", pool.name(), e.what()))
            };
            pool.spa().and_then(|spa| spa.scans().start(ScanCommand::Resilver)).map_err(cannot)?;
            ctx.log(pool)
        })
    }
}
