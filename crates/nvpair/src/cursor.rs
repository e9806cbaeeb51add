//! A bounds-checked reader that knows its offset.

use crate::error::{DecodeError, DecodeErrorKind};

pub(crate) type Result<T> = std::result::Result<T, DecodeError>;

/// Reads forward through `bytes`; every failure names the offset of the field that failed.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, offset: 0 }
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn fail<T>(&self, kind: DecodeErrorKind) -> Result<T> {
        Err(DecodeError { offset: self.offset, kind })
    }

    /// The next `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let Some((head, tail)) = self.rest.split_at_checked(n) else {
            return self.fail(DecodeErrorKind::Truncated { need: n as u64, have: self.rest.len() as u64 });
        };
        self.rest = tail;
        self.offset += n;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, tail)) = self.rest.split_first_chunk::<N>() else {
            return self.fail(DecodeErrorKind::Truncated { need: N as u64, have: self.rest.len() as u64 });
        };
        self.rest = tail;
        self.offset += N;
        Ok(*head)
    }

    /// A reader limited to the next `n` bytes, which this one then has behind it.
    pub(crate) fn split(&mut self, n: usize) -> Result<Cursor<'a>> {
        let offset = self.offset;
        Ok(Cursor { rest: self.take(n)?, offset })
    }

    /// Fails unless `count` elements of at least `unit` bytes each can still follow.
    pub(crate) fn room_for(&self, count: u64, unit: u64) -> Result<usize> {
        let need = count.saturating_mul(unit);
        let have = self.rest.len() as u64;
        match usize::try_from(count) {
            Ok(n) if need <= have => Ok(n),
            _ => self.fail(DecodeErrorKind::Truncated { need, have }),
        }
    }
}
