//! Holes of files on a mount: they are made, found, and filled through mappings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod bench;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use bench::Bench;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use rustix::fs::{FallocateFlags, fallocate};
use stdx::rng::Rng;

/// `FALLOC_FL_ZERO_RANGE` takes no space, whatever the range is.
#[test]
fn a_range_becomes_zeros_without_room_for_it() {
    const LEN: usize = 12 << 20;
    let Some(bench) = Bench::new() else { return };
    let quota = [("quota", Some(PropValue::Number(20 << 20)))];
    bench.pool.spa.dsl_task(move |tasks| tasks.set("tank", &quota, SettingSource::Local)).unwrap();
    let path = bench.mnt().join("file");
    let mut noise = vec![0; LEN];
    Rng::new(1).fill(&mut noise);
    fs::write(&path, &noise).unwrap();
    bench.pool.spa.sync().unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let more = fallocate(&file, FallocateFlags::empty(), 0, LEN as u64);
    assert_eq!(more, Err(rustix::io::Errno::NOSPC));
    fallocate(&file, FallocateFlags::ZERO_RANGE, 1000, LEN as u64).unwrap();
    let now = fs::read(&path).unwrap();
    assert_eq!(now.len(), LEN + 1000);
    assert!(now[..1000] == noise[..1000] && now[1000..].iter().all(|byte| *byte == 0));
    // A range far longer than the pool, in a file that is one hole.
    file.set_len(4 << 50).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 1000, 5 << 50).unwrap();
    assert_eq!(file.metadata().unwrap().size(), (5 << 50) + 1000);
    let mut head = [0; 2000];
    file.read_exact_at(&mut head, 0).unwrap();
    assert!(head[..1000] == noise[..1000] && head[1000..].iter().all(|byte| *byte == 0));
    drop(file);
    bench.end();
}

/// The kernel does not write changed pages of mappings before it asks for holes.
#[test]
fn bytes_stored_through_a_mapping_are_no_hole() {
    let Some(bench) = Bench::new() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mapped.py");
    let mut python = std::process::Command::new("python3");
    let paths = [bench.mnt().join("file"), bench.mnt().join("twin")];
    let Ok(out) = python.arg(script).args(paths).arg("3").output() else {
        return eprintln!("SKIPPED: no python3 here");
    };
    let (wrong, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && wrong.is_empty(), "{wrong}{errors}");
    bench.end();
}
