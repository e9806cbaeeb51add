//! The queues of one connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Reserved;
use super::ring::{Post, Ring};
use super::slot::Slot;
use crate::serve::Line;

/// The queues of a connection.
#[derive(Debug)]
pub struct Queues {
    /// The connection.
    pub line: Arc<Line>,
    refused: AtomicBool,
}

impl Queues {
    /// Makes the queues of a connection whose first request has been answered, and has their entries registered. If the
    /// kernel refuses one, it sends everything to `/dev/fuse`.
    pub fn open(line: &Arc<Line>, reserved: Reserved, rings: &'static [Ring]) {
        let queues = Arc::new(Self { line: Arc::clone(line), refused: AtomicBool::new(false) });
        for (queue, memory) in reserved.entries {
            if let Some(ring) = Ring::of_queue(rings, queue) {
                ring.post(Post::Register(Slot::new(&queues, queue, memory)));
            }
        }
    }

    /// The answer is in the entry's buffers.
    pub fn given_back(slot: &Arc<Slot>) {
        if let Some(ring) = super::ring::rings_if_any().and_then(|rings| Ring::of_queue(rings, slot.queue()))
        {
            ring.post(Post::Commit(Arc::clone(slot)));
        }
    }

    /// The kernel has ended an entry.
    pub fn lost(&self, error: i32) {
        let at_the_end = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::ENODEV];
        if !at_the_end.contains(&error) && !self.refused.swap(true, Ordering::AcqRel) {
            let why = io::Error::from_raw_os_error(error);
            eprintln!(
                "FUSE over io_uring was refused by the kernel for a mount, which continues on /dev/fuse: {why}"
            );
            self.line.leaves_rings();
        }
    }
}
