//! The work items on a pool. Each ends with everything on disk.

use engine::{Error, Kind, Result};
use sim::files::FilePool;
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::NewNode;

const PIECE: u64 = 1 << 20;

/// The data to write, and the amount of each work item.
#[derive(Debug)]
pub struct Load {
    /// Incompressible bytes.
    pub random: Vec<u8>,
    /// Compressible bytes.
    pub text: Vec<u8>,
    /// Bytes of the large file.
    pub large: u64,
    /// Small files.
    pub small: u64,
    /// Writes within the large file.
    pub rewrites: u64,
    /// Synced appends.
    pub syncs: u64,
}

/// A work item; returns the logical bytes that it wrote.
pub type Work = fn(&FilePool, &Load) -> Result<u64>;

fn file(pool: &FilePool, dir: u64, name: &str, kind: FileKind) -> Result<u64> {
    pool.fs.dirs().create(dir, name.as_bytes(), &NewNode::new(kind, 0o644, 0, 0))
}

fn write_large(pool: &FilePool, load: &Load, name: &str, source: &[u8]) -> Result<u64> {
    let number = file(pool, pool.fs.root, name, FileKind::Regular)?;
    for at in (0..load.large).step_by(1 << 20) {
        // A window that moves by bytes, so that no two blocks are equal.
        let shift = usize::try_from(at / PIECE * 4099 % PIECE).unwrap_or(0);
        let piece = source.get(shift..shift + (1 << 20)).unwrap_or(source);
        pool.fs.data().write(number, at, piece, false)?;
    }
    pool.spa.sync()?;
    Ok(load.large)
}

/// One large file of random bytes.
pub fn sequential(pool: &FilePool, load: &Load) -> Result<u64> {
    write_large(pool, load, "random", &load.random)
}

/// One large file of text, with lz4.
pub fn compressed(pool: &FilePool, load: &Load) -> Result<u64> {
    write_large(pool, load, "text", &load.text)
}

/// Many files of 1 to 16 KiB in directories of 100.
pub fn small_files(pool: &FilePool, load: &Load) -> Result<u64> {
    let (mut random, mut total, mut dir) = (Rng::new(7), 0, pool.fs.root);
    for number in 0..load.small {
        if number % 100 == 0 {
            dir = file(pool, pool.fs.root, &format!("d{}", number / 100), FileKind::Directory)?;
        }
        let len = usize::try_from(1024 + random.below(15 << 10)).unwrap_or(1024);
        let made = file(pool, dir, &format!("file{number}"), FileKind::Regular)?;
        pool.fs.data().write(made, 0, load.random.get(..len).unwrap_or(&load.random), false)?;
        total += len as u64;
    }
    pool.spa.sync()?;
    Ok(total)
}

/// Pieces of 128 KiB, whole records, all over the large file.
pub fn rewrite(pool: &FilePool, load: &Load) -> Result<u64> {
    const RECORD: u64 = 128 << 10;
    let number = sim::tree::find(&pool.fs, std::path::Path::new("random"))?;
    let mut random = Rng::new(9);
    for _ in 0..load.rewrites {
        let at = random.below(load.large / RECORD) * RECORD;
        let shift = usize::try_from(random.below(PIECE)).unwrap_or(0);
        let piece = load.random.get(shift..shift + (128 << 10)).unwrap_or(&load.random);
        pool.fs.data().write(number, at, piece, false)?;
    }
    pool.spa.sync()?;
    Ok(load.rewrites * RECORD)
}

/// Pieces of 8 KiB all over the large file: each record is read, changed and written.
pub fn patch(pool: &FilePool, load: &Load) -> Result<u64> {
    const PATCH: u64 = 8 << 10;
    let number = sim::tree::find(&pool.fs, std::path::Path::new("random"))?;
    let mut random = Rng::new(11);
    for _ in 0..load.rewrites {
        let at = random.below(load.large / PATCH) * PATCH;
        pool.fs.data().write(number, at, load.random.get(..8 << 10).unwrap_or(&load.random), false)?;
    }
    pool.spa.sync()?;
    Ok(load.rewrites * PATCH)
}

/// Appends of 4 KiB, each followed by `fsync`, by one caller.
pub fn fsync(pool: &FilePool, load: &Load) -> Result<u64> {
    append_synced(pool, load, "log", load.syncs)
}

/// The same by eight callers at once, each with a file of its own: the log groups them.
pub fn fsync_many(pool: &FilePool, load: &Load) -> Result<u64> {
    const CALLERS: u64 = 8;
    std::thread::scope(|scope| {
        let one = |caller: u64| append_synced(pool, load, &format!("log{caller}"), load.syncs / CALLERS);
        let all: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || one(caller))).collect();
        all.into_iter().try_fold(0, |sum, thread| {
            let done = thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a thread ended")));
            Ok(sum + done?)
        })
    })
}

fn append_synced(pool: &FilePool, load: &Load, name: &str, times: u64) -> Result<u64> {
    let number = file(pool, pool.fs.root, name, FileKind::Regular)?;
    let piece = load.random.get(..4 << 10).unwrap_or(&load.random);
    for _ in 0..times {
        pool.fs.data().append(number, piece, false)?;
        pool.fs.fsync(number)?;
    }
    Ok(times * piece.len() as u64)
}
