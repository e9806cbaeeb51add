//! A file system in memory on the transport alone: what a test of requests and their order needs.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse_transport::{Device, Header, Line, Opcode, PAYLOAD, Reply, Reserved, Service, Words};
use parking_lot::{Condvar, Mutex};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The features that the kernel offers and the answer takes.
const ASYNC_READ: u64 = 1;
const BIG_WRITES: u64 = 1 << 5;
const PARALLEL_DIROPS: u64 = 1 << 18;
const MAX_PAGES: u64 = 1 << 22;
const INIT_EXT: u64 = 1 << 30;
const OVER_IO_URING: u64 = 1 << 41;

/// A gate that holds requests back.
#[derive(Debug, Default)]
pub struct Gate(Mutex<(bool, usize)>, Condvar);

impl Gate {
    fn pass(&self) {
        let mut state = self.0.lock();
        state.1 += 1;
        self.1.notify_all();
        while !state.0 {
            self.1.wait(&mut state);
        }
    }

    pub fn open(&self) {
        self.0.lock().0 = true;
        self.1.notify_all();
    }

    /// Waits for so many requests in front of it.
    pub fn wait_for(&self, requests: usize) {
        let mut state = self.0.lock();
        while state.1 < requests {
            assert!(!self.1.wait_for(&mut state, Duration::from_secs(20)).timed_out(), "{} came", state.1);
        }
    }
}

/// Files in one directory; `fsync` and the lookup of `wait` pass the gate.
#[derive(Debug, Default)]
pub struct Toy {
    files: Mutex<(HashMap<Vec<u8>, u64>, HashMap<u64, Vec<u8>>, u64)>,
    pub gate: Gate,
    /// The time that an `fsync` is announced to take.
    pub announced: Mutex<Option<Duration>>,
    /// Requests, and the names of the threads that answered them.
    pub answered: Mutex<HashMap<String, usize>>,
}

fn attr(ino: u64, size: usize) -> Vec<u8> {
    let mode: u32 = if ino == 1 { 0o40755 } else { 0o100_644 };
    let mut out = [ino, size as u64, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
    out.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat());
    out
}

fn entry(ino: u64, size: usize) -> Vec<u8> {
    // Names and attributes are not cached: each look comes to us.
    [[ino, 0, 0, 0, 0].map(u64::to_ne_bytes).concat(), attr(ino, size)].concat()
}

impl Toy {
    /// Opens the gate when it is dropped.
    pub fn opener(&self) -> Opener<'_> {
        Opener(self)
    }
}

/// Opens the gate of a toy.
pub struct Opener<'a>(&'a Toy);

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        self.0.gate.open();
    }
}

impl Service for Toy {
    fn announce(&self, _: &Header) -> Option<Duration> {
        *self.announced.lock()
    }

    fn answer(&self, header: &Header, mut words: Words<'_>, reply: Reply) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        *self.answered.lock().entry(thread).or_default() += 1;
        let size = |ino: u64| self.files.lock().1.get(&ino).map_or(0, Vec::len);
        match header.opcode {
            Opcode::Forget | Opcode::BatchForget => reply.forget(),
            Opcode::Lookup => {
                let name = words.name().unwrap().as_bytes();
                assert_ne!(name, b"panic");
                if name.ends_with(b".wait") {
                    self.gate.pass();
                }
                let found = self.files.lock().0.get(name).copied();
                match found {
                    Some(ino) => reply.send(&[&entry(ino, size(ino))]),
                    None => reply.fail(libc::ENOENT),
                }
            }
            Opcode::Getattr | Opcode::Setattr => {
                let keep = [0u64; 2].map(u64::to_ne_bytes).concat();
                reply.send(&[&keep, &attr(header.node, size(header.node))]);
            }
            Opcode::Create => {
                let _fields = (words.u64(), words.u64());
                let name = words.name().unwrap().as_bytes().to_vec();
                let ino = {
                    let mut files = self.files.lock();
                    files.2 += 1;
                    let ino = files.2 + 1;
                    files.0.insert(name, ino);
                    files.1.insert(ino, Vec::new());
                    ino
                };
                reply.send(&[&entry(ino, 0), &[0; 16]]);
            }
            Opcode::Open | Opcode::Opendir => reply.send(&[&[0; 16]]),
            Opcode::Release | Opcode::Releasedir => reply.send(&[]),
            Opcode::Unlink => {
                let removed = self.files.lock().0.remove(words.name().unwrap().as_bytes());
                if removed.is_some() { reply.send(&[]) } else { reply.fail(libc::ENOENT) }
            }
            Opcode::Read => {
                let (_, at, len) =
                    (words.u64(), words.u64().unwrap() as usize, words.u32().unwrap() as usize);
                let bytes = {
                    let files = self.files.lock();
                    let all = &files.1[&header.node];
                    all[at.min(all.len())..(at + len).min(all.len())].to_vec()
                };
                reply.send(&[&bytes]);
            }
            Opcode::Write => {
                let (_, at, len) = (words.u64(), words.u64().unwrap() as usize, words.u32().unwrap());
                let _fields = (words.u32(), words.u64(), words.u32(), words.u32());
                let data = words.bytes(len).unwrap();
                {
                    let mut files = self.files.lock();
                    let all = files.1.get_mut(&header.node).unwrap();
                    all.resize(all.len().max(at + data.len()), 0);
                    all[at..at + data.len()].copy_from_slice(data);
                }
                let before = data.to_vec();
                reply.send(&[&len.to_ne_bytes(), &[0; 4]]);
                // Still the request's: neither the answer nor another request is there before this method returns.
                std::thread::yield_now();
                assert!(before == data, "the request's bytes have changed");
            }
            Opcode::Fsync => {
                self.gate.pass();
                reply.send(&[]);
            }
            Opcode::Destroy => reply.send(&[]),
            _ => reply.fail(libc::ENOSYS),
        }
    }
}

/// A mount of a toy.
pub struct Mounted {
    pub dir: tempfile::TempDir,
    pub toy: Arc<Toy>,
    pub line: Arc<Line>,
}

impl Mounted {
    /// Over io_uring or over `/dev/fuse`; `None`, said so, where that cannot be.
    pub fn new(over_rings: bool) -> Option<Self> {
        let device = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            Ok(device) if rustix::process::geteuid().is_root() => OwnedFd::from(device),
            _ => {
                eprintln!("SKIPPED: needs root and /dev/fuse");
                return None;
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        if let Err(e) = mount("toy", dir.path(), "fuse", MountFlags::empty(), options.as_c_str()) {
            eprintln!("SKIPPED: cannot mount: {e}");
            return None;
        }
        let device = Device::new(device);
        let reserved = greet(&device, over_rings);
        if over_rings && reserved.is_none() {
            eprintln!("SKIPPED: this kernel has no FUSE over io_uring, or it is off (fuse.enable_uring)");
            let _ = unmount(dir.path(), UnmountFlags::DETACH);
            return None;
        }
        let toy = Arc::new(Toy::default());
        let line = fuse_transport::enter(device, Arc::clone(&toy) as Arc<dyn Service>, reserved).unwrap();
        Some(Self { dir, toy, line })
    }

    pub fn at(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts and waits for the end.
    pub fn end(&self) {
        // The kernel closes files a moment after their last `close`.
        let busy = |at| unmount(at, UnmountFlags::empty()) == Err(rustix::io::Errno::BUSY);
        let until = Instant::now() + Duration::from_secs(10);
        while busy(self.at()) {
            assert!(Instant::now() < until, "the mount stays busy");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(self.line.wait(Duration::from_secs(30)));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.toy.gate.open();
        let _ = unmount(self.at(), UnmountFlags::DETACH);
    }
}

/// Answers the first request.
fn greet(device: &Device, over_rings: bool) -> Option<Reserved> {
    let mut room = vec![0; 64 << 10];
    let len = loop {
        match device.read(&mut room) {
            Ok(len) => break len,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("{}", io::Error::from(e)),
        }
    };
    let (header, mut words) = Header::split(&room[..len]).unwrap();
    let _version = words.u64();
    let (ahead, low, high) = (words.u32().unwrap(), words.u32().unwrap(), words.u32().unwrap());
    let offered = u64::from(low) | u64::from(high) << 32;
    let wanted = ASYNC_READ | BIG_WRITES | PARALLEL_DIROPS | MAX_PAGES | INIT_EXT;
    fuse_transport::use_io_uring(true);
    let reserved =
        (over_rings && offered & OVER_IO_URING != 0).then(|| fuse_transport::reserve().unwrap()).flatten();
    let flags = wanted | if reserved.is_some() { OVER_IO_URING } else { 0 };
    let (max_write, pages) = (PAYLOAD as u32, (PAYLOAD / 4096) as u16);
    let mut out = [7, 40, ahead, flags as u32].map(u32::to_ne_bytes).concat();
    out.extend([16u16, 12].map(u16::to_ne_bytes).concat());
    out.extend([max_write, 1].map(u32::to_ne_bytes).concat());
    out.extend([pages, 0].map(u16::to_ne_bytes).concat());
    out.extend([(flags >> 32) as u32, 0, 0, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat());
    device.send(header.unique, 0, &[&out]).unwrap();
    reserved
}
