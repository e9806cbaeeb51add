//! System attributes: a file's metadata in its bonus buffer and spill block, since ZPL version 5.
//!
//! ```text
//! 0   magic:32  layout info:16 (header size / 8 in the high 6 bits, layout number in the low 10)
//! 6   a length:16 for each variable-sized attribute of the layout
//! up to a multiple of 8, then each attribute in the layout's order, each padded to 8
//! ```
//!
//! Attribute numbers, sizes and layouts are per dataset, in two ZAPs below its SA master node. These
//! buffers are not swapped with their block: the magic number determines the order, and only the layout knows
//! where the integers are. Source: sa_impl.h, zfs_sa.c, OpenZFS 2.3.

mod encode;

pub use encode::{SaSplit, SaValue, encode};

use crate::byteswap::{self, IntWidth};
use crate::{Cursor, Endian, Malformed};

/// Magic number at the start of a buffer.
pub const SA_MAGIC: u32 = 0x2F_505A;
/// Entry of the master node: object of the layouts.
pub const SA_LAYOUTS: &str = "LAYOUTS";
/// Entry of the master node: object of the registry.
pub const SA_REGISTRY: &str = "REGISTRY";

/// How an attribute's bytes are swapped.
#[doc(alias = "sa_bswap_type_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub enum SaByteswap {
    Uint64Array = 0,
    Uint32Array = 1,
    Uint16Array = 2,
    Uint8Array = 3,
    Acl = 4,
}

impl SaByteswap {
    /// The kind with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Uint64Array, Self::Uint32Array, Self::Uint16Array, Self::Uint8Array, Self::Acl]
            .into_iter()
            .find(|b| *b as u8 == raw)
    }
}

/// An attribute as a dataset has registered it: the value of an entry in the registry ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaAttr {
    /// Its number in this dataset.
    pub num: u16,
    /// Its bytes; 0: variable.
    pub len: u16,
    /// How to swap it.
    pub byteswap: SaByteswap,
}

impl SaAttr {
    /// Decodes a registry value: length in bits 39..24, byte swap in 23..16, number in 15..0.
    pub fn from_registry(value: u64) -> Result<Self, Malformed> {
        let raw = (value >> 16) as u8;
        let byteswap = SaByteswap::from_raw(raw)
            .ok_or_else(|| Malformed::new("sa registry", format!("byte swap kind {raw}")))?;
        Ok(Self { num: value as u16, len: (value >> 24) as u16, byteswap })
    }

    /// The registry value.
    pub fn to_registry(self) -> u64 {
        u64::from(self.len) << 24 | (self.byteswap as u64) << 16 | u64::from(self.num)
    }
}

/// A ZPL attribute: its name, bytes (0: variable), byte swap, and number in datasets older than SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZplAttr {
    /// Name in the registry.
    pub name: &'static str,
    /// Bytes; 0: variable.
    pub len: u16,
    /// How to swap it.
    pub byteswap: SaByteswap,
}

macro_rules! zpl_attrs {
    ($($konst:ident $len:literal $swap:ident;)*) => {
        /// Every attribute that the ZPL knows, in the order of OpenZFS's table.
        #[doc(alias = "zfs_attr_table")]
        pub const ZPL_ATTRS: &[ZplAttr] = &[$(ZplAttr {
            name: concat!("ZPL_", stringify!($konst)), len: $len, byteswap: SaByteswap::$swap,
        },)*];
    };
}

zpl_attrs! {
    ATIME 16 Uint64Array;
    MTIME 16 Uint64Array;
    CTIME 16 Uint64Array;
    CRTIME 16 Uint64Array;
    GEN 8 Uint64Array;
    MODE 8 Uint64Array;
    SIZE 8 Uint64Array;
    PARENT 8 Uint64Array;
    LINKS 8 Uint64Array;
    XATTR 8 Uint64Array;
    RDEV 8 Uint64Array;
    FLAGS 8 Uint64Array;
    UID 8 Uint64Array;
    GID 8 Uint64Array;
    PAD 32 Uint64Array;
    ZNODE_ACL 88 Uint8Array;
    DACL_COUNT 8 Uint64Array;
    SYMLINK 0 Uint8Array;
    SCANSTAMP 32 Uint8Array;
    DACL_ACES 0 Acl;
    DXATTR 0 Uint8Array;
    PROJID 8 Uint64Array;
}

/// The head of a bonus or spill buffer, decoded from either byte order.
#[doc(alias = "sa_hdr_phys_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaHeader<'a> {
    /// Byte order of the whole buffer.
    pub endian: Endian,
    /// Layout number (a stored 0 means 1).
    pub layout: u16,
    /// Header bytes as stored.
    pub size: usize,
    bytes: &'a [u8],
}

impl<'a> SaHeader<'a> {
    /// The header at the start of a bonus or spill buffer.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let endian = match Cursor::new("sa", bytes).u32()? {
            SA_MAGIC => Endian::Little,
            magic if magic == SA_MAGIC.swap_bytes() => Endian::Big,
            other => return Err(Malformed::new("sa", format!("magic number {other:#x}"))),
        };
        let mut at = Cursor::with_endian("sa", bytes, endian);
        at.skip(4)?;
        let info = at.u16()?;
        let layout = (info & 0x3ff).max(1);
        Ok(Self { endian, layout, size: usize::from(info >> 10) * 8, bytes })
    }

    /// Bytes of the header.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The attributes of a buffer with this layout, each with its bytes (in the buffer's order).
    /// Ends with an error at the first that doesn't fit.
    pub fn attrs<'l>(
        &self,
        layout: &'l [SaAttr],
    ) -> impl Iterator<Item = Result<(&'l SaAttr, &'a [u8]), Malformed>> + use<'a, 'l> {
        let header = *self;
        let mut spans = Spans::new(layout, header.size, move |i| header.length(i));
        std::iter::from_fn(move || {
            let (attr, start, len) = match spans.next()? {
                Ok(span) => span,
                Err(error) => return Some(Err(error)),
            };
            let data = start.checked_add(len).and_then(|end| header.bytes.get(start..end));
            let item =
                data.ok_or_else(|| Malformed::new("sa", format!("attribute {} past the end", attr.num)));
            spans.done |= item.is_err();
            Some(item.map(|data| (attr, data)))
        })
    }

    fn length(&self, index: usize) -> Option<u16> {
        let raw = *self.bytes.get(6 + 2 * index..)?.first_chunk()?;
        Some(match self.endian {
            Endian::Little => u16::from_le_bytes(raw),
            Endian::Big => u16::from_be_bytes(raw),
        })
    }
}

/// Walks a layout, giving each attribute's place.
struct Spans<'l, F> {
    layout: std::slice::Iter<'l, SaAttr>,
    length: F,
    variable: usize,
    at: usize,
    done: bool,
}

impl<'l, F: Fn(usize) -> Option<u16>> Spans<'l, F> {
    /// The first attribute lies behind the header as stored, which may be longer than its lengths need.
    fn new(layout: &'l [SaAttr], header: usize, length: F) -> Self {
        let variable = layout.iter().filter(|a| a.len == 0).count();
        let at = header.max((6 + 2 * variable).next_multiple_of(8));
        Self { layout: layout.iter(), length, variable: 0, at, done: false }
    }

    fn next(&mut self) -> Option<Result<(&'l SaAttr, usize, usize), Malformed>> {
        let attr = self.layout.next().filter(|_| !self.done)?;
        let mut len = attr.len;
        if len == 0 {
            let Some(stored) = (self.length)(self.variable) else {
                self.done = true;
                return Some(Err(Malformed::new("sa", "lengths past the end")));
            };
            len = stored;
            self.variable += 1;
        }
        let start = self.at;
        self.at = (start + usize::from(len)).next_multiple_of(8);
        Some(Ok((attr, start, len.into())))
    }
}

/// Turns a big-endian buffer with this layout into a little-endian one, in place. A little-endian
/// buffer is left alone; attributes that don't fit are left alone too.
#[doc(alias = "sa_byteswap")]
pub fn to_little_endian(bytes: &mut [u8], layout: &[SaAttr]) -> Result<(), Malformed> {
    let header = SaHeader::from_bytes(bytes)?;
    let size = header.size;
    if header.endian == Endian::Little {
        return Ok(());
    }
    let variable = layout.iter().filter(|a| a.len == 0).count();
    if let Some(magic) = bytes.get_mut(..4) {
        byteswap::words(magic, IntWidth::U32);
    }
    let lengths = bytes.len().min(6 + 2 * variable);
    if let Some(lengths) = bytes.get_mut(4..lengths) {
        byteswap::words(lengths, IntWidth::U16);
    }
    let stored: Vec<u16> = (0..variable)
        .map_while(|i| Some(u16::from_le_bytes(*bytes.get(6 + 2 * i..)?.first_chunk()?)))
        .collect();
    let mut spans = Spans::new(layout, size, |i| stored.get(i).copied());
    while let Some(Ok((attr, start, len))) = spans.next() {
        let Some(data) = bytes.get_mut(start..start + len) else { break };
        match attr.byteswap {
            SaByteswap::Uint64Array => byteswap::words(data, IntWidth::U64),
            SaByteswap::Uint32Array => byteswap::words(data, IntWidth::U32),
            SaByteswap::Uint16Array => byteswap::words(data, IntWidth::U16),
            SaByteswap::Uint8Array => {}
            SaByteswap::Acl => byteswap::acl(data),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: [SaAttr; 3] = [
        SaAttr { num: 5, len: 8, byteswap: SaByteswap::Uint64Array },
        SaAttr { num: 17, len: 0, byteswap: SaByteswap::Uint8Array },
        SaAttr { num: 6, len: 8, byteswap: SaByteswap::Uint64Array },
    ];

    fn little() -> Vec<u8> {
        let mut bytes = SA_MAGIC.to_le_bytes().to_vec();
        bytes.extend((1u16 << 10 | 3).to_le_bytes());
        bytes.extend(5u16.to_le_bytes());
        bytes.extend(0o100644u64.to_le_bytes());
        bytes.extend(b"hello\0\0\0");
        bytes.extend(99u64.to_le_bytes());
        bytes
    }

    fn big() -> Vec<u8> {
        let mut bytes = SA_MAGIC.to_be_bytes().to_vec();
        bytes.extend((1u16 << 10 | 3).to_be_bytes());
        bytes.extend(5u16.to_be_bytes());
        bytes.extend(0o100644u64.to_be_bytes());
        bytes.extend(b"hello\0\0\0");
        bytes.extend(99u64.to_be_bytes());
        bytes
    }

    #[test]
    fn variable_attributes_take_their_length_from_the_header() {
        let bytes = little();
        let header = SaHeader::from_bytes(&bytes).unwrap();
        assert_eq!((header.layout, header.size), (3, 8));
        let attrs: Vec<_> = header.attrs(&LAYOUT).map(|a| a.unwrap().1.to_vec()).collect();
        assert_eq!(attrs[1], b"hello");
        assert_eq!(attrs[2], 99u64.to_le_bytes());
    }

    #[test]
    fn a_big_endian_buffer_becomes_a_little_endian_one() {
        let mut bytes = big();
        assert_eq!(SaHeader::from_bytes(&bytes).unwrap().attrs(&LAYOUT).count(), 3);
        to_little_endian(&mut bytes, &LAYOUT).unwrap();
        assert_eq!(bytes, little());
    }

    #[test]
    fn an_attribute_past_the_end_is_an_error_and_the_last_item() {
        let mut bytes = little();
        bytes[6] = 200;
        let items: Vec<_> = SaHeader::from_bytes(&bytes).unwrap().attrs(&LAYOUT).collect();
        assert!(items.len() == 2 && items[1].is_err());
    }

    #[test]
    fn registry_values() {
        let attr = SaAttr { num: 5, len: 16, byteswap: SaByteswap::Acl };
        assert_eq!(SaAttr::from_registry(attr.to_registry()), Ok(attr));
        assert!(SaAttr::from_registry(9 << 16).is_err());
        assert_eq!(ZPL_ATTRS.len(), 22);
    }
}
