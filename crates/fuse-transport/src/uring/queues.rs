//! The queues of one connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::ring::{Post, Ring};
use super::slot::{Memory, Slot};
use super::{MORE, MOST, Reserved, SPARE, Ticket};
use crate::header::{Header, Opcode};
use crate::serve::Line;

/// Requests that may be asked for with each entry that a queue gets later.
const ASKS: usize = 4;

/// The entries of one queue.
#[derive(Debug, Default)]
struct Service {
    entries: AtomicUsize,
    /// Those that hold a request.
    held: AtomicUsize,
    /// Requests that may be asked for.
    asks: AtomicUsize,
}

impl Service {
    /// An entry holds a request from now on.
    fn holds(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many more entries the queue needs, which count from now on.
    fn needs(&self) -> usize {
        let held = self.held.load(Ordering::Relaxed);
        let entries = self.entries.load(Ordering::Relaxed);
        if entries.saturating_sub(held) >= SPARE || entries >= MOST {
            return 0;
        }
        let more = MORE.min(MOST.saturating_sub(entries));
        let grown = entries.saturating_add(more);
        match self.entries.compare_exchange(entries, grown, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => more,
            // Another reader of the ring has seen it, too.
            Err(_) => 0,
        }
    }

    fn may_ask(&self) -> bool {
        let one_less = |asks: usize| asks.checked_sub(1);
        self.asks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn returns(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// So many of the needed entries were had.
    fn gets(&self, count: usize, needed: usize) {
        self.entries.fetch_sub(needed.saturating_sub(count), Ordering::Relaxed);
        self.asks.fetch_add(ASKS.saturating_mul(count), Ordering::Relaxed);
    }
}

/// The queues of a connection.
#[derive(Debug)]
pub struct Queues {
    /// The connection.
    pub line: Arc<Line>,
    /// By number.
    services: Vec<Service>,
    /// A file of a recent request.
    file: AtomicU64,
    /// The number of the next request that is asked for.
    asked: AtomicU64,
    refused: AtomicBool,
}

impl Queues {
    /// Makes the queues of a connection whose first request has been answered, and has their entries registered. If the
    /// kernel refuses one, it sends everything to `/dev/fuse`.
    pub fn open(line: &Arc<Line>, reserved: Reserved, rings: &'static [Ring]) {
        let count = reserved.entries.iter().map(|&(queue, _)| usize::from(queue).saturating_add(1)).max();
        let services = (0..count.unwrap_or_default()).map(|_| Service::default()).collect();
        let queues = Arc::new(Self {
            line: Arc::clone(line),
            services,
            file: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        });
        for (queue, memory) in reserved.entries {
            if let Some(service) = queues.service(queue) {
                service.entries.fetch_add(1, Ordering::Relaxed);
            }
            queues.register(rings, queue, memory);
        }
    }

    fn service(&self, queue: u16) -> Option<&Service> {
        self.services.get(usize::from(queue))
    }

    fn register(self: &Arc<Self>, rings: &[Ring], queue: u16, memory: Memory) {
        if let Some(ring) = Ring::of_queue(rings, queue) {
            ring.post(Post::Register(Slot::new(self, queue, memory)));
        }
    }

    /// The kernel has put a request into an entry of `queue`.
    pub fn holds(&self, queue: u16) {
        if let Some(service) = self.service(queue) {
            service.holds();
        }
    }

    /// A request is in an entry: its queue gets more entries if few are left.
    ///
    /// A request that arrived while all entries were held waits in the kernel until an answer is committed, also when there are
    /// free entries meanwhile. So a request is asked for that is answered at once; if one that waited takes its place, another
    /// is asked for.
    pub fn grow(self: &Arc<Self>, slot: &Arc<Slot>, header: &Header) {
        let queue = slot.queue();
        let is_asked = header.opcode == Opcode::NotifyReply;
        if matches!(header.opcode, Opcode::Read | Opcode::Write | Opcode::Fsync) {
            self.file.store(header.node, Ordering::Relaxed);
        }
        let follows = slot.note_asked(is_asked);
        let Some(service) = self.service(queue) else { return };
        let rings = super::ring::rings_if_any().unwrap_or_default();
        let needed = service.needs();
        let new = || Ticket::take_later().and_then(|ticket| Memory::new(ticket).ok());
        let had = (0..needed).map_while(|_| new().map(|memory| self.register(rings, queue, memory))).count();
        service.gets(had, needed);
        let asks = had > 0 || follows && !is_asked;
        if asks
            && service.may_ask()
            && let Some(ring) = Ring::of_queue(rings, queue)
        {
            ring.post(Post::Ask(Arc::clone(self)));
        }
    }

    /// Asks the kernel for a request to the queue of the calling thread's core, that of a ring.
    pub fn ask(&self) {
        // The kernel's own numbers begin at 0.
        let number = self.asked.fetch_add(2, Ordering::Relaxed);
        // Without it requests wait for other answers.
        let _ = self.line.device.ask_for_request(number | 1 << 63, self.file.load(Ordering::Relaxed));
    }

    /// The answer is in the entry's buffers.
    pub fn given_back(slot: &Arc<Slot>) {
        if let Some(service) = slot.queues().service(slot.queue()) {
            service.returns();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_grows_before_its_last_entry_is_taken_and_to_a_bound() {
        let service = Service { entries: AtomicUsize::new(SPARE + 2), ..Service::default() };
        let hold = || {
            service.holds();
            service.needs()
        };
        assert_eq!([hold(), hold(), hold()], [0, 0, MORE]);
        service.gets(MORE, MORE);
        assert_eq!((0..MOST).filter(|_| service.may_ask()).count(), ASKS * MORE);
        assert_eq!(hold(), 0);
        let more: usize = (0..MOST).map(|_| hold()).sum();
        assert_eq!(SPARE + 2 + MORE + more, MOST);
        // Those that could not be had are needed again when another request arrives.
        service.gets(0, MORE);
        assert!(!service.may_ask());
        assert_eq!(hold(), MORE);
        (0..MOST).for_each(|_| service.returns());
        assert_eq!(hold(), 0);
    }
}
