//! The uberblocks in a device's labels.

use blkdev::BlockDevice;
use ondisk::label::{LABELS, RING_OFFSET, RING_SIZE, label_offset, uberblock_shift};
use ondisk::uberblock::{MAX_UBERBLOCK_SHIFT, UBERBLOCK_SHIFT};
use ondisk::{Endian, Uberblock};

use crate::label::{Trust, verify_label_block};

/// An uberblock and where it was found.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    /// Label, 0 to 3.
    pub label: u32,
    /// Slot in that label's ring.
    pub index: u64,
    /// Byte offset on the device.
    pub offset: u64,
    /// Whether its checksum is right for this place.
    pub trust: Trust,
    /// The uberblock.
    pub uberblock: Uberblock,
}

impl Slot {
    /// Byte order of the machine that wrote it.
    pub fn endian(&self) -> Endian {
        self.uberblock.endian
    }
}

/// Every slot that begins with the magic number, in all four rings: 512 KiB are read.
///
/// The slot size follows from the top-level vdev's `ashift`. Without it (no label is left) every slot
/// size is tried, and only uberblocks whose checksum is right are given.
pub fn read_uberblocks(dev: &dyn BlockDevice, ashift: Option<u32>) -> Vec<Slot> {
    let size = dev.geometry().size;
    let mut found = Vec::new();
    for label in 0..LABELS {
        let Some(at) = label_offset(size, label).and_then(|start| start.checked_add(RING_OFFSET)) else {
            continue;
        };
        let Ok(ring) = blkdev::read_at(dev, at, usize::try_from(RING_SIZE).unwrap_or(0)) else { continue };
        match ashift {
            Some(ashift) => found.extend(scan(&ring, label, at, uberblock_shift(ashift))),
            None => found.extend(scan_any(&ring, label, at)),
        }
    }
    found
}

/// Verified uberblocks of any slot size, each place once.
fn scan_any(ring: &[u8], label: u32, at: u64) -> Vec<Slot> {
    let mut found: Vec<Slot> = Vec::new();
    for shift in UBERBLOCK_SHIFT..=MAX_UBERBLOCK_SHIFT {
        let verified = scan(ring, label, at, shift).into_iter().filter(|slot| slot.trust == Trust::Verified);
        found.extend(verified);
    }
    found.sort_by_key(|slot| slot.offset);
    found.dedup_by_key(|slot| slot.offset);
    found
}

fn scan(ring: &[u8], label: u32, at: u64, shift: u32) -> Vec<Slot> {
    let slots = (0u64..).zip(ring.chunks_exact(1 << shift));
    let decoded = slots.filter_map(|(index, block)| {
        let uberblock = Uberblock::from_bytes(block).ok()?;
        let offset = at.checked_add(index << shift)?;
        Some(Slot { label, index, offset, trust: verify_label_block(block, offset), uberblock })
    });
    decoded.collect()
}
