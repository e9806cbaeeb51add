//! The files of a directory, and random blocks of them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clikit::interrupt::Interrupt;
use stdx::rng::Rng;

use super::stored::Stored;

/// Most files that are listed: their names take memory.
const MOST: usize = 500_000;
/// The size of blocks that is assumed where files have none.
const USUAL: u64 = 128 << 10;

/// Where a file is read.
#[derive(Debug)]
pub enum Origin {
    /// In a directory.
    Path(PathBuf),
    /// In an open dataset, by its number.
    Object(u64),
}

/// A file.
#[derive(Debug)]
pub struct Listed {
    /// The file.
    pub name: Origin,
    /// Its last byte's offset in all files together.
    pub end: u64,
    /// Its bytes.
    pub size: u64,
    /// Bytes of its blocks.
    pub block: u64,
}

/// Files with data.
#[derive(Debug)]
pub struct Inventory {
    /// Each of them.
    pub files: Vec<Listed>,
    /// Bytes of all.
    pub bytes: u64,
    /// No file was skipped.
    pub is_whole: bool,
    /// The dataset that they are read from, if it is open.
    pub stored: Option<Stored>,
}

/// A block of a file.
#[derive(Debug)]
pub struct Block {
    /// Its bytes; fewer at the end of a file.
    pub bytes: Vec<u8>,
    /// Size of the file.
    pub of: u64,
    /// The file and the number of the block in it.
    pub at: (usize, u64),
}

impl Inventory {
    /// Lists the files below `top` in its file system. Unreadable files are skipped, and so are those for
    /// which the time does not suffice. `is_zfs`: files state the size of their blocks.
    pub fn of((top, is_zfs): (&Path, bool), time: Duration, interrupt: &Interrupt) -> Self {
        let started = Instant::now();
        let mut all = Self { files: Vec::new(), bytes: 0, is_whole: true, stored: None };
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
                    let block = if is_zfs { meta.blksize().max(512) } else { USUAL };
                    let name = Origin::Path(entry.path());
                    all.files.push(Listed { name, end: all.bytes, size: meta.len(), block });
                }
            }
        }
        all
    }

    /// The block of `size` bytes (without: of the file's own) around a random byte: the likelihood of a block is proportional to
    /// its length.
    pub fn draw(&self, size: Option<u64>, random: &mut Rng) -> Option<Block> {
        let at = random.below(self.bytes.max(1));
        let file = self.files.partition_point(|file| file.end <= at);
        let listed = self.files.get(file)?;
        let begin = listed.end.saturating_sub(listed.size);
        let size = size.unwrap_or(listed.block).max(1);
        self.block((file, at.saturating_sub(begin) / size), size)
    }

    /// A block of a file, both by their numbers.
    pub fn block(&self, at: (usize, u64), size: u64) -> Option<Block> {
        let file = self.files.get(at.0)?;
        let from = at.1.saturating_mul(size);
        let len = usize::try_from(file.size.saturating_sub(from).min(size)).ok()?;
        let bytes = match &file.name {
            Origin::Path(path) => {
                let mut bytes = vec![0; len];
                File::open(path).and_then(|open| open.read_exact_at(&mut bytes, from)).ok()?;
                bytes
            }
            Origin::Object(number) => self.stored.as_ref()?.read(*number, from, len)?,
        };
        Some(Block { bytes, of: file.size, at })
    }
}
