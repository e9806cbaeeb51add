//! `zpool detach`, and the end of `replacing` and `spare` vdevs.
//!
//! A leaf may leave a `mirror`, `replacing` or `spare` when nothing can only be read with its help. When one child is left,
//! that child takes the vdev's place; where the vdev was a top-level one, the child also takes its guid, so that labels of
//! a leaf that was away when it happened still name the same top-level vdev.
//!
//! A `replacing` vdev is dissolved when its newest leaf lacks nothing; so is a `spare` whose original has come back or was
//! replaced. Both are looked for at the start of every txg ([`Pairs`]): a resilver's writes are on disk with
//! the txg before, so the old leaf's label may be cleared.
//!
//! Crash safety is that of [`super::vdev_change`].
//!
//! Format source: `spa_vdev_detach`, `spa_vdev_resilver_done_hunt`, spa.c; `vdev_remove_parent`, vdev.c; OpenZFS 2.4.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvpair::{NvList, NvValue};

use super::Spa;
use super::WaitActivity;
use super::activity::{Activity, Due, SyncPoint};
use super::attach::move_top;
use super::layout::config::{find, line};
use super::scrub::is_cut;
use super::space_store::set;
use super::subjects::Disks;
use super::vdev_change::{Retired, VdevChange};
use crate::dmu::Tx;
use crate::dsl::write::Hooks as _;
use crate::error::{Error, Kind, Result};
use crate::vdev::config::{Kind as VdevKind, VdevConfig};
use crate::vdev::leaf::Leaf;
use crate::vdev::tree::Tree;

/// A hot spare in use whose place is needed no more: its original is back, or was replaced.
#[doc(alias = "ZPOOL_CONFIG_UNSPARE")]
pub(super) const UNSPARE: &str = "unspare";

/// Dissolves `replacing` and `spare` vdevs.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// The last try was refused: the next one comes with a txg that is written anyway.
    refused: AtomicBool,
}

/// The configuration without a leaf, and other consequences of the edit.
struct Without {
    root: NvList,
    /// New guid and old guid of leaves whose guid or path changes.
    renamed: Vec<(u64, u64)>,
    /// The hot spare that becomes an ordinary leaf.
    unspared: Option<u64>,
}

impl Activity for Pairs {
    fn is_due(&self, spa: &Spa) -> Due {
        let refused = self.refused.load(Ordering::Acquire);
        if !refused && done_with(spa).is_some() { Due::Now } else { Due::No }
    }

    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if moment != SyncPoint::BeforeTasks {
            return Ok(());
        }
        self.refused.store(false, Ordering::Release);
        while let Some((old, spare)) = done_with(spa) {
            let done = detach_now(spa, old, tx);
            let done = done.and_then(|()| spare.map_or(Ok(()), |spare| detach_now(spa, spare, tx)));
            if done.is_err() {
                self.refused.store(true, Ordering::Release);
                break;
            }
        }
        Ok(())
    }

    fn left(&self, spa: &Spa, work: WaitActivity) -> Result<Option<u64>> {
        match work {
            WaitActivity::Replace if spa.disks().is_replacing() => {
                Ok(Some(spa.background().left(WaitActivity::Resilver)?.unwrap_or(0)))
            }
            _ => Ok(None),
        }
    }
}

impl Disks<'_> {
    /// Detaches a leaf.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Unsupported` where nothing can be detached, `Busy` when something could not be read
    /// without it. Nothing has changed then.
    #[doc(alias = "spa_vdev_detach")]
    pub fn detach(self, guid: u64) -> Result<()> {
        self.spa.sync_task(move |spa, tx| {
            let spared = spa.spares().spared_by(guid);
            detach_now(spa, guid, tx)?;
            // Nothing has changed for these that calls for a spare: their administrator does without it.
            spa.spares().decline_spares(spared);
            Ok(())
        })?;
        self.settle_left();
        Ok(())
    }

    /// Waits until nothing is written to leaves that have left the tree, or trimmed on them: their devices may be used for
    /// something else. Not in syncing context.
    #[doc(alias = "spa_vdev_config_exit")]
    pub(super) fn settle_left(self) {
        self.spa.sweeps.settle();
        self.spa.free_space().settle_autotrim();
    }

    #[doc(alias = "vdev_dtl_required")]
    pub(super) fn may_leave(self, tree: &Tree, guid: u64) -> Result<()> {
        let Some(leaf) = tree.leaf(guid) else { return Ok(()) };
        let needed = tree
            .tops()
            .any(|top| top.leaves_and_spares().any(|other| other.guid == guid) && top.requires(leaf));
        match needed {
            true => Err(Error::new(Kind::Busy, "no valid replicas")),
            false => Ok(()),
        }
    }

    /// Whether a device is being replaced; `zpool wait -t replace` waits for the end of it. A distributed spare that lacks
    /// rows on a disk out of use cannot get them: it counts while it is filled.
    #[doc(alias("spa_vdev_replace_in_progress", "ZPOOL_WAIT_REPLACE"))]
    pub fn is_replacing(self) -> bool {
        let tree = self.spa.pool.zio.tree();
        let is_filled = self.spa.rebuilds().is_rebuilding() || self.spa.scans().is_resilvering();
        let still_lacks =
            |leaf: &Arc<Leaf>| !leaf.dtl.read().is_empty() && (is_filled || !is_cut(&tree, leaf));
        let lacks =
            |vdev: &VdevConfig| vdev.walk().iter().any(|v| tree.leaf(v.guid).is_some_and(still_lacks));
        tree.config.children.iter().flat_map(VdevConfig::walk).any(|vdev| match vdev.kind {
            VdevKind::Replacing => true,
            VdevKind::Spare => vdev.children.last().is_some_and(lacks),
            _ => false,
        })
    }
}

fn detach_now(spa: &Spa, guid: u64, tx: &Tx) -> Result<()> {
    spa.checkpoint().check_none()?;
    let Without { root, renamed, unspared } = without(spa, guid)?;
    let config = spa.config.lock().root().clone();
    let leaf = find(&config, guid).cloned().unwrap_or_default();
    let path = leaf.str("path").unwrap_or("none").to_owned();
    let top = line(&config, guid).iter().rev().nth(1).and_then(|top| top.u64("id"));
    spa.disks().may_leave(&spa.pool.zio.tree(), guid)?;
    let entry = match leaf.u64("is_spare") {
        Some(1) => spa.spares().spare_entry(guid)?,
        _ => None,
    };
    let mut change = VdevChange::of(spa);
    change.root = root;
    change.brings.renamed.extend(renamed);
    change.retired.push((guid, entry.map_or(Retired::Blank, Retired::Spare)));
    change.judge = Some(Box::new(|old: &Tree| spa.disks().may_leave(old, guid)));
    let before = spa.vdevs().change(change, tx)?;
    if let Some(leaf) = before.leaf(guid) {
        spa.reports().report_leaf("sysevent.fs.zfs.vdev_remove", leaf);
    }
    if let Some(spare) = unspared {
        spa.spares().unlist_spare(spare, tx)?;
    }
    if let Some(top) = top.filter(|_| spa.vdevs().expands_by_itself()) {
        // A vdev that can't grow stays as it is.
        let _ = spa.vdevs().grow(&[top], tx);
    }
    spa.spares().spare_returned();
    spa.log("detach", "", 0, &format!("vdev={path}"), tx)
}

/// The configuration without the leaf.
fn without(spa: &Spa, guid: u64) -> Result<Without> {
    let mut root = spa.config.lock().root().clone();
    let above = line(&root, guid);
    let not_here = || Error::unsupported("only applicable to mirror and replacing vdevs");
    let (leaf, parent) = match above.as_slice() {
        [] => return Err(Error::new(Kind::NotFound, "no such device in pool")),
        [leaf, parent, _, ..] => (*leaf, *parent),
        _ => return Err(not_here()),
    };
    let kind = parent.str("type").unwrap_or_default().to_owned();
    if leaf.contains("children") || !["mirror", "replacing", "spare"].contains(&kind.as_str()) {
        return Err(not_here());
    }
    let is_first = leaf.u64("id") == Some(0);
    let path = leaf.str("path").map(str::to_owned).filter(|_| kind == "replacing" && !is_first);
    let parent_guid = parent.u64("guid").unwrap_or(0);
    let is_top = above.len() == 3;
    let mut out = Without { root: NvList::new(), renamed: Vec::new(), unspared: None };
    change_place(&mut root, parent_guid, &mut |parent| {
        let mut children = parent.nvlist_array("children").unwrap_or_default().to_vec();
        if let Some(path) = &path {
            out.renamed.extend(take_back_path(&mut children, path).map(|guid| (guid, guid)));
        }
        children.retain(|child| child.u64("guid") != Some(guid));
        if let Some(last) = children.last_mut().filter(|_| kind == "spare" && is_first)
            && last.u64("is_spare") == Some(1)
            && last.str("type") != Some("dspare")
        {
            out.unspared = last.u64("guid");
            last.remove("is_spare");
            set(last, UNSPARE, 1);
        }
        close_ranks(parent, children, (is_top, kind == "spare"), &mut out.renamed);
    });
    out.root = root;
    Ok(out)
}

/// A leaf that a `replacing` or `spare` vdev can do without now, and the hot spare that leaves with it.
#[doc(alias = "spa_vdev_resilver_done_hunt")]
fn done_with(spa: &Spa) -> Option<(u64, Option<u64>)> {
    let tree = spa.pool.zio.tree();
    let pairs = || tree.config.children.iter().flat_map(VdevConfig::walk);
    // Children first.
    let pairs = pairs().filter(|vdev| matches!(vdev.kind, VdevKind::Replacing | VdevKind::Spare));
    let pairs: Vec<&VdevConfig> = pairs.collect();
    if pairs.is_empty() {
        return None;
    }
    // The tree's copy of the configuration does not tell of a leaf that came back.
    let root = spa.config.lock().root().clone();
    pairs.iter().rev().find_map(|vdev| {
        let old = left_over(&tree, &root, vdev)?;
        spa.disks().may_leave(&tree, old).ok()?;
        let outer = pairs.iter().find(|outer| {
            outer.kind == VdevKind::Spare
                && vdev.kind == VdevKind::Replacing
                && outer.children.len() == 2
                && vdev.children.len() == 2
                && outer.children.first().is_some_and(|first| first.guid == vdev.guid)
        });
        let spare = outer.and_then(|outer| outer.children.get(1)).map(|spare| spare.guid);
        Some((old, spare))
    })
}

/// The child of a pair that is not wanted any more.
fn left_over(tree: &Tree, root: &NvList, vdev: &VdevConfig) -> Option<u64> {
    let (first, last) = (vdev.children.first()?, vdev.children.last()?);
    let is_whole = |vdev: &VdevConfig| {
        tree.leaf(vdev.guid).is_some_and(|leaf| leaf.takes_resilver() && leaf.dtl.read().is_empty())
    };
    if vdev.kind == VdevKind::Replacing {
        return is_whole(last).then_some(first.guid).filter(|_| first.kind.is_leaf());
    }
    let has = |vdev: &VdevConfig, key: &str| find(root, vdev.guid).and_then(|v| v.u64(key)).unwrap_or(0) != 0;
    let (old, new) = match (has(last, UNSPARE), has(first, UNSPARE)) {
        (true, _) => (first, last),
        (_, true) => (last, first),
        _ => {
            // Unneeded spares of several become free for other vdevs.
            let second = vdev.children.get(1).filter(|_| vdev.children.len() > 2)?;
            let spares = has(second, "is_spare") && has(last, "is_spare");
            return (spares && is_whole(last)).then_some(second.guid);
        }
    };
    (is_whole(new) && old.kind.is_leaf()).then_some(old.guid)
}

/// Changes the vdev of this guid.
fn change_place(vdev: &mut NvList, guid: u64, change: &mut dyn FnMut(&mut NvList)) -> bool {
    if vdev.u64("guid") == Some(guid) {
        change(vdev);
        return true;
    }
    match vdev.get_mut("children") {
        Some(NvValue::ListArray(children)) => {
            children.iter_mut().any(|child| change_place(child, guid, change))
        }
        _ => false,
    }
}

/// Takes a leaf from a mirror that is a top-level vdev; `renamed` gets the leaf whose guid changes, if there is one.
#[doc(alias = "vdev_split")]
pub(super) fn leave_mirror(mirror: &mut NvList, leaf: u64, renamed: &mut Vec<(u64, u64)>) {
    let mut children = mirror.nvlist_array("children").unwrap_or_default().to_vec();
    children.retain(|child| child.u64("guid") != Some(leaf));
    close_ranks(mirror, children, (true, false), renamed);
}

/// Collapses a vdev whose `children` are left.
fn close_ranks(
    parent: &mut NvList,
    mut children: Vec<NvList>,
    (is_top, was_spare): (bool, bool),
    renamed: &mut Vec<(u64, u64)>,
) {
    match children.as_mut_slice() {
        [only] => {
            let only = std::mem::take(only);
            *parent = take_place(parent, only, is_top, was_spare, renamed);
        }
        _ => {
            (0..).zip(&mut children).for_each(|(id, child)| set(child, "id", id));
            parent.remove("children");
            parent.add("children", children);
        }
    }
}

/// The last child takes the place of its parent.
#[doc(alias = "vdev_remove_parent")]
fn take_place(
    parent: &NvList,
    mut only: NvList,
    is_top: bool,
    was_spare: bool,
    renamed: &mut Vec<(u64, u64)>,
) -> NvList {
    let mut parent = parent.clone();
    set(&mut only, "id", parent.u64("id").unwrap_or(0));
    if was_spare {
        only.remove(UNSPARE);
    }
    if is_top {
        move_top(&mut parent, &mut only);
        let (above, own) = (parent.u64("guid").unwrap_or(0), only.u64("guid").unwrap_or(0));
        set(&mut only, "guid", above);
        // A leaf that got its path back is known by both changes.
        renamed.retain(|(new, _)| *new != own);
        if !only.contains("children") {
            renamed.push((above, own));
        }
    }
    only
}

/// Undoes the renaming of a leaf that was to be replaced by a device with the same path; its guid.
fn take_back_path(children: &mut [NvList], path: &str) -> Option<u64> {
    let renamed = format!("{path}/old");
    let old = children.iter_mut().find(|child| child.str("path") == Some(&renamed))?;
    old.remove("path");
    old.add("path", path);
    old.u64("guid")
}
