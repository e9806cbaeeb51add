//! `copy_file_range` on a mount shares blocks, and copies ranges that cannot be shared.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod bench;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use bench::Bench;
use rustix::fs::{XattrFlags, copy_file_range};
use rustix::io::Errno;
use stdx::rng::Rng;

const CAPABILITY: &str = "security.capability";

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(5).fill(&mut bytes);
    bytes
}

/// Copies all that the kernel copies.
fn copy(from: &Path, to: &Path) -> u64 {
    let (from, to) = (
        File::open(from).unwrap(),
        File::options().write(true).create(true).truncate(false).open(to).unwrap(),
    );
    let mut done = 0;
    loop {
        match copy_file_range(&from, None, &to, None, 1 << 30).unwrap() as u64 {
            0 => return done,
            more => done += more,
        }
    }
}

fn saved(bench: &Bench) -> u64 {
    bench.pool.spa.sync().unwrap();
    let view = bench.pool.spa.mos.view();
    engine::brt::table(&view, 0).unwrap().map_or(0, |table| table.head.savedspace)
}

#[test]
fn copied_ranges_are_cloned_and_coherent() {
    let Some(bench) = Bench::new() else { return };
    let (one, two, three) = (bench.mnt().join("one"), bench.mnt().join("two"), bench.mnt().join("three"));
    let mut bytes = noise((5 << 20) + 777);
    fs::write(&one, &bytes).unwrap();
    // `cp` copies a file that looks sparse without cloning it.
    assert!(fs::metadata(&one).unwrap().blocks() * 512 >= bytes.len() as u64);
    assert_eq!(copy(&one, &two), bytes.len() as u64);
    assert!(fs::read(&two).unwrap() == bytes);
    assert!(saved(&bench) >= 5 << 20, "{}", saved(&bench));
    // Pages of the target that the kernel has are not read again.
    fs::write(&three, vec![9; 5 << 20]).unwrap();
    let target = File::options().read(true).write(true).open(&three).unwrap();
    let mut page = [0; 4096];
    target.read_exact_at(&mut page, 1 << 20).unwrap();
    assert_eq!(page, [9; 4096]);
    let before = saved(&bench);
    let source = File::open(&one).unwrap();
    let (mut at, mut to) = (0, 1 << 20);
    assert_eq!(copy_file_range(&source, Some(&mut at), &target, Some(&mut to), 2 << 20).unwrap(), 2 << 20);
    target.read_exact_at(&mut page, 1 << 20).unwrap();
    assert!(page == bytes[..4096]);
    assert_eq!(saved(&bench) - before, 2 << 20);
    // At other offsets the kernel copies.
    let (mut at, mut to) = (100, 5000);
    assert_eq!(copy_file_range(&source, Some(&mut at), &target, Some(&mut to), 10_000).unwrap(), 10_000);
    let mut part = vec![0; 10_000];
    target.read_exact_at(&mut part, 5000).unwrap();
    assert!(part == bytes[100..10_100]);
    drop((source, target));
    // `cp` finds the way, too; the source changes, its copy does not.
    let copied = Command::new("cp").args(["--reflink=auto"]).arg(&one).arg(bench.mnt().join("four")).status();
    assert!(copied.unwrap().success());
    assert!(saved(&bench) - before >= 7 << 20);
    fs::write(&one, b"other").unwrap();
    assert!(fs::read(bench.mnt().join("four")).unwrap() == bytes);
    bytes.truncate(0);
    for name in ["one", "two", "three", "four"] {
        fs::remove_file(bench.mnt().join(name)).unwrap();
    }
    let is_gone = || {
        bench.pool.spa.sync().unwrap();
        engine::brt::table(&bench.pool.spa.mos.view(), 0).unwrap().is_none()
    };
    let tries = (0..100).find(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        is_gone()
    });
    assert!(tries.is_some(), "the table is gone with the last clone");
    bench.end();
}

#[test]
fn files_of_snapshots_are_cloned() {
    let Some(bench) = Bench::new() else { return };
    let bytes = noise(3 << 20);
    fs::write(bench.mnt().join("one"), &bytes).unwrap();
    bench.pool.spa.dsl_task(|tasks| tasks.snapshot(&[&format!("{}@s", sim::files::POOL)], &[])).unwrap();
    fs::remove_file(bench.mnt().join("one")).unwrap();
    let kept = bench.mnt().join(".zfs/snapshot/s/one");
    assert_eq!(copy(&kept, &bench.mnt().join("back")), bytes.len() as u64);
    assert!(saved(&bench) >= 3 << 20, "{}", saved(&bench));
    bench
        .pool
        .spa
        .dsl_task(|tasks| tasks.destroy_snapshots(&[&format!("{}@s", sim::files::POOL)], false))
        .unwrap();
    assert!(fs::read(bench.mnt().join("back")).unwrap() == bytes);
    bench.end();
}

#[test]
fn files_are_rewritten_in_place() {
    let Some(bench) = Bench::new() else { return };
    let bytes = noise(3 << 20);
    let path = bench.mnt().join("one");
    fs::write(&path, &bytes).unwrap();
    assert_eq!(copy(&path, &bench.mnt().join("two")), bytes.len() as u64);
    let shared = saved(&bench);
    assert!(shared >= 3 << 20);
    let file = File::options().write(true).open(&path).unwrap();
    let before = file.metadata().unwrap().modified().unwrap();
    stdx::os::rewrite(&file, 1 << 20, 1 << 20, 0).unwrap();
    assert_eq!(shared - saved(&bench), 1 << 20, "what is rewritten is shared no more");
    stdx::os::rewrite(&file, 0, 0, 0).unwrap();
    stdx::os::rewrite(&file, 1 << 40, 5, 0).unwrap();
    assert_eq!(saved(&bench), 0);
    let refused = stdx::os::rewrite(&file, 0, 0, 1).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTSUP), "the feature physical_rewrite is not enabled");
    assert!(stdx::os::rewrite(&file, 0, 0, 2).is_err());
    assert_eq!(file.metadata().unwrap().modified().unwrap(), before);
    // Reading a file does not permit rewriting it, which takes space where snapshots keep the blocks.
    let refused = stdx::os::rewrite(&File::open(&path).unwrap(), 0, 0, 0).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    assert!(fs::read(&path).unwrap() == bytes && fs::read(bench.mnt().join("two")).unwrap() == bytes);
    drop(file);
    bench.end();
}

/// One request of this program's mounts; returns the error of the answer and the bytes that were cloned.
fn asked(file: &File, words: [u64; 10]) -> (u64, u64) {
    let mut message = [0; stdx::os::REWRITE_BYTES];
    for (to, word) in message.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    stdx::os::ask_rewrite(file, &mut message).unwrap();
    let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
    (word(0), word(8))
}

/// A file is cloned from a descriptor that can read it to one that can write, and only while it is open.
#[test]
fn offered_files_are_cloned_with_the_rights_of_descriptors() {
    let Some(bench) = Bench::new() else { return };
    let [source, target] = ["source", "target"].map(|name| bench.mnt().join(name));
    let bytes = noise(3 << 20);
    fs::write(&source, &bytes).unwrap();
    fs::write(&target, b"").unwrap();
    let (offer, clone) =
        (|token| [8, 0, 0, 0, 0, 0, 0, token, 0, 0], |token| [9, 0, 3 << 20, 0, 0, 0, 0, token, 0, 0]);
    let read = File::open(&source).unwrap();
    let write = File::options().write(true).open(&source).unwrap();
    let to = File::options().write(true).open(&target).unwrap();
    let (denied, unknown) = (13, 2);
    assert_eq!(asked(&write, offer(1)), (denied, 0), "the descriptor cannot read");
    assert_eq!(asked(&read, offer(2)), (0, 0));
    assert_eq!(asked(&read, offer(2)).0, 17, "the token is in use");
    assert_eq!(asked(&to, clone(1)), (unknown, 0));
    assert_eq!(asked(&File::open(&target).unwrap(), clone(2)), (denied, 0), "the descriptor cannot write");
    // Version 2, with all capabilities permitted.
    let capability = [1, 0, 0, 2, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0];
    let is_set = rustix::fs::setxattr(&target, CAPABILITY, &capability, XattrFlags::empty()).is_ok();
    assert_eq!(asked(&to, clone(2)), (0, 3 << 20));
    let kept = rustix::fs::getxattr(&target, CAPABILITY, &mut [0; 64]);
    assert!(!is_set || kept == Err(Errno::NODATA), "other content has no capabilities: {kept:?}");
    assert!(fs::read(&target).unwrap() == bytes && saved(&bench) >= 3 << 20);
    drop(read);
    let ends = || asked(&to, clone(2)).0 == unknown;
    assert!((0..100).any(|_| ends() || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        false
    }));
    // A file of a snapshot cannot be opened for writing, and can be offered.
    bench.pool.spa.dsl_task(|tasks| tasks.snapshot(&[&format!("{}@s", sim::files::POOL)], &[])).unwrap();
    let kept = bench.mnt().join(".zfs/snapshot/s/source");
    let refused = File::options().write(true).open(&kept).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "{refused}");
    let kept = File::open(&kept).unwrap();
    fs::write(&source, b"other").unwrap();
    fs::write(&target, b"").unwrap();
    assert_eq!((asked(&kept, offer(3)), asked(&to, clone(3))), ((0, 0), (0, 3 << 20)));
    assert!(fs::read(&target).unwrap() == bytes);
    drop((write, to, kept));
    bench.end();
}
