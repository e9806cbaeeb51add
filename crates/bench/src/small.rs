//! `bench --small DIR [FILES]`: the work per small operation, without a mount and without the kernel.
//!
//! One thread makes the calls that a mount's requests make: for a new file its lookup, the creation, its
//! attributes, a write of 3 kB and the close; for a removal lookup, attributes and unlink; sequential writes of 4 KiB; and
//! appends of 4 KiB with `fsync`, by one caller and by 16 with a file each. Meant for counts, which are stable where times are
//! not:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect=bench::small::creates target/demo/bench --small DIR 1000
//! ```
//!
//! counts the instructions of one function per run (`creates`, `unlinks`, `writes`, `lookups`); txgs are written by other
//! threads and are not included.

use std::path::Path;
use std::time::Instant;

use engine::env::Env;
use engine::{Error, Kind, Result};
use sim::files::{FilePool, disks};
use sim::world::Shape;
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode};

use crate::say;

const ARC: u64 = 256 << 20;
const SMALL: usize = 3000;
const PIECE: usize = 4 << 10;
const CALLERS: u64 = 16;

/// Runs all rows with `files` files in `dir`.
pub fn run(dir: &Path, files: u64) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let shape = Shape::Raidz(1);
    let pool = FilePool::create(&Env::system(ARC)?, shape, disks(dir, shape.disks(), 1 << 30)?)?;
    let mut random = vec![0; PIECE];
    Rng::new(1).fill(&mut random);
    let (fs, root) = (&*pool.fs, pool.fs.root);
    let names: Vec<String> = (1..=files).map(|n| format!("f{n}")).collect();
    let big = fs.dirs().create(root, b"big", &NewNode::new(FileKind::Regular, 0o644, 0, 0))?;
    row("create", files, || creates(fs, &names, &random))?;
    pool.spa.sync()?;
    row("lookup", files, || lookups(fs, &names))?;
    row("unlink", files, || unlinks(fs, &names))?;
    pool.spa.sync()?;
    row("4K write", files, || writes(fs, big, files, &random))?;
    pool.spa.sync()?;
    row("fsync, 1", files, || synced(fs, 0, files, &random))?;
    row("fsync, 16", files, || synced_by_many(fs, files, &random))?;
    pool.export()?;
    for number in 1..=shape.disks() {
        std::fs::remove_file(dir.join(format!("disk{number}")))?;
    }
    Ok(())
}

fn row(what: &str, count: u64, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    work()?;
    say(&format!("{what:<9} {:>7.1} us", start.elapsed().as_secs_f64() * 1e6 / count.max(1) as f64))
}

#[inline(never)]
fn creates(fs: &FsWriter, names: &[String], data: &[u8]) -> Result<()> {
    for name in names {
        if fs.dirs().lookup(fs.root, name.as_bytes())?.is_some() {
            return Err(Error::new(Kind::Exists, name.clone()));
        }
        let number =
            fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0))?;
        fs.open_file(number)?;
        fs.attrs().get(number)?;
        fs.data().write(number, 0, data.get(..SMALL).unwrap_or(data), false)?;
        fs.attrs().get(fs.root)?;
        fs.close_file(number)?;
    }
    Ok(())
}

fn found(fs: &FsWriter, name: &str) -> Result<u64> {
    let entry = fs.dirs().lookup(fs.root, name.as_bytes())?;
    let number = entry.map(|e| e.object).ok_or_else(|| Error::not_found(name.to_owned()))?;
    fs.attrs().get(number)?;
    Ok(number)
}

#[inline(never)]
fn lookups(fs: &FsWriter, names: &[String]) -> Result<()> {
    names.iter().try_for_each(|name| found(fs, name).map(drop))
}

#[inline(never)]
fn unlinks(fs: &FsWriter, names: &[String]) -> Result<()> {
    for name in names {
        found(fs, name)?;
        fs.dirs().unlink(fs.root, name.as_bytes())?;
        fs.attrs().get(fs.root)?;
    }
    Ok(())
}

#[inline(never)]
fn writes(fs: &FsWriter, number: u64, count: u64, data: &[u8]) -> Result<()> {
    (0..count).try_for_each(|at| fs.data().write(number, at * PIECE as u64, data, false))
}

#[inline(never)]
fn synced(fs: &FsWriter, caller: u64, count: u64, data: &[u8]) -> Result<()> {
    let name = format!("log{caller}");
    let number = fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0))?;
    for _ in 0..count {
        fs.data().append(number, data, false)?;
        fs.fsync(number)?;
    }
    Ok(())
}

fn synced_by_many(fs: &FsWriter, count: u64, data: &[u8]) -> Result<()> {
    std::thread::scope(|scope| {
        let all: Vec<_> = (1..=CALLERS)
            .map(|caller| scope.spawn(move || synced(fs, caller, count / CALLERS, data)))
            .collect();
        all.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a thread ended")))
        })
    })
}
