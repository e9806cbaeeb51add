//! One ring: its submissions and completions, and the thread that may touch them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use io_uring::cqueue;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::thread::CpuSet;
use std::cell::Cell;

use super::queues::Queues;
use super::slot::Slot;
use super::sys;

/// Submissions that wait at most before they are passed to the kernel.
const SUBMISSIONS: u32 = 256;
/// Completions that the kernel keeps at most before it uses memory of its own.
const COMPLETIONS: u32 = 2048;
/// The number of the bell's completions.
const BELL: u64 = u64::MAX;
/// Readers of one ring, all but one of them in requests that wait unexpectedly.
const READERS: usize = 8;

thread_local! {
    /// The ring that this thread reads, and flushes afterwards: its number and 1.
    static READS: Cell<usize> = const { Cell::new(0) };
}

static RINGS: OnceLock<Vec<Ring>> = OnceLock::new();

/// Work for the reader.
#[derive(Debug)]
pub enum Post {
    /// Registers an entry.
    Register(Arc<Slot>),
    /// Commits an answer.
    Commit(Arc<Slot>),
    /// Asks for a request ([`Queues::grow`]), once what was posted before is submitted.
    Ask(Arc<Queues>),
}

/// A completion.
#[derive(Debug)]
pub enum Arrival {
    /// A request is in the entry.
    Request(Arc<Slot>),
    /// Nothing to answer.
    Other,
}

/// A ring.
pub struct Ring {
    number: usize,
    core: usize,
    uring: IoUring<Entry128>,
    bell: OwnedFd,
    mail: Mutex<Vec<Post>>,
    slots: Mutex<(HashMap<u64, Arc<Slot>>, u64)>,
    role: Mutex<Role>,
    vacant: Condvar,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("number", &self.number).field("core", &self.core).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Role {
    vacant: bool,
    /// Threads that wait for the role.
    idle: usize,
    threads: usize,
}

/// The rings of this process, if they were made.
pub fn rings_if_any() -> Option<&'static [Ring]> {
    RINGS.get().map(Vec::as_slice)
}

/// The rings of this process; makes them at first, and has `read` start a reader for each.
///
/// # Errors
/// If the system does not allow them: then and each time after.
pub fn rings(read: impl Fn(&'static Ring) -> io::Result<()>) -> io::Result<&'static [Ring]> {
    static MANNED: Mutex<bool> = Mutex::new(false);
    let mut manned = MANNED.lock();
    let make = || cores().into_iter().enumerate().map(|(number, core)| Ring::new(number, core));
    let rings = RINGS.get_or_init(|| make().collect::<io::Result<_>>().unwrap_or_default());
    if rings.is_empty() {
        return Err(io::Error::other("io_uring is not allowed here"));
    }
    if !*manned {
        rings.iter().try_for_each(read)?;
        *manned = true;
    }
    Ok(rings)
}

/// The cores that this process may use.
fn cores() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

impl Ring {
    fn new(number: usize, core: usize) -> io::Result<Self> {
        let uring = IoUring::builder().setup_cqsize(COMPLETIONS).setup_coop_taskrun().build(SUBMISSIONS)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let role = Role { vacant: true, idle: 0, threads: 0 };
        Ok(Self {
            number,
            core,
            uring,
            bell,
            mail: Mutex::default(),
            slots: Mutex::default(),
            role: Mutex::new(role),
            vacant: Condvar::new(),
        })
    }

    /// The ring that serves a queue: that of the core, if this process may use it.
    pub fn of_queue(rings: &[Self], queue: u16) -> Option<&Self> {
        let queue = usize::from(queue);
        let core = rings.iter().find(|ring| ring.core == queue);
        core.or_else(|| rings.get(queue.checked_rem(rings.len())?))
    }

    /// Its number among [`rings`].
    pub fn number(&self) -> usize {
        self.number
    }

    /// Binds the calling thread to the ring's core.
    pub fn sit_down(&self) {
        let mut set = CpuSet::new();
        set.set(self.core);
        // Elsewhere it works, too.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }

    /// Gives work to the reader.
    pub fn post(&self, post: Post) {
        self.mail.lock().push(post);
        if READS.get() != self.number.saturating_add(1) {
            self.ring_bell();
        }
    }

    fn ring_bell(&self) {
        // It fails only when it has been rung 2^64 times.
        let _ = rustix::io::write(self.bell.as_fd(), &1u64.to_ne_bytes());
    }

    /// Waits until this thread is to be the reader.
    pub fn take_role(&self) {
        let mut role = self.role.lock();
        role.idle = role.idle.saturating_add(1);
        while !role.vacant {
            self.vacant.wait(&mut role);
        }
        role.vacant = false;
        role.idle = role.idle.saturating_sub(1);
        drop(role);
        READS.set(self.number.saturating_add(1));
    }

    /// The reader has lost its role: another thread submits what it has posted meanwhile.
    pub fn leave_role(&self) {
        READS.set(0);
        self.ring_bell();
    }

    /// Another thread is to be the reader. Returns whether a new one must be started for that.
    pub fn vacate(&self) -> bool {
        let mut role = self.role.lock();
        role.vacant = true;
        if role.idle > 0 {
            self.vacant.notify_one();
            return false;
        }
        self.count_new(&mut role)
    }

    /// Whether a thread is to be started: counts it.
    pub fn first(&self) -> bool {
        self.count_new(&mut self.role.lock())
    }

    fn count_new(&self, role: &mut Role) -> bool {
        let more = role.threads < READERS;
        if more {
            role.threads = role.threads.saturating_add(1);
        }
        more
    }

    /// A thread could not be started.
    pub fn not_started(&self) {
        let mut role = self.role.lock();
        role.threads = role.threads.saturating_sub(1);
    }

    /// Whether another thread could take the role from a reader that waits.
    pub fn has_relief(&self) -> bool {
        let role = self.role.lock();
        role.idle > 0 || role.threads < READERS
    }

    /// The reader submits what was posted. `wait`: and waits for a completion.
    pub fn flush(&self, wait: bool) {
        // Posts of other threads from now on ring the bell, a completion.
        for post in self.mail.lock().drain(..) {
            let (slot, new) = match post {
                Post::Register(slot) => (slot, true),
                Post::Commit(slot) => (slot, false),
                Post::Ask(queues) => {
                    self.enter(0);
                    queues.ask();
                    continue;
                }
            };
            let device = slot.queues().line.device.number();
            let entry = if new {
                let mut slots = self.slots.lock();
                slots.1 = slots.1.wrapping_add(1);
                slot.set_key(slots.1);
                slots.0.insert(slot.key(), Arc::clone(&slot));
                sys::register(device, slot.queue(), slot.buffers(), slot.key())
            } else {
                sys::commit(device, slot.queue(), slot.commit(), slot.key())
            };
            self.push(&entry);
        }
        self.enter(usize::from(wait));
    }

    /// Has the bell's rings completed as long as the ring exists. For the reader; each does it once, because a
    /// completion may need the thread that submitted its command, and a former reader may be busy.
    pub fn hear_bell(&self) {
        let poll = opcode::PollAdd::new(types::Fd(self.bell.as_raw_fd()), libc::POLLIN as u32).multi(true);
        self.push(&poll.build().user_data(BELL).into());
    }

    fn push(&self, entry: &Entry128) {
        // SAFETY: only the reader has a submission queue, and none outlives its statement. The entry is a registration,
        // whose buffers live until its completion with an error because `slots` owns the slot; or a commit, which names
        // no memory but that; or a poll of a descriptor that lives as long as the ring.
        while unsafe { self.uring.submission_shared().push(entry) }.is_err() {
            // It is full.
            self.enter(0);
        }
    }

    /// Passes the submissions to the kernel, and waits for so many completions.
    fn enter(&self, wait: usize) {
        let entered = if wait > 0 { self.uring.submit_and_wait(wait) } else { self.uring.submit() };
        match entered.map_err(|e| Errno::from_io_error(&e)) {
            // Interrupted, or there are completions to be taken first.
            Ok(_) | Err(Some(Errno::INTR | Errno::BUSY | Errno::AGAIN)) => {}
            Err(e) => {
                eprintln!("waiting for requests of mounts over io_uring failed: {e:?}");
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        }
    }

    /// Whether there are completions.
    pub fn has_more(&self) -> bool {
        // SAFETY: only the reader has a completion queue, and none outlives its statement.
        !unsafe { self.uring.completion_shared() }.is_empty()
    }

    /// The next completion, for the reader.
    pub fn next(&self) -> Option<Arrival> {
        // SAFETY: only the reader has a completion queue, and none outlives its statement.
        let done = unsafe { self.uring.completion_shared().next() }?;
        if done.user_data() == BELL {
            if !cqueue::more(done.flags()) {
                self.hear_bell();
            }
            return Some(Arrival::Other);
        }
        if done.result() >= 0 {
            let slot = self.slots.lock().0.get(&done.user_data()).cloned();
            return Some(slot.map_or(Arrival::Other, Arrival::Request));
        }
        let slot = self.slots.lock().0.remove(&done.user_data());
        if let Some(slot) = slot {
            slot.queues().lost(done.result().saturating_neg());
        }
        Some(Arrival::Other)
    }
}
