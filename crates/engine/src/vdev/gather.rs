//! Reads that a plan has issued to its children, and their results.

use super::plan::{Area, ChildRead, ChildResult, part};
use std::collections::BTreeMap;
use stdx::{AlignedBuf, Buf};

/// Reads nearer to each other than this are joined: on any device one longer read costs less than
/// two.
pub(super) const GAP: u64 = 32 << 10;

/// Longest read made by joining.
const MAX_JOINED: u64 = 1 << 20;

/// Pieces that one failed read is cut into.
const MAX_PIECES: u64 = 64;

/// State of some bytes of a leaf.
#[derive(Debug, Clone)]
pub(super) enum Bytes {
    /// Not asked for yet.
    Unasked,
    /// The device gave nothing.
    Failed,
    /// Read.
    Read(Buf),
}

impl Bytes {
    pub(crate) fn read(self) -> Option<Buf> {
        match self {
            Self::Read(buf) => Some(buf),
            Self::Unasked | Self::Failed => None,
        }
    }
}

/// Start of an extent; ordered so that neighbours on a leaf are neighbours in the map.
type Key = (u32, u32, Area, u64);

fn key(read: &ChildRead) -> Key {
    (read.child, read.side, read.area, read.offset)
}

#[derive(Debug)]
struct Extent {
    len: u64,
    data: Option<Buf>,
}

/// All reads of a plan.
#[derive(Debug, Default)]
pub(super) struct Gather {
    extents: BTreeMap<Key, Extent>,
}

impl Gather {
    /// Returns the state of the bytes that `read` names. They must be wholly in one extent, or in consecutive
    /// pieces.
    pub(crate) fn look_up(&self, read: &ChildRead) -> Bytes {
        let leaf = (read.child, read.side, read.area);
        let Some(end) = read.offset.checked_add(read.len) else { return Bytes::Failed };
        let mut bytes: Option<AlignedBuf> = None;
        let (mut at, mut filled) = (read.offset, 0);
        while at < end {
            let found = self.extents.range(..=(leaf.0, leaf.1, leaf.2, at)).next_back();
            let extent = found.filter(|((child, side, area, _), _)| (*child, *side, *area) == leaf);
            let Some((&(.., start), extent)) = extent else { return Bytes::Unasked };
            let stop = start.saturating_add(extent.len).min(end);
            if stop <= at {
                return Bytes::Unasked;
            }
            let Some(data) = &extent.data else { return Bytes::Failed };
            let (Ok(from), Ok(to)) = (usize::try_from(at - start), usize::try_from(stop - start)) else {
                return Bytes::Failed;
            };
            let part = data.slice(from..to);
            if (at, stop) == (read.offset, end) {
                return Bytes::Read(part);
            }
            let whole =
                bytes.get_or_insert_with(|| AlignedBuf::zeroed(usize::try_from(read.len).unwrap_or(0)));
            let Some(slot) = whole.get_mut(filled..).and_then(|rest| rest.get_mut(..part.len())) else {
                return Bytes::Failed;
            };
            slot.copy_from_slice(&part);
            filled += part.len();
            at = stop;
        }
        bytes.map_or(Bytes::Unasked, |bytes| Bytes::Read(bytes.into()))
    }

    /// Replaces each failed read by reads of small pieces.
    pub(crate) fn retry_in_pieces(&mut self, sector: u64) -> Vec<ChildRead> {
        let failed = |extent: &Extent| extent.data.is_none() && extent.len > sector;
        let keys: Vec<Key> = self.extents.iter().filter(|(_, e)| failed(e)).map(|(&key, _)| key).collect();
        let mut pieces = Vec::new();
        for key in keys {
            let Some(extent) = self.extents.remove(&key) else { continue };
            let (child, side, area, start) = key;
            let piece = extent.len.div_ceil(MAX_PIECES).next_multiple_of(sector.max(1));
            for offset in (0..extent.len).step_by(usize::try_from(piece).unwrap_or(usize::MAX)) {
                let len = piece.min(extent.len - offset);
                let read = ChildRead { child, side, area, offset: start.saturating_add(offset), len };
                self.extents.insert(self::key(&read), Extent { len, data: None });
                pieces.push(read);
            }
        }
        pieces
    }

    /// Joins the wanted reads into few and records them. `gap` is the largest distance between joined reads;
    /// a later call must not read across ranges that were asked for before, so it passes 0.
    pub(crate) fn ask(&mut self, mut wanted: Vec<ChildRead>, gap: u64) -> Vec<ChildRead> {
        wanted.sort_unstable();
        let mut joined: Vec<ChildRead> = Vec::new();
        for read in wanted {
            match joined.last_mut() {
                Some(last) if joins(last, &read, gap) => {
                    let end = (last.offset + last.len).max(read.offset.saturating_add(read.len));
                    last.len = end - last.offset;
                }
                _ => joined.push(read),
            }
        }
        joined.retain(|read| !self.extents.contains_key(&key(read)));
        for read in &joined {
            self.extents.insert(key(read), Extent { len: read.len, data: None });
        }
        joined
    }

    /// Takes a result in. Bytes that were not asked for, or not all of them, are no result.
    pub(crate) fn take(&mut self, result: ChildResult) {
        if let Some(extent) = self.extents.get_mut(&key(&result.read)) {
            let enough = |data: &Buf| u64::try_from(data.len()).is_ok_and(|len| len >= extent.len);
            extent.data = result.data.filter(enough);
        }
    }
}

fn joins(last: &ChildRead, next: &ChildRead, gap: u64) -> bool {
    let end = last.offset.saturating_add(last.len);
    let joined = next.offset.saturating_add(next.len).saturating_sub(last.offset);
    (last.child, last.side, last.area) == (next.child, next.side, next.area)
        && part(last.offset) == part(next.offset)
        && next.offset <= end.saturating_add(gap)
        && (next.offset <= end || joined <= MAX_JOINED)
}
