//! Background activities of a pool, such as freeing, growth, resilver and scrub.
//!
//! An activity has up to two sides, and each method has a default that does nothing:
//!
//! - [`Activity::sync`] runs in syncing context of every txg, at each [`SyncPoint`]. It changes the MOS and the
//!   configuration, in a bounded amount of work. [`Activity::is_due`] returns whether a txg is needed for it
//!   although nothing else changes.
//! - [`Activity::step`] runs in open context on a thread of the pool ([`Background::start_steps`]). It may begin transactions, run
//!   sync tasks and wait for devices. A step is bounded: pausing, canceling and export wait for the step under way.
//!
//! Activities that live as long as the pool are fields of [`Spa`] (their state is theirs alone) and are listed once, in
//! [`Activities::new`]; `Spa::step`, `sync_txg` and `has_changes` ask the list and name none. Others, such as the drain of a
//! file system's delete queue, only have steps; the queue holds them weakly.
//!
//! - [`Activity::left`] returns the remaining work, for `zpool wait`, and [`Activity::command`] pauses or cancels it. Both are
//!   asked through the list, too ([`Background::left`], [`Background::command`]).
//!
//! A command changes the activity's state, on disk with a sync task first and in memory in that task, and the next `sync` or
//! `step` sees it. `left` reads the same state.
//!
//! To add one: a struct with interior state, `impl Activity`, a field of `Spa`, a line in `Spa::new`; if the state is kept
//! on disk, a call at import that loads it and calls [`Background::start_steps`] where steps are left.
//!
//! Crash safety: the progress of an activity becomes durable with a txg. `sync` stores progress in the same
//! txg as the work that it describes. `step` may only do device writes that are harmless without their record
//! (to free space, repairs, copies that nothing refers to), and publishes its progress through a later
//! `sync`.
//!
//! Lock order: an activity's locks are leaf locks and are not held while it waits for a txg or a device.
//!
//! A pool without threads (tests, the simulator) does steps when its caller asks: [`Background::start_steps`] then runs
//! [`Pace::AtOnce`] activities to their end, others a step at a time by [`Background::run_steps`], so that a seed replays them.
//!
//! Differs from OpenZFS: there each job is a zthr, an async task bit or a thread per vdev.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Spa;
use super::subjects::Background;
use super::wait_activity::{ActivityCommand, WaitActivity};
use crate::dmu::Tx;
use crate::error::{Error, Result};
use crate::taskq::in_background;

/// How long a thread rests after a step that failed, and how often it looks whether the pool is still there.
const REST: Duration = Duration::from_millis(200);

/// Threads of a pool that do steps, at most: activities that wait for devices do not hold up each other.
const THREADS: usize = 4;

/// How soon an activity needs a txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// It needs none.
    No,
    /// With the next txg that a timeout closes.
    Soon,
    /// At once.
    Now,
}

/// When `sync` is called in a txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPoint {
    /// Datasets are written, sync tasks have not run. Readers of the MOS are kept out.
    BeforeTasks,
    /// Sync tasks have run. Readers of the MOS are kept out still.
    AfterTasks,
    /// Readers of the MOS may look again; long work belongs here. Next come the MOS, the space maps and the uberblock.
    Last,
}

/// Expected duration of an activity's steps; determines when they run without threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// They end soon, and give space back: [`Background::start_steps`] does all before it returns.
    AtOnce,
    /// They may take days: [`Background::run_steps`] does one.
    ByStep,
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivityStep {
    /// Another step can be done at once.
    More,
    /// The next step should wait a moment.
    Later,
    /// There is nothing to do before [`Background::start_steps`] is called again.
    Done,
}

/// Work that a pool does in the background, in bounded parts.
pub trait Activity: Send + Sync + std::fmt::Debug {
    /// Whether `sync` has work that needs a txg. Called often, by the sync thread: it must be cheap and must not wait.
    fn is_due(&self, _: &Spa) -> Due {
        Due::No
    }

    /// Does a bounded part in syncing context.
    ///
    /// # Errors
    /// Only errors that must suspend the pool: the MOS cannot be read or written.
    fn sync(&self, _: &Spa, _: &Tx, _: SyncPoint) -> Result<()> {
        Ok(())
    }

    /// Does a bounded part in open context. No two threads do steps of one activity at once.
    ///
    /// # Errors
    /// Why the step failed; it is tried again after a rest.
    fn step(&self) -> Result<ActivityStep> {
        Ok(ActivityStep::Done)
    }

    /// Bytes that the work under way has left; `None` when it is not under way, or is another activity's.
    ///
    /// # Errors
    /// When its state cannot be read.
    fn left(&self, _: &Spa, _: WaitActivity) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Pauses or cancels the work under way, and waits until that is on disk; `None` when the work is another activity's, or
    /// has no such command. Called in open context.
    ///
    /// # Errors
    /// `NotFound` when it is not under way, `Busy` when it is paused already.
    fn command(&self, _: &Spa, _: WaitActivity, _: ActivityCommand) -> Option<Result<()>> {
        None
    }

    /// Expected duration of its steps.
    fn pace(&self) -> Pace {
        Pace::AtOnce
    }
}

/// The activities of a pool.
#[derive(Debug)]
pub(super) struct Activities {
    /// Activities that exist as long as the pool, in the order in which `sync` calls them.
    all: Vec<Arc<dyn Activity>>,
    steps: Arc<Steps>,
}

/// An activity that waits for its turn.
#[derive(Debug)]
struct Waiting {
    pace: Pace,
    activity: Weak<dyn Activity>,
}

/// Activities with steps to do, in the order of their turns.
#[derive(Debug, Default)]
struct Steps {
    waiting: Mutex<VecDeque<Waiting>>,
    added: Condvar,
    /// Started and not done.
    count: AtomicUsize,
    /// The ones of [`Pace::AtOnce`] among `count`.
    urgent: AtomicUsize,
    /// Threads that wait for an activity.
    idle: AtomicUsize,
    ended: AtomicBool,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Steps {
    fn put(&self, activity: &Arc<dyn Activity>) {
        let waiting = Waiting { pace: activity.pace(), activity: Arc::downgrade(activity) };
        self.waiting.lock().push_back(waiting);
        self.added.notify_one();
    }

    /// The next activity that still exists.
    fn pop(&self, waiting: &mut VecDeque<Waiting>) -> Option<Arc<dyn Activity>> {
        while let Some(Waiting { pace, activity }) = waiting.pop_front() {
            match activity.upgrade() {
                Some(activity) => return Some(activity),
                None => self.done(pace),
            }
        }
        None
    }

    /// As [`Steps::pop`], after a short wait for one.
    fn take(&self) -> Option<Arc<dyn Activity>> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            self.idle.fetch_add(1, Ordering::AcqRel);
            self.added.wait_for(&mut waiting, REST);
            self.idle.fetch_sub(1, Ordering::AcqRel);
        }
        self.pop(&mut waiting)
    }

    fn started(&self, pace: Pace) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.urgent.fetch_add(usize::from(pace == Pace::AtOnce), Ordering::AcqRel);
    }

    fn done(&self, pace: Pace) {
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.urgent.fetch_sub(usize::from(pace == Pace::AtOnce), Ordering::AcqRel);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Activities {
    pub(super) fn new(all: Vec<Arc<dyn Activity>>) -> Self {
        Self { all, steps: Arc::default() }
    }

    /// Whether activities are under way that end soon: callers that wait for space may wait for them.
    pub(super) fn are_draining(&self) -> bool {
        self.steps.urgent.load(Ordering::Acquire) > 0
    }

    /// Whether steps are left to do.
    pub(super) fn have_steps(&self) -> bool {
        self.steps.count.load(Ordering::Acquire) > 0
    }

    /// Has threads end after their step, without waiting for them.
    pub(super) fn dismiss(&self) {
        self.steps.ended.store(true, Ordering::Release);
        self.steps.added.notify_all();
    }

    /// Ends the threads after the steps under way; remaining work is found again at the next import or mount.
    pub(super) fn end(&self) {
        self.dismiss();
        let threads = std::mem::take(&mut *self.steps.threads.lock());
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                // A thread that panicked has reported itself.
                let _ = thread.join();
            }
        }
    }
}

impl Background<'_> {
    /// How soon a txg is needed for activities.
    pub(super) fn due(self) -> Due {
        self.spa.activities.all.iter().map(|activity| activity.is_due(self.spa)).max().unwrap_or(Due::No)
    }

    /// Bytes that the work under way has left; `None` when it is not under way. 0 stands for work whose amount is not known.
    ///
    /// # Errors
    /// When its state cannot be read.
    pub fn left(self, work: WaitActivity) -> Result<Option<u64>> {
        let left =
            self.spa.activities.all.iter().filter_map(|activity| activity.left(self.spa, work).transpose());
        left.reduce(|sum, left| Ok(sum?.saturating_add(left?))).transpose()
    }

    /// Pauses or cancels the work under way; waits until that is on disk.
    ///
    /// # Errors
    /// `NotFound` when it is not under way, `Busy` when it is paused already, `Unsupported` when it cannot be stopped so.
    pub fn command(self, work: WaitActivity, command: ActivityCommand) -> Result<()> {
        let done =
            self.spa.activities.all.iter().find_map(|activity| activity.command(self.spa, work, command));
        done.unwrap_or_else(|| Err(Error::unsupported(format!("{} has no such command", work.name()))))
    }

    /// Calls all activities in syncing context.
    pub(super) fn sync(self, tx: &Tx, moment: SyncPoint) -> Result<()> {
        in_background(|| {
            self.spa.activities.all.iter().try_for_each(|activity| activity.sync(self.spa, tx, moment))
        })
    }

    /// Has a thread do the activity's steps until one returns [`ActivityStep::Done`]. To be called once for each such run.
    ///
    /// Call it without locks or transactions: without threads an activity of [`Pace::AtOnce`] is done here.
    pub fn start_steps(self, activity: &Arc<dyn Activity>) {
        let steps = &self.spa.activities.steps;
        steps.started(activity.pace());
        if self.spa.is_threaded() {
            steps.put(activity);
            staff(self.spa);
        } else if activity.pace() == Pace::ByStep {
            steps.put(activity);
        } else {
            // A step that fails is tried again after the next mount or import.
            while activity.step().is_ok_and(|step| step == ActivityStep::More) {}
            steps.done(activity.pace());
        }
    }

    /// Does one step of each started activity, for a pool without threads; whether steps are left.
    pub fn run_steps(self) -> bool {
        let steps = &self.spa.activities.steps;
        let turns = steps.waiting.lock().len();
        for _ in 0..turns {
            let next = steps.pop(&mut steps.waiting.lock());
            if let Some(activity) = next {
                do_step(self.spa, &activity);
            }
        }
        self.spa.activities.have_steps()
    }

    /// Does steps again after [`Activities::end`]: the pool was not closed.
    pub(super) fn resume(self) {
        self.spa.activities.steps.ended.store(false, Ordering::Release);
        if self.spa.is_threaded() {
            self.start();
        }
    }

    /// Starts threads for the steps that were started before the pool had threads.
    pub(super) fn start(self) {
        let waiting = self.spa.activities.steps.waiting.lock().len();
        (0..waiting.clamp(1, THREADS)).for_each(|_| staff(self.spa));
    }
}

/// One step; returns whether the next one is to wait a moment.
fn do_step(spa: &Spa, activity: &Arc<dyn Activity>) -> bool {
    let step = match spa.txgs.suspended() {
        Some(why) => Err(why),
        None => in_background(|| activity.step()),
    };
    match step {
        Ok(ActivityStep::Done) => spa.activities.steps.done(activity.pace()),
        _ => spa.activities.steps.put(activity),
    }
    !matches!(step, Ok(ActivityStep::More | ActivityStep::Done))
}

/// Starts a thread when none waits for an activity. A thread that waits holds no reference to the pool.
#[expect(clippy::disallowed_methods, reason = "simulations have none: they call Spa::step")]
fn staff(spa: &Spa) {
    let steps = Arc::clone(&spa.activities.steps);
    let mut threads = spa.activities.steps.threads.lock();
    if steps.has_ended() || steps.idle.load(Ordering::Acquire) > 0 || threads.len() >= THREADS {
        return;
    }
    let (weak, txgs) = (Weak::clone(&spa.me), Arc::clone(&spa.txgs));
    let work = move || {
        while !steps.has_ended() {
            let activity = steps.take();
            let Some(spa) = weak.upgrade() else { return };
            let rests = activity.is_some_and(|activity| do_step(&spa, &activity));
            // References of threads that rest in turns would keep a pool open that nothing else uses.
            drop(spa);
            if rests {
                txgs.wait_change(REST);
            }
        }
    };
    // Without another thread those that run do the steps; the first one is started with the pool.
    let name = format!("work-{}", spa.pool.name);
    if let Ok(thread) = std::thread::Builder::new().name(name).spawn(work) {
        threads.push(thread);
    }
}
