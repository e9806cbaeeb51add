//! Newer versions and features for an existing pool.

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use zcommon::features::Feature;
use zcommon::version::SPA_VERSION_FEATURES;

use super::create::{forms, salt};
use super::live::Spa;
use crate::dmu::Tx;
use crate::dsl::write::{Hooks, pool, version};
use crate::error::{Error, Result};
use crate::zap::ZapEdit;

/// Oldest version that is upgraded: the object sets of older ones have no accounts of users.
#[doc(alias = "SPA_VERSION_USERSPACE")]
const OLDEST: u64 = 15;

impl Spa {
    /// Upgrades the pool to version 5000, which has features; none is enabled yet.
    ///
    /// # Errors
    /// `Unsupported` for pools before version 15.
    #[doc(alias("zpool upgrade", "spa_upgrade"))]
    pub fn upgrade(&self) -> Result<()> {
        self.sync_task(Self::upgrade_now)
    }

    /// Enables features; a pool of an older version is upgraded before.
    #[doc(alias = "zpool upgrade")]
    pub fn enable_features(&self, wanted: Vec<Feature>) -> Result<()> {
        self.sync_task(move |spa, tx| {
            spa.upgrade_now(tx)?;
            for feature in wanted {
                spa.features.enable(feature, spa.pool.env.guid(), tx)?;
            }
            // Labels name some of them.
            spa.config.lock().change_facts(|_| ());
            let enabled = zcommon::features::FEATURES.iter().copied();
            let enabled: Vec<_> = enabled.filter(|f| spa.features.is_enabled(*f)).collect();
            spa.space.set_forms(forms(&enabled));
            Ok(())
        })
    }

    #[doc(alias("spa_sync_version", "spa_sync_upgrades"))]
    fn upgrade_now(&self, tx: &Tx) -> Result<()> {
        let from = self.config.lock().facts().version;
        if from >= SPA_VERSION_FEATURES {
            return Ok(());
        }
        if from < OLDEST {
            let what = format!(
                "a pool of version {from} can't be upgraded: its file systems have no accounts of users"
            );
            return Err(Error::unsupported(what));
        }
        let at = self.datasets.at(tx, self);
        if from < version::DEADLISTS {
            pool::upgrade_dir_clones(&at)?;
        }
        self.features.create(&[], self.pool.env.guid(), tx)?;
        if at.zap_get(MOS_DIRECTORY_OBJECT, mos::CHECKSUM_SALT)?.is_none() {
            let directory = self.mos.handle(MOS_DIRECTORY_OBJECT)?;
            let salt = salt(&self.pool.env, &self.pool.zio);
            ZapEdit::open(&mut directory.edit(tx))?.insert(mos::CHECKSUM_SALT, salt)?;
        }
        self.config.lock().change_facts(|facts| facts.version = SPA_VERSION_FEATURES);
        self.log("set", "", 0, &format!("version={SPA_VERSION_FEATURES}"), tx)
    }
}
