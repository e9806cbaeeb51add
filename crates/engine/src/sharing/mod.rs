//! Out-of-band dedup: equal blocks of datasets that are in use become references to one of them, by block cloning.
//!
//! Equal blocks have equal checksums, sizes and forms in their pointers, so no data is read where the checksum is strong;
//! where it is not, both blocks are read and compared.
//!
//! A pass covers a range of fingerprints ([`table`]), as wide as the memory allows, in three walks over the pointers
//! ([`walk`]):
//! 1. collect fingerprints, and keep those that occur more than once;
//! 2. choose for each the block that stays: one that a snapshot holds anyway, else the oldest;
//! 3. replace the others ([`apply`]), some in each transaction.
//!
//! Crash safety: each transaction replaces pointers by pointers to equal bytes, and the txg counts the new references before it
//! frees anything, so every txg on disk is complete. The result of an interrupted run is a smaller win.
//!
//! Writers are not held up: within the transaction each block is compared with the pointers that were judged, on both sides,
//! and a block that changed is left as it is.
//!
//! Excluded: encrypted blocks (equal content does not look equal), blocks without a checksum, embedded ones.
//! Blocks with other numbers of copies are not equal: sharing would change the redundancy of a file.
//!
//! Differs from OpenZFS: it has nothing like this; on disk the result is the same as that of `copy_file_range`.

mod apply;
pub(crate) mod table;
pub(crate) mod walk;

use std::sync::Arc;

use ondisk::Blkptr;
use ondisk::dsl::DslDataset;
use table::{Candidate, Prints, print_of};

use crate::dsl::write::open_datasets::LiveDataset;
use crate::dsl::write::{Hooks, LongHold};
use crate::error::{Error, Kind, Result};
use crate::spa::Spa;
use crate::zio;

/// Least memory that a run is given, in bytes.
pub const MEMORY_MIN: u64 = 1 << 20;

/// A dataset of a run.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// The dataset.
    pub(crate) dataset: Arc<LiveDataset>,
    /// Txg of its newest snapshot: older blocks are held. 0 without one.
    pub(crate) snapped: u64,
    /// Nothing destroys or replaces the dataset during the run.
    _hold: LongHold,
}

impl Target {
    /// Opens a head for a run.
    ///
    /// # Errors
    /// `NotFound`; `ReadOnly` for a snapshot or a dataset with `readonly=on`; `KeyMissing`; `Busy` for a dataset that is being
    /// received or has an intent log that is not replayed yet.
    pub fn open(spa: &Arc<Spa>, name: &str) -> Result<Self> {
        let number = spa.pool.dsl.dataset(name)?.number;
        let hold = spa.datasets.hold_long(number)?;
        if spa.datasets.number_property(number, "readonly")?.is_some_and(|value| value != 0) {
            return Err(Error::new(Kind::ReadOnly, "the dataset is read-only"));
        }
        let dataset = spa.datasets.open(&**spa, number)?;
        let phys = spa.datasets.view().dataset(number)?;
        if phys.flags & DslDataset::FLAG_INCONSISTENT != 0 || dataset.objset.is_raw() {
            return Err(Error::new(Kind::Busy, "the dataset is being received"));
        }
        if !dataset.objset.zil_header().log.is_hole() && !dataset.objset.has_log() {
            return Err(Error::new(Kind::Busy, "its intent log is not replayed yet: mount it first"));
        }
        Ok(Self { name: name.to_owned(), dataset, snapped: phys.prev_snap_txg, _hold: hold })
    }

    /// Bytes that the dataset refers to, about those that a walk visits.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub fn referenced(&self, spa: &Spa) -> Result<u64> {
        Ok(spa.datasets.view().dataset(self.dataset.number)?.referenced_bytes)
    }

    /// Whether the pool still uses this dataset: a task that was under way when the hold was taken may have destroyed or
    /// replaced it.
    fn is_current(&self, spa: &Spa) -> bool {
        spa.datasets.opened(self.dataset.number).is_some_and(|now| Arc::ptr_eq(&now, &self.dataset))
    }

    /// Whether a snapshot holds a block of the dataset.
    fn holds(&self, bp: &Blkptr) -> bool {
        bp.accounting_birth() <= self.snapped
    }
}

/// The step of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassStep {
    /// Fingerprints are collected.
    Find,
    /// The blocks that stay are chosen.
    Choose,
    /// Blocks are replaced.
    Share,
}

/// Receives the progress of a run.
pub trait Watch {
    /// Pass `pass` (from 0 on) met `done` bytes of blocks in this step, in this walk. Returns false to end the run.
    fn goes_on(&mut self, pass: u64, step: PassStep, done: u64) -> bool;
}

/// Blocks and their bytes on disk, with copies and parity as `used` counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Blocks.
    pub blocks: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.blocks = self.blocks.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The results of a run in one dataset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharingStats {
    /// Data blocks on disk.
    pub all: Amount,
    /// Blocks that cannot be compared: encrypted, or without a checksum.
    pub opaque: Amount,
    /// References to a block that another reference of the run uses already.
    pub already: Amount,
    /// Blocks equal to another one elsewhere; in a dry run by their checksums, weak ones too.
    pub equal: Amount,
    /// Equal blocks replaced by a reference.
    pub shared: Amount,
    /// Equal blocks held by snapshots of the dataset: their space is freed with the snapshots.
    pub held: Amount,
    /// Blocks that only a weak checksum took for equal.
    pub different: Amount,
    /// Blocks that changed during the run, and stay.
    pub changed: Amount,
    /// Places that cannot be read.
    pub unreadable: u64,
}

/// The results of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharingOutcome {
    /// By dataset, in the order of the targets.
    pub found: Vec<SharingStats>,
    /// Passes.
    pub passes: u64,
    /// The run was ended by [`Watch::goes_on`].
    pub interrupted: bool,
}

/// A run.
pub(crate) struct SharingRun<'a> {
    spa: &'a Arc<Spa>,
    targets: &'a [Target],
    watch: &'a mut dyn Watch,
    dry: bool,
    out: SharingOutcome,
}

impl std::fmt::Debug for SharingRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharingRun").field("out", &self.out).finish_non_exhaustive()
    }
}

/// Shares equal blocks of `targets`, with tables of at most `memory` bytes (at least [`MEMORY_MIN`]). `dry`: only counts
/// them, and reads no data.
///
/// # Errors
/// `Unsupported` without the feature `block_cloning`; errors of transactions. Unreadable places are counted.
pub fn share(
    spa: &Arc<Spa>,
    targets: &[Target],
    memory: u64,
    dry: bool,
    watch: &mut dyn Watch,
) -> Result<SharingOutcome> {
    if spa.feature(zcommon::features::Feature::BlockCloning).is_none() {
        return Err(Error::unsupported("the feature block_cloning of the pool is not enabled"));
    }
    // Clones and comparisons know blocks on disk only.
    spa.sync()?;
    let out =
        SharingOutcome { found: vec![SharingStats::default(); targets.len()], ..SharingOutcome::default() };
    let mut run = SharingRun { spa, targets, watch, dry, out };
    match run.passes(memory.max(MEMORY_MIN)) {
        Err(e) if e.kind() == Kind::Interrupted => run.out.interrupted = true,
        done => done?,
    }
    Ok(run.out)
}

impl SharingRun<'_> {
    fn passes(&mut self, memory: u64) -> Result<()> {
        let half = memory / 2;
        let capacity = usize::try_from(half / 8).unwrap_or(usize::MAX);
        let most = usize::try_from(half / Candidate::BYTES).unwrap_or(usize::MAX).max(1);
        let mut from = Some(0);
        while let Some(first) = from {
            let mut prints = Prints::new(first, capacity);
            self.each(PassStep::Find, &mut |run, spot| {
                if run.out.passes == 0 {
                    run.count(&spot);
                }
                prints.extend(print_of(&spot.bp));
                Ok(())
            })?;
            let (twice, next) = prints.finish();
            from = next;
            for some in twice.chunks(most) {
                self.share_some(some)?;
            }
            self.out.passes += 1;
        }
        Ok(())
    }

    fn bytes(&self, bp: &Blkptr) -> u64 {
        zio::deflated(&self.spa.pool.zio.tree(), bp)
    }

    fn found(&mut self, target: usize, count: impl FnOnce(&mut SharingStats)) {
        if let Some(found) = self.out.found.get_mut(target) {
            count(found);
        }
    }

    fn count(&mut self, spot: &walk::Spot<'_>) {
        let (bytes, is_opaque) = (self.bytes(&spot.bp), print_of(&spot.bp).is_none());
        self.found(spot.target, |found| {
            found.all.add(bytes);
            if is_opaque {
                found.opaque.add(bytes);
            }
        });
    }

    /// Shares the blocks of some fingerprints.
    fn share_some(&mut self, prints: &[u64]) -> Result<()> {
        let mut chosen: Vec<Option<Candidate>> = vec![None; prints.len()];
        self.each(PassStep::Choose, &mut |run, spot| {
            let slot = print_of(&spot.bp).and_then(|print| prints.binary_search(&print).ok());
            let Some(slot) = slot.and_then(|slot| chosen.get_mut(slot)) else { return Ok(()) };
            let is_held = run.targets.get(spot.target).is_some_and(|target| target.holds(&spot.bp));
            let new = Candidate::of(&spot, is_held);
            if new.is_some_and(|new| slot.is_none_or(|old| new.is_better_than(&old))) {
                *slot = new;
            }
            Ok(())
        })?;
        let mut batch = apply::Replacements::default();
        self.each(PassStep::Share, &mut |run, spot| {
            let slot = print_of(&spot.bp).and_then(|print| prints.binary_search(&print).ok());
            let Some(chosen) = slot.and_then(|slot| chosen.get_mut(slot)) else { return Ok(()) };
            run.meet(&spot, chosen, &mut batch)
        })?;
        self.flush(&mut batch)
    }
}
