//! The end of a removal: the vdev becomes indirect, or returns to normal use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvpair::{NvList, NvValue};
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos, vdev_top};
use ondisk::pool::SpaRemoving;
use parking_lot::RwLock;
use zcommon::features::Feature;

use super::{BIRTHS, MAPPING, PREVIOUS, REMOVING, objects, state};
use crate::dsl::write::{Hooks as _, MosTx};
use crate::error::{Error, Result};
use crate::metaslab::{SpaceMapStore as _, SpaceObject};
use crate::spa::Spa;
use crate::spa::layout::config::{LEAF_ZAP, TOP_ZAP};
use crate::spa::space_store::Store;
use crate::spa::vdev_props::{self, NON_ALLOCATING};
use crate::vdev::config::VdevConfig;
use crate::vdev::label::init_leaf;
use crate::vdev::top::{Layout, Top};
use crate::vdev::tree::{Change, Tree};
use crate::zap::int_name;

impl Spa {
    pub(super) fn store_at<'a>(&'a self, at: &MosTx<'a>) -> Store<'a> {
        let (mos, features, config) = (&self.mos, &self.features, &self.config);
        Store { mos, tx: at.tx, features, config, salt: self.pool.env.guid() }
    }

    pub(super) fn top_config(&self, vdev: u64) -> Result<NvList> {
        let top = self.config.lock().top(vdev).cloned();
        top.ok_or_else(|| Error::corrupt(format!("the configuration has no top-level vdev {vdev}")))
    }

    /// Everything is copied, and durable: the vdev becomes indirect (syncing context).
    #[doc(alias("vdev_remove_complete", "vdev_remove_complete_sync", "spa_finish_removal"))]
    pub(super) fn complete_removal(&self, at: &MosTx<'_>, mut removal: SpaRemoving) -> Result<()> {
        let vdev = removal.removing_vdev;
        let old = self.top_config(vdev)?;
        let (mapping, births) = self.mapping_objects(vdev)?;
        let number = |name: &str| old.u64(name).unwrap_or(0);
        let mut left = NvList::new();
        left.add("type", "indirect").add("id", vdev).add("guid", at.guid());
        for (name, value) in [
            ("whole_disk", 0),
            ("metaslab_array", 0),
            ("metaslab_shift", number("metaslab_shift")),
            ("ashift", number("ashift")),
            ("asize", number("asize")),
            ("is_log", 0),
            (NON_ALLOCATING, 1),
            (MAPPING, mapping),
            (BIRTHS, births),
            ("create_txg", number("create_txg")),
            (TOP_ZAP, number(TOP_ZAP)),
        ] {
            left.add(name, value);
        }
        if removal.prev_indirect_vdev != state::NONE {
            left.add(PREVIOUS, removal.prev_indirect_vdev);
        }
        let copies = self.space.copied(vdev).ok_or_else(|| Error::corrupt("the removal is not known"))?;
        let copies = copies.with_births(objects::births(at, births)?);
        let config = self.label_leaving(vdev, &old, Some(left))?;
        let described = config.children.iter().find(|child| child.id == vdev);
        let described = described.ok_or_else(|| Error::corrupt("the indirect vdev is not in its tree"))?;
        let layout = Layout::Indirect(RwLock::new(Some(Arc::new(copies))));
        let top = Top::new(described, layout, &|_| None, None, true);
        let tree = self.pool.zio.tree().with_top(config, vdev, Some(Arc::clone(&top)));
        self.destroy_leaves(at, &old)?;
        let unflushed = self.space.end_evacuation(top, &mut self.store_at(at))?;
        if unflushed != 0 {
            at.free_object(unflushed)?;
            at.zap_remove(number(TOP_ZAP), vdev_top::MS_UNFLUSHED_PHYS_TXGS)?;
        }
        self.put_tree(tree);
        removal.prev_indirect_vdev = vdev;
        self.end_removal(at, removal, state::FINISHED)?;
        self.log("vdev remove completed", "", 0, &format!("{} vdev {vdev}", self.pool.name), at.tx)?;
        self.notify("vdev_remove_dev");
        Ok(())
    }

    /// The vdev tree without the leaves of a vdev that has left.
    pub(super) fn put_tree(&self, tree: Tree) {
        let tree = Arc::new(tree);
        self.pool.zio.set_tree(Arc::clone(&tree));
        self.sweeps.follow(&tree, &HashMap::new());
    }

    /// Takes a top-level vdev out of the configuration, `left` is in its place. Its leaves get labels of no pool once the
    /// txg is on disk. Returns the configuration.
    pub(super) fn label_leaving(&self, vdev: u64, old: &NvList, left: Option<NvList>) -> Result<VdevConfig> {
        let tree = self.pool.zio.tree();
        let (before, facts) = {
            let config = self.config.lock();
            (config.root().clone(), config.facts_of(0, &[]))
        };
        let mut root = before.clone();
        if let Some(NvValue::ListArray(tops)) = root.get_mut("children") {
            match left {
                Some(left) => {
                    tops.iter_mut()
                        .filter(|top| top.u64("id") == Some(vdev))
                        .for_each(|top| *top = left.clone());
                }
                None => tops.retain(|top| top.u64("id") != Some(vdev)),
            }
        }
        let config = VdevConfig::parse(&root)?;
        for guid in leaves(old) {
            if let Some(leaf) = tree.leaf(guid) {
                let label = facts.first_label(&before, guid, 0)?;
                self.removing.leaving.lock().push((Arc::clone(leaf), label));
            }
        }
        self.config.lock().change_root(|old| *old = root);
        Ok(config)
    }

    /// Destroys the MOS objects of a vdev's leaves: their ZAPs and DTLs.
    #[doc(alias("vdev_remove_enlist_zaps", "vdev_destroy_unlink_zap"))]
    pub(super) fn destroy_leaves(&self, at: &MosTx<'_>, vdev: &NvList) -> Result<()> {
        if let Some(zap) = vdev.u64(LEAF_ZAP).filter(|zap| *zap != 0) {
            self.destroy_zap(at, zap)?;
        }
        if let Some(dtl) = vdev.u64("DTL").filter(|dtl| *dtl != 0) {
            let object = self.mos.view().object(dtl)?;
            let block_size = u64::from(object.dnode.datablkszsec) << ondisk::MIN_BLOCK_SHIFT;
            let what = SpaceObject::Map { block_size, head: object.dnode.bonus().len() };
            self.store_at(at).free(&what, dtl)?;
        }
        let children = vdev.nvlist_array("children").unwrap_or_default();
        children.iter().try_for_each(|child| self.destroy_leaves(at, child))
    }

    pub(super) fn destroy_zap(&self, at: &MosTx<'_>, zap: u64) -> Result<()> {
        if let Some(all) = at.zap_word(MOS_DIRECTORY_OBJECT, mos::VDEV_ZAP_MAP)? {
            at.zap_remove(all, &int_name(zap))?;
        }
        at.free_object(zap)
    }

    /// Cancels the removal (syncing context): the copies are freed, the vdev is allocated from again.
    #[doc(alias = "spa_vdev_remove_cancel_sync")]
    pub(super) fn cancel_removal(&self, at: &MosTx<'_>, removal: SpaRemoving) -> Result<()> {
        let vdev = removal.removing_vdev;
        let (mapping, births) = self.mapping_objects(vdev)?;
        let list = self.top_config(vdev)?;
        let zap = list.u64(TOP_ZAP).unwrap_or(0);
        if let Some((what, object)) = self.space.cancel_evacuation(vdev, at.tx.txg())? {
            self.store_at(at).free(&what, object)?;
        }
        if at.zap_word(zap, vdev_top::OBSOLETE_COUNTS_ARE_PRECISE)?.is_some() {
            at.zap_remove(zap, vdev_top::OBSOLETE_COUNTS_ARE_PRECISE)?;
            at.count(Feature::ObsoleteCounts, -1)?;
        }
        objects::free_mapping(at, mapping)?;
        at.free_object(births)?;
        at.count(Feature::DeviceRemoval, -1)?;
        let keeps_closed = at.zap_word(zap, "allocating")? == Some(0);
        self.describe_top(vdev, &mut |top| {
            [MAPPING, BIRTHS, REMOVING].iter().for_each(|name| drop(top.remove(name)));
            if !keeps_closed {
                top.remove(NON_ALLOCATING);
            }
        })?;
        self.reopen_top(vdev);
        self.end_removal(at, removal, state::CANCELED)?;
        let path = list.str("path").unwrap_or("-");
        let details = format!("{} vdev {vdev} {path}", self.pool.name);
        self.log("vdev remove canceled", "", 0, &details, at.tx)
    }

    /// Changes the configuration of a top-level vdev.
    pub(super) fn describe_top(&self, vdev: u64, change: &mut dyn FnMut(&mut NvList)) -> Result<()> {
        let described = {
            let mut config = self.config.lock();
            config.change_root(|root| {
                if let Some(NvValue::ListArray(tops)) = root.get_mut("children") {
                    tops.iter_mut().filter(|top| top.u64("id") == Some(vdev)).for_each(change);
                }
            });
            VdevConfig::parse(config.root())?
        };
        let tree = self.pool.zio.tree();
        self.pool.zio.set_tree(Arc::new(Tree::changed(described, Some(&tree), &Change::default())?));
        Ok(())
    }

    /// Allocates on a vdev again, if nothing else forbids it.
    pub(super) fn reopen_top(&self, vdev: u64) {
        if let Some(top) = self.pool.zio.tree().top(vdev) {
            let closed = vdev_props::is_closed(&top, &self.config.lock());
            self.space.set_closed(vdev, closed);
        }
    }

    fn end_removal(&self, at: &MosTx<'_>, mut removal: SpaRemoving, how: u64) -> Result<()> {
        removal.state = how;
        removal.end_time = at.seconds();
        state::store(at, &removal)?;
        self.removing.active.store(false, Ordering::Release);
        self.removing.births.lock().clear();
        // Copies that a leaf missed can be found by a resilver from now on.
        self.scanning.look_again();
        Ok(())
    }

    /// Relabels devices that have left the pool, once that is on disk. One that cannot be labelled any more
    /// has a guid that the pool does not know.
    #[doc(alias = "VDEV_LABEL_REMOVE")]
    pub(in crate::spa) fn relabel_left(&self) {
        let leaving = std::mem::take(&mut *self.removing.leaving.lock());
        for (leaf, label) in leaving {
            if leaf.device().is_some() {
                let _ = init_leaf(&leaf, &label, &*self.pool.env.executor);
            }
        }
    }
}

/// Guids of the leaves at or below a vdev.
fn leaves(vdev: &NvList) -> Vec<u64> {
    match vdev.nvlist_array("children") {
        Some(children) => children.iter().flat_map(leaves).collect(),
        None => vdev.u64("guid").into_iter().collect(),
    }
}
