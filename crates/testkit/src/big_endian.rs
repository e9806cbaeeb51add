//! Streams as a big-endian system sends them, made from streams of a little-endian one.
//!
//! Records, sums and the content of blocks are turned around, each by its type; system attributes by their layouts. Lists in
//! XDR are the same in either order. Blocks that are compressed are compressed again with LZ4. Blocks of raw streams stay as
//! they are, marked as blocks that a little-endian system wrote.

#![expect(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test must say so")]

use std::collections::BTreeMap;

use checksum::Fletcher4;
use compress::Algorithm;
use engine::recv::Input;
use engine::sa::SaTables;
use nvpair::NvType;
use ondisk::acl::{ACE_SPACE, ACL_VERSION_FUID, AclPhys};
use ondisk::byteswap::{self, IntWidth, words};
use ondisk::drr::{
    DRR_CHECKSUM_OFFSET, Drr, DrrBody, DrrEnd, DrrWrite, DrrWriteEmbedded, drr_flag, stream_feature,
};
use ondisk::sa::{SaByteswap, SaHeader};
use ondisk::{Byteswap, CompressType, Endian, ObjectType, ZnodePhys};

/// Turns a stream around. `tables`: the layouts of its file system's attributes.
///
/// # Panics
/// When the stream can't be read.
pub fn of(stream: &[u8], tables: Option<&SaTables>) -> Vec<u8> {
    of_package(stream, &|_| tables)
}

/// As [`of`], for packages: `tables` are those of the snapshot that a stream names.
///
/// # Panics
/// When the stream can't be read.
pub fn of_package<'t>(stream: &[u8], tables: &dyn Fn(&str) -> Option<&'t SaTables>) -> Vec<u8> {
    let find = tables;
    let (mut tables, mut raw) = (None, false);
    let (mut from, mut out) = (stream, Writer::default());
    let mut input = Input::new(&mut from);
    // Types of objects and of their bonuses, which are those of spill blocks.
    let mut types = BTreeMap::new();
    while let Some(item) = input.record().expect("a record") {
        let (mut drr, mut payload) = (item.drr, item.payload);
        match &mut drr.body {
            DrrBody::Begin(begin) => {
                raw = begin.features() & stream_feature::RAW != 0;
                tables = find(&String::from_utf8_lossy(begin.name()));
                types.clear();
                if payload.starts_with(&[0, 1]) {
                    native_list(&mut payload);
                }
            }
            DrrBody::Object(object) => {
                let bonus = kind_of(object.bonustype);
                types.insert(object.object, (kind_of(object.object_type), bonus));
                match raw {
                    true => object.flags ^= drr_flag::RAW_BYTESWAP,
                    false => turn(bonus, &mut payload, tables),
                }
            }
            DrrBody::ObjectRange(range) => range.flags ^= drr_flag::RAW_BYTESWAP,
            DrrBody::Write(write) if raw => write.flags ^= drr_flag::RAW_BYTESWAP,
            DrrBody::Spill(spill) if raw => spill.flags ^= drr_flag::RAW_BYTESWAP,
            DrrBody::Write(write) => turn_write(write, &mut payload, tables),
            DrrBody::WriteEmbedded(write) => {
                let is_spill = write.offset == write.length.wrapping_mul(u64::MAX - 1);
                let (kind, bonus) = types[&write.object];
                turn_embedded(if is_spill { bonus } else { kind }, write, &mut payload, tables);
            }
            DrrBody::Spill(spill) => {
                turn(kind_of(spill.object_type), &mut payload, tables);
            }
            _ => {}
        }
        out.put(drr, &payload);
    }
    out.bytes
}

/// Turns a packed list of a little-endian system, of the types that lists in front of streams have, in place.
///
/// # Panics
/// When it has others.
pub fn native_list(bytes: &mut [u8]) {
    bytes[1] = 0;
    words(&mut bytes[4..12], IntWidth::U32);
    native_pairs(bytes, 12);
}

/// Turns the pairs from `at` on. Returns the position behind their end.
fn native_pairs(bytes: &mut [u8], mut at: usize) -> usize {
    loop {
        let size = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a size")) as usize;
        words(&mut bytes[at..at + 4], IntWidth::U32);
        if size == 0 {
            return at + 4;
        }
        let name = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        let kind =
            NvType::from_number(i32::from_le_bytes(bytes[at + 12..at + 16].try_into().expect("a type")));
        words(&mut bytes[at + 4..at + 8], IntWidth::U16);
        words(&mut bytes[at + 8..at + 16], IntWidth::U32);
        let value = at + (16 + name).next_multiple_of(8);
        let mut end = at + size;
        match kind.expect("a known type") {
            NvType::Uint64 | NvType::Uint64Array => words(&mut bytes[value..end], IntWidth::U64),
            NvType::Boolean | NvType::String | NvType::Uint8Array => {}
            NvType::List => {
                words(&mut bytes[value..value + 8], IntWidth::U32);
                end = native_pairs(bytes, end);
            }
            other => panic!("a list with {other:?}"),
        }
        at = end;
    }
}

fn kind_of(raw: u32) -> ObjectType {
    ObjectType(u8::try_from(raw).expect("a type"))
}

fn turn_write(write: &mut DrrWrite, payload: &mut Vec<u8>, tables: Option<&SaTables>) {
    let kind = kind_of(write.object_type);
    if write.compressiontype == 0 {
        return turn(kind, payload, tables);
    }
    if kind.byteswap() == Some(Byteswap::Uint8) {
        return;
    }
    let mut bytes = unpacked(write.compressiontype, payload, write.logical_size);
    turn(kind, &mut bytes, tables);
    let Some(mut packed) = compress::compress(Algorithm::Lz4, 0, &bytes, bytes.len() - 512) else {
        (write.compressiontype, write.compressed_size) = (0, 0);
        *payload = bytes;
        return;
    };
    packed.resize(packed.len().next_multiple_of(512), 0);
    (write.compressiontype, write.compressed_size) = (CompressType::Lz4.raw(), packed.len() as u64);
    *payload = packed;
}

/// A block's `lsize` bytes.
pub fn unpacked(compression: u8, payload: &[u8], lsize: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(lsize).expect("a size")];
    let algorithm = match CompressType::from_raw(compression).expect("a compression") {
        CompressType::Off => Algorithm::Off,
        CompressType::On | CompressType::Lzjb => Algorithm::Lzjb,
        CompressType::Zle => Algorithm::Zle,
        CompressType::Lz4 => Algorithm::Lz4,
        CompressType::Zstd => Algorithm::Zstd,
        _ => Algorithm::Gzip,
    };
    compress::decompress(algorithm, payload, &mut bytes).expect("a block");
    bytes
}

fn turn_embedded(
    kind: ObjectType,
    write: &mut DrrWriteEmbedded,
    payload: &mut Vec<u8>,
    tables: Option<&SaTables>,
) {
    if kind.byteswap() == Some(Byteswap::Uint8) && kind != ObjectType::SA {
        return;
    }
    let mut bytes = unpacked(write.compression, &payload[..write.psize as usize], write.lsize.into());
    turn(kind, &mut bytes, tables);
    let packed = compress::compress(Algorithm::Lz4, 0, &bytes, 112).expect("it fits a pointer");
    (write.compression, write.psize) =
        (CompressType::Lz4.raw(), u32::try_from(packed.len()).expect("a short one"));
    *payload = packed;
    payload.resize(payload.len().next_multiple_of(8), 0);
}

/// A block or bonus in the other order.
pub fn turn(kind: ObjectType, bytes: &mut [u8], tables: Option<&SaTables>) {
    match kind.byteswap().expect("a known type") {
        _ if kind == ObjectType::SA => attributes(bytes, tables.expect("layouts")),
        // The kind of the block is looked up in the other order.
        Byteswap::Zap => {
            words(&mut bytes[..8], IntWidth::U64);
            byteswap::zap(bytes);
            words(&mut bytes[..8], IntWidth::U64);
        }
        Byteswap::Znode => znode(bytes),
        Byteswap::Acl => entries(bytes),
        kind => byteswap::swap(kind, bytes),
    }
}

fn znode(bytes: &mut [u8]) {
    let (version, aces) = (ZnodePhys::SIZE - AclPhys::SIZE + 12, ZnodePhys::SIZE - ACE_SPACE);
    let is_new = bytes[version..version + 2] == ACL_VERSION_FUID.to_le_bytes();
    words(&mut bytes[..ZnodePhys::SIZE - AclPhys::SIZE + 8], IntWidth::U64);
    words(&mut bytes[version - 4..version], IntWidth::U32);
    words(&mut bytes[version..version + 4], IntWidth::U16);
    match is_new {
        true => entries(&mut bytes[aces..ZnodePhys::SIZE]),
        false => byteswap::old_acl(&mut bytes[aces..ZnodePhys::SIZE]),
    }
}

/// Entries of an ACL: their size is looked up before they are turned.
fn entries(bytes: &mut [u8]) {
    let mut at = 0;
    while at + 8 <= bytes.len() {
        let flags = u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]);
        let is_abstract = matches!(flags & 0x7040, 0x1000 | 0x2040 | 0x4000);
        let size = if is_abstract { 8 } else { 16 };
        words(&mut bytes[at..at + 4], IntWidth::U16);
        words(&mut bytes[at + 4..at + 8], IntWidth::U32);
        if size == 16 && at + 16 <= bytes.len() {
            words(&mut bytes[at + 8..at + 16], IntWidth::U64);
        }
        at += size;
    }
}

#[doc(alias = "sa_byteswap")]
fn attributes(bytes: &mut [u8], tables: &SaTables) {
    let copy = bytes.to_vec();
    let Ok(header) = SaHeader::from_bytes(&copy) else { return };
    let layout = tables.layout(header.layout).unwrap_or_default();
    for (attr, data) in header.attrs(&layout).map(|attr| attr.expect("an attribute")) {
        let start = data.as_ptr().addr() - copy.as_ptr().addr();
        let data = &mut bytes[start..start + data.len()];
        match attr.byteswap {
            SaByteswap::Uint64Array => words(data, IntWidth::U64),
            SaByteswap::Uint32Array => words(data, IntWidth::U32),
            SaByteswap::Uint16Array => words(data, IntWidth::U16),
            SaByteswap::Uint8Array => {}
            SaByteswap::Acl => entries(data),
        }
    }
    let lengths = layout.iter().filter(|attr| attr.len == 0).count();
    words(&mut bytes[..4], IntWidth::U32);
    words(&mut bytes[4..6 + 2 * lengths], IntWidth::U16);
}

/// A big-endian stream that is being written.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    sum: Option<Fletcher4>,
    /// The last record was an END: the next one is the package's, without sums.
    ended: bool,
}

impl Writer {
    fn put(&mut self, mut drr: Drr, payload: &[u8]) {
        if matches!(drr.body, DrrBody::Begin(_)) {
            self.sum = Some(Fletcher4::new(true));
        }
        let sum = self.sum.as_mut().expect("a BEGIN");
        if let DrrBody::End(DrrEnd { checksum, .. }) = &mut drr.body {
            *checksum = if self.ended { *checksum } else { sum.finish() };
        }
        self.ended = matches!(drr.body, DrrBody::End(_));
        sum.update(&drr.to_bytes(Endian::Big)[..DRR_CHECKSUM_OFFSET]);
        drr.checksum = drr.checksum.map(|said| if said == [0; 4] { said } else { sum.finish() });
        let bytes = drr.to_bytes(Endian::Big);
        sum.update(&bytes[DRR_CHECKSUM_OFFSET..]);
        sum.update(payload);
        self.bytes.extend(bytes);
        self.bytes.extend(payload);
    }
}
