//! Structures made of 64-bit words only: most of the DSL, and everything kept in a ZAP as an array.
//!
//! Such a structure is declared once, field by field; the macro generates decoding from bytes and from words,
//! encoding, and the list of fields for dumps. A structure that grew over time names its minimum size:
//! missing words read as zero. Any words are valid, so there is no raw twin.

use crate::{Blkptr, Malformed};

/// A value that is stored as a fixed number of 64-bit words.
pub trait Words: Sized {
    /// Words that it takes.
    const WORDS: usize;
    /// Takes the value from the front of `words`, which has enough of them (else zeros are read).
    fn take(words: &mut impl Iterator<Item = u64>) -> Self;
    /// Appends its words.
    fn put(&self, out: &mut Vec<u64>);
}

impl Words for u64 {
    const WORDS: usize = 1;
    fn take(words: &mut impl Iterator<Item = u64>) -> Self {
        words.next().unwrap_or(0)
    }
    fn put(&self, out: &mut Vec<u64>) {
        out.push(*self);
    }
}

impl Words for i64 {
    const WORDS: usize = 1;
    fn take(words: &mut impl Iterator<Item = u64>) -> Self {
        u64::take(words).cast_signed()
    }
    fn put(&self, out: &mut Vec<u64>) {
        out.push(self.cast_unsigned());
    }
}

impl<T: Words + Copy + Default, const N: usize> Words for [T; N] {
    const WORDS: usize = N * T::WORDS;
    fn take(words: &mut impl Iterator<Item = u64>) -> Self {
        let mut out = [T::default(); N];
        out.iter_mut().for_each(|item| *item = T::take(words));
        out
    }
    fn put(&self, out: &mut Vec<u64>) {
        self.iter().for_each(|item| item.put(out));
    }
}

impl Words for Blkptr {
    const WORDS: usize = 16;
    fn take(words: &mut impl Iterator<Item = u64>) -> Self {
        Self::from_words(<[u64; 16]>::take(words))
    }
    fn put(&self, out: &mut Vec<u64>) {
        out.extend(self.words());
    }
}

/// Decodes a little-endian structure of at least `min` words.
pub(crate) fn decode<T: Words>(what: &'static str, min: usize, bytes: &[u8]) -> Result<T, Malformed> {
    let (words, _) = bytes.as_chunks::<8>();
    if words.len() < min {
        return Err(Malformed::short(what, bytes.len(), min * 8));
    }
    Ok(T::take(&mut words.iter().map(|w| u64::from_le_bytes(*w))))
}

/// Its bytes, little-endian.
pub(crate) fn encode(value: &impl Words) -> Vec<u8> {
    let mut words = Vec::new();
    value.put(&mut words);
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Declares a structure of 64-bit words; `at least N` allows shorter, older images.
macro_rules! word_struct {
    (
        $(#[$doc:meta])*
        $name:ident = $text:literal, $size:literal bytes $(, at least $min:literal)? {
            $($(#[$fdoc:meta])* $field:ident: $ty:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

        const _: () = assert!(<$name as $crate::words::Words>::WORDS * 8 == $size);

        impl $crate::words::Words for $name {
            const WORDS: usize = 0 $(+ <$ty as $crate::words::Words>::WORDS)*;
            fn take(words: &mut impl Iterator<Item = u64>) -> Self {
                Self { $($field: <$ty as $crate::words::Words>::take(words),)* }
            }
            fn put(&self, out: &mut Vec<u64>) {
                $($crate::words::Words::put(&self.$field, out);)*
            }
        }

        impl Default for $name {
            fn default() -> Self { <Self as $crate::words::Words>::take(&mut std::iter::empty()) }
        }

        impl $name {
            /// Bytes on disk.
            pub const SIZE: usize = $size;
            /// Least bytes that are accepted.
            pub const MIN_SIZE: usize = word_struct!(@min $size $(, $min)?);

            /// Decodes the structure at the start of `bytes` (little-endian).
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, $crate::Malformed> {
                $crate::words::decode($text, Self::MIN_SIZE / 8, bytes)
            }

            /// Decodes the structure from a ZAP's integers.
            pub fn from_words(words: &[u64]) -> Result<Self, $crate::Malformed> {
                if words.len() < Self::MIN_SIZE / 8 {
                    return Err($crate::Malformed::short($text, words.len() * 8, Self::MIN_SIZE));
                }
                Ok($crate::words::Words::take(&mut words.iter().copied()))
            }

            /// Its bytes (little-endian), all of them.
            pub fn to_bytes(&self) -> Vec<u8> {
                $crate::words::encode(self)
            }

            /// Every field by name, for dumps.
            pub fn fields(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($field), format!("{:?}", self.$field)),)*]
            }
        }
    };
    (@min $size:literal) => { $size };
    (@min $size:literal, $min:literal) => { $min };
}
pub(crate) use word_struct;
