//! Requests that nothing could take, kept until the pool is resumed.
//!
//! ```text
//!  closed ──open()──▶ open ──(a request fails for good)──▶ held ──resume()──▶ open
//!                                                            └──close()──▶ closed: all of them end with their error
//! ```
//!
//! While it is closed nothing is kept: errors go up at once. That is the case while a pool is read-only, and
//! in an engine without threads, where nothing could resume it.
//!
//! Writes of the txg being synced are recorded, too: a disk that comes back may have lost writes that were
//! not flushed, and so may a disk whose flush failed. All of them are read again, from the device itself,
//! before the pool is resumed or the txg is committed.
//!
//! Lock order: the state's lock is taken before those of txgs; requests are reissued after its release.
//!
//! Differs from OpenZFS: reads of outside callers fail instead of waiting; written blocks are checked.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ondisk::{Blkptr, Dva, MIN_BLOCK_SIZE};
use parking_lot::{Condvar, Mutex};

use super::{Form, ReadOptions, ReadOutcome, Zio};
use crate::error::{Error, Kind, Result};
use crate::taskq::Promise;
use crate::types::Bookmark;
use crate::vdev::leaf::{Leaf, PastCaches};
use crate::vdev::plan::Depth;

/// Called when a request is held, with the reason.
pub(crate) type OnHeld = Arc<dyn Fn(&Error) + Send + Sync>;
/// Reissues a request (`true`), or ends it with its error.
pub(super) type Reissue = Box<dyn FnOnce(bool) + Send>;

thread_local! {
    /// Reads of this thread wait until the pool is resumed ([`be_patient`]).
    static PATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Reads of this thread wait until the pool is resumed, instead of failing because devices are gone.
pub(crate) fn be_patient() {
    PATIENT.set(true);
}

#[derive(Default)]
struct State {
    sink: Option<OnHeld>,
    requests: Vec<Reissue>,
    /// How often it was resumed or closed.
    turns: u64,
}

/// Requests that wait for the pool to be resumed.
#[derive(Default)]
pub struct SuspendedIo {
    state: Mutex<State>,
    changed: Condvar,
    written: Mutex<Written>,
}

impl std::fmt::Debug for SuspendedIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SuspendedIo({} requests)", self.state.lock().requests.len())
    }
}

impl SuspendedIo {
    /// From now on requests are held; `sink` is called for each.
    pub(crate) fn open(&self, sink: OnHeld) {
        self.state.lock().sink = Some(sink);
    }

    /// Returns errors to the callers from now on, those of held requests first.
    pub(crate) fn close(&self) {
        let requests = self.next_turn(|state| state.sink = None);
        requests.into_iter().for_each(|request| request(false));
    }

    /// Reissues the held requests. `before` runs while no new request can be held yet.
    #[doc(alias = "zio_resume")]
    pub(crate) fn resume(&self, before: impl FnOnce()) {
        let requests = self.next_turn(|_| before());
        requests.into_iter().for_each(|request| request(true));
    }

    fn next_turn(&self, change: impl FnOnce(&mut State)) -> Vec<Reissue> {
        let mut state = self.state.lock();
        change(&mut state);
        state.turns += 1;
        self.changed.notify_all();
        std::mem::take(&mut state.requests)
    }

    /// How often the pool was resumed, for [`SuspendedIo::hold`].
    pub(super) fn turn(&self) -> u64 {
        self.state.lock().turns
    }

    /// Keeps a request that was started in the turn `began`, or ends it when nothing is kept. One that the devices failed
    /// before the pool was resumed says nothing about them now: it is reissued at once.
    #[doc(alias = "zio_suspend")]
    pub(super) fn hold(&self, why: &Error, began: u64, request: Reissue) {
        let mut state = self.state.lock();
        let is_open = state.sink.is_some();
        let Some(sink) = state.sink.clone().filter(|_| state.turns == began) else {
            drop(state);
            return request(is_open);
        };
        state.requests.push(request);
        sink(why);
    }

    /// Waits until the pool is resumed; `false`, perhaps at once, when it is not going to be.
    pub fn wait(&self, why: &Error) -> bool {
        crate::plug::release();
        let mut state = self.state.lock();
        let Some(sink) = state.sink.clone() else { return false };
        sink(why);
        let turn = state.turns;
        while state.turns == turn {
            self.changed.wait(&mut state);
        }
        state.sink.is_some()
    }

    /// Waits after a read of this thread that failed because devices are gone, if it can't do without; whether it is to
    /// be tried again.
    pub(crate) fn wait_to_read(&self, outcome: &Result<stdx::Buf>) -> bool {
        outcome.as_ref().is_err_and(|e| self.wait_for(e))
    }

    /// The same, by the reason why the read failed.
    pub(super) fn wait_for(&self, why: &Error) -> bool {
        PATIENT.get() && is_of_devices(why) && self.wait(why)
    }

    pub(super) fn note_written(&self, bp: &Blkptr) {
        self.written.lock().note(bp);
    }

    /// Drops the records of blocks at these places: they are about to be overwritten, or nothing will refer to them.
    pub fn forget(&self, places: impl Iterator<Item = Dva>) {
        self.written.lock().forget(places);
    }

    /// Whether this block is still the one that was written there last.
    fn is_noted(&self, bp: &Blkptr) -> bool {
        let written = self.written.lock();
        bp.dvas().next().is_some_and(|dva| written.0.get(&(dva.vdev, dva.offset)) == Some(bp))
    }

    /// Drops the records of txgs up to `txg`, whose writes are durable. Large synchronous writes of the next
    /// txg may be recorded already.
    pub(crate) fn settle(&self, txg: u64) {
        self.written.lock().0.retain(|_, bp| bp.physical_birth() > txg);
    }
}

/// Whether devices that come back may make it good.
pub(crate) fn is_of_devices(e: &Error) -> bool {
    matches!(e.kind(), Kind::Io | Kind::NoDevice)
}

/// Blocks of the txg that is being written, by the vdev and the offset of each copy; none overlaps another.
#[derive(Default)]
struct Written(BTreeMap<(u32, u64), Blkptr>);

impl Written {
    /// Records a block in place of those that stood there: the same txg has freed them.
    fn note(&mut self, bp: &Blkptr) {
        self.forget(bp.dvas());
        self.0.extend(bp.dvas().map(|dva| ((dva.vdev, dva.offset), *bp)));
    }

    /// Drops all copies of blocks with a copy at one of these places: a lost copy of such a block must not be written again.
    fn forget(&mut self, places: impl Iterator<Item = Dva>) {
        for dva in places {
            let end = dva.offset.saturating_add(size_on_vdev(&dva));
            while let Some((&key, old)) = self.0.range((dva.vdev, 0)..(dva.vdev, end)).next_back() {
                let size =
                    old.dvas().find(|old| (old.vdev, old.offset) == key).map_or(0, |old| size_on_vdev(&old));
                if key.1.saturating_add(size) <= dva.offset {
                    break;
                }
                let copies: Vec<Dva> = old.dvas().collect();
                self.0.remove(&key);
                for copy in copies {
                    self.0.remove(&(copy.vdev, copy.offset));
                }
            }
        }
    }
}

/// Bytes at a block's place itself: the pieces of a gang, which its size counts, have places of their own.
fn size_on_vdev(dva: &Dva) -> u64 {
    if dva.gang { MIN_BLOCK_SIZE } else { dva.asize }
}

/// How to treat a leaf that has lost a block which other leaves have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cure {
    /// Its DTL gets the block's txg.
    Note,
    /// The block is written again.
    Rewrite,
}

impl Zio {
    /// Reads everything that was written since [`SuspendedIo::settle`] for txgs up to `txg` and lies on a vdev of one of
    /// `suspects`, from these devices themselves. A block that has no good copy there, but is still in the system's memory,
    /// is written again.
    ///
    /// # Errors
    /// When a block has no good copy left.
    pub(crate) fn check_written(
        self: &Arc<Self>,
        txg: u64,
        suspects: &[Arc<Leaf>],
        cure: Cure,
    ) -> Result<()> {
        let tree = self.tree();
        let tops: HashSet<u64> =
            suspects.iter().filter_map(|leaf| tree.top_of(leaf.guid)).map(|top| top.id).collect();
        let is_due = |bp: &&Blkptr| {
            bp.physical_birth() <= txg && bp.dvas().any(|dva| tops.contains(&u64::from(dva.vdev)))
        };
        let written: Vec<Blkptr> = self.suspended.written.lock().0.values().filter(is_due).copied().collect();
        let mut bad = Vec::new();
        let past_caches = PastCaches::of(suspects.to_vec());
        for bp in written {
            let outcome = self.read_again(&bp);
            let is_whole = outcome.data.is_ok() && outcome.damage.is_empty();
            // A large synchronous write of a later txg may have overwritten it meanwhile.
            if !is_whole && self.suspended.is_noted(&bp) {
                bad.push((bp, outcome));
            }
        }
        drop(past_caches);
        bad.into_iter().try_for_each(|(bp, outcome)| {
            self.cure(&bp, outcome, cure).map_err(|why| self.describe_lost(&bp, why))
        })
    }

    fn read_again(self: &Arc<Self>, bp: &Blkptr) -> ReadOutcome {
        // Nothing on disk refers to these blocks, so missing ones are no damage of the pool.
        let (depth, form, speculative) = (Depth::All, Form::Physical, true);
        let options = ReadOptions { depth, form, speculative, ..ReadOptions::default() };
        self.read_wait(bp, Bookmark::default(), options)
    }

    fn cure(self: &Arc<Self>, bp: &Blkptr, outcome: ReadOutcome, cure: Cure) -> Result<()> {
        match outcome.data {
            Ok(data) if cure == Cure::Rewrite && !bp.is_gang() => self.write_again(bp, &data),
            Ok(_) => {
                let tree = self.tree();
                let leaves = outcome.damage.iter().filter_map(|damage| tree.leaf(damage.leaf));
                leaves.for_each(|leaf| leaf.miss(bp.physical_birth()));
                Ok(())
            }
            Err(why) if bp.is_gang() => Err(why),
            Err(why) => match self.read_again(bp).data {
                Ok(data) => self.write_again(bp, &data),
                Err(_) => Err(why),
            },
        }
    }

    /// Adds the place of a block that is lost.
    fn describe_lost(&self, bp: &Blkptr, why: Error) -> Error {
        let tree = self.tree();
        let places = bp.dvas().map(|dva| {
            let name =
                tree.top(u64::from(dva.vdev)).map_or_else(|| dva.vdev.to_string(), |top| top.name.clone());
            format!("{name} at {:#x}", dva.offset)
        });
        let places = places.collect::<Vec<_>>().join(", ");
        let (txg, size) = (bp.physical_birth(), bp.psize());
        Error::new(why.kind(), format!("a block of {size} bytes of txg {txg} on {places} is lost"))
            .because(why)
    }

    /// Writes a block where it was written before.
    fn write_again(self: &Arc<Self>, bp: &Blkptr, data: &stdx::Buf) -> Result<()> {
        for dva in bp.dvas() {
            let missing = || Error::new(Kind::NoDevice, "no such top-level vdev");
            let top = self.top_to_use(u64::from(dva.vdev)).ok_or_else(missing)?;
            let promise = Promise::default();
            let theirs = promise.clone();
            top.top().write(
                dva.offset,
                data.clone(),
                bp.physical_birth(),
                Box::new(move |outcome| theirs.set(outcome)),
            );
            promise.wait(&**self.executor())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ondisk::Dva;

    use super::*;

    fn block(offset: u64, asize: u64) -> Blkptr {
        let mut bp = Blkptr::default();
        bp.set_dvas(&[Dva { vdev: 1, offset, asize, ..Dva::default() }]);
        bp
    }

    #[test]
    fn a_place_is_known_by_what_was_written_there_last() {
        let mut written = Written::default();
        [(0, 4096), (4096, 8192), (12288, 4096), (8192, 2048)].iter().for_each(|&(at, len)| {
            written.note(&block(at, len));
        });
        let places: Vec<u64> = written.0.keys().map(|key| key.1).collect();
        assert_eq!(places, [0, 8192, 12288]);
        written.note(&block(0, 16384));
        assert_eq!(written.0.len(), 1);
    }

    /// A write that begins and fails leaves neither the old nor the new block there. The other copy of the old block counts
    /// for nothing either: writing the block again would overwrite the place that has something else.
    #[test]
    fn a_place_that_is_overwritten_holds_nothing_until_the_write_is_done() {
        let mut written = Written::default();
        let place = |offset| Dva { vdev: 1, offset, asize: 4096, ..Dva::default() };
        let mut twice = Blkptr::default();
        twice.set_dvas(&[place(0), place(65536)]);
        written.note(&twice);
        written.note(&block(4096, 4096));
        written.forget([place(0)].into_iter());
        assert_eq!(written.0.keys().map(|key| key.1).collect::<Vec<_>>(), [4096]);
    }

    /// The size of a gang includes that of its pieces, which lie elsewhere.
    #[test]
    fn a_gang_takes_the_place_of_its_header_only() {
        let mut written = Written::default();
        written.note(&block(512, 4096));
        let mut gang = Blkptr::default();
        gang.set_dvas(&[Dva { vdev: 1, offset: 0, asize: 8192, gang: true, ..Dva::default() }]);
        written.note(&gang);
        assert_eq!(written.0.len(), 2);
    }

    #[test]
    fn writes_of_the_next_txg_are_not_settled_with_this_one() {
        let queue = SuspendedIo::default();
        queue.open(Arc::new(|_| ()));
        for (txg, offset) in [(5, 0), (6, 4096)] {
            let mut bp = block(offset, 4096);
            bp.set_births(txg, txg);
            queue.note_written(&bp);
        }
        queue.settle(5);
        let left: Vec<u64> = queue.written.lock().0.values().map(Blkptr::physical_birth).collect();
        assert_eq!(left, [6]);
    }

    #[test]
    fn requests_wait_for_their_turn() {
        let queue = SuspendedIo::default();
        let ends = Arc::new(Mutex::new(Vec::new()));
        let hold_of = |turn: u64| {
            let ends = Arc::clone(&ends);
            queue.hold(&Error::corrupt("gone"), turn, Box::new(move |again| ends.lock().push(again)));
        };
        let hold = || hold_of(queue.turn());
        hold();
        assert_eq!((ends.lock().as_slice(), queue.wait(&Error::corrupt("gone"))), (&[false][..], false));
        let told = Arc::new(Mutex::new(0));
        let count = Arc::clone(&told);
        queue.open(Arc::new(move |_| *count.lock() += 1));
        hold();
        assert_eq!((ends.lock().len(), *told.lock()), (1, 1));
        let before = queue.turn();
        queue.resume(|| ());
        // It failed before the pool was resumed.
        hold_of(before);
        assert_eq!((ends.lock().as_slice(), *told.lock()), (&[false, true, true][..], 1));
        hold();
        queue.close();
        assert_eq!(*ends.lock(), [false, true, true, false]);
    }
}
