//! Data of a file that the log changed: ranges over the object's content.

use std::collections::BTreeMap;
use std::ops::Range;

use engine::dmu::{Content, Objset, Span, Unreadable};
use engine::{Error, Result, zil};
use ondisk::Blkptr;
use ondisk::zil::LrWrite;
use std::sync::Arc;
use stdx::{AlignedBuf, Buf};

/// Most zeros that are handed out at once.
const ZERO_CHUNK: u64 = 128 << 10;

/// Where the bytes of a range are.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Nowhere: zeros.
    Zero,
    /// In a record: the range's first byte is the buffer's.
    Bytes(Buf),
    /// In the block that a record of a write points to; the number is where the range starts in it.
    Logged(LrWrite, u64),
    /// In a block that was cloned, and where in it.
    Cloned(Blkptr, u64),
}

impl Source {
    /// The same source `by` bytes further on.
    fn advance(self, by: u64) -> Self {
        match self {
            Self::Zero => Self::Zero,
            Self::Bytes(buf) => {
                let by = usize::try_from(by).unwrap_or(usize::MAX);
                let len = buf.len();
                Self::Bytes(buf.slice(by..len))
            }
            Self::Logged(write, at) => Self::Logged(write, at.saturating_add(by)),
            Self::Cloned(bp, at) => Self::Cloned(bp, at.saturating_add(by)),
        }
    }

    /// Up to `len` bytes from the start of the range.
    fn read(&self, objset: &Arc<Objset>, len: u64) -> Result<Buf> {
        let window = |block: Buf, at: u64| {
            let start = usize::try_from(at).unwrap_or(usize::MAX);
            let window = block.slice(start..start.saturating_add(usize::try_from(len).unwrap_or(0)));
            if window.is_empty() { Err(Error::corrupt("the logged block is too short")) } else { Ok(window) }
        };
        match self {
            Self::Zero => Ok(AlignedBuf::zeroed(usize::try_from(len.min(ZERO_CHUNK)).unwrap_or(0)).into()),
            Self::Bytes(buf) => window(buf.clone(), 0),
            Self::Logged(write, at) => window(zil::write_data(objset, write)?, *at),
            Self::Cloned(bp, at) => {
                let place = engine::types::Bookmark::new(objset.id, 0, 0, 0);
                window(objset.arc().read(bp, place, objset.form())?, *at)
            }
        }
    }
}

/// Ranges that don't overlap, by their first byte.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patch(BTreeMap<u64, (u64, Source)>);

impl Patch {
    /// Puts `source` over `range`, whatever was there.
    pub fn put(&mut self, range: Range<u64>, source: Source) {
        if range.is_empty() {
            return;
        }
        let before = self.0.range(..range.start).next_back().map(|(s, (e, _))| (*s, *e));
        let mut hit: Vec<u64> = self.0.range(range.clone()).map(|(s, _)| *s).collect();
        hit.extend(before.filter(|(_, end)| *end > range.start).map(|(start, _)| start));
        for start in hit {
            let Some((end, old)) = self.0.remove(&start) else { continue };
            if end > range.end {
                let rest = old.clone().advance(range.end - start);
                self.0.insert(range.end, (end, rest));
            }
            if start < range.start {
                self.0.insert(start, (range.start, old));
            }
        }
        self.0.insert(range.start, (range.end, source));
    }

    /// The range that starts at `offset`, up to `end` at most: its end, and its source (`None`: the
    /// object itself).
    fn piece(&self, offset: u64, end: u64) -> (u64, Option<Source>) {
        if let Some((start, (to, source))) = self.0.range(..=offset).next_back()
            && *to > offset
        {
            return ((*to).min(end), Some(source.clone().advance(offset - start)));
        }
        let next = self.0.range(offset..).next().map_or(end, |(start, _)| *start);
        (next.min(end), None)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The bytes of a changed file: the patch over the object's.
pub(crate) struct Patched<'a> {
    pub content: Content<'a>,
    pub objset: &'a Arc<Objset>,
    pub size: u64,
    pub fresh: bool,
    pub patch: &'a Patch,
}

impl Patched<'_> {
    fn piece(&self, offset: u64, end: u64) -> (u64, Option<Source>) {
        let (to, source) = self.patch.piece(offset, end.min(self.size));
        (to, source.or(self.fresh.then_some(Source::Zero)))
    }

    /// See [`Content::chunk`].
    pub fn chunk(&self, offset: u64, max: usize) -> Result<Buf> {
        if offset >= self.size || max == 0 {
            return Ok(Buf::empty());
        }
        let end = offset.saturating_add(u64::try_from(max).unwrap_or(u64::MAX));
        match self.piece(offset, end) {
            (to, Some(source)) => source.read(self.objset, to - offset),
            (to, None) => self.content.chunk(offset, usize::try_from(to - offset).unwrap_or(max)),
        }
    }

    /// See [`Content::read_at`].
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = out.get_mut(filled..).filter(|r| !r.is_empty()) {
            let at = offset.saturating_add(u64::try_from(filled).unwrap_or(0));
            let chunk = self.chunk(at, rest.len())?;
            if chunk.is_empty() {
                break;
            }
            let (now, _) = rest.split_at_mut(chunk.len().min(rest.len()));
            now.copy_from_slice(chunk.get(..now.len()).unwrap_or_default());
            filled += now.len();
        }
        Ok(filled)
    }

    /// See [`Content::read_lossy`].
    pub fn read_lossy(&self, offset: u64, out: &mut [u8]) -> (usize, Vec<Unreadable>) {
        let (mut filled, mut bad) = (0, Vec::new());
        while let Some(rest) = out.get_mut(filled..).filter(|r| !r.is_empty()) {
            let at = offset.saturating_add(u64::try_from(filled).unwrap_or(0));
            if at >= self.size {
                break;
            }
            let len = u64::try_from(rest.len()).unwrap_or(u64::MAX);
            let (to, source) = self.piece(at, at.saturating_add(len));
            let (now, _) = rest.split_at_mut(usize::try_from(to - at).unwrap_or(usize::MAX).min(rest.len()));
            if source.is_none() {
                let (_, found) = self.content.read_lossy(at, now);
                found.into_iter().for_each(|u| engine::dmu::content::note(&mut bad, u));
            } else if let Err(error) = self.read_at(at, now) {
                now.fill(0);
                engine::dmu::content::note(&mut bad, Unreadable { range: at..to, error });
            }
            filled += now.len();
        }
        (filled, bad)
    }

    /// See [`Content::span`].
    pub fn span(&self, offset: u64, end: u64) -> Option<Span> {
        if offset >= end.min(self.size) {
            return None;
        }
        match self.piece(offset, end) {
            (to, None) => self.content.span(offset, to),
            (to, Some(Source::Zero)) => Some(Span::Hole(offset..to)),
            (to, Some(_)) => Some(Span::Data(offset..to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(patch: &Patch, end: u64) -> String {
        let (mut at, mut out) = (0, String::new());
        while at < end {
            let (to, source) = patch.piece(at, end);
            let c = match source {
                None => ".".repeat((to - at) as usize),
                Some(Source::Bytes(b)) => String::from_utf8_lossy(&b[..(to - at) as usize]).into_owned(),
                Some(_) => "0".repeat((to - at) as usize),
            };
            out.push_str(&c);
            at = to;
        }
        out
    }

    #[test]
    fn later_ranges_cover_earlier_ones() {
        let mut patch = Patch::default();
        let bytes = |s: &str| Source::Bytes(Buf::from(s.as_bytes()));
        patch.put(2..8, bytes("abcdef"));
        assert_eq!(text(&patch, 10), "..abcdef..");
        patch.put(4..6, bytes("XY"));
        assert_eq!(text(&patch, 10), "..abXYef..");
        patch.put(5..u64::MAX, Source::Zero);
        assert_eq!(text(&patch, 10), "..abX00000");
        patch.put(0..10, bytes("0123456789"));
        assert_eq!(text(&patch, 12), "012345678900");
        patch.put(3..3, bytes(""));
        assert_eq!(text(&patch, 10), "0123456789");
    }
}
