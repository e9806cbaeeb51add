//! Mounts of incomplete datasets. A partly received one is not mounted. Blocks are missing from the files of a redacted one, so
//! it is mounted only when both an administrator (`zfs_allow_redacted_dataset_mount`) and the caller (`zfs mount -f`) allow it.
//!
//! Source: `zfs_is_mountable_internal`, libzfs_mount.c; `dsl_dataset_tryown`, dsl_dataset.c; OpenZFS 2.4.

use clikit::target::Target;
use clikit::verb::Failure;
use engine::dsl::Dataset;
use engine::memory::Limit;
use zcommon::features::Feature;

/// Reason why a partially received dataset is not mounted.
const PARTLY_RECEIVED: &str =
    "Contains partially completed state from \"zfs receive -s\", which can be resumed with \"zfs send -t\"";

/// How a mount came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// With others, or by another command: a dataset that is not to be mounted is skipped.
    No,
    /// By a command that had to unmount it: as `No`, but `canmount=noauto` is no obstacle.
    Again,
    /// By name: an obstacle to mounting it is an error.
    ByName,
    /// By name and `-f`.
    Forced,
}

impl Asked {
    /// Whether the dataset was named.
    pub fn by_name(self) -> bool {
        matches!(self, Self::ByName | Self::Forced)
    }
}

/// Whether a dataset is complete enough to be mounted; `false` for one that is skipped.
///
/// # Errors
/// OpenZFS's message for a dataset that was named.
pub fn may_mount(target: &Target, dataset: &Dataset, asked: Asked) -> Result<bool, Failure> {
    let cannot = |what: &str| Failure::cannot("mount", &target.name, what);
    if dataset.is_inconsistent() {
        return if asked.by_name() { Err(cannot(PARTLY_RECEIVED)) } else { Ok(false) };
    }
    if dataset.extra(Feature::RedactedDatasets.info().guid)?.is_none() {
        return Ok(true);
    }
    let allowed = target.view.env.memory.limits.is_on(Limit::RedactedMount);
    match asked {
        Asked::No | Asked::Again => Ok(false),
        Asked::ByName => {
            Err(cannot("Dataset is not complete, was created by receiving a redacted zfs send stream."))
        }
        Asked::Forced if allowed => Ok(true),
        Asked::Forced => Err(cannot("dataset is busy")),
    }
}
