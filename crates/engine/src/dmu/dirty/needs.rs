//! The blocks that a change has to write, so that a full pool refuses at the call: data, the indirect blocks above
//! that no other change of the txg shares, blocks of dnodes, spill and root blocks. Each counts with its bytes
//! before compression and with its copies, once per txg.

use std::collections::BTreeSet;
use std::ops::AddAssign;

use ondisk::Dnode;

use super::policy::Policy;
use super::{META_BLOCK, tree};

const MIB: u64 = 1 << 20;
/// Bytes of a block pointer.
const POINTER: u64 = 128;
/// Maximum bytes of an indirect block of zeros after lz4.
const ZEROS: u64 = 1024;
/// Bytes of a root block, and of the accounting of its owners.
const ROOT: u64 = 4096;
const ACCOUNT: u64 = 16 << 10;
/// Bytes in space maps and deadlists for each block.
const NOTES: u64 = 512;

/// Blocks to be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Their bytes, copies included.
    pub(crate) bytes: u64,
    /// Their number, including copies.
    pub(crate) blocks: u64,
}

impl AddAssign for Needs {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }
}

impl Needs {
    /// Bytes on disk that they take at most, if none can be compressed. `per_mib`, `least`: bytes on disk of blocks of 1 MiB
    /// and of the smallest size, on the vdev where they take most.
    pub(crate) fn most_asize(self, [per_mib, least]: [u64; 2]) -> u64 {
        let parts = u128::from(self.bytes) * u128::from(per_mib) / u128::from(MIB);
        // The last row of sectors, of a block and of its parity, is filled in part.
        let ends = least.saturating_mul(2);
        u64::try_from(parts).unwrap_or(u64::MAX).saturating_add(self.blocks.saturating_mul(ends))
    }

    /// One block of `bytes` bytes with `copies` copies.
    pub(crate) fn block(bytes: u64, copies: u8) -> Self {
        let copies = u64::from(copies);
        Self { bytes: bytes.saturating_add(NOTES).saturating_mul(copies), blocks: copies }
    }
}

/// Whether a number equals a neighbour without the last `shift` bits.
fn shares(number: u64, neighbours: [Option<u64>; 2], shift: u32) -> bool {
    let high = |n: u64| n.checked_shr(shift).unwrap_or(0);
    neighbours.into_iter().flatten().any(|other| high(other) == high(number))
}

/// Maximum bytes of an indirect block of `level`: it has no more pointers than the object has blocks.
fn indirect_bytes(dnode: &Dnode, level: u8, maxblkid: u64) -> u64 {
    let shift = dnode.blocks_per_indirect_shift() * u32::from(level.saturating_sub(1));
    let below = maxblkid.checked_shr(shift).unwrap_or(0).saturating_add(1);
    let most = 1u64.checked_shl(u32::from(dnode.indblkshift)).unwrap_or(0);
    below.saturating_mul(POINTER).saturating_add(ZEROS).min(most)
}

/// Indirect blocks from `level` on, above block `number` of the level below, that `neighbours` on that level do not
/// share.
fn indirects(
    (policy, dnode): (&Policy, &Dnode),
    (level, levels, maxblkid): (u8, u8, u64),
    number: u64,
    neighbours: [Option<u64>; 2],
) -> Needs {
    let mut needs = Needs::default();
    let step = dnode.blocks_per_indirect_shift();
    for above in level..levels {
        if shares(number, neighbours, step * u32::from(above - level + 1)) {
            break;
        }
        needs += Needs::block(indirect_bytes(dnode, above, maxblkid), policy.block(dnode, above).copies);
    }
    needs
}

/// First-level indirect blocks that a txg changes in one object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Touched {
    paths: BTreeSet<u64>,
    levels: u8,
}

impl Touched {
    /// The indirect blocks to be written because block `blkid` changes.
    pub(crate) fn path(&mut self, policy: &Policy, dnode: &Dnode, blkid: u64) -> Needs {
        let maxblkid = dnode.maxblkid.max(blkid);
        let levels = dnode.nlevels.max(tree::levels_for(dnode, maxblkid));
        if levels < 2 {
            return Needs::default();
        }
        let mut needs = Needs::default();
        // A tree that grows higher also has new blocks above its first.
        if self.levels < levels && levels > dnode.nlevels {
            needs += self.add(policy, dnode, (levels, maxblkid), 0);
        }
        self.levels = self.levels.max(levels);
        needs += self.add(policy, dnode, (levels, maxblkid), blkid >> dnode.blocks_per_indirect_shift());
        needs
    }

    fn add(&mut self, policy: &Policy, dnode: &Dnode, (levels, max): (u8, u64), first: u64) -> Needs {
        if self.paths.contains(&first) {
            return Needs::default();
        }
        let below = self.paths.range(..first).next_back().copied();
        let above = self.paths.range(first..).next().copied();
        self.paths.insert(first);
        let mut needs = Needs::block(indirect_bytes(dnode, 1, max), policy.block(dnode, 1).copies);
        needs += indirects((policy, dnode), (2, levels, max), first, [below, above]);
        needs
    }
}

/// The dnode block `blkid`, unless a neighbour in the txg is in the same block, and the blocks above it.
pub(crate) fn of_dnode(policy: &Policy, meta: &Dnode, blkid: u64, neighbours: [Option<u64>; 2]) -> Needs {
    if shares(blkid, neighbours, 0) {
        return Needs::default();
    }
    let maxblkid = meta.maxblkid.max(blkid);
    let levels = meta.nlevels.max(tree::levels_for(meta, maxblkid));
    let mut needs = Needs::block(META_BLOCK, policy.block(meta, 0).copies);
    needs += indirects((policy, meta), (1, levels, maxblkid), blkid, neighbours);
    if neighbours == [None, None] {
        let copies = policy.root().copies;
        needs += Needs::block(ROOT, copies);
        (0..3).for_each(|_| needs += Needs::block(ACCOUNT, copies));
    }
    needs
}

#[cfg(test)]
mod tests {
    use ondisk::ObjectType;

    use super::*;

    #[test]
    fn blocks_above_count_once() {
        let policy = Policy::dataset();
        let mut dnode = Dnode::new(ObjectType::PLAIN_FILE_CONTENTS, 512, 1, ObjectType::NONE, 0);
        dnode.maxblkid = 1 << 30;
        dnode.nlevels = tree::levels_for(&dnode, dnode.maxblkid);
        let mut touched = Touched::default();
        let blocks = |touched: &mut Touched, blkid| touched.path(&policy, &dnode, blkid).blocks / 2;
        assert_eq!(blocks(&mut touched, 5), u64::from(dnode.nlevels) - 1);
        assert_eq!(blocks(&mut touched, 6), 0);
        assert_eq!(blocks(&mut touched, 1 << 12), 1, "the second level is shared");
        assert_eq!(blocks(&mut touched, 1 << 25), 2);
        assert_eq!(blocks(&mut touched, (1 << 25) + 1), 0);
        let low = Dnode::new(ObjectType::PLAIN_FILE_CONTENTS, 512, 1, ObjectType::NONE, 0);
        assert_eq!(Touched::default().path(&policy, &low, 0), Needs::default());
        let grown = Touched::default().path(&policy, &low, 1 << 25);
        assert!(grown.blocks / 2 > u64::from(tree::levels_for(&low, 1 << 25)), "{grown:?}");
    }

    #[test]
    fn dnodes_of_one_block_count_once() {
        let policy = Policy::dataset();
        let mut meta = Dnode::new(ObjectType::DNODE, META_BLOCK, 1, ObjectType::NONE, 0);
        meta.nlevels = 7;
        let first = of_dnode(&policy, &meta, 9, [None, None]);
        assert_eq!(first.blocks / 2, 1 + 6 + 4);
        assert_eq!(of_dnode(&policy, &meta, 9, [Some(9), None]), Needs::default());
        assert_eq!(of_dnode(&policy, &meta, 10, [Some(9), None]).blocks / 2, 1);
        assert_eq!(of_dnode(&policy, &meta, 1 << 11, [Some(9), None]).blocks / 2, 2);
    }
}
