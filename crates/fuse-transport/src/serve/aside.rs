//! Requests for commits that are put aside, so that they share one.
//!
//! The reader of a ring puts a request of [`Lane::Sync`] that is not expected to wait aside while others have arrived,
//! announces it to the file system, and answers all of them when none is left: the first one commits the changes of all. Where
//! the last ones were several, their processes are about to ask again: the reader lets them run before it answers, up to
//! [`YIELDS`] times.
//!
//! **A waiting request delays none of these**: they belong to the ring, not to the reader, which takes one at a time; when it
//! waits, the next reader answers the others.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Held;
use super::line::Line;

/// How often the reader lets others run before it answers.
const YIELDS: u32 = 2;
/// Requests in succession without company after which the reader looks for some.
const PROBE: u32 = 16;
/// Requests that may arrive before those that were put aside are answered.
const PATIENCE: usize = 32;
/// Rings with a place of their own.
const RINGS: usize = 256;

/// A request that was put aside.
#[derive(Debug)]
pub(super) struct Aside {
    pub(super) line: Arc<Line>,
    pub(super) len: usize,
    pub(super) held: Held,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// Requests that arrived since the first of these.
    since: usize,
    /// How often others were let run since then.
    yields: u32,
    /// The last ones that were answered together were several.
    had_company: bool,
    /// Answers without company in succession.
    alone: u32,
}

/// The requests of one ring that were put aside.
#[derive(Debug)]
pub(super) struct Asides<T>(Mutex<State<T>>);

/// By the number of the ring.
static ALL: [Asides<Aside>; RINGS] = [const { Asides::new() }; RINGS];
static OTHERS: Asides<Aside> = Asides::new();

/// The asides of a ring; rings beyond [`RINGS`] share.
pub(super) fn of_ring(number: usize) -> &'static Asides<Aside> {
    ALL.get(number).unwrap_or(&OTHERS)
}

impl<T> Asides<T> {
    const fn new() -> Self {
        Self(Mutex::new(State {
            waiting: VecDeque::new(),
            since: 0,
            yields: 0,
            had_company: false,
            alone: 0,
        }))
    }

    pub(super) fn push(&self, aside: T) {
        self.0.lock().waiting.push_back(aside);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().waiting.is_empty()
    }

    /// Counts a request that has arrived. Returns whether those that were put aside have waited for enough of them.
    pub(super) fn arrived(&self) -> bool {
        let mut state = self.0.lock();
        if state.waiting.is_empty() {
            return false;
        }
        state.since += 1;
        state.since >= PATIENCE
    }

    /// Whether the reader is to let other threads run before it answers.
    pub(super) fn may_get_company(&self) -> bool {
        let mut state = self.0.lock();
        let is_likely = state.had_company || state.waiting.len() > 1 || state.alone >= PROBE;
        let may = !state.waiting.is_empty() && state.since < PATIENCE && state.yields < YIELDS && is_likely;
        if may {
            state.yields += 1;
        }
        may
    }

    /// Those that were put aside are answered now.
    pub(super) fn begin(&self) {
        let mut state = self.0.lock();
        if !state.waiting.is_empty() {
            state.had_company = state.waiting.len() > 1;
            state.alone = if state.had_company || state.alone >= PROBE { 0 } else { state.alone + 1 };
            (state.since, state.yields) = (0, 0);
        }
    }

    /// The next one: each is taken by itself, so that one that waits keeps no other back.
    pub(super) fn next(&self) -> Option<T> {
        self.0.lock().waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts requests aside and answers them; returns how often others were let run before.
    fn answer(asides: &Asides<u32>, requests: u32) -> u32 {
        for request in 0..requests {
            asides.push(request);
            assert!(!asides.arrived());
        }
        let yields = (0..10).filter(|_| asides.may_get_company()).count();
        asides.begin();
        assert_eq!(
            std::iter::from_fn(|| asides.next()).collect::<Vec<_>>(),
            (0..requests).collect::<Vec<_>>()
        );
        yields as u32
    }

    #[test]
    fn others_run_where_company_is_likely_and_now_and_then() {
        let asides = Asides::new();
        assert_eq!((asides.is_empty(), asides.may_get_company(), asides.next()), (true, false, None));
        assert_eq!((0..PROBE).map(|_| answer(&asides, 1)).sum::<u32>(), 0, "a single caller loses nothing");
        assert_eq!((answer(&asides, 1), answer(&asides, 1)), (YIELDS, 0));
        assert_eq!((answer(&asides, 3), answer(&asides, 1), answer(&asides, 1)), (YIELDS, YIELDS, 0));
    }

    #[test]
    fn those_that_were_put_aside_do_not_wait_for_ever() {
        let asides = Asides::new();
        assert!((0..2 * PATIENCE).all(|_| !asides.arrived()), "none waits");
        asides.push(1);
        assert_eq!((0..PATIENCE).filter(|_| asides.arrived()).count(), 1);
        assert!(!asides.may_get_company());
        asides.begin();
        asides.next();
        asides.push(2);
        assert!(!asides.arrived());
    }
}
