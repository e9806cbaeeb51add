//! `zpool ddtprune` and `zpool prefetch`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::ddt::prune::Prune;
use engine::{brt, ddt};

use super::simple::named;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Remove old entries with one reference from the dedup tables; their blocks stay.
#[derive(Debug, Args)]
pub struct Ddtprune {
    /// Remove entries that have not changed for this many days.
    #[arg(short = 'd', value_name = "DAYS")]
    pub days: Option<String>,
    /// Remove the oldest entries: a percentage of all entries with one reference.
    #[arg(short = 'p', value_name = "PERCENTAGE")]
    pub percentage: Option<String>,
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

/// A number, decimal, octal (`010`) or hexadecimal (`0x8`).
fn number(text: &str, most: u64, what: &str) -> Result<u64, Failure> {
    let number = match (text.strip_prefix("0x"), text.strip_prefix('0').filter(|rest| !rest.is_empty())) {
        (Some(digits), _) => u64::from_str_radix(digits, 16),
        (None, Some(digits)) => u64::from_str_radix(digits, 8),
        (None, None) => text.parse(),
    };
    let number = number.ok().filter(|n| (1..=most).contains(n));
    number.ok_or_else(|| Failure::usage(format!("invalid {what} value")))
}

fn one_pool(pools: &[String], missing: &str) -> Result<String, Failure> {
    match pools {
        [] => Err(Failure::usage(missing)),
        [name] => Ok(name.clone()),
        _ => Err(Failure::usage("too many arguments")),
    }
}

impl Verb for Ddtprune {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let which = match (&self.days, &self.percentage) {
            (Some(_), Some(_)) => return Err(Failure::usage("-p cannot be combined with -d option")),
            (Some(days), None) => Prune::Age(number(days, u64::MAX / DAY, "days")? * DAY),
            (None, Some(percentage)) => Prune::Percentage(number(percentage, 100, "percentage")?),
            (None, None) => return Err(Failure::usage("missing amount option (-d|-p <value>)")),
        };
        let name = one_pool(&self.pools, "missing pool argument")?;
        let pool = named(&name, ctx).map_err(Failure::as_minus_one)?;
        let cannot =
            |e: engine::Error| Failure::cannot("prune dedup table on", &name, e.what()).as_minus_one();
        pool.spa().map_err(cannot)?.sharing().prune_ddt(which).map_err(cannot)?;
        ctx.log(&pool)?;
        Ok(Exit::OK)
    }
}

/// Load the dedup and clone tables into memory.
#[derive(Debug, Args)]
pub struct Prefetch {
    /// ddt or brt (default: both).
    #[arg(short = 't', value_name = "TYPE")]
    pub kind: Option<String>,
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

impl Verb for Prefetch {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let name = one_pool(&self.pools, "missing pool name argument")?;
        let kinds: &[&str] = match self.kind.as_deref() {
            None => &["ddt", "brt"],
            Some("ddt") => &["ddt"],
            Some("brt") => &["brt"],
            Some(_) => return Err(Failure::usage("unsupported prefetch type")),
        };
        let pool = named(&name, ctx)?;
        for kind in kinds {
            let cannot = |e: engine::Error| {
                Failure::cannot(&format!("prefetch {kind} in"), &name, e.what()).as_minus_one()
            };
            let view = pool.view().map_err(cannot)?;
            match *kind {
                "ddt" => ddt::prefetch(&view.mos),
                _ => brt::prefetch(&view.mos, view.tree().config.children.iter().map(|child| child.id)),
            }
            .map_err(cannot)?;
        }
        Ok(Exit::OK)
    }
}
