//! Many snapshots of one file system are destroyed in one txg: accounts stay exact, and the time grows with their number.
//!
//! `AQUIFER_SNAPSHOTS=N[,M…]` sets how many (by default 60) and prints the CPU time of each step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::dsl::write::Encryption;
use engine::env::Env;
use engine::spa::{OpenOptions, Spa};
use testkit::{pools, zdb};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, mount};

const POOL: &str = "many";

/// User and system time of this process, ms.
fn cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // A tick is a hundredth of a second on every Linux.
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum()
}

fn destroy(spa: &Arc<Spa>, first: usize, end: usize) {
    let names: Vec<String> = (first..end).map(|n| format!("{POOL}@s{n}")).collect();
    spa.dsl_task(move |tasks| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        tasks.destroy_snapshots(&names, false)
    })
    .unwrap();
    spa.sync().unwrap();
}

fn change(fs: &FsWriter, file: u64, round: usize) {
    let at = u64::try_from(round % 64).unwrap() * 4096;
    fs.data().write(file, at, &vec![u8::try_from(round % 251).unwrap() + 1; 4096], true).unwrap();
}

/// Makes `count` snapshots, each different from the one before when `changed`; destroys half of them in the middle, then the
/// rest but the last.
fn run(count: usize, changed: bool) {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 8 << 30, Encryption::default()).unwrap();
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o600, 0, 0)).unwrap();
    let began = cpu();
    for round in 0..count {
        if changed {
            change(&fs, file, round);
        }
        spa.dsl_task(move |tasks| tasks.snapshot(&[&format!("{POOL}@s{round}")], &[])).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    spa.export().unwrap();
    drop(spa);
    let made = cpu() - began;
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let (quarter, began) = (count / 4, cpu());
    destroy(&spa, quarter, 3 * quarter);
    let middle = cpu() - began;
    let began = cpu();
    destroy(&spa, 0, quarter);
    destroy(&spa, 3 * quarter, count - 1);
    println!(
        "{count} changed={changed}: made {made} ms, middle half {middle} ms, the rest {} ms",
        cpu() - began
    );
    (0..4).for_each(|_| spa.sync().unwrap());
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), POOL).unwrap();
    }
}

#[test]
fn ranges_of_snapshots_are_destroyed() {
    let asked = std::env::var("AQUIFER_SNAPSHOTS").unwrap_or_else(|_| "60".into());
    for count in asked.split(',').map(|n| n.parse().unwrap()) {
        run(count, false);
        run(count, true);
    }
}

/// Blocks that an import of a pool with `count` snapshots asks the cache for.
fn blocks_of_import(count: usize) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 1 << 30, Encryption::default()).unwrap();
    let names: Vec<String> = (0..count).map(|n| format!("{POOL}@s{n}")).collect();
    for name in names {
        spa.dsl_task(move |tasks| tasks.snapshot(&[&name], &[])).unwrap();
    }
    spa.export().unwrap();
    drop(spa);
    let env = Env::system(64 << 20).unwrap();
    let spa = pools::import_in(&env, dir.path(), POOL, OpenOptions::default()).unwrap();
    let stats = &env.memory.stats;
    let asked = stats.hits.total() + stats.misses.total();
    spa.export().unwrap();
    asked
}

#[test]
fn an_import_does_not_look_at_each_snapshot() {
    let [few, many] = [2, 400].map(blocks_of_import);
    assert!(many < few * 2, "{few} and {many} blocks");
}
