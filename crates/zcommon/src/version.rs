//! Versions of pools (SPA) and file systems (ZPL), and their changes.

/// A version and its additions, in the words of `zpool upgrade -v` and `zfs upgrade -v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionInfo {
    /// The version number.
    pub version: u64,
    /// Its additions.
    pub description: &'static str,
}

const fn row(version: u64, description: &'static str) -> VersionInfo {
    VersionInfo { version, description }
}

/// Oldest pool version.
pub const SPA_VERSION_INITIAL: u64 = 1;
/// The first version with the property `copies`.
pub const SPA_VERSION_DITTO_BLOCKS: u64 = 2;
/// The first version whose pools count space without the parity of raidz.
pub const SPA_VERSION_RAIDZ_DEFLATE: u64 = 3;
/// The first version with hot spares.
pub const SPA_VERSION_SPARES: u64 = 3;
/// The first version with raidz2.
pub const SPA_VERSION_RAIDZ2: u64 = 3;
/// The first version with gzip.
pub const SPA_VERSION_GZIP_COMPRESSION: u64 = 5;
/// The first version with the pool property `bootfs`.
pub const SPA_VERSION_BOOTFS: u64 = 6;
/// The first version with log vdevs.
pub const SPA_VERSION_SLOGS: u64 = 7;
/// The first version with delegated permissions.
pub const SPA_VERSION_DELEGATED_PERMS: u64 = 8;
/// The first version with `refquota` and `refreservation`.
pub const SPA_VERSION_REFQUOTA: u64 = 9;
/// The first version with cache devices.
pub const SPA_VERSION_L2CACHE: u64 = 10;
/// The first version with `aclinherit=passthrough-x`.
pub const SPA_VERSION_PASSTHROUGH_X: u64 = 14;
/// The first version with raidz3.
pub const SPA_VERSION_RAIDZ3: u64 = 17;
/// The first version in which a removed log vdev leaves a hole.
pub const SPA_VERSION_HOLES: u64 = 19;
/// The first version with zle.
pub const SPA_VERSION_ZLE_COMPRESSION: u64 = 20;
/// The first version with dedup tables.
pub const SPA_VERSION_DEDUP: u64 = 21;
/// Newest pool version without feature flags.
pub const SPA_VERSION_BEFORE_FEATURES: u64 = 28;
/// The pool version that uses feature flags.
pub const SPA_VERSION_FEATURES: u64 = 5000;
/// Newest file system version.
pub const ZPL_VERSION: u64 = 5;

/// Every pool version.
pub const SPA_VERSIONS: &[VersionInfo] = &[
    row(1, "Initial ZFS version"),
    row(2, "Ditto blocks (replicated metadata)"),
    row(3, "Hot spares and double parity RAID-Z"),
    row(4, "zpool history"),
    row(5, "Compression using the gzip algorithm"),
    row(6, "bootfs pool property"),
    row(7, "Separate intent log devices"),
    row(8, "Delegated administration"),
    row(9, "refquota and refreservation properties"),
    row(10, "Cache devices"),
    row(11, "Improved scrub performance"),
    row(12, "Snapshot properties"),
    row(13, "snapused property"),
    row(14, "passthrough-x aclinherit"),
    row(15, "user/group space accounting"),
    row(16, "stmf property support"),
    row(17, "Triple-parity RAID-Z"),
    row(18, "Snapshot user holds"),
    row(19, "Log device removal"),
    row(20, "Compression using zle (zero-length encoding)"),
    row(21, "Deduplication"),
    row(22, "Received properties"),
    row(23, "Slim ZIL"),
    row(24, "System attributes"),
    row(25, "Improved scrub stats"),
    row(26, "Improved snapshot deletion performance"),
    row(27, "Improved snapshot creation performance"),
    row(28, "Multiple vdev replacements"),
    row(5000, "Feature flags"),
];

/// Every file system version.
pub const ZPL_VERSIONS: &[VersionInfo] = &[
    row(1, "Initial ZFS filesystem version"),
    row(2, "Enhanced directory entries"),
    row(3, "Case insensitive and filesystem user identifier (FUID)"),
    row(4, "userquota, groupquota properties"),
    row(5, "System attributes"),
];

/// Whether pools of this version can be opened.
#[doc(alias = "SPA_VERSION_IS_SUPPORTED")]
pub fn spa_version_is_supported(version: u64) -> bool {
    SPA_VERSIONS.iter().any(|row| row.version == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_no_gap() {
        let numbers: Vec<u64> = SPA_VERSIONS.iter().map(|row| row.version).collect();
        assert_eq!(numbers, (1..=28).chain([5000]).collect::<Vec<_>>());
        assert!([1, 15, 28, 5000].into_iter().all(spa_version_is_supported));
        assert!(![0, 29, 4999, 5001].into_iter().any(spa_version_is_supported));
        assert_eq!(ZPL_VERSIONS.last().unwrap().version, ZPL_VERSION);
    }
}
