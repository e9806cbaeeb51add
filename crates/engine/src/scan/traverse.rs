//! The order of a pool's walk: MOS, then each dataset and snapshot, in the order of their object numbers.
//!
//! A dataset is walked with a bound: blocks born at or before its previous snapshot belong to that snapshot and are
//! skipped with everything below them. [`crate::traverse`] walks one object set.

use ondisk::ObjectType;
use ondisk::dsl::{BptreeEntry, DslDataset};

use super::lists;
use crate::error::Error;
use crate::spa::Pool;
pub use crate::traverse::{Places, ReferenceKind, SPILL, Stop, Visit, Visitor, Walk};
use crate::types::Bookmark;

/// Visits every block pointer of the pool.
pub fn traverse(pool: &Pool, visitor: &mut dyn Visitor) -> Result<(), Stop> {
    lists::deferred(pool, visitor)?;
    trees(pool, visitor)
}

/// Visits every block pointer of the pool, but for blocks that wait to be freed.
pub(super) fn trees(pool: &Pool, visitor: &mut dyn Visitor) -> Result<(), Stop> {
    let last = match pool.uberblock.checkpoint_txg {
        0 => pool.uberblock.txg,
        checkpoint => checkpoint,
    };
    let mut walk = Walk::new(&pool.arc, visitor).with_logs(last);
    walk.object_set(&pool.uberblock.rootbp, 0, 0, false)?;
    for object in pool.mos.objects() {
        match object {
            Ok(object) if object.dnode.bonustype == ObjectType::DSL_DATASET => {
                match DslDataset::from_bytes(object.dnode.bonus()) {
                    Ok(phys) => {
                        walk.object_set(&phys.bp, object.number, phys.prev_snap_txg, !phys.is_snapshot())?;
                    }
                    Err(e) => {
                        let at = Bookmark::new(0, object.number, 0, 0);
                        walk.tell(at, &Error::corrupt(e.to_string()).at_block(at));
                    }
                }
            }
            // The walk over the MOS itself has reported these.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Visits every block pointer of a destroyed dataset that is not freed yet.
pub(super) fn orphan(pool: &Pool, visitor: &mut dyn Visitor, entry: &BptreeEntry) -> Result<(), Stop> {
    /// No dataset has this number (`ZB_DESTROYED_OBJSET`).
    const DESTROYED: u64 = u64::MAX;
    let mut walk = Walk::new(&pool.arc, visitor).with_freed(entry.zb);
    walk.object_set(&entry.bp, DESTROYED, entry.birth_txg, false)
}
