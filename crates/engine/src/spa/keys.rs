//! Keys of encrypted datasets, loaded and unloaded while a pool is being written.

use super::Spa;
use super::subjects::PoolDatasets;
use crate::dsl::write::{NewKey, Tasks};
use crate::dsl::{EncryptionRoot, RootKey};
use crate::error::{Error, Kind, Result};

impl PoolDatasets<'_> {
    /// Loads the key of an encryption root, as read from a file, a pipe or a prompt.
    ///
    /// # Errors
    /// `KeyWrong`; `Exists` when it is loaded; `Invalid` when `name` is no encryption root.
    #[doc(alias = "spa_keystore_load_wkey")]
    pub fn load_key(self, name: &str, input: &[u8]) -> Result<()> {
        let root = encryption_root(self.spa, name)?;
        if self.spa.pool.dsl.keys.is_loaded(&root) {
            return Err(Error::new(Kind::Exists, "the key is loaded already").in_dataset(name));
        }
        self.spa.pool.dsl.keys.load(&root, input)
    }

    /// Whether this is the key of an encryption root; nothing is loaded.
    ///
    /// # Errors
    /// As [`PoolDatasets::load_key`].
    pub fn check_key(self, name: &str, input: &[u8]) -> Result<RootKey> {
        self.spa.pool.dsl.keys.check(&encryption_root(self.spa, name)?, input)
    }

    /// Unloads the key of an encryption root; blocks encrypted with it can't be read any more.
    ///
    /// # Errors
    /// `Busy` while a dataset below is in use; `KeyMissing` when it is not loaded.
    #[doc(alias = "spa_keystore_unload_wkey")]
    pub fn unload_key(self, name: &str) -> Result<()> {
        let root = encryption_root(self.spa, name)?;
        self.spa.sync()?;
        self.spa.datasets.unload_key(root.dir).map_err(|e| e.in_dataset(name))
    }

    /// Gives a dataset a new key of its own, or (`None`) its parent's.
    ///
    /// # Errors
    /// `KeyMissing` when its present key is not loaded; `Invalid` for an impossible change.
    #[doc(alias = "spa_keystore_change_key")]
    pub fn change_key(self, name: &str, new: Option<NewKey>) -> Result<()> {
        let name = name.to_owned();
        self.spa.sync_task(move |spa, tx| {
            let tasks = Tasks { at: spa.datasets.at(tx, spa), datasets: &spa.datasets, pool: &spa.pool.name };
            tasks.change_key(&name, new)
        })
    }
}

/// The encryption root that `name` is.
fn encryption_root(spa: &Spa, name: &str) -> Result<EncryptionRoot> {
    let refuse = |what: String| Err(Error::new(Kind::Invalid, what).in_dataset(name));
    let dir = spa.pool.dsl.dir(name)?;
    match spa.pool.dsl.keys.root_of(&dir)? {
        None => refuse("the dataset is not encrypted".into()),
        Some(root) if root.dir != dir.number => {
            refuse(format!("the key belongs to the encryption root '{}'", root.name))
        }
        Some(root) => Ok(root),
    }
}
