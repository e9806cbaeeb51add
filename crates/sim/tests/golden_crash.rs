//! Power cuts while pools that OpenZFS made are worked on: tables of deduplicated and of cloned blocks go down as
//! files are changed and removed, removed vdevs are written around, blocks of a checkpoint are kept.
//!
//! A few images in the default run, more of all pools by hand; `sim crash SEED COUNT FOLDER` does the same with any
//! folder of disks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use sim::crash::{CutPlan, ForeignPool, STEPS, Start, survive};
use testkit::golden;
use testkit::zdb::Judge;

/// Pools that can be written, apart from those whose blocks are shared.
const OTHERS: [&str; 16] = [
    "mirror3",
    "raidz1-3",
    "raidz2-6",
    "raidz3-8",
    "stripe-mixed",
    "draid1",
    "classes",
    "removed",
    "expanded",
    "replacing",
    "checkpoint",
    "records",
    "zvol",
    "quotas",
    "unclean-log",
    "legacy-v28",
];
/// Pools with shared blocks.
const SHARED: [&str; 3] = ["dedup-fast", "dedup-legacy", "reflink"];

/// Checks `images` of a golden pool; shows real zdb one in `shown`.
fn cut(name: &str, seed: u64, images: u64, shown: u64) {
    let Some(pool) = golden::get(name) else { return };
    let keys = match name {
        "encrypted" => keys_of(&pool),
        _ => Vec::new(),
    };
    let start = Start::Disks(ForeignPool { keys, ..ForeignPool::in_folder(&pool.dir).unwrap() });
    let plan = CutPlan { seed, images, steps: STEPS, start, per_cut: 64, only: None, lying: false };
    let (mut seen, begun) = (0, std::time::Instant::now());
    let outcome = survive(&plan, &mut |image| {
        seen += 1;
        if seen % shown == 0 {
            common::show(image, &[Judge::NEWEST]);
        }
    });
    let outcome = outcome.unwrap_or_else(|why| panic!("{name}: {why}"));
    println!("{name}: {} images of {} moments in {:?}", outcome.images, outcome.cuts, begun.elapsed());
    if let Some((event, variant, why)) = outcome.failure {
        panic!("{name}, {event}:{variant}: {why}");
    }
    assert!(outcome.images > images * 9 / 10, "{name}: {}", outcome.images);
}

/// The keys of `encrypted`, as its users give them.
fn keys_of(pool: &golden::Golden) -> Vec<(String, Vec<u8>)> {
    let file = |name: &str| std::fs::read(pool.dir.join(name)).unwrap();
    let passphrase = b"correct horse battery".to_vec();
    [("pass", passphrase), ("raw", file("raw.key")), ("hex", file("hex.key"))]
        .map(|(name, key)| (name.to_owned(), key))
        .into()
}

#[test]
fn tables_of_shared_blocks_survive_power_cuts() {
    SHARED.into_iter().for_each(|name| cut(name, 3, 24, 12));
}

#[test]
#[ignore = "minutes"]
fn all_pools_of_openzfs_survive_power_cuts() {
    let all = SHARED.into_iter().chain(OTHERS).chain(["encrypted"]);
    all.for_each(|name| cut(name, 4, 400, 50));
}
