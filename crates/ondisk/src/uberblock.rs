//! Uberblocks: the roots of the pool, one for each synced txg, in a ring in every label.
//!
//! 27 words of 64 bits, in the byte order of the machine that wrote them, given by the magic number. The rest
//! of the slot is reserved, its last 40 bytes are the checksum trailer ([`crate::Eck`]). Source:
//! `uberblock_t`, uberblock_impl.h, OpenZFS 2.3.

use std::cmp::Ordering;

use crate::{Blkptr, Cursor, Endian, Malformed};

/// "oo-ba-bloc!"
pub const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;
/// Marks multihost fields as present.
pub const MMP_MAGIC: u64 = 0xa11c_ea11;
/// log2 of the smallest ring slot.
pub const UBERBLOCK_SHIFT: u32 = 10;
/// log2 of the largest ring slot.
pub const MAX_UBERBLOCK_SHIFT: u32 = 13;

/// An uberblock in core.
#[doc(alias = "uberblock_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uberblock {
    /// Byte order of the machine that wrote it.
    pub endian: Endian,
    /// Pool version: 1 to 28, or 5000.
    pub version: u64,
    /// Txg of this sync.
    pub txg: u64,
    /// Sum of all vdev guids, wrapping.
    pub guid_sum: u64,
    /// Seconds since 1970, UTC.
    pub timestamp: u64,
    /// The pool's object set (MOS).
    pub rootbp: Blkptr,
    /// Highest version that the writing software knows.
    pub software_version: u64,
    /// [`MMP_MAGIC`] when the multihost fields are there.
    pub mmp_magic: u64,
    /// Nanoseconds since the last multihost write; 0: multihost is off.
    pub mmp_delay: u64,
    /// Interval, sequence and fail intervals with their valid bits.
    pub mmp_config: u64,
    /// Not 0: this is a checkpoint's uberblock, made from the one of this txg.
    pub checkpoint_txg: u64,
    /// State and offset of a raidz expansion.
    pub raidz_reflow_info: u64,
}

/// State of the scratch area during a raidz expansion.
#[doc(alias = "raidz_reflow_scratch_state_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum ReflowScratchState {
    /// No scratch area.
    NotInUse = 0,
    /// The data in it is newer than the blocks it stands for.
    Valid = 1,
    /// Copied back.
    InvalidSynced = 2,
    /// Copied back by an import.
    InvalidSyncedOnImport = 3,
    /// Copied back, the reflow goes on.
    InvalidSyncedReflow = 4,
}

impl Uberblock {
    /// Bytes of the known fields.
    pub const SIZE: usize = 216;

    /// Decodes an uberblock of either byte order; an error when the magic number is not there.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let endian = match Cursor::new("uberblock", bytes).u64()? {
            UBERBLOCK_MAGIC => Endian::Little,
            magic if magic == UBERBLOCK_MAGIC.swap_bytes() => Endian::Big,
            other => return Err(Malformed::new("uberblock", format!("magic number {other:#x}"))),
        };
        let mut at = Cursor::with_endian("uberblock", bytes, endian);
        at.skip(8)?;
        Ok(Self {
            endian,
            version: at.u64()?,
            txg: at.u64()?,
            guid_sum: at.u64()?,
            timestamp: at.u64()?,
            rootbp: Blkptr::from_words(at.u64s()?),
            software_version: at.u64()?,
            mmp_magic: at.u64()?,
            mmp_delay: at.u64()?,
            mmp_config: at.u64()?,
            checkpoint_txg: at.u64()?,
            raidz_reflow_info: at.u64()?,
        })
    }

    /// Its bytes, in its own byte order.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let head = [UBERBLOCK_MAGIC, self.version, self.txg, self.guid_sum, self.timestamp];
        let tail = [
            self.software_version,
            self.mmp_magic,
            self.mmp_delay,
            self.mmp_config,
            self.checkpoint_txg,
            self.raidz_reflow_info,
        ];
        let mut out = [0; Self::SIZE];
        let words = head.into_iter().chain(*self.rootbp.words()).chain(tail);
        for (chunk, word) in out.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&match self.endian {
                Endian::Little => word.to_le_bytes(),
                Endian::Big => word.to_be_bytes(),
            });
        }
        out
    }

    /// Whether the multihost fields are there.
    pub fn mmp_valid(&self) -> bool {
        self.mmp_magic == MMP_MAGIC
    }

    fn mmp_field(&self, valid_bit: u64, low: u32, mask: u64) -> Option<u64> {
        (self.mmp_valid() && self.mmp_config & valid_bit != 0).then_some((self.mmp_config >> low) & mask)
    }

    /// Milliseconds between multihost writes.
    pub fn mmp_interval_ms(&self) -> Option<u64> {
        self.mmp_field(1, 8, 0xff_ffff)
    }

    /// Sequence number of the multihost write within its second.
    pub fn mmp_seq(&self) -> Option<u16> {
        self.mmp_field(2, 32, 0xffff).map(|seq| seq as u16)
    }

    /// Missed writes after which the writer suspends its pool.
    pub fn mmp_fail_intervals(&self) -> Option<u64> {
        self.mmp_field(4, 48, 0xffff)
    }

    /// The valid bits as stored.
    pub fn mmp_valid_bits(&self) -> u64 {
        self.mmp_config & 7
    }

    /// Records that the writer uses multihost protection: it writes every `interval_ms`, this is write `seq`
    /// within the second, and it gives up after `fail_intervals` missed writes. `delay_ns` is the time since
    /// its last write. Values that don't fit are cut to the largest that does.
    #[doc(alias("MMP_INTERVAL_SET", "MMP_SEQ_SET", "MMP_FAIL_INT_SET"))]
    pub fn set_mmp(&mut self, delay_ns: u64, interval_ms: u64, seq: u16, fail_intervals: u64) {
        self.mmp_magic = MMP_MAGIC;
        self.mmp_delay = delay_ns;
        let interval = interval_ms.min(0xff_ffff) << 8;
        self.mmp_config = fail_intervals.min(0xffff) << 48 | u64::from(seq) << 32 | interval | 7;
    }

    /// Records that its writer supports multihost protection and has it off.
    pub fn clear_mmp(&mut self) {
        (self.mmp_magic, self.mmp_delay, self.mmp_config) = (MMP_MAGIC, 0, 0);
    }

    /// Byte offset up to which a raidz expansion has moved data.
    pub fn reflow_offset(&self) -> u64 {
        (self.raidz_reflow_info & ((1 << 55) - 1)) << crate::MIN_BLOCK_SHIFT
    }

    /// Raw state of a raidz expansion's scratch area.
    pub fn reflow_state_raw(&self) -> u64 {
        self.raidz_reflow_info >> 55
    }

    /// State of a raidz expansion's scratch area, if known.
    pub fn reflow_state(&self) -> Option<ReflowScratchState> {
        use ReflowScratchState as S;
        [S::NotInUse, S::Valid, S::InvalidSynced, S::InvalidSyncedOnImport, S::InvalidSyncedReflow]
            .into_iter()
            .find(|s| *s as u64 == self.reflow_state_raw())
    }

    /// The order in which OpenZFS prefers uberblocks: txg, then time, then multihost sequence.
    #[doc(alias = "vdev_uberblock_compare")]
    pub fn preference(&self, other: &Self) -> Ordering {
        let key = |u: &Self| (u.txg, u.timestamp, u.mmp_seq().unwrap_or(0));
        key(self).cmp(&key(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uberblock(endian: Endian) -> Uberblock {
        let words: Vec<u64> = (1..17).map(|n| n * 0x0101_0203).collect();
        Uberblock {
            endian,
            version: 5000,
            txg: 77,
            guid_sum: u64::MAX,
            timestamp: 5,
            rootbp: Blkptr::from_words(words.try_into().unwrap()),
            software_version: 5000,
            mmp_magic: 0,
            mmp_delay: 0,
            mmp_config: 0,
            checkpoint_txg: 9,
            raidz_reflow_info: 1 << 55,
        }
    }

    #[test]
    fn bytes_go_there_and_back() {
        for endian in [Endian::Little, Endian::Big] {
            let uberblock = uberblock(endian);
            assert_eq!(Uberblock::from_bytes(&uberblock.to_bytes()), Ok(uberblock));
        }
    }

    #[test]
    fn multihost_fields_are_read_as_they_were_set() {
        let mut uberblock = uberblock(Endian::Little);
        assert_eq!((uberblock.mmp_interval_ms(), uberblock.mmp_seq()), (None, None));
        uberblock.set_mmp(123, 1000, 7, 10);
        assert!(uberblock.mmp_valid());
        assert_eq!(uberblock.mmp_interval_ms(), Some(1000));
        assert_eq!((uberblock.mmp_seq(), uberblock.mmp_fail_intervals()), (Some(7), Some(10)));
        uberblock.set_mmp(0, u64::MAX, u16::MAX, u64::MAX);
        assert_eq!(uberblock.mmp_interval_ms(), Some(0xff_ffff));
        assert_eq!((uberblock.mmp_seq(), uberblock.mmp_fail_intervals()), (Some(0xffff), Some(0xffff)));
        uberblock.clear_mmp();
        assert!(uberblock.mmp_valid() && uberblock.mmp_seq().is_none());
    }
}
