//! Spares and cache devices that a pool is made with or gets: their labels, and the lists of them in the MOS.
//!
//! Source: `spa_sync_aux_dev`, spa.c; `l2arc_add_vdev`, arc.c; OpenZFS 2.3.

use std::sync::Arc;

use nvpair::NvList;
use ondisk::label::LABEL_START_SIZE;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};

use super::Spa;
use super::layout::config::PoolFacts;
use super::layout::{TreeLayout, size};
use super::load::packed_nvlist;
use super::subjects::{Caches, Spares};
use crate::arc::l2arc::place::{FeedArea, empty_header, header_block};
use crate::dmu::Tx;
use crate::env::Env;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::taskq::Promise;
use crate::vdev::label::init_leaf;
use crate::vdev::leaf::Leaf;
use crate::zap::Zap;

/// A device is given that the pool has already.
const TWICE: &str = "one or more vdevs refer to the same device, or one of\nthe devices is part of an active md or lvm device";

/// Labels every spare and cache device, but the spares that other pools have; cache devices get an empty header.
pub(super) fn label_all(layout: &TreeLayout, facts: &PoolFacts, pool_guid: u64, env: &Env) -> Result<()> {
    let executor = &*env.executor;
    let is_new = |entry: &&NvList| entry.u64("guid").is_none_or(|guid| !layout.shared.contains(&guid));
    for entry in layout.spares.iter().filter(is_new) {
        if let Some(leaf) = leaf_of(layout, entry) {
            init_leaf(&leaf, &facts.spare_label(entry), executor)?;
        }
    }
    for entry in &layout.cache {
        if let Some(leaf) = leaf_of(layout, entry) {
            init_leaf(&leaf, &facts.cache_label(entry), executor)?;
            write_header(&leaf, entry, pool_guid, env)?;
        }
    }
    Ok(())
}

/// `None` for a distributed spare, which has no device of its own.
fn leaf_of(layout: &TreeLayout, entry: &NvList) -> Option<Arc<Leaf>> {
    let guid = entry.u64("guid")?;
    let device = layout.devices.get(&guid)?;
    Some(Leaf::new(guid, entry.str("path").unwrap_or_default().to_owned(), Some(Arc::clone(device))))
}

/// The header of an empty cache device, in its first sector behind the labels.
#[doc(alias = "l2arc_dev_hdr_update")]
fn write_header(leaf: &Arc<Leaf>, entry: &NvList, pool_guid: u64, env: &Env) -> Result<()> {
    let ashift = entry.u64("ashift").unwrap_or(0).min(16);
    let size = leaf.device().map_or(0, |device| device.geometry().size);
    size::leaf_asize(size)?;
    let place = FeedArea::of(size, 1 << ashift)
        .ok_or_else(|| Error::new(Kind::Invalid, "the cache device is too small").on_vdev(&leaf.path))?;
    let least = env.memory.limits.get(Limit::L2RebuildMinSize);
    let header = empty_header(pool_guid, leaf.guid, place, place.log_entries(least));
    let block = header_block(&header, place.sector);
    let promise = Promise::default();
    let theirs = promise.clone();
    leaf.write(LABEL_START_SIZE, block, Box::new(move |result| theirs.set(result.is_ok())));
    match promise.wait(&*env.executor) {
        true => Ok(()),
        false => Err(Error::new(Kind::Io, "the cache device can't be written").on_vdev(&leaf.path)),
    }
}

/// Sets a device's present path; `None` when it has that already.
fn moved(entry: &mut NvList, paths: &[(u64, String)]) -> Option<()> {
    let guid = entry.u64("guid")?;
    let (_, now) = paths.iter().find(|(found, _)| *found == guid)?;
    if entry.str("path")? == now {
        return None;
    }
    entry.remove("path");
    entry.add("path", now.as_str());
    Some(())
}

impl Spares<'_> {
    /// Lists spares and cache devices in the MOS, behind those that are there.
    #[doc(alias = "spa_sync_aux_dev")]
    pub(super) fn list(self, layout: &TreeLayout, tx: &Tx) -> Result<()> {
        for (name, entries) in [(mos::SPARES, &layout.spares), (mos::L2CACHE, &layout.cache)] {
            if entries.is_empty() {
                continue;
            }
            let mut all = aux_list(self.spa, name)?.1;
            all.extend(entries.iter().cloned());
            store_aux(self.spa, name, all, tx)?;
        }
        self.spa.caches().use_devices(layout);
        self.wanted();
        Ok(())
    }

    /// The pool's hot spares, those in use included, as the MOS lists them.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn entries(self) -> Result<Vec<NvList>> {
        Ok(aux_list(self.spa, mos::SPARES)?.1)
    }

    /// Refuses spares that the pool has already.
    #[doc(alias("spa_has_spare", "vdev_inuse"))]
    pub(super) fn check_new_spares(self, layout: &TreeLayout) -> Result<()> {
        let known = self.entries()?;
        let is_known = |guid: &u64| known.iter().any(|entry| entry.u64("guid") == Some(*guid));
        match layout.shared.iter().any(is_known) {
            true => Err(Error::new(Kind::Busy, TWICE)),
            false => Ok(()),
        }
    }

    /// The entry of a hot spare.
    pub(super) fn spare_entry(self, guid: u64) -> Result<Option<NvList>> {
        Ok(self.entries()?.into_iter().find(|entry| entry.u64("guid") == Some(guid)))
    }

    /// Takes a hot spare from the list: it is an ordinary leaf now.
    #[doc(alias = "spa_spare_remove")]
    pub(super) fn unlist_spare(self, guid: u64, tx: &Tx) -> Result<()> {
        let mut all = self.entries()?;
        all.retain(|entry| entry.u64("guid") != Some(guid));
        store_aux(self.spa, mos::SPARES, all, tx)
    }

    /// Lists no spares and cache devices any more (syncing context).
    pub(super) fn unlist_all_aux(self, tx: &Tx) -> Result<()> {
        for name in [mos::SPARES, mos::L2CACHE] {
            if aux_list(self.spa, name)?.0.is_some() {
                store_aux(self.spa, name, Vec::new(), tx)?;
            }
        }
        Ok(())
    }

    /// Lists spares and cache devices under their present paths, by guid: a caller that opens the pool from
    /// its configuration alone finds them there.
    #[doc(alias("spa_load_spares", "spa_load_l2cache"))]
    pub(super) fn move_spares(self, paths: &[(u64, String)]) -> Result<()> {
        for name in [mos::SPARES, mos::L2CACHE] {
            let view = self.spa.mos.view();
            let number = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(name)?.filter(|&n| n != 0);
            // A list that can't be read is only missing in the output.
            let list =
                number.and_then(|number| Some((number, packed_nvlist(&view.object(number).ok()?).ok()?)));
            let Some((number, mut list)) = list else { continue };
            let mut all = list.nvlist_array(name).unwrap_or_default().to_vec();
            let moved = all.iter_mut().filter_map(|entry| moved(entry, paths)).count();
            if moved > 0 {
                list.remove(name);
                list.add(name, all);
                let packed = list.encode_xdr().map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
                self.spa.sync_task(move |spa, tx| spa.write_packed(number, &packed, tx))?;
            }
        }
        Ok(())
    }
}

impl Caches<'_> {
    /// The pool's cache devices, as the MOS lists them.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn entries(self) -> Result<Vec<NvList>> {
        Ok(aux_list(self.spa, mos::L2CACHE)?.1)
    }

    /// Lists a cache device as one that is out of use, or as one that is not. Returns false if there is no such device.
    pub(super) fn list_offline(self, guid: u64, offline: bool, tx: &Tx) -> Result<bool> {
        let mut all = self.entries()?;
        let Some(entry) = all.iter_mut().find(|entry| entry.u64("guid") == Some(guid)) else {
            return Ok(false);
        };
        entry.remove("offline");
        if offline {
            entry.add("offline", 1u64);
        }
        store_aux(self.spa, mos::L2CACHE, all, tx).map(|()| true)
    }
}

/// The MOS's list of spares or cache devices, and its object.
#[doc(alias("spa_load_spares", "spa_load_l2cache"))]
fn aux_list(spa: &Spa, name: &str) -> Result<(Option<u64>, Vec<NvList>)> {
    let view = spa.mos.view();
    let number = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(name)?.filter(|&n| n != 0);
    let Some(number) = number else { return Ok((None, Vec::new())) };
    let list = packed_nvlist(&view.object(number)?)?;
    Ok((Some(number), list.nvlist_array(name).unwrap_or_default().to_vec()))
}

fn store_aux(spa: &Spa, name: &str, all: Vec<NvList>, tx: &Tx) -> Result<()> {
    let (known, _) = aux_list(spa, name)?;
    let mut list = NvList::new();
    list.add(name, all);
    let packed = list.encode_xdr().map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
    let number = known.map_or_else(|| spa.new_packed(name, tx), Ok)?;
    spa.write_packed(number, &packed, tx)
}
