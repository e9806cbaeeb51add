//! Words of `zpool import`.
//!
//! Differs from OpenZFS: 2.3 prints an empty `status: ` without a line break for pulled devices and for a sequential
//! resilver without a scrub; here such pools have no status line.

use super::PoolStatus::{self, *};
use super::{Errata as E, errata_number};
use crate::vdev::{PoolState, VdevAux, VdevState};

/// The `status:` of a pool that could be imported; `None` where there is no such line.
pub fn import_status(status: PoolStatus) -> Option<&'static str> {
    Some(match status {
        MissingDevR | MissingDevNr | BadGuidSum => "One or more devices are missing from the system.",
        CorruptLabelR | CorruptLabelNr => "One or more devices contains corrupted data.",
        CorruptData => "The pool data is corrupted.",
        OfflineDev => "One or more devices are offlined.",
        CorruptPool => "The pool metadata is corrupted.",
        VersionOlder => "The pool is formatted using a legacy on-disk version.",
        VersionNewer => "The pool is formatted using an incompatible version.",
        FeatDisabled => {
            "Some supported features are not enabled on the pool.\n(Note that they may be intentionally disabled if \
             the\n'compatibility' property is set.)"
        }
        CompatibilityErr => {
            "Error reading or parsing the file(s) indicated by the 'compatibility'\nproperty."
        }
        IncompatibleFeat => {
            "One or more features are enabled on the pool despite not being\nrequested by the 'compatibility' property."
        }
        UnsupFeatRead => "The pool uses the following feature(s) not supported on this system:",
        UnsupFeatWrite => {
            "The pool can only be accessed in read-only mode on this system. It\ncannot be accessed in read-write mode \
             because it uses the following\nfeature(s) not supported on this system:"
        }
        HostidActive => "The pool is currently imported by another system.",
        HostidRequired => {
            "The pool has the multihost property on.  It cannot\nbe safely imported when the system hostid is not set."
        }
        HostidMismatch => "The pool was last accessed by another system.",
        FaultedDevR | FaultedDevNr => "One or more devices are faulted.",
        BadLog => "An intent log record cannot be read.",
        Resilvering | Rebuilding => "One or more devices were being resilvered.",
        Errata(errata) => errata_number(errata),
        NonNativeAshift => {
            "One or more devices are configured to use a non-native block size.\nExpect reduced performance."
        }
        _ => return None,
    })
}

/// Inputs of the texts about importing besides the status itself.
#[derive(Clone, Copy, Debug)]
pub struct ImportFacts<'a> {
    /// State of the root vdev.
    pub state: VdevState,
    /// Why it is in that state.
    pub aux: VdevAux,
    /// State of the pool in the labels.
    pub pool_state: PoolState,
    /// The host that has the pool, where multihost found it active: name and id.
    pub active_host: Option<(&'a str, u64)>,
}

/// The `action:` for a pool that could be imported.
pub fn import_action(status: PoolStatus, facts: &ImportFacts<'_>) -> String {
    match (facts.state, status) {
        (VdevState::Healthy, _) => healthy_action(status).into(),
        (VdevState::Degraded, _) => {
            "The pool can be imported despite missing or damaged devices.  The\nfault tolerance of the pool may be \
             compromised if imported."
                .into()
        }
        (_, HostidActive) => {
            let (name, id) = facts.active_host.unwrap_or(("<unknown>", 0));
            format!("The pool must be exported from {name} (hostid={id:x})\nbefore it can be safely imported.")
        }
        _ => broken_action(status).into(),
    }
}

fn healthy_action(status: PoolStatus) -> &'static str {
    match status {
        VersionOlder | FeatDisabled => {
            "The pool can be imported using its name or numeric identifier, though\nsome features will not be available \
             without an explicit 'zpool upgrade'."
        }
        CompatibilityErr => {
            "The pool can be imported using its name or numeric\nidentifier, though the file(s) indicated by its \
             'compatibility'\nproperty cannot be parsed at this time."
        }
        HostidMismatch => "The pool can be imported using its name or numeric identifier and\nthe '-f' flag.",
        Errata(E::Scrub) => {
            "The pool can be imported using its name or numeric identifier,\nhowever there is a compatibility issue \
             which should be corrected\nby running 'zpool scrub'"
        }
        Errata(E::AsyncDestroy) => {
            "The pool cannot be imported with this version of ZFS due to\nan active asynchronous destroy. Revert to an \
             earlier version\nand allow the destroy to complete before updating."
        }
        Errata(E::Encryption) => {
            "Existing encrypted datasets contain an on-disk incompatibility, which\nneeds to be corrected. Backup these \
             datasets to new encrypted datasets\nand destroy the old ones."
        }
        Errata(E::EncryptionIvset) => {
            "Existing encrypted snapshots and bookmarks contain an on-disk\nincompatibility. This may cause on-disk \
             corruption if they are used\nwith 'zfs recv'. To correct the issue, enable the bookmark_v2 feature.\nNo \
             additional action is needed if there are no encrypted snapshots or\nbookmarks. If preserving the encrypted \
             snapshots and bookmarks is\nrequired, use a non-raw send to backup and restore them. Alternately,\nthey may \
             be removed to resolve the incompatibility."
        }
        _ => "The pool can be imported using its name or numeric identifier.",
    }
}

fn broken_action(status: PoolStatus) -> &'static str {
    match status {
        VersionNewer => {
            "The pool cannot be imported.  Access the pool on a system running newer\nsoftware, or recreate the pool \
             from backup."
        }
        UnsupFeatRead => {
            "The pool cannot be imported. Access the pool on a system that supports\nthe required feature(s), or \
             recreate the pool from backup."
        }
        UnsupFeatWrite => {
            "The pool cannot be imported in read-write mode. Import the pool with\n'-o readonly=on', access the pool on \
             a system that supports the\nrequired feature(s), or recreate the pool from backup."
        }
        MissingDevR | MissingDevNr | BadGuidSum => {
            "The pool cannot be imported. Attach the missing\ndevices and try again."
        }
        HostidRequired => "Set a unique system hostid with the zgenhostid(8) command.",
        _ => "The pool cannot be imported due to damaged devices or data.",
    }
}

/// The line after the action of a pool with corrupt data: perhaps it is not the pool that was meant.
pub fn import_note(facts: &ImportFacts<'_>) -> Option<&'static str> {
    let closed = matches!(facts.state, VdevState::Closed | VdevState::CantOpen);
    if !closed || facts.aux != VdevAux::CorruptData {
        return None;
    }
    match facts.pool_state {
        PoolState::Destroyed => Some("The pool was destroyed, but can be imported using the '-Df' flags."),
        PoolState::Exported => None,
        _ => Some("The pool may be active on another system, but can be imported using\nthe '-f' flag."),
    }
}
