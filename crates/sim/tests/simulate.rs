//! The whole engine from a few seeds, each day from others ([`testkit::seed`]); `make simulate` continues from any seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;

use sim::simulate::{lose_too_much, simulate};
use sim::world::{Machine, Shape};
use testkit::seed;
use testkit::zdb::Judge;

const ROUNDS: u64 = 50;
/// Further rounds on all machines at most, until each event has happened.
const MORE: u64 = 3;
/// Seeds between two rounds.
const MACHINES_APART: u64 = 100;

/// Counts of events that do not happen in every run.
type Counts = Mutex<BTreeMap<&'static str, u64>>;

fn run(seed: u64, machine: Machine, counts: &Counts) {
    let (course, disks) =
        simulate(seed, machine, ROUNDS).unwrap_or_else(|why| panic!("{machine:?} seed {seed}: {why}"));
    println!("{machine:?} seed {seed}: {course:?}");
    common::show(&disks, &[Judge::NEWEST]);
    let rare = [("panic", course.panics), ("return to a checkpoint", course.rewinds)];
    for (what, count) in course.jobs.into_iter().chain(rare) {
        *counts.lock().unwrap().entry(what).or_default() += count;
    }
}

#[test]
fn disks_fail_and_lie_and_the_power_goes_and_all_is_right() {
    let first = seed::first("sim", "simulate");
    let counts = Counts::default();
    all_machines(first, &counts);
    // Events that no run of these seeds met are expected of the next ones.
    for round in 1..=MORE {
        let more = first + round * MACHINES_APART;
        if never(&counts).is_empty() {
            break;
        }
        all_machines(more, &counts);
    }
    println!("{counts:?}");
    let never = never(&counts);
    assert!(never.is_empty(), "never: {never:?}");
}

/// A run on each machine, from consecutive seeds.
fn all_machines(first: u64, counts: &Counts) {
    let work = Mutex::new((first..).zip(Machine::all()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let next = work.lock().unwrap().next();
                    let Some((seed, machine)) = next else { return };
                    run(seed, machine, counts);
                }
            });
        }
    });
}

/// The events that no run has met.
fn never(counts: &Counts) -> Vec<&'static str> {
    let counts = counts.lock().unwrap();
    let jobs =
        ["add", "remove", "expand", "checkpoint", "initialize", "trim", "pause", "remove log", "split"];
    let aux = [
        "pruned dedup table",
        "spare in use",
        "spare out of use",
        "cache device after a restart",
        "blocks from a cache device",
    ];
    let all = jobs.into_iter().chain(aux).chain(["panic", "return to a checkpoint", "return to a txg"]);
    all.filter(|what| counts.get(what).is_none_or(|count| *count == 0)).collect()
}

#[test]
fn a_seed_is_the_same_each_time() {
    for shape in [Shape::Single, Shape::Raidz(2)] {
        let machine = Machine { log_device: true, ..shape.into() };
        let course = || simulate(7, machine, 40).map(|(course, _)| course);
        assert_eq!(course(), course());
    }
}

#[test]
fn a_pool_that_loses_too_many_disks_says_so_and_loses_nothing() {
    for (seed, shape) in (seed::first("sim", "simulate")..).zip(Shape::ALL) {
        lose_too_much(seed, shape.into()).unwrap_or_else(|why| panic!("{shape:?} seed {seed}: {why}"));
    }
    // A volume is given another size when the disks are gone already.
    lose_too_much(910_311, Shape::Raidz(1).into()).unwrap();
}
