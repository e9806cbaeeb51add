//! `zpool initialize` and `zpool trim`: sweeps over all free space of a leaf.
//!
//! A *sweep* walks over its top-level vdev's free ranges in the order of their offsets. Each range is lent by the allocator
//! ([`crate::metaslab`]), so no block is allocated there meanwhile; the part of it that stands on the leaf
//! ([`crate::vdev::physical`]) is filled with a pattern, or trimmed. Space that is freed behind the sweep is not met.
//!
//! States: none → active ⇄ suspended → complete or canceled; `uninit` takes the state of an initialization away. They
//! stand in the leaf's ZAP, with the offset on the device (labels included) up to which the leaf is done, as OpenZFS keeps
//! them: either side continues what the other began. The offset in memory follows each range; every txg
//! writes new offsets to the ZAP. Why power may be lost at any moment: the work since the last txg is
//! repeated; nothing but free space is touched, which no state that a pool goes back to by itself refers to.
//!
//! An import continues active sweeps. One whose leaf cannot be written waits for it, and is canceled when it is faulted.
//!
//! Differs from OpenZFS: a resumed sweep begins at the stored offset, where OpenZFS skips further bytes of a
//! label's size.

mod commands;
mod work;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ondisk::names::vdev_leaf;
use parking_lot::Mutex;

use super::Spa;
use super::WaitActivity;
use super::activity::{Activity, ActivityStep, Due, Pace, SyncPoint};
use super::layout::config::{LEAF_ZAP, find};
use super::subjects::FreeSpace;
use crate::dmu::Tx;
use crate::dsl::write::{MosTx, MosView};
use crate::error::Result;
use crate::vdev::tree::Tree;

use commands::supports;
pub use commands::{SweepCommand, SweepRefusal, TrimOptions};

/// The kind of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SweepKind {
    /// It writes a pattern.
    Initialize,
    /// Reports unused space to the device.
    Trim,
}

impl SweepKind {
    pub(super) const ALL: [Self; 2] = [Self::Initialize, Self::Trim];

    /// Its word in the history.
    fn word(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Trim => "trim",
        }
    }

    /// Names in the leaf's ZAP: state, offset, time.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Initialize => [
                vdev_leaf::INITIALIZE_STATE,
                vdev_leaf::INITIALIZE_LAST_OFFSET,
                vdev_leaf::INITIALIZE_ACTION_TIME,
            ],
            Self::Trim => [vdev_leaf::TRIM_STATE, vdev_leaf::TRIM_LAST_OFFSET, vdev_leaf::TRIM_ACTION_TIME],
        }
    }
}

/// How a sweep is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[doc(alias("vdev_initializing_state_t", "vdev_trim_state_t"))]
pub(crate) enum SweepState {
    /// There was none.
    #[default]
    None,
    /// It is under way.
    Active,
    /// It was ended early.
    Canceled,
    /// It is to be continued by a command.
    Suspended,
    /// It has ended.
    Complete,
}

impl SweepState {
    fn number(self) -> u64 {
        self as u64
    }

    fn of(number: u64) -> Self {
        match number {
            1 => Self::Active,
            2 => Self::Canceled,
            3 => Self::Suspended,
            4 => Self::Complete,
            _ => Self::None,
        }
    }
}

/// State of a sweep.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    state: SweepState,
    /// The leaf is done up to this byte of the device, labels included; 0: nothing is.
    offset: u64,
    /// Seconds since 1970 of the last start or end.
    time: u64,
    options: TrimOptions,
    /// Position from which the walk continues, in the address space of the top-level vdev.
    cursor: u64,
    /// The ZAP does not have it yet.
    changed: bool,
    /// Bytes done since `since`, for the rate.
    bytes: u64,
    since: Option<Duration>,
}

/// The sweep of a leaf.
#[derive(Debug)]
pub(super) struct Sweep {
    spa: Weak<Spa>,
    kind: SweepKind,
    /// Guid of the leaf, which changes when the leaf becomes a top-level vdev.
    leaf: AtomicU64,
    progress: Mutex<Progress>,
    /// Its steps are started.
    runs: AtomicBool,
    /// Held during a step.
    step: Mutex<()>,
}

/// The sweeps of a pool.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    all: Mutex<BTreeMap<(SweepKind, u64), Arc<Sweep>>>,
    /// Sweeps whose leaf has left the tree; the last step of one may still be under way.
    left: Mutex<Vec<Arc<Sweep>>>,
}

impl Sweeps {
    fn get(&self, kind: SweepKind, leaf: u64) -> Option<Arc<Sweep>> {
        self.all.lock().get(&(kind, leaf)).cloned()
    }

    fn list(&self) -> Vec<Arc<Sweep>> {
        self.all.lock().values().map(Arc::clone).collect()
    }

    fn has(&self, sweep: &Sweep) -> bool {
        self.all.lock().values().any(|known| std::ptr::eq(Arc::as_ptr(known), sweep))
    }

    /// The vdev tree has changed (syncing context): sweeps follow leaves that have another guid now, by the new guid, and end
    /// where the leaf is gone. A hot spare that comes back begins anew.
    #[doc(alias("vdev_initialize_stop_wait", "vdev_trim_stop_wait"))]
    pub(super) fn follow(&self, tree: &Tree, renamed: &HashMap<u64, u64>) {
        let mut all = self.all.lock();
        for (new, old) in renamed.iter().filter(|(new, old)| new != old) {
            for kind in SweepKind::ALL {
                if let Some(sweep) = all.remove(&(kind, *old)) {
                    sweep.leaf.store(*new, Ordering::Release);
                    all.insert((kind, *new), sweep);
                }
            }
        }
        let mut left = self.left.lock();
        all.retain(|(_, leaf), sweep| {
            let is_there = tree.leaf(*leaf).is_some();
            if !is_there {
                sweep.progress.lock().state = SweepState::Canceled;
                left.push(Arc::clone(sweep));
            }
            is_there
        });
    }

    /// Waits for the steps under way on leaves that have left the tree: their devices are not touched any more. Not in
    /// syncing context, which the end of a step may wait for.
    pub(super) fn settle(&self) {
        let left = std::mem::take(&mut *self.left.lock());
        left.iter().for_each(|sweep| drop(sweep.step.lock()));
    }
}

impl Activity for Sweeps {
    fn is_due(&self, _: &Spa) -> Due {
        let changed = |sweep: &Arc<Sweep>| sweep.progress.lock().changed;
        if self.all.lock().values().any(changed) { Due::Soon } else { Due::No }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if moment != SyncPoint::Last {
            return Ok(());
        }
        let at = spa.datasets.at(tx, spa);
        self.list()
            .iter()
            .filter(|sweep| sweep.progress.lock().changed)
            .try_for_each(|sweep| sweep.store(&at, spa))
    }

    fn left(&self, spa: &Spa, work: WaitActivity) -> Result<Option<u64>> {
        Ok(match work {
            WaitActivity::Initialize => spa.free_space().left(SweepKind::Initialize, &[]),
            WaitActivity::Trim => spa.free_space().left(SweepKind::Trim, &[]),
            _ => None,
        })
    }
}

impl Activity for Sweep {
    fn step(&self) -> Result<ActivityStep> {
        match self.spa.upgrade() {
            Some(spa) => self.next(&spa),
            None => Ok(ActivityStep::Done),
        }
    }

    fn pace(&self) -> Pace {
        Pace::ByStep
    }
}

impl Sweep {
    fn leaf(&self) -> u64 {
        self.leaf.load(Ordering::Acquire)
    }

    /// Writes changed state to the leaf's ZAP.
    fn store(&self, at: &MosTx<'_>, spa: &Spa) -> Result<()> {
        let progress = {
            let mut progress = self.progress.lock();
            progress.changed = false;
            *progress
        };
        let Some(zap) = leaf_zap(spa, self.leaf()) else { return Ok(()) };
        let [state, offset, time] = self.kind.names();
        if progress.state == SweepState::None {
            return [state, offset, time].iter().try_for_each(|name| match at.zap_word(zap, *name)? {
                Some(_) => at.zap_remove(zap, name),
                None => Ok(()),
            });
        }
        at.zap_set(zap, state, progress.state.number())?;
        at.zap_set(zap, offset, progress.offset)?;
        at.zap_set(zap, time, progress.time)?;
        if self.kind == SweepKind::Trim {
            at.zap_set(zap, vdev_leaf::TRIM_RATE, progress.options.rate)?;
            at.zap_set(zap, vdev_leaf::TRIM_PARTIAL, u64::from(progress.options.partial))?;
            at.zap_set(zap, vdev_leaf::TRIM_SECURE, u64::from(progress.options.secure))?;
        }
        Ok(())
    }

    fn load(view: &MosView<'_>, zap: u64, kind: SweepKind) -> Result<Progress> {
        let word = |name: &str| Ok::<u64, crate::error::Error>(view.zap_word(zap, name)?.unwrap_or(0));
        let [state, offset, time] = kind.names();
        let options = match kind {
            SweepKind::Initialize => TrimOptions::default(),
            SweepKind::Trim => TrimOptions {
                rate: word(vdev_leaf::TRIM_RATE)?,
                partial: word(vdev_leaf::TRIM_PARTIAL)? != 0,
                secure: word(vdev_leaf::TRIM_SECURE)? != 0,
            },
        };
        let (state, offset, time) = (SweepState::of(word(state)?), word(offset)?, word(time)?);
        Ok(Progress { state, offset, time, options, ..Progress::default() })
    }

    fn start(self: &Arc<Self>, spa: &Spa) {
        if !self.runs.swap(true, Ordering::AcqRel) {
            spa.background().start_steps(&(Arc::clone(self) as Arc<dyn Activity>));
        }
    }
}

impl FreeSpace<'_> {
    /// The sweep of a leaf, read from its ZAP when it is not in memory yet. `None` for a leaf without a ZAP.
    fn sweep_of(self, kind: SweepKind, leaf: u64) -> Result<Option<Arc<Sweep>>> {
        if let Some(known) = self.spa.sweeps.get(kind, leaf) {
            return Ok(Some(known));
        }
        let Some(zap) = leaf_zap(self.spa, leaf) else { return Ok(None) };
        let progress = Sweep::load(&self.spa.datasets.view(), zap, kind)?;
        let sweep = Arc::new(Sweep {
            spa: Weak::clone(&self.spa.me),
            kind,
            leaf: AtomicU64::new(leaf),
            progress: Mutex::new(progress),
            runs: AtomicBool::new(false),
            step: Mutex::default(),
        });
        Ok(Some(Arc::clone(self.spa.sweeps.all.lock().entry((kind, leaf)).or_insert(sweep))))
    }

    /// Continues the sweeps that an earlier import began.
    #[doc(alias("vdev_initialize_restart", "vdev_trim_restart"))]
    pub(super) fn load(self) -> Result<()> {
        let leaves: Vec<u64> = self.spa.pool.zio.tree().leaves().map(|leaf| leaf.guid).collect();
        for leaf in leaves {
            for kind in SweepKind::ALL {
                let sweep = self.sweep_of(kind, leaf)?;
                let Some(sweep) = sweep else { continue };
                let mut progress = sweep.progress.lock();
                if progress.state != SweepState::Active {
                    continue;
                }
                let leaf = self.spa.pool.zio.tree().leaf(leaf).cloned();
                if progress.options.secure && !leaf.is_some_and(|leaf| supports(&leaf, progress.options)) {
                    // The device can't erase, or not here: on disk it stays active, for a system where it can.
                    progress.state = SweepState::Suspended;
                    continue;
                }
                drop(progress);
                sweep.start(self.spa);
            }
        }
        Ok(())
    }

    /// State as a number, offset where it goes on and time of the last command of a leaf's sweep, as they are in memory; `None`
    /// when only the leaf's ZAP has them.
    pub fn progress(self, kind: SweepKind, leaf: u64) -> Option<[u64; 3]> {
        let sweep = self.spa.sweeps.get(kind, leaf)?;
        let progress = *sweep.progress.lock();
        Some([progress.state.number(), progress.offset, progress.time])
    }

    /// Bytes that the sweeps under way of a kind have still to walk over, of these leaves or of all; `None` when none is under
    /// way.
    pub fn left(self, kind: SweepKind, leaves: &[u64]) -> Option<u64> {
        let tree = self.spa.pool.zio.tree();
        let active = self.spa.sweeps.list().into_iter().filter(|sweep| {
            let counts = leaves.is_empty() || leaves.contains(&sweep.leaf());
            sweep.kind == kind && counts && sweep.progress.lock().state == SweepState::Active
        });
        let left = active.map(|sweep| {
            let size = tree.leaf(sweep.leaf()).map_or(0, |leaf| leaf.size());
            size.saturating_sub(sweep.progress.lock().offset)
        });
        left.reduce(u64::saturating_add)
    }
}

fn leaf_zap(spa: &Spa, leaf: u64) -> Option<u64> {
    let config = spa.config.lock();
    find(config.root(), leaf)?.u64(LEAF_ZAP).filter(|zap| *zap != 0)
}
