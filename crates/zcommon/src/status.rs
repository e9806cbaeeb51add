//! The health of a pool and its texts: the `status:` and `action:` of `zpool status` and
//! `zpool import`, and the message ids behind `see:`. Scripts read these words, so they are OpenZFS's to the byte
//! (2.3.2; the tests compare them with the output of its `zpool`).
//!
//! A text's line breaks are `\n`; the commands print `\n\t` there, see [`wrap`].

mod import;
mod pool;

pub use import::{ImportFacts, import_action, import_note, import_status};
pub use pool::{pool_action, pool_status};

/// Where message ids are explained.
pub const MESSAGE_URL: &str = "https://openzfs.github.io/openzfs-docs/msg/";

/// The matter with a pool, in the order in which OpenZFS numbers it.
#[doc(alias = "zpool_status_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolStatus {
    /// The cache file is corrupt.
    CorruptCache,
    /// Devices are missing, the rest is enough.
    MissingDevR,
    /// Devices are missing, the rest is not enough.
    MissingDevNr,
    /// Labels are corrupt, the rest is enough.
    CorruptLabelR,
    /// Labels are corrupt, the rest is not enough.
    CorruptLabelNr,
    /// The sum of the guids is wrong: a top-level vdev is missing.
    BadGuidSum,
    /// The pool's metadata is corrupt.
    CorruptPool,
    /// Data is corrupt.
    CorruptData,
    /// A device had errors that were healed.
    FailingDev,
    /// The pool's version is newer than we know.
    VersionNewer,
    /// Last in use by another host.
    HostidMismatch,
    /// In use by another host.
    HostidActive,
    /// Multihost is on, and this host has no id.
    HostidRequired,
    /// Suspended: I/O failed, and the pool waits.
    IoFailureWait,
    /// Suspended: I/O failed, and writes fail.
    IoFailureContinue,
    /// Suspended: multihost writes failed.
    IoFailureMmp,
    /// The intent log can't be read.
    BadLog,
    /// A mistake of an older version is on disk.
    Errata(Errata),
    /// A feature that reading needs is unknown.
    UnsupFeatRead,
    /// A feature that writing needs is unknown.
    UnsupFeatWrite,
    /// Devices were given up on, the rest is enough.
    FaultedDevR,
    /// Devices were given up on, the rest is not enough.
    FaultedDevNr,
    /// The pool's version has a newer one.
    VersionOlder,
    /// Some features are not enabled.
    FeatDisabled,
    /// A resilver runs.
    Resilvering,
    /// A device is offline.
    OfflineDev,
    /// A device was pulled.
    RemovedDev,
    /// A sequential resilver runs.
    Rebuilding,
    /// A sequential resilver has ended, and no scrub was run since.
    RebuildScrub,
    /// A vdev's block size is smaller than its device's.
    NonNativeAshift,
    /// The `compatibility` property can't be read.
    CompatibilityErr,
    /// Features are enabled that `compatibility` doesn't ask for.
    IncompatibleFeat,
    /// Nothing.
    Ok,
}

/// A mistake of an older version that is on disk.
#[doc(alias = "zpool_errata_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Errata {
    /// A scrub's position was stored wrong.
    #[doc(alias = "ZPOOL_ERRATA_ZOL_2094_SCRUB")]
    Scrub = 1,
    /// An asynchronous destroy was stored wrong.
    #[doc(alias = "ZPOOL_ERRATA_ZOL_2094_ASYNC_DESTROY")]
    AsyncDestroy = 2,
    /// Encrypted datasets were stored wrong.
    #[doc(alias = "ZPOOL_ERRATA_ZOL_6845_ENCRYPTION")]
    Encryption = 3,
    /// Encrypted snapshots lack the guid of their keys' vectors.
    #[doc(alias = "ZPOOL_ERRATA_ZOL_8308_ENCRYPTION")]
    EncryptionIvset = 4,
}

impl Errata {
    /// The errata of this number in a pool's config.
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::Scrub, Self::AsyncDestroy, Self::Encryption, Self::EncryptionIvset]
            .into_iter()
            .find(|errata| *errata as u64 == number)
    }
}

impl PoolStatus {
    /// The id of the message about it, behind [`MESSAGE_URL`] in the `see:` line. Not everything has one.
    #[doc(alias = "zfs_msgid_table")]
    pub fn message_id(self) -> Option<&'static str> {
        use PoolStatus::*;
        Some(match self {
            CorruptCache => "ZFS-8000-14",
            MissingDevR => "ZFS-8000-2Q",
            MissingDevNr => "ZFS-8000-3C",
            CorruptLabelR => "ZFS-8000-4J",
            CorruptLabelNr => "ZFS-8000-5E",
            BadGuidSum => "ZFS-8000-6X",
            CorruptPool => "ZFS-8000-72",
            CorruptData => "ZFS-8000-8A",
            FailingDev => "ZFS-8000-9P",
            VersionNewer => "ZFS-8000-A5",
            HostidMismatch | HostidActive | HostidRequired => "ZFS-8000-EY",
            IoFailureWait => "ZFS-8000-HC",
            IoFailureContinue => "ZFS-8000-JQ",
            IoFailureMmp => "ZFS-8000-MM",
            BadLog => "ZFS-8000-K4",
            Errata(_) => "ZFS-8000-ER",
            _ => return None,
        })
    }

    /// Whether the unknown features are listed behind the status, a line each: tab, guid, description in parentheses.
    pub fn lists_features(self) -> bool {
        matches!(self, Self::UnsupFeatRead | Self::UnsupFeatWrite)
    }

    /// The line of an unknown feature in that list, without its line break.
    pub fn feature_line(guid: &str, description: &str) -> String {
        if description.is_empty() { format!("\t{guid}") } else { format!("\t{guid} ({description})") }
    }
}

fn errata_number(errata: Errata) -> &'static str {
    match errata {
        Errata::Scrub => "Errata #1 detected.",
        Errata::AsyncDestroy => "Errata #2 detected.",
        Errata::Encryption => "Errata #3 detected.",
        Errata::EncryptionIvset => "Errata #4 detected.",
    }
}

/// A text as the commands print it: each further line behind a tab and `indent` (one blank in `zpool import` when the
/// pool has a comment, else nothing).
pub fn wrap(text: &str, indent: &str) -> String {
    text.replace('\n', &format!("\n\t{indent}"))
}

#[cfg(test)]
mod tests;
