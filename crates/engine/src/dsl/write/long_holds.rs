//! Datasets that must not change while work in memory uses them: a stream of a snapshot, of a head that nothing changes
//! meanwhile.
//!
//! Differs from a hold by a tag ([`super::Tasks::hold`]): it is not on disk, and ends with the work.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::open_datasets::DslPool;
use crate::error::{Error, Kind, Result};

/// Datasets by number, with how often each is held.
#[derive(Debug, Default)]
pub(crate) struct LongHolds {
    held: Mutex<BTreeMap<u64, Held>>,
}

#[derive(Debug, Default)]
struct Held {
    times: usize,
    /// Number of them that read encrypted blocks.
    keyed: usize,
    owned: bool,
}

/// Keeps a dataset from being destroyed, a head also from being opened for writing; until it is dropped.
#[derive(Debug)]
#[doc(alias("dsl_dataset_long_hold", "dsl_dataset_own"))]
pub struct LongHold {
    pool: Weak<DslPool>,
    number: u64,
    owned: bool,
    keyed: bool,
}

impl LongHold {
    /// The same, and the dataset's key cannot be unloaded.
    #[must_use]
    #[doc(alias = "DS_HOLD_FLAG_DECRYPT")]
    pub fn with_key(mut self) -> Self {
        if let (false, Some(pool)) = (self.keyed, self.pool.upgrade()) {
            pool.long_holds.held.lock().entry(self.number).and_modify(|held| held.keyed += 1);
            self.keyed = true;
        }
        self
    }
}

impl LongHolds {
    /// Whether something needs the dataset as it is.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.held.lock().contains_key(&number)
    }

    /// The datasets that are read with their key.
    pub(super) fn keyed(&self) -> Vec<u64> {
        self.held.lock().iter().filter(|(_, held)| held.keyed > 0).map(|(number, _)| *number).collect()
    }

    /// Whether nothing may change the head.
    pub(crate) fn is_owned(&self, number: u64) -> bool {
        self.held.lock().get(&number).is_some_and(|held| held.owned)
    }

    fn add(&self, number: u64, owned: bool) -> Result<()> {
        let mut all = self.held.lock();
        let held = all.entry(number).or_default();
        if owned && held.owned {
            return Err(Error::new(Kind::Busy, "dataset is busy"));
        }
        held.times += 1;
        held.owned |= owned;
        Ok(())
    }

    fn remove(&self, number: u64, owned: bool, keyed: bool) {
        let mut all = self.held.lock();
        let Some(held) = all.get_mut(&number) else { return };
        held.times -= 1;
        held.owned &= !owned;
        held.keyed -= usize::from(keyed);
        if held.times == 0 {
            all.remove(&number);
        }
    }
}

impl DslPool {
    /// Keeps snapshot `number` from being destroyed.
    ///
    /// # Errors
    /// `NotFound` when there is no such dataset any more.
    pub fn hold_long(self: &Arc<Self>, number: u64) -> Result<LongHold> {
        self.take(number, false)
    }

    /// Keeps the redaction list in MOS object `number`, and its bookmark with it.
    ///
    /// # Errors
    /// `NotFound` when there is no such object any more.
    #[doc(alias = "dsl_redaction_list_long_hold")]
    pub fn hold_list(self: &Arc<Self>, number: u64) -> Result<LongHold> {
        self.long_holds.add(number, false)?;
        let hold = LongHold { pool: Arc::downgrade(self), number, owned: false, keyed: false };
        // It may have been freed before it was held.
        self.view().handle(number)?;
        Ok(hold)
    }

    /// Keeps head `number` from being destroyed and opened for writing.
    ///
    /// # Errors
    /// `Busy` while it is in use, for writing or by another owner.
    pub fn own(self: &Arc<Self>, number: u64) -> Result<LongHold> {
        let hold = self.take(number, true)?;
        match self.is_used(number) {
            true => Err(Error::new(Kind::Busy, "dataset is busy")),
            false => Ok(hold),
        }
    }

    fn take(self: &Arc<Self>, number: u64, owned: bool) -> Result<LongHold> {
        self.long_holds.add(number, owned)?;
        let hold = LongHold { pool: Arc::downgrade(self), number, owned, keyed: false };
        // It may have been destroyed before it was held.
        self.view().dataset(number).map_err(|_| Error::not_found("dataset does not exist"))?;
        Ok(hold)
    }
}

impl Drop for LongHold {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.long_holds.remove(self.number, self.owned, self.keyed);
        }
    }
}
