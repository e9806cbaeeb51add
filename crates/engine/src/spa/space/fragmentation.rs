//! Fragmentation: how small the pieces of free space are, in percent.

use super::VdevSpace;

/// Percent for free pieces of `2^(9 + i)` bytes: 512 bytes are all bad, 16 MiB are as good as one piece.
#[doc(alias = "zfs_frag_table")]
const PERCENT: [u64; 17] = [100, 100, 98, 95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0, 0];

/// Fragmentation of a metaslab from its histogram of free pieces, whose first bucket counts the smallest
/// allocation unit of the map. Maps are written in units of 512 bytes or of their vdev's sector.
pub(super) fn of_metaslab(histogram: &[u64; 32], shift: u32) -> u64 {
    let last = PERCENT.len() - 1;
    let offset = usize::try_from(shift.saturating_sub(ondisk::MIN_BLOCK_SHIFT)).unwrap_or(0);
    let weighted = histogram.iter().enumerate().map(|(i, &count)| {
        let bytes = u128::from(count) << (u32::try_from(i).unwrap_or(0) + shift.min(32));
        let percent = PERCENT.get((i + offset).min(last)).copied().unwrap_or(0);
        (bytes, bytes * u128::from(percent))
    });
    let (total, bad) = weighted.fold((0, 0), |(t, b), (bytes, bad)| (t + bytes, b + bad));
    u64::try_from(bad.checked_div(total).unwrap_or(0)).unwrap_or(0)
}

/// Fragmentation of a vdev: the mean of its metaslabs, unless half of them can't tell.
#[doc(alias = "metaslab_group_fragmentation")]
pub(super) fn of_vdev(vdev: &VdevSpace) -> Option<u64> {
    let known: Vec<u64> = vdev.metaslabs.iter().filter_map(|m| m.fragmentation).collect();
    if known.len() <= vdev.metaslabs.len() / 2 {
        return None;
    }
    known.iter().sum::<u64>().checked_div(u64::try_from(known.len()).unwrap_or(0))
}

/// Fragmentation of a class: the mean of its vdevs by size, if all of them can tell.
#[doc(alias = "metaslab_class_fragmentation")]
pub(super) fn of_class<'a>(vdevs: impl Iterator<Item = &'a VdevSpace>) -> Option<u64> {
    let mut weighted = 0_u128;
    let mut size = 0_u128;
    for vdev in vdevs.filter(|v| !v.metaslabs.is_empty()) {
        weighted += u128::from(of_vdev(vdev)?) * u128::from(vdev.size());
        size += u128::from(vdev.size());
    }
    u64::try_from(weighted.checked_div(size)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_pieces_are_not_fragmented() {
        let mut histogram = [0; 32];
        histogram[15] = 4;
        assert_eq!(of_metaslab(&histogram, 9), 0);
        histogram[0] = 4 << 15;
        assert_eq!(of_metaslab(&histogram, 9), 50);
        assert_eq!(of_metaslab(&[0; 32], 12), 0);
        histogram = [u64::MAX; 32];
        assert!(of_metaslab(&histogram, 40) < 100);
    }
}
