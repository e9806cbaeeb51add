//! The shape of an object's block tree: its number of levels, and updates of indirect blocks.

use std::collections::BTreeMap;

use ondisk::{Blkptr, Dnode, ObjectType, dnode};
use stdx::{AlignedBuf, Buf};

/// Bytes of a block pointer, as a shift.
const BLKPTR_SHIFT: usize = 7;

/// Number of levels that an object needs to reach block `maxblkid`.
pub(crate) fn levels_for(dnode: &Dnode, maxblkid: u64) -> u8 {
    let mut reach = u64::try_from(dnode.nblkptr().max(1)).unwrap_or(1);
    let mut levels = 1;
    while reach <= maxblkid {
        levels += 1;
        match reach.checked_mul(1 << dnode.blocks_per_indirect_shift()) {
            Some(more) => reach = more,
            None => break,
        }
    }
    levels
}

/// Non-zero blocks below and at a pointer.
pub(crate) fn fill_of(bp: &Blkptr) -> u64 {
    match (bp.is_hole(), bp.is_embedded()) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => bp.fill(),
    }
}

/// The fill count of a data block's pointer: for a block of dnodes its objects, otherwise 1.
pub(crate) fn data_fill(kind: ObjectType, bytes: &[u8]) -> u64 {
    if kind != ObjectType::DNODE {
        return 1;
    }
    let used = dnode::slots(bytes).filter(|(_, slot)| slot.first().is_some_and(|&kind| kind != 0)).count();
    u64::try_from(used).unwrap_or(0)
}

/// An indirect block after its children changed.
#[derive(Debug)]
pub(crate) struct NewIndirect {
    /// Its bytes.
    pub(crate) bytes: Buf,
    /// Sum of its children's fill counts.
    pub(crate) fill: u64,
    /// All children are holes.
    pub(crate) empty: bool,
}

/// Puts `children` (by index in the block) into the indirect block `old` (or zeros) of `size` bytes.
pub(crate) fn rebuild(old: Option<&Buf>, size: usize, children: &BTreeMap<usize, Blkptr>) -> NewIndirect {
    let mut bytes = match old {
        Some(old) => AlignedBuf::copy_of(old),
        None => AlignedBuf::zeroed(size),
    };
    for (&index, bp) in children {
        let at = index << BLKPTR_SHIFT;
        if let Some(to) = bytes.get_mut(at..at + (1 << BLKPTR_SHIFT)) {
            to.copy_from_slice(&bp.to_bytes());
        }
    }
    let pointers = || bytes.chunks_exact(1 << BLKPTR_SHIFT).filter_map(Blkptr::from_bytes);
    let fill = pointers().map(|bp| fill_of(&bp)).fold(0, u64::saturating_add);
    let empty = pointers().all(|bp| bp.is_hole());
    NewIndirect { bytes: bytes.into(), fill, empty }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_grow_with_the_last_block() {
        let three = Dnode::new(ObjectType::PLAIN_OTHER, 512, 1, ObjectType::NONE, 0);
        assert_eq!([0, 2, 3, 3071, 3072].map(|b| levels_for(&three, b)), [1, 1, 2, 2, 3]);
        assert_eq!(levels_for(&three, u64::MAX), 8);
    }

    #[test]
    fn a_rebuilt_block_counts_its_children() {
        let mut bp = Blkptr::embedded(&[1], 512, ondisk::CompressType::Lz4, ObjectType::PLAIN_OTHER, 0, 5);
        let one = rebuild(None, 1024, &BTreeMap::from([(3, bp)]));
        assert_eq!((one.fill, one.empty, one.bytes.len()), (1, false, 1024));
        bp = Blkptr::default();
        let none = rebuild(Some(&one.bytes), 1024, &BTreeMap::from([(3, bp)]));
        assert_eq!((none.fill, none.empty), (0, true));
    }
}
