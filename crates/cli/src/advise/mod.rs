//! `aquifer advise`: estimates what dedup, compression and record sizes would save and cost, from a sample of files.
//!
//! Works on the files of any directory, in the caller's process and with the caller's rights; a dataset is looked at where it
//! is mounted. Time is bounded: [`files`] lists files and draws blocks, [`estimate`] turns them into numbers with bounds.

mod estimate;
mod files;
mod measure;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use zcommon::units::{nicebytes, parse_nicenum};

use crate::ctx::Ctx;
use crate::output::json::{document, print};
use crate::output::table::{Column, Table};
use crate::verb::{Exit, Failure, Outcome, Verb};
use files::Inventory;

/// Say what a property would save and cost here, from a sample.
///
/// Files are listed and blocks of them are read in random order until the time is over. DIRECTORY may be in any file system;
/// a DATASET is looked at where it is mounted. Nothing is changed.
///
/// The bounds of compression and recordsize are those of 95 % confidence of the mean of random blocks. Those of dedup hold with
/// high probability: at most everything repeats what was seen, at least each block that was seen once stands for
/// others that are not repeated either; the estimate between them is the guaranteed-error estimator (GEE; Charikar and
/// others, 2000). Once all blocks are read, dedup is exact.
#[derive(Debug, Args)]
pub struct Advise {
    /// What the advice is about.
    #[arg(value_enum)]
    pub about: About,
    /// Seconds, about.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub time: u64,
    /// The record size that dedup and compression assume.
    #[arg(long, value_name = "SIZE", default_value = "128K")]
    pub recordsize: String,
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
    /// A mounted file system, or a directory.
    #[arg(value_name = "DATASET|DIRECTORY")]
    pub name: String,
}

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum About {
    /// Are there enough equal blocks?
    Dedup,
    /// Which compression?
    Compression,
    /// Which record size?
    Recordsize,
}

/// The files that are looked at, and the dataset that they are in.
struct Place {
    path: PathBuf,
    dataset: Option<String>,
}

impl Place {
    fn find(name: &str) -> Result<Self, Failure> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let path = Path::new(name);
        if path.is_dir() {
            let path = path.canonicalize().map_err(|e| Failure::cannot("open", name, e))?;
            let dataset = mounted(&mounts).find(|(_, at)| *at == path).map(|(source, _)| source.to_owned());
            return Ok(Self { path, dataset });
        }
        // The newest of several mounts of that name is visible.
        let at = mounted(&mounts).filter(|(source, _)| *source == name).last().map(|(_, at)| at);
        let path = at.ok_or_else(|| {
            Failure::cannot("advise on", name, "it is neither a directory nor a mounted file system")
        })?;
        Ok(Self { path, dataset: Some(name.to_owned()) })
    }

    /// The dataset, as an argument of a command.
    fn target(&self) -> &str {
        self.dataset.as_deref().unwrap_or("DATASET")
    }
}

/// Sources and places of mounts. Spaces and such are escaped in octal.
fn mounted(mounts: &str) -> impl Iterator<Item = (&str, PathBuf)> {
    mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (source, at, kind) = (words.next()?, words.next()?, words.next()?);
        let place = at.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
        (kind == "zfs" || kind.starts_with("fuse")).then(|| (source, PathBuf::from(place)))
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

impl Verb for Advise {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let size = parse_nicenum(&self.recordsize).ok();
        let size = size.filter(|size| size.is_power_of_two() && (512..=16 << 20).contains(size));
        let size =
            size.ok_or_else(|| Failure::usage(format!("invalid record size '{}'", self.recordsize)))?;
        let place = Place::find(&self.name)?;
        let time = Duration::from_secs(self.time);
        let inventory = Inventory::of(&place.path, time / 3, &ctx.interrupt);
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        if inventory.bytes == 0 {
            return Err(Failure::cannot("advise on", &self.name, "no file with data can be read there"));
        }
        let rest = time.saturating_sub(time / 3);
        let advice = match self.about {
            About::Dedup => measure::dedup(&inventory, size, rest, &place, &ctx.interrupt),
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

fn print_text(inventory: &Inventory, advice: &Advice, ctx: &mut Ctx) -> Result<(), Failure> {
    let columns = ["CHOICE", "SAVES", "AT LEAST", "AT MOST"].map(|name| Column::new(name, name != "CHOICE"));
    let columns = columns.into_iter().chain([Column::new("COST", false)]);
    let mut table = Table::new(columns.collect());
    for choice in &advice.choices {
        let [low, mid, high] = choice.saves.map(|percent| format!("{percent:.1}%"));
        table.push(vec![choice.name.clone(), mid, low, high, choice.cost.clone()]);
    }
    table.print(&mut *ctx.out, false)?;
    let part = if inventory.is_whole { "" } else { " (not all: the time was over)" };
    writeln!(
        ctx.out,
        "\n{} blocks ({}) read, of {} in {} files{part}.\n{}",
        advice.blocks,
        nicebytes(advice.bytes),
        nicebytes(inventory.bytes),
        inventory.files.len(),
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
    use crate::ctx::testing::captured;
    use crate::verb::Exit;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Rng::new(seed).fill(&mut bytes);
        bytes
    }

    fn asked(about: &str, dir: &std::path::Path) -> Value {
        let line = ["aquifer", "advise", about, "--time", "20", "--recordsize", "16K", "-j"];
        let run = captured(&[&line[..], &[dir.to_str().unwrap()]].concat());
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

    #[test]
    fn a_name_that_is_nothing_is_refused() {
        assert_eq!(captured(&["aquifer", "advise", "dedup", "no/such/place"]).exit, Exit::FAILED);
        assert_eq!(captured(&["aquifer", "advise", "speed", "/"]).exit, Exit::USAGE);
        let found: Vec<_> = mounted("tank/x /mnt/a\\040b fuse rw 0 0\nproc /proc proc rw 0 0\n").collect();
        assert_eq!(found, [("tank/x", "/mnt/a b".into())]);
    }
}
