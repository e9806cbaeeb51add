//! The threads that read rings.
//!
//! The reader of a ring answers what arrives, as the reader of a connection does ([`super::hall`]), with these differences:
//! its answers are submitted by the system call in which it waits for the next request, it cannot leave the source
//! unread, because a queue of the kernel has no other, and a request that is expected to wait is answered by a thread of
//! [`super::crew`], while the reader goes on. When a request waits unexpectedly, the watch appoints another reader. Commits that
//! arrive together are answered together ([`super::aside`]).

use std::io;
use std::sync::Arc;
use std::thread;

use super::aside::{self, Aside, Asides};
use super::crew;
use super::hall::{Hall, hall};
use super::lane::Lane;
use super::line::{Kept, LONG};
use super::seat::{Seat, Source};
use super::{Held, Work};
use crate::header::Opcode;
use crate::reply::Reply;
use crate::uring::{self, Arrival, Reserved, Ring, Slot};

/// The name of the threads.
const NAME: &str = "fuse-ring";

impl Kept for Held {
    fn len(&self) -> usize {
        self.body.len()
    }

    fn keep(self) -> Work {
        Work::Held(self)
    }
}

/// The rings, each with a reader.
pub fn rings() -> io::Result<&'static [Ring]> {
    let hall = hall()?;
    uring::rings(|ring| if ring.first() { hall.man_ring(ring) } else { Ok(()) })
}

/// The parts that a connection needs to use rings, if that is wanted and possible.
///
/// # Errors
/// The reason why it is not possible.
pub fn reserve() -> io::Result<Option<Reserved>> {
    if !uring::uses_io_uring() {
        return Ok(None);
    }
    rings()?;
    Reserved::new().map(Some)
}

impl Hall {
    fn man_ring(&'static self, ring: &'static Ring) -> io::Result<()> {
        let started = thread::Builder::new().name(NAME.to_owned()).spawn(move || self.read_ring(ring));
        started.map(drop).inspect_err(|_| ring.not_started())
    }

    /// Appoints another reader of a ring.
    pub(super) fn relieve_ring(&'static self, ring: &'static Ring) {
        if ring.vacate() {
            // Without another thread the present one takes the role again after its request.
            let _ = self.man_ring(ring);
        }
    }

    fn read_ring(&'static self, ring: &'static Ring) {
        ring.sit_down();
        let seat = self.watch.seat();
        let mut hears = false;
        loop {
            ring.take_role();
            if !std::mem::replace(&mut hears, true) {
                ring.hear_bell();
            }
            while self.answer_ring(ring, &seat) {}
            seat.leave();
            ring.leave_role();
        }
    }

    /// Submits answers, waits for requests and answers them. Returns whether this thread is still the reader.
    fn answer_ring(&'static self, ring: &'static Ring, seat: &Seat) -> bool {
        let asides = aside::of_ring(ring.number());
        // A reader that waits in a request may have left some.
        ring.flush(asides.is_empty());
        self.watch.sit(seat, Source::Ring(ring));
        loop {
            while let Some(arrival) = ring.next() {
                if let Arrival::Request(slot) = arrival {
                    if !self.take_from_ring(ring, seat, &slot) {
                        return false;
                    }
                    if asides.arrived() {
                        break;
                    }
                    if ring.has_more() {
                        // The process need not wait for the other requests.
                        ring.flush(false);
                    }
                }
            }
            if asides.may_get_company() {
                ring.flush(false);
                thread::yield_now();
                continue;
            }
            if !self.answer_asides(ring, seat, asides) {
                return false;
            }
            if !ring.has_more() {
                break;
            }
        }
        seat.leave();
        true
    }

    /// Answers the commits that were put aside. Returns whether this thread is still the reader.
    fn answer_asides(&'static self, ring: &'static Ring, seat: &Seat, asides: &Asides<Aside>) -> bool {
        asides.begin();
        while let Some(Aside { line, len, held }) = asides.next() {
            if !ring.has_relief() {
                crew::run(Box::new(move || self.answer_all(&line, Lane::Sync, len, || held.answer(&line))));
                continue;
            }
            let turn = seat.begin();
            self.answer_all(&line, Lane::Sync, len, || held.answer(&line));
            if !seat.end(turn) {
                return false;
            }
        }
        true
    }

    /// Answers a request, or leaves it to another thread. Returns whether this one is still the reader.
    fn take_from_ring(&'static self, ring: &'static Ring, seat: &Seat, slot: &Arc<Slot>) -> bool {
        let queues = slot.queues();
        let Some((header, body, half)) = slot.arrived() else { return true };
        queues.grow(slot, &header);
        if header.opcode == Opcode::NotifyReply {
            half.send(header.unique, 0, &[]);
            return true;
        }
        let line = Arc::clone(&queues.line);
        let held = Held { header, body, reply: Reply::in_entry(half, header.unique) };
        let Some(lane) = Lane::of(header.opcode) else {
            held.answer(&line);
            return true;
        };
        let len = Kept::len(&held);
        let Some(held) = line.take_in(lane, held, &self.load).now else { return true };
        let time = if lane == Lane::Sync { held.announce(&line) } else { None };
        if time.map_or_else(|| line.may_wait(lane), |time| time > LONG) || !ring.has_relief() {
            crew::run(Box::new(move || self.answer_all(&line, lane, len, || held.answer(&line))));
            return true;
        }
        if lane == Lane::Sync {
            aside::of_ring(ring.number()).push(Aside { line, len, held });
            return true;
        }
        let turn = seat.begin();
        self.answer_all(&line, lane, len, || held.answer(&line));
        seat.end(turn)
    }
}
