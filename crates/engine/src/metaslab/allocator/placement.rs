//! The place of a block: class, vdev and metaslab.
//!
//! Vdevs of a class take turns: each receives about a mebibyte for each of its data disks, more if more of it is free
//! than of the others, so that all fill evenly. A vdev with a backlog of writes is skipped while others have none.
//! A block that is moved to even vdevs out goes to those that are not fuller than their class. Copies of a block go to
//! consecutive vdevs. A class without space falls back on the next.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::Dva;

use super::{GANG_HEADER, Group, GroupRequest, MAX_ASIZE, SpaceAllocator};
use crate::error::{Error, Kind, Result};
use crate::zio::alloc::{AllocRequest, Allocator, MetaslabClass};

impl SpaceAllocator {
    /// One DVA, on another vdev than the copies in `done` if possible.
    fn one(&self, request: &AllocRequest, class: MetaslabClass, done: &[Dva], hard: bool) -> Option<Dva> {
        let tables = self.tables();
        let groups = tables.of(class);
        let count = groups.len();
        if count == 0 {
            return None;
        }
        let freed = self.freed.load(Ordering::Acquire);
        let first = self.first_group(class, groups, done);
        let backlogs = groups.iter().map(|group| group.backlog()).collect::<Vec<_>>();
        let mut order: Vec<usize> = (0..count).map(|i| (first + i) % count).collect();
        let mean = if request.evens_out { fullness(groups.iter().map(AsRef::as_ref)) } else { u128::MAX };
        let is_fuller = |at: usize| groups.get(at).is_some_and(|group| fullness([&**group]) > mean);
        // Vdevs with a backlog come last; equal ones take turns.
        order.sort_by_key(|at| (is_fuller(*at), backlogs.get(*at)));
        for at in order {
            let group = groups.get(at)?;
            let asize = group.top.get().asize_of(request.psize, request.txg);
            if asize == 0 || asize > MAX_ASIZE {
                continue;
            }
            let vdev = u32::try_from(group.vdev).ok()?;
            let others: Vec<u64> = done.iter().filter(|d| d.vdev == vdev).map(|d| d.offset).collect();
            let want = GroupRequest { asize, txg: request.txg, copy: done.len(), others: &others, hard };
            let lacks = group.lacks(asize, freed);
            let found = if lacks { None } else { group.allocate(&want, &|metaslab| self.load(metaslab)) };
            if found.is_none() && hard && others.is_empty() && !lacks && group.is_known(asize) {
                group.note_lack(asize, freed);
            }
            if let Some((offset, changed)) = found {
                self.advance(class, groups, at, asize);
                if let Some(metaslab) = changed {
                    self.mark_dirty(metaslab, request.txg);
                }
                return Some(Dva { vdev, offset, asize, gang: request.gang, ..Dva::default() });
            }
            self.advance(class, groups, at, u64::MAX);
        }
        None
    }

    fn first_group(&self, class: MetaslabClass, groups: &[Arc<Group>], done: &[Dva]) -> usize {
        let after = |dva: &Dva| groups.iter().position(|g| g.vdev == u64::from(dva.vdev)).map(|at| at + 1);
        let next = done.last().and_then(after);
        next.unwrap_or_else(|| self.rotors.lock().entry(class).or_default().at) % groups.len().max(1)
    }

    /// Notes that a group was used, and passes on to the next when it has had its turn.
    fn advance(&self, class: MetaslabClass, groups: &[Arc<Group>], at: usize, asize: u64) {
        let mut rotors = self.rotors.lock();
        let rotor = rotors.entry(class).or_default();
        if rotor.at != at {
            (rotor.at, rotor.used) = (at, 0);
        }
        if rotor.used == 0 {
            let free = groups.iter().map(|group| group.free()).sum();
            let many = u64::try_from(groups.len()).unwrap_or(1);
            rotor.turn = groups.get(at).map_or(0, |group| group.turn(free, many));
        }
        rotor.used = rotor.used.saturating_add(asize);
        // Blocks of the intent log are spread: each is waited for.
        if rotor.used >= rotor.turn || matches!(class, MetaslabClass::Log | MetaslabClass::EmbeddedLog) {
            (rotor.at, rotor.used) = ((at + 1) % groups.len().max(1), 0);
        }
    }

    /// All copies in one class, or none.
    fn copies(&self, request: &AllocRequest, class: MetaslabClass) -> Vec<Dva> {
        let mut done = Vec::new();
        for _ in 0..request.copies.clamp(1, 3) {
            let dva = self.one(request, class, &done, false);
            match dva.or_else(|| self.one(request, class, &done, true)) {
                Some(dva) => done.push(dva),
                None if request.fewer_will_do => break,
                None => {
                    let whole = done.drain(..).map(|dva| Dva { gang: false, ..dva });
                    whole.for_each(|dva| self.unallocate(&dva, request.txg));
                    break;
                }
            }
        }
        done
    }

    /// Why there was no space.
    fn refusal(&self, request: &AllocRequest) -> Error {
        let tables = self.tables();
        let pieces = |class: &MetaslabClass| {
            tables
                .of(*class)
                .iter()
                .any(|group| group.longest() >= group.top.get().asize_of(GANG_HEADER, request.txg))
        };
        let kind = match request.psize > tables.least().max(GANG_HEADER)
            && chain(request.class).iter().any(pieces)
        {
            true => Kind::Fragmented,
            false => Kind::NoSpace,
        };
        Error::new(kind, format!("no space for a block of {} bytes", request.psize))
    }
}

/// How full groups are together: used bytes of 2^20.
fn fullness<'a>(groups: impl IntoIterator<Item = &'a Group>) -> u128 {
    let add = |(used, space): (u128, u128), group: &Group| {
        (used + u128::from(group.used()), space + u128::from(group.space))
    };
    let (used, space) = groups.into_iter().fold((0, 0), add);
    (used << 20) / space.max(1)
}

/// A class and its fallbacks.
fn chain(class: MetaslabClass) -> &'static [MetaslabClass] {
    match class {
        MetaslabClass::Normal => &[MetaslabClass::Normal],
        MetaslabClass::Log => &[MetaslabClass::Log, MetaslabClass::EmbeddedLog, MetaslabClass::Normal],
        MetaslabClass::EmbeddedLog => &[MetaslabClass::EmbeddedLog, MetaslabClass::Normal],
        MetaslabClass::Special => &[MetaslabClass::Special, MetaslabClass::Normal],
        MetaslabClass::Dedup => &[MetaslabClass::Dedup, MetaslabClass::Special, MetaslabClass::Normal],
    }
}

impl Allocator for SpaceAllocator {
    fn allocate(&self, request: &AllocRequest) -> Result<Vec<Dva>> {
        let asked = !request.gang
            && (request.psize >= self.gang_above.load(Ordering::Relaxed) || self.is_forced(request.psize));
        // A piece is never smaller than an allocation, so that a gang of such a block would have no end.
        let forced = asked && request.psize > self.tables().least();
        if request.psize == 0 || forced {
            let kind = if forced { Kind::Fragmented } else { Kind::Invalid };
            return Err(Error::new(kind, format!("a block of {} bytes is refused", request.psize)));
        }
        for class in chain(request.class) {
            let done = self.copies(request, *class);
            if !done.is_empty() {
                return Ok(done);
            }
        }
        Err(self.refusal(request))
    }

    fn takes_small(&self) -> bool {
        let stats = self.class_stats(MetaslabClass::Special);
        stats.allocated < stats.space / 100 * (100 - self.metadata_reserve().min(100))
    }

    fn unallocate(&self, dva: &Dva, txg: u64) {
        if self.is_moved(dva.vdev) {
            return self.free(dva, txg);
        }
        let done = self.place(dva).and_then(|(metaslab, start, end)| {
            metaslab.unallocate(start, end, txg)?;
            self.note_freed();
            self.mark_dirty(&metaslab, txg);
            Ok(())
        });
        done.unwrap_or_else(|e| self.problem(e));
    }

    fn free(&self, dva: &Dva, txg: u64) {
        // A checkpoint may need every byte of a block whose birth txg is unknown.
        self.free_born(dva, 0, txg);
    }

    fn free_born(&self, dva: &Dva, birth: u64, txg: u64) {
        let checkpoint = self.checkpoint_txg.load(Ordering::Relaxed);
        let kept = checkpoint != 0 && birth <= checkpoint;
        let free = |dva: &Dva| {
            let (metaslab, start, end) = self.place(dva)?;
            metaslab.free(start, end, kept)?;
            self.mark_dirty(&metaslab, txg);
            Ok(())
        };
        let done = match self.is_moved(dva.vdev) {
            false => free(dva),
            true => self.moved(dva, true).and_then(|pieces| pieces.iter().try_for_each(free)),
        };
        done.unwrap_or_else(|e| self.problem(e));
    }

    fn claim(&self, dva: &Dva, txg: u64) -> Result<bool> {
        if self.removed(u64::from(dva.vdev)).is_some_and(|removed| removed.evacuation.is_none()) {
            let mut claimed = false;
            for piece in self.moved(dva, false)? {
                claimed |= self.claim(&piece, txg)?;
            }
            return Ok(claimed);
        }
        let (metaslab, start, end) = self.place(dva)?;
        self.load(&metaslab);
        let claimed = metaslab.claim(start, end, txg)?;
        if claimed {
            self.mark_dirty(&metaslab, txg);
        }
        Ok(claimed)
    }
}
