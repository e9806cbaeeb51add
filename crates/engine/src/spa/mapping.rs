//! Vdev state in the MOS: mappings of removed vdevs, and DTLs of leaves.
//!
//! Damage here never stops an open: a mapping that can't be read makes only its vdev unreadable, and
//! without a DTL a stale leaf is found out by checksums.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos as names};
use ondisk::pool::SpaRemoving;

use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::metaslab::{load_births, load_mapping};
use crate::vdev::config::VdevConfig;
use crate::vdev::indirect::CopyBirth;
use crate::vdev::leaf::Dtl;
use crate::vdev::top::VdevLayout;
use crate::vdev::tree::Tree;
use crate::zap::Zap;

/// Loads every mapping and DTL of `tree`; errors are added to `notes`.
pub(crate) fn load_all(tree: &Tree, mos: &Arc<Objset>, notes: &mut Vec<Error>) {
    for config in newest_first(tree, mos) {
        let Some(top) = tree.top(config.id) else { continue };
        let VdevLayout::Indirect(slot) = &top.layout else { continue };
        match load_mapping(mos, config.indirect_object) {
            Ok(mapping) => {
                // Without them a leaf that lacks copies is found out by checksums.
                let births = births_of(mos, config).unwrap_or_else(|e| {
                    notes.push(e.on_vdev(&top.name));
                    Arc::default()
                });
                *slot.write() = Some(Arc::new(mapping.with_births(births)));
            }
            Err(e) => notes.push(e.on_vdev(&top.name)),
        }
    }
    for config in tree.config.walk() {
        let Some(leaf) = tree.leaf(config.guid).filter(|_| config.dtl_object != 0) else { continue };
        match load_dtl(mos, config.dtl_object) {
            Ok(dtl) => {
                // Blocks of the MOS that it lacks counted as wrong until now.
                if !dtl.is_empty() {
                    leaf.errors.checksum.store(0, Ordering::Relaxed);
                }
                *leaf.dtl.write() = dtl;
            }
            Err(e) => notes.push(e.on_vdev(&leaf.path)),
        }
    }
}

/// The top-level vdevs, the one that was removed last first, then the one before, and so on: the mapping of one may have
/// been moved by the next removal.
#[doc(alias("spa_remove_init", "sr_prev_indirect_vdev"))]
fn newest_first<'a>(tree: &'a Tree, mos: &Arc<Objset>) -> Vec<&'a VdevConfig> {
    let all = &tree.config.children;
    let mut next = last_removed(mos).ok().flatten();
    let mut order: Vec<&VdevConfig> = Vec::new();
    while let Some(vdev) = next.and_then(|id| all.iter().find(|vdev| vdev.id == id)) {
        if order.len() > all.len() {
            break;
        }
        order.push(vdev);
        next = vdev.nvlist.u64("com.delphix:prev_indirect_vdev");
    }
    let rest = all.iter().filter(|vdev| !order.iter().any(|other| other.id == vdev.id)).collect::<Vec<_>>();
    order.into_iter().chain(rest).collect()
}

fn last_removed(mos: &Arc<Objset>) -> Result<Option<u64>> {
    let directory = Zap::open(&mos.object(MOS_DIRECTORY_OBJECT)?)?;
    let Some(value) = directory.lookup(names::REMOVING.as_bytes())? else { return Ok(None) };
    Ok(SpaRemoving::from_words(&value.ints).ok().map(|removal| removal.prev_indirect_vdev))
}

fn births_of(mos: &Arc<Objset>, config: &VdevConfig) -> Result<Arc<[CopyBirth]>> {
    match config.indirect_births {
        0 => Ok(Arc::default()),
        number => load_births(&mos.object(number)?),
    }
}

/// A DTL is a space map whose "offsets" are txgs.
fn load_dtl(mos: &Arc<Objset>, number: u64) -> Result<Dtl> {
    let object = mos.object(number)?;
    let ranges = crate::metaslab::load(&object, 0, 0, u64::MAX)?;
    Ok(Dtl::new(ranges.iter().collect()))
}
