//! Settings of dedup and of block cloning.

use super::{U32, number, switch};
use crate::memory::limits::{Info, Limit, MIB};

/// Their rows.
pub(super) const ROWS: [Info; 12] = [
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
    switch(
        Limit::CloneEnabled,
        "zfs_bclone_enabled",
        true,
        "1: files share blocks (block cloning). Default: 1.",
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
];
