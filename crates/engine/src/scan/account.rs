//! The walk, the counting and the space maps together: the information of `zdb -b`.

use std::sync::atomic::{AtomicBool, Ordering};

use super::space::{Findings, Met, SpaceCheck, windows};
use super::space_maps::SpaceMaps;
use super::stats::{BlockStats, Ditto};
use super::traverse::{Stop, Visit, Visitor, traverse};
use crate::error::Error;
use crate::spa::Pool;
use crate::types::Bookmark;
use crate::vdev::config::AllocBias;

/// Default sectors per pass: 2 TiB of 4 KiB sectors in two bitmaps of 64 MiB each, if all of it is allocated.
pub const WINDOW_SECTORS: u64 = 1 << 29;
/// Maximum number of kept errors.
const MAX_ERRORS: usize = 4096;
/// OpenZFS reserves a metaslab for the intent log on vdevs with more metaslabs than this.
#[doc(alias = "zfs_embedded_slog_min_ms")]
const EMBEDDED_LOG_MIN: usize = 64;

/// Options of the walk.
#[derive(Debug)]
pub struct WalkOptions<'a> {
    /// Compare with the space maps.
    pub leaks: bool,
    /// Set when the user requests a stop.
    pub stop: &'a AtomicBool,
    /// Sectors per pass.
    pub window: u64,
}

/// Events of a walk, for callers that need all of them.
#[derive(Debug)]
pub enum WalkEvent<'a> {
    /// The walk begins; holds the allocated bytes according to the space maps.
    Start(u64),
    /// A block pointer, and how it counts.
    Block(&'a Visit<'a>, Met),
    /// A hole with a birth.
    Hole(&'a Visit<'a>),
}

/// Bytes of an allocation class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClassUse {
    /// Allocated, by the metaslabs' own counts.
    pub alloc: i64,
    /// Allocatable.
    pub space: u64,
    /// Whether a vdev serves it.
    pub present: bool,
}

/// Bytes by allocation class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Classes {
    /// Data and metadata.
    pub normal: ClassUse,
    /// Metadata and small blocks.
    pub special: ClassUse,
    /// Dedup tables.
    pub dedup: ClassUse,
    /// Intent logs on vdevs of their own.
    pub log: ClassUse,
    /// Intent logs on normal vdevs.
    pub embedded_log: ClassUse,
}

/// The totals.
#[derive(Debug, Default)]
pub struct Account {
    /// Blocks.
    pub stats: BlockStats,
    /// Classes.
    pub classes: Classes,
    /// Bytes that only a checkpoint holds.
    pub(crate) checkpoint: u64,
    /// Bytes copied by a removal in progress.
    pub(crate) removing: u64,
    /// Bytes of copies that only dedup tables name.
    pub(crate) listed: u64,
    /// Bytes that log space maps add to the metaslabs' counts.
    pub(crate) unflushed: i64,
    /// Leaks and double use; `None` if not checked, or if the walk was stopped.
    pub space: Option<Findings>,
    /// Unreadable blocks, with everything below them.
    pub unreadable: Vec<(Bookmark, Error)>,
    /// Number of unreadable blocks; only the first are kept.
    pub unreadable_count: u64,
    /// Damage of structures that only accounting needs.
    pub notes: Vec<Error>,
    /// The user stopped the walk.
    pub stopped: bool,
}

impl Account {
    /// Allocated bytes according to the space maps.
    pub fn total_alloc(&self) -> i64 {
        let c = &self.classes;
        let classes = [c.normal, c.special, c.dedup, c.log, c.embedded_log];
        classes.iter().map(|c| c.alloc).fold(self.unflushed, i64::saturating_add)
    }

    /// Bytes that the walk found in use.
    pub fn total_found(&self) -> i64 {
        let stats = &self.stats;
        let more = self.removing.saturating_add(self.checkpoint).saturating_add(self.listed);
        let found = stats.total().asize.saturating_add(more);
        let found = found.saturating_sub(stats.dedup_asize + stats.clone_asize);
        i64::try_from(found).unwrap_or(i64::MAX)
    }

    /// Whether space maps and walk agree.
    pub fn balances(&self) -> bool {
        self.total_alloc() == self.total_found()
    }
}

/// Walks the pool, counting; `tell` is called with every event of the first pass.
pub fn account(pool: &Pool, options: &WalkOptions<'_>, tell: &mut dyn FnMut(WalkEvent<'_>)) -> Account {
    let mut maps = SpaceMaps::load(pool);
    let mut account = Account { classes: classes(&maps), ..Account::default() };
    if options.leaks {
        // zdb restores the metaslabs of removed vdevs for the leak check, and counts them.
        account.classes.normal.space = account.classes.normal.space.saturating_add(maps.removed);
        account.unflushed = maps.unflushed();
        let checkpoint = &mut account.checkpoint;
        maps.checkpointed(pool, &mut |_, start, end| *checkpoint = checkpoint.saturating_add(end - start));
    }
    let copies = super::removal::copies(pool, &mut maps);
    account.removing = copies.iter().map(|run| run.size).fold(0, u64::saturating_add);
    tell(WalkEvent::Start(u64::try_from(account.total_alloc()).unwrap_or(0)));
    let mut findings = Findings::default();
    for (i, window) in windows(&maps, options.window).iter().enumerate() {
        let mut space = SpaceCheck::new(pool, &mut maps, window);
        copies.iter().for_each(|run| space.claim_moved(run.vdev, run.offset, run.size));
        let mut pass = Pass {
            maps: &maps,
            space,
            account: &mut account,
            tell: &mut *tell,
            stop: options.stop,
            first: i == 0,
        };
        let stopped = traverse(pool, &mut pass).is_err();
        let mut space = pass.space;
        if options.leaks && !stopped {
            account.listed = account.listed.saturating_add(space.claim_listed());
        }
        let (found, notes) = space.finish(&maps);
        findings.merge(found);
        account.notes.extend(notes);
        if stopped {
            account.stopped = true;
            break;
        }
    }
    account.notes.append(&mut maps.notes);
    account.space = (options.leaks && !account.stopped).then_some(findings);
    account
}

struct Pass<'a, 'p> {
    maps: &'a SpaceMaps,
    space: SpaceCheck<'p>,
    account: &'a mut Account,
    tell: &'a mut dyn FnMut(WalkEvent<'_>),
    stop: &'a AtomicBool,
    first: bool,
}

impl Visitor for Pass<'_, '_> {
    fn block(&mut self, visit: &Visit<'_>) -> Result<(), Stop> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Stop);
        }
        let bp = visit.bp;
        let stored = !bp.is_embedded();
        let met = if stored { self.space.meet(bp) } else { Met::First };
        let stats = &mut self.account.stats;
        match met {
            Met::Deduplicated => {
                stats.dedup_asize += bp.asize().saturating_sub(self.space.further);
                stats.dedup_blocks += 1;
            }
            Met::Cloned => {
                stats.clone_asize += bp.asize();
                stats.clone_blocks += 1;
            }
            Met::First | Met::Elsewhere => {}
        }
        if self.first {
            // A redacted pointer counts as a hole.
            if !bp.is_redacted() {
                let maps = self.maps;
                let metaslab =
                    |vdev: u32, offset: u64| maps.find(u64::from(vdev)).map(|top| offset >> top.ms_shift);
                stats.count(visit, Ditto::of(bp, metaslab));
            }
            (self.tell)(WalkEvent::Block(visit, met));
        }
        Ok(())
    }

    fn hole(&mut self, visit: &Visit<'_>) -> Result<(), Stop> {
        if self.first {
            (self.tell)(WalkEvent::Hole(visit));
        }
        Ok(())
    }

    fn unreadable(&mut self, at: Bookmark, error: &Error) {
        if !self.first {
            return;
        }
        self.account.unreadable_count += 1;
        if self.account.unreadable.len() < MAX_ERRORS {
            self.account.unreadable.push((at, error.clone()));
        }
    }
}

fn classes(maps: &SpaceMaps) -> Classes {
    let mut classes = Classes::default();
    for top in &maps.tops {
        let class = match top.bias {
            AllocBias::Normal => &mut classes.normal,
            AllocBias::Log => &mut classes.log,
            AllocBias::Special => &mut classes.special,
            AllocBias::Dedup => &mut classes.dedup,
        };
        class.present = true;
        class.alloc = top.metaslabs.iter().map(|m| m.alloc).fold(class.alloc, i64::saturating_add);
        class.space = class.space.saturating_add(top.space());
        let smallest = (0_u64..).zip(&top.metaslabs).map(|(slot, m)| (m.alloc, slot)).min();
        if let (AllocBias::Normal, Some((smallest, slot))) = (top.bias, smallest) {
            classes.embedded_log.present = true;
            if top.metaslabs.len() > EMBEDDED_LOG_MIN {
                let (log, normal, space) =
                    (&mut classes.embedded_log, &mut classes.normal, top.place(slot).1);
                log.alloc = log.alloc.saturating_add(smallest);
                log.space = log.space.saturating_add(space);
                normal.alloc = normal.alloc.saturating_sub(smallest);
                normal.space = normal.space.saturating_sub(space);
            }
        }
    }
    classes
}
