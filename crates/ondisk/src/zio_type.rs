//! Checksum and compression function numbers, as block pointers and dnodes carry them.

use std::fmt;

/// Declares a byte-sized enumeration with its on-disk numbers and the names that zdb prints.
macro_rules! byte_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $num:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $num,)* }

        impl $name {
            /// All values, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The value with this on-disk number, if OpenZFS 2.4 knows it.
            pub fn from_raw(raw: u8) -> Option<Self> {
                match raw { $($num => Some(Self::$variant),)* _ => None }
            }

            /// The on-disk number.
            pub fn raw(self) -> u8 { self as u8 }

            /// The name that zdb prints.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.pad(self.name()) }
        }
    };
}

byte_enum! {
    /// Checksum functions. Source: `enum zio_checksum`, zio.h, OpenZFS 2.3.
    #[doc(alias = "zio_checksum")]
    ChecksumType {
        /// Property only: take the parent's.
        Inherit = 0 "inherit",
        /// Property only: the pool's default (fletcher4).
        On = 1 "on",
        /// No checksum.
        Off = 2 "off",
        /// SHA-256 in an embedded trailer, verifier is the offset on the device.
        Label = 3 "label",
        /// SHA-256 in an embedded trailer, verifier is vdev, offset and birth txg.
        GangHeader = 4 "gang_header",
        /// Fletcher2 in the trailer of an old intent log block.
        Zilog = 5 "zilog",
        /// Fletcher2.
        Fletcher2 = 6 "fletcher2",
        /// Fletcher4.
        Fletcher4 = 7 "fletcher4",
        /// SHA-256.
        Sha256 = 8 "sha256",
        /// Fletcher4 in the header of an intent log block.
        Zilog2 = 9 "zilog2",
        /// No checksum and no parity either.
        NoParity = 10 "noparity",
        /// SHA-512 truncated to 256 bits.
        Sha512 = 11 "sha512",
        /// Skein-512-256, salted.
        Skein = 12 "skein",
        /// Edon-R 512, truncated, salted.
        Edonr = 13 "edonr",
        /// BLAKE3, salted.
        Blake3 = 14 "blake3",
    }
}

impl ChecksumType {
    /// Whether the checksum lies in the block itself ([`crate::Eck`]) and not in the pointer to it.
    pub fn is_embedded(self) -> bool {
        matches!(self, Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2)
    }

    /// Whether it is keyed with the pool's salt (`org.illumos:checksum_salt`).
    pub fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::Edonr | Self::Blake3)
    }

    /// Strong enough that deduplication may trust it without comparing data.
    pub fn is_dedup_strong(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha512 | Self::Skein | Self::Blake3)
    }

    /// Strong enough that a block with the same checksum need not be written again.
    #[doc(alias = "ZCHECKSUM_FLAG_NOPWRITE")]
    pub fn is_nopwrite_strong(self) -> bool {
        self.is_dedup_strong() || self == Self::Edonr
    }
}

byte_enum! {
    /// Compression functions. Source: `enum zio_compress`, zio_compress.h, OpenZFS 2.3.
    #[doc(alias = "zio_compress")]
    CompressType {
        /// Property only: take the parent's.
        Inherit = 0 "inherit",
        /// Property only: the pool's default (lz4, or lzjb in old pools).
        On = 1 "on",
        /// Stored as it is.
        Off = 2 "uncompressed",
        /// LZJB.
        Lzjb = 3 "lzjb",
        /// All zero: nothing is stored.
        Empty = 4 "empty",
        /// zlib level 1.
        Gzip1 = 5 "gzip-1",
        /// zlib level 2.
        Gzip2 = 6 "gzip-2",
        /// zlib level 3.
        Gzip3 = 7 "gzip-3",
        /// zlib level 4.
        Gzip4 = 8 "gzip-4",
        /// zlib level 5.
        Gzip5 = 9 "gzip-5",
        /// zlib level 6.
        Gzip6 = 10 "gzip-6",
        /// zlib level 7.
        Gzip7 = 11 "gzip-7",
        /// zlib level 8.
        Gzip8 = 12 "gzip-8",
        /// zlib level 9.
        Gzip9 = 13 "gzip-9",
        /// Runs of zeros removed.
        Zle = 14 "zle",
        /// LZ4.
        Lz4 = 15 "lz4",
        /// Zstandard; the level is in the block's own header.
        Zstd = 16 "zstd",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_round_trip() {
        for raw in 0..=255 {
            assert_eq!(ChecksumType::from_raw(raw).map(ChecksumType::raw), (raw < 15).then_some(raw));
            assert_eq!(CompressType::from_raw(raw).map(CompressType::raw), (raw < 17).then_some(raw));
        }
    }
}
