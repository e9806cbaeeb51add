//! How many blocks are equal, from a sample.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use checksum::Algorithm as Checksum;
use clikit::interrupt::Interrupt;
use ondisk::Blkptr;
use stdx::rng::Rng;
use zcommon::units::nicebytes;

use super::estimate::Distinct;
use super::files::{Inventory, Origin};
use super::{Advice, Choice, Place};

/// Bytes of an entry of a dedup table: 7 chunks of 24 bytes of a ZAP leaf, for a key of 40 bytes and a flat entry of 72
/// (`ddt_key_t`, `ddt_phys_flat`, `zap_leaf_chunk_t`, OpenZFS 2.3).
const ENTRY: f64 = 168.0;

/// A fingerprint.
type Print = [u64; 4];

/// The blocks that were read.
#[derive(Debug, Default)]
struct Sample {
    blocks: u64,
    bytes: u64,
    /// Of blocks in directories: their contents.
    contents: Distinct,
    /// Of blocks in a dataset: their contents and where they are stored.
    stored: Vec<(Print, Blkptr)>,
    /// Holes of files in a dataset.
    holes: u64,
    /// Blocks have a size that was asked for, not that of the files: they are stored nowhere.
    is_cut: bool,
}

impl Sample {
    fn read(&mut self, inventory: &Inventory, at: (usize, u64), size: u64) {
        let stored = inventory.stored.as_ref().filter(|_| !self.is_cut);
        let number = inventory.files.get(at.0).map(|file| &file.name);
        let pointer = match (stored, number) {
            (Some(stored), Some(Origin::Object(number))) => stored.pointer(*number, at.1),
            _ => None,
        };
        if stored.is_some() && pointer.is_none() {
            self.holes += 1;
            return;
        }
        let Some(block) = inventory.block(at, size) else { return };
        self.blocks += 1;
        self.bytes += u64::try_from(block.bytes.len()).unwrap_or(0);
        let print = checksum::digest(Checksum::Sha256, &block.bytes, None, false);
        match pointer {
            Some(bp) => self.stored.push((print, bp)),
            None => self.contents.add(print),
        }
    }
}

/// The estimate of a sample for all blocks.
struct Estimate {
    /// All blocks that are stored.
    all: u64,
    /// Of these, references to a block that has others already, in percent.
    shared: f64,
    /// Space that equal blocks take, in percent: least, estimate, most.
    saves: [f64; 3],
    /// Different contents.
    contents: f64,
}

impl Estimate {
    fn of(sample: Sample, inventory: &Inventory, all: u64) -> Self {
        let Sample { blocks, mut contents, stored, holes, is_cut, .. } = sample;
        let Some(dataset) = inventory.stored.as_ref().filter(|_| !is_cut) else {
            return Self::among(all, all, &contents, 0.0);
        };
        let part = blocks as f64 / blocks.saturating_add(holes).max(1) as f64;
        let all = ((all as f64 * part).round() as u64).max(blocks);
        let pointers: Vec<Blkptr> = stored.iter().map(|(_, bp)| *bp).collect();
        let shared = dataset.are_shared(&pointers).into_iter().filter(|shared| *shared).count();
        // Each stored block counts once, however many references the sample met.
        let mut met = HashSet::new();
        let place = |bp: &Blkptr| bp.dva(0).map(|dva| (dva.vdev, dva.offset, bp.physical_birth()));
        for (print, bp) in &stored {
            if met.insert(place(bp)) {
                contents.add(*print);
            }
        }
        let shared = shared as f64 / blocks.max(1) as f64;
        // A shared block has at least two references.
        let copies = match blocks == all {
            true => u64::try_from(met.len()).unwrap_or(u64::MAX),
            false => (all as f64 * (1.0 - shared / 2.0)).round() as u64,
        };
        Self::among(all, copies, &contents, 100.0 * shared)
    }

    /// For `all` blocks, stored in `copies` places.
    fn among(all: u64, copies: u64, contents: &Distinct, shared: f64) -> Self {
        let [fewest, mid, most] = contents.get(copies);
        let saved =
            |contents: f64| (100.0 * (copies as f64 - contents) / all.max(1) as f64).clamp(0.0, 100.0);
        // Blocks that were not read may all be new.
        Self { all, shared, saves: [saved(most), saved(mid), saved(fewest)], contents: mid }
    }
}

/// Reads random blocks, all of them if there is time. Without `size` blocks are those that files have. Returns the number of all
/// blocks, too.
fn sample(inventory: &Inventory, size: Option<u64>, time: Duration, interrupt: &Interrupt) -> (Sample, u64) {
    let size_of = |file: u64| size.unwrap_or(file).max(1);
    // Last block of each file, among all.
    let mut ends = Vec::with_capacity(inventory.files.len());
    let all = inventory.files.iter().fold(0_u64, |all, file| {
        let end = all.saturating_add(file.size.div_ceil(size_of(file.block)));
        ends.push(end);
        end
    });
    let mut sample = Sample { is_cut: size.is_some(), ..Sample::default() };
    let (started, mut random) = (Instant::now(), Rng::new(4));
    let mut read = |number: u64| {
        let at = ends.partition_point(|end| *end <= number);
        let Some(file) = inventory.files.get(at) else { return };
        let before = at.checked_sub(1).and_then(|at| ends.get(at)).copied().unwrap_or(0);
        sample.read(inventory, (at, number.saturating_sub(before)), size_of(file.block));
    };
    let is_over = || started.elapsed() >= time || interrupt.is_set();
    // A sample without replacement: random numbers while most are new, then a shuffled list of the others.
    let mut seen = HashSet::new();
    while !is_over() && u64::try_from(seen.len()).unwrap_or(u64::MAX) < (all / 2).min(50_000_000) {
        let number = random.below(all.max(1));
        if seen.insert(number) {
            read(number);
        }
    }
    if !is_over() && all < 100_000_000 {
        let mut rest: Vec<u64> = (0..all).filter(|number| !seen.contains(number)).collect();
        while !rest.is_empty() && !is_over() {
            let at = usize::try_from(random.below(u64::try_from(rest.len()).unwrap_or(1))).unwrap_or(0);
            let number = rest.swap_remove(at);
            read(number);
        }
    }
    (sample, all)
}

/// Counts equal blocks among random ones, or among all if there is time. Without `size` blocks are those that files have.
pub(super) fn dedup(
    inventory: &Inventory,
    size: Option<u64>,
    time: Duration,
    place: &Place,
    interrupt: &Interrupt,
) -> Advice {
    let (sample, all) = sample(inventory, size, time, interrupt);
    let (blocks, bytes) = (sample.blocks, sample.bytes);
    let estimate = Estimate::of(sample, inventory, all);
    let unique = estimate.contents;
    let table = unique * ENTRY;
    let cost = format!(
        "a table of at least {} for {unique:.0} blocks, written and read with each of them",
        nicebytes(table as u64)
    );
    let costs = vec![("table_bytes", table), ("table_entries", unique), ("blocks", estimate.all as f64)];
    let [least, _, most] = estimate.saves;
    let choices = vec![
        Choice { name: "off".to_owned(), saves: [0.0; 3], cost: "none".to_owned(), costs: Vec::new() },
        Choice { name: "on".to_owned(), saves: estimate.saves, cost, costs },
    ];
    let target = place.target();
    let (says, command) = if least >= 20.0 {
        (
            "Much is repeated: sharing it afterwards needs no table, and dedup=on shares new writes at once.",
            Some(format!("aquifer dedup {target}")),
        )
    } else if most < 10.0 && estimate.shared > 0.0 {
        ("Little more is repeated: dedup would cost more than it saves.", None)
    } else if most < 10.0 {
        ("Little is repeated: dedup would cost more than it saves.", None)
    } else {
        (
            "Sharing afterwards needs no table; a dry run counts the equal blocks exactly.",
            Some(format!("aquifer dedup -n {target}")),
        )
    };
    let already = match estimate.shared > 0.0 {
        true => format!("{:.1}% of the blocks are shared already. ", estimate.shared),
        false => String::new(),
    };
    Advice { choices, blocks, bytes, says: format!("{already}{says}"), command }
}
