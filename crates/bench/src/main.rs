//! `make bench`, the write path: the write speed of pools, without any mount.
//!
//! ```text
//! bench DIR [MIB]          writes pools on files in DIR, of that many MiB of data each (2048)
//! bench --dedup DIR [MIB]  the same with and without dedup (256): see `dedup`
//! bench --small DIR [FILES]  small operations on one pool (3000): see `small`
//! ```
//!
//! After each work item the same devices get as many bytes and flushes without a pool; the ratio is the part of
//! their speed that the pool achieves. The further columns show the use of time: how long devices were busy, and
//! the cost of compression, checksums and parity of these bytes on one core, measured separately.

mod cost;
mod dedup;
mod device;
mod raw;
mod small;
mod work;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkdev::Device;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::{Error, Kind, Result};
use ondisk::CompressType;
use sim::files::{FilePool, POOL, disks};
use sim::world::Shape;
use stdx::rng::Rng;

use cost::Costs;
use device::{Counting, Counts};
use work::{Load, Work};

const SHAPES: [(&str, Shape); 5] = [
    ("one disk", Shape::Single),
    ("mirror", Shape::Mirror),
    ("raidz1", Shape::Raidz(1)),
    ("raidz2", Shape::Raidz(2)),
    ("raidz3", Shape::Raidz(3)),
];
/// Name, work, compressed, whether the data is compressible.
const WORKS: [(&str, Work, bool, bool); 7] = [
    ("large file", work::sequential, false, false),
    ("large file, lz4", work::compressed, true, true),
    ("small files", work::small_files, false, false),
    ("rewrite 128K", work::rewrite, false, false),
    ("patch 8K", work::patch, false, false),
    ("fsync 4K", work::fsync, false, false),
    ("fsync 4K, 8 callers", work::fsync_many, false, false),
];
const ARC: u64 = 512 << 20;
const MIB: f64 = 1_048_576.0;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let (work, default): (fn(&Path, u64) -> Result<()>, u64) = match args.peek().map(String::as_str) {
        Some("--dedup") => (dedup::run, 256),
        Some("--small") => (small::run, 3000),
        _ => (run, 2048),
    };
    let _ = args.next_if(|arg| arg.starts_with("--"));
    let dir = args.next().map(PathBuf::from);
    let amount = args.next().map_or(Ok(default), |arg| arg.parse::<u64>());
    let done = match (dir, amount) {
        (Some(dir), Ok(amount)) => work(&dir, amount),
        _ => Err(Error::new(Kind::Invalid, "usage: bench [--dedup | --small] DIR [MIB | FILES]")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn load(mib: u64) -> Load {
    let mut random = vec![0; 2 << 20];
    Rng::new(1).fill(&mut random);
    let words: Vec<&str> = include_str!("main.rs").split(' ').collect();
    let mut picks = Rng::new(2);
    let mut text = Vec::with_capacity(2 << 20);
    while text.len() < 2 << 20 {
        let at = usize::try_from(picks.below(words.len() as u64)).unwrap_or(0);
        text.extend_from_slice(words.get(at).copied().unwrap_or_default().as_bytes());
        text.push(b' ');
    }
    Load { random, text, large: mib << 20, small: mib * 10, rewrites: mib * 4, syncs: mib }
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

fn run(dir: &Path, mib: u64) -> Result<()> {
    let load = load(mib);
    std::fs::create_dir_all(dir)?;
    say(
        "ratio: time of the raw devices for as many bytes and flushes, divided by the pool's; core s: of one core",
    )?;
    say(&format!(
        "{:<9} {:<20} {:>7} {:>6} {:>8} {:>8} {:>7}  {:>7} {:>7} {:>7} {:>7} {:>7}",
        "layout",
        "work",
        "MiB",
        "s",
        "MiB/s",
        "disk MiB",
        "ratio",
        "core s",
        "lz4",
        "cksum",
        "parity",
        "busy"
    ))?;
    for (name, shape) in SHAPES {
        layout(dir, name, shape, &load)?;
    }
    Ok(())
}

fn layout(dir: &Path, name: &str, shape: Shape, load: &Load) -> Result<()> {
    let size = (load.large * 6).max(1 << 30);
    let devices: Vec<_> = disks(dir, shape.disks(), size)?.into_iter().map(Counting::new).collect();
    let handed = devices.iter().map(|device| Arc::clone(device) as Device).collect();
    let pool = FilePool::create(&Env::system(ARC)?, shape, handed)?;
    let costs = Costs::measure(shape, &load.random, &load.text);
    for (what, work, lz4, shrinks) in WORKS {
        let number = if lz4 { CompressType::Lz4 } else { CompressType::Off };
        let value = PropValue::Number(number as u64);
        pool.spa
            .dsl_task(move |tasks| tasks.set(POOL, &[("compression", Some(value))], SettingSource::Local))?;
        devices.iter().for_each(|device| {
            device.take();
        });
        let (start, cpu) = (Instant::now(), cost::processor());
        let logical = work(&pool, load)?;
        let (took, cpu) = (start.elapsed(), cost::processor().saturating_sub(cpu));
        let counts: Vec<Counts> = devices.iter().map(|device| device.take()).collect();
        let raw = raw_twin(dir, shape, size, &counts, &load.random)?;
        let done = Done { logical, took, cpu, raw, counts, lz4, shrinks };
        say(&done.row(name, what, shape, &costs))?;
    }
    drop(pool);
    for number in 1..=shape.disks() {
        std::fs::remove_file(dir.join(format!("disk{number}")))?;
    }
    Ok(())
}

fn raw_twin(dir: &Path, shape: Shape, size: u64, counts: &[Counts], block: &[u8]) -> Result<Duration> {
    let beside = dir.join("raw");
    std::fs::create_dir_all(&beside)?;
    let devices = disks(&beside, shape.disks(), size)?;
    let took = raw::twin(&devices, counts, block)?;
    std::fs::remove_dir_all(&beside)?;
    Ok(took)
}

/// A measured work item.
struct Done {
    logical: u64,
    took: Duration,
    cpu: Duration,
    raw: Duration,
    counts: Vec<Counts>,
    lz4: bool,
    shrinks: bool,
}

impl Done {
    fn row(&self, layout: &str, what: &str, shape: Shape, costs: &Costs) -> String {
        let bytes = self.logical as f64;
        let took = self.took.as_secs_f64();
        let disk = self.counts.iter().map(|c| c.written).sum::<u64>() as f64;
        let lz4 = match (self.lz4, self.shrinks) {
            (false, _) => 0.0,
            (true, true) => bytes * costs.lz4.0,
            (true, false) => bytes * costs.lz4.1,
        };
        // Parity is computed from the stored bytes, not from the written ones.
        let copies = if shape == Shape::Mirror { 2.0 } else { 1.0 };
        let redundant = match shape {
            Shape::Raidz(parity) => 1.0 - f64::from(parity) / shape.disks() as f64,
            _ => 1.0 / copies,
        };
        let stored = disk * redundant;
        let busy = self.counts.iter().map(|c| c.busy.as_secs_f64()).fold(0.0, f64::max);
        format!(
            "{layout:<9} {what:<20} {:>7.1} {took:>6.1} {:>8.0} {:>8.0} {:>7.2}  {:>7.2} {lz4:>7.2} {:>7.2} {:>7.2} {busy:>7.2}",
            bytes / MIB,
            bytes / MIB / took,
            disk / MIB,
            self.raw.as_secs_f64() / took,
            self.cpu.as_secs_f64(),
            stored * costs.checksum,
            stored * costs.parity,
        )
    }
}
