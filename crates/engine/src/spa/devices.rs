//! Administrative operations on single devices: take them out of use, bring them back, clear their errors.
//!
//! A device that was out of use lacks the writes of that time; its DTL records them, and reads of such blocks
//! skip the device. A resilver then begins by itself ([`super::scrub`]).

use std::sync::Arc;

use blkdev::Device;
use zcommon::health::Health;
use zcommon::vdev::{VdevAux, VdevState};

use super::Spa;
use super::health::Keep;
use crate::dmu::Tx;
use crate::error::{Error, Kind, Result};
use crate::vdev::config::AllocBias;
use crate::vdev::leaf::Leaf;
use crate::vdev::top::Top;

/// A device as it was found again, or how the leaf is without.
pub type Reopened = std::result::Result<Device, Health>;

impl Spa {
    fn device(&self, guid: u64) -> Result<(Arc<Leaf>, Arc<Top>)> {
        let tree = self.pool.zio.tree();
        if !tree.config.walk().into_iter().any(|vdev| vdev.guid == guid) {
            return Err(Error::not_found("no such device in pool"));
        }
        // Distributed spares are leaves, too, but no devices.
        tree.leaf(guid)
            .cloned()
            .zip(tree.top_of(guid))
            .ok_or_else(|| Error::unsupported("operation not supported on this type of pool"))
    }

    /// Takes a device out of use: until it is brought back, or, when `temporary`, until the pool is exported.
    ///
    /// # Errors
    /// `Busy` when something could not be read without it, or when it is of a log vdev and an intent log waits for its
    /// replay.
    #[doc(alias = "vdev_offline")]
    pub fn offline(&self, guid: u64, temporary: bool) -> Result<()> {
        let (leaf, top) = self.device(guid)?;
        if top.bias != AllocBias::Log || leaf.health().state == VdevState::Offline {
            return self.offline_now(guid, temporary);
        }
        // Records that only this vdev has, those of open txgs, too, must not be needed after a crash.
        let vdev = top.id;
        self.sync_task(move |spa, _| {
            spa.close_top(vdev);
            Ok(())
        })?;
        let done = self.drain(vdev).and_then(|()| self.offline_now(guid, temporary));
        self.abandon_start(vdev);
        done
    }

    fn offline_now(&self, guid: u64, temporary: bool) -> Result<()> {
        self.sync_task(move |spa, _| {
            let (leaf, top) = spa.device(guid)?;
            if leaf.health().state != VdevState::Offline && spa.is_needed(&leaf, &top) {
                return Err(Error::new(Kind::Busy, "no valid replicas").on_vdev(&leaf.path));
            }
            spa.set_health(&leaf, Health::OFFLINE, keep(temporary));
            Ok(())
        })
    }

    /// Marks a device as faulted at the administrator's request; one that is required only becomes degraded.
    #[doc(alias = "vdev_fault")]
    pub fn fault(&self, guid: u64, temporary: bool) -> Result<()> {
        self.sync_task(move |spa, _| {
            let (leaf, top) = spa.device(guid)?;
            if spa.stays_though_faulty(&leaf, &top) {
                spa.degrade(&leaf, VdevAux::External, keep(temporary));
            } else {
                spa.set_health(&leaf, Health::faulted(VdevAux::External), keep(temporary));
            }
            Ok(())
        })
    }

    /// Gives a device in use its state back: it was taken out of use and brought back for a change that was refused.
    ///
    /// # Errors
    /// `NotFound` if the pool has no such device.
    pub fn restore_health(&self, guid: u64, health: Health) -> Result<()> {
        self.sync_task(move |spa, _| {
            let (leaf, _) = spa.device(guid)?;
            if leaf.health().is_readable() && health.is_readable() {
                spa.set_health(&leaf, health, Keep::Recorded);
            }
            Ok(())
        })
    }

    /// Takes devices out of use that could not be opened again, for these reasons; those that the pool needs stay.
    #[doc(alias("VDEV_AUX_BAD_LABEL", "VDEV_AUX_OPEN_FAILED"))]
    pub fn lose_devices(&self, lost: Vec<(u64, VdevAux)>) -> Result<()> {
        self.sync_task(move |spa, _| {
            for (guid, why) in lost {
                // It may have left the pool since.
                let Ok((leaf, top)) = spa.device(guid) else { continue };
                if !leaf.health().is_readable() || spa.is_needed(&leaf, &top) {
                    continue;
                }
                spa.set_health(&leaf, Health::cant_open(why), Keep::UntilExport);
                let word = if why == VdevAux::BadLabel { "bad_label" } else { "open_failed" };
                spa.report_leaf(&format!("ereport.fs.zfs.vdev.{word}"), &leaf);
            }
            Ok(())
        })
    }

    /// Declares a device degraded until the pool is exported.
    ///
    /// # Errors
    /// `NotFound` if the pool has no such device.
    #[doc(alias = "vdev_degrade")]
    pub fn declare_degraded(&self, guid: u64) -> Result<()> {
        self.sync_task(move |spa, _| {
            let (leaf, _) = spa.device(guid)?;
            spa.degrade(&leaf, VdevAux::External, keep(true));
            Ok(())
        })
    }

    /// Brings a device back that was out of use, reopened as `reopened`; returns its health. A faulted one
    /// stays so, until its errors are cleared. All devices of its top-level vdev are measured again; with
    /// `expand`, this device's full size is used from now on.
    #[doc(alias = "vdev_online")]
    pub fn online(&self, guid: u64, reopened: Option<Reopened>, expand: bool) -> Result<Health> {
        self.sync_task(move |spa, tx| {
            let (leaf, top) = spa.device(guid)?;
            let before = leaf.health();
            if before.state == VdevState::Faulted {
                return Ok(before);
            }
            if let Some(reopened) = reopened.filter(|_| !before.is_readable()) {
                spa.take_back(&leaf, reopened, tx);
                if leaf.health().is_readable() {
                    spa.report_leaf("sysevent.fs.zfs.vdev_online", &leaf);
                }
            }
            spa.assess_again();
            let expand = expand || spa.expands_by_itself();
            spa.measure(&top, &|other| expand && other.guid == guid);
            if expand {
                spa.note_expansion(guid);
                spa.grow(&[top.id], tx)?;
            }
            Ok(leaf.health())
        })
    }

    /// Measures all devices again, and brings back those that are there again: all but those that were taken out of use.
    #[doc(alias = "zpool reopen")]
    pub fn reopen(&self, devices: Vec<(u64, Reopened)>) -> Result<()> {
        self.sync_task(move |spa, tx| {
            for (guid, reopened) in devices {
                let (leaf, _) = spa.device(guid)?;
                if leaf.health().state == VdevState::CantOpen {
                    spa.take_back(&leaf, reopened, tx);
                }
            }
            spa.refuse_injected();
            spa.assess_again();
            spa.measure_all(tx)
        })
    }

    /// Takes devices out of use whose open an injected fault refuses, unless the pool needs them.
    #[doc(alias = "zio_handle_device_injection")]
    fn refuse_injected(&self) {
        let tree = self.pool.zio.tree();
        for leaf in tree.leaves().filter(|leaf| leaf.inject.refuses_open()) {
            let is_used = leaf.device().is_some() || leaf.health().state == VdevState::Removed;
            if is_used && tree.top_of(leaf.guid).is_some_and(|top| !self.is_needed(leaf, &top)) {
                self.set_health(leaf, Health::cant_open(VdevAux::OpenFailed), Keep::Recorded);
            }
        }
    }

    /// Clears the errors of devices. Faulted or absent ones are passed with the devices reopened in their
    /// place; those that are offline stay so. Hot spares that stand in for devices in use become free.
    #[doc(alias = "vdev_clear")]
    pub fn clear(&self, devices: Vec<(u64, Option<Reopened>)>) -> Result<()> {
        for (guid, _) in &devices {
            let Some(leaf) = self.pool.zio.tree().leaf(*guid).cloned() else { continue };
            leaf.errors.clear();
            self.end_sit_out(&leaf);
            self.diagnosis.forget(*guid);
        }
        let tree = self.pool.zio.tree();
        let is_hurt = |guid: &u64| tree.leaf(*guid).is_some_and(|leaf| leaf.health() != Health::ONLINE);
        let spared: Vec<u64> =
            devices.iter().map(|(guid, _)| *guid).filter(|guid| self.is_spared(*guid)).collect();
        let hurt: Vec<_> = devices.into_iter().filter(|(guid, _)| is_hurt(guid)).collect();
        if hurt.is_empty() && spared.is_empty() {
            return Ok(());
        }
        self.sync_task(move |spa, tx| {
            for (guid, reopened) in hurt {
                // A replaced device may have left the pool meanwhile.
                let Ok((leaf, _)) = spa.device(guid) else { continue };
                match (leaf.health().state, reopened) {
                    (VdevState::Offline, _) => continue,
                    (VdevState::Degraded, _) => spa.set_health(&leaf, Health::ONLINE, Keep::Recorded),
                    (_, Some(reopened)) => spa.take_back(&leaf, reopened, tx),
                    (_, None) => continue,
                }
                spa.report_leaf("sysevent.fs.zfs.vdev_clear", &leaf);
            }
            let tree = spa.pool.zio.tree();
            let is_used = |guid: &u64| tree.leaf(*guid).is_some_and(|leaf| leaf.health().is_readable());
            spared.into_iter().filter(is_used).for_each(|guid| spa.note_return(guid));
            Ok(())
        })
    }

    /// Notes that the device of a leaf out of use has a label of `txg`. If another system wrote it since the leaf went out of
    /// use, blocks that the leaf had may be overwritten: it lacks everything then, and a resilver copies all of it.
    ///
    /// Differs from OpenZFS, which then copies what was written here meanwhile, and leaves the rest to checksums.
    pub fn doubt_returned(&self, guid: u64, txg: u64) {
        let tree = self.pool.zio.tree();
        if let Some(leaf) = tree.leaf(guid).filter(|leaf| leaf.was_changed(txg)) {
            leaf.miss_all(crate::txg::INITIAL, self.txgs.open().saturating_add(1));
        }
    }

    #[doc(alias = "vdev_reopen")]
    fn take_back(&self, leaf: &Leaf, reopened: Reopened, tx: &Tx) {
        let before = leaf.health();
        match reopened {
            Ok(_) if leaf.inject.refuses_open() => leaf.set_health(Health::cant_open(VdevAux::OpenFailed)),
            Ok(device) => {
                leaf.open(device, Health::ONLINE);
                self.note_return(leaf.guid);
                self.assess_returned(leaf, tx);
            }
            // It was pulled out, and still is.
            Err(_) if before.state == VdevState::Removed => return,
            Err(health) => leaf.set_health(health),
        }
        self.note_health(leaf, before, Keep::Recorded);
    }
}

fn keep(temporary: bool) -> Keep {
    if temporary { Keep::UntilExport } else { Keep::Recorded }
}
