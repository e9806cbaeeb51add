//! Parses the fields of a request in order.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The rest of a request. Each step returns `None` once the request is too short.
///
/// A request over io_uring comes in two pieces: the fields of its operation, then names and data. No field lies in
/// both.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a> {
    now: &'a [u8],
    after: &'a [u8],
}

impl<'a> Words<'a> {
    /// Two pieces; the second may be empty.
    pub fn new(now: &'a [u8], after: &'a [u8]) -> Self {
        Self { now, after }
    }

    fn piece(&mut self) -> &'a [u8] {
        if self.now.is_empty() {
            self.now = std::mem::take(&mut self.after);
        }
        self.now
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.piece().split_first_chunk()?;
        self.now = rest;
        Some(*field)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    /// The next 32 bits with a sign.
    pub fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_ne_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    /// The next 64 bits with a sign.
    pub fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_ne_bytes)
    }

    /// The next bytes up to a zero.
    pub fn name(&mut self) -> Option<&'a OsStr> {
        let piece = self.piece();
        let end = piece.iter().position(|byte| *byte == 0)?;
        let (name, rest) = piece.split_at_checked(end)?;
        self.now = rest.get(1..)?;
        Some(OsStr::from_bytes(name))
    }

    /// The given number of bytes.
    pub fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.piece().split_at_checked(usize::try_from(len).ok()?)?;
        self.now = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_from_both_pieces_and_from_neither_beyond_its_end() {
        let mut words = Words::new(&[1, 0, 0, 0], b"name\0rest");
        assert_eq!((words.u32(), words.name()), (Some(1), Some(OsStr::new("name"))));
        assert_eq!((words.bytes(5), words.bytes(4), words.u16()), (None, Some(&b"rest"[..]), None));
        // A field that would lie in both is none.
        assert_eq!(Words::new(&[1, 0], &[0, 0]).u32(), None);
        assert_eq!(Words::new(&[], &[7, 0]).u16(), Some(7));
    }
}
