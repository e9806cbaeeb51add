//! Converts the user's input, typed or from a file, into the 32-byte wrapping key (libzfs_crypto.c).

use std::fmt;

use sha1::Sha1;
use stdx::{Secret, scrub_stack};
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::suite::WRAPPING_KEY_LEN;

/// Shortest passphrase in bytes.
pub const MIN_PASSPHRASE_LEN: usize = 8;
/// Longest passphrase in bytes.
pub const MAX_PASSPHRASE_LEN: usize = 512;
/// Fewest PBKDF2 iterations that OpenZFS accepts for a new key.
#[doc(alias = "MIN_PBKDF2_ITERATIONS")]
pub const MIN_PBKDF2_ITERS: u64 = 100_000;
/// Most PBKDF2 iterations that are run: some 300 times OpenZFS's default of 350,000, about a minute of one core. The count
/// comes from the pool, so a hostile one could occupy a core for as long as it likes. OpenZFS has no bound of its own (it
/// hands the count to OpenSSL as an `int`).
pub const MAX_PBKDF2_ITERS: u64 = 100_000_000;

/// Form of the user's key: the `keyformat` property (`zfs_keyformat_t`, fs/zfs.h).
#[doc(alias = "zfs_keyformat_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw = 1,
    /// 64 hexadecimal digits.
    Hex = 2,
    /// 8 to 512 bytes, stretched with PBKDF2.
    Passphrase = 3,
}

impl KeyFormat {
    /// The format with this number on disk.
    pub fn from_id(id: u64) -> Result<Self> {
        match id {
            1 => Ok(Self::Raw),
            2 => Ok(Self::Hex),
            3 => Ok(Self::Passphrase),
            _ => Err(Error::UnknownKeyFormat(id)),
        }
    }

    /// The number on disk.
    pub fn id(self) -> u64 {
        self as u64
    }

    /// The name as the `keyformat` property shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Hex => "hex",
            Self::Passphrase => "passphrase",
        }
    }
}

/// How a passphrase is stretched: `pbkdf2salt` and `pbkdf2iters` of the encryption root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pbkdf2 {
    /// The salt as a number; its little-endian bytes are hashed.
    pub salt: u64,
    /// Number of rounds.
    pub iters: u64,
}

/// The key that opens the dataset keys of one encryption root.
#[doc(alias = "dsl_wrapping_key_t")]
#[derive(Clone, PartialEq, Eq)]
pub struct WrappingKey(Secret);

impl fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrappingKey(…)")
    }
}

impl WrappingKey {
    /// A wrapping key from its 32 bytes.
    pub fn from_bytes(bytes: [u8; WRAPPING_KEY_LEN]) -> Self {
        Self(Secret::of(&*Zeroizing::new(bytes)))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The wrapping key from key material as [`read_material`] returns it. `pbkdf2` is needed for
    /// passphrases only, and its iteration count decides how long this takes.
    pub fn derive(format: KeyFormat, material: &[u8], pbkdf2: Option<Pbkdf2>) -> Result<Self> {
        let derived = match format {
            KeyFormat::Raw => Self::from_raw(material),
            KeyFormat::Hex => Self::from_hex(material),
            KeyFormat::Passphrase => Self::from_passphrase(material, pbkdf2.ok_or(Error::BadPbkdf2)?),
        };
        scrub_stack();
        derived
    }

    /// Exactly 32 bytes.
    pub fn from_raw(material: &[u8]) -> Result<Self> {
        check_len("Raw", material.len(), WRAPPING_KEY_LEN)?;
        Ok(Self(Secret::of(material)))
    }

    /// Exactly 64 hexadecimal digits of either case.
    pub fn from_hex(material: &[u8]) -> Result<Self> {
        check_len("Hex", material.len(), 2 * WRAPPING_KEY_LEN)?;
        let mut key = Self::from_bytes([0; WRAPPING_KEY_LEN]);
        for (to, pair) in key.0.iter_mut().zip(material.chunks(2)) {
            for digit in pair {
                *to = *to << 4 | hex_digit(*digit).ok_or(Error::BadHex)?;
            }
        }
        Ok(key)
    }

    /// PBKDF2-HMAC-SHA1 of the passphrase. As in libzfs the length rule counts all bytes, but a NUL ends the
    /// hashed part.
    #[inline(never)]
    pub fn from_passphrase(passphrase: &[u8], pbkdf2: Pbkdf2) -> Result<Self> {
        if passphrase.len() < MIN_PASSPHRASE_LEN {
            return Err(Error::PassphraseTooShort);
        }
        if passphrase.len() > MAX_PASSPHRASE_LEN {
            return Err(Error::PassphraseTooLong);
        }
        let iters = pbkdf2.iters;
        if iters == 0 {
            return Err(Error::BadPbkdf2);
        }
        if iters > MAX_PBKDF2_ITERS {
            return Err(Error::TooManyPbkdf2Iters { iters, most: MAX_PBKDF2_ITERS });
        }
        let rounds = u32::try_from(iters).map_err(|_| Error::BadPbkdf2)?;
        let hashed = passphrase.split(|b| *b == 0).next().unwrap_or_default();
        let mut key = Self::from_bytes([0; WRAPPING_KEY_LEN]);
        pbkdf2::pbkdf2_hmac::<Sha1>(hashed, &pbkdf2.salt.to_le_bytes(), rounds, &mut key.0);
        Ok(key)
    }
}

fn check_len(format: &'static str, len: usize, expected: usize) -> Result<()> {
    match len {
        _ if len < expected => Err(Error::KeyTooShort { format, expected }),
        _ if len > expected => Err(Error::KeyTooLong { format, expected }),
        _ => Ok(()),
    }
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok())
}

/// Key material as libzfs reads it from a file, a pipe or a prompt: a raw key is everything (a
/// newline may be part of it); a hex key or passphrase is the first line without its newline.
pub fn read_material(format: KeyFormat, input: &[u8]) -> Secret {
    let used = match format {
        KeyFormat::Raw => input,
        KeyFormat::Hex | KeyFormat::Passphrase => input.split(|b| *b == b'\n').next().unwrap_or_default(),
    };
    Secret::of(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Pbkdf2 = Pbkdf2 { salt: 1, iters: 1 };

    #[test]
    fn lines_end_at_the_first_newline_except_in_raw_keys() {
        assert_eq!(&*read_material(KeyFormat::Passphrase, b"secret\nmore\n"), b"secret");
        assert_eq!(&*read_material(KeyFormat::Hex, b"ab\r\n"), b"ab\r");
        assert_eq!(&*read_material(KeyFormat::Raw, b"a\nb\n"), b"a\nb\n");
        assert_eq!(&*read_material(KeyFormat::Passphrase, b""), b"");
    }

    #[test]
    fn lengths_are_exact() {
        let raw = |n| WrappingKey::from_raw(&vec![1; n]);
        assert_eq!(raw(31), Err(Error::KeyTooShort { format: "Raw", expected: 32 }));
        assert_eq!(raw(33).unwrap_err().to_string(), "Raw key too long (expected 32)");
        assert!(raw(32).is_ok());
        let hex = |n| WrappingKey::from_hex(&vec![b'a'; n]);
        assert_eq!(hex(63).unwrap_err().to_string(), "Hex key too short (expected 64)");
        assert!(hex(64).is_ok() && hex(65).is_err());
        let pass = |n| WrappingKey::from_passphrase(&vec![b'a'; n], P);
        assert_eq!(pass(7), Err(Error::PassphraseTooShort));
        assert_eq!(pass(513), Err(Error::PassphraseTooLong));
        assert!(pass(8).is_ok() && pass(512).is_ok());
    }

    #[test]
    fn hex_is_the_raw_bytes() {
        let mut digits = b"00fFA1".to_vec();
        digits.resize(64, b'0');
        let mut raw = vec![0, 0xff, 0xa1];
        raw.resize(32, 0);
        assert_eq!(WrappingKey::from_hex(&digits), WrappingKey::from_raw(&raw));
        digits[63] = b'g';
        assert_eq!(WrappingKey::from_hex(&digits), Err(Error::BadHex));
    }

    #[test]
    fn impossible_iteration_counts_are_refused_at_once() {
        let derived = |iters| WrappingKey::from_passphrase(b"password", Pbkdf2 { salt: 1, iters });
        assert_eq!(derived(0), Err(Error::BadPbkdf2));
        for iters in [MAX_PBKDF2_ITERS + 1, 1 << 31, 1 << 40, u64::MAX] {
            let said = derived(iters).unwrap_err();
            assert_eq!(said, Error::TooManyPbkdf2Iters { iters, most: MAX_PBKDF2_ITERS });
            assert!(said.to_string().contains(&iters.to_string()), "{said}");
        }
        assert_eq!(WrappingKey::derive(KeyFormat::Passphrase, b"password", None), Err(Error::BadPbkdf2));
    }

    #[test]
    fn a_nul_ends_the_passphrase() {
        let cut = WrappingKey::from_passphrase(b"password\0x", P);
        assert_eq!(cut, WrappingKey::from_passphrase(b"password", P));
    }
}
