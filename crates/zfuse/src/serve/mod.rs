//! Threads that answer the requests of all mounts of this process.
//!
//! ```text
//!  /dev/fuse of each mount ─▶ epoll ─▶ a thread reads one request ─▶ its lane has room: answers it at once
//!                                      (another thread waits in      it has none: the request waits in the lane,
//!                                       its place already)            the thread goes back
//! ```
//!
//! **What waits delays nothing else.** Requests of a mount are told apart by what they may wait for ([`lane`]): names for
//! a cold block, writes for room among the dirty data, fsync for a log write. Each lane of each mount has threads of its
//! own to wait with; when they all wait, further requests of that lane queue, and the others go on. The thread that has
//! taken a request sees to it that one waits for the next before it begins ([`hall`]).
//!
//! **What is bounded**: threads at work in a lane of a mount, threads at work in all; bytes of requests that are held.
//! A mount that has nothing under way may always begin with one request, whatever the others do: a pool may lie on a file
//! in a mount of the same process, and the outer one must go on while all requests of the inner one wait for it.
//!
//! **Order**: FUSE wants none. The kernel sends what must come after a request when it has the answer.

mod hall;
mod lane;
mod line;

pub use hall::enter;
pub use line::Line;

#[cfg(test)]
mod tests;
