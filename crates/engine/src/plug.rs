//! Holds back the device requests of several operations that one thread starts, so that neighbours among them become
//! one request.
//!
//! While a thread is inside [`plugged`], a queue that got a write registers its start by [`hold_back`]; all registered
//! queues start when the thread leaves, or before it waits for anything ([`release`]): a thread never waits for a write
//! that it holds back itself. Another thread may start the queue earlier; that is harmless.
//!
//! The threads of an executor hold back the requests of scans between their jobs as well ([`hold_scans_back`]): each of a
//! scan's jobs starts a small repair.
#![doc(alias("blk_start_plug", "blk_finish_plug"))]

use std::cell::RefCell;

/// The start of a queue, with the queue's identity.
type Held = (usize, Box<dyn FnOnce()>);

thread_local! {
    /// `None`: the thread holds nothing back.
    static HELD: RefCell<Option<Vec<Held>>> = const { RefCell::new(None) };
    /// The same for scans only, until the next [`release`].
    static SCANS: RefCell<Option<Vec<Held>>> = const { RefCell::new(None) };
}

/// From now on this thread holds back what it starts for scans. It calls [`release`] after a few jobs, and before it rests.
pub(crate) fn hold_scans_back() {
    SCANS.with_borrow_mut(|held| {
        held.get_or_insert_default();
    });
}

/// Whether the thread holds back something for scans.
pub(crate) fn holds_scans() -> bool {
    SCANS.with_borrow(|held| held.as_ref().is_some_and(|held| !held.is_empty()))
}

/// Runs `work`; the writes that it starts reach their devices at its end.
pub(crate) fn plugged<T>(work: impl FnOnce() -> T) -> T {
    struct Unplug;
    impl Drop for Unplug {
        fn drop(&mut self) {
            start(HELD.take());
        }
    }
    if HELD.with_borrow(Option::is_some) {
        return work();
    }
    HELD.set(Some(Vec::new()));
    let _unplug = Unplug;
    work()
}

/// Registers a queue to be started later, once for each `identity`. Returns false, and the caller starts the queue
/// itself, outside of [`plugged`], unless it is for a scan on an executor's thread.
pub(crate) fn hold_back<F: FnOnce() + 'static>(
    identity: usize,
    is_scan: bool,
    start: impl FnOnce() -> F,
) -> bool {
    let is_plugged = HELD.with_borrow(Option::is_some);
    let place = if is_plugged { &HELD } else { &SCANS };
    (is_plugged || is_scan)
        && place.with_borrow_mut(|held| {
            let Some(held) = held else { return false };
            if !held.iter().any(|(other, _)| *other == identity) {
                held.push((identity, Box::new(start())));
            }
            true
        })
}

/// Starts what the thread holds back: to be called before it waits.
pub(crate) fn release() {
    for place in [&HELD, &SCANS] {
        start(place.with_borrow_mut(|held| held.as_mut().map(std::mem::take)));
    }
}

fn start(held: Option<Vec<Held>>) {
    // No borrow is held: a start may complete requests, which may begin others.
    held.into_iter().flatten().for_each(|(_, start)| start());
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_queue_starts_once_at_the_end_or_before_a_wait() {
        let count = Rc::new(Cell::new(0));
        let begin = |identity| {
            let count = Rc::clone(&count);
            hold_back(identity, false, || move || count.set(count.get() + 1))
        };
        assert!(!begin(1));
        plugged(|| {
            assert!(begin(1) && begin(2) && begin(1));
            assert_eq!(count.get(), 0);
            release();
            assert_eq!(count.get(), 2);
            plugged(|| assert!(begin(1)));
            assert_eq!(count.get(), 2);
        });
        assert_eq!(count.get(), 3);
        assert!(!begin(1));
    }

    #[test]
    fn an_executors_thread_holds_back_scans_only() {
        let count = Rc::new(Cell::new(0));
        let begin = |identity, is_scan| {
            let count = Rc::clone(&count);
            hold_back(identity, is_scan, || move || count.set(count.get() + 1))
        };
        hold_scans_back();
        assert!(!begin(1, false) && begin(1, true) && begin(2, true) && holds_scans());
        plugged(|| assert!(begin(3, false)));
        assert_eq!(count.get(), 1);
        release();
        assert!(count.get() == 3 && !holds_scans());
    }
}
