//! Regular files, disks and partitions.
//!
//! Reads are positioned reads on a few threads (`pool`). Through the page cache by default, where the
//! kernel's read-ahead serves streams; with `direct`, past it, for devices that are read once.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, FlockOperation};
use stdx::AlignedBuf;

use crate::pool::Pool;
use crate::{BlockDevice, Geometry, Io, IoKind, bounds, geometry};

/// What may be done with an opened device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenMode {
    /// Reads only: nothing on the device can change. Others may use it at the same time.
    #[default]
    ReadOnly,
    /// Reads and writes, shared with others.
    ReadWrite,
    /// Reads and writes, refused when someone else holds the device: `O_EXCL` on block devices (mounted
    /// or held by a driver), a lock on files.
    Exclusive,
}

/// How to open a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Access.
    pub mode: OpenMode,
    /// Past the page cache. Where the file system refuses it, the page cache is used after all.
    pub direct: bool,
    /// Threads at most.
    pub threads: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { mode: OpenMode::ReadOnly, direct: false, threads: 4 }
    }
}

/// Which file or device this is, whatever path it was opened by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// A block device, by its number.
    Block(u64),
    /// A regular file, by file system and inode.
    File(u64, u64),
}

/// A file or block device.
pub struct FileDevice {
    name: String,
    path: PathBuf,
    inner: Arc<Inner>,
    pool: Pool,
}

struct Inner {
    file: File,
    geometry: Geometry,
    identity: Identity,
    /// Offsets and lengths must be multiples of this; 1 through the page cache.
    unit: u64,
}

impl FileDevice {
    /// Opens a path. Never creates, truncates or changes anything.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<Self> {
        let path = path.as_ref();
        let (file, direct) = open_file(path, options)?;
        let geometry = geometry::probe(&file, options.mode == OpenMode::ReadOnly)?;
        let meta = file.metadata()?;
        let identity = if meta.is_file() {
            Identity::File(meta.dev(), meta.ino())
        } else {
            Identity::Block(meta.rdev())
        };
        if options.mode == OpenMode::Exclusive && meta.is_file() {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        }
        // Files may lie on a disk with 4 KiB sectors; our buffers are aligned to that anyhow.
        let unit = if direct { u64::from(geometry.logical_sector).max(4096) } else { 1 };
        let inner = Arc::new(Inner { file, geometry, identity, unit });
        let serving = Arc::clone(&inner);
        let pool = Pool::new(options.threads, Box::new(move |io| serving.serve(io)));
        Ok(Self { name: path.display().to_string(), path: path.to_owned(), inner, pool })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which file or device it is.
    pub fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// Tells the kernel how the device will be read: `true` for front to back (more read-ahead),
    /// `false` for no order.
    pub fn advise_sequential(&self, sequential: bool) {
        let advice = if sequential { Advice::Sequential } else { Advice::Random };
        // Only a hint; a file system without it reads all the same.
        let _ = rustix::fs::fadvise(&self.inner.file, 0, None, advice);
    }

    /// Tells the kernel that this range will be read soon, or (`false`) not again.
    pub fn advise_range(&self, offset: u64, len: u64, soon: bool) {
        let advice = if soon { Advice::WillNeed } else { Advice::DontNeed };
        let _ = rustix::fs::fadvise(&self.inner.file, offset, std::num::NonZeroU64::new(len), advice);
    }
}

impl std::fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileDevice({}, {} bytes)", self.name, self.inner.geometry.size)
    }
}

/// Opens the file and says whether it is past the page cache.
fn open_file(path: &Path, options: OpenOptions) -> io::Result<(File, bool)> {
    // Asked before opening: merely opening some character devices (a watchdog, a tape) has effects.
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(geometry::not_a_device());
    }
    let open = |direct: bool| {
        let exclusive = options.mode == OpenMode::Exclusive && kind.is_block_device();
        // Non-blocking: a pipe or a serial line in the directory must not hold us up.
        let mut flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        flags |= if direct { libc::O_DIRECT } else { 0 };
        flags |= if exclusive { libc::O_EXCL } else { 0 };
        let write = options.mode != OpenMode::ReadOnly;
        std::fs::OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)
    };
    if options.direct {
        match open(true) {
            Err(err) if err.raw_os_error() == Some(libc::EINVAL) => {}
            other => return other.map(|file| (file, true)),
        }
    }
    open(false).map(|file| (file, false))
}

impl Inner {
    fn serve(&self, io: &mut Io) -> io::Result<()> {
        match io.kind {
            IoKind::Read => self.read(io.offset, &mut io.buf),
            IoKind::Write => self.write(io.offset, &io.buf),
            IoKind::Flush => self.file.sync_data(),
            IoKind::Trim(len) => self.trim(io.offset, len),
        }
    }

    fn is_aligned(&self, offset: u64, len: usize) -> bool {
        offset.is_multiple_of(self.unit) && u64::try_from(len).is_ok_and(|len| len.is_multiple_of(self.unit))
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.is_aligned(offset, buf.len()) {
            return self.file.read_exact_at(buf, offset);
        }
        let (start, around) = self.around(offset, buf.len())?;
        let skip = usize::try_from(offset - start).unwrap_or(usize::MAX);
        let wanted = around.get(skip..).and_then(|tail| tail.get(..buf.len()));
        buf.copy_from_slice(wanted.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    /// Whole units around a range: where they start, and their bytes (up to the end of the file).
    fn around(&self, offset: u64, len: usize) -> io::Result<(u64, AlignedBuf)> {
        let start = offset - offset % self.unit;
        let len = u64::try_from(len).unwrap_or(u64::MAX).saturating_add(offset - start);
        let whole = len.checked_next_multiple_of(self.unit).and_then(|len| usize::try_from(len).ok());
        let mut buf = AlignedBuf::zeroed(whole.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?);
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = start.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
            match self.file.read_at(rest, at) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
            if !self.is_aligned(0, done) {
                // Only the file's end gives less than whole units.
                break;
            }
        }
        Ok((start, buf))
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        if self.is_aligned(offset, buf.len()) {
            return self.file.write_all_at(buf, offset);
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "direct writes must be whole sectors"))
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset, len)?)
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry
    }

    fn submit(&self, io: Io) {
        match bounds::check(&self.inner.geometry, &io) {
            Ok(()) => self.pool.submit(io),
            Err(err) => bounds::finish(io, Err(err)),
        }
    }
}
