//! The health of an importable pool: its gravest fault.
//!
//! Format source: `check_status` and the message ids in libzfs_status.c, OpenZFS 2.3.

use zcommon::vdev::{PoolState, VdevAux, VdevKind, VdevState};
use zcommon::version::SPA_VERSION_FEATURES;

use crate::import_listing::{LoadOutcome, MosFacts};
use crate::search::PoolCandidate;
use crate::tree::VdevNode;
use zcommon::health::Health;

/// The finding (`zpool_status_t`); those that an import listing can have.
#[doc(alias = "zpool_status_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Nothing.
    Ok,
    /// Devices are missing, the data is there.
    MissingDevR,
    /// Devices are missing, and data with them.
    MissingDevNr,
    /// Devices were given up on, the data is there.
    FaultedDevR,
    /// Devices were given up on, and data with them.
    FaultedDevNr,
    /// Devices were pulled out.
    RemovedDev,
    /// Labels are damaged, the data is there.
    CorruptLabelR,
    /// Labels are damaged, and data is out of reach.
    CorruptLabelNr,
    /// Top-level vdevs are missing that no label describes.
    BadGuidSum,
    /// The pool's metadata can't be read.
    CorruptPool,
    /// The version is newer than this software.
    VersionNewer,
    /// Another host used the pool last and didn't export it.
    HostidMismatch,
    /// Multihost is on, and this host has no id.
    HostidRequired,
    /// The intent log can't be read.
    BadLog,
    /// Known faults of old software left traces.
    Errata,
    /// Reading needs features that this software lacks.
    UnsupFeatRead,
    /// Writing needs features that this software lacks.
    UnsupFeatWrite,
    /// The version is old.
    VersionOlder,
    /// Features are not enabled.
    FeatDisabled,
    /// A resilver was going on.
    Resilvering,
    /// Devices are offline.
    OfflineDev,
    /// A rebuild was going on.
    Rebuilding,
    /// Blocks are smaller than the device writes at once.
    NonNativeAshift,
}

impl Reason {
    /// Id of the message in the documentation.
    pub fn message_id(self) -> Option<&'static str> {
        Some(match self {
            Self::MissingDevR => "ZFS-8000-2Q",
            Self::MissingDevNr => "ZFS-8000-3C",
            Self::CorruptLabelR => "ZFS-8000-4J",
            Self::CorruptLabelNr => "ZFS-8000-5E",
            Self::BadGuidSum => "ZFS-8000-6X",
            Self::CorruptPool => "ZFS-8000-72",
            Self::VersionNewer => "ZFS-8000-A5",
            Self::HostidMismatch | Self::HostidRequired => "ZFS-8000-EY",
            Self::BadLog => "ZFS-8000-K4",
            Self::Errata => "ZFS-8000-ER",
            _ => return None,
        })
    }
}

/// This machine's host id, as OpenZFS takes it: the module's parameter, else `/etc/hostid`; 0 when
/// there is none.
pub fn system_hostid() -> u64 {
    let parameter = std::fs::read_to_string("/sys/module/spl/parameters/spl_hostid").ok();
    let number = parameter.and_then(|text| text.trim().parse::<u64>().ok()).filter(|id| *id != 0);
    number
        .or_else(|| {
            let bytes = std::fs::read("/etc/hostid").ok()?;
            bytes.first_chunk::<4>().map(|id| u64::from(u32::from_le_bytes(*id)))
        })
        .unwrap_or(0)
}

/// The gravest finding. `ashift` is the property of an imported pool; blocks smaller than those of a device are no
/// finding about others.
pub fn reason(
    pool: &PoolCandidate,
    tree: &VdevNode,
    facts: Option<&MosFacts>,
    outcome: &LoadOutcome,
    hostid: u64,
    ashift: Option<u64>,
) -> Reason {
    if let Some(facts) = facts {
        if facts.resilvering {
            return Reason::Resilvering;
        }
        if facts.rebuilding {
            return Reason::Rebuilding;
        }
    }
    if matches!(outcome, LoadOutcome::HostidRequired) && tree.health.aux == VdevAux::Active {
        return Reason::HostidRequired;
    }
    if pool.hostid != 0 && pool.hostid != hostid && pool.state == PoolState::Active {
        return Reason::HostidMismatch;
    }
    let broken = if tree.health.state == VdevState::CantOpen { unopenable(tree, outcome) } else { None };
    broken.or_else(|| flawed(tree, facts, ashift)).or_else(|| outdated(pool, facts)).unwrap_or(Reason::Ok)
}

/// Findings about a pool that can't be opened.
fn unopenable(tree: &VdevNode, outcome: &LoadOutcome) -> Option<Reason> {
    match tree.health.aux {
        VdevAux::VersionNewer => return Some(Reason::VersionNewer),
        VdevAux::UnsupportedFeature => {
            let read_only = matches!(outcome, LoadOutcome::Unsupported { read_only: true, .. });
            return Some(if read_only { Reason::UnsupFeatWrite } else { Reason::UnsupFeatRead });
        }
        VdevAux::BadGuidSum => return Some(Reason::BadGuidSum),
        VdevAux::BadLog => return Some(Reason::BadLog),
        _ => {}
    }
    if any_leaf(tree, is_faulted) {
        return Some(Reason::FaultedDevNr);
    }
    if any_leaf(tree, is_missing) {
        return Some(Reason::MissingDevNr);
    }
    if any_leaf(tree, is_broken) {
        return Some(Reason::CorruptLabelNr);
    }
    (tree.health.aux == VdevAux::CorruptData).then_some(Reason::CorruptPool)
}

/// Findings about devices of a pool that can be opened.
fn flawed(tree: &VdevNode, facts: Option<&MosFacts>, ashift: Option<u64>) -> Option<Reason> {
    let caches = facts.map(|facts| facts.l2cache.as_slice()).unwrap_or_default();
    let any = |test: fn(&VdevNode) -> bool| any_leaf(tree, test) || caches.iter().any(test);
    if any(is_faulted) {
        return Some(Reason::FaultedDevR);
    }
    if any(is_missing) {
        return Some(Reason::MissingDevR);
    }
    if any(is_broken) {
        return Some(Reason::CorruptLabelR);
    }
    if any(|leaf| leaf.health.state == VdevState::Offline) {
        return Some(Reason::OfflineDev);
    }
    if any(|leaf| leaf.health.state == VdevState::Removed) {
        return Some(Reason::RemovedDev);
    }
    // Blocks that are as large as the pool asks for are meant to be.
    let wanted = ashift?;
    let is_small = |(configured, _)| wanted == 0 || configured < wanted;
    let mut leaves = tree.walk().filter(|vdev| vdev.is_leaf());
    leaves.any(|leaf| leaf.non_native_block().is_some_and(is_small)).then_some(Reason::NonNativeAshift)
}

/// Findings about the format.
fn outdated(pool: &PoolCandidate, facts: Option<&MosFacts>) -> Option<Reason> {
    if facts.is_some_and(|facts| facts.errata != 0) {
        return Some(Reason::Errata);
    }
    let version = facts.map_or(pool.version, |facts| facts.version);
    if (1..SPA_VERSION_FEATURES).contains(&version) {
        return Some(Reason::VersionOlder);
    }
    facts.is_some_and(|facts| facts.features_disabled).then_some(Reason::FeatDisabled)
}

/// Whether a leaf outside of `replacing` vdevs (which are being seen to) passes the test.
fn any_leaf(vdev: &VdevNode, test: fn(&VdevNode) -> bool) -> bool {
    if vdev.kind == VdevKind::Replacing {
        return false;
    }
    match vdev.is_leaf() {
        true => test(vdev),
        false => vdev.children.iter().any(|child| any_leaf(child, test)),
    }
}

fn is_faulted(leaf: &VdevNode) -> bool {
    leaf.health.state == VdevState::Faulted
}

fn is_missing(leaf: &VdevNode) -> bool {
    leaf.health == Health::cant_open(VdevAux::OpenFailed)
}

fn is_broken(leaf: &VdevNode) -> bool {
    leaf.health.state == VdevState::CantOpen
}
