//! Writing a txg.
//!
//! 1. References of clones are counted. Datasets, then tasks, and background activities between them ([`super::activity`]): all
//!    change the MOS.
//! 2. Passes: MOS objects and root → the allocator records their allocations and frees in space maps, which
//!    are MOS objects → again, until a pass changes nothing. From the second pass on blocks are written in
//!    place.
//! 3. Labels and uberblock ([`crate::vdev::label`]); only now does anything on disk refer to the new state.
//! 4. Space freed two txgs ago may be used again.
//!
//! Crash argument: steps 1 and 2 write only to space that the last uberblock does not refer to (neither does
//! any of the two before, because freed space waits for two txgs). A crash before step 3 is done leaves the
//! old state, or the new one when enough labels have it; both are whole. It rests on flushes: a device that
//! reports a successful flush has made its earlier writes durable. After a failed flush this is not assumed,
//! even if the next one succeeds: the writes of this txg are read from that device itself, and repeated where
//! they are lost, before the labels are written ([`recheck`]).
//!
//! When anything fails the pool is suspended: the state on disk is the last txg. Requests that devices failed
//! wait for the pool to be resumed ([`super::resume`]), and then the txg continues where it stopped; after
//! any other error it can't.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{ObjectType, Uberblock};
use zcommon::features::Feature;

use super::activity::SyncPoint;
use super::layout::config::guid_sum;
use super::space_store::SpaceStore;
use super::{MosOps, Spa, WaitingTasks};
use crate::dmu::{NewObject, Tx};
use crate::error::{Error, Result};
use crate::vdev::label::ConfigSync;
use crate::vdev::leaf::Leaf;
use crate::zap::{Zap, ZapEdit};
use crate::zio::suspend::Cure;

/// Passes after which something is wrong: sizes must have settled long before.
const MAX_PASSES: u64 = 60;
/// Number of txgs after the next one to be on disk that may have written blocks.
const OPEN_AHEAD: u64 = 2;
/// Number of changed MOS objects from which a task writes them before it continues: some 20 MiB. Small in
/// test builds, so that every test of datasets and power cuts reaches it.
const EARLY_OBJECTS: usize = if cfg!(debug_assertions) { 24 } else { 2048 };
/// Block of the packed configuration.
#[doc(alias = "SPA_CONFIG_BLOCKSIZE")]
const CONFIG_BLOCK: u64 = 16 << 10;

impl Spa {
    /// Writes `txg`, which was taken from `Txgs`.
    #[doc(alias = "spa_sync")]
    pub(super) fn sync_txg(&self, txg: u64) -> Result<()> {
        self.multihost().check_claim()?;
        self.txg_history.starts(self, txg);
        let tx = Tx::syncing(txg, &self.dirty);
        self.pass.store(1, Ordering::Relaxed);
        let changing = self.changing.write();
        run_tasks(self, &self.early_tasks, &tx);
        self.sharing().count_clones(&tx)?;
        sync_datasets(self, &tx)?;
        self.background().sync(&tx, SyncPoint::BeforeTasks)?;
        run_tasks(self, &self.tasks, &tx);
        if let Some(why) = self.early_failure.lock().take() {
            return Err(why);
        }
        widen_gangs(self, &tx)?;
        self.background().sync(&tx, SyncPoint::AfterTasks)?;
        drop(changing);
        self.background().sync(&tx, SyncPoint::Last)?;
        let labels = self.config.lock().is_dirty();
        let rootbp = sync_mos(self, &tx)?;
        // Notes made while maps were written may have changed the configuration.
        let labels = self.config.lock().clean() || labels;
        self.multihost().refresh()?;
        commit(self, txg, rootbp, labels)?;
        if !self.is_frozen_at(txg) {
            self.vdevs().label_retired();
        }
        self.pool.zio.set_synced(txg);
        self.space.sync_done(txg);
        self.txg_history.ends(self, txg);
        self.dirty.clear(txg);
        self.txgs.done(txg);
        Ok(())
    }

    /// Writes the MOS' changed objects, which then leave memory, when there are many: `zfs snapshot -r` changes some for each
    /// of any number of datasets. Nothing refers to these blocks before the passes of [`sync_mos`] are done. A
    /// failure is kept for [`Spa::sync_txg`]: the task in the middle of which it happens cannot be undone.
    pub(super) fn write_early(&self, tx: &Tx) {
        if self.mos.dirty_objects(tx.txg()) < EARLY_OBJECTS {
            return;
        }
        let ops = MosOps(self);
        let done = self.mos.sync_objects(tx, &ops).and_then(|_| self.mos.sync_root(tx, &ops));
        if let Err(why) = done {
            self.early_failure.lock().get_or_insert(why);
        }
    }

    /// A new object for a packed list, named in the MOS directory.
    pub(super) fn new_packed(&self, name: &str, tx: &Tx) -> Result<u64> {
        let new =
            NewObject::with_bonus(ObjectType::PACKED_NVLIST, CONFIG_BLOCK, ObjectType::PACKED_NVLIST_SIZE, 8);
        let number = self.mos.create_object(tx, new)?.number;
        let directory = self.mos.handle(MOS_DIRECTORY_OBJECT)?;
        ZapEdit::open(&mut directory.edit(tx))?.insert(name, number)?;
        Ok(number)
    }

    /// Replaces a packed list.
    pub(super) fn write_packed(&self, number: u64, packed: &[u8], tx: &Tx) -> Result<()> {
        let object = self.mos.handle(number)?;
        let mut padded = packed.to_vec();
        let block = usize::try_from(CONFIG_BLOCK).unwrap_or(1);
        padded.resize(packed.len().next_multiple_of(block), 0);
        let len = u64::try_from(packed.len()).unwrap_or(0);
        // The list is written in every pass; an unchanged one must not change anything.
        let old = self.mos.view().object(number)?;
        if old.dnode.bonus() == len.to_le_bytes() && old.read_vec(0, packed.len())? == packed {
            return Ok(());
        }
        object.write(tx, 0, &padded)?;
        object.set_bonus(tx, &len.to_le_bytes())
    }

    /// Makes the state that the pool was opened at the newest, before anything overwrites those that are given up.
    #[doc(alias = "spa_ld_checkpoint_rewind")]
    pub(super) fn go_back(&self, txg: u64) -> Result<()> {
        let rootbp = self.uberblock.lock().rootbp;
        commit(self, txg, rootbp, true)
    }
}

fn sync_datasets(spa: &Spa, tx: &Tx) -> Result<()> {
    spa.datasets.sync(spa, tx)?;
    let delta = std::mem::take(&mut *spa.mos_delta.lock());
    if delta != [0; 3] {
        spa.datasets.mos_used(spa, delta, tx)?;
    }
    Ok(())
}

fn run_tasks(spa: &Spa, tasks: &WaitingTasks, tx: &Tx) {
    let tasks = tasks.0.lock().remove(&tx.txg()).unwrap_or_default();
    // A task may have left something to be freed.
    if !tasks.is_empty() {
        spa.freeing.look_again();
    }
    for task in tasks {
        task(spa, tx);
        spa.write_early(tx);
    }
}

/// Makes `dynamic_gang_header` active when gangs lie within gangs. Headers of this txg may be large already: the
/// uberblock that names them names the feature's count, too.
fn widen_gangs(spa: &Spa, tx: &Tx) -> Result<()> {
    let (zio, feature) = (&spa.pool.zio, Feature::DynamicGangHeader);
    if zio.take_nested_gangs() && spa.features.is_enabled(feature) && !spa.features.is_active(feature) {
        spa.features.increment(feature, tx)?;
        zio.set_wide_gangs(true);
    }
    Ok(())
}

/// Passes until nothing changes; returns the MOS's root.
#[doc(alias = "spa_sync_iterate_to_convergence")]
fn sync_mos(spa: &Spa, tx: &Tx) -> Result<ondisk::Blkptr> {
    let ops = MosOps(spa);
    let mut rootbp = spa.mos.rootbp();
    for pass in 1..=MAX_PASSES {
        spa.pass.store(pass, Ordering::Relaxed);
        spa.vdevs().sync_dtls(tx)?;
        sync_config(spa, tx)?;
        spa.sharing().sync(tx)?;
        if spa.mos.is_dirty(tx.txg()) {
            spa.mos.sync_objects(tx, &ops)?;
            rootbp = spa.mos.sync_root(tx, &ops)?;
        }
        let mut store = SpaceStore::of(spa, tx);
        let wrote = spa.space.sync(tx.txg(), pass, &mut store)?;
        let missed = spa.pool.zio.tree().has_dirty_dtls();
        if !wrote && !missed && !spa.mos.is_dirty(tx.txg()) {
            return Ok(rootbp);
        }
    }
    Err(Error::corrupt("a transaction group does not come to an end"))
}

/// Writes the configuration into the MOS when it changed.
#[doc(alias = "spa_sync_config_object")]
fn sync_config(spa: &Spa, tx: &Tx) -> Result<()> {
    let list = {
        let config = spa.config.lock();
        if !config.is_dirty() {
            return Ok(());
        }
        config.facts_of(tx.txg(), &spa.features.in_labels()).mos_config(config.root())
    };
    let view = spa.mos.view();
    let number = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(mos::CONFIG)?;
    let number = match number {
        Some(number) => number,
        None => spa.new_packed(mos::CONFIG, tx)?,
    };
    let packed = list.encode_xdr().map_err(|e| Error::new(crate::Kind::Invalid, e.to_string()))?;
    spa.write_packed(number, &packed, tx)
}

/// Labels and uberblock.
fn commit(spa: &Spa, txg: u64, rootbp: ondisk::Blkptr, labels: bool) -> Result<()> {
    let tree = spa.pool.zio.tree();
    let config = spa.config.lock().clone();
    let mut uberblock = {
        let last = spa.uberblock.lock();
        let (version, guid_sum) = (config.facts().version, guid_sum(config.root()));
        let timestamp = spa.pool.env.now();
        let raidz_reflow_info = spa.expansion().reflow_info(last.raidz_reflow_info);
        // Set only in the copy that a checkpoint keeps.
        Uberblock { version, txg, rootbp, guid_sum, timestamp, raidz_reflow_info, checkpoint_txg: 0, ..*last }
    };
    spa.multihost().sign(&mut uberblock);
    let facts = config.facts_of(txg, &spa.features.in_labels());
    let label = |leaf: &Leaf| facts.leaf_label(config.root(), leaf.guid).unwrap_or_default();
    // A failed flush may have lost labels, too.
    let labels = labels || tree.leaves().any(|leaf| is_suspect(leaf, txg));
    while !spa.is_frozen_at(txg)
        && let Err(why) = recheck(spa, txg).and_then(|known| {
            spa.multihost().check_claim()?;
            let commit = ConfigSync {
                tree: &tree,
                executor: &*spa.pool.env.executor,
                uberblock: &uberblock,
                label: labels.then_some(&label),
                multihost: spa.multihost.is_on(),
                choice: txg,
                known: &known,
            };
            commit.run()
        })
    {
        if !spa.pool.zio.suspended.wait(&why) {
            return Err(why);
        }
        // The copies may be lost with the flush; blocks are still read from their old places.
        if uberblock.raidz_reflow_info != 0 {
            uberblock.raidz_reflow_info = spa.uberblock.lock().raidz_reflow_info;
        }
    }
    spa.pool.zio.suspended.settle(txg);
    *spa.uberblock.lock() = uberblock;
    if labels {
        spa.reports().notify("config_sync");
    }
    Ok(())
}

/// Where a flush has failed since the txg may have written something, all blocks of the txg are read from
/// the devices themselves, and written again where they are lost. Returns the number of flushes of each
/// leaf that had failed before.
fn recheck(spa: &Spa, txg: u64) -> Result<HashMap<u64, u64>> {
    let tree = spa.pool.zio.tree();
    let known = tree.leaves().map(|leaf| (leaf.guid, leaf.failed_flushes())).collect();
    let suspects: Vec<Arc<Leaf>> =
        tree.leaves().filter(|leaf| is_suspect(leaf, txg) && leaf.is_writable()).map(Arc::clone).collect();
    if !suspects.is_empty() {
        spa.pool.zio.check_written(txg, &suspects, Cure::Rewrite)?;
        spa.removal().copy_again(txg)?;
    }
    Ok(known)
}

/// Whether a flush of the leaf has failed after something may have been written for the txg.
fn is_suspect(leaf: &Leaf, txg: u64) -> bool {
    leaf.is_doubted(txg.saturating_sub(OPEN_AHEAD))
}
