//! Words of index properties, with the numbers that are stored.

use super::IndexRow;

/// Words of `boolean`.
pub(super) const BOOLEAN: &[IndexRow] = &[("off", 0), ("on", 1)];

/// `enum zio_checksum`.
pub(super) const CHECKSUM: &[IndexRow] = &[
    ("on", 1),
    ("off", 2),
    ("fletcher2", 6),
    ("fletcher4", 7),
    ("sha256", 8),
    ("noparity", 10),
    ("sha512", 11),
    ("skein", 12),
    ("edonr", 13),
    ("blake3", 14),
];

/// `enum zio_compress` in the low seven bits; the level of zstd above them.
pub(super) const COMPRESSION: &[IndexRow] = &[
    ("on", 1),
    ("off", 2),
    ("lzjb", 3),
    ("gzip", 10),
    ("gzip-1", 5),
    ("gzip-2", 6),
    ("gzip-3", 7),
    ("gzip-4", 8),
    ("gzip-5", 9),
    ("gzip-6", 10),
    ("gzip-7", 11),
    ("gzip-8", 12),
    ("gzip-9", 13),
    ("zle", 14),
    ("lz4", 15),
    ("zstd", 16),
    ("zstd-fast", 13200),
    ("zstd-1", 144),
    ("zstd-2", 272),
    ("zstd-3", 400),
    ("zstd-4", 528),
    ("zstd-5", 656),
    ("zstd-6", 784),
    ("zstd-7", 912),
    ("zstd-8", 1040),
    ("zstd-9", 1168),
    ("zstd-10", 1296),
    ("zstd-11", 1424),
    ("zstd-12", 1552),
    ("zstd-13", 1680),
    ("zstd-14", 1808),
    ("zstd-15", 1936),
    ("zstd-16", 2064),
    ("zstd-17", 2192),
    ("zstd-18", 2320),
    ("zstd-19", 2448),
    ("zstd-fast-1", 13200),
    ("zstd-fast-2", 13328),
    ("zstd-fast-3", 13456),
    ("zstd-fast-4", 13584),
    ("zstd-fast-5", 13712),
    ("zstd-fast-6", 13840),
    ("zstd-fast-7", 13968),
    ("zstd-fast-8", 14096),
    ("zstd-fast-9", 14224),
    ("zstd-fast-10", 14352),
    ("zstd-fast-20", 14480),
    ("zstd-fast-30", 14608),
    ("zstd-fast-40", 14736),
    ("zstd-fast-50", 14864),
    ("zstd-fast-60", 14992),
    ("zstd-fast-70", 15120),
    ("zstd-fast-80", 15248),
    ("zstd-fast-90", 15376),
    ("zstd-fast-100", 15504),
    ("zstd-fast-500", 15632),
    ("zstd-fast-1000", 15760),
];

/// Words of `snapdir`.
pub(super) const SNAPDIR: &[IndexRow] = &[("hidden", 0), ("visible", 1), ("disabled", 2)];

/// Words of `aclmode`.
pub(super) const ACLMODE: &[IndexRow] =
    &[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)];

/// Words of `aclinherit`.
pub(super) const ACLINHERIT: &[IndexRow] = &[
    ("discard", 0),
    ("noallow", 1),
    ("restricted", 4),
    ("passthrough", 3),
    ("secure", 4),
    ("passthrough-x", 5),
];

/// Words of `canmount`.
pub(super) const CANMOUNT: &[IndexRow] = &[("off", 0), ("on", 1), ("noauto", 2)];

/// Words of `xattr`.
pub(super) const XATTR: &[IndexRow] = &[("off", 0), ("on", 2), ("sa", 2), ("dir", 1)];

/// Words of `copies`.
pub(super) const COPIES: &[IndexRow] = &[("1", 1), ("2", 2), ("3", 3)];

/// Words of `version`.
pub(super) const VERSION: &[IndexRow] = &[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5), ("current", 5)];

/// Flags of the Unicode normalisation.
pub(super) const NORMALIZATION: &[IndexRow] =
    &[("none", 0), ("formD", 16), ("formKC", 96), ("formC", 80), ("formKD", 32)];

/// Words of `casesensitivity`.
pub(super) const CASESENSITIVITY: &[IndexRow] = &[("sensitive", 0), ("insensitive", 1), ("mixed", 2)];

/// Words of `cache`.
pub(super) const CACHE: &[IndexRow] = &[("none", 0), ("metadata", 1), ("all", 2)];

/// Words of `logbias`.
pub(super) const LOGBIAS: &[IndexRow] = &[("latency", 0), ("throughput", 1)];

/// `enum zio_checksum`; 256 more: compare the blocks too.
pub(super) const DEDUP: &[IndexRow] = &[
    ("on", 1),
    ("off", 2),
    ("verify", 257),
    ("sha256", 8),
    ("sha256,verify", 264),
    ("sha512", 11),
    ("sha512,verify", 267),
    ("skein", 12),
    ("skein,verify", 268),
    ("edonr,verify", 269),
    ("blake3", 14),
    ("blake3,verify", 270),
];

/// Words of `sync`.
pub(super) const SYNC: &[IndexRow] = &[("standard", 0), ("always", 1), ("disabled", 2)];

/// Bytes; 0 is 512, 1 is decided by the program.
pub(super) const DNODESIZE: &[IndexRow] =
    &[("legacy", 0), ("auto", 1), ("1k", 1024), ("2k", 2048), ("4k", 4096), ("8k", 8192), ("16k", 16384)];

/// Words of `volmode`.
pub(super) const VOLMODE: &[IndexRow] = &[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)];

/// Words of `hidden_visible`.
pub(super) const HIDDEN_VISIBLE: &[IndexRow] = &[("hidden", 0), ("visible", 1)];

/// Words of `acltype`.
pub(super) const ACLTYPE: &[IndexRow] =
    &[("off", 0), ("posix", 1), ("nfsv4", 2), ("disabled", 0), ("noacl", 0), ("posixacl", 1)];

/// Words of `redundant_metadata`.
pub(super) const REDUNDANT_METADATA: &[IndexRow] = &[("all", 0), ("most", 1), ("some", 2), ("none", 3)];

/// `enum zio_encrypt`.
pub(super) const ENCRYPTION: &[IndexRow] = &[
    ("on", 1),
    ("off", 2),
    ("aes-128-ccm", 3),
    ("aes-192-ccm", 4),
    ("aes-256-ccm", 5),
    ("aes-128-gcm", 6),
    ("aes-192-gcm", 7),
    ("aes-256-gcm", 8),
];

/// Words of `keyformat`.
pub(super) const KEYFORMAT: &[IndexRow] = &[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)];

/// Words of `keystatus`.
pub(super) const KEYSTATUS: &[IndexRow] = &[("none", 0), ("unavailable", 1), ("available", 2)];

/// Words of `direct`.
pub(super) const DIRECT: &[IndexRow] = &[("disabled", 0), ("standard", 1), ("always", 2)];

/// Words of `failmode`.
pub(super) const FAILMODE: &[IndexRow] = &[("wait", 0), ("continue", 1), ("panic", 2)];

/// Words of `boolean_or_not_applicable`.
pub(super) const BOOLEAN_OR_NOT_APPLICABLE: &[IndexRow] = &[("off", 0), ("on", 1), ("-", 2)];
