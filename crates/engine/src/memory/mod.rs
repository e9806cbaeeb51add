//! The memory of the process: the limits, and the cache of decoded blocks of all pools.
//!
//! One [`Memory`] serves all pools that share a limit. [`lists`] chooses the block to evict without regard to
//! pools, so a busy pool takes space from an idle one. `arc` is a pool's own side of it.
//!
//! Lock order: the store's lock is a leaf lock.
//!
//! Differs from OpenZFS: no compressed buffers and no second level; the limit counts bytes that consumers may still
//! hold.

pub(crate) mod ahead;
mod chains;
pub(crate) mod dataset_stats;
pub(crate) mod demand;
pub mod limits;
pub(crate) mod lists;
pub(crate) mod objects;
pub(crate) mod on_its_way;
pub mod stats;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use stdx::Buf;

pub use limits::{Limit, Limits};
use lists::{BlockUse, RecencyLists, Sizes};
use stats::{ArcStats, ReadPurpose};

/// Identity of a block: its pool, the location of its first copy, its birth, and whether the bytes are as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey {
    pub(crate) pool: u32,
    pub(crate) vdev: u32,
    pub(crate) offset: u64,
    pub(crate) birth: u64,
    pub(crate) keyless: bool,
}

/// Bookkeeping bytes of a block: counted with its content, so that small blocks stay within the limit.
pub const HEADER: u64 = 256;
const PAGE: usize = 4096;
/// Bytes that all scans may hold on a small machine, if the cache has room.
#[doc(alias = "zfs_scan_mem_lim_min")]
const SCAN_LEAST: u64 = 16 << 20;
/// The part of the cache's target that all scans may hold.
const SCAN_PART: u64 = 4;
/// Bytes that each scan may hold however small the cache is.
const SCAN_FLOOR: u64 = 1 << 20;
/// Least and most bytes of blocks that the system's page cache has as well, and their part of the target: enough for the
/// streams that still read pieces of them, few enough that streams use the same memory again and again.
const UNCACHED: (u64, u64) = (16 << 20, 128 << 20);
const UNCACHED_PART: u64 = 8;
/// That many of them have room at least; larger ones are kept like others.
const UNCACHED_BLOCKS: u64 = 16;

#[derive(Debug, Default)]
struct Store {
    lists: RecencyLists<Buf>,
    bytes: u64,
    evicted: u64,
    most_blocks: usize,
}

/// The process's memory for blocks.
#[derive(Debug)]
pub struct Memory {
    /// The settings.
    pub limits: Limits,
    /// Counters.
    pub stats: ArcStats,
    /// Bytes held for cache devices, which are headers and blocks that wait to be written, and for workspaces.
    second: AtomicU64,
    /// Bytes held for blocks that scans have still to read.
    gathered: AtomicU64,
    /// Bytes that the machine is short of, subtracted from the limit to get the target.
    short: AtomicU64,
    pools: AtomicU32,
    /// The number of the newest event of all pools.
    events: AtomicU64,
    /// Bytes of indices of dedup tables.
    indices: AtomicU64,
    store: Mutex<Store>,
    /// Objects of open object sets.
    pub objects: objects::ObjectCounts,
    /// Blocks that send streams have read ahead.
    ahead: ahead::ReadAhead,
    /// Bytes of blocks that are being read ahead for files and directories.
    on_their_way: AtomicU64,
    /// Reads of large blocks that callers wait for.
    demand: demand::Demand,
}

/// A counted workspace.
#[derive(Debug)]
pub(crate) struct Workspace<'m> {
    memory: &'m Memory,
    bytes: u64,
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        self.memory.release_second(self.bytes);
    }
}

/// The present content of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Bytes of blocks, without [`HEADER`]s.
    pub bytes: u64,
    /// Maximum bytes at present: at most `zfs_arc_max`.
    pub target: u64,
    /// Number of blocks, including ghosts.
    pub known: u64,
    /// The maximum of that number so far.
    pub most_known: u64,
    /// Number of evicted blocks so far.
    pub evicted: u64,
    /// Target bytes of the side of blocks seen once.
    pub recent_target: u64,
    /// Bytes of each list.
    pub sizes: Sizes,
}

/// Frees the workspaces that all pools keep for reuse and that none has used since the last call.
pub fn release_unused() {
    compress::zstd::release_idle();
}

impl Memory {
    /// An empty cache with these limits.
    pub fn new(limits: Limits) -> Self {
        let (short, pools) = (AtomicU64::new(0), AtomicU32::new(0));
        Self {
            limits,
            stats: ArcStats::default(),
            second: AtomicU64::new(0),
            gathered: AtomicU64::new(0),
            short,
            pools,
            events: AtomicU64::new(0),
            indices: AtomicU64::new(0),
            store: Mutex::default(),
            objects: objects::ObjectCounts::default(),
            ahead: ahead::ReadAhead::default(),
            on_their_way: AtomicU64::new(0),
            demand: demand::Demand::default(),
        }
    }

    /// An empty cache of at most `arc_max` bytes; other limits have their defaults.
    pub fn of_size(arc_max: u64) -> Self {
        let limits = Limits::default();
        // 0 would mean the default; with one byte no block is cached.
        let _ = limits.set(Limit::ArcMax, arc_max.max(1));
        Self::new(limits)
    }

    /// A number unique to a pool.
    pub(crate) fn pool(&self) -> u32 {
        self.pools.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of the next event: numbers are unique among the pools that share this memory.
    pub(crate) fn next_event(&self) -> u64 {
        self.events.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Maximum bytes that blocks may take at present.
    #[doc(alias = "arc_c")]
    pub fn target(&self) -> u64 {
        let (most, least) = (self.limits.get(Limit::ArcMax), self.floor());
        most.saturating_sub(self.short.load(Ordering::Relaxed)).max(least)
    }

    /// Bytes that stay when the machine is short of memory.
    #[doc(alias = "arc_c_min")]
    pub fn floor(&self) -> u64 {
        let most = self.limits.get(Limit::ArcMax);
        match self.limits.stored(Limit::ArcMin) {
            0 => self.limits.get(Limit::ArcMin).min(most / 2),
            set => set.min(most),
        }
    }

    /// Sets a limit; excess blocks are evicted at once.
    ///
    /// # Errors
    /// A message, if the value is out of bounds.
    pub fn set(&self, limit: Limit, value: u64) -> Result<(), String> {
        self.limits.set(limit, value)?;
        self.evict(&mut self.store.lock());
        Ok(())
    }

    /// Adapts the target to the machine's available memory, by evicting blocks or restoring space.
    #[doc(alias("arc_reap_cb", "arc_available_memory"))]
    pub fn available(&self, bytes: u64) {
        let wanted = self.limits.get(Limit::ArcSysFree);
        let most = self.limits.get(Limit::ArcMax);
        let short = self.short.load(Ordering::Relaxed);
        let now = if bytes < wanted {
            // Starts from the present size, not from the limit: unused space cannot be released.
            let held = self.store.lock().size();
            let unused = most.saturating_sub(held);
            short.max(unused).saturating_add(wanted - bytes).min(most)
        } else {
            // Restores an eighth of the surplus each time, to avoid oscillation.
            short.saturating_sub((bytes - wanted) / 8)
        };
        self.short.store(now, Ordering::Relaxed);
        if bytes < wanted {
            self.evict(&mut self.store.lock());
        }
    }

    /// Whether the machine is short of memory.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) > 0
    }

    /// The indices of a pool's dedup tables held `before` bytes and hold `now`. Returns the limit for this
    /// pool's indices: the part of `zfs_dedup_index_max` that other pools' indices leave, and, as for the
    /// cache, less when the machine is short of memory.
    pub fn dedup_index(&self, before: u64, now: u64) -> u64 {
        let _ = self.indices.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
            Some(all.saturating_sub(before).saturating_add(now))
        });
        let (most, cache) = (self.limits.get(Limit::DedupIndexMax), self.limits.get(Limit::ArcMax).max(1));
        let short = self.short.load(Ordering::Relaxed).min(cache);
        let most = u128::from(most) * u128::from(cache - short) / u128::from(cache);
        let others = self.indices.load(Ordering::Relaxed).saturating_sub(now);
        u64::try_from(most).unwrap_or(u64::MAX).saturating_sub(others)
    }

    /// Bytes that the indices of all pools' dedup tables hold.
    pub fn dedup_index_held(&self) -> u64 {
        self.indices.load(Ordering::Relaxed)
    }

    /// Counts bytes that are held for cache devices from now on: blocks have as much less space.
    pub(crate) fn hold_second(&self, bytes: u64) {
        self.second.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Ends [`Memory::hold_second`].
    pub(crate) fn release_second(&self, bytes: u64) {
        self.second.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts a workspace until the result is dropped: blocks have as much less space.
    pub(crate) fn hold_workspace(&self, bytes: usize) -> Workspace<'_> {
        let bytes = bytes as u64;
        if bytes > 0 {
            self.hold_second(bytes);
            self.evict(&mut self.store.lock());
        }
        Workspace { memory: self, bytes }
    }

    /// Bytes held for cache devices and workspaces.
    pub fn second(&self) -> u64 {
        self.second.load(Ordering::Relaxed)
    }

    /// The blocks that a pool's scan has still to read took `before` bytes and take `now`: blocks in memory have as much less
    /// space. Returns the limit for this scan: the part of all scans' that the others leave, and at least a mebibyte.
    #[doc(alias("zfs_scan_mem_lim_fact", "dsl_scan_should_clear"))]
    pub(crate) fn hold_gathered(&self, before: u64, now: u64) -> u64 {
        let _ = self.gathered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
            Some(all.saturating_sub(before).saturating_add(now))
        });
        if now > before {
            self.evict(&mut self.store.lock());
        }
        let part = self.limits.machine() / self.limits.get(Limit::ScanMemFact).max(1);
        let most = part.max(SCAN_LEAST).min(self.target() / SCAN_PART);
        most.saturating_sub(self.gathered().saturating_sub(now)).max(SCAN_FLOOR)
    }

    /// Bytes held for blocks that scans have still to read.
    pub fn gathered(&self) -> u64 {
        self.gathered.load(Ordering::Relaxed)
    }

    /// Maximum unused objects of one object set.
    pub(crate) fn object_share(&self) -> usize {
        self.objects.share(self.target())
    }

    /// Whether blocks were evicted since the start of the process.
    #[doc(alias = "arc_warm")]
    pub(crate) fn is_warm(&self) -> bool {
        self.store.lock().evicted > 0
    }

    /// The standing of a block that is in memory or was: seen more than once; read ahead and not used since.
    pub fn standing(&self, key: BlockKey) -> Option<(bool, bool)> {
        self.store.lock().lists.standing(key)
    }

    /// The present content.
    pub fn contents(&self) -> Contents {
        let target = self.target();
        let store = self.store.lock();
        Contents {
            bytes: store.bytes,
            target,
            known: store.lists.len() as u64,
            most_known: store.most_blocks as u64,
            evicted: store.evicted,
            recent_target: store.lists.target(),
            sizes: store.lists.sizes(),
        }
    }

    /// A cached block.
    pub fn get(&self, key: BlockKey, purpose: ReadPurpose) -> Option<Buf> {
        let mut store = self.store.lock();
        let (buf, touched) = store.lists.touch(key, purpose).map(|(buf, touched)| (buf.clone(), touched))?;
        if purpose.paged {
            store.limit_uncached(self.uncached_most(), self.target());
        }
        drop(store);
        self.stats.hits.count(purpose);
        if touched == BlockUse::ReadAhead {
            self.stats.prefetch_used.fetch_add(1, Ordering::Relaxed);
        }
        Some(buf)
    }

    /// Whether a block is cached. Does not count as a use of it.
    pub(crate) fn has(&self, key: BlockKey) -> bool {
        self.store.lock().lists.value(key).is_some()
    }

    /// Caches a block that was read, unless it was written meanwhile: the written content is newer.
    pub fn keep(&self, key: BlockKey, buf: &Buf, purpose: ReadPurpose) {
        let mut store = self.store.lock();
        if store.lists.value(key).is_none() {
            self.add(&mut store, key, buf, purpose);
        }
    }

    /// Replaces the cached content of a written block.
    pub fn replace(&self, key: BlockKey, buf: &Buf, purpose: ReadPurpose) {
        let mut store = self.store.lock();
        match store.lists.value_mut(key) {
            // Overwritten in place: the cached content is old. The size is the same.
            Some(slot) => *slot = buf.clone(),
            None => self.add(&mut store, key, buf, purpose),
        }
    }

    /// Removes one block.
    pub fn remove(&self, key: BlockKey) {
        self.store.lock().remove(key);
    }

    /// Removes a pool's blocks.
    pub(crate) fn forget(&self, pool: u32) {
        let mut store = self.store.lock();
        let bytes = store.lists.forget_pool(pool);
        store.bytes = store.bytes.saturating_sub(bytes);
    }

    fn add(&self, store: &mut Store, key: BlockKey, buf: &Buf, purpose: ReadPurpose) {
        // A small slice of a joined device read would keep the whole read alive.
        let own = if buf.footprint() > 2 * buf.len() { Buf::from(&**buf) } else { buf.clone() };
        // Buffers begin at pages, so a small one costs a page.
        let size = u64::try_from(own.footprint().next_multiple_of(PAGE)).unwrap_or(u64::MAX);
        let target = self.target();
        if size > target / 2 {
            return;
        }
        let uncached = self.uncached_most();
        let purpose = ReadPurpose { paged: purpose.paged && size <= uncached / UNCACHED_BLOCKS, ..purpose };
        store.lists.insert(key, own, size, purpose, target);
        store.bytes += size;
        store.most_blocks = store.most_blocks.max(store.lists.len());
        store.limit_uncached(uncached, target);
        self.evict(store);
    }

    /// Maximum bytes of blocks that the system's page cache has as well.
    fn uncached_most(&self) -> u64 {
        let (least, most) = UNCACHED;
        (self.target() / UNCACHED_PART).clamp(least, most)
    }

    /// Evicts blocks in whose space a read is going to be.
    fn make_room(&self) {
        if self.in_progress() > 0 {
            self.evict(&mut self.store.lock());
        }
    }

    /// Bytes of the cache's target that reads in progress take.
    fn in_progress(&self) -> u64 {
        self.demand.beyond().saturating_add(self.on_their_way.load(Ordering::Relaxed))
    }

    fn evict(&self, store: &mut Store) {
        let target = self.target();
        // Objects that programs use can be more than their part, which is all that they take of the cache.
        let beside = self.second().saturating_add(self.objects.beyond().min(target / objects::PART));
        let beside = beside.saturating_add(self.gathered()).saturating_add(self.in_progress());
        while store.size().saturating_add(beside) > target {
            let Some(bytes) = store.lists.evict(target) else { break };
            store.bytes = store.bytes.saturating_sub(bytes);
            store.evicted += 1;
        }
    }
}

impl Store {
    fn size(&self) -> u64 {
        self.bytes + HEADER * self.lists.len() as u64
    }

    /// Evicts blocks that the system's page cache has as well beyond `most` bytes.
    fn limit_uncached(&mut self, most: u64, target: u64) {
        while let Some(bytes) = self.lists.evict_uncached(most, target) {
            self.bytes = self.bytes.saturating_sub(bytes);
            self.evicted += 1;
        }
    }

    fn remove(&mut self, key: BlockKey) {
        let bytes = self.lists.remove(key).unwrap_or(0);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: ReadPurpose = ReadPurpose { prefetch: false, metadata: false, paged: false };
    const AHEAD: ReadPurpose = ReadPurpose { prefetch: true, ..DATA };

    fn key(pool: u32, offset: u64) -> BlockKey {
        BlockKey { pool, vdev: 0, offset, birth: 1, keyless: false }
    }

    /// A block with its header.
    const BLOCK: u64 = 4096 + HEADER;

    fn held(memory: &Memory) -> u64 {
        memory.contents().bytes / 4096
    }

    fn fill(memory: &Memory, pool: u32, count: u64) {
        for offset in 0..count {
            memory.keep(key(pool, offset), &Buf::from(&[0_u8; 4096][..]), DATA);
        }
    }

    #[test]
    fn pools_share_one_limit_and_a_lower_one_holds_at_once() {
        let memory = Memory::of_size(100 * BLOCK);
        fill(&memory, 1, 100);
        assert_eq!(held(&memory), 100);
        fill(&memory, 2, 60);
        let now = memory.contents();
        assert!(now.bytes + now.known * HEADER <= 100 * BLOCK);
        assert!(memory.get(key(2, 59), DATA).is_some() && memory.get(key(1, 0), DATA).is_none());
        memory.set(Limit::ArcMax, 20 * BLOCK).unwrap();
        assert!((1..20).contains(&held(&memory)));
        memory.forget(2);
        assert!(memory.get(key(2, 59), DATA).is_none());
        memory.forget(1);
        let left = memory.contents();
        assert_eq!((left.bytes, left.known), (0, 0));
    }

    #[test]
    fn a_read_that_ends_late_does_not_replace_what_was_written() {
        let memory = Memory::of_size(1 << 20);
        memory.replace(key(1, 1), &Buf::from(&[2_u8; 512][..]), DATA);
        memory.keep(key(1, 1), &Buf::from(&[1_u8; 512][..]), DATA);
        assert_eq!(memory.get(key(1, 1), DATA).unwrap().first(), Some(&2));
        assert_eq!(memory.contents().bytes, memory.contents().sizes.total());
    }

    #[test]
    fn short_memory_lowers_the_target_to_the_floor_and_comes_back() {
        let memory = Memory::of_size(100 * BLOCK);
        memory.set(Limit::ArcMin, 20 * BLOCK).unwrap();
        memory.set(Limit::ArcSysFree, 1 << 20).unwrap();
        fill(&memory, 1, 50);
        memory.available((1 << 20) - 10 * BLOCK);
        assert_eq!((memory.target(), held(&memory)), (40 * BLOCK, 39));
        memory.available(0);
        assert_eq!(memory.target(), 20 * BLOCK);
        assert!((15..20).contains(&held(&memory)));
        memory.available(1 << 40);
        assert_eq!(memory.target(), 100 * BLOCK);
    }

    #[test]
    fn large_blocks_are_kept_although_the_page_cache_has_them() {
        let memory = Memory::of_size(64 << 20);
        for (offset, bytes) in [(1, 1 << 20), (2, 2 << 20)] {
            let ahead = ReadPurpose { paged: true, ..AHEAD };
            memory.keep(key(1, offset), &Buf::from(&vec![1_u8; bytes][..]), ahead);
            (0..2)
                .for_each(|_| drop(memory.get(key(1, offset), ReadPurpose { paged: true, ..DATA }).unwrap()));
        }
        let sizes = memory.contents().sizes;
        assert_eq!((sizes.uncached.data, sizes.frequent.data), (1 << 20, 2 << 20));
    }

    #[test]
    fn blocks_read_ahead_are_counted_when_used() {
        let memory = Memory::of_size(1 << 20);
        memory.keep(key(1, 1), &Buf::from(&[2_u8; 512][..]), AHEAD);
        for _ in 0..2 {
            memory.get(key(1, 1), DATA);
        }
        assert_eq!(memory.stats.prefetch_used.load(Ordering::Relaxed), 1);
        assert_eq!((memory.stats.hits.get(DATA), memory.stats.hits.total()), (2, 2));
        assert_eq!(memory.stats.misses.total(), 0);
    }
}
