//! Settings of devices: slow and failing ones, sectors, metaslabs.

use super::{U32, number, switch};
use crate::memory::limits::{Info, Limit};

/// Their rows.
pub(super) const ROWS: [Info; 14] = [
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
];
