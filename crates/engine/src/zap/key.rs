//! Keys and values.

/// The value of an entry: integers of 1, 2, 4 or 8 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Bytes of each integer.
    pub width: u8,
    /// The integers.
    pub ints: Vec<u64>,
}

impl Value {
    /// The first integer.
    pub fn first(&self) -> Option<u64> {
        self.ints.first().copied()
    }

    /// An array of bytes; for wider integers, their little-endian bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let width = usize::from(self.width);
        self.ints.iter().flat_map(|n| n.to_le_bytes().into_iter().take(width)).collect()
    }

    /// A string: bytes up to the first NUL.
    pub fn string(&self) -> String {
        let bytes = self.bytes();
        let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

/// A key: a name, or words for ZAPs with 64-bit keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZapKey {
    /// A name of any bytes, without its NUL.
    Name(Vec<u8>),
    /// Words.
    Words(Vec<u64>),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self { width: 8, ints: vec![value] }
    }
}

/// Words.
impl From<&[u64]> for Value {
    fn from(words: &[u64]) -> Self {
        Self { width: 8, ints: words.to_vec() }
    }
}

impl From<Vec<u64>> for Value {
    fn from(ints: Vec<u64>) -> Self {
        Self { width: 8, ints }
    }
}

/// Bytes.
impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self { width: 1, ints: bytes.iter().map(|b| u64::from(*b)).collect() }
    }
}

/// A string: its bytes and a NUL, as properties are stored.
impl From<&str> for Value {
    fn from(text: &str) -> Self {
        let bytes = text.bytes().chain([0]);
        Self { width: 1, ints: bytes.map(u64::from).collect() }
    }
}

impl From<Value> for Vec<u64> {
    fn from(value: Value) -> Self {
        value.ints
    }
}

impl Value {
    /// The stored form in a leaf: each integer big-endian in its width.
    pub(super) fn big_endian(&self) -> Vec<u8> {
        let skip = 8usize.saturating_sub(self.width.into());
        self.ints.iter().flat_map(|n| n.to_be_bytes().into_iter().skip(skip)).collect()
    }

    /// The single word, if a micro ZAP can hold the value.
    pub(super) fn single(&self) -> Option<u64> {
        match self.ints.as_slice() {
            [one] if self.width == 8 => Some(*one),
            _ => None,
        }
    }
}

/// A borrowed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRef<'a> {
    /// A name of any bytes but NUL.
    Name(&'a [u8]),
    /// Words.
    Words(&'a [u64]),
}

impl KeyRef<'_> {
    /// The key in an error.
    pub(super) fn text(self) -> String {
        match self {
            Self::Name(name) => String::from_utf8_lossy(name).into_owned(),
            Self::Words(words) => format!("{words:x?}"),
        }
    }
}

impl<'a> From<&'a str> for KeyRef<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name.as_bytes())
    }
}

impl<'a> From<&'a String> for KeyRef<'a> {
    fn from(name: &'a String) -> Self {
        Self::Name(name.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for KeyRef<'a> {
    fn from(name: &'a [u8]) -> Self {
        Self::Name(name)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for KeyRef<'a> {
    fn from(name: &'a [u8; N]) -> Self {
        Self::Name(name)
    }
}

impl<'a> From<&'a [u64]> for KeyRef<'a> {
    fn from(words: &'a [u64]) -> Self {
        Self::Words(words)
    }
}

impl<'a> From<&'a ZapKey> for KeyRef<'a> {
    fn from(key: &'a ZapKey) -> Self {
        match key {
            ZapKey::Name(name) => Self::Name(name),
            ZapKey::Words(words) => Self::Words(words),
        }
    }
}
