//! Blocks counted and verified: the same figures as OpenZFS's `zdb`, and damage named.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that can't go on must say so")]

mod common;

use std::path::Path;
use std::process::Command;

use common::aquifer;
use testkit::golden::{self, Golden};
use testkit::ztest;

/// Pools whose figures, as OpenZFS 2.3.2's zdb gave them, are kept in `tests/blocks`.
const KEPT: [&str; 8] =
    ["basic", "classes", "dedup-fast", "draid1", "encrypted", "legacy-v28", "reflink", "removed"];

/// The text that zdb prints after the block statistics of a pool with a checkpoint.
const CHECKPOINT: &str = "\n\nCheckpointed uberblock found:";

fn has(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
    let found = found.is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("SKIPPED: {tool} is not installed, nothing to compare with");
    }
    found
}

/// zdb's text up to the end of the block statistics, and its exit code.
fn zdb(dir: &Path, flags: &str, pool: &str) -> (String, i32) {
    let dir = dir.to_str().unwrap();
    let mut command = testkit::zdb::command("zdb");
    let output = command.args(["-e", "-p", dir, flags, pool]).env("TZ", "UTC").output().unwrap();
    (cut(&String::from_utf8_lossy(&output.stdout)), output.status.code().unwrap_or(-1))
}

fn ours(dir: &Path, flags: &str, pool: &str) -> (String, i32) {
    let run = aquifer(&["zdb", "-e", "-p", dir.to_str().unwrap(), flags, pool]);
    (cut(&run.out), run.code)
}

fn cut(text: &str) -> String {
    text.split(CHECKPOINT).next().unwrap_or_default().trim_end().to_owned()
}

/// The first line that differs.
fn difference(theirs: &str, ours: &str) -> Option<String> {
    let (mut a, mut b) = (theirs.lines(), ours.lines());
    for number in 1.. {
        match (a.next(), b.next()) {
            (None, None) => return None,
            (x, y) if x == y => {}
            (x, y) => return Some(format!("line {number}:\n  zdb  {x:?}\n  ours {y:?}")),
        }
    }
    None
}

fn compare(name: &str, dir: &Path, flags: &str, pool: &str) -> Option<String> {
    let (text, code) = zdb(dir, flags, pool);
    let (mine, my_code) = ours(dir, flags, pool);
    let difference = difference(&text, &mine);
    let codes = (code != my_code).then(|| format!("exit {code}, ours {my_code}"));
    difference.or(codes).map(|what| format!("{name} {flags}: {what}"))
}

#[test]
fn totals_of_golden_pools_are_zdbs() {
    if !has("zdb") {
        return;
    }
    let mut wrong = Vec::new();
    for pool in golden::of_2_3() {
        let flags = match pool.name.as_str() {
            "dedup-fast" | "encrypted" | "zfs-fuse-v23" | "unclean-log" => "-bbbbb",
            "draid1" | "damaged-raidz2" => "-Pbbcc",
            "reflink" => "-Lbbc",
            _ => "-bbbb",
        };
        wrong.extend(compare(&pool.name, &pool.dir, flags, pool.pool_name()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn totals_are_those_kept() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blocks");
    for name in KEPT {
        let Some(pool) = golden::get(name) else { continue };
        let expected = std::fs::read_to_string(kept.join(format!("{name}.txt"))).unwrap();
        let (text, code) = ours(&pool.dir, "-Pbbb", pool.pool_name());
        assert_eq!(difference(expected.trim_end(), &text), None, "{name}");
        assert_eq!(code, 0, "{name}");
    }
}

fn verify(pool: &Golden, more: &[&str]) -> common::Run {
    let dir = pool.dir.display().to_string();
    let mut args = vec!["verify", "-q", "-H", "-p", "-d", &dir, pool.pool_name()];
    args.extend(more);
    aquifer(&args)
}

#[test]
fn sound_pools_are_well() {
    for name in
        ["basic", "mirror3", "raidz1-3", "draid1", "reflink", "dedup-legacy", "unclean-log", "encrypted"]
    {
        let Some(pool) = golden::get(name) else { continue };
        for more in [&[][..], &["--first-copy"][..]] {
            let run = verify(&pool, more);
            assert_eq!(run.code, 0, "{name}: {}{}", run.out, run.err);
            assert!(run.out.ends_with(": all is well\n"), "{name}: {}", run.out);
            assert!(run.out.contains("No leaks"), "{name}");
        }
    }
}

#[test]
fn damage_that_redundancy_covers_is_named() {
    for (name, remedy) in [
        ("damaged-raidz1", "parity"),
        ("damaged-raidz2", "parity"),
        ("damaged-mirror", "other side of the mirror"),
    ] {
        let Some(pool) = golden::get(name) else { continue };
        let run = verify(&pool, &[]);
        assert_eq!(run.code, 1, "{name}: {}", run.out);
        assert!(run.out.ends_with("all of which redundancy covers\n"), "{name}: {}", run.out);
        let lines: Vec<Vec<&str>> =
            run.out.lines().map(|l| l.split('\t').collect()).filter(|l: &Vec<&str>| l.len() == 8).collect();
        assert!(!lines.is_empty() && lines.iter().all(|l| l[7] == remedy), "{name}: {}", run.out);
        assert!(lines.iter().any(|l| l[1].starts_with("/d/") && l[2] == "data"), "{name}: {}", run.out);
        assert!(lines.iter().all(|l| l[6].contains("/disk")), "{name}");
    }
}

/// Copies a pool's devices, sparse.
fn copy(pool: &Golden, to: &Path) {
    for entry in std::fs::read_dir(&pool.dir).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("disk") {
            let copied = Command::new("cp").arg("--sparse=always").arg(entry.path()).arg(to).status();
            assert!(copied.unwrap().success());
        }
    }
}

#[test]
fn a_lost_block_is_named_with_its_file_and_range() {
    let Some(pool) = golden::get("basic") else { return };
    let dir = tempfile::tempdir().unwrap();
    copy(&pool, dir.path());
    // A block of a file's data that lies alone: its place from the pool's own pointers.
    let (text, _) = ours(&pool.dir, "-bbbbb", "tank");
    let line = text.lines().find(|l| {
        l.contains("[L0 ZFS plain file]") && l.contains(" single ") && l.contains("size=20000L/20000P")
    });
    let line = line.expect("some block of 128 KiB");
    let dva = line.split("DVA[0]=<0:").nth(1).unwrap().split(':').next().unwrap();
    let at = u64::from_str_radix(dva, 16).unwrap() + (4 << 20);
    let disk = std::fs::OpenOptions::new().write(true).open(dir.path().join("disk1")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, &[0xa5; 512], at + 4096).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let (object, offset) = (words[3], words[7].trim_start_matches("0x"));
    let run = aquifer(&["verify", "-q", "-j", "-d", dir.path().to_str().unwrap(), "tank"]);
    assert_eq!(run.code, 2, "{}{}", run.out, run.err);
    let from = u64::from_str_radix(offset, 16).unwrap();
    assert!(run.out.contains(&format!("\"object\":\"{object}\"")), "{}", run.out);
    assert!(run.out.contains(&format!("\"from\":\"{from}\",\"to\":\"{}\"", from + 0x20000)), "{}", run.out);
    assert!(run.out.contains("\"file\":\"/") && run.out.contains("\"state\":\"lost\""), "{}", run.out);
}

/// Fresh pools by `ztest`, each kind of top-level vdev: totals, and the leak report, which a killed ztest
/// may leave unclean, are zdb's.
#[test]
fn totals_of_ztest_pools_are_zdbs() {
    if !has("zdb") || !ztest::is_here() {
        return;
    }
    let mut wrong = Vec::new();
    for kind in ztest::KINDS.into_iter().chain([ztest::MIRRORED]) {
        let dir = tempfile::tempdir().unwrap();
        if ztest::make(kind, dir.path()) {
            wrong.extend(compare(kind.name, dir.path(), "-bbbb", "ztest"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
