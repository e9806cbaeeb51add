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
use super::subjects::Disks;
use crate::dmu::Tx;
use crate::error::{Error, Kind, Result};
use crate::vdev::config::AllocBias;
use crate::vdev::leaf::Leaf;
use crate::vdev::top::Top;

/// A device as it was found again, or how the leaf is without.
pub type Reopened = std::result::Result<Device, Health>;

impl Disks<'_> {
    /// Takes a device out of use: until it is brought back, or, when `temporary`, until the pool is exported.
    ///
    /// # Errors
    /// `Busy` when something could not be read without it, or when it is of a log vdev and an intent log waits for its
    /// replay.
    #[doc(alias = "vdev_offline")]
    pub fn offline(self, guid: u64, temporary: bool) -> Result<()> {
        let (leaf, top) = device(self.spa, guid)?;
        if top.bias != AllocBias::Log || leaf.health().state == VdevState::Offline {
            return offline_now(self.spa, guid, temporary);
        }
        // Records that only this vdev has, those of open txgs, too, must not be needed after a crash.
        let vdev = top.id;
        self.spa.sync_task(move |spa, _| {
            spa.removal().close_top(vdev);
            Ok(())
        })?;
        let done = self.spa.removal().drain(vdev).and_then(|()| offline_now(self.spa, guid, temporary));
        self.spa.removal().abandon_start(vdev);
        done
    }

    /// Marks a device as faulted at the administrator's request; one that is required only becomes degraded.
    #[doc(alias = "vdev_fault")]
    pub fn fault(self, guid: u64, temporary: bool) -> Result<()> {
        self.spa.sync_task(move |spa, _| {
            let (leaf, top) = device(spa, guid)?;
            if spa.disks().stays_though_faulty(&leaf, &top) {
                spa.disks().degrade(&leaf, VdevAux::External, keep(temporary));
            } else {
                spa.disks().set_health(&leaf, Health::faulted(VdevAux::External), keep(temporary));
            }
            Ok(())
        })
    }

    /// Gives a device in use its state back: it was taken out of use and brought back for a change that was refused.
    ///
    /// # Errors
    /// `NotFound` if the pool has no such device.
    pub fn restore_health(self, guid: u64, health: Health) -> Result<()> {
        self.spa.sync_task(move |spa, _| {
            let (leaf, _) = device(spa, guid)?;
            if leaf.health().is_readable() && health.is_readable() {
                spa.disks().set_health(&leaf, health, Keep::Recorded);
            }
            Ok(())
        })
    }

    /// Takes devices out of use that could not be opened again, for these reasons; those that the pool needs stay.
    #[doc(alias("VDEV_AUX_BAD_LABEL", "VDEV_AUX_OPEN_FAILED"))]
    pub fn lose_devices(self, lost: Vec<(u64, VdevAux)>) -> Result<()> {
        self.spa.sync_task(move |spa, _| {
            for (guid, why) in lost {
                // It may have left the pool since.
                let Ok((leaf, top)) = device(spa, guid) else { continue };
                if !leaf.health().is_readable() || spa.disks().is_needed(&leaf, &top) {
                    continue;
                }
                spa.disks().set_health(&leaf, Health::cant_open(why), Keep::UntilExport);
                let word = if why == VdevAux::BadLabel { "bad_label" } else { "open_failed" };
                spa.reports().report_leaf(&format!("ereport.fs.zfs.vdev.{word}"), &leaf);
            }
            Ok(())
        })
    }

    /// Declares a device degraded until the pool is exported.
    ///
    /// # Errors
    /// `NotFound` if the pool has no such device.
    #[doc(alias = "vdev_degrade")]
    pub fn declare_degraded(self, guid: u64) -> Result<()> {
        self.spa.sync_task(move |spa, _| {
            let (leaf, _) = device(spa, guid)?;
            spa.disks().degrade(&leaf, VdevAux::External, keep(true));
            Ok(())
        })
    }

    /// Brings a device back that was out of use, reopened as `reopened`; returns its health. A faulted one
    /// stays so, until its errors are cleared. All devices of its top-level vdev are measured again; with
    /// `expand`, this device's full size is used from now on.
    #[doc(alias = "vdev_online")]
    pub fn online(self, guid: u64, reopened: Option<Reopened>, expand: bool) -> Result<Health> {
        self.spa.sync_task(move |spa, tx| {
            let (leaf, top) = device(spa, guid)?;
            let before = leaf.health();
            if before.state == VdevState::Faulted {
                return Ok(before);
            }
            if let Some(reopened) = reopened.filter(|_| !before.is_readable()) {
                take_back(spa, &leaf, reopened, tx);
                if leaf.health().is_readable() {
                    spa.reports().report_leaf("sysevent.fs.zfs.vdev_online", &leaf);
                }
            }
            spa.scans().assess_again();
            let expand = expand || spa.vdevs().expands_by_itself();
            spa.vdevs().measure(&top, &|other| expand && other.guid == guid);
            if expand {
                spa.vdevs().note_expansion(guid);
                spa.vdevs().grow(&[top.id], tx)?;
            }
            Ok(leaf.health())
        })
    }

    /// Measures all devices again, and brings back those that are there again: all but those that were taken out of use.
    #[doc(alias = "zpool reopen")]
    pub fn reopen(self, devices: Vec<(u64, Reopened)>) -> Result<()> {
        self.spa.sync_task(move |spa, tx| {
            for (guid, reopened) in devices {
                let (leaf, _) = device(spa, guid)?;
                if leaf.health().state == VdevState::CantOpen {
                    take_back(spa, &leaf, reopened, tx);
                }
            }
            refuse_injected(spa);
            spa.scans().assess_again();
            spa.vdevs().measure_all(tx)
        })
    }

    /// Clears the errors of devices. Faulted or absent ones are passed with the devices reopened in their
    /// place; those that are offline stay so. Hot spares that stand in for devices in use become free.
    #[doc(alias = "vdev_clear")]
    pub fn clear(self, devices: Vec<(u64, Option<Reopened>)>) -> Result<()> {
        for (guid, _) in &devices {
            let Some(leaf) = self.spa.pool.zio.tree().leaf(*guid).cloned() else { continue };
            leaf.errors.clear();
            self.end_sit_out(&leaf);
            self.spa.diagnosis.forget(*guid);
        }
        let tree = self.spa.pool.zio.tree();
        let is_hurt = |guid: &u64| tree.leaf(*guid).is_some_and(|leaf| leaf.health() != Health::ONLINE);
        let spared: Vec<u64> =
            devices.iter().map(|(guid, _)| *guid).filter(|guid| self.spa.spares().is_spared(*guid)).collect();
        let hurt: Vec<_> = devices.into_iter().filter(|(guid, _)| is_hurt(guid)).collect();
        if hurt.is_empty() && spared.is_empty() {
            return Ok(());
        }
        self.spa.sync_task(move |spa, tx| {
            for (guid, reopened) in hurt {
                // A replaced device may have left the pool meanwhile.
                let Ok((leaf, _)) = device(spa, guid) else { continue };
                match (leaf.health().state, reopened) {
                    (VdevState::Offline, _) => continue,
                    (VdevState::Degraded, _) => spa.disks().set_health(&leaf, Health::ONLINE, Keep::Recorded),
                    (_, Some(reopened)) => take_back(spa, &leaf, reopened, tx),
                    (_, None) => continue,
                }
                spa.reports().report_leaf("sysevent.fs.zfs.vdev_clear", &leaf);
            }
            let tree = spa.pool.zio.tree();
            let is_used = |guid: &u64| tree.leaf(*guid).is_some_and(|leaf| leaf.health().is_readable());
            spared.into_iter().filter(is_used).for_each(|guid| spa.spares().note_return(guid));
            Ok(())
        })
    }

    /// Notes that the device of a leaf out of use has a label of `txg`. If another system wrote it since the leaf went out of
    /// use, blocks that the leaf had may be overwritten: it lacks everything then, and a resilver copies all of it.
    ///
    /// Differs from OpenZFS, which then copies what was written here meanwhile, and leaves the rest to checksums.
    pub fn doubt_returned(self, guid: u64, txg: u64) {
        let tree = self.spa.pool.zio.tree();
        if let Some(leaf) = tree.leaf(guid).filter(|leaf| leaf.was_changed(txg)) {
            leaf.miss_all(crate::txg::INITIAL, self.spa.txgs.open().saturating_add(1));
        }
    }
}

fn device(spa: &Spa, guid: u64) -> Result<(Arc<Leaf>, Arc<Top>)> {
    let tree = spa.pool.zio.tree();
    if !tree.config.walk().into_iter().any(|vdev| vdev.guid == guid) {
        return Err(Error::not_found("no such device in pool"));
    }
    // Distributed spares are leaves, too, but no devices.
    tree.leaf(guid)
        .cloned()
        .zip(tree.top_of(guid))
        .ok_or_else(|| Error::unsupported("operation not supported on this type of pool"))
}

fn offline_now(spa: &Spa, guid: u64, temporary: bool) -> Result<()> {
    spa.sync_task(move |spa, _| {
        let (leaf, top) = device(spa, guid)?;
        if leaf.health().state != VdevState::Offline && spa.disks().is_needed(&leaf, &top) {
            return Err(Error::new(Kind::Busy, "no valid replicas").on_vdev(&leaf.path));
        }
        spa.disks().set_health(&leaf, Health::OFFLINE, keep(temporary));
        Ok(())
    })
}

/// Takes devices out of use whose open an injected fault refuses, unless the pool needs them.
#[doc(alias = "zio_handle_device_injection")]
fn refuse_injected(spa: &Spa) {
    let tree = spa.pool.zio.tree();
    for leaf in tree.leaves().filter(|leaf| leaf.inject.refuses_open()) {
        let is_used = leaf.device().is_some() || leaf.health().state == VdevState::Removed;
        if is_used && tree.top_of(leaf.guid).is_some_and(|top| !spa.disks().is_needed(leaf, &top)) {
            spa.disks().set_health(leaf, Health::cant_open(VdevAux::OpenFailed), Keep::Recorded);
        }
    }
}

#[doc(alias = "vdev_reopen")]
fn take_back(spa: &Spa, leaf: &Leaf, reopened: Reopened, tx: &Tx) {
    let before = leaf.health();
    match reopened {
        Ok(_) if leaf.inject.refuses_open() => leaf.set_health(Health::cant_open(VdevAux::OpenFailed)),
        Ok(device) => {
            leaf.open(device, Health::ONLINE);
            spa.spares().note_return(leaf.guid);
            spa.scans().assess_returned(leaf, tx);
        }
        // It was pulled out, and still is.
        Err(_) if before.state == VdevState::Removed => return,
        Err(health) => leaf.set_health(health),
    }
    spa.disks().note_health(leaf, before, Keep::Recorded);
}

fn keep(temporary: bool) -> Keep {
    if temporary { Keep::UntilExport } else { Keep::Recorded }
}
