//! Threads that answer the requests of all mounts of this process.
//!
//! ```text
//!  /dev/fuse of each mount ─▶ epoll ─▶ a thread reads one request ─▶ its lane has room: answers it at once
//!                                      (another thread waits in      it has none: the request waits in the lane,
//!                                       its place already)            the thread goes back
//! ```
//!
//! **A waiting request delays no other.** Requests of a mount are classified by the resources they may wait for
//! ([`lane`]): names for a cold block, writes for space among the dirty data, fsync for a log write. Each lane of
//! each mount may occupy a number of threads; when they all wait, further requests of that lane queue, and the
//! other lanes continue. The thread that has taken a request ensures that another one waits for the next before it
//! begins ([`hall`]).
//!
//! **Bounds**: threads working in a lane of a mount, threads working in all; bytes of requests in memory. A mount
//! without active requests may always begin one, whatever the others do: a pool may lie on a file in a mount of the
//! same process, and the outer one must make progress while all requests of the inner one wait for it.
//!
//! **Order**: FUSE requires none. The kernel sends dependent requests after the answer.

mod hall;
mod lane;
mod line;

pub use hall::enter;
pub use line::Line;

#[cfg(test)]
mod tests;
