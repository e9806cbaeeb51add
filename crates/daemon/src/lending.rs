//! Hot spares that pools share: each may list the same device, and one pool at a time uses it.
//!
//! The label of a spare says whether a pool uses it (unless the spare failed there and could not be written), and so do the
//! trees of the pools; but a pool that was given the spare appears in neither until its change of vdevs is made. Until then the
//! spare is noted as promised to that pool.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};

use blkdev::Device;
use engine::Result;
use engine::spa::sparing::SpareSource;
use parking_lot::Mutex;
use zutil::search::is_leftover_label;

use crate::devices::{self, InUse};
use crate::imported::Imported;
use crate::registry::Registry;

/// Spares that pools are taking, by guid: the number of the pool's import, and the number of its attempts.
#[derive(Debug, Default)]
pub(crate) struct Promised(Mutex<BTreeMap<u64, (u64, u32)>>);

impl Promised {
    /// Promises a spare to a pool and returns what `find` returns; `None` if it is promised to another pool.
    fn to<T>(&self, load_guid: u64, guid: u64, find: impl FnOnce() -> Option<T>) -> Option<T> {
        let mut promised = self.0.lock();
        if promised.get(&guid).is_some_and(|(to, _)| *to != load_guid) {
            return None;
        }
        let found = find()?;
        promised.entry(guid).or_insert((load_guid, 0)).1 += 1;
        Some(found)
    }

    /// One attempt of the pool is over.
    fn over(&self, load_guid: u64, guid: u64) {
        let mut promised = self.0.lock();
        if let Some((to, attempts)) = promised.get_mut(&guid)
            && *to == load_guid
        {
            *attempts -= 1;
            if *attempts == 0 {
                promised.remove(&guid);
            }
        }
    }
}

/// A hot spare that a pool may put in a disk's place. Other pools do not get it until this is dropped.
#[derive(Debug)]
pub struct Loan {
    /// Its device, open for writing.
    pub device: Device,
    registry: Arc<Registry>,
    load_guid: u64,
    guid: u64,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.registry.promised.over(self.load_guid, self.guid);
    }
}

/// Opens the devices of a pool's hot spares.
#[derive(Debug)]
struct Lender {
    registry: Weak<Registry>,
    load_guid: u64,
}

impl SpareSource for Lender {
    fn device(&self, guid: u64, path: &str) -> Option<Device> {
        self.registry.upgrade()?.spare_of(self.load_guid, guid, Path::new(path))
    }

    fn decided(&self, guid: u64) {
        if let Some(registry) = self.registry.upgrade() {
            registry.promised.over(self.load_guid, guid);
        }
    }

    fn returned(&self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let others = registry.all().into_iter().filter(|pool| pool.load_guid != self.load_guid);
        others.for_each(|pool| {
            if let Ok(spa) = pool.spa() {
                spa.spares().wanted();
            }
        });
    }
}

impl Registry {
    /// The spare that a pool holds at this path; several pools may share it.
    #[doc(alias = "spa_spare_exists")]
    pub fn held(&self, path: &Path) -> Option<Device> {
        let wanted = devices::identity(path).ok()?;
        self.all().into_iter().find_map(|pool| pool.holds(&wanted))
    }

    /// A hot spare, for `pool` to put in a disk's place; `None` when another pool has done so or is about to, or the device
    /// is not there.
    #[doc(alias = "spa_spare_exists")]
    pub fn spare_for(self: &Arc<Self>, pool: &Imported, guid: u64, path: &Path) -> Option<Loan> {
        let load_guid = pool.load_guid;
        let device = self.spare_of(load_guid, guid, path)?;
        Some(Loan { device, registry: Arc::clone(self), load_guid, guid })
    }

    fn spare_of(&self, load_guid: u64, guid: u64, path: &Path) -> Option<Device> {
        let uses = |pool: &Arc<Imported>| pool.load_guid != load_guid && pool.uses(guid);
        self.promised.to(load_guid, guid, || {
            let is_free = devices::in_use(path) == Some(InUse::Spare(guid)) || self.is_left_over(path, guid);
            if !is_free || self.all().iter().any(uses) {
                return None;
            }
            self.held(path).or_else(|| devices::open(path).ok())
        })
    }

    /// Whether a pool is imported and has no vdev of this guid in its tree.
    pub fn has_left(&self, pool_guid: u64, guid: u64) -> bool {
        self.all().iter().any(|pool| pool.guid() == pool_guid && !pool.uses(guid))
    }

    /// Whether a spare's label is that of a pool that does not use it any more: it failed there, and the label could not be
    /// written.
    fn is_left_over(&self, path: &Path, guid: u64) -> bool {
        let label = devices::label_of(path);
        label.is_some_and(|label| is_leftover_label(&label, guid, &|pool| self.has_left(pool, guid)))
    }

    /// Has hot spares take over by themselves.
    pub(crate) fn lend_spares(self: &Arc<Self>, pool: &Imported) {
        if let Ok(spa) = pool.spa() {
            spa.spares().set(Arc::new(Lender { registry: Arc::downgrade(self), load_guid: pool.load_guid }));
        }
    }

    /// Takes spares from the lists of all pools but `user`, which made ordinary disks of them.
    ///
    /// # Errors
    /// The errors of [`engine::spa::Removal::remove`], of the first pool that keeps a spare.
    #[doc(alias = "spa_vdev_detach")]
    pub fn unlist_spares(&self, user: &Imported, gone: &[u64]) -> Result<()> {
        for pool in self.all().into_iter().filter(|pool| pool.load_guid != user.load_guid) {
            let listed = pool.spares();
            for guid in gone.iter().filter(|guid| listed.contains(guid)) {
                pool.spa()?.removal().remove(*guid).map_err(|e| e.in_pool(&pool.name()))?;
            }
        }
        Ok(())
    }

    /// The pool that uses a disk of this guid.
    #[doc(alias = "find_spare")]
    pub fn user_of(&self, guid: u64) -> Option<Arc<Imported>> {
        self.all().into_iter().find(|pool| pool.uses(guid))
    }
}

impl Imported {
    /// Whether a disk of this guid is in the pool's tree. A hot spare is when it stands in for another disk.
    fn uses(&self, guid: u64) -> bool {
        self.spa().is_ok_and(|spa| spa.pool.tree().leaf(guid).is_some())
    }

    /// Whether a spare that the pool uses is a spare of another pool, too.
    #[doc(alias = "spa_has_active_shared_spare")]
    pub fn uses_shared_spare(&self, registry: &Registry) -> bool {
        let mut used = self.spares();
        used.retain(|guid| self.uses(*guid));
        let others = || registry.all().into_iter().filter(|pool| pool.load_guid != self.load_guid);
        !used.is_empty() && others().any(|pool| pool.spares().iter().any(|guid| used.contains(guid)))
    }

    /// The guids of its hot spares, those in use included.
    pub fn spares(&self) -> Vec<u64> {
        let _quiet = self.quiet();
        let entries = self.spa().and_then(|spa| spa.spares().entries()).unwrap_or_default();
        entries.iter().filter_map(|entry| entry.u64("guid")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promised_spare_is_no_other_pools_until_all_attempts_are_over() {
        let promised = Promised::default();
        let (ours, theirs, spare) = (1, 2, 7);
        let ask = |pool| promised.to(pool, spare, || Some(())).is_some();
        assert!(ask(ours) && ask(ours) && !ask(theirs));
        promised.over(ours, spare);
        assert!(!ask(theirs));
        promised.over(ours, spare);
        assert!(ask(theirs) && !ask(ours));
        // A spare that is not there is promised to no pool.
        promised.over(theirs, spare);
        assert!(promised.to(ours, spare, || None::<()>).is_none() && ask(theirs));
    }
}
