//! The encryption suites and their fixed lengths (`zio_crypt.h`, `zio_encrypt` in `fs/zfs.h`).

use crate::error::{Error, Result};

/// Length of a wrapping key in bytes, whatever the suite.
pub const WRAPPING_KEY_LEN: usize = 32;
/// Length of the longest master key in bytes.
pub const MASTER_KEY_MAX_LEN: usize = 32;
/// Length of a dataset's HMAC key in bytes.
#[doc(alias = "SHA512_HMAC_KEYLEN")]
pub const HMAC_KEY_LEN: usize = 64;
/// Length of a block's salt in bytes.
#[doc(alias = "ZIO_DATA_SALT_LEN")]
pub const SALT_LEN: usize = 8;
/// Length of an initialisation vector in bytes.
#[doc(alias = "ZIO_DATA_IV_LEN")]
pub const IV_LEN: usize = 12;
/// Length of a block's MAC in bytes.
#[doc(alias = "ZIO_DATA_MAC_LEN")]
pub const MAC_LEN: usize = 16;
/// Length of each of an objset's two MACs in bytes.
#[doc(alias = "ZIO_OBJSET_MAC_LEN")]
pub const OBJSET_MAC_LEN: usize = 32;
/// The key version that is written; 0 is the one before, readable.
#[doc(alias = "ZIO_CRYPT_KEY_CURRENT_VERSION")]
pub const CURRENT_VERSION: u64 = 1;
/// Blocks that may be encrypted with one salt before a writer takes a new one.
#[doc(alias = "ZFS_KEY_MAX_SALT_USES_DEFAULT")]
pub const MAX_SALT_USES: u64 = 400_000_000;

/// The mode of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    Ccm,
    Gcm,
}

/// An encryption suite, by its number on disk (`zio_encrypt`; 0 inherit, 1 on and 2 off are settings, not
/// suites).
#[doc(alias = "zio_encrypt")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
#[repr(u64)]
pub enum Suite {
    Aes128Ccm = 3,
    Aes192Ccm = 4,
    Aes256Ccm = 5,
    Aes128Gcm = 6,
    Aes192Gcm = 7,
    Aes256Gcm = 8,
}

impl Suite {
    /// The suite of `encryption=on`.
    #[doc(alias = "ZIO_CRYPT_ON_VALUE")]
    pub const ON: Self = Self::Aes256Gcm;
    /// Every suite, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Aes128Ccm,
        Self::Aes192Ccm,
        Self::Aes256Ccm,
        Self::Aes128Gcm,
        Self::Aes192Gcm,
        Self::Aes256Gcm,
    ];

    /// The suite with this number on disk (`DSL_CRYPTO_SUITE`).
    pub fn from_id(id: u64) -> Result<Self> {
        Self::ALL.into_iter().find(|s| s.id() == id).ok_or(Error::UnknownSuite(id))
    }

    /// The number on disk.
    pub fn id(self) -> u64 {
        self as u64
    }

    /// The name as the `encryption` property shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Ccm => "aes-128-ccm",
            Self::Aes192Ccm => "aes-192-ccm",
            Self::Aes256Ccm => "aes-256-ccm",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes192Gcm => "aes-192-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// Length of the master key and of block keys in bytes.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes192Ccm | Self::Aes192Gcm => 24,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }

    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Aes128Ccm | Self::Aes192Ccm | Self::Aes256Ccm => Mode::Ccm,
            Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm => Mode::Gcm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_and_settings_are_no_suites() {
        for suite in Suite::ALL {
            assert_eq!(Suite::from_id(suite.id()), Ok(suite));
            assert!(suite.name().contains(&(suite.key_len() * 8).to_string()));
        }
        for id in [0, 1, 2, 9, u64::MAX] {
            assert_eq!(Suite::from_id(id), Err(Error::UnknownSuite(id)));
        }
    }
}
