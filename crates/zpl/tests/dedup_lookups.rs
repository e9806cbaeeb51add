//! Look-ups in dedup tables that are larger than the cache: many at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::ddt::{self, Totals};
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::spa::{OpenOptions, Spa};
use engine::vdev::config::AllocBias;
use stdx::rng::Rng;
use testkit::pools;
use testkit::zdb::Judge;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, create_fs, mount};

const POOL: &str = "many";
const BLOCK: usize = 512;
/// Blocks of a file: their entries take some hundred leaves of 32 KiB.
const BLOCKS: usize = 16_000;
const SHA256: u64 = 8;
/// Its ZAPs hash keys with a salt.
const EDONR_VERIFY: u64 = 13 | 256;

fn env(cache: u64) -> Env {
    let env = Env::system(cache).unwrap();
    // Without an index each key is looked up.
    env.memory.limits.set(Limit::DedupIndexMax, 1).unwrap();
    // The entries leave the log at once.
    env.memory.limits.set(Limit::DedupFlushMin, 1 << 20).unwrap();
    env.memory.limits.set(Limit::DedupLogTxgMax, 1).unwrap();
    env
}

fn write(spa: &Arc<Spa>, fs: &FsWriter, name: &str, (seed, blocks): (u64, usize)) -> u64 {
    let number =
        fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    let mut bytes = vec![0; blocks * BLOCK];
    Rng::new(seed).fill(&mut bytes);
    fs.data().write(number, 0, &bytes, true).unwrap();
    spa.sync().unwrap();
    number
}

/// Keys that were looked up, batches, leaves, and blocks read.
fn counts(spa: &Spa) -> [u64; 4] {
    let counts = spa.shared.lookup_counts();
    let counts = [&counts.keys, &counts.batches, &counts.leaves, &spa.pool.zio.stats.reads];
    counts.map(|count| count.load(Ordering::Relaxed))
}

fn entries(spa: &Spa) -> (u64, u64) {
    let tables = ddt::tables(&spa.mos.view(), &mut Vec::new());
    let all = Totals::of(&tables, &|_| 0).all();
    (all.blocks, all.ref_blocks)
}

fn judge(dir: &std::path::Path) {
    let copy = tempfile::tempdir().unwrap();
    pools::copy(dir, copy.path());
    for judge in [Judge::USUAL, Judge::NEWEST].iter().filter(|judge| judge.installed()) {
        judge.verify(copy.path(), POOL).unwrap_or_else(|why| panic!("{judge:?}: {why}"));
    }
}

/// The images of an exported pool with a file of different blocks, whose entries are in the table.
fn filled(blocks: usize, dedup: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let created = env(64 << 20);
    let new = pools::new_fs(&created);
    let vdev = VdevSpec::Leaf(pools::leaf(&dir.path().join("disk1"), 256 << 20));
    let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
    let spa = pools::create_pool(&created, POOL, tops, &|o, tx| create_fs(o, tx, &new)).unwrap();
    for (name, value) in [("recordsize", BLOCK as u64), ("dedup", dedup)] {
        let all = [(name, Some(PropValue::Number(value)))];
        spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local)).unwrap();
    }
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    write(&spa, &fs, "first", (1, blocks));
    spa.sync_deferred().unwrap();
    fs.unmount().unwrap();
    drop(fs);
    spa.export().unwrap();
    dir
}

/// Duplicates and frees of many blocks look their keys up in batches: each leaf is read once a batch.
#[test]
fn keys_are_looked_up_in_batches() {
    let dir = filled(BLOCKS, SHA256);
    let spa = pools::import_in(&env(2 << 20), dir.path(), POOL, OpenOptions::default()).unwrap();
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let blocks = BLOCKS as u64;
    let mut last = counts(&spa);
    let mut since = |what: &str| {
        let now = counts(&spa);
        let [keys, batches, leaves, reads] = std::array::from_fn(|i| now[i] - last[i]);
        last = now;
        println!("{what}: {keys} keys in {batches} batches, {leaves} leaves, {reads} reads");
        (keys, batches, leaves, reads)
    };
    let second = write(&spa, &fs, "second", (1, BLOCKS));
    assert_eq!(entries(&spa), (blocks, 2 * blocks));
    let (keys, batches, leaves, reads) = since("duplicates");
    assert!(keys == blocks && batches <= keys / 2 && leaves < keys && reads < keys / 2);
    // Most of the log's entries are written to the table.
    (0..8).for_each(|_| spa.dsl_task(|_| Ok(())).unwrap());
    since("the log's flush");
    fs.dirs().unlink(fs.root, b"first").unwrap();
    spa.sync().unwrap();
    assert_eq!(entries(&spa), (blocks, blocks));
    let (keys, batches, leaves, reads) = since("frees");
    // The log has the others.
    assert!(keys > blocks / 2 && batches < 20 && leaves < keys / 8 && reads < keys / 8);
    let counters = spa.shared.dedup_counters();
    let counter = |name: &str| {
        let (_, of_sha256) = counters.iter().find(|(checksum, _)| *checksum == "sha256").unwrap();
        of_sha256.iter().find(|(known, ..)| *known == name).unwrap().2
    };
    let [all, new, stored, logged] =
        ["lookup", "lookup_new", "lookup_stored_hit", "lookup_log_hit"].map(&counter);
    assert_eq!((all, new, stored + logged), (2 * blocks, 0, 2 * blocks));
    assert!(counter("log_active_entries") + counter("log_flushing_entries") <= blocks);
    assert!(counter("log_ingest_rate") > 0);
    let mut out = vec![0; BLOCKS * BLOCK];
    fs.data().read(second, 0, &mut out).unwrap();
    judge(dir.path());
    fs.dirs().unlink(fs.root, b"second").unwrap();
    (0..10).for_each(|_| spa.dsl_task(|_| Ok(())).unwrap());
    assert_eq!(entries(&spa), (0, 0));
    judge(dir.path());
    fs.unmount().unwrap();
}

/// After an import all keys are read in the background: then new blocks cost no look-up, and duplicates are found.
#[test]
fn keys_are_read_after_an_import() {
    read_after_an_import(SHA256, &[(4 << 20, true), (450 << 10, false)]);
    read_after_an_import(EDONR_VERIFY, &[(4 << 20, true)]);
}

fn read_after_an_import(dedup: u64, rooms: &[(u64, bool)]) {
    let dir = filled(BLOCKS, dedup);
    for &(room, all) in rooms {
        let copy = tempfile::tempdir().unwrap();
        pools::copy(dir.path(), copy.path());
        let env = env(64 << 20);
        env.memory.limits.set(Limit::DedupIndexMax, room).unwrap();
        let spa = pools::import_in(&env, copy.path(), POOL, OpenOptions::default()).unwrap();
        let mut steps = 0;
        while spa.background().run_steps() {
            steps += 1;
        }
        assert!(if all { (2..50).contains(&steps) } else { steps < 50 }, "{steps} steps");
        let held = env.memory.dedup_index(0, 0);
        assert!(held > 0 && held < room - (384 << 10), "{held} of {room} bytes are left");
        let fs = mount(&spa, POOL, Overrides::default()).unwrap();
        write(&spa, &fs, "new", (2, BLOCKS));
        let [keys, ..] = counts(&spa);
        assert!(if all { keys == 0 } else { (1..BLOCKS as u64).contains(&keys) }, "{keys} look-ups");
        write(&spa, &fs, "again", (1, BLOCKS));
        assert_eq!(entries(&spa), (2 * BLOCKS as u64, 3 * BLOCKS as u64));
        fs.unmount().unwrap();
        drop(fs);
        spa.export().unwrap();
        // Now there is a second ZAP.
        let spa = pools::import_in(&env, copy.path(), POOL, OpenOptions::default()).unwrap();
        while spa.background().run_steps() {}
        let fs = mount(&spa, POOL, Overrides::default()).unwrap();
        write(&spa, &fs, "third", (3, BLOCKS));
        let [keys, ..] = counts(&spa);
        assert!(if all { keys == 0 } else { keys > 0 }, "{keys} look-ups");
        fs.dirs().unlink(fs.root, b"third").unwrap();
        (0..8).for_each(|_| spa.sync_deferred().unwrap());
        assert_eq!(entries(&spa), (2 * BLOCKS as u64, 3 * BLOCKS as u64));
        fs.unmount().unwrap();
        judge(copy.path());
    }
}

/// Keys that come and go while others are read do not make the index wrong: a key that it lacked would be listed twice.
#[test]
fn keys_are_read_while_tables_change() {
    read_while_tables_change(SHA256, 3);
    read_while_tables_change(EDONR_VERIFY, 1);
}

fn read_while_tables_change(dedup: u64, rounds: u64) {
    const FEW: usize = 6000;
    let dir = filled(FEW, dedup);
    for round in 0..rounds {
        let env = env(64 << 20);
        env.memory.limits.set(Limit::DedupIndexMax, 16 << 20).unwrap();
        let spa = pools::import_in(&env, dir.path(), POOL, OpenOptions::default()).unwrap();
        let fs = mount(&spa, POOL, Overrides::default()).unwrap();
        let (ended, kept, gone) = (AtomicBool::new(false), format!("f{round}"), format!("f{}", round + 9));
        std::thread::scope(|scope| {
            scope.spawn(|| while spa.background().run_steps() || !ended.load(Ordering::Relaxed) {});
            for part in 0..3 {
                write(&spa, &fs, &gone, (100 + round, FEW));
                if part == round {
                    write(&spa, &fs, &kept, (200 + round, FEW));
                }
                fs.dirs().unlink(fs.root, gone.as_bytes()).unwrap();
                spa.sync_deferred().unwrap();
            }
            ended.store(true, Ordering::Relaxed);
        });
        let blocks = FEW as u64;
        assert_eq!(entries(&spa), ((2 + round) * blocks, (2 + round) * blocks), "round {round}");
        // All are known, and nothing else is.
        let before = counts(&spa)[0];
        write(&spa, &fs, &gone, (300 + round, FEW));
        assert_eq!(counts(&spa)[0], before);
        fs.dirs().unlink(fs.root, gone.as_bytes()).unwrap();
        for seed in [1, 200 + round] {
            write(&spa, &fs, &gone, (seed, FEW));
            fs.dirs().unlink(fs.root, gone.as_bytes()).unwrap();
        }
        (0..8).for_each(|_| spa.sync_deferred().unwrap());
        assert_eq!(entries(&spa), ((2 + round) * blocks, (2 + round) * blocks), "round {round}");
        fs.unmount().unwrap();
        drop(fs);
        spa.export().unwrap();
    }
    judge(dir.path());
}
