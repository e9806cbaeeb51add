//! `aquifer zdb` on damaged pools: every option terminates and never panics.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::aquifer;
use stdx::rng::Rng;
use testkit::golden::{self, Golden};

/// Every kind of output, the deep ones too.
const OPTIONS: [&str; 14] =
    ["-u", "-C", "-hh", "-mmmm", "-MM", "-DDDDD", "-TTTT", "-TTT", "-S", "-s", "-k", "-F", "-dddd", "-ii"];

fn run_all(dir: &Path, pool: &str, what: &str) {
    let path = dir.display().to_string();
    for option in OPTIONS {
        let run = aquifer(&["zdb", option, "-e", "-p", &path, pool]);
        assert!(
            is_orderly(run.code) && !run.err.contains("panicked"),
            "{what} {option}: {} {}",
            run.code,
            run.err
        );
    }
    for place in
        ["0:0:200", "0:3554e00:1000/200:dc", "0:100000:20000:i", "0.0:0:200:g", "0:7fffffffffffe00:200"]
    {
        let run = aquifer(&["zdb", "-R", "-e", "-p", &path, pool, place]);
        assert!(is_orderly(run.code) && !run.err.contains("panicked"), "{what} -R {place}: {}", run.err);
    }
}

fn is_orderly(code: i32) -> bool {
    (0..=3).contains(&code)
}

fn labels(device: &Path, what: &str) {
    let run = aquifer(&["zdb", "-llluuuu", &device.display().to_string()]);
    assert!(is_orderly(run.code) && !run.err.contains("panicked"), "{what} -l: {}", run.err);
}

fn devices(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path());
    entries.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("disk"))).collect()
}

#[test]
fn damaged_golden_pools() {
    for pool in golden::all().iter().filter(|p| p.name.starts_with("damaged") || p.name == "replacing") {
        run_all(&pool.dir, pool.pool_name(), &pool.name);
        devices(&pool.dir).iter().for_each(|d| labels(d, &pool.name));
    }
}

/// Copies bytes that are not zero: the images are sparse.
fn copy(from: &Path, to: &Path) -> Vec<u64> {
    let (source, target) = (File::open(from).unwrap(), File::create(to).unwrap());
    let size = source.metadata().unwrap().len();
    target.set_len(size).unwrap();
    let mut used = Vec::new();
    let mut block = vec![0; 64 << 10];
    for at in (0..size).step_by(block.len()) {
        let n = source.read_at(&mut block, at).unwrap();
        if block[..n].iter().any(|&b| b != 0) {
            target.write_all_at(&block[..n], at).unwrap();
            used.extend(
                (0..n)
                    .step_by(512)
                    .filter(|&i| block[i..(i + 512).min(n)].iter().any(|&b| b != 0))
                    .map(|i| at + i as u64),
            );
        }
    }
    used
}

/// Flips bytes in a share of the sectors in use: one in `rare`.
fn flip(pool: &Golden, seed: u64, rare: u64) {
    let scratch = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(seed);
    for device in devices(&pool.dir) {
        let copied = scratch.path().join(device.file_name().unwrap());
        let used = copy(&device, &copied);
        let file = OpenOptions::new().write(true).open(&copied).unwrap();
        for sector in used {
            if rng.below(rare) == 0 {
                file.write_all_at(&[rng.below(256) as u8], sector + rng.below(512)).unwrap();
            }
        }
    }
    let what = format!("{} with seed {seed}", pool.name);
    run_all(scratch.path(), pool.pool_name(), &what);
    devices(scratch.path()).iter().for_each(|d| labels(d, &what));
}

#[test]
fn flipped_images() {
    for (seed, name) in [(1, "dedup-fast"), (2, "reflink"), (3, "legacy-v28"), (4, "removed")] {
        let Some(pool) = golden::get(name) else { continue };
        for rare in [30, 300] {
            flip(&pool, seed, rare);
        }
    }
}

#[test]
fn files_that_are_no_devices() {
    let scratch = tempfile::tempdir().unwrap();
    for (name, bytes) in [("empty", 0), ("short", 1000), ("small", 300 << 10), ("zeros", 64 << 20)] {
        let path = scratch.path().join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        let run = aquifer(&["zdb", "-lllu", &path.display().to_string()]);
        assert_eq!(run.code, 2, "{name}: {}", run.err);
    }
    assert_eq!(aquifer(&["zdb", "-l", "/does/not/exist"]).code, 1);
    assert_eq!(aquifer(&["zdb", "-E", "1:2"]).code, 1);
    let run = aquifer(&["zdb", "-l", "/dev/null"]);
    assert_eq!((run.code, run.out.matches("failed to read label ").count()), (2, 4), "{}", run.err);
    assert_eq!(aquifer(&["zdb", "-lq", "/dev/null"]).out, "");
    // Wrong command lines.
    for words in [&["-z"][..], &["-l"], &["-R", "tank"], &["-N", "tank/name"], &["--nonsense", "tank"]] {
        let run = aquifer(&[&["zdb"], words].concat());
        assert_eq!(run.code, 2, "{words:?}: {}{}", run.out, run.err);
    }
}
