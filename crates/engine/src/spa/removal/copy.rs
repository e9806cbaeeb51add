//! Copies ranges of one top-level vdev to others, regardless of their content.
//!
//! Nothing is checked by a checksum: a side of a mirror may hold bytes that the other side would mend. So the sides of the
//! destination get the bytes of different sides of the source as far as there are as many, and a block that one side has
//! lost can still be put together (`zio::remap`).

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use stdx::Buf;

use crate::error::{Error, Kind, Result};
use crate::taskq::{Executor, Promise};
use crate::vdev::indirect::MappingEntry;
use crate::vdev::leaf::Leaf;
use crate::vdev::plan::Area;
use crate::vdev::stats::IoClass;
use crate::vdev::top::Top;
use crate::vdev::tree::Tree;

/// Bytes of one request.
const PIECE: u64 = 1 << 20;

/// A part of a range.
#[derive(Debug, Clone, Copy)]
struct Piece {
    source: u64,
    vdev: u64,
    offset: u64,
    len: u64,
}

/// A callback that waits for several requests.
struct Join<T> {
    left: usize,
    results: Vec<Option<T>>,
}

/// Called with the result of a request.
pub(in crate::spa) type CopyTold<T> = Box<dyn FnOnce(T) + Send>;
/// Starts a request.
pub(in crate::spa) type Start<'a, T> = Box<dyn FnOnce(CopyTold<T>) + 'a>;

/// Starts all and waits for all; returns how each ended.
pub(in crate::spa) fn all<T: Send + 'static>(
    executor: &dyn Executor,
    starts: Vec<Start<'_, T>>,
) -> Vec<Option<T>> {
    if starts.is_empty() {
        return Vec::new();
    }
    let promise = Promise::<Vec<Option<T>>>::default();
    let results = starts.iter().map(|_| None).collect();
    let join = Arc::new(Mutex::new(Join { left: starts.len(), results }));
    for (index, start) in starts.into_iter().enumerate() {
        let (join, promise) = (Arc::clone(&join), promise.clone());
        start(Box::new(move |result| {
            let mut join = join.lock();
            if let Some(slot) = join.results.get_mut(index) {
                *slot = Some(result);
            }
            join.left -= 1;
            if join.left == 0 {
                promise.set(std::mem::take(&mut join.results));
            }
        }));
    }
    promise.wait(executor)
}

fn pieces(entries: &[MappingEntry]) -> Vec<Piece> {
    let parts = |entry: &MappingEntry| {
        let entry = *entry;
        let count = entry.len.div_ceil(PIECE);
        (0..count).map(move |part| {
            let at = part * PIECE;
            let len = PIECE.min(entry.len - at);
            Piece { source: entry.source + at, vdev: entry.vdev, offset: entry.offset + at, len }
        })
    };
    entries.iter().flat_map(parts).collect()
}

fn at(offset: u64) -> Result<u64> {
    Area::Data.leaf_offset(offset).ok_or_else(|| Error::corrupt("an offset overflows").at_offset(offset))
}

/// How ranges are copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(crate) txg: u64,
    /// A side that fails to read is replaced by another one.
    #[doc(alias = "zfs_removal_ignore_errors")]
    pub(crate) lenient: bool,
}

/// Copies ranges from `source`, in the txg in which their destinations were allocated.
///
/// # Errors
/// `Io` with the device when a range cannot be read from a side that is in use (from any, when lenient), or a device that is in
/// use fails to write it.
pub(super) fn copy(
    executor: &dyn Executor,
    tree: &Tree,
    source: &Top,
    entries: &[MappingEntry],
    How { txg, lenient }: How,
) -> Result<()> {
    let from = readable(source);
    if from.is_empty() {
        return Err(Error::new(Kind::Io, "nothing can be read from the vdev").on_vdev(&source.name));
    }
    let pieces = pieces(entries);
    let mut targets = Vec::new();
    for piece in &pieces {
        let top = tree.top(piece.vdev).ok_or_else(|| Error::corrupt("no such top-level vdev"))?;
        targets.push(top.leaves().collect::<Vec<_>>());
    }
    // (piece, version): as many versions as the source and the destination have sides.
    let mut wanted = Vec::new();
    for (index, leaves) in targets.iter().enumerate() {
        (0..from.len().min(leaves.len().max(1))).for_each(|version| wanted.push((index, version)));
    }
    let versions = read(executor, source, &from, (&pieces, &wanted), lenient)?;
    let mut starts: Vec<Start<'_, io::Result<()>>> = Vec::new();
    let mut names = Vec::new();
    for (index, (piece, leaves)) in pieces.iter().zip(&targets).enumerate() {
        let own: Vec<&Buf> =
            wanted.iter().zip(&versions).filter(|((of, _), _)| *of == index).map(|(_, data)| data).collect();
        let mut written = 0;
        for (side, leaf) in leaves.iter().enumerate() {
            let Some(data) = side.checked_rem(own.len()).and_then(|version| own.get(version)) else {
                continue;
            };
            if !leaf.is_writable() {
                leaf.miss(txg);
                continue;
            }
            written += 1;
            let (offset, data) = (at(piece.offset)?, (*data).clone());
            names.push(leaf.path.clone());
            starts.push(Box::new(move |told| {
                leaf.write_parts(offset, vec![data], IoClass::RemovalWrite, told);
            }));
        }
        if written == 0 {
            return Err(Error::new(Kind::Io, "no device takes the copy").at_offset(piece.offset));
        }
    }
    let failed =
        all(executor, starts).into_iter().zip(names).find(|(result, _)| !matches!(result, Some(Ok(()))));
    match failed {
        None => Ok(()),
        Some((_, name)) => Err(Error::new(Kind::Io, "the copy cannot be written").on_vdev(&name)),
    }
}

/// Leaves that have all of the vdev: another one could give bytes that it missed.
fn readable(source: &Top) -> Vec<Arc<Leaf>> {
    let there = source.leaves().filter(|leaf| leaf.device().is_some());
    there.filter(|leaf| leaf.dtl.read().ranges().is_empty()).collect()
}

fn read(
    executor: &dyn Executor,
    source: &Top,
    from: &[Arc<Leaf>],
    (pieces, wanted): (&[Piece], &[(usize, usize)]),
    lenient: bool,
) -> Result<Vec<Buf>> {
    let mut found: Vec<Option<Buf>> = wanted.iter().map(|_| None).collect();
    // A side that fails is replaced by the next one.
    for shift in 0..if lenient { from.len() } else { 1 } {
        let (mut starts, mut slots): (Vec<Start<'_, io::Result<Buf>>>, _) = (Vec::new(), Vec::new());
        for (slot, (index, version)) in wanted.iter().enumerate() {
            let leaf = version.saturating_add(shift).checked_rem(from.len()).and_then(|side| from.get(side));
            let (None, Some(leaf), Some(piece)) =
                (found.get(slot).and_then(Option::as_ref), leaf, pieces.get(*index))
            else {
                continue;
            };
            let (offset, len) = (at(piece.source)?, piece.len);
            slots.push(slot);
            starts.push(Box::new(move |told| leaf.read_as(offset, len, Some(IoClass::RemovalRead), told)));
        }
        if starts.is_empty() {
            break;
        }
        for (slot, result) in slots.into_iter().zip(all(executor, starts)) {
            if let (Some(Ok(data)), Some(place)) = (result, found.get_mut(slot)) {
                *place = Some(data);
            }
        }
    }
    let lost = |index: usize| {
        let piece = wanted.get(index).and_then(|(index, _)| pieces.get(*index));
        let offset = piece.map_or(0, |piece| piece.source);
        Error::new(Kind::Io, "a range cannot be read").on_vdev(&source.name).at_offset(offset)
    };
    found.into_iter().enumerate().map(|(index, data)| data.ok_or_else(|| lost(index))).collect()
}
