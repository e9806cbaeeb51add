//! Newer versions and features for an existing pool.

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use zcommon::features::Feature;
use zcommon::version::{SPA_VERSION_BEFORE_FEATURES, SPA_VERSION_FEATURES};

use super::Spa;
use super::create::salt;
use super::errlog_lists;
use super::feature_set::space_map_features;
use super::subjects::PoolProps;
use crate::dmu::Tx;
use crate::dsl::write::{Hooks, pool, version};
use crate::error::{Error, Kind, Result};
use crate::zap::ZapEdit;

impl PoolProps<'_> {
    /// Upgrades the pool to a version: 2 to 28, or 5000, which has features; none is enabled yet.
    ///
    /// # Errors
    /// `Invalid` for a version that there is not, or that the pool is beyond.
    #[doc(alias("zpool upgrade", "spa_upgrade"))]
    pub fn upgrade(self, to: u64) -> Result<()> {
        self.spa.sync_task(move |spa, tx| {
            let from = spa.config.lock().facts().version;
            if !is_version(to) || to < from {
                return Err(Error::new(Kind::Invalid, "there is no such version, or the pool is beyond it"));
            }
            upgrade_now(spa, to, tx)
        })
    }

    /// Enables features; a pool of an older version is upgraded before.
    #[doc(alias = "zpool upgrade")]
    pub fn enable_features(self, wanted: Vec<Feature>) -> Result<()> {
        self.spa.sync_task(move |spa, tx| {
            upgrade_now(spa, SPA_VERSION_FEATURES, tx)?;
            let had_lists = spa.features.is_active(Feature::HeadErrlog);
            for feature in wanted {
                spa.features.enable(feature, spa.pool.env.guid(), tx)?;
            }
            if !had_lists && spa.features.is_active(Feature::HeadErrlog) {
                errlog_lists::convert(&spa.datasets.at(tx, spa))?;
            }
            // Labels name some of them.
            spa.config.lock().change_facts(|_| ());
            let enabled = zcommon::features::FEATURES.iter().copied();
            let enabled: Vec<_> = enabled.filter(|f| spa.features.is_enabled(*f)).collect();
            spa.space.set_forms(space_map_features(&enabled));
            // Some features change the accounting of objects and the form of new blocks, from now on.
            spa.datasets.refresh_policies(spa)
        })
    }
}

#[doc(alias("spa_sync_version", "spa_sync_upgrades"))]
fn upgrade_now(spa: &Spa, to: u64, tx: &Tx) -> Result<()> {
    let from = spa.config.lock().facts().version;
    if from >= to {
        return Ok(());
    }
    // Objects created from here on have the new form.
    spa.config.lock().change_facts(|facts| facts.version = to);
    let at = spa.datasets.at(tx, spa);
    let passes = |version| from < version && version <= to;
    if passes(version::ORIGIN) {
        pool::upgrade_origin(&at)?;
    }
    if passes(version::DEADLISTS) {
        pool::upgrade_dir_clones(&at)?;
    }
    if passes(SPA_VERSION_FEATURES) {
        spa.features.create(&[], spa.pool.env.guid(), tx)?;
        if at.zap_get(MOS_DIRECTORY_OBJECT, mos::CHECKSUM_SALT)?.is_none() {
            let directory = spa.mos.handle(MOS_DIRECTORY_OBJECT)?;
            let salt = salt(&spa.pool.env, &spa.pool.zio);
            ZapEdit::open(&mut directory.edit(tx))?.insert(mos::CHECKSUM_SALT, salt)?;
        }
    }
    // Objects are counted for their users from some version on.
    spa.datasets.refresh_policies(spa)?;
    spa.log("set", "", 0, &format!("version={to}"), tx)
}

/// Whether pools may have this version.
#[doc(alias = "SPA_VERSION_IS_SUPPORTED")]
pub fn is_version(version: u64) -> bool {
    (1..=SPA_VERSION_BEFORE_FEATURES).contains(&version) || version == SPA_VERSION_FEATURES
}
