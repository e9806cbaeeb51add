//! `zpool wait`.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::time::zoned_clock;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::spa::{Spa, WaitActivity};
use zcommon::units::nicenum;

use super::simple::named;

/// Interval of checks of a waiting command.
const TICK: Duration = Duration::from_millis(50);

/// Waits until `is_done`, or the pool is no longer imported, or the user interrupts.
pub(super) fn until(
    name: &str,
    ctx: &mut Ctx,
    is_done: impl Fn(&Spa) -> engine::Result<bool>,
) -> Result<(), Failure> {
    loop {
        let pool = named(name, ctx)?;
        if is_done(pool.spa()?)? {
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

/// Waits until `work` has ended, as [`until`] does.
pub(super) fn until_done(name: &str, ctx: &mut Ctx, work: WaitActivity) -> Result<(), Failure> {
    until(name, ctx, |spa| Ok(spa.background().left(work)?.is_none()))
}

/// Wait until an activity completes.
#[derive(Debug, Args)]
pub struct Wait {
    /// Activities, comma separated.
    #[arg(short = 't', value_name = "ACTIVITY,…", value_delimiter = ',')]
    pub activities: Vec<String>,
    /// Print no header, and separate columns by a single tab.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print exact (parsable) numbers.
    #[arg(short = 'p')]
    pub literal: bool,
    /// Print the time before each report: d as date prints it, u in seconds since 1970.
    #[arg(short = 'T', value_name = "d|u", value_parser = ["d", "u"])]
    pub timestamp: Option<String>,
    /// The pool.
    pub pool: String,
    /// Report the remaining work at this interval in seconds.
    pub interval: Option<f64>,
}

impl Verb for Wait {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let is_known = |name: &str| WaitActivity::ALL.iter().any(|work| work.name() == name);
        if let Some(bad) = self.activities.iter().find(|name| !is_known(name)) {
            return Err(Failure::usage(format!("invalid activity '{bad}'")));
        }
        let interval = self.interval.map(Duration::try_from_secs_f64);
        let interval = match interval {
            Some(Ok(Duration::ZERO)) => return Err(Failure::usage("interval cannot be zero")),
            Some(Err(_)) => return Err(Failure::usage("invalid interval value")),
            Some(Ok(interval)) => Some(interval),
            None => None,
        };
        let is_wanted = |work: &WaitActivity| {
            self.activities.is_empty() || self.activities.iter().any(|name| name == work.name())
        };
        let wanted: Vec<WaitActivity> = WaitActivity::ALL.into_iter().filter(is_wanted).collect();
        let mut reported: Option<Instant> = None;
        let mut is_first = true;
        loop {
            let pool = match ctx.pool(&self.pool) {
                Some(pool) => pool,
                None if is_first => return Err(ctx.no_pool(&self.pool)),
                // A pool that is gone has nothing left to do.
                None => return Ok(Exit::OK),
            };
            is_first = false;
            let spa = pool.spa()?;
            let rows = wanted.iter().map(|work| Ok((*work, spa.background().left(*work)?)));
            let rows = rows.collect::<Result<Vec<_>, Failure>>()?;
            if let Some(interval) = interval
                && reported.is_none_or(|at| at.elapsed() >= interval)
            {
                self.report(&rows, reported.is_none(), ctx)?;
                reported = Some(Instant::now());
            }
            if rows.iter().all(|(_, left)| left.is_none()) {
                return Ok(Exit::OK);
            }
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            if rows.iter().any(|(work, left)| *work == WaitActivity::Free && left.is_some()) {
                spa.sync()?;
            }
            drop(pool);
            ctx.release();
            ctx.out.flush()?;
            std::thread::sleep(TICK);
        }
    }
}

impl Wait {
    /// Prints the remaining bytes of each activity under its heading.
    #[doc(alias = "print_wait_status_row")]
    fn report(
        &self,
        rows: &[(WaitActivity, Option<u64>)],
        first: bool,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        let width = |work: &WaitActivity| work.name().len().max(6) + 2;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        match self.timestamp.as_deref() {
            Some("d") => writeln!(ctx.out, "{}", zoned_clock(now))?,
            Some(_) => writeln!(ctx.out, "{now}")?,
            None => {}
        }
        if first && !self.scripted {
            rows.iter().try_for_each(|(work, _)| {
                write!(ctx.out, "{:>1$}", work.name().to_uppercase(), width(work))
            })?;
            writeln!(ctx.out)?;
        }
        for (at, (work, left)) in rows.iter().enumerate() {
            let left = left.unwrap_or(0);
            let text = if self.literal { left.to_string() } else { nicenum(left).to_string() };
            match self.scripted {
                true => write!(ctx.out, "{}{text}", if at > 0 { "\t" } else { "" })?,
                false => write!(ctx.out, "{text:>0$}", width(work))?,
            }
        }
        Ok(writeln!(ctx.out)?)
    }
}
