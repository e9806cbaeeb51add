//! A dataset's key: unwrapped from the "DSL Crypto Key" ZAP, and the block keys made from it
//! (`zio_crypt_key_t`, zio_crypt.h; `dsl_crypto_key_open`, dsl_crypt.c, OpenZFS 2.3).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha512;
use stdx::{Secret, scrub_stack};
use zeroize::Zeroize;

use crate::aead::Aead;
use crate::error::{Error, Result};
use crate::suite::{CURRENT_VERSION, HMAC_KEY_LEN, MASTER_KEY_MAX_LEN, Suite, WRAPPING_KEY_LEN};
use crate::wrapping::WrappingKey;
use crate::{Iv, Mac, Salt};

/// A dataset's keys as they are on disk: the entries of its "DSL Crypto Key" ZAP, named here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// `DSL_CRYPTO_SUITE`.
    pub suite: Suite,
    /// `DSL_CRYPTO_GUID`.
    pub guid: u64,
    /// `DSL_CRYPTO_VERSION`; 0 when the entry is missing.
    pub version: u64,
    /// `DSL_CRYPTO_IV`.
    pub iv: Iv,
    /// `DSL_CRYPTO_MAC`.
    pub mac: Mac,
    /// `DSL_CRYPTO_MASTER_KEY_1`; as many bytes as the suite's keys have are used.
    pub master: [u8; MASTER_KEY_MAX_LEN],
    /// `DSL_CRYPTO_HMAC_KEY_1`.
    pub hmac: [u8; HMAC_KEY_LEN],
}

impl WrappedKey {
    /// Opens the key; [`Error::WrongKey`] when `wrapping` is not the one it was wrapped with.
    #[doc(alias = "zio_crypt_key_unwrap")]
    pub fn unwrap_with(&self, wrapping: &WrappingKey) -> Result<DatasetKey> {
        let aad = wrap_aad(self.suite, self.guid, self.version)?;
        let (master, _) = self.master.split_at_checked(self.suite.key_len()).unwrap_or((&self.master, &[]));
        let mut keys = Secret::zeros(master.len() + self.hmac.len());
        keys.iter_mut().zip(master.iter().chain(&self.hmac)).for_each(|(to, from)| *to = *from);
        let opened = wrap_cipher(self.suite, wrapping)?.open(&self.iv, &aad, &mut keys, &self.mac);
        opened.map_err(|_| Error::WrongKey)?;
        let (master, hmac) = keys.split_at_checked(self.suite.key_len()).ok_or(Error::WrongKey)?;
        let key = DatasetKey::new(self.suite, self.guid, self.version, master, hmac);
        scrub_stack();
        key
    }
}

/// A wrapping key is always 256 bits, so the suite determines only the mode.
fn wrap_cipher(suite: Suite, wrapping: &WrappingKey) -> Result<Aead> {
    const { assert!(WRAPPING_KEY_LEN == 32) };
    Aead::new(suite.mode(), wrapping.bytes())
}

/// Data authenticated by the wrapping: the guid, since version 1 also suite and version; little-endian.
fn wrap_aad(suite: Suite, guid: u64, version: u64) -> Result<Vec<u8>> {
    let words = [guid, suite.id(), version];
    let used = match version {
        0 => 1,
        CURRENT_VERSION => 3,
        _ => return Err(Error::UnknownVersion(version)),
    };
    Ok(words.iter().take(used).flat_map(|w| w.to_le_bytes()).collect())
}

/// Number of cached block keys: a writer's current one and those of the last few salts read. Each dedup block
/// has a salt of its own; deriving a key takes some microseconds.
const CACHED_KEYS: usize = 16;

/// The keys of one dataset (shared by its snapshots and clones), ready to open and make blocks.
///
/// Cheap to share between threads: block keys are cached behind a short lock. Secrets are cleared on
/// drop, and so is the stack that their making used.
#[doc(alias = "zio_crypt_key_t")]
pub struct DatasetKey {
    suite: Suite,
    guid: u64,
    version: u64,
    master: Secret,
    hmac_key: Secret,
    /// HMAC-SHA512 with its key already mixed in.
    hmac: Hmac<Sha512>,
    /// Most recently used last.
    cache: Mutex<Vec<(Salt, Arc<Aead>)>>,
}

impl fmt::Debug for DatasetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, guid, version, .. } = self;
        write!(f, "DatasetKey({} guid {guid} version {version})", suite.name())
    }
}

impl DatasetKey {
    /// A key from its parts. For a new dataset the caller draws `guid`, `master` (as long as the
    /// suite's keys) and `hmac` (64 bytes) from a cryptographic random source.
    pub fn new(suite: Suite, guid: u64, version: u64, master: &[u8], hmac: &[u8]) -> Result<Self> {
        let expected = suite.key_len();
        match master.len() {
            len if len < expected => return Err(Error::KeyTooShort { format: "Master", expected }),
            len if len > expected => return Err(Error::KeyTooLong { format: "Master", expected }),
            _ => {}
        }
        let no_hmac = Error::KeyTooShort { format: "HMAC", expected: HMAC_KEY_LEN };
        if hmac.len() != HMAC_KEY_LEN {
            return Err(no_hmac);
        }
        Ok(Self {
            suite,
            guid,
            version,
            master: Secret::of(master),
            hmac: Hmac::new_from_slice(hmac).map_err(|_| no_hmac)?,
            hmac_key: Secret::of(hmac),
            cache: Mutex::default(),
        })
    }

    /// The suite that all blocks of the dataset use.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// `DSL_CRYPTO_GUID`.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// `DSL_CRYPTO_VERSION`.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Wraps the key for the disk. `iv` must be random and new.
    #[doc(alias = "zio_crypt_key_wrap")]
    pub fn wrap(&self, wrapping: &WrappingKey, iv: Iv) -> Result<WrappedKey> {
        let aad = wrap_aad(self.suite, self.guid, self.version)?;
        let mut keys = [&*self.master, &*self.hmac_key].concat();
        let mac = match wrap_cipher(self.suite, wrapping)?.seal(&iv, &aad, &mut keys) {
            Ok(mac) => mac,
            Err(error) => {
                keys.zeroize();
                return Err(error);
            }
        };
        let (master, hmac) = keys.split_at_checked(self.suite.key_len()).unwrap_or_default();
        let mut out = WrappedKey {
            suite: self.suite,
            guid: self.guid,
            version: self.version,
            iv,
            mac,
            master: [0; MASTER_KEY_MAX_LEN],
            hmac: [0; HMAC_KEY_LEN],
        };
        let master_out = out.master.iter_mut().zip(master);
        master_out.chain(out.hmac.iter_mut().zip(hmac)).for_each(|(to, from)| *to = *from);
        Ok(out)
    }

    /// Salt and IV for a block that is to be deduplicated: from an HMAC of its plaintext (compressed,
    /// as it will be encrypted), so that equal blocks of one key become equal ciphertext.
    #[doc(alias = "zio_crypt_generate_iv_salt_dedup")]
    pub fn dedup_params(&self, plaintext: &[u8]) -> (Salt, Iv) {
        let digest = self.hmac_parts([plaintext]);
        let (salt, rest) = digest.split_first_chunk().map(|(s, r)| (*s, r)).unwrap_or_default();
        (salt, rest.first_chunk().copied().unwrap_or_default())
    }

    /// HMAC-SHA512 of the concatenated parts.
    pub(crate) fn hmac_parts<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 64] {
        let mut hmac = self.hmac.clone();
        parts.into_iter().for_each(|part| hmac.update(part));
        hmac.finalize().into_bytes().into()
    }

    /// The cipher for blocks with this salt.
    pub(crate) fn block_cipher(&self, salt: &Salt) -> Result<Arc<Aead>> {
        if let Some(aead) = self.cached(salt) {
            return Ok(aead);
        }
        let aead = self.derive(salt).map(Arc::new);
        scrub_stack();
        let aead = aead?;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= CACHED_KEYS {
            cache.remove(0);
        }
        cache.push((*salt, Arc::clone(&aead)));
        Ok(aead)
    }

    fn cached(&self, salt: &Salt) -> Option<Arc<Aead>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cache.iter().rposition(|(s, _)| s == salt)?;
        let last = cache.len() - 1;
        if found != last {
            let entry = cache.remove(found);
            cache.push(entry);
        }
        cache.last().map(|(_, aead)| Arc::clone(aead))
    }

    /// HKDF-SHA512 without a salt of its own: the block's salt goes where HKDF has "info".
    #[inline(never)]
    fn derive(&self, salt: &Salt) -> Result<Aead> {
        let mut key = Secret::zeros(MASTER_KEY_MAX_LEN);
        let too_long = Error::UnknownSuite(self.suite.id());
        let used = key.get_mut(..self.suite.key_len()).ok_or(too_long.clone())?;
        Hkdf::<Sha512>::new(None, &self.master).expand(salt, used).map_err(|_| too_long)?;
        Aead::new(self.suite.mode(), used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(suite: Suite, version: u64) -> DatasetKey {
        DatasetKey::new(suite, 42, version, &vec![9; suite.key_len()], &[8; 64]).unwrap()
    }

    #[test]
    fn every_suite_wraps_and_unwraps() {
        let (right, wrong) = (WrappingKey::from_bytes([1; 32]), WrappingKey::from_bytes([2; 32]));
        for suite in Suite::ALL {
            for version in [0, 1] {
                let wrapped = key(suite, version).wrap(&right, [3; 12]).unwrap();
                let back = wrapped.unwrap_with(&right).unwrap();
                assert_eq!(*back.master, vec![9; suite.key_len()]);
                assert_eq!(*back.hmac_key, [8; 64]);
                assert_eq!(wrapped.unwrap_with(&wrong).unwrap_err(), Error::WrongKey);
                let other = WrappedKey { guid: 43, ..wrapped.clone() };
                assert_eq!(other.unwrap_with(&right).unwrap_err(), Error::WrongKey);
                let version_swapped = WrappedKey { version: 1 - version, ..wrapped };
                assert_eq!(version_swapped.unwrap_with(&right).unwrap_err(), Error::WrongKey);
            }
        }
    }

    #[test]
    fn unknown_versions_are_named() {
        let right = WrappingKey::from_bytes([1; 32]);
        let wrapped = key(Suite::ON, 1).wrap(&right, [3; 12]).unwrap();
        let newer = WrappedKey { version: 2, ..wrapped };
        assert_eq!(newer.unwrap_with(&right).unwrap_err(), Error::UnknownVersion(2));
    }

    #[test]
    fn the_cache_stays_small_and_keeps_what_is_used() {
        let key = key(Suite::Aes256Gcm, 1);
        let first = key.block_cipher(&[0; 8]).unwrap();
        for n in 1..100_u64 {
            key.block_cipher(&n.to_le_bytes()).unwrap();
            assert!(Arc::ptr_eq(&first, &key.block_cipher(&[0; 8]).unwrap()));
        }
        assert_eq!(key.cache.lock().unwrap().len(), CACHED_KEYS);
    }

    #[test]
    fn debug_shows_no_secret() {
        assert_eq!(format!("{:?}", key(Suite::ON, 1)), "DatasetKey(aes-256-gcm guid 42 version 1)");
    }
}
