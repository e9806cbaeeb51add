//! The reader of a connection, and the thread that replaces a reader whose request waits.
//!
//! A connection's event is disarmed while one thread, its *reader*, reads requests and answers them one after
//! another: no other thread is woken for a request that the reader answers within microseconds. A request that waits
//! must not delay the following ones, so the watch thread looks at all readers every [`TICK`] and re-arms the event of
//! a connection whose reader has been in the same request since the last look. That reader loses its role: after the
//! answer it does not re-arm the event again.
//!
//! The watch sleeps while there are no readers and no source dozes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::Mutex;

use super::line::Line;
use crate::uring::Ring;

/// Time between two looks: the delay that a request can cause to others is at most twice as long.
const TICK: Duration = Duration::from_millis(1);
/// Looks without a reader after which the watch sleeps.
const IDLE_TICKS: u32 = 20;

/// A source of requests with one reader at a time.
#[derive(Debug, Clone)]
pub enum Source {
    /// A connection over `/dev/fuse`, and its key.
    Device(u64, Arc<Line>),
    /// A ring.
    Ring(&'static Ring),
}

/// The place of one thread.
#[derive(Debug, Default)]
pub struct Seat {
    /// Odd while the thread is in a request as reader. Only the thread itself makes it odd.
    turn: AtomicU64,
    /// The turn at the last look.
    seen: AtomicU64,
    /// The source that it reads.
    reads: Mutex<Option<Source>>,
}

impl Seat {
    /// The reader begins a request; returns the number of the turn.
    pub fn begin(&self) -> u64 {
        let turn = self.turn.load(Ordering::Acquire) | 1;
        self.turn.store(turn, Ordering::Release);
        turn
    }

    /// Ends a turn; returns whether the thread is still the reader.
    pub fn end(&self, turn: u64) -> bool {
        self.close(turn)
    }

    /// Makes an open turn even; false if that has happened.
    fn close(&self, turn: u64) -> bool {
        let closed = turn.wrapping_add(1);
        self.turn.compare_exchange(turn, closed, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends the thread's role.
    pub fn leave(&self) {
        *self.reads.lock() = None;
    }

    /// Ends a turn that the last look found, too, and passes its source to `rearm`. Returns whether the seat is taken.
    fn relieve(&self, rearm: impl FnOnce(&Source)) -> bool {
        // The lock is taken first: a turn that is still open belongs to this source.
        let reads = self.reads.lock();
        let turn = self.turn.load(Ordering::Acquire);
        let stays = self.seen.swap(turn, Ordering::Relaxed) == turn;
        if let Some(source) = reads.as_ref()
            && turn & 1 == 1
            && stays
            && self.close(turn)
        {
            rearm(source);
        }
        reads.is_some()
    }
}

/// All seats.
#[derive(Debug, Default)]
pub struct Watch {
    seats: Mutex<Vec<Arc<Seat>>>,
    /// Sources without a reader until the next look.
    dozing: Mutex<Vec<Source>>,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Watch {
    /// A seat for a new thread.
    pub fn seat(&self) -> Arc<Seat> {
        let seat = Arc::new(Seat::default());
        self.seats.lock().push(Arc::clone(&seat));
        seat
    }

    /// The thread of a seat ends.
    pub fn remove(&self, seat: &Arc<Seat>) {
        self.seats.lock().retain(|other| !Arc::ptr_eq(other, seat));
    }

    /// The thread of `seat` becomes the reader of a source.
    pub fn sit(&self, seat: &Seat, source: Source) {
        *seat.reads.lock() = Some(source);
        self.wake();
    }

    /// Lets another thread read a source at the next look, not before.
    pub fn doze(&self, source: Source) {
        self.dozing.lock().push(source);
        self.wake();
    }

    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }

    /// Looks at the seats for ever; `rearm` lets another thread read a source.
    pub fn run(&self, rearm: impl Fn(&Source)) {
        *self.thread.lock() = Some(thread::current());
        let mut idle = 0;
        loop {
            thread::sleep(TICK);
            let dozing = std::mem::take(&mut *self.dozing.lock());
            dozing.iter().for_each(&rearm);
            let seats = self.seats.lock().clone();
            let readers = seats.iter().filter(|seat| seat.relieve(&rearm)).count();
            idle = if readers > 0 { 0 } else { idle + 1 };
            if idle > IDLE_TICKS {
                self.sleep();
                idle = 0;
            }
        }
    }

    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        // A thread that took a seat, or left a source, before it could see the mark does not wake this one.
        let is_busy = !self.dozing.lock().is_empty()
            || self.seats.lock().iter().any(|seat| seat.reads.lock().is_some());
        if is_busy {
            self.asleep.store(false, Ordering::SeqCst);
        }
        while self.asleep.load(Ordering::SeqCst) {
            thread::park();
        }
    }
}
