//! The transport of FUSE requests: from the kernel to a [`Service`], and its replies back.
//!
//! Requests come over queues of io_uring, one for each core, where the kernel has them and they are enabled
//! ([`uring`]); otherwise they are read from `/dev/fuse`. All connections of the process share their threads ([`serve`]):
//! a request is answered by the thread that received it, unless it is expected to wait. This crate knows the header of
//! requests and nothing of file systems.

mod device;
mod header;
mod reply;
mod serve;
mod uring;
mod words;

pub use device::Device;
pub use header::{Header, Opcode};
pub use reply::Reply;
pub use serve::{Late, Line, MAX_WRITE, Service, WorkLane, enter, reserve};
pub use uring::{
    MAX_BACKGROUND, PAYLOAD, Reserved, enable_in_kernel, use_io_uring, uses_io_uring, why_not_offered,
};
pub use words::Words;
