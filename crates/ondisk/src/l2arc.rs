//! Cache devices (L2ARC): the header that makes their contents survive, and its log blocks.
//!
//! Both are written in the byte order of their writer, given by the magic number. Source: arc_impl.h, OpenZFS
//! 2.3.

use crate::blkptr::BLKPTR_SIZE;
use crate::byteswap::{self, IntWidth};
use crate::words::word_struct;
use crate::{ChecksumType, CompressType, Dva, MIN_BLOCK_SHIFT, Malformed, ObjectType};

/// "ZFSCACHE"
pub const L2ARC_DEV_HDR_MAGIC: u64 = 0x5a46_5343_4143_4845;
/// "LOGBLKHD"
pub const L2ARC_LOG_BLK_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
/// Entries of a log block.
pub const L2ARC_LOG_BLK_MAX_ENTRIES: usize = 1022;

/// Bytes of a log block before compression.
pub const LOG_BLOCK_SIZE: u64 = 64 << 10;
/// Version of the format.
pub const L2ARC_PERSISTENT_VERSION: u64 = 1;
/// Flag of the header: the device has not been filled once yet.
#[doc(alias = "L2ARC_DEV_HDR_EVICT_FIRST")]
pub const L2ARC_FIRST_SWEEP: u64 = 1;

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

/// The facts about a buffer that [`L2arcProp::of_buffer`] records besides its sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferKind {
    /// Read ahead and not used since.
    pub prefetch: bool,
    /// Encrypted or authenticated.
    pub protected: bool,
    /// Metadata; otherwise the content of a file or volume.
    pub metadata: bool,
    /// Seen more than once.
    pub frequent: bool,
}

/// The property word of a buffer or log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2arcProp(pub u64);

impl L2arcProp {
    /// The word of a log block that takes `psize` bytes, checked with fletcher4; `lz4`: it is compressed.
    pub fn of_log(psize: u64, lz4: bool) -> Self {
        let compress = if lz4 { CompressType::Lz4 } else { CompressType::Off };
        Self(
            Self::sizes(LOG_BLOCK_SIZE, psize)
                | (compress as u64) << 32
                | (ChecksumType::Fletcher4 as u64) << 40,
        )
    }

    /// The word of a buffer of `lsize` bytes that takes `psize` bytes.
    pub fn of_buffer(lsize: u64, psize: u64, compress_raw: u8, kind: BufferKind) -> Self {
        let flags = u64::from(kind.prefetch) << 39 | u64::from(kind.protected) << 56;
        let contents = if kind.metadata { 2_u64 } else { 1 };
        let state = if kind.frequent { 3_u64 } else { 1 };
        let compress = u64::from(compress_raw & 0x7f) << 32;
        Self(Self::sizes(lsize, psize) | compress | flags | contents << 48 | state << 57)
    }

    fn sizes(lsize: u64, psize: u64) -> u64 {
        let sectors = |bytes: u64| (bytes >> MIN_BLOCK_SHIFT).saturating_sub(1) & 0xffff;
        sectors(lsize) | sectors(psize) << 16
    }

    /// Whether the buffer was on the list of blocks seen more than once (`ARC_STATE_MFU`, `ARC_STATE_MFU_GHOST`).
    pub fn frequent(self) -> bool {
        matches!(self.0 >> 57 & 0xf, 3 | 4)
    }

    /// Whether it is metadata (`ARC_BUFC_METADATA` + 1).
    pub fn metadata(self) -> bool {
        self.0 >> 48 & 0xff == 2
    }

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

/// The [`LOG_BLOCK_SIZE`] bytes of a log block, not compressed; entries beyond the 1022nd are left out.
pub fn encode_log_block(prev: &L2arcLogBlkptr, entries: &[L2arcLogEnt]) -> Vec<u8> {
    let head = L2arcLogBlkHead { magic: L2ARC_LOG_BLK_MAGIC, prev_lbp: *prev, ..L2arcLogBlkHead::default() };
    let mut bytes = head.to_bytes();
    entries.iter().take(L2ARC_LOG_BLK_MAX_ENTRIES).for_each(|entry| bytes.extend(entry.to_bytes()));
    bytes.resize(L2arcLogBlkHead::SIZE + L2ARC_LOG_BLK_MAX_ENTRIES * L2arcLogEnt::SIZE, 0);
    bytes
}

fn to_little(bytes: &mut [u8], magic: u64, what: &'static str) -> Result<(), Malformed> {
    match bytes.first_chunk().map(|raw| u64::from_le_bytes(*raw)) {
        Some(found) if found == magic => Ok(()),
        Some(found) if found == magic.swap_bytes() => {
            byteswap::words(bytes, IntWidth::U64);
            Ok(())
        }
        found => Err(Malformed::new(what, format!("magic number {:#x}", found.unwrap_or(0)))),
    }
}
