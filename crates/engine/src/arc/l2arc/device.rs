//! In-memory state of one cache device: its write and evict hands, its log blocks, and the index of its
//! blocks.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ondisk::Blkptr;
use ondisk::l2arc::{BufferKind, L2arcDevHdr, L2arcLogBlkptr, L2arcLogEnt, L2arcProp};

use super::place::{FeedArea, Hands};
use crate::memory::stats::{L2, L2Stats};
use crate::vdev::leaf::Leaf;

/// Identity of a block: the address of its first copy, and its physical birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlockId {
    pub(crate) vdev: u32,
    pub(crate) offset: u64,
    pub(crate) birth: u64,
}

impl BlockId {
    pub(super) fn of(bp: &Blkptr) -> Option<Self> {
        let dva = bp.dva(0)?;
        Some(Self { vdev: dva.vdev, offset: dva.offset, birth: bp.physical_birth() })
    }
}

/// A block on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CachedBlock {
    /// Guid of the device.
    pub(crate) device: u64,
    /// Byte offset on it.
    pub(crate) daddr: u64,
    /// Size and kind, as a log block records them.
    pub(crate) prop: L2arcProp,
    /// Bytes that it takes.
    pub(crate) asize: u32,
}

/// Memory that a block on a device takes here: its places in two maps.
pub(super) const HEADER: u64 = 192;

/// All blocks on the devices of a pool.
pub(super) type Index = HashMap<BlockId, CachedBlock>;

/// State of a cache device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceState {
    /// Its contents are being restored; it is not fed.
    Rebuilding,
    /// It waits for the next round.
    Idle,
    /// A round is under way, or an empty header is being written.
    Writing,
    /// It failed too often, and is not used until it is taken into use again.
    Failed,
    /// It is offline: its blocks are counted, but neither read nor written.
    Offline,
}

/// One cache device in use.
#[derive(Debug)]
pub(super) struct CacheDevice {
    pub(crate) leaf: Arc<Leaf>,
    pub(crate) place: FeedArea,
    pub(crate) hands: Hands,
    pub(crate) mode: DeviceState,
    /// Entries of a log block; 0: it has none.
    pub(crate) log_entries: usize,
    /// The newest log block and the one before it.
    pub(crate) start: [L2arcLogBlkptr; 2],
    /// Log blocks on it, oldest first.
    pub(crate) logs: VecDeque<L2arcLogBlkptr>,
    /// Entries of the next log block.
    pub(crate) pending: Vec<L2arcLogEnt>,
    /// Their size.
    pub(crate) payload: u64,
    /// Blocks by their offset.
    pub(crate) by_offset: BTreeMap<u64, BlockId>,
    /// Bytes of blocks on it.
    pub(crate) held: u64,
    /// Time of the next round.
    pub(crate) next: Duration,
    /// Rounds that failed, since one succeeded.
    pub(crate) failures: u32,
    /// Time and state of the last trim, as its header had them.
    pub(crate) trim: (u64, u64),
}

impl CacheDevice {
    pub(super) fn new(leaf: Arc<Leaf>, place: FeedArea, log_entries: usize) -> Self {
        Self {
            leaf,
            place,
            hands: Hands::of_empty(place),
            mode: DeviceState::Rebuilding,
            log_entries,
            start: Default::default(),
            logs: VecDeque::new(),
            pending: Vec::new(),
            payload: 0,
            by_offset: BTreeMap::new(),
            held: 0,
            next: Duration::ZERO,
            failures: 0,
            trim: (0, 0),
        }
    }

    /// Whether its blocks may be read.
    pub(super) fn is_read(&self) -> bool {
        !matches!(self.mode, DeviceState::Failed | DeviceState::Offline)
    }

    /// Whether it gets new blocks.
    pub(super) fn is_fed(&self) -> bool {
        matches!(self.mode, DeviceState::Idle | DeviceState::Writing)
    }

    /// Whether a device of `size` bytes ends where this one does.
    pub(super) fn is_of_size(&self, size: u64) -> bool {
        FeedArea::of(size, self.place.sector) == Some(self.place)
    }

    /// Bytes of its log blocks.
    pub(super) fn log_bytes(&self) -> u64 {
        self.logs.iter().map(|log| L2arcProp(log.prop).psize()).sum()
    }

    /// The header for the present state.
    pub(super) fn header(&self, pool: u64) -> L2arcDevHdr {
        let empty = super::place::empty_header(pool, self.leaf.guid, self.place, self.log_entries);
        L2arcDevHdr {
            evict: self.hands.evict,
            flags: u64::from(self.hands.first),
            start_lbps: self.start,
            lb_asize: self.log_bytes(),
            lb_count: u64::try_from(self.logs.len()).unwrap_or(u64::MAX),
            trim_action_time: self.trim.0,
            trim_state: self.trim.1,
            ..empty
        }
    }

    /// Makes room for `distance` bytes: blocks and log blocks there are forgotten. Returns the ranges that had been kept until
    /// now.
    pub(super) fn make_room(&mut self, distance: u64, index: &mut Index, stats: &L2Stats) -> Vec<(u64, u64)> {
        let mut lost = Vec::new();
        let mut hands = self.hands;
        hands.make_room(self.place, distance, |at, from, to| {
            lost.extend(self.by_offset.range(from..to).map(|(_, id)| *id));
            while let Some(log) = self.logs.front().filter(|log| !at.is_whole(self.place, log)) {
                stats.sub(L2::LogBlkAsize, L2arcProp(log.prop).psize());
                stats.sub(L2::LogBlkCount, 1);
                self.logs.pop_front();
            }
        });
        let before = std::mem::replace(&mut self.hands, hands);
        lost.iter().for_each(|id| self.remove(id, index, stats));
        let mut free = match hands.hand == before.hand {
            true => vec![(before.evict, hands.evict)],
            // The hand has gone round.
            false => vec![(before.evict.max(before.hand), self.place.end), (self.place.start, hands.evict)],
        };
        // Behind the hand of the first sweep there never was anything.
        if before.first {
            free.remove(0);
        }
        free.retain(|(from, to)| from < to);
        free
    }

    /// Records a block. One that has the same identity, or the same place, is forgotten.
    pub(super) fn insert(&mut self, id: BlockId, entry: CachedBlock, index: &mut Index, stats: &L2Stats) {
        if let Some(before) = self.by_offset.get(&entry.daddr).copied() {
            self.remove(&before, index, stats);
        }
        self.by_offset.insert(entry.daddr, id);
        self.held += u64::from(entry.asize);
        count(stats, &entry, L2Stats::add);
        index.insert(id, entry);
    }

    /// Forgets a block of this device.
    pub(super) fn remove(&mut self, id: &BlockId, index: &mut Index, stats: &L2Stats) {
        let Some(entry) = index.get(id).filter(|entry| entry.device == self.leaf.guid).copied() else {
            return;
        };
        index.remove(id);
        self.by_offset.remove(&entry.daddr);
        self.held = self.held.saturating_sub(u64::from(entry.asize));
        count(stats, &entry, L2Stats::sub);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, index: &mut Index, stats: &L2Stats) {
        let all: Vec<BlockId> = self.by_offset.values().copied().collect();
        all.iter().for_each(|id| self.remove(id, index, stats));
        stats.sub(L2::LogBlkAsize, self.log_bytes());
        stats.sub(L2::LogBlkCount, u64::try_from(self.logs.len()).unwrap_or(0));
        self.logs.clear();
        (self.start, self.payload) = (Default::default(), 0);
        self.pending.clear();
        self.hands = Hands::of_empty(self.place);
    }

    /// Records a new log block, which is the newest.
    pub(super) fn push_log(&mut self, log: L2arcLogBlkptr, stats: &L2Stats) {
        let asize = L2arcProp(log.prop).psize();
        self.start = [log, self.start[0]];
        self.logs.push_back(log);
        stats.add(L2::LogBlkAsize, asize);
        stats.add(L2::LogBlkCount, 1);
    }

    /// Takes back the newest `count` log blocks, which were not written, and the heads that were there before.
    pub(super) fn pop_logs(&mut self, count: usize, before: [L2arcLogBlkptr; 2], stats: &L2Stats) {
        for _ in 0..count {
            if let Some(log) = self.logs.pop_back() {
                stats.sub(L2::LogBlkAsize, L2arcProp(log.prop).psize());
                stats.sub(L2::LogBlkCount, 1);
            }
        }
        self.start = before;
    }
}

/// Adds a block to the counters of cached blocks, or subtracts it.
fn count(stats: &L2Stats, entry: &CachedBlock, how: fn(&L2Stats, L2, u64)) {
    let asize = u64::from(entry.asize);
    how(stats, L2::Asize, asize);
    how(stats, L2::Size, entry.prop.lsize());
    how(stats, L2::HdrSize, HEADER);
    how(stats, if entry.prop.metadata() { L2::MetadataAsize } else { L2::DataAsize }, asize);
    let list = match (entry.prop.prefetch(), entry.prop.frequent()) {
        (true, _) => L2::PrefetchAsize,
        (false, true) => L2::MfuAsize,
        (false, false) => L2::MruAsize,
    };
    how(stats, list, asize);
}

/// The record of a block for a log block.
#[doc(alias = "l2arc_log_blk_insert")]
pub(super) fn log_entry(bp: &Blkptr, entry: &CachedBlock) -> Option<L2arcLogEnt> {
    let id = BlockId::of(bp)?;
    // Levels of compression are not part of a block pointer: 255 stands for the default (ZIO_COMPLEVEL_DEFAULT).
    let complevel = if bp.compress() == Some(ondisk::CompressType::Off) { 0 } else { 255 };
    Some(L2arcLogEnt {
        dva: bp.dva(0)?.to_words(),
        birth: id.birth,
        prop: entry.prop.0,
        daddr: entry.daddr,
        complevel,
        ..L2arcLogEnt::default()
    })
}

/// The property word of a block.
pub(super) fn prop_of(bp: &Blkptr, (frequent, ahead): (bool, bool)) -> L2arcProp {
    let kind =
        BufferKind { prefetch: ahead, protected: bp.is_protected(), metadata: bp.is_metadata(), frequent };
    L2arcProp::of_buffer(bp.lsize(), bp.psize(), bp.compress_raw(), kind)
}
