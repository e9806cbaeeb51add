//! Requests over io_uring (Linux 6.14 and newer, where root has enabled it: `fuse.enable_uring`).
//!
//! ```text
//!  process on core 1 ─▶ kernel: queue 1 of the connection ─▶ a free entry of the queue: its buffers are filled
//!                                                                         │ completion in ring 1
//!  its answer ◀─ kernel ◀─ commit: a submission to ring 1 ◀─ the reader of ring 1 answers it, in the same system call
//!                          fetches the next request           in which it then waits for the next completion
//! ```
//!
//! **Queues** belong to a connection, one per possible core: a request goes to the queue of the core that its process
//! runs on, and no other. **Entries** belong to a queue: one holds one request from its arrival until its answer is
//! committed. **Rings** belong to this process, one per core that is online, and serve the queues of all connections. A
//! ring has one *reader* at a time, a thread bound to the core; only the reader touches the ring's submission and
//! completion queues, and every command of a ring is submitted by one of its readers. These threads never end, because
//! the kernel cancels the commands of a thread that ends.
//!
//! **A held entry** is out of service for its queue. A queue begins with [`ENTRIES`]; when fewer than [`SPARE`] are free,
//! it gets [`MORE`] others, up to [`MOST`] and [`ALL_MORE`] in all queues, and keeps them: the kernel takes the last
//! used one first, so unused ones cost no memory. They come before the last is taken, because an entry that is
//! registered later is not given the requests that wait in the queue already (Linux 6.18), until an answer is
//! committed; only later ones. For those of a burst, an answer is provoked ([`Queues::grow`]). At the bounds, more waiting
//! requests of processes on one core delay all others of the core to this mount, until one of them is answered. An answer that
//! waits for the kernel to drop pages, whose reads may be among those others, holds an entry, too; the kernel has at most
//! [`MAX_BACKGROUND`] asynchronous writes in progress. A thread's command is completed by that thread, so a reader must not
//! sleep uninterruptibly for long.
//!
//! **States of an entry's buffers** ([`slot`], which contains the crate's `unsafe` code):
//!
//! ```text
//!  ours, empty ──register──▶ the kernel's ──completion 0──▶ ours: request ──answered, and request dropped──▶ ours: answer
//!                                ▲    └──completion < 0──▶ ended, unmapped by its last owner                     │
//!                                └──────────────────────────────────commit────────────────────────────────────────┘
//! ```
//!
//! The kernel keeps the buffers' addresses and writes to them at any time while they are its own, so they stay mapped
//! until the completion that ends the entry. That completion comes for each command: at unmount, forced or not, and at
//! an abort (`ENOTCONN`). When the process ends, the kernel cancels all commands before it tears down the memory; a
//! cancelled command's entry leaves the queue, and the connection ends with its descriptor.
//!
//! **Not over rings**: the first request, `FORGET` and `INTERRUPT` arrive on `/dev/fuse`, and notifications leave on
//! it. A connection whose entries the kernel refuses to register continues on `/dev/fuse` alone: the kernel then
//! switches by itself.

mod enable;
mod queues;
mod residence;
mod ring;
mod slot;
mod sys;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use enable::{enable_in_kernel, why_not_offered};
pub use queues::Queues;
pub use ring::{Arrival, Ring, rings};
use slot::Memory;
pub use slot::{Body, Half, Slot};

/// Bytes of the largest request or answer over a ring: one buffer of an entry.
pub const PAYLOAD: usize = 256 << 10;
/// Entries of a queue at first.
const ENTRIES: usize = 64;
/// Entries of all connections up to which another connection gets queues.
const ALL_ENTRIES: usize = 8192;
/// Free entries of a queue below which it gets more.
const SPARE: usize = 16;
/// Entries that it then gets at once.
const MORE: usize = 32;
/// Entries of a queue at most.
const MOST: usize = 1024;
/// Entries in all queues beyond those that queues have at first.
const ALL_MORE: usize = 2048;
/// The most background requests that a connection over rings should have: fewer than a queue has entries.
pub const MAX_BACKGROUND: u16 = 32;

/// Whether new connections use rings.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Entries that queues of all connections have at first.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Entries that they got later.
static TAKEN_LATER: AtomicUsize = AtomicUsize::new(0);

/// Sets whether new connections use io_uring where the kernel offers it. Existing connections stay as they are.
pub fn use_io_uring(wanted: bool) {
    WANTED.store(wanted, Ordering::Relaxed);
}

/// Whether new connections use io_uring where the kernel offers it.
pub fn uses_io_uring() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// The right to one entry; dropped, it is free again.
#[derive(Debug)]
pub struct Ticket(&'static AtomicUsize);

impl Ticket {
    /// Takes one while there are any.
    fn take() -> Option<Self> {
        Self::of(&TAKEN, ALL_ENTRIES)
    }

    /// Takes one of those for queues that need more.
    fn take_later() -> Option<Self> {
        Self::of(&TAKEN_LATER, ALL_MORE)
    }

    fn of(taken: &'static AtomicUsize, most: usize) -> Option<Self> {
        let one = |now: usize| (now < most).then(|| now.saturating_add(1));
        taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one).ok().map(|_| Self(taken))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The entries of all queues of a connection that is about to begin: once the kernel has been told that requests
/// come over io_uring, nothing may be missing, because it sends none before all queues have an entry.
#[derive(Debug)]
pub struct Reserved {
    entries: Vec<(u16, Memory)>,
}

impl Reserved {
    /// Takes them.
    ///
    /// # Errors
    /// The reason why a connection has to do without.
    pub fn new() -> io::Result<Self> {
        let queues = u16::try_from(sys::possible_cores()?).map_err(io::Error::other)?;
        let full = || io::Error::other("the buffers for mounts over io_uring are all in use");
        let places = (0..queues).flat_map(|queue| [queue; ENTRIES]);
        let entry = |queue| Ok((queue, Memory::new(Ticket::take().ok_or_else(full)?)?));
        Ok(Self { entries: places.map(entry).collect::<io::Result<_>>()? })
    }
}
