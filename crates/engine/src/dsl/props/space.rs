//! Space that a directory may still use.
//!
//! A directory gets the least of the space that its ancestors' quotas, and its own, leave it; the unused part
//! of its own reservation comes on top of its parent's remaining space. At the root stands the pool's size
//! without its reserve for emergencies (*slop*).

use ondisk::dsl::DslDir;

use crate::dsl::Dataset;
use crate::dsl::lookup::ReadNames;
use crate::error::Result;

/// The space values of one directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DirSpace {
    /// Bytes used, descendants and reservations included.
    pub(crate) used: u64,
    /// Quota, 0: none.
    pub(crate) quota: u64,
    /// Reservation, 0: none.
    pub(crate) reserved: u64,
    /// Bytes of `used` that become free for it and all below.
    pub(crate) freed: u64,
}

impl DirSpace {
    pub(in crate::dsl) fn of(dir: &DslDir) -> Self {
        Self { used: dir.used_bytes, quota: dir.quota, reserved: dir.reserved, freed: 0 }
    }
}

/// Bytes available to the last of `path`, which leads from the root directory down; `pool` is the capacity of
/// the whole pool, and the result when the path is empty.
#[doc(alias = "dsl_dir_space_available")]
pub(crate) fn available_along(pool: u64, path: &[DirSpace]) -> u64 {
    let mut from_parent: Option<u64> = None;
    for dir in path {
        let quota = if dir.quota == 0 { u64::MAX } else { dir.quota };
        let limit = if from_parent.is_none() { quota.min(pool) } else { quota };
        let unused_reservation = dir.reserved.saturating_sub(dir.used);
        let parent =
            from_parent.map_or(u64::MAX, |p| p.saturating_add(unused_reservation).saturating_add(dir.freed));
        let used = dir.used.saturating_sub(dir.freed);
        from_parent = Some(limit.checked_sub(used).map_or(0, |left| left.min(parent)));
    }
    from_parent.unwrap_or(pool)
}

/// Bytes available to a head dataset, its refquota and refreservation considered.
#[doc(alias = "dsl_dataset_space")]
pub(crate) fn available(dataset: &Dataset, pool: u64, refquota: u64, refreservation: u64) -> Result<u64> {
    let above = dataset.dsl.ancestors(dataset.phys.dir_obj);
    let mut spaces = above.map(|step| Ok(DirSpace::of(&step?.1))).collect::<Result<Vec<_>>>()?;
    spaces.reverse();
    let referenced = dataset.phys.referenced_bytes;
    let reserve = refreservation.saturating_sub(dataset.phys.unique_bytes);
    let mut left = available_along(pool, &spaces).saturating_add(reserve);
    if refquota != 0 {
        left = left.min(refquota.saturating_sub(referenced));
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(used: u64, quota: u64, reserved: u64) -> DirSpace {
        DirSpace { used, quota, reserved, freed: 0 }
    }

    #[test]
    fn the_least_along_the_path_counts() {
        assert_eq!(available_along(100, &[dir(30, 0, 0)]), 70);
        assert_eq!(available_along(100, &[dir(30, 50, 0)]), 20);
        assert_eq!(available_along(100, &[dir(30, 0, 0), dir(10, 0, 0)]), 70);
        assert_eq!(available_along(100, &[dir(30, 0, 0), dir(10, 15, 0)]), 5);
        assert_eq!(available_along(100, &[dir(120, 0, 0)]), 0);
    }

    #[test]
    fn an_unused_reservation_is_on_top() {
        assert_eq!(available_along(100, &[dir(60, 0, 0), dir(10, 0, 50)]), 80);
        assert_eq!(available_along(100, &[dir(60, 0, 0), dir(10, 20, 50)]), 10);
        assert_eq!(available_along(u64::MAX, &[dir(0, 0, 9)]), u64::MAX);
    }
}
