//! Hostile pools: whatever an image contains, opening and reading it ends soon, in bounded memory, without
//! panic.
//!
//! `AQUIFER_HOSTILE=TEXT` runs the forgeries whose names contain the text, and prints the result of each.
//! `AQUIFER_HOSTILE_ROUNDS=N` makes up N changed images of each kind instead of a few, from the seed of the day
//! ([`testkit::seed`]) or `AQUIFER_SEED` on.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::env::Env;
use stdx::rng::Rng;
use testkit::golden::{self, Golden};
use testkit::hostile::{cases, exercise, forge::Forge, mutate};
use testkit::{seed, targets};

/// Longest time for everything with one image. Optimised, the slowest takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Cache of a pool.
const CACHE: u64 = 64 << 20;
/// Most memory that the process may have taken, cache and test included.
const MEMORY: u64 = 600 << 20;

/// One test at a time: memory and panics are counted for the whole process.
static ONE: Mutex<()> = Mutex::new(());
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        usual(info);
    }));
}

/// Bytes that the process has taken at most so far, since the last reset.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn reset_peak() {
    // Not everywhere allowed; then the peak is that of all images so far.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Runs one image's work on a thread of its own; returns an error when it did not end properly.
fn bounded<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    reset_peak();
    let before = PANICS.load(Ordering::SeqCst);
    let (tx, rx) = mpsc::channel();
    let start = Instant::now();
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    thread.spawn(move || drop(tx.send(work()))).unwrap();
    let ended = rx.recv_timeout(PATIENCE);
    if PANICS.load(Ordering::SeqCst) > before {
        return Err(format!("{name}: panicked"));
    }
    let value = ended.map_err(|_| format!("{name}: not over after {:?}", start.elapsed()))?;
    match peak_memory() {
        peak if peak > MEMORY => Err(format!("{name}: took {} MiB", peak >> 20)),
        _ => Ok(value),
    }
}

fn tell(name: &str, report: &exercise::Report, took: Duration) {
    let exercise::Report { opened, datasets, files, errors, .. } = report;
    let opened = if *opened { "opened" } else { "refused" };
    eprintln!(
        "{name}: {opened}, {datasets} datasets, {files} files, {errors} errors, {took:.1?}, {} MiB",
        peak_memory() >> 20
    );
    report.slow.iter().for_each(|(what, took)| eprintln!("    slow: {what}: {took:.1?}"));
    report.first.iter().for_each(|e| eprintln!("    {e}"));
}

fn lie(case: cases::Case, golden: &Golden, verbose: bool) -> Result<(), String> {
    let (golden, name) = (golden.clone(), case.name);
    let start = Instant::now();
    let report = bounded(name, move || {
        let env = Env::system(CACHE).unwrap();
        let mut forge = Forge::new(&golden, &env).map_err(|e| format!("{name}: no forge: {e}"))?;
        (case.make)(&mut forge).map_err(|e| format!("{name}: not forged: {e}"))?;
        let source = forge.finish().map_err(|e| format!("{name}: not forged: {e}"))?;
        Ok::<_, String>(exercise::everything(&env, &source))
    })??;
    if verbose || !report.slow.is_empty() {
        tell(name, &report, start.elapsed());
    }
    Ok(())
}

#[test]
fn lies_with_good_checksums() {
    let _one = ONE.lock();
    count_panics();
    let wanted = std::env::var("AQUIFER_HOSTILE");
    let mut failed = Vec::new();
    for case in cases::all() {
        if wanted.as_ref().is_ok_and(|w| !case.name.contains(w.as_str())) {
            continue;
        }
        let Some(golden) = golden::get(case.pool) else { continue };
        failed.extend(lie(case, &golden, wanted.is_ok()).err());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Changes that a seed makes up: metadata with its checksums made right, or bits flipped under their checksums.
fn made_up(golden: &Golden, seed: u64, flips: bool) -> Result<(), String> {
    let (golden, name) =
        (golden.clone(), format!("{} changed from seed {seed}, flips: {flips}", golden.name));
    bounded(&name, move || {
        let env = Env::system(CACHE).unwrap();
        let Ok(mut forge) = Forge::new(&golden, &env) else { return };
        if flips {
            mutate::flip(&forge, &mut Rng::new(seed), 2000).unwrap();
            let device = |(_, disk): &(String, _)| Arc::clone(disk) as blkdev::Device;
            let devices: Vec<_> = forge.disks.iter().map(device).collect();
            devices.iter().for_each(|d| drop(zutil::DeviceLabels::read(&**d)));
        } else {
            mutate::apply(&mut forge, &mutate::from_seed(seed));
        }
        if let Ok(source) = forge.finish() {
            exercise::everything(&env, &source);
        }
    })
}

#[test]
fn random_changes_of_bytes_are_survived() {
    let _one = ONE.lock();
    count_panics();
    let (first, rounds) = (seed::first("testkit", "hostile"), number("AQUIFER_HOSTILE_ROUNDS", 8));
    let mut failed = Vec::new();
    for pool in ["basic", "dedup-fast", "removed", "quotas", "zvol", "unclean-log", "encrypted"] {
        let Some(golden) = golden::get(pool) else { continue };
        for seed in first..first + rounds {
            failed.extend(made_up(&golden, seed, seed % 4 == 0).err());
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Blocks of golden pools, as food for decoders.
fn food(golden: &Golden) -> Vec<Vec<u8>> {
    let Ok(pool) = golden.open() else { return Vec::new() };
    let mut food = Vec::new();
    for object in pool.mos.objects().flatten().take(200) {
        food.push(object.dnode.bonus().to_vec());
        food.extend((0..3).filter_map(|blkid| Some(object.block(blkid).ok()?.to_vec())));
    }
    food.retain(|bytes| bytes.iter().any(|&b| b != 0));
    food
}

#[test]
fn decoders_take_any_bytes() {
    let _one = ONE.lock();
    count_panics();
    let rounds = number("AQUIFER_HOSTILE_ROUNDS", 8) * 40;
    let mut food: Vec<Vec<u8>> = ["quotas", "dedup-legacy"]
        .iter()
        .filter_map(|p| golden::get(p))
        .flat_map(|g| self::food(&g))
        .collect();
    food.push(vec![0; 4096]);
    let before = PANICS.load(Ordering::SeqCst);
    let mut rng = Rng::new(seed::first("testkit", "hostile"));
    let start = Instant::now();
    for round in 0..rounds {
        let pick = usize::try_from(rng.below(food.len() as u64)).unwrap();
        let mut bytes = food[pick].clone();
        for _ in 0..rng.below(12) {
            let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
            bytes[at] = u8::try_from(rng.below(256)).unwrap();
        }
        if round % 5 == 0 {
            bytes.truncate(usize::try_from(rng.below(bytes.len() as u64)).unwrap());
        }
        for (name, target) in targets::ALL {
            let one = Instant::now();
            assert!(std::panic::catch_unwind(|| target(&bytes)).is_ok(), "{name} panicked, round {round}");
            assert!(one.elapsed() < Duration::from_secs(5), "{name} took long, round {round}");
        }
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), before);
    eprintln!("{} runs in {:.1?}", rounds * targets::ALL.len() as u64, start.elapsed());
}
