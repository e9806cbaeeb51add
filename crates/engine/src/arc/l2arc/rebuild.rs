//! Restores a device's index from its header and log blocks, newest first, when the device is taken into use.
//!
//! One log block is in memory at a time; each is checked before its entries are. Entries outside of the
//! device, in the evicted part, or of impossible sizes are skipped. A chain that comes back to a block that
//! it has passed ends there. Losing entries is harmless: a header that is not this pool's or device's is
//! replaced by an empty one.
//!
//! Source: `l2arc_rebuild`, OpenZFS 2.4.

use std::collections::HashSet;
use std::sync::Arc;

use ondisk::Dva;
use ondisk::l2arc::{
    L2ARC_FIRST_SWEEP, L2ARC_PERSISTENT_VERSION, L2arcDevHdr, L2arcLogBlkptr, L2arcLogEnt, L2arcProp,
};
use ondisk::label::LABEL_START_SIZE;
use stdx::Buf;

use super::device::{BlockId, CacheDevice, CachedBlock, DeviceState};
use super::place::{
    BadLog, FeedArea, Hands, MOST_HEADER, header_block, overlaps, read_header, read_log_block,
};
use super::{L2arc, State};
use crate::memory::Limit;
use crate::memory::stats::L2;
use crate::vdev::leaf::Leaf;
use crate::vdev::stats::IoClass;

/// State of a device that was trimmed as a whole.
#[doc(alias = "VDEV_TRIM_COMPLETE")]
const TRIMMED: u64 = 4;
/// Bytes of one trim of a whole device, which an export waits for.
const MOST_TRIM: u64 = 1 << 30;

/// The end of a rebuild, in the words of the pool's history; restored log blocks are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rebuilt {
    /// The device.
    pub(crate) guid: u64,
    /// `successful, restored 3 blocks`, for example.
    pub(crate) text: String,
}

/// How a rebuild ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The chain has ended.
    Done,
    /// A log block could not be used, or memory is short.
    Aborted,
    /// `l2arc_rebuild_enabled` is off.
    Disabled,
}

/// The next step after a log block.
enum Next {
    Log([L2arcLogBlkptr; 2]),
    End(End),
}

impl L2arc {
    /// Reads the header of a device, and goes on from there.
    #[doc(alias = "l2arc_rebuild_dev")]
    pub(super) fn start_rebuild(self: &Arc<Self>, leaf: &Arc<Leaf>) {
        let (l2, guid, executor) = (Arc::clone(self), leaf.guid, Arc::clone(&self.env.executor));
        let done = Box::new(move |result: std::io::Result<Buf>| {
            executor.spawn(Box::new(move || l2.begin(guid, result.ok())));
        });
        leaf.read(LABEL_START_SIZE, MOST_HEADER, done);
    }

    fn begin(self: &Arc<Self>, guid: u64, bytes: Option<Buf>) {
        let stats = &self.memory.stats.second;
        let found = bytes.as_deref().and_then(read_header);
        if found.is_none() {
            stats.add(L2::RebuildDhErrors, 1);
        }
        let least = self.limit(Limit::L2RebuildMinSize);
        let starts = {
            let mut state = self.state.lock();
            let Some(device) = state.devices.get_mut(&guid) else { return };
            found.and_then(|(header, sector)| self.accept(device, &header, (sector, least)))
        };
        match starts {
            Some(starts) if self.limit(Limit::L2RebuildEnabled) != 0 => {
                self.follow(guid, starts, HashSet::new())
            }
            Some(starts) => {
                if let Some(device) = self.state.lock().devices.get_mut(&guid) {
                    // A later import may restore the contents.
                    device.start = starts;
                }
                self.finish_rebuild(guid, End::Disabled);
            }
            None => {
                if found.is_some() {
                    stats.add(L2::RebuildUnsupported, 1);
                }
                self.trim_all(guid, LABEL_START_SIZE);
            }
        }
    }

    /// Takes over the hands of a header that belongs to this pool and device; returns where its chains begin.
    #[doc(alias = "l2arc_dev_hdr_read")]
    fn accept(
        &self,
        device: &mut CacheDevice,
        header: &L2arcDevHdr,
        (sector, least): (u64, u64),
    ) -> Option<[L2arcLogBlkptr; 2]> {
        let size = device.leaf.device().map_or(0, |found| found.geometry().size);
        let place = FeedArea::of(size, sector)?;
        let entries = place.log_entries(least);
        let is_ours = header.version == L2ARC_PERSISTENT_VERSION
            && header.spa_guid == self.pool_guid()
            && header.vdev_guid == device.leaf.guid
            && header.log_entries == u64::try_from(entries).unwrap_or(u64::MAX)
            && header.end == place.end
            && header.start == place.start
            && overlaps(place.start, place.end, header.evict)
            && (header.trim_state == TRIMMED || self.trim_ahead_of(&device.leaf).is_none())
            && entries > 0;
        // The sector of the header holds for everything behind it.
        (device.place, device.log_entries, device.hands) = (place, entries, Hands::of_empty(place));
        if !is_ours {
            return None;
        }
        let newest = &header.start_lbps[0];
        let hand = match newest.daddr {
            0 => place.start,
            daddr => daddr.checked_add(L2arcProp(newest.prop).psize())?,
        };
        let evict = header.evict.max(place.start);
        let first = header.flags & L2ARC_FIRST_SWEEP != 0;
        // An address that is no multiple of the sector would move all later writes.
        let fits = hand <= place.end && hand.is_multiple_of(place.sector) && (first || hand <= evict);
        if !fits {
            return None;
        }
        device.hands = Hands { hand: hand.max(place.start), evict, first };
        device.trim = (header.trim_action_time, header.trim_state);
        Some(header.start_lbps)
    }

    /// Trims a device without a usable header from `at` on, if devices are trimmed at all, and gives it a header then.
    #[doc(alias("l2ad_trim_all", "vdev_trim_l2arc"))]
    fn trim_all(self: &Arc<Self>, guid: u64, at: u64) {
        let (leaf, len) = {
            let mut state = self.state.lock();
            let is_closed = state.is_closed;
            let Some(device) = state.devices.get_mut(&guid) else { return };
            let end = device.place.end;
            if is_closed || at >= end || self.trim_ahead_of(&device.leaf).is_none() {
                if at >= end {
                    device.trim = (self.env.now(), TRIMMED);
                }
                drop(state);
                return self.reset(guid);
            }
            device.mode = DeviceState::Writing;
            (Arc::clone(&device.leaf), (end - at).min(MOST_TRIM))
        };
        let (l2, executor) = (Arc::clone(self), Arc::clone(&self.env.executor));
        let done = Box::new(move |_: std::io::Result<()>| {
            executor.spawn(Box::new(move || l2.trim_all(guid, at + len)));
        });
        leaf.trim(at, len, false, done);
    }

    /// Drops the contents, on the device too. An export or removal waits for that write as for those of a round, and after it
    /// began nothing is written.
    fn reset(self: &Arc<Self>, guid: u64) {
        let header = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let Some(device) = state.devices.get_mut(&guid) else { return };
            device.clear(&mut state.index, &self.memory.stats.second);
            if state.is_closed {
                device.mode = DeviceState::Idle;
                return;
            }
            device.mode = DeviceState::Writing;
            (Arc::clone(&device.leaf), header_block(&device.header(self.pool_guid()), device.place.sector))
        };
        let (l2, (leaf, block)) = (Arc::clone(self), header);
        let done = Box::new(move |result: std::io::Result<()>| {
            let mut state = l2.state.lock();
            if let Some(device) = state.devices.get_mut(&guid) {
                device.mode = if result.is_ok() { DeviceState::Idle } else { DeviceState::Failed };
            }
        });
        leaf.write_parts(LABEL_START_SIZE, vec![block], IoClass::AsyncWrite, done);
    }

    /// Reads the log block at the head of the first chain.
    /// `seen`: the places of those before it.
    fn follow(self: &Arc<Self>, guid: u64, starts: [L2arcLogBlkptr; 2], mut seen: HashSet<u64>) {
        let [at, _] = starts;
        let leaf = {
            let state = self.state.lock();
            let Some(device) = state.devices.get(&guid) else { return };
            if state.is_closed {
                drop(state);
                return self.finish_rebuild(guid, End::Aborted);
            }
            // Each log block is for as many blocks, of a sector at least.
            let place = device.place;
            let span = u64::try_from(device.log_entries).unwrap_or(u64::MAX).saturating_mul(place.sector);
            let most = place.end.saturating_sub(place.start).checked_div(span).unwrap_or(0).saturating_add(1);
            let fits = u64::try_from(seen.len()).is_ok_and(|count| count < most);
            let is_new = fits && seen.insert(at.daddr);
            (is_new && device.hands.is_whole(device.place, &at)).then(|| Arc::clone(&device.leaf))
        };
        let Some(leaf) = leaf else { return self.finish_rebuild(guid, End::Done) };
        let (l2, executor) = (Arc::clone(self), Arc::clone(&self.env.executor));
        let done = Box::new(move |result: std::io::Result<Buf>| {
            executor.spawn(Box::new(move || match l2.restore(guid, starts, result.ok()) {
                Next::Log(starts) => l2.follow(guid, starts, seen),
                Next::End(end) => l2.finish_rebuild(guid, end),
            }));
        });
        leaf.read(at.daddr, L2arcProp(at.prop).psize(), done);
    }

    /// Enters the entries of a log block; returns the pointers to the next blocks of the chains.
    #[doc(alias = "l2arc_log_blk_restore")]
    fn restore(&self, guid: u64, [at, next]: [L2arcLogBlkptr; 2], bytes: Option<Buf>) -> Next {
        let stats = &self.memory.stats.second;
        let Some(bytes) = bytes else {
            stats.add(L2::RebuildIoErrors, 1);
            return Next::End(End::Aborted);
        };
        let (prev, lines) = match read_log_block(&at, &bytes) {
            Ok(read) => read,
            Err(bad) => {
                stats.add(L2::RebuildCksumLbErrors, u64::from(bad == BadLog::Checksum));
                return Next::End(End::Aborted);
            }
        };
        let mut state = self.state.lock();
        let state = &mut *state;
        if self.is_full(state) {
            stats.add(L2::RebuildLowmem, 1);
            return Next::End(End::Aborted);
        }
        let Some(device) = state.devices.get_mut(&guid) else { return Next::End(End::Done) };
        let (mut count, mut lsize, mut asize) = (0_u64, 0_u64, 0_u64);
        // The newest line of a block is restored first.
        for line in lines.iter().take(device.log_entries).rev() {
            let Some((id, entry)) = entry_of(device, line) else { continue };
            if state.index.contains_key(&id) {
                stats.add(L2::RebuildBufsPrecached, 1);
                continue;
            }
            device.insert(id, entry, &mut state.index, stats);
            count += 1;
            lsize += entry.prop.lsize();
            asize += u64::from(entry.asize);
        }
        let log_size = L2arcProp(at.prop).psize();
        device.logs.push_front(at);
        stats.add(L2::LogBlkAsize, log_size);
        stats.add(L2::LogBlkCount, 1);
        stats.add(L2::RebuildLogBlks, 1);
        stats.add(L2::RebuildBufs, count);
        stats.add(L2::RebuildSize, lsize);
        stats.add(L2::RebuildAsize, asize);
        // The newest log blocks become the heads of the chains for later writes.
        match device.logs.len() {
            1 => device.start = [at, L2arcLogBlkptr::default()],
            2 => device.start[1] = at,
            _ => {}
        }
        let goes_round =
            !device.hands.first && overlaps(next.payload_start, at.payload_start, device.hands.evict);
        self.recount(state);
        if goes_round { Next::End(End::Done) } else { Next::Log([next, prev]) }
    }

    fn finish_rebuild(self: &Arc<Self>, guid: u64, end: End) {
        let stats = &self.memory.stats.second;
        let mut state = self.state.lock();
        let Some(device) = state.devices.get_mut(&guid) else { return };
        let count = device.logs.len();
        let text = match (end, count) {
            (End::Disabled, _) => "disabled".to_owned(),
            (End::Done, 0) => "no valid log blocks".to_owned(),
            (End::Done, _) => {
                stats.add(L2::RebuildSuccess, 1);
                format!("successful, restored {count} blocks")
            }
            (End::Aborted, _) => format!("aborted, restored {count} blocks"),
        };
        // The device holds nothing that a later rebuild could restore.
        let is_empty = end == End::Done && count == 0;
        if !is_empty {
            device.mode = DeviceState::Idle;
        }
        note(&mut state, guid, text);
        drop(state);
        if is_empty {
            self.reset(guid);
        }
    }
}

fn note(state: &mut State, guid: u64, text: String) {
    state.rebuilt.push(Rebuilt { guid, text });
}

/// The block of a line of a log block; `None` when it cannot be there.
#[doc(alias = "l2arc_hdr_restore")]
fn entry_of(device: &CacheDevice, line: &L2arcLogEnt) -> Option<(BlockId, CachedBlock)> {
    let (prop, dva): (L2arcProp, Dva) = (L2arcProp(line.prop), line.dva());
    let (place, hands) = (device.place, device.hands);
    let asize = place.asize(prop.psize());
    let end = line.daddr.checked_add(asize)?;
    let is_inside = line.daddr >= place.start && end <= place.end && line.daddr.is_multiple_of(place.sector);
    let is_kept =
        if hands.first { end <= hands.hand } else { end <= hands.hand || line.daddr >= hands.evict };
    let is_block = prop.psize() <= ondisk::MAX_BLOCK_SIZE && dva.is_valid() && !dva.gang;
    if !(is_inside && is_kept && is_block) {
        return None;
    }
    let id = BlockId { vdev: dva.vdev, offset: dva.offset, birth: line.birth };
    let entry =
        CachedBlock { device: device.leaf.guid, daddr: line.daddr, prop, asize: u32::try_from(asize).ok()? };
    Some((id, entry))
}
