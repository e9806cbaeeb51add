//! Runs one [`ReadPlan`] over real leaves.
//!
//! Each step's reads are issued together; the last completion hands the plan to the executor, so
//! parity and checksums are never computed on a device's thread.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::taskq::Executor;
use crate::vdev::plan::{ChildResult, Outcome, ReadPlan, Step};
use crate::vdev::top::Top;

/// Tells whether candidate bytes are the block's.
pub type Judge = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;
/// Told once how the plan ended.
pub type OutcomeDone = Box<dyn FnOnce(Outcome) + Send>;

/// A plan on its way.
pub struct Drive {
    /// The top-level vdev that is read.
    pub top: Arc<Top>,
    /// Birth of the block, for leaves that lack some transaction groups.
    pub txg: u64,
    /// What to read next.
    pub plan: Box<dyn ReadPlan>,
    /// The block's checksum.
    pub judge: Judge,
    /// Where plans are resumed.
    pub executor: Arc<dyn Executor>,
    /// Told the end.
    pub done: OutcomeDone,
}

struct Gather {
    left: usize,
    results: Vec<ChildResult>,
    drive: Option<Box<Drive>>,
}

impl Drive {
    /// Starts; returns at once.
    pub fn start(mut self: Box<Self>) {
        let step = self.plan.start(&self.top.view(self.txg));
        self.follow(step);
    }

    fn resume(mut self: Box<Self>, results: Vec<ChildResult>) {
        let judge = Arc::clone(&self.judge);
        let step = self.plan.resume(&self.top.view(self.txg), results, &mut |bytes| judge(bytes));
        self.follow(step);
    }

    fn follow(self: Box<Self>, step: Step) {
        match step {
            Step::Done(outcome) => (self.done)(outcome),
            Step::Issue(reads) if reads.is_empty() => self.resume(Vec::new()),
            Step::Issue(reads) => {
                let top = Arc::clone(&self.top);
                let gather =
                    Gather { left: reads.len(), results: Vec::with_capacity(reads.len()), drive: Some(self) };
                let gather = Arc::new(Mutex::new(gather));
                for read in reads {
                    let gather = Arc::clone(&gather);
                    let done = Box::new(move |result: std::io::Result<_>| {
                        arrived(&gather, ChildResult { read, data: result.ok() });
                    });
                    top.read(read, done);
                }
            }
        }
    }
}

fn arrived(gather: &Mutex<Gather>, result: ChildResult) {
    let mut state = gather.lock();
    state.results.push(result);
    state.left -= 1;
    if state.left > 0 {
        return;
    }
    let results = std::mem::take(&mut state.results);
    let Some(drive) = state.drive.take() else { return };
    drop(state);
    let executor = Arc::clone(&drive.executor);
    executor.spawn(Box::new(move || drive.resume(results)));
}
