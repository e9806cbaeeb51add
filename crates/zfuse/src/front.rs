//! Where the kernel's requests come in: what waits never delays what does not.
//!
//! A few threads read requests of a mount and answer them in place. The last of them that is free never does: it hands
//! what it read to a [`Lane`] and reads on. So there is always one that listens, and as long as little waits nothing
//! is handed over, which would cost a change of threads. Each kind of work has a lane of its own: commits fill the lane of
//! commits, and reads of a disk that is slow that of reads.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, TimeOrNow,
    WriteFlags,
};

use crate::crew::Lane;

/// Requests of one kind that one mount has handed over and that are being answered.
const EACH: usize = 16;
/// Commits may be more: they wait together for one write.
const COMMITS: usize = 64;
/// Bytes of writes that wait for their turn: what is beyond waits in the kernel.
const WAITING: usize = 16 << 20;
/// How long the last requests of a mount that has ended may take.
const ENDING: Duration = Duration::from_secs(60);

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    uid: u32,
    gid: u32,
    pid: u32,
}

impl Request {
    fn of(req: &fuser::Request) -> Self {
        Self { uid: req.uid(), gid: req.gid(), pid: req.pid() }
    }

    /// User.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Thread.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// What a kept argument is as an argument.
trait Lend<'a, T> {
    fn lend(&'a self) -> T;
}

impl<'a> Lend<'a, &'a OsStr> for OsString {
    fn lend(&'a self) -> &'a OsStr {
        self
    }
}

impl<'a> Lend<'a, &'a Path> for PathBuf {
    fn lend(&'a self) -> &'a Path {
        self
    }
}

impl<'a> Lend<'a, &'a [u8]> for Vec<u8> {
    fn lend(&'a self) -> &'a [u8] {
        self
    }
}

impl<T: Copy> Lend<'_, T> for T {
    fn lend(&self) -> T {
        *self
    }
}

/// How requests wait.
#[derive(Debug)]
struct Lanes {
    /// For the log or a group to be on disk.
    commits: Lane,
    /// For room in the open group.
    changes: Lane,
    /// For bytes of files.
    reads: Lane,
    /// For names and attributes.
    looks: Lane,
}

/// Counts a thread that answers in place.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What the kernel talks to: hands requests on to what answers them.
#[derive(Debug)]
pub struct Front<A> {
    to: Arc<A>,
    /// Threads that read requests.
    readers: usize,
    inside: AtomicUsize,
    lanes: Lanes,
}

impl<A: Answers> Front<A> {
    /// In front of `to`, with so many threads that read requests.
    pub fn new(to: Arc<A>, readers: usize) -> Self {
        let [changes, reads, looks] = [(); 3].map(|()| Lane::new(EACH));
        let lanes = Lanes { commits: Lane::new(COMMITS), changes, reads, looks };
        Self { to, readers, inside: AtomicUsize::new(0), lanes }
    }

    /// A place for a request to be answered at once; `None` when no thread would be left that listens.
    fn enter(&self) -> Option<Inside<'_>> {
        let inside = Inside(&self.inside);
        (self.inside.fetch_add(1, Ordering::AcqRel) + 1 < self.readers).then_some(inside)
    }
}

/// The requests: which lane each waits in, and its arguments.
macro_rules! requests {
    ($do:ident) => {
        $do! {
            looks lookup(parent: INodeNo, name: &OsStr; ReplyEntry);
            looks getattr(ino: INodeNo, fh: Option<FileHandle>; ReplyAttr);
            changes setattr(
                ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
                atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, ctime: Option<SystemTime>,
                fh: Option<FileHandle>, crtime: Option<SystemTime>, chgtime: Option<SystemTime>,
                bkuptime: Option<SystemTime>, flags: Option<BsdFileFlags>; ReplyAttr
            );
            looks readlink(ino: INodeNo; ReplyData);
            changes mknod(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32; ReplyEntry);
            changes mkdir(parent: INodeNo, name: &OsStr, mode: u32, umask: u32; ReplyEntry);
            changes unlink(parent: INodeNo, name: &OsStr; ReplyEmpty);
            changes rmdir(parent: INodeNo, name: &OsStr; ReplyEmpty);
            changes symlink(parent: INodeNo, name: &OsStr, target: &Path; ReplyEntry);
            changes rename(
                parent: INodeNo, name: &OsStr, to: INodeNo, newname: &OsStr, flags: RenameFlags; ReplyEmpty
            );
            changes link(ino: INodeNo, to: INodeNo, newname: &OsStr; ReplyEntry);
            looks open(ino: INodeNo, flags: OpenFlags; ReplyOpen);
            reads read(
                ino: INodeNo, fh: FileHandle, offset: u64, size: u32, flags: OpenFlags,
                owner: Option<LockOwner>; ReplyData
            );
            looks flush(ino: INodeNo, fh: FileHandle, owner: LockOwner; ReplyEmpty);
            changes release(
                ino: INodeNo, fh: FileHandle, flags: OpenFlags, owner: Option<LockOwner>, flush: bool;
                ReplyEmpty
            );
            commits fsync(ino: INodeNo, fh: FileHandle, datasync: bool; ReplyEmpty);
            commits fsyncdir(ino: INodeNo, fh: FileHandle, datasync: bool; ReplyEmpty);
            looks opendir(ino: INodeNo, flags: OpenFlags; ReplyOpen);
            looks readdir(ino: INodeNo, fh: FileHandle, offset: u64; ReplyDirectory);
            looks readdirplus(ino: INodeNo, fh: FileHandle, offset: u64; ReplyDirectoryPlus);
            changes releasedir(ino: INodeNo, fh: FileHandle, flags: OpenFlags; ReplyEmpty);
            looks statfs(ino: INodeNo; ReplyStatfs);
            changes setxattr(
                ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32; ReplyEmpty
            );
            looks getxattr(ino: INodeNo, name: &OsStr, size: u32; ReplyXattr);
            looks listxattr(ino: INodeNo, size: u32; ReplyXattr);
            changes removexattr(ino: INodeNo, name: &OsStr; ReplyEmpty);
            changes create(
                parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32; ReplyCreate
            );
            changes ioctl(
                ino: INodeNo, fh: FileHandle, flags: IoctlFlags, cmd: u32, data: &[u8], size: u32; ReplyIoctl
            );
            changes fallocate(ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32; ReplyEmpty);
            reads lseek(ino: INodeNo, fh: FileHandle, offset: i64, whence: i32; ReplyLseek);
        }
    };
}

macro_rules! answers {
    ($($lane:ident $name:ident($($arg:ident: $kind:ty),*; $reply:ty);)*) => {
        /// Who answers requests. What is not answered does not exist (`ENOSYS`).
        #[expect(clippy::too_many_arguments, reason = "those of FUSE")]
        pub trait Answers: Send + Sync + 'static {
            /// The connection begins.
            fn init(&self, config: &mut KernelConfig) -> std::io::Result<()>;

            /// Writes bytes of a file.
            fn write(
                &self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, data: &[u8],
                how: WriteFlags, flags: OpenFlags, owner: Option<LockOwner>, reply: ReplyWrite,
            ) {
                let _ = (req, ino, fh, offset, data, how, flags, owner);
                reply.error(Errno::ENOSYS);
            }

            $(
                /// See `fuser::Filesystem`.
                fn $name(&self, req: &Request, $($arg: $kind,)* reply: $reply) {
                    let _ = (req, $($arg,)*);
                    reply.error(Errno::ENOSYS);
                }
            )*
        }
    };
}
requests!(answers);

macro_rules! handing_over {
    ($($lane:ident $name:ident($($arg:ident: $kind:ty),*; $reply:ty);)*) => {
        $(fn $name(&self, req: &fuser::Request, $($arg: $kind,)* reply: $reply) {
            let req = Request::of(req);
            if let Some(_inside) = self.enter() {
                return self.to.$name(&req, $($arg,)* reply);
            }
            let to = Arc::clone(&self.to);
            $(let $arg = $arg.to_owned();)*
            self.lanes.$lane.submit(move || to.$name(&req, $($arg.lend(),)* reply));
        })*
    };
}

impl<A: Answers> Filesystem for Front<A> {
    fn init(&mut self, _req: &fuser::Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.to.init(config)
    }

    fn destroy(&mut self) {
        // Who closes the file system after its mount finds nobody in it.
        let Lanes { commits, changes, reads, looks } = &self.lanes;
        [commits, changes, reads, looks].into_iter().for_each(|lane| lane.wait(ENDING));
    }

    fn write(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let req = Request::of(req);
        let inside = self.enter();
        if inside.is_some() || self.lanes.changes.weight() > WAITING {
            return self.to.write(&req, ino, fh, offset, data, how, flags, owner, reply);
        }
        let (to, data) = (Arc::clone(&self.to), data.to_owned());
        self.lanes.changes.submit_weighed(data.len(), move || {
            to.write(&req, ino, fh, offset, &data, how, flags, owner, reply);
        });
    }

    requests!(handing_over);
}

#[cfg(test)]
mod tests {
    use std::fs::{File, metadata};
    use std::io::ErrorKind;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::mpsc::channel;

    use fuser::{FileType, FopenFlags, Generation};
    use parking_lot::{Condvar, Mutex};
    use rustix::mount::MountFlags;

    use super::*;
    use crate::attr::synthetic;
    use crate::kernel;

    const AGAIN: Duration = Duration::ZERO;

    /// Files of any name, whose `fsync` waits until it may go on.
    #[derive(Debug, Default)]
    struct Slow {
        waiting: Mutex<(usize, bool)>,
        changed: Condvar,
    }

    impl Answers for Slow {
        fn init(&self, _: &mut KernelConfig) -> std::io::Result<()> {
            Ok(())
        }

        fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
            let ino = 2 + u64::from(name.as_bytes()[0]);
            reply.entry(&AGAIN, &synthetic(ino, FileType::RegularFile, 0, 0), Generation(0));
        }

        fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
            let kind = if ino == INodeNo::ROOT { FileType::Directory } else { FileType::RegularFile };
            reply.attr(&AGAIN, &synthetic(ino.0, kind, 0, 0));
        }

        fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
            reply.opened(FileHandle(0), FopenFlags::empty());
        }

        fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
            let mut waiting = self.waiting.lock();
            waiting.0 += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut waiting, |(_, may)| !*may);
            reply.ok();
        }
    }

    #[test]
    fn requests_that_wait_delay_no_others() {
        const WAITING: usize = 10;
        let dir = tempfile::tempdir().unwrap();
        for threads in [1, 4] {
            let slow = Arc::new(Slow::default());
            let place = kernel::Place {
                spot: (dir.path(), crate::Ready::AsIs).into(),
                source: "slow",
                flags: MountFlags::RDONLY,
                everybody: false,
                checked: false,
                threads,
            };
            let mounted = match kernel::spawn(Arc::clone(&slow), &place) {
                Ok(mounted) => mounted,
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                    return eprintln!("SKIPPED: FUSE mounts are not allowed here: {e}");
                }
                Err(e) => panic!("{e}"),
            };
            let sync = |name: String| {
                let path = dir.path().join(name);
                std::thread::spawn(move || File::open(path).and_then(|file| file.sync_all()).unwrap())
            };
            let syncs: Vec<_> = (0..WAITING).map(|number| sync(format!("{number}"))).collect();
            // Each waits here, whatever the number of threads that read requests.
            let all = |state: &mut (usize, bool)| state.0 < WAITING;
            let patience = Duration::from_secs(60);
            assert!(!slow.changed.wait_while_for(&mut slow.waiting.lock(), all, patience).timed_out());
            let (said, heard) = channel();
            let other = dir.path().join("other");
            std::thread::spawn(move || said.send(metadata(other).is_ok()));
            let answered = heard.recv_timeout(patience);
            slow.waiting.lock().1 = true;
            slow.changed.notify_all();
            syncs.into_iter().for_each(|sync| sync.join().unwrap());
            assert_eq!(answered, Ok(true), "with {threads} threads");
            kernel::detach(&mounted.at, false).unwrap();
            mounted.session.join().unwrap();
        }
    }
}
