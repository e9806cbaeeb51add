//! Records of send streams.
//!
//! A stream is a sequence of records of 312 bytes, each perhaps followed by a payload. All but the
//! first end with a fletcher4 of the stream so far (without their own checksum field); the END record carries
//! the checksum of everything before it. A stream is in its sender's byte order: given by the magic number of
//! its BEGIN. Source: `dmu_replay_record_t`, zfs_ioctl.h, OpenZFS 2.3.

use crate::ddt::DdtKey;
use crate::fields::{Field, Raw, field_struct};
use crate::{Cursor, Endian, Malformed};

/// Bytes of a record.
pub const DRR_SIZE: usize = 312;
/// Offset of the running checksum in a record.
pub const DRR_CHECKSUM_OFFSET: usize = DRR_SIZE - 32;
/// Magic number in BEGIN.
#[doc(alias = "DMU_BACKUP_MAGIC")]
pub const DRR_MAGIC: u64 = 0x2_F5BA_CBAC;
/// Bytes of the dataset's name in BEGIN, NUL included.
pub const DRR_TONAME_SIZE: usize = 256;

/// Feature flags of a stream, in bits 57..2 of its version word.
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub mod stream_feature {
    pub const DEDUP: u64 = 1 << 0;
    pub const DEDUPPROPS: u64 = 1 << 1;
    pub const SA_SPILL: u64 = 1 << 2;
    pub const EMBED_DATA: u64 = 1 << 16;
    pub const LZ4: u64 = 1 << 17;
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    pub const RESUMING: u64 = 1 << 20;
    pub const REDACTED: u64 = 1 << 21;
    pub const COMPRESSED: u64 = 1 << 22;
    pub const LARGE_DNODE: u64 = 1 << 23;
    pub const RAW: u64 = 1 << 24;
    pub const ZSTD: u64 = 1 << 25;
    pub const HOLDS: u64 = 1 << 26;
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    pub const LONGNAME: u64 = 1 << 28;
    pub const LARGE_MICROZAP: u64 = 1 << 29;
}

/// Flags of BEGIN.
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub mod begin_flag {
    pub const CLONE: u32 = 1 << 0;
    pub const CI_DATA: u32 = 1 << 1;
    pub const FREERECORDS: u32 = 1 << 2;
    pub const SPILL_BLOCK: u32 = 1 << 3;
}

/// Flags of other records.
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub mod drr_flag {
    pub const CHECKSUM_DEDUP: u8 = 1 << 0;
    pub const RAW_BYTESWAP: u8 = 1 << 1;
    pub const OBJECT_SPILL: u8 = 1 << 2;
    pub const SPILL_UNMODIFIED: u8 = 1 << 2;
}

field_struct! {
    /// Begins a stream or, in a compound stream, a snapshot's part.
    #[doc(alias = "drr_begin")]
    DrrBegin, 304 bytes {
        /// [`DRR_MAGIC`].
        magic: u64,
        /// Kind of stream in bits 1..0, feature flags above.
        versioninfo: u64,
        /// Seconds since 1970 when the snapshot was taken.
        creation_time: u64,
        /// Kind of object set.
        objset_type: u32,
        /// See [`begin_flag`].
        flags: u32,
        /// Guid of the snapshot.
        toguid: u64,
        /// Guid of the snapshot it builds on; 0: none.
        fromguid: u64,
        /// Name of the snapshot, NUL-terminated.
        toname: Raw<256>,
    }
}

impl DrrBegin {
    /// Whether this begins a compound stream (an nvlist follows, then streams).
    pub fn is_compound(&self) -> bool {
        self.versioninfo & 3 == 2
    }

    /// See [`stream_feature`].
    pub fn features(&self) -> u64 {
        self.versioninfo >> 2 & ((1 << 56) - 1)
    }

    /// The name without its NUL.
    pub fn name(&self) -> &[u8] {
        self.toname.0.split(|b| *b == 0).next().unwrap_or(&[])
    }
}

field_struct! {
    /// An object: the following records are about it until the next.
    #[doc(alias = "drr_object")]
    DrrObject, 56 bytes {
        /// Its number.
        object: u64,
        /// Its type.
        object_type: u32,
        /// Type of its bonus buffer.
        bonustype: u32,
        /// Its block size.
        blksz: u32,
        /// Bytes of its bonus buffer, which follows.
        bonuslen: u32,
        /// Its checksum function.
        checksumtype: u8,
        /// Its compression function.
        compress: u8,
        /// Slots of its dnode; 0 means 1.
        dn_slots: u8,
        /// See [`drr_flag`].
        flags: u8,
        /// Bytes of the encrypted bonus buffer in a raw stream.
        raw_bonuslen: u32,
        /// Guid of the snapshot.
        toguid: u64,
        /// log2 of an indirect block, in a raw stream.
        indblkshift: u8,
        /// Levels, in a raw stream.
        nlevels: u8,
        /// Pointers in the dnode, in a raw stream.
        nblkptr: u8,
        /// Reserved.
        pad: Raw<5>,
        /// Largest block number, in a raw stream.
        maxblkid: u64,
    }
}

field_struct! {
    /// A run of objects that don't exist.
    #[doc(alias = "drr_freeobjects")]
    DrrFreeobjects, 24 bytes {
        /// First.
        firstobj: u64,
        /// How many.
        numobjs: u64,
        /// Guid of the snapshot.
        toguid: u64,
    }
}

field_struct! {
    /// A block of data, which follows.
    #[doc(alias = "drr_write")]
    DrrWrite, 136 bytes {
        /// Object.
        object: u64,
        /// Its type.
        object_type: u32,
        /// Reserved.
        pad: u32,
        /// Byte offset.
        offset: u64,
        /// Bytes of data.
        logical_size: u64,
        /// Guid of the snapshot.
        toguid: u64,
        /// Checksum function of `key`.
        checksumtype: u8,
        /// See [`drr_flag`].
        flags: u8,
        /// Compression of the payload; 0: none.
        compressiontype: u8,
        /// Reserved.
        pad2: Raw<5>,
        /// Checksum and sizes of the block.
        key: DdtKey,
        /// Bytes of a compressed payload.
        compressed_size: u64,
        /// Salt, in a raw stream.
        salt: Raw<8>,
        /// IV, in a raw stream.
        iv: Raw<12>,
        /// MAC, in a raw stream.
        mac: Raw<16>,
        /// Padding to a multiple of 8.
        pad3: Raw<4>,
    }
}

field_struct! {
    /// A range of zeros.
    #[doc(alias = "drr_free")]
    DrrFree, 32 bytes {
        /// Object.
        object: u64,
        /// Byte offset.
        offset: u64,
        /// Bytes; all ones: to the end.
        length: u64,
        /// Guid of the snapshot.
        toguid: u64,
    }
}

field_struct! {
    /// Ends a stream or a snapshot's part.
    #[doc(alias = "drr_end")]
    DrrEnd, 40 bytes {
        /// Fletcher4 of everything before.
        checksum: [u64; 4],
        /// Guid of the snapshot.
        toguid: u64,
    }
}

field_struct! {
    /// Data that came earlier in the stream (deduplicated streams, no longer sent).
    #[doc(alias = "drr_write_byref")]
    DrrWriteByref, 104 bytes {
        /// Object.
        object: u64,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Guid of the snapshot.
        toguid: u64,
        /// Guid of the snapshot that has the data.
        refguid: u64,
        /// Its object.
        refobject: u64,
        /// Its byte offset.
        refoffset: u64,
        /// Checksum function of `key`.
        checksumtype: u8,
        /// See [`drr_flag`].
        flags: u8,
        /// Reserved.
        pad2: Raw<6>,
        /// Checksum and sizes of the block.
        key: DdtKey,
    }
}

field_struct! {
    /// A spill block, which follows.
    #[doc(alias = "drr_spill")]
    DrrSpill, 80 bytes {
        /// Object.
        object: u64,
        /// Bytes.
        length: u64,
        /// Guid of the snapshot.
        toguid: u64,
        /// See [`drr_flag`].
        flags: u8,
        /// Compression of the payload; 0: none.
        compressiontype: u8,
        /// Reserved.
        pad: Raw<6>,
        /// Bytes of a compressed payload.
        compressed_size: u64,
        /// Salt, in a raw stream.
        salt: Raw<8>,
        /// IV, in a raw stream.
        iv: Raw<12>,
        /// MAC, in a raw stream.
        mac: Raw<16>,
        /// Object type of the spill block.
        object_type: u32,
    }
}

field_struct! {
    /// A block embedded in its pointer; the packed data follow.
    #[doc(alias = "drr_write_embedded")]
    DrrWriteEmbedded, 48 bytes {
        /// Object.
        object: u64,
        /// Byte offset.
        offset: u64,
        /// Bytes of the block.
        length: u64,
        /// Guid of the snapshot.
        toguid: u64,
        /// Compression of the data.
        compression: u8,
        /// Kind of embedded pointer.
        etype: u8,
        /// Reserved.
        pad: Raw<6>,
        /// Unpacked bytes.
        lsize: u32,
        /// Packed bytes.
        psize: u32,
    }
}

field_struct! {
    /// A block of dnodes, in a raw stream: how it was encrypted.
    #[doc(alias = "drr_object_range")]
    DrrObjectRange, 64 bytes {
        /// First object.
        firstobj: u64,
        /// Slots.
        numslots: u64,
        /// Guid of the snapshot.
        toguid: u64,
        /// Salt.
        salt: Raw<8>,
        /// IV.
        iv: Raw<12>,
        /// MAC.
        mac: Raw<16>,
        /// See [`drr_flag`].
        flags: u8,
        /// Reserved.
        pad: Raw<3>,
    }
}

field_struct! {
    /// A range that was redacted.
    #[doc(alias = "drr_redact")]
    DrrRedact, 32 bytes {
        /// Object.
        object: u64,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Guid of the snapshot.
        toguid: u64,
    }
}

macro_rules! drr_body {
    ($($variant:ident($ty:ty) = $num:literal $text:literal,)*) => {
        /// The content of a record.
        #[doc(alias = "dmu_replay_record")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each names its structure")]
        pub enum DrrBody { $($variant($ty),)* }

        impl DrrBody {
            /// Its number on disk.
            pub fn raw_type(&self) -> u32 {
                match self { $(Self::$variant(_) => $num,)* }
            }

            /// OpenZFS's name, without `DRR_`.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $text,)* }
            }

            fn read(raw_type: u32, at: &mut Cursor<'_>) -> Result<Self, Malformed> {
                match raw_type {
                    $($num => Field::read(at).map(Self::$variant),)*
                    other => Err(Malformed::new("stream record", format!("type {other}"))),
                }
            }

            fn write(&self, out: &mut Vec<u8>, endian: Endian) {
                match self { $(Self::$variant(body) => body.write(out, endian),)* }
            }
        }
    };
}

drr_body! {
    Begin(DrrBegin) = 0 "BEGIN",
    Object(DrrObject) = 1 "OBJECT",
    Freeobjects(DrrFreeobjects) = 2 "FREEOBJECTS",
    Write(DrrWrite) = 3 "WRITE",
    Free(DrrFree) = 4 "FREE",
    End(DrrEnd) = 5 "END",
    WriteByref(DrrWriteByref) = 6 "WRITE_BYREF",
    Spill(DrrSpill) = 7 "SPILL",
    WriteEmbedded(DrrWriteEmbedded) = 8 "WRITE_EMBEDDED",
    ObjectRange(DrrObjectRange) = 9 "OBJECT_RANGE",
    Redact(DrrRedact) = 10 "REDACT",
}

/// A record of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drr {
    /// Bytes of payload, in BEGIN only; see [`Self::payload_size`].
    pub payloadlen: u32,
    /// The fields of its type.
    pub body: DrrBody,
    /// Fletcher4 of the stream up to here; `None` in BEGIN, which has no room for it. Zero in streams
    /// of old senders.
    pub checksum: Option<[u64; 4]>,
}

impl DrrBody {
    /// Appends the 312 bytes of its record.
    pub fn put(&self, payloadlen: u32, checksum: Option<[u64; 4]>, endian: Endian, out: &mut Vec<u8>) {
        let start = out.len();
        self.raw_type().write(out, endian);
        payloadlen.write(out, endian);
        self.write(out, endian);
        if let Some(checksum) = checksum {
            out.resize(start + DRR_CHECKSUM_OFFSET, 0);
            checksum.write(out, endian);
        }
        out.resize(start + DRR_SIZE, 0);
    }
}

impl Drr {
    /// The byte order of a stream that begins with these bytes.
    pub fn detect(bytes: &[u8]) -> Result<Endian, Malformed> {
        let mut at = Cursor::new("stream", bytes);
        at.skip(8)?;
        match at.u64()? {
            DRR_MAGIC => Ok(Endian::Little),
            magic if magic == DRR_MAGIC.swap_bytes() => Ok(Endian::Big),
            other => Err(Malformed::new("stream", format!("magic number {other:#x}"))),
        }
    }

    /// Decodes a record of 312 bytes.
    pub fn from_bytes(bytes: &[u8], endian: Endian) -> Result<Self, Malformed> {
        let bytes =
            bytes.get(..DRR_SIZE).ok_or_else(|| Malformed::short("stream record", bytes.len(), DRR_SIZE))?;
        let mut at = Cursor::with_endian("stream record", bytes, endian);
        let (raw_type, payloadlen) = (at.u32()?, at.u32()?);
        let body = DrrBody::read(raw_type, &mut at)?;
        let mut checksum = None;
        if !matches!(body, DrrBody::Begin(_)) {
            at.skip(DRR_CHECKSUM_OFFSET - at.position())?;
            checksum = Some(at.u64s()?);
        }
        Ok(Self { payloadlen, body, checksum })
    }

    /// Its 312 bytes.
    pub fn to_bytes(&self, endian: Endian) -> Vec<u8> {
        let mut out = Vec::with_capacity(DRR_SIZE);
        self.body.put(self.payloadlen, self.checksum, endian, &mut out);
        out
    }

    /// Bytes that follow the record in the stream, as the record claims.
    pub fn payload_size(&self) -> u64 {
        let or = |packed: u64, plain: u64| if packed != 0 { packed } else { plain };
        match &self.body {
            DrrBody::Begin(_) => self.payloadlen.into(),
            DrrBody::Object(o) => or(o.raw_bonuslen.into(), u64::from(o.bonuslen).next_multiple_of(8)),
            DrrBody::Write(w) if w.compressiontype != 0 => w.compressed_size,
            DrrBody::Write(w) => w.logical_size,
            DrrBody::Spill(s) => or(s.compressed_size, s.length),
            DrrBody::WriteEmbedded(w) => u64::from(w.psize).next_multiple_of(8),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_in_both_orders() {
        let write = DrrWrite { object: 5, logical_size: 131_072, compressed_size: 512, ..Default::default() };
        let begin = DrrBegin { magic: DRR_MAGIC, versioninfo: 2 | 1 << 24, ..Default::default() };
        for endian in [Endian::Little, Endian::Big] {
            for body in [DrrBody::Write(write), DrrBody::Begin(begin), DrrBody::End(DrrEnd::default())] {
                let checksum = (body.raw_type() != 0).then_some([1, 2, 3, 4]);
                let drr = Drr { payloadlen: 7, body, checksum };
                let bytes = drr.to_bytes(endian);
                assert_eq!(bytes.len(), DRR_SIZE);
                assert_eq!(Drr::from_bytes(&bytes, endian), Ok(drr));
            }
            let bytes = Drr { payloadlen: 0, body: DrrBody::Begin(begin), checksum: None }.to_bytes(endian);
            assert_eq!(Drr::detect(&bytes), Ok(endian));
        }
        assert!(begin.is_compound());
        assert_eq!(begin.features(), 1 << 22);
    }

    #[test]
    fn payloads_follow_what_the_record_says() {
        let size = |body| Drr { payloadlen: 9, body, checksum: None }.payload_size();
        let write = DrrWrite { logical_size: 4096, compressed_size: 512, ..Default::default() };
        assert_eq!(size(DrrBody::Write(write)), 4096);
        assert_eq!(size(DrrBody::Write(DrrWrite { compressiontype: 15, ..write })), 512);
        assert_eq!(size(DrrBody::Object(DrrObject { bonuslen: 177, ..Default::default() })), 184);
        assert_eq!(size(DrrBody::WriteEmbedded(DrrWriteEmbedded { psize: 33, ..Default::default() })), 40);
        assert_eq!(size(DrrBody::Free(DrrFree::default())), 0);
    }
}
