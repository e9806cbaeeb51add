//! The places of one block on removed vdevs and behind them.
//!
//! OpenZFS writes the new place of a block into an indirect block that it rewrites (`spa_remap_blkptr`), while snapshots keep
//! the old place. Clone tables count references by place. A clone of such a snapshot's file is counted by the old place,
//! and the head does not meet that entry when it frees the block by the new one. So a block's references are the sum
//! over all of its places, and a free looks at all of them.
//!
//! A pointer leads forward through the mappings. It leads backward where its physical birth is the txg of the copy,
//! which a remapped pointer records: space at the new place that was freed and allocated again has another one. The steps
//! before that are not compared: an entry of a clone table exists only as long as its block.
//!
//! For the same reason the old places do not become obsolete with the last snapshot that has them, in pools with the feature
//! `block_cloning` ([`super::BlockSharing::keep_place`]).
//!
//! Differs from OpenZFS: it looks at the pointer's own place only, and frees a block that such a clone still refers to.

use ondisk::{Blkptr, Dva};

use crate::vdev::indirect::MAX_HOPS;
use crate::vdev::tree::Tree;

/// Pointers to the block of `bp` under its other places; none for a gang, a deduplicated block or metadata, which OpenZFS
/// does not remap or does not clone.
#[doc(alias("spa_remap_blkptr", "brt_maybe_exists"))]
pub(super) fn other_pointers(tree: &Tree, bp: &Blkptr) -> Vec<Blkptr> {
    let Some(dva) = bp.dva(0).filter(|dva| !dva.gang && !bp.dedup() && !bp.is_metadata()) else {
        return Vec::new();
    };
    let mut places = behind(tree, dva);
    if bp.physical_birth() != bp.logical_birth() {
        places.extend(before(tree, dva, bp.physical_birth()));
    }
    let pointer = |(vdev, offset): (u64, u64)| {
        let mut dvas: Vec<Dva> = bp.dvas().collect();
        let first = dvas.first_mut()?;
        (first.vdev, first.offset) = (u32::try_from(vdev).ok()?, offset);
        let mut other = *bp;
        other.set_dvas(&dvas);
        Some(other)
    };
    places.into_iter().filter_map(pointer).collect()
}

/// Where the bytes went, removal by removal, as long as they stayed together.
fn behind(tree: &Tree, dva: Dva) -> Vec<(u64, u64)> {
    let (mut at, mut places) = ((u64::from(dva.vdev), dva.offset), Vec::new());
    for _ in 0..MAX_HOPS {
        let Some(mapping) = tree.top(at.0).and_then(|top| top.mapping()) else { break };
        let Ok(pieces) = mapping.resolve(at.1, dva.asize) else { break };
        let [piece] = pieces.as_slice() else { break };
        at = (piece.vdev, piece.offset);
        places.push(at);
    }
    places
}

/// Where the bytes came from, removal by removal; txg `birth` copied them last.
fn before(tree: &Tree, dva: Dva, birth: u64) -> Vec<(u64, u64)> {
    let (mut at, mut birth, mut places) = ((u64::from(dva.vdev), dva.offset), Some(birth), Vec::new());
    for _ in 0..MAX_HOPS {
        let source = tree.tops().filter(|top| top.id != at.0).find_map(|top| {
            let offset = top.mapping()?.source_of((at.0, at.1, dva.asize), birth)?;
            Some((top.id, offset))
        });
        let Some(source) = source else { break };
        (at, birth) = (source, None);
        places.push(at);
    }
    places
}
