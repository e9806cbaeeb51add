//! Runs one [`ReadPlan`] over real leaves.
//!
//! Each step's reads are issued together; the last completion hands the plan to the executor, so
//! parity and checksums are never computed on a device's thread. When all reads complete while they are
//! issued, the issuer continues the plan itself, unless it is deep in nested plans already: the completion of
//! a plan may start another one that also completes at once, and a hostile pool has chains of any length.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::taskq::{Executor, take_wait};
use crate::vdev::plan::{ChildRead, ChildResult, Depth, PlanOutcome, PlanStep, ReadPlan};
use crate::vdev::queue::LeafReadDone;
use crate::vdev::stats::IoClass;
use crate::vdev::top::Top;

/// Returns whether candidate bytes are the block's.
pub(crate) type Judge = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;
/// Called once with the outcome of the plan.
pub(crate) type OutcomeDone = Box<dyn FnOnce(PlanOutcome) + Send>;

/// A plan on its way.
pub(crate) struct Drive {
    /// The top-level vdev that is read.
    pub(crate) top: Arc<Top>,
    /// Birth of the block, for leaves that lack some txgs.
    pub(crate) txg: u64,
    /// The plan that returns the next reads.
    pub(crate) plan: Box<dyn ReadPlan>,
    /// The block's checksum.
    pub judge: Judge,
    /// The class of its reads; `None` for the ordinary ones.
    pub class: Option<IoClass>,
    /// Where plans are resumed.
    pub(crate) executor: Arc<dyn Executor>,
    /// Called at the end.
    pub(crate) done: OutcomeDone,
}

/// Maximum plans nested within one another on one thread.
const MAX_DEPTH: u32 = 4;

thread_local! {
    /// Plans nested within one another on this thread now.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

struct Gather {
    left: usize,
    /// The step's reads are still being issued.
    issuing: bool,
    results: Vec<ChildResult>,
    drive: Option<Box<Drive>>,
}

impl Drive {
    /// Starts; returns at once.
    pub(crate) fn start(mut self: Box<Self>) {
        let executor = Arc::clone(&self.executor);
        within_depth(&executor, move || {
            let step = self.plan.start(&self.top.view(self.txg));
            self.follow(step);
        });
    }

    fn resume(mut self: Box<Self>, results: Vec<ChildResult>) {
        let judge = Arc::clone(&self.judge);
        let step = self.plan.resume(&self.top.view(self.txg), results, &mut |bytes| judge(bytes));
        self.follow(step);
    }

    /// Hands the plan to the executor.
    fn hand_over(self: Box<Self>, results: Vec<ChildResult>) {
        let executor = Arc::clone(&self.executor);
        executor.spawn(Box::new(move || self.resume(results)));
    }

    fn follow(self: Box<Self>, step: PlanStep) {
        match step {
            PlanStep::Done(outcome) => {
                let Self { plan, done, .. } = *self;
                // The bytes of all columns, which would stay until the block is decompressed and delivered.
                drop(plan);
                done(outcome);
            }
            PlanStep::Issue(reads) if reads.is_empty() => self.resume(Vec::new()),
            PlanStep::Issue(reads) => {
                if reads.len() > 1 {
                    // Several devices are to work at once, not one after the other on this thread.
                    take_wait();
                }
                let (top, class) = (Arc::clone(&self.top), self.class);
                let below = Below {
                    txg: self.txg,
                    judge: Arc::clone(&self.judge),
                    class: self.class,
                    executor: Arc::clone(&self.executor),
                };
                let (left, results) = (reads.len(), Vec::with_capacity(reads.len()));
                let gather = Arc::new(Mutex::new(Gather { left, issuing: true, results, drive: Some(self) }));
                for read in reads {
                    let gather = Arc::clone(&gather);
                    let done = Box::new(move |result: std::io::Result<_>| {
                        arrived(&gather, ChildResult { read, data: result.ok() });
                    });
                    match top.nested(&read) {
                        Some(inner) => below.read(inner, &read, done),
                        None => top.read(read, class, done),
                    }
                }
                issued(&gather);
            }
        }
    }
}

/// State that reads of a nested vdev inherit from the plan above.
struct Below {
    txg: u64,
    judge: Judge,
    class: Option<IoClass>,
    executor: Arc<dyn Executor>,
}

impl Below {
    /// Reads a raidz or draid that is a side of a mirror. Its own bad copies are not reported.
    fn read(&self, top: Arc<Top>, read: &ChildRead, done: LeafReadDone) {
        let absent = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let Ok(plan) = top.plan(read.offset, read.len, self.txg, Depth::First) else {
            return done(Err(absent()));
        };
        let (judge, executor) = (Arc::clone(&self.judge), Arc::clone(&self.executor));
        let done = Box::new(move |outcome: PlanOutcome| done(outcome.data.ok_or_else(absent)));
        Box::new(Drive { top, txg: self.txg, plan, judge, class: self.class, executor, done }).start();
    }
}

fn arrived(gather: &Mutex<Gather>, result: ChildResult) {
    let mut state = gather.lock();
    state.results.push(result);
    state.left -= 1;
    let Some((drive, results)) = state.complete() else { return };
    drop(state);
    drive.hand_over(results);
}

/// All reads of a step are issued. When all have completed meanwhile, the plan continues right here: no other
/// thread has to be woken for bytes in memory.
fn issued(gather: &Mutex<Gather>) {
    let mut state = gather.lock();
    state.issuing = false;
    let Some((drive, results)) = state.complete() else { return };
    drop(state);
    let executor = Arc::clone(&drive.executor);
    within_depth(&executor, move || drive.resume(results));
}

/// Runs a job here, or lets the executor run it when too many are running within one another here.
fn within_depth(executor: &Arc<dyn Executor>, job: impl FnOnce() + Send + 'static) {
    let depth = DEPTH.get();
    if depth >= MAX_DEPTH {
        return executor.spawn(Box::new(job));
    }
    let _restored = Restore(depth);
    DEPTH.set(depth + 1);
    job();
}

/// Sets the depth back, also when a plan panics.
struct Restore(u32);

impl Drop for Restore {
    fn drop(&mut self) {
        DEPTH.set(self.0);
    }
}

impl Gather {
    /// The plan and its results, once everything is issued and has arrived.
    fn complete(&mut self) -> Option<(Box<Drive>, Vec<ChildResult>)> {
        if self.left > 0 || self.issuing {
            return None;
        }
        Some((self.drive.take()?, std::mem::take(&mut self.results)))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests of threads")]
    use nvpair::NvList;

    use super::*;
    use crate::taskq::{Promise, ThreadPool};
    use crate::vdev::config::VdevConfig;
    use crate::vdev::leaf::Leaf;
    use crate::vdev::top::{Side, VdevLayout};

    /// A disk whose device answers at once, in that it is absent.
    fn top() -> Arc<Top> {
        let mut list = NvList::new();
        list.add("type", "disk").add("id", 0u64).add("guid", 7u64);
        let config = VdevConfig::parse(&list).unwrap();
        Top::new(
            &config,
            VdevLayout::Mirror,
            &|guid| Some(Side::Leaf(Leaf::new(guid, String::new(), None))),
            None,
            true,
        )
    }

    fn chain(top: Arc<Top>, executor: Arc<dyn Executor>, left: u32, end: Promise<u32>) {
        let plan = top.plan(0, 512, 1, Depth::First).unwrap();
        let (top_, executor_) = (Arc::clone(&top), Arc::clone(&executor));
        let done = Box::new(move |_| match left {
            0 => end.set(DEPTH.get()),
            _ => chain(top_, executor_, left - 1, end),
        });
        Box::new(Drive { top, txg: 1, plan, judge: Arc::new(|_| true), class: None, executor, done }).start();
    }

    #[test]
    fn a_long_chain_of_plans_that_are_answered_at_once_takes_little_stack() {
        let executor: Arc<dyn Executor> = Arc::new(ThreadPool::new(1).unwrap());
        let end = Promise::default();
        let (theirs, executor_) = (end.clone(), Arc::clone(&executor));
        let small = std::thread::Builder::new().stack_size(256 << 10);
        small.spawn(move || chain(top(), executor_, 20_000, theirs)).unwrap();
        assert!(end.wait(&*executor) <= MAX_DEPTH);
    }
}
