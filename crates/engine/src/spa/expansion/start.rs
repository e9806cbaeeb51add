//! How an expansion begins: `zpool attach` of a device to a raidz vdev.
//!
//! Source: `spa_vdev_attach`, `vdev_raidz_attach_sync`, OpenZFS 2.4. Differs from OpenZFS: deferred frees are
//! copied like space in use, so the start does not wait for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blkdev::Device;
use nvpair::NvList;
use ondisk::names::vdev_top;
use zcommon::features::Feature;

use super::{EXPANDING, can_expand, copy, is_whole};
use crate::dmu::Tx;
use crate::dsl::write::Hooks as _;
use crate::error::{Error, Kind, Result};
use crate::spa::Spa;
use crate::spa::attach::{Attach, NewDevice, add_child};
use crate::spa::layout::config::edit;
use crate::spa::subjects::RaidzExpansion;
use crate::spa::vdev_change::VdevChange;
use crate::vdev::top::Top;
use crate::zap::ZapEdit;

/// `DSS_SCANNING` of the expansion's state.
const MOVING: u64 = 1;

/// Another expansion is under way.
pub(in crate::spa) const BUSY: &str = "raidz expansion in progress";

impl RaidzExpansion<'_> {
    /// Attaches a device to a raidz vdev, `old` in the configuration (syncing context); returns the txg to wait for.
    ///
    /// # Errors
    /// In OpenZFS's words; nothing has changed then.
    pub(in crate::spa) fn attach(self, what: &Attach, old: &NvList, tx: &Tx) -> Result<u64> {
        if !self.spa.features.is_enabled(Feature::RaidzExpansion) {
            let what = "raidz_expansion feature must be enabled in order to attach a device to raidz";
            return Err(Error::unsupported(what));
        }
        if self.is_active() {
            return Err(Error::new(Kind::Busy, BUSY));
        }
        let missing = || Error::new(Kind::NotFound, "no such device in pool");
        let id = old.u64("id").ok_or_else(missing)?;
        // A raidz below another vdev has the number that it has there.
        let top = self
            .spa
            .pool
            .zio
            .tree()
            .top(id)
            .filter(|top| is_top(self.spa, top, what.target))
            .ok_or_else(missing)?;
        let joining = self.spa.disks().joining(&what.device, old, tx)?;
        let first = old.nvlist_array("children").and_then(|children| children.first()?.u64("guid"));
        self.spa.disks().fits(&joining, first.unwrap_or(0), old)?;
        let width = u64::try_from(top.children().len()).unwrap_or(u64::MAX).saturating_add(1);
        let is_raidz_to_expand = can_expand(width, top.ashift) && width <= u64::from(u8::MAX);
        if !is_raidz_to_expand {
            return Err(Error::unsupported("can only attach to mirrors and top-level disks"));
        }
        if copy::leaves(&top).is_none() || !is_whole(&top) {
            return Err(Error::new(Kind::NoDevice, "one or more devices is currently unavailable"));
        }
        begin_expansion(self.spa, what, &joining.list, (id, joining.guid), tx)?;
        self.spa.disks().told_attached(what, &joining, &top.name, tx)?;
        let text = format!("{} vdev {id} new width {width}", self.spa.pool.name);
        self.spa.log("raidz vdev expansion started", "", 0, &text, tx)?;
        Ok(tx.txg())
    }
}

fn is_top(spa: &Spa, top: &Arc<Top>, guid: u64) -> bool {
    spa.config.lock().top(top.id).is_some_and(|config| config.u64("guid") == Some(guid))
}

#[doc(alias = "vdev_raidz_attach_sync")]
fn begin_expansion(spa: &Spa, what: &Attach, list: &NvList, (top, guid): (u64, u64), tx: &Tx) -> Result<()> {
    let mut change = VdevChange::of(spa);
    match &what.device {
        NewDevice::Fresh { leaf, .. } => {
            change.brings.devices.insert(guid, Device::clone(&leaf.device));
        }
        NewDevice::Spare { device: Some(device), .. } => {
            change.brings.devices.insert(guid, Device::clone(device));
        }
        NewDevice::Spare { device: None, .. } => {}
    }
    change.brings.reflow = Some(0);
    edit(&mut change.root, what.target, &mut |raidz| {
        add_child(raidz, list);
        raidz.add(EXPANDING, nvpair::NvValue::Boolean);
    });
    spa.vdevs().change(change, tx)?;
    spa.features.increment(Feature::RaidzExpansion, tx)?;
    let object = spa.mos.handle(spa.expansion().expanding_zap(top)?)?;
    ZapEdit::open(&mut object.edit(tx))?.update(vdev_top::RAIDZ_EXPAND_STATE, MOVING)?;
    let now = spa.pool.env.now();
    ZapEdit::open(&mut object.edit(tx))?.update(vdev_top::RAIDZ_EXPAND_START_TIME, now)?;
    for old in [vdev_top::RAIDZ_EXPAND_END_TIME, vdev_top::RAIDZ_EXPAND_BYTES_COPIED] {
        ZapEdit::open(&mut object.edit(tx))?.update(old, 0_u64)?;
        ZapEdit::open(&mut object.edit(tx))?.remove(old)?;
    }
    spa.expanding.pace.begins(now, 0);
    spa.expanding.active.store(true, Ordering::Release);
    Ok(())
}
