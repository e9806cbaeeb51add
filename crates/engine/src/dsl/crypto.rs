//! Keys of encrypted datasets: whose key opens which blocks.
//!
//! Each encrypted directory has a *DSL Crypto Key* object: the dataset's own keys, wrapped with the key
//! of its *encryption root*, the directory where the user's key belongs. Loading a root's key makes
//! every dataset below it readable; the wrapped keys are opened when first needed. A clone shares its
//! origin's object, so its encryption root need not be above it.
//!
//! Blocks are encrypted with a key made of the dataset's master key and a *salt*; one salt serves for many
//! blocks ([`crypt::MAX_SALT_USES`]), each with an IV of its own. Both are drawn from [`Secrets`].
//!
//! Keys in memory are cleared when they are dropped.
//!
//! Lock order: `wrapping`, `opened` and a salt's lock are leaf locks, never held together nor over a read.
//!
//! Format source: `dsl_crypto_key_*`, dsl_crypt.c, OpenZFS 2.3.

use std::collections::HashMap;
use std::sync::Arc;

use crypt::{
    BlockKind, BlockParams, ByteOrder, DatasetKey, HMAC_KEY_LEN, IV_LEN, Iv, KeyFormat, MASTER_KEY_MAX_LEN,
    MAX_SALT_USES, MIN_PBKDF2_ITERS, Mac, Pbkdf2, SALT_LEN, Salt, Suite, WrappedKey, WrappingKey,
    read_material,
};
use ondisk::dsl::DslDataset;
use ondisk::{Blkptr, ObjectType, names};
use parking_lot::{Mutex, RwLock};
use stdx::AlignedBuf;
use zeroize::Zeroizing;

use super::Dir;
use super::props::names::dir_name;
use crate::dmu::Objset;
use crate::env::Secrets;
use crate::error::{Error, Kind, Result};
use crate::types::Bookmark;
use crate::zap::Zap;
use crate::zio::KeySource;

/// A user's key, as it is kept in memory while it is loaded.
#[doc(alias = "dsl_wrapping_key_t")]
#[derive(Debug, Clone)]
pub struct RootKey {
    /// Opens the keys of datasets.
    pub wrapping: WrappingKey,
    /// Form in which the user enters it.
    pub(crate) format: KeyFormat,
    /// For passphrases: how it was stretched.
    pub(crate) pbkdf2: Option<Pbkdf2>,
}

impl RootKey {
    /// The key that was read from a file, a pipe or a prompt. With a passphrase this takes a while.
    ///
    /// # Errors
    /// `KeyWrong`, with the fault of its form.
    pub fn derive(format: KeyFormat, input: &[u8], pbkdf2: Option<Pbkdf2>) -> Result<Self> {
        let pbkdf2 = pbkdf2.filter(|_| format == KeyFormat::Passphrase);
        let material = read_material(format, input);
        let wrapping = WrappingKey::derive(format, &material, pbkdf2);
        let wrapping = wrapping.map_err(|e| Error::new(Kind::KeyWrong, e.to_string()))?;
        Ok(Self { wrapping, format, pbkdf2 })
    }

    /// A new key: a passphrase is stretched `iters` times with a salt of its own.
    ///
    /// # Errors
    /// `Invalid` for fewer than [`MIN_PBKDF2_ITERS`]; `KeyWrong` as [`RootKey::derive`].
    pub fn create(
        format: KeyFormat,
        input: &[u8],
        iters: Option<u64>,
        secrets: &dyn Secrets,
    ) -> Result<Self> {
        if format != KeyFormat::Passphrase {
            return match iters {
                None => Self::derive(format, input, None),
                Some(_) => Err(Error::new(Kind::Invalid, "pbkdf2iters goes with keyformat=passphrase only")),
            };
        }
        let iters = iters.unwrap_or(DEFAULT_ITERS);
        if iters < MIN_PBKDF2_ITERS {
            let what = format!("pbkdf2iters must be at least {MIN_PBKDF2_ITERS}");
            return Err(Error::new(Kind::Invalid, what));
        }
        let mut salt = [0; 8];
        secrets.fill(&mut salt)?;
        let salt = u64::from_le_bytes(salt).max(1);
        Self::derive(format, input, Some(Pbkdf2 { salt, iters }))
    }
}

/// Iterations when none are asked for.
#[doc(alias = "DEFAULT_PBKDF2_ITERATIONS")]
const DEFAULT_ITERS: u64 = 350_000;

/// A dataset's key in use.
struct OpenKey {
    key: DatasetKey,
    /// Its object in the MOS.
    object: u64,
    salt: Mutex<SaltUse>,
}

/// The salt of new blocks, and for how many more it will do.
#[derive(Default)]
struct SaltUse {
    salt: Salt,
    left: u64,
}

impl SaltUse {
    /// The salt of the next block; a new one after `uses` blocks.
    #[doc(alias = "zio_crypt_key_get_salt")]
    fn next(&mut self, uses: u64, secrets: &dyn Secrets) -> Result<Salt> {
        if self.left == 0 {
            let mut salt = [0; SALT_LEN];
            secrets.fill(&mut salt)?;
            *self = Self { salt, left: uses };
        }
        self.left -= 1;
        Ok(self.salt)
    }
}

impl std::fmt::Debug for OpenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenKey({} of object {})", self.key.suite().name(), self.object)
    }
}

/// The directory where a user's key belongs.
#[derive(Debug, Clone)]
pub struct EncryptionRoot {
    /// Its object number.
    pub dir: u64,
    /// Its name; the number when the directory can't be read.
    pub name: String,
    /// Form of the user's key.
    pub format: KeyFormat,
    /// For passphrases.
    pub(crate) pbkdf2: Option<Pbkdf2>,
    /// `keylocation`: `prompt`, or a URI.
    pub location: String,
    wrapped: u64,
}

/// The keys of an open pool.
#[doc(alias = "spa_keystore_t")]
#[derive(Debug)]
pub struct KeyStore {
    mos: Arc<Objset>,
    /// Users' keys by encryption root.
    wrapping: RwLock<HashMap<u64, Arc<RootKey>>>,
    /// Dataset keys by object set.
    opened: RwLock<HashMap<u64, Arc<OpenKey>>>,
    /// Where salts, IVs and new keys come from; only in pools that are written.
    secrets: RwLock<Option<Arc<dyn Secrets>>>,
}

impl KeyStore {
    /// No keys yet.
    pub(crate) fn new(mos: &Arc<Objset>) -> Arc<Self> {
        Arc::new(Self {
            mos: Arc::clone(mos),
            wrapping: RwLock::default(),
            opened: RwLock::default(),
            secrets: RwLock::default(),
        })
    }

    /// Sets the source of salts, IVs and new keys: the pool can be written from now on.
    pub(crate) fn set_secrets(&self, secrets: &Arc<dyn Secrets>) {
        *self.secrets.write() = Some(Arc::clone(secrets));
    }

    fn secrets(&self) -> Result<Arc<dyn Secrets>> {
        let secrets = self.secrets.read().clone();
        secrets.ok_or_else(|| Error::new(Kind::ReadOnly, "the pool is open for reading only"))
    }

    /// The encryption root of a directory; `None` when it is not encrypted.
    pub fn root_of(&self, dir: &Dir) -> Result<Option<EncryptionRoot>> {
        let Some(number) = key_object(dir)? else { return Ok(None) };
        let zap = Zap::open(&self.mos.object(number)?)?;
        let root = zap.need(names::crypto_key::ROOT_DDOBJ)?;
        let (name, location) = self.describe(dir, root);
        // A cipher that is not known is refused here, not at the first block.
        Suite::from_id(zap.need(names::crypto_key::SUITE)?).map_err(unsupported)?;
        let format = KeyFormat::from_id(zap.need(names::crypto_key::KEYFORMAT)?).map_err(unsupported)?;
        let salt = zap.u64(names::crypto_key::PBKDF2_SALT)?;
        let iters = zap.u64(names::crypto_key::PBKDF2_ITERS)?;
        let pbkdf2 = salt.zip(iters).map(|(salt, iters)| Pbkdf2 { salt, iters });
        Ok(Some(EncryptionRoot { dir: root, name, format, pbkdf2, location, wrapped: number }))
    }

    /// Name and key location of an encryption root.
    fn describe(&self, dir: &Dir, root: u64) -> (String, String) {
        let unknown = || (format!("directory {root}"), "none".to_owned());
        let name = if dir.number == root { Ok(dir.name.clone()) } else { dir_name(&dir.dsl, root) };
        let Some(at) = name.ok().and_then(|name| Dir::open(&dir.dsl, root, name).ok()) else {
            return unknown();
        };
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
        let key = self.check(root, input)?;
        self.insert(root.dir, key);
        Ok(())
    }

    /// Whether a user's key is the right one (`zfs load-key -n`). `KeyWrong` when it is not.
    pub fn check(&self, root: &EncryptionRoot, input: &[u8]) -> Result<RootKey> {
        let key = RootKey::derive(root.format, input, root.pbkdf2).map_err(|e| e.in_dataset(&root.name))?;
        let (_, wrapped) = self.wrapped(root.wrapped)?;
        let wrong = |e: crypt::Error| Error::new(Kind::KeyWrong, e.to_string()).in_dataset(&root.name);
        wrapped.unwrap_with(&key.wrapping).map_err(wrong)?;
        Ok(key)
    }

    /// The key of the encryption root in directory `root`, when it is loaded.
    pub(super) fn root_key(&self, root: u64) -> Option<Arc<RootKey>> {
        self.wrapping.read().get(&root).cloned()
    }

    /// Directory `root` is an encryption root with this key.
    pub(super) fn insert(&self, root: u64, key: RootKey) {
        self.wrapping.write().insert(root, Arc::new(key));
    }

    /// Forgets the key of an encryption root that no longer is one. Datasets stay readable.
    pub(super) fn remove(&self, root: u64) -> Option<Arc<RootKey>> {
        self.wrapping.write().remove(&root)
    }

    /// Another directory takes over as encryption root.
    pub(super) fn move_root(&self, from: u64, to: u64) {
        let mut wrapping = self.wrapping.write();
        if let Some(key) = wrapping.remove(&from) {
            wrapping.insert(to, key);
        }
    }

    /// Forgets the key of an encryption root and of every dataset that it opened.
    ///
    /// # Errors
    /// `KeyMissing` when it was not loaded.
    pub fn unload(&self, root: u64) -> Result<()> {
        let missing = || Error::new(Kind::KeyMissing, "the key is not loaded");
        self.wrapping.write().remove(&root).ok_or_else(missing)?;
        let opened: Vec<_> = self.opened.read().iter().map(|(number, key)| (*number, key.object)).collect();
        for (number, object) in opened {
            // Keys whose root is unknown are dropped, too.
            if self.wrapped(object).map_or(root, |(of, _)| of) == root {
                self.forget(number);
            }
        }
        Ok(())
    }

    /// Forgets the key of an object set that is gone: its number may come again.
    pub(crate) fn forget(&self, objset: u64) {
        self.opened.write().remove(&objset);
    }

    /// New keys for a dataset.
    #[doc(alias = "zio_crypt_key_init")]
    pub(super) fn new_dataset_key(&self, suite: Suite) -> Result<DatasetKey> {
        let secrets = self.secrets()?;
        let (mut guid, mut keys) = ([0; 8], Zeroizing::new([0; MASTER_KEY_MAX_LEN + HMAC_KEY_LEN]));
        secrets.fill(&mut guid)?;
        secrets.fill(&mut *keys)?;
        let (hmac, rest) = keys.split_at(HMAC_KEY_LEN);
        let master = rest.get(..suite.key_len()).unwrap_or(rest);
        let guid = u64::from_le_bytes(guid).max(1);
        DatasetKey::new(suite, guid, crypt::CURRENT_VERSION, master, hmac).map_err(unsupported)
    }

    /// A dataset's keys, wrapped anew.
    pub(super) fn wrap(&self, key: &DatasetKey, root: &RootKey) -> Result<WrappedKey> {
        let mut iv = [0; IV_LEN];
        self.secrets()?.fill(&mut iv)?;
        key.wrap(&root.wrapping, iv).map_err(unsupported)
    }

    /// The keys of object `number`, opened with the key of its encryption root.
    pub(super) fn unwrap(&self, number: u64) -> Result<DatasetKey> {
        let (root, wrapped) = self.wrapped(number)?;
        let missing = || Error::new(Kind::KeyMissing, "the dataset's key is not loaded");
        let root = self.root_key(root).ok_or_else(missing)?;
        wrapped.unwrap_with(&root.wrapping).map_err(|e| Error::new(Kind::KeyWrong, e.to_string()))
    }

    /// Whether the key of encryption root `root` is loaded and opens a wrapped key.
    pub(super) fn opens(&self, root: u64, wrapped: &WrappedKey) -> bool {
        self.root_key(root).is_some_and(|root| wrapped.unwrap_with(&root.wrapping).is_ok())
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

    /// Opens the key of an object set that is to be written, if it is encrypted, so that reads and writes of
    /// its blocks find it in memory.
    ///
    /// # Errors
    /// `KeyMissing` when its root's is not loaded; `ReadOnly` when it was encrypted in the form before the present one.
    #[doc(alias("spa_keystore_create_mapping", "dsl_dir_incompatible_encryption_version"))]
    pub(crate) fn open_for_writing(&self, objset: u64) -> Result<()> {
        if self.key_object_of(objset)?.is_none() {
            return Ok(());
        }
        match self.dataset_key(objset)?.key.version() {
            crypt::CURRENT_VERSION => Ok(()),
            _ => Err(Error::new(
                Kind::ReadOnly,
                "the dataset is encrypted in an old form, which is not written",
            )),
        }
    }

    /// Whether blocks of one object set can be read as blocks of the other: neither is encrypted, or both by one master
    /// key.
    #[doc(alias = "dmu_objset_crypto_key_equal")]
    pub fn same_key(&self, one: u64, other: u64) -> Result<bool> {
        let guid = |objset: u64| match self.key_object_of(objset)? {
            Some(object) => self.wrapped(object).map(|(_, key)| Some(key.guid)),
            None => Ok(None),
        };
        Ok(guid(one)? == guid(other)?)
    }

    fn key_object_of(&self, objset: u64) -> Result<Option<u64>> {
        let bonus = self.mos.object(objset)?;
        let phys = DslDataset::from_bytes(bonus.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
        match super::dir::zapified(&self.mos.object(phys.dir_obj)?)? {
            Some(dir) => dir.u64(names::dsl_dir::CRYPTO_KEY_OBJ),
            None => Ok(None),
        }
    }

    /// The key of an object set; `KeyMissing` when its root's is not loaded.
    fn dataset_key(&self, objset: u64) -> Result<Arc<OpenKey>> {
        if let Some(key) = self.opened.read().get(&objset) {
            return Ok(Arc::clone(key));
        }
        let none = || Error::corrupt(format!("dataset {objset} has encrypted blocks and no key"));
        let object = self.key_object_of(objset)?.ok_or_else(none)?;
        let key = self.unwrap(object)?;
        let key = Arc::new(OpenKey { key, object, salt: Mutex::default() });
        Ok(Arc::clone(self.opened.write().entry(objset).or_insert(key)))
    }
}

impl KeySource for KeyStore {
    fn open_block(&self, bp: &Blkptr, at: Bookmark, data: &mut AlignedBuf) -> Result<()> {
        let open = self.dataset_key(at.objset)?;
        let (order, mut params) = params(bp);
        let kind = BlockKind::of_type(bp.object_type().raw());
        let opened = if bp.object_type() == ObjectType::OBJSET {
            open.key.verify_objset(order, data)
        } else if !bp.is_encrypted() {
            open.key.verify_authenticated(data, &params.mac)
        } else {
            if kind == BlockKind::Zil {
                params.mac = crypt::zil_mac(data).unwrap_or_default();
            }
            open.key.decrypt(kind, order, &params, data)
        };
        opened.map_err(|e| Error::new(Kind::Checksum, e.to_string()))
    }

    #[doc(alias = "zio_crypt_generate_iv")]
    fn draw(&self, objset: u64) -> Result<(Salt, Iv)> {
        let open = self.dataset_key(objset)?;
        let secrets = self.secrets()?;
        let mut iv = [0; IV_LEN];
        secrets.fill(&mut iv)?;
        let salt = open.salt.lock().next(MAX_SALT_USES, &*secrets)?;
        Ok((salt, iv))
    }

    fn derive(&self, objset: u64, data: &[u8]) -> Result<(Salt, Iv)> {
        Ok(self.dataset_key(objset)?.key.dedup_params(data))
    }

    fn seal_block(&self, bp: &Blkptr, at: Bookmark, data: &mut AlignedBuf) -> Result<Mac> {
        let open = self.dataset_key(at.objset)?;
        let (order, params) = params(bp);
        let kind = BlockKind::of_type(bp.object_type().raw());
        let sealed = if bp.object_type() == ObjectType::OBJSET {
            open.key.objset_macs(order, data).map(|macs| {
                macs.store(data);
                Mac::default()
            })
        } else if !bp.is_encrypted() {
            Ok(open.key.authenticated_mac(data))
        } else {
            open.key.encrypt(kind, order, &params.salt, &params.iv, data)
        };
        sealed.map_err(|e| Error::new(Kind::Invalid, format!("a block can't be encrypted: {e}")))
    }
}

/// The encryption parameters in a block pointer.
fn params(bp: &Blkptr) -> (ByteOrder, BlockParams) {
    let words = bp.words();
    let word = |i: usize| words.get(i).copied().unwrap_or(0);
    let params = BlockParams::from_bp_words([word(4), word(5)], bp.prop(), word(11), bp.checksum_words());
    (ByteOrder::of_prop(bp.prop()), params)
}

/// The crypto key object of a directory.
fn key_object(dir: &Dir) -> Result<Option<u64>> {
    Ok(dir.extra(names::dsl_dir::CRYPTO_KEY_OBJ)?.and_then(|v| v.first()))
}

fn unsupported(e: crypt::Error) -> Error {
    Error::unsupported(e.to_string())
}

/// The first bytes of a value, zero-filled when it is shorter.
/// The first `N` bytes, filled up with zeros.
pub(super) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(bytes) {
        *to = *from;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::SeededSecrets;
    use stdx::rng::Rng;

    #[test]
    fn a_salt_serves_for_so_many_blocks_and_no_more() {
        let (secrets, mut salt) = (SeededSecrets(Mutex::new(Rng::new(1))), SaltUse::default());
        let drawn: Vec<Salt> = (0..9).map(|_| salt.next(3, &secrets).unwrap()).collect();
        let distinct: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert_eq!(distinct.len(), 3);
        assert!(drawn.chunks(3).all(|three| three.iter().all(|salt| *salt == three[0])));
    }

    #[test]
    fn new_keys_have_the_form_that_is_asked_for() {
        let secrets = SeededSecrets(Mutex::new(Rng::new(1)));
        let kind = |format, input: &[u8], iters| {
            RootKey::create(format, input, iters, &secrets).map(|key| key.pbkdf2).map_err(|e| e.kind())
        };
        assert_eq!(kind(KeyFormat::Raw, &[1; 32], None), Ok(None));
        assert_eq!(kind(KeyFormat::Raw, &[1; 31], None), Err(Kind::KeyWrong));
        assert_eq!(kind(KeyFormat::Raw, &[1; 32], Some(200_000)), Err(Kind::Invalid));
        assert_eq!(kind(KeyFormat::Passphrase, b"a passphrase", Some(99_999)), Err(Kind::Invalid));
        assert_eq!(kind(KeyFormat::Passphrase, b"short", Some(100_000)), Err(Kind::KeyWrong));
        let salts = [(); 2].map(|()| kind(KeyFormat::Passphrase, b"a passphrase", Some(100_000)));
        assert!(salts[0] != salts[1] && salts[0].unwrap().unwrap().iters == 100_000);
    }
}
