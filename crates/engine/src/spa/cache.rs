//! The cache devices of a pool that is being written: which ones there are, and the thread that feeds them.
//!
//! The devices themselves are [`crate::arc::l2arc`]'s. They are no part of the vdev tree: their failures do
//! not affect the pool. The feeding is an activity whose steps never wait for a cache device; it begins with
//! the first device and ends with the last.
//!
//! Differs from OpenZFS: a pool that is imported read-only does not use its cache devices.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use blkdev::Device;
use parking_lot::Mutex;

use super::Spa;
use super::activity::{Activity, ActivityStep, Pace};
use super::layout::TreeLayout;
use super::subjects::Caches;
use crate::arc::l2arc::{CacheStats, Fed, L2arc};
use crate::dsl::props::inherit::inherited;
use crate::dsl::write::{Hooks as _, MosView};
use crate::error::{Error, Result};
use crate::vdev::leaf::Leaf;
use crate::zio::stored::StoredCache;

/// The property that selects the blocks of a dataset that cache devices may hold, and its values
/// (`ZFS_CACHE_*`).
const SECONDARYCACHE: &str = "secondarycache";
const NONE: u64 = 0;
const METADATA: u64 = 1;
const ALL: u64 = 2;

/// The activity that feeds cache devices.
#[derive(Debug, Default)]
pub(super) struct Feeding {
    spa: Mutex<Weak<Spa>>,
    /// Its steps are started.
    runs: AtomicBool,
}

impl Activity for Feeding {
    fn step(&self) -> Result<ActivityStep> {
        let Some(spa) = self.spa.lock().upgrade() else { return Ok(ActivityStep::Done) };
        let Some(l2) = spa.pool.arc.l2arc() else { return Ok(ActivityStep::Done) };
        for end in l2.take_rebuilt() {
            spa.sync_task(move |spa, tx| spa.log("L2ARC rebuild", "", 0, &end.text, tx))?;
        }
        let mut known = HashMap::new();
        let mut may = |objset: u64, metadata: bool| {
            let cached = *known.entry(objset).or_insert_with(|| secondary(&spa, objset).unwrap_or(NONE));
            cached == ALL || cached == METADATA && metadata
        };
        if l2.feed(&mut may) != Fed::NoDevice {
            return Ok(ActivityStep::Later);
        }
        self.runs.store(false, Ordering::Release);
        // A device that came meanwhile did not start the steps.
        let again = l2.is_used() && !self.runs.swap(true, Ordering::AcqRel);
        Ok(if again { ActivityStep::Later } else { ActivityStep::Done })
    }

    fn pace(&self) -> Pace {
        Pace::ByStep
    }
}

impl Caches<'_> {
    /// Takes a cache device into use that the pool lists under `guid`. The caller has checked the device's
    /// label: its header is overwritten when it does not fit. Returns false when it is too small or in use
    /// already.
    #[doc(alias = "l2arc_add_vdev")]
    pub fn use_device(self, guid: u64, path: &str, device: Device) -> bool {
        let geometry = device.geometry();
        let sector = u64::from(geometry.logical_sector.max(512));
        if geometry.read_only {
            return false;
        }
        let leaf = Leaf::new(guid, path.to_owned(), Some(device));
        let l2 = self.spa.pool.arc.start_l2arc(&self.spa.pool.env, self.spa.guid());
        if !l2.add(&leaf, sector) {
            return false;
        }
        self.spa.pool.zio.set_stored(Some(Arc::clone(&l2) as Arc<dyn StoredCache>));
        feed_caches(self.spa);
        true
    }

    /// Takes the cache devices of a layout into use, which the pool has got.
    pub(super) fn use_devices(self, layout: &TreeLayout) {
        for entry in &layout.cache {
            let guid = entry.u64("guid").unwrap_or(0);
            if let Some(device) = layout.devices.get(&guid) {
                self.use_device(guid, entry.str("path").unwrap_or_default(), Arc::clone(device));
            }
        }
    }

    /// Lets a cache device go, after the writes under way.
    #[doc(alias = "l2arc_remove_vdev")]
    pub(crate) fn drop_device(self, guid: u64) {
        if let Some(l2) = self.spa.pool.arc.l2arc() {
            l2.remove(guid);
            if !l2.is_used() {
                self.spa.pool.zio.set_stored(None);
            }
        }
    }

    /// Takes a cache device out of use until it is brought back. Its contents stay on it and in the index.
    ///
    /// # Errors
    /// `NotFound` if the pool has no such device; when the list of them cannot be read or written.
    #[doc(alias = "vdev_offline")]
    pub fn offline(self, guid: u64) -> Result<()> {
        list_cache(self.spa, guid, true)?;
        if let Some(l2) = self.spa.pool.arc.l2arc() {
            l2.offline(guid);
        }
        Ok(())
    }

    /// Lists a cache device as one that may be used again; the caller then calls [`Caches::use_device`].
    ///
    /// # Errors
    /// As [`Caches::offline`].
    #[doc(alias = "vdev_online")]
    pub fn online(self, guid: u64) -> Result<()> {
        list_cache(self.spa, guid, false)
    }

    /// Begins no more writes of cache devices, and waits for those under way.
    pub(super) fn close(self) {
        if let Some(l2) = self.spa.pool.arc.l2arc() {
            l2.close();
        }
    }

    /// Feeds cache devices again after [`Caches::close`]: the pool was not closed.
    pub(super) fn reopen(self) {
        if let Some(l2) = self.spa.pool.arc.l2arc() {
            l2.reopen();
        }
    }

    /// Cache devices in use.
    pub fn devices(self) -> Vec<CacheStats> {
        self.spa.pool.arc.l2arc().map(|l2| l2.devices()).unwrap_or_default()
    }

    /// The cache of stored blocks, when the pool has cache devices.
    pub fn l2arc(self) -> Option<Arc<L2arc>> {
        self.spa.pool.arc.l2arc()
    }
}

/// The property in force on a dataset; the meta object set has all of its blocks cached.
#[doc(alias = "os_secondary_cache")]
fn secondary(spa: &Spa, objset: u64) -> Result<u64> {
    if objset == 0 {
        return Ok(ALL);
    }
    let at = MosView { mos: &spa.mos };
    let dir = at.dataset(objset)?.dir_obj;
    Ok(inherited(&at, dir, SECONDARYCACHE)?.and_then(|value| value.number()).unwrap_or(ALL))
}

fn feed_caches(spa: &Spa) {
    *spa.feeding.spa.lock() = Weak::clone(&spa.me);
    if !spa.feeding.runs.swap(true, Ordering::AcqRel) {
        spa.background().start_steps(&(Arc::clone(&spa.feeding) as Arc<dyn Activity>));
    }
}

fn list_cache(spa: &Spa, guid: u64, offline: bool) -> Result<()> {
    match spa.sync_task(move |spa, tx| spa.caches().list_offline(guid, offline, tx))? {
        true => Ok(()),
        false => Err(Error::not_found("no such device in pool")),
    }
}
