//! `bench --dedup DIR [MIB]`: cost and savings of deduplication, compared with the same work without it.
//!
//! A pool gets a dedup table that is ten times larger than the cache. Then the same bytes are written with `dedup=off` and
//! `dedup=sha256` in turns, each several times, both with checksum sha256; a row shows the medians and their ratio. All
//! records of one size differ, or every second one is a copy of an earlier one. In the end the files are removed: until `rm`
//! returns, and until all space is free.

use std::path::Path;
use std::time::{Duration, Instant};

use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::memory::limits::Limit;
use engine::zio::alloc::MetaslabClass;
use engine::{Error, Kind, Result};
use sim::files::{FilePool, POOL, disks};
use sim::world::Shape;
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::NewNode;

use crate::cost::processor;
use crate::say;

/// The cache of decoded blocks.
const ARC: u64 = 8 << 20;
/// Entries of a table whose leaves take ten times as much: a leaf of 32 KiB has some 150.
const ENTRIES: u64 = 10 * ARC / (32 << 10) * 150;
const FILL: u64 = 4 << 10;
const ROUNDS: usize = 3;
const MIB: f64 = 1_048_576.0;
const SHA256: u64 = 8;
const OFF: u64 = 2;
const PIECE: usize = 1 << 20;

struct Bench {
    pool: FilePool,
    random: Vec<u8>,
    rng: Rng,
    files: u64,
    /// Records so far.
    records: u64,
}

/// Measurements of one run.
#[derive(Clone, Copy)]
struct Took {
    wall: Duration,
    cpu: Duration,
}

/// Runs all rows with files of `mib` MiB in `dir`.
pub fn run(dir: &Path, mib: u64) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let env = Env::system(ARC)?;
    // Without a bound for waiting changes, a whole run would be one txg.
    env.memory.set(Limit::DirtyMax, 64 << 20).map_err(|why| Error::new(Kind::Invalid, why))?;
    let pool = FilePool::create(&env, Shape::Single, disks(dir, 1, 64 << 30)?)?;
    let mut random = vec![0; 4 * PIECE];
    Rng::new(1).fill(&mut random);
    let mut bench = Bench { pool, random, rng: Rng::new(3), files: 0, records: 0 };
    bench.set("checksum", SHA256)?;
    bench.fill()?;
    say(&format!(
        "{:<28} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "work", "off s", "dedup s", "off core", "core s", "ratio", "by core"
    ))?;
    for (what, record, doubles) in [
        ("unique, 128K records", 128 << 10, false),
        ("unique, 16K records", 16 << 10, false),
        ("half duplicates, 128K", 128 << 10, true),
        ("half duplicates, 16K", 16 << 10, true),
    ] {
        bench.row(what, mib << 20, record, doubles)?;
    }
    bench.remove(mib << 20)?;
    drop(bench);
    std::fs::remove_file(dir.join("disk1"))?;
    Ok(())
}

impl Bench {
    fn set(&self, name: &'static str, value: u64) -> Result<()> {
        let all = [(name, Some(PropValue::Number(value)))];
        self.pool.spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local))
    }

    /// A table of [`ENTRIES`].
    fn fill(&mut self) -> Result<()> {
        let (start, cpu) = (Instant::now(), processor());
        self.set("dedup", SHA256)?;
        self.set("recordsize", FILL)?;
        for _ in 0..4 {
            self.write(ENTRIES / 4 * FILL, FILL, false)?;
        }
        for _ in 0..40 {
            self.pool.spa.dsl_task(|_| Ok(()))?;
        }
        say(&format!(
            "table of {ENTRIES} entries: {:.1} s, {:.1} s of processor time; cache of {} MiB",
            start.elapsed().as_secs_f64(),
            processor().saturating_sub(cpu).as_secs_f64(),
            ARC >> 20
        ))?;
        self.memory()
    }

    /// The memory that the entries take.
    fn memory(&self) -> Result<()> {
        let spa = &self.pool.spa;
        let counters = spa.shared.dedup_counters();
        let logs = counters.iter().flat_map(|(_, all)| all).filter(|(name, ..)| name.ends_with("_entries"));
        let logged: u64 = logs.map(|(.., count)| *count).sum();
        let held = spa.pool.env.memory.dedup_index_held();
        say(&format!(
            "memory: {:.2} bytes for each entry of the table; {logged} entries in its log, {} bytes each",
            held as f64 / ENTRIES as f64,
            engine::ddt::LOG_ENTRY_BYTES
        ))
    }

    /// A new file of `bytes`, everything on disk; its name.
    fn write(&mut self, bytes: u64, record: u64, doubles: bool) -> Result<String> {
        self.files += 1;
        let name = format!("file{}", self.files);
        let fs = &self.pool.fs;
        let number =
            fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0))?;
        let (mut piece, first) = (vec![0; PIECE], self.records);
        for at in (0..bytes).step_by(PIECE) {
            let shift = usize::try_from(self.rng.below(3 * PIECE as u64)).unwrap_or(0);
            piece.copy_from_slice(self.random.get(shift..shift + PIECE).unwrap_or(&self.random));
            for one in piece.chunks_mut(usize::try_from(record).unwrap_or(PIECE)) {
                let again = doubles && self.records % 2 == 1 && self.records > first + 64;
                let stamp =
                    if again { first + self.rng.below((self.records - first) / 2) * 2 } else { self.records };
                // The stamp decides the content of a record as a whole.
                let shift =
                    usize::try_from(stamp.wrapping_mul(0x9e37_79b9) % (3 * PIECE as u64)).unwrap_or(0);
                one.copy_from_slice(self.random.get(shift..shift + one.len()).unwrap_or_default());
                if let Some((head, _)) = one.split_first_chunk_mut() {
                    *head = (stamp | record << 40).to_le_bytes();
                }
                self.records += 1;
            }
            fs.data().write(number, at, &piece, false)?;
        }
        self.pool.spa.sync()?;
        Ok(name)
    }

    fn row(&mut self, what: &str, bytes: u64, record: u64, doubles: bool) -> Result<()> {
        self.set("recordsize", record)?;
        let mut took = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (value, took) in [OFF, SHA256].into_iter().zip(&mut took) {
                self.set("dedup", value)?;
                let (start, cpu) = (Instant::now(), processor());
                self.write(bytes, record, doubles)?;
                took.push(Took { wall: start.elapsed(), cpu: processor().saturating_sub(cpu) });
            }
        }
        let median = |took: &[Took], part: fn(&Took) -> Duration| {
            let mut all: Vec<f64> = took.iter().map(|t| part(t).as_secs_f64()).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(0.0)
        };
        let [off, on] = &took;
        let [off, on] = [off, on].map(|t| (median(t, |t| t.wall), median(t, |t| t.cpu)));
        say(&format!(
            "{what:<28} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>7.2} {:>7.2}",
            off.0,
            on.0,
            off.1,
            on.1,
            off.0 / on.0,
            off.1 / on.1
        ))
    }

    /// Removes a large file of unique records, without dedup and with it.
    fn remove(&mut self, bytes: u64) -> Result<()> {
        self.set("recordsize", 16 << 10)?;
        for (what, value) in [("off", OFF), ("sha256", SHA256)] {
            self.set("dedup", value)?;
            let name = self.write(bytes, 16 << 10, false)?;
            let used = self.pool.spa.space.class_stats(MetaslabClass::Normal).allocated;
            let (start, cpu) = (Instant::now(), processor());
            let fs = &self.pool.fs;
            fs.dirs().unlink(fs.root, name.as_bytes())?;
            let returned = start.elapsed();
            let mut txgs = 0;
            while self.pool.spa.space.class_stats(MetaslabClass::Normal).allocated + bytes * 9 / 10 > used
                && txgs < 2000
            {
                self.pool.spa.dsl_task(|_| Ok(()))?;
                txgs += 1;
            }
            say(&format!(
                "rm of {:.0} MiB, dedup={what}: returns in {:.3} s, free in {:.2} s ({txgs} txgs, {:.2} s of processor time)",
                bytes as f64 / MIB,
                returned.as_secs_f64(),
                start.elapsed().as_secs_f64(),
                processor().saturating_sub(cpu).as_secs_f64()
            ))?;
        }
        Ok(())
    }
}
