//! `-l`: the labels of a device: configurations, uberblocks, and the header of a cache device.
//!
//! Each configuration (and uberblock) is printed once, with the labels that contain it; with a repeated `-l`, each
//! label prints its own. Exit code 0 if a label was found, 1 if something could not be read, 2 if there is none.

use std::io::Write;
use std::path::Path;

use blkdev::{BlockDevice, FileDevice, OpenOptions};
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};
use nvpair::NvList;
use ondisk::Uberblock;
use ondisk::label::{
    LABELS, MMP_BLOCKS_PER_LABEL, NVLIST_SIZE, PHYS_OFFSET, RING_OFFSET, RING_SIZE, label_offset,
    uberblock_shift,
};
use zcommon::vdev::PoolState;
use zutil::label::{Trust, verify_label_block};

use super::options::Options;
use super::{l2arc, label_stats, uberblock};

/// Sector shift of a vdev whose label does not contain one.
const DEFAULT_ASHIFT: u32 = 9;

/// One label, as read.
struct Label {
    index: u32,
    /// The packed list's bytes, if they decode.
    config: Option<(Vec<u8>, NvList)>,
    trust: Trust,
    /// Every slot of the ring; `None` for a slot without an uberblock.
    ring: Vec<Option<(Vec<u8>, Uberblock)>>,
}

/// Prints the labels of `path`.
pub fn run(options: &Options, path: &str, ctx: &mut Ctx) -> Outcome {
    let short = Path::new("/dev").join(path);
    let place = if !Path::new(path).exists() && short.exists() { &short } else { Path::new(path) };
    let device = match FileDevice::open(place, OpenOptions { threads: 1, ..OpenOptions::default() }) {
        Ok(device) => device,
        // It is neither a file nor a disk.
        Err(_) if std::fs::File::open(place).is_ok() => return no_labels(options, ctx),
        Err(e) => {
            writeln!(ctx.out, "cannot open '{path}': {}", clikit::verb::strerror(&e))?;
            return Ok(Exit::FAILED);
        }
    };
    let mut failed = false;
    let mut labels = Vec::new();
    for index in 0..LABELS {
        match read(&device, index) {
            Some(label) => labels.push(label),
            None => {
                failed = true;
                if !options.has('q') {
                    writeln!(ctx.out, "failed to read label {index}")?;
                }
            }
        }
    }
    failed |= labels.iter().any(|label| label.config.is_none());
    for label in &labels {
        print(options, &labels, label, ctx)?;
    }
    let is_cache = |label: &Label| {
        let state = label.config.as_ref().and_then(|(_, config)| config.u64("state"));
        state.and_then(PoolState::from_number) == Some(PoolState::L2cache)
    };
    if labels.iter().any(is_cache) {
        failed |= !l2arc::run(options, &device, ctx)?;
    }
    let found = labels.iter().any(|label| label.config.is_some());
    Ok(match (found, failed) {
        (false, _) => Exit(2),
        (true, true) => Exit::FAILED,
        (true, false) => Exit::OK,
    })
}

/// Reports that no label can be read.
fn no_labels(options: &Options, ctx: &mut Ctx) -> Outcome {
    if !options.has('q') {
        (0..LABELS).try_for_each(|index| writeln!(ctx.out, "failed to read label {index}"))?;
    }
    Ok(Exit(2))
}

fn read(device: &FileDevice, index: u32) -> Option<Label> {
    let size = |n: u64| usize::try_from(n).unwrap_or(0);
    let start = label_offset(device.geometry().size, index)?;
    let block =
        blkdev::read_at(device, start.checked_add(PHYS_OFFSET)?, size(RING_OFFSET - PHYS_OFFSET)).ok()?;
    let ring_at = start.checked_add(RING_OFFSET)?;
    let ring = blkdev::read_at(device, ring_at, size(RING_SIZE)).ok()?;
    let packed = block.get(..size(NVLIST_SIZE))?;
    let config = NvList::decode_prefix(packed).ok();
    let config = config.map(|(list, _, used)| (packed.get(..used).unwrap_or(packed).to_vec(), list));
    let ashift = config.as_ref().and_then(|(_, list)| ashift(list)).unwrap_or(DEFAULT_ASHIFT);
    let slots = ring.chunks_exact(1 << uberblock_shift(ashift));
    let slot = |slot: &[u8]| Some((slot.get(..Uberblock::SIZE)?.to_vec(), Uberblock::from_bytes(slot).ok()?));
    let trust = verify_label_block(&block, start + PHYS_OFFSET);
    Some(Label { index, config, trust, ring: slots.map(slot).collect() })
}

fn ashift(config: &NvList) -> Option<u32> {
    let ashift = config.nvlist("vdev_tree")?.u64("ashift")?;
    u32::try_from(ashift).ok().filter(|&ashift| ashift < 32)
}

/// The labels for which `same` holds: `0 1 2 3 `.
fn numbers(labels: &[Label], same: impl Fn(&Label) -> bool) -> (u32, String) {
    let mut matching = labels.iter().filter(|label| same(label)).map(|label| label.index).peekable();
    let first = matching.peek().copied().unwrap_or(LABELS);
    (first, matching.map(|index| format!("{index} ")).collect())
}

fn print(options: &Options, all: &[Label], label: &Label, ctx: &mut Ctx) -> Result<(), Failure> {
    let mut headed = false;
    match &label.config {
        None if !options.has('q') => writeln!(ctx.out, "failed to unpack label {}", label.index)?,
        Some((bytes, config)) if !options.has('q') => {
            let same = |other: &Label| other.config.as_ref().is_some_and(|(b, _)| b == bytes);
            let (first, numbers) = numbers(all, same);
            if options.level('l') >= 3 || first == label.index {
                header(options, label, &mut headed, ctx)?;
                write!(ctx.out, "{}", config.dump(4))?;
                writeln!(ctx.out, "    labels = {numbers}")?;
                if options.level('l') >= 2 {
                    label_stats::print(config, options.level('l'), &mut ctx.out)?;
                }
            }
        }
        _ => {}
    }
    if options.has('u') {
        ring(options, all, label, &mut headed, ctx)?;
    }
    Ok(())
}

/// Prints the heading of a label, once; none with `-q`.
#[doc(alias = "print_label_header")]
fn header(options: &Options, label: &Label, headed: &mut bool, ctx: &mut Ctx) -> Result<(), Failure> {
    if !options.has('q') && !std::mem::replace(headed, true) {
        let bad = if label.trust == Trust::Verified { "" } else { "(Bad label cksum)" };
        let rule = "-".repeat(36);
        writeln!(ctx.out, "{rule}\nLABEL {} {bad}\n{rule}", label.index)?;
    }
    Ok(())
}

fn ring(
    options: &Options,
    all: &[Label],
    label: &Label,
    headed: &mut bool,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let level = options.level('u');
    let slots = u64::try_from(label.ring.len()).unwrap_or(0);
    for (at, slot) in label.ring.iter().enumerate() {
        let Some((bytes, ub)) = slot else {
            if level >= 2 {
                header(options, label, headed, ctx)?;
                writeln!(ctx.out, "    Uberblock[{at}] invalid")?;
            }
            continue;
        };
        let is_last = u64::try_from(at).is_ok_and(|at| at >= slots.saturating_sub(MMP_BLOCKS_PER_LABEL));
        if level < 4 && ub.mmp_valid() && ub.mmp_delay != 0 && is_last {
            continue;
        }
        let same = |other: &Label| {
            let theirs = other.ring.get(at).and_then(Option::as_ref);
            theirs.is_some_and(|(b, _)| b == bytes)
        };
        let (first, numbers) = numbers(all, same);
        if level < 3 && first != label.index {
            continue;
        }
        header(options, label, headed, ctx)?;
        write!(ctx.out, "    Uberblock[{at}]\n{}", uberblock::text(ub, level))?;
        writeln!(ctx.out, "        labels = {numbers}")?;
    }
    Ok(())
}
