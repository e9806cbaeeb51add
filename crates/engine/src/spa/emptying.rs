//! Destroying a file system or volume whose tree can't be left to later txgs: without the feature `async_destroy` (and before
//! version 5000) the task that destroys it frees every block of it in one txg.
//!
//! ```text
//!  task: mark as inconsistent ─▶ objects are freed in open context, a bounded piece in each transaction ─▶ task: destroy
//! ```
//!
//! Crash points: after the mark the dataset is never mounted, received into or replayed again, and an import
//! destroys the rest of it ([`PoolDatasets::destroy_inconsistent`]). Blocks freed by then were removed by the txg that
//! freed them, accounts included.
//!
//! A rollback and a receive into an existing dataset do the same with the previous content, which a hidden clone has by then
//! ([`Spa::dsl_task`]); so does a receive that is given up.
//!
//! A dataset whose key is not loaded can't be opened for writing: it is freed in one txg, as a small one is.
//!
//! Differs from OpenZFS, which does so with datasets of any size; here one of less than 16 MiB is destroyed in one task.

use ondisk::Dnode;
use ondisk::dsl::DslDataset;
use ondisk::names::dsl_dataset;
use zcommon::features::Feature;

use super::subjects::PoolDatasets;
use crate::dmu::dirty::LONG;
use crate::dsl::props::names::dataset_name;
use crate::dsl::write::{DestroyOutcome, Hooks};
use crate::error::{Kind, Result};

impl PoolDatasets<'_> {
    /// Destroys the file system or volume `name`, which has neither snapshots nor children.
    ///
    /// # Errors
    /// As [`crate::dsl::write::Tasks::destroy`]. Blocks freed before an error are lost; the dataset stays
    /// inconsistent.
    #[doc(alias = "dsl_destroy_head")]
    pub fn destroy_head(self, name: &str) -> Result<()> {
        loop {
            let asked = name.to_owned();
            match self.spa.dsl_task(move |tasks| tasks.begin_destroy(&asked))? {
                DestroyOutcome::Destroyed => return Ok(()),
                DestroyOutcome::Marked(number) => self.free_contents(number)?,
            }
        }
    }

    /// Frees the objects of head `number`, which is marked as inconsistent, a bounded piece in each transaction, and waits until
    /// that is on disk. Objects that are as the origin of a clone has them stay.
    ///
    /// # Errors
    /// When something can't be read or written.
    #[doc(alias = "dmu_free_long_object")]
    pub fn free_contents(self, number: u64) -> Result<()> {
        let live = match self.spa.datasets.open(self.spa, number) {
            Err(e) if e.kind() == Kind::KeyMissing => return Ok(()),
            live => live?,
        };
        let origin_txg = self.spa.datasets.view().dataset(number)?.prev_snap_txg;
        for object in live.objset.view().objects() {
            let object = object?;
            if !is_newer(&object.dnode, origin_txg) {
                continue;
            }
            let handle = live.objset.handle(object.number)?;
            let at = handle.free_long(0, u64::MAX, &|| self.spa.begin_free(None))?;
            let blocks = handle.piece(at, u64::MAX, LONG)?.blocks;
            let tx = self.spa.begin_free(None)?;
            tx.frees(blocks);
            handle.free(&tx)?;
        }
        self.spa.sync()
    }

    /// Empties and destroys the heads that tasks replaced. While the pool is suspended they wait for the next
    /// task; other failures are left to the next import.
    pub(super) fn destroy_replaced(self) {
        for number in self.spa.datasets.take_replaced() {
            let emptied = self.free_contents(number);
            let done = emptied.and_then(|()| self.spa.dsl_task(move |tasks| tasks.destroy_replaced(number)));
            if done.is_err_and(|e| e.kind() == Kind::Suspended) {
                self.spa.datasets.note_replaced(Some(number));
            }
        }
    }

    /// Destroys the heads that a crash left half destroyed or half received. One with the state of a receive that can be
    /// resumed stays, and so does one that can't be destroyed: the next import tries again.
    #[doc(alias = "dsl_destroy_inconsistent")]
    pub(super) fn destroy_inconsistent(self) -> Result<()> {
        let heads = self.spa.pool.dsl.heads(&self.spa.mos.view())?;
        let is_inconsistent = |phys: &DslDataset| phys.flags & DslDataset::FLAG_INCONSISTENT != 0;
        let found = heads.into_iter().filter(|(_, phys)| is_inconsistent(phys)).map(|(number, _)| number);
        let freed_later = self.spa.feature(Feature::AsyncDestroy).is_some();
        for number in found {
            if self.spa.datasets.view().extra(number, dsl_dataset::RESUME_TOGUID)?.is_some() {
                continue;
            }
            let Ok(name) = dataset_name(&self.spa.pool.dsl, number) else { continue };
            let emptied = if freed_later { Ok(()) } else { self.free_contents(number) };
            if let Err(e) = emptied.and_then(|()| self.destroy_head(&name))
                && e.kind() == Kind::Suspended
            {
                return Err(e);
            }
        }
        Ok(())
    }
}

/// Whether a block of an object was born after `txg`.
fn is_newer(dnode: &Dnode, txg: u64) -> bool {
    dnode.blkptrs().iter().chain(dnode.spill()).any(|bp| bp.accounting_birth() > txg)
}
