//! Blocks written anew with the same bytes, so that they take on today's properties and places.
//!
//! Each transaction marks some stored blocks as written; holes stay holes. A block that waits to be written anyway is left
//! out. Times do not change, and the log needs no record: the bytes are the same after a crash.
//!
//! Blocks of a snapshot stay, so space is used twice. A choice of blocks ([`Which`]) that is made for their places or widths
//! leaves out what would stay in its old place anyway: blocks of snapshots, and blocks with other references.
//!
//! Source: `zfs_rewrite`, zfs_vnops.c, OpenZFS 2.4. Differs from it: the file is locked for one transaction at a time,
//! not for all of them; a block that waits in an older txg is left out, too; blocks can be chosen; and encrypted blocks are new
//! after a physical rewrite, because a raw incremental stream that lacks a block with a new MAC cannot be authenticated once
//! received.

use std::collections::BTreeMap;
use std::ops::Range;

use engine::dmu::Object;
use engine::dmu::dirty::SameBytes;
use engine::dsl::write::Hooks;
use engine::spa::Spa;
use engine::{Error, Result};
use ondisk::Blkptr;
use stdx::Buf;
use zcommon::features::Feature;
use zcommon::version::SPA_VERSION_DEDUP;

use super::fs::{FsWriter, Rewrites};
use super::node::Node;

/// Most bytes that one transaction rewrites, if they are more than a block.
const CHUNK: u64 = 1 << 20;

/// Treatment of rewritten blocks by incremental streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rewriting {
    /// New: they are sent again.
    Logical,
    /// As old as they were: they keep their logical birth, and only their physical birth is new.
    #[doc(alias = "ZFS_REWRITE_PHYSICAL")]
    Physical,
}

/// The blocks that are rewritten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Which {
    /// All.
    #[default]
    All,
    /// Those on top-level vdevs that are fuller than their class; they go to the others.
    Balance,
    /// Those that take fewer sectors at the width that their raidz has today.
    Compact,
    /// Those that no dedup table lists; they enter one.
    Dedup,
    /// Those that a dedup table lists; they get copies of their own.
    Undedup,
}

/// The result or the plan of a rewrite, in bytes of blocks before compression.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Written.
    pub written: u64,
    /// Of these, blocks whose old copies stay, because snapshots refer to them.
    pub kept: u64,
    /// Left out because snapshots, clones or dedup tables refer to them, too.
    pub shared: u64,
    /// Left out because they are as wanted, or wait to be written anyway.
    pub passed: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        let add = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        add(&mut self.written, other.written);
        add(&mut self.kept, other.kept);
        add(&mut self.shared, other.shared);
        add(&mut self.passed, other.passed);
    }
}

/// How blocks are rewritten.
#[derive(Debug, Clone, Copy)]
pub struct RewriteHow {
    /// Their births.
    pub births: Rewriting,
    /// Which ones.
    pub which: Which,
    /// Nothing is written; the tally tells what would be.
    pub dry: bool,
}

impl Which {
    fn again(self, births: Rewriting) -> SameBytes {
        let dedup = match self {
            Self::Dedup => Some(true),
            Self::Undedup => Some(false),
            _ => None,
        };
        let evens_out = self == Self::Balance;
        SameBytes { keeps_birth: births == Rewriting::Physical, dedup, evens_out, always: self != Self::All }
    }

    /// Whether blocks are chosen for the space that they free in their old places.
    fn is_for_places(self) -> bool {
        matches!(self, Self::Balance | Self::Compact)
    }
}

/// The state that the choice of blocks depends on, as of one transaction.
struct Chooser<'a> {
    which: Which,
    spa: Option<&'a Spa>,
    /// The txg of the newest snapshot.
    snapshot: u64,
    /// The dedup tables take no more blocks.
    is_full: bool,
    /// Bytes that vdevs have to give.
    surplus: BTreeMap<u64, u64>,
    txg: u64,
}

impl Chooser<'_> {
    /// Whether the block is one of those, whatever else refers to it.
    fn wants(&mut self, bp: &Blkptr) -> bool {
        match self.which {
            Which::All => true,
            Which::Balance => {
                let chosen = bp.dvas().any(|dva| self.surplus.contains_key(&u64::from(dva.vdev)));
                chosen && !bp.is_embedded()
            }
            Which::Compact => {
                let Some(spa) = self.spa.filter(|_| !bp.is_embedded()) else { return false };
                let narrower = |vdev: u32, asize: u64| {
                    spa.space.asize_on(u64::from(vdev), bp.psize(), self.txg).is_some_and(|new| new < asize)
                };
                bp.dvas().any(|dva| !dva.gang && narrower(dva.vdev, dva.asize))
            }
            Which::Dedup => !bp.is_embedded() && !bp.dedup() && !self.is_full,
            Which::Undedup => !bp.is_embedded() && bp.dedup(),
        }
    }

    /// The block leaves its vdevs.
    fn takes(&mut self, bp: &Blkptr) {
        for dva in bp.dvas() {
            let vdev = u64::from(dva.vdev);
            let left = self.surplus.get(&vdev).map(|bytes| bytes.saturating_sub(dva.asize));
            match left {
                Some(0) => drop(self.surplus.remove(&vdev)),
                Some(left) => drop(self.surplus.insert(vdev, left)),
                None => {}
            }
        }
    }

    fn is_of_snapshot(&self, bp: &Blkptr) -> bool {
        bp.accounting_birth() <= self.snapshot
    }
}

impl Rewrites<'_> {
    /// Writes the stored blocks of `len` bytes (0: all) of file `number` from `offset` on again. Returns how many bytes
    /// it wrote; the part past the end of the file is skipped.
    ///
    /// # Errors
    /// The errors of reads and writes; the blocks before are rewritten. `Unsupported` for a physical rewrite where the feature
    /// `physical_rewrite` is not enabled, or the file system is not mounted.
    #[doc(alias = "zfs_rewrite")]
    pub fn rewrite(self, number: u64, offset: u64, len: u64, births: Rewriting) -> Result<u64> {
        let how = RewriteHow { births, which: Which::All, dry: false };
        self.rewrite_some(number, offset, len, how).map(|tally| tally.written)
    }

    /// As [`Rewrites::rewrite`], for chosen blocks.
    ///
    /// # Errors
    /// As [`Rewrites::rewrite`].
    pub fn rewrite_some(self, number: u64, offset: u64, len: u64, how: RewriteHow) -> Result<Tally> {
        let node = self.fs.file(number)?;
        check_rewrite(self.fs, how)?;
        // Data that waits to be written has no blocks yet that could be counted.
        if how.dry && node.handle.has_waiting_blocks() {
            self.fs.txs.sync()?;
        }
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
        let (mut at, mut tally) = (offset, Tally::default());
        loop {
            let span = node.handle.block_size().saturating_add(CHUNK);
            let _range = node.ranges.lock(at..at.saturating_add(span), true);
            let end = end.min(node.word(self.fs.fields.size));
            let object = self.fs.object(&node)?;
            let block = object.dnode.datablksz().max(1);
            let next = object.next_block(at / block).map_err(|(_, e)| e)?;
            let Some(first) = next.filter(|blkid| blkid.saturating_mul(block) < end) else {
                return Ok(tally);
            };
            if first > at / block {
                // The lock does not cover the part after the hole.
                at = first.saturating_mul(block);
                continue;
            }
            let stop = first.saturating_add((CHUNK / block).max(1)).min(end.div_ceil(block));
            tally += rewrite_locked(self.fs, &node, &object, first..stop, how)?;
            at = stop.saturating_mul(block);
        }
    }
}

fn check_rewrite(fs: &FsWriter, how: RewriteHow) -> Result<()> {
    if how.which.is_for_places() && fs.spa().is_none() {
        return Err(Error::unsupported("the file system is not mounted"));
    }
    if how.which == Which::Dedup && fs.spa().is_some_and(|spa| spa.version() < SPA_VERSION_DEDUP) {
        return Err(Error::unsupported("pool must be upgraded to have dedup tables"));
    }
    let feature = Feature::PhysicalRewrite;
    if how.births == Rewriting::Logical || fs.spa().is_some_and(|spa| spa.feature(feature).is_some()) {
        return Ok(());
    }
    let what =
        "the feature physical_rewrite of the pool is not enabled: blocks are rewritten with a new birth only";
    Err(Error::unsupported(what))
}

fn chooser(fs: &FsWriter, which: Which) -> Result<Chooser<'_>> {
    let spa = fs.spa().map(AsRef::as_ref);
    let snapshot = match spa {
        Some(spa) => spa.datasets.view().dataset(fs.objset.id)?.prev_snap_txg,
        None => 0,
    };
    let surplus =
        spa.filter(|_| which == Which::Balance).map(|spa| spa.space_facts().surplus()).unwrap_or_default();
    // Blocks that the tables refuse would stay outside of them, and be written again by each run.
    let is_full = which == Which::Dedup && spa.is_some_and(|spa| spa.sharing().is_over_quota());
    Ok(Chooser { which, spa, snapshot, is_full, surplus, txg: spa.map_or(0, |spa| spa.txgs.open()) })
}

/// The blocks to be rewritten, with their pointers.
fn choose(
    fs: &FsWriter,
    node: &Node,
    object: &Object,
    blocks: Range<u64>,
    which: Which,
) -> Result<(Vec<(u64, Blkptr)>, Tally)> {
    let (size, mut tally) = (object.dnode.datablksz(), Tally::default());
    let mut chooser = chooser(fs, which)?;
    let mut chosen = Vec::new();
    for blkid in blocks {
        match node.handle.pending(blkid) {
            None => chosen.extend(object.blkptr(0, blkid)?.map(|bp| (blkid, bp))),
            Some(stored) => tally.passed = tally.passed.saturating_add(if stored { size } else { 0 }),
        }
    }
    let cloned = match chooser.spa.filter(|_| which.is_for_places()) {
        Some(spa) => spa.sharing().are_cloned(&chosen.iter().map(|(_, bp)| *bp).collect::<Vec<_>>())?,
        None => vec![false; chosen.len()],
    };
    let mut taken = Vec::new();
    for ((blkid, bp), is_cloned) in chosen.into_iter().zip(cloned) {
        let of_snapshot = chooser.is_of_snapshot(&bp);
        let count = if !chooser.wants(&bp) {
            &mut tally.passed
        } else if which.is_for_places() && (of_snapshot || is_cloned || bp.dedup()) {
            &mut tally.shared
        } else {
            chooser.takes(&bp);
            taken.push((blkid, bp));
            tally.kept = tally.kept.saturating_add(if of_snapshot { size } else { 0 });
            &mut tally.written
        };
        *count = count.saturating_add(size);
    }
    Ok((taken, tally))
}

fn rewrite_locked(
    fs: &FsWriter,
    node: &Node,
    object: &Object,
    blocks: Range<u64>,
    how: RewriteHow,
) -> Result<Tally> {
    let (chosen, tally) = choose(fs, node, object, blocks, how.which)?;
    if chosen.is_empty() || how.dry {
        return Ok(tally);
    }
    fs.quotas().check(node)?;
    let read = |(blkid, bp): (u64, Blkptr)| Ok((blkid, bp, object.block(blkid)?));
    let read: Vec<(u64, Blkptr, Buf)> = chosen.into_iter().map(read).collect::<Result<_>>()?;
    let tx = fs.begin_for(tally.written, false)?;
    if node.handle.is_free() {
        return Err(Error::not_found("the file was removed"));
    }
    for (blkid, bp, bytes) in read {
        match (how.which, how.births) {
            (Which::All, Rewriting::Logical) => node.handle.write_block(&tx, blkid, bytes)?,
            (which, births) => node.handle.move_block(&tx, blkid, bytes, which.again(births))?,
        }
        if let Some(spa) = fs.spa().filter(|_| how.which == Which::Balance) {
            spa.space_facts().note_leaving(&bp, tx.txg());
        }
    }
    Ok(tally)
}
