//! The work of an operation on a mount, in counts that do not depend on the speed of the machine: requests of the kernel, sleeps of
//! threads, allocations.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod bench;

use std::alloc::System;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bench::Bench;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use zfuse::LiveOptions;

/// Counts the allocations of all threads.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn allocations() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.allocations + stats.reallocations) as u64
}

/// Operations of each kind.
const TIMES: usize = 2000;

/// Times that threads of this process other than the caller have slept.
fn sleeps() -> u64 {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let others = tasks.filter(|task| task.file_name().to_string_lossy() != own);
    others
        .filter_map(|task| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .sum()
}

/// Most of each for one operation. On a busy machine names and attributes expire in the kernel between two operations, and are asked for
/// again; a sleep of a thread over `/dev/fuse` comes with each request that it waits for.
struct Most {
    requests: f64,
    sleeps: f64,
    allocations: f64,
}

/// What each of `TIMES` operations needed.
fn each(bench: &Bench, what: &str, most: &Most, work: &mut dyn FnMut(usize)) {
    let before = (bench.mounted.answered(), sleeps(), allocations());
    (0..TIMES).for_each(work);
    let after = (bench.mounted.answered(), sleeps(), allocations());
    let one = |from: u64, to: u64| (to - from) as f64 / TIMES as f64;
    let (requests, slept, allocated) =
        (one(before.0, after.0), one(before.1, after.1), one(before.2, after.2));
    let over = if bench.mounted.is_over_io_uring() { "io_uring" } else { "/dev/fuse" };
    println!("{what} over {over}: {requests:.2} requests, {slept:.2} sleeps, {allocated:.1} allocations");
    let found = [requests, slept, allocated];
    let fits =
        found.iter().zip([most.requests, most.sleeps, most.allocations]).all(|(found, most)| *found <= most);
    assert!(fits, "{what} over {over}: {found:?}");
}

fn operations(bench: &Bench) {
    let paths: Vec<PathBuf> = (0..TIMES).map(|number| bench.mnt().join(format!("file{number}"))).collect();
    let most = |requests, sleeps, allocations| Most { requests, sleeps, allocations };
    let bytes = [7; 3000];
    each(bench, "create", &most(8., 16., 110.), &mut |number| {
        File::create(&paths[number]).unwrap().write_all_at(&bytes, 0).unwrap();
    });
    let file = File::options().read(true).write(true).open(&paths[0]).unwrap();
    each(bench, "4 KiB write", &most(2., 6., 20.), &mut |number| {
        file.write_all_at(&[number as u8; 4096], number as u64 * 4096).unwrap();
    });
    each(bench, "stat", &most(2.5, 6., 20.), &mut |number| {
        fs::metadata(&paths[number]).unwrap();
    });
    each(bench, "unlink", &most(4., 8., 45.), &mut |number| fs::remove_file(&paths[number]).unwrap());
}

/// One after the other: the counts are those of the whole process.
#[test]
fn the_work_of_an_operation_is_bounded() {
    for over_io_uring in [false, true] {
        let Some(bench) = Bench::over(over_io_uring, LiveOptions::default(), |new| new) else { continue };
        operations(&bench);
        bench.end();
    }
}
