//! Going on with a pool that was suspended.
//!
//! What devices failed waits in the write path ([`crate::zio::suspend`]) while the group that is being written stands still
//! where it is. To go on:
//!
//! 1. Leaves that don't work are opened anew. One whose labels tell of a later state was used by somebody else: it is not
//!    taken (that is for the caller of [`Spa::resume`] to see, who opens devices).
//! 2. All that the group under way has written so far is read again: disks that were away may have lost what they had not
//!    yet made durable. Where redundancy has it, the leaf lacks that group; where nothing has it, the pool stays as it is.
//! 3. What waits goes on, and then the labels are written as always.
//!
//! Crash argument: until step 3 ends nothing on disk refers to the group, as in [`super::sync`].
//!
//! Differs from OpenZFS: step 2. There, a disk that comes back is believed to have kept all that it acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use zcommon::health::Health;
use zcommon::vdev::{VdevAux, VdevState};

use super::Spa;
use super::devices::Reopened;
use crate::error::{Error, Kind, Result};
use crate::vdev::config::AllocBias;
use crate::vdev::leaf::Leaf;
use crate::vdev::probe::probe;
use crate::vdev::top::Top;
use crate::zio::suspend::Cure;

/// What is left to do with a pool that can't go on.
const LEAVE: &str = "export it with -f and import it again";

impl Spa {
    /// From now on what devices fail waits for [`Spa::resume`]. Only where somebody else than the writer can call that.
    pub(super) fn hold_what_fails(&self) {
        let me = self.me.clone();
        let sink = Arc::new(move |why: &Error| {
            if let Some(spa) = me.upgrade() {
                spa.suspend(why.clone());
            }
        });
        self.pool.zio.suspended.open(sink);
    }

    /// Whether the pool is suspended.
    pub fn is_suspended(&self) -> bool {
        self.txgs.suspended().is_some()
    }

    /// Lets a suspended pool go on, on devices that `reopen` gives for the guids of leaves that don't work. Does nothing
    /// to one that is not suspended. When devices still fail it is suspended again soon.
    ///
    /// # Errors
    /// `Suspended`: why it can't go on. Exported by force and imported again it is as the last group left it.
    #[doc(alias("spa_clear", "zio_resume"))]
    pub fn resume(&self, reopen: &dyn Fn(u64) -> Reopened) -> Result<()> {
        if !self.is_suspended() {
            return Ok(());
        }
        let cannot = |why: &str, advice: &str| {
            let what = format!("the pool can't go on: {why}; {advice}");
            Error::new(Kind::Suspended, what).in_pool(&self.pool.name)
        };
        if self.check_claim().is_err() {
            let why = "multihost is on, and another machine may have imported it since its last heartbeat";
            return Err(cannot(why, LEAVE));
        }
        if self.broken.load(Ordering::Acquire) {
            return Err(cannot("a transaction group was left half written", LEAVE));
        }
        if self.txgs.is_torn() {
            return Err(cannot("an error of this program broke off a change halfway", LEAVE));
        }
        let tree = self.pool.zio.tree();
        let mut leaves: Vec<&Arc<Leaf>> =
            tree.leaves().filter(|leaf| tree.top_of(leaf.guid).is_some()).collect();
        leaves.sort_unstable_by_key(|leaf| leaf.guid);
        leaves.into_iter().for_each(|leaf| revive(leaf, reopen));
        // What removed vdevs left has no devices that could be missing.
        let has_devices = |top: &Top| top.leaves().next().is_some();
        let is_missing =
            |top: &&Arc<Top>| top.bias != AllocBias::Log && has_devices(top) && !top.is_readable();
        if let Some(top) = tree.tops().find(is_missing) {
            let advice = "bring them back and clear it again";
            return Err(cannot("devices are still missing", advice).on_vdev(&top.name));
        }
        let suspects: Vec<Arc<Leaf>> = tree.leaves().map(Arc::clone).collect();
        if let Err(e) = self.pool.zio.check_written(u64::MAX, &suspects, Cure::Note) {
            return Err(cannot("devices have lost what they had taken", LEAVE).because(e));
        }
        self.pool.zio.suspended.resume(|| {
            self.txgs.resume();
            self.forget_suspension();
        });
        Ok(())
    }

    /// Gives up what waits for a suspended pool: nothing is written any more.
    pub fn abandon(&self) {
        self.broken.store(true, Ordering::Release);
        self.pool.zio.suspended.close();
    }
}

/// Tries a leaf that should work, and opens it anew if it does not.
fn revive(leaf: &Leaf, reopen: &dyn Fn(u64) -> Reopened) {
    let before = leaf.health();
    let is_lost = matches!(before.state, VdevState::CantOpen | VdevState::Removed);
    if !is_lost && (!before.is_readable() || probe(leaf).is_fine()) {
        return;
    }
    // Nobody may have it open twice.
    leaf.set_health(Health::cant_open(VdevAux::OpenFailed));
    match reopen(leaf.guid) {
        Ok(_) if leaf.inject.refuses_open() => {}
        Ok(device) => leaf.open(device, if is_lost { Health::ONLINE } else { before }),
        Err(health) => leaf.set_health(health),
    }
}
