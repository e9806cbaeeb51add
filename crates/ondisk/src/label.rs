//! Vdev labels: four copies on each leaf, two at its front and two at its end, and the embedded
//! checksum trailer that labels, uberblocks, gang headers and log blocks share.
//!
//! ```text
//! 0      8 KiB    left alone (a disk label may live here)
//! 8 K    8 KiB    boot environment, with trailer
//! 16 K   112 KiB  configuration nvlist (XDR), with trailer
//! 128 K  128 KiB  ring of uberblocks, each with trailer
//! ```
//!
//! The first two labels are followed by 3.5 MiB for boot loaders, so allocatable space starts at
//! 4 MiB. Source: `vdev_label_t`, vdev_impl.h, OpenZFS 2.3.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::uberblock::{MAX_UBERBLOCK_SHIFT, UBERBLOCK_SHIFT};
use crate::{Blkptr, Cursor, Endian, Malformed};

/// Bytes of a label.
pub const LABEL_SIZE: u64 = 256 << 10;
/// Labels of a leaf.
pub const LABELS: u32 = 4;
/// Offset of the boot environment in a label.
pub const BOOTENV_OFFSET: u64 = 8 << 10;
/// Bytes of the boot environment, trailer included.
pub const BOOTENV_SIZE: u64 = 8 << 10;
/// Offset of the configuration in a label.
pub const PHYS_OFFSET: u64 = 16 << 10;
/// Bytes of the configuration, trailer included.
pub const PHYS_SIZE: u64 = 112 << 10;
/// Bytes of the packed nvlist itself, at most.
pub const NVLIST_SIZE: u64 = PHYS_SIZE - EckPhys::SIZE as u64;
/// Offset of the uberblock ring in a label.
pub const RING_OFFSET: u64 = 128 << 10;
/// Bytes of the uberblock ring.
pub const RING_SIZE: u64 = 128 << 10;
/// Offset of the boot loader area on the device.
pub const BOOT_OFFSET: u64 = 2 * LABEL_SIZE;
/// Bytes of the boot loader area.
pub const BOOT_SIZE: u64 = 7 << 19;
/// Bytes at the front of a leaf that hold no data: DVA offset 0 is here.
#[doc(alias = "VDEV_LABEL_START_SIZE")]
pub const LABEL_START_SIZE: u64 = BOOT_OFFSET + BOOT_SIZE;
/// Bytes at the end of a leaf that hold no data.
#[doc(alias = "VDEV_LABEL_END_SIZE")]
pub const LABEL_END_SIZE: u64 = 2 * LABEL_SIZE;
/// Smallest device that can be a vdev.
#[doc(alias = "SPA_MINDEVSIZE")]
pub const MIN_DEVICE_SIZE: u64 = 64 << 20;
/// Trailing ring slots that multihost writes use.
pub const MMP_BLOCKS_PER_LABEL: u64 = 1;
/// Magic number of the trailer.
#[doc(alias = "ZEC_MAGIC")]
pub const ECK_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

const _: () = assert!(RING_OFFSET + RING_SIZE == LABEL_SIZE);
const _: () = assert!(PHYS_OFFSET + PHYS_SIZE == RING_OFFSET);
const _: () = assert!(LABEL_START_SIZE == 4 << 20);

/// Where label `index` (0 to 3) of a device of `psize` bytes starts; `None` when the device can't
/// hold four labels or there is no such label. The size is rounded down to whole labels.
#[doc(alias = "vdev_label_offset")]
pub fn label_offset(psize: u64, index: u32) -> Option<u64> {
    let psize = psize - psize % LABEL_SIZE;
    if index >= LABELS || psize < u64::from(LABELS) * LABEL_SIZE {
        return None;
    }
    let base = if index < LABELS / 2 { 0 } else { psize - u64::from(LABELS) * LABEL_SIZE };
    Some(base + u64::from(index) * LABEL_SIZE)
}

/// log2 of a ring slot for a top-level vdev of this ashift.
pub fn uberblock_shift(ashift: u32) -> u32 {
    ashift.clamp(UBERBLOCK_SHIFT, MAX_UBERBLOCK_SHIFT)
}

/// Slots in the ring.
pub fn uberblock_count(ashift: u32) -> u64 {
    RING_SIZE >> uberblock_shift(ashift)
}

/// Offset of ring slot `n` within a label.
pub fn uberblock_offset(ashift: u32, n: u64) -> u64 {
    RING_OFFSET + ((n % uberblock_count(ashift)) << uberblock_shift(ashift))
}

/// The checksum trailer as it lies on disk: a magic number, then the checksum, both in the
/// writer's byte order.
#[doc(alias = "zio_eck_t")]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct EckPhys {
    /// [`ECK_MAGIC`] in the writer's order.
    pub magic: [u8; 8],
    /// Four words in the writer's order.
    pub cksum: [[u8; 8]; 4],
}

impl EckPhys {
    /// Bytes on disk.
    pub const SIZE: usize = 40;
}

const _: () = assert!(size_of::<EckPhys>() == EckPhys::SIZE && align_of::<EckPhys>() == 1);

/// A checksum trailer with the right magic number.
///
/// To check a block: put the verifier in place of the checksum (in the trailer's byte order),
/// compute the block's checksum, and compare with the words that were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eck {
    /// Byte order of the writer.
    pub endian: Endian,
    /// The stored checksum.
    pub cksum: [u64; 4],
}

impl Eck {
    /// The trailer in the last 40 bytes of `block`.
    pub fn from_trailer(block: &[u8]) -> Result<Self, Malformed> {
        let raw = block
            .last_chunk::<{ EckPhys::SIZE }>()
            .ok_or_else(|| Malformed::short("checksum trailer", block.len(), EckPhys::SIZE))?;
        Self::from_bytes(raw)
    }

    /// The trailer at the start of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let endian = match Cursor::new("checksum trailer", bytes).u64()? {
            ECK_MAGIC => Endian::Little,
            magic if magic == ECK_MAGIC.swap_bytes() => Endian::Big,
            other => return Err(Malformed::new("checksum trailer", format!("magic number {other:#x}"))),
        };
        let mut at = Cursor::with_endian("checksum trailer", bytes, endian);
        at.skip(8)?;
        Ok(Self { endian, cksum: at.u64s()? })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; EckPhys::SIZE] {
        let mut out = [0; EckPhys::SIZE];
        for (chunk, word) in out.chunks_exact_mut(8).zip(std::iter::once(ECK_MAGIC).chain(self.cksum)) {
            chunk.copy_from_slice(&match self.endian {
                Endian::Little => word.to_le_bytes(),
                Endian::Big => word.to_be_bytes(),
            });
        }
        out
    }
}

/// The verifier of a label block: its byte offset on the device.
pub fn label_verifier(offset: u64) -> [u64; 4] {
    [offset, 0, 0, 0]
}

/// The verifier of a gang header: vdev, byte offset and physical birth of the copy being read.
///
/// OpenZFS uses the first copy's address whichever copy it reads.
pub fn gang_verifier(bp: &Blkptr) -> [u64; 4] {
    let dva = bp.dva(0).unwrap_or_default();
    [u64::from(dva.vdev), dva.offset, bp.physical_birth(), 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_lie_at_both_ends() {
        let size = (100 << 20) + 12345;
        let offsets: Vec<_> = (0..4).map(|l| label_offset(size, l).unwrap()).collect();
        assert_eq!(offsets, [0, 256 << 10, (100 << 20) - (512 << 10), (100 << 20) - (256 << 10)]);
        assert_eq!(label_offset(size, 4), None);
        assert_eq!(label_offset(LABEL_SIZE * 4 - 1, 0), None);
    }

    #[test]
    fn ring_slots_grow_with_ashift() {
        assert_eq!([9, 12, 16].map(uberblock_count), [128, 32, 16]);
        assert_eq!(uberblock_offset(12, 33), RING_OFFSET + 4096);
    }

    #[test]
    fn trailers_of_both_orders() {
        for endian in [Endian::Little, Endian::Big] {
            let eck = Eck { endian, cksum: [1, 2, 3, u64::MAX] };
            let mut block = vec![7; 512 - EckPhys::SIZE];
            block.extend(eck.to_bytes());
            assert_eq!(Eck::from_trailer(&block), Ok(eck));
        }
        assert!(Eck::from_trailer(&[0; 39]).is_err());
        assert!(Eck::from_trailer(&[0; 40]).is_err());
    }
}
