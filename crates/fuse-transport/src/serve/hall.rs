//! The shared threads.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::lane::Lane;
use super::line::{Line, Load};
use super::seat::{Seat, Source, Watch};
use super::{Held, MAX_WRITE, Service, Work, ring_readers};
use crate::device::Device;
use crate::header::{Header, Opcode};
use crate::reply::Reply;
use crate::uring::{Queues, Reserved};

/// The name of the threads.
const NAME: &str = "fuse";
/// The name of the thread that replaces readers.
const WATCH: &str = "fuse-watch";
/// Requests in succession that find another one behind them, after which another thread helps.
const BEHIND: u32 = 2;
/// Buffer size for any request.
const ROOM: usize = MAX_WRITE + (4 << 10);
/// Idle time after which a surplus thread ends.
const IDLE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Threads that always wait while there are mounts.
const KEPT: usize = 2;
/// Buffers kept for further requests.
const SPARE: usize = 4;

static HALL: OnceLock<Hall> = OnceLock::new();

/// All mounts and threads of this process.
#[derive(Debug)]
pub struct Hall {
    epoll: OwnedFd,
    lines: RwLock<HashMap<u64, Arc<Line>>>,
    next: AtomicU64,
    crew: Mutex<Crew>,
    pub(super) load: Load,
    pub(super) watch: Watch,
    watched: Mutex<bool>,
    spare: Mutex<Vec<Vec<u8>>>,
}

#[derive(Debug, Default)]
struct Crew {
    /// Threads waiting for a request.
    idle: usize,
}

/// Serves a connection whose first request has been answered. `reserved`: the answer said that requests come over
/// io_uring.
///
/// # Errors
/// If no thread can be started.
pub fn enter(device: Device, service: Arc<dyn Service>, reserved: Option<Reserved>) -> io::Result<Arc<Line>> {
    device.set_nonblocking()?;
    let line = hall()?.enter(Line::new(Arc::new(device), service))?;
    if let Some(reserved) = reserved {
        let rings = ring_readers::rings()?;
        line.joins_rings();
        Queues::open(&line, reserved, rings);
    }
    Ok(line)
}

/// The hall, with its watch: without one a request that waits would delay others.
pub fn hall() -> io::Result<&'static Hall> {
    let hall = match HALL.get() {
        Some(hall) => hall,
        None => {
            let fresh = Hall::new()?;
            HALL.get_or_init(|| fresh)
        }
    };
    let mut watched = hall.watched.lock();
    if !*watched {
        thread::Builder::new().name(WATCH.to_owned()).spawn(|| {
            hall.watch.run(|source| match source {
                Source::Device(key, line) => {
                    // Without another thread only the next request is delayed.
                    let _ = hall.man();
                    hall.listen(*key, line);
                }
                Source::Ring(ring) => hall.relieve_ring(ring),
            });
        })?;
        *watched = true;
    }
    Ok(hall)
}

impl Hall {
    fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            lines: RwLock::default(),
            next: AtomicU64::new(0),
            crew: Mutex::default(),
            load: Load::default(),
            watch: Watch::default(),
            watched: Mutex::default(),
            spare: Mutex::default(),
        })
    }

    fn enter(&'static self, line: Arc<Line>) -> io::Result<Arc<Line>> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        self.lines.write().insert(key, Arc::clone(&line));
        let served = self.man().and_then(|()| {
            epoll::add(&self.epoll, &*line.device, EventData::new_u64(key), wanted())?;
            Ok(())
        });
        if served.is_err() {
            self.lines.write().remove(&key);
        }
        served.map(|()| line)
    }

    /// Ensures that a thread waits for the next request.
    fn man(&'static self) -> io::Result<()> {
        let mut crew = self.crew.lock();
        if crew.idle > 0 {
            return Ok(());
        }
        thread::Builder::new().name(NAME.to_owned()).spawn(move || self.work())?;
        crew.idle += 1;
        Ok(())
    }

    fn work(&'static self) {
        let seat = self.watch.seat();
        while let Some(key) = self.event() {
            let line = self.lines.read().get(&key).cloned();
            if let Some(line) = line {
                // The reader may stay with this connection for long; another thread waits for the other connections.
                // Without one they are only delayed.
                let _ = self.man();
                self.watch.sit(&seat, Source::Device(key, Arc::clone(&line)));
                self.attend(&seat, key, &line);
                seat.leave();
            }
            self.crew.lock().idle += 1;
        }
        self.watch.remove(&seat);
    }

    /// Waits for a request; `None` if there are enough threads.
    fn event(&self) -> Option<u64> {
        loop {
            let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
            match epoll::wait(&self.epoll, &mut events, Some(&IDLE)) {
                Ok(0) => {
                    self.rearm_unread();
                    // The lock is taken first: `enter` adds a connection and then counts the idle threads.
                    let mut crew = self.crew.lock();
                    let kept = if self.lines.read().is_empty() { 0 } else { KEPT };
                    if crew.idle > kept {
                        crew.idle -= 1;
                        return None;
                    }
                }
                Ok(_) => {
                    self.crew.lock().idle -= 1;
                    return events.first().map(|event| event.data.u64());
                }
                Err(Errno::INTR) => {}
                Err(e) => {
                    eprintln!("waiting for requests of mounts failed: {e}");
                    thread::sleep(Duration::from_secs(1));
                }
            }
        }
    }

    /// Re-arms the events of connections with a request that may be read. Re-arming one that has a reader is harmless;
    /// a connection whose event were lost would otherwise wait for ever.
    fn rearm_unread(&self) {
        for (key, line) in &*self.lines.read() {
            if line.may_read() && line.device.has_request() {
                self.listen(*key, line);
            }
        }
    }

    /// Reads requests and answers them until there is none, or they are left to other threads.
    ///
    /// Over io_uring the kernel still sends here what has no answer. It names one removed file at a time to a thread that waits,
    /// which would be woken for each, and many at once to one that comes later: the connection is then read again at the watch's
    /// next look.
    fn attend(&'static self, seat: &Seat, key: u64, line: &Arc<Line>) {
        let mut room = self.spare.lock().pop().unwrap_or_else(|| vec![0; ROOM]);
        let mut role = Role { reader: true, behind: 0 };
        let mut forgot = false;
        line.spin.woken();
        loop {
            let mut read = line.device.read(&mut room);
            if role.reader && read == Err(Errno::AGAIN) && !line.is_over_rings() {
                let again = || match line.device.read(&mut room) {
                    Err(Errno::AGAIN) => None,
                    read => Some(read),
                };
                read = line.spin.wait(again).unwrap_or(read);
            }
            match read {
                // Never from the kernel: a request has a header.
                Ok(0) => break self.hang_up(key, line),
                Ok(len) => {
                    let request = room.get(..len).unwrap_or_default();
                    forgot = is_forget(request);
                    if !self.take(seat, &mut role, key, line, request) {
                        break;
                    }
                }
                // None is there, or it was cancelled before a thread read it.
                Err(Errno::AGAIN | Errno::INTR | Errno::NOENT | Errno::NOMEM) => {
                    if role.reader && forgot && line.is_over_rings() {
                        self.watch.doze(Source::Device(key, Arc::clone(line)));
                    } else if role.reader {
                        self.listen(key, line);
                    }
                    break;
                }
                Err(_) => break self.hang_up(key, line),
            }
        }
        let mut spare = self.spare.lock();
        if spare.len() < SPARE {
            spare.push(room);
        }
    }

    fn hang_up(&self, key: u64, line: &Line) {
        self.lines.write().remove(&key);
        let _ = epoll::delete(&self.epoll, &*line.device);
        line.hang_up(&self.load);
    }

    /// Answers a request, or queues it in its lane. Returns whether the thread may read the next one.
    fn take(&'static self, seat: &Seat, role: &mut Role, key: u64, line: &Arc<Line>, request: &[u8]) -> bool {
        let lane = Header::split(request).and_then(|(header, _)| Lane::of(header.opcode));
        let Some(lane) = lane else {
            answer(line, request);
            return true;
        };
        let verdict = line.take_in(lane, request, &self.load);
        if verdict.now.is_none() {
            // Without more, the answer that makes room lets another thread read.
            return verdict.more;
        }
        role.behind = if line.device.has_request() { role.behind + 1 } else { 0 };
        if verdict.more && role.reader && !line.may_wait(lane) && role.behind < BEHIND {
            let turn = seat.begin();
            self.answer_all(line, lane, request.len(), || answer(line, request));
            role.reader = seat.end(turn);
            return true;
        }
        if role.reader {
            // Without another thread only the next request is delayed.
            let _ = self.man();
        }
        if verdict.more && role.reader {
            self.listen(key, line);
        }
        *role = Role::default();
        self.answer_all(line, lane, request.len(), || answer(line, request));
        verdict.more
    }

    /// Answers a request of that length, and those that queued in its lane meanwhile.
    pub(super) fn answer_all(&self, line: &Arc<Line>, lane: Lane, len: usize, first: impl FnOnce()) {
        let begun = Instant::now();
        first();
        line.took(lane, begun.elapsed());
        let mut after = line.done(lane, len, &self.load);
        loop {
            if after.resume {
                self.listen_again(line);
            }
            let Some(next) = after.next else { return };
            let len = next.len();
            next.answer(line);
            after = line.done(lane, len, &self.load);
        }
    }

    /// Lets a waiting thread read a connection that was paused.
    fn listen_again(&self, line: &Arc<Line>) {
        let key = self.lines.read().iter().find(|(_, other)| Arc::ptr_eq(other, line)).map(|(key, _)| *key);
        if let Some(key) = key {
            self.listen(key, line);
        }
    }

    /// Lets a waiting thread take the next request of the connection.
    fn listen(&self, key: u64, line: &Line) {
        // An ended connection is no longer registered.
        let _ = epoll::modify(&self.epoll, &*line.device, EventData::new_u64(key), wanted());
    }
}

/// The state of a thread that reads requests.
#[derive(Debug, Default)]
struct Role {
    /// The connection's event is disarmed, and this thread re-arms it.
    reader: bool,
    /// Requests in succession that found another one behind them.
    behind: u32,
}

/// One thread is notified of a request, and no other until it re-arms the event.
fn wanted() -> EventFlags {
    EventFlags::IN | EventFlags::ONESHOT
}

impl Work {
    /// Answers it.
    fn answer(self, line: &Line) {
        match self {
            Self::Bytes(bytes) => answer(line, &bytes),
            Self::Held(held) => held.answer(line),
        }
    }

    /// Its bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Held(held) => held.body.len(),
        }
    }
}

impl Held {
    /// Announces it; returns the time that the answer takes, if it is known.
    pub(super) fn announce(&self, line: &Line) -> Option<Duration> {
        let service = line.files()?;
        catch_unwind(AssertUnwindSafe(|| service.announce(&self.header))).ok().flatten()
    }

    /// Answers it.
    pub(super) fn answer(self, line: &Line) {
        let Self { header, body, reply } = self;
        let Some(service) = line.files() else { return };
        contained(&header, || service.answer(&header, body.words(), reply));
    }
}

fn is_forget(request: &[u8]) -> bool {
    let header = Header::split(request).map(|(header, _)| header.opcode);
    matches!(header, Some(Opcode::Forget | Opcode::BatchForget))
}

fn answer(line: &Line, request: &[u8]) {
    let (Some(service), Some((header, words))) = (line.files(), Header::split(request)) else { return };
    contained(&header, || service.answer(&header, words, Reply::over(&line.device, header.unique)));
}

/// A request that panics fails with an error; the thread continues with others.
fn contained(header: &Header, answer: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(answer)).is_err() {
        eprintln!(
            "a request of a mount ({:?}) failed by a fault of ours: it was answered with EIO",
            header.opcode
        );
    }
}
