//! The imported pools, by name.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::env::Env;
use engine::memory::Memory;
use engine::spa::events::Events;
use engine::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::cache::Cache;
use crate::imported::Imported;
use crate::lending::Promised;
use crate::located::Unavailable;
use crate::mounts::Mounter;
use crate::paths::RunPaths;
use crate::pool_delays::PoolDelays;
use crate::rings::Rings;

/// Why a command cannot have a pool yet.
pub const BEING_IMPORTED: &str = "the pool is being imported";
/// Maximum wait of a command for a pool that is being imported or exported.
const PATIENCE: Duration = Duration::from_secs(60);

/// A name.
#[derive(Debug)]
enum Slot {
    /// The pool.
    There(Arc<Imported>),
    /// It is being imported.
    Coming,
    /// It is being created or exported.
    Changing,
}

impl Slot {
    fn pool(&self) -> Option<&Arc<Imported>> {
        match self {
            Self::There(pool) => Some(pool),
            Self::Coming | Self::Changing => None,
        }
    }
}

/// All imported pools.
#[derive(Debug)]
pub struct Registry {
    pools: Mutex<BTreeMap<String, Slot>>,
    changed: Condvar,
    /// The pools that the next daemon imports.
    pub cache: Cache,
    /// The memory shared by all pools.
    pub memory: Arc<Memory>,
    /// The moment of its creation in nanoseconds: it distinguishes this process's numbers of events from another's.
    pub epoch: u64,
    mounter: RwLock<Option<Arc<dyn Mounter>>>,
    /// Pools of the cache file that could not be imported, with the reason.
    failed: Mutex<BTreeMap<String, Unavailable>>,
    /// Why the cache file could not be read.
    damage: Mutex<Option<String>>,
    /// Changes of cache files that failed since the user was last told.
    unwritten: Mutex<Vec<String>>,
    /// The events of the present and former pools.
    events: Rings,
    /// The hot spares that pools are taking.
    pub(crate) promised: Promised,
    /// Delays of imports and exports that `zinject` asked for.
    pub delays: PoolDelays,
}

/// Nanoseconds since 1970.
fn epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Registry {
    /// No pools yet.
    pub fn new(place: &RunPaths) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            pools: Mutex::default(),
            changed: Condvar::new(),
            cache: Cache::of_daemon(place.cache(), place.lock()),
            memory: crate::memory::of_place(place),
            epoch: epoch(),
            mounter: RwLock::default(),
            failed: Mutex::default(),
            damage: Mutex::default(),
            unwritten: Mutex::default(),
            events: Rings::default(),
            promised: Promised::default(),
            delays: PoolDelays::default(),
        }))
    }

    /// Pools that should be imported and are not, with the reason.
    pub fn failed(&self) -> BTreeMap<String, Unavailable> {
        self.failed.lock().clone()
    }

    pub(crate) fn note_failed(&self, name: &str, found: Unavailable) {
        self.failed.lock().insert(name.to_owned(), found);
    }

    /// Forgets a pool of the cache file that is not imported. Returns whether there was one.
    ///
    /// # Errors
    /// If the cache file cannot be written.
    pub fn forget_failed(&self, name: &str) -> io::Result<bool> {
        let is_one = self.failed.lock().contains_key(name);
        if is_one {
            self.cache.remove(name)?;
            self.failed.lock().remove(name);
        }
        Ok(is_one)
    }

    /// Why the cache file could not be read, until it is replaced: it may name pools that should be imported and are not.
    pub fn damage(&self) -> Option<String> {
        self.damage.lock().clone()
    }

    pub(crate) fn note_damage(&self, why: String) {
        *self.damage.lock() = Some(why);
    }

    pub(crate) fn damage_is_over(&self) {
        *self.damage.lock() = None;
    }

    pub(crate) fn note_unwritten(&self, why: String) {
        let mut notes = self.unwritten.lock();
        if !notes.contains(&why) {
            notes.push(why);
        }
    }

    pub(crate) fn take_unwritten(&self) -> Vec<String> {
        std::mem::take(&mut *self.unwritten.lock())
    }

    /// The events of all present pools and the latest former ones, separately for each pool.
    pub fn events(&self) -> Vec<Arc<Events>> {
        self.events.all()
    }

    /// The names of all pools, including those being imported or exported.
    pub fn names(&self) -> Vec<String> {
        self.pools.lock().keys().cloned().collect()
    }

    /// Sets the mounter of file systems.
    pub fn set_mounter(&self, mounter: Arc<dyn Mounter>) {
        *self.mounter.write() = Some(mounter);
    }

    /// The mounter of file systems; `None` if they cannot be mounted.
    pub fn mounter(&self) -> Option<Arc<dyn Mounter>> {
        self.mounter.read().clone()
    }

    /// The environment of a pool: its own threads, so that pools do not wait for each other, and the shared memory.
    pub fn env(&self) -> Result<Env> {
        Env::with_memory(Arc::clone(&self.memory))
    }

    /// Whether there is no pool, none is being imported or exported, and no import is to be delayed.
    pub fn is_empty(&self) -> bool {
        self.pools.lock().is_empty() && self.delays.is_empty()
    }

    /// All pools in the order of their names, without those being imported or exported.
    pub fn all(&self) -> Vec<Arc<Imported>> {
        self.pools.lock().values().filter_map(Slot::pool).cloned().collect()
    }

    /// The pool of that name, or of that guid. Waits for one that is being imported or exported.
    pub fn get(&self, wanted: &str) -> Option<Arc<Imported>> {
        let mut pools = self.pools.lock();
        loop {
            match pools.get(wanted) {
                Some(Slot::There(pool)) => return Some(Arc::clone(pool)),
                Some(Slot::Coming | Slot::Changing) => {
                    if self.changed.wait_for(&mut pools, PATIENCE).timed_out() {
                        return None;
                    }
                }
                None => break,
            }
        }
        let guid: u64 = wanted.parse().ok()?;
        pools.values().filter_map(Slot::pool).find(|pool| pool.guid() == guid).cloned()
    }

    /// The names of the pools that are being imported.
    pub fn coming(&self) -> Vec<String> {
        let pools = self.pools.lock();
        let coming = pools.iter().filter(|(_, slot)| matches!(slot, Slot::Coming));
        coming.map(|(name, _)| name.clone()).collect()
    }

    /// Whether a pool is being imported.
    pub fn is_coming(&self, name: &str) -> bool {
        matches!(self.pools.lock().get(name), Some(Slot::Coming))
    }

    /// Reserves a name for a pool that is created.
    ///
    /// # Errors
    /// `Exists` if the name is taken.
    pub fn reserve(self: &Arc<Self>, name: &str) -> Result<Reservation> {
        self.reserve_as(name, Slot::Changing)
    }

    /// Reserves a name for a pool that is imported.
    ///
    /// # Errors
    /// `Exists` if the name is taken.
    pub(crate) fn reserve_for_import(self: &Arc<Self>, name: &str) -> Result<Reservation> {
        self.reserve_as(name, Slot::Coming)
    }

    fn reserve_as(self: &Arc<Self>, name: &str, slot: Slot) -> Result<Reservation> {
        let mut pools = self.pools.lock();
        let taken = |what: &str| Err(Error::new(Kind::Exists, what).in_pool(name));
        match pools.get(name) {
            Some(Slot::Coming) => return taken(BEING_IMPORTED),
            Some(_) => return taken("pool already exists"),
            None => {}
        }
        pools.insert(name.to_owned(), slot);
        Ok(Reservation { registry: Arc::clone(self), name: name.to_owned() })
    }

    /// Removes a pool from the registry, as soon as it is unused.
    ///
    /// # Errors
    /// `Busy` if it stays in use for long; the pool remains then.
    pub fn take(self: &Arc<Self>, name: &str) -> Result<(Arc<Imported>, Reservation)> {
        let missing = || Error::new(Kind::NotFound, "no such pool").in_pool(name);
        let mut pools = self.pools.lock();
        let slot = pools.get_mut(name).ok_or_else(missing)?;
        let busy = || Error::new(Kind::Busy, "pool is busy").in_pool(name);
        let pool = slot.pool().cloned().ok_or_else(busy)?;
        *slot = Slot::Changing;
        drop(pools);
        let reservation = Reservation { registry: Arc::clone(self), name: name.to_owned() };
        for _ in 0..100 {
            if Arc::strong_count(&pool) == 1 {
                return Ok((pool, reservation));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        reservation.fill(pool);
        Err(busy())
    }
}

/// A reserved name; released when dropped, unless filled.
#[derive(Debug)]
pub struct Reservation {
    registry: Arc<Registry>,
    name: String,
}

impl Reservation {
    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Registers a pool under the name.
    pub fn fill(self, pool: Arc<Imported>) {
        self.registry.failed.lock().remove(&self.name);
        if let Ok(spa) = pool.spa() {
            self.registry.events.add(spa.reports().events());
        }
        self.registry.pools.lock().insert(self.name.clone(), Slot::There(pool));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut pools = self.registry.pools.lock();
        if matches!(pools.get(&self.name), Some(Slot::Coming | Slot::Changing)) {
            pools.remove(&self.name);
        }
        drop(pools);
        self.registry.changed.notify_all();
    }
}
