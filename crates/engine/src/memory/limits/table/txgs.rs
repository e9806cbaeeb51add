//! Settings of dirty data, of txgs and of the work that a txg does.

use super::{bytes, number, switch};
use crate::memory::limits::{Info, Limit, MIB};

/// Their rows.
pub(super) const ROWS: [Info; 14] = [
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
        about: "Percent of zfs_dirty_data_max at which a transaction group is synced early. \
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
    switch(
        Limit::KeepSpaceLogs,
        "zfs_keep_log_spacemaps_at_export",
        false,
        "1: an export does not write the logged changes of space maps to the space maps; the next import reads the logs. Default: 0.",
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
        Limit::AsizeInflation,
        "spa_asize_inflation",
        (1, 1024),
        24,
        "Bytes on disk that a changed byte is taken to need, where the vdevs do not need more. Default: 24.",
    ),
    number(
        Limit::TxgHistory,
        "zfs_txg_history",
        (0, 100_000),
        100,
        "Txgs of each pool whose statistics are kept for the kstat txgs. Default: 100.",
    ),
    number(
        Limit::JobShare,
        "aquifer_job_share",
        (1, 100),
        40,
        "Percent of the time for which scrubs, resilvers, reconstructions, removals, expansions, trims and initializations work while \
                others use the pool's devices: 100 never rests. Default: 40.",
    ),
    switch(
        Limit::LoadMetaslabs,
        "metaslab_debug_load",
        false,
        "1: the space maps of all metaslabs are read before the first allocation of an imported pool, and stay in memory. Default: 0.",
    ),
];
