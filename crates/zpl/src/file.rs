//! File data: reads, holes, and damage named by range.

use engine::dmu::prefetch::Prefetch;
use engine::dmu::{Content, Span, Unreadable};
use engine::{Error, Kind, Result};
use stdx::Buf;

use crate::attr::FileKind;
use crate::inode::Inode;

impl Inode {
    /// The bytes of a regular file.
    fn content(&self) -> Result<Content<'_>> {
        match self.attr.kind {
            FileKind::Regular => Ok(Content::new(&self.object, self.attr.size)),
            FileKind::Directory => Err(self.error(Kind::IsDirectory, "is a directory")),
            _ => Err(self.error(Kind::Invalid, "not a regular file")),
        }
    }

    fn placed(&self, e: Error) -> Error {
        self.fs.place(e, self.number)
    }

    /// Fills `out` from `offset`; how many bytes there were before the end of the file.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.content()?.read_at(offset, out).map_err(|e| self.placed(e))
    }

    /// As [`Inode::read_at`], but continues past unreadable ranges: they are zeros in `out` and listed.
    pub fn read_lossy(&self, offset: u64, out: &mut [u8]) -> Result<(usize, Vec<Unreadable>)> {
        let (len, mut bad) = self.content()?.read_lossy(offset, out);
        for u in &mut bad {
            u.error = self.placed(u.error.clone());
        }
        Ok((len, bad))
    }

    /// A window of at most `max` bytes from `offset`, without copying: it ends at the end of a block.
    /// Empty at the end of the file.
    pub fn chunk(&self, offset: u64, max: usize) -> Result<Buf> {
        self.content()?.chunk(offset, max).map_err(|e| self.placed(e))
    }

    /// The span (data, hole, or not known) that starts at `offset`; it ends at `end` or the end of the
    /// file at the latest. `None` at the end.
    pub fn span(&self, offset: u64, end: u64) -> Result<Option<Span>> {
        Ok(self.content()?.span(offset, end).map(|span| match span {
            Span::Unreadable(u) => {
                Span::Unreadable(Unreadable { error: self.placed(u.error), range: u.range })
            }
            known => known,
        }))
    }

    /// The first byte at or after `offset` that is stored (`SEEK_DATA`); `None` when only a hole follows.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        match self.span(offset, u64::MAX)? {
            None => Ok(None),
            Some(Span::Data(_)) => Ok(Some(offset)),
            Some(Span::Hole(hole)) => Ok((hole.end < self.attr.size).then_some(hole.end)),
            Some(Span::Unreadable(u)) => Err(u.error),
        }
    }

    /// The first byte at or after `offset` in a hole (`SEEK_HOLE`); the end of the file counts as one.
    /// `None` past the end.
    pub fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        match self.span(offset, u64::MAX)? {
            None => Ok(None),
            Some(Span::Hole(_)) => Ok(Some(offset)),
            Some(Span::Data(data)) => Ok(Some(data.end)),
            Some(Span::Unreadable(u)) => Err(u.error),
        }
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
        let left = self.inode.attr.size.saturating_sub(offset);
        let len = u64::try_from(len).unwrap_or(u64::MAX).min(left);
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

    /// As [`Inode::chunk`]. Also sequential when each call starts where the last window ended.
    pub fn chunk(&mut self, offset: u64, max: usize) -> Result<Buf> {
        let chunk = self.inode.chunk(offset, max);
        let len = chunk.as_ref().map_or(0, |c| c.len());
        self.observe(offset, len);
        chunk
    }
}
