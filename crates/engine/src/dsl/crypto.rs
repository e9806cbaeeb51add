//! Keys of encrypted datasets: whose key opens which blocks.
//!
//! Each encrypted directory has a *DSL Crypto Key* object: the dataset's own keys, wrapped with the key
//! of its *encryption root*, the directory where the user's key belongs. Loading a root's key makes
//! every dataset below it readable; the wrapped keys are opened when first needed.
//!
//! Lock order: `wrapping` and `opened` are leaf locks, never held together nor over a read.
//!
//! Format source: `dsl_crypto_key_*`, dsl_crypt.c, OpenZFS 2.3.

use std::collections::HashMap;
use std::sync::Arc;

use crypt::{
    BlockKind, BlockParams, ByteOrder, DatasetKey, KeyFormat, Pbkdf2, Suite, WrappedKey, WrappingKey,
    read_material,
};
use ondisk::dsl::DslDataset;
use ondisk::{Blkptr, ObjectType, names};
use parking_lot::RwLock;
use stdx::AlignedBuf;

use super::Dir;
use crate::dmu::Objset;
use crate::error::{Error, Kind, Result};
use crate::types::Bookmark;
use crate::zap::Zap;
use crate::zio::KeySource;

/// The directory where a user's key belongs.
#[derive(Debug, Clone)]
pub struct EncryptionRoot {
    /// Its object number.
    pub dir: u64,
    /// Its name; the number when the directory can't be read.
    pub name: String,
    /// Cipher of the datasets below.
    pub suite: Suite,
    /// Form of the user's key.
    pub format: KeyFormat,
    /// For passphrases.
    pub pbkdf2: Option<Pbkdf2>,
    /// `keylocation`: `prompt`, or a URI.
    pub location: String,
    wrapped: u64,
}

/// The keys of an open pool.
#[derive(Debug)]
pub struct KeyStore {
    mos: Arc<Objset>,
    /// Wrapping keys by encryption root.
    wrapping: RwLock<HashMap<u64, Arc<WrappingKey>>>,
    /// Dataset keys by object set.
    opened: RwLock<HashMap<u64, Arc<DatasetKey>>>,
}

impl KeyStore {
    /// No keys yet.
    pub fn new(mos: &Arc<Objset>) -> Arc<Self> {
        Arc::new(Self { mos: Arc::clone(mos), wrapping: RwLock::default(), opened: RwLock::default() })
    }

    /// The encryption root of a directory; `None` when it is not encrypted.
    pub fn root_of(&self, dir: &Dir) -> Result<Option<EncryptionRoot>> {
        let Some(number) = key_object(dir)? else { return Ok(None) };
        let zap = Zap::open(&self.mos.object(number)?)?;
        let root = zap.need(names::crypto_key::ROOT_DDOBJ)?;
        let (name, location) = self.describe(dir, root);
        let suite = Suite::from_id(zap.need(names::crypto_key::SUITE)?).map_err(unsupported)?;
        let format = KeyFormat::from_id(zap.need(names::crypto_key::KEYFORMAT)?).map_err(unsupported)?;
        let salt = zap.u64(names::crypto_key::PBKDF2_SALT)?;
        let iters = zap.u64(names::crypto_key::PBKDF2_ITERS)?;
        let pbkdf2 = salt.zip(iters).map(|(salt, iters)| Pbkdf2 { salt, iters });
        Ok(Some(EncryptionRoot { dir: root, name, suite, format, pbkdf2, location, wrapped: number }))
    }

    /// Name and key location of an encryption root: the directory itself or one above it.
    fn describe(&self, dir: &Dir, root: u64) -> (String, String) {
        let mut at = dir.clone();
        while at.number != root {
            let above = at.name.rsplit_once('/').map(|(parent, _)| parent.to_owned());
            let parent = above.and_then(|name| Dir::open(&at.dsl, at.phys.parent_obj, name).ok());
            let Some(parent) = parent else { return (format!("directory {root}"), "none".to_owned()) };
            at = parent;
        }
        let props = at.dsl.zap(at.phys.props_zapobj).ok().flatten();
        let location = props.and_then(|p| p.lookup(b"keylocation").ok().flatten());
        (at.name.clone(), location.map_or_else(|| "prompt".to_owned(), |v| v.string()))
    }

    /// True when the key of this encryption root is loaded.
    pub fn is_loaded(&self, root: &EncryptionRoot) -> bool {
        self.wrapping.read().contains_key(&root.dir)
    }

    /// Loads a user's key, as read from a file, a pipe or a prompt. `KeyWrong` when it is not the one.
    pub fn load(&self, root: &EncryptionRoot, input: &[u8]) -> Result<()> {
        let wrong = |e: crypt::Error| Error::new(Kind::KeyWrong, e.to_string()).in_dataset(&root.name);
        let material = read_material(root.format, input);
        let wrapping = WrappingKey::derive(root.format, &material, root.pbkdf2).map_err(wrong)?;
        let (_, wrapped) = self.wrapped(root.wrapped)?;
        wrapped.unwrap_with(&wrapping).map_err(wrong)?;
        self.wrapping.write().insert(root.dir, Arc::new(wrapping));
        Ok(())
    }

    /// The wrapped key in MOS object `number`, and its encryption root.
    fn wrapped(&self, number: u64) -> Result<(u64, WrappedKey)> {
        let zap = Zap::open(&self.mos.object(number)?)?;
        let bytes = |name: &str| -> Result<Vec<u8>> {
            let value = zap.lookup(name.as_bytes())?;
            let value = value.ok_or_else(|| Error::corrupt(format!("crypto key {number} has no {name}")))?;
            Ok(value.bytes())
        };
        let wrapped = WrappedKey {
            suite: Suite::from_id(zap.need(names::crypto_key::SUITE)?).map_err(unsupported)?,
            guid: zap.need(names::crypto_key::GUID)?,
            version: zap.u64(names::crypto_key::VERSION)?.unwrap_or(0),
            iv: array(&bytes(names::crypto_key::IV)?),
            mac: array(&bytes(names::crypto_key::MAC)?),
            master: array(&bytes(names::crypto_key::MASTER_KEY)?),
            hmac: array(&bytes(names::crypto_key::HMAC_KEY)?),
        };
        Ok((zap.need(names::crypto_key::ROOT_DDOBJ)?, wrapped))
    }

    /// The key of an object set; `KeyMissing` when its root's is not loaded.
    pub fn dataset_key(&self, objset: u64) -> Result<Arc<DatasetKey>> {
        if let Some(key) = self.opened.read().get(&objset) {
            return Ok(Arc::clone(key));
        }
        let bonus = self.mos.object(objset)?;
        let phys = DslDataset::from_bytes(bonus.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
        let dir = Zap::open(&self.mos.object(phys.dir_obj)?)?;
        let number = dir.need(names::dsl_dir::CRYPTO_KEY_OBJ)?;
        let (root, wrapped) = self.wrapped(number)?;
        let wrapping = self.wrapping.read().get(&root).cloned();
        let wrapping =
            wrapping.ok_or_else(|| Error::new(Kind::KeyMissing, "the dataset's key is not loaded"))?;
        let key = wrapped.unwrap_with(&wrapping).map_err(|e| Error::new(Kind::KeyWrong, e.to_string()))?;
        let key = Arc::new(key);
        self.opened.write().insert(objset, Arc::clone(&key));
        Ok(key)
    }
}

impl KeySource for KeyStore {
    fn open_block(&self, bp: &Blkptr, at: Bookmark, data: &mut AlignedBuf) -> Result<()> {
        let key = self.dataset_key(at.objset)?;
        let order = ByteOrder::of_prop(bp.prop());
        let words = bp.words();
        let word = |i: usize| words.get(i).copied().unwrap_or(0);
        let mut params =
            BlockParams::from_bp_words([word(4), word(5)], bp.prop(), word(11), bp.checksum_words());
        let kind = BlockKind::of_type(bp.object_type().raw());
        let opened = if bp.object_type() == ObjectType::OBJSET {
            key.verify_objset(order, data)
        } else if !bp.is_encrypted() {
            key.verify_authenticated(data, &params.mac)
        } else {
            if kind == BlockKind::Zil {
                params.mac = crypt::zil_mac(data).unwrap_or_default();
            }
            key.decrypt(kind, order, &params, data)
        };
        opened.map_err(|e| Error::new(Kind::Checksum, e.to_string()))
    }
}

/// The crypto key object of a directory.
fn key_object(dir: &Dir) -> Result<Option<u64>> {
    Ok(dir.extra(names::dsl_dir::CRYPTO_KEY_OBJ)?.and_then(|v| v.first()))
}

fn unsupported(e: crypt::Error) -> Error {
    Error::unsupported(e.to_string())
}

/// The first bytes of a value, zero-filled when it is shorter.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(bytes) {
        *to = *from;
    }
    out
}
