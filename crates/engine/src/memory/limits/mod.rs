//! The memory limits of the process, under the names of OpenZFS's module parameters.
//!
//! A table of words that any thread may read and set at any time: their users read them anew each time. This module
//! defines the valid values and the meaning of 0, but not the syntax in files and commands.

mod table;

use std::sync::atomic::{AtomicU64, Ordering};

pub use table::LIMITS;

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// Maximum bytes of cached blocks.
    ArcMax,
    /// Bytes of them that stay when the system is short of memory.
    ArcMin,
    /// Bytes of available system memory below which the cache shrinks.
    ArcSysFree,
    /// Maximum bytes of a pool's unwritten changes.
    DirtyMax,
    /// Percentage of them at which a txg is closed early.
    DirtySyncPercent,
    /// Percentage of them above which changes are delayed.
    DelayMinDirtyPercent,
    /// Scale of the delays.
    DelayScale,
    /// Maximum time before a change is written.
    TxgTimeout,
    /// Whether users other than the pools' owner are prevented from viewing them.
    PrivatePools,
    /// Maximum blocks freed by one txg.
    AsyncBlockMax,
    /// Percentage of the dirty limit that blocks to be freed may take.
    DirtyFreesPercent,
    /// Minimum scrub time of a txg, even if other work waits for the txg.
    ScrubMinTime,
    /// The same for a resilver.
    ResilverMinTime,
    /// Memory for the part of a checkpoint that one txg discards.
    DiscardMemory,
    /// Bytes of a write of `zpool initialize`.
    InitializeChunk,
    /// The word that `zpool initialize` writes.
    InitializeValue,
    /// Maximum range of one trim.
    TrimExtentMax,
    /// Shorter ranges are not trimmed.
    TrimExtentMin,
    /// Txgs between two automatic trims of a metaslab.
    TrimTxgBatch,
    /// Share of a mapping that must be obsolete for it to be condensed.
    CondenseObsoletePercent,
    /// Mappings up to this size are not condensed for that.
    CondenseMinMapping,
    /// Size of an obsolete space map from which on its mapping is condensed.
    CondenseMaxObsolete,
    /// Maximum bytes of indices of dedup tables.
    DedupIndexMax,
    /// gzip by the fast encoder with dedup, too.
    DedupFastGzip,
    /// Maximum bytes written to a cache device in one interval.
    L2WriteMax,
    /// Bytes added to that until blocks are evicted from memory.
    L2WriteBoost,
    /// Seconds between two rounds of writing to a cache device.
    L2FeedSecs,
    /// The same in milliseconds, after a round that wrote much.
    L2FeedMinMs,
    /// Whether a round that wrote much is followed by the next one soon.
    L2FeedAgain,
    /// Whether blocks that were read ahead and not used are excluded.
    L2NoPrefetch,
    /// Whether only blocks seen more than once are written.
    L2MfuOnly,
    /// Whether blocks on special and dedup vdevs are excluded.
    L2ExcludeSpecial,
    /// Maximum percentage of the memory for blocks that headers may take.
    L2MetaPercent,
    /// Whether contents are restored at import.
    L2RebuildEnabled,
    /// Size of a device from which on it gets log blocks.
    L2RebuildMinSize,
    /// Whether scrubs and resilvers make no progress.
    ScanSuspend,
    /// Milliseconds after which a request counts as slow.
    SlowIoMs,
    /// Maximum events of slow requests per second and disk.
    SlowIoEvents,
    /// Seconds for which a slow disk sits out; 0: none does.
    #[doc(alias = "vdev_read_sit_out_secs")]
    SitOutSecs,
    /// Milliseconds between two comparisons of a vdev's disks.
    #[doc(alias = "vdev_raidz_outlier_check_interval_ms")]
    OutlierCheckMs,
    /// Interquartile ranges from the upper quartile to the latency of a slow disk.
    #[doc(alias = "vdev_raidz_outlier_insensitivity")]
    OutlierInsensitivity,
    /// Whether logs of space map changes are kept at export.
    KeepSpaceLogs,
    /// Whether a scrub follows a sequential reconstruction.
    RebuildScrub,
    /// Whether removals of vdevs make no progress.
    RemovalSuspend,
    /// Bytes of a raidz expansion after which it makes no progress.
    ExpandMaxReflow,
    /// Whether read-ahead is off.
    PrefetchDisable,
    /// Milliseconds between two heartbeats of a pool with `multihost`.
    MultihostInterval,
    /// Intervals without a heartbeat after which the pool is suspended.
    MultihostFail,
    /// Intervals that an import waits.
    MultihostImport,
    /// Share of a clone that it must have in common with its origin for a livelist.
    LivelistShared,
    /// Whether blocks are cloned.
    CloneEnabled,
    /// Whether redacted datasets are mounted on request.
    RedactedMount,
    /// Bytes of devices that a scan has under way at once.
    ScanInflight,
    /// Blocks of the log of errors that one txg scrubs.
    ScrubErrorBlocks,
    /// Seconds between two notes of which txg was written when.
    NoteTxgTime,
    /// Seconds after which these notes are written to the pool.
    FlushTxgTime,
    /// Txgs for which the active side of a dedup log takes records.
    DedupLogTxgMax,
    /// Memory for both sides of the log of a dedup table.
    DedupLogMemMax,
    /// Txgs in which all of a dedup log should be flushed.
    DedupFlushTxgs,
    /// Minimum entries that a txg flushes.
    DedupFlushMin,
    /// Maximum entries that a txg flushes.
    DedupFlushMax,
    /// Minimum time for flushes in a txg that is waited for.
    DedupFlushTime,
    /// Entries of a dedup log above which more are flushed.
    DedupLogCap,
    /// Whether that also raises the minimum.
    DedupLogHardCap,
    /// Whether a clone waits for unwritten blocks.
    CloneWaitDirty,
    /// Whether streams have all holes of unknown birth.
    SendOldHoles,
    /// Record size that estimates of streams assume; 0: the dataset's.
    EstimateRecordSize,
    /// Maximum size of a micro ZAP.
    MicroZapMax,
    /// Whether devices with too many errors are degraded or faulted, and hot spares take over, by themselves.
    FaultAgents,
    /// Log2 of the physical sector of files.
    #[doc(alias = "vdev_file_physical_ashift")]
    FilePhysicalAshift,
    /// Log2 of the logical sector of files.
    #[doc(alias = "vdev_file_logical_ashift")]
    FileLogicalAshift,
    /// Log2 of the largest physical sector that raises the sector shift of a new vdev.
    #[doc(alias = "zfs_vdev_max_auto_ashift")]
    MaxAutoAshift,
    /// Percent of a resilver from which on another one is deferred.
    #[doc(alias = "zfs_resilver_defer_percent")]
    ResilverDefer,
    /// Percent of the special class that only metadata takes.
    #[doc(alias = "zfs_special_class_metadata_reserve_pct")]
    SpecialReserve,
    /// Bytes from which on blocks may be forced to become gangs.
    #[doc(alias = "metaslab_force_ganging")]
    ForceGanging,
    /// Percent of such blocks that become gangs.
    #[doc(alias = "metaslab_force_ganging_pct")]
    ForceGangingPercent,
    /// Bytes that a removal copies as one piece at most.
    #[doc(alias = "zfs_remove_max_segment")]
    RemoveMaxSegment,
    /// Whether a removal goes on after an error of a device that another side makes up for.
    #[doc(alias = "zfs_removal_ignore_errors")]
    RemovalIgnoreErrors,
    /// Milliseconds that condensing waits with each entry of a mapping.
    #[doc(alias = "zfs_condense_indirect_commit_entry_delay_ms")]
    CondenseDelay,
    /// Whether metaslabs that were never allocated from are skipped by `zpool trim`.
    #[doc(alias = "zfs_trim_metaslab_skip")]
    TrimMetaslabSkip,
    /// Least number of metaslabs of a new vdev.
    #[doc(alias = "zfs_vdev_min_ms_count")]
    MinMetaslabs,
    /// Vdevs of more metaslabs keep one for the intent log.
    #[doc(alias = "zfs_embedded_slog_min_ms")]
    EmbeddedLogMin,
    /// Bytes on disk that a changed byte is taken to need, at least.
    #[doc(alias = "spa_asize_inflation")]
    AsizeInflation,
    /// Whether scans read blocks in the order in which they meet them.
    #[doc(alias = "zfs_scan_legacy")]
    ScanLegacy,
    /// The part of the machine's memory that blocks may take which scans have still to read.
    ScanMemFact,
    /// Seconds after which a scan reads all gathered blocks, to save its position.
    ScanCheckpoint,
    /// Events of a pool that are kept.
    #[doc(alias = "zfs_zevent_len_max")]
    EventsMax,
    /// Whether changes of extended attributes in system attributes are logged.
    #[doc(alias = "zfs_zil_saxattr")]
    LogXattrs,
    /// Whether raw streams are received without a matching IV set guid.
    NoIvsetCheck,
    /// Txgs whose statistics are kept.
    TxgHistory,
    /// Components of a dataset's name.
    #[doc(alias = "zfs_max_dataset_nesting")]
    Nesting,
    /// Allocations after which a livelist begins another list.
    #[doc(alias = "zfs_livelist_max_entries")]
    LivelistMax,
    /// Whether slow levels of zstd are tried only after LZ4 or level 1 has shortened a block.
    #[doc(alias = "zstd_earlyabort_pass")]
    ZstdEarlyAbort,
    /// Blocks from this length on are tried so.
    #[doc(alias = "zstd_abort_size")]
    ZstdAbortSize,
    /// Whether a scrub follows the expansion of a raidz.
    #[doc(alias = "zfs_scrub_after_expand")]
    ScrubAfterExpand,
    /// Whether a rewind reads metadata of a state first.
    #[doc(alias = "spa_load_verify_metadata")]
    LoadVerifyMetadata,
    /// Whether it reads data, too.
    #[doc(alias = "spa_load_verify_data")]
    LoadVerifyData,
    /// Percentage of a round of a cache device that is trimmed ahead of it.
    #[doc(alias = "l2arc_trim_ahead")]
    L2TrimAhead,
    /// Top-level vdevs that a pool which is only read may lack.
    #[doc(alias = "zfs_max_missing_tvds")]
    MaxMissingTops,
    /// Percent of the time that jobs in the background work beside others.
    JobShare,
    /// Whether all metaslabs are loaded as soon as a pool is imported, and stay so.
    #[doc(alias = "metaslab_debug_load")]
    LoadMetaslabs,
}

/// The description of a setting.
#[derive(Debug, Clone, Copy)]
pub struct Info {
    /// The setting.
    pub limit: Limit,
    /// Its name in OpenZFS.
    pub name: &'static str,
    /// Whether it counts bytes.
    pub bytes: bool,
    /// Minimum value; a setting with a special meaning of 0 may be 0 nevertheless.
    pub(crate) least: u64,
    /// Maximum value.
    pub(crate) most: u64,
    /// Its value in an engine without configuration.
    pub(crate) plain: u64,
    /// Whether 0 selects the machine-dependent default.
    pub(crate) zero_is_default: bool,
    /// One sentence for documentation.
    pub about: &'static str,
}

const MIB: u64 = 1 << 20;

/// The value -1 of a setting that takes it ([`Info::takes_minus_one`]).
pub const MINUS_ONE: u64 = u64::MAX - 1;

/// The word of a setting that is 0, where that is not its default.
const EXPLICIT_ZERO: u64 = u64::MAX;

impl Info {
    /// Whether 0 is a value of its own.
    fn takes_zero(&self) -> bool {
        self.least == 0 && !self.zero_is_default
    }

    /// Whether -1 is one of its values.
    pub fn takes_minus_one(&self) -> bool {
        self.limit == Limit::LivelistShared
    }

    /// A value in digits.
    pub fn digits(&self, value: u64) -> String {
        if value == MINUS_ONE && self.takes_minus_one() { "-1".to_owned() } else { value.to_string() }
    }
}

impl Limit {
    /// Its description.
    pub fn info(self) -> &'static Info {
        #[expect(clippy::indexing_slicing, reason = "the table has a row for each, in their order")]
        &LIMITS[self as usize]
    }

    /// The setting with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        LIMITS.iter().find(|info| info.name == name).map(|info| info.limit)
    }
}

/// The current values.
#[derive(Debug)]
pub struct Limits {
    words: [AtomicU64; LIMITS.len()],
    /// The meaning of 0 on this machine; 0 selects the plain default.
    defaults: [u64; LIMITS.len()],
    /// Bytes of the machine's memory.
    machine: u64,
}

/// Bytes of memory where the machine is unknown: four times the default of `zfs_arc_max` there.
const UNKNOWN_MACHINE: u64 = 1 << 30;

impl Default for Limits {
    fn default() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            defaults: [0; LIMITS.len()],
            machine: UNKNOWN_MACHINE,
        }
    }
}

impl Limits {
    /// All defaults, derived from the size of the memory.
    #[doc(alias("arc_default_max", "arc_set_sys_free", "arc_set_limits"))]
    pub fn of_machine(memory: u64) -> Self {
        let mut limits = Self { machine: memory, ..Self::default() };
        let rules = [
            (Limit::ArcMax, (memory / 4).max(64 * MIB)),
            (Limit::ArcMin, (memory / 32).max(32 * MIB)),
            (Limit::ArcSysFree, (memory / 64).max(512 << 10)),
            (Limit::DirtyMax, (memory / 10).clamp(MIB, 512 * MIB)),
            (Limit::DedupIndexMax, (memory / 64).clamp(16 * MIB, 512 * MIB)),
            (Limit::DedupLogMemMax, (memory / 100).max(4 * MIB)),
        ];
        for (limit, value) in rules {
            if let Some(default) = limits.defaults.get_mut(limit as usize) {
                *default = value;
            }
        }
        limits
    }

    fn word(&self, limit: Limit) -> &AtomicU64 {
        #[expect(clippy::indexing_slicing, reason = "one word for each setting")]
        &self.words[limit as usize]
    }

    /// Bytes of the machine's memory, or of the control group's limit.
    pub fn machine(&self) -> u64 {
        self.machine
    }

    /// The configured value; 0 if there is none.
    pub fn stored(&self, limit: Limit) -> u64 {
        match self.word(limit).load(Ordering::Relaxed) {
            EXPLICIT_ZERO if limit.info().takes_zero() => 0,
            word => word,
        }
    }

    /// The value in effect.
    pub fn get(&self, limit: Limit) -> u64 {
        match (self.word(limit).load(Ordering::Relaxed), self.defaults.get(limit as usize)) {
            (EXPLICIT_ZERO, _) if limit.info().takes_zero() => 0,
            (0, Some(0) | None) => limit.info().plain,
            (0, Some(&default)) => default,
            (set, _) => set,
        }
    }

    /// Whether a switch is on.
    pub fn is_on(&self, limit: Limit) -> bool {
        self.get(limit) != 0
    }

    /// Sets a value; 0 restores the default.
    ///
    /// # Errors
    /// A message, if the value is out of bounds.
    pub fn set(&self, limit: Limit, value: u64) -> Result<(), String> {
        let info = limit.info();
        let default = value == 0 && info.zero_is_default;
        let is_bounded = value != MINUS_ONE || !info.takes_minus_one();
        if !default && is_bounded && !(info.least..=info.most).contains(&value) {
            let range = match info.most {
                u64::MAX => format!("at least {}", info.least),
                most => format!("from {} to {most}", info.least),
            };
            return Err(format!("{} is {range}", info.name));
        }
        let word = if value == 0 && info.takes_zero() { EXPLICIT_ZERO } else { value };
        self.word(limit).store(word, Ordering::Relaxed);
        Ok(())
    }

    /// That percentage of the limit of dirty bytes.
    pub(crate) fn dirty_share(&self, percent: Limit) -> u64 {
        let (most, percent) = (u128::from(self.get(Limit::DirtyMax)), u128::from(self.get(percent)));
        u64::try_from(most * percent / 100).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_settings() {
        for (at, info) in LIMITS.iter().enumerate() {
            assert_eq!(info.limit as usize, at);
            assert_eq!(Limit::from_name(info.name), Some(info.limit));
        }
        assert_eq!(Limit::from_name("zfs_nonsense"), None);
    }

    #[test]
    fn zero_is_the_default_and_bounds_hold() {
        let limits = Limits::of_machine(16 << 30);
        assert_eq!(limits.get(Limit::ArcMax), 4 << 30);
        limits.set(Limit::ArcMax, 100).unwrap();
        assert_eq!(limits.get(Limit::ArcMax), 100);
        limits.set(Limit::ArcMax, 0).unwrap();
        assert_eq!(limits.get(Limit::ArcMax), 4 << 30);
        assert!(limits.set(Limit::TxgTimeout, 0).is_err());
        assert_eq!(limits.get(Limit::L2NoPrefetch), 1);
        limits.set(Limit::L2NoPrefetch, 0).unwrap();
        assert_eq!((limits.get(Limit::L2NoPrefetch), limits.stored(Limit::L2NoPrefetch)), (0, 0));
        limits.set(Limit::LivelistShared, MINUS_ONE).unwrap();
        assert_eq!(limits.get(Limit::LivelistShared), MINUS_ONE);
        assert!(limits.set(Limit::L2NoPrefetch, MINUS_ONE).is_err());
        assert_eq!(
            limits.set(Limit::DelayMinDirtyPercent, 100).unwrap_err(),
            "zfs_delay_min_dirty_percent is from 1 to 99"
        );
        assert_eq!(Limits::of_machine(1 << 30).get(Limit::DirtyMax), (1 << 30) / 10);
        assert_eq!(limits.dirty_share(Limit::DelayMinDirtyPercent), (512 << 20) * 60 / 100);
    }
}
