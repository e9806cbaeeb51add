//! Derives space maps, dedup tables and clone tables from the blocks of a pool, for [`crate::spa::import_rebuilt`].
//!
//! - *Allocated space* is the space of blocks, the space that a checkpoint keeps, and copies of a removal in
//!   progress.
//! - *Dedup entries* follow from block pointers with the dedup bit ([`crate::ddt::rebuild`]).
//! - *Clone entries*: a block without the dedup bit, or without room in the dedup tables, that is met a second time has
//!   another reference.
//!
//! The walk takes several passes when the bitmaps of one would be larger than granted. Objects that will be replaced do not
//! count: their space becomes free, except blocks that a checkpoint refers to.
//!
//! The blocks below an unreadable block are unknown, and their space would be taken for free. The survey
//! fails then, unless the user accepts that ([`RebuildOptions::accept`]). In that case all blocks in deadlists and
//! livelists stay allocated, because destroying a snapshot frees them without reading the tree; they are
//! leaks at worst. The same holds for blocks that an intact dedup table lists, in every case: a later write
//! could share them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::dsl::DslDataset;
use ondisk::names::dsl_dir;
use ondisk::{Blkptr, ObjectType};
use stdx::RangeSet;

use super::lists;
use super::space::{SpaceCheck, windows};
use super::space_maps::SpaceMaps;
use super::traverse::{ReferenceKind, Stop, Visit, Visitor, traverse, trees};
use crate::ddt;
use crate::ddt::rebuild::Gathered;
use crate::error::{Error, Kind, Result};
use crate::metaslab::load_mapping;
use crate::metaslab::rebuild::DerivedSpace;
use crate::spa::Pool;
use crate::spa::rebuild::{Derived, RebuildTables, Replaced, is_being_removed};
use crate::types::Bookmark;
use crate::zap::Zap;

/// Most unreadable blocks that are named.
const MAX_NAMED: usize = 16;
/// Blocks between two calls of the progress function.
const TELL_EVERY: u64 = 1 << 12;

/// How to walk.
#[derive(Debug)]
pub struct RebuildOptions<'a> {
    /// Tables to rebuild.
    pub which: RebuildTables,
    /// Sectors per pass.
    pub window: u64,
    /// Continue although blocks cannot be read: the space below them becomes free.
    pub accept: bool,
    /// Set when the user requests a stop.
    pub stop: &'a AtomicBool,
}

/// Progress of the walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// This pass, from 1.
    pub pass: u64,
    /// Passes.
    pub passes: u64,
    /// Block pointers met in this pass.
    pub blocks: u64,
    /// Their bytes, as allocated.
    pub bytes: u64,
}

/// The estimated cost of a survey.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Walks over the metadata of the pool.
    pub passes: u64,
    /// Bytes of memory for the bitmaps of one pass, if all space is in use.
    pub bitmaps: u64,
    /// Metaslabs.
    pub metaslabs: u64,
}

/// The cost of a survey, from the pool's layout alone.
///
/// # Errors
/// When the vdevs make no sense.
pub fn cost(pool: &Pool, window: u64) -> Result<Cost> {
    let shape = SpaceMaps::shape(pool)?;
    let windows = windows(&shape, bound(pool, window));
    let largest = windows.iter().map(|window| sectors(&shape, window)).max().unwrap_or(0);
    let metaslabs = shape.tops.iter().map(|top| u64::try_from(top.metaslabs.len()).unwrap_or(0)).sum();
    let passes = u64::try_from(windows.len()).unwrap_or(0);
    Ok(Cost { passes, bitmaps: largest.div_ceil(8), metaslabs })
}

fn sectors(shape: &SpaceMaps, window: &BTreeMap<u64, (u64, u64)>) -> u64 {
    let of_top = |(vdev, (first, end)): (&u64, &(u64, u64))| {
        shape.find(*vdev).map_or(0, |top| (end - first) << (top.ms_shift - top.ashift))
    };
    window.iter().map(of_top).fold(0, u64::saturating_add)
}

/// Copies of a removal can be anywhere: then one pass covers everything.
fn bound(pool: &Pool, window: u64) -> u64 {
    if pool.tree().config.children.iter().any(is_being_removed) { u64::MAX } else { window }
}

/// Walks the pool.
///
/// # Errors
/// `Interrupted` when stopped; `Corrupt` with the places of unreadable blocks; `Unsupported` for structures
/// that cannot be derived.
pub fn survey(pool: &Pool, options: &RebuildOptions<'_>, tell: &mut dyn FnMut(Progress)) -> Result<Derived> {
    let replaced = Replaced::find(pool, options.which)?;
    let shape = SpaceMaps::shape(pool)?;
    let windows = windows(&shape, bound(pool, options.window));
    let mut all = Derived {
        txg: pool.uberblock.txg,
        replaced: replaced.clone(),
        found: DerivedSpace::new(),
        dedup: Gathered::default(),
        clones: Vec::new(),
        kept: Vec::new(),
    };
    let checkpoint = pool.checkpoint_uberblock()?.map_or(0, |checkpoint| checkpoint.txg);
    if checkpoint != 0 && options.which.freeing {
        let what = "a list of blocks to be freed, some of which the checkpoint may refer to, is damaged; go back to the checkpoint \
                    with 'zpool import --rewind-to-checkpoint'";
        return Err(Error::unsupported(what));
    }
    let passes = u64::try_from(windows.len()).unwrap_or(0);
    let mut clones = HashMap::new();
    for (pass, window) in (1..).zip(&windows) {
        let mut walk = Walk {
            replaced: &replaced,
            space: SpaceCheck::blank(pool, &shape, window),
            dedup: (options.which.dedup && pass == 1).then_some(&mut all.dedup),
            clones: &mut clones,
            checkpoint,
            kept: Vec::new(),
            unreadable: Vec::new(),
            unreadable_count: 0,
            progress: Progress { pass, passes, ..Progress::default() },
            tell: &mut *tell,
            stop: options.stop,
        };
        // Blocks of lists that become empty are free.
        let walked = if options.which.freeing { trees(pool, &mut walk) } else { traverse(pool, &mut walk) };
        if walked.is_err() {
            return Err(Error::new(Kind::Interrupted, "the walk over the pool was interrupted"));
        }
        walk.also(pool, options)?;
        walk.check(options.accept)?;
        let (mut space, kept) = (walk.space, walk.kept);
        if pass == 1 {
            all.kept = kept;
        }
        for config in pool.tree().config.children.iter().filter(|config| is_being_removed(config)) {
            copies(pool, &mut space, &shape, (config.id, config.indirect_object))?;
        }
        for (vdev, metaslabs) in space.used(&shape, window) {
            all.found.entry(vdev).or_default().extend(metaslabs);
        }
    }
    if options.which.clones {
        all.clones = clones.into_values().collect();
    }
    all.leave_to_clones()?;
    Ok(all)
}

/// Claims the copies that the removal of a vdev has made of its blocks in use.
fn copies(
    pool: &Pool,
    space: &mut SpaceCheck<'_>,
    shape: &SpaceMaps,
    (vdev, mapping): (u64, u64),
) -> Result<()> {
    let mapping = load_mapping(&pool.mos, mapping)?;
    let count = shape.find(vdev).map_or(0, |top| u64::try_from(top.metaslabs.len()).unwrap_or(0));
    let metaslabs = space.used(shape, &[(vdev, (0, count))].into()).remove(&vdev).unwrap_or_default();
    for (from, to) in metaslabs.iter().flat_map(RangeSet::iter) {
        let to = to.min(mapping.end());
        if from < to {
            let pieces = mapping.resolve(from, to - from)?;
            pieces.iter().for_each(|piece| space.claim_moved(piece.vdev, piece.offset, piece.len));
        }
    }
    Ok(())
}

struct Walk<'a, 'p> {
    replaced: &'a Replaced,
    space: SpaceCheck<'p>,
    dedup: Option<&'a mut Gathered>,
    /// Blocks met more than once, by place.
    clones: &'a mut HashMap<(u32, u64), (Blkptr, u64)>,
    /// The txg of the checkpoint; 0 without one.
    checkpoint: u64,
    /// Blocks of replaced objects that it refers to.
    kept: Vec<Blkptr>,
    unreadable: Vec<Error>,
    unreadable_count: u64,
    progress: Progress,
    tell: &'a mut dyn FnMut(Progress),
    stop: &'a AtomicBool,
}

impl Walk<'_, '_> {
    fn is_replaced(&self, at: Bookmark) -> bool {
        at.objset == 0 && self.replaced.objects.contains(&at.object)
    }

    /// Claims space that stays allocated though no tree refers to it.
    fn also(&mut self, pool: &Pool, options: &RebuildOptions<'_>) -> Result<()> {
        let mut maps = SpaceMaps::shape(pool)?;
        maps.checkpointed(pool, &mut |vdev, start, end| self.space.claim_moved(vdev, start, end - start));
        if let Some(why) = maps.notes.into_iter().next() {
            let what = "the space map of what the checkpoint keeps cannot be derived; go back to the checkpoint with \
                        'zpool import --rewind-to-checkpoint'";
            return Err(Error::unsupported(what).because(why));
        }
        if !options.which.dedup {
            self.listed(pool);
        }
        if options.accept && self.unreadable_count > 0 {
            self.dead(pool);
        }
        Ok(())
    }

    /// Claims blocks that dedup tables list.
    fn listed(&mut self, pool: &Pool) {
        let mut notes = Vec::new();
        for table in ddt::tables(&pool.mos, &mut notes) {
            let stored = table.stores.iter().flat_map(|store| store.entries());
            let stored = stored.filter_map(|entry| entry.ok().map(|entry| (entry.key, entry.phys)));
            let logged = table.logs.iter().flat_map(|log| &log.entries);
            let logged = logged.map(|(key, entry)| (*key, entry.phys.clone()));
            for (key, phys) in stored.chain(logged) {
                for phys in phys.iter().filter(|phys| phys.phys_birth != 0) {
                    self.space.keep(&phys.blkptr(&key, table.checksum));
                }
            }
        }
        notes.iter().for_each(|why| self.unreadable(Bookmark::default(), why));
    }

    /// Claims blocks in the deadlists and livelists of datasets.
    fn dead(&mut self, pool: &Pool) {
        for object in pool.mos.objects() {
            let number = match object {
                Ok(object) if object.dnode.bonustype == ObjectType::DSL_DATASET => {
                    DslDataset::from_bytes(object.dnode.bonus()).map_or(0, |phys| phys.deadlist_obj)
                }
                Ok(object) if object.dnode.bonustype == ObjectType::DSL_DIR => {
                    let livelist = Zap::open(&object).and_then(|zap| zap.u64(dsl_dir::LIVELIST));
                    livelist.ok().flatten().unwrap_or(0)
                }
                _ => continue,
            };
            for list in parts(pool, number) {
                let space = &mut self.space;
                let mut tell = |bp: &Blkptr, _| {
                    space.keep(bp);
                    Ok(())
                };
                // A list that cannot be read frees nothing either.
                let _ = lists::bpobj(pool, list, &mut tell);
            }
        }
    }

    fn check(&mut self, accept: bool) -> Result<()> {
        let notes = std::mem::take(&mut self.space.notes);
        self.unreadable_count += u64::try_from(notes.len()).unwrap_or(0);
        self.unreadable.extend(notes);
        if self.unreadable_count == 0 || accept {
            return Ok(());
        }
        let first = self.unreadable.drain(..).next();
        let what = format!(
            "{} blocks that lead to others can't be read: the blocks below them are unknown, and their space would be taken \
             for free; bring missing devices back, or add --accept-unreadable, which gives up the blocks below them",
            self.unreadable_count
        );
        let why = Error::new(Kind::Corrupt, what);
        Err(first.map_or(why.clone(), |first| why.because(first)))
    }
}

/// The block lists of a deadlist: itself, or those that its ZAP names.
fn parts(pool: &Pool, number: u64) -> Vec<u64> {
    if number == 0 {
        return Vec::new();
    }
    let zap = pool.mos.object(number).and_then(|object| Zap::open(&object)).and_then(|zap| zap.to_vec());
    match zap {
        Ok(entries) => entries.iter().filter_map(|entry| entry.value.first()).collect(),
        Err(_) => vec![number],
    }
}

impl Visitor for Walk<'_, '_> {
    fn block(&mut self, visit: &Visit<'_>) -> std::result::Result<(), Stop> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Stop);
        }
        let bp = visit.bp;
        if bp.is_embedded() || bp.is_redacted() {
            return Ok(());
        }
        if visit.origin == ReferenceKind::Tree && self.is_replaced(visit.at) {
            if bp.physical_birth() <= self.checkpoint {
                self.space.keep(bp);
                self.kept.push(*bp);
            }
            return Ok(());
        }
        let again = self.space.keep(bp);
        self.progress.blocks += 1;
        self.progress.bytes = self.progress.bytes.saturating_add(bp.asize());
        if self.progress.blocks.is_multiple_of(TELL_EVERY) {
            (self.tell)(self.progress);
        }
        if bp.dedup() {
            if let Some(dedup) = self.dedup.as_deref_mut() {
                dedup.add(bp);
            }
        } else if let (true, Some(dva)) = (again, bp.dva(0)) {
            self.clones.entry((dva.vdev, dva.offset)).or_insert((*bp, 0)).1 += 1;
        }
        Ok(())
    }

    fn unreadable(&mut self, at: Bookmark, error: &Error) {
        if self.is_replaced(at) {
            return;
        }
        self.unreadable_count += 1;
        if self.unreadable.len() < MAX_NAMED {
            self.unreadable.push(error.clone());
        }
    }
}
