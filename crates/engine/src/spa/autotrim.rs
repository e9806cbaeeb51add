//! `autotrim=on`: devices are trimmed soon after space was freed.
//!
//! The allocator records ranges that become free ([`crate::metaslab`]). Every `zfs_trim_txg_batch` txgs these
//! ranges are lent and trimmed on all leaves of their vdev, except ranges that are too short, and leaves that
//! `zpool trim` works on. Nothing of this is kept on disk: ranges left untrimmed by a crash or an export are
//! left to `zpool trim`.
//!
//! Source: `vdev_autotrim_thread`, OpenZFS 2.4.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ondisk::names::mos;
use parking_lot::Mutex;

use super::Spa;
use super::activity::{Activity, ActivityStep, Pace};
use super::subjects::FreeSpace;
use super::sweep::SweepKind;
use crate::error::Result;
use crate::memory::Limit;
use crate::taskq::Promise;
use crate::vdev::leaf::Leaf;
use crate::vdev::plan::DATA_START;
use crate::vdev::top::Top;
use crate::zap::Zap;

/// The property.
pub(super) const AUTOTRIM: &str = "autotrim";

/// The activity.
#[derive(Debug, Default)]
pub(super) struct Autotrim {
    spa: Mutex<Weak<Spa>>,
    on: AtomicBool,
    /// Its steps are started.
    runs: AtomicBool,
    /// The txg on disk when it last trimmed.
    last: AtomicU64,
    /// Held during a step.
    step: Mutex<()>,
}

impl Activity for Autotrim {
    fn step(&self) -> Result<ActivityStep> {
        let _held = self.step.lock();
        let spa = self.spa.lock().upgrade();
        let Some(spa) = spa.filter(|_| self.on.load(Ordering::Acquire)) else {
            self.runs.store(false, Ordering::Release);
            return Ok(ActivityStep::Done);
        };
        let (synced, batch) = (spa.txgs.synced(), spa.limits().get(Limit::TrimTxgBatch));
        if synced < self.last.load(Ordering::Relaxed).saturating_add(batch) {
            return Ok(ActivityStep::Later);
        }
        self.last.store(synced, Ordering::Relaxed);
        let tree = spa.pool.zio.tree();
        tree.tops()
            .filter(|top| !top.is_removed() && !spa.free_space().is_reshaped(top))
            .for_each(|top| trim(&spa, top));
        Ok(ActivityStep::Later)
    }

    fn pace(&self) -> Pace {
        Pace::ByStep
    }
}

/// Trims the freed ranges of a vdev.
fn trim(spa: &Spa, top: &Top) {
    let least = spa.limits().get(Limit::TrimExtentMin);
    let trims = |leaf: &Arc<Leaf>| leaf.device().is_some_and(|device| device.trim_support().trim);
    let leaves = top.leaves().filter(|leaf| leaf.is_writable() && trims(leaf));
    let leaves: Vec<(u32, Arc<Leaf>)> = leaves
        .filter(|leaf| spa.free_space().left(SweepKind::Trim, &[leaf.guid]).is_none())
        .filter_map(|leaf| Some((top.child_of(leaf.guid)?, leaf)))
        .collect();
    spa.space.with_freed(top.id, &mut |start, end| {
        for (child, leaf) in &leaves {
            for (from, to) in
                top.physical(*child, start, end).into_iter().filter(|(from, to)| to - from >= least)
            {
                let promise = Promise::default();
                let theirs = promise.clone();
                leaf.trim(from + DATA_START, to - from, false, Box::new(move |result| theirs.set(result)));
                // A device that refuses a trim stays in use without it.
                let _ = promise.wait(&*spa.pool.env.executor);
            }
        }
    });
}

impl FreeSpace<'_> {
    /// Whether freed space is trimmed, from now on.
    pub(super) fn set_autotrim(self, on: bool) {
        *self.spa.autotrim.spa.lock() = Weak::clone(&self.spa.me);
        self.spa.space.set_trims(on);
        self.spa.autotrim.on.store(on, Ordering::Release);
        if on && !self.spa.autotrim.runs.swap(true, Ordering::AcqRel) {
            self.spa.background().start_steps(&(Arc::clone(&self.spa.autotrim) as Arc<dyn Activity>));
        }
    }

    /// Waits for the step under way. The next one sees the vdev tree that is in force now.
    pub(super) fn settle_autotrim(self) {
        drop(self.spa.autotrim.step.lock());
    }

    /// The property as an earlier import left it.
    #[doc(alias = "vdev_autotrim_restart")]
    pub(super) fn load_autotrim(self) -> Result<()> {
        let view = self.spa.mos.view();
        let props = self.spa.directory()?.u64(mos::PROPS)?.filter(|number| *number != 0);
        let word = props.map(|props| Zap::open(&view.object(props)?)?.u64(AUTOTRIM)).transpose()?.flatten();
        self.set_autotrim(word.is_some_and(|word| word != 0));
        Ok(())
    }
}
