//! Regular files, disks and partitions.
//!
//! Reads are positioned reads on a few threads (`pool`). By default a large read whose range is not in the
//! page cache goes past it (`O_DIRECT`): the engine has its own cache and its own read-ahead, and the
//! kernel's, confused by several streams on one file, was measured to cost two to four times the CPU.
//! Small reads, mostly metadata that the next command wants again, go through the page cache.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Advice, AtFlags, FallocateFlags, FlockOperation, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use stdx::{AlignedBuf, Buf};

use crate::behind::may_wait_for_a_mount;
use crate::cached::is_cached;
use crate::pool::{Pool, Work};
use crate::{BlockDevice, Geometry, Io, IoKind, TrimSupport, WriteDone, bounds, discard, geometry};

/// Access mode of an opened device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenMode {
    /// Reads only: nothing on the device can change. Other processes may use it at the same time.
    #[default]
    ReadOnly,
    /// As [`OpenMode::ReadOnly`]; a file is refused while another process holds it [exclusively](OpenMode::Exclusive), and
    /// is refused to such processes meanwhile.
    ReadShared,
    /// Reads and writes, shared with other processes.
    ReadWrite,
    /// Reads and writes, refused while another process holds the device: `O_EXCL` on block devices (mounted or held
    /// by a driver), a lock on files.
    Exclusive,
}

impl OpenMode {
    fn writes(self) -> bool {
        matches!(self, Self::ReadWrite | Self::Exclusive)
    }
}

/// Use of the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// Small reads, and large ones that are already cached.
    #[default]
    Auto,
    /// Every read and write.
    Always,
    /// Nothing, if the file system supports direct I/O.
    Never,
}

/// How to open a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Access.
    pub mode: OpenMode,
    /// Use of the page cache.
    pub cache: CacheMode,
    /// Maximum number of threads.
    pub threads: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { mode: OpenMode::ReadOnly, cache: CacheMode::Auto, threads: 4 }
    }
}

/// The identity of a file or device, independent of its path.
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
    /// Through the page cache.
    file: File,
    /// Bypassing the page cache, if supported and requested.
    direct: Option<Direct>,
    cache: CacheMode,
    /// No reads from the page cache for now.
    past_cache: AtomicBool,
    /// Its geometry when it was opened.
    geometry: Geometry,
    /// Bytes: a device may grow.
    size: AtomicU64,
    identity: Identity,
    trims: TrimSupport,
    /// Requests are never served on the calling thread.
    hands_over: bool,
    /// The file is in the system's memory and nowhere else: no write or flush waits.
    in_memory: bool,
    /// The file system has reads that fail instead of waiting (tmpfs has none).
    tells_at_once: AtomicBool,
}

/// A descriptor for reads past the page cache.
struct Direct {
    file: File,
    /// Offsets and lengths must be multiples of this.
    unit: u64,
}

/// Reads longer than this may bypass the page cache. The engine reads metadata in windows of 64 KiB.
const SMALL: usize = 64 << 10;

impl FileDevice {
    /// Opens a path. Never creates, truncates or changes anything.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<Self> {
        let path = path.as_ref();
        let file = open_file(path, options.mode, 0)?;
        let geometry = geometry::probe(&file, !options.mode.writes())?;
        let meta = file.metadata()?;
        let identity = if meta.is_file() {
            Identity::File(meta.dev(), meta.ino())
        } else {
            Identity::Block(meta.rdev())
        };
        if meta.is_file() {
            lock(&file, options.mode)?;
        }
        let direct = Direct::open(path, identity);
        let trims = match identity {
            Identity::File(..) => TrimSupport { trim: true, erase: false },
            Identity::Block(_) => discard::support(&file),
        };
        let hands_over = may_wait_for_a_mount(&file);
        let in_memory = meta.is_file() && is_in_memory(&file);
        let inner = Arc::new(Inner {
            file,
            direct,
            cache: options.cache,
            past_cache: AtomicBool::new(false),
            size: AtomicU64::new(geometry.size),
            geometry,
            identity,
            trims,
            hands_over,
            in_memory,
            tells_at_once: AtomicBool::new(true),
        });
        let serving = Arc::clone(&inner);
        let pool = Pool::new(options.threads, Box::new(move |io| serving.serve(io)));
        Ok(Self { name: path.display().to_string(), path: path.to_owned(), inner, pool })
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the file or device.
    pub fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// Tells the kernel the read pattern: `true` for front to back (more read-ahead), `false` for random access.
    pub fn advise_sequential(&self, sequential: bool) {
        let advice = if sequential { Advice::Sequential } else { Advice::Random };
        // Only a hint; without support reads work all the same.
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
        write!(f, "FileDevice({}, {} bytes)", self.name, self.inner.geometry().size)
    }
}

fn lock(file: &File, mode: OpenMode) -> io::Result<()> {
    match mode {
        OpenMode::Exclusive => Ok(rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)?),
        // Reading a file on a file system without locks harms nothing.
        OpenMode::ReadShared => match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
            Err(e) if e == rustix::io::Errno::WOULDBLOCK => Err(e.into()),
            _ => Ok(()),
        },
        OpenMode::ReadOnly | OpenMode::ReadWrite => Ok(()),
    }
}

fn open_file(path: &Path, mode: OpenMode, extra_flags: i32) -> io::Result<File> {
    // Checked before opening: merely opening some character devices (a watchdog, a tape) has effects.
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(geometry::not_a_device());
    }
    let exclusive = mode == OpenMode::Exclusive && kind.is_block_device();
    // Non-blocking: the path may have been replaced by a pipe meanwhile, which must not block us.
    let mut flags = libc::O_NONBLOCK | libc::O_NOCTTY | extra_flags;
    flags |= if exclusive { libc::O_EXCL } else { 0 };
    std::fs::OpenOptions::new().read(true).write(mode.writes()).custom_flags(flags).open(path)
}

impl Direct {
    /// `None` if the file system does not support it, or if the path names another file by now.
    fn open(path: &Path, identity: Identity) -> Option<Self> {
        let file = open_file(path, OpenMode::ReadOnly, libc::O_DIRECT).ok()?;
        let meta = file.metadata().ok()?;
        let same = match identity {
            Identity::File(dev, ino) => (meta.dev(), meta.ino()) == (dev, ino),
            Identity::Block(rdev) => meta.rdev() == rdev,
        };
        let unit = alignment(&file)?;
        same.then_some(Self { file, unit })
    }

    fn is_aligned(&self, offset: u64, len: usize) -> bool {
        let is_whole = |n: u64| n.is_multiple_of(self.unit);
        is_whole(offset) && u64::try_from(len).is_ok_and(is_whole)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.is_aligned(offset, buf.len()) {
            return self.file.read_exact_at(buf, offset);
        }
        let (start, around, filled) = self.around(offset, buf.len())?;
        let skip = usize::try_from(offset - start).unwrap_or(usize::MAX);
        let wanted = around.get(..filled).and_then(|read| read.get(skip..)?.get(..buf.len()));
        buf.copy_from_slice(wanted.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    /// Whole units around a range: their offset, their bytes, and the number of these before the end of the file.
    fn around(&self, offset: u64, len: usize) -> io::Result<(u64, AlignedBuf, usize)> {
        let start = offset - offset % self.unit;
        let len = u64::try_from(len).unwrap_or(u64::MAX).saturating_add(offset - start);
        let whole = len.checked_next_multiple_of(self.unit).and_then(|len| usize::try_from(len).ok());
        let mut buf = AlignedBuf::scratch(whole.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?);
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
                // Only the end of the file returns less than whole units.
                break;
            }
        }
        Ok((start, buf, done))
    }
}

/// The required alignment of direct reads; our buffers satisfy any.
fn alignment(file: &File) -> Option<u64> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match stat {
        Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            // 0: the file cannot be read directly at all.
            Some(u64::from(stat.stx_dio_offset_align)).filter(|unit| *unit != 0)
        }
        // A kernel before 6.1 does not report it; no disk has larger sectors.
        _ => Some(4096),
    }
}

impl Inner {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size.load(Ordering::Acquire), ..self.geometry }
    }

    fn serve(&self, work: &mut Work) -> io::Result<()> {
        match work {
            Work::Io(io) => self.serve_io(io),
            Work::Write { offset, parts, .. } => write_all(&self.file, *offset, parts),
        }
    }

    fn serve_io(&self, io: &mut Io) -> io::Result<()> {
        match io.kind {
            IoKind::Read => self.read(io.offset, &mut io.buf),
            IoKind::Write => self.file.write_all_at(&io.buf, io.offset),
            IoKind::Flush => self.file.sync_data(),
            IoKind::Trim(len) => self.trim(io.offset, len),
            IoKind::Erase(len) => match self.identity {
                Identity::Block(_) => discard::erase(&self.file, io.offset, len),
                Identity::File(..) => Err(io::ErrorKind::Unsupported.into()),
            },
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.past_cache.load(Ordering::Acquire) {
            // The kernel writes dirty pages of the range back before a direct read. Without direct reads, clean
            // pages are dropped.
            let len = std::num::NonZeroU64::new(bytes(buf.len()));
            let _ = rustix::fs::fadvise(&self.file, offset, len, Advice::DontNeed);
        }
        match &self.direct {
            Some(direct) if self.goes_direct(offset, buf.len()) => match direct.read(offset, buf) {
                // Some file systems allow opening such a file but refuse to read it.
                Err(err) if err.kind() == io::ErrorKind::InvalidInput => self.file.read_exact_at(buf, offset),
                other => other,
            },
            _ => self.file.read_exact_at(buf, offset),
        }
    }

    /// Fills `buf` if that needs no wait for the device; `buf` may be changed in any case.
    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> bool {
        if self.cache == CacheMode::Never || self.past_cache.load(Ordering::Acquire) {
            return false;
        }
        if self.tells_at_once.load(Ordering::Relaxed) {
            let len = buf.len();
            let mut parts = [IoSliceMut::new(buf)];
            match rustix::io::preadv2(&self.file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
                Ok(read) => return read == len,
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    self.tells_at_once.store(false, Ordering::Relaxed);
                }
                Err(_) => return false,
            }
        }
        is_cached(&self.file, offset, bytes(buf.len())) && self.file.read_exact_at(buf, offset).is_ok()
    }

    fn goes_direct(&self, offset: u64, len: usize) -> bool {
        if self.past_cache.load(Ordering::Acquire) {
            return true;
        }
        match self.cache {
            CacheMode::Always => false,
            CacheMode::Never => true,
            CacheMode::Auto => len > SMALL && !is_cached(&self.file, offset, bytes(len)),
        }
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        if matches!(self.identity, Identity::Block(_)) {
            return discard::discard(&self.file, offset, len);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset, len)?)
    }
}

/// Whether a file is in the system's memory and nowhere else (tmpfs, ramfs).
fn is_in_memory(file: &File) -> bool {
    const KINDS: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    rustix::fs::fstatfs(file).is_ok_and(|fs| u64::try_from(fs.f_type).is_ok_and(|kind| KINDS.contains(&kind)))
}

fn bytes(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Buffers that one system call takes (`IOV_MAX`).
const MOST_PARTS: usize = 1024;

/// Writes the parts one after the other, whatever the kernel takes at once.
fn write_all(file: &File, mut offset: u64, parts: &[Buf]) -> io::Result<()> {
    for parts in parts.chunks(MOST_PARTS) {
        let mut slices: Vec<IoSlice<'_>> =
            parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut *slices;
        while !rest.is_empty() {
            match rustix::io::pwritev(file, rest, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    IoSlice::advance_slices(&mut rest, n);
                    offset = offset.saturating_add(bytes(n));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
    Ok(())
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn measure(&self) -> io::Result<u64> {
        let size = geometry::size(&self.inner.file)?;
        Ok(self.inner.size.fetch_max(size, Ordering::AcqRel).max(size))
    }

    fn trim_support(&self) -> TrimSupport {
        self.inner.trims
    }

    fn read_past_caches(&self, on: bool) {
        self.inner.past_cache.store(on, Ordering::Release);
    }

    fn submit(&self, io: Io) {
        match bounds::check(&self.inner.geometry(), &io) {
            Ok(()) if self.inner.in_memory && matches!(io.kind, IoKind::Flush | IoKind::Write) => {
                self.pool.serve_or_submit(Work::Io(io));
            }
            Ok(()) => self.pool.submit(Work::Io(io)),
            Err(err) => bounds::finish(io, Err(err)),
        }
    }

    fn serve(&self, io: Io) {
        if self.inner.hands_over {
            return self.submit(io);
        }
        match bounds::check(&self.inner.geometry(), &io) {
            Ok(()) => self.pool.serve(Work::Io(io)),
            Err(err) => bounds::finish(io, Err(err)),
        }
    }

    fn serve_if_cached(&self, mut io: Io) -> Option<Io> {
        let is_valid = io.kind == IoKind::Read && bounds::check(&self.inner.geometry(), &io).is_ok();
        if !is_valid || self.inner.hands_over || !self.inner.read_if_cached(io.offset, &mut io.buf) {
            return Some(io);
        }
        Pool::served(Work::Io(io));
        None
    }

    fn write_parts(&self, offset: u64, parts: Vec<Buf>, done: WriteDone) {
        let len = parts.iter().fold(0u64, |len, part| len.saturating_add(bytes(part.len())));
        match bounds::check_change(&self.inner.geometry(), offset, len) {
            Ok(()) if self.inner.in_memory => self.pool.serve_or_submit(Work::Write { offset, parts, done }),
            Ok(()) => self.pool.submit(Work::Write { offset, parts, done }),
            Err(err) => done(Err(err)),
        }
    }
}
