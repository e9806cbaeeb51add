//! One transaction for any change of the vdev tree.
//!
//! A caller (add, attach, detach, replace, split, growth, start and end of an expansion or a removal) edits a copy of the
//! configuration and adds what it cannot express: devices of new leaves, their DTLs, classes of new tops, the mapping of a
//! removed one. [`VdevTree::change`] then makes configuration, tree, allocator, labels, DTLs, vdev ZAPs change together, in
//! syncing context of a txg `n`. `offline`, `online` and faults need no new tree and set the health of a leaf
//! (`super::health`). Each step of an expansion and of a reconstruction exchanges one top-level vdev by another of the same
//! configuration, which holds back other writes ([`VdevTree::exchange_top`]).
//!
//! States of a change:
//! 1. *Checked.* The tree of the new configuration is built; new leaves are labelled, with txg 0. All
//!    refusals happen here: nothing of the pool has changed.
//! 2. *In force in memory.* The new tree serves reads and writes. A top-level vdev that the edit leaves alone is the same
//!    object as before; a changed one shares the requests in flight with the one before. The change waits for
//!    all writes through the old tree, so that DTLs are complete; [`VdevChange::judge`] may still refuse
//!    then, and the old tree is put back.
//! 3. *Noted.* Leaves that leave lose their labels; the configuration, ZAPs and the allocator follow. The commit of `n`
//!    writes it into the MOS and the labels.
//!
//! Why power may be lost at any moment: until the uberblock of `n` is written, the pool is that of `n - 1`, whose
//! configuration the MOS and the odd labels have. New leaves have a label that counts for nothing. A leaf that leaves has
//! lost its label and is missing from that tree, which can do without it: a required leaf is never let go.
//! New leaves are written to by txgs that are open while `n` is written only in part (those of blocks that
//! were already under way are missing): the DTL of a new leaf therefore covers [`NOT_YET`] txgs from `n` on.
//!
//! Lock order: as in syncing context; the configuration's lock is held for moments only, never while anything is read,
//! written or waited for.
//!
//! Format source: `spa_vdev_add`, `spa_vdev_attach`, `spa_vdev_detach`, spa.c, OpenZFS 2.3. Differs from OpenZFS: no lock
//! stops all I/O; the config lock's work is done by [`crate::zio::Zio::drain`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvpair::{NvList, NvValue};
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos, vdev_top};
use zcommon::features::Feature;

use super::Spa;
use super::create::label_leaves;
use super::layout::config::{LEAF_ZAP, TOP_ZAP, put_in_order};
use super::space_store::SpaceStore;
use super::subjects::VdevTree;
use super::vdev_props::is_closed;
use super::vdev_zaps::vdev_zaps;
use crate::dmu::Tx;
use crate::error::{Error, Result};
use crate::metaslab::TopRecord;
use crate::txg;
use crate::vdev::config::{AllocBias, Kind, VdevConfig};
use crate::vdev::label;
use crate::vdev::leaf::Leaf;
use crate::vdev::top::Top;
use crate::vdev::tree::{Tree, TreeChange};
use crate::zap::{Zap, ZapEdit, int_name};

/// Txgs, from the one that is written on, of which a new leaf may lack something.
pub(super) const NOT_YET: u64 = txg::CONCURRENT;

/// The label left on a leaf that leaves the tree.
#[derive(Debug)]
pub(super) enum Retired {
    /// A label that belongs to no pool.
    Blank,
    /// The same, once the txg is on disk: the vdev is read until then.
    BlankAfterTxg,
    /// The label of a hot spare, from its entry in the MOS's list.
    Spare(NvList),
}

/// Called with the old tree once its writes have ended; may refuse the change.
pub(super) type ChangeJudge<'a> = Box<dyn Fn(&Tree) -> Result<()> + 'a>;

/// A change of the vdev tree that a caller wants.
pub(super) struct VdevChange<'a> {
    /// The tree after the change, as the MOS keeps it: an edited copy of the configuration's. The change
    /// creates the MOS objects (ZAPs, DTLs) of new vdevs.
    pub(crate) root: NvList,
    /// Devices of new leaves, leaves with another guid or path, and the state of an expansion.
    pub(crate) brings: TreeChange,
    /// New top-level vdevs with metaslabs, by number, and their allocation classes.
    pub(crate) new_tops: BTreeMap<u64, AllocBias>,
    /// Leaves, by guid, that lack everything born before the change.
    pub(crate) blank: Vec<u64>,
    /// Leaves, by guid, that leave the tree and are to belong to the pool no more.
    pub(crate) retired: Vec<(u64, Retired)>,
    /// The last chance to refuse.
    pub(crate) judge: Option<ChangeJudge<'a>>,
}

impl VdevChange<'_> {
    /// A change that changes nothing yet.
    pub(crate) fn of(spa: &Spa) -> Self {
        Self {
            root: spa.config.lock().root().clone(),
            brings: TreeChange::default(),
            new_tops: BTreeMap::new(),
            blank: Vec::new(),
            retired: Vec::new(),
            judge: None,
        }
    }

    /// The configurations of the top-level vdevs.
    ///
    /// # Errors
    /// When the configuration has none.
    pub(super) fn tops(&mut self) -> Result<&mut Vec<NvList>> {
        match self.root.get_mut("children") {
            Some(NvValue::ListArray(tops)) => Ok(tops),
            _ => Err(Error::corrupt("the pool's configuration has no vdevs")),
        }
    }
}

impl VdevTree<'_> {
    /// Makes a change of the vdev tree (syncing context); returns the tree before it.
    ///
    /// # Errors
    /// When the new tree makes no sense, a new leaf can't be labelled, or the change's judge refuses: nothing has changed
    /// then. When the MOS cannot be read or written, which is the txg's failure, too.
    #[doc(alias("spa_vdev_enter", "spa_vdev_exit"))]
    pub(super) fn change(self, change: VdevChange<'_>, tx: &Tx) -> Result<Arc<Tree>> {
        let VdevChange { mut root, brings, new_tops, blank, retired, judge } = change;
        put_in_order(&mut root);
        let known = self.spa.pool.zio.tree();
        let tree = Arc::new(Tree::changed(VdevConfig::parse(&root)?, Some(&known), &brings)?);
        let records = fresh(&tree, &new_tops)?;
        let is_new = |leaf: &&Arc<Leaf>| !known.leaves().any(|old| old.is_same(leaf));
        let facts = self.spa.config.lock().facts_of(0, &[]);
        let new: Vec<_> = tree.leaves().filter(is_new).cloned().collect();
        label_leaves(&self.spa.pool.env, new, &facts, &root, tx.txg())?;

        for leaf in blank.iter().filter_map(|guid| tree.leaf(*guid)) {
            leaf.miss_all(txg::INITIAL, tx.txg() + NOT_YET);
        }
        self.spa.pool.zio.set_tree(Arc::clone(&tree));
        self.spa.pool.zio.drain(&known);
        if let Some(Err(why)) = judge.map(|judge| judge(&known)) {
            self.spa.pool.zio.set_tree(known);
            // Leaves that were to leave lack the writes of the meantime.
            let open = self.spa.txgs.synced() + 1..=self.spa.txgs.open();
            let back = self.spa.pool.zio.tree();
            let left = back.leaves().filter(|leaf| !tree.leaves().any(|kept| kept.is_same(leaf)));
            left.for_each(|leaf| open.clone().for_each(|txg| leaf.miss(txg)));
            return Err(why);
        }

        // From here on nothing can be refused.
        for (guid, rest) in &retired {
            retire(self.spa, &known, *guid, rest);
        }
        end_space(self.spa, &known, &tree, tx)?;
        let mut before = NvList::new();
        self.spa.config.lock().change_root(|old| before = std::mem::replace(old, root));
        let classes = |id: u64| new_tops.get(&id).and_then(|class| class.word());
        let of_root = self.spa.features.is_active(Feature::VdevZapsV2);
        vdev_zaps(&self.spa.pool.env, &self.spa.mos, &self.spa.config, (&classes, of_root), tx)?;
        self.free_left(&before, tx)?;
        records.into_iter().try_for_each(|record| self.spa.space.add_top(record))?;
        for top in tree.tops().filter(|top| known.top(top.id).is_none_or(|old| !Arc::ptr_eq(&old, top))) {
            self.spa.space.set_top(top);
            self.spa.space.set_closed(top.id, is_closed(top, &self.spa.config.lock()));
        }
        self.spa.sweeps.follow(&tree, &brings.renamed);
        Ok(known)
    }

    /// Exchanges a top-level vdev by one of the same configuration (syncing context), and waits for all requests that began
    /// before.
    pub(super) fn exchange_top(self, new: &Arc<Top>) {
        let known = self.spa.pool.zio.tree();
        self.spa.pool.zio.set_tree(Arc::new(known.with_top(new)));
        self.spa.space.set_top(new);
        self.spa.pool.zio.drain(&known);
    }

    /// Edits the configuration of a top-level vdev, as a change of the vdev tree (syncing context).
    ///
    /// # Errors
    /// The errors of [`VdevTree::change`].
    pub(super) fn edit_top(self, vdev: u64, edit: &mut dyn FnMut(&mut NvList), tx: &Tx) -> Result<()> {
        let mut change = VdevChange::of(self.spa);
        change.tops()?.iter_mut().filter(|top| top.u64("id") == Some(vdev)).for_each(edit);
        self.change(change, tx).map(drop)
    }

    /// Labels the leaves that have left with the txg which is now on disk. One that cannot be labelled any more has a guid
    /// that the pool does not know.
    #[doc(alias = "VDEV_LABEL_REMOVE")]
    pub(super) fn label_retired(self) {
        let retired = std::mem::take(&mut *self.spa.retired.lock());
        for (leaf, label) in retired {
            if leaf.device().is_some() {
                let _ = label::init_leaf(&leaf, &label, &*self.spa.pool.env.executor);
            }
        }
    }

    /// Frees DTLs and ZAPs of vdevs that are no longer in the tree.
    #[doc(alias("vdev_destroy_unlink_zap", "vdev_dtl_sync"))]
    pub(super) fn free_left(self, before: &NvList, tx: &Tx) -> Result<()> {
        let kept = objects(self.spa.config.lock().root());
        let gone: Vec<(bool, u64)> = objects(before).difference(&kept).copied().collect();
        if gone.is_empty() {
            return Ok(());
        }
        let view = self.spa.mos.view();
        let all = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(mos::VDEV_ZAP_MAP)?;
        let at = self.spa.datasets.at(tx, self.spa);
        for (is_zap, number) in gone {
            match all.filter(|_| is_zap) {
                Some(all) => {
                    ZapEdit::open(&mut self.spa.mos.handle(all)?.edit(tx))?
                        .remove(int_name(number).as_str())?;
                    at.free_object(number)?;
                }
                None => self.free_space_map(number, tx)?,
            }
        }
        Ok(())
    }
}

/// Labels a leaf that leaves. One that can't be written may be leaving for that reason.
#[doc(alias = "VDEV_LABEL_REMOVE")]
fn retire(spa: &Spa, tree: &Tree, guid: u64, rest: &Retired) {
    let Some(leaf) = tree.leaf(guid) else { return };
    let config = spa.config.lock();
    let facts = config.facts_of(0, &spa.features.in_labels());
    let list = match rest {
        Retired::Spare(entry) => Ok(facts.spare_label(entry)),
        Retired::Blank | Retired::BlankAfterTxg => facts.first_label(config.root(), guid, 0),
    };
    drop(config);
    let Ok(list) = list else { return };
    if let Retired::BlankAfterTxg = rest {
        spa.retired.lock().push((Arc::clone(leaf), list));
    } else if leaf.is_writable() {
        let _ = label::init_leaf(leaf, &list, &*spa.pool.env.executor);
    }
}

/// Frees the space maps of top-level vdevs that have left or have become indirect.
#[doc(alias("vdev_destroy_spacemaps", "vdev_remove_replace_with_indirect"))]
fn end_space(spa: &Spa, known: &Tree, tree: &Tree, tx: &Tx) -> Result<()> {
    let at = spa.datasets.at(tx, spa);
    let mut store = SpaceStore::of(spa, tx);
    for old in known.config.children.iter().filter(|old| !is_place(old.kind)) {
        let new = tree.config.children.iter().find(|new| new.id == old.id);
        let unflushed = match (new.map(|new| new.kind), tree.top(old.id)) {
            (Some(Kind::Indirect), Some(top)) => spa.space.end_evacuation(top, &mut store)?,
            (None | Some(Kind::Hole), _) => spa.space.forget_top(old.id, &mut store)?,
            _ => 0,
        };
        if unflushed != 0 {
            at.free_object(unflushed)?;
        }
        let zap = spa.config.lock().top(old.id).and_then(|top| top.u64(TOP_ZAP)).filter(|zap| *zap != 0);
        if let Some(zap) = zap.filter(|_| unflushed != 0) {
            at.zap_remove(zap, vdev_top::MS_UNFLUSHED_PHYS_TXGS)?;
        }
    }
    Ok(())
}

/// Whether a top-level vdev of this kind only keeps its number, or a mapping.
fn is_place(kind: Kind) -> bool {
    matches!(kind, Kind::Indirect | Kind::Hole)
}

/// DTLs (`false`) and ZAPs (`true`) of a vdev and all below it.
fn objects(vdev: &NvList) -> BTreeSet<(bool, u64)> {
    let mut found: BTreeSet<(bool, u64)> = [(false, "DTL"), (true, LEAF_ZAP), (true, TOP_ZAP)]
        .into_iter()
        .filter_map(|(is_zap, key)| Some((is_zap, vdev.u64(key).filter(|&number| number != 0)?)))
        .collect();
    for child in vdev.nvlist_array("children").unwrap_or_default() {
        found.extend(objects(child));
    }
    found
}

/// The records of new tops for the allocator.
fn fresh(tree: &Tree, new: &BTreeMap<u64, AllocBias>) -> Result<Vec<TopRecord>> {
    let mut records = Vec::new();
    for (id, bias) in new {
        let config = tree.config.children.iter().find(|config| config.id == *id);
        let found = config.and_then(|config| Some((config, tree.top(*id)?)));
        let (config, top) = found.ok_or_else(|| Error::corrupt("a new vdev is not in its tree"))?;
        records.push(TopRecord { bias: *bias, ..TopRecord::fresh(top, config)? });
    }
    Ok(records)
}
