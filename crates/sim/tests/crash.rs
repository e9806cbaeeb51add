//! Power cuts in bounded number, each day from other seeds ([`testkit::seed`]); `make crash` continues from any seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sim::actor::SPLIT;
use sim::crash::{CutPlan, STEPS, Start, survive};
use sim::world::{Machine, Shape};
use testkit::seed;
use testkit::zdb::Judge;

/// Images of each workload.
const IMAGES: u64 = 120;
/// Workloads of each kind of pool, each from a seed of its own.
const WORKLOADS: u64 = 1;
/// Images and workloads of `make test-long`.
const LONG: (u64, u64) = (360, 2);
/// One image in so many is shown to real zdb.
const SHOWN: u64 = 600;

/// Seeds between two tries.
const TRIES_APART: u64 = 300;

/// The images of the first seed from `seed` on in whose work no writer waits for space.
fn run(machine: Machine, seed: u64, images: u64) -> u64 {
    let (begun, mut shown) = (Instant::now(), seed % SHOWN * 17);
    let mut survive = |seed| {
        let (start, steps) = (Start::New(machine), STEPS);
        let plan = CutPlan { seed, images, steps, start, per_cut: 64, only: None, lying: false };
        survive(&plan, &mut |image| {
            shown += 1;
            if shown % SHOWN == 0 {
                common::show(image, &[Judge::NEWEST]);
            }
        })
    };
    let is_split = |outcome: &Result<_, String>| outcome.as_ref().is_err_and(|why| why.contains(SPLIT));
    let mut tries =
        [seed, seed + TRIES_APART, seed + 2 * TRIES_APART].into_iter().map(|seed| (seed, survive(seed)));
    let (seed, outcome) =
        tries.find(|(_, outcome)| !is_split(outcome)).expect("a seed without waiting writers");
    let outcome = outcome.unwrap_or_else(|why| panic!("{machine:?} seed {seed}: {why}"));
    let rate = outcome.images as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{machine:?}: {} images of {} moments, {rate:.0} a second, {} writes at risk at most, {} with logs, {} worked on",
        outcome.images, outcome.cuts, outcome.at_risk, outcome.replayed, outcome.gone_on
    );
    if let Some((event, variant, why)) = outcome.failure {
        panic!("{machine:?}, seed {seed}, {event}:{variant}: {why}");
    }
    outcome.images
}

#[test]
fn a_pool_of_any_shape_survives_power_cuts() {
    any_shape(IMAGES, WORKLOADS);
}

#[test]
#[ignore = "minutes"]
fn a_pool_of_any_shape_survives_many_power_cuts() {
    any_shape(LONG.0, LONG.1);
}

fn any_shape(images: u64, workloads: u64) {
    let first = seed::first("sim", "crash");
    let work: Vec<(u64, Machine)> = (first..).zip((0..workloads).flat_map(|_| Machine::all())).collect();
    let least = u64::try_from(work.len()).unwrap() * images * 9 / 10;
    let (work, done, start) = (Mutex::new(work.into_iter()), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some((seed, machine)) = work.lock().unwrap().next() else { return };
                    done.fetch_add(run(machine, seed, images), Ordering::Relaxed);
                }
            });
        }
    });
    let done = done.into_inner();
    println!("{done} images, {:.0} a second", done as f64 / start.elapsed().as_secs_f64());
    assert!(done >= least, "{done} of at least {least}");
}

#[test]
fn a_pool_whose_disks_grow_survives_power_cuts() {
    let first = seed::first("sim", "crash") + 100;
    for (seed, shape) in (first..).zip([Shape::Single, Shape::Mirror, Shape::Raidz(1)]) {
        let machine = Machine { grows: true, ..shape.into() };
        assert!(run(machine, seed, LONG.0 / 3) > LONG.0 / 6);
    }
}

#[test]
fn disks_that_lie_about_flushes_are_found_out() {
    for shape in [Shape::Single, Shape::Mirror] {
        let plan = CutPlan {
            seed: 5,
            images: 2000,
            steps: STEPS,
            start: Start::New(shape.into()),
            per_cut: 64,
            only: None,
            lying: true,
        };
        let outcome = survive(&plan, &mut |_| ()).unwrap();
        let (_, _, why) = outcome.failure.expect("nothing was found");
        println!("{shape:?}: after {} images: {why}", outcome.images);
    }
}
