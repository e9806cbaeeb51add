//! Measurements for each question.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use checksum::Algorithm as Checksum;
use compress::{Algorithm, compress, decompress};
use stdx::rng::Rng;
use zcommon::units::nicebytes;

use super::estimate::{Distinct, Mean};
use super::files::Inventory;
use super::{Advice, Choice, Place};
use crate::interrupt::Interrupt;

/// Sectors of disks: stored sizes are multiples.
const SECTOR: u64 = 4096;
/// Blocks of a sample, at most, and at least before its error is looked at.
const MOST: u64 = 20_000;
const LEAST: u64 = 200;
/// A mean with a smaller error is good enough.
const GOOD: f64 = 0.002;
/// Bytes of an entry of a dedup table: 7 chunks of 24 bytes of a ZAP leaf, for a key of 40 bytes and a flat entry of 72
/// (`ddt_key_t`, `ddt_phys_flat`, `zap_leaf_chunk_t`, OpenZFS 2.3).
const ENTRY: f64 = 168.0;
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
    /// Time of compressing and of decompressing.
    time: [Duration; 2],
}

/// Bytes a second.
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9)
}

impl Kind {
    fn of((name, algorithm, level): (&'static str, Algorithm, u8)) -> Self {
        Self { name, algorithm, level, share: Mean::default(), time: [Duration::ZERO; 2] }
    }

    fn measure(&mut self, data: &[u8]) {
        let started = Instant::now();
        let size = stored(self.algorithm, self.level, data);
        let [writing, reading] = &mut self.time;
        *writing += started.elapsed();
        self.share.add(size as f64 / bytes_of(data).next_multiple_of(SECTOR).max(1) as f64);
        if let Some(small) = compress(self.algorithm, self.level, data, data.len()) {
            let (mut out, started) = (vec![0; data.len()], Instant::now());
            // The block was compressed here, so it can be decompressed; only the time counts.
            let _ = decompress(self.algorithm, &small, &mut out);
            *reading += started.elapsed();
        }
    }

    fn choice(&self, bytes: u64) -> Choice {
        let [write, read] = self.time.map(|time| rate(bytes, time));
        let speed = |rate: f64| format!("{}/s", nicebytes(rate as u64));
        let cost = match self.algorithm {
            Algorithm::Off => "none".to_owned(),
            _ => format!("one core writes {}, reads {}", speed(write), speed(read)),
        };
        let costs =
            vec![("write_bytes_per_second_and_core", write), ("read_bytes_per_second_and_core", read)];
        Choice { name: self.name.to_owned(), saves: self.share.saved(), cost, costs }
    }
}

/// Compares compressions on random blocks.
pub(super) fn compression(
    inventory: &Inventory,
    size: u64,
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
    let (mut blocks, mut bytes, started, mut random) = (0, 0, Instant::now(), Rng::new(2));
    let mut tried = 0;
    while tried < MOST && started.elapsed() < time && !interrupt.is_set() {
        tried += 1;
        let Some(block) = inventory.draw(size, &mut random) else { continue };
        kinds.iter_mut().for_each(|kind| kind.measure(&block.bytes));
        (blocks, bytes) = (blocks + 1, bytes + bytes_of(&block.bytes));
        if blocks >= LEAST && kinds.iter().all(|kind| kind.share.get().1 < GOOD) {
            break;
        }
    }
    let choices: Vec<Choice> = kinds.iter().map(|kind| kind.choice(bytes)).collect();
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
    let target = place.target();
    let command = format!("zfs set compression={best} {target} && zfs rewrite -r {}", place.path.display());
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
    let (mut blocks, mut bytes, started, mut random) = (0, 0, Instant::now(), Rng::new(3));
    let mut tried = 0;
    while tried < MOST && started.elapsed() < time && !interrupt.is_set() {
        tried += 1;
        let Some(window) = inventory.draw(WINDOW, &mut random) else { continue };
        let data = &window.bytes;
        for (size, share, access) in &mut sizes {
            let chunk = usize::try_from(*size).unwrap_or(usize::MAX);
            let used: u64 = data.chunks(chunk).map(|data| stored(Algorithm::Lz4, 0, data) + 128).sum();
            share.add(used as f64 / bytes_of(data).max(1) as f64);
            // A small file is one block of its own size.
            access.add((*size).min(window.of.next_multiple_of(SECTOR)) as f64 / ACCESS as f64);
        }
        (blocks, bytes) = (blocks + 1, bytes + bytes_of(data));
        if blocks >= LEAST && sizes.iter().all(|(_, share, _)| share.get().1 < GOOD) {
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
    Advice {
        choices,
        blocks,
        bytes,
        says: format!("{says} Existing files keep their size."),
        command: Some(command),
    }
}

/// Counts equal blocks among random ones, or among all if there is time.
pub(super) fn dedup(
    inventory: &Inventory,
    size: u64,
    time: Duration,
    place: &Place,
    interrupt: &Interrupt,
) -> Advice {
    // Last block of each file, among all.
    let mut ends = Vec::with_capacity(inventory.files.len());
    let all = inventory.files.iter().fold(0_u64, |all, file| {
        let end = all.saturating_add(file.2.div_ceil(size));
        ends.push(end);
        end
    });
    let (mut distinct, mut blocks, mut bytes) = (Distinct::default(), 0, 0);
    let (started, mut random) = (Instant::now(), Rng::new(4));
    let mut read = |number: u64, blocks: &mut u64, bytes: &mut u64| {
        let at = ends.partition_point(|end| *end <= number);
        let Some(file) = inventory.files.get(at) else { return };
        let before = at.checked_sub(1).and_then(|at| ends.get(at)).copied().unwrap_or(0);
        let Some(block) = inventory.block(file, number.saturating_sub(before), size) else { return };
        (*blocks, *bytes) = (*blocks + 1, *bytes + bytes_of(&block.bytes));
        distinct.add(checksum::digest(Checksum::Sha256, &block.bytes, None, false));
    };
    let is_over = || started.elapsed() >= time || interrupt.is_set();
    // A sample without replacement: random numbers while most are new, then a shuffled list of the others.
    let mut seen = HashSet::new();
    while !is_over() && u64::try_from(seen.len()).unwrap_or(u64::MAX) < (all / 2).min(50_000_000) {
        let number = random.below(all.max(1));
        if seen.insert(number) {
            read(number, &mut blocks, &mut bytes);
        }
    }
    if !is_over() && all < 100_000_000 {
        let mut rest: Vec<u64> = (0..all).filter(|number| !seen.contains(number)).collect();
        while !rest.is_empty() && !is_over() {
            let at = usize::try_from(random.below(u64::try_from(rest.len()).unwrap_or(1))).unwrap_or(0);
            let number = rest.swap_remove(at);
            read(number, &mut blocks, &mut bytes);
        }
    }
    let contents = distinct.get(all);
    let [most, mid, least] =
        contents.map(|contents| (100.0 * (1.0 - contents / all.max(1) as f64)).clamp(0.0, 100.0));
    // Blocks that were not read may all be new.
    let [_, unique, _] = contents;
    let table = unique * ENTRY;
    let cost = format!(
        "a table of at least {} for {unique:.0} blocks, written and read with each of them",
        nicebytes(table as u64)
    );
    let costs = vec![("table_bytes", table), ("table_entries", unique)];
    let choices = vec![
        Choice { name: "off".to_owned(), saves: [0.0; 3], cost: "none".to_owned(), costs: Vec::new() },
        Choice { name: "on".to_owned(), saves: [least, mid, most], cost, costs },
    ];
    let target = place.target();
    let (says, command) = if least >= 20.0 {
        (
            "Much is repeated: sharing it afterwards needs no table, and dedup=on shares new writes at once.",
            Some(format!("aquifer dedup {target}")),
        )
    } else if most < 10.0 {
        ("Little is repeated: dedup would cost more than it saves.", None)
    } else {
        (
            "Sharing afterwards needs no table; a dry run counts exactly what is equal.",
            Some(format!("aquifer dedup -n {target}")),
        )
    };
    Advice { choices, blocks, bytes, says: says.to_owned(), command }
}
