//! Transaction groups (txgs): changes are collected in one txg, the next one quiesces, a third one syncs.
//!
//! ```text
//!   begin() ──▶ open ──close()──▶ quiescing ──(last hold gone)──▶ syncing ──done()──▶ synced
//! ```
//!
//! A transaction holds the txg that was open when it began; a txg is written when its last hold is released. There
//! is at most one txg in each state, so a slow device blocks `close`, never `begin`. A transaction in a new txg
//! begins when the last transaction of the previous txg has ended, so every object sees its changes in txg order.
//! The holder of a txg must not begin another transaction.
//!
//! Lock order: the state's lock is a leaf lock.
//!
//! Differs from OpenZFS: no per-CPU hold counts (one lock is taken twice per transaction), and no per-object ones:
//! transactions are short, so all wait for the last of the previous txg rather than for those on one object.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Kind};

/// Txgs that may hold changes at once: the open, the quiescing and the syncing one.
#[doc(alias = "TXG_CONCURRENT_STATES")]
pub(crate) const CONCURRENT: u64 = 3;
/// Those, plus a spare: slots are indexed by `txg % SIZE`.
#[doc(alias = "TXG_SIZE")]
pub(crate) const SIZE: usize = 4;
/// First txg of a new pool.
#[doc(alias = "TXG_INITIAL")]
pub const INITIAL: u64 = 4;

/// The reason of a suspension after a panic within a transaction.
const TORN: &str = "the pool is suspended: an error of this program, which is in its log, broke off a change halfway; \
                    export it with -f and import it again, which brings back what was last on disk";

/// The slot of a txg.
pub(crate) fn slot(txg: u64) -> usize {
    usize::try_from(txg % SIZE as u64).unwrap_or(0)
}

/// The element for a txg of an array with one for each slot.
pub(crate) fn of<T>(slots: &[T; SIZE], txg: u64) -> &T {
    let [a, b, c, d] = slots;
    match slot(txg) {
        0 => a,
        1 => b,
        2 => c,
        _ => d,
    }
}

/// As [`of`], to be changed.
pub(crate) fn of_mut<T>(slots: &mut [T; SIZE], txg: u64) -> &mut T {
    let [a, b, c, d] = slots;
    match slot(txg) {
        0 => a,
        1 => b,
        2 => c,
        _ => d,
    }
}

#[derive(Debug)]
struct State {
    open: u64,
    /// Closed and still held, or waiting to be written.
    quiescing: Option<u64>,
    syncing: Option<u64>,
    synced: u64,
    holds: [u64; SIZE],
    /// Highest txg with a waiter.
    wanted: u64,
    /// The reason why no more txgs are written.
    suspended: Option<Error>,
    /// A transaction was aborted in the middle: the open txg must never be written.
    is_torn: bool,
    /// The last txg whose size was announced.
    full: u64,
    /// How often ends of transactions have notified waiters.
    wakes: u64,
}

impl State {
    fn held(&self, txg: u64) -> bool {
        self.holds.get(slot(txg)).is_some_and(|&n| n > 0)
    }
}

/// The txgs of one pool.
#[derive(Debug)]
pub struct Txgs {
    state: Mutex<State>,
    changed: Condvar,
}

/// A hold on the txg that was open when it was taken.
#[derive(Debug)]
pub(crate) struct TxgHold {
    txgs: Arc<Txgs>,
    txg: u64,
    /// Taken during the unwinding of a panic.
    in_panic: bool,
}

impl TxgHold {
    /// The txg.
    pub(crate) fn txg(&self) -> u64 {
        self.txg
    }
}

impl Drop for TxgHold {
    fn drop(&mut self) {
        let mut state = self.txgs.state.lock();
        if let Some(count) = state.holds.get_mut(slot(self.txg)) {
            assert!(*count > 0, "a txg is let go as often as it is held");
            *count -= 1;
        }
        // Waiters depend on the last hold of a closed txg only: a transaction in the open one wakes no thread.
        let mut over = state.quiescing == Some(self.txg) && !state.held(self.txg);
        // Only some of a set of related changes may have been made. They cannot be undone, so they must not reach
        // the disk.
        if std::thread::panicking() && !self.in_panic {
            state.is_torn = true;
            state.suspended.get_or_insert_with(|| Error::new(Kind::Suspended, TORN));
            over = true;
        }
        if over {
            state.wakes += 1;
            self.txgs.changed.notify_all();
        }
    }
}

impl Txgs {
    /// The txgs of a pool whose last txg on disk is `synced`.
    pub(crate) fn new(synced: u64) -> Arc<Self> {
        let state = State {
            open: synced + 1,
            quiescing: None,
            syncing: None,
            synced,
            holds: [0; SIZE],
            wanted: 0,
            suspended: None,
            is_torn: false,
            full: 0,
            wakes: 0,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Holds the open txg; waits for the transactions of the previous txg.
    pub(crate) fn begin(self: &Arc<Self>) -> TxgHold {
        let mut state = self.state.lock();
        while state.quiescing.is_some_and(|txg| state.held(txg)) {
            self.changed.wait(&mut state);
        }
        let txg = state.open;
        if let Some(count) = state.holds.get_mut(slot(txg)) {
            *count += 1;
        }
        TxgHold { txgs: Arc::clone(self), txg, in_panic: std::thread::panicking() }
    }

    /// The open txg.
    pub fn open(&self) -> u64 {
        self.state.lock().open
    }

    /// The last txg on disk.
    pub fn synced(&self) -> u64 {
        self.state.lock().synced
    }

    /// Closes the open txg if the previous one is no longer quiescing. Returns whether it did.
    pub fn close(&self) -> bool {
        let mut state = self.state.lock();
        if state.quiescing.is_some() || state.suspended.is_some() {
            return false;
        }
        state.quiescing = Some(state.open);
        state.open += 1;
        self.changed.notify_all();
        true
    }

    /// Takes the quiescing txg for writing if it is no longer held and none is being written.
    pub(crate) fn take(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let txg = state.quiescing?;
        if state.held(txg) || state.syncing.is_some() || state.suspended.is_some() {
            return None;
        }
        state.quiescing = None;
        state.syncing = Some(txg);
        self.changed.notify_all();
        Some(txg)
    }

    /// The taken txg is on disk.
    pub(crate) fn done(&self, txg: u64) {
        let mut state = self.state.lock();
        assert!(state.syncing == Some(txg), "only the syncing txg can be done");
        state.syncing = None;
        state.synced = txg;
        self.changed.notify_all();
    }

    /// No more txgs can be written until the pool is cleared; every waiter is notified.
    pub fn suspend(&self, why: Error) {
        self.state.lock().suspended.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Txgs can be written again, unless a change was aborted halfway.
    pub fn resume(&self) {
        let mut state = self.state.lock();
        if !state.is_torn {
            state.suspended = None;
        }
        self.changed.notify_all();
    }

    /// Whether a change was aborted halfway: no txg can be written any more.
    pub(crate) fn is_torn(&self) -> bool {
        self.state.lock().is_torn
    }

    /// The reason why no more txgs are written, if suspended.
    pub fn suspended(&self) -> Option<Error> {
        self.state.lock().suspended.clone()
    }

    /// Requests that a txg be written soon.
    pub(crate) fn want(&self, txg: u64) {
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(txg);
        self.changed.notify_all();
    }

    /// The open txg has become large enough to be written: notifies the waiters once for each txg.
    pub(crate) fn note_full(&self) {
        let mut state = self.state.lock();
        if state.full < state.open {
            state.full = state.open;
            self.changed.notify_all();
        }
    }

    /// Whether there is a waiter for a txg that is not on disk yet.
    pub(crate) fn wanted(&self) -> bool {
        let state = self.state.lock();
        state.wanted > state.synced
    }

    /// Waits until `txg` is on disk, driving `step` if this pool has no thread of its own.
    ///
    /// # Errors
    /// The reason of the pool's suspension.
    pub fn wait_synced(&self, txg: u64, step: &dyn Fn() -> bool) -> Result<(), Error> {
        self.want(txg);
        loop {
            {
                let state = self.state.lock();
                if state.synced >= txg {
                    return Ok(());
                }
                if let Some(why) = &state.suspended {
                    return Err(why.clone());
                }
            }
            if !step() {
                let mut state = self.state.lock();
                if state.synced < txg && state.suspended.is_none() {
                    self.changed.wait_for(&mut state, Duration::from_millis(20));
                }
            }
        }
    }

    /// Waits until `txg` is open, driving `step` if this pool has no thread of its own.
    ///
    /// # Errors
    /// The reason of the pool's suspension.
    #[doc(alias = "txg_wait_open")]
    pub(crate) fn wait_open(&self, txg: u64, step: &dyn Fn() -> bool) -> Result<(), Error> {
        self.want(txg.saturating_sub(1));
        loop {
            {
                let state = self.state.lock();
                if state.open >= txg {
                    return Ok(());
                }
                if let Some(why) = &state.suspended {
                    return Err(why.clone());
                }
            }
            if !step() {
                let mut state = self.state.lock();
                if state.open < txg && state.suspended.is_none() {
                    self.changed.wait_for(&mut state, Duration::from_millis(20));
                }
            }
        }
    }

    /// Waits for a change of state, at most `timeout`. Returns whether the time has passed without one. The end of a
    /// transaction is none, unless it is the last one of a closed txg.
    pub(crate) fn wait_change(&self, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_for(&mut state, timeout).timed_out()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests of threads")]
    use super::*;

    #[test]
    fn a_held_txg_is_not_written_and_the_next_one_is_open() {
        let txgs = Txgs::new(INITIAL - 1);
        let hold = txgs.begin();
        assert_eq!((hold.txg(), txgs.close(), txgs.close()), (4, true, false));
        assert_eq!(txgs.take(), None);
        let next = std::thread::spawn({
            let txgs = Arc::clone(&txgs);
            move || txgs.begin().txg()
        });
        drop(hold);
        assert_eq!(next.join().unwrap(), 5);
        assert_eq!(txgs.take(), Some(4));
        assert!(txgs.close() && txgs.take().is_none());
        txgs.done(4);
        assert_eq!((txgs.synced(), txgs.take(), txgs.open()), (4, Some(5), 6));
    }

    #[test]
    fn transactions_of_the_open_txg_wake_no_thread() {
        let txgs = Txgs::new(3);
        (0..1000).for_each(|_| drop(txgs.begin()));
        assert_eq!(txgs.state.lock().wakes, 0);
        let (first, last) = (txgs.begin(), txgs.begin());
        assert!(txgs.close());
        drop(first);
        assert_eq!(txgs.state.lock().wakes, 0);
        drop(last);
        assert_eq!(txgs.state.lock().wakes, 1);
    }

    #[test]
    fn a_txg_with_half_a_change_is_never_written() {
        let txgs = Txgs::new(3);
        let changing = std::thread::spawn({
            let txgs = Arc::clone(&txgs);
            move || {
                let _hold = txgs.begin();
                panic!("in the middle of a change");
            }
        });
        assert!(changing.join().is_err() && txgs.is_torn());
        assert_eq!(txgs.wait_synced(4, &|| false).unwrap_err().kind(), Kind::Suspended);
        txgs.resume();
        assert!(txgs.suspended().is_some() && !txgs.close() && txgs.take().is_none());
    }

    #[test]
    fn a_suspended_pool_tells_its_waiters() {
        let txgs = Txgs::new(3);
        txgs.suspend(Error::new(crate::Kind::Suspended, "the pool is suspended"));
        assert_eq!(txgs.wait_synced(4, &|| false).unwrap_err().kind(), crate::Kind::Suspended);
        assert!(!txgs.close());
        txgs.resume();
        assert!(txgs.close() && txgs.suspended().is_none());
    }
}
