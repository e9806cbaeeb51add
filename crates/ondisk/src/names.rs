//! Names of entries in ZAPs that OpenZFS itself defines.

/// Object of the MOS directory.
#[doc(alias = "DMU_POOL_DIRECTORY_OBJECT")]
pub const MOS_DIRECTORY_OBJECT: u64 = 1;

/// Declares name constants of one ZAP.
macro_rules! names {
    ($(#[$doc:meta])* $module:ident { $($konst:ident = $text:literal;)* }) => {
        $(#[$doc])*
        #[expect(missing_docs, reason = "the names are ZFS's own")]
        pub mod $module { $(pub const $konst: &str = $text;)* }
    };
}

names! {
    /// The MOS directory. Source: `DMU_POOL_*`, dmu.h.
    mos {
        CONFIG = "config";
        FEATURES_FOR_WRITE = "features_for_write";
        FEATURES_FOR_READ = "features_for_read";
        FEATURE_DESCRIPTIONS = "feature_descriptions";
        FEATURE_ENABLED_TXG = "feature_enabled_txg";
        ROOT_DATASET = "root_dataset";
        SYNC_BPOBJ = "sync_bplist";
        ERRLOG_SCRUB = "errlog_scrub";
        ERRLOG_LAST = "errlog_last";
        SPARES = "spares";
        DEFLATE = "deflate";
        HISTORY = "history";
        PROPS = "pool_props";
        L2CACHE = "l2cache";
        TMP_USERREFS = "tmp_userrefs";
        DDT_STATS = "DDT-statistics";
        CREATION_VERSION = "creation_version";
        SCAN = "scan";
        ERRORSCRUB = "error_scrub";
        LAST_SCRUBBED_TXG = "last_scrubbed_txg";
        TXG_LOG_TIME_MINUTES = "com.klarasystems:txg_log_time:minutes";
        TXG_LOG_TIME_DAYS = "com.klarasystems:txg_log_time:days";
        TXG_LOG_TIME_MONTHS = "com.klarasystems:txg_log_time:months";
        FREE_BPOBJ = "free_bpobj";
        BPTREE_OBJ = "bptree_obj";
        EMPTY_BPOBJ = "empty_bpobj";
        CHECKSUM_SALT = "org.illumos:checksum_salt";
        VDEV_ZAP_MAP = "com.delphix:vdev_zap_map";
        REMOVING = "com.delphix:removing";
        OBSOLETE_BPOBJ = "com.delphix:obsolete_bpobj";
        CONDENSING_INDIRECT = "com.delphix:condensing_indirect";
        ZPOOL_CHECKPOINT = "com.delphix:zpool_checkpoint";
        LOG_SPACEMAP_ZAP = "com.delphix:log_spacemap_zap";
        DELETED_CLONES = "com.delphix:deleted_clones";
        /* A vdev's number follows. */
        BRT_VDEV_PREFIX = "com.fudosecurity:brt:vdev:";
    }
}

names! {
    /// A DSL directory that is a ZAP. Source: `DD_FIELD_*`, dsl_dir.h.
    dsl_dir {
        FILESYSTEM_COUNT = "com.joyent:filesystem_count";
        SNAPSHOT_COUNT = "com.joyent:snapshot_count";
        CRYPTO_KEY_OBJ = "com.datto:crypto_key_obj";
        LIVELIST = "com.delphix:livelist";
        SNAPSHOTS_CHANGED = "com.ixsystems:snapshots_changed";
    }
}

names! {
    /// Hidden directories below the pool's root.
    special_dir {
        MOS = "$MOS";
        ORIGIN = "$ORIGIN";
        FREE = "$FREE";
        LEAK = "$LEAK";
    }
}

names! {
    /// A dataset that is a ZAP. Source: `DS_FIELD_*`, dsl_dataset.h.
    dsl_dataset {
        BOOKMARK_NAMES = "com.delphix:bookmarks";
        LARGE_DNODE = "org.zfsonlinux:large_dnode";
        RESUME_FROMGUID = "com.delphix:resume_fromguid";
        RESUME_TONAME = "com.delphix:resume_toname";
        RESUME_TOGUID = "com.delphix:resume_toguid";
        RESUME_OBJECT = "com.delphix:resume_object";
        RESUME_OFFSET = "com.delphix:resume_offset";
        RESUME_BYTES = "com.delphix:resume_bytes";
        RESUME_LARGEBLOCK = "com.delphix:resume_largeblockok";
        RESUME_EMBEDOK = "com.delphix:resume_embedok";
        RESUME_COMPRESSOK = "com.delphix:resume_compressok";
        RESUME_RAWOK = "com.datto:resume_rawok";
        REMAP_DEADLIST = "com.delphix:remap_deadlist";
        RESUME_REDACT_BOOKMARK_SNAPS = "com.delphix:resume_redact_book_snaps";
        IVSET_GUID = "com.datto:ivset_guid";
    }
}

names! {
    /// A wrapped key. Source: `DSL_CRYPTO_KEY_*`, dsl_crypt.h; the others are property names.
    crypto_key {
        SUITE = "DSL_CRYPTO_SUITE";
        GUID = "DSL_CRYPTO_GUID";
        IV = "DSL_CRYPTO_IV";
        MAC = "DSL_CRYPTO_MAC";
        MASTER_KEY = "DSL_CRYPTO_MASTER_KEY_1";
        HMAC_KEY = "DSL_CRYPTO_HMAC_KEY_1";
        ROOT_DDOBJ = "DSL_CRYPTO_ROOT_DDOBJ";
        REFCOUNT = "DSL_CRYPTO_REFCOUNT";
        VERSION = "DSL_CRYPTO_VERSION";
        KEYFORMAT = "keyformat";
        PBKDF2_ITERS = "pbkdf2iters";
        PBKDF2_SALT = "pbkdf2salt";
    }
}

names! {
    /// A dedup table's own directory (`fast_dedup`). Source: ddt_impl.h.
    ddt_dir {
        VERSION = "version";
        FLAGS = "flags";
    }
}

names! {
    /// A top-level vdev's ZAP. Source: `VDEV_TOP_ZAP_*`, fs/zfs.h.
    vdev_top {
        INDIRECT_OBSOLETE_SM = "com.delphix:indirect_obsolete_sm";
        OBSOLETE_COUNTS_ARE_PRECISE = "com.delphix:obsolete_counts_are_precise";
        POOL_CHECKPOINT_SM = "com.delphix:pool_checkpoint_sm";
        MS_UNFLUSHED_PHYS_TXGS = "com.delphix:ms_unflushed_phys_txgs";
        VDEV_REBUILD_PHYS = "org.openzfs:vdev_rebuild";
        ALLOCATION_BIAS = "org.zfsonlinux:allocation_bias";
        RAIDZ_EXPAND_STATE = "org.openzfs:raidz_expand_state";
        RAIDZ_EXPAND_START_TIME = "org.openzfs:raidz_expand_start_time";
        RAIDZ_EXPAND_END_TIME = "org.openzfs:raidz_expand_end_time";
        RAIDZ_EXPAND_BYTES_COPIED = "org.openzfs:raidz_expand_bytes_copied";
    }
}

names! {
    /// A leaf vdev's ZAP. Source: `VDEV_LEAF_ZAP_*`, fs/zfs.h.
    vdev_leaf {
        INITIALIZE_LAST_OFFSET = "com.delphix:next_offset_to_initialize";
        INITIALIZE_STATE = "com.delphix:vdev_initialize_state";
        INITIALIZE_ACTION_TIME = "com.delphix:vdev_initialize_action_time";
        TRIM_LAST_OFFSET = "org.zfsonlinux:next_offset_to_trim";
        TRIM_STATE = "org.zfsonlinux:vdev_trim_state";
        TRIM_ACTION_TIME = "org.zfsonlinux:vdev_trim_action_time";
        TRIM_RATE = "org.zfsonlinux:vdev_trim_rate";
        TRIM_PARTIAL = "org.zfsonlinux:vdev_trim_partial";
        TRIM_SECURE = "org.zfsonlinux:vdev_trim_secure";
    }
}

names! {
    /// A file system's master node, object 1. Quotas by user and kin have their property's name.
    master_node {
        VERSION = "VERSION";
        FSID = "FSID";
        ROOT = "ROOT";
        UNLINKED_SET = "DELETE_QUEUE";
        FUID_TABLES = "FUID";
        SHARES_DIR = "SHARES";
        SA_ATTRS = "SA_ATTRS";
        UTF8ONLY = "utf8only";
        NORMALIZATION = "normalization";
        CASESENSITIVITY = "casesensitivity";
        USERQUOTA = "userquota@";
        GROUPQUOTA = "groupquota@";
        PROJECTQUOTA = "projectquota@";
        USEROBJQUOTA = "userobjquota@";
        GROUPOBJQUOTA = "groupobjquota@";
        PROJECTOBJQUOTA = "projectobjquota@";
        DEFAULTUSERQUOTA = "defaultuserquota";
        DEFAULTGROUPQUOTA = "defaultgroupquota";
        DEFAULTPROJECTQUOTA = "defaultprojectquota";
        DEFAULTUSEROBJQUOTA = "defaultuserobjquota";
        DEFAULTGROUPOBJQUOTA = "defaultgroupobjquota";
        DEFAULTPROJECTOBJQUOTA = "defaultprojectobjquota";
    }
}

/// Quotas of those that have none of their own, in OpenZFS's order.
pub const DEFAULT_QUOTAS: [&str; 6] = [
    master_node::DEFAULTUSERQUOTA,
    master_node::DEFAULTGROUPQUOTA,
    master_node::DEFAULTPROJECTQUOTA,
    master_node::DEFAULTUSEROBJQUOTA,
    master_node::DEFAULTGROUPOBJQUOTA,
    master_node::DEFAULTPROJECTOBJQUOTA,
];

/// Object of a file system's master node.
#[doc(alias = "MASTER_NODE_OBJ")]
pub const MASTER_NODE_OBJECT: u64 = 1;
/// Object of a volume's data.
#[doc(alias = "ZVOL_OBJ")]
pub const ZVOL_OBJECT: u64 = 1;
/// Object of a volume's properties (the entry "size").
#[doc(alias = "ZVOL_ZAP_OBJ")]
pub const ZVOL_ZAP_OBJECT: u64 = 2;
/// Prefix of object counts in the user-used objects.
#[doc(alias = "DMU_OBJACCT_PREFIX")]
pub const OBJACCT_PREFIX: &str = "obj-";
/// Object that stands for space by user, in an object set's head.
pub const USERUSED_OBJECT: u64 = u64::MAX;
/// Object that stands for space by group.
pub const GROUPUSED_OBJECT: u64 = u64::MAX - 1;
/// Object that stands for space by project.
pub const PROJECTUSED_OBJECT: u64 = u64::MAX - 2;

/// Name of a dedup table in the MOS directory, or in the table's own directory with `fast_dedup`.
#[doc(alias = "DMU_POOL_DDT")]
pub fn ddt(checksum: &str, ddt_type: &str, class: &str) -> String {
    format!("DDT-{checksum}-{ddt_type}-{class}")
}

/// Name of a dedup table's own directory in the MOS directory.
#[doc(alias = "DMU_POOL_DDT_DIR")]
pub fn ddt_directory(checksum: &str) -> String {
    format!("DDT-{checksum}")
}

/// Name of a dedup log (`n` 0 or 1) in the table's own directory.
#[doc(alias = "DMU_POOL_DDT_LOG")]
pub fn ddt_log(checksum: &str, n: u32) -> String {
    format!("DDT-log-{checksum}-{n}")
}
