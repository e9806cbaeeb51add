//! Native form (`NV_ENCODE_NATIVE`, libnvpair's nvpair.c, OpenZFS 2.3): pairs as they lie in the memory of a 64-bit
//! machine, in its byte order, every part aligned to eight bytes, pointers zeroed.
//!
//! ```text
//! list:   version i32 (0) │ flags u32 │ pair … │ 0 i32
//! pair:   size i32 │ name size i16, NUL counted │ reserved i16 │ element count i32 │ type i32 │ name │ value
//! ```
//! A list as value is 24 bytes (version, flags, pointer, two unused words) inside the pair; its own pairs and the zero
//! follow behind the pair. An array of lists has a pointer for each, then the 24 bytes of each, and behind the pair
//! the contents of each. An array of strings has a pointer for each, then the strings with their NULs.

use crate::cursor::{Cursor, Result};
use crate::error::{DecodeErrorKind, EncodeError};
use crate::{Endian, MAX_DEPTH, NvFlags, NvList, NvString, NvType, NvValue};

/// Bytes of a list's head in memory.
#[doc(alias = "nvlist_t")]
pub(crate) const LIST_SIZE: usize = 24;
/// Bytes of a pair before its name.
#[doc(alias = "nvpair_t")]
const PAIR_SIZE: usize = 16;
const POINTER: u64 = 8;

type Encoded = std::result::Result<(), EncodeError>;

fn align8(n: usize) -> usize {
    n.next_multiple_of(8)
}

/// `nvp_size`: bytes that a pair takes in memory, the contents of lists inside it not counted.
pub(crate) fn pair_size(name: &NvString, value: &NvValue) -> std::result::Result<u32, EncodeError> {
    checked_size(name, align8(PAIR_SIZE + name_size(name)? as usize) + align8(value.memory_size()))
}

fn name_size(name: &NvString) -> std::result::Result<i16, EncodeError> {
    let len = name.as_bytes().len();
    i16::try_from(len + 1).map_err(|_| EncodeError::NameLength(len))
}

/// A size that the format's signed 32-bit fields can hold.
pub(crate) fn checked_size(name: &NvString, size: usize) -> std::result::Result<u32, EncodeError> {
    i32::try_from(size).map(|n| n as u32).map_err(|_| EncodeError::TooLarge(name.to_string()))
}

/// Refuses a string that C could not hold.
pub(crate) fn check_string(name: &NvString, text: &NvString) -> Encoded {
    if text.as_bytes().contains(&0) { Err(EncodeError::Nul(name.to_string())) } else { Ok(()) }
}

/// Reads a list's version, which is always 0.
pub(crate) fn check_version(
    cursor: &mut Cursor<'_>,
    get: impl Fn(&mut Cursor<'_>) -> Result<i32>,
) -> Result<()> {
    let start = cursor.clone();
    match get(cursor)? {
        0 => Ok(()),
        other => start.fail(DecodeErrorKind::Version(other)),
    }
}

/// Reads type and count in XDR's order, and refuses a count that the type can't have.
pub(crate) fn check_type<'a>(
    cursor: &mut Cursor<'a>,
    get_type: impl Fn(&mut Cursor<'a>) -> Result<i32>,
    get_count: impl Fn(&mut Cursor<'a>) -> Result<i32>,
) -> Result<(NvType, u64)> {
    let start = cursor.clone();
    let number = get_type(cursor)?;
    let count = i64::from(get_count(cursor)?);
    let Some(data_type) = NvType::from_number(number) else {
        return start.fail(DecodeErrorKind::Type(number));
    };
    if !data_type.allows_count(count) {
        return start.fail(DecodeErrorKind::Count { data_type: number, count });
    }
    Ok((data_type, count as u64))
}

/// A cursor with a byte order.
struct Reader<'a, 'c> {
    cursor: &'c mut Cursor<'a>,
    endian: Endian,
}

impl<'a> Reader<'a, '_> {
    /// The next `N` bytes, least significant first.
    fn little<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = self.cursor.array::<N>()?;
        if self.endian == Endian::Big {
            bytes.reverse();
        }
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.little()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.little()?))
    }

    fn i32(&mut self) -> Result<i32> {
        Ok(self.u32()? as i32)
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.little()?))
    }

    fn u8(&mut self) -> Result<u8> {
        let [byte] = self.cursor.array()?;
        Ok(byte)
    }

    /// A NUL-terminated string in the remaining bytes.
    fn c_string(&mut self) -> Result<NvString> {
        let start = self.cursor.clone();
        let rest = start.clone().take(start.remaining())?;
        let Some(len) = rest.iter().position(|&b| b == 0) else {
            return start.fail(DecodeErrorKind::String);
        };
        let text = self.cursor.take(len)?.into();
        self.cursor.take(1)?;
        Ok(text)
    }

    fn numbers<T>(&mut self, count: u64, unit: u64, get: fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let n = self.cursor.room_for(count, unit)?;
        (0..n).map(|_| get(self)).collect()
    }

    /// The 24 bytes of a list inside a pair; its contents come later.
    fn embedded_head(&mut self) -> Result<NvFlags> {
        let endian = self.endian;
        check_version(self.cursor, |c| Reader { cursor: c, endian }.i32())?;
        let flags = NvFlags(self.u32()?);
        self.cursor.take(LIST_SIZE - 8)?;
        Ok(flags)
    }
}

/// Decodes a list from its version field on.
pub(crate) fn decode(cursor: &mut Cursor<'_>, endian: Endian) -> Result<NvList> {
    let mut reader = Reader { cursor, endian };
    check_version(reader.cursor, |c| Reader { cursor: c, endian }.i32())?;
    let flags = NvFlags(reader.u32()?);
    decode_pairs(&mut reader, flags, 0)
}

fn decode_pairs(reader: &mut Reader<'_, '_>, flags: NvFlags, depth: u32) -> Result<NvList> {
    if depth >= MAX_DEPTH {
        return reader.cursor.fail(DecodeErrorKind::Depth);
    }
    let mut list = NvList::with_flags(flags);
    while let Some((name, value)) = decode_pair(reader, depth)? {
        list.push(name, value);
    }
    Ok(list)
}

/// Decodes a pair and the lists behind it, or the zero that ends a list.
fn decode_pair(reader: &mut Reader<'_, '_>, depth: u32) -> Result<Option<(NvString, NvValue)>> {
    let start = reader.cursor.clone();
    let size = reader.i32()?;
    if size == 0 {
        return Ok(None);
    }
    let body = usize::try_from(size).ok().and_then(|n| n.checked_sub(4));
    let Some(body) = body.filter(|_| size as usize >= PAIR_SIZE) else {
        return start.fail(DecodeErrorKind::Size(i64::from(size)));
    };
    let mut inner = reader.cursor.split(body)?;
    let mut pair = Reader { cursor: &mut inner, endian: reader.endian };
    let name_size = pair.u16()?;
    pair.u16()?;
    let count_at = pair.cursor.clone();
    pair.u32()?;
    let endian = reader.endian;
    let (data_type, count) = check_type(
        pair.cursor,
        |c| Reader { cursor: c, endian }.i32(),
        |_| Reader { cursor: &mut count_at.clone(), endian }.i32(),
    )?;
    let name = decode_name(&mut pair, usize::from(name_size))?;
    let value = decode_value(reader, &mut pair, data_type, count, depth)?;
    Ok(Some((name, value)))
}

/// The name, its NUL and the padding up to the value.
fn decode_name(pair: &mut Reader<'_, '_>, size: usize) -> Result<NvString> {
    let start = pair.cursor.clone();
    let bytes = pair.cursor.take(size)?;
    let Some((0, name)) = bytes.split_last() else {
        return start.fail(DecodeErrorKind::Name);
    };
    if name.contains(&0) {
        return start.fail(DecodeErrorKind::Name);
    }
    let padding = align8(PAIR_SIZE + size) - (PAIR_SIZE + size);
    pair.cursor.take(padding.min(pair.cursor.remaining()))?;
    Ok(name.into())
}

/// `outer` stands behind the pair, where the contents of lists are.
fn decode_value(
    outer: &mut Reader<'_, '_>,
    pair: &mut Reader<'_, '_>,
    data_type: NvType,
    count: u64,
    depth: u32,
) -> Result<NvValue> {
    Ok(match data_type {
        NvType::Boolean => NvValue::Boolean,
        NvType::Byte => NvValue::Byte(pair.u8()?),
        NvType::Int8 => NvValue::Int8(pair.u8()? as i8),
        NvType::Uint8 => NvValue::Uint8(pair.u8()?),
        NvType::Int16 => NvValue::Int16(pair.u16()? as i16),
        NvType::Uint16 => NvValue::Uint16(pair.u16()?),
        NvType::Int32 => NvValue::Int32(pair.i32()?),
        NvType::Uint32 => NvValue::Uint32(pair.u32()?),
        NvType::Int64 => NvValue::Int64(pair.u64()? as i64),
        NvType::Uint64 => NvValue::Uint64(pair.u64()?),
        NvType::Hrtime => NvValue::Hrtime(pair.u64()? as i64),
        NvType::Double => NvValue::Double(f64::from_bits(pair.u64()?)),
        NvType::BooleanValue => NvValue::BooleanValue(pair.u32()? != 0),
        NvType::String => NvValue::String(pair.c_string()?),
        NvType::List => {
            let flags = pair.embedded_head()?;
            NvValue::List(decode_pairs(outer, flags, depth + 1)?)
        }
        NvType::ListArray => NvValue::ListArray(decode_lists(outer, pair, count, depth)?),
        _ => decode_array(pair, data_type, count)?,
    })
}

fn decode_lists(
    outer: &mut Reader<'_, '_>,
    pair: &mut Reader<'_, '_>,
    count: u64,
    depth: u32,
) -> Result<Vec<NvList>> {
    let n = pair.cursor.room_for(count, POINTER + LIST_SIZE as u64)?;
    pair.cursor.take(n * POINTER as usize)?;
    (0..n).map(|_| decode_pairs(outer, pair.embedded_head()?, depth + 1)).collect()
}

fn decode_array(pair: &mut Reader<'_, '_>, data_type: NvType, count: u64) -> Result<NvValue> {
    Ok(match data_type {
        NvType::ByteArray => NvValue::ByteArray(pair.numbers(count, 1, Reader::u8)?),
        NvType::Uint8Array => NvValue::Uint8Array(pair.numbers(count, 1, Reader::u8)?),
        NvType::Int8Array => NvValue::Int8Array(pair.numbers(count, 1, |r| Ok(r.u8()? as i8))?),
        NvType::Int16Array => NvValue::Int16Array(pair.numbers(count, 2, |r| Ok(r.u16()? as i16))?),
        NvType::Uint16Array => NvValue::Uint16Array(pair.numbers(count, 2, Reader::u16)?),
        NvType::Int32Array => NvValue::Int32Array(pair.numbers(count, 4, Reader::i32)?),
        NvType::Uint32Array => NvValue::Uint32Array(pair.numbers(count, 4, Reader::u32)?),
        NvType::BooleanArray => NvValue::BooleanArray(pair.numbers(count, 4, |r| Ok(r.u32()? != 0))?),
        NvType::Int64Array => NvValue::Int64Array(pair.numbers(count, 8, |r| Ok(r.u64()? as i64))?),
        NvType::Uint64Array => NvValue::Uint64Array(pair.numbers(count, 8, Reader::u64)?),
        NvType::StringArray => {
            let n = pair.cursor.room_for(count, POINTER + 1)?;
            pair.cursor.take(n * POINTER as usize)?;
            NvValue::StringArray((0..n).map(|_| pair.c_string()).collect::<Result<_>>()?)
        }
        other => return pair.cursor.fail(DecodeErrorKind::Type(other as i32)),
    })
}

/// Appends a list from its version field on, little-endian.
pub(crate) fn encode(list: &NvList, out: &mut Vec<u8>) -> Encoded {
    put_head(list, out);
    encode_pairs(list, out, 0)
}

fn put_head(list: &NvList, out: &mut Vec<u8>) {
    out.extend_from_slice(&0i32.to_le_bytes());
    out.extend_from_slice(&list.flags().0.to_le_bytes());
}

fn put_embedded_head(list: &NvList, out: &mut Vec<u8>) {
    put_head(list, out);
    out.resize(out.len() + LIST_SIZE - 8, 0);
}

fn encode_pairs(list: &NvList, out: &mut Vec<u8>, depth: u32) -> Encoded {
    if depth >= MAX_DEPTH {
        return Err(EncodeError::Depth);
    }
    for pair in list {
        let start = out.len();
        let size = pair_size(&pair.name, &pair.value)?;
        check_string(&pair.name, &pair.name)?;
        out.extend_from_slice(&size.to_le_bytes());
        out.extend_from_slice(&name_size(&pair.name)?.to_le_bytes());
        out.extend_from_slice(&0i16.to_le_bytes());
        out.extend_from_slice(&(pair.value.element_count() as u32).to_le_bytes());
        out.extend_from_slice(&(pair.value.data_type() as u32).to_le_bytes());
        out.extend_from_slice(pair.name.as_bytes());
        out.resize(start + align8(PAIR_SIZE + pair.name.as_bytes().len() + 1), 0);
        encode_value(&pair.name, &pair.value, out)?;
        out.resize(start + size as usize, 0);
        match &pair.value {
            NvValue::List(inner) => encode_pairs(inner, out, depth + 1)?,
            NvValue::ListArray(lists) => lists.iter().try_for_each(|l| encode_pairs(l, out, depth + 1))?,
            _ => {}
        }
    }
    out.extend_from_slice(&0i32.to_le_bytes());
    Ok(())
}

fn put_all<T: Copy, const N: usize>(out: &mut Vec<u8>, values: &[T], bytes: impl Fn(T) -> [u8; N]) {
    values.iter().for_each(|&v| out.extend_from_slice(&bytes(v)));
}

fn put_pointers(out: &mut Vec<u8>, count: usize) {
    out.resize(out.len() + count * POINTER as usize, 0);
}

fn put_c_string(out: &mut Vec<u8>, name: &NvString, text: &NvString) -> Encoded {
    check_string(name, text)?;
    out.extend_from_slice(text.as_bytes());
    out.push(0);
    Ok(())
}

/// Appends the part of a value that lies inside its pair, without the final padding.
fn encode_value(name: &NvString, value: &NvValue, out: &mut Vec<u8>) -> Encoded {
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(v) | NvValue::Uint8(v) => out.push(*v),
        NvValue::Int8(v) => out.push(*v as u8),
        NvValue::Int16(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Uint16(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Int32(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Uint32(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::BooleanValue(v) => out.extend_from_slice(&u32::from(*v).to_le_bytes()),
        NvValue::Int64(v) | NvValue::Hrtime(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Uint64(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Double(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::String(v) => put_c_string(out, name, v)?,
        NvValue::List(v) => put_embedded_head(v, out),
        NvValue::ByteArray(v) | NvValue::Uint8Array(v) => out.extend_from_slice(v),
        NvValue::Int8Array(v) => put_all(out, v, i8::to_le_bytes),
        NvValue::Int16Array(v) => put_all(out, v, i16::to_le_bytes),
        NvValue::Uint16Array(v) => put_all(out, v, u16::to_le_bytes),
        NvValue::Int32Array(v) => put_all(out, v, i32::to_le_bytes),
        NvValue::Uint32Array(v) => put_all(out, v, u32::to_le_bytes),
        NvValue::BooleanArray(v) => put_all(out, v, |b| u32::from(b).to_le_bytes()),
        NvValue::Int64Array(v) => put_all(out, v, i64::to_le_bytes),
        NvValue::Uint64Array(v) => put_all(out, v, u64::to_le_bytes),
        NvValue::StringArray(v) => {
            put_pointers(out, v.len());
            v.iter().try_for_each(|s| put_c_string(out, name, s))?;
        }
        NvValue::ListArray(v) => {
            put_pointers(out, v.len());
            v.iter().for_each(|l| put_embedded_head(l, out));
        }
    }
    Ok(())
}
