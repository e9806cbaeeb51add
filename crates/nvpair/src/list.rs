//! The list itself: ordered pairs, typed getters.

use crate::cursor::{Cursor, Result};
use crate::error::{DecodeErrorKind, EncodeError};
use crate::{Encoding, Endian, NvString, NvValue, native, xdr};

/// Flags of a list, kept as they were read.
#[doc(alias = "nvl_nvflag")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NvFlags(pub u32);

impl NvFlags {
    /// No two pairs have the same name.
    #[doc(alias = "NV_UNIQUE_NAME")]
    pub const UNIQUE_NAME: Self = Self(1);
    /// No two pairs have the same name and type.
    #[doc(alias = "NV_UNIQUE_NAME_TYPE")]
    pub const UNIQUE_NAME_TYPE: Self = Self(2);

    /// Whether all of `other`'s flags are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A name and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct NvPair {
    /// The name.
    pub name: NvString,
    /// The value.
    pub value: NvValue,
}

/// An ordered list of pairs.
#[doc(alias = "nvlist_t")]
#[derive(Clone, Debug, PartialEq)]
pub struct NvList {
    flags: NvFlags,
    pairs: Vec<NvPair>,
}

impl Default for NvList {
    fn default() -> Self {
        Self::new()
    }
}

impl NvList {
    /// An empty list with unique names.
    pub fn new() -> Self {
        Self::with_flags(NvFlags::UNIQUE_NAME)
    }

    /// An empty list with the given flags.
    pub fn with_flags(flags: NvFlags) -> Self {
        Self { flags, pairs: Vec::new() }
    }

    /// The list's flags.
    pub fn flags(&self) -> NvFlags {
        self.flags
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The pairs in order.
    pub fn iter(&self) -> std::slice::Iter<'_, NvPair> {
        self.pairs.iter()
    }

    /// The value of the pair with this name. Of several, the last: libnvpair finds that one too.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&NvValue> {
        self.pairs.iter().rfind(|p| p.name.as_bytes() == name.as_ref()).map(|p| &p.value)
    }

    /// The value of the pair with this name, to change in place.
    pub fn get_mut(&mut self, name: impl AsRef<[u8]>) -> Option<&mut NvValue> {
        self.pairs.iter_mut().rfind(|p| p.name.as_bytes() == name.as_ref()).map(|p| &mut p.value)
    }

    /// Whether a pair with this name exists, of whatever type.
    pub fn contains(&self, name: impl AsRef<[u8]>) -> bool {
        self.get(name).is_some()
    }

    /// Adds a pair at the end; the list's flags determine which earlier pairs it replaces.
    pub fn add(&mut self, name: impl Into<NvString>, value: impl Into<NvValue>) -> &mut Self {
        let (name, value) = (name.into(), value.into());
        if self.flags.contains(NvFlags::UNIQUE_NAME) {
            self.pairs.retain(|p| p.name != name);
        } else if self.flags.contains(NvFlags::UNIQUE_NAME_TYPE) {
            let data_type = value.data_type();
            self.pairs.retain(|p| p.name != name || p.value.data_type() != data_type);
        }
        self.push(name, value);
        self
    }

    /// Adds a pair at the end without looking for an earlier one of its name.
    pub fn push(&mut self, name: impl Into<NvString>, value: impl Into<NvValue>) {
        self.pairs.push(NvPair { name: name.into(), value: value.into() });
    }

    /// Removes every pair with this name and returns the last one's value.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) -> Option<NvValue> {
        let name = name.as_ref();
        let at = self.pairs.iter().rposition(|p| p.name.as_bytes() == name)?;
        let value = self.pairs.remove(at).value;
        self.pairs.retain(|p| p.name.as_bytes() != name);
        Some(value)
    }

    /// Decodes a packed list of either encoding; bytes after its end are not looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Self::decode_prefix(bytes).map(|(list, _, _)| list)
    }

    /// As [`NvList::decode`]; also returns the encoding and the bytes of the list.
    pub fn decode_prefix(bytes: &[u8]) -> Result<(Self, Encoding, usize)> {
        let mut cursor = Cursor::new(bytes);
        let encoding = decode_header(&mut cursor)?;
        if bytes.iter().take(BLANK).filter(|&&b| b == 0).count() == BLANK {
            return Cursor::new(bytes).fail(DecodeErrorKind::Blank);
        }
        let list = match encoding {
            Encoding::Xdr => xdr::decode(&mut cursor, 0)?,
            Encoding::Native(endian) => native::decode(&mut cursor, endian)?,
        };
        Ok((list, encoding, cursor.offset()))
    }

    /// Packs the list as XDR, header included.
    pub fn encode_xdr(&self) -> std::result::Result<Vec<u8>, EncodeError> {
        let mut out = vec![1, 1, 0, 0];
        xdr::encode(self, &mut out, 0)?;
        Ok(out)
    }

    /// Packs the list as libnvpair on a little-endian 64-bit machine has it in memory, header included.
    pub fn encode_native(&self) -> std::result::Result<Vec<u8>, EncodeError> {
        let mut out = vec![0, 1, 0, 0];
        native::encode(self, &mut out)?;
        Ok(out)
    }
}

/// Bytes of an empty native list; none is of zeros alone, for a little-endian header is not.
const BLANK: usize = 16;

/// Reads the header that precedes either encoding.
fn decode_header(cursor: &mut Cursor<'_>) -> Result<Encoding> {
    let start = cursor.clone();
    let [encoding, endian, ..] = cursor.array::<4>()?;
    match (encoding, endian) {
        (1, 0 | 1) => Ok(Encoding::Xdr),
        (0, 0) => Ok(Encoding::Native(Endian::Big)),
        (0, 1) => Ok(Encoding::Native(Endian::Little)),
        (0 | 1, _) => start.fail(DecodeErrorKind::Endian(endian)),
        _ => start.fail(DecodeErrorKind::Encoding(encoding)),
    }
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $variant:ident -> $type:ty = $bind:ident => $expr:expr;)*) => {
        impl NvList {
            $($(#[$doc])*
            pub fn $name(&self, name: impl AsRef<[u8]>) -> Option<$type> {
                match self.get(name)? {
                    NvValue::$variant($bind) => $expr,
                    _ => None,
                }
            })*
        }
    };
}

getters! {
    /// The `Uint64` of this name.
    u64: Uint64 -> u64 = v => Some(*v);
    /// The `Int64` of this name.
    i64: Int64 -> i64 = v => Some(*v);
    /// The `Uint32` of this name.
    u32: Uint32 -> u32 = v => Some(*v);
    /// The `Int32` of this name.
    i32: Int32 -> i32 = v => Some(*v);
    /// The `BooleanValue` of this name. The presence of a `Boolean` is its value: for those use [`NvList::contains`].
    bool: BooleanValue -> bool = v => Some(*v);
    /// The `String` of this name, if it is UTF-8.
    str: String -> &str = v => v.as_str();
    /// The `String` of this name, any bytes.
    string: String -> &NvString = v => Some(v);
    /// The `List` of this name.
    nvlist: List -> &NvList = v => Some(v);
    /// The `ListArray` of this name.
    nvlist_array: ListArray -> &[NvList] = v => Some(v);
    /// The `Uint64Array` of this name.
    u64_array: Uint64Array -> &[u64] = v => Some(v);
    /// The `StringArray` of this name.
    string_array: StringArray -> &[NvString] = v => Some(v);
    /// The `ByteArray` of this name.
    byte_array: ByteArray -> &[u8] = v => Some(v);
    /// The `Uint8Array` of this name.
    u8_array: Uint8Array -> &[u8] = v => Some(v);
}

impl<'a> IntoIterator for &'a NvList {
    type Item = &'a NvPair;
    type IntoIter = std::slice::Iter<'a, NvPair>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for NvList {
    type Item = NvPair;
    type IntoIter = std::vec::IntoIter<NvPair>;

    fn into_iter(self) -> Self::IntoIter {
        self.pairs.into_iter()
    }
}

impl<N: Into<NvString>, V: Into<NvValue>> FromIterator<(N, V)> for NvList {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(iter: T) -> Self {
        let mut list = Self::new();
        for (name, value) in iter {
            list.add(name, value);
        }
        list
    }
}
