//! Pools of every layout, filled to the last byte and emptied; `sim full SEED COUNT` continues from any seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use sim::fill_ops::Kind;
use sim::full::{Case, Effort, fill_and_empty, fill_case};
use sim::world::{Machine, Shape};
use testkit::zdb::Judge;

/// A pool whose properties are the defaults, and holds nothing that is removed.
fn plain(machine: Machine, recordsize: u64) -> Case {
    Case {
        machine,
        recordsize,
        copies: 1,
        compression: 2,
        dedup: false,
        encrypted: false,
        quotas: [0; 2],
        xattr_sa: true,
        snapshots: true,
        gangs: None,
        is_clone: false,
        threads: 1,
    }
}

/// Blocks that once were not charged: spill blocks, a growing first block, indirect blocks, blocks of dnodes,
/// and blocks freed just before.
#[test]
fn bytes_that_are_no_data_count_too() {
    let wide = Machine { ashift: Some(12), ..Shape::Raidz(3).into() };
    let cases = [
        (plain(Shape::Single.into(), 128 << 10), vec![Kind::Tiny, Kind::Xattrs, Kind::Truncate], 4000),
        (plain(wide, 512), vec![Kind::Sparse, Kind::Tiny, Kind::Chmod], 2500),
    ];
    for (case, kinds, most) in cases {
        let effort = Effort { rounds: 0, most, tasks: 0 };
        let (filled, disks) =
            fill_case(1, case, &kinds, effort).unwrap_or_else(|why| panic!("{case:?}: {why}"));
        println!("{case:?}: {filled:?}");
        assert!(filled.rounds.iter().any(|(_, _, refused)| *refused > 0), "{filled:?}");
        common::show(&disks, &[Judge::NEWEST]);
    }
}

#[test]
fn a_pool_of_a_seed_is_filled_and_emptied() {
    let (filled, disks) =
        fill_and_empty(15, Effort { rounds: 4, most: 2000, tasks: 1 }).unwrap_or_else(|why| panic!("{why}"));
    println!("{filled:?}");
    common::show(&disks, &[Judge::NEWEST]);
}

#[test]
#[ignore = "minutes; part of make test-long"]
fn pools_of_many_seeds_are_filled_and_emptied() {
    for seed in 1..=100 {
        let (filled, disks) =
            fill_and_empty(seed, Effort::default()).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        println!("seed {seed}: {filled:?}");
        if seed % 10 == 0 {
            common::show(&disks, &[Judge::NEWEST]);
        }
    }
}
