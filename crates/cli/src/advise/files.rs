//! The files of a directory, and random blocks of them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stdx::rng::Rng;

use crate::interrupt::Interrupt;

/// Most files that are listed: their names take memory.
const MOST: usize = 500_000;

/// Files with data.
#[derive(Debug)]
pub struct Inventory {
    /// Each with its last byte's offset in all of them, and its size.
    pub files: Vec<(PathBuf, u64, u64)>,
    /// Bytes of all.
    pub bytes: u64,
    /// No file was skipped.
    pub is_whole: bool,
}

/// A block of a file.
#[derive(Debug)]
pub struct Block {
    /// Its bytes; fewer at the end of a file.
    pub bytes: Vec<u8>,
    /// Size of the file.
    pub of: u64,
}

impl Inventory {
    /// Lists the files below `top` in its file system. Unreadable files are skipped, and so are those for
    /// which the time does not suffice.
    pub fn of(top: &Path, time: Duration, interrupt: &Interrupt) -> Self {
        let started = Instant::now();
        let mut all = Self { files: Vec::new(), bytes: 0, is_whole: true };
        let device = fs::metadata(top).map_or(0, |meta| meta.dev());
        // Directories in random order: with too little time no part of the tree is preferred.
        let (mut dirs, mut random) = (vec![top.to_owned()], Rng::new(1));
        while !dirs.is_empty() {
            let len = u64::try_from(dirs.len()).unwrap_or(1);
            let at = usize::try_from(random.below(len)).unwrap_or(0);
            let dir = dirs.swap_remove(at);
            let Ok(entries) = fs::read_dir(&dir) else {
                all.is_whole = false;
                continue;
            };
            for entry in entries.flatten() {
                if started.elapsed() > time || all.files.len() >= MOST || interrupt.is_set() {
                    all.is_whole = false;
                    return all;
                }
                let Ok(meta) = entry.metadata() else { continue };
                if meta.is_dir() && meta.dev() == device {
                    dirs.push(entry.path());
                } else if meta.is_file() && meta.len() > 0 {
                    all.bytes = all.bytes.saturating_add(meta.len());
                    all.files.push((entry.path(), all.bytes, meta.len()));
                }
            }
        }
        all
    }

    /// The block of `size` bytes around a random byte: the likelihood of a block is proportional to its length.
    pub fn draw(&self, size: u64, random: &mut Rng) -> Option<Block> {
        let at = random.below(self.bytes.max(1));
        let file = self.files.get(self.files.partition_point(|(_, end, _)| *end <= at))?;
        let begin = file.1.saturating_sub(file.2);
        self.block(file, at.saturating_sub(begin) / size.max(1), size)
    }

    /// Block `blkid` of a file.
    pub fn block(&self, file: &(PathBuf, u64, u64), blkid: u64, size: u64) -> Option<Block> {
        let from = blkid.saturating_mul(size);
        let len = usize::try_from(file.2.saturating_sub(from).min(size)).ok()?;
        let mut bytes = vec![0; len];
        File::open(&file.0).and_then(|open| open.read_exact_at(&mut bytes, from)).ok()?;
        Some(Block { bytes, of: file.2 })
    }
}
