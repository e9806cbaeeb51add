//! Settings of the cache in memory, of cache devices and of read-ahead.

use super::{U32, bytes, number, switch};
use crate::memory::limits::{Info, Limit, MIB};

/// Their rows.
pub(super) const ROWS: [Info; 16] = [
    Info {
        limit: Limit::ArcMax,
        name: "zfs_arc_max",
        bytes: true,
        least: 0,
        most: u64::MAX,
        plain: 256 * MIB,
        zero_is_default: true,
        about: "Bytes of decoded blocks that all pools together may keep in memory. \
                Default: a quarter of the machine's memory (or of the control group's limit), at least 64 MiB.",
    },
    bytes(
        Limit::ArcMin,
        "zfs_arc_min",
        (0, u64::MAX),
        0,
        "Bytes of blocks that stay in memory when the machine is short of it. \
                Default: a 32nd of the machine's memory, at least 32 MiB, at most half of zfs_arc_max.",
    ),
    bytes(
        Limit::ArcSysFree,
        "zfs_arc_sys_free",
        (0, u64::MAX),
        0,
        "Bytes of available memory below which blocks are given up, down to zfs_arc_min. \
                Default: a 64th of the machine's memory, at least 512 KiB.",
    ),
    bytes(
        Limit::L2WriteMax,
        "l2arc_write_max",
        (1, u64::MAX),
        32 * MIB,
        "Bytes that a cache device is fed in one interval at most. Default: 32 MiB.",
    ),
    bytes(
        Limit::L2WriteBoost,
        "l2arc_write_boost",
        (0, u64::MAX),
        32 * MIB,
        "Bytes added to l2arc_write_max until the cache of blocks has been full once. Default: 32 MiB.",
    ),
    number(
        Limit::L2FeedSecs,
        "l2arc_feed_secs",
        (1, 3600),
        1,
        "Seconds between two rounds of feeding a cache device. Default: 1.",
    ),
    number(
        Limit::L2FeedMinMs,
        "l2arc_feed_min_ms",
        (1, 3_600_000),
        200,
        "Milliseconds between them after a round that wrote more than half of what it was allowed to. Default: 200.",
    ),
    number(
        Limit::L2FeedAgain,
        "l2arc_feed_again",
        (0, 1),
        1,
        "1: after a round that wrote much the next one begins after l2arc_feed_min_ms. Default: 1.",
    ),
    number(
        Limit::L2NoPrefetch,
        "l2arc_noprefetch",
        (0, 1),
        1,
        "1: blocks that were read ahead and not used are not written to cache devices. Default: 1.",
    ),
    number(
        Limit::L2MfuOnly,
        "l2arc_mfuonly",
        (0, 2),
        0,
        "1: only blocks seen more than once are written to cache devices; 2: and all metadata. Default: 0.",
    ),
    number(
        Limit::L2ExcludeSpecial,
        "l2arc_exclude_special",
        (0, 1),
        0,
        "1: blocks on special and dedup vdevs are not written to cache devices. Default: 0.",
    ),
    number(
        Limit::L2MetaPercent,
        "l2arc_meta_percent",
        (0, 100),
        33,
        "Percent of zfs_arc_max for the headers of cached blocks on cache devices. Default: 33.",
    ),
    number(
        Limit::L2RebuildEnabled,
        "l2arc_rebuild_enabled",
        (0, 1),
        1,
        "1: an import restores the contents of cache devices. Default: 1.",
    ),
    bytes(
        Limit::L2RebuildMinSize,
        "l2arc_rebuild_blocks_min_l2size",
        (0, u64::MAX),
        1 << 30,
        "Cache devices below this size get no log blocks, so that their contents end with the import. Default: 1 GiB.",
    ),
    switch(Limit::PrefetchDisable, "zfs_prefetch_disable", false, "1: files are not read ahead. Default: 0."),
    number(
        Limit::L2TrimAhead,
        "l2arc_trim_ahead",
        (0, U32),
        0,
        "Share of a round of writes to a cache device that is trimmed ahead of it, in percent, at least 64 MiB; a device without \
                contents is trimmed as a whole. 0: cache devices are not trimmed. Default: 0.",
    ),
];
