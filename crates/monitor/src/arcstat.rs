//! `arcstat` (`zarcstat`): cache statistics, a line per interval.
//!
//! Differs from OpenZFS: intervals may have decimals; counters without a counterpart here (streams of read-ahead,
//! targets of single lists, parts without memory of their own) have no column.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::time::time_of_day;
use clikit::repeat::sleep;
use clikit::session::Home;
use clikit::verb::{Exit, Failure, Outcome, Verb};

use super::columns::{COLUMNS, Column, EXTENDED, Span, USUAL};
use super::kstat::{Arcstats, of_daemon};

/// Lines between two headings.
const HEADING: u64 = 20;

/// Print cache statistics at intervals.
#[derive(Debug, Args)]
pub struct Arcstat {
    /// Print all columns.
    #[arg(short = 'a')]
    pub all: bool,
    /// Print extended columns.
    #[arg(short = 'x')]
    pub extended: bool,
    /// Print these columns.
    #[arg(short = 'f', value_name = "FIELD,…", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// List the columns and their meanings.
    #[arg(short = 'v')]
    pub explain: bool,
    /// Write to this file.
    #[arg(short = 'o', value_name = "FILE")]
    pub output: Option<String>,
    /// Column separator.
    #[arg(short = 's', value_name = "STRING", default_value = "  ")]
    pub separator: String,
    /// Exact numbers, not aligned.
    #[arg(short = 'p')]
    pub literal: bool,
    /// Seconds between two lines; without it there is one line.
    #[arg(value_name = "INTERVAL")]
    pub interval: Option<f64>,
    /// Number of lines.
    #[arg(value_name = "COUNT")]
    pub count: Option<u64>,
}

impl Arcstat {
    /// The process in which it runs.
    pub fn home(&self) -> Home {
        if self.explain { Home::Here } else { Home::Pools }
    }

    fn columns(&self) -> Result<Vec<Column>, Failure> {
        if self.all {
            return Ok(COLUMNS.to_vec());
        }
        let usual = if self.extended { EXTENDED } else { USUAL };
        let names: Vec<&str> = match self.fields.as_slice() {
            [] => usual.split(',').collect(),
            fields => fields.iter().map(String::as_str).collect(),
        };
        let unknown: Vec<&str> = names.iter().copied().filter(|name| Column::named(name).is_none()).collect();
        if !unknown.is_empty() {
            return Err(Failure::failed(format!("Invalid column definition! -- {unknown:?}")));
        }
        Ok(names.into_iter().filter_map(Column::named).collect())
    }
}

impl Verb for Arcstat {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.explain {
            for column in COLUMNS {
                writeln!(ctx.out, "{:>11} : {}", column.name, column.about)?;
            }
            return Ok(Exit::OK);
        }
        let columns = self.columns()?;
        let interval = Duration::try_from_secs_f64(self.interval.unwrap_or(1.0)).ok();
        let interval = interval.filter(|interval| !interval.is_zero());
        let interval = interval.ok_or_else(|| Failure::usage("interval must be a number above 0"))?;
        let count = self.count.or(self.interval.is_none().then_some(1));
        let registry = of_daemon(ctx)?;
        let mut file = match &self.output {
            Some(path) => {
                let path = ctx.session()?.path(path);
                let cannot = |e| Failure::failed(format!("Cannot open {} for writing: {e}", path.display()));
                Some(File::create(&path).map_err(cannot)?)
            }
            None => None,
        };
        let (mut before, mut since) = (Arcstats::of(&registry), Instant::now());
        let mut made = 0;
        while count.is_none_or(|count| made < count) {
            sleep(interval, ctx)?;
            let (after, now) = (Arcstats::of(&registry), Instant::now());
            let seconds = now.duration_since(since).as_secs_f64();
            let span = Span { before, after, seconds, clock: clock() };
            let heading = made % HEADING == 0 && (made == 0 || !self.literal);
            let text = self.lines(&columns, &span, heading);
            match &mut file {
                Some(file) => file.write_all(text.as_bytes())?,
                None => {
                    ctx.out.write_all(text.as_bytes())?;
                    ctx.out.flush()?;
                }
            }
            (before, since, made) = (span.after, now, made + 1);
        }
        Ok(Exit::OK)
    }
}

/// The time of day, for a line of a report.
pub(super) fn clock() -> String {
    time_of_day(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

impl Arcstat {
    fn lines(&self, columns: &[Column], span: &Span, heading: bool) -> String {
        let line = |cell: &dyn Fn(&Column) -> String| {
            let cells = columns.iter().map(|column| match self.literal {
                true => cell(column),
                false => format!("{:>width$}", cell(column), width = column.width()),
            });
            cells.collect::<Vec<_>>().join(&self.separator) + "\n"
        };
        let head = if heading { line(&|column| column.name.to_owned()) } else { String::new() };
        head + &line(&|column| column.cell(span, self.literal))
    }
}
