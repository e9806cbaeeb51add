//! The operations that are measured, on files of a mount or of the engine in this process.
//!
//! A path is `DATASET/FILE` or `DATASET/DIRECTORY/FILE`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// File systems that can be measured.
pub trait Store: Sync {
    /// Makes a directory.
    fn mkdir(&self, path: &str) -> io::Result<()>;
    /// Makes a file that does not exist, and opens it.
    fn create(&self, path: &str) -> io::Result<Box<dyn Opened + '_>>;
    /// Opens a file.
    fn open(&self, path: &str) -> io::Result<Box<dyn Opened + '_>>;
    /// Reads a file's attributes; returns the bytes that it takes on disk.
    fn stat(&self, path: &str) -> io::Result<u64>;
    /// Removes a file.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &str) -> io::Result<()>;
}

/// An open file.
pub trait Opened: Send + Sync {
    /// Fills `out` from `at` on; returns the bytes read.
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `data`.
    fn write_at(&self, at: u64, data: &[u8]) -> io::Result<()>;
    /// Appends all of `data`.
    fn append(&self, data: &[u8]) -> io::Result<()>;
    /// Makes the file's writes durable.
    fn fsync(&self) -> io::Result<()>;
}

/// Files below a mount point.
#[derive(Debug)]
pub struct Mounted(pub PathBuf);

impl Store for Mounted {
    fn mkdir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.0.join(path))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn Opened + '_>> {
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(self.0.join(path))?;
        Ok(Box::new(file))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn Opened + '_>> {
        let file = fs::OpenOptions::new().read(true).write(true).open(self.0.join(path))?;
        Ok(Box::new(file))
    }

    fn stat(&self, path: &str) -> io::Result<u64> {
        fs::metadata(self.0.join(path)).map(|meta| meta.blocks() * 512)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(path))
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.0.join(path))
    }
}

impl Opened for fs::File {
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(self, rest, at + done as u64)? {
                0 => break,
                len => done += len,
            }
        }
        Ok(done)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, at)
    }

    fn append(&self, data: &[u8]) -> io::Result<()> {
        // The description's own position: the measured program is the only writer, and begins at 0.
        let mut file = self;
        file.write_all(data)
    }

    fn fsync(&self) -> io::Result<()> {
        self.sync_all()
    }
}
