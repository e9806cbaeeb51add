//! Going on with a pool that was suspended.
//!
//! Requests that devices failed wait in the write path ([`crate::zio::suspend`]) while the syncing txg stands
//! still. Steps of a resume:
//!
//! 1. Leaves that don't work are opened anew. A leaf whose labels have a later state was used by another
//!    host: it is not taken (the caller of [`Suspending::resume`], which opens the devices, checks that).
//! 2. All writes of the syncing txg so far are read again: disks that were away may have lost writes that
//!    were not durable yet. Where redundancy has the block, the leaf's DTL gets that txg; where nothing has
//!    it, the pool stays suspended. Blocks that a resilver restored are not read; another resilver follows.
//! 3. Waiting requests are reissued, and then the labels are written as always.
//!
//! Crash argument: until step 3 ends nothing on disk refers to the txg, as in [`super::sync`].
//!
//! Differs from OpenZFS: step 2. There, a disk that comes back is believed to have kept all that it acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use zcommon::health::Health;
use zcommon::vdev::{VdevAux, VdevState};

use super::Spa;
use super::devices::Reopened;
use super::subjects::Suspending;
use crate::error::{Error, Kind, Result};
use crate::vdev::config::AllocBias;
use crate::vdev::leaf::Leaf;
use crate::vdev::probe::probe;
use crate::vdev::top::Top;
use crate::zio::suspend::Cure;

/// Advice for a pool that can't be resumed.
const LEAVE: &str = "export it with -f and import it again";

impl Suspending<'_> {
    /// From now on requests that devices fail wait for [`Suspending::resume`]. Only where another thread than the
    /// writer can call that.
    pub(super) fn hold_what_fails(self) {
        let me = self.spa.me.clone();
        let sink = Arc::new(move |why: &Error| {
            if let Some(spa) = me.upgrade() {
                spa.suspending().suspend(why.clone());
            }
        });
        self.spa.pool.zio.suspended.open(sink);
    }

    /// Resumes a suspended pool, on devices that `reopen` returns for the guids of leaves that don't work.
    /// Does nothing when the pool is not suspended. When devices still fail it is suspended again soon.
    ///
    /// # Errors
    /// `Suspended`, with the reason, when it can't be resumed. A forced export and an import then return to
    /// the last synced txg.
    #[doc(alias("spa_clear", "zio_resume"))]
    pub fn resume(self, reopen: &dyn Fn(u64) -> Reopened) -> Result<()> {
        if !self.spa.is_suspended() {
            return Ok(());
        }
        let cannot = |why: &str, advice: &str| {
            let what = format!("the pool can't go on: {why}; {advice}");
            Error::new(Kind::Suspended, what).in_pool(&self.spa.pool.name)
        };
        if self.spa.multihost().check_claim().is_err() {
            let why = "multihost is on, and another machine may have imported it since its last heartbeat";
            return Err(cannot(why, LEAVE));
        }
        if self.spa.broken.load(Ordering::Acquire) {
            return Err(cannot("a transaction group was left half written", LEAVE));
        }
        if self.spa.txgs.is_torn() {
            return Err(cannot("an error of this program broke off a change halfway", LEAVE));
        }
        let tree = self.spa.pool.zio.tree();
        let mut leaves: Vec<&Arc<Leaf>> =
            tree.leaves().filter(|leaf| tree.top_of(leaf.guid).is_some()).collect();
        leaves.sort_unstable_by_key(|leaf| leaf.guid);
        leaves.into_iter().for_each(|leaf| revive(leaf, reopen));
        // Holes and indirect vdevs have no devices that could be missing.
        let has_devices = |top: &Top| top.leaves().next().is_some();
        let is_missing =
            |top: &&Arc<Top>| top.bias != AllocBias::Log && has_devices(top) && !top.is_readable();
        if let Some(top) = tree.tops().find(is_missing) {
            let advice = "bring them back and clear it again";
            return Err(cannot("devices are still missing", advice).on_vdev(&top.name));
        }
        let suspects: Vec<Arc<Leaf>> = tree.leaves().map(Arc::clone).collect();
        if let Err(e) = self.spa.pool.zio.check_written(u64::MAX, &suspects, Cure::Note) {
            return Err(cannot("devices have lost what they had taken", LEAVE).because(e));
        }
        // A disk that was away may have lost blocks that a resilver had restored, too.
        suspects.iter().for_each(|leaf| leaf.doubt_restored(self.spa.txgs.synced().saturating_add(1)));
        self.spa.pool.zio.suspended.resume(|| {
            self.spa.txgs.resume();
            self.forget();
        });
        Ok(())
    }

    /// Fails requests that wait for a suspended pool: nothing is written any more, and activities make no more steps.
    pub fn abandon(self) {
        self.spa.broken.store(true, Ordering::Release);
        self.spa.activities.dismiss();
        self.spa.pool.zio.suspended.close();
    }

    /// Ends a pool that is not taken into use after all: nothing is written any more, and its threads end.
    pub fn give_up(self) {
        self.abandon();
        self.spa.stop_thread();
    }
}

impl Spa {
    /// Whether the pool is suspended.
    pub fn is_suspended(&self) -> bool {
        self.txgs.suspended().is_some()
    }
}

/// Tries a leaf that should work, and opens it anew if it does not.
fn revive(leaf: &Leaf, reopen: &dyn Fn(u64) -> Reopened) {
    let before = leaf.health();
    let is_lost = matches!(before.state, VdevState::CantOpen | VdevState::Removed);
    if !is_lost && (!before.is_readable() || probe(leaf).is_fine()) {
        return;
    }
    // A device must not be open twice.
    leaf.set_health(Health::cant_open(VdevAux::OpenFailed));
    match reopen(leaf.guid) {
        Ok(_) if leaf.inject.refuses_open() => {}
        Ok(device) => leaf.open(device, if is_lost { Health::ONLINE } else { before }),
        Err(health) => leaf.set_health(health),
    }
}
