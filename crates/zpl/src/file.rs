//! File data: reads, holes, and damage named by range.

use std::ops::Range;

use engine::dmu::prefetch::Prefetch;
use engine::{Error, Kind, Result};
use stdx::{AlignedBuf, Buf};

use crate::attr::FileKind;
use crate::inode::Inode;

/// Most zeros that are handed out at once for a hole.
const ZERO_CHUNK: u64 = 128 << 10;

/// A run of bytes of a file that could not be read.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// Which bytes.
    pub range: Range<u64>,
    /// Why.
    pub error: Error,
}

/// What a run of a file's bytes is.
#[derive(Debug, Clone)]
pub enum Extent {
    /// Stored.
    Data(Range<u64>),
    /// Not stored: zeros.
    Hole(Range<u64>),
    /// Not known, because the blocks that would say so can't be read.
    Unreadable(Unreadable),
}

impl Extent {
    /// The bytes it covers.
    pub fn range(&self) -> Range<u64> {
        match self {
            Self::Data(range) | Self::Hole(range) => range.clone(),
            Self::Unreadable(u) => u.range.clone(),
        }
    }
}

impl Inode {
    fn check_regular(&self) -> Result<()> {
        match self.attr.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(self.error(Kind::IsDirectory, "is a directory")),
            _ => Err(self.error(Kind::Invalid, "not a regular file")),
        }
    }

    fn block_size(&self) -> u64 {
        self.object.dnode.datablksz().max(1)
    }

    /// Fills `out` from `offset`; how many bytes there were before the end of the file.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.check_regular()?;
        let out = self.within(offset, out);
        self.object.read_at(offset, out).map_err(|e| self.at(e, offset))?;
        Ok(out.len())
    }

    /// As [`Inode::read_at`], but carries on past what can't be read: those ranges are zeros in `out`
    /// and listed.
    pub fn read_lossy(&self, offset: u64, out: &mut [u8]) -> Result<(usize, Vec<Unreadable>)> {
        self.check_regular()?;
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
                note(&mut bad, at..end, self.at(e, at));
            }
            (at, rest) = (end, later);
        }
        Ok((len, bad))
    }

    /// A window of at most `max` bytes from `offset`, without copying: it ends at the end of a block.
    /// Empty at the end of the file.
    pub fn chunk(&self, offset: u64, max: usize) -> Result<Buf> {
        self.check_regular()?;
        let left = self.attr.size.saturating_sub(offset).min(u64::try_from(max).unwrap_or(u64::MAX));
        if left == 0 {
            return Ok(Buf::empty());
        }
        let size = self.block_size();
        let (blkid, skip) = (offset / size, offset % size);
        let left = left.min(size - skip);
        let pointer = self.object.blkptr(0, blkid).map_err(|e| self.at(e, offset))?;
        if blkid > self.object.dnode.maxblkid || pointer.is_none() {
            let zeros = usize::try_from(left.min(ZERO_CHUNK)).unwrap_or(0);
            return Ok(AlignedBuf::zeroed(zeros).into());
        }
        let block = self.object.block(blkid).map_err(|e| self.at(e, offset))?;
        let start = usize::try_from(skip).unwrap_or(usize::MAX);
        Ok(block.slice(start..start.saturating_add(usize::try_from(left).unwrap_or(0))))
    }

    /// The extent that starts at `offset`; it ends at `end` or the end of the file at the latest.
    /// `None` at the end.
    pub fn extent(&self, offset: u64, end: u64) -> Option<Extent> {
        let end = end.min(self.attr.size);
        if offset >= end {
            return None;
        }
        let size = self.block_size();
        let blkid = offset / size;
        let past = |block: u64| block.saturating_mul(size).min(end);
        Some(match self.object.next_block(blkid) {
            Ok(None) => Extent::Hole(offset..end),
            Ok(Some(next)) if next > blkid => Extent::Hole(offset..past(next)),
            Ok(Some(_)) => Extent::Data(offset..past(self.run_end(blkid, end))),
            Err((resume, e)) => {
                let range = offset..resume.map_or(end, past).max(offset + 1);
                Extent::Unreadable(Unreadable { range, error: self.at(e, offset) })
            }
        })
    }

    /// One past the last of the stored blocks that follow `first` without a gap.
    fn run_end(&self, first: u64, end: u64) -> u64 {
        let size = self.block_size();
        let mut next = first.saturating_add(1);
        while next.saturating_mul(size) < end && self.object.next_block(next).is_ok_and(|n| n == Some(next)) {
            next += 1;
        }
        next
    }

    /// The first byte at or after `offset` that is stored (`SEEK_DATA`); `None` when only a hole follows.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        match self.extent(offset, u64::MAX) {
            None => Ok(None),
            Some(Extent::Data(_)) => Ok(Some(offset)),
            Some(Extent::Hole(hole)) => Ok((hole.end < self.attr.size).then_some(hole.end)),
            Some(Extent::Unreadable(u)) => Err(u.error),
        }
    }

    /// The first byte at or after `offset` in a hole (`SEEK_HOLE`); the end of the file counts as one.
    pub fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        match self.extent(offset, u64::MAX) {
            None => Ok(None),
            Some(Extent::Hole(_)) => Ok(Some(offset)),
            Some(Extent::Data(data)) => Ok(Some(data.end)),
            Some(Extent::Unreadable(u)) => Err(u.error),
        }
    }

    /// The part of `out` that lies before the end of the file.
    fn within<'a>(&self, offset: u64, out: &'a mut [u8]) -> &'a mut [u8] {
        let left = usize::try_from(self.attr.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let take = left.min(out.len());
        out.split_at_mut(take).0
    }

    fn at(&self, e: Error, offset: u64) -> Error {
        self.fs.place(e.at_offset(offset), self.number)
    }
}

/// Adds a range, joined to the one before when it goes on.
fn note(bad: &mut Vec<Unreadable>, range: Range<u64>, error: Error) {
    match bad.last_mut() {
        Some(last) if last.range.end == range.start && last.error.kind() == error.kind() => {
            last.range.end = range.end;
        }
        _ => bad.push(Unreadable { range, error }),
    }
}

/// A reader of one file that reads ahead when it is read in sequence.
#[derive(Debug, Clone)]
pub struct Reader {
    inode: Inode,
    prefetch: Prefetch,
}

impl Reader {
    /// A reader of `inode`.
    pub fn new(inode: &Inode) -> Self {
        Self { inode: inode.clone(), prefetch: Prefetch::default() }
    }

    /// The file.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    fn observe(&mut self, offset: u64, len: usize) {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        self.prefetch.observe(&self.inode.object, offset, len);
    }

    /// As [`Inode::read_at`].
    pub fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.observe(offset, out.len());
        self.inode.read_at(offset, out)
    }

    /// As [`Inode::read_lossy`].
    pub fn read_lossy(&mut self, offset: u64, out: &mut [u8]) -> Result<(usize, Vec<Unreadable>)> {
        self.observe(offset, out.len());
        self.inode.read_lossy(offset, out)
    }

    /// As [`Inode::chunk`].
    pub fn chunk(&mut self, offset: u64, max: usize) -> Result<Buf> {
        let blocks = usize::try_from(self.inode.block_size()).unwrap_or(usize::MAX);
        self.observe(offset, max.min(blocks));
        self.inode.chunk(offset, max)
    }
}
