//! Threads that answer the requests of all mounts of this process.
//!
//! ```text
//!  /dev/fuse of each mount ─▶ epoll ─▶ a thread becomes the reader: reads a request ─▶ its lane has room: answers it
//!                                      and re-arms the event only when   ▲             it has none: the request waits
//!                                      there is nothing to read          └──── reads the next one ◀────┘  in the lane
//! ```
//!
//! **No handoff.** The reader of a connection answers its request itself, and reads again; it waits a moment
//! for the next request before it sleeps ([`spin`]). No other thread is woken meanwhile, unless requests pile
//! up behind it.
//!
//! **A waiting request delays no other.** Requests of a mount are classified by the resources they may wait for
//! ([`lane`]): names for a cold block, writes for space among the dirty data, fsync for a log write. Each lane of
//! each mount may occupy a number of threads; when they all wait, further requests of that lane queue, and the
//! other lanes continue. Before a request that is expected to wait (fsync; a lane whose last requests took long) the
//! reader leaves its role to another thread ([`hall`]); when a request waits unexpectedly, the watch does so within two
//! milliseconds ([`seat`]).
//!
//! **Bounds**: threads working in a lane of a mount, threads working in all; bytes of requests in memory. A mount
//! without active requests may always begin one, whatever the others do: a pool may lie on a file in a mount of the
//! same process, and the outer one must make progress while all requests of the inner one wait for it.
//!
//! **Order**: FUSE requires none. The kernel sends dependent requests after the answer.

mod aside;
mod crew;
mod hall;
mod lane;
mod late;
mod line;
mod ring_readers;
mod seat;
mod spin;

use std::fmt::Debug;
use std::time::Duration;

pub use crew::WorkLane;
pub use hall::enter;
pub use late::Late;
pub use line::Line;
pub use ring_readers::reserve;

use crate::header::Header;
use crate::reply::Reply;
use crate::uring::Body;
use crate::words::Words;

/// The maximum write request: readers of requests have buffers of that size.
pub const MAX_WRITE: usize = 1 << 20;

/// Answers the requests of a connection.
pub trait Service: Debug + Send + Sync {
    /// Answers a request, on this thread or later on another one. `words` are the bytes after the header.
    fn answer(&self, header: &Header, words: Words<'_>, reply: Reply);

    /// Announces a request such as `FSYNC` that is answered soon, after those announced before it: one answer may do the work
    /// of all. Returns the time that the answer takes, if it is known. Must not wait.
    fn announce(&self, _header: &Header) -> Option<Duration> {
        None
    }
}

/// A request in the buffers of an entry.
#[derive(Debug)]
pub struct Held {
    header: Header,
    body: Body,
    reply: Reply,
}

/// A request that waits in its lane.
#[derive(Debug)]
pub enum Work {
    /// It was read from `/dev/fuse`.
    Bytes(Vec<u8>),
    /// It came over io_uring.
    Held(Held),
}

impl line::Kept for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn keep(self) -> Work {
        Work::Bytes(self.to_vec())
    }
}

#[cfg(test)]
mod tests;
