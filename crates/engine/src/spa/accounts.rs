//! Accounts of users, groups and projects that begin when a file system has files already: the pool got the version
//! or the features that count them later.
//!
//! ```text
//!  every object is touched ─▶ its dnode is written, flagged as counted, and its usage goes into the accounts
//!  (`sa::usage`) ─▶ all that is on disk ─▶ the object set says that it is complete
//! ```
//!
//! An object whose bytes were already counted for its owners adds no bytes, but one object. For projects, as
//! in OpenZFS, only changes after their accounts began are counted: the usage of project 0 may become
//! negative (kept as a word that wraps) when files leave it.
//!
//! Crash argument: a dnode's flags and the accounts are written in one txg, so after a power cut the accounts
//! are right for exactly the dnodes that are flagged. The flag of the object set is set in a later txg than
//! the last of them. While it is missing, the next mount begins again; objects that are flagged then change
//! nothing.
//!
//! Source: `dmu_objset_space_upgrade`, `dmu_objset_id_quota_upgrade_cb`, dmu_objset.c; OpenZFS 2.3.

use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::ObjsetType;
use ondisk::objset::ObjsetFlags;

use super::Spa;
use super::subjects::PoolDatasets;
use crate::dsl::write::LiveDataset;
use crate::dsl::write::open_datasets::{BY_FEATURE, countable, policy};
use crate::error::{Kind, Result};

/// Objects that are touched in one transaction.
const BATCH: usize = 64;

impl PoolDatasets<'_> {
    /// Returns the kinds of accounts that a file system could have and lacks, as flags of its object set.
    #[doc(alias("dmu_objset_userobjspace_upgradable", "dmu_objset_projectquota_upgradable"))]
    pub fn uncounted(self, dataset: &LiveDataset) -> ObjsetFlags {
        match dataset.objset.objset_type() {
            ObjsetType::Zfs => ObjsetFlags(countable(self.spa).0 & !dataset.objset.flags().0),
            _ => ObjsetFlags::default(),
        }
    }

    /// Counts a file system's objects in the accounts that it lacks, and waits until these are on disk. The
    /// file system stays usable meanwhile. `stop` ends it early; it can be restarted. Returns false when it
    /// was stopped.
    #[doc(alias("dmu_objset_userspace_upgrade", "dmu_objset_id_quota_upgrade"))]
    pub fn begin_accounts(self, dataset: &LiveDataset, stop: &AtomicBool) -> Result<bool> {
        let _alone = dataset.counting.lock();
        let flags = self.uncounted(dataset);
        if flags == ObjsetFlags::default() {
            return Ok(true);
        }
        // Dnodes written from here on are flagged, no matter when the dataset was opened.
        let view = self.spa.datasets.view();
        dataset.objset.set_policy(policy(&view, self.spa, view.dataset(dataset.number)?.dir_obj)?);
        let mut objects = dataset.objset.view().objects();
        loop {
            let batch: Vec<_> = objects.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                break;
            }
            // One whose dnode can't be read stays out of the accounts.
            let batch: Vec<u64> = batch.into_iter().flatten().map(|object| object.number).collect();
            if stop.load(Ordering::Acquire) {
                return Ok(false);
            }
            touch_all(self.spa, dataset, &batch)?;
        }
        self.spa.sync()?;
        let tx = self.spa.begin()?;
        let used = BY_FEATURE.into_iter().filter(|(_, flag)| flags.has(*flag));
        used.for_each(|(feature, _)| dataset.use_feature(feature, &tx));
        dataset.add_flags(flags, &tx)?;
        drop(tx);
        self.spa.sync()?;
        Ok(true)
    }
}

fn touch_all(spa: &Spa, dataset: &LiveDataset, numbers: &[u64]) -> Result<()> {
    let tx = spa.begin()?;
    for &number in numbers {
        match dataset.objset.handle(number) {
            Ok(handle) => handle.touch(&tx)?,
            // It was removed meanwhile.
            Err(e) if e.kind() == Kind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
