//! The space of a cache device: the write and evict hands, and the log blocks that are still whole.
//!
//! ```text
//! start |=====data=====|hand|..evicted..|evict|=====older data=====| end
//! ```
//!
//! Pure arithmetic, no I/O. Source of the rules: `l2arc_evict`, `l2arc_log_blkptr_valid`, `l2arc_range_check_overlap`,
//! OpenZFS 2.4.

use checksum::Algorithm;
use ondisk::l2arc::{
    L2ARC_DEV_HDR_MAGIC, L2ARC_FIRST_SWEEP, L2ARC_LOG_BLK_MAX_ENTRIES, L2ARC_PERSISTENT_VERSION, L2arcDevHdr,
    L2arcLogBlkptr, L2arcLogEnt, L2arcProp, LOG_BLOCK_SIZE, decode_log_block, encode_log_block,
};
use ondisk::label::{LABEL_END_SIZE, LABEL_SIZE, LABEL_START_SIZE};
use ondisk::{ChecksumType, EckPhys, MIN_BLOCK_SIZE};
use stdx::{AlignedBuf, Buf};

use crate::vdev::label::sealed;
use crate::zio::verify::embedded;

/// Largest sector that a header may have, and bytes read to find it.
pub(super) const MOST_HEADER: u64 = 64 << 10;
/// log2 of the largest block: a log block has at most one entry for so much space.
const MAX_BLOCK_SHIFT: u32 = 24;

/// The usable space of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FeedArea {
    /// First usable byte, behind the header.
    pub(crate) start: u64,
    /// End of the usable bytes.
    pub(crate) end: u64,
    /// Unit of writes, a power of 2.
    pub(crate) sector: u64,
}

impl FeedArea {
    /// The space of a device of `size` bytes, whose header takes one sector. `None`: it is too small.
    #[doc(alias = "l2arc_add_vdev")]
    pub(crate) fn of(size: u64, sector: u64) -> Option<Self> {
        let sector = sector.clamp(MIN_BLOCK_SIZE, MOST_HEADER).next_power_of_two();
        let start = LABEL_START_SIZE + sector;
        let end = (size - size % LABEL_SIZE).checked_sub(LABEL_END_SIZE)?;
        (end > start + (LOG_BLOCK_SIZE << 4)).then_some(Self { start, end, sector })
    }

    /// Usable bytes.
    pub(crate) fn size(self) -> u64 {
        self.end - self.start
    }

    /// Bytes that `psize` bytes take.
    pub(crate) fn asize(self, psize: u64) -> u64 {
        psize.next_multiple_of(self.sector)
    }

    /// Entries of a log block; 0 for a device below `least` bytes, which has none.
    pub(crate) fn log_entries(self, least: u64) -> usize {
        if self.end < least {
            return 0;
        }
        let entries = usize::try_from(self.size() >> MAX_BLOCK_SHIFT).unwrap_or(usize::MAX);
        entries.min(L2ARC_LOG_BLK_MAX_ENTRIES)
    }
}

/// The write hand (where the next bytes go) and the evict hand (up to where space is free for them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hands {
    /// Next byte to be written.
    pub(crate) hand: u64,
    /// Up to here nothing is kept.
    pub(crate) evict: u64,
    /// The device has not been filled once: behind the hand there is nothing.
    pub(crate) first: bool,
}

impl Hands {
    /// The hands of an empty device.
    pub(crate) fn of_empty(place: FeedArea) -> Self {
        Self { hand: place.start, evict: place.start, first: true }
    }

    /// Makes room for `distance` bytes behind the hand, which begins again at the start when the end is too near.
    /// `evicted` is called with each range whose content is lost.
    #[doc(alias = "l2arc_evict")]
    pub(crate) fn make_room(
        &mut self,
        place: FeedArea,
        distance: u64,
        mut evicted: impl FnMut(&Self, u64, u64),
    ) {
        if self.hand.saturating_add(distance) > place.end {
            if !self.first {
                self.evict = place.end;
                evicted(self, self.hand, place.end);
            }
            *self = Self { hand: place.start, evict: place.start, first: false };
        }
        if !self.first {
            self.evict = self.evict.max(self.hand.saturating_add(distance));
            evicted(self, self.hand, self.evict);
        }
    }

    /// Whether a log block and its whole payload are still there.
    #[doc(alias = "l2arc_log_blkptr_valid")]
    pub(crate) fn is_whole(&self, place: FeedArea, log: &L2arcLogBlkptr) -> bool {
        let (start, asize) = (log.payload_start, L2arcProp(log.prop).psize());
        let Some(end) = log.daddr.checked_add(asize - 1) else { return false };
        if log.daddr == 0
            || asize > LOG_BLOCK_SIZE
            || start < place.start
            || log.daddr < place.start
            || end >= place.end
        {
            return false;
        }
        if self.first {
            return start <= end && end < self.hand;
        }
        let (hand, evict) = (self.hand, self.evict);
        let is_hit = [hand, evict].iter().any(|at| overlaps(start, end, *at));
        !(is_hit || overlaps(hand, evict, start) || overlaps(hand, evict, end))
    }
}

/// Whether `check` lies in the range from `bottom` to `top`, which may go round the end of the device.
#[doc(alias = "l2arc_range_check_overlap")]
pub(super) fn overlaps(bottom: u64, top: u64, check: u64) -> bool {
    match bottom.cmp(&top) {
        std::cmp::Ordering::Less => bottom <= check && check <= top,
        std::cmp::Ordering::Greater => check <= top || bottom <= check,
        std::cmp::Ordering::Equal => check == top,
    }
}

/// A header that begins nowhere: of an empty device, or one whose content is given up.
pub(crate) fn empty_header(pool: u64, vdev: u64, place: FeedArea, log_entries: usize) -> L2arcDevHdr {
    L2arcDevHdr {
        magic: L2ARC_DEV_HDR_MAGIC,
        version: L2ARC_PERSISTENT_VERSION,
        spa_guid: pool,
        vdev_guid: vdev,
        log_entries: u64::try_from(log_entries).unwrap_or(0),
        evict: place.start,
        flags: L2ARC_FIRST_SWEEP,
        start: place.start,
        end: place.end,
        ..L2arcDevHdr::default()
    }
}

/// The sector that holds a header.
#[doc(alias = "l2arc_dev_hdr_update")]
pub(crate) fn header_block(header: &L2arcDevHdr, sector: u64) -> Buf {
    let bytes = header.to_bytes();
    // The trailer stands at the end of the sector, which may be longer than the header.
    let body = bytes.get(..bytes.len() - EckPhys::SIZE).unwrap_or_default();
    sealed(body, sector, LABEL_START_SIZE)
}

/// The header in the first bytes behind the labels, and its sector: of either byte order, its checksum verified.
#[doc(alias = "l2arc_dev_hdr_read")]
pub(crate) fn read_header(bytes: &[u8]) -> Option<(L2arcDevHdr, u64)> {
    let sectors = (9..=16).map(|shift| 1_usize << shift);
    let found = sectors.filter_map(|sector| {
        let block = bytes.get(..sector)?;
        embedded(ChecksumType::Label, block, ondisk::label::label_verifier(LABEL_START_SIZE))?;
        Some((L2arcDevHdr::from_either(block).ok()?, u64::try_from(sector).ok()?))
    });
    found.into_iter().next()
}

/// The bytes of a log block as they are written, and where they will be found.
#[doc(alias = "l2arc_log_blk_commit")]
pub(crate) fn log_block(
    place: FeedArea,
    prev: &L2arcLogBlkptr,
    entries: &[L2arcLogEnt],
    (payload_start, payload_asize): (u64, u64),
    daddr: u64,
) -> (Buf, L2arcLogBlkptr) {
    let plain = encode_log_block(prev, entries);
    // Compress only when that saves a sector.
    let most = plain.len() - usize::try_from(place.sector).unwrap_or(0).min(plain.len());
    let packed = compress::compress(compress::Algorithm::Lz4, 0, &plain, most);
    let lz4 = packed.is_some();
    let bytes = packed.unwrap_or(plain);
    let asize = place.asize(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    let mut block = AlignedBuf::zeroed(usize::try_from(asize).unwrap_or(0));
    if let Some(front) = block.get_mut(..bytes.len()) {
        front.copy_from_slice(&bytes);
    }
    let cksum = checksum::digest(Algorithm::Fletcher4, &block, None, false);
    let prop = L2arcProp::of_log(asize, lz4).0;
    (block.into(), L2arcLogBlkptr { daddr, payload_asize, payload_start, prop, cksum })
}

/// Why a log block is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadLog {
    /// Its checksum is wrong.
    Checksum,
    /// It is no log block, or of an unknown form.
    Form,
}

/// The log block before this one in its chain, and the entries; at most 1022.
///
/// # Errors
/// When the bytes are no log block.
#[doc(alias = "l2arc_log_blk_read")]
pub(crate) fn read_log_block(
    at: &L2arcLogBlkptr,
    stored: &[u8],
) -> Result<(L2arcLogBlkptr, Vec<L2arcLogEnt>), BadLog> {
    if checksum::digest(Algorithm::Fletcher4, stored, None, false) != at.cksum {
        return Err(BadLog::Checksum);
    }
    let plain = match L2arcProp(at.prop).compress() {
        Some(ondisk::CompressType::Off) => stored.to_vec(),
        Some(ondisk::CompressType::Lz4) => {
            let mut plain = vec![0; usize::try_from(LOG_BLOCK_SIZE).unwrap_or(0)];
            compress::decompress(compress::Algorithm::Lz4, stored, &mut plain).map_err(|_| BadLog::Form)?;
            plain
        }
        _ => return Err(BadLog::Form),
    };
    let (head, entries) = decode_log_block(&plain).map_err(|_| BadLog::Form)?;
    Ok((head.prev_lbp, entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: FeedArea = FeedArea { start: 1 << 20, end: 9 << 20, sector: 512 };

    fn log(payload_start: u64, daddr: u64) -> L2arcLogBlkptr {
        L2arcLogBlkptr { daddr, payload_start, prop: L2arcProp::of_log(1024, true).0, ..Default::default() }
    }

    #[test]
    fn the_hand_goes_round_and_evicts_ahead() {
        let mut hands = Hands::of_empty(PLACE);
        let mut lost = Vec::new();
        hands.make_room(PLACE, 5 << 20, |_, from, to| lost.push((from, to)));
        assert!(lost.is_empty() && hands.first);
        hands.hand += 5 << 20;
        hands.make_room(PLACE, 4 << 20, |_, from, to| lost.push((from, to)));
        assert_eq!(lost, [(1 << 20, 5 << 20)]);
        assert_eq!(hands, Hands { hand: 1 << 20, evict: 5 << 20, first: false });
        hands.hand += 1 << 20;
        hands.make_room(PLACE, 1 << 20, |_, _, _| ());
        assert_eq!(hands.evict, 5 << 20);
    }

    #[test]
    fn a_log_block_is_whole_until_its_payload_is_evicted() {
        let mut hands = Hands { hand: 4 << 20, evict: 1 << 20, first: true };
        assert!(hands.is_whole(PLACE, &log(1 << 20, 2 << 20)));
        assert!(!hands.is_whole(PLACE, &log(3 << 20, 5 << 20)), "nothing was written there yet");
        hands = Hands { hand: 2 << 20, evict: 3 << 20, first: false };
        assert!(hands.is_whole(PLACE, &log(4 << 20, 5 << 20)));
        for (start, at) in [(1 << 20, 5 << 20), ((2 << 20) + 512, 4 << 20), (5 << 20, 9 << 20), (0, 4 << 20)]
        {
            assert!(!hands.is_whole(PLACE, &log(start, at)), "{start} {at}");
        }
        assert!(!hands.is_whole(PLACE, &log(4 << 20, u64::MAX - 5)));
    }

    #[test]
    fn headers_and_log_blocks_are_read_back() {
        for sector in [512, 4096, 16384] {
            let place = FeedArea { sector, ..PLACE };
            let header = empty_header(7, 8, place, 9);
            let block = header_block(&header, sector);
            // The tail holds the checksum.
            let read = read_header(&block).map(|(read, size)| (L2arcDevHdr { tail: [0; 5], ..read }, size));
            assert_eq!(read, Some((header, sector)));
            let mut bad = block.to_vec();
            bad[20] ^= 1;
            assert_eq!(read_header(&bad), None);
        }
        let entries: Vec<_> =
            (1..=1022).map(|n| L2arcLogEnt { birth: n, daddr: n << 9, ..L2arcLogEnt::default() }).collect();
        let prev = log(1 << 20, 2 << 20);
        let (block, at) = log_block(PLACE, &prev, &entries, (5, 6), 7 << 20);
        assert_eq!(read_log_block(&at, &block), Ok((prev, entries)));
        assert_eq!((at.payload_start, at.payload_asize, L2arcProp(at.prop).lsize()), (5, 6, 65536));
        let mut bad = block.to_vec();
        bad[100] ^= 1;
        assert_eq!(read_log_block(&at, &bad), Err(BadLog::Checksum));
    }
}
