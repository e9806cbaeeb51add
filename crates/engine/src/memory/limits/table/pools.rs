//! Settings of whole pools: import, multihost, events.

use super::{U32, number, switch};
use crate::memory::limits::{Info, Limit};

/// Their rows.
pub(super) const ROWS: [Info; 8] = [
    number(
        Limit::PrivatePools,
        "aquifer_private_pools",
        (0, 1),
        0,
        "1: users other than the owner of the pools may not look at them (list, get, status, …); permissions \
                from `zfs allow` still apply. Default: 0.",
    ),
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
        "Missed heartbeat intervals before the pool is suspended; 0: never. Default: 10.",
    ),
    number(
        Limit::MultihostImport,
        "zfs_multihost_import_intervals",
        (1, 1000),
        20,
        "Intervals of the last host that an import watches a pool for. Default: 20.",
    ),
    number(
        Limit::EventsMax,
        "zfs_zevent_len_max",
        (1, 1 << 20),
        512,
        "Events of a pool that are kept for zpool events. Default: 512.",
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
        "0: a rewind reads only metadata of the older state. Default: 1.",
    ),
    number(
        Limit::MaxMissingTops,
        "zfs_max_missing_tvds",
        (0, U32),
        0,
        "Top-level vdevs, apart from logs, without which a pool is imported with -o readonly=on. 0: any number (none in OpenZFS). \
                Default: 0.",
    ),
];
