//! The blocks of a snapshot that snapshots of its clones changed: the content of a redaction list.
//!
//! A block is redacted when *all* redaction snapshots changed or freed it. Each of them is walked for everything born
//! since the snapshot, which yields ranges of blocks in the order of objects and blocks; the ranges of the first
//! walk that all other walks meet, too, are looked up in the snapshot and become runs.
//!
//! The walks are done window by window: the first walk stops after [`WINDOW`] ranges, the others cover the same span,
//! and the next window begins where this one ended. So memory is bounded, and the place where a window ends can be
//! kept: a later [`Search`] continues there.
//!
//! Differs from OpenZFS: no threads and queues. An object whose block size a clone changed, and blocks behind the last
//! pointer of an object in a clone, count as changed; OpenZFS compares block numbers of different sizes and does not
//! visit the latter, so data that a clone replaced may stay in its redacted streams.
//!
//! Source: `redact_cb`, `perform_thread_merge`, `perform_redaction`, dmu_redact.c, OpenZFS 2.4, for the set
//! of redacted blocks.

use std::collections::HashSet;
use std::sync::Arc;

use ondisk::dsl::RedactBlock;
use ondisk::names::{MASTER_NODE_OBJECT, master_node};
use ondisk::{Dnode, ObjsetType};

use super::Meter;
use super::event::{Sink, StreamEvent};
use super::redaction::RedactedRange;
use super::walk::{self, Begin};
use crate::dmu::{Blocks, Object, Objset, SpecialObject};
use crate::dsl::Dataset;
use crate::error::{Error, Kind, Result};
use crate::zap::Zap;

/// Ranges that are kept in memory.
const WINDOW: usize = 1 << 16;
/// Dnodes of a block, as the order of ranges counts them.
const PER_BLOCK: u64 = 32;

pub(crate) use crate::dsl::write::redaction::{COMPLETE as END, RedactedPlace};

/// Where a search begins: object 0 is the array of all others.
const FIRST: RedactedPlace = (1, 0);

/// Blocks from the first place up to the second, which may be in different objects.
type Range = (RedactedPlace, RedactedPlace);

/// A search for the blocks of a snapshot that other snapshots changed.
#[derive(Debug)]
pub struct Search {
    of: Arc<Objset>,
    since: u64,
    by: Vec<Changed>,
    at: RedactedPlace,
    window: usize,
}

/// A redaction snapshot.
#[derive(Debug)]
struct Changed {
    objset: Arc<Objset>,
    /// Files that were removed while they were open.
    unlinked: HashSet<u64>,
    /// Whether a hole of unknown birth has been one as long as its object exists, which is since before the snapshot.
    old_holes: bool,
}

impl Changed {
    fn open(dataset: &Dataset, old_holes: bool) -> Result<Self> {
        let objset = dataset.objset()?;
        // With one block of dnodes no object number was used twice.
        let meta = objset.special(SpecialObject::Meta);
        let old_holes = old_holes && meta.is_some_and(|meta| meta.dnode.maxblkid == 0);
        let mut unlinked = HashSet::new();
        if objset.phys.objset_type == ObjsetType::Zfs {
            let master = Zap::open(&objset.object(MASTER_NODE_OBJECT)?)?;
            if let Some(queue) = master.u64(master_node::UNLINKED_SET)? {
                for entry in Zap::open(&objset.object(queue)?)?.entries() {
                    unlinked.extend(entry?.value.first());
                }
            }
        }
        Ok(Self { objset, unlinked, old_holes })
    }
}

impl Search {
    /// Begins a search in `snapshot` for blocks that all of `by`, which descend from it, have changed.
    /// `hole_birth` is the txg since which holes know their birth; `None` when they don't.
    ///
    /// # Errors
    /// `KeyMissing` when a dataset is encrypted and its key is not loaded; errors of reads.
    pub fn new(snapshot: &Dataset, by: &[Dataset], hole_birth: Option<u64>) -> Result<Self> {
        let since = snapshot.phys.creation_txg;
        let old_holes = hole_birth.is_some_and(|txg| txg <= since);
        let by = by.iter().map(|dataset| Changed::open(dataset, old_holes)).collect::<Result<_>>()?;
        Ok(Self { of: snapshot.objset()?, since, by, at: FIRST, window: WINDOW })
    }

    /// Keeps at most `ranges` in memory (at least 1) instead of [`WINDOW`].
    pub fn set_window(&mut self, ranges: usize) {
        self.window = ranges.max(1);
    }

    /// Continues where an earlier search had come to.
    pub fn go_on_from(&mut self, place: RedactedPlace) {
        self.at = place.max(FIRST);
    }

    /// The place up to which everything was found; [`END`] when nothing is left.
    pub fn place(&self) -> RedactedPlace {
        self.at
    }

    /// Whether nothing is left to be found.
    pub fn is_done(&self) -> bool {
        self.at == END
    }

    /// The next entries of the list, in order; there may be none before the end. `meter` counts visited pointers and can stop the
    /// search.
    ///
    /// # Errors
    /// `Interrupted` by the meter; errors of reads.
    pub fn next_entries(&mut self, meter: &Meter) -> Result<Vec<RedactBlock>> {
        let mut limit = END;
        let mut ranges: Option<Vec<Range>> = None;
        for changed in &self.by {
            let mut found = Found::new(self, changed, ranges.as_deref(), limit);
            let begin = Begin { from_txg: self.since, resume: self.at, past_end: true, ..Begin::default() };
            let walked =
                walk::walk(&changed.objset, begin, &mut found, meter).and_then(|()| found.object_ends());
            match walked {
                Err(e) if found.stopped.is_none() => return Err(e),
                _ => {}
            }
            limit = found.stopped.map_or(limit, |at| at.min(limit));
            ranges = Some(found.ranges);
        }
        let (mut runs, mut known) = (Vec::new(), None);
        for (start, end) in ranges.unwrap_or_default() {
            let end = end.min(limit);
            if start < end {
                self.runs_of(start, end, &mut known, &mut runs)?;
            }
        }
        self.at = limit;
        Ok(runs.iter().flat_map(entries).collect())
    }

    /// The blocks of the snapshot's data in a range. `known` is the object of the last range that was in one object.
    fn runs_of(
        &self,
        start: RedactedPlace,
        end: RedactedPlace,
        known: &mut Option<Object>,
        runs: &mut Vec<RedactedRange>,
    ) -> Result<()> {
        if end.0 == start.0 || end == (start.0.saturating_add(1), 0) {
            if known.as_ref().is_none_or(|known| known.number != start.0) {
                *known = match self.of.object(start.0) {
                    Ok(object) => Some(object),
                    Err(e) if e.kind() == Kind::NotFound => return Ok(()),
                    Err(e) => return Err(e),
                };
            }
            if let Some(object) = known {
                add_run(object, start, end, runs);
            }
            return Ok(());
        }
        for object in self.of.objects_from(start.0) {
            let object = object?;
            if (object.number, 0) >= end {
                break;
            }
            if object.number >= start.0 {
                add_run(&object, start, end, runs);
            }
        }
        Ok(())
    }
}

/// A run as entries of a list.
fn entries(run: &RedactedRange) -> impl Iterator<Item = RedactBlock> + use<> {
    let RedactedRange { object, start, end, size } = *run;
    let step = usize::try_from(RedactBlock::MAX_COUNT).unwrap_or(usize::MAX);
    (start..end)
        .step_by(step)
        .map(move |at| RedactBlock::new(object, at, (end - at).min(RedactBlock::MAX_COUNT), size))
}

/// Adds the blocks of an object in a range, unless it holds metadata.
fn add_run(object: &Object, start: RedactedPlace, end: RedactedPlace, runs: &mut Vec<RedactedRange>) {
    let (number, dnode) = (object.number, &object.dnode);
    let blocks = dnode.maxblkid.saturating_add(1);
    let first = if number == start.0 { start.1 } else { 0 };
    let last = if number == end.0 { blocks.min(end.1) } else { blocks };
    if first >= last || dnode.object_type.is_metadata() {
        return;
    }
    match runs.last_mut() {
        Some(known) if known.object == number && known.end == first => known.end = last,
        _ => runs.push(RedactedRange { object: number, start: first, end: last, size: dnode.datablksz() }),
    }
}

/// The ranges of one walk, or those of them that are in ranges that are known.
struct Found<'a> {
    search: &'a Search,
    changed: &'a Changed,
    known: Option<&'a [Range]>,
    /// The first of the known ranges that does not end before the walk.
    next: usize,
    limit: RedactedPlace,
    ranges: Vec<Range>,
    /// The place where the walk stopped, when it did.
    stopped: Option<RedactedPlace>,
    /// The object at hand: number, first block that it can't have, whether all of it counts as changed.
    object: Option<(u64, u64, bool)>,
}

impl<'a> Found<'a> {
    fn new(
        search: &'a Search,
        changed: &'a Changed,
        known: Option<&'a [Range]>,
        limit: RedactedPlace,
    ) -> Self {
        Self { search, changed, known, next: 0, limit, ranges: Vec::new(), stopped: None, object: None }
    }

    fn stop(&mut self, at: RedactedPlace) -> Error {
        self.stopped.get_or_insert(at);
        Error::new(Kind::Interrupted, "the window is full")
    }

    /// A range of changed blocks, behind all earlier ones.
    fn range(&mut self, start: RedactedPlace, end: RedactedPlace) -> Result<()> {
        let start = start.max(self.search.at);
        if start >= self.limit {
            return Err(self.stop(self.limit));
        }
        let end = end.min(self.limit);
        if start >= end {
            return Ok(());
        }
        let Some(known) = self.known else { return self.push(start, end) };
        while let Some(&(first, last)) = known.get(self.next) {
            if first >= end {
                break;
            }
            let (first, last) = (first.max(start), last.min(end));
            if first < last {
                self.push(first, last)?;
            }
            if last == end {
                // It may reach into the next range.
                break;
            }
            self.next += 1;
        }
        Ok(())
    }

    fn push(&mut self, start: RedactedPlace, end: RedactedPlace) -> Result<()> {
        if let Some((_, last)) = self.ranges.last_mut()
            && *last >= start
        {
            *last = end.max(*last);
            return Ok(());
        }
        if self.ranges.len() >= self.search.window {
            return Err(self.stop(start));
        }
        self.ranges.push((start, end));
        Ok(())
    }

    /// Blocks that the object at hand can't have any more were freed.
    fn object_ends(&mut self) -> Result<()> {
        match self.object.take() {
            Some((number, _, true)) => self.range((number, 0), (number.saturating_add(1), 0)),
            Some((number, reach, false)) if reach < u64::MAX => {
                self.range((number, reach), (number.saturating_add(1), 0))
            }
            _ => Ok(()),
        }
    }

    fn begins(&mut self, number: u64, dnode: &Dnode) -> Result<()> {
        self.object_ends()?;
        if (number, 0) >= self.limit {
            return Err(self.stop(self.limit));
        }
        let is_gone = self.changed.unlinked.contains(&number);
        let is_other = || match self.search.of.object(number) {
            Ok(old) => Ok(old.dnode.datablksz() != dnode.datablksz()),
            Err(e) if e.kind() == Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        };
        let is_changed = is_gone || is_other()?;
        let below = u32::from(dnode.nlevels.saturating_sub(1)) * dnode.blocks_per_indirect_shift();
        let pointers = u64::try_from(dnode.blkptrs().len()).unwrap_or(0);
        let reach = if below < pointers.leading_zeros() { pointers << below } else { u64::MAX };
        self.object = Some((number, reach, is_changed));
        Ok(())
    }

    fn blocks(&mut self, number: u64, start: u64, end: u64) -> Result<()> {
        match self.object {
            Some((object, _, true)) if object == number => Ok(()),
            _ if end == u64::MAX => self.range((number, start), (number.saturating_add(1), 0)),
            _ => self.range((number, start), (number, end)),
        }
    }

    /// A hole that may always have been one: data that the snapshot has there was freed.
    fn always_hole(&mut self, number: u64, start: u64, end: u64) -> Result<()> {
        let old = match self.search.of.object(number) {
            Ok(old) => old,
            Err(e) if e.kind() == Kind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        let (mut blocks, mut at) = (Blocks::new(&old), start);
        while let Some(stored) = blocks.next_within(at, end).map_err(|(_, e)| e)? {
            at = stored.saturating_add(1);
            self.blocks(number, stored, at)?;
        }
        Ok(())
    }
}

impl Sink for Found<'_> {
    fn take(&mut self, event: StreamEvent) -> Result<()> {
        match event {
            StreamEvent::Dnodes { .. } | StreamEvent::Spill { .. } => Ok(()),
            StreamEvent::Object(found) => self.begins(found.number, &found.dnode()?.to_dnode()),
            StreamEvent::NoObject { number } => {
                self.object_ends()?;
                self.range((number, 0), (number.saturating_add(1), 0))
            }
            StreamEvent::NoObjects { start, end } => {
                self.object_ends()?;
                let first = start.saturating_mul(PER_BLOCK);
                let end = if end == 0 { u64::MAX } else { end.saturating_mul(PER_BLOCK) };
                self.range((first.max(1), 0), (end, 0))
            }
            StreamEvent::Hole { object, start, end, birth } => {
                let end = if end == 0 { u64::MAX } else { end };
                match birth == 0 && self.changed.old_holes {
                    true => self.always_hole(object.number, start, end),
                    false => self.blocks(object.number, start, end),
                }
            }
            StreamEvent::Data { object, blkid, .. } => {
                self.blocks(object.number, blkid, blkid.saturating_add(1))
            }
            StreamEvent::Redact { object, start, end, .. } => self.blocks(object, start, end),
        }
    }
}
