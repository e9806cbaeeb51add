//! A file's attributes.

use std::ops::Range;
use std::sync::Arc;

use ondisk::sa::{SaAttr, SaHeader, SaSplit, SaValue, ZPL_ATTRS, encode, to_little_endian};
use ondisk::{Endian, ZnodePhys};

use super::values::Values;
use super::{SaTables, corrupt};
use crate::error::{Error, Kind, Result};

/// Attributes of an ordinary file: more are rare.
const FILE_ATTRS: usize = 20;

/// A file's attributes, in the order in which they are stored: those of the bonus buffer, then those of the
/// spill block. A copy of an ordinary file's allocates nothing: each change of a file makes copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaAttrs {
    /// The attributes, and the lengths of their values.
    values: Arc<Vec<(SaAttr, usize)>>,
    /// One bit for each number below 64 that is among the attributes.
    present: u64,
    /// The values one after the other.
    bytes: Values,
    /// The bytes after an old znode in its bonus buffer; `None` for system attributes.
    tail: Option<Vec<u8>>,
}

/// Reads attributes one after the other: each at once, where they are asked for in the order in which they are stored.
#[derive(Debug, Clone)]
pub struct SaReader<'a> {
    attrs: &'a SaAttrs,
    /// Index of the attribute behind the last that was found, and the beginning of its value.
    index: usize,
    start: usize,
}

impl<'a> SaReader<'a> {
    /// An attribute's bytes.
    #[inline]
    pub fn get(&mut self, attr: SaAttr) -> Option<&'a [u8]> {
        if !self.attrs.may_have(attr) {
            return None;
        }
        match self.attrs.values.get(self.index) {
            Some((next, len)) if next.num == attr.num => {
                let range = self.start..self.start + len;
                (self.index, self.start) = (self.index + 1, range.end);
                self.attrs.bytes.get(range)
            }
            _ => self.search(attr),
        }
    }

    fn search(&mut self, attr: SaAttr) -> Option<&'a [u8]> {
        let behind = self.attrs.values.get(self.index..).unwrap_or_default();
        self.find(behind, attr, (self.index, self.start)).or_else(|| {
            let before = self.attrs.values.get(..self.index).unwrap_or_default();
            self.find(before, attr, (0, 0))
        })
    }

    fn find(&mut self, among: &[(SaAttr, usize)], attr: SaAttr, first: (usize, usize)) -> Option<&'a [u8]> {
        let (mut index, mut start) = first;
        for (other, len) in among {
            let end = start + len;
            index += 1;
            if other.num == attr.num {
                (self.index, self.start) = (index, end);
                return self.attrs.bytes.get(start..end);
            }
            start = end;
        }
        None
    }

    /// An attribute's first word.
    #[inline]
    pub fn word(&mut self, attr: SaAttr) -> Option<u64> {
        self.get(attr)?.first_chunk().map(|b| u64::from_le_bytes(*b))
    }

    /// An attribute's first two words, 0 for each that is absent.
    pub fn pair(&mut self, attr: SaAttr) -> [u64; 2] {
        let bytes = self.get(attr).unwrap_or_default();
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        [word(bytes), word(bytes.get(8..).unwrap_or_default())]
    }
}

/// A file's attributes as they are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaBuffers {
    /// The bonus buffer.
    pub bonus: Vec<u8>,
    /// The spill block: a multiple of 512 bytes. `None`: there must be none.
    pub spill: Option<Vec<u8>>,
}

impl SaAttrs {
    /// No attributes yet, with room for those of a new file.
    pub fn new() -> Self {
        let values = Arc::new(Vec::with_capacity(FILE_ATTRS));
        Self { values, present: 0, bytes: Values::default(), tail: None }
    }

    /// Decodes bonus buffer and spill block, in either byte order. An empty bonus has no attributes.
    pub fn decode(tables: &SaTables, bonus: &[u8], spill: Option<&[u8]>) -> Result<Self> {
        let mut attrs = Self::new();
        // A bonus of zeros belongs to a newly created file.
        for buffer in [Some(bonus), spill].into_iter().flatten().filter(|b| b.iter().any(|b| *b != 0)) {
            attrs.decode_buffer(tables, buffer)?;
        }
        Ok(attrs)
    }

    fn decode_buffer(&mut self, tables: &SaTables, bytes: &[u8]) -> Result<()> {
        let header = SaHeader::from_bytes(bytes).map_err(corrupt)?;
        let unknown = || Error::corrupt(format!("unknown attribute layout {}", header.layout));
        let layout = tables.layout(header.layout).ok_or_else(unknown)?;
        if header.endian == Endian::Little {
            return self.take(&header, &layout);
        }
        let mut swapped = bytes.to_vec();
        to_little_endian(&mut swapped, &layout).map_err(corrupt)?;
        self.take(&SaHeader::from_bytes(&swapped).map_err(corrupt)?, &layout)
    }

    fn take(&mut self, header: &SaHeader<'_>, layout: &[SaAttr]) -> Result<()> {
        for item in header.attrs(layout) {
            let (attr, bytes) = item.map_err(corrupt)?;
            self.push(*attr, bytes);
        }
        Ok(())
    }

    fn push(&mut self, attr: SaAttr, bytes: &[u8]) {
        Arc::make_mut(&mut self.values).push((attr, bytes.len()));
        self.present |= bit(attr);
        self.bytes.extend(bytes);
    }

    /// False for most attributes that are absent.
    fn may_have(&self, attr: SaAttr) -> bool {
        let bit = bit(attr);
        bit == 0 || self.present & bit != 0
    }

    /// Index of an attribute, and the range of its value.
    fn place(&self, attr: SaAttr) -> Option<(usize, Range<usize>)> {
        if !self.may_have(attr) {
            return None;
        }
        let mut start = 0;
        for (index, (other, len)) in self.values.iter().enumerate() {
            if other.num == attr.num {
                return Some((index, start..start + len));
            }
            start += len;
        }
        None
    }

    /// Decodes the (little-endian) bonus buffer of a file system older than version 5.
    pub fn decode_znode(bonus: &[u8]) -> Result<Self> {
        let (_, tail) = ZnodePhys::from_bonus(bonus).map_err(corrupt)?;
        let mut rest = bonus;
        let mut attrs = Self { tail: Some(tail.to_vec()), ..Self::new() };
        for (num, attr) in (0u16..16).zip(ZPL_ATTRS) {
            let (bytes, after) = rest.split_at_checked(attr.len.into()).unwrap_or_default();
            attrs.push(SaAttr { num, len: attr.len, byteswap: attr.byteswap }, bytes);
            rest = after;
        }
        Ok(attrs)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (SaAttr, &[u8])> {
        let mut start = 0;
        self.values.iter().map(move |(attr, len)| {
            let range = start..start + len;
            start = range.end;
            (*attr, self.bytes.get(range).unwrap_or_default())
        })
    }

    /// Bytes of all values.
    pub fn size(&self) -> usize {
        self.bytes.len().saturating_add(self.tail.as_ref().map_or(0, Vec::len))
    }

    /// Reads many of them.
    pub fn reader(&self) -> SaReader<'_> {
        SaReader { attrs: self, index: 0, start: 0 }
    }

    /// An attribute's bytes.
    #[doc(alias = "sa_lookup")]
    pub fn get(&self, attr: SaAttr) -> Option<&[u8]> {
        self.place(attr).and_then(|(_, range)| self.bytes.get(range))
    }

    /// An attribute's first word.
    pub fn word(&self, attr: SaAttr) -> Option<u64> {
        self.get(attr)?.first_chunk().map(|b| u64::from_le_bytes(*b))
    }

    /// Replaces an attribute's bytes in place, or adds it at the end.
    #[doc(alias = "sa_update")]
    pub fn set(&mut self, attr: SaAttr, bytes: impl AsRef<[u8]>) -> Result<()> {
        let bytes = bytes.as_ref();
        let fits = if attr.len == 0 { bytes.len() <= 0xffff } else { bytes.len() == usize::from(attr.len) };
        if !fits {
            return Err(Error::new(Kind::TooLong, format!("an attribute of {} bytes", bytes.len())));
        }
        match self.place(attr) {
            Some((_, range)) if range.len() == bytes.len() => {
                if let Some(place) = self.bytes.get_mut(range) {
                    place.copy_from_slice(bytes);
                }
            }
            Some((index, range)) => {
                if let Some((_, len)) = Arc::make_mut(&mut self.values).get_mut(index) {
                    *len = bytes.len();
                    self.bytes.replace(range, bytes);
                }
            }
            None if self.tail.is_some() => {
                return Err(Error::unsupported("files of a file system this old have no such attribute"));
            }
            None => self.push(attr, bytes),
        }
        Ok(())
    }

    /// [`Self::set`] of one word.
    pub fn set_word(&mut self, attr: SaAttr, word: u64) -> Result<()> {
        self.set(attr, word.to_le_bytes())
    }

    /// Removes an attribute; returns false if it is absent.
    #[doc(alias = "sa_remove")]
    pub fn remove(&mut self, attr: SaAttr) -> bool {
        let before = self.values.len();
        while let Some((index, range)) = self.place(attr).filter(|_| self.tail.is_none()) {
            Arc::make_mut(&mut self.values).remove(index);
            self.bytes.replace(range, &[]);
        }
        self.present = self.values.iter().fold(0, |bits, (attr, _)| bits | bit(*attr));
        self.values.len() < before
    }

    /// The bytes after an old znode in its bonus buffer (a link's target or a scan stamp); `None` for system
    /// attributes.
    pub fn znode_tail(&self) -> Option<&[u8]> {
        self.tail.as_deref()
    }

    /// Sets the bytes after an old znode.
    pub fn set_znode_tail(&mut self, tail: Vec<u8>) {
        self.tail = Some(tail);
    }

    /// Whether other attributes have the same places in a bonus buffer: the same attributes with values of the same lengths.
    pub fn has_layout_of(&self, other: &Self) -> bool {
        (Arc::ptr_eq(&self.values, &other.values) || self.values == other.values) && self.tail == other.tail
    }

    /// Puts the values into `bonus`, in place: it was built by [`SaAttrs::encode`] from attributes of the same layout, all of
    /// which it holds. Only the values in which these differ from `before` are written.
    pub fn patch(&self, before: &Self, bonus: &mut [u8]) {
        let header =
            if self.tail.is_some() { 0 } else { SaHeader::from_bytes(bonus).map_or(0, |h| h.size()) };
        let (mut to, mut new, mut old) = (header, &*self.bytes, &*before.bytes);
        for (_, len) in self.values.iter() {
            let (Some(news), Some(olds)) = (new.split_at_checked(*len), old.split_at_checked(*len)) else {
                return;
            };
            if self.tail.is_none() {
                to = to.next_multiple_of(8);
            }
            if differ(news.0, olds.0)
                && let Some(place) = bonus.get_mut(to..to + len)
            {
                place.copy_from_slice(news.0);
            }
            (new, old, to) = (news.1, olds.1, to + len);
        }
    }

    /// Builds the buffers. `space` is the dnode's capacity for a bonus without a spill pointer: its bytes less 192.
    /// The caller stores new layouts with [`SaTables::store`], in the same transaction.
    #[doc(alias = "sa_build_layouts")]
    pub fn encode(&self, tables: &mut SaTables, space: usize) -> Result<SaBuffers> {
        if let Some(tail) = &self.tail {
            let mut bonus = self.bytes.to_vec();
            bonus.extend_from_slice(tail);
            return Ok(SaBuffers { bonus, spill: None });
        }
        let values: Vec<SaValue<'_>> = self.iter().map(|(attr, bytes)| SaValue { attr, bytes }).collect();
        let split = SaSplit::of(&values, space).map_err(|e| Error::new(Kind::TooLong, e.to_string()))?;
        let at = split.spill_at.unwrap_or(values.len());
        let (in_bonus, in_spill) = values.split_at_checked(at).unwrap_or((&values, &[]));
        let bonus = buffer(tables, in_bonus, split.bonus_header, split.bonus_len)?;
        let spill = match split.spill_at {
            None => None,
            Some(_) => {
                let len = split.spill_len.next_multiple_of(512);
                Some(buffer(tables, in_spill, split.spill_header, len)?)
            }
        };
        Ok(SaBuffers { bonus, spill })
    }
}

/// The bit of an attribute in a set of numbers; 0 for one that has none.
fn bit(attr: SaAttr) -> u64 {
    1_u64.checked_shl(attr.num.into()).unwrap_or(0)
}

/// Whether values of the same length differ. Most are one word, whose comparison needs no call.
fn differ(a: &[u8], b: &[u8]) -> bool {
    match (<&[u8; 8]>::try_from(a), <&[u8; 8]>::try_from(b)) {
        (Ok(a), Ok(b)) => a != b,
        _ => a != b,
    }
}

fn buffer(tables: &mut SaTables, values: &[SaValue<'_>], header: usize, len: usize) -> Result<Vec<u8>> {
    let attrs: Vec<SaAttr> = values.iter().map(|v| v.attr).collect();
    Ok(encode(values, tables.number_of(&attrs)?, header, len))
}
