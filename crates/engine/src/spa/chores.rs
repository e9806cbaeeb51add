//! What goes on behind what users do: large files that were removed are freed by a thread of the pool, in bounded steps.
//!
//! Each step is a transaction or less, so the pool's other writers go on, and whoever ends a chore waits for one step at
//! most. Chores take turns. While the pool is suspended they rest.
//!
//! A pool without threads has no such thread: who adds a chore does it then, so that a simulation replays it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Spa;
use crate::error::Result;

/// How long the thread rests after a step that failed, and how often it asks whether the pool is still there.
const REST: Duration = Duration::from_millis(200);

/// Work in bounded steps.
pub trait Chore: Send + Sync + std::fmt::Debug {
    /// Does the next step; false when nothing is left. After an error the same step is tried again, later.
    fn step(&self) -> Result<bool>;
}

/// The chores of a pool.
#[derive(Debug, Default)]
pub struct Chores {
    waiting: Mutex<VecDeque<Weak<dyn Chore>>>,
    added: Condvar,
    /// Chores that have something left to do.
    count: AtomicUsize,
    ended: AtomicBool,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Chores {
    /// Whether something is still to be done.
    pub fn are_left(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    fn put(&self, chore: Weak<dyn Chore>) {
        self.waiting.lock().push_back(chore);
        self.added.notify_all();
    }

    /// The next chore that is still there; waits a moment for one.
    fn take(&self) -> Option<Arc<dyn Chore>> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            self.added.wait_for(&mut waiting, REST);
        }
        while let Some(chore) = waiting.pop_front() {
            match chore.upgrade() {
                Some(chore) => return Some(chore),
                None => drop(self.count.fetch_sub(1, Ordering::AcqRel)),
            }
        }
        None
    }

    /// Ends the thread; what is left to do is found at the next mount.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.added.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A thread that panicked has reported itself.
            let _ = thread.join();
        }
    }
}

impl Spa {
    /// Adds a chore. Without threads it is done at once: call it without locks or transactions.
    pub fn add_chore(&self, chore: &Arc<dyn Chore>) {
        self.chores.count.fetch_add(1, Ordering::AcqRel);
        if self.is_threaded() {
            return self.chores.put(Arc::downgrade(chore));
        }
        // What fails is tried again at the next mount.
        while chore.step().unwrap_or(false) {}
        self.chores.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// One step of a chore.
    fn do_chore(&self, chore: &Arc<dyn Chore>) {
        let step = match self.txgs.suspended() {
            Some(why) => Err(why),
            None => chore.step(),
        };
        match step {
            Ok(true) => self.chores.put(Arc::downgrade(chore)),
            Ok(false) => drop(self.chores.count.fetch_sub(1, Ordering::AcqRel)),
            Err(_) => {
                self.chores.put(Arc::downgrade(chore));
                self.txgs.wait_change(REST);
            }
        }
    }

    /// Starts the thread that does the chores. While it waits for some it keeps nothing of the pool.
    pub(super) fn start_chores(&self) -> Result<()> {
        let (weak, chores) = (Weak::clone(&self.me), Arc::clone(&self.chores));
        let work = move || {
            while !chores.ended.load(Ordering::Acquire) {
                let chore = chores.take();
                let Some(spa) = weak.upgrade() else { return };
                if let Some(chore) = chore {
                    spa.do_chore(&chore);
                }
            }
        };
        let name = format!("free-{}", self.pool.name);
        *self.chores.thread.lock() = Some(std::thread::Builder::new().name(name).spawn(work)?);
        Ok(())
    }
}
