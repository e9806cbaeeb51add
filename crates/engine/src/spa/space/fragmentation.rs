//! Fragmentation: how small the pieces of free space are, in percent.

use super::VdevSpace;

/// Percent for free pieces of `2^(9 + i)` bytes: 512 bytes are all bad, 512 MiB as good as one piece.
#[doc(alias = "zfs_frag_table")]
const PERCENT: [u64; 21] = [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];

/// Fragmentation of a metaslab from its histogram of free pieces, whose first bucket counts the smallest
/// allocation unit of the map. Maps are written in units of 512 bytes or of their vdev's sector.
pub(super) fn of_metaslab(histogram: &[u64; 32], shift: u32) -> u64 {
    let last = PERCENT.len() - 1;
    let offset = usize::try_from(shift.saturating_sub(ondisk::MIN_BLOCK_SHIFT)).unwrap_or(0);
    let weighted = histogram.iter().enumerate().map(|(i, &count)| {
        // No vdev has more than 2^64 bytes, whatever its map claims.
        let bytes = (u128::from(count) << (u32::try_from(i).unwrap_or(0) + shift.min(32))).min(1 << 64);
        let percent = PERCENT.get((i + offset).min(last)).copied().unwrap_or(0);
        (bytes, bytes * u128::from(percent))
    });
    let (total, bad) = weighted.fold((0, 0), |(t, b), (bytes, bad)| (t + bytes, b + bad));
    u64::try_from(bad.checked_div(total).unwrap_or(0)).unwrap_or(0)
}

/// Fragmentation of a vdev: the mean of its metaslabs by free space, unless it is unknown for half of them.
#[doc(alias = "metaslab_group_fragmentation")]
pub(super) fn of_vdev(vdev: &VdevSpace) -> Option<u64> {
    let known =
        vdev.metaslabs.iter().filter_map(|m| Some((m.fragmentation?, m.size.saturating_sub(m.allocated))));
    let known: Vec<(u64, u64)> = known.collect();
    if known.len() <= vdev.metaslabs.len() / 2 {
        return None;
    }
    mean(known.into_iter())
}

/// Fragmentation of a class: the mean of its vdevs by free space, if it is known for all of them.
#[doc(alias = "metaslab_class_fragmentation")]
pub(super) fn of_class<'a>(vdevs: impl Iterator<Item = &'a VdevSpace>) -> Option<u64> {
    let used = vdevs.filter(|v| !v.metaslabs.is_empty());
    let known = used.map(|v| Some((of_vdev(v)?, v.size().saturating_sub(v.allocated()))));
    mean(known.collect::<Option<Vec<_>>>()?.into_iter())
}

/// The mean of percents, each with its weight.
fn mean(parts: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    let add = |(sum, weights): (u128, u128), (percent, weight): (u64, u64)| {
        (sum + u128::from(percent) * u128::from(weight), weights + u128::from(weight))
    };
    let (sum, weights) = parts.fold((0, 0), add);
    u64::try_from(sum.checked_div(weights).unwrap_or(0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_pieces_are_not_fragmented() {
        let mut histogram = [0; 32];
        histogram[20] = 4;
        assert_eq!(of_metaslab(&histogram, 9), 0);
        histogram[0] = 4 << 20;
        assert_eq!(of_metaslab(&histogram, 9), 50);
        assert_eq!(of_metaslab(&[0; 32], 12), 0);
        histogram = [u64::MAX; 32];
        assert!(of_metaslab(&histogram, 40) < 100);
    }
}
