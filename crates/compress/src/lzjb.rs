//! LZJB: a control byte for each eight items, lowest bit first; a clear bit is a literal byte, a set
//! bit a two-byte match of 3 to 66 bytes, up to 1023 back: `llllll oo oooooooo`, big-endian.
//!
//! Differs from OpenZFS: a match at distance 0 is refused (there it copies whatever the buffer held).

use crate::DecompressError;

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = MATCH_MIN + 63;
const DISTANCE_MASK: usize = 1023;
/// Items that share a control byte, and the most bytes that they take.
const ITEMS: usize = 8;
const GROUP_MAX: usize = 1 + 2 * ITEMS;
/// Slots in the encoder's table of earlier positions.
const TABLE: usize = 1024;
/// Bytes that a match copies at a time; matches this short or shorter are the rule.
const STRIDE: usize = 16;

pub(crate) fn decompress(mut src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let mut at = 0;
    while at < dst.len() {
        let (control, rest) = src.split_first().ok_or(DecompressError::Truncated)?;
        src = rest;
        if *control == 0
            && let (Some((literals, rest)), Some(room)) =
                (src.split_first_chunk::<ITEMS>(), dst.get_mut(at..at + ITEMS))
        {
            room.copy_from_slice(literals);
            src = rest;
            at += ITEMS;
            continue;
        }
        for item in 0..ITEMS {
            if at >= dst.len() {
                break;
            }
            if control >> item & 1 == 0 {
                let (literal, rest) = src.split_first().ok_or(DecompressError::Truncated)?;
                src = rest;
                if let Some(byte) = dst.get_mut(at) {
                    *byte = *literal;
                }
                at += 1;
            } else {
                let (pair, rest) = src.split_first_chunk::<2>().ok_or(DecompressError::Truncated)?;
                src = rest;
                let distance = usize::from(u16::from_be_bytes(*pair)) & DISTANCE_MASK;
                let len = usize::from(pair[0] >> 2) + MATCH_MIN;
                at += copy_match(dst, at, distance, len).ok_or(DecompressError::Corrupt)?;
            }
        }
    }
    Ok(())
}

/// Repeats `len` bytes from `distance` before `at`, cut at the end of `dst`; the number of bytes copied.
#[inline]
fn copy_match(dst: &mut [u8], at: usize, distance: usize, len: usize) -> Option<usize> {
    let start = at.checked_sub(distance).filter(|_| distance > 0)?;
    let window = dst.get_mut(start..)?;
    if distance >= STRIDE && window.len() >= distance + MATCH_MAX + STRIDE {
        // Each step may copy past the match: into bytes that the next items will set.
        let mut from = 0;
        while from < len {
            window.copy_within(from..from + STRIDE, from + distance);
            from += STRIDE;
        }
        return Some(len);
    }
    let len = len.min(window.len() - distance);
    for i in 0..len {
        let byte = *window.get(i)?;
        *window.get_mut(i + distance)? = byte;
    }
    Some(len)
}

/// Returns the bytes that OpenZFS produces for a block that starts on a kilobyte.
pub(crate) fn compress(src: &[u8], capacity: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(capacity);
    let mut table = [0u16; TABLE];
    let mut at = 0;
    while at < src.len() {
        if out.len() + GROUP_MAX > capacity {
            return None;
        }
        let mut group = [0; GROUP_MAX];
        let (control, mut room) = group.split_first_mut()?;
        let mut used = 1;
        for item in 0..ITEMS {
            let Some(literal) = src.get(at) else { break };
            let matched = find_match(src, at, &mut table);
            let size = if matched.is_some() { 2 } else { 1 };
            let to = room.split_off_mut(..size)?;
            used += size;
            if let Some((distance, len)) = matched {
                *control |= 1 << item;
                let pair = (len - MATCH_MIN) << 10 | distance;
                to.copy_from_slice(&(pair as u16).to_be_bytes());
                at += len;
            } else {
                *to.first_mut()? = *literal;
                at += 1;
            }
        }
        out.extend_from_slice(group.get(..used)?);
    }
    Some(out)
}

/// The match that the table remembers for the three bytes at `at`, as distance and length; notes `at`.
///
/// Positions wrap at 64 Ki and distances at 1 Ki: the table's entry is a guess, the bytes decide.
#[inline]
fn find_match(src: &[u8], at: usize, table: &mut [u16; TABLE]) -> Option<(usize, usize)> {
    let ahead = src.get(at..)?.first_chunk::<MATCH_MAX>()?;
    let [a, b, c] = *ahead.first_chunk::<MATCH_MIN>()?;
    let mut hash = u32::from_be_bytes([0, a, b, c]);
    hash = hash.wrapping_add(hash >> 9);
    hash = hash.wrapping_add(hash >> 5);
    let slot = table.get_mut(hash as usize & (TABLE - 1))?;
    let distance = at.wrapping_sub(usize::from(*slot)) & DISTANCE_MASK;
    *slot = at as u16;
    let earlier = src.get(at.checked_sub(distance)?..)?.first_chunk::<MATCH_MAX>()?;
    if distance == 0 || earlier.first_chunk::<MATCH_MIN>() != Some(&[a, b, c]) {
        return None;
    }
    let len = ahead.iter().zip(earlier).take_while(|(new, old)| new == old).count();
    Some((distance, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_by_hand() {
        // "abc", then 7 bytes from 3 back: the match overlaps itself and crosses the end.
        let packed = [0b1000, b'a', b'b', b'c', (7 - 3) << 2, 3];
        let mut out = [0; 10];
        decompress(&packed, &mut out).unwrap();
        assert_eq!(&out, b"abcabcabca");
        let mut out = [0; 5];
        decompress(&packed, &mut out).unwrap();
        assert_eq!(&out, b"abcab");
    }

    #[test]
    fn matches_before_the_start_are_refused() {
        assert_eq!(decompress(&[0b10, b'a', 0, 2], &mut [0; 8]), Err(DecompressError::Corrupt));
        assert_eq!(decompress(&[0b10, b'a', 0, 0], &mut [0; 8]), Err(DecompressError::Corrupt));
        assert_eq!(decompress(&[0b10, b'a', 0], &mut [0; 8]), Err(DecompressError::Truncated));
    }
}
