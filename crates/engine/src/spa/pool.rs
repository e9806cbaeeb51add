//! An open pool.

use std::sync::Arc;

use nvpair::NvList;
use ondisk::{Uberblock, names};

use super::Spa;
use super::features::PoolFeatures;
use crate::arc::ArcCache;
use crate::dmu::Objset;
use crate::dsl::{Dsl, EncryptionRoot};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::vdev::tree::Tree;
use crate::zap::Zap;
use crate::zio::Zio;

/// The losses of an open with fallback.
#[derive(Debug, Clone)]
pub struct Rewind {
    /// Newest state found.
    pub newest: u64,
    /// State that was opened.
    pub opened: u64,
    /// States tried before, and why each could not be opened.
    pub failed: Vec<(u64, Error)>,
    /// Blocks of data that were found unreadable in the state that was opened, if it was to be written.
    #[doc(alias = "spa_load_data_errors")]
    pub lost_data: u64,
}

/// The parts of an open pool that are the same in every txg.
#[derive(Debug, Clone)]
pub struct PoolBase {
    /// Clock, threads, limits.
    pub env: Env,
    /// Its name.
    pub name: String,
    /// The read path.
    pub zio: Arc<Zio>,
    /// The cache.
    pub arc: Arc<ArcCache>,
    /// Datasets by name.
    pub dsl: Arc<Dsl>,
    /// The txg of the uberblock that it was opened at.
    pub opened: u64,
    /// Set when older states had to be tried.
    pub rewind: Option<Rewind>,
    /// Damage met while opening that did not stop it.
    pub notes: Vec<Error>,
}

impl PoolBase {
    /// Unloads the key of an encryption root of a pool that is only read. The caller has seen that no dataset which needs it is
    /// mounted.
    ///
    /// # Errors
    /// `KeyMissing` when it is not loaded.
    #[doc(alias = "spa_keystore_unload_wkey")]
    pub fn unload_key(&self, root: &EncryptionRoot) -> Result<()> {
        self.dsl.keys.unload(root.dir)?;
        self.arc.forget_all();
        Ok(())
    }

    /// The vdev tree in force.
    pub fn tree(&self) -> Arc<Tree> {
        self.zio.tree()
    }
}

/// A pool as of one txg, for readers. Its base has the read path and the datasets.
#[derive(Debug)]
pub struct Pool {
    /// The parts that do not change.
    pub base: Arc<PoolBase>,
    /// Its guid.
    pub guid: u64,
    /// The uberblock of the txg.
    pub uberblock: Uberblock,
    /// The config in force: the MOS's, or the labels' when that could not be read.
    pub config: NvList,
    /// Features in use.
    pub features: PoolFeatures,
    /// The meta object set.
    pub mos: Arc<Objset>,
}

impl std::ops::Deref for Pool {
    type Target = PoolBase;

    fn deref(&self) -> &PoolBase {
        &self.base
    }
}

impl Pool {
    /// The pool's directory.
    pub fn directory(&self) -> Result<Zap> {
        Zap::open(&self.mos.object(names::MOS_DIRECTORY_OBJECT)?)
    }

    /// The pool's version: 1 to 28, or 5000.
    pub fn version(&self) -> u64 {
        self.uberblock.version
    }

    /// The uberblock of the pool's checkpoint, when it has one.
    pub fn checkpoint_uberblock(&self) -> Result<Option<Uberblock>> {
        let Some(value) = self.directory()?.lookup(names::mos::ZPOOL_CHECKPOINT.as_bytes())? else {
            return Ok(None);
        };
        let mut bytes: Vec<u8> = value.ints.iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes.resize(bytes.len().max(1 << ondisk::uberblock::UBERBLOCK_SHIFT), 0);
        let uberblock = Uberblock::from_bytes(&bytes).map_err(|e| Error::corrupt(e.to_string()))?;
        Ok(Some(uberblock))
    }
}

impl Spa {
    /// The pool as it is now.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn view(&self) -> Result<Arc<Pool>> {
        let (mos, directory) = (self.mos.view(), self.directory()?);
        let (features, config) = (PoolFeatures::load(&mos, &directory)?, self.mos_config());
        let (base, guid) = (Arc::clone(&self.pool), self.guid());
        Ok(Arc::new(Pool { base, guid, uberblock: self.uberblock(), config, features, mos }))
    }

    /// The pool's directory, as it is now.
    pub(super) fn directory(&self) -> Result<Zap> {
        Zap::open(&self.mos.view().object(names::MOS_DIRECTORY_OBJECT)?)
    }

    /// Its configuration, as the MOS has it.
    pub fn mos_config(&self) -> NvList {
        let config = self.config.lock();
        config.facts_of(self.txgs.synced(), &self.features.in_labels()).mos_config(config.root())
    }
}
