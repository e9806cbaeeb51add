//! Measurements for each question.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use clikit::interrupt::Interrupt;
use compress::{Algorithm, compress, decompress};
use stdx::rng::Rng;
use zcommon::units::nicebytes;

use super::estimate::Mean;
use super::files::{Block, Inventory};
use super::{Advice, Choice, Place};

/// Sectors of disks: stored sizes are multiples.
const SECTOR: u64 = 4096;
/// Blocks of a sample, at most, and at least before its error is looked at.
const MOST: u64 = 20_000;
const LEAST: u64 = 200;
/// A mean with a smaller error is good enough.
const GOOD: f64 = 0.002;
/// Bytes of a small random access, for the cost of record sizes.
const ACCESS: u64 = 8 << 10;

fn bytes_of(data: &[u8]) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

/// Bytes that a block takes on disk when `algorithm` compresses it.
fn stored(algorithm: Algorithm, level: u8, data: &[u8]) -> u64 {
    let plain = bytes_of(data).next_multiple_of(SECTOR);
    if algorithm == Algorithm::Off {
        return plain;
    }
    if data.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let room = data.len() - data.len() / 8;
    compress(algorithm, level, data, room)
        .map_or(plain, |small| bytes_of(&small).next_multiple_of(SECTOR).min(plain))
}

/// A kind of compression, and its measurements.
struct Kind {
    name: &'static str,
    algorithm: Algorithm,
    level: u8,
    share: Mean,
    /// Time of compressing and of decompressing, and the bytes of each.
    time: [(Duration, u64); 2],
}

/// Bytes a second.
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9)
}

impl Kind {
    fn of((name, algorithm, level): (&'static str, Algorithm, u8)) -> Self {
        Self { name, algorithm, level, share: Mean::default(), time: [(Duration::ZERO, 0); 2] }
    }

    fn measure(&mut self, data: &[u8]) {
        let started = Instant::now();
        let size = stored(self.algorithm, self.level, data);
        let [writing, reading] = &mut self.time;
        *writing = (writing.0 + started.elapsed(), writing.1 + bytes_of(data));
        self.share.add(size as f64 / bytes_of(data).next_multiple_of(SECTOR).max(1) as f64);
        if let Some(small) = compress(self.algorithm, self.level, data, data.len()) {
            let (mut out, started) = (vec![0; data.len()], Instant::now());
            // The block was compressed here, so it can be decompressed; only the time counts.
            let _ = decompress(self.algorithm, &small, &mut out);
            *reading = (reading.0 + started.elapsed(), reading.1 + bytes_of(data));
        }
    }

    fn choice(&self) -> Choice {
        let speed = |rate: f64| format!("{}/s", nicebytes(rate as u64));
        // Blocks that do not compress are stored, and read, as they are.
        let [write, read] = self.time.map(|(time, bytes)| (bytes > 0).then(|| rate(bytes, time)));
        let cost = match (self.algorithm, write, read) {
            (Algorithm::Off, ..) | (_, None, _) => "none".to_owned(),
            (_, Some(write), None) => format!("one core writes {}", speed(write)),
            (_, Some(write), Some(read)) => {
                format!("one core writes {}, reads {}", speed(write), speed(read))
            }
        };
        let names = ["write_bytes_per_second_and_core", "read_bytes_per_second_and_core"];
        let costs =
            names.into_iter().zip([write, read]).filter_map(|(name, rate)| Some((name, rate?))).collect();
        Choice { name: self.name.to_owned(), saves: self.share.saved(), cost, costs }
    }
}

/// Blocks that were drawn, some of them more than once.
#[derive(Debug, Default)]
struct Drawn {
    draws: u64,
    bytes: u64,
    seen: HashSet<(usize, u64)>,
}

impl Drawn {
    fn add(&mut self, block: &Block) {
        self.draws += 1;
        if self.seen.insert(block.at) {
            self.bytes += bytes_of(&block.bytes);
        }
    }

    /// Different blocks, and their bytes.
    fn all(&self) -> (u64, u64) {
        (u64::try_from(self.seen.len()).unwrap_or(u64::MAX), self.bytes)
    }
}

/// Compares compressions on random blocks.
pub(super) fn compression(
    inventory: &Inventory,
    size: Option<u64>,
    time: Duration,
    place: &Place,
    interrupt: &Interrupt,
) -> Advice {
    let mut kinds = [
        ("off", Algorithm::Off, 0),
        ("lz4", Algorithm::Lz4, 0),
        ("zstd", Algorithm::Zstd, 0),
        ("gzip", Algorithm::Gzip, 0),
    ]
    .map(Kind::of);
    let (mut drawn, started, mut random) = (Drawn::default(), Instant::now(), Rng::new(2));
    let mut tried = 0;
    while tried < MOST && started.elapsed() < time && !interrupt.is_set() {
        tried += 1;
        let Some(block) = inventory.draw(size, &mut random) else { continue };
        kinds.iter_mut().for_each(|kind| kind.measure(&block.bytes));
        drawn.add(&block);
        if drawn.draws >= LEAST && kinds.iter().all(|kind| kind.share.get().1 < GOOD) {
            break;
        }
    }
    let choices: Vec<Choice> = kinds.iter().map(Kind::choice).collect();
    let saved = |name: &str| {
        choices.iter().find(|c| c.name == name).map_or(0.0, |c| c.saves.get(1).copied().unwrap_or(0.0))
    };
    let (lz4, zstd) = (saved("lz4"), saved("zstd"));
    // zstd takes several times the time of lz4: it has to save a tenth more of the bytes.
    let (best, says) = if zstd - lz4 >= 10.0 {
        ("zstd", "zstd saves much more than lz4, and takes more time.")
    } else {
        (
            "lz4",
            "lz4 saves nearly as much as others, and costs least; it stops early on data that does not compress.",
        )
    };
    let (target, at) = (place.target(), place.mount());
    let command = format!("zfs set compression={best} {target} && zfs rewrite -r {at}");
    let (blocks, bytes) = drawn.all();
    Advice { choices, blocks, bytes, says: says.to_owned(), command: Some(command) }
}

/// Compares record sizes on random windows, compressed by lz4.
pub(super) fn recordsize(
    inventory: &Inventory,
    time: Duration,
    place: &Place,
    interrupt: &Interrupt,
) -> Advice {
    const WINDOW: u64 = 1 << 20;
    let mut sizes: Vec<(u64, Mean, Mean)> =
        (14..=20).map(|shift| (1 << shift, Mean::default(), Mean::default())).collect();
    let (mut drawn, started, mut random) = (Drawn::default(), Instant::now(), Rng::new(3));
    let mut tried = 0;
    while tried < MOST && started.elapsed() < time && !interrupt.is_set() {
        tried += 1;
        let Some(window) = inventory.draw(Some(WINDOW), &mut random) else { continue };
        let data = &window.bytes;
        for (size, share, access) in &mut sizes {
            let chunk = usize::try_from(*size).unwrap_or(usize::MAX);
            let used: u64 = data.chunks(chunk).map(|data| stored(Algorithm::Lz4, 0, data) + 128).sum();
            share.add(used as f64 / bytes_of(data).max(1) as f64);
            // A small file is one block of its own size.
            access.add((*size).min(window.of.next_multiple_of(SECTOR)) as f64 / ACCESS as f64);
        }
        drawn.add(&window);
        if drawn.draws >= LEAST && sizes.iter().all(|(_, share, _)| share.get().1 < GOOD) {
            break;
        }
    }
    let choice = |(size, share, access): &(u64, Mean, Mean)| {
        let factor = access.get().0.max(1.0);
        let cost = format!("a random access of 8K reads or writes {factor:.1} times as much");
        let costs = vec![("times_of_random_8k", factor)];
        Choice { name: nicebytes(*size).to_string(), saves: share.saved(), cost, costs }
    };
    let choices: Vec<Choice> = sizes.iter().map(choice).collect();
    let saved = |at: usize| choices.get(at).and_then(|c| c.saves.get(1)).copied().unwrap_or(0.0);
    let gain = saved(6) - saved(3);
    let (best, says) = if gain >= 5.0 {
        (
            "1M",
            "1M saves more than 128K. Files that are changed in small pieces (databases, disk images) need a size near that of the piece instead.",
        )
    } else {
        (
            "128K",
            "128K is as good as more. Files that are changed in small pieces (databases, disk images) need a size near that of the piece instead.",
        )
    };
    let command = format!("zfs set recordsize={best} {}", place.target());
    let (blocks, bytes) = drawn.all();
    let rewrite = format!("'zfs rewrite -r --recordsize {}' gives it to existing files.", place.mount());
    Advice { choices, blocks, bytes, says: format!("{says} {rewrite}"), command: Some(command) }
}
