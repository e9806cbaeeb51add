//! Sizes of new vdevs: sector shift, allocatable bytes, metaslab size.
//!
//! Format source: `vdev_open`, `vdev_ashift_optimize`, vdev.c, OpenZFS 2.3.

use blkdev::Geometry;
use ondisk::label::{LABEL_END_SIZE, LABEL_SIZE, LABEL_START_SIZE, MIN_DEVICE_SIZE};

use crate::error::{Error, Kind, Result};
pub(crate) use crate::metaslab::policy::{metaslab_shift, metaslab_shift_of};
use crate::vdev::config::{Kind as VdevKind, VdevConfig};

/// Smallest and largest sector shift of a vdev.
pub(crate) const ASHIFT: std::ops::RangeInclusive<u32> = 9..=16;
/// Physical sectors larger than this do not raise a vdev's sector shift by themselves.
#[doc(alias = "zfs_vdev_max_auto_ashift")]
const MAX_AUTO_ASHIFT: u32 = 14;

/// Bytes of each child of a draid that are kept back.
#[doc(alias = "VDEV_DRAID_REFLOW_RESERVE")]
const DRAID_RESERVE: u64 = 2 * zcommon::draid::ROW_HEIGHT;

/// The facts of a device that determine the sector shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sectors {
    /// Log2 of the smallest unit that can be addressed.
    pub(crate) logical: u32,
    /// Log2 of the unit that is written at once.
    pub(crate) physical: u32,
}

impl Sectors {
    /// From the device's geometry.
    pub(crate) fn of(geometry: &Geometry) -> Self {
        let shift = |bytes: u32| bytes.max(512).ilog2();
        Self { logical: shift(geometry.logical_sector), physical: shift(geometry.physical_sector) }
    }

    /// Without the size of physical sectors: a device that joins a vdev need not suit them.
    #[doc(alias = "vdev_attaching")]
    #[must_use]
    pub(crate) fn without_physical(self) -> Self {
        Self { physical: self.logical, ..self }
    }

    /// For a vdev with several devices: values that suit all of them.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        let kept = |shift: u32| if shift <= MAX_AUTO_ASHIFT { shift } else { 0 };
        let physical = kept(self.physical).max(kept(other.physical));
        let logical = self.logical.max(other.logical);
        Self { logical, physical: if physical == 0 { self.physical.max(other.physical) } else { physical } }
    }
}

/// The sector shift of a new top-level vdev; `forced` is the user's wish.
///
/// # Errors
/// `Invalid` when the wish is out of range, or the devices' sectors are larger than 64 KiB.
pub(crate) fn ashift(sectors: Sectors, forced: Option<u32>) -> Result<u32> {
    if let Some(forced) = forced.filter(|forced| !ASHIFT.contains(forced)) {
        return Err(Error::new(Kind::Invalid, format!("ashift {forced} is not between 9 and 16")));
    }
    if sectors.logical > *ASHIFT.end() {
        let bytes = 1u64 << sectors.logical.min(63);
        return Err(Error::new(Kind::Invalid, format!("sectors of {bytes} bytes are larger than 64 KiB")));
    }
    // A wish that the devices can't fulfil counts as none.
    if let Some(forced) = forced.filter(|&forced| forced >= sectors.logical) {
        return Ok(forced);
    }
    let optimal = Some(sectors.physical).filter(|&shift| shift <= MAX_AUTO_ASHIFT).unwrap_or(0);
    Ok(optimal.max(sectors.logical).max(*ASHIFT.start()))
}

/// Allocatable bytes of a device of `size` bytes.
///
/// # Errors
/// `Invalid` when it is smaller than 64 MiB.
pub(crate) fn leaf_asize(size: u64) -> Result<u64> {
    if size < MIN_DEVICE_SIZE {
        return Err(Error::new(Kind::Invalid, "the device is smaller than 64 MiB"));
    }
    Ok(size - size % LABEL_SIZE - LABEL_START_SIZE - LABEL_END_SIZE)
}

/// Allocatable bytes that a device must have to take the place of the vdev `target` of a top-level vdev; `None` when it is
/// not part of it.
#[doc(alias("vdev_get_min_asize", "vdev_op_min_asize"))]
pub(crate) fn least_asize(top: &VdevConfig, target: u64) -> Option<u64> {
    // The end of the space, which is no whole metaslab, is not used.
    let metaslab = 1u64.checked_shl(top.metaslab_shift).unwrap_or(1);
    least_below(top, target, top.asize - top.asize % metaslab.max(1))
}

fn least_below(vdev: &VdevConfig, target: u64, least: u64) -> Option<u64> {
    if vdev.guid == target {
        return Some(least);
    }
    let width = u64::try_from(vdev.children.len()).ok()?;
    let share = match (vdev.kind, vdev.draid) {
        (VdevKind::Raidz, _) => least.div_ceil(width.saturating_sub(u64::from(vdev.expanding)).max(1)),
        (VdevKind::Draid, Some(shape)) => {
            let disks = width.saturating_sub(shape.spares).max(1);
            least.div_ceil(disks).saturating_add(DRAID_RESERVE)
        }
        _ => least,
    };
    vdev.children.iter().find_map(|child| least_below(child, target, share))
}

/// Bytes by which a vdev of `asize` bytes could grow when its devices would now give `possible`.
#[doc(alias = "vs_esize")]
pub(crate) fn expand_size(possible: u64, asize: u64, metaslab_shift: u32) -> u64 {
    let more = possible.saturating_sub(asize);
    more - more % (1u64 << metaslab_shift.min(63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metaslab_sizes_are_those_of_openzfs() {
        for (asize, shift) in [
            (129_499_136, 24),
            (237_502_464, 24),
            (475_004_928, 25),
            (633_339_904, 26),
            (100 << 30, 29),
            (101 << 30, 30),
            (8 << 30, 29),
            ((8 << 30) - 1, 29),
            (4 << 30, 29),
            (1 << 40, 33),
            (4 << 40, 34),
            (1 << 51, 34),
            ((1 << 51) + (1 << 40), 35),
        ] {
            assert_eq!(metaslab_shift(asize), shift, "{asize}");
        }
    }

    #[test]
    fn sector_shifts_follow_devices_and_wishes() {
        let of = |logical, physical| Sectors { logical, physical };
        assert_eq!(ashift(of(9, 9), None).unwrap(), 9);
        assert_eq!(ashift(of(9, 12), None).unwrap(), 12);
        assert_eq!(ashift(of(9, 16), None).unwrap(), 9, "too large to be taken by itself");
        assert_eq!(ashift(of(9, 12), Some(9)).unwrap(), 9);
        assert_eq!(ashift(of(12, 12), Some(9)).unwrap(), 12, "the device can't");
        assert_eq!(ashift(of(9, 9), Some(16)).unwrap(), 16);
        assert!(ashift(of(9, 9), Some(8)).is_err() && ashift(of(9, 9), Some(17)).is_err());
        assert!(ashift(of(17, 17), None).is_err());
        assert_eq!(of(9, 12).and(of(9, 16)), of(9, 12));
        assert_eq!(of(9, 12).and(of(12, 9)), of(12, 12));
    }

    #[test]
    fn leaves_lose_labels_and_boot_area() {
        assert_eq!(leaf_asize(134_217_728).unwrap(), 129_499_136);
        assert_eq!(leaf_asize(134_217_728 + 262_143).unwrap(), 129_499_136);
        assert!(leaf_asize((64 << 20) - 1).is_err());
        assert_eq!(expand_size(300 << 20, 100 << 20, 24), 192 << 20);
        assert_eq!(expand_size(5, 100, 24), 0);
    }
}
