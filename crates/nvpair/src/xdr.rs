//! XDR form (`NV_ENCODE_XDR`, libnvpair's nvpair.c, OpenZFS 2.3). All numbers big-endian, every field padded to four
//! bytes.
//!
//! ```text
//! list:   version i32 (0) │ flags u32 │ pair … │ 0 i32 │ 0 i32
//! pair:   encoded size i32 │ size in libnvpair's memory i32 │ name │ type i32 │ element count i32 │ value
//! name and string: length u32 │ bytes │ padding
//! ```
//! Numbers of up to 32 bits take four bytes, wider ones eight. Arrays of numbers repeat their count before the
//! elements, which take as many bytes as a scalar of their type; `ByteArray` is packed and has no count; arrays of
//! strings and lists have neither count nor frame. A list inside a list has no four-byte header.

use crate::cursor::{Cursor, Result};
use crate::error::{DecodeErrorKind, EncodeError};
use crate::{MAX_DEPTH, NvFlags, NvList, NvString, NvType, NvValue, native};

impl<'a> Cursor<'a> {
    fn be_u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn be_u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Bytes padded to a multiple of four.
    fn opaque(&mut self, n: usize) -> Result<&'a [u8]> {
        let bytes = self.take(n)?;
        self.take(n.wrapping_neg() % 4)?;
        Ok(bytes)
    }

    fn xdr_string(&mut self, bad: DecodeErrorKind) -> Result<NvString> {
        let start = self.clone();
        let len = self.be_u32()?;
        let len = self.room_for(u64::from(len), 1)?;
        let bytes = self.opaque(len)?;
        if bytes.contains(&0) {
            return start.fail(bad);
        }
        Ok(bytes.into())
    }
}

/// Decodes a list from its version field on.
pub(crate) fn decode(cursor: &mut Cursor<'_>, depth: u32) -> Result<NvList> {
    if depth >= MAX_DEPTH {
        return cursor.fail(DecodeErrorKind::Depth);
    }
    native::check_version(cursor, |c| Ok(c.be_u32()? as i32))?;
    let mut list = NvList::with_flags(NvFlags(cursor.be_u32()?));
    while let Some((name, value)) = decode_pair(cursor, depth)? {
        list.push(name, value);
    }
    Ok(list)
}

/// Decodes a pair, or the two zeros that end a list.
fn decode_pair(cursor: &mut Cursor<'_>, depth: u32) -> Result<Option<(NvString, NvValue)>> {
    let start = cursor.clone();
    let (encoded, decoded) = (cursor.be_u32()?, cursor.be_u32()?);
    if encoded == 0 && decoded == 0 {
        return Ok(None);
    }
    if encoded as usize > start.remaining() || encoded == 0 || decoded == 0 {
        return start.fail(DecodeErrorKind::Size(i64::from(encoded)));
    }
    let name = cursor.xdr_string(DecodeErrorKind::Name)?;
    let (data_type, count) =
        native::check_type(cursor, |c| Ok(c.be_u32()? as i32), |c| Ok(c.be_u32()? as i32))?;
    let value = decode_value(cursor, data_type, count, depth)?;
    Ok(Some((name, value)))
}

/// `count` numbers behind their repeated count.
fn numbers<'a, T>(
    cursor: &mut Cursor<'a>,
    count: u64,
    unit: u64,
    get: fn(&mut Cursor<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let start = cursor.clone();
    let again = u64::from(cursor.be_u32()?);
    if again != count {
        return start.fail(DecodeErrorKind::Truncated { need: count, have: again });
    }
    let n = cursor.room_for(count, unit)?;
    (0..n).map(|_| get(cursor)).collect()
}

fn decode_value(c: &mut Cursor<'_>, data_type: NvType, count: u64, depth: u32) -> Result<NvValue> {
    // Narrow numbers travel in 32 bits; writers differ in how they extend the sign, so only the low bits count.
    Ok(match data_type {
        NvType::Boolean => NvValue::Boolean,
        NvType::Byte => NvValue::Byte(c.be_u32()? as u8),
        NvType::Int8 => NvValue::Int8(c.be_u32()? as i8),
        NvType::Uint8 => NvValue::Uint8(c.be_u32()? as u8),
        NvType::Int16 => NvValue::Int16(c.be_u32()? as i16),
        NvType::Uint16 => NvValue::Uint16(c.be_u32()? as u16),
        NvType::Int32 => NvValue::Int32(c.be_u32()? as i32),
        NvType::Uint32 => NvValue::Uint32(c.be_u32()?),
        NvType::Int64 => NvValue::Int64(c.be_u64()? as i64),
        NvType::Uint64 => NvValue::Uint64(c.be_u64()?),
        NvType::Hrtime => NvValue::Hrtime(c.be_u64()? as i64),
        NvType::Double => NvValue::Double(f64::from_bits(c.be_u64()?)),
        NvType::BooleanValue => NvValue::BooleanValue(c.be_u32()? != 0),
        NvType::String => NvValue::String(c.xdr_string(DecodeErrorKind::String)?),
        NvType::List => NvValue::List(decode(c, depth + 1)?),
        _ => decode_array(c, data_type, count, depth)?,
    })
}

fn decode_array(c: &mut Cursor<'_>, data_type: NvType, count: u64, depth: u32) -> Result<NvValue> {
    Ok(match data_type {
        NvType::Int8Array => NvValue::Int8Array(numbers(c, count, 4, |c| Ok(c.be_u32()? as i8))?),
        NvType::Uint8Array => NvValue::Uint8Array(numbers(c, count, 4, |c| Ok(c.be_u32()? as u8))?),
        NvType::Int16Array => NvValue::Int16Array(numbers(c, count, 4, |c| Ok(c.be_u32()? as i16))?),
        NvType::Uint16Array => NvValue::Uint16Array(numbers(c, count, 4, |c| Ok(c.be_u32()? as u16))?),
        NvType::Int32Array => NvValue::Int32Array(numbers(c, count, 4, |c| Ok(c.be_u32()? as i32))?),
        NvType::Uint32Array => NvValue::Uint32Array(numbers(c, count, 4, Cursor::be_u32)?),
        NvType::BooleanArray => NvValue::BooleanArray(numbers(c, count, 4, |c| Ok(c.be_u32()? != 0))?),
        NvType::Int64Array => NvValue::Int64Array(numbers(c, count, 8, |c| Ok(c.be_u64()? as i64))?),
        NvType::Uint64Array => NvValue::Uint64Array(numbers(c, count, 8, Cursor::be_u64)?),
        NvType::ByteArray => {
            let n = c.room_for(count, 1)?;
            NvValue::ByteArray(c.opaque(n)?.into())
        }
        NvType::StringArray => {
            let n = c.room_for(count, 4)?;
            NvValue::StringArray(
                (0..n).map(|_| c.xdr_string(DecodeErrorKind::String)).collect::<Result<_>>()?,
            )
        }
        NvType::ListArray => {
            let n = c.room_for(count, 16)?;
            NvValue::ListArray((0..n).map(|_| decode(c, depth + 1)).collect::<Result<_>>()?)
        }
        other => return c.fail(DecodeErrorKind::Type(other as i32)),
    })
}

/// Appends a list from its version field on.
pub(crate) fn encode(list: &NvList, out: &mut Vec<u8>, depth: u32) -> std::result::Result<(), EncodeError> {
    if depth >= MAX_DEPTH {
        return Err(EncodeError::Depth);
    }
    put(out, 0);
    put(out, list.flags().0);
    for pair in list {
        let start = out.len();
        let memory = native::pair_size(&pair.name, &pair.value)?;
        put(out, 0);
        put(out, memory);
        put_string(out, &pair.name, &pair.name)?;
        put(out, pair.value.data_type() as u32);
        put(out, pair.value.element_count() as u32);
        encode_value(&pair.name, &pair.value, out, depth)?;
        let size = native::checked_size(&pair.name, out.len() - start)?;
        if let Some(field) = out.get_mut(start..).and_then(|pair| pair.first_chunk_mut()) {
            *field = size.to_be_bytes();
        }
    }
    put(out, 0);
    put(out, 0);
    Ok(())
}

fn put(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + bytes.len().wrapping_neg() % 4, 0);
}

fn put_string(out: &mut Vec<u8>, name: &NvString, text: &NvString) -> std::result::Result<(), EncodeError> {
    native::check_string(name, text)?;
    put(out, native::checked_size(name, text.as_bytes().len())?);
    put_opaque(out, text.as_bytes());
    Ok(())
}

fn put_numbers<T: Copy>(out: &mut Vec<u8>, values: &[T], put_one: impl Fn(&mut Vec<u8>, T)) {
    put(out, values.len() as u32);
    values.iter().for_each(|&v| put_one(out, v));
}

fn encode_value(
    name: &NvString,
    value: &NvValue,
    out: &mut Vec<u8>,
    depth: u32,
) -> std::result::Result<(), EncodeError> {
    // Narrow numbers are extended with zeros: the kernel's decoder refuses set upper bits.
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(v) | NvValue::Uint8(v) => put(out, u32::from(*v)),
        NvValue::Int8(v) => put(out, u32::from(*v as u8)),
        NvValue::Int16(v) => put(out, u32::from(*v as u16)),
        NvValue::Uint16(v) => put(out, u32::from(*v)),
        NvValue::Int32(v) => put(out, *v as u32),
        NvValue::Uint32(v) => put(out, *v),
        NvValue::BooleanValue(v) => put(out, u32::from(*v)),
        NvValue::Int64(v) | NvValue::Hrtime(v) => put_u64(out, *v as u64),
        NvValue::Uint64(v) => put_u64(out, *v),
        NvValue::Double(v) => put_u64(out, v.to_bits()),
        NvValue::String(v) => put_string(out, name, v)?,
        NvValue::List(v) => encode(v, out, depth + 1)?,
        NvValue::ByteArray(v) => put_opaque(out, v),
        NvValue::Int8Array(v) => put_numbers(out, v, |o, v| put(o, u32::from(v as u8))),
        NvValue::Uint8Array(v) => put_numbers(out, v, |o, v| put(o, u32::from(v))),
        NvValue::Int16Array(v) => put_numbers(out, v, |o, v| put(o, u32::from(v as u16))),
        NvValue::Uint16Array(v) => put_numbers(out, v, |o, v| put(o, u32::from(v))),
        NvValue::Int32Array(v) => put_numbers(out, v, |o, v| put(o, v as u32)),
        NvValue::Uint32Array(v) => put_numbers(out, v, put),
        NvValue::BooleanArray(v) => put_numbers(out, v, |o, v| put(o, u32::from(v))),
        NvValue::Int64Array(v) => put_numbers(out, v, |o, v| put_u64(o, v as u64)),
        NvValue::Uint64Array(v) => put_numbers(out, v, put_u64),
        NvValue::StringArray(v) => v.iter().try_for_each(|s| put_string(out, name, s))?,
        NvValue::ListArray(v) => v.iter().try_for_each(|l| encode(l, out, depth + 1))?,
    }
    Ok(())
}
