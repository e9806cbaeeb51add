//! Replaces blocks by references to the equal ones that stay.

use std::sync::Arc;

use ondisk::Blkptr;

use super::SharingRun;
use super::table::{Candidate, Look};
use super::walk::Spot;
use crate::dmu::dirty::CloneSource;
use crate::dmu::{Handle, Object};
use crate::error::{Error, Kind, Result};

/// Blocks that one transaction replaces.
const BATCH: usize = 64;

/// Blocks to be replaced in the next transaction.
#[derive(Debug, Default)]
pub(super) struct Replacements {
    pairs: Vec<Pair>,
}

/// A block, and the equal one that stays.
#[derive(Debug)]
struct Pair {
    target: usize,
    handle: Arc<Handle>,
    blkid: u64,
    was: Blkptr,
    from: Object,
    from_blkid: u64,
    source: Blkptr,
}

impl SharingRun<'_> {
    /// Handles a block with the fingerprint of `chosen`: it stays, or is put into the batch. It becomes the one that stays if
    /// that has changed.
    pub(super) fn meet(
        &mut self,
        spot: &Spot<'_>,
        chosen: &mut Option<Candidate>,
        batch: &mut Replacements,
    ) -> Result<()> {
        let is_held = self.targets.get(spot.target).is_some_and(|target| target.holds(&spot.bp));
        let Some(stays) = *chosen else {
            *chosen = Candidate::of(spot, is_held);
            return Ok(());
        };
        let here = (spot.object.number, spot.blkid);
        if (u32::try_from(spot.target), here) == (Ok(stays.target), stays.place) {
            return Ok(());
        }
        let bytes = self.bytes(&spot.bp);
        if spot.bp.dva(0).is_some_and(|dva| (dva.vdev, dva.offset) == stays.dva) {
            self.found(spot.target, |found| found.already.add(bytes));
            return Ok(());
        }
        let Some((from, source)) = self.source(&stays)? else {
            // It was overwritten or removed: this block takes its place.
            *chosen = Candidate::of(spot, is_held);
            return Ok(());
        };
        if Look::of(&source) != Look::of(&spot.bp) {
            return Ok(());
        }
        if !self.dry && !Look::is_proof(&source) && !self.has_same_bytes(spot, &from, &stays, &source) {
            self.found(spot.target, |found| found.different.add(bytes));
            return Ok(());
        }
        self.found(spot.target, |found| {
            found.equal.add(bytes);
            if is_held {
                found.held.add(bytes);
            }
        });
        let Some(handle) = spot.object.handle().filter(|_| !self.dry) else { return Ok(()) };
        batch.pairs.push(Pair {
            target: spot.target,
            handle: Arc::clone(handle),
            blkid: spot.blkid,
            was: spot.bp,
            from,
            from_blkid: stays.place.1,
            source,
        });
        if batch.pairs.len() >= BATCH { self.flush(batch) } else { Ok(()) }
    }

    /// The block that stays, as it is now; `None` if it is no longer the one that was chosen.
    fn source(&self, stays: &Candidate) -> Result<Option<(Object, Blkptr)>> {
        let Some(target) = usize::try_from(stays.target).ok().and_then(|at| self.targets.get(at)) else {
            return Ok(None);
        };
        let objset = &target.dataset.objset;
        let object = match objset.object(&objset.view(), stays.place.0) {
            Err(e) if e.kind() == Kind::NotFound => return Ok(None),
            object => object?,
        };
        match object.clone_source(stays.place.1, self.spa.txgs.synced()) {
            Ok(CloneSource::Block(bp)) => {
                let is_same = bp.dva(0).is_some_and(|dva| (dva.vdev, dva.offset) == stays.dva);
                Ok(is_same.then_some((object, bp)))
            }
            Ok(_) => Ok(None),
            Err(e) if e.kind() == Kind::Suspended => Err(e),
            Err(_) => Ok(None),
        }
    }

    /// Reads and compares two blocks. Unreadable ones are different.
    fn has_same_bytes(&self, spot: &Spot<'_>, from: &Object, stays: &Candidate, source: &Blkptr) -> bool {
        let read = |object: &Object, blkid: u64, bp: &Blkptr| {
            let mut at = object.bookmark();
            at.blkid = blkid;
            object.objset.read(bp, at)
        };
        let (one, other) = (read(spot.object, spot.blkid, &spot.bp), read(from, stays.place.1, source));
        matches!((one, other), (Ok(one), Ok(other)) if *one == *other)
    }

    /// Replaces the blocks of the batch in one transaction.
    ///
    /// Both sides are checked within it. Changes of an earlier txg are visible here; changes of the same txg
    /// are written after the new references are counted.
    pub(super) fn flush(&mut self, batch: &mut Replacements) -> Result<()> {
        if batch.pairs.is_empty() {
            return Ok(());
        }
        let pairs = std::mem::take(&mut batch.pairs);
        let tx = self.spa.begin_free(None)?;
        if let Some(gone) = self.targets.iter().find(|target| !target.is_current(self.spa)) {
            return Err(Error::new(Kind::Busy, "the dataset was replaced").in_dataset(&gone.name));
        }
        tx.frees(u64::try_from(pairs.len()).unwrap_or(0));
        let synced = self.spa.txgs.synced();
        for pair in pairs {
            let bytes = self.bytes(&pair.was);
            let is_there = matches!(
                pair.from.clone_source(pair.from_blkid, synced),
                Ok(CloneSource::Block(bp)) if bp == pair.source
            );
            let done = match is_there {
                true => pair.handle.share_block(&tx, pair.blkid, &pair.was, &pair.source),
                false => Ok(false),
            };
            match done {
                Ok(true) => self.found(pair.target, |found| found.shared.add(bytes)),
                Ok(false) => self.found(pair.target, |found| found.changed.add(bytes)),
                Err(e) if e.kind() == Kind::Suspended => return Err(e),
                Err(_) => self.found(pair.target, |found| found.unreadable += 1),
            }
        }
        Ok(())
    }
}
