//! Blocks that open txgs have to write, by dataset and by directory with a quota, so that a quota refuses at the call.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::LiveObjset;
use super::needs::Needs;
use crate::dmu::tx::{Tx, Unsynced};

/// Blocks that the last txgs write.
pub(crate) type Pending = Unsynced<Needs>;

/// Pending blocks of everything below each directory with a quota.
#[doc(alias = "dd_space_towrite")]
#[derive(Debug, Default)]
pub(crate) struct PendingByDir(Mutex<BTreeMap<u64, Weak<Pending>>>);

impl PendingByDir {
    /// The pending bytes of one directory, which all datasets below it share.
    pub(crate) fn of(&self, dir: u64) -> Arc<Pending> {
        let mut all = self.0.lock();
        if let Some(pending) = all.get(&dir).and_then(Weak::upgrade) {
            return pending;
        }
        let pending = Arc::new(Pending::default());
        all.insert(dir, Arc::downgrade(&pending));
        // Each doubling of the map removes the directories that no open dataset is below any more.
        if all.len().is_power_of_two() {
            all.retain(|_, pending| pending.strong_count() > 0);
        }
        pending
    }
}

impl LiveObjset {
    /// Charges blocks that the transaction's txg has to write.
    pub(super) fn needs(&self, tx: &Tx, needs: Needs) {
        tx.needs(needs);
        self.pends(tx, needs);
    }

    /// Copies of its data.
    pub(crate) fn copies(&self) -> u8 {
        self.policy.read().copies
    }

    /// Charges blocks to quotas only.
    pub(super) fn pends(&self, tx: &Tx, needs: Needs) {
        self.pending.add(tx.txg(), needs);
        self.above.read().iter().for_each(|dir| dir.add(tx.txg(), needs));
    }

    /// Blocks changed by txgs after `synced`.
    pub(crate) fn pending(&self, synced: u64) -> Needs {
        self.pending.after(synced)
    }

    /// Sets the directories with a quota at or above its own.
    pub(crate) fn set_above(&self, dirs: Vec<Arc<Pending>>) {
        *self.above.write() = dirs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_without_open_datasets_are_forgotten() {
        let all = PendingByDir::default();
        let kept = all.of(1);
        kept.add(5, Needs { bytes: 7, blocks: 1 });
        (2..1000).for_each(|dir| drop(all.of(dir)));
        assert_eq!(all.of(1).after(4).bytes, 7);
        assert!(all.0.lock().len() < 20, "{}", all.0.lock().len());
    }
}
