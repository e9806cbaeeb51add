//! The whole engine from a seed, a few of them; `make simulate` continues from any seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;

use sim::simulate::{lose_too_much, simulate};
use sim::world::{Machine, Shape};
use testkit::zdb::Judge;

const ROUNDS: u64 = 50;

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
    let (work, counts) = (Mutex::new((1..).zip(Machine::all())), Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let next = work.lock().unwrap().next();
                    let Some((seed, machine)) = next else { return };
                    run(seed, machine, &counts);
                }
            });
        }
    });
    let counts = counts.into_inner().unwrap();
    println!("{counts:?}");
    let jobs =
        ["add", "remove", "expand", "checkpoint", "initialize", "trim", "pause", "remove log", "split"];
    let aux = [
        "pruned dedup table",
        "spare in use",
        "spare out of use",
        "cache device after a restart",
        "blocks from a cache device",
    ];
    for what in jobs.into_iter().chain(aux).chain(["panic", "return to a checkpoint", "return to a txg"]) {
        assert!(counts.get(what).is_some_and(|count| *count > 0), "never: {what}");
    }
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
fn what_loses_too_many_disks_says_so_and_loses_nothing() {
    for (seed, shape) in (1..).zip(Shape::ALL) {
        lose_too_much(seed, shape.into()).unwrap_or_else(|why| panic!("{shape:?} seed {seed}: {why}"));
    }
    // A volume is given another size when the disks are gone already.
    lose_too_much(910_311, Shape::Raidz(1).into()).unwrap();
}
