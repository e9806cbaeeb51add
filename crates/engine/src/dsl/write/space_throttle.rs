//! Whether writers must wait, or are refused, because there is no space: asked before every transaction, so
//! the answer is worked out once a txg.
//!
//! Unsynced changes are charged with the most that they may allocate, and changes that are about to begin with the blocks that they
//! reserve. While that could be too much, writers wait for a txg: then the real allocation is known, and frees have taken effect.
//! Writers are refused when it is too much with nothing under way. A quota is asked about the changes of all datasets below its
//! directory. Freed space is not usable for two txgs. The slop space remains for operations that free space, so a full pool can be
//! emptied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::hooks::Hooks;
use super::open_datasets::{DslPool, LiveDataset};
use super::space::{QuotaRoom, Room, room};
use crate::dmu::dirty::needs::Needs;
use crate::dmu::dirty::pending::Pending;
use crate::dmu::tx::Reserved;
use crate::error::{Error, Kind, Result};

/// Bytes that a transaction is taken to change at least.
const LEAST_CHANGE: u64 = 4096;
/// Txgs that are waited for before a writer is refused.
const PATIENCE: usize = 4;
/// The same while there is room but other writers take it: a waiting writer is refused only when they take
/// all of it.
const LONG_PATIENCE: usize = 1024;

/// The pool operations that a dataset's space throttle needs.
pub trait SpaceSource: Hooks {
    /// The datasets.
    fn datasets(&self) -> &DslPool;
    /// The last txg on disk.
    fn synced(&self) -> u64;
    /// Changed bytes in all open txgs.
    fn dirty(&self) -> u64;
    /// Reserves bytes of blocks; returns those that others have reserved, too.
    fn reserve(&self, bytes: u64) -> (Reserved, u64);
    /// Bytes on disk of blocks of 1 MiB and of the smallest size, on the vdev where they take most.
    fn worst_sizes(&self) -> [u64; 2];
    /// Bytes on disk that all blocks which open txgs have to write take at most, if none can be compressed; and bytes on disk
    /// that a changed byte may take at most: copies, parity, sectors that it fills in part, and metadata. `worst`: as
    /// [`SpaceSource::worst_sizes`] returned them.
    fn needed_and_inflation(&self, worst: [u64; 2]) -> (u64, u64);
    /// Bytes that were freed and can't be used for some txgs.
    fn deferred(&self) -> u64;
    /// Whether something that was removed or destroyed is still being freed.
    fn is_freeing(&self) -> bool;
    /// Waits until all that was changed so far is on disk.
    fn sync(&self) -> Result<()>;
}

/// A quota that limits a dataset.
#[derive(Debug)]
struct Quota {
    room: QuotaRoom,
    /// Pending blocks below its directory; `None`: the dataset alone counts.
    below: Option<Arc<Pending>>,
}

/// Facts that the answers of one txg share.
#[derive(Debug, Clone)]
struct Known {
    /// The last txg on disk.
    synced: u64,
    /// For operations that take space, and for those that free some.
    rooms: [Room; 2],
    /// For operations that take space.
    quotas: Arc<[Quota]>,
    /// As [`SpaceSource::deferred`] and [`SpaceSource::worst_sizes`] returned them.
    deferred: u64,
    worst: [u64; 2],
}

impl Known {
    fn room(&self, netfree: bool) -> Room {
        let [takes, frees] = self.rooms;
        if netfree { frees } else { takes }
    }

    /// Bytes on disk that unsynced changes take at most below the quota that refuses more of them, if one does.
    fn over_quota(&self, dataset: &LiveDataset) -> Option<u64> {
        self.quotas.iter().find_map(|Quota { room, below }| {
            let pending = match below {
                Some(below) => below.after(self.synced),
                None => dataset.objset.pending(self.synced),
            };
            let bytes = pending.most_asize(self.worst);
            (room.left == 0 || bytes >= room.left.saturating_add(room.slack)).then_some(bytes)
        })
    }
}

/// Room of one dataset, as of a txg.
#[derive(Debug, Default)]
pub struct SpaceThrottles {
    known: Mutex<Option<Known>>,
    /// Something was freed since writers last waited for that.
    freed: AtomicBool,
}

impl SpaceThrottles {
    /// Room as of the last txg on disk. `netfree` as in [`room`].
    pub fn of(&self, pool: &dyn SpaceSource, dataset: &LiveDataset, netfree: bool) -> Result<Room> {
        Ok(self.as_of(pool, dataset)?.room(netfree))
    }

    /// The facts as of the last txg on disk.
    fn as_of(&self, pool: &dyn SpaceSource, dataset: &LiveDataset) -> Result<Known> {
        let synced = pool.synced();
        let mut known = self.known.lock();
        if let Some(known) = known.as_ref().filter(|known| known.synced == synced) {
            return Ok(known.clone());
        }
        let of = |netfree| room(&pool.datasets().view(), pool, dataset.number, netfree);
        let ((takes, quotas), (frees, _)) = (of(false)?, of(true)?);
        let quotas: Arc<[Quota]> = quotas
            .into_iter()
            .map(|room| Quota { room, below: room.dir.map(|dir| pool.datasets().pending.of(dir)) })
            .collect();
        dataset.objset.set_above(quotas.iter().filter_map(|quota| quota.below.clone()).collect());
        let (deferred, worst) = (pool.deferred(), pool.worst_sizes());
        let now = Known { synced, rooms: [takes, frees], quotas, deferred, worst };
        *known = Some(now.clone());
        Ok(now)
    }

    /// Reserves space for a change of at most `bytes` bytes of blocks that may proceed at once; `None`: it has to wait.
    ///
    /// # Errors
    /// As reading the properties and the space of the dataset.
    pub fn admit(
        &self,
        pool: &dyn SpaceSource,
        dataset: &LiveDataset,
        bytes: u64,
    ) -> Result<Option<Reserved>> {
        let known = self.as_of(pool, dataset)?;
        let (reserved, others) = pool.reserve(bytes);
        let now = Balance::of(pool, &known, (false, others));
        let is_enough = known.over_quota(dataset).is_none()
            && now.is_enough()
            && now.fits(&known, own_needs(dataset, bytes));
        Ok(is_enough.then_some(reserved))
    }

    /// The same for a change that makes a block longer by `bytes` at most which the open txg writes already. The factor of inflation
    /// applied when the block changed first, so that now all blocks count with their real sizes.
    ///
    /// # Errors
    /// As [`SpaceThrottles::admit`].
    pub fn admit_within(
        &self,
        pool: &dyn SpaceSource,
        dataset: &LiveDataset,
        bytes: u64,
    ) -> Result<Option<Reserved>> {
        let known = self.as_of(pool, dataset)?;
        let (reserved, others) = pool.reserve(bytes);
        let now = Balance::of(pool, &known, (false, others));
        let taken = now.needed.saturating_add(now.may_take(others.saturating_add(bytes)));
        // A change within a block that is dirty already takes no more space, and is never refused.
        let is_enough = bytes == 0 || known.over_quota(dataset).is_none() && taken < now.free;
        Ok(is_enough.then_some(reserved))
    }

    /// Waits until a change of at most `bytes` bytes of blocks may proceed, and reserves their space.
    ///
    /// # Errors
    /// `NoSpace`, or `Quota` when it is the dataset's or an ancestor's.
    #[doc(alias("dsl_dir_tempreserve_space", "dmu_tx_assign"))]
    pub fn wait(
        &self,
        pool: &dyn SpaceSource,
        dataset: &LiveDataset,
        (bytes, netfree): (u64, bool),
    ) -> Result<Reserved> {
        let mut in_quota = true;
        let (mut last, mut unhelped, mut last_deferred) = (0, 0, 0);
        let own = own_needs(dataset, bytes);
        for tried in 0..LONG_PATIENCE {
            let known = self.as_of(pool, dataset)?;
            let (room, deferred) = (known.room(netfree), known.deferred);
            let (reserved, others) = pool.reserve(bytes);
            let now = Balance::of(pool, &known, (netfree, others));
            let over = if netfree { None } else { known.over_quota(dataset) };
            in_quota = over.is_none();
            let fits = netfree || now.fits(&known, own);
            if in_quota && now.is_enough() && fits {
                if netfree {
                    self.freed.store(true, Ordering::Relaxed);
                }
                return Ok(reserved);
            }
            drop(reserved);
            // Background frees help later, if they are within the limit at hand.
            let left = if in_quota { now.free } else { room.quota };
            // Space freed meanwhile becomes usable after two txgs; wait for it if it suffices.
            let least = now.may_take(0);
            let helps = in_quota && deferred > 0 && least.max(now.needed) < now.free.saturating_add(deferred);
            unhelped = if left > last || helps && deferred > last_deferred { 0 } else { unhelped + 1 };
            (last, last_deferred) = (left, deferred);
            let is_coming = pool.is_freeing() || helps;
            let freeing = unhelped < PATIENCE && is_coming;
            let none_left = if in_quota { least >= now.free || !fits } else { room.quota == 0 };
            let hopeless = !freeing && none_left;
            if hopeless && tried >= PATIENCE {
                break;
            }
            let changing = over.unwrap_or(now.dirty);
            // Deferred frees are usable after the next txg.
            let nothing_comes = !self.freed.swap(false, Ordering::Relaxed) && (!in_quota || deferred == 0);
            if changing == 0 && nothing_comes && !freeing {
                break;
            }
            pool.sync()?;
        }
        Err(match in_quota {
            true => Error::new(Kind::NoSpace, "the pool is full"),
            false => Error::new(Kind::Quota, "the quota is used up"),
        })
    }
}

/// Blocks of `bytes` bytes in all copies of the dataset.
fn own_needs(dataset: &LiveDataset, bytes: u64) -> Needs {
    if bytes == 0 { Needs::default() } else { Needs::block(bytes, dataset.objset.copies()) }
}

/// Space of the pool against the changes of its open txgs.
#[derive(Debug, Clone, Copy)]
struct Balance {
    /// Bytes that may be allocated now: `used` already excludes freed space, before others may have it.
    free: u64,
    /// Bytes that are changed in all open txgs, or reserved.
    dirty: u64,
    /// Bytes on disk that their blocks take at most, and the smallest further change.
    needed: u64,
    /// Bytes on disk that a changed byte may take at most.
    inflation: u64,
}

impl Balance {
    /// `reserved`: bytes that other changes have reserved.
    fn of(pool: &dyn SpaceSource, known: &Known, (netfree, reserved): (bool, u64)) -> Self {
        let (needed, inflation) = pool.needed_and_inflation(known.worst);
        let free = known.room(netfree).pool.saturating_sub(known.deferred);
        let now = Self { free, dirty: pool.dirty().saturating_add(reserved), needed, inflation };
        Self { needed: needed.saturating_add(now.may_take(0)), ..now }
    }

    /// Whether a change's own blocks fit beside those of all others, into a quarter of the slop if need be: the first change is
    /// admitted while there is any space, and one block may be larger than that. Operations that free space have the next quarter.
    fn fits(&self, known: &Known, own: Needs) -> bool {
        let [takes, frees] = known.rooms.map(|room| room.pool.saturating_sub(known.deferred));
        let free = takes.midpoint(frees);
        own == Needs::default() || self.needed.saturating_add(own.most_asize(known.worst)) < free
    }

    /// Bytes on disk that `changed` bytes, and the smallest further change, may take at most.
    fn may_take(&self, changed: u64) -> u64 {
        changed.saturating_add(LEAST_CHANGE).saturating_mul(self.inflation)
    }

    fn is_enough(&self) -> bool {
        self.may_take(self.dirty).max(self.needed) < self.free
    }
}
