//! Writing labels and uberblocks: the step that makes a txg real.
//!
//! A leaf has four labels, L0 and L1 at its front, L2 and L3 at its end, each with the pool's configuration and a
//! ring of uberblocks. The pool *is* the best uberblock that can be read anywhere, and a configuration that is
//! not newer than it. A sync of txg `n` does, each step ended by a flush of every leaf it wrote to:
//!
//! 1. flush all leaves: all blocks that the txg wrote are then durable;
//! 2. if the configuration changed, write it to the even labels (L0, L2) of every leaf;
//! 3. write the uberblock to a slot of the rings, in all four labels of the leaves of a few top-level vdevs
//!    (of all, if the configuration changed);
//! 4. if the configuration changed, write it to the odd labels (L1, L3).
//!
//! Why each moment is safe to lose power in:
//! - before step 3 has written anything, the best uberblock is that of `n - 1`. Nothing that it refers to has been
//!   overwritten: space freed in the last txgs is not used again yet. Even labels that are already newer, or
//!   torn, are ignored, since the odd ones still have the configuration that goes with `n - 1`.
//! - within step 3 a slot may be torn, which its checksum detects. Slot `n` modulo the ring never holds one
//!   of the last uberblocks, so `n - 1` is whole. If any slot `n` is whole the pool is at `n`, for which
//!   everything became durable in steps 1 and 2; the even labels have its configuration.
//! - within step 4 the even labels are whole.
//!
//! With multihost protection the last slots of each ring are left to its heartbeat.
//!
//! Format source: `vdev_config_sync`, `vdev_label_init`, vdev_label.c, OpenZFS 2.3.
//!
//! Differs from OpenZFS: when the configuration changed, all leaves get it, not just those of changed top-level
//! vdevs; a failed flush in step 1 is an error when blocks that it may have lost can't be reconstructed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use checksum::Algorithm;
use nvpair::NvList;
use ondisk::label::{
    BOOTENV_OFFSET, BOOTENV_SIZE, LABELS, MIN_DEVICE_SIZE, MMP_BLOCKS_PER_LABEL, NVLIST_SIZE, PHYS_OFFSET,
    PHYS_SIZE, RING_OFFSET, RING_SIZE, label_offset, label_verifier, uberblock_count, uberblock_offset,
    uberblock_shift,
};
use ondisk::{Eck, EckPhys, Endian, Uberblock};
use stdx::{AlignedBuf, Buf};

use super::batch::{LeafWrite, flush_all, write_all};
use super::config::AllocBias;
use super::leaf::Leaf;
use super::top::{Top, VdevLayout};
use super::tree::Tree;
use crate::error::{Error, Kind, Result};
use crate::taskq::Executor;

/// Top-level vdevs that take the uberblock while the configuration does not change.
#[doc(alias = "SPA_SYNC_MIN_VDEVS")]
const FEW: usize = 3;

/// Labels and uberblocks to write at the end of a sync.
pub(crate) struct ConfigSync<'a> {
    /// The pool's devices.
    pub(crate) tree: &'a Tree,
    /// Helps while waiting.
    pub(crate) executor: &'a dyn Executor,
    /// The uberblock; its txg determines the slot.
    pub(crate) uberblock: &'a Uberblock,
    /// Returns the label of each leaf, when the configuration changed; `None`: only uberblocks are written.
    pub(crate) label: Option<&'a dyn Fn(&Leaf) -> NvList>,
    /// The last slots of the rings are another's.
    pub(crate) multihost: bool,
    /// Any number: which top-level vdevs take the uberblock when not all do.
    pub(crate) choice: u64,
    /// Failed flushes of leaves, by guid, when all blocks of the txg were known to be there
    /// ([`Leaf::failed_flushes`]): one that has failed since then counts as the flush of step 1. Other leaves
    /// are not checked.
    pub(crate) known: &'a HashMap<u64, u64>,
}

impl std::fmt::Debug for ConfigSync<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConfigSync(txg {}, labels {})", self.uberblock.txg, self.label.is_some())
    }
}

impl ConfigSync<'_> {
    /// Does all steps, and returns when the txg is durable.
    ///
    /// # Errors
    /// `Io` when writes of the txg may not be durable, when a top-level vdev other than a log took no label,
    /// or when no leaf took the uberblock, after a second try with all leaves. The caller must then treat the
    /// txg as not committed; the pool must be suspended.
    #[doc(alias = "vdev_config_sync")]
    pub(crate) fn run(&self) -> Result<()> {
        self.flush_data()?;
        match self.attempt(self.few()) {
            Ok(()) => Ok(()),
            Err(_) => self.attempt(self.writable_tops()),
        }
    }

    fn attempt(&self, tops: Vec<&Arc<Top>>) -> Result<()> {
        self.write_labels(0)?;
        self.write_uberblocks(&tops)?;
        self.write_labels(1)
    }

    /// Step 1. Nothing of a synced txg is only in a log.
    fn flush_data(&self) -> Result<()> {
        for top in self.writable_tops() {
            let leaves: Vec<Arc<Leaf>> = top.leaves().filter(|leaf| leaf.is_writable()).collect();
            let txg = self.uberblock.txg;
            let flushed = flush_all(self.executor, &leaves, txg);
            let is_good = |leaf: &Leaf, flushed: bool| {
                flushed && self.known.get(&leaf.guid).is_none_or(|&known| known == leaf.failed_flushes())
            };
            let failed: Vec<u64> = leaves
                .iter()
                .zip(flushed)
                .filter(|(leaf, good)| !is_good(leaf, *good))
                .map(|(leaf, _)| leaf.guid)
                .collect();
            if top.bias != AllocBias::Log && !top.survives(&failed, txg..txg + 1) {
                return Err(
                    Error::new(Kind::Io, "what was written could not be made durable").on_vdev(&top.name)
                );
            }
            leaves.iter().filter(|leaf| failed.contains(&leaf.guid)).for_each(|leaf| leaf.miss(txg));
        }
        Ok(())
    }

    /// Steps 2 and 4: the even labels, or the odd ones.
    fn write_labels(&self, first: u32) -> Result<()> {
        let Some(label) = self.label else { return Ok(()) };
        let (mut writes, mut of_top) = (Vec::new(), Vec::new());
        let tops = self.writable_tops();
        for (number, top) in tops.iter().enumerate() {
            for leaf in top.leaves().filter(|leaf| leaf.is_writable()) {
                let packed = pack(&label(&leaf))?;
                for index in (first..LABELS).step_by(2) {
                    let Some(offset) = place(&leaf, index, PHYS_OFFSET) else { continue };
                    writes.push(LeafWrite {
                        leaf: Arc::clone(&leaf),
                        offset,
                        data: sealed(&packed, PHYS_SIZE, offset),
                    });
                    of_top.push(number);
                }
            }
        }
        let leaves = distinct(&writes);
        let of_leaf: Vec<u64> = writes.iter().map(|write| write.leaf.guid).collect();
        let written = write_all(self.executor, writes);
        let flushed = flush_all(self.executor, &leaves, self.uberblock.txg);
        // A label that may be lost is none.
        let durable: HashSet<u64> =
            leaves.iter().zip(flushed).filter(|(_, good)| *good).map(|(leaf, _)| leaf.guid).collect();
        let good = of_leaf.iter().zip(written).map(|(guid, written)| written && durable.contains(guid));
        let good: Vec<bool> = good.collect();
        for (number, top) in tops.iter().enumerate() {
            let any = of_top.iter().zip(&good).any(|(&of, &good)| of == number && good);
            if !any && top.bias != AllocBias::Log {
                return Err(Error::new(Kind::Io, "no label could be written").on_vdev(&top.name));
            }
        }
        Ok(())
    }

    /// Step 3.
    fn write_uberblocks(&self, tops: &[&Arc<Top>]) -> Result<()> {
        let mut writes = Vec::new();
        let bytes = self.uberblock.to_bytes();
        for top in tops {
            let reserved = if self.multihost { MMP_BLOCKS_PER_LABEL } else { 0 };
            let slots = uberblock_count(top.ashift).saturating_sub(reserved).max(1);
            let at = uberblock_offset(top.ashift, self.uberblock.txg % slots);
            for leaf in top.leaves().filter(|leaf| leaf.is_writable()) {
                for offset in (0..LABELS).filter_map(|index| place(&leaf, index, at)) {
                    let data = sealed(&bytes, 1 << uberblock_shift(top.ashift), offset);
                    writes.push(LeafWrite { leaf: Arc::clone(&leaf), offset, data });
                }
            }
        }
        let leaves = distinct(&writes);
        let written = write_all(self.executor, writes.iter().map(LeafWrite::again).collect());
        let flushed = flush_all(self.executor, &leaves, self.uberblock.txg);
        let durable = |write: &LeafWrite| {
            leaves.iter().zip(&flushed).any(|(leaf, &flushed)| flushed && leaf.guid == write.leaf.guid)
        };
        if writes.iter().zip(written).any(|(write, written)| written && durable(write)) {
            Ok(())
        } else {
            Err(Error::new(Kind::Io, "no device took the uberblock"))
        }
    }

    /// Where the uberblock goes: everywhere when the configuration changed, else to a few that are no logs.
    fn few(&self) -> Vec<&Arc<Top>> {
        let all = self.writable_tops();
        if self.label.is_some() {
            return all;
        }
        let count = u64::try_from(all.len()).unwrap_or(u64::MAX);
        let first = usize::try_from(self.choice.checked_rem(count).unwrap_or(0)).unwrap_or(0);
        let from_there = all.iter().cycle().skip(first).take(all.len());
        from_there.filter(|top| top.bias != AllocBias::Log).take(FEW).copied().collect()
    }

    /// Top-level vdevs with devices of their own, some of them present.
    fn writable_tops(&self) -> Vec<&Arc<Top>> {
        let is_concrete =
            |top: &&Arc<Top>| !matches!(top.layout, VdevLayout::Indirect(_) | VdevLayout::Absent);
        let tops = self.tree.tops().filter(is_concrete);
        tops.filter(|top| top.leaves().any(|leaf| leaf.is_writable())).collect()
    }
}

/// Makes writes of an earlier process durable that may still be in the system's page cache, so that the
/// uberblock that was found, and all blocks that it refers to, survive a power cut. Before this, space
/// referred to by older uberblocks must not be overwritten. A leaf records its failed flush; `next` is the
/// txg that is written next.
pub(crate) fn settle_found(tree: &Tree, executor: &dyn Executor, next: u64) {
    let leaves: Vec<Arc<Leaf>> = tree.leaves().filter(|leaf| leaf.is_writable()).map(Arc::clone).collect();
    flush_all(executor, &leaves, next);
}

/// Makes the blocks that were restored on leaves durable, before their DTLs lose these txgs: those of distributed spares are on
/// the disks of their draid. A leaf whose flush fails keeps its DTL, see [`super::doubt`].
pub(crate) fn settle_filled(tree: &Tree, executor: &dyn Executor, next: u64) {
    let lacks = |leaf: &Leaf| !leaf.dtl.read().is_empty();
    let is_filled = |top: &Top, leaf: &Leaf| {
        lacks(leaf) || top.leaves_and_spares().any(|spare| spare.is_distributed() && lacks(&spare))
    };
    let of_top = |top: &Arc<Top>| {
        let leaves = top.leaves().filter(|leaf| leaf.is_writable() && is_filled(top, leaf));
        leaves.collect::<Vec<Arc<Leaf>>>()
    };
    let leaves: Vec<Arc<Leaf>> = tree.tops().flat_map(of_top).collect();
    flush_all(executor, &leaves, next);
}

/// Labels a device that joins a pool: all four labels at once, with empty uberblock rings and boot environments.
/// The first 8 KiB of the device, where a partition table is that no longer holds, become zeros as well (OpenZFS's
/// `zpool` does the same in `zero_label`, for 4 KiB); those of the other labels and the boot loader area stay as they
/// are.
///
/// The label of a pool's member has txg 0: it counts for nothing until a sync has written it again. Spares and
/// cache devices have a label of their own form, which is final.
///
/// # Errors
/// `Invalid` when the device is too small, `TooLong` when the label doesn't fit, `Io` when a write failed.
#[doc(alias = "vdev_label_init")]
pub(crate) fn init_leaf(leaf: &Arc<Leaf>, label: &NvList, executor: &dyn Executor) -> Result<()> {
    let size = leaf.device().map_or(0, |device| device.geometry().size);
    if size < MIN_DEVICE_SIZE {
        return Err(Error::new(Kind::Invalid, "the device is smaller than 64 MiB").on_vdev(&leaf.path));
    }
    let packed = pack(label)?;
    let areas: [(&[u8], u64, u64); 3] = [
        (&packed, PHYS_OFFSET, PHYS_SIZE),
        (&[], BOOTENV_OFFSET, BOOTENV_SIZE),
        (&[], RING_OFFSET, RING_SIZE),
    ];
    let front = AlignedBuf::zeroed(usize::try_from(BOOTENV_OFFSET).unwrap_or(0)).into();
    let mut writes = vec![LeafWrite { leaf: Arc::clone(leaf), offset: 0, data: front }];
    for index in 0..LABELS {
        for (bytes, at, len) in areas {
            let Some(offset) = place(leaf, index, at) else { continue };
            writes.push(LeafWrite { leaf: Arc::clone(leaf), offset, data: sealed(bytes, len, offset) });
        }
    }
    let written = write_all(executor, writes);
    let flushed = flush_all(executor, std::slice::from_ref(leaf), 0);
    if written.into_iter().chain(flushed).all(|good| good) {
        Ok(())
    } else {
        Err(Error::new(Kind::Io, "the device can't be labelled").on_vdev(&leaf.path))
    }
}

/// Writes the heartbeat of multihost protection: the uberblock, with its multihost fields set, in a reserved slot
/// of one label. True when it was written.
#[doc(alias = "mmp_write_uberblock")]
pub(crate) fn write_heartbeat(
    leaf: &Arc<Leaf>,
    ashift: u32,
    label: u32,
    uberblock: &Uberblock,
    executor: &dyn Executor,
) -> bool {
    let slot = uberblock_count(ashift).saturating_sub(MMP_BLOCKS_PER_LABEL);
    let Some(offset) = place(leaf, label % LABELS, uberblock_offset(ashift, slot)) else { return false };
    let data = sealed(&uberblock.to_bytes(), 1 << uberblock_shift(ashift), offset);
    write_all(executor, vec![LeafWrite { leaf: Arc::clone(leaf), offset, data }]) == [true]
}

/// Writes an uberblock to the first slot of heartbeats of each leaf, whose sector shift is given, and flushes them; how many took
/// it.
#[doc(alias = "mmp_claim_uberblock_sync")]
pub(crate) fn write_claim(
    leaves: &[(Arc<Leaf>, u32)],
    uberblock: &Uberblock,
    executor: &dyn Executor,
) -> usize {
    let write = |(leaf, ashift): &(Arc<Leaf>, u32)| {
        let slot = uberblock_count(*ashift).saturating_sub(MMP_BLOCKS_PER_LABEL);
        let offset = place(leaf, 0, uberblock_offset(*ashift, slot))?;
        let data = sealed(&uberblock.to_bytes(), 1 << uberblock_shift(*ashift), offset);
        Some(LeafWrite { leaf: Arc::clone(leaf), offset, data })
    };
    let writes: Vec<LeafWrite> = leaves.iter().filter_map(write).collect();
    let written: Vec<Arc<Leaf>> = writes.iter().map(|write| Arc::clone(&write.leaf)).collect();
    let good = write_all(executor, writes);
    let flushed = flush_all(executor, &written, uberblock.txg.saturating_add(1));
    good.into_iter().zip(flushed).filter(|both| *both == (true, true)).count()
}

/// Where byte `at` of a label stands on the device.
pub(super) fn place(leaf: &Leaf, index: u32, at: u64) -> Option<u64> {
    label_offset(leaf.size(), index)?.checked_add(at)
}

fn pack(label: &NvList) -> Result<Vec<u8>> {
    let packed =
        label.encode_xdr().map_err(|e| Error::new(Kind::Invalid, format!("a label can't be packed: {e}")))?;
    match u64::try_from(packed.len()) {
        Ok(len) if len <= NVLIST_SIZE => Ok(packed),
        _ => Err(Error::new(Kind::TooLong, "the configuration does not fit into a label")),
    }
}

/// `bytes`, zeros up to `len`, and in the last 40 bytes the checksum trailer for a block at the device offset
/// `offset`.
#[doc(alias = "ZIO_CHECKSUM_LABEL")]
pub fn sealed(bytes: &[u8], len: u64, offset: u64) -> Buf {
    let mut block = AlignedBuf::zeroed(usize::try_from(len).unwrap_or(0));
    if let Some(front) = block.get_mut(..bytes.len()) {
        front.copy_from_slice(bytes);
    }
    let trailer = |block: &mut [u8], cksum| {
        if let Some(tail) = block.last_chunk_mut::<{ EckPhys::SIZE }>() {
            *tail = Eck { endian: Endian::Little, cksum }.to_bytes();
        }
    };
    trailer(&mut block, label_verifier(offset));
    let cksum = checksum::digest(Algorithm::Sha256, &block, None, false);
    trailer(&mut block, cksum);
    block.into()
}

fn distinct(writes: &[LeafWrite]) -> Vec<Arc<Leaf>> {
    let mut leaves: Vec<Arc<Leaf>> = writes.iter().map(|write| Arc::clone(&write.leaf)).collect();
    leaves.dedup_by_key(|leaf| leaf.guid);
    leaves
}
