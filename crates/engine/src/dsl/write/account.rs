//! Accounting of a dataset's written and freed blocks: collected while it is written, then applied to the
//! dataset, its directory, the snapshot before it, deadlists and bookmarks.
//!
//! A block that is freed and was born after the last snapshot is free at once. Any other is kept by that snapshot:
//! it goes to the head's deadlist, and when the snapshot is the first to know it, it counts as unique to it.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use ondisk::dsl::{DslDataset, DslDir};
use ondisk::{Blkptr, ChecksumType, CompressType};
use parking_lot::Mutex;
use zcommon::features::Feature;

use super::mos_tx::MosTx;
use super::space;
use super::{bookmarks, livelist, props, tree};
use crate::dmu::Tx;
use crate::dmu::dirty::sync::BlockOps;
use crate::dsl::Delta;
use crate::dsl::deadlist::DeadList;
use crate::error::Result;

/// Blocks of deadlists and livelists that are kept until they are written to those.
const LISTED: usize = 4096;
/// Largest block that needs no feature.
const OLD_MAX_BLOCK: u64 = 128 << 10;

#[derive(Debug, Default)]
struct Sums {
    /// Change of the space that the dataset refers to.
    referenced: Delta,
    /// Change of the space that it alone refers to, which its directory is charged with.
    own: Delta,
    /// Bytes that moved from the head to the snapshots.
    to_snapshots: i64,
    /// Bytes that became unique to the previous snapshot.
    previous_unique: u64,
    dead: Vec<Blkptr>,
    features: BTreeSet<Feature>,
    /// Space that bookmarks knew and that is gone, by name.
    bookmarks: BTreeMap<String, Delta>,
    allocs: Vec<Blkptr>,
    frees: Vec<Blkptr>,
    /// The txg has changed the livelist.
    lived: bool,
}

impl Sums {
    /// Takes the blocks for the lists when they are many.
    fn take_lists(&mut self) -> Option<Lists> {
        let long = self.dead.len() + self.allocs.len() + self.frees.len() >= LISTED;
        long.then(|| self.take_all())
    }

    fn take_all(&mut self) -> Lists {
        let (dead, allocs, frees) = (take(&mut self.dead), take(&mut self.allocs), take(&mut self.frees));
        Lists { dead, allocs, frees, first: !std::mem::replace(&mut self.lived, true) }
    }
}

/// Blocks to append to the lists of a dataset.
struct Lists {
    dead: Vec<Blkptr>,
    allocs: Vec<Blkptr>,
    frees: Vec<Blkptr>,
    /// Nothing did before in this txg.
    first: bool,
}

/// The account of one dataset while a txg is written.
#[derive(Debug)]
pub(crate) struct BlockAccount<'a> {
    at: MosTx<'a>,
    number: u64,
    phys: DslDataset,
    /// The txg before the previous snapshot's, when the head directly follows that snapshot.
    previous_since: Option<u64>,
    origin_txg: u64,
    /// Bookmarks that count freed space: creation txg by name.
    bookmarks: Vec<(String, u64)>,
    livelist: Option<u64>,
    sums: Mutex<Sums>,
}

impl<'a> BlockAccount<'a> {
    /// Opens the account of head `number`.
    pub(crate) fn open(at: MosTx<'a>, number: u64) -> Result<Self> {
        let phys = at.dataset(number)?;
        let dir = at.dir(phys.dir_obj)?;
        let mut previous_since = None;
        if phys.prev_snap_obj != 0 {
            let previous = at.dataset(phys.prev_snap_obj)?;
            previous_since = (previous.next_snap_obj == number).then_some(previous.prev_snap_txg);
        }
        let origin_txg = at.origin_txg(&dir)?;
        let bookmarks = bookmarks::watching(&at, number, phys.prev_snap_txg)?;
        let livelist = livelist::of(&at, phys.dir_obj)?;
        let sums = Mutex::default();
        Ok(Self { at, number, phys, previous_since, origin_txg, bookmarks, livelist, sums })
    }

    /// Puts everything where it belongs, with the new root.
    #[doc(alias("dsl_dataset_sync", "dsl_dataset_sync_done"))]
    pub(crate) fn close(self, root: Blkptr) -> Result<()> {
        let lists = self.sums.lock().take_all();
        self.write_lists(&lists)?;
        let (at, sums) = (&self.at, self.sums.into_inner());
        let reserved = props::own_number(at, self.phys.dir_obj, "refreservation")?;
        let delta = at.change_dataset(self.number, |phys| {
            let delta = space::charged(phys.unique_bytes, reserved, sums.own.used);
            phys.unique_bytes = phys.unique_bytes.wrapping_add_signed(sums.own.used);
            refer(phys, sums.referenced);
            phys.bp = root;
            delta
        })?;
        if sums.previous_unique != 0 {
            at.change_dataset(self.phys.prev_snap_obj, |snap| snap.unique_bytes += sums.previous_unique)?;
        }
        let charge = Delta { used: delta, ..sums.own };
        let kinds = (DslDir::USED_REFRSRV, DslDir::USED_HEAD);
        space::charge_and_move(at, self.phys.dir_obj, charge, sums.own.used, kinds)?;
        let (head, snap) = (DslDir::USED_HEAD, DslDir::USED_SNAP);
        space::transfer(at, self.phys.dir_obj, sums.to_snapshots, head, snap)?;
        for feature in sums.features {
            if at.enabled(feature) {
                tree::use_feature(at, self.number, feature)?;
            }
        }
        bookmarks::freed(at, self.number, &sums.bookmarks)?;
        if self.livelist.is_none() {
            return Ok(());
        }
        livelist::review(at, &at.dataset(self.number)?)
    }

    /// Writes blocks to the lists. However many a txg frees, few are in memory.
    fn write_lists(&self, lists: &Lists) -> Result<()> {
        DeadList::open(&self.at, self.phys.deadlist_obj)?.insert(&lists.dead, false)?;
        let Some(list) = self.livelist else { return Ok(()) };
        let list = DeadList::open(&self.at, list)?;
        let most = lists.first.then(|| livelist::most(&self.at));
        list.note_live(self.at.tx.txg(), most, &lists.allocs, &lists.frees)
    }

    fn write_long(&self, lists: Option<Lists>) -> Result<()> {
        lists.map_or(Ok(()), |lists| self.write_lists(&lists))
    }

    /// Notes a feature that the dataset uses from now on.
    pub(crate) fn use_feature(&self, feature: Feature) {
        self.sums.lock().features.insert(feature);
    }

    fn is_in_livelist(&self, bp: &Blkptr) -> bool {
        self.livelist.is_some() && bp.accounting_birth() > self.origin_txg && !bp.is_embedded()
    }
}

/// Changes the referenced space of a dataset.
pub(super) fn refer(phys: &mut DslDataset, delta: Delta) {
    phys.referenced_bytes = phys.referenced_bytes.wrapping_add_signed(delta.used);
    phys.compressed_bytes = phys.compressed_bytes.wrapping_add_signed(delta.compressed);
    phys.uncompressed_bytes = phys.uncompressed_bytes.wrapping_add_signed(delta.uncompressed);
}

fn features_of(bp: &Blkptr) -> impl Iterator<Item = Feature> {
    let large = (bp.lsize() > OLD_MAX_BLOCK).then_some(Feature::LargeBlocks);
    let checksum = match bp.checksum() {
        Some(ChecksumType::Sha512) => Some(Feature::Sha512),
        Some(ChecksumType::Skein) => Some(Feature::Skein),
        Some(ChecksumType::Edonr) => Some(Feature::Edonr),
        Some(ChecksumType::Blake3) => Some(Feature::Blake3),
        _ => None,
    };
    let zstd = (bp.compress() == Some(CompressType::Zstd)).then_some(Feature::ZstdCompress);
    let moved = bp.is_rewritten().then_some(Feature::PhysicalRewrite);
    [large, checksum, zstd, moved].into_iter().flatten()
}

impl BlockOps for BlockAccount<'_> {
    #[doc(alias = "dsl_dataset_block_born")]
    fn born(&self, bp: &Blkptr, _: &Tx) -> Result<()> {
        if bp.is_hole() || bp.is_redacted() {
            return Ok(());
        }
        let size = self.at.sizes(bp);
        let mut sums = self.sums.lock();
        sums.referenced = sums.referenced.plus(size);
        sums.own = sums.own.plus(size);
        sums.features.extend(features_of(bp));
        if self.is_in_livelist(bp) {
            sums.allocs.push(*bp);
        }
        let long = sums.take_lists();
        drop(sums);
        self.write_long(long)
    }

    #[doc(alias = "dsl_dataset_block_kill")]
    fn killed(&self, bp: &Blkptr, _: &Tx) -> Result<()> {
        if bp.is_hole() || bp.is_redacted() {
            return Ok(());
        }
        let size = self.at.sizes(bp);
        let birth = bp.accounting_birth();
        let mut sums = self.sums.lock();
        sums.referenced = sums.referenced.plus(size.negated());
        if self.is_in_livelist(bp) {
            sums.frees.push(*bp);
        }
        for (name, txg) in &self.bookmarks {
            if birth <= *txg {
                let sum = sums.bookmarks.entry(name.clone()).or_default();
                *sum = sum.plus(size);
            }
        }
        if birth > self.phys.prev_snap_txg {
            sums.own = sums.own.plus(size.negated());
            let long = sums.take_lists();
            drop(sums);
            self.write_long(long)?;
            return self.at.free_block(bp);
        }
        sums.dead.push(*bp);
        if self.previous_since.is_some_and(|since| birth > since) {
            sums.previous_unique += size.used.cast_unsigned();
        }
        if birth > self.origin_txg {
            sums.to_snapshots += size.used;
        }
        let long = sums.take_lists();
        drop(sums);
        self.write_long(long)
    }
}
