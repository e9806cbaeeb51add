//! Bounds the bytes that reads of large blocks hold while callers wait for them, over all pools of the process.
//!
//! A read is counted with all that it holds at its peak: the bytes that devices return, and the block made of them. Reads wait
//! for their turn in the order of their arrival. A pool can always have one read, of any size: a device that does not answer
//! holds the bytes of its pool's reads, and must not stop those of other pools. Blocks of at most [`SMALL`] are
//! neither counted nor do they wait.
//!
//! Only reads of data are counted, not of metadata. A counted read waits for devices and for the executor's jobs, which count
//! no reads, so its bytes always come back, whatever the caller holds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Memory;
use crate::taskq::{Executor, Promise};

/// Reads of blocks up to this size are not counted: the number of threads that read bounds them well enough.
pub(crate) const SMALL: u64 = 128 << 10;
/// Bytes of all counted reads that take nothing from the cache.
const FREE: u64 = 48 << 20;
/// One in so many bytes of the cache's target that counted reads may take beside those.
const PART: u64 = 4;

/// All counted reads.
#[derive(Debug, Default)]
pub(super) struct Demand(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// Reads in progress of each pool.
    pools: HashMap<u32, u64>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    pool: u32,
    bytes: u64,
    turn: Promise<()>,
}

impl State {
    fn take(&mut self, pool: u32, bytes: u64) {
        self.bytes += bytes;
        *self.pools.entry(pool).or_default() += 1;
    }

    /// Whether a read may begin; `is_first`: none waits before it.
    fn admits(&self, (pool, bytes): (u32, u64), is_first: bool, most: u64) -> bool {
        let is_alone = !self.pools.contains_key(&pool);
        is_alone || is_first && self.bytes.saturating_add(bytes) <= most
    }

    /// Lets those begin that may.
    fn admit(&mut self, most: u64) {
        let mut at = 0;
        while let Some(next) = self.waiting.get(at) {
            if !self.admits((next.pool, next.bytes), at == 0, most) {
                at += 1;
            } else if let Some(next) = self.waiting.remove(at) {
                self.take(next.pool, next.bytes);
                next.turn.set(());
            }
        }
    }
}

/// The bytes of a read in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct Demanded {
    memory: Arc<Memory>,
    pool: u32,
    bytes: u64,
}

impl Demanded {
    /// Counts a read of a pool; waits until there is space for it.
    pub(crate) fn wait(memory: &Arc<Memory>, pool: u32, bytes: u64, executor: &dyn Executor) -> Self {
        let turn = memory.demand.enter(pool, bytes, most(memory));
        if let Some(turn) = turn {
            turn.wait(executor);
        }
        memory.make_room();
        Self { memory: Arc::clone(memory), pool, bytes }
    }
}

impl Drop for Demanded {
    fn drop(&mut self) {
        self.memory.demand.leave(self.pool, self.bytes, most(&self.memory));
    }
}

/// The bound of the bytes at present.
fn most(memory: &Memory) -> u64 {
    FREE.saturating_add(memory.target() / PART)
}

impl Demand {
    /// Begins a read, or returns the promise of its turn.
    fn enter(&self, pool: u32, bytes: u64, most: u64) -> Option<Promise<()>> {
        let mut state = self.0.lock();
        if state.admits((pool, bytes), state.waiting.is_empty(), most) {
            state.take(pool, bytes);
            return None;
        }
        let turn = Promise::default();
        state.waiting.push_back(Waiting { pool, bytes, turn: turn.clone() });
        Some(turn)
    }

    fn leave(&self, pool: u32, bytes: u64, most: u64) {
        let mut state = self.0.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
        if let Some(reads) = state.pools.get_mut(&pool) {
            *reads -= 1;
            if *reads == 0 {
                state.pools.remove(&pool);
            }
        }
        state.admit(most);
    }

    /// Bytes of the cache's target that the reads take.
    pub(super) fn beyond(&self) -> u64 {
        self.0.lock().bytes.saturating_sub(FREE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: u64 = 40 << 20;
    const M: u64 = 1 << 20;

    /// The bytes in progress, and whether each of the promises has been kept.
    fn state(demand: &Demand, turns: &[&Option<Promise<()>>]) -> (u64, Vec<bool>) {
        let begun = turns.iter().map(|turn| turn.as_ref().is_none_or(Promise::is_set));
        (demand.0.lock().bytes, begun.collect())
    }

    #[test]
    fn reads_have_a_bound_and_begin_in_their_order() {
        let (demand, most) = (Demand::default(), 64 * M);
        let first = demand.enter(1, RECORD, most);
        let second = demand.enter(1, RECORD, most);
        // It would fit, but then the second could wait for ever.
        let small = demand.enter(1, M, most);
        assert_eq!(state(&demand, &[&first, &second, &small]), (RECORD, vec![true, false, false]));
        demand.leave(1, RECORD, most);
        assert_eq!(state(&demand, &[&second, &small]), (RECORD + M, vec![true, true]));
        demand.leave(1, RECORD, most);
        demand.leave(1, M, most);
        assert_eq!(state(&demand, &[]), (0, vec![]));
        assert!(demand.0.lock().pools.is_empty());
    }

    #[test]
    fn each_pool_has_one_read_of_any_size_whatever_others_hold() {
        let (demand, most) = (Demand::default(), 4 * M);
        let stuck: Vec<_> = (0..3).map(|_| demand.enter(1, RECORD, most)).collect();
        let other = demand.enter(2, RECORD, most);
        let next = demand.enter(2, RECORD, most);
        let all = [&stuck[0], &stuck[1], &stuck[2], &other, &next];
        assert_eq!(state(&demand, &all), (2 * RECORD, vec![true, false, false, true, false]));
        // Its next one does not wait behind those of the pool that is stuck.
        demand.leave(2, RECORD, most);
        assert_eq!(state(&demand, &all), (2 * RECORD, vec![true, false, false, true, true]));
    }

    #[test]
    fn reads_beyond_the_free_bytes_take_their_space_from_the_cache() {
        let memory = Arc::new(Memory::of_size(64 * M));
        let executor = crate::taskq::Inline::default();
        let read = |bytes| Demanded::wait(&memory, 1, bytes, &executor);
        let first = read(FREE);
        assert_eq!(memory.demand.beyond(), 0);
        let second = read(16 * M);
        assert_eq!((most(&memory), memory.demand.beyond()), (FREE + 16 * M, 16 * M));
        drop((first, second));
        assert_eq!(memory.demand.0.lock().bytes, 0);
    }

    #[test]
    fn a_thread_waits_until_another_gives_its_bytes_back() {
        let memory = Arc::new(Memory::of_size(4 * M));
        let held = Demanded::wait(&memory, 1, FREE, &crate::taskq::Inline::default());
        let begun = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _read = Demanded::wait(&memory, 1, 2 * M, &crate::taskq::Inline::default());
                begun.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            while memory.demand.0.lock().waiting.is_empty() {
                std::hint::spin_loop();
            }
            assert!(!begun.load(std::sync::atomic::Ordering::SeqCst));
            drop(held);
        });
        assert!(begun.into_inner());
    }
}
