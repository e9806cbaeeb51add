//! `aquifer advise`: estimates what dedup, compression and record sizes would save and cost, from a sample of files.
//!
//! Works on the files of any directory, in the caller's process and with the caller's rights, and on datasets of imported
//! pools, in the daemon. Time is bounded: [`files`] and [`stored`] list files and draw blocks, [`estimate`] turns them into
//! numbers with bounds.

mod equal;
mod estimate;
mod files;
mod measure;
mod stored;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use clikit::ctx::Ctx;
use clikit::output::json::{document, print};
use clikit::output::table::{Column, Table};
use clikit::session::Home;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use serde_json::{Map, Value, json};
use zcommon::units::{nicebytes, parse_nicenum};

use files::Inventory;
use stored::Stored;

/// Say what a property would save and cost here, from a sample.
///
/// Files are listed and blocks of them are read in random order until the time is over. DIRECTORY may be in any file system;
/// a DATASET is a file system or volume of an imported pool, mounted or not. Nothing is changed.
///
/// Blocks have the sizes that files have now. Blocks that a dataset shares already, by clones or dedup tables, do not count as
/// a saving. A user who may not ask the daemon gets advice on the files of a mounted DATASET that the user may read.
///
/// The bounds of compression and recordsize are those of 95 % confidence of the mean of random blocks. Those of dedup hold with
/// high probability: at most everything repeats what was seen, at least each block that was seen once stands for
/// others that are not repeated either; the estimate between them is the guaranteed-error estimator (GEE; Charikar and
/// others, 2000). Once all blocks are read, dedup is exact.
#[derive(Debug, Args)]
pub struct Advise {
    /// The subject of the advice.
    #[arg(value_enum)]
    pub about: About,
    /// Approximate duration in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub time: u64,
    /// The record size that dedup and compression assume; otherwise that of the files, and 128K outside of ZFS.
    #[arg(long, value_name = "SIZE")]
    pub recordsize: Option<String>,
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
    /// A file system or volume, or a directory.
    #[arg(value_name = "DATASET|DIRECTORY")]
    pub name: String,
}

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum About {
    /// Estimate dedup savings
    Dedup,
    /// Compare compression algorithms
    Compression,
    /// Compare record sizes
    Recordsize,
}

/// The files that are looked at, and the dataset that they are in.
struct Place {
    /// `None`: in a dataset of an imported pool.
    path: Option<PathBuf>,
    dataset: Option<String>,
    /// The files are in a ZFS.
    is_zfs: bool,
}

/// The mounts of this process.
fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mounts").unwrap_or_default()
}

/// Where a file system is mounted, and the mount's type: the newest of several, which is visible.
fn mount_of(name: &str) -> Option<(PathBuf, String)> {
    let mounts = mounts();
    let found = mounted(&mounts).filter(|(source, ..)| *source == name).last();
    found.map(|(_, at, kind)| (at, kind.to_owned()))
}

impl Place {
    /// A directory, or a mounted file system.
    fn find(name: &str) -> Result<Self, Failure> {
        let path = Path::new(name);
        if path.is_dir() {
            let path = path.canonicalize().map_err(|e| Failure::cannot("open", name, e))?;
            let mounts = mounts();
            // The innermost mount.
            let within = mounted(&mounts).filter(|(_, at, _)| path.starts_with(at));
            let within = within.max_by_key(|(_, at, _)| at.components().count());
            let dataset =
                within.as_ref().filter(|(_, at, _)| *at == path).map(|(source, ..)| (*source).to_owned());
            return Ok(Self { path: Some(path), dataset, is_zfs: within.is_some() });
        }
        let (at, _) = mount_of(name).ok_or_else(|| {
            Failure::cannot("advise on", name, "it is neither a directory nor a mounted file system")
        })?;
        Ok(Self { path: Some(at), dataset: Some(name.to_owned()), is_zfs: true })
    }

    /// A dataset of an imported pool.
    fn of_dataset(name: &str) -> Self {
        Self { path: None, dataset: Some(name.to_owned()), is_zfs: true }
    }

    /// The directory, as an argument of a command.
    fn mount(&self) -> String {
        let mount = || mount_of(self.target()).map(|(at, _)| at);
        let path = self.path.clone().or_else(mount);
        path.map_or_else(|| "MOUNTPOINT".to_owned(), |path| path.display().to_string())
    }

    /// The dataset, as an argument of a command.
    fn target(&self) -> &str {
        self.dataset.as_deref().unwrap_or("DATASET")
    }
}

/// Sources, places and types of mounts that may be of a ZFS. Spaces and such are escaped in octal.
fn mounted(mounts: &str) -> impl Iterator<Item = (&str, PathBuf, &str)> {
    mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (source, at, kind) = (words.next()?, words.next()?, words.next()?);
        let place = at.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
        (kind == "zfs" || kind.starts_with("fuse")).then(|| (source, PathBuf::from(place), kind))
    })
}

/// A choice and its numbers.
#[derive(Debug)]
struct Choice {
    name: String,
    /// Share of the bytes that is saved, in percent: lower bound, estimate, upper bound.
    saves: [f64; 3],
    /// Its cost, for the table.
    cost: String,
    /// The same as numbers.
    costs: Vec<(&'static str, f64)>,
}

/// An answer.
#[derive(Debug)]
struct Advice {
    choices: Vec<Choice>,
    /// Blocks read, and their bytes.
    blocks: u64,
    bytes: u64,
    /// A sentence.
    says: String,
    /// The command to type.
    command: Option<String>,
}

impl Advise {
    /// Where it runs: a dataset of ours is read by the daemon.
    pub fn home(&self) -> Home {
        let is_of_kernel = || mount_of(&self.name).is_some_and(|(_, kind)| kind == "zfs");
        let is_path = self.name.starts_with(['/', '.']) || Path::new(&self.name).is_dir();
        if is_path || is_of_kernel() {
            return Home::Here;
        }
        // Files of a mount can be read with the caller's rights; others may not ask the daemon.
        match mount_of(&self.name).is_some() && !rustix::process::geteuid().is_root() {
            true => Home::Here,
            false => Home::Daemon,
        }
    }

    fn size(&self) -> Result<Option<u64>, Failure> {
        let Some(text) = &self.recordsize else { return Ok(None) };
        let size = parse_nicenum(text).ok();
        let size = size.filter(|size| size.is_power_of_two() && (512..=16 << 20).contains(size));
        size.map(Some).ok_or_else(|| Failure::usage(format!("invalid record size '{text}'")))
    }

    /// The place and its files.
    fn look(&self, time: Duration, ctx: &mut Ctx) -> Result<(Place, Inventory), Failure> {
        if ctx.session.is_some() {
            let target = Target::of(&self.name, ctx)?;
            // A pool that is imported read-only has mounts only.
            if target.pool.spa().is_ok() {
                let inventory = Stored::open(&target)?.list(time, &ctx.interrupt);
                return Ok((Place::of_dataset(&self.name), inventory));
            }
        }
        let place = Place::find(&self.name)?;
        let top = place.path.clone().unwrap_or_default();
        let inventory = Inventory::of((&top, place.is_zfs), time, &ctx.interrupt);
        Ok((place, inventory))
    }
}

impl Verb for Advise {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let size = self.size()?;
        let time = Duration::from_secs(self.time);
        let (place, inventory) = self.look(time / 3, ctx)?;
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        if inventory.bytes == 0 {
            return Err(Failure::cannot("advise on", &self.name, "no file with data can be read there"));
        }
        let rest = time.saturating_sub(time / 3);
        let advice = match self.about {
            // Blocks of another size than files have are stored nowhere.
            About::Dedup => {
                let own = inventory.files.iter().all(|file| size == Some(file.block));
                let size = if own { None } else { size };
                equal::dedup(&inventory, size, rest, &place, &ctx.interrupt)
            }
            About::Compression => measure::compression(&inventory, size, rest, &place, &ctx.interrupt),
            About::Recordsize => measure::recordsize(&inventory, rest, &place, &ctx.interrupt),
        };
        if advice.blocks == 0 {
            return Err(Failure::cannot("advise on", &self.name, "no block could be read in this time"));
        }
        match self.json {
            true => self.print_json(&inventory, &advice, ctx)?,
            false => print_text(&inventory, &advice, ctx)?,
        }
        Ok(Exit::OK)
    }
}

/// A sentence with the saving of dedup in a dataset of an imported pool, from a sample of about a second.
pub(crate) fn on_dedup(target: &Target, ctx: &Ctx) -> Option<String> {
    const TIME: Duration = Duration::from_millis(500);
    let inventory = Stored::open(target).ok()?.list(TIME, &ctx.interrupt);
    let place = Place::of_dataset(&target.name);
    let advice = equal::dedup(&inventory, None, TIME, &place, &ctx.interrupt);
    let choice = advice.choices.last().filter(|_| advice.blocks > 0)?;
    let [least, mid, most] = choice.saves;
    let (read, name) = (nicebytes(advice.bytes), &target.name);
    let table = choice.costs.iter().find(|(name, _)| *name == "table_bytes").map_or(0.0, |(_, bytes)| *bytes);
    Some(format!(
        "about {mid:.1}% of it is repeated (between {least:.1}% and {most:.1}%, from {read} read), and a table of it would take \
         at least {}: 'aquifer dedup {name}' shares it without a table",
        nicebytes(table as u64)
    ))
}

fn print_text(inventory: &Inventory, advice: &Advice, ctx: &mut Ctx) -> Result<(), Failure> {
    let columns = ["CHOICE", "SAVES", "AT LEAST", "AT MOST"].map(|name| Column::new(name, name != "CHOICE"));
    let columns = columns.into_iter().chain([Column::new("COST", false)]);
    let mut table = Table::new(columns.collect());
    for choice in &advice.choices {
        let [low, mid, high] = choice.saves.map(|percent| format!("{percent:.1}%"));
        table.push(vec![choice.name.clone(), mid, low, high, choice.cost.clone()]);
    }
    table.print(&mut *ctx.out, false)?;
    let files = match inventory.files.len() {
        1 => "1 file".to_owned(),
        files => format!("{files} files"),
    };
    let part = if inventory.is_whole { "" } else { " (not all: the time was over)" };
    writeln!(
        ctx.out,
        "\n{} blocks ({}) read, of {} in {files}{part}.\n{}",
        advice.blocks,
        nicebytes(advice.bytes),
        nicebytes(inventory.bytes),
        advice.says
    )?;
    if let Some(command) = &advice.command {
        writeln!(ctx.out, "  {command}")?;
    }
    Ok(())
}

impl Advise {
    fn print_json(&self, inventory: &Inventory, advice: &Advice, ctx: &mut Ctx) -> Result<(), Failure> {
        let choice = |choice: &Choice| {
            let [low, mid, high] = choice.saves;
            let costs: Map<String, Value> =
                choice.costs.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            json!({ "name": choice.name, "saves_percent": mid, "at_least": low, "at_most": high, "costs": costs })
        };
        let mut document = document(&ctx.command);
        document.insert("files".into(), json!(inventory.files.len()));
        document.insert("bytes".into(), json!(inventory.bytes));
        document.insert("is_whole".into(), json!(inventory.is_whole));
        document.insert("blocks_read".into(), json!(advice.blocks));
        document.insert("bytes_read".into(), json!(advice.bytes));
        document.insert("choices".into(), advice.choices.iter().map(choice).collect());
        document.insert("advice".into(), json!(advice.says));
        document.insert("command".into(), json!(advice.command));
        Ok(print(&mut *ctx.out, &Value::Object(document))?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;
    use stdx::rng::Rng;

    use super::mounted;
    use clikit::testing::run;
    use clikit::verb::Exit;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Rng::new(seed).fill(&mut bytes);
        bytes
    }

    fn asked(about: &str, dir: &std::path::Path) -> Value {
        let line = ["advise", about, "--time", "20", "--recordsize", "16K", "-j"];
        let run = run::<super::Advise>(&[&line[..], &[dir.to_str().unwrap()]].concat());
        assert_eq!(run.exit, Exit::OK, "{}", run.err);
        serde_json::from_str(&run.out).unwrap()
    }

    fn saves(answer: &Value, name: &str) -> [f64; 3] {
        let all = answer["choices"].as_array().unwrap();
        let one = all.iter().find(|choice| choice["name"] == name).unwrap();
        ["at_least", "saves_percent", "at_most"].map(|bound| one[bound].as_f64().unwrap())
    }

    #[test]
    fn repeated_blocks_are_counted_exactly_when_all_are_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        for n in 0..8 {
            // Four contents of four blocks, each twice.
            fs::write(dir.path().join(format!("below/{n}")), noise(n % 4, 4 * 16384)).unwrap();
        }
        let answer = asked("dedup", dir.path());
        assert_eq!(saves(&answer, "on"), [50.0; 3], "{answer}");
        assert_eq!(answer["blocks_read"], 32);
    }

    #[test]
    fn compression_is_estimated_within_its_bounds() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("noise"), noise(1, 64 * 16384)).unwrap();
        fs::write(dir.path().join("zeros"), vec![0; 64 * 16384]).unwrap();
        let answer = asked("compression", dir.path());
        let [low, mid, high] = saves(&answer, "lz4");
        assert!(low <= 50.0 && 50.0 <= high && high - low < 40.0 && (low..=high).contains(&mid), "{answer}");
        assert_eq!(saves(&answer, "off"), [0.0; 3]);
        assert!(asked("recordsize", dir.path())["choices"].as_array().unwrap().len() > 3);
    }

    /// Data that does not compress is stored as it is: no speed of decompression is told. A small sample has each block once.
    #[test]
    fn incompressible_data_is_not_decompressed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("noise"), noise(1, 64 * 16384)).unwrap();
        let answer = asked("compression", dir.path());
        let all = answer["choices"].as_array().unwrap();
        let lz4 = all.iter().find(|choice| choice["name"] == "lz4").unwrap();
        let costs = lz4["costs"].as_object().unwrap();
        assert!(costs.contains_key("write_bytes_per_second_and_core"), "{answer}");
        assert!(!costs.contains_key("read_bytes_per_second_and_core"), "{answer}");
        assert!(answer["blocks_read"].as_u64().unwrap() <= 64, "{answer}");
    }

    #[test]
    fn a_name_that_is_nothing_is_refused() {
        assert_eq!(run::<super::Advise>(&["advise", "dedup", "no/such/place"]).exit, Exit::FAILED);
        assert_eq!(run::<super::Advise>(&["advise", "speed", "/"]).exit, Exit::USAGE);
        let found: Vec<_> = mounted("tank/x /mnt/a\\040b fuse rw 0 0\nproc /proc proc rw 0 0\n").collect();
        assert_eq!(found, [("tank/x", "/mnt/a b".into(), "fuse")]);
    }
}
