//! Reconstructs columns of a draid's groups.
//!
//! The rows of the groups are read without regard to blocks. A column that is wanted is read from a leaf that has it (one that
//! is being replaced first), or computed from the other columns of its group.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use stdx::Buf;

use super::copy::{Copied, PIECE, ended, place};
use super::is_doubtful;
use crate::spa::removal::copy::{Start, all};
use crate::taskq::Executor;
use crate::vdev::draid::DraidGeometry;
use crate::vdev::draid_rows::{RowColumn, unserved};
use crate::vdev::leaf::Leaf;
use crate::vdev::stats::IoClass;
use crate::vdev::top::Top;

/// Bytes of the vdev that are in memory at once, or one stretch.
const BATCH: u64 = 32 << 20;

/// The target of a reconstruction.
pub(super) struct Stripes {
    pub(crate) top: Arc<Top>,
    /// Guids of the leaves that get everything; distributed spares have no device of their own.
    pub(crate) targets: BTreeSet<u64>,
    /// Guids of leaves that are being replaced.
    pub(crate) leaving: BTreeSet<u64>,
}

/// A column of a stretch of rows.
#[derive(Default)]
struct Line {
    /// From the start of the device.
    at: u64,
    len: u64,
    /// Leaves that have it.
    sources: Vec<Arc<Leaf>>,
    /// Leaves that have it, but had too many errors: they are read where parity does not give it.
    doubtful: Vec<Arc<Leaf>>,
    /// Devices that are to get it.
    targets: Vec<Arc<Leaf>>,
    /// Leaves out of use that a target stands on: they lack it when they come back, whatever they missed themselves.
    late: Vec<Arc<Leaf>>,
    /// A leaf that is to get it is not there.
    is_cut: bool,
    data: Option<Buf>,
}

impl Line {
    fn is_wanted(&self) -> bool {
        self.is_cut || !self.targets.is_empty()
    }
}

/// A stretch of rows of a group: its columns, parity first.
struct Stretch {
    bytes: u64,
    lines: Vec<Line>,
}

impl Stripes {
    /// Reconstructs what the targets have of `ranges` (bytes of the vdev) and flushes them; `txg` is the txg that is being
    /// written. A stretch that cannot be reconstructed, or not everywhere, is counted and left out.
    ///
    /// # Errors
    /// Of a target that cannot be written or flushed, or an offset that overflows.
    #[doc(alias = "vdev_rebuild_range")]
    pub(super) fn copy(
        &self,
        executor: &dyn Executor,
        ranges: &[(u64, u64)],
        txg: u64,
    ) -> io::Result<Copied> {
        let geometry = self.top.draid().ok_or_else(|| io::Error::other("the vdev is no draid"))?;
        let (mut copied, mut written) = (Copied::default(), BTreeMap::new());
        let (mut batch, mut bytes) = (Vec::new(), 0_u64);
        let mut at = None;
        for (start, len) in ranges.iter().flat_map(|(start, end)| geometry.stretches(*start, *end, PIECE)) {
            // Two ranges may share a row.
            if at.is_some_and(|done| start < done) {
                continue;
            }
            at = start.checked_add(len);
            let Some(stretch) = self.stretch(geometry, start, len)? else { continue };
            for leaf in stretch.lines.iter().flat_map(|line| &line.late) {
                // The birth txgs of the blocks in these rows are not known.
                leaf.miss_all(crate::txg::INITIAL, txg.saturating_add(1));
            }
            bytes = bytes.saturating_add(len);
            batch.push(stretch);
            if bytes >= BATCH {
                fill(executor, geometry, std::mem::take(&mut batch), &mut copied, &mut written)?;
                bytes = 0;
            }
        }
        fill(executor, geometry, batch, &mut copied, &mut written)?;
        let flush =
            |leaf| -> Start<'_, io::Result<()>> { Box::new(move |told| Leaf::flush(leaf, txg, told)) };
        ended(all(executor, written.values().map(flush).collect()))?;
        Ok(copied)
    }

    /// Where the row that byte `at` of the vdev is in ends, or `at` where one begins.
    pub(crate) fn row_end(&self, at: u64) -> u64 {
        self.top.draid().map_or(at, |geometry| at.next_multiple_of(geometry.row_bytes()))
    }

    /// The rows from `start` on; `None` when no target has any of them.
    fn stretch(&self, geometry: &DraidGeometry, start: u64, len: u64) -> io::Result<Option<Stretch>> {
        let columns =
            geometry.columns_of(start, len).ok_or_else(|| io::Error::other("no rows of a draid"))?;
        let lines = columns.iter().map(|column| self.line(column)).collect::<io::Result<Vec<_>>>()?;
        Ok(lines.iter().any(Line::is_wanted).then_some(Stretch { bytes: len, lines }))
    }

    fn line(&self, column: &RowColumn) -> io::Result<Line> {
        let at = place(column.offset)?;
        let mut line = Line { at, len: column.len, ..Line::default() };
        let mut staying = Vec::new();
        let places = self.top.places(column.child, column.offset);
        // One that is out of use may have been replaced.
        line.is_cut = !unserved(&places).is_disjoint(&self.targets);
        for path in &places {
            let Some(leaf) = path.last() else { continue };
            let is_target = path.iter().any(|leaf| self.targets.contains(&leaf.guid));
            match (is_target, leaf.is_writable()) {
                (true, true) => line.targets.push(Arc::clone(leaf)),
                (true, false) if self.targets.contains(&leaf.guid) => line.is_cut = true,
                (true, false) => line.late.push(Arc::clone(leaf)),
                (false, _) if !path.iter().all(|leaf| leaf.dtl.read().is_empty()) => {}
                (false, _) if leaf.device().is_none() => {}
                (false, _) if is_doubtful(leaf) => line.doubtful.push(Arc::clone(leaf)),
                (false, _) if self.leaving.contains(&leaf.guid) => line.sources.push(Arc::clone(leaf)),
                (false, _) => staying.push(Arc::clone(leaf)),
            }
        }
        line.sources.append(&mut staying);
        Ok(line)
    }
}

/// Fills the wanted columns of a batch. `written`: the leaves that have been written, by guid.
fn fill(
    executor: &dyn Executor,
    geometry: &DraidGeometry,
    mut batch: Vec<Stretch>,
    copied: &mut Copied,
    written: &mut BTreeMap<u64, Arc<Leaf>>,
) -> io::Result<()> {
    load(executor, batch.iter_mut().flat_map(|stretch| &mut stretch.lines).filter(|line| line.is_wanted()));
    let lacks = |stretch: &&mut Stretch| stretch.lines.iter().any(|l| l.is_wanted() && l.data.is_none());
    load(executor, batch.iter_mut().filter(lacks).flat_map(|stretch| &mut stretch.lines));
    let nparity = usize::try_from(geometry.nparity()).unwrap_or(0);
    let computed = computed(executor, nparity, &mut batch);
    let mut writes: Vec<Start<'_, io::Result<()>>> = Vec::new();
    for (stretch, is_whole) in batch.iter().zip(computed) {
        copied.lost += u64::from(!is_whole || stretch.lines.iter().any(|line| line.is_cut));
        copied.read = copied.read.saturating_add(stretch.bytes);
        for line in stretch.lines.iter().filter(|_| is_whole) {
            for (leaf, data) in line.targets.iter().filter_map(|leaf| Some((leaf, line.data.clone()?))) {
                copied.written = copied.written.saturating_add(line.len);
                written.insert(leaf.guid, Arc::clone(leaf));
                let at = line.at;
                writes.push(Box::new(move |told| {
                    leaf.write_parts(at, vec![data], IoClass::RebuildWrite, told);
                }));
            }
        }
    }
    ended(all(executor, writes))
}

/// Computes the wanted columns of each stretch. Returns for each whether it has them.
fn computed(executor: &dyn Executor, nparity: usize, batch: &mut [Stretch]) -> Vec<bool> {
    let compute_one = |stretch: &mut Stretch| {
        if compute(nparity, &mut stretch.lines).is_some() {
            return true;
        }
        // As a last resort, from leaves that had too many errors.
        for line in &mut stretch.lines {
            std::mem::swap(&mut line.sources, &mut line.doubtful);
        }
        load(executor, stretch.lines.iter_mut());
        compute(nparity, &mut stretch.lines).is_some()
    };
    batch.iter_mut().map(compute_one).collect()
}

/// Reads columns that were not read yet, each from the first of its leaves that can read it.
fn load<'a>(executor: &dyn Executor, lines: impl Iterator<Item = &'a mut Line>) {
    let mut lines: Vec<&mut Line> = lines.filter(|line| line.data.is_none()).collect();
    let most = lines.iter().map(|line| line.sources.len()).max().unwrap_or(0);
    for round in 0..most {
        let mut asked = Vec::new();
        let mut starts: Vec<Start<'_, io::Result<Buf>>> = Vec::new();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.data.is_none()) {
            let Some(leaf) = line.sources.get(round) else { continue };
            let (leaf, at, len) = (Arc::clone(leaf), line.at, line.len);
            asked.push(number);
            let class = Some(IoClass::RebuildRead);
            starts.push(Box::new(move |told| leaf.read_as(at, len, class, told)));
        }
        for (number, result) in asked.into_iter().zip(all(executor, starts)) {
            if let (Some(Ok(data)), Some(line)) = (result, lines.get_mut(number)) {
                line.data = Some(data);
            }
        }
    }
}

/// Computes the columns that are wanted and were not read; `None` when too few were.
#[doc(alias = "vdev_raidz_reconstruct")]
fn compute(nparity: usize, lines: &mut [Line]) -> Option<()> {
    let is_missing = |line: &Line| line.is_wanted() && line.data.is_none();
    if !lines.iter().any(is_missing) {
        return Some(());
    }
    let mut bytes = Vec::with_capacity(lines.len());
    let mut missing = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        bytes.push(match &line.data {
            Some(data) => data.to_vec(),
            // Parity that no target needs.
            None if number < nparity && !line.is_wanted() => Vec::new(),
            None => {
                missing.push(number);
                vec![0; usize::try_from(line.len).ok()?]
            }
        });
    }
    let mut columns: Vec<&mut [u8]> = bytes.iter_mut().map(Vec::as_mut_slice).collect();
    raidz_math::reconstruct(nparity, &mut columns, &missing).ok()?;
    for number in missing {
        let (line, bytes) = (lines.get_mut(number)?, bytes.get(number)?);
        line.data = Some(Buf::from(bytes.as_slice()));
    }
    Some(())
}
