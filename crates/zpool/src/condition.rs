//! The condition of an open pool: one finding, the gravest.

use clikit::compatibility::compatible;
use clikit::output::status::KnownErrors;
use engine::spa::Pool;
use zcommon::features::by_upgrade;
use zcommon::status::{Errata, PoolStatus};
use zcommon::version::SPA_VERSION_FEATURES;
use zutil::PoolCandidate;
use zutil::import_listing::LoadOutcome;
use zutil::import_status::{Reason, reason};

use super::prop::PoolView;

/// The finding. That another host had the pool is no matter to a reader.
#[doc(alias = "zpool_get_status")]
pub fn condition(view: &PoolView<'_>, candidate: &PoolCandidate, errors: &KnownErrors) -> PoolStatus {
    let outcome = match &view.facts {
        Some(facts) => LoadOutcome::Loaded(Box::new(facts.clone())),
        None => LoadOutcome::NotTried,
    };
    let facts = view.facts.as_ref();
    let found = reason(candidate, &view.tree, facts, &outcome, candidate.hostid, Some(view.ashift()));
    if view.is_suspended() && !is_graver_than_suspension(found) {
        let (waits, fails) = (PoolStatus::IoFailureWait, PoolStatus::IoFailureContinue);
        return if view.fails_on() { fails } else { waits };
    }
    if errors.count > 0 && !is_graver_than_damage(found) {
        return PoolStatus::CorruptData;
    }
    if view.has_failing_device() && !is_graver_than_failing(found) {
        return PoolStatus::FailingDev;
    }
    match found {
        Reason::Ok | Reason::HostidMismatch | Reason::FeatDisabled => {
            compatibility(view.pool).unwrap_or_else(|| status_of(found, 0))
        }
        _ => status_of(found, facts.map_or(0, |f| f.errata)),
    }
}

/// The effect of the pool's property `compatibility`: features that it allows and the pool lacks are disabled, others that the
/// pool has are superfluous. `None` without the property, and for pools without features.
fn compatibility(pool: &Pool) -> Option<PoolStatus> {
    let files = pool.config.str("compatibility").filter(|files| !matches!(*files, "off" | ""))?;
    if pool.version() != SPA_VERSION_FEATURES {
        return None;
    }
    let Ok(allowed) = compatible(files) else { return Some(PoolStatus::CompatibilityErr) };
    // A feature that an upgrade leaves out is enabled by hand, or not.
    let differs = by_upgrade().iter().find_map(|feature| {
        let is_enabled = pool.features.count(feature.info().guid).is_some();
        match (allowed.contains(feature), is_enabled) {
            (true, false) => Some(PoolStatus::FeatDisabled),
            (false, true) => Some(PoolStatus::IncompatibleFeat),
            _ => None,
        }
    });
    Some(differs.unwrap_or(PoolStatus::Ok))
}

/// Whether it stands before errors of devices that redundancy made good.
fn is_graver_than_failing(found: Reason) -> bool {
    use Reason as R;
    is_graver_than_damage(found) || matches!(found, R::FaultedDevR | R::MissingDevR | R::CorruptLabelR)
}

fn is_graver_than_damage(found: Reason) -> bool {
    use Reason as R;
    let lost =
        matches!(found, R::BadLog | R::FaultedDevNr | R::MissingDevNr | R::CorruptLabelNr | R::CorruptPool);
    lost || is_graver_than_suspension(found)
}

fn is_graver_than_suspension(found: Reason) -> bool {
    use Reason as R;
    matches!(
        found,
        R::Resilvering
            | R::Rebuilding
            | R::VersionNewer
            | R::UnsupFeatRead
            | R::UnsupFeatWrite
            | R::BadGuidSum
    )
}

fn status_of(found: Reason, errata: u64) -> PoolStatus {
    use PoolStatus as S;
    match found {
        Reason::Ok | Reason::HostidMismatch | Reason::HostidRequired => S::Ok,
        Reason::FaultedDevR => S::FaultedDevR,
        Reason::FaultedDevNr => S::FaultedDevNr,
        Reason::RemovedDev => S::RemovedDev,
        Reason::MissingDevR => S::MissingDevR,
        Reason::MissingDevNr => S::MissingDevNr,
        Reason::CorruptLabelR => S::CorruptLabelR,
        Reason::CorruptLabelNr => S::CorruptLabelNr,
        Reason::BadGuidSum => S::BadGuidSum,
        Reason::CorruptPool => S::CorruptPool,
        Reason::VersionNewer => S::VersionNewer,
        Reason::BadLog => S::BadLog,
        Reason::Errata => Errata::from_number(errata).map_or(S::Ok, S::Errata),
        Reason::UnsupFeatRead => S::UnsupFeatRead,
        Reason::UnsupFeatWrite => S::UnsupFeatWrite,
        Reason::VersionOlder => S::VersionOlder,
        Reason::FeatDisabled => S::FeatDisabled,
        Reason::Resilvering => S::Resilvering,
        Reason::OfflineDev => S::OfflineDev,
        Reason::Rebuilding => S::Rebuilding,
        Reason::NonNativeAshift => S::NonNativeAshift,
    }
}
