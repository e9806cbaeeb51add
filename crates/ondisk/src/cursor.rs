//! A bounds-checked reader over bytes of either byte order.

use crate::Malformed;

/// The byte order of a block, a label or a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// The other order.
    pub fn flipped(self) -> Self {
        match self {
            Endian::Little => Endian::Big,
            Endian::Big => Endian::Little,
        }
    }
}

/// Reads integers and byte runs in sequence; every step is checked and errors name the structure.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    what: &'static str,
    bytes: &'a [u8],
    pos: usize,
    endian: Endian,
}

impl<'a> Cursor<'a> {
    /// A little-endian cursor at the start of `bytes`; `what` names the structure in errors.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self::with_endian(what, bytes, Endian::Little)
    }

    /// A cursor that decodes integers in `endian` order.
    pub fn with_endian(what: &'static str, bytes: &'a [u8], endian: Endian) -> Self {
        Self { what, bytes, pos: 0, endian }
    }

    /// Bytes consumed so far.
    pub fn position(&self) -> usize {
        self.pos
    }

    /// The order integers are decoded in.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Bytes not consumed yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.pos)
    }

    /// Everything not consumed yet, without consuming it.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.pos..).unwrap_or(&[])
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, _) = self.rest().split_at_checked(len).ok_or_else(|| {
            Malformed::new(self.what, format!("ends {} bytes early", len.saturating_sub(self.remaining())))
        })?;
        self.pos += len;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// Passes over `len` bytes.
    pub fn skip(&mut self, len: usize) -> Result<(), Malformed> {
        self.bytes(len).map(drop)
    }

    /// Moves to the next multiple of `align` (a power of two) from the start, if that much is left.
    pub fn align(&mut self, align: usize) -> Result<(), Malformed> {
        self.skip(self.pos.next_multiple_of(align) - self.pos)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[b]| b)
    }

    /// A 16-bit integer.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        let raw = self.array()?;
        Ok(match self.endian {
            Endian::Little => u16::from_le_bytes(raw),
            Endian::Big => u16::from_be_bytes(raw),
        })
    }

    /// A 32-bit integer.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        let raw = self.array()?;
        Ok(match self.endian {
            Endian::Little => u32::from_le_bytes(raw),
            Endian::Big => u32::from_be_bytes(raw),
        })
    }

    /// A 64-bit integer.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        let raw = self.array()?;
        Ok(match self.endian {
            Endian::Little => u64::from_le_bytes(raw),
            Endian::Big => u64::from_be_bytes(raw),
        })
    }

    /// `N` 64-bit integers.
    pub fn u64s<const N: usize>(&mut self) -> Result<[u64; N], Malformed> {
        let raw = self.bytes(N * size_of::<u64>())?;
        let mut out = [0; N];
        for (word, raw) in out.iter_mut().zip(raw.as_chunks().0) {
            *word = match self.endian {
                Endian::Little => u64::from_le_bytes(*raw),
                Endian::Big => u64::from_be_bytes(*raw),
            };
        }
        Ok(out)
    }

    /// Bytes up to a NUL, which is consumed and not returned.
    pub fn c_str(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self
            .rest()
            .iter()
            .position(|&b| b == 0)
            .ok_or_else(|| Malformed::new(self.what, "string without its NUL"))?;
        let text = self.bytes(len)?;
        self.skip(1)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_orders_and_stops_at_the_end() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, b'a', 0];
        let mut le = Cursor::new("test", &bytes);
        assert_eq!(le.u64().unwrap(), 0x0807_0605_0403_0201);
        assert_eq!(le.c_str().unwrap(), b"a");
        assert!(le.u8().is_err());
        let mut be = Cursor::with_endian("test", &bytes, Endian::Big);
        assert_eq!(be.u32().unwrap(), 0x0102_0304);
        assert!(be.bytes(usize::MAX).is_err());
    }
}
