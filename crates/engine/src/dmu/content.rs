//! The bytes of an object up to a size: shared by files and volumes.

use std::ops::Range;

use stdx::{AlignedBuf, Buf};

use super::prefetch::SharedPrefetch;
use super::{Blocks, Object, Passes};
use crate::error::{Error, Result};

/// Maximum zeros returned at once for a hole.
const ZERO_CHUNK: u64 = 128 << 10;

/// A run of bytes that could not be read.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// The bytes.
    pub range: Range<u64>,
    /// The reason.
    pub error: Error,
}

/// The kind of a run of bytes.
#[derive(Debug, Clone)]
pub enum Span {
    /// Stored.
    Data(Range<u64>),
    /// Not stored: zeros.
    Hole(Range<u64>),
    /// Unknown, because the blocks with this information are unreadable.
    Unreadable(Unreadable),
}

impl Span {
    /// The bytes it covers.
    pub fn range(&self) -> Range<u64> {
        match self {
            Self::Data(range) | Self::Hole(range) => range.clone(),
            Self::Unreadable(u) => u.range.clone(),
        }
    }
}

/// The first `size` bytes of an object.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    object: &'a Object,
    size: u64,
}

impl<'a> Content<'a> {
    /// The first `size` bytes of `object`; bytes past its last block are zeros.
    pub fn new(object: &'a Object, size: u64) -> Self {
        Self { object, size }
    }

    fn block_size(&self) -> u64 {
        self.object.dnode.datablksz().max(1)
    }

    /// Fills `out` from `offset`; returns the number of bytes before the end.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let out = self.within(offset, out);
        self.object.read_at(offset, out).map_err(|e| self.at(e, offset))?;
        Ok(out.len())
    }

    /// Starts reading the bytes that the readers are expected to need after `[offset, offset + len)`. `paged`: they pass the
    /// bytes on to the system's page cache. Returns true if that range continues a stream.
    pub fn read_ahead(&self, readers: &SharedPrefetch, offset: u64, len: usize, paged: bool) -> bool {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        readers.observe(self.object, self.size, (offset, len), paged)
    }

    /// The bytes that [`Content::read_at`] would fill `len` bytes with, without copying them: one window for each block.
    pub fn pieces(&self, offset: u64, len: usize, passes: Passes) -> Result<Vec<Buf>> {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        self.object.pieces(offset, left.min(len), passes).map_err(|e| self.at(e, offset))
    }

    /// Like [`Content::read_at`], but continues past unreadable ranges: those are zeros in `out` and listed.
    pub fn read_lossy(&self, offset: u64, out: &mut [u8]) -> (usize, Vec<Unreadable>) {
        let size = self.block_size();
        let out = self.within(offset, out);
        let len = out.len();
        let mut bad: Vec<Unreadable> = Vec::new();
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let take = usize::try_from(size - at % size).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(take);
            let end = at.saturating_add(u64::try_from(take).unwrap_or(0));
            if let Err(e) = self.object.read_at(at, now) {
                now.fill(0);
                note(&mut bad, Unreadable { range: at..end, error: self.at(e, at) });
            }
            (at, rest) = (end, later);
        }
        (len, bad)
    }

    /// A window of at most `max` bytes from `offset`, without copying: it ends at the end of a block.
    /// Empty at the end.
    pub fn chunk(&self, offset: u64, max: usize) -> Result<Buf> {
        let left = self.size.saturating_sub(offset).min(u64::try_from(max).unwrap_or(u64::MAX));
        if left == 0 {
            return Ok(Buf::empty());
        }
        let size = self.block_size();
        let (blkid, skip) = (offset / size, offset % size);
        let left = left.min(size - skip);
        let stored = blkid <= self.object.dnode.maxblkid
            && self.object.is_stored(blkid).map_err(|e| self.at(e, offset))?;
        if !stored {
            let zeros = usize::try_from(left.min(ZERO_CHUNK)).unwrap_or(0);
            return Ok(AlignedBuf::zeroed(zeros).into());
        }
        let block = self.object.block(blkid).map_err(|e| self.at(e, offset))?;
        let start = usize::try_from(skip).unwrap_or(usize::MAX);
        let window = block.slice(start..start.saturating_add(usize::try_from(left).unwrap_or(0)));
        match window.is_empty() {
            true => Err(self.at(Error::corrupt("data block is too short"), offset)),
            false => Ok(window),
        }
    }

    /// The span that starts at `offset`; it ends at `end` or at the end of the bytes at the latest.
    /// `None` at the end.
    pub fn span(&self, offset: u64, end: u64) -> Option<Span> {
        let end = end.min(self.size);
        if offset >= end {
            return None;
        }
        let size = self.block_size();
        let blkid = offset / size;
        let past = |block: u64| block.saturating_mul(size).min(end);
        let mut blocks = Blocks::new(self.object);
        Some(match blocks.next_from(blkid) {
            Ok(None) => Span::Hole(offset..end),
            Ok(Some(next)) if next > blkid => Span::Hole(offset..past(next)),
            Ok(Some(_)) => Span::Data(offset..past(self.run_end(&mut blocks, blkid, end))),
            Err((resume, e)) => {
                let range = offset..resume.map_or(end, past).max(offset + 1);
                Span::Unreadable(Unreadable { range, error: self.at(e, offset) })
            }
        })
    }

    /// One past the last of the stored blocks that follow `first` without a gap.
    fn run_end(&self, blocks: &mut Blocks<'_>, first: u64, end: u64) -> u64 {
        let size = self.block_size();
        let mut next = first.saturating_add(1);
        while next.saturating_mul(size) < end && blocks.next_from(next).is_ok_and(|n| n == Some(next)) {
            next += 1;
        }
        next
    }

    /// The part of `out` that lies before the end.
    fn within<'b>(&self, offset: u64, out: &'b mut [u8]) -> &'b mut [u8] {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let take = left.min(out.len());
        out.split_at_mut(take).0
    }

    fn at(&self, e: Error, offset: u64) -> Error {
        e.at_block(self.object.bookmark()).at_offset(offset)
    }
}

/// Adds a range, merged with the previous one if it continues it.
pub fn note(bad: &mut Vec<Unreadable>, next: Unreadable) {
    match bad.last_mut() {
        Some(last) if last.range.end == next.range.start && last.error.kind() == next.error.kind() => {
            last.range.end = next.range.end;
        }
        _ => bad.push(next),
    }
}
