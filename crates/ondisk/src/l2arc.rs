//! Cache devices (L2ARC): the header that makes their contents survive, and its log blocks.
//!
//! Both are written in the byte order of their writer; the magic number tells. Source: arc_impl.h,
//! OpenZFS 2.3.

use crate::blkptr::BLKPTR_SIZE;
use crate::byteswap::{self, Words};
use crate::words::word_struct;
use crate::{CompressType, Dva, MIN_BLOCK_SHIFT, Malformed, ObjectType};

/// "ZFSCACHE"
pub const L2ARC_DEV_HDR_MAGIC: u64 = 0x5a46_5343_4143_4845;
/// "LOGBLKHD"
pub const L2ARC_LOG_BLK_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
/// Entries of a log block.
pub const L2ARC_LOG_BLK_MAX_ENTRIES: usize = 1022;

const _: () = assert!(L2arcLogBlkHead::SIZE == BLKPTR_SIZE);

word_struct! {
    /// Where a log block is.
    #[doc(alias = "l2arc_log_blkptr_t")]
    L2arcLogBlkptr = "l2arc log blkptr", 64 bytes {
        /// Byte offset on the device.
        daddr: u64,
        /// Bytes of the buffers that it describes.
        payload_asize: u64,
        /// Offset of the first of them.
        payload_start: u64,
        /// Sizes and functions, as in [`L2arcProp`].
        prop: u64,
        /// Checksum of the log block (fletcher4).
        cksum: [u64; 4],
    }
}

word_struct! {
    /// The device header, in the first sector behind the front labels.
    #[doc(alias = "l2arc_dev_hdr_phys_t")]
    L2arcDevHdr = "l2arc header", 512 bytes {
        /// [`L2ARC_DEV_HDR_MAGIC`].
        magic: u64,
        /// Version of the format.
        version: u64,
        /// Guid of the pool.
        spa_guid: u64,
        /// Guid of the cache device.
        vdev_guid: u64,
        /// Entries in a log block.
        log_entries: u64,
        /// Offset up to which buffers are evicted.
        evict: u64,
        /// Bit 0: first sweep; bit 1: eviction goes first.
        flags: u64,
        /// First usable offset.
        start: u64,
        /// End of the usable space.
        end: u64,
        /// The newest log block and the one before it.
        start_lbps: [L2arcLogBlkptr; 2],
        /// Bytes of all log blocks.
        lb_asize: u64,
        /// Number of log blocks.
        lb_count: u64,
        /// Time of the last trim.
        trim_action_time: u64,
        /// State of the trim.
        trim_state: u64,
        /// Reserved.
        pad: [u64; 30],
        /// Checksum trailer.
        tail: [u64; 5],
    }
}

word_struct! {
    /// Head of a log block.
    #[doc(alias = "l2arc_log_blk_phys_t")]
    L2arcLogBlkHead = "l2arc log block", 128 bytes {
        /// [`L2ARC_LOG_BLK_MAGIC`].
        magic: u64,
        /// The block before it in its chain (there are two, taking turns).
        prev_lbp: L2arcLogBlkptr,
        /// Reserved.
        pad: [u64; 7],
    }
}

word_struct! {
    /// A buffer on the cache device.
    #[doc(alias = "l2arc_log_ent_phys_t")]
    L2arcLogEnt = "l2arc entry", 64 bytes {
        /// First address of the block in the pool.
        dva: [u64; 2],
        /// Its birth txg.
        birth: u64,
        /// See [`L2arcProp`].
        prop: u64,
        /// Byte offset on the cache device.
        daddr: u64,
        /// Compression level.
        complevel: u64,
        /// Reserved.
        pad: [u64; 2],
    }
}

impl L2arcLogEnt {
    /// The address, decoded.
    pub fn dva(&self) -> Dva {
        let [w0, w1] = self.dva;
        Dva::from_words(w0, w1)
    }
}

/// The property word of a buffer or log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2arcProp(pub u64);

impl L2arcProp {
    /// Bytes of data.
    pub fn lsize(self) -> u64 {
        ((self.0 & 0xffff) + 1) << MIN_BLOCK_SHIFT
    }

    /// Bytes stored.
    pub fn psize(self) -> u64 {
        ((self.0 >> 16 & 0xffff) + 1) << MIN_BLOCK_SHIFT
    }

    /// Compression, if known.
    pub fn compress(self) -> Option<CompressType> {
        CompressType::from_raw((self.0 >> 32 & 0x7f) as u8)
    }

    /// Came by prefetch.
    pub fn prefetch(self) -> bool {
        self.0 >> 39 & 1 != 0
    }

    /// Checksum function or object type, raw: the field means either.
    pub fn checksum_raw(self) -> u8 {
        (self.0 >> 40) as u8
    }

    /// Raw kind of buffer: 1 data, 2 metadata.
    pub fn buffer_type(self) -> ObjectType {
        ObjectType((self.0 >> 48) as u8)
    }

    /// Encrypted or authenticated.
    pub fn protected(self) -> bool {
        self.0 >> 56 & 1 != 0
    }
}

impl L2arcDevHdr {
    /// Decodes the header of either byte order.
    pub fn from_either(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut copy: Vec<u8> = bytes.iter().take(Self::SIZE).copied().collect();
        to_little(&mut copy, L2ARC_DEV_HDR_MAGIC, "l2arc header")?;
        Self::from_bytes(&copy)
    }
}

/// Decodes a log block of either byte order: its head, and as many entries as it has room for.
pub fn decode_log_block(bytes: &[u8]) -> Result<(L2arcLogBlkHead, Vec<L2arcLogEnt>), Malformed> {
    let most = L2arcLogBlkHead::SIZE + L2ARC_LOG_BLK_MAX_ENTRIES * L2arcLogEnt::SIZE;
    let mut copy: Vec<u8> = bytes.iter().take(most).copied().collect();
    to_little(&mut copy, L2ARC_LOG_BLK_MAGIC, "l2arc log block")?;
    let head = L2arcLogBlkHead::from_bytes(&copy)?;
    let entries = copy.get(L2arcLogBlkHead::SIZE..).unwrap_or(&[]).chunks_exact(L2arcLogEnt::SIZE);
    Ok((head, entries.map(L2arcLogEnt::from_bytes).collect::<Result<_, _>>()?))
}

fn to_little(bytes: &mut [u8], magic: u64, what: &'static str) -> Result<(), Malformed> {
    match bytes.first_chunk().map(|raw| u64::from_le_bytes(*raw)) {
        Some(found) if found == magic => Ok(()),
        Some(found) if found == magic.swap_bytes() => {
            byteswap::words(bytes, Words::U64);
            Ok(())
        }
        found => Err(Malformed::new(what, format!("magic number {:#x}", found.unwrap_or(0)))),
    }
}
