//! The settings with their names, bounds and defaults.

use super::{Info, Limit, MIB};

/// Maximum of the settings that are 32-bit numbers in OpenZFS.
const U32: u64 = (1 << 32) - 1;

/// A setting that is on (1) or off (0).
const fn switch(limit: Limit, name: &'static str, on: bool, about: &'static str) -> Info {
    let plain = if on { 1 } else { 0 };
    Info { limit, name, bytes: false, least: 0, most: 1, plain, zero_is_default: !on, about }
}

/// A setting with bounds and a default.
const fn number(
    limit: Limit,
    name: &'static str,
    (least, most): (u64, u64),
    plain: u64,
    about: &'static str,
) -> Info {
    Info { limit, name, bytes: false, least, most, plain, zero_is_default: plain == 0 || least > 0, about }
}

/// A setting in bytes with bounds and a default.
const fn bytes(
    limit: Limit,
    name: &'static str,
    bounds: (u64, u64),
    plain: u64,
    about: &'static str,
) -> Info {
    Info { bytes: true, ..number(limit, name, bounds, plain, about) }
}

/// All settings.
pub const LIMITS: [Info; 100] = [
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
        Limit::DirtyMax,
        "zfs_dirty_data_max",
        (MIB, u64::MAX),
        512 * MIB,
        "Bytes of one pool that may be changed and not yet written; writers wait for the disks then. \
                Default: a tenth of the machine's memory, at most 512 MiB.",
    ),
    Info {
        limit: Limit::DirtySyncPercent,
        name: "zfs_dirty_data_sync_percent",
        bytes: false,
        least: 1,
        most: 99,
        plain: 12,
        zero_is_default: false,
        about: "Percent of zfs_dirty_data_max with which a transaction group is written before its time. \
                Default: 12.",
    },
    Info {
        limit: Limit::DelayMinDirtyPercent,
        name: "zfs_delay_min_dirty_percent",
        bytes: false,
        least: 1,
        most: 99,
        plain: 60,
        zero_is_default: false,
        about: "Percent of zfs_dirty_data_max from which on each writer is delayed, the more the nearer the limit. \
                Default: 60.",
    },
    Info {
        limit: Limit::DelayScale,
        name: "zfs_delay_scale",
        bytes: false,
        least: 1,
        most: 1_000_000_000,
        plain: 500_000,
        zero_is_default: false,
        about: "Nanoseconds of that delay in the middle between its beginning and the limit. Default: 500000.",
    },
    Info {
        limit: Limit::TxgTimeout,
        name: "zfs_txg_timeout",
        bytes: false,
        least: 1,
        most: 4_294_967_295,
        plain: 5,
        zero_is_default: false,
        about: "Seconds after which a transaction group with changes is written. Default: 5.",
    },
    number(
        Limit::PrivatePools,
        "aquifer_private_pools",
        (0, 1),
        0,
        "1: users other than the owner of the pools may not look at them (list, get, status, …); what `zfs allow` \
                gave them they may do all the same. Default: 0.",
    ),
    number(
        Limit::AsyncBlockMax,
        "zfs_async_block_max_blocks",
        (1, u64::MAX),
        100_000,
        "Blocks of destroyed datasets, and of files that are removed or cut, that one transaction group frees. \
                Default: 100000.",
    ),
    number(
        Limit::DirtyFreesPercent,
        "zfs_per_txg_dirty_frees_percent",
        (1, 100),
        30,
        "Percent of zfs_dirty_data_max that blocks to be freed may take in one transaction group. Default: 30.",
    ),
    Info {
        limit: Limit::ScrubMinTime,
        name: "zfs_scrub_min_time_ms",
        bytes: false,
        least: 1,
        most: 60_000,
        plain: 100,
        zero_is_default: false,
        about: "Milliseconds that each transaction group scrubs at least, even if something waits for it. Default: 100.",
    },
    Info {
        limit: Limit::ResilverMinTime,
        name: "zfs_resilver_min_time_ms",
        bytes: false,
        least: 1,
        most: 60_000,
        plain: 300,
        zero_is_default: false,
        about: "Milliseconds that each transaction group resilvers at least, even if something waits for it. Default: 300.",
    },
    bytes(
        Limit::DiscardMemory,
        "zfs_spa_discard_memory_limit",
        (1, u64::MAX),
        16 * MIB,
        "Bytes of memory for what one transaction group discards of a checkpoint. Default: 16 MiB.",
    ),
    bytes(
        Limit::InitializeChunk,
        "zfs_initialize_chunk_size",
        (512, 16 * MIB),
        MIB,
        "Bytes that `zpool initialize` writes at once. Default: 1 MiB.",
    ),
    Info {
        limit: Limit::InitializeValue,
        name: "zfs_initialize_value",
        bytes: false,
        least: 0,
        most: u64::MAX,
        plain: 0xdead_beef_dead_beee,
        zero_is_default: true,
        about: "The 64-bit word that `zpool initialize` fills free space with. Default: 0xdeadbeefdeadbeee.",
    },
    bytes(
        Limit::TrimExtentMax,
        "zfs_trim_extent_bytes_max",
        (1 << 16, u64::MAX),
        128 * MIB,
        "Bytes that are trimmed at once. Default: 128 MiB.",
    ),
    bytes(
        Limit::TrimExtentMin,
        "zfs_trim_extent_bytes_min",
        (1, u64::MAX),
        32 << 10,
        "Shorter ranges of free space are not trimmed. Default: 32 KiB.",
    ),
    number(
        Limit::TrimTxgBatch,
        "zfs_trim_txg_batch",
        (1, 1 << 20),
        32,
        "Transaction groups between two automatic trims of freed space. Default: 32.",
    ),
    Info {
        limit: Limit::CondenseObsoletePercent,
        name: "zfs_condense_indirect_obsolete_pct",
        bytes: false,
        least: 1,
        most: 100,
        plain: 25,
        zero_is_default: false,
        about: "Percent of the bytes of a removed vdev's mapping that must be obsolete for the mapping to be condensed. \
                Default: 25.",
    },
    Info {
        limit: Limit::CondenseMinMapping,
        name: "zfs_condense_min_mapping_bytes",
        bytes: true,
        least: 1,
        most: u64::MAX,
        plain: 128 << 10,
        zero_is_default: false,
        about: "Bytes of a removed vdev's mapping up to which it is not condensed for what is obsolete in it. \
                Default: 128 KiB.",
    },
    Info {
        limit: Limit::CondenseMaxObsolete,
        name: "zfs_condense_max_obsolete_bytes",
        bytes: true,
        least: 1,
        most: u64::MAX,
        plain: 1 << 30,
        zero_is_default: false,
        about: "Bytes of a removed vdev's obsolete space map from which on its mapping is condensed. Default: 1 GiB.",
    },
    Info {
        limit: Limit::DedupIndexMax,
        name: "zfs_dedup_index_max",
        bytes: true,
        least: 0,
        most: u64::MAX,
        plain: 32 * MIB,
        zero_is_default: true,
        about: "Bytes of memory for the keys of dedup tables, of all pools together, 5 for each key: a new block whose key is \
                not in a table costs no look-up there. Default: a 64th of the machine's memory, 16 MiB to 512 MiB.",
    },
    switch(
        Limit::DedupFastGzip,
        "zfs_dedup_fast_gzip",
        false,
        "1: with dedup, too, gzip is the fast encoder, whose blocks are not those of OpenZFS: they are not shared with blocks \
         that OpenZFS has written, or Aquifer with 0. Default: 0.",
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
        "1: only blocks seen more than once are written to cache devices; 2: of metadata all. Default: 0.",
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
        "Percent of zfs_arc_max that the headers of what is on cache devices may take. Default: 33.",
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
    switch(
        Limit::ScanSuspend,
        "zfs_scan_suspend_progress",
        false,
        "1: scrubs and resilvers make no progress. Default: 0.",
    ),
    number(
        Limit::SlowIoMs,
        "zio_slow_io_ms",
        (1, u32::MAX as u64),
        30_000,
        "Milliseconds after which a request counts as slow (zpool status -s). Default: 30000.",
    ),
    number(
        Limit::SlowIoEvents,
        "zfs_slow_io_events_per_second",
        (0, u32::MAX as u64),
        20,
        "Maximum events 'delay' of slow requests per second and disk. Default: 20.",
    ),
    number(
        Limit::SitOutSecs,
        "vdev_read_sit_out_secs",
        (0, i64::MAX as u64 / 1000),
        600,
        "Seconds for which a disk that is much slower than the others of its raidz or draid sits out reads, with autosit=on; \
         0: no disk sits out. Default: 600.",
    ),
    number(
        Limit::OutlierCheckMs,
        "vdev_raidz_outlier_check_interval_ms",
        (1, u32::MAX as u64),
        1000,
        "Milliseconds between two comparisons of the latencies of a vdev's disks, with autosit=on. Default: 1000.",
    ),
    number(
        Limit::OutlierInsensitivity,
        "vdev_raidz_outlier_insensitivity",
        (1, u32::MAX as u64),
        50,
        "Interquartile ranges above the upper quartile of the latencies from which on a disk is slow, with autosit=on. \
         Default: 50.",
    ),
    switch(
        Limit::KeepSpaceLogs,
        "zfs_keep_log_spacemaps_at_export",
        false,
        "1: an export does not write the logged changes of space maps to the space maps; the next import reads the logs. Default: 0.",
    ),
    switch(
        Limit::RebuildScrub,
        "zfs_rebuild_scrub_enabled",
        true,
        "1: a scrub follows a sequential reconstruction (zpool attach -s, zpool replace -s). Default: 1.",
    ),
    switch(
        Limit::RemovalSuspend,
        "zfs_removal_suspend_progress",
        false,
        "1: removals of vdevs copy nothing. Default: 0.",
    ),
    number(
        Limit::ExpandMaxReflow,
        "raidz_expand_max_reflow_bytes",
        (0, u64::MAX),
        0,
        "Bytes of a raidz expansion after which it makes no progress. Default: 0, no limit.",
    ),
    switch(Limit::PrefetchDisable, "zfs_prefetch_disable", false, "1: files are not read ahead. Default: 0."),
    number(
        Limit::MultihostInterval,
        "zfs_multihost_interval",
        (100, 3_600_000),
        1000,
        "Milliseconds in which each device of a pool with multihost=on gets a heartbeat. Default: 1000.",
    ),
    number(
        Limit::MultihostFail,
        "zfs_multihost_fail_intervals",
        (0, 1000),
        10,
        "Such intervals without a heartbeat on disk after which the pool is suspended; 0: never. Default: 10.",
    ),
    number(
        Limit::MultihostImport,
        "zfs_multihost_import_intervals",
        (1, 1000),
        20,
        "Intervals of the last host that an import watches a pool for. Default: 20.",
    ),
    number(
        Limit::LivelistShared,
        "zfs_livelist_min_percent_shared",
        (0, 100),
        75,
        "Percent of a clone that it must share with its origin to keep its livelist; -1: it always keeps it. Default: 75.",
    ),
    switch(
        Limit::CloneEnabled,
        "zfs_bclone_enabled",
        true,
        "1: files share blocks (block cloning). Default: 1.",
    ),
    switch(
        Limit::RedactedMount,
        "zfs_allow_redacted_dataset_mount",
        false,
        "1: zfs mount -f mounts datasets from which blocks were redacted. Default: 0.",
    ),
    Info {
        bytes: true,
        ..number(
            Limit::ScanInflight,
            "zfs_scan_vdev_limit",
            (64 << 10, u64::MAX),
            16 * MIB,
            "Bytes that a scrub or resilver reads from the devices at once: less delays other requests less. Default: 16 MiB.",
        )
    },
    number(
        Limit::ScrubErrorBlocks,
        "zfs_scrub_error_blocks_per_txg",
        (1, 1 << 20),
        4096,
        "Blocks of the log of errors that one transaction group scrubs (zpool scrub -e). Default: 4096.",
    ),
    number(
        Limit::NoteTxgTime,
        "spa_note_txg_time",
        (1, 1 << 32),
        600,
        "Seconds between two notes of which transaction group was written when, for zpool scrub -S and -E. Default: 600.",
    ),
    number(
        Limit::FlushTxgTime,
        "spa_flush_txg_time",
        (1, 1 << 32),
        600,
        "Seconds after which these notes are written to the pool; an export writes them, too. Default: 600.",
    ),
    number(
        Limit::DedupLogTxgMax,
        "zfs_dedup_log_txg_max",
        (1, U32),
        8,
        "Transaction groups for which a side of the log of a dedup table takes records before it is flushed to the table. \
         Default: 8.",
    ),
    Info {
        bytes: true,
        ..number(
            Limit::DedupLogMemMax,
            "zfs_dedup_log_mem_max",
            (MIB, u64::MAX),
            32 * MIB,
            "Bytes of memory for the log of a dedup table, some 220 for each entry: from half of it on the log is flushed. \
             Default: 1 % of the machine's memory, at least 4 MiB.",
        )
    },
    number(
        Limit::DedupFlushTxgs,
        "zfs_dedup_log_flush_txgs",
        (1, U32),
        100,
        "Transaction groups in which all of the log of a dedup table should be flushed. Default: 100.",
    ),
    number(
        Limit::DedupFlushMin,
        "zfs_dedup_log_flush_entries_min",
        (0, U32),
        100,
        "Entries of the log of a dedup table that a transaction group flushes at least. Default: 100.",
    ),
    number(
        Limit::DedupFlushMax,
        "zfs_dedup_log_flush_entries_max",
        (1, U32),
        U32,
        "Entries of the log of a dedup table that a transaction group flushes at most, even when the log then takes more \
         memory than zfs_dedup_log_mem_max. Default: 4294967295.",
    ),
    number(
        Limit::DedupFlushTime,
        "zfs_dedup_log_flush_min_time_ms",
        (1, U32),
        1000,
        "Milliseconds after which a transaction group that is waited for ends the flush of the log of a dedup table; others \
         take half of zfs_txg_timeout. Default: 1000.",
    ),
    number(
        Limit::DedupLogCap,
        "zfs_dedup_log_cap",
        (1, U32),
        U32,
        "Entries of the log of a dedup table above which more and more are flushed. Default: 4294967295.",
    ),
    switch(
        Limit::DedupLogHardCap,
        "zfs_dedup_log_hard_cap",
        false,
        "1: zfs_dedup_log_cap is kept even when transaction groups take longer for it. Default: 0.",
    ),
    switch(
        Limit::CloneWaitDirty,
        "zfs_bclone_wait_dirty",
        true,
        "1: a clone of blocks that are not on disk waits for them; 0: they are copied. Default: 1.",
    ),
    switch(
        Limit::SendOldHoles,
        "send_holes_without_birth_time",
        true,
        "1: incremental streams have every hole that does not record its birth; 0: not those that have been holes since \
         before the older snapshot. Default: 1.",
    ),
    number(
        Limit::EstimateRecordSize,
        "zfs_override_estimate_recordsize",
        (0, U32),
        0,
        "Size of blocks that estimates of the length of streams assume; 0: the record size of the dataset. Default: 0.",
    ),
    Info {
        bytes: true,
        ..number(
            Limit::MicroZapMax,
            "zap_micro_max_size",
            (512, MIB),
            128 << 10,
            "Bytes up to which a directory stays a micro ZAP; more than 128 KiB need the feature large_microzap. \
             Default: 128 KiB.",
        )
    },
    switch(
        Limit::FaultAgents,
        "aquifer_fault_agents",
        true,
        "1: devices with too many errors are degraded or faulted, and hot spares take over, as with OpenZFS's event daemon. \
         Default: 1.",
    ),
    number(
        Limit::FilePhysicalAshift,
        "vdev_file_physical_ashift",
        (9, 16),
        9,
        "Sector shift of a new vdev of files, unless -o ashift gives another. Default: 9.",
    ),
    number(
        Limit::FileLogicalAshift,
        "vdev_file_logical_ashift",
        (9, 16),
        9,
        "Least sector shift of a new vdev of files. Default: 9.",
    ),
    number(
        Limit::MaxAutoAshift,
        "zfs_vdev_max_auto_ashift",
        (9, 16),
        14,
        "Larger physical sectors of files do not raise the sector shift of a new vdev. Default: 14.",
    ),
    number(
        Limit::ResilverDefer,
        "zfs_resilver_defer_percent",
        (0, 100),
        10,
        "Percent of a resilver from which on another one waits for its end (feature resilver_defer). Default: 10.",
    ),
    number(
        Limit::SpecialReserve,
        "zfs_special_class_metadata_reserve_pct",
        (0, 100),
        25,
        "Percent of the special class that small blocks of files leave to metadata. Default: 25.",
    ),
    Info {
        bytes: true,
        ..number(
            Limit::ForceGanging,
            "metaslab_force_ganging",
            (512, u64::MAX),
            (16 << 20) + 1,
            "Blocks of at least so many bytes may be forced to become gang blocks, for tests. Default: 16 MiB + 1, none.",
        )
    },
    number(
        Limit::ForceGangingPercent,
        "metaslab_force_ganging_pct",
        (0, 100),
        3,
        "Percent of these blocks that become gang blocks. Default: 3.",
    ),
    Info {
        bytes: true,
        ..number(
            Limit::RemoveMaxSegment,
            "zfs_remove_max_segment",
            (512, 16 << 20),
            16 << 20,
            "Bytes that the removal of a vdev copies as one piece at most. Default: 16 MiB.",
        )
    },
    switch(
        Limit::RemovalIgnoreErrors,
        "zfs_removal_ignore_errors",
        false,
        "1: the removal of a vdev goes on when a side of a mirror fails to read and another does not. Default: 0.",
    ),
    number(
        Limit::CondenseDelay,
        "zfs_condense_indirect_commit_entry_delay_ms",
        (0, 3_600_000),
        0,
        "Milliseconds to wait with each entry of a removed vdev's mapping that is condensed, for tests. Default: 0.",
    ),
    switch(
        Limit::TrimMetaslabSkip,
        "zfs_trim_metaslab_skip",
        false,
        "1: zpool trim skips metaslabs that were never allocated from. Default: 0.",
    ),
    number(
        Limit::MinMetaslabs,
        "zfs_vdev_min_ms_count",
        (16, 1 << 17),
        16,
        "Least number of metaslabs of a new vdev, of 16 MiB each at least. Default: 16.",
    ),
    number(
        Limit::EmbeddedLogMin,
        "zfs_embedded_slog_min_ms",
        (0, U32),
        64,
        "A vdev of more metaslabs than this keeps one for the intent log, from the next import on. Default: 64.",
    ),
    number(
        Limit::AsizeInflation,
        "spa_asize_inflation",
        (1, 1024),
        24,
        "Bytes on disk that a changed byte is taken to need, where the vdevs do not need more. Default: 24.",
    ),
    switch(
        Limit::ScanLegacy,
        "zfs_scan_legacy",
        false,
        "1: scrubs and resilvers read blocks in the order of files, not sorted by their places on the disks. Default: 0.",
    ),
    number(
        Limit::ScanMemFact,
        "zfs_scan_mem_lim_fact",
        (1, 1 << 20),
        20,
        "Scrubs and resilvers remember blocks that they have still to read, sorted by place, in one part in so many of the machine's \
         memory, at most a quarter of zfs_arc_max, which includes it. Default: 20.",
    ),
    number(
        Limit::ScanCheckpoint,
        "zfs_scan_checkpoint_intval",
        (0, 1 << 32),
        7200,
        "Seconds after which a scrub or resilver stops gathering blocks and reads them, to save its position. Default: 7200.",
    ),
    number(
        Limit::EventsMax,
        "zfs_zevent_len_max",
        (1, 1 << 20),
        512,
        "Events of a pool that are kept for zpool events. Default: 512.",
    ),
    switch(
        Limit::LogXattrs,
        "zfs_zil_saxattr",
        true,
        "0: changes of extended attributes in system attributes are not logged; fsync after one waits for its txg. Default: 1.",
    ),
    switch(
        Limit::NoIvsetCheck,
        "zfs_disable_ivset_guid_check",
        false,
        "1: raw encrypted streams are received without IV set guids that match, for pools with errata 4. Default: 0.",
    ),
    number(
        Limit::TxgHistory,
        "zfs_txg_history",
        (0, 100_000),
        100,
        "Txgs of each pool whose statistics are kept for the kstat txgs. Default: 100.",
    ),
    number(
        Limit::Nesting,
        "zfs_max_dataset_nesting",
        (1, 500),
        50,
        "Components that the name of a new dataset may have. Deeper ones can be renamed, but not to still deeper names. Default: 50.",
    ),
    number(
        Limit::LivelistMax,
        "zfs_livelist_max_entries",
        (1, 1 << 32),
        500_000,
        "Blocks after which a clone's livelist begins another list. Default: 500000.",
    ),
    number(
        Limit::ZstdEarlyAbort,
        "zstd_earlyabort_pass",
        (0, U32),
        1,
        "0: blocks are compressed at the levels zstd-3 to zstd-19 without trying LZ4 and zstd-1 first. Default: 1.",
    ),
    bytes(
        Limit::ZstdAbortSize,
        "zstd_abort_size",
        (0, U32),
        128 << 10,
        "Bytes from which on a block is stored uncompressed when neither LZ4 nor zstd-1 shortens it, at the levels \
                zstd-3 to zstd-19. Default: 128 KiB.",
    ),
    switch(
        Limit::ScrubAfterExpand,
        "zfs_scrub_after_expand",
        true,
        "0: no scrub begins when the expansion of a raidz has ended. Default: 1.",
    ),
    switch(
        Limit::LoadVerifyMetadata,
        "spa_load_verify_metadata",
        true,
        "0: a rewind (zpool import -F, -X, -T) reads no blocks of a state before it goes back to it. Default: 1.",
    ),
    switch(
        Limit::LoadVerifyData,
        "spa_load_verify_data",
        true,
        "0: of such a state it reads metadata only. Default: 1.",
    ),
    number(
        Limit::L2TrimAhead,
        "l2arc_trim_ahead",
        (0, U32),
        0,
        "Share of a round of writes to a cache device that is trimmed ahead of it, in percent, at least 64 MiB; a device without \
                contents is trimmed as a whole. 0: cache devices are not trimmed. Default: 0.",
    ),
    number(
        Limit::MaxMissingTops,
        "zfs_max_missing_tvds",
        (0, U32),
        0,
        "Top-level vdevs, apart from logs, without which a pool is imported with -o readonly=on. 0: any number (none in OpenZFS). \
                Default: 0.",
    ),
    number(
        Limit::JobShare,
        "aquifer_job_share",
        (1, 100),
        40,
        "Percent of the time for which scrubs, resilvers, reconstructions, removals, expansions, trims and initializations work while \
                others use the pool's devices: 100 never rests. Default: 40.",
    ),
];
