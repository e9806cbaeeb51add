//! What a plan has asked of its children and what came back.

use super::plan::{Area, ChildRead, ChildResult};
use std::collections::BTreeMap;
use stdx::Buf;

/// Reads nearer to each other than this are joined: on any device one longer read costs less than
/// two.
pub(super) const GAP: u64 = 32 << 10;

/// Longest read made by joining.
const MAX_JOINED: u64 = 1 << 20;

/// What is known of some bytes of a leaf.
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
    pub fn read(self) -> Option<Buf> {
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
    /// What is known of the bytes that `read` names. They count as asked only when one extent has
    /// them all.
    pub fn look_up(&self, read: &ChildRead) -> Bytes {
        let Some((found, extent)) = self.extents.range(..=key(read)).next_back() else {
            return Bytes::Unasked;
        };
        let &(child, side, area, start) = found;
        let within = read.offset.saturating_sub(start);
        let same_leaf = (child, side, area) == (read.child, read.side, read.area);
        if !same_leaf || within.checked_add(read.len).is_none_or(|end| end > extent.len) {
            return Bytes::Unasked;
        }
        let (Ok(from), Ok(len)) = (usize::try_from(within), usize::try_from(read.len)) else {
            return Bytes::Failed;
        };
        match &extent.data {
            Some(data) => Bytes::Read(data.slice(from..from.saturating_add(len))),
            None => Bytes::Failed,
        }
    }

    /// Joins the wanted reads into few and takes note of them. `gap` is how far apart they may be; a
    /// later question must not reach over what was asked before, so it takes 0.
    pub fn ask(&mut self, mut wanted: Vec<ChildRead>, gap: u64) -> Vec<ChildRead> {
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
    pub fn take(&mut self, result: ChildResult) {
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
        && next.offset <= end.saturating_add(gap)
        && (next.offset <= end || joined <= MAX_JOINED)
}
