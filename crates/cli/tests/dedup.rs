//! `aquifer dedup` and `aquifer advise` by the built binary, on a mounted pool.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::path::Path;

use live::Live;
use serde_json::Value;
use stdx::rng::Rng;
use testkit::zdb::Judge;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn equal_files_are_shared_while_they_are_mounted() {
    let live = Live::new();
    let (at, disk) = (live.dir.path().join("mnt"), live.disk("a", 128));
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    let run =
        live.run(&format!("zpool create -O mountpoint={} -O checksum=sha256 tank {disk}", at.display()));
    if run.err.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {}", run.err);
        return;
    }
    assert_eq!(run.code, 0, "{}", run.err);
    live.ok("zfs create tank/ro");
    // Four files of two contents, 1M each.
    for n in 0..4 {
        fs::write(at.join(format!("file{n}")), noise(n % 2, 1 << 20)).unwrap();
    }
    live.ok("zpool sync tank");
    let json = |line: &str| serde_json::from_str::<Value>(&live.ok(line)).unwrap();
    let advice = json(&format!("advise dedup --time 20 -j {}", at.display()));
    assert_eq!(advice["choices"][1]["at_least"], 50.0, "{advice}");
    assert_eq!(advice["command"], "aquifer dedup tank");
    let planned = json("dedup -n -j --json-int tank");
    assert_eq!(planned["datasets"]["tank"]["equal"]["blocks"], 16, "{planned}");
    assert_eq!(planned["datasets"]["tank"]["shared"]["blocks"], 0);
    let lines = live.ok("dedup -H -p -r tank");
    let cells: Vec<&str> = lines.lines().next().unwrap().split('\t').collect();
    assert_eq!(cells[0], "tank");
    assert_eq!((cells[3], cells[4]), ("2097152", "2097152"), "{lines}");
    assert_eq!(live.ok("zpool get -H -o value bcloneratio tank"), "2.00x\n");
    assert!(live.ok("zpool history tank").contains("dedup -H -p -r tank"));
    for n in 0..4 {
        assert!(fs::read(at.join(format!("file{n}"))).unwrap() == noise(n % 2, 1 << 20));
    }
    live.ok("zfs set readonly=on tank/ro");
    assert_eq!(live.fails("dedup tank/ro"), "cannot dedup 'tank/ro': the dataset is read-only\n");
    assert_eq!(live.fails("dedup tank/none"), "cannot open 'tank/none': dataset does not exist\n");
    live.ok("zpool export tank");
    // New pools have `block_cloning_endian`, whose entries the zdb of 2.3 cannot read.
    if Judge::NEWEST.installed() {
        Judge::NEWEST.verify(&live.disks(), "tank").unwrap();
    }
}

/// The log of a dedup table counts before it is flushed.
#[test]
fn the_ratio_of_an_imported_pool_follows_its_writes() {
    let live = Live::new();
    let (at, disk) = (live.dir.path().join("mnt"), live.disk("a", 128));
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    let run = live.run(&format!("zpool create -O mountpoint={} -O dedup=on tank {disk}", at.display()));
    if run.err.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {}", run.err);
        return;
    }
    assert_eq!(run.code, 0, "{}", run.err);
    for (copies, ratio) in [(1, "1.00"), (2, "2.00"), (3, "3.00")] {
        fs::write(at.join(format!("file{copies}")), noise(7, 1 << 20)).unwrap();
        live.ok("zpool sync tank");
        assert_eq!(live.ok("zpool get -H -p -o value dedupratio tank").trim(), ratio);
    }
}

/// A limited rewrite takes the time that its rate gives it.
#[test]
fn a_rewrite_keeps_to_its_limit() {
    let live = Live::new();
    let (at, disk) = (live.dir.path().join("mnt"), live.disk("a", 256));
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    let run = live.run(&format!("zpool create -O mountpoint={} tank {disk}", at.display()));
    if run.err.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {}", run.err);
        return;
    }
    assert_eq!(run.code, 0, "{}", run.err);
    let (file, bytes) = (at.join("file"), noise(9, 12 << 20));
    fs::write(&file, &bytes).unwrap();
    live.ok("zpool sync tank");
    let began = std::time::Instant::now();
    live.ok(&format!("zfs rewrite --limit 4M --recordsize=64K {}", file.display()));
    let took = began.elapsed().as_secs_f64();
    assert!(took >= 2.0, "12 MiB took {took} s at 4 MiB/s");
    assert!(fs::read(&file).unwrap() == bytes);
    live.ok("zpool export tank");
    if Judge::NEWEST.installed() {
        Judge::NEWEST.verify(&live.disks(), "tank").unwrap();
    }
}
