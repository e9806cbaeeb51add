//! Issues many writes or flushes of leaves at once and waits for them; the sync actor uses it for labels.

use std::sync::Arc;

use parking_lot::Mutex;
use stdx::Buf;

use super::leaf::Leaf;
use crate::taskq::{Executor, Promise};

/// A write of one leaf.
pub(super) struct LeafWrite {
    pub(crate) leaf: Arc<Leaf>,
    /// From the start of the device.
    pub(crate) offset: u64,
    pub(crate) data: Buf,
}

impl LeafWrite {
    /// The same once more.
    pub(crate) fn again(&self) -> Self {
        Self { leaf: Arc::clone(&self.leaf), offset: self.offset, data: self.data.clone() }
    }
}

struct Waiting {
    left: usize,
    good: Vec<bool>,
}

/// Issues all writes and waits; which of them succeeded, in their order.
pub(super) fn write_all(executor: &dyn Executor, writes: Vec<LeafWrite>) -> Vec<bool> {
    all(executor, writes, |write, done| write.leaf.write(write.offset, write.data, done))
}

/// Flushes all leaves and waits; returns which flushes succeeded, in their order. `next` is the next txg to
/// be on disk.
pub(super) fn flush_all(executor: &dyn Executor, leaves: &[Arc<Leaf>], next: u64) -> Vec<bool> {
    all(executor, leaves.to_vec(), |leaf, done| leaf.flush(next, done))
}

fn all<T>(executor: &dyn Executor, items: Vec<T>, start: impl Fn(T, blkdev::WriteDone)) -> Vec<bool> {
    // One more than there are items: the end can't come before all are started.
    let waiting = Arc::new(Mutex::new(Waiting { left: items.len() + 1, good: vec![false; items.len()] }));
    let promise = Promise::default();
    for (number, item) in items.into_iter().enumerate() {
        let (waiting, promise) = (Arc::clone(&waiting), promise.clone());
        start(
            item,
            Box::new(move |result| arrived(&waiting, &promise, Some(number).filter(|_| result.is_ok()))),
        );
    }
    arrived(&waiting, &promise.clone(), None);
    promise.wait(executor)
}

fn arrived(waiting: &Mutex<Waiting>, promise: &Promise<Vec<bool>>, good: Option<usize>) {
    let mut state = waiting.lock();
    state.left -= 1;
    if let Some(slot) = good.and_then(|number| state.good.get_mut(number)) {
        *slot = true;
    }
    if state.left == 0 {
        promise.set(std::mem::take(&mut state.good));
    }
}
