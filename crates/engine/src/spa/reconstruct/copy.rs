//! Copies ranges of a mirror from the leaves that have all of it to those that are being reconstructed.

use std::io;
use std::sync::Arc;

use stdx::Buf;

use crate::spa::removal::copy::{Start, all};
use crate::taskq::Executor;
use crate::vdev::leaf::Leaf;
use crate::vdev::plan::Area;
use crate::vdev::stats::IoClass;

/// Bytes of one request.
#[doc(alias = "zfs_rebuild_max_segment")]
pub(super) const PIECE: u64 = 1 << 20;
/// Requests whose bytes are in memory at once.
const BATCH: usize = 16;

/// The leaves of a copy.
pub(super) struct Sides {
    /// Leaves that lack nothing and are being replaced: they are read wherever they can be.
    pub(crate) leaving: Vec<Arc<Leaf>>,
    /// Other leaves that lack nothing.
    pub(crate) staying: Vec<Arc<Leaf>>,
    /// Leaves that lack nothing, but had too many errors: they are read where no other can be.
    pub(crate) doubtful: Vec<Arc<Leaf>>,
    /// Leaves that get everything.
    pub(crate) targets: Vec<Arc<Leaf>>,
}

/// Result of a copy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copied {
    /// Bytes of the vdev that were read.
    pub(crate) read: u64,
    /// Bytes written to all targets together.
    pub(crate) written: u64,
    /// Ranges that no source could read.
    pub(crate) lost: u64,
}

/// Cuts ranges (bytes of the vdev) into requests, each an offset and a length.
fn pieces(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let cut = |&(start, end): &(u64, u64)| {
        let starts = (0..end.saturating_sub(start).div_ceil(PIECE)).map(move |part| start + part * PIECE);
        starts.map(move |at| (at, PIECE.min(end - at)))
    };
    ranges.iter().flat_map(cut).collect()
}

/// Copies `ranges` (bytes of the vdev) and flushes the targets; `txg` is the txg that is being written. A
/// piece that no source can read is counted and skipped.
///
/// # Errors
/// When a target cannot be written or flushed, or an offset overflows.
pub(super) fn copy(
    executor: &dyn Executor,
    sides: &Sides,
    ranges: &[(u64, u64)],
    txg: u64,
) -> io::Result<Copied> {
    let mut copied = Copied::default();
    for batch in pieces(ranges).chunks(BATCH) {
        let mut writes: Vec<Start<'_, io::Result<()>>> = Vec::new();
        for (&(offset, len), data) in batch.iter().zip(read(executor, sides, batch)?) {
            let Some(data) = data else {
                copied.lost += 1;
                continue;
            };
            copied.read = copied.read.saturating_add(len);
            for leaf in &sides.targets {
                let (at, data) = (place(offset)?, data.clone());
                copied.written = copied.written.saturating_add(len);
                writes.push(Box::new(move |told| {
                    leaf.write_parts(at, vec![data], IoClass::RebuildWrite, told);
                }));
            }
        }
        ended(all(executor, writes))?;
    }
    let flush = |leaf| -> Start<'_, io::Result<()>> { Box::new(move |told| Leaf::flush(leaf, txg, told)) };
    ended(all(executor, sides.targets.iter().map(flush).collect()))?;
    Ok(copied)
}

pub(super) fn place(offset: u64) -> io::Result<u64> {
    Area::Data.leaf_offset(offset).ok_or_else(|| io::Error::other("an offset overflows"))
}

/// The first error.
pub(super) fn ended(results: Vec<Option<io::Result<()>>>) -> io::Result<()> {
    let lost = || Err(io::Error::other("a request has no result"));
    results.into_iter().try_for_each(|result| result.unwrap_or_else(lost))
}

/// Reads the pieces from leaves that leave, or else from those that stay, or else from doubtful ones.
fn read(executor: &dyn Executor, sides: &Sides, batch: &[(u64, u64)]) -> io::Result<Vec<Option<Buf>>> {
    let mut found: Vec<Option<Buf>> = vec![None; batch.len()];
    read_from(executor, &sides.leaving, batch, &mut found)?;
    read_from(executor, &sides.staying, batch, &mut found)?;
    read_from(executor, &sides.doubtful, batch, &mut found)?;
    Ok(found)
}

/// Reads the pieces that were not found, each from one of the sources, in turn; a source that fails is replaced by the next
/// one.
fn read_from(
    executor: &dyn Executor,
    sources: &[Arc<Leaf>],
    batch: &[(u64, u64)],
    found: &mut [Option<Buf>],
) -> io::Result<()> {
    for shift in 0..sources.len() {
        let (mut starts, mut slots): (Vec<Start<'_, io::Result<Buf>>>, _) = (Vec::new(), Vec::new());
        for (slot, (&(offset, len), have)) in batch.iter().zip(&*found).enumerate() {
            let source = slot.saturating_add(shift).checked_rem(sources.len());
            let (None, Some(leaf)) = (have, source.and_then(|source| sources.get(source))) else { continue };
            let at = place(offset)?;
            slots.push(slot);
            starts.push(Box::new(move |told| leaf.read_as(at, len, Some(IoClass::RebuildRead), told)));
        }
        for (slot, result) in slots.into_iter().zip(all(executor, starts)) {
            if let (Some(Ok(data)), Some(place)) = (result, found.get_mut(slot)) {
                *place = Some(data);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_into_requests_that_cover_them_once() {
        assert_eq!(pieces(&[]), []);
        let cut = pieces(&[(512, 1024), (4096, 4096 + 2 * PIECE + 512)]);
        assert_eq!(cut, [(512, 512), (4096, PIECE), (4096 + PIECE, PIECE), (4096 + 2 * PIECE, 512)]);
    }
}
