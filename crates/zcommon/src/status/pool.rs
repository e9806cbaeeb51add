//! Words of `zpool status`.

use super::Errata as E;
use super::PoolStatus::{self, *};

const RECREATE: &str = "Destroy and re-create the pool from\na backup source.";
const ATTACH: &str = "Attach the missing device and online it using 'zpool online'.";

/// The `status:` of an open pool; `None` where `zpool status` has no such line.
pub fn pool_status(status: PoolStatus) -> Option<&'static str> {
    Some(match status {
        MissingDevR => {
            "One or more devices could not be opened.  Sufficient replicas exist for\nthe pool to continue \
             functioning in a degraded state."
        }
        MissingDevNr => {
            "One or more devices could not be opened.  There are insufficient\nreplicas for the pool to continue \
             functioning."
        }
        CorruptLabelR => {
            "One or more devices could not be used because the label is missing or\ninvalid.  Sufficient replicas \
             exist for the pool to continue\nfunctioning in a degraded state."
        }
        CorruptLabelNr => {
            "One or more devices could not be used because the label is missing \nor invalid.  There are insufficient \
             replicas for the pool to continue\nfunctioning."
        }
        CorruptPool => "The pool metadata is corrupted and the pool cannot be opened.",
        CorruptData => {
            "One or more devices has experienced an error resulting in data\ncorruption.  Applications may be affected."
        }
        FailingDev => {
            "One or more devices has experienced an unrecoverable error.  An\nattempt was made to correct the error.  \
             Applications are unaffected."
        }
        FaultedDevR => {
            "One or more devices are faulted in response to persistent errors.\nSufficient replicas exist for the pool \
             to continue functioning in a\ndegraded state."
        }
        FaultedDevNr => {
            "One or more devices are faulted in response to persistent errors.  There are insufficient replicas for the \
             pool to\ncontinue functioning."
        }
        Errata(errata) => errata_status(errata),
        other => return condition_status(other),
    })
}

/// As [`pool_status`], for states other than broken devices.
fn condition_status(status: PoolStatus) -> Option<&'static str> {
    Some(match status {
        OfflineDev => {
            "One or more devices has been taken offline by the administrator.\nSufficient replicas exist for the pool \
             to continue functioning in a\ndegraded state."
        }
        RemovedDev => {
            "One or more devices have been removed.\nSufficient replicas exist for the pool to continue functioning in \
             a\ndegraded state."
        }
        Resilvering | Rebuilding => {
            "One or more devices is currently being resilvered.  The pool will\ncontinue to function, possibly in a \
             degraded state."
        }
        RebuildScrub => {
            "One or more devices have been sequentially resilvered, scrubbing\nthe pool is recommended."
        }
        HostidMismatch => {
            "Mismatch between pool hostid and system hostid on imported pool.\nThis pool was previously imported into a \
             system with a different hostid,\nand then was verbatim imported into this system."
        }
        IoFailureWait | IoFailureContinue => "One or more devices are faulted in response to IO failures.",
        IoFailureMmp => {
            "The pool is suspended because multihost writes failed or were delayed;\nanother system could import the \
             pool undetected."
        }
        BadLog => {
            "An intent log record could not be read.\nWaiting for administrator intervention to fix the faulted pool."
        }
        NonNativeAshift => {
            "One or more devices are configured to use a non-native block size.\nExpect reduced performance."
        }
        other => return version_status(other),
    })
}

/// As [`pool_status`], for versions and features.
fn version_status(status: PoolStatus) -> Option<&'static str> {
    Some(match status {
        VersionOlder => {
            "The pool is formatted using a legacy on-disk format.  The pool can\nstill be used, but some features are \
             unavailable."
        }
        VersionNewer => {
            "The pool has been upgraded to a newer, incompatible on-disk version.\nThe pool cannot be accessed on this \
             system."
        }
        FeatDisabled => {
            "Some supported and requested features are not enabled on the pool.\nThe pool can still be used, but some \
             features are unavailable."
        }
        CompatibilityErr => {
            "This pool has a compatibility list specified, but it could not be\nread/parsed at this time. The pool can \
             still be used, but this\nshould be investigated."
        }
        IncompatibleFeat => {
            "One or more features are enabled on the pool despite not being\nrequested by the 'compatibility' property."
        }
        UnsupFeatRead => {
            "The pool cannot be accessed on this system because it uses the\nfollowing feature(s) not supported on this \
             system:"
        }
        UnsupFeatWrite => {
            "The pool can only be accessed in read-only mode on this system. It\ncannot be accessed in read-write mode \
             because it uses the following\nfeature(s) not supported on this system:"
        }
        _ => return None,
    })
}

fn errata_status(errata: E) -> &'static str {
    match errata {
        E::Scrub => "Errata #1 detected.",
        E::AsyncDestroy => "Errata #2 detected.",
        E::Encryption => {
            "Errata #3 detected.\nExisting encrypted datasets contain an on-disk incompatibility\n which needs to be \
             corrected."
        }
        E::EncryptionIvset => {
            "Errata #4 detected.\nExisting encrypted snapshots and bookmarks contain an on-disk\nincompatibility. This \
             may cause on-disk corruption if they are used\nwith 'zfs recv'."
        }
    }
}

/// The `action:` for an open pool; `None` where `zpool status` has no such line. For corrupt pools this is the text
/// where no rewind would help.
pub fn pool_action(status: PoolStatus) -> Option<&'static str> {
    Some(match status {
        MissingDevR | MissingDevNr => ATTACH,
        CorruptLabelR => "Replace the device using 'zpool replace'.",
        CorruptLabelNr | CorruptPool => RECREATE,
        CorruptData => {
            "Restore the file in question if possible.  Otherwise restore the\nentire pool from backup."
        }
        FailingDev => {
            "Determine if the device needs to be replaced, and clear the errors\nusing 'zpool clear' or replace the \
             device with 'zpool replace'."
        }
        FaultedDevR => "Replace the faulted device, or use 'zpool clear' to mark the device\nrepaired.",
        FaultedDevNr => {
            "Destroy and re-create the pool from a backup source.  Manually marking the device\nrepaired using \
             'zpool clear' may allow some data to be recovered."
        }
        OfflineDev => "Online the device using 'zpool online' or replace the device with\n'zpool replace'.",
        // The lone quote is OpenZFS's.
        RemovedDev => "Online the device using zpool online' or replace the device with\n'zpool replace'.",
        Resilvering | Rebuilding => "Wait for the resilver to complete.",
        RebuildScrub => "Use 'zpool scrub' to verify all data checksums.",
        HostidMismatch => {
            "Export this pool on all systems on which it is imported.\nThen import it to correct the mismatch."
        }
        IoFailureWait | IoFailureContinue => {
            "Make sure the affected devices are connected, then run 'zpool clear'."
        }
        IoFailureMmp => {
            "Make sure the pool's devices are connected, then reboot your system and\nimport the pool or run \
             'zpool clear' to resume the pool."
        }
        BadLog => {
            "Either restore the affected device(s) and run 'zpool online',\nor ignore the intent log records by running \
             'zpool clear'."
        }
        NonNativeAshift => {
            "Replace affected devices with devices that support the\nconfigured block size, or migrate data to a \
             properly configured\npool."
        }
        Errata(errata) => return errata_action(errata),
        other => return version_action(other),
    })
}

/// As [`pool_action`], for versions and features.
fn version_action(status: PoolStatus) -> Option<&'static str> {
    Some(match status {
        VersionOlder => {
            "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\npool will no longer be accessible on \
             software that does not support\nfeature flags."
        }
        VersionNewer => {
            "Access the pool from a system running more recent software, or\nrestore the pool from backup."
        }
        FeatDisabled => {
            "Enable all features using 'zpool upgrade'. Once this is done,\nthe pool may no longer be accessible by \
             software that does not support\nthe features. See zpool-features(7) for details."
        }
        CompatibilityErr => {
            "Check the value of the 'compatibility' property against the\nappropriate file in /etc/zfs/compatibility.d \
             or /usr/share/zfs/compatibility.d."
        }
        IncompatibleFeat => {
            "Consider setting 'compatibility' to an appropriate value, or\nadding needed features to the relevant file \
             in\n/etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d."
        }
        UnsupFeatRead => {
            "Access the pool from a system that supports the required feature(s),\nor restore the pool from backup."
        }
        UnsupFeatWrite => {
            "The pool cannot be accessed in read-write mode. Import the pool with\n\"-o readonly=on\", access the pool \
             from a system that supports the\nrequired feature(s), or restore the pool from backup."
        }
        _ => return None,
    })
}

fn errata_action(errata: E) -> Option<&'static str> {
    Some(match errata {
        E::Scrub => "To correct the issue run 'zpool scrub'.",
        E::AsyncDestroy => return None,
        E::Encryption => {
            "To correct the issue backup existing encrypted datasets to new\nencrypted datasets and destroy the old \
             ones. 'zfs mount -o ro' can\nbe used to temporarily mount existing encrypted datasets readonly."
        }
        // The missing blanks are OpenZFS's.
        E::EncryptionIvset => {
            "To correct theissue, enable the bookmark_v2 feature. No additional\naction is needed if there are no \
             encrypted snapshots or bookmarks.\nIf preservingthe encrypted snapshots and bookmarks is required, use\na \
             non-raw send to backup and restore them. Alternately, they may be\nremoved to resolve the incompatibility."
        }
    })
}
