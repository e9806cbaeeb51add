//! Mounted file systems under many callers, and on a device for logs that fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blkdev::{Device, Fault, FaultyDevice};
use common::Bench;
use engine::dsl::write::Tasks;
use engine::env::Env;
use engine::spa::Spa;
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::vdev::config::AllocBias;
use stdx::rng::Rng;
use testkit::{pools, zdb};
use zpl::write::{FsWriter, NewFs, NewNode, Overrides, RenameKind, create_fs, mount};
use zpl::{FileKind, Time};

const SPAN: usize = 600_000;

fn file() -> NewNode<'static> {
    NewNode::new(FileKind::Regular, 0o600, 0, 0)
}

/// Writes and cuts a file of its own, with a commit after most changes; returns its number and expected
/// content.
fn writer(fs: &FsWriter, seed: u64, steps: u64) -> (u64, Vec<u8>) {
    let mut rng = Rng::new(seed);
    let number = fs.dirs().create(fs.root, format!("file{seed}").as_bytes(), &file()).unwrap();
    let mut model = vec![0; SPAN];
    fs.data().truncate(number, SPAN as u64).unwrap();
    for _ in 0..steps {
        let at = rng.below(SPAN as u64 - 1) as usize;
        let most = if rng.below(3) == 0 { 200_000 } else { 3000 };
        let end = (at + 1 + rng.below(most) as usize).min(SPAN);
        match rng.below(5) {
            0 => {
                model[at..end].fill(0);
                fs.data().punch(number, at as u64, (end - at) as u64).unwrap();
            }
            _ => {
                rng.fill(&mut model[at..end]);
                fs.data().write(number, at as u64, &model[at..end], true).unwrap();
            }
        }
        if rng.below(4) > 0 {
            fs.fsync(number).unwrap();
        }
    }
    (number, model)
}

/// Makes, moves and removes files.
fn namer(fs: &FsWriter, seed: u64, steps: u64) {
    for step in 0..steps {
        let (one, two) = (format!("n{seed}-{step}"), format!("m{seed}-{}", step % 3));
        let number = fs.dirs().create(fs.root, one.as_bytes(), &file()).unwrap();
        fs.data().write(number, 0, &[7; 30_000], true).unwrap();
        fs.dirs()
            .rename((fs.root, one.as_bytes()), (fs.root, two.as_bytes()), RenameKind::Plain, (0, 0))
            .unwrap();
        if step % 2 == 0 {
            fs.fsync(number).unwrap();
        }
        if step % 5 == 0 {
            fs.dirs().unlink(fs.root, two.as_bytes()).unwrap();
        }
    }
}

fn snapshots(spa: &Arc<Spa>, count: u64) {
    for n in 0..count {
        let name = format!("wpool@s{n}");
        spa.sync_task(move |spa: &Spa, tx: &engine::dmu::Tx| {
            let tasks = Tasks { at: spa.datasets.at(tx, spa), datasets: &spa.datasets, pool: &spa.pool.name };
            tasks.snapshot(&[&name], &[])
        })
        .unwrap();
    }
}

fn content(fs: &FsWriter, number: u64) -> Vec<u8> {
    let mut out = vec![0; SPAN];
    assert_eq!(fs.data().read(number, 0, &mut out).unwrap(), SPAN);
    out
}

fn many_callers(settings: &[(&'static str, u64)], steps: u64) {
    let bench = Bench::new(512 << 20, |_| {});
    for &(name, value) in settings {
        bench.set(name, value);
    }
    bench.spa.start_thread().unwrap();
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let commits = AtomicU64::new(0);
    let before = bench.spa.txgs.synced();
    let files: Vec<_> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|seed| {
                scope.spawn({
                    let (fs, commits) = (&fs, &commits);
                    move || {
                        let done = writer(fs, seed, steps);
                        commits.fetch_add(steps / 4 * 3, Ordering::Relaxed);
                        done
                    }
                })
            })
            .collect();
        scope.spawn(|| namer(&fs, 9, steps));
        scope.spawn(|| snapshots(&bench.spa, 3));
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let groups = bench.spa.txgs.synced() - before;
    assert!(groups < commits.load(Ordering::Relaxed) / 4, "{groups} groups: commits don't make groups");
    for (number, want) in &files {
        assert!(content(&fs, *number) == *want);
    }
    fs.unmount().unwrap();
    drop(fs);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    assert_eq!(fs.replayed().unwrap().done, 0);
    for (number, want) in &files {
        assert!(content(&fs, *number) == *want);
    }
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{text}");
}

/// How long a stress lasts; more in the environment.
fn steps() -> u64 {
    std::env::var("AQUIFER_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

#[test]
fn many_callers_share_one_log() {
    many_callers(&[], steps());
}

#[test]
fn many_callers_place_their_blocks() {
    many_callers(&[("logbias", 1), ("recordsize", 32 << 10)], steps());
}

#[test]
fn commits_wait_for_groups_while_the_log_device_fails() {
    const SIZE: u64 = 128 << 20;
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let log = pools::leaf(&dir.path().join("log"), SIZE);
    let faulty = Arc::new(FaultyDevice::new(Arc::clone(&log.device), 1));
    let log = LeafSpec { device: Arc::clone(&faulty) as Device, ..log };
    let top = |leaf, class| TopSpec { vdev: VdevSpec::Leaf(leaf), class, ashift: None };
    let tops =
        vec![top(pools::leaf(&dir.path().join("disk1"), SIZE), AllocBias::Normal), top(log, AllocBias::Log)];
    let new = NewFs { projects: false, ..NewFs::new(Time { sec: 1_700_000_000, nsec: 0 }, 3) };
    let spa = pools::create_pool(&env, "wpool", tops, &|objset, tx| create_fs(objset, tx, &new)).unwrap();
    let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
    let number = fs.dirs().create(fs.root, b"file", &file()).unwrap();
    let step = |byte: u8| {
        fs.data().write(number, 0, &[byte; 50_000], true).unwrap();
        fs.fsync(number).unwrap();
        spa.txgs.synced()
    };
    step(0);
    let begun = step(1);
    assert_eq!(step(2), begun, "the log is written");
    // Everything but the labels.
    faulty.inject(Fault::WriteError(4 << 20..SIZE - (1 << 20)));
    let failing: Vec<u64> = (3..6).map(step).collect();
    assert!(failing.windows(2).all(|pair| pair[0] < pair[1]), "{begun} {failing:?}: all is on disk");
    faulty.clear();
    step(6);
    step(7);
    let again = step(8);
    assert_eq!(step(9), again, "the log is written again");
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    fs.unmount().unwrap();
    drop(fs);
    spa.export().unwrap();
    drop(spa);
    let again = pools::import_dir(crashed.path(), "wpool").unwrap();
    let fs = mount(&again, "wpool", Overrides::default()).unwrap();
    let mut out = vec![0; 50_000];
    fs.data().read(number, 0, &mut out).unwrap();
    assert!(out.iter().all(|&b| b == 9));
    fs.unmount().unwrap();
    drop(fs);
    again.export().unwrap();
    for dir in [&dir, &crashed] {
        if zdb::installed() {
            zdb::verify(dir.path(), "wpool").unwrap();
        }
    }
}

/// A pool on one disk that can fail, and its file system.
fn on_a_faulty_disk(dir: &std::path::Path) -> (Arc<Spa>, Arc<FaultyDevice>) {
    let leaf = pools::leaf(&dir.join("disk1"), 128 << 20);
    let faulty = Arc::new(FaultyDevice::new(Arc::clone(&leaf.device), 1));
    let leaf = LeafSpec { device: Arc::clone(&faulty) as Device, ..leaf };
    let tops = vec![TopSpec { vdev: VdevSpec::Leaf(leaf), class: AllocBias::Normal, ashift: None }];
    let new = NewFs { projects: false, ..NewFs::new(Time { sec: 1_700_000_000, nsec: 0 }, 3) };
    let env = Env::system(64 << 20).unwrap();
    let spa = pools::create_pool(&env, "wpool", tops, &|objset, tx| create_fs(objset, tx, &new)).unwrap();
    (spa, faulty)
}

/// A flush of a commit fails once, and the system drops the pages that it could not write: the commit waits
/// for the txg, which writes the lost blocks again.
#[test]
fn a_commit_does_not_trust_what_a_failed_flush_has_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (spa, faulty) = on_a_faulty_disk(dir.path());
    let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
    let number = fs.dirs().create(fs.root, b"file", &file()).unwrap();
    let step = |byte: u8| {
        fs.data().write(number, 0, &[byte; 128 << 10], true).unwrap();
        fs.fsync(number).unwrap();
    };
    (0..3).for_each(step);
    faulty.inject(Fault::FlushErrors { count: 1, lost: 1000 });
    step(3);
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    let again = pools::import_dir(crashed.path(), "wpool").unwrap();
    let found = mount(&again, "wpool", Overrides::default()).unwrap();
    let mut out = vec![0; 128 << 10];
    found.data().read(number, 0, &mut out).unwrap();
    assert!(out.iter().all(|&b| b == 3), "an acknowledged write is gone");
    found.unmount().unwrap();
    fs.unmount().unwrap();
}

/// While the pool is suspended commits fail; after the resume they succeed, and the failed changes are on
/// disk with them.
#[test]
fn commits_go_on_with_a_pool_that_was_suspended() {
    let dir = tempfile::tempdir().unwrap();
    let (spa, faulty) = on_a_faulty_disk(dir.path());
    spa.start_thread().unwrap();
    let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
    let number = fs.dirs().create(fs.root, b"file", &file()).unwrap();
    let step = |byte: u8, len: usize| {
        fs.data().write(number, 0, &vec![byte; len], true)?;
        fs.fsync(number)
    };
    for (round, len) in [(1, 5000), (3, 128 << 10)] {
        step(round, len).unwrap();
        faulty.inject(Fault::Gone);
        assert!(step(round + 1, len).is_err());
        assert!(fs.fsync(number).is_err(), "it is still suspended");
        faulty.clear();
        spa.suspending().resume(&|_| Ok(Arc::clone(&faulty) as Device)).unwrap();
        fs.fsync(number).unwrap();
        let crashed = tempfile::tempdir().unwrap();
        pools::copy(dir.path(), crashed.path());
        let again = pools::import_dir(crashed.path(), "wpool").unwrap();
        let found = mount(&again, "wpool", Overrides::default()).unwrap();
        let mut out = vec![0; len];
        found.data().read(number, 0, &mut out).unwrap();
        assert!(
            out.iter().all(|&b| b == round + 1),
            "what failed first is on disk when a later commit returned"
        );
        found.unmount().unwrap();
    }
    step(9, 100).unwrap();
    fs.unmount().unwrap();
}
