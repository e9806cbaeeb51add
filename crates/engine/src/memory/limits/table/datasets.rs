//! Settings of datasets, their streams, and the compression of their blocks.

use super::{U32, bytes, number, switch};
use crate::memory::limits::{Info, Limit, MIB};

/// Their rows.
pub(super) const ROWS: [Info; 11] = [
    number(
        Limit::LivelistShared,
        "zfs_livelist_min_percent_shared",
        (0, 100),
        75,
        "Percent of a clone that it must share with its origin to keep its livelist; -1: it always keeps it. Default: 75.",
    ),
    switch(
        Limit::RedactedMount,
        "zfs_allow_redacted_dataset_mount",
        false,
        "1: zfs mount -f mounts datasets from which blocks were redacted. Default: 0.",
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
];
