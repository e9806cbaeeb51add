//! Data types and values.

use std::fmt;

use crate::NvList;

/// A string as the format has it: any bytes but NUL, not necessarily UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct NvString(Box<[u8]>);

impl NvString {
    /// The bytes, without a terminator.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The string, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The string with each malformed sequence replaced by U+FFFD.
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl fmt::Debug for NvString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

impl fmt::Display for NvString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string_lossy())
    }
}

impl From<&[u8]> for NvString {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for NvString {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<String> for NvString {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}

impl From<Vec<u8>> for NvString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl PartialEq<str> for NvString {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for NvString {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

/// Declares [`NvType`] and [`NvValue`] from one table: variant, number in the format, payload.
macro_rules! data_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $(($payload:ty))?,)*) => {
        /// Type of a value; the discriminant is its number in both encodings.
        #[doc(alias = "data_type_t")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum NvType {
            $($(#[$doc])* $variant = $number,)*
        }

        impl NvType {
            /// The type with this number.
            pub fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        /// A typed value.
        #[derive(Clone, Debug, PartialEq)]
        pub enum NvValue {
            $($(#[$doc])* $variant $(($payload))?,)*
        }

        impl NvValue {
            /// The type of this value.
            pub fn data_type(&self) -> NvType {
                match self {
                    $(data_types!(@pattern $variant $($payload)?) => NvType::$variant,)*
                }
            }
        }
    };
    (@pattern $variant:ident $payload:ty) => { NvValue::$variant(_) };
    (@pattern $variant:ident) => { NvValue::$variant };
}

data_types! {
    /// A name alone: its presence is the value.
    Boolean = 1,
    /// One unsigned byte.
    Byte = 2 (u8),
    /// Signed 16-bit number.
    Int16 = 3 (i16),
    /// Unsigned 16-bit number.
    Uint16 = 4 (u16),
    /// Signed 32-bit number.
    Int32 = 5 (i32),
    /// Unsigned 32-bit number.
    Uint32 = 6 (u32),
    /// Signed 64-bit number.
    Int64 = 7 (i64),
    /// Unsigned 64-bit number.
    Uint64 = 8 (u64),
    /// A string.
    String = 9 (NvString),
    /// Opaque bytes.
    ByteArray = 10 (Vec<u8>),
    /// Signed 16-bit numbers.
    Int16Array = 11 (Vec<i16>),
    /// Unsigned 16-bit numbers.
    Uint16Array = 12 (Vec<u16>),
    /// Signed 32-bit numbers.
    Int32Array = 13 (Vec<i32>),
    /// Unsigned 32-bit numbers.
    Uint32Array = 14 (Vec<u32>),
    /// Signed 64-bit numbers.
    Int64Array = 15 (Vec<i64>),
    /// Unsigned 64-bit numbers.
    Uint64Array = 16 (Vec<u64>),
    /// Strings.
    StringArray = 17 (Vec<NvString>),
    /// Nanoseconds of a monotonic clock.
    Hrtime = 18 (i64),
    /// A list.
    List = 19 (NvList),
    /// Lists.
    ListArray = 20 (Vec<NvList>),
    /// True or false.
    BooleanValue = 21 (bool),
    /// Signed 8-bit number.
    Int8 = 22 (i8),
    /// Unsigned 8-bit number.
    Uint8 = 23 (u8),
    /// Truth values.
    BooleanArray = 24 (Vec<bool>),
    /// Signed 8-bit numbers.
    Int8Array = 25 (Vec<i8>),
    /// Unsigned 8-bit numbers.
    Uint8Array = 26 (Vec<u8>),
    /// IEEE 754 double.
    Double = 27 (f64),
}

impl NvType {
    /// Whether a pair of this type holds a counted sequence.
    pub fn is_array(self) -> bool {
        matches!(self as i32, 10..=17 | 20 | 24..=26)
    }

    /// Whether a pair of this type may hold `count` elements.
    pub(crate) fn allows_count(self, count: i64) -> bool {
        match self {
            Self::Boolean => count == 0,
            _ if self.is_array() => (0..=i64::from(i32::MAX)).contains(&count),
            _ => count == 1,
        }
    }
}

impl NvValue {
    /// Number of elements, as in the pair's header: 0 for `Boolean`, 1 for scalars.
    pub fn element_count(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::ByteArray(v) | Self::Uint8Array(v) => v.len(),
            Self::Int8Array(v) => v.len(),
            Self::Int16Array(v) => v.len(),
            Self::Uint16Array(v) => v.len(),
            Self::Int32Array(v) => v.len(),
            Self::Uint32Array(v) => v.len(),
            Self::Int64Array(v) => v.len(),
            Self::Uint64Array(v) => v.len(),
            Self::StringArray(v) => v.len(),
            Self::BooleanArray(v) => v.len(),
            Self::ListArray(v) => v.len(),
            _ => 1,
        }
    }

    /// Bytes that the value takes in libnvpair's memory, unpadded; the size fields of both encodings build on it.
    pub(crate) fn memory_size(&self) -> usize {
        const POINTER: usize = 8;
        match self {
            Self::Boolean => 0,
            Self::Byte(_) | Self::Int8(_) | Self::Uint8(_) => 1,
            Self::Int16(_) | Self::Uint16(_) => 2,
            Self::Int32(_) | Self::Uint32(_) | Self::BooleanValue(_) => 4,
            Self::Int64(_) | Self::Uint64(_) | Self::Hrtime(_) | Self::Double(_) => 8,
            Self::String(s) => s.as_bytes().len() + 1,
            Self::List(_) => crate::native::LIST_SIZE,
            Self::ByteArray(v) | Self::Uint8Array(v) => v.len(),
            Self::Int8Array(v) => v.len(),
            Self::Int16Array(v) => v.len() * 2,
            Self::Uint16Array(v) => v.len() * 2,
            Self::Int32Array(v) => v.len() * 4,
            Self::Uint32Array(v) => v.len() * 4,
            Self::BooleanArray(v) => v.len() * 4,
            Self::Int64Array(v) => v.len() * 8,
            Self::Uint64Array(v) => v.len() * 8,
            Self::StringArray(v) => v.iter().map(|s| POINTER + s.as_bytes().len() + 1).sum(),
            Self::ListArray(v) => v.len() * (POINTER + crate::native::LIST_SIZE),
        }
    }
}

macro_rules! from_payload {
    ($($payload:ty => $variant:ident,)*) => {
        $(impl From<$payload> for NvValue {
            fn from(value: $payload) -> Self {
                Self::$variant(value)
            }
        })*
    };
}

from_payload! {
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    bool => BooleanValue, f64 => Double,
    NvString => String, NvList => List,
    Vec<i8> => Int8Array, Vec<i16> => Int16Array, Vec<i32> => Int32Array, Vec<i64> => Int64Array,
    Vec<u8> => Uint8Array, Vec<u16> => Uint16Array, Vec<u32> => Uint32Array, Vec<u64> => Uint64Array,
    Vec<bool> => BooleanArray, Vec<NvString> => StringArray, Vec<NvList> => ListArray,
}

impl From<&str> for NvValue {
    fn from(value: &str) -> Self {
        Self::String(value.into())
    }
}

impl From<String> for NvValue {
    fn from(value: String) -> Self {
        Self::String(value.into())
    }
}

impl From<&[u8]> for NvValue {
    /// A string of these bytes; build `ByteArray` or `Uint8Array` by name.
    fn from(value: &[u8]) -> Self {
        Self::String(value.into())
    }
}

impl From<&[u64]> for NvValue {
    fn from(value: &[u64]) -> Self {
        Self::Uint64Array(value.into())
    }
}
