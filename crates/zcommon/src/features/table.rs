//! The feature table. Guids, names and descriptions are OpenZFS 2.4's (`zpool_feature_init`, zfeature_common.c; the
//! first 44 read out of libzpool 2.3.2).

use super::FeatureFlags as F;
use super::FeatureType::{Boolean, Uint64Array};
use super::features;

features! {
    AsyncDestroy {
        name: "async_destroy",
        guid: "com.delphix:async_destroy",
        description: "Destroy filesystems asynchronously.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "Blocks listed in the MOS as still to be freed belong to no dataset; counting used blocks walks that list too.",
    }
    EmptyBpobj {
        name: "empty_bpobj",
        guid: "com.delphix:empty_bpobj",
        description: "Snapshots use less space.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "Dead lists share one empty object in the MOS.",
    }
    Lz4Compress {
        name: "lz4_compress",
        guid: "org.illumos:lz4_compress",
        description: "LZ4 compression algorithm support.",
        flags: F::ACTIVATE_ON_ENABLE,
        data_type: Boolean,
        depends: [],
        reading: "Blocks compressed with lz4 occur, metadata included.",
    }
    MultiVdevCrashDump {
        name: "multi_vdev_crash_dump",
        guid: "com.joyent:multi_vdev_crash_dump",
        description: "Crash dumps to multiple vdev pools.",
        flags: F::NONE,
        data_type: Boolean,
        depends: [],
        reading: "A dump volume may lie on several vdevs; nothing to do.",
    }
    SpacemapHistogram {
        name: "spacemap_histogram",
        guid: "com.delphix:spacemap_histogram",
        description: "Spacemaps maintain space histograms.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "Space map headers are longer.",
    }
    EnabledTxg {
        name: "enabled_txg",
        guid: "com.delphix:enabled_txg",
        description: "Record txg at which a feature is enabled",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "The MOS says when each feature was enabled.",
    }
    HoleBirth {
        name: "hole_birth",
        guid: "com.delphix:hole_birth",
        description: "Retain hole birth txg for more precise zfs send",
        flags: F::MOS.and(F::ACTIVATE_ON_ENABLE),
        data_type: Boolean,
        depends: [EnabledTxg],
        reading: "Holes carry their birth txg.",
    }
    ExtensibleDataset {
        name: "extensible_dataset",
        guid: "com.delphix:extensible_dataset",
        description: "Enhanced dataset functionality, used by other features.",
        flags: F::NONE,
        data_type: Boolean,
        depends: [],
        reading: "A dataset's object may be a ZAP, whose entries name the features that it uses.",
    }
    EmbeddedData {
        name: "embedded_data",
        guid: "com.delphix:embedded_data",
        description: "Blocks which compress very well use even less space.",
        flags: F::MOS.and(F::ACTIVATE_ON_ENABLE),
        data_type: Boolean,
        depends: [],
        reading: "A block pointer may hold its data itself.",
    }
    Bookmarks {
        name: "bookmarks",
        guid: "com.delphix:bookmarks",
        description: "\"zfs bookmark\" command",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Bookmarks exist.",
    }
    FilesystemLimits {
        name: "filesystem_limits",
        guid: "com.joyent:filesystem_limits",
        description: "Filesystem and snapshot limits.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Datasets count their file systems and snapshots.",
    }
    LargeBlocks {
        name: "large_blocks",
        guid: "org.open-zfs:large_blocks",
        description: "Support for blocks larger than 128KB.",
        flags: F::PER_DATASET,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Blocks may be up to 16 MiB.",
    }
    LargeDnode {
        name: "large_dnode",
        guid: "org.zfsonlinux:large_dnode",
        description: "Variable on-disk size of dnodes.",
        flags: F::PER_DATASET,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Dnodes may take several 512-byte slots.",
    }
    Sha512 {
        name: "sha512",
        guid: "org.illumos:sha512",
        description: "SHA-512/256 hash algorithm.",
        flags: F::PER_DATASET,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Blocks with SHA-512/256 checksums occur.",
    }
    Skein {
        name: "skein",
        guid: "org.illumos:skein",
        description: "Skein hash algorithm.",
        flags: F::PER_DATASET,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Blocks with salted Skein-512/256 checksums occur.",
    }
    Edonr {
        name: "edonr",
        guid: "org.illumos:edonr",
        description: "Edon-R hash algorithm.",
        flags: F::PER_DATASET,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Blocks with salted Edon-R-512 checksums occur.",
    }
    UserobjAccounting {
        name: "userobj_accounting",
        guid: "org.zfsonlinux:userobj_accounting",
        description: "User/Group object accounting.",
        flags: F::READ_ONLY_COMPATIBLE.and(F::PER_DATASET),
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Objects are counted per user and group.",
    }
    Encryption {
        name: "encryption",
        guid: "com.datto:encryption",
        description: "Support for dataset level encryption",
        flags: F::PER_DATASET,
        data_type: Boolean,
        depends: [ExtensibleDataset, BookmarkV2],
        reading: "Datasets may be encrypted; block pointers, intent log and objset headers then have MACs.",
    }
    ProjectQuota {
        name: "project_quota",
        guid: "org.zfsonlinux:project_quota",
        description: "space/object accounting based on project ID.",
        flags: F::READ_ONLY_COMPATIBLE.and(F::PER_DATASET),
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Files have a project id; space and objects are counted by it.",
    }
    DeviceRemoval {
        name: "device_removal",
        guid: "com.delphix:device_removal",
        description: "Top-level vdevs can be removed, reducing logical pool size.",
        flags: F::MOS,
        data_type: Boolean,
        depends: [],
        reading: "A top-level vdev may be indirect: its offsets are mapped to other vdevs.",
    }
    ObsoleteCounts {
        name: "obsolete_counts",
        guid: "com.delphix:obsolete_counts",
        description: "Reduce memory used by removed devices when their blocks are freed or remapped.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [ExtensibleDataset, DeviceRemoval],
        reading: "Indirect mappings count how much of them is no longer needed.",
    }
    ZpoolCheckpoint {
        name: "zpool_checkpoint",
        guid: "com.delphix:zpool_checkpoint",
        description: "Pool state can be checkpointed, allowing rewind later.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "The MOS may hold a checkpointed uberblock, and space maps of what it still needs.",
    }
    SpacemapV2 {
        name: "spacemap_v2",
        guid: "com.delphix:spacemap_v2",
        description: "Space maps representing large segments are more efficient.",
        flags: F::READ_ONLY_COMPATIBLE.and(F::ACTIVATE_ON_ENABLE),
        data_type: Boolean,
        depends: [],
        reading: "Space map entries may take two words.",
    }
    AllocationClasses {
        name: "allocation_classes",
        guid: "org.zfsonlinux:allocation_classes",
        description: "Support for separate allocation classes.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "Top-level vdevs may serve special or dedup blocks only.",
    }
    ResilverDefer {
        name: "resilver_defer",
        guid: "com.datto:resilver_defer",
        description: "Support for deferring new resilvers when one is already running.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "A leaf may wait for the next resilver.",
    }
    BookmarkV2 {
        name: "bookmark_v2",
        guid: "com.datto:bookmark_v2",
        description: "Support for larger bookmarks",
        flags: F::NONE,
        data_type: Boolean,
        depends: [ExtensibleDataset, Bookmarks],
        reading: "Bookmarks may be longer, as encrypted datasets need.",
    }
    RedactionBookmarks {
        name: "redaction_bookmarks",
        guid: "com.delphix:redaction_bookmarks",
        description: "Support for bookmarks which store redaction lists for zfs redacted send/recv.",
        flags: F::NONE,
        data_type: Boolean,
        depends: [BookmarkV2, ExtensibleDataset, Bookmarks],
        reading: "Bookmarks may have a list of redacted blocks.",
    }
    RedactedDatasets {
        name: "redacted_datasets",
        guid: "com.delphix:redacted_datasets",
        description: "Support for redacted datasets, produced by receiving a redacted zfs send stream.",
        flags: F::PER_DATASET,
        data_type: Uint64Array,
        depends: [ExtensibleDataset],
        reading: "Blocks may be redacted: absent on purpose, they can't be read.",
    }
    BookmarkWritten {
        name: "bookmark_written",
        guid: "com.delphix:bookmark_written",
        description: "Additional accounting, enabling the written#<bookmark> property (space written since a bookmark), and estimates of send stream sizes for incrementals from bookmarks.",
        flags: F::NONE,
        data_type: Boolean,
        depends: [BookmarkV2, ExtensibleDataset, Bookmarks],
        reading: "Bookmarks may know what was freed since.",
    }
    LogSpacemap {
        name: "log_spacemap",
        guid: "com.delphix:log_spacemap",
        description: "Log metaslab changes on a single spacemap and flush them periodically.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [SpacemapV2],
        reading: "Recent changes of space maps are in logs of the whole pool, and are applied over them.",
    }
    Livelist {
        name: "livelist",
        guid: "com.delphix:livelist",
        description: "Improved clone deletion performance.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Clones may list the blocks that are theirs alone.",
    }
    DeviceRebuild {
        name: "device_rebuild",
        guid: "org.openzfs:device_rebuild",
        description: "Support for sequential mirror/dRAID device rebuilds",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "A leaf may be rebuilt in device order.",
    }
    ZstdCompress {
        name: "zstd_compress",
        guid: "org.freebsd:zstd_compress",
        description: "zstd compression algorithm support.",
        flags: F::PER_DATASET,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Blocks compressed with zstd occur.",
    }
    Draid {
        name: "draid",
        guid: "org.openzfs:draid",
        description: "Support for distributed spare RAID",
        flags: F::MOS,
        data_type: Boolean,
        depends: [],
        reading: "Distributed-spare RAID vdevs occur.",
    }
    Zilsaxattr {
        name: "zilsaxattr",
        guid: "org.openzfs:zilsaxattr",
        description: "Support for xattr=sa extended attribute logging in ZIL.",
        flags: F::READ_ONLY_COMPATIBLE.and(F::PER_DATASET),
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "The intent log may hold set-extended-attribute records.",
    }
    HeadErrlog {
        name: "head_errlog",
        guid: "com.delphix:head_errlog",
        description: "Support for per-dataset on-disk error logs.",
        flags: F::ACTIVATE_ON_ENABLE,
        data_type: Boolean,
        depends: [],
        reading: "The error log is kept by head dataset, with each block's birth txg.",
    }
    Blake3 {
        name: "blake3",
        guid: "org.openzfs:blake3",
        description: "BLAKE3 hash algorithm.",
        flags: F::PER_DATASET,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Blocks with salted BLAKE3 checksums occur.",
    }
    BlockCloning {
        name: "block_cloning",
        guid: "com.fudosecurity:block_cloning",
        description: "Support for block cloning via Block Reference Table.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "A block may be referenced by several files; a table in the MOS counts the references.",
    }
    VdevZapsV2 {
        name: "vdev_zaps_v2",
        guid: "com.klarasystems:vdev_zaps_v2",
        description: "Support for root vdev ZAP.",
        flags: F::MOS,
        data_type: Boolean,
        depends: [],
        reading: "The root vdev has a ZAP too.",
    }
    RedactionListSpill {
        name: "redaction_list_spill",
        guid: "com.delphix:redaction_list_spill",
        description: "Support for increased number of redaction_snapshot arguments in zfs redact.",
        flags: F::NONE,
        data_type: Boolean,
        depends: [RedactionBookmarks],
        reading: "Redaction bookmarks may keep their snapshot list in a spill block.",
    }
    RaidzExpansion {
        name: "raidz_expansion",
        guid: "org.openzfs:raidz_expansion",
        description: "Support for raidz expansion",
        flags: F::MOS,
        data_type: Boolean,
        depends: [],
        reading: "A raidz vdev may have been widened, or be in the middle of it: old blocks keep their old shape.",
    }
    FastDedup {
        name: "fast_dedup",
        guid: "com.klarasystems:fast_dedup",
        description: "Support for advanced deduplication",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "Dedup tables may have the new form: flat entries, a log, a quota.",
    }
    Longname {
        name: "longname",
        guid: "org.zfsonlinux:longname",
        description: "support filename up to 1024 bytes",
        flags: F::PER_DATASET,
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "Names in directories may be up to 1023 bytes.",
    }
    LargeMicrozap {
        name: "large_microzap",
        guid: "com.klarasystems:large_microzap",
        description: "Support for microzaps larger than 128KB.",
        flags: F::READ_ONLY_COMPATIBLE.and(F::PER_DATASET),
        data_type: Boolean,
        depends: [ExtensibleDataset, LargeBlocks],
        reading: "Micro ZAPs may be larger than 128 KiB.",
    }
    DynamicGangHeader {
        name: "dynamic_gang_header",
        guid: "com.klarasystems:dynamic_gang_header",
        description: "Support for dynamically sized gang headers",
        flags: F::MOS.and(F::NO_UPGRADE),
        data_type: Boolean,
        depends: [],
        reading: "Gang headers may be larger than 512 bytes, as the vdev's sector size allows.",
    }
    BlockCloningEndian {
        name: "block_cloning_endian",
        guid: "com.truenas:block_cloning_endian",
        description: "Fixes BRT ZAP endianness on new pools.",
        flags: F::READ_ONLY_COMPATIBLE,
        data_type: Boolean,
        depends: [],
        reading: "Reference counts of cloned blocks are stored as 64-bit numbers, not as eight bytes.",
    }
    PhysicalRewrite {
        name: "physical_rewrite",
        guid: "com.truenas:physical_rewrite",
        description: "Support for preserving logical birth time during rewrite.",
        flags: F::READ_ONLY_COMPATIBLE.and(F::PER_DATASET),
        data_type: Boolean,
        depends: [ExtensibleDataset],
        reading: "A block pointer may have a physical birth later than its logical birth without being a clone or dedup copy.",
    }
}
