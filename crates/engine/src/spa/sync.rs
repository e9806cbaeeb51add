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
//! they are lost, before the labels are written ([`Spa::recheck`]).
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
        self.check_claim()?;
        self.txg_history.starts(self, txg);
        let tx = Tx::syncing(txg, &self.dirty);
        self.pass.store(1, Ordering::Relaxed);
        let changing = self.changing.write();
        self.run_tasks(&self.early_tasks, &tx);
        self.count_clones(&tx)?;
        self.sync_datasets(&tx)?;
        self.sync_activities(&tx, SyncPoint::BeforeTasks)?;
        self.run_tasks(&self.tasks, &tx);
        if let Some(why) = self.early_failure.lock().take() {
            return Err(why);
        }
        self.widen_gangs(&tx)?;
        self.sync_activities(&tx, SyncPoint::AfterTasks)?;
        drop(changing);
        self.sync_activities(&tx, SyncPoint::Last)?;
        let labels = self.config.lock().is_dirty();
        let rootbp = self.sync_mos(&tx)?;
        // Notes made while maps were written may have changed the configuration.
        let labels = self.config.lock().clean() || labels;
        self.refresh_multihost()?;
        self.commit(txg, rootbp, labels)?;
        if !self.is_frozen_at(txg) {
            self.label_retired();
        }
        self.pool.zio.set_synced(txg);
        self.space.sync_done(txg);
        self.txg_history.ends(self, txg);
        self.dirty.clear(txg);
        self.txgs.done(txg);
        Ok(())
    }

    fn sync_datasets(&self, tx: &Tx) -> Result<()> {
        self.datasets.sync(self, tx)?;
        let delta = std::mem::take(&mut *self.mos_delta.lock());
        if delta != [0; 3] {
            self.datasets.mos_used(self, delta, tx)?;
        }
        Ok(())
    }

    fn run_tasks(&self, tasks: &WaitingTasks, tx: &Tx) {
        let tasks = tasks.0.lock().remove(&tx.txg()).unwrap_or_default();
        // A task may have left something to be freed.
        if !tasks.is_empty() {
            self.freeing.look_again();
        }
        for task in tasks {
            task(self, tx);
            self.write_early(tx);
        }
    }

    /// Writes the MOS' changed objects, which then leave memory, when there are many: `zfs snapshot -r` changes some for each
    /// of any number of datasets. Nothing refers to these blocks before the passes of [`Spa::sync_mos`] are done. A
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

    /// Makes `dynamic_gang_header` active when gangs lie within gangs. Headers of this txg may be large already: the
    /// uberblock that names them names the feature's count, too.
    fn widen_gangs(&self, tx: &Tx) -> Result<()> {
        let (zio, feature) = (&self.pool.zio, Feature::DynamicGangHeader);
        if zio.take_nested_gangs() && self.features.is_enabled(feature) && !self.features.is_active(feature) {
            self.features.increment(feature, tx)?;
            zio.set_wide_gangs(true);
        }
        Ok(())
    }

    /// Passes until nothing changes; returns the MOS's root.
    #[doc(alias = "spa_sync_iterate_to_convergence")]
    fn sync_mos(&self, tx: &Tx) -> Result<ondisk::Blkptr> {
        let ops = MosOps(self);
        let mut rootbp = self.mos.rootbp();
        for pass in 1..=MAX_PASSES {
            self.pass.store(pass, Ordering::Relaxed);
            self.sync_dtls(tx)?;
            self.sync_config(tx)?;
            self.sync_shared(tx)?;
            if self.mos.is_dirty(tx.txg()) {
                self.mos.sync_objects(tx, &ops)?;
                rootbp = self.mos.sync_root(tx, &ops)?;
            }
            let mut store = SpaceStore::of(self, tx);
            let wrote = self.space.sync(tx.txg(), pass, &mut store)?;
            let missed = self.pool.zio.tree().has_dirty_dtls();
            if !wrote && !missed && !self.mos.is_dirty(tx.txg()) {
                return Ok(rootbp);
            }
        }
        Err(Error::corrupt("a transaction group does not come to an end"))
    }

    /// Writes the configuration into the MOS when it changed.
    #[doc(alias = "spa_sync_config_object")]
    fn sync_config(&self, tx: &Tx) -> Result<()> {
        let list = {
            let config = self.config.lock();
            if !config.is_dirty() {
                return Ok(());
            }
            config.facts_of(tx.txg(), &self.features.in_labels()).mos_config(config.root())
        };
        let view = self.mos.view();
        let number = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(mos::CONFIG)?;
        let number = match number {
            Some(number) => number,
            None => self.new_packed(mos::CONFIG, tx)?,
        };
        let packed = list.encode_xdr().map_err(|e| Error::new(crate::Kind::Invalid, e.to_string()))?;
        self.write_packed(number, &packed, tx)
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
        self.commit(txg, rootbp, true)
    }

    /// Labels and uberblock.
    fn commit(&self, txg: u64, rootbp: ondisk::Blkptr, labels: bool) -> Result<()> {
        let tree = self.pool.zio.tree();
        let config = self.config.lock().clone();
        let mut uberblock = {
            let last = self.uberblock.lock();
            let (version, guid_sum) = (config.facts().version, guid_sum(config.root()));
            let timestamp = self.pool.env.now();
            let raidz_reflow_info = self.reflow_info(last.raidz_reflow_info);
            // Set only in the copy that a checkpoint keeps.
            Uberblock {
                version,
                txg,
                rootbp,
                guid_sum,
                timestamp,
                raidz_reflow_info,
                checkpoint_txg: 0,
                ..*last
            }
        };
        self.sign(&mut uberblock);
        let facts = config.facts_of(txg, &self.features.in_labels());
        let label = |leaf: &Leaf| facts.leaf_label(config.root(), leaf.guid).unwrap_or_default();
        // A failed flush may have lost labels, too.
        let labels = labels || tree.leaves().any(|leaf| is_suspect(leaf, txg));
        while !self.is_frozen_at(txg)
            && let Err(why) = self.recheck(txg).and_then(|known| {
                self.check_claim()?;
                let commit = ConfigSync {
                    tree: &tree,
                    executor: &*self.pool.env.executor,
                    uberblock: &uberblock,
                    label: labels.then_some(&label),
                    multihost: self.multihost.is_on(),
                    choice: txg,
                    known: &known,
                };
                commit.run()
            })
        {
            if !self.pool.zio.suspended.wait(&why) {
                return Err(why);
            }
            // The copies may be lost with the flush; blocks are still read from their old places.
            if uberblock.raidz_reflow_info != 0 {
                uberblock.raidz_reflow_info = self.uberblock.lock().raidz_reflow_info;
            }
        }
        self.pool.zio.suspended.settle(txg);
        *self.uberblock.lock() = uberblock;
        if labels {
            self.notify("config_sync");
        }
        Ok(())
    }

    /// Where a flush has failed since the txg may have written something, all blocks of the txg are read from
    /// the devices themselves, and written again where they are lost. Returns the number of flushes of each
    /// leaf that had failed before.
    fn recheck(&self, txg: u64) -> Result<HashMap<u64, u64>> {
        let tree = self.pool.zio.tree();
        let known = tree.leaves().map(|leaf| (leaf.guid, leaf.failed_flushes())).collect();
        let suspects: Vec<Arc<Leaf>> = tree
            .leaves()
            .filter(|leaf| is_suspect(leaf, txg) && leaf.is_writable())
            .map(Arc::clone)
            .collect();
        if !suspects.is_empty() {
            self.pool.zio.check_written(txg, &suspects, Cure::Rewrite)?;
            self.copy_again(txg)?;
        }
        Ok(known)
    }
}

/// Whether a flush of the leaf has failed after something may have been written for the txg.
fn is_suspect(leaf: &Leaf, txg: u64) -> bool {
    leaf.is_doubted(txg.saturating_sub(OPEN_AHEAD))
}
