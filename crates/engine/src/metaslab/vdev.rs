//! A top-level vdev as the allocator sees it: its metaslabs, in one or two groups.
//!
//! A group is the share of one allocation class in a vdev: all metaslabs, except that a big normal vdev
//! reserves one of them for the intent log. Each group allocates from one metaslab, the *active* one, until
//! that has no more pieces of the kind for which it was chosen; copies of a block come from another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::policy::Weight;
use super::table;
use super::unit::{MapState, Metaslab, MetaslabState};
use crate::vdev::config::AllocBias;
use crate::vdev::top::{Top, VdevLayout};
use crate::zio::alloc::MetaslabClass;

/// Metaslabs that are tried for one block, unless nothing else is left.
#[doc(alias = "zfs_metaslab_find_max_tries")]
const MAX_TRIES: usize = 100;
/// Bytes for each data disk before the next vdev has its turn.
#[doc(alias = "metaslab_aliquot")]
const ALIQUOT: u64 = 1 << 20;
/// Bytes in flight per disk that form one step of a backlog: vdevs with fewer steps come first.
#[doc(alias = "zfs_vdev_queue_depth_pct")]
const BACKLOG: u64 = 4 << 20;
/// No metaslab.
const NONE: usize = usize::MAX;

/// The vdev as a target of writes: another object when a change of the vdev tree has made it one.
#[derive(Debug)]
pub(super) struct TopSlot(RwLock<Arc<Top>>);

impl TopSlot {
    pub(crate) fn new(top: Arc<Top>) -> Arc<Self> {
        Arc::new(Self(RwLock::new(top)))
    }

    pub(crate) fn get(&self) -> Arc<Top> {
        Arc::clone(&self.0.read())
    }

    pub(crate) fn set(&self, top: Arc<Top>) {
        *self.0.write() = top;
    }
}

/// A top-level vdev.
#[derive(Debug)]
pub(super) struct Vdev {
    /// Its number.
    pub(crate) id: u64,
    pub(crate) top: Arc<TopSlot>,
    /// Size of a metaslab, as a shift.
    pub(crate) shift: u32,
    pub(crate) metaslabs: Vec<Arc<Metaslab>>,
    pub(crate) groups: Vec<Arc<Group>>,
    /// Object with the numbers of the space maps; 0: none yet.
    pub(crate) array: AtomicU64,
    /// Object with the unflushed txgs; 0: none yet.
    pub(crate) unflushed_array: AtomicU64,
    /// The checkpoint's space map.
    pub(crate) checkpoint: Mutex<MapState>,
    /// Nothing is allocated here.
    pub(crate) closed: AtomicBool,
    pub(crate) deflate_ratio: u64,
}

/// The share of an allocation class in a vdev.
#[derive(Debug)]
pub(super) struct Group {
    pub(crate) class: MetaslabClass,
    /// The vdev's number.
    pub(crate) vdev: u64,
    pub(crate) top: Arc<TopSlot>,
    pub(crate) metaslabs: Vec<Arc<Metaslab>>,
    /// Bytes of all its metaslabs.
    pub(crate) space: u64,
    /// Bytes allocated as written, and such as wait to be allocatable again.
    pub(crate) allocated: AtomicI64,
    /// The part of `allocated` that waits.
    pub(crate) deferred: AtomicI64,
    aliquot: u64,
    /// Disks that data is spread over.
    disks: usize,
    active: [AtomicUsize; 3],
    /// The smallest piece that was not found, and when, as a number of times at which space was freed.
    lacking: Mutex<(u64, u64)>,
}

/// Where a block goes, and the metaslab if it had no changes in the txg before.
type Piece<'a> = (u64, Option<&'a Metaslab>);

/// A request to a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupRequest<'a> {
    pub(crate) asize: u64,
    pub(crate) txg: u64,
    /// Which copy of the block.
    pub(crate) copy: usize,
    /// Where the other copies lie on this vdev.
    pub(crate) others: &'a [u64],
    /// Take anything.
    pub(crate) hard: bool,
}

impl Vdev {
    /// The metaslab that holds the bytes from `start` to `end`.
    pub(crate) fn metaslab(&self, start: u64, end: u64) -> Option<&Arc<Metaslab>> {
        let metaslab = self.metaslabs.get(usize::try_from(start.checked_shr(self.shift)?).ok()?)?;
        (metaslab.start <= start && end <= metaslab.end()).then_some(metaslab)
    }

    /// The group that a metaslab belongs to.
    pub(crate) fn group_of(&self, id: u64) -> Option<&Arc<Group>> {
        self.groups
            .iter()
            .find(|group| group.metaslabs.binary_search_by_key(&id, |metaslab| metaslab.id).is_ok())
    }

    /// Divides metaslabs among classes. Of more than `log_min`, the emptiest, according to its own map, is for the intent log.
    pub(crate) fn groups(
        top: &Arc<TopSlot>,
        bias: AllocBias,
        metaslabs: &[Arc<Metaslab>],
        log_min: usize,
    ) -> Vec<Arc<Group>> {
        let class = match bias {
            AllocBias::Normal => MetaslabClass::Normal,
            AllocBias::Log => MetaslabClass::Log,
            AllocBias::Special => MetaslabClass::Special,
            AllocBias::Dedup => MetaslabClass::Dedup,
        };
        let embedded = match class {
            MetaslabClass::Normal if metaslabs.len() > log_min => metaslabs
                .iter()
                .min_by_key(|metaslab| metaslab.lock().map.head.alloc)
                .map(|metaslab| metaslab.id),
            _ => None,
        };
        let (log, rest): (Vec<_>, Vec<_>) = metaslabs.iter().cloned().partition(|s| Some(s.id) == embedded);
        let mut groups = vec![Group::new(class, top, rest)];
        if !log.is_empty() {
            groups.push(Group::new(MetaslabClass::EmbeddedLog, top, log));
        }
        groups
    }

    /// The same with `count` metaslabs, those beyond its own all free. `row` is that of the vdev's draid,
    /// else 1; `log_min` as in [`Vdev::groups`]. Existing metaslabs are shared with the old state, so that concurrent
    /// allocations continue.
    #[doc(alias("vdev_expand", "vdev_metaslab_init"))]
    pub(crate) fn grown(&self, row: u64, count: u64, log_min: usize) -> Self {
        let first = u64::try_from(self.metaslabs.len()).unwrap_or(u64::MAX);
        let ashift = self.top.get().ashift;
        let new = (first..count).map(|id| {
            let place = table::place(self.shift, row, id);
            Arc::new(Metaslab::new(self.id, id, place, ashift, MetaslabState::default()))
        });
        let mut new: Vec<_> = new.collect();
        let metaslabs: Vec<_> = self.metaslabs.iter().chain(&new).cloned().collect();
        let normal = self.groups.first().is_some_and(|group| group.class == MetaslabClass::Normal);
        // In a vdev that was too small for a log of its own, the emptiest metaslab is a new one.
        let keeps_log = normal && self.groups.len() == 1 && metaslabs.len() > log_min;
        let log = if keeps_log { new.pop() } else { None };
        let mut groups = self.groups.clone();
        if let Some(first) = groups.first_mut() {
            *first = first.with(new);
        }
        groups.extend(log.map(|log| Group::new(MetaslabClass::EmbeddedLog, &self.top, vec![log])));
        Self {
            id: self.id,
            top: Arc::clone(&self.top),
            shift: self.shift,
            metaslabs,
            groups,
            array: AtomicU64::new(self.array.load(Ordering::Relaxed)),
            unflushed_array: AtomicU64::new(self.unflushed_array.load(Ordering::Relaxed)),
            checkpoint: Mutex::new(*self.checkpoint.lock()),
            closed: AtomicBool::new(self.closed.load(Ordering::Relaxed)),
            deflate_ratio: self.deflate_ratio,
        }
    }
}

impl Group {
    fn new(class: MetaslabClass, top: &Arc<TopSlot>, metaslabs: Vec<Arc<Metaslab>>) -> Arc<Self> {
        let now = top.get();
        let parity = match &now.layout {
            VdevLayout::Raidz(geometry) => usize::try_from(geometry.nparity).unwrap_or(0),
            _ => 0,
        };
        let disks = now.children().len().saturating_sub(parity).max(1);
        let allocated: u64 = metaslabs.iter().map(|metaslab| metaslab.lock().allocated).sum();
        Arc::new(Self {
            class,
            vdev: now.id,
            top: Arc::clone(top),
            space: metaslabs.iter().map(|metaslab| metaslab.size).sum(),
            allocated: AtomicI64::new(i64::try_from(allocated).unwrap_or(i64::MAX)),
            deferred: AtomicI64::new(0),
            aliquot: ALIQUOT * u64::try_from(disks).unwrap_or(1),
            disks,
            active: [const { AtomicUsize::new(NONE) }; 3],
            lacking: Mutex::new((u64::MAX, u64::MAX)),
            metaslabs,
        })
    }

    /// The same with more metaslabs, in which nothing is allocated.
    fn with(&self, new: Vec<Arc<Metaslab>>) -> Arc<Self> {
        let more = Self::new(self.class, &self.top, new);
        let now = |count: &AtomicI64| AtomicI64::new(count.load(Ordering::Relaxed));
        Arc::new(Self {
            class: self.class,
            vdev: self.vdev,
            top: Arc::clone(&self.top),
            metaslabs: self.metaslabs.iter().chain(&more.metaslabs).cloned().collect(),
            space: self.space.saturating_add(more.space),
            allocated: now(&self.allocated),
            deferred: now(&self.deferred),
            aliquot: self.aliquot,
            disks: self.disks,
            active: [0, 1, 2].map(|copy| AtomicUsize::new(self.active_of(copy))),
            lacking: Mutex::new((u64::MAX, u64::MAX)),
        })
    }

    fn active_of(&self, copy: usize) -> usize {
        self.active.get(copy).map_or(NONE, |slot| slot.load(Ordering::Acquire))
    }

    /// Bytes not allocated.
    pub(crate) fn free(&self) -> u64 {
        self.space.saturating_sub(u64::try_from(self.allocated.load(Ordering::Relaxed)).unwrap_or(0))
    }

    /// Bytes allocated as written, without those that wait to be allocatable again.
    pub(crate) fn used(&self) -> u64 {
        let get = |n: &AtomicI64| n.load(Ordering::Relaxed);
        u64::try_from(get(&self.allocated).saturating_sub(get(&self.deferred))).unwrap_or(0)
    }

    /// How much it has to write already, for each of its disks, in steps: those with less come first. Blocks of intent
    /// logs are waited for one by one.
    #[doc(alias = "metaslab_group_throttle")]
    pub(crate) fn backlog(&self) -> u64 {
        let step = BACKLOG.saturating_mul(u64::try_from(self.disks).unwrap_or(1));
        match self.class {
            MetaslabClass::Log | MetaslabClass::EmbeddedLog => 0,
            _ => self.top.get().in_flight().checked_div(step).unwrap_or(0),
        }
    }

    /// Bytes to allocate here before the next group has its turn: more where more is free than elsewhere.
    #[doc(alias = "mg_bias")]
    pub(crate) fn turn(&self, class_free: u64, groups: u64) -> u64 {
        let share = u128::from(self.free()) * u128::from(groups) * u128::from(self.aliquot);
        u64::try_from(share / (u128::from(class_free) + 1)).unwrap_or(u64::MAX)
    }

    /// A piece for a block, or nothing. `load` makes a metaslab ready and handles its own errors. Also returns the metaslab
    /// if this is its first change in the txg.
    pub(crate) fn allocate(&self, want: &GroupRequest<'_>, load: &dyn Fn(&Metaslab)) -> Option<Piece<'_>> {
        let slot = self.active.get(want.copy)?;
        if let Some(metaslab) = self.metaslabs.get(slot.load(Ordering::Acquire)) {
            let other = want.others.iter().any(|&o| (metaslab.start..metaslab.end()).contains(&o));
            if !other && let Some(placed) = metaslab.allocate(want.asize, want.txg, None) {
                if placed.spent {
                    slot.store(NONE, Ordering::Release);
                }
                return Some((placed.start, placed.first.then_some(&**metaslab)));
            }
        }
        self.choose(want, load)
    }

    /// The best metaslab that holds such a piece becomes active.
    #[doc(alias = "find_valid_metaslab")]
    fn choose(&self, want: &GroupRequest<'_>, load: &dyn Fn(&Metaslab)) -> Option<Piece<'_>> {
        let slot = self.active.get(want.copy)?;
        let mut candidates = self.candidates(want);
        let tries = if want.hard { usize::MAX } else { MAX_TRIES };
        for (_, _, Reverse(at)) in std::iter::from_fn(|| candidates.pop()).take(tries) {
            let metaslab = self.metaslabs.get(at)?;
            let near = want.others.iter().copied().find(|o| (metaslab.start..metaslab.end()).contains(o));
            if near.is_some() && !want.hard {
                continue;
            }
            if !metaslab.is_loaded() {
                load(metaslab);
            }
            if let Some(placed) = metaslab.allocate(want.asize, want.txg, near) {
                if near.is_none() {
                    metaslab.activate();
                    slot.store(at, Ordering::Release);
                }
                return Some((placed.start, placed.first.then_some(&**metaslab)));
            }
        }
        None
    }

    /// Metaslabs that may hold it: the best first, but those last that serve other copies. Mostly the first will do, so
    /// they are not sorted.
    fn candidates(&self, want: &GroupRequest<'_>) -> BinaryHeap<(bool, Weight, Reverse<usize>)> {
        let active = [0, 1, 2].map(|copy| if copy == want.copy { NONE } else { self.active_of(copy) });
        let all = self
            .metaslabs
            .iter()
            .enumerate()
            .filter(|(_, metaslab)| metaslab.may_hold(want.asize, want.hard));
        all.map(|(at, metaslab)| (!active.contains(&at), metaslab.weight(), Reverse(at))).collect()
    }

    /// Whether it was found, since the last time at which space was freed, that there is no piece of that size.
    pub(crate) fn lacks(&self, asize: u64, freed: u64) -> bool {
        let (since, size) = *self.lacking.lock();
        since == freed && asize >= size
    }

    /// Whether no metaslab whose map was not read may have a piece of that size.
    pub(crate) fn is_known(&self, asize: u64) -> bool {
        self.metaslabs.iter().all(|metaslab| metaslab.is_loaded() || !metaslab.may_hold(asize, true))
    }

    /// Notes that no metaslab has a piece of that size. `freed`: the number of times at which space was freed before it was
    /// looked for.
    pub(crate) fn note_lack(&self, asize: u64, freed: u64) {
        let mut lacking = self.lacking.lock();
        *lacking = if lacking.0 == freed { (freed, asize.min(lacking.1)) } else { (freed, asize) };
    }

    /// Longest piece that may be there.
    pub(crate) fn longest(&self) -> u64 {
        self.metaslabs
            .iter()
            .filter(|metaslab| metaslab.may_hold(1, false))
            .map(|metaslab| metaslab.longest())
            .max()
            .unwrap_or(0)
    }
}
