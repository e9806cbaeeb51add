//! Tests over a pair of sockets in place of the kernel.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::lane::Lane;
use super::line::Load;
use super::{Line, Service, enter};
use crate::device::Device;
use crate::header::{Header, Opcode};
use crate::reply::Reply;
use crate::words::Words;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const WRITE: u32 = 16;
const FSYNC: u32 = 20;

/// Answers names at once, and writes and syncs when the door opens.
#[derive(Debug, Clone, Default)]
struct Slow(Arc<(Mutex<bool>, Condvar)>);

impl Slow {
    fn wait(&self) {
        let mut open = self.0.0.lock();
        while !*open {
            self.0.1.wait(&mut open);
        }
    }

    fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

impl Service for Slow {
    fn answer(&self, header: &Header, mut words: Words<'_>, reply: Reply) {
        match header.opcode {
            Opcode::Lookup => match words.name() {
                Some(name) => {
                    assert_ne!(name, "panic");
                    reply.fail(libc::ENOENT);
                }
                None => reply.fail(libc::EIO),
            },
            Opcode::Forget => reply.forget(),
            Opcode::Fsync => {
                self.wait();
                reply.send(&[]);
            }
            Opcode::Write => {
                self.wait();
                reply.send(&[&64u32.to_ne_bytes(), &[0; 4]]);
            }
            _ => reply.fail(libc::ENOSYS),
        }
    }
}

struct Kernel(OwnedFd);

impl Kernel {
    fn mount(files: &Slow) -> (Self, Arc<Line>) {
        let (kernel, ours) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let kernel = Self(kernel);
        let line = enter(Device::new(ours), Arc::new(files.clone()), None).unwrap();
        (kernel, line)
    }

    fn ask(&self, opcode: u32, unique: u64, body: &[u8]) {
        let len = u32::try_from(40 + body.len()).unwrap();
        let mut request = [len.to_ne_bytes(), opcode.to_ne_bytes()].concat();
        request.extend([unique, 1].map(u64::to_ne_bytes).concat());
        request.extend([0; 16]);
        request.extend(body);
        assert_eq!(rustix::io::write(&self.0, &request).unwrap(), request.len());
    }

    /// Number and error of the next answer; `None` on timeout.
    fn answer(&self) -> Option<(u64, i32)> {
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        if poll(&mut fds, Some(&patience)).unwrap() == 0 {
            return None;
        }
        let mut bytes = [0; 4096];
        rustix::io::read(&self.0, &mut bytes).unwrap();
        let error = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
        Some((u64::from_ne_bytes(bytes[8..16].try_into().unwrap()), error))
    }
}

/// Number of threads of this process that answer requests.
fn threads() -> usize {
    let all = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread that has just ended has no name.
    let name =
        |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    all.filter_map(Result::ok).filter(|task| name(task).trim() == "fuse").count()
}

#[test]
fn waiting_requests_delay_no_others_and_threads_are_bounded() {
    let files = Slow::default();
    let (kernel, line) = Kernel::mount(&files);
    let mut write = [[0; 40].as_slice(), &[1; 64]].concat();
    write[16..20].copy_from_slice(&64u32.to_ne_bytes());
    for request in 0..60 {
        kernel.ask(FSYNC, 100 + request, &[0; 16]);
        kernel.ask(WRITE, 200 + request, &write);
        kernel.ask(LOOKUP, 300 + request, b"name\0");
        assert_eq!(kernel.answer(), Some((300 + request, -libc::ENOENT)));
    }
    // The threads working in two lanes, those waiting for requests, and some of the other tests: far fewer than 120
    // requests.
    assert!((8 + 32..8 + 32 + 24).contains(&threads()), "{} threads", threads());
    // Another mount is not delayed either, whatever its first request.
    let (other, theirs) = Kernel::mount(&Slow::default());
    other.ask(LOOKUP, 7, b"name\0");
    assert_eq!(other.answer(), Some((7, -libc::ENOENT)));
    files.open();
    let mut answered: Vec<u64> = (0..120).map(|_| kernel.answer().unwrap().0).collect();
    answered.sort_unstable();
    assert_eq!(answered, (100..160).chain(200..260).collect::<Vec<u64>>());
    // It ends with the connection.
    drop((kernel, other));
    assert!(line.wait(Duration::from_secs(20)) && theirs.wait(Duration::from_secs(20)));
    assert!(line.files().is_none());
}

#[test]
fn a_request_that_panics_or_makes_no_sense_is_answered() {
    let (kernel, _line) = Kernel::mount(&Slow::default());
    for (body, error) in [(&b"panic\0"[..], libc::EIO), (b"no end", libc::EIO), (b"name\0", libc::ENOENT)] {
        kernel.ask(LOOKUP, 5, body);
        assert_eq!(kernel.answer(), Some((5, -error)));
    }
    kernel.ask(52, 6, &[0; 32]);
    assert_eq!(kernel.answer(), Some((6, -libc::ENOSYS)));
}

#[test]
fn a_line_that_is_paused_stays_so_until_an_answer_resumes_it() {
    let socket =
        || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap().0;
    let line = || Line::new(Arc::new(Device::new(socket())), Arc::new(Slow::default()));
    let (line, other, load) = (line(), line(), Load::default());
    let (large, small) = (vec![0; 30 << 20], [0; 64]);
    assert!(other.take_in(Lane::Write, &large[..], &load).more);
    // All mounts together have too many bytes: the reader of this one leaves the event disarmed.
    assert!(!line.take_in(Lane::Write, &large[..], &load).more);
    other.done(Lane::Write, large.len(), &load);
    // A thread that was relieved of its role reads one more, although there is room again.
    assert!(!line.take_in(Lane::Names, &small[..], &load).more);
    assert!(line.done(Lane::Names, small.len(), &load).resume, "no thread would read this mount again");
    assert!(!line.done(Lane::Write, large.len(), &load).resume);
}

#[test]
fn one_slow_request_does_not_make_the_next_ones_suspect() {
    let socket =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap().0;
    let line = Line::new(Arc::new(Device::new(socket)), Arc::new(Slow::default()));
    let (slow, quick) = (Duration::from_millis(1), Duration::from_micros(10));
    for _ in 0..3 {
        line.took(Lane::Change, slow);
        assert!(!line.may_wait(Lane::Change));
        line.took(Lane::Change, quick);
    }
    (0..2).for_each(|_| line.took(Lane::Change, slow));
    assert!(line.may_wait(Lane::Change) && !line.may_wait(Lane::Names));
    (0..16).for_each(|_| line.took(Lane::Change, quick));
    assert!(!line.may_wait(Lane::Change));
}

#[test]
fn a_connection_beside_rings_is_read_again_after_what_has_no_answer() {
    let (kernel, line) = Kernel::mount(&Slow::default());
    line.joins_rings();
    for request in 0..50 {
        kernel.ask(FORGET, 0, &[0; 8]);
        if request % 7 == 0 {
            // Long enough for the connection to be left alone until the next look.
            std::thread::sleep(Duration::from_millis(3));
        }
        kernel.ask(LOOKUP, 1 + request, b"name\0");
        assert_eq!(kernel.answer(), Some((1 + request, -libc::ENOENT)));
    }
}
