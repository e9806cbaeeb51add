//! Copies made by a removal in progress.
//!
//! Block pointers name the old locations until the removal ends, so no block in the tree claims the copies. A copy
//! is in use while its source segment is allocated; segments freed meanwhile are freed at both locations. Format
//! source: `vdev_removal.c` and `zdb_claim_removing`, OpenZFS 2.3.

use std::cell::RefCell;

use stdx::RangeSet;

use super::space::SpaceRange;
use super::space_maps::SpaceMaps;
use crate::error::Result;
use crate::metaslab::load_mapping;
use crate::spa::Pool;
use crate::vdev::indirect::IndirectMapping;

/// The locations of the copies of allocated segments on vdevs under removal. Unreadable structures are recorded in
/// `maps`.
#[doc(alias = "zdb_claim_removing")]
pub(crate) fn copies(pool: &Pool, maps: &mut SpaceMaps) -> Vec<SpaceRange> {
    let removing: Vec<(u64, u64)> = maps
        .tops
        .iter()
        .filter(|top| top.removing && top.mapping != 0)
        .map(|top| (top.id, top.mapping))
        .collect();
    let mut runs = Vec::new();
    for (vdev, object) in removing {
        match load_mapping(&pool.mos, object).and_then(|mapping| copies_of(pool, maps, vdev, &mapping)) {
            Ok(found) => runs.extend(found),
            Err(e) => maps.notes.push(e),
        }
    }
    runs
}

fn copies_of(
    pool: &Pool,
    maps: &mut SpaceMaps,
    vdev: u64,
    mapping: &IndirectMapping,
) -> Result<Vec<SpaceRange>> {
    let end = mapping.entries().last().map_or(0, |entry| entry.source.saturating_add(entry.len));
    let allocated = RefCell::new(RangeSet::new());
    maps.replay(pool, &|top, _| top == vdev, &mut |top, from, to, on| {
        let to = to.min(end);
        if top != vdev || from >= to {
            return;
        }
        match on {
            true => allocated.borrow_mut().insert(from, to),
            false => allocated.borrow_mut().remove(from, to),
        };
    });
    let mut runs = Vec::new();
    for (from, to) in allocated.into_inner().iter() {
        let pieces = mapping.resolve(from, to - from)?;
        runs.extend(pieces.into_iter().map(|p| SpaceRange { vdev: p.vdev, offset: p.offset, size: p.len }));
    }
    Ok(runs)
}
