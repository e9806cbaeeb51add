//! The labels of a device that has become larger: the last two stand at its end, which is elsewhere now.
//!
//! Their rings of uberblocks are copied from the first label, so that all four are the same. The
//! configuration and the next uberblock come with the sync that follows; until then the first two labels are
//! complete, so power may be lost at any moment. Remains of the old last labels lie beyond the vdev's size,
//! and become free space when the vdev has grown.
//!
//! Source: `vdev_copy_uberblocks`, vdev_label.c, OpenZFS 2.3.

use std::sync::Arc;

use ondisk::EckPhys;
use ondisk::label::{LABELS, RING_OFFSET, RING_SIZE, uberblock_count, uberblock_offset, uberblock_shift};
use stdx::{AlignedBuf, Buf};

use super::batch::{LeafWrite, write_all};
use super::label::{place, sealed};
use super::leaf::Leaf;
use crate::taskq::Executor;

/// Copies the uberblocks of the first label to those at the device's end; `ashift` is the top-level vdev's.
/// Slots that the first label lacks, or that can't be written, are left to the syncs that follow.
#[doc(alias = "vdev_copy_uberblocks")]
pub(crate) fn copy_uberblocks(leaf: &Arc<Leaf>, ashift: u32, executor: &dyn Executor) {
    let len = usize::try_from(RING_SIZE).unwrap_or(0);
    let first = place(leaf, 0, RING_OFFSET);
    let read = first.zip(leaf.device()).and_then(|(at, device)| blkdev::read_at(&*device, at, len).ok());
    let Some(ring) = read else { return };
    let writes = (LABELS / 2..LABELS).filter_map(|index| {
        let offset = place(leaf, index, RING_OFFSET)?;
        Some(LeafWrite { leaf: Arc::clone(leaf), offset, data: moved(&ring, (first?, offset), ashift) })
    });
    write_all(executor, writes.collect());
}

/// Converts the ring at offset `from` for its place at offset `to`. Slots without an uberblock become empty,
/// as the new end may hold uberblocks of another pool.
fn moved(ring: &[u8], (from, to): (u64, u64), ashift: u32) -> Buf {
    let mut copy = AlignedBuf::zeroed(ring.len());
    let len = 1_u64 << uberblock_shift(ashift);
    let size = usize::try_from(len).unwrap_or(usize::MAX);
    for number in 0..uberblock_count(ashift) {
        let at = uberblock_offset(ashift, number).saturating_sub(RING_OFFSET);
        let Ok(start) = usize::try_from(at) else { continue };
        let range = start..start.saturating_add(size);
        let (Some(old), Some(new)) = (ring.get(range.clone()), copy.get_mut(range)) else { continue };
        let content = old.get(..size.saturating_sub(EckPhys::SIZE)).unwrap_or_default();
        let is_whole = *sealed(content, len, from.saturating_add(at)) == *old;
        if is_whole {
            new.copy_from_slice(&sealed(content, len, to.saturating_add(at)));
        }
    }
    copy.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_slots_move_and_others_become_empty() {
        let (from, to, ashift) = (1 << 17, 5 << 17, 12);
        let len = 1_u64 << uberblock_shift(ashift);
        let size = usize::try_from(len).unwrap();
        let mut ring = vec![7; usize::try_from(RING_SIZE).unwrap()];
        ring[size..2 * size].copy_from_slice(&sealed(b"second", len, from + len));
        let copy = moved(&ring, (from, to), ashift);
        assert!(copy[..size].iter().all(|&byte| byte == 0));
        assert_eq!(&copy[size..2 * size], &sealed(b"second", len, to + len)[..]);
        assert!(copy[2 * size..].iter().all(|&byte| byte == 0));
    }
}
