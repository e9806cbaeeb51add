//! Kinds of vdevs, their states and why they are in them, states of pools. Numbers are those of configurations
//! (`vdev_state_t`, `vdev_aux_t`, `pool_state_t`, fs/zfs.h, OpenZFS 2.3).

use std::fmt;

/// Kind of a vdev; `type` in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VdevKind {
    /// Top of the tree: its children are the top-level vdevs.
    Root,
    /// Every child has everything.
    Mirror,
    /// A mirror while one child takes another's place.
    Replacing,
    /// A mirror of a failing disk and the spare that stands in.
    Spare,
    /// One to three parity columns, with rotating stripes of varying width.
    Raidz,
    /// Raidz groups dealt over many children, with spare space among them.
    Draid,
    /// The spare space of a draid, as if it were a disk.
    DraidSpare,
    /// A block device.
    Disk,
    /// A file.
    File,
    /// A top-level vdev that was absent when the pool was last imported.
    Missing,
    /// A slot whose vdev was removed and held nothing mapped.
    Hole,
    /// A removed top-level vdev: its offsets are mapped to other vdevs.
    Indirect,
    /// A cache device.
    L2cache,
}

/// Every kind with its name in configurations.
const KINDS: &[(VdevKind, &str)] = &[
    (VdevKind::Root, "root"),
    (VdevKind::Mirror, "mirror"),
    (VdevKind::Replacing, "replacing"),
    (VdevKind::Spare, "spare"),
    (VdevKind::Raidz, "raidz"),
    (VdevKind::Draid, "draid"),
    (VdevKind::DraidSpare, "dspare"),
    (VdevKind::Disk, "disk"),
    (VdevKind::File, "file"),
    (VdevKind::Missing, "missing"),
    (VdevKind::Hole, "hole"),
    (VdevKind::Indirect, "indirect"),
    (VdevKind::L2cache, "l2cache"),
];

impl VdevKind {
    /// The name in configurations.
    #[doc(alias = "VDEV_TYPE_DISK")]
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        KINDS.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Whether a vdev of this kind is a device.
    pub fn is_leaf(self) -> bool {
        matches!(self, Self::Disk | Self::File | Self::DraidSpare)
    }

    /// Whether the children of a vdev of this kind are equivalent copies.
    pub fn is_mirror_like(self) -> bool {
        matches!(self, Self::Mirror | Self::Replacing | Self::Spare)
    }
}

/// A vdev that isn't a leaf as `zpool status` names it: `mirror-0`, `raidz2-1`, `draid1:2d:5c:1s-0`.
#[doc(alias = "zpool_vdev_name")]
pub fn interior_name(
    kind: VdevKind,
    parity: Option<u64>,
    draid: Option<crate::draid::DraidConfig>,
    id: u64,
) -> String {
    match (kind, parity, draid) {
        (VdevKind::Draid, _, Some(config)) => format!("{config}-{id}"),
        (VdevKind::Raidz, Some(parity), _) => format!("raidz{parity}-{id}"),
        _ => format!("{}-{id}", kind.name()),
    }
}

/// A distributed spare as `zpool status` names it, parity, top-level vdev and number of the spare: `draid2-0-1`.
pub fn draid_spare_name(parity: u64, top: u64, spare: u64) -> String {
    format!("draid{parity}-{top}-{spare}")
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u64)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $number,)*
        }

        impl $name {
            /// The value of this number.
            pub fn from_number(number: u64) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// How well a vdev is; greater is better.
    #[doc(alias = "vdev_state_t")]
    VdevState {
        /// Not looked at yet.
        Unknown = 0,
        /// Not open.
        Closed = 1,
        /// Taken offline by the administrator.
        Offline = 2,
        /// Pulled out.
        Removed = 3,
        /// Could not be opened; the aux has the reason.
        CantOpen = 4,
        /// Given up on because of its errors.
        Faulted = 5,
        /// Works, with something missing.
        Degraded = 6,
        /// Works.
        Healthy = 7,
    }
}

numbered! {
    /// Why a vdev is in its state.
    #[doc(alias = "vdev_aux_t")]
    VdevAux {
        /// No reason needed.
        None = 0,
        /// The device could not be opened.
        OpenFailed = 1,
        /// Its label or contents are wrong.
        CorruptData = 2,
        /// Too few children work.
        NoReplicas = 3,
        /// The guids don't add up: a device is missing.
        BadGuidSum = 4,
        /// The device is too small.
        TooSmall = 5,
        /// The label is wrong.
        BadLabel = 6,
        /// The pool's version is newer than we know.
        VersionNewer = 7,
        /// The pool's version is older than we know.
        VersionOlder = 8,
        /// The pool uses a feature that we don't know.
        UnsupportedFeature = 9,
        /// The spare stands in for another device.
        Spared = 10,
        /// Too many errors.
        ErrorsExceeded = 11,
        /// I/O failed.
        IoFailure = 12,
        /// The intent log can't be read.
        BadLog = 13,
        /// Faulted on request.
        External = 14,
        /// The device is another pool's since `zpool split`.
        SplitPool = 15,
        /// Its sectors are larger than the vdev's.
        BadAshift = 16,
        /// Faulted on request, persistently.
        ExternalPersist = 17,
        /// In use by another host.
        Active = 18,
        /// All children are offline.
        ChildrenOffline = 19,
        /// Its smallest block is larger than we can handle.
        AshiftTooBig = 20,
    }
}

numbered! {
    /// State of a pool when its labels were last written.
    #[doc(alias = "pool_state_t")]
    PoolState {
        /// In use.
        Active = 0,
        /// Exported.
        Exported = 1,
        /// Destroyed.
        Destroyed = 2,
        /// The device is a spare.
        Spare = 3,
        /// The device is a cache.
        L2cache = 4,
        /// Never on disk.
        Uninitialized = 5,
        /// Never on disk: can't be opened.
        Unavailable = 6,
        /// Never on disk: maybe in use by another host.
        PotentiallyActive = 7,
    }
}

impl VdevState {
    /// The word in the STATE column; some states have another word for some reasons.
    #[doc(alias = "zpool_state_to_name")]
    pub fn name(self, aux: VdevAux) -> &'static str {
        match (self, aux) {
            (Self::Closed | Self::Offline, _) => "OFFLINE",
            (Self::Removed, _) => "REMOVED",
            (Self::CantOpen, VdevAux::CorruptData | VdevAux::BadLog) => "FAULTED",
            (Self::CantOpen, VdevAux::SplitPool) => "SPLIT",
            (Self::CantOpen, _) => "UNAVAIL",
            (Self::Faulted, _) => "FAULTED",
            (Self::Degraded, _) => "DEGRADED",
            (Self::Healthy, _) => "ONLINE",
            (Self::Unknown, _) => "UNKNOWN",
        }
    }

    /// The word in `zpool status -j`.
    #[doc(alias = "vdev_state_str")]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Closed => "CLOSED",
            Self::Offline => "OFFLINE",
            Self::Removed => "REMOVED",
            Self::CantOpen => "CANT_OPEN",
            Self::Faulted => "FAULTED",
            Self::Degraded => "DEGRADED",
            Self::Healthy => "ONLINE",
        }
    }
}

impl VdevAux {
    /// The word in `zpool status -j`; none without a reason.
    #[doc(alias = "vdev_aux_str")]
    pub fn word(self) -> Option<&'static str> {
        Some(match self {
            Self::None => return None,
            Self::OpenFailed => "OPEN_FAILED",
            Self::CorruptData => "CORRUPT_DATA",
            Self::NoReplicas => "NO_REPLICAS",
            Self::BadGuidSum => "BAD_GUID_SUM",
            Self::TooSmall => "TOO_SMALL",
            Self::BadLabel => "BAD_LABEL",
            Self::VersionNewer => "VERSION_NEWER",
            Self::VersionOlder => "VERSION_OLDER",
            Self::UnsupportedFeature => "UNSUP_FEAT",
            Self::Spared => "SPARED",
            Self::ErrorsExceeded => "ERR_EXCEEDED",
            Self::IoFailure => "IO_FAILURE",
            Self::BadLog => "BAD_LOG",
            Self::External => "EXTERNAL",
            Self::SplitPool => "SPLIT_POOL",
            Self::BadAshift => "BAD_ASHIFT",
            Self::ExternalPersist => "EXTERNAL_PERSIST",
            Self::Active => "ACTIVE",
            Self::ChildrenOffline => "CHILDREN_OFFLINE",
            Self::AshiftTooBig => "ASHIFT_TOO_BIG",
        })
    }

    /// The words behind a vdev in `zpool status`. For `Spared` these are the ones where the pool that uses the spare
    /// isn't known, for `ErrorsExceeded` where there were errors and not only [slow I/Os](SLOW_IOS).
    pub fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Spared => "currently in use",
            Self::IoFailure => "experienced I/O failures",
            Self::BadLog => "bad intent log",
            Self::External => "external device fault",
            Self::SplitPool => "split into new pool",
            Self::AshiftTooBig => "unsupported minimum blocksize",
            other => other.import_text(),
        }
    }

    /// The words behind a vdev in `zpool import`, which has fewer of them.
    pub fn import_text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::OpenFailed => "cannot open",
            Self::BadGuidSum => "missing device",
            Self::NoReplicas => "insufficient replicas",
            Self::VersionNewer => "newer version",
            Self::UnsupportedFeature => "unsupported feature(s)",
            Self::ErrorsExceeded => "too many errors",
            Self::Active => "currently in use",
            Self::ChildrenOffline => "all children offline",
            Self::BadLabel => "invalid label",
            _ => "corrupted data",
        }
    }
}

/// In place of [`VdevAux::ErrorsExceeded`]'s words for a vdev that had no errors but was slow.
pub const SLOW_IOS: &str = "too many slow I/Os";

/// The words behind a device that is not there, and where it was last.
pub fn was_at(path: &str) -> String {
    format!("was {path}")
}

impl PoolState {
    /// The state in words, as `zpool import` and error messages have it.
    #[doc(alias = "zpool_pool_state_to_name")]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Exported => "EXPORTED",
            Self::Destroyed => "DESTROYED",
            Self::Spare => "SPARE",
            Self::L2cache => "L2CACHE",
            Self::Uninitialized => "UNINITIALIZED",
            Self::Unavailable => "UNAVAIL",
            Self::PotentiallyActive => "POTENTIALLY_ACTIVE",
        }
    }
}

impl fmt::Display for PoolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_go_there_and_back() {
        for &(kind, name) in KINDS {
            assert_eq!((VdevKind::from_name(name), kind.name()), (Some(kind), name));
        }
        assert_eq!(VdevKind::from_name("raidz1"), None);
    }

    #[test]
    fn interior_vdevs_have_their_number() {
        assert_eq!(interior_name(VdevKind::Mirror, None, None, 0), "mirror-0");
        assert_eq!(interior_name(VdevKind::Raidz, Some(2), None, 1), "raidz2-1");
        let config = "draid1:2d:5c:1s".parse().unwrap();
        assert_eq!(interior_name(VdevKind::Draid, Some(1), Some(config), 0), "draid1:2d:5c:1s-0");
        assert_eq!(draid_spare_name(1, 0, 0), "draid1-0-0");
    }

    /// The texts that `zpool import` and `zpool status` of OpenZFS 2.3.2 printed behind a leaf in state
    /// `CantOpen` with each aux.
    #[test]
    fn aux_texts_are_zpools() {
        const BAD: &str = "corrupted data";
        let golden: [(&str, &str, &str); 21] = [
            ("UNAVAIL", "", ""),
            ("UNAVAIL", "cannot open", "cannot open"),
            ("FAULTED", BAD, BAD),
            ("UNAVAIL", "insufficient replicas", "insufficient replicas"),
            ("UNAVAIL", "missing device", "missing device"),
            ("UNAVAIL", BAD, BAD),
            ("UNAVAIL", "invalid label", "invalid label"),
            ("UNAVAIL", "newer version", "newer version"),
            ("UNAVAIL", BAD, BAD),
            ("UNAVAIL", "unsupported feature(s)", "unsupported feature(s)"),
            ("UNAVAIL", BAD, "currently in use"),
            ("UNAVAIL", "too many errors", "too many errors"),
            ("UNAVAIL", BAD, "experienced I/O failures"),
            ("FAULTED", BAD, "bad intent log"),
            ("UNAVAIL", BAD, "external device fault"),
            ("SPLIT", BAD, "split into new pool"),
            ("UNAVAIL", BAD, BAD),
            ("UNAVAIL", BAD, BAD),
            ("UNAVAIL", "currently in use", "currently in use"),
            ("UNAVAIL", "all children offline", "all children offline"),
            ("UNAVAIL", BAD, "unsupported minimum blocksize"),
        ];
        for (number, golden) in golden.into_iter().enumerate() {
            let aux = VdevAux::from_number(number as u64).unwrap();
            assert_eq!((VdevState::CantOpen.name(aux), aux.import_text(), aux.text()), golden, "{number}");
        }
    }

    #[test]
    fn states_have_zpools_words() {
        assert_eq!(VdevState::CantOpen.name(VdevAux::OpenFailed), "UNAVAIL");
        assert_eq!(VdevState::CantOpen.name(VdevAux::CorruptData), "FAULTED");
        assert_eq!(VdevState::Healthy.name(VdevAux::None), "ONLINE");
        assert_eq!((VdevState::from_number(7), VdevState::from_number(8)), (Some(VdevState::Healthy), None));
        assert_eq!((VdevAux::from_number(20), VdevAux::from_number(21)), (Some(VdevAux::AshiftTooBig), None));
        assert!(VdevState::Healthy > VdevState::Degraded);
    }
}
