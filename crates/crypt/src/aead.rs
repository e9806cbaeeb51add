//! The authenticated ciphers of all suites behind one type.
//!
//! `ring` is the fastest for GCM but has no AES-192; CCM is our own. `ring` does not clear its key
//! schedule when dropped, the others do; so it is kept in memory that is cleared for it.

use aes::cipher::KeyInit;
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use aes_gcm::aead::AeadInOut;
use aes_gcm::aead::consts::U12;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, Tag, UnboundKey};

use stdx::{Wiped, scrub_stack};

use crate::error::{Error, Result};
use crate::suite::Mode;
use crate::{Iv, Mac, ccm};

/// A cipher with its key expanded.
pub(crate) enum Aead {
    Ring(Wiped<LessSafeKey>),
    Gcm192(Box<AesGcm<Aes192, U12>>),
    Ccm128(Box<Aes128>),
    Ccm192(Box<Aes192>),
    Ccm256(Box<Aes256>),
}

impl Aead {
    /// `key` has 16, 24 or 32 bytes; none else exist in the suites.
    pub(crate) fn new(mode: Mode, key: &[u8]) -> Result<Self> {
        let made = Self::expand(mode, key);
        scrub_stack();
        made
    }

    /// Leaves copies of the key on the stack.
    #[inline(never)]
    fn expand(mode: Mode, key: &[u8]) -> Result<Self> {
        let no_suite = |_| Error::UnknownSuite(0);
        Ok(match (mode, key.len()) {
            (Mode::Gcm, 16) => Self::ring(&AES_128_GCM, key)?,
            (Mode::Gcm, 24) => Self::Gcm192(Box::new(AesGcm::new_from_slice(key).map_err(no_suite)?)),
            (Mode::Gcm, _) => Self::ring(&AES_256_GCM, key)?,
            (Mode::Ccm, 16) => Self::Ccm128(Box::new(Aes128::new_from_slice(key).map_err(no_suite)?)),
            (Mode::Ccm, 24) => Self::Ccm192(Box::new(Aes192::new_from_slice(key).map_err(no_suite)?)),
            (Mode::Ccm, _) => Self::Ccm256(Box::new(Aes256::new_from_slice(key).map_err(no_suite)?)),
        })
    }

    fn ring(algorithm: &'static Algorithm, key: &[u8]) -> Result<Self> {
        let key = UnboundKey::new(algorithm, key).map_err(|_| Error::UnknownSuite(0))?;
        Ok(Self::Ring(Wiped::new(LessSafeKey::new(key))))
    }

    /// Encrypts in place and returns the MAC.
    pub(crate) fn seal(&self, iv: &Iv, aad: &[u8], buf: &mut [u8]) -> Result<Mac> {
        let too_long = Error::TooLong(buf.len());
        match self {
            Self::Ring(key) => {
                let nonce = Nonce::assume_unique_for_key(*iv);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), buf);
                let tag = tag.map_err(|_| too_long.clone())?;
                tag.as_ref().try_into().map_err(|_| too_long)
            }
            Self::Gcm192(key) => {
                let tag = key.encrypt_inout_detached(&(*iv).into(), aad, buf.into());
                tag.map(Into::into).map_err(|_| too_long)
            }
            Self::Ccm128(key) => ccm::seal(&**key, iv, aad, buf),
            Self::Ccm192(key) => ccm::seal(&**key, iv, aad, buf),
            Self::Ccm256(key) => ccm::seal(&**key, iv, aad, buf),
        }
    }

    /// Decrypts in place. When the MAC doesn't match, the content of `buf` is undefined (never plaintext).
    pub(crate) fn open(&self, iv: &Iv, aad: &[u8], buf: &mut [u8], mac: &Mac) -> Result<()> {
        match self {
            Self::Ring(key) => {
                let nonce = Nonce::assume_unique_for_key(*iv);
                let opened = key.open_in_place_separate_tag(nonce, Aad::from(aad), Tag::from(*mac), buf, 0..);
                opened.map(|_| ()).map_err(|_| Error::BadMac)
            }
            Self::Gcm192(key) => {
                let opened = key.decrypt_inout_detached(&(*iv).into(), aad, buf.into(), &(*mac).into());
                opened.map_err(|_| Error::BadMac)
            }
            Self::Ccm128(key) => ccm::open(&**key, iv, aad, buf, mac),
            Self::Ccm192(key) => ccm::open(&**key, iv, aad, buf, mac),
            Self::Ccm256(key) => ccm::open(&**key, iv, aad, buf, mac),
        }
    }
}
