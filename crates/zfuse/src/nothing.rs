//! A file system that keeps names in memory and nothing else: measures the cost of the transport alone.
//!
//! It answers the requests of a program that creates, looks up, writes and removes files in one directory, with the
//! capabilities and cache lifetimes of a live mount, so that both get the same requests. Written bytes are dropped,
//! and files read as empty, but for the file `zeros`, which always exists, has 1 TiB and reads as zeros. For benchmarks only.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::mount::MountFlags;

use crate::attr::{nothing, synthetic};
use crate::kernel::{self, Place};
use crate::mount_helper::Ready;
use crate::wire::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

/// Cache lifetimes: of names, and of attributes of a file that was just changed.
const NAMES: Duration = Duration::from_secs(3600);
const CHANGED: Duration = Duration::from_secs(1);

/// The file to read, its size, and the content of its largest request.
const ZEROS: &str = "zeros";
const ZEROS_INO: u64 = 2;
const ZEROS_SIZE: u64 = 1 << 40;
static CONTENT: [u8; 1 << 20] = [0; 1 << 20];

/// Names, and the number of the last file.
#[derive(Debug, Default)]
struct Nothing(Mutex<(HashMap<OsString, u64>, u64)>);

/// Mounts it at `at` and serves it until it is unmounted.
///
/// # Errors
/// If the kernel refuses the mount.
pub fn serve_nothing(at: &Path) -> io::Result<()> {
    let (source, flags) = ("nothing", MountFlags::empty());
    let spot = (at, Ready::default()).into();
    let place = Place { spot, source, flags, everybody: false, checked: true };
    let (line, _) = kernel::spawn(
        Box::new(Nothing(Mutex::new((HashMap::from([(ZEROS.into(), ZEROS_INO)]), ZEROS_INO)))),
        &place,
    )?;
    while !line.wait(NAMES) {}
    Ok(())
}

fn attr(ino: u64) -> FileAttr {
    let root = ino == INodeNo::ROOT.0;
    let size = if ino == ZEROS_INO { ZEROS_SIZE } else { 0 };
    synthetic(ino, if root { FileType::Directory } else { FileType::RegularFile }, size, 0)
}

impl Filesystem for Nothing {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_POSIX_ACL,
        ];
        for flag in wanted {
            // Optional capabilities.
            let _ = config.add_capabilities(flag);
        }
        config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.0.lock().0.get(name).copied();
        match found {
            Some(ino) => reply.entry_with_ttls(&CHANGED, &NAMES, &attr(ino), Generation(0)),
            None => reply.entry_with_ttls(&CHANGED, &NAMES, &nothing(), Generation(0)),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&CHANGED, &attr(ino.0));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<crate::wire::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&CHANGED, &attr(ino.0));
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let ino = {
            let mut all = self.0.lock();
            all.1 += 1;
            let ino = all.1;
            all.0.insert(name.to_owned(), ino);
            ino
        };
        let keep = FopenFlags::FOPEN_KEEP_CACHE;
        reply.created(&CHANGED, &attr(ino), Generation(0), FileHandle(0), keep);
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.0.lock().0.remove(name);
        match removed {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = if ino.0 == ZEROS_INO { ZEROS_SIZE.saturating_sub(offset) } else { 0 };
        let size = usize::try_from(left.min(u64::from(size))).unwrap_or(CONTENT.len());
        reply.data(CONTENT.get(..size).unwrap_or(&CONTENT));
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _how: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(u32::try_from(data.len()).unwrap_or(0));
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _offset: u64, reply: ReplyDirectory) {
        reply.ok();
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}
