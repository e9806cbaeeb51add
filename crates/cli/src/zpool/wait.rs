//! `zpool wait`.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::time::zoned_clock;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use engine::spa::Spa;
use engine::spa::props::freeing;
use engine::spa::scrub::ScanFunc;
use engine::spa::sweep::SweepKind;
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

/// Activities that can be waited for.
const ACTIVITIES: [&str; 9] =
    ["discard", "free", "initialize", "replace", "remove", "resilver", "scrub", "trim", "raidz_expand"];

/// Bytes that an activity has left; `None` when it is not under way.
fn left(activity: &str, pool: &Imported, spa: &Spa) -> Result<Option<u64>, Failure> {
    Ok(match activity {
        "discard" => spa.discard_left(),
        "free" => {
            let bytes = freeing(&*pool.view()?);
            (bytes > 0 || is_freeing(&spa.datasets.view())?).then_some(bytes)
        }
        "replace" => match spa.is_replacing() {
            true => Some(spa.scan_left(ScanFunc::Resilver)?.unwrap_or(0)),
            false => None,
        },
        "initialize" => spa.sweep_left(SweepKind::Initialize, &[]),
        "trim" => spa.sweep_left(SweepKind::Trim, &[]),
        "remove" => spa.removal_left()?,
        "resilver" => spa.scan_left(ScanFunc::Resilver)?,
        "scrub" => spa.scan_left(ScanFunc::Scrub)?,
        "raidz_expand" => spa.expansion_left().or(spa.is_widening().then_some(0)),
        _ => None,
    })
}

impl Verb for Wait {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if let Some(bad) = self.activities.iter().find(|a| !ACTIVITIES.contains(&a.as_str())) {
            return Err(Failure::usage(format!("invalid activity '{bad}'")));
        }
        let interval = self.interval.map(Duration::try_from_secs_f64);
        let interval = match interval {
            Some(Ok(Duration::ZERO)) => return Err(Failure::usage("interval cannot be zero")),
            Some(Err(_)) => return Err(Failure::usage("invalid interval value")),
            Some(Ok(interval)) => Some(interval),
            None => None,
        };
        let wanted = |name: &&str| self.activities.is_empty() || self.activities.iter().any(|a| a == name);
        let wanted: Vec<&str> = ACTIVITIES.into_iter().filter(wanted).collect();
        let mut reported: Option<Instant> = None;
        let mut is_first = true;
        loop {
            let pool = match ctx.pool(&self.pool) {
                Some(pool) => pool,
                None if is_first => return Err(Failure::cannot("open", &self.pool, "no such pool")),
                // A pool that is gone has nothing left to do.
                None => return Ok(Exit::OK),
            };
            is_first = false;
            let spa = pool.spa()?;
            let rows = wanted.iter().map(|name| Ok((*name, left(name, &pool, spa)?)));
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
            if rows.iter().any(|(name, left)| *name == "free" && left.is_some()) {
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
    fn report(&self, rows: &[(&str, Option<u64>)], first: bool, ctx: &mut Ctx) -> Result<(), Failure> {
        let width = |name: &str| name.len().max(6) + 2;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        match self.timestamp.as_deref() {
            Some("d") => writeln!(ctx.out, "{}", zoned_clock(now))?,
            Some(_) => writeln!(ctx.out, "{now}")?,
            None => {}
        }
        if first && !self.scripted {
            rows.iter()
                .try_for_each(|(name, _)| write!(ctx.out, "{:>1$}", name.to_uppercase(), width(name)))?;
            writeln!(ctx.out)?;
        }
        for (at, (name, left)) in rows.iter().enumerate() {
            let left = left.unwrap_or(0);
            let text = if self.literal { left.to_string() } else { nicenum(left).to_string() };
            match self.scripted {
                true => write!(ctx.out, "{}{text}", if at > 0 { "\t" } else { "" })?,
                false => write!(ctx.out, "{text:>0$}", width(name))?,
            }
        }
        Ok(writeln!(ctx.out)?)
    }
}

/// Whether destroyed datasets are still being freed.
fn is_freeing(view: &engine::dsl::write::MosView<'_>) -> Result<bool, Failure> {
    let directory = ondisk::names::MOS_DIRECTORY_OBJECT;
    Ok(view.zap_word(directory, ondisk::names::mos::BPTREE_OBJ)?.is_some())
}
