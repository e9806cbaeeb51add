//! Streams the bytes of a file or volume, skipping damage and holes.

use std::ops::Range;

use clikit::interrupt::Interrupt;
use clikit::verb::Failure;
use engine::dmu::prefetch::Prefetch;
use engine::dmu::{Span, Unreadable};
use stdx::Buf;
use zpl::{Inode, Reader};
use zvol::Volume;

/// Bytes passed at once.
const PIECE: usize = 1 << 20;
/// Bytes searched for holes at once, so that long files respond to Ctrl-C.
const LOOK_AHEAD: u64 = 256 << 20;

/// Bytes that can be read in order: a file or a volume.
#[derive(Debug)]
pub enum Bytes {
    /// A regular file.
    File(Box<Reader>),
    /// A volume.
    Volume(std::sync::Arc<Volume>, Prefetch),
}

impl Bytes {
    /// The bytes of a regular file.
    pub fn of(inode: &Inode) -> Self {
        Self::File(Box::new(Reader::new(inode)))
    }

    /// The number of bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::File(reader) => reader.inode().attr().size,
            Self::Volume(volume, _) => volume.size,
        }
    }

    /// The span that starts at `offset`.
    pub fn span(&self, offset: u64, end: u64) -> engine::Result<Option<Span>> {
        match self {
            Self::File(reader) => reader.inode().span(offset, end),
            Self::Volume(volume, _) => Ok(volume.span(offset, end)),
        }
    }

    fn chunk(&mut self, offset: u64, max: usize) -> engine::Result<Buf> {
        match self {
            Self::File(reader) => reader.chunk(offset, max),
            Self::Volume(volume, prefetch) => {
                volume.read_ahead(prefetch, offset, u64::try_from(max).unwrap_or(0));
                volume.chunk(offset, max)
            }
        }
    }

    fn lossy(&mut self, offset: u64, out: &mut [u8]) -> engine::Result<Vec<Unreadable>> {
        Ok(match self {
            Self::File(reader) => reader.inode().read_lossy(offset, out)?.1,
            Self::Volume(volume, _) => volume.read_lossy(offset, out).1,
        })
    }

    /// Passes the bytes of `range`, which the caller knows to be data, to `sink` in order, each piece with its
    /// offset. Unreadable ranges are zeros, and are returned.
    pub fn data(
        &mut self,
        range: Range<u64>,
        interrupt: &Interrupt,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<Vec<Unreadable>, Failure> {
        let mut bad = Vec::new();
        let mut at = range.start;
        while at < range.end {
            if interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            let max = usize::try_from(range.end - at).unwrap_or(PIECE).min(PIECE);
            match self.chunk(at, max) {
                Ok(chunk) if chunk.is_empty() => break,
                Ok(chunk) => {
                    sink(at, &chunk)?;
                    at += u64::try_from(chunk.len()).unwrap_or(0);
                }
                Err(_) => {
                    let mut piece = vec![0; max];
                    for found in self.lossy(at, &mut piece)? {
                        engine::dmu::content::note(&mut bad, found);
                    }
                    sink(at, &piece)?;
                    at += u64::try_from(max).unwrap_or(0);
                }
            }
        }
        Ok(bad)
    }

    /// Like [`Bytes::data`] for everything from `start` on; `hole` is called with the ranges that are zeros.
    pub fn all(
        &mut self,
        start: u64,
        interrupt: &Interrupt,
        sink: &mut dyn FnMut(Piece<'_>) -> Result<(), Failure>,
    ) -> Result<Vec<Unreadable>, Failure> {
        let mut bad = Vec::new();
        let mut at = start;
        while let Some(span) = self.span(at, at.saturating_add(LOOK_AHEAD))? {
            if interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            let range = span.range();
            at = range.end;
            match span {
                Span::Hole(range) => sink(Piece::Hole(range))?,
                Span::Unreadable(u) => {
                    sink(Piece::Hole(u.range.clone()))?;
                    engine::dmu::content::note(&mut bad, u);
                }
                Span::Data(range) => {
                    let found = self.data(range, interrupt, &mut |at, b| sink(Piece::Data(at, b)))?;
                    found.into_iter().for_each(|u| engine::dmu::content::note(&mut bad, u));
                }
            }
        }
        Ok(bad)
    }
}

/// A part of a file as it is passed to the sink.
#[derive(Debug)]
pub enum Piece<'a> {
    /// Bytes at an offset.
    Data(u64, &'a [u8]),
    /// Zeros.
    Hole(Range<u64>),
}

/// Calls `write` with zeros, `len` bytes in all.
pub fn zeros(len: u64, write: &mut dyn FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut left = len;
    while left > 0 {
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(ZEROS.len());
        write(ZEROS.get(..take).unwrap_or(&ZEROS))?;
        left -= u64::try_from(take).unwrap_or(left);
    }
    Ok(())
}
