//! Zero-length encoding: a count byte, then literals or nothing.
//!
//! Counts below 64 announce count + 1 literal bytes; counts from 64 on stand for count - 63 zeros.

use crate::DecompressError;

/// Count bytes below this announce literals; ZFS's tables give zle the parameter 64.
const LITERALS: usize = 64;
/// The longest run of zeros that one byte can stand for.
const MAX_ZEROS: usize = 256 - LITERALS;

pub(crate) fn decompress(mut src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let mut room = dst;
    while !room.is_empty() {
        let (count, rest) = src.split_first().ok_or(DecompressError::Truncated)?;
        src = rest;
        let count = usize::from(*count) + 1;
        if count <= LITERALS {
            let (literals, rest) = src.split_at_checked(count).ok_or(DecompressError::Truncated)?;
            src = rest;
            take(&mut room, count)?.copy_from_slice(literals);
        } else {
            take(&mut room, count - LITERALS)?.fill(0);
        }
    }
    Ok(())
}

/// Splits `len` bytes off the front of the unfilled output.
fn take<'a>(room: &mut &'a mut [u8], len: usize) -> Result<&'a mut [u8], DecompressError> {
    room.split_off_mut(..len).ok_or(DecompressError::WrongLength)
}

pub(crate) fn compress(mut src: &[u8], capacity: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(capacity);
    while let Some(first) = src.first() {
        let len = if *first == 0 { zero_run(src) } else { literal_run(src) };
        let (run, rest) = src.split_at_checked(len)?;
        src = rest;
        if *first == 0 {
            out.push(u8::try_from(len - 1 + LITERALS).ok()?);
        } else {
            out.push(u8::try_from(len - 1).ok()?);
            out.extend_from_slice(run);
        }
        if out.len() > capacity {
            return None;
        }
    }
    Some(out)
}

fn zero_run(src: &[u8]) -> usize {
    src.iter().take(MAX_ZEROS).take_while(|byte| **byte == 0).count()
}

/// Literals last until two zeros follow each other; a single zero costs less as a literal.
fn literal_run(src: &[u8]) -> usize {
    let limit = src.len().min(LITERALS);
    let pairs = src.iter().zip(src.iter().skip(1)).take(limit - 1);
    let len = pairs.take_while(|(byte, next)| (**byte | **next) != 0).count();
    let last_counts = src.get(len).is_some_and(|byte| *byte != 0);
    len + usize::from(last_counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_by_hand() {
        let mut plain = vec![1, 2, 0, 3];
        plain.extend([0; 200]);
        plain.push(9);
        let packed = compress(&plain, 100).unwrap();
        assert_eq!(packed, [3, 1, 2, 0, 3, 255, 71, 0, 9]);
        let mut back = vec![0xee; plain.len()];
        decompress(&packed, &mut back).unwrap();
        assert_eq!(back, plain);
    }

    #[test]
    fn a_run_past_the_end_is_refused() {
        assert_eq!(decompress(&[255], &mut [0; 100]), Err(DecompressError::WrongLength));
        assert_eq!(decompress(&[63, 1, 2], &mut [0; 100]), Err(DecompressError::Truncated));
        assert_eq!(decompress(&[255, 255], &mut [0; 500]), Err(DecompressError::Truncated));
    }
}
