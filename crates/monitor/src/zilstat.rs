//! `zilstat`: statistics of intent logs, of all of them together or of single datasets.
//!
//! Differs from OpenZFS: a dataset that is not open has no row; with `-i` one that is opened meanwhile counts from 0; intervals
//! may have decimals.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::repeat::sleep;
use clikit::session::Home;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Registry;
use daemon::registry::BEING_IMPORTED;

use super::arcstat::clock;
use super::kstat::of_daemon;
use super::number::shortened;
use super::zil::ZilSample;

/// Print statistics of intent logs.
#[derive(Debug, Args)]
pub struct Zilstat {
    /// List the columns and their meanings.
    #[arg(short = 'v', long = "verbose")]
    pub explain: bool,
    /// Print a row for each dataset.
    #[arg(short = 'a', long = "all", group = "of")]
    pub all: bool,
    /// Print a row for each dataset of this pool.
    #[arg(short = 'p', long = "pool", value_name = "POOL", group = "of")]
    pub pool: Option<String>,
    /// Print a row for each of these datasets.
    #[arg(short = 'd', long = "dataset", value_name = "DATASET,…", value_delimiter = ',', group = "of")]
    pub datasets: Vec<String>,
    /// Print these columns.
    #[arg(short = 'f', long = "columns", value_name = "FIELD,…", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Column separator.
    #[arg(short = 's', long = "separator", value_name = "STRING", default_value = "  ")]
    pub separator: String,
    /// Print the statistics of each interval of so many seconds, until interrupted.
    #[arg(short = 'i', long = "interval", value_name = "SECONDS")]
    pub interval: Option<f64>,
}

/// The content of a column: sums of counters, or a ratio of two sums.
#[derive(Debug, Clone, Copy)]
enum Shows {
    Time,
    Pool,
    Dataset,
    Objset,
    Count(&'static [&'static str]),
    Bytes(&'static [&'static str]),
    Percent(&'static [&'static str], &'static [&'static str]),
}

/// A column.
#[derive(Debug, Clone, Copy)]
struct Column {
    name: &'static str,
    width: usize,
    about: &'static str,
    shows: Shows,
}

const fn col(name: &'static str, width: usize, about: &'static str, shows: Shows) -> Column {
    Column { name, width, about, shows }
}

use Shows::{Bytes, Count, Percent};

const DATA: &[&str] = &["zil_itx_copied_count", "zil_itx_needcopy_count"];
const DATA_BYTES: &[&str] = &["zil_itx_copied_bytes", "zil_itx_needcopy_bytes"];
const WRITES: &[&str] = &["zil_itx_indirect_count", "zil_itx_copied_count", "zil_itx_needcopy_count"];
const WRITE_BYTES: &[&str] = &["zil_itx_indirect_bytes", "zil_itx_copied_bytes", "zil_itx_needcopy_bytes"];
const NORMAL_BYTES: &[&str] = &["zil_itx_metaslab_normal_bytes"];
const NORMAL_WRITE: &[&str] = &["zil_itx_metaslab_normal_write"];
const NORMAL_ALLOC: &[&str] = &["zil_itx_metaslab_normal_alloc"];
const SLOG_BYTES: &[&str] = &["zil_itx_metaslab_slog_bytes"];
const SLOG_WRITE: &[&str] = &["zil_itx_metaslab_slog_write"];
const SLOG_ALLOC: &[&str] = &["zil_itx_metaslab_slog_alloc"];
const BLOCKS: &[&str] = &["zil_itx_metaslab_normal_count", "zil_itx_metaslab_slog_count"];
const BLOCK_BYTES: &[&str] = &["zil_itx_metaslab_normal_bytes", "zil_itx_metaslab_slog_bytes"];
const BLOCK_WRITE: &[&str] = &["zil_itx_metaslab_normal_write", "zil_itx_metaslab_slog_write"];
const BLOCK_ALLOC: &[&str] = &["zil_itx_metaslab_normal_alloc", "zil_itx_metaslab_slog_alloc"];

/// All columns, as `-v` lists them.
const COLUMNS: &[Column] = &[
    col("time", 8, "time", Shows::Time),
    col("pool", 12, "pool", Shows::Pool),
    col("ds", 12, "dataset_name", Shows::Dataset),
    col("obj", 12, "objset", Shows::Objset),
    col("cc", 5, "zil_commit_count", Count(&["zil_commit_count"])),
    col("cwc", 5, "zil_commit_writer_count", Count(&["zil_commit_writer_count"])),
    col("cec", 5, "zil_commit_error_count", Count(&["zil_commit_error_count"])),
    col("csc", 5, "zil_commit_stall_count", Count(&["zil_commit_stall_count"])),
    col("cSc", 5, "zil_commit_suspend_count", Count(&["zil_commit_suspend_count"])),
    col("cCc", 5, "zil_commit_crash_count", Count(&["zil_commit_crash_count"])),
    col("ic", 5, "zil_itx_count", Count(&["zil_itx_count"])),
    col("iic", 5, "zil_itx_indirect_count", Count(&["zil_itx_indirect_count"])),
    col("iib", 5, "zil_itx_indirect_bytes", Bytes(&["zil_itx_indirect_bytes"])),
    col("icc", 5, "zil_itx_copied_count", Count(&["zil_itx_copied_count"])),
    col("icb", 5, "zil_itx_copied_bytes", Bytes(&["zil_itx_copied_bytes"])),
    col("inc", 5, "zil_itx_needcopy_count", Count(&["zil_itx_needcopy_count"])),
    col("inb", 5, "zil_itx_needcopy_bytes", Bytes(&["zil_itx_needcopy_bytes"])),
    col("idc", 5, "icc+inc", Count(DATA)),
    col("idb", 5, "icb+inb", Bytes(DATA_BYTES)),
    col("iwc", 5, "iic+idc", Count(WRITES)),
    col("iwb", 5, "iib+idb", Bytes(WRITE_BYTES)),
    col("imnc", 6, "zil_itx_metaslab_normal_count", Count(&["zil_itx_metaslab_normal_count"])),
    col("imnb", 6, "zil_itx_metaslab_normal_bytes", Bytes(NORMAL_BYTES)),
    col("imnw", 6, "zil_itx_metaslab_normal_write", Bytes(NORMAL_WRITE)),
    col("imna", 6, "zil_itx_metaslab_normal_alloc", Bytes(NORMAL_ALLOC)),
    col("imsc", 6, "zil_itx_metaslab_slog_count", Count(&["zil_itx_metaslab_slog_count"])),
    col("imsb", 6, "zil_itx_metaslab_slog_bytes", Bytes(SLOG_BYTES)),
    col("imsw", 6, "zil_itx_metaslab_slog_write", Bytes(SLOG_WRITE)),
    col("imsa", 6, "zil_itx_metaslab_slog_alloc", Bytes(SLOG_ALLOC)),
    col("imc", 5, "imnc+imsc", Count(BLOCKS)),
    col("imb", 5, "imnb+imsb", Bytes(BLOCK_BYTES)),
    col("imw", 5, "imnw+imsw", Bytes(BLOCK_WRITE)),
    col("ima", 5, "imna+imsa", Bytes(BLOCK_ALLOC)),
    col("se%", 3, "imb/ima", Percent(BLOCK_BYTES, BLOCK_ALLOC)),
    col("sen%", 4, "imnb/imna", Percent(NORMAL_BYTES, NORMAL_ALLOC)),
    col("ses%", 4, "imsb/imsa", Percent(SLOG_BYTES, SLOG_ALLOC)),
    col("te%", 3, "imb/imw", Percent(BLOCK_BYTES, BLOCK_WRITE)),
    col("ten%", 4, "imnb/imnw", Percent(NORMAL_BYTES, NORMAL_WRITE)),
    col("tes%", 4, "imsb/imsw", Percent(SLOG_BYTES, SLOG_WRITE)),
];

/// The columns without `-f`: of all logs, and of datasets.
const OF_ALL: &str = "time,cc,ic,idc,idb,iic,iib,imnc,imnw,imsc,imsw";
const OF_DATASETS: &str = "time,ds,cc,ic,idc,idb,iic,iib,imnc,imnw,imsc,imsw";

impl Zilstat {
    /// The process in which it runs.
    pub fn home(&self) -> Home {
        if self.explain { Home::Here } else { Home::Pools }
    }

    fn is_of_all(&self) -> bool {
        !self.all && self.pool.is_none() && self.datasets.is_empty()
    }
}

impl Verb for Zilstat {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.explain {
            writeln!(ctx.out, "Field definitions are as follows:")?;
            COLUMNS
                .iter()
                .try_for_each(|column| writeln!(ctx.out, "{:>11} : {}", column.name, column.about))?;
            return Ok(Exit::OK);
        }
        let columns = self.columns()?;
        let interval = match self.interval {
            None => None,
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .ok()
                    .filter(|interval| !interval.is_zero())
                    .ok_or_else(|| Failure::usage("interval must be a number above 0"))?,
            ),
        };
        let registry = of_daemon(ctx)?;
        let mut before = self.samples(&registry)?;
        if before.is_empty() && interval.is_none() {
            return Err(Failure::failed("no dataset is open"));
        }
        let heading = |column: &Column| match column.shows {
            Count(_) | Bytes(_) if interval.is_some() => format!("{}/s", column.name),
            _ => column.name.to_owned(),
        };
        self.line(&columns, ctx, &heading)?;
        let Some(interval) = interval else {
            return self.rows(&columns, &before, 1.0, ctx);
        };
        let mut since = Instant::now();
        loop {
            sleep(interval, ctx)?;
            let (after, now) = (self.samples(&registry)?, Instant::now());
            let grown: Vec<ZilSample> = after.iter().map(|sample| grown(sample, &before)).collect();
            self.rows(&columns, &grown, now.duration_since(since).as_secs_f64(), ctx)?;
            ctx.out.flush()?;
            (before, since) = (after, now);
        }
    }
}

/// The growth of a sample's counters since the samples `before`.
fn grown(sample: &ZilSample, before: &[ZilSample]) -> ZilSample {
    let old = before.iter().find(|old| (old.number, &old.dataset) == (sample.number, &sample.dataset));
    // The counters of a dataset that was closed and opened meanwhile begin at 0.
    let since = |(name, count): &(&'static str, u64)| {
        let old = old.map_or(0, |old| old.get(name));
        (*name, count.checked_sub(old).unwrap_or(*count))
    };
    ZilSample { counts: sample.counts.iter().map(since).collect(), ..sample.clone() }
}

impl Zilstat {
    fn columns(&self) -> Result<Vec<Column>, Failure> {
        let usual = if self.is_of_all() { OF_ALL } else { OF_DATASETS };
        let names: Vec<&str> = match self.fields.as_slice() {
            [] => usual.split(',').collect(),
            fields => fields.iter().map(String::as_str).collect(),
        };
        let named = |name: &&str| COLUMNS.iter().find(|column| column.name == *name).copied();
        let unknown: Vec<&str> = names.iter().copied().filter(|name| named(name).is_none()).collect();
        if !unknown.is_empty() {
            return Err(Failure::failed(format!("Invalid column definition! -- {unknown:?}")));
        }
        Ok(names.iter().filter_map(named).collect())
    }

    /// The counters now: of all logs, or of each dataset that was asked for.
    fn samples(&self, registry: &Registry) -> Result<Vec<ZilSample>, Failure> {
        if self.is_of_all() {
            return Ok(vec![ZilSample::all_logs(registry)]);
        }
        let pools = registry.all();
        if let Some(name) = &self.pool {
            let pool = pools.iter().find(|pool| pool.name() == *name);
            let missing = || match registry.is_coming(name) {
                true => Failure::cannot("open", name, BEING_IMPORTED),
                false => Failure::failed(format!("Pool \"{name}\" does not exist")),
            };
            return ZilSample::of_pool(pool.ok_or_else(missing)?);
        }
        let mut all = Vec::new();
        for pool in &pools {
            all.extend(ZilSample::of_pool(pool)?);
        }
        if self.all {
            return Ok(all);
        }
        let name_of = |sample: &ZilSample| sample.dataset.clone().map_or_else(String::new, |(_, name)| name);
        let chosen = self.datasets.iter().map(|wanted| {
            let found = all.iter().find(|sample| name_of(sample) == *wanted).cloned();
            found.ok_or_else(|| {
                Failure::failed(format!("dataset \"{wanted}\" does not exist, or is not open"))
            })
        });
        chosen.collect()
    }

    fn line(
        &self,
        columns: &[Column],
        ctx: &mut Ctx,
        cell: &dyn Fn(&Column) -> String,
    ) -> Result<(), Failure> {
        for column in columns {
            write!(ctx.out, "{:>width$}{}", cell(column), self.separator, width = column.width)?;
        }
        Ok(writeln!(ctx.out)?)
    }

    /// A row for each sample, of counters divided by `seconds`.
    fn rows(&self, columns: &[Column], samples: &[ZilSample], seconds: f64, ctx: &mut Ctx) -> Outcome {
        let clock = clock();
        for sample in samples {
            self.line(columns, ctx, &|column| column.cell(sample, seconds, &clock))?;
        }
        Ok(Exit::OK)
    }
}

impl Column {
    fn cell(&self, sample: &ZilSample, seconds: f64, clock: &str) -> String {
        let sum = |names: &[&str]| names.iter().map(|name| sample.get(name)).fold(0, u64::saturating_add);
        let rate = |names: &[&str]| (sum(names) as f64 / seconds) as u64;
        let of = |part: fn(&(String, String)) -> &String| {
            sample.dataset.as_ref().map_or_else(|| "GLOBAL".to_owned(), |both| part(both).clone())
        };
        match self.shows {
            Shows::Time => clock.to_owned(),
            Shows::Pool => of(|(pool, _)| pool),
            Shows::Dataset => of(|(_, dataset)| dataset),
            Shows::Objset if sample.dataset.is_none() => "GLOBAL".to_owned(),
            Shows::Objset => format!("{:#x}", sample.number),
            Count(names) => shortened(rate(names), 1000.0),
            Bytes(names) => shortened(rate(names), 1024.0),
            Percent(part, whole) => {
                let (part, whole) = (u128::from(sum(part)), u128::from(sum(whole)));
                (part * 100).checked_div(whole).unwrap_or(100).to_string()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: u64, commits: u64) -> ZilSample {
        let counts = vec![
            ("zil_commit_count", commits),
            ("zil_itx_metaslab_normal_bytes", 3000),
            ("zil_itx_metaslab_normal_alloc", 4096),
        ];
        ZilSample { dataset: Some(("tank".into(), "tank/a".into())), number, counts }
    }

    #[test]
    fn columns_are_sums_and_ratios_of_counters() {
        let cell = |name: &str, seconds: f64| {
            let column = COLUMNS.iter().find(|column| column.name == name).unwrap();
            column.cell(&sample(54, 12_345), seconds, "00:00:01")
        };
        assert_eq!([cell("obj", 1.0), cell("ds", 1.0), cell("cc", 1.0)], ["0x36", "tank/a", "12K"]);
        assert_eq!([cell("cc", 10.0), cell("ima", 1.0), cell("se%", 1.0)], ["1.2K", "4.0K", "73"]);
        assert_eq!([cell("ses%", 1.0), cell("imsc", 1.0)], ["100", "0"]);
    }

    #[test]
    fn counters_that_began_anew_count_from_zero() {
        let before = [sample(54, 100)];
        assert_eq!(grown(&sample(54, 130), &before).get("zil_commit_count"), 30);
        assert_eq!(grown(&sample(54, 7), &before).get("zil_commit_count"), 7);
        assert_eq!(grown(&sample(55, 9), &before).get("zil_commit_count"), 9);
    }
}
