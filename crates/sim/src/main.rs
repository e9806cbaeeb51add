//! `make crash SEED=… COUNT=…` and `make simulate SEED=… COUNT=…`: from any seed, any number of runs.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use sim::crash::{CutPlan, ForeignPool, STEPS, Start, survive};
use sim::full::{Effort, fill_and_empty};
use sim::simulate::{lose_too_much, simulate};
use sim::world::Machine;

/// Rounds of one simulated pool.
const ROUNDS: u64 = 80;
/// Images of one workload before the next seed is taken.
const BATCH: u64 = 400;

const USAGE: &str =
    "usage: sim crash SEED COUNT            checks COUNT images that power cuts could leave, from SEED on
       sim crash SEED EVENT:VARIANT    checks that image again
       sim crash SEED COUNT FOLDER [DATASET=KEYFILE …]
                                       begins with the pool on the files disk1, disk2, … in FOLDER
       sim simulate SEED COUNT         runs COUNT pools on disks that fail and lie, from SEED on
       sim full SEED COUNT             fills COUNT pools to the last byte and empties them, from SEED on";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["simulate", seed, count] => match (seed.parse(), count.parse()) {
            (Ok(seed), Ok(count)) => simulated(seed, count),
            _ => usage(),
        },
        ["full", seed, count] => match (seed.parse(), count.parse()) {
            (Ok(seed), Ok(count)) => filled(seed, count),
            _ => usage(),
        },
        ["crash", seed, count] => match (seed.parse(), count.parse(), count.split_once(':')) {
            (Ok(seed), Ok(count), _) => crash(seed, count, None, &new_pools()),
            (Ok(seed), _, Some((event, variant))) => match (event.parse(), variant.parse()) {
                (Ok(event), Ok(variant)) => crash(seed, 1, Some((event, variant)), &new_pools()),
                _ => usage(),
            },
            _ => usage(),
        },
        ["crash", seed, count, folder, keys @ ..] => match (seed.parse(), count.parse(), found(folder, keys))
        {
            (Ok(seed), Ok(count), Ok(found)) => crash(seed, count, None, &[Start::Disks(found)]),
            _ => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn new_pools() -> Vec<Start> {
    Machine::all().map(Start::New).collect()
}

/// The pool in `folder`; `keys` names the files of its keys.
fn found(folder: &str, keys: &[&str]) -> std::io::Result<ForeignPool> {
    let key = |word: &&str| {
        let (name, file) = word.split_once('=').ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok((name.to_owned(), std::fs::read(file)?))
    };
    let keys = keys.iter().map(key).collect::<std::io::Result<_>>()?;
    Ok(ForeignPool { keys, ..ForeignPool::in_folder(Path::new(folder))? })
}

/// Runs `work` on as many threads as there are cores.
fn on_all_cores(work: &(dyn Fn() + Sync)) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

fn simulated(first: u64, count: u64) -> ExitCode {
    let (machines, next) = (Machine::all().collect::<Vec<_>>(), AtomicU64::new(first));
    let (start, failed) = (Instant::now(), AtomicBool::new(false));
    on_all_cores(&|| {
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let kind = usize::try_from(seed % machines.len() as u64).unwrap_or(0);
            let Some(&machine) = machines.get(kind).filter(|_| seed - first < count) else { return };
            match simulate(seed, machine, ROUNDS).and_then(|_| lose_too_much(seed, machine)) {
                Ok(()) => {}
                Err(why) => {
                    println!("seed {seed}, {machine:?}: {why}");
                    failed.store(true, Ordering::Relaxed);
                }
            }
            let done = seed - first + 1;
            if done.is_multiple_of(20) {
                let rate = done as f64 / start.elapsed().as_secs_f64();
                println!("seed {seed}: {done} runs of {ROUNDS} rounds so far, {rate:.1} a second");
            }
        }
    });
    if failed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn filled(first: u64, count: u64) -> ExitCode {
    let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
    on_all_cores(&|| {
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed - first >= count {
                return;
            }
            match fill_and_empty(seed, Effort::default()) {
                Ok((course, _)) => println!("seed {seed}: {course:?}"),
                Err(why) => {
                    println!("seed {seed}: {why}");
                    failed.store(true, Ordering::Relaxed);
                }
            }
        }
    });
    if failed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn crash(first: u64, count: u64, only: Option<(usize, u64)>, starts: &[Start]) -> ExitCode {
    let (begun, done, failed) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
    let next = AtomicU64::new(first);
    let work = || {
        while done.load(Ordering::Relaxed) < count && !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let many = starts.len() as u64;
            let Some(start) = starts.get(usize::try_from(seed % many).unwrap_or(0)) else { return };
            if only.is_some() && seed > first {
                return;
            }
            let (begin, steps) = (start.clone(), STEPS);
            let plan = CutPlan { seed, images: BATCH, steps, start: begin, per_cut: 64, only, lying: false };
            let why = match survive(&plan, &mut |_| ()) {
                Ok(outcome) => {
                    done.fetch_add(outcome.images, Ordering::Relaxed);
                    outcome.failure.map(|(event, variant, why)| format!("{event}:{variant}: {why}"))
                }
                Err(why) => Some(format!("the workload failed: {why}")),
            };
            if let Some(why) = why {
                println!("seed {seed}, {start}, {why}");
                failed.store(true, Ordering::Relaxed);
            }
            let done = done.load(Ordering::Relaxed);
            let rate = done as f64 / begun.elapsed().as_secs_f64();
            println!("seed {seed}, {start}: {done} images so far, {rate:.0} a second");
        }
    };
    on_all_cores(&work);
    if failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
