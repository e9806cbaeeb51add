//! Compares every block's locations with the space maps.
//!
//! A pass covers a *window* of the pool's space: for each sector in it one bit for "allocated in a space map" and
//! one for "used by a block". Pools too large for the granted memory take several passes over the metadata. A
//! deduplicated or cloned block claims its locations once; further references are counted as saved space.
//!
//! Findings:
//! - *leaks*: allocated, but not used by a block;
//! - *double use*: two blocks that are neither deduplicated nor cloned share a sector;
//! - *unallocated*: used by a block, but free in the space map.
//!
//! Differs from OpenZFS: the first reference of a deduplicated block is recognised by its locations being
//! unclaimed, not by the dedup table; a damaged space map makes its metaslab unknown instead of ending the check.

use std::collections::{BTreeMap, HashSet};

use ondisk::{Blkptr, Dva};
use stdx::RangeSet;

use super::bitmap::Bitmap;
use super::clones::Clones;
use super::space_maps::SpaceMaps;
use crate::ddt;
use crate::error::{Error, Kind};
use crate::spa::Pool;
use crate::vdev::indirect::{MAX_PIECES, Segment};
use crate::zio::gang_members;

/// Maximum kept findings of a kind.
const MAX_FINDINGS: usize = 1 << 16;
/// Maximum nesting of gangs.
const MAX_NESTING: u32 = 16;

/// A run of bytes on a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpaceRange {
    /// Top-level vdev.
    pub vdev: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Violations in the use of space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Allocated and unused.
    pub leaked: Vec<SpaceRange>,
    /// Used twice.
    pub doubled: Vec<SpaceRange>,
    /// Used and not allocated.
    pub unallocated: Vec<SpaceRange>,
    /// Bytes leaked.
    pub leaked_bytes: u64,
    /// Bytes used twice.
    pub doubled_bytes: u64,
    /// Bytes used and not allocated.
    pub unallocated_bytes: u64,
}

impl Findings {
    /// Whether there are no findings.
    pub fn is_clean(&self) -> bool {
        self.leaked_bytes == 0 && self.doubled_bytes == 0 && self.unallocated_bytes == 0
    }
}

impl Findings {
    /// Adds the findings of another pass.
    pub(crate) fn merge(&mut self, other: Self) {
        let join = |mine: &mut Vec<SpaceRange>, theirs: Vec<SpaceRange>| {
            let room = MAX_FINDINGS.saturating_sub(mine.len());
            mine.extend(theirs.into_iter().take(room));
        };
        join(&mut self.leaked, other.leaked);
        join(&mut self.doubled, other.doubled);
        join(&mut self.unallocated, other.unallocated);
        self.leaked_bytes += other.leaked_bytes;
        self.doubled_bytes += other.doubled_bytes;
        self.unallocated_bytes += other.unallocated_bytes;
    }
}

fn note(list: &mut Vec<SpaceRange>, bytes: &mut u64, run: SpaceRange) {
    *bytes += run.size;
    if list.len() < MAX_FINDINGS {
        list.push(run);
    }
}

/// Metaslabs of one pass, by vdev: `[first, end)`.
pub(crate) type Window = BTreeMap<u64, (u64, u64)>;

/// Divides the pool's space into windows whose bitmaps stay within `bits` sectors.
pub(crate) fn windows(maps: &SpaceMaps, bits: u64) -> Vec<Window> {
    let mut all = vec![Window::new()];
    let mut left = bits;
    for top in &maps.tops {
        let each = (1_u64 << top.ms_shift) >> top.ashift;
        for (ms, metaslab) in (0_u64..).zip(&top.metaslabs) {
            // For an empty metaslab only the table of chunks takes memory.
            let cost = if metaslab.object == 0 && metaslab.alloc == 0 { each >> 9 } else { each };
            if cost > left {
                all.push(Window::new());
                left = bits;
            }
            left = left.saturating_sub(cost);
            if let Some(window) = all.last_mut() {
                window.entry(top.id).or_insert((ms, ms)).1 = ms + 1;
            }
        }
    }
    all
}

#[derive(Debug)]
struct Sectors {
    ashift: u32,
    ms_shift: u32,
    start: u64,
    end: u64,
    allocated: Bitmap,
    used: Bitmap,
}

impl Sectors {
    /// The part of a byte range in the window, in sectors from the window's start.
    fn bits(&self, start: u64, end: u64) -> (u64, u64) {
        let (start, end) = (start.clamp(self.start, self.end), end.clamp(self.start, self.end));
        ((start - self.start) >> self.ashift, (end - self.start).div_ceil(1 << self.ashift))
    }

    fn run(&self, vdev: u64, from: u64, to: u64) -> SpaceRange {
        SpaceRange { vdev, offset: self.start + (from << self.ashift), size: (to - from) << self.ashift }
    }
}

/// The role of a reference to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// The first reference.
    First,
    /// A further reference of a deduplicated block.
    Deduplicated,
    /// A further reference of a cloned block.
    Cloned,
    /// Outside of this pass's window.
    Elsewhere,
}

/// State while one block claims its locations: it bounds the work for a forged block.
#[derive(Default)]
struct Claiming {
    /// Gang headers.
    headers: HashSet<Dva>,
    /// Pieces that removed vdevs map to.
    pieces: usize,
}

/// One pass over a window.
#[derive(Debug)]
pub(crate) struct SpaceCheck<'p> {
    pool: &'p Pool,
    clones: Clones<'p>,
    tops: BTreeMap<u64, Sectors>,
    /// Claims are compared with space maps, and with each other.
    compares: bool,
    /// The findings so far.
    pub(crate) findings: Findings,
    /// Gang headers and mappings that could not be read.
    pub(crate) notes: Vec<Error>,
    /// Bytes that the last block claimed beyond those of its first pointer.
    pub(crate) further: u64,
}

impl<'p> SpaceCheck<'p> {
    /// Applies the space maps of a window.
    pub(crate) fn new(pool: &'p Pool, maps: &mut SpaceMaps, window: &Window) -> Self {
        let mut tops = BTreeMap::new();
        for top in &maps.tops {
            let Some((first, end)) = window.get(&top.id) else { continue };
            let (start, end) = (first << top.ms_shift, end << top.ms_shift);
            let bits = (end - start) >> top.ashift;
            let (allocated, used) = (Bitmap::new(bits), Bitmap::new(bits));
            let sectors = Sectors { ashift: top.ashift, ms_shift: top.ms_shift, start, end, allocated, used };
            tops.insert(top.id, sectors);
        }
        let mut fill = |vdev: u64, start: u64, end: u64, on: bool| {
            if let Some(sectors) = tops.get_mut(&vdev) {
                let (from, to) = sectors.bits(start, end);
                sectors.allocated.fill(from, to, on);
            }
        };
        let wanted = |vdev: u64, ms: u64| window.get(&vdev).is_some_and(|(a, b)| (*a..*b).contains(&ms));
        maps.replay(pool, &wanted, &mut fill);
        maps.checkpointed(pool, &mut |vdev, start, end| fill(vdev, start, end, false));
        let (clones, findings) = (Clones::new(pool), Findings::default());
        Self { pool, clones, tops, compares: true, findings, notes: Vec::new(), further: 0 }
    }

    /// A pass that only gathers the space in use; the space maps are not read.
    pub(crate) fn blank(pool: &'p Pool, shape: &SpaceMaps, window: &Window) -> Self {
        let mut tops = BTreeMap::new();
        for top in &shape.tops {
            let Some((first, end)) = window.get(&top.id) else { continue };
            let (start, end) = (first << top.ms_shift, end << top.ms_shift);
            let used = Bitmap::new((end - start) >> top.ashift);
            let (ashift, ms_shift, allocated) = (top.ashift, top.ms_shift, Bitmap::default());
            tops.insert(top.id, Sectors { ashift, ms_shift, start, end, allocated, used });
        }
        let (clones, findings) = (Clones::new(pool), Findings::default());
        Self { pool, clones, tops, compares: false, findings, notes: Vec::new(), further: 0 }
    }

    /// Marks all locations of a block as in use. Returns whether the first of them was in use, in this pass's window.
    pub(crate) fn keep(&mut self, bp: &Blkptr) -> bool {
        let again = bp.dva(0).and_then(|dva| self.is_used(&dva));
        self.claim(bp, &mut Claiming::default(), 0);
        again.unwrap_or(false)
    }

    /// The space in use in each metaslab of the window, by vdev.
    pub(crate) fn used(&self, shape: &SpaceMaps, window: &Window) -> BTreeMap<u64, Vec<RangeSet>> {
        let mut all = BTreeMap::new();
        for top in &shape.tops {
            let (Some((first, end)), Some(sectors)) = (window.get(&top.id), self.tops.get(&top.id)) else {
                continue;
            };
            let mut runs = sectors.used.difference(&sectors.allocated).peekable();
            let metaslabs = all.entry(top.id).or_insert_with(Vec::new);
            for id in *first..*end {
                let (from, size) = top.place(id);
                let mut metaslab = RangeSet::new();
                while let Some(&(start, stop)) = runs.peek() {
                    let run = sectors.run(top.id, start, stop);
                    let last = run.offset.saturating_add(run.size);
                    let (start, stop) = (run.offset.max(from), last.min(from.saturating_add(size)));
                    if start < stop {
                        metaslab.insert(start, stop);
                    }
                    // A run that goes on belongs to the next metaslab, too.
                    if last > from.saturating_add(size) {
                        break;
                    }
                    runs.next();
                }
                metaslabs.push(metaslab);
            }
        }
        all
    }

    /// Counts a reference to a block, and claims its locations if it is the first. A block of a dedup table may have got more
    /// copies since other pointers to it were written.
    pub(crate) fn meet(&mut self, bp: &Blkptr) -> Met {
        let Some(first) = bp.dva(0) else { return Met::First };
        let met = match self.is_used(&first) {
            None => Met::Elsewhere,
            Some(true) if bp.dedup() => Met::Deduplicated,
            Some(true) if self.clones.references(&first) > 0 => Met::Cloned,
            Some(_) => Met::First,
        };
        let is_shared = bp.dedup() || self.clones.references(&first) > 0;
        match met {
            Met::Deduplicated => self.claim_further(bp),
            Met::Elsewhere if is_shared && !bp.is_gang() => self.claim_further(bp),
            Met::Cloned => {}
            Met::First | Met::Elsewhere => self.claim(bp, &mut Claiming::default(), 0),
        }
        met
    }

    /// Claims the copies of a block, in this window, that no pointer named before.
    fn claim_further(&mut self, bp: &Blkptr) {
        self.further = 0;
        for dva in bp.dvas().filter(|dva| !dva.gang) {
            if self.is_used(&dva) == Some(false) {
                self.claim_range(u64::from(dva.vdev), dva.offset, dva.asize, &mut Claiming::default());
                self.further = self.further.saturating_add(dva.asize);
            }
        }
    }

    /// Claims the copies that only entries of dedup tables name, after all pointers: those that were written before a block got
    /// them have fewer. Returns their bytes.
    #[doc(alias = "zdb_count_block")]
    pub(crate) fn claim_listed(&mut self) -> u64 {
        let mut bytes = 0_u64;
        // The check of tables reports entries that cannot be read.
        let tables = ddt::tables(&self.pool.mos, &mut Vec::new());
        for table in tables.iter().filter(|table| table.is_flat()) {
            let stored = table.stores.iter().flat_map(|store| store.entries()).filter_map(Result::ok);
            let logged = table.logs.iter().flat_map(|log| &log.entries);
            let logged = logged.map(|(key, entry)| (*key, entry.phys.clone()));
            for (key, all) in stored.map(|entry| (entry.key, entry.phys)).chain(logged) {
                for bp in all.iter().filter(|p| p.phys_birth != 0).map(|p| p.blkptr(&key, table.checksum)) {
                    let is_met = bp.dva(0).is_some_and(|first| self.is_used(&first) != Some(false));
                    if is_met && bp.dvas().nth(1).is_some() {
                        self.claim_further(&bp);
                        bytes = bytes.saturating_add(self.further);
                    }
                }
            }
        }
        bytes
    }

    /// Whether the first sector of a copy is already in use; `None` outside of the window.
    fn is_used(&self, dva: &Dva) -> Option<bool> {
        let (mut vdev, mut offset) = (u64::from(dva.vdev), dva.offset);
        let tree = self.pool.zio.tree();
        if tree.top(vdev).is_some_and(|top| top.is_removed()) {
            let pieces = tree.pieces(Segment::new(vdev, offset, 512)).ok()?;
            (vdev, offset) = pieces.first().map(|piece| (piece.vdev, piece.offset))?;
        }
        let sectors = self.tops.get(&vdev)?;
        let inside = (sectors.start..sectors.end).contains(&offset);
        inside.then(|| sectors.used.get((offset - sectors.start) >> sectors.ashift))
    }

    fn claim(&mut self, bp: &Blkptr, claiming: &mut Claiming, nesting: u32) {
        for dva in bp.dvas() {
            if !dva.gang {
                self.claim_range(u64::from(dva.vdev), dva.offset, dva.asize, claiming);
            }
        }
        if bp.is_gang() {
            self.claim_gang(bp, claiming, nesting);
        }
    }

    /// Claims a gang's headers, then its members, which all headers name alike.
    fn claim_gang(&mut self, bp: &Blkptr, claiming: &mut Claiming, nesting: u32) {
        if nesting >= MAX_NESTING || bp.dva(0).is_none_or(|dva| !claiming.headers.insert(dva)) {
            return self.note(Error::new(Kind::Loop, "a gang contains itself"));
        }
        match gang_members(&self.pool.zio, bp) {
            Ok(gang) => {
                for dva in bp.dvas().filter(|d| d.gang) {
                    let vdev = u64::from(dva.vdev);
                    let tree = self.pool.zio.tree();
                    let size =
                        tree.top(vdev).map_or(512, |top| top.asize_of(gang.header_size, bp.physical_birth()));
                    self.claim_range(vdev, dva.offset, size, claiming);
                }
                for member in &gang.members {
                    self.claim(member, claiming, nesting + 1);
                }
            }
            Err(e) => self.note(e),
        }
    }

    fn claim_range(&mut self, vdev: u64, offset: u64, size: u64, claiming: &mut Claiming) {
        let tree = self.pool.zio.tree();
        if !tree.top(vdev).is_some_and(|top| top.is_removed()) {
            return self.claim_here(vdev, offset, size);
        }
        match tree.pieces(Segment::new(vdev, offset, size)) {
            Ok(pieces) if claiming.pieces + pieces.len() <= MAX_PIECES => {
                claiming.pieces += pieces.len();
                pieces.iter().for_each(|piece| self.claim_here(piece.vdev, piece.offset, piece.len));
            }
            Ok(_) => self.note(Error::new(Kind::Loop, "removed vdevs map a block to too many pieces")),
            Err(e) => self.note(e),
        }
    }

    /// Notes that a location could not be determined.
    fn note(&mut self, why: Error) {
        if self.notes.len() < MAX_FINDINGS {
            self.notes.push(why);
        }
    }

    /// Claims a range of a vdev that is there.
    fn claim_here(&mut self, vdev: u64, offset: u64, size: u64) {
        let Some(sectors) = self.tops.get_mut(&vdev) else { return };
        let (from, to) = sectors.bits(offset, offset.saturating_add(size));
        if from >= to {
            return;
        }
        let run = sectors.run(vdev, from, to);
        if !self.compares {
            sectors.used.fill(from, to, true);
            return;
        }
        if sectors.allocated.count(from, to) != to - from {
            note(&mut self.findings.unallocated, &mut self.findings.unallocated_bytes, run);
        }
        if sectors.used.fill(from, to, true) != to - from {
            note(&mut self.findings.doubled, &mut self.findings.doubled_bytes, run);
        }
    }

    /// Claims a range that no block pointer names (a removal's copies).
    pub(crate) fn claim_moved(&mut self, vdev: u64, offset: u64, size: u64) {
        self.claim_range(vdev, offset, size, &mut Claiming::default());
    }

    /// Ends the pass: allocated and unused sectors are leaked. Unknown metaslabs are excluded from every finding.
    pub(crate) fn finish(mut self, maps: &SpaceMaps) -> (Findings, Vec<Error>) {
        for (vdev, sectors) in &self.tops {
            for (from, to) in sectors.allocated.difference(&sectors.used) {
                // One finding never crosses metaslabs, as in zdb.
                let each = 1_u64 << (sectors.ms_shift - sectors.ashift.min(sectors.ms_shift));
                let mut at = from;
                while at < to {
                    let end = to.min((at / each + 1) * each);
                    let run = sectors.run(*vdev, at, end);
                    note(&mut self.findings.leaked, &mut self.findings.leaked_bytes, run);
                    at = end;
                }
            }
        }
        if !maps.unknown.is_empty() {
            let shifts: BTreeMap<u64, u32> = self.tops.iter().map(|(id, s)| (*id, s.ms_shift)).collect();
            let known = |run: &SpaceRange| {
                let shift = shifts.get(&run.vdev).copied().unwrap_or(0);
                let (first, last) = (run.offset >> shift, (run.offset + run.size.max(1) - 1) >> shift);
                !(first..=last).any(|ms| maps.unknown.contains(&(run.vdev, ms)))
            };
            keep(&mut self.findings.leaked, &mut self.findings.leaked_bytes, &known);
            keep(&mut self.findings.unallocated, &mut self.findings.unallocated_bytes, &known);
        }
        (self.findings, self.notes)
    }
}

fn keep(list: &mut Vec<SpaceRange>, bytes: &mut u64, known: &dyn Fn(&SpaceRange) -> bool) {
    let full = list.len() >= MAX_FINDINGS;
    list.retain(known);
    if !full {
        *bytes = list.iter().map(|r| r.size).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::space_maps::{MetaslabMap, TopSpace};
    use crate::vdev::config::AllocBias;

    fn top(id: u64, metaslabs: Vec<MetaslabMap>) -> TopSpace {
        let (bias, ashift, ms_shift) = (AllocBias::Normal, 12, 24);
        TopSpace { id, bias, ashift, ms_shift, row: 1, metaslabs, checkpoint: 0, removing: false, mapping: 0 }
    }

    #[test]
    fn windows_hold_every_metaslab_once_within_the_memory() {
        let full = MetaslabMap { object: 7, alloc: 1, unflushed_txg: 0 };
        let mut maps = SpaceMaps::default();
        maps.tops = vec![top(0, vec![full; 5]), top(2, vec![full, MetaslabMap::default(), full])];
        // A metaslab has 4096 sectors: three of them fit.
        let all = windows(&maps, 3 * 4096 + 100);
        let met: Vec<(u64, u64)> =
            all.iter().flatten().flat_map(|(id, (a, b))| (*a..*b).map(move |ms| (*id, ms))).collect();
        assert_eq!(met, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (2, 0), (2, 1), (2, 2)]);
        assert_eq!(all.len(), 3);
        assert_eq!(windows(&maps, u64::MAX).len(), 1);
    }
}
