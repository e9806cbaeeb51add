//! Reads and checks every block of a pool, and reports damage.
//!
//! Each damaged block is reported with object, byte range, the leaves with bad bytes, and the source of the good
//! bytes; neighbouring blocks with the same result share one line. Leaves that are absent or known to be stale are
//! reported once each, with the number of blocks that lack them, instead of once per block.
//!
//! A deduplicated or cloned block is read once. If it is damaged, a second walk over the metadata finds all other
//! references to it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ondisk::Blkptr;
use parking_lot::Mutex;

use super::account::{Account, WINDOW_SECTORS, WalkEvent, WalkOptions, account};
use super::space::Met;
use super::traverse::{ReferenceKind, SPILL, Visit};
use crate::error::Error;
use crate::scan::damage::{Damage as Derived, assess};
use crate::spa::Pool;
use crate::traverse::reader::{INFLIGHT, Reader, Request};
use crate::types::Bookmark;
use crate::vdev::plan::{Depth, Fault};
use crate::vdev::top::VdevLayout;
use crate::vdev::tree::Tree;
use crate::zio::{Form, ReadOptions, ReadOutcome};

/// Maximum kept lines of damage; later ones are only counted.
const MAX_LINES: usize = 1 << 16;

/// The blocks to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyScope {
    /// None: blocks are only counted.
    None,
    /// Metadata.
    Metadata,
    /// All.
    All,
}

/// Options of the verification.
#[derive(Debug)]
pub struct VerifyOptions<'a> {
    /// The blocks to read.
    pub which: VerifyScope,
    /// One copy, or all of them.
    pub depth: Depth,
    /// Compare with the space maps.
    pub leaks: bool,
    /// Set when the user requests a stop: the findings so far are returned.
    pub stop: &'a AtomicBool,
    /// Bytes in flight.
    pub inflight: u64,
}

impl<'a> VerifyOptions<'a> {
    /// Everything, every copy.
    pub fn new(stop: &'a AtomicBool) -> Self {
        Self { which: VerifyScope::All, depth: Depth::All, leaks: true, stop, inflight: INFLIGHT }
    }
}

/// The source of the good bytes of a damaged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Remedy {
    /// Another side of the mirror.
    Mirror,
    /// Parity.
    Parity,
    /// Another copy of the block, elsewhere in the pool.
    Ditto,
    /// None: the block is lost.
    Lost,
}

impl Remedy {
    /// Human-readable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mirror => "other side of the mirror",
            Self::Parity => "parity",
            Self::Ditto => "ditto copy",
            Self::Lost => "nothing: lost",
        }
    }
}

/// The common attributes of several neighbouring blocks of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagePlace {
    /// Object set, 0: the MOS.
    pub objset: u64,
    /// Object.
    pub object: u64,
    /// Level of the blocks, see [`Bookmark`].
    pub level: i64,
    /// It is the object's spill block.
    pub spill: bool,
    /// Guids of leaves with bad bytes; 0 for other vdevs.
    pub leaves: Vec<u64>,
    /// Top-level vdev of the first.
    pub top: u64,
    /// The source of its good bytes.
    pub remedy: Remedy,
}

/// A line of damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// Location, and source of the good bytes.
    pub place: DamagePlace,
    /// First byte of the object.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Blocks.
    pub blocks: u64,
}

/// A leaf that could not serve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Absent {
    /// Blocks with a part on it.
    pub blocks: u64,
    /// It is present, but lacks writes.
    pub stale: bool,
}

/// The results of a verification.
#[derive(Debug, Default)]
pub struct Report {
    /// Totals, leaks, unreadable metadata.
    pub account: Account,
    /// Damage, by location.
    pub damage: Vec<Damaged>,
    /// Blocks with damage that redundancy covers.
    pub repairable_blocks: u64,
    /// Blocks that are lost.
    pub lost_blocks: u64,
    /// Absent and stale leaves by guid.
    pub absent: BTreeMap<u64, Absent>,
    /// Blocks read.
    pub blocks_read: u64,
    /// Bytes read, as allocated.
    pub bytes_read: u64,
    /// Failed reads, by kind of error, with zdb's words for each.
    pub failed: Vec<(Request, Error)>,
    /// More lines of damage were found than kept.
    pub more_lines: bool,
    /// Damaged space maps and tables, which `zpool import --rebuild` derives anew.
    pub derived: Vec<Derived>,
}

impl Report {
    /// Whether data is lost.
    pub fn is_lost(&self) -> bool {
        self.lost_blocks > 0 || self.account.unreadable_count > 0
    }

    /// Whether anything is damaged at all.
    pub fn is_damaged(&self) -> bool {
        let space = self.account.space.as_ref().is_some_and(|s| !s.is_clean());
        self.is_lost()
            || self.repairable_blocks > 0
            || !self.absent.is_empty()
            || space
            || !self.account.notes.is_empty()
            || !self.derived.is_empty()
    }
}

/// Progress.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Bytes read, as allocated.
    pub bytes: u64,
    /// Bytes to read, as far as known from the space maps.
    pub total: u64,
}

/// Verifies a pool. `progress` is called often, on the caller's thread; `tell` is called with every pointer.
pub fn verify(
    pool: &Pool,
    options: &VerifyOptions<'_>,
    progress: &mut dyn FnMut(Done),
    tell: &mut dyn FnMut(&WalkEvent<'_>),
) -> Report {
    let tree = pool.tree();
    let found = Arc::new(Mutex::new(Found::default()));
    let theirs = (Arc::clone(&found), Arc::clone(&tree));
    let told = Box::new(move |request: &Request, outcome: ReadOutcome| {
        theirs.0.lock().take(&theirs.1, request, outcome);
    });
    let read = ReadOptions { depth: options.depth, form: Form::Physical, ..ReadOptions::default() };
    let reader = Reader::new(&pool.zio, read, options.inflight, told);
    let mut total = 0;
    let mut met_bytes = 0_u64;
    let counting = WalkOptions { leaks: options.leaks, stop: options.stop, window: WINDOW_SECTORS };
    let account = account(pool, &counting, &mut |event| {
        if let WalkEvent::Start(allocated) = event {
            total = allocated;
        }
        if let WalkEvent::Block(visit, met) = &event
            && wanted(options.which, visit, *met)
        {
            met_bytes += visit.bp.asize();
            reader.push(request(visit));
        }
        tell(&event);
        if options.which != VerifyScope::None {
            progress(Done { bytes: reader.done(), total });
        }
    });
    // The remaining amount is now known exactly.
    reader.drain(|reader| {
        if options.stop.load(std::sync::atomic::Ordering::Relaxed) {
            reader.cancel();
        }
        progress(Done { bytes: reader.done(), total: met_bytes });
    });
    let bytes_read = reader.done();
    drop(reader);
    let found = std::mem::take(&mut *found.lock());
    let mut report = found.report(account, bytes_read);
    if options.which != VerifyScope::None {
        report.derived = assess(pool, options.stop);
        if !report.derived.is_empty() {
            // A map of a pool in use may change while it is read; real damage is found again.
            let again = assess(pool, options.stop);
            report.derived.retain(|damage| again.iter().any(|other| other.what == damage.what));
        }
    }
    report.account.stopped |= options.stop.load(std::sync::atomic::Ordering::Relaxed);
    report
}

fn request(visit: &Visit<'_>) -> Request {
    let spill = visit.at.blkid == SPILL;
    let start = if spill { 0 } else { visit.offset() };
    let end = if spill { visit.bp.lsize() } else { visit.end() };
    Request { bp: *visit.bp, at: visit.at, start, end, lead: false }
}

fn wanted(which: VerifyScope, visit: &Visit<'_>, met: Met) -> bool {
    let bp = visit.bp;
    let first = matches!(met, Met::First | Met::Elsewhere);
    // The contents of deferred frees are unneeded; zdb does not read them either.
    let stored = !bp.is_embedded() && !bp.is_hole() && visit.origin != ReferenceKind::Deferred;
    match which {
        VerifyScope::None => false,
        VerifyScope::Metadata => first && stored && bp.is_metadata(),
        VerifyScope::All => first && stored,
    }
}

#[derive(Debug, Default)]
struct Found {
    lines: BTreeMap<DamagePlace, BTreeMap<u64, (u64, u64)>>,
    count: usize,
    repairable: u64,
    lost: u64,
    absent: BTreeMap<u64, Absent>,
    read: u64,
    failed: Vec<(Request, Error)>,
    more_lines: bool,
}

impl Found {
    fn take(&mut self, tree: &Tree, request: &Request, outcome: ReadOutcome) {
        self.read += 1;
        if outcome.data.is_ok() && outcome.damage.is_empty() {
            return;
        }
        let is_log = request.at.level == Bookmark::ZIL;
        let mut wrong = BTreeSet::new();
        let mut lacking = BTreeSet::new();
        for damage in &outcome.damage {
            let absent = tree.leaf(damage.leaf).is_some_and(|leaf| leaf.device().is_none());
            match damage.bad.fault {
                Fault::Stale => lacking.insert((damage.leaf, true)),
                Fault::Unreadable if absent => lacking.insert((damage.leaf, false)),
                _ => wrong.insert((damage.top, damage.leaf)),
            };
        }
        match outcome.data {
            // The last block of a log was allocated ahead and never written.
            Err(_) if is_log => return,
            Err(error) => {
                self.lost += 1;
                if wrong.is_empty() {
                    wrong.extend(
                        lacking
                            .iter()
                            .map(|(leaf, _)| (request.bp.dva(0).map_or(0, |d| u64::from(d.vdev)), *leaf)),
                    );
                }
                self.line(request, &wrong, Remedy::Lost);
                if self.failed.len() < MAX_LINES {
                    self.failed.push((*request, error));
                }
            }
            Ok(_) if wrong.is_empty() => {}
            Ok(_) => {
                self.repairable += 1;
                self.line(request, &wrong, remedy(tree, &request.bp, &wrong));
            }
        }
        for (leaf, stale) in lacking {
            let absent = self.absent.entry(leaf).or_default();
            absent.blocks += 1;
            absent.stale |= stale;
        }
    }

    fn line(&mut self, request: &Request, wrong: &BTreeSet<(u64, u64)>, remedy: Remedy) {
        let place = DamagePlace {
            objset: request.at.objset,
            object: request.at.object,
            level: request.at.level,
            spill: request.at.blkid == SPILL,
            leaves: wrong.iter().map(|(_, leaf)| *leaf).collect(),
            top: wrong.first().map_or(0, |(top, _)| *top),
            remedy,
        };
        let runs = self.lines.entry(place).or_default();
        let (mut start, mut end, mut blocks) = (request.start, request.end, 1);
        if let Some((&before, &(stop, n))) = runs.range(..start).next_back()
            && stop == start
        {
            runs.remove(&before);
            (start, blocks) = (before, blocks + n);
            self.count -= 1;
        }
        if let Some((stop, n)) = runs.remove(&end) {
            (end, blocks) = (stop, blocks + n);
            self.count -= 1;
        }
        if self.count < MAX_LINES {
            runs.insert(start, (end, blocks));
            self.count += 1;
        } else {
            self.more_lines = true;
        }
    }

    fn report(self, account: Account, bytes_read: u64) -> Report {
        let mut damage = Vec::new();
        for (place, runs) in self.lines {
            let line = |(start, (end, blocks))| Damaged { place: place.clone(), start, end, blocks };
            damage.extend(runs.into_iter().map(line));
        }
        Report {
            account,
            damage,
            repairable_blocks: self.repairable,
            lost_blocks: self.lost,
            absent: self.absent,
            blocks_read: self.read,
            bytes_read,
            failed: self.failed,
            more_lines: self.more_lines,
            derived: Vec::new(),
        }
    }
}

/// The source of the good bytes, derived from the layout and the extent of the damage.
fn remedy(tree: &Tree, bp: &Blkptr, wrong: &BTreeSet<(u64, u64)>) -> Remedy {
    let Some((top, _)) = wrong.first() else { return Remedy::Ditto };
    let bad = wrong.iter().filter(|(t, _)| t == top).count();
    let ditto = bp.ndvas() > 1;
    let Some(vdev) = tree.top(*top) else { return Remedy::Ditto };
    match &vdev.layout {
        VdevLayout::Raidz(geometry) => covered(bad <= geometry.nparity as usize, ditto, Remedy::Parity),
        VdevLayout::Draid(_) => Remedy::Parity,
        _ => {
            let sides = vdev.children().first().map_or(0, Vec::len);
            covered(sides > 1 && bad < sides, ditto, Remedy::Mirror)
        }
    }
}

fn covered(by_vdev: bool, ditto: bool, remedy: Remedy) -> Remedy {
    // Parity and mirrors can also recover a block when each leaf is bad in a different part of it.
    if by_vdev || !ditto { remedy } else { Remedy::Ditto }
}

/// All other references to damaged blocks that are deduplicated or cloned.
pub fn other_references(pool: &Pool, lost: &HashSet<(u32, u64)>, stop: &AtomicBool) -> Vec<Request> {
    let mut all = Vec::new();
    let counting = WalkOptions { leaks: false, stop, window: WINDOW_SECTORS };
    account(pool, &counting, &mut |event| {
        if let WalkEvent::Block(visit, Met::Deduplicated | Met::Cloned) = event
            && visit.bp.dva(0).is_some_and(|d| lost.contains(&(d.vdev, d.offset)))
            && all.len() < MAX_LINES
        {
            all.push(request(visit));
        }
    });
    all
}
