//! `aquifer bench`: measures pools on devices, files, a directory or in an existing pool, for users.
//!
//! [`target`] refuses targets in use, [`plan`] chooses sizes, [`tables`] lists the measurements, [`pool`]
//! creates and destroys the pools that they run on, [`work`] is the measured work on a [`store`] (the mount,
//! or the engine in this process). [`scratch`] states what exists outside of this process and how it is
//! removed after a crash.

mod commands;
mod engine;
mod layout;
mod meter;
mod plan;
mod plot;
mod pool;
mod report;
mod sample;
mod scratch;
mod stats;
mod steps;
mod store;
mod tables;
mod target;
mod work;

use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::listing::{Json, Lines};
use clikit::output::json::{JsonStyle, document, print};
use clikit::verb::{Exit, Failure, Outcome, Verb, strerror};
use serde_json::{Map, Value, json};
use zcommon::units::{nicebytes, parse_nicenum};

use commands::Commands;
use layout::Layout;
use meter::Meter;
use plan::Plan;
use report::Results;
use sample::Sample;
use scratch::{PREFIX, Scratch};
use steps::Steps;
use tables::{Place, Tables, Which};
use target::Target;

/// Measure pools on devices, files or a directory, or an existing pool.
///
/// Prints tables of layouts, compression, small files, random I/O and fsync: medians of several runs, half the range of the
/// runs in percent, and the limit that was met (device, cpu), if known.
///
/// The targets are one or more block devices or files, which pools are made of and whose content is lost; or a directory, in
/// which files serve as devices; or an imported pool or file system, below which one dataset is made and destroyed
/// afterwards. Words that begin with / or . are paths. Devices that contain a label, a file system or a partition table are
/// refused unless -f; mounted ones always. Ctrl-C removes everything that was made; what a killed benchmark has left is removed
/// by the next one.
#[derive(Debug, Args)]
pub struct Bench {
    /// Overwrite devices and files that contain something.
    #[arg(short = 'f')]
    pub force: bool,
    /// Small sizes and fewer combinations: about a minute.
    #[arg(long)]
    pub quick: bool,
    /// Tables to measure, separated by commas; all by default.
    #[arg(short = 't', long = "table", value_name = "TABLE", value_enum, value_delimiter = ',')]
    pub tables: Vec<Which>,
    /// Runs of each measurement.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub runs: u64,
    /// Bytes of each large file; by default twice the cache, as far as there is room.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Write these bytes in the table of compression: a file, or the files of a directory (up to 64 MiB).
    #[arg(long, value_name = "FILE|DIR")]
    pub sample: Option<PathBuf>,
    /// Number of files that serve as devices in a directory.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=32))]
    pub devices: u64,
    /// Layout of the tables beside that of layouts: stripe, mirror, mirrors, raidz1, raidz2, raidz3, 2xraidz1, 2xraidz2.
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<String>,
    /// Measure the engine alone, without a mount.
    #[arg(long = "no-mount")]
    pub no_mount: bool,
    /// Write plots to an SVG file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print bars below the tables, as on a terminal.
    #[arg(long)]
    pub plot: bool,
    /// The format of lines.
    #[command(flatten)]
    pub lines: Lines,
    /// JSON instead of lines.
    #[command(flatten)]
    pub json: Json,
    /// Devices, files, a directory, or an imported pool or file system.
    #[arg(value_name = "DEVICE|DIR|DATASET", required = true)]
    pub targets: Vec<String>,
}

/// Facts of the run, for the heading and JSON.
struct About {
    plan: Plan,
    place: String,
    mounts: bool,
}

impl Verb for Bench {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        for line in scratch::sweep() {
            ctx.warn(line);
        }
        let (size, which) = (self.size()?, self.which());
        let target = Target::of(&self.targets)?;
        if let Target::Dataset(name) = &target {
            scratch::sweep_below(name).into_iter().for_each(|line| ctx.warn(line));
        }
        let samples = match &self.sample {
            Some(path) => vec![Sample::of_user(path)?],
            None => vec![Sample::text(), Sample::random()],
        };
        // The file is made first: an unwritable one must not cost a benchmark.
        let svg = self.svg.as_ref().map(|path| {
            let made = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
            made.map_err(|e| Failure::cannot("write", path.display(), strerror(&e))).map(|file| (path, file))
        });
        let svg = svg.transpose()?;
        let mut plan = Plan::new(self.quick, self.runs, size, target::free_memory());
        let devices = self.checked(&target, &mut plan)?;
        let mounts = !self.no_mount && self.can_mount(&target, ctx)?;
        let scratch = Scratch::new()?;
        let done = self.measure(&which, &scratch, (&target, devices), (&plan, mounts), &samples, ctx);
        let cleaned = scratch.finish();
        let (place, results) = match (done, cleaned) {
            (Ok(done), Ok(())) => done,
            (Ok(_), Err(e)) | (Err(e), Ok(())) => return Err(e),
            (Err(first), Err(second)) => {
                ctx.warn(second.message().unwrap_or_default());
                return Err(first);
            }
        };
        if let Some((path, mut file)) = svg {
            let text = plot::svg(&results);
            let written = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
            written.map_err(|e| Failure::cannot("write", path.display(), strerror(&e)))?;
        }
        self.print(&About { plan, place, mounts }, &results, ctx)
    }
}

impl Bench {
    fn size(&self) -> Result<Option<u64>, Failure> {
        let bad = |text: &String| Failure::usage(format!("invalid size '{text}'"));
        self.size.as_ref().map(|text| parse_nicenum(text).map_err(|_| bad(text))).transpose()
    }

    fn which(&self) -> Vec<Which> {
        use clap::ValueEnum;
        let all = Which::value_variants();
        let is_asked = |table: &&Which| self.tables.is_empty() || self.tables.contains(table);
        all.iter().filter(is_asked).copied().collect()
    }

    /// Checks devices and space before anything is made; returns the devices of [`Target::Devices`].
    fn checked(&self, target: &Target, plan: &mut Plan) -> Result<usize, Failure> {
        let chosen = self.size.is_some();
        let count = match target {
            Target::Dataset(name) => {
                check_dataset(name, plan, chosen)?;
                if self.no_mount || self.layout.is_some() {
                    let what = "an imported pool is measured as it is, through its mount: without --no-mount and --layout";
                    return Err(Failure::usage(what));
                }
                return Ok(0);
            }
            Target::Directory(dir) => {
                let count = usize::try_from(self.devices).unwrap_or(1);
                let room = target::free_in(dir)? / self.devices;
                plan.fit(count, room, chosen, &dir.display().to_string())?;
                count
            }
            Target::Devices(paths) => {
                let sizes = paths.iter().map(|path| target::check(path, self.force));
                let least = sizes.collect::<Result<Vec<_>, _>>()?.into_iter().min().unwrap_or(0);
                plan.fit(paths.len(), least, chosen, &self.targets.join(" "))?;
                paths.len()
            }
        };
        self.usual(count).map(|_| count)
    }

    /// The layout of the tables beside that of layouts.
    fn usual(&self, count: usize) -> Result<Layout, Failure> {
        let Some(name) = &self.layout else { return Ok(Layout::usual(count)) };
        Layout::named(name, count).ok_or_else(|| {
            let names: Vec<&str> = Layout::all(count).iter().map(|layout| layout.name).collect();
            Failure::usage(format!("no layout '{name}' of {count} devices; there are: {}", names.join(", ")))
        })
    }

    /// Whether file systems can be mounted; without FUSE, pools of its own are measured without mounts, with a notice.
    fn can_mount(&self, target: &Target, ctx: &mut Ctx) -> Result<bool, Failure> {
        if fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok() {
            return Ok(true);
        }
        if matches!(target, Target::Dataset(_)) {
            return Err(Failure::failed(
                "/dev/fuse cannot be opened: an imported pool is measured through its mount",
            ));
        }
        ctx.warn("bench: /dev/fuse cannot be opened: the engine is measured alone (--no-mount)");
        Ok(false)
    }

    fn measure(
        &self,
        which: &[Which],
        scratch: &Scratch,
        (target, count): (&Target, usize),
        (plan, mounts): (&Plan, bool),
        samples: &[Sample],
        ctx: &mut Ctx,
    ) -> Result<(String, Vec<Results>), Failure> {
        let disks = match target {
            Target::Dataset(_) => Vec::new(),
            Target::Devices(paths) => paths.clone(),
            Target::Directory(dir) => make_disks(scratch, dir, count, plan.disk_size(count))?,
        };
        let (place, said) = match target {
            Target::Dataset(name) => (Place::Within(name.clone()), format!("pool {name}")),
            _ => {
                let layout = self.usual(count)?;
                let said = format!("{count} devices ({}), {}", self.targets.join(" "), layout.name);
                (Place::Disks(disks.clone(), layout), said)
            }
        };
        let total = tables::count(which, plan, &place, samples.len());
        let bench = work::RunClock { meter: Meter::over(&disks), stop: ctx.interrupt.clone() };
        let steps = Steps::new(total, ctx.err_is_terminal);
        let mut tables = Tables { bench: &bench, plan, scratch, place: &place, mounts, samples, steps };
        let results = which.iter().map(|table| tables.measure(*table)).collect::<Result<_, _>>();
        tables.steps.finish();
        Ok((said, results?))
    }

    fn print(&self, about: &About, results: &[Results], ctx: &mut Ctx) -> Outcome {
        if self.json.json {
            let style = JsonStyle { int: self.json.json_int, ..JsonStyle::default() };
            print(&mut *ctx.out, &about.document(results, &style, &ctx.command))?;
            return Ok(Exit::OK);
        }
        if self.lines.scripted {
            results.iter().try_for_each(|table| table.print_lines(&mut *ctx.out, self.lines.literal))?;
            return Ok(Exit::OK);
        }
        writeln!(ctx.out, "{}", about.line())?;
        for table in results {
            writeln!(ctx.out)?;
            table.print(&mut *ctx.out, self.lines.literal)?;
            if self.plot || ctx.out_is_terminal {
                plot::bars(table, &mut *ctx.out)?;
            }
        }
        writeln!(
            ctx.out,
            "\nmedian +-half the range of the runs; device, cpu: busy for at least 90 % of the time"
        )?;
        if !about.plan.exceeds() && about.place.starts_with("pool ") {
            let cache = nicebytes(about.plan.cache);
            writeln!(ctx.out, "cold reads: need a --size above the daemon's cache (zfs_arc_max, {cache})")?;
        }
        Ok(Exit::OK)
    }
}

impl About {
    fn line(&self) -> String {
        let way = if self.mounts { "through the mount" } else { "the engine alone" };
        let (size, cache) = (nicebytes(self.plan.size), nicebytes(self.plan.cache));
        let runs = if self.plan.runs == 1 { "1 run".to_owned() } else { format!("{} runs", self.plan.runs) };
        format!("{}; {way}; files of {size}, cache {cache}, {runs}", self.place)
    }

    fn document(&self, results: &[Results], style: &JsonStyle, command: &str) -> Value {
        let mut doc = document(command);
        let tables: Map<String, Value> =
            results.iter().map(|table| (table.name.to_owned(), table.json(style))).collect();
        let about = json!({
            "target": self.place, "mount": self.mounts, "quick": self.plan.quick,
            "size": style.number(self.plan.size), "cache": style.number(self.plan.cache),
            "runs": style.number(self.plan.runs), "tables": tables,
        });
        doc.insert("bench".to_owned(), about);
        doc.into()
    }
}

/// Checks that an imported file system exists and has room.
fn check_dataset(name: &str, plan: &mut Plan, chosen: bool) -> Result<(), Failure> {
    let user = Commands::of_user();
    let words = ["zfs", "list", "-H", "-p", "-t", "filesystem", "-o", "available", name];
    let free = user.run(&words).map_err(|e| {
        let why = e.message().unwrap_or_default();
        Failure::failed(format!("{why}\n'{name}' is taken as a pool: a path begins with '/' or '.'"))
    })?;
    let cache = user.run(&["get", "-H", "-p", "zfs_arc_max"])?;
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or(0);
    let cache = cache.split('\t').nth(1).map_or(0, number);
    plan.fit_pool(number(&free), cache, chosen, name)
}

/// Makes files that serve as devices.
fn make_disks(scratch: &Scratch, dir: &Path, count: usize, size: u64) -> Result<Vec<PathBuf>, Failure> {
    let own = dir.join(format!("{PREFIX}-{}", std::process::id()));
    let cannot = |e: std::io::Error| Failure::cannot("create", own.display(), strerror(&e));
    if own.exists() {
        return Err(Failure::cannot("create", own.display(), "it exists"));
    }
    scratch.note("disks", &own.display().to_string())?;
    fs::DirBuilder::new().mode(0o700).create(&own).map_err(cannot)?;
    let one = |number: usize| {
        let path = own.join(format!("disk{number}"));
        fs::File::create(&path).and_then(|file| file.set_len(size)).map_err(cannot)?;
        Ok(path)
    };
    (1..=count).map(one).collect()
}
