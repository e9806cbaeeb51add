//! States of pools and vdevs, and why a vdev is not well.

/// What a label says of its pool (`pool_state_t`, fs/zfs.h, OpenZFS 2.3).
#[doc(alias = "pool_state_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolState {
    /// Imported somewhere, or not exported before the machine went down.
    Active,
    /// Exported.
    Exported,
    /// Destroyed, not yet overwritten.
    Destroyed,
    /// The device is a hot spare that is not in use.
    Spare,
    /// The device is a cache.
    L2cache,
}

impl PoolState {
    /// From the number in a label; states that never reach a label give `None`.
    pub fn from_label(number: u64) -> Option<Self> {
        [Self::Active, Self::Exported, Self::Destroyed, Self::Spare, Self::L2cache]
            .into_iter()
            .zip(0..)
            .find_map(|(state, n)| (n == number).then_some(state))
    }
}

/// How a vdev is (`vdev_state_t`), from worst to best.
#[doc(alias = "vdev_state_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VdevState {
    /// Not opened.
    Closed,
    /// Taken offline by its administrator.
    Offline,
    /// Pulled out of the running system.
    Removed,
    /// It, or too many of its children, can't be opened.
    CantOpen,
    /// Put out of use after errors.
    Faulted,
    /// Works with less redundancy than it should have.
    Degraded,
    /// All is well.
    Healthy,
}

impl VdevState {
    /// Whether data can be read from it.
    #[doc(alias = "vdev_readable")]
    pub fn is_readable(self) -> bool {
        self >= Self::Degraded
    }
}

/// Why a vdev is in its state (`vdev_aux_t`); those that an import can meet.
#[doc(alias = "vdev_aux_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Aux {
    /// Nothing to say.
    None,
    /// The device is not there.
    OpenFailed,
    /// Its label is another vdev's, or the pool's own metadata can't be read.
    CorruptData,
    /// Too few children work.
    NoReplicas,
    /// Top-level vdevs are missing that no label describes.
    BadGuidSum,
    /// The device is smaller than any vdev may be.
    TooSmall,
    /// No label, or the device is smaller than its vdev.
    BadLabel,
    /// The pool's version is newer than this software.
    VersionNewer,
    /// The pool uses a feature that this software doesn't have.
    UnsupFeat,
    /// Put out of use after too many errors.
    ErrExceeded,
    /// The intent log can't be read.
    BadLog,
    /// It was split off into another pool.
    SplitPool,
    /// Another host has the pool.
    Active,
    /// Every child is offline.
    ChildrenOffline,
}

impl Aux {
    /// The words that an import listing has beside the state; empty for [`Aux::None`].
    pub fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::OpenFailed => "cannot open",
            Self::BadGuidSum => "missing device",
            Self::NoReplicas => "insufficient replicas",
            Self::VersionNewer => "newer version",
            Self::UnsupFeat => "unsupported feature(s)",
            Self::ErrExceeded => "too many errors",
            Self::Active => "currently in use",
            Self::ChildrenOffline => "all children offline",
            Self::BadLabel => "invalid label",
            Self::CorruptData | Self::TooSmall | Self::BadLog | Self::SplitPool => "corrupted data",
        }
    }
}

/// A state with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// How it is.
    pub state: VdevState,
    /// Why.
    pub aux: Aux,
}

impl Health {
    /// All is well.
    pub const ONLINE: Self = Self { state: VdevState::Healthy, aux: Aux::None };
    /// Not opened yet.
    pub const CLOSED: Self = Self { state: VdevState::Closed, aux: Aux::None };

    /// Can't be opened, for this reason.
    pub const fn cant_open(aux: Aux) -> Self {
        Self { state: VdevState::CantOpen, aux }
    }

    /// The word that the tools print.
    #[doc(alias = "zpool_state_to_name")]
    pub fn name(self) -> &'static str {
        match (self.state, self.aux) {
            (VdevState::Closed | VdevState::Offline, _) => "OFFLINE",
            (VdevState::Removed, _) => "REMOVED",
            (VdevState::CantOpen, Aux::CorruptData | Aux::BadLog) => "FAULTED",
            (VdevState::CantOpen, Aux::SplitPool) => "SPLIT",
            (VdevState::CantOpen, _) => "UNAVAIL",
            (VdevState::Faulted, _) => "FAULTED",
            (VdevState::Degraded, _) => "DEGRADED",
            (VdevState::Healthy, _) => "ONLINE",
        }
    }
}
