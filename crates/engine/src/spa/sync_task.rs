//! Sync tasks: changes of the MOS in syncing context, whose callers wait until they are on disk.
//!
//! Crash argument: a task runs in one txg, so that its changes reach the disk together. A task completes its checks before
//! it changes anything; where damage stops it later all the same, its txg fails and the pool is suspended in the state of
//! the txg before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Spa;
use crate::dmu::Tx;
use crate::dsl::write::Tasks;
use crate::error::{Error, Result};
use crate::taskq::Promise;

/// Work in syncing context. It must complete its checks before it changes anything.
pub(super) type Task = Box<dyn FnOnce(&Spa, &Tx) + Send>;

/// Tasks by txg.
#[derive(Default)]
pub(super) struct WaitingTasks(pub Mutex<BTreeMap<u64, Vec<Task>>>);

impl std::fmt::Debug for WaitingTasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiting({} groups)", self.0.lock().len())
    }
}

impl Spa {
    /// Runs `work` in syncing context and waits until its changes are on disk; returns its result.
    #[doc(alias = "dsl_sync_task")]
    pub fn sync_task<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Spa, &Tx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        task_in(self, &self.tasks, work)
    }

    /// As [`Spa::sync_task`], before anything else that its txg writes or frees.
    #[doc(alias = "dsl_early_sync_task")]
    pub(super) fn early_sync_task<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Spa, &Tx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        task_in(self, &self.early_tasks, work)
    }

    /// Runs `work` on the pool's datasets, as [`Spa::sync_task`], and then empties the datasets that it replaced.
    pub fn dsl_task<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tasks<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = self.sync_task(move |spa, tx| {
            let at = spa.datasets.at(tx, spa);
            work(&Tasks { at, datasets: &spa.datasets, pool: &spa.pool.name })
        });
        self.dsl().destroy_replaced();
        done
    }
}

/// Notes that a task failed. Half of a change must not be committed: where stored data that the task needs cannot be
/// read after its first change, its txg fails, which suspends the pool in the state of the txg before. Tasks check
/// everything else before they change anything.
fn broke_off(spa: &Spa, why: &Error, has_changed: bool) {
    if has_changed && why.is_damage() {
        let what = "a change that had begun cannot be completed, and none of it is made: export the pool with \
                    'zpool export -f' and import it again";
        let failure = Error::new(why.kind(), what).in_pool(&spa.pool.name).because(why.clone());
        spa.early_failure.lock().get_or_insert(failure);
    }
}

fn task_in<T: Send + 'static>(
    spa: &Spa,
    tasks: &WaitingTasks,
    work: impl FnOnce(&Spa, &Tx) -> Result<T> + Send + 'static,
) -> Result<T> {
    if let Some(why) = spa.txgs.suspended() {
        return Err(why);
    }
    let promise = Promise::default();
    let theirs = promise.clone();
    // Set by the task when it begins, or by its caller when that gives up; the first one decides.
    let taken = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&taken);
    let txg = {
        // Held, so that the txg can't be closed before the task is in it.
        let hold = spa.txgs.begin();
        let task: Task = Box::new(move |spa, tx| {
            if !begins.swap(true, Ordering::AcqRel) {
                let before = tx.changes();
                let done = work(spa, tx);
                if let Err(why) = &done {
                    broke_off(spa, why, tx.changes() != before);
                }
                theirs.set(done);
            }
        });
        tasks.0.lock().entry(hold.txg()).or_default().push(task);
        hold.txg()
    };
    if let Err(why) = spa.wait_synced(txg) {
        // A caller that gets this error may repeat the change, or make another: the first one must not
        // happen later.
        let what = "the change was begun: it is made when the pool goes on ('zpool clear'), and lost if the pool is \
                    exported by force";
        return match taken.swap(true, Ordering::AcqRel) {
            false => Err(why),
            true => Err(Error::new(crate::Kind::Suspended, what).in_pool(&spa.pool.name).because(why)),
        };
    }
    promise.wait(&*spa.pool.env.executor)
}
