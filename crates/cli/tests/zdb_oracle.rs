//! `aquifer zdb` against the real zdb, byte by byte, on every golden pool; and against the recorded output of
//! the real one, where it is not installed.
//!
//! Not compared, because it must differ: `-k` (zdb pretends to write a txg when it rewinds), numbers of `-s`
//! (each program's own reads), standard error, and bytes that zdb 2.3.2 prints from memory that it never
//! filled (`-R` with an lsize and no `d`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::aquifer;
use testkit::golden::{self, Golden};

/// Everything at four depths, in one run each.
const DEPTHS: [&str; 4] = ["-uCDTmMh", "-uCCDDTTmmMMhh", "-uuuuDDDTTTmmm", "-DDDDDTTTTmmmm"];
/// Output that is also kept as text in the repository.
const KEPT: [(&str, &str); 3] =
    [("basic", "-uCDTmMh"), ("mirror3", "-uuuuDDDTTTmmm"), ("reflink", "-DDDDDTTTTmmmm")];

fn real(args: &[&str]) -> Option<(i32, String)> {
    let output = testkit::zdb::command("zdb").args(args).env("TZ", "UTC").output().ok()?;
    Some((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn zdb_is_here() -> bool {
    let here = Command::new("zdb").output().is_ok();
    if !here {
        eprintln!("SKIPPED: zdb is not installed; only kept texts are compared");
    }
    here
}

/// The first line that differs.
fn difference(what: &str, theirs: &str, ours: &str) -> Option<String> {
    if theirs == ours {
        return None;
    }
    let pairs = theirs.lines().zip(ours.lines()).enumerate();
    let first = pairs.into_iter().find(|(_, (a, b))| a != b);
    let (n, (a, b)) = first.unwrap_or((theirs.lines().count().min(ours.lines().count()), ("(end)", "(end)")));
    Some(format!("{what}: line {}:\n  zdb  {a}\n  ours {b}", n + 1))
}

fn on_pool<'a>(pool: &'a Golden, dir: &'a str, option: &'a str) -> [&'a str; 5] {
    [option, "-e", "-p", dir, pool.pool_name()]
}

#[test]
fn pools_print_as_zdb_prints_them() {
    if !zdb_is_here() {
        return;
    }
    let mut wrong = Vec::new();
    for pool in golden::of_2_3() {
        let dir = pool.dir.display().to_string();
        // A disk that is gone is no obstacle to us, but zdb's own checks stop at some of these.
        if pool.name.starts_with("damaged") {
            continue;
        }
        for option in DEPTHS.into_iter().chain(["-S"]) {
            let args = on_pool(&pool, &dir, option);
            let (_, theirs) = real(&args).unwrap();
            let ours = aquifer(&[&["zdb"], &args[..]].concat());
            wrong.extend(difference(&format!("{} {option}", pool.name), &theirs, &ours.out));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn devices(pool: &Golden) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(&pool.dir).unwrap().flatten().map(|e| e.path());
    let is_device = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("disk"));
    let mut all: Vec<PathBuf> = entries.filter(is_device).collect();
    all.sort();
    all
}

#[test]
fn labels_print_as_zdb_prints_them() {
    if !zdb_is_here() {
        return;
    }
    let mut wrong = Vec::new();
    for pool in golden::of_2_3() {
        for device in devices(&pool) {
            let path = device.display().to_string();
            for option in ["-l", "-llu", "-llluuuu"] {
                let (code, theirs) = real(&[option, &path]).unwrap();
                let ours = aquifer(&["zdb", option, &path]);
                let what = format!("{option} {} {}", pool.name, device.file_name().unwrap().display());
                wrong.extend(difference(&what, &theirs, &ours.out));
                if code != ours.code {
                    wrong.push(format!("{what}: zdb leaves with {code}, we with {}", ours.code));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn blocks_read_as_zdb_reads_them() {
    let Some(pool) = golden::get("basic").filter(|_| zdb_is_here()) else { return };
    let dir = pool.dir.display().to_string();
    let mut wrong = Vec::new();
    for place in
        ["0:3554e00:200", "0:3554e00:200:c", "0:3554e00:200:e", "0:3554e00:1000/200:d", "0:3554e00:200:d"]
    {
        let args = ["-R", "-e", "-p", &dir, pool.pool_name(), place];
        let (_, theirs) = real(&args).unwrap();
        wrong.extend(difference(place, &theirs, &aquifer(&[&["zdb"], &args[..]].concat()).out));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn livelists_and_space_maps_are_in_order() {
    for pool in golden::of_2_3() {
        let dir = pool.dir.display().to_string();
        let ours = aquifer(&[&["zdb"], &on_pool(&pool, &dir, "-y")[..]].concat());
        // A checkpoint's uberblock follows, as behind everything that walks the pool.
        let checked = "Verifying deleted livelist entries\nVerifying metaslab entries\n";
        let rest = ours.out.strip_prefix(checked);
        assert_eq!(rest.map(str::is_empty), Some(pool.name != "checkpoint"), "{}: {}", pool.name, ours.out);
        assert_eq!(ours.code, 0);
    }
}

#[test]
fn headers_of_zstd_blocks_follow_their_pointers() {
    let Some(pool) = golden::get("compress") else { return };
    let dir = pool.dir.display().to_string();
    let args = ["-Zdddddd", "-e", "-p", &dir, "tank/compression-zstd"];
    let ours = aquifer(&[&["zdb"], &args[..]].concat()).out;
    assert!(ours.contains(" ZSTD:size=14:version=10405:level=3:EMBEDDED\n"));
    assert!(ours.contains(" ZSTD:size=37942:version=10405:level=3:NORMAL\n"));
    if let Some((_, theirs)) = real(&args) {
        assert_eq!(difference("-Z", &theirs, &ours), None);
    }
}

/// The blocks that `-x` copies during a walk of the metadata suffice to repeat the walk from the copy, for
/// the real zdb, too.
#[test]
fn blocks_that_are_read_are_copied() {
    let Some(pool) = golden::get("basic") else { return };
    let dir = pool.dir.display().to_string();
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().display().to_string();
    let run =
        |from: &str, more: &[&str]| aquifer(&[&["zdb", "-bbc", "-e", "-p", from], more, &["tank"]].concat());
    let first = run(&dir, &["-x", &path]);
    assert_eq!(first.code, 0, "{}", first.err);
    assert_eq!(run(&path, &[]).out, first.out);
    if let Some((code, _)) = real(&["-d", "-e", "-p", &path, "tank"]) {
        assert_eq!(code, 0);
    }
}

#[test]
fn bytes_read_are_printed_for_each_vdev() {
    let Some(pool) = golden::get("classes") else { return };
    let dir = pool.dir.display().to_string();
    let ours = aquifer(&[&["zdb"], &on_pool(&pool, &dir, "-s")[..]].concat()).out;
    let names = |text: &str| -> Vec<String> {
        let word = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        text.lines().map(word).collect()
    };
    let disks: Vec<String> = (1..=6).map(|n| format!("{dir}/disk{n}")).collect();
    let [d1, d2, d3, d4, d5, d6] = &disks[..] else { unreachable!() };
    let expected = ["capacity", "description", "tank", d1, "mirror", d2, d3, d4, "mirror", d5, d6];
    assert_eq!(names(&ours), expected);
    if let Some((_, theirs)) = real(&on_pool(&pool, &dir, "-s")) {
        assert_eq!(names(&theirs), expected);
    }
}

fn kept(pool: &str, option: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("tests/data/zdb").join(format!("{pool}{option}.txt"))
}

/// Output matches the real zdb's, recorded in these files (`AQUIFER_KEEP_ZDB=1` records it again).
#[test]
fn kept_texts_of_zdb_are_matched() {
    for (name, option) in KEPT {
        let Some(pool) = golden::get(name) else { continue };
        let dir = pool.dir.display().to_string();
        let args = on_pool(&pool, &dir, option);
        if std::env::var_os("AQUIFER_KEEP_ZDB").is_some() {
            std::fs::write(kept(name, option), real(&args).unwrap().1).unwrap();
        }
        let theirs = std::fs::read_to_string(kept(name, option)).unwrap();
        let ours = aquifer(&[&["zdb"], &args[..]].concat());
        assert_eq!(difference(name, &theirs, &ours.out), None);
    }
}
