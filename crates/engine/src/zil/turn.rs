//! The turn to write a log: one caller at a time has it.
//!
//! Commits get it in any order, as one serves many callers. A caller that needs the log for itself (to close, suspend or destroy
//! it) would never get it from a stream of commits, nor a commit from a stream of those: where both kinds wait, they alternate.

use parking_lot::{Condvar, Mutex};

/// Waiting commits and their progress.
#[derive(Debug, Default)]
struct State {
    /// Finished commits.
    done: u64,
    /// A caller has the turn.
    taken: bool,
    /// The last turn was not a commit's.
    last_was_alone: bool,
    /// Waiting commits.
    commits: usize,
    /// Waiting callers that need the log alone.
    others: usize,
}

impl State {
    /// Whether a commit may have the turn.
    fn may_commit(&self) -> bool {
        !self.taken && (self.others == 0 || self.last_was_alone)
    }

    /// Whether another caller may have the turn.
    fn may_be_alone(&self) -> bool {
        !self.taken && (self.commits == 0 || !self.last_was_alone)
    }

    fn take(&mut self, alone: bool) {
        (self.taken, self.last_was_alone) = (true, alone);
    }
}

/// Gives turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    ended: Condvar,
}

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    /// Commits that are finished when it ends.
    pub(crate) done: u64,
}

impl Turns {
    /// Waits for the turn of a commit; `None` once the commit with this ticket is finished.
    pub(crate) fn commit(&self, ticket: u64) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        state.commits += 1;
        while !state.may_commit() && state.done < ticket {
            self.ended.wait(&mut state);
        }
        state.commits -= 1;
        if state.done >= ticket {
            // Others may have waited for this one to be served.
            self.ended.notify_all();
            return None;
        }
        state.take(false);
        Some(Turn { turns: self, done: 0 })
    }

    /// Waits until nothing is written; nothing will be until the result is dropped.
    pub(crate) fn alone(&self) -> Turn<'_> {
        let mut state = self.state.lock();
        state.others += 1;
        while !state.may_be_alone() {
            self.ended.wait(&mut state);
        }
        state.others -= 1;
        state.take(true);
        Turn { turns: self, done: 0 }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        state.taken = false;
        state.done = state.done.max(self.done);
        drop(state);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_and_others_alternate_where_both_wait() {
        let mut state = State { commits: 1, others: 1, ..State::default() };
        let mut turns = Vec::new();
        for _ in 0..6 {
            let may = (state.may_commit(), state.may_be_alone());
            assert!(may.0 != may.1, "{state:?}");
            state.take(may.1);
            turns.push(may.1);
            assert!(!state.may_commit() && !state.may_be_alone());
            state.taken = false;
        }
        assert_eq!(turns, [true, false, true, false, true, false]);
        state.commits = 0;
        assert!(state.may_be_alone(), "no commit waits");
        (state.commits, state.others) = (1, 0);
        assert!(state.may_commit());
    }

    #[test]
    fn a_commit_that_another_one_covered_needs_no_turn() {
        let turns = Turns::default();
        let mut first = turns.commit(1).unwrap();
        first.done = 2;
        drop(first);
        assert!(turns.commit(2).is_none());
        drop(turns.alone());
        assert!(turns.commit(3).is_some());
    }
}
