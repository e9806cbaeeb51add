//! `zpool split`: one leaf of each mirror leaves the pool, and these leaves are a pool of their own.
//!
//! The new pool has the MOS of the last txg `n` of the old one; its own first txg `n + 1` replaces the old
//! pool's parts of it: the configuration (name, guid, vdev tree), vdev ZAPs and DTLs of the leaves that stay,
//! logs and intent logs, the lists of spares and cache devices. It is opened on the devices of its leaves as
//! any pool is ([`super::import`]), from a configuration that is made here.
//!
//! Order of writes:
//! 1. Intent logs are emptied, sweeps of the leaves suspended, and a txg of the old pool notes the leaves that leave
//!    (`split_list`).
//! 2. In syncing context of the next txg of the old pool the leaves leave its tree; the split waits for all
//!    writes through the old tree. From here on the old pool writes to the leaves that stay only.
//! 3. The new pool writes its first txg, whose labels mark it as exported, and is closed.
//! 4. The txg of the old pool is committed, with a configuration without the leaves.
//!
//! Why power may be lost at any moment: until step 3 commits, labels of all leaves are those of the old pool, and its
//! uberblock of `n` refers to nothing that was overwritten: the new pool only writes to space that is free in `n`, and only to
//! its own leaves. The old pool is whole. After step 3 the new pool is whole, and the leaves that stay hold all that the old pool
//! refers to: a leaf that something requires, or that lacks something, is refused in step 2. Until step 4 the old
//! pool's configuration still has the leaves that left; their labels name another pool, so that they count as missing there until
//! they are detached, and OpenZFS takes them out by itself at import, by the note of step 1. The labels of several leaves
//! cannot be written in one step: power lost within step 3's label writes leaves the old pool without those leaves that
//! have new labels, and with all of its data.
//!
//! When step 3 fails, the leaves return to the old pool, and lack its writes of the meantime.
//!
//! Format source: `spa_vdev_split_mirror`, spa.c; `spa_config_generate`, spa_config.c; OpenZFS 2.4. Differs from OpenZFS: the
//! first txg of the new pool is its only one; sweeps of the leaves stay suspended in the new pool.

use nvpair::{NvList, NvValue};
use zcommon::health::Health;
use zcommon::vdev::PoolState;
use zcommon::version::SPA_VERSION_HOLES;

use super::Spa;
use super::detach::leave_mirror;
use super::import::{ImportOptions, drop_log, import_split};
use super::layout::config::{PoolFacts, SplitNote, find};
use super::source::{FoundUberblock, ImportSource, OpenOptions};
use super::space_store::set;
use super::subjects::VdevTree;
use super::sweep::{SweepCommand, SweepKind, TrimOptions};
use super::vdev_change::VdevChange;
use crate::dmu::Tx;
use crate::dsl::props::PropValue;
use crate::dsl::write::Hooks as _;
use crate::error::{Error, Kind, Result};
use crate::vdev::config::{Kind as VdevKind, VdevConfig};
use crate::vdev::tree::{Devices, Tree};

/// A split that a caller wants.
#[derive(Debug, Clone)]
pub struct Split {
    /// The new pool's name.
    pub name: String,
    /// Guids of the leaves that leave: one of each mirror.
    pub leaves: Vec<u64>,
    /// Properties that the new pool gets.
    pub props: Vec<(String, PropValue)>,
}

impl VdevTree<'_> {
    /// Makes a new, exported pool of one leaf of each mirror; returns its guid.
    ///
    /// # Errors
    /// `Invalid` when the leaves are not one working leaf of each mirror, or something else than mirrors holds data;
    /// `Busy` when a leaf lacks something or another one needs it, or an intent log waits for its replay; those of
    /// `Checkpointing::check_none`. The pool is as before then.
    #[doc(alias = "spa_vdev_split_mirror")]
    pub fn split(self, wish: Split) -> Result<u64> {
        self.spa.checkpoint().check_none()?;
        self.spa.logs().reset()?;
        let leaving = check_split(self.spa, &wish.leaves)?;
        let swept = suspend_sweeps(self.spa, &wish.leaves)?;
        let leaves = wish.leaves.clone();
        let done = self.spa.sync_task(move |spa, _| {
            note_split(spa, Some(SplitNote::Leaving(leaving)));
            Ok(())
        });
        let done = done.and_then(|()| self.spa.sync_task(move |spa, tx| split_now(spa, &wish, tx)));
        if done.is_err() {
            resume_sweeps(self.spa, &swept, &leaves);
            // A pool that is suspended by now keeps the note, which counts for nothing while the leaves are its own.
            let _ = self.spa.sync_task(move |spa, _| {
                note_split(spa, None);
                Ok(())
            });
        }
        done
    }
}

fn note_split(spa: &Spa, note: Option<SplitNote>) {
    spa.config.lock().change_facts(|facts| facts.split = note);
}

/// The leaves by top-level vdev.
fn check_split(spa: &Spa, leaves: &[u64]) -> Result<Vec<u64>> {
    let tree = spa.pool.zio.tree();
    let invalid = || Error::new(Kind::Invalid, "invalid argument for this pool operation");
    if spa.removal().is_active() {
        // The new pool would have a vdev that is half removed, and copies on leaves that stay.
        return Err(Error::new(Kind::Busy, "pool is busy"));
    }
    // Logs stay, and in the new pool a hole takes the place of each but the last.
    let mut from_log = tree.config.children.iter().skip_while(|top| !is_log(&top.nvlist));
    if spa.version() < SPA_VERSION_HOLES && from_log.any(|top| !is_log(&top.nvlist)) {
        return Err(Error::unsupported("operation not supported on this type of pool"));
    }
    let mut all = Vec::new();
    for top in &tree.config.children {
        let is_data = !matches!(top.kind, VdevKind::Hole | VdevKind::Indirect) && !is_log(&top.nvlist);
        let mine: Vec<&VdevConfig> =
            top.children.iter().filter(|child| leaves.contains(&child.guid)).collect();
        let leaf = match mine.as_slice() {
            [] if !is_data => None,
            [leaf] if is_data && top.kind == VdevKind::Mirror && leaf.kind.is_leaf() => Some(leaf.guid),
            _ => return Err(invalid()),
        };
        all.push(leaf.unwrap_or(0));
    }
    if all.iter().filter(|guid| **guid != 0).count() != leaves.len() {
        let is_known = |guid: &u64| tree.leaf(*guid).is_some();
        return Err(match leaves.iter().all(is_known) {
            true => invalid(),
            false => Error::new(Kind::NotFound, "no such device in pool"),
        });
    }
    for guid in leaves {
        let leaf = tree.leaf(*guid).ok_or_else(invalid)?;
        if leaf.health() != Health::ONLINE || !leaf.is_writable() {
            return Err(invalid());
        }
        may_split(spa, &tree, *guid)?;
    }
    Ok(all)
}

/// Whether the pool can do without the leaf, and the leaf without the pool.
fn may_split(spa: &Spa, tree: &Tree, guid: u64) -> Result<()> {
    let busy = || Error::new(Kind::Busy, "pool is busy");
    spa.disks().may_leave(tree, guid).map_err(|_| busy())?;
    let leaf = tree.leaf(guid).ok_or_else(busy)?;
    if leaf.dtl.read().is_empty() { Ok(()) } else { Err(busy()) }
}

/// Sweeps write to free space, which the new pool allocates.
fn suspend_sweeps(spa: &Spa, leaves: &[u64]) -> Result<Vec<(SweepKind, u64)>> {
    let mut suspended = Vec::new();
    for kind in SweepKind::ALL {
        let refused = spa.free_space().sweep(kind, SweepCommand::Suspend, TrimOptions::default(), leaves)?;
        suspended.extend(leaves.iter().filter(|leaf| !refused.contains_key(leaf)).map(|leaf| (kind, *leaf)));
    }
    Ok(suspended)
}

fn resume_sweeps(spa: &Spa, swept: &[(SweepKind, u64)], leaves: &[u64]) {
    for (kind, leaf) in swept.iter().filter(|(_, leaf)| leaves.contains(leaf)) {
        // The error that ended the split is the one to report.
        let _ = spa.free_space().sweep(*kind, SweepCommand::Start, TrimOptions::default(), &[*leaf]);
    }
}

fn split_now(spa: &Spa, wish: &Split, tx: &Tx) -> Result<u64> {
    spa.checkpoint().check_none()?;
    check_split(spa, &wish.leaves)?;
    let before = spa.config.lock().root().clone();
    let new = NewRoot::of(&before, &wish.leaves, spa.pool.env.guid());
    let mut change = VdevChange::of(spa);
    let mut renamed = Vec::new();
    if let Some(NvValue::ListArray(tops)) = change.root.get_mut("children") {
        for top in tops.iter_mut().filter(|top| !is_log(top)) {
            if let Some(leaf) = leaf_below(top, &wish.leaves) {
                leave_mirror(top, leaf, &mut renamed);
            }
        }
    }
    change.brings.renamed.extend(renamed);
    change.judge = Some(Box::new(|old: &Tree| {
        wish.leaves.iter().try_for_each(|guid| may_split(spa, old, *guid))?;
        spa.free_space().settle_autotrim();
        make_split(spa, wish, &new, old)
    }));
    spa.vdevs().change(change, tx)?;
    note_split(spa, None);
    for leaf in wish.leaves.iter().filter_map(|guid| find(&before, *guid)) {
        let path = leaf.str("path").unwrap_or("none");
        spa.log("detach", "", 0, &format!("vdev={path}"), tx)?;
    }
    Ok(new.guid)
}

/// Opens the new pool, writes its first txg, and closes it.
fn make_split(spa: &Spa, wish: &Split, new: &NewRoot, old: &Tree) -> Result<()> {
    let uberblock = *spa.uberblock.lock();
    let (facts, before) = {
        let config = spa.config.lock();
        (config.facts_of(uberblock.txg, &spa.features.in_labels()), config.root().clone())
    };
    let device = |guid: &u64| Some((*guid, old.leaf(*guid)?.device()?));
    let devices: Devices = wish.leaves.iter().filter_map(device).collect();
    let facts = PoolFacts { name: wish.name.clone(), split: None, ..facts };
    let source = ImportSource {
        name: wish.name.clone(),
        guid: new.guid,
        config: facts.mos_config(&new.root),
        devices,
        uberblocks: vec![FoundUberblock { uberblock, copies: 1 }],
        ..ImportSource::default()
    };
    let options = ImportOptions {
        open: OpenOptions { split: true, ..OpenOptions::default() },
        hostid: facts.hostid,
        hostname: facts.hostname.clone(),
        ..ImportOptions::default()
    };
    let (from, props) =
        ((before.u64("guid").unwrap_or(spa.guid()), spa.pool.name.clone()), wish.props.clone());
    let first = |spa: &Spa| {
        let (before, from, props, logs) = (before.clone(), from.clone(), props.clone(), new.logs.clone());
        spa.sync_task(move |spa, tx| first_of_split(spa, &before, &logs, &from, &props, tx))
    };
    let spa = import_split(&spa.pool.env, source, &options, &first)?;
    spa.export()
}

/// The changes of the first txg of the new pool (syncing context).
fn first_of_split(
    spa: &Spa,
    before: &NvList,
    logs: &[u64],
    from: &(u64, String),
    props: &[(String, PropValue)],
    tx: &Tx,
) -> Result<()> {
    let until = spa.txgs.synced();
    spa.logs().logged()?.iter().try_for_each(|log| drop_log(spa, tx, log, until))?;
    spa.vdevs().free_left(before, tx)?;
    let at = spa.datasets.at(tx, spa);
    logs.iter().rev().try_for_each(|log| spa.removal().leave_hole(&at, *log))?;
    spa.spares().unlist_all_aux(tx)?;
    spa.config.lock().change_facts(|facts| {
        facts.state = PoolState::Exported;
        facts.split = Some(SplitNote::From(from.0));
    });
    spa.props().set(props, tx)?;
    spa.log("split", "", 0, &format!("from pool {}", from.1), tx)
}

/// The vdev tree of the new pool, in the MOS's form.
struct NewRoot {
    guid: u64,
    root: NvList,
    /// Log vdevs, by number: they leave in the first txg.
    logs: Vec<u64>,
}

impl NewRoot {
    fn of(before: &NvList, leaves: &[u64], guid: u64) -> Self {
        let mut root = before.clone();
        set(&mut root, "guid", guid);
        let mut logs = Vec::new();
        if let Some(NvValue::ListArray(tops)) = root.get_mut("children") {
            for top in tops {
                if is_log(top) {
                    logs.extend(top.u64("id"));
                } else if let Some(leaf) = leaf_below(top, leaves).and_then(|leaf| find(top, leaf).cloned()) {
                    *top = top_of(top, leaf);
                }
            }
        }
        super::layout::config::put_in_order(&mut root);
        Self { guid, root, logs }
    }
}

/// A leaf in the place of its mirror.
fn top_of(mirror: &NvList, mut leaf: NvList) -> NvList {
    super::attach::move_top(&mut mirror.clone(), &mut leaf);
    set(&mut leaf, "id", mirror.u64("id").unwrap_or(0));
    leaf.remove("DTL");
    leaf
}

fn leaf_below(top: &NvList, leaves: &[u64]) -> Option<u64> {
    let children = top.nvlist_array("children").unwrap_or_default();
    children.iter().filter_map(|child| child.u64("guid")).find(|guid| leaves.contains(guid))
}

fn is_log(top: &NvList) -> bool {
    top.u64("is_log").unwrap_or(0) != 0
}
