//! Administrative operations on a whole pool: add devices, change its guid, enable features, destroy it.
//!
//! Each runs in syncing context, so that the labels of its txg have the result. A crash before leaves the
//! pool as it was; devices that were already labelled belong to no pool, because their labels have txg 0.

use std::sync::atomic::Ordering;

use zcommon::features::Feature;
use zcommon::health::Health;
use zcommon::vdev::PoolState;

use super::Spa;
use super::layout::{PoolSpec, TreeLayout};
use super::space_store::set;
use super::spares;
use super::subjects::VdevTree;
use super::vdev_change::VdevChange;
use crate::dmu::Tx;
use crate::dsl::write::Hooks as _;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::vdev::config::AllocBias;
use crate::vdev::top::Top;

impl VdevTree<'_> {
    /// Adds top-level vdevs, spares and cache devices. `alike`: only vdevs with the ashift of the others, if those
    /// have all the same.
    ///
    /// # Errors
    /// When a device is too small or can't be labelled, or the ashift is another one (`Invalid`); nothing of the pool
    /// has changed then.
    #[doc(alias = "spa_vdev_add")]
    pub fn add(self, spec: PoolSpec, alike: bool) -> Result<()> {
        self.spa.sync_task(move |spa, tx| {
            let first = spa.config.lock().root().nvlist_array("children").map_or(0, <[_]>::len);
            let first = u64::try_from(first).unwrap_or(u64::MAX);
            let layout = spec.lay_out(first, tx.txg(), &mut || spa.pool.env.guid())?;
            let mut ashifts = layout.tops.iter().map(|top| top.u64("ashift"));
            let common = spa.vdevs().common_ashift().filter(|_| alike);
            if common.is_some_and(|common| ashifts.any(|ashift| ashift != Some(common))) {
                let what = "new vdev has a different ashift than the vdevs of the pool";
                return Err(Error::new(Kind::Invalid, what));
            }
            layout.check_supported(spa.version(), |feature| spa.features.is_enabled(feature))?;
            spa.removal().check_beside_removed(&layout)?;
            spa.spares().check_new_spares(&layout)?;
            let facts = spa.config.lock().facts_of(0, &[]);
            spares::label_all(&layout, &facts, spa.guid(), &spa.pool.env)?;
            if !layout.tops.is_empty() {
                add_laid_out(spa, first, &layout, tx)?;
            }
            spa.spares().list(&layout, tx)?;
            spa.reports().notify("vdev_add");
            if layout.tops.is_empty() {
                // The labels stay, so that no later step of this txg tells of the new configuration.
                spa.reports().notify("config_sync");
            }
            Ok(())
        })
    }

    /// The allocation class of a top-level vdev. A configuration of the MOS names logs only: the class of another vdev stands
    /// in its ZAP.
    #[doc(alias = "vdev_alloc_bias")]
    pub fn bias_of(self, top: &Top) -> AllocBias {
        self.spa.space.bias(top.id).unwrap_or(top.bias)
    }

    /// The ashift of all ordinary vdevs, if there is one.
    #[doc(alias("spa_min_ashift", "spa_max_ashift"))]
    pub(super) fn common_ashift(self) -> Option<u64> {
        let config = self.spa.config.lock();
        let tops = config.root().nvlist_array("children").unwrap_or_default().iter();
        let ordinary = tops.filter(|top| {
            let id = top.u64("id").unwrap_or(u64::MAX);
            let bias = self.spa.pool.tree().top(id).map(|top| self.bias_of(&top));
            bias == Some(AllocBias::Normal) && top.u64("is_log").unwrap_or(0) == 0
        });
        // Holes of removed logs have none.
        let mut ashifts = ordinary.filter_map(|top| top.u64("ashift")).filter(|ashift| *ashift != 0);
        let first = ashifts.next()?;
        ashifts.all(|ashift| ashift == first).then_some(first)
    }
}

impl Spa {
    /// The pool's guid.
    #[doc(alias = "spa_guid")]
    pub fn guid(&self) -> u64 {
        self.guid.load(Ordering::Acquire)
    }

    /// Sets a new guid, so that a copy of the pool's disks is distinct from it: `wanted`, or a random one.
    ///
    /// # Errors
    /// `NoDevice` when a device is not in full use: its label would keep the old guid. Those of
    /// `Checkpointing::check_none`.
    #[doc(alias = "spa_change_guid")]
    pub fn reguid(&self, wanted: Option<u64>) -> Result<u64> {
        self.sync_task(move |spa, tx| {
            spa.checkpoint().check_none()?;
            let tree = spa.pool.zio.tree();
            if tree.leaves().any(|leaf| leaf.device().is_none() || leaf.health() != Health::ONLINE) {
                return Err(Error::new(Kind::NoDevice, "one or more devices is currently unavailable"));
            }
            let guid = wanted.unwrap_or_else(|| spa.pool.env.guid());
            let old = spa.guid.swap(guid, Ordering::AcqRel);
            spa.config.lock().change_root(|root| set(root, "guid", guid));
            if let Some(l2) = spa.pool.arc.l2arc() {
                l2.set_pool(guid);
            }
            spa.log("guid change", "", 0, &format!("old={old} new={guid}"), tx)?;
            spa.reports().notify("pool_reguid");
            Ok(guid)
        })
    }

    /// Marks the pool as destroyed in its labels. Its blocks stay as they are.
    #[doc(alias = "spa_destroy")]
    pub fn destroy(&self) -> Result<()> {
        close_as(self, PoolState::Destroyed)
    }

    /// Writes everything, marks the pool as exported in its labels, and stops.
    ///
    /// # Errors
    /// When the last txg could not be written; the pool is then as a crash would leave it.
    #[doc(alias = "spa_export")]
    pub fn export(&self) -> Result<()> {
        close_as(self, PoolState::Exported)
    }

    /// Writes everything and stops; the labels still say that the pool is in use, as after a crash.
    ///
    /// # Errors
    /// The errors of [`Spa::export`].
    #[doc(alias = "hardforce")]
    pub fn leave(&self) -> Result<()> {
        close_as(self, PoolState::Active)
    }
}

fn close_as(spa: &Spa, state: PoolState) -> Result<()> {
    spa.activities.end();
    spa.caches().close();
    if let Err(e) = write_last(spa, state) {
        // The pool stays in use, and later labels must say so.
        spa.config.lock().change_facts(|facts| facts.state = PoolState::Active);
        spa.caches().reopen();
        spa.background().resume();
        return Err(e);
    }
    spa.stop_thread();
    spa.reports().notify(if state == PoolState::Destroyed { "pool_destroy" } else { "pool_export" });
    Ok(())
}

/// Writes everything, and the labels with `state`.
fn write_last(spa: &Spa, state: PoolState) -> Result<()> {
    spa.sync()?;
    if !spa.limits().is_on(Limit::KeepSpaceLogs) {
        spa.space.request_flush_all();
    }
    spa.sync_task(move |spa, tx| {
        // The fallible step comes first: a failed export must not leave labels that say EXPORTED.
        if state == PoolState::Exported {
            spa.scans().note_last_txg(tx)?;
        }
        spa.config.lock().change_facts(|facts| facts.state = state);
        Ok(())
    })
}

fn add_laid_out(spa: &Spa, first: u64, layout: &TreeLayout, tx: &Tx) -> Result<()> {
    let mut change = VdevChange::of(spa);
    change.tops()?.extend(layout.tops.iter().cloned());
    change.brings.devices.clone_from(&layout.devices);
    change.new_tops = (first..).zip(layout.classes.iter().copied()).collect();
    spa.vdevs().change(change, tx)?;
    for (feature, uses) in layout.features() {
        let once = feature == Feature::AllocationClasses && spa.features.is_active(feature);
        if uses > 0 && !once && spa.features.is_enabled(feature) {
            spa.count_feature(feature, uses, tx)?;
        }
    }
    Ok(())
}
