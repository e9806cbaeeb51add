//! The memory limits of the process, under the names of OpenZFS's module parameters.
//!
//! A table of words that any thread may read and set at any time: their users read them anew each time. This module
//! defines the valid values and the meaning of 0, but not the syntax in files and commands.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Whether blocks that were read ahead and not used are left out.
    L2NoPrefetch,
    /// Whether only blocks seen more than once are written.
    L2MfuOnly,
    /// Whether blocks on special and dedup vdevs are left out.
    L2ExcludeSpecial,
    /// Maximum percentage of the memory for blocks that headers may take.
    L2MetaPercent,
    /// Whether contents are restored at import.
    L2RebuildEnabled,
    /// Size of a device from which on it gets log blocks.
    L2RebuildMinSize,
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
    pub least: u64,
    /// Maximum value.
    pub most: u64,
    /// Its value in an engine without configuration.
    pub plain: u64,
    /// Whether 0 selects the machine-dependent default.
    pub zero_is_default: bool,
    /// One sentence for documentation.
    pub about: &'static str,
}

const MIB: u64 = 1 << 20;

/// All settings.
pub const LIMITS: [Info; 34] = [
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
    Info {
        limit: Limit::ArcMin,
        name: "zfs_arc_min",
        bytes: true,
        least: 0,
        most: u64::MAX,
        plain: 0,
        zero_is_default: true,
        about: "Bytes of blocks that stay in memory when the machine is short of it. \
                Default: a 32nd of the machine's memory, at least 32 MiB, at most half of zfs_arc_max.",
    },
    Info {
        limit: Limit::ArcSysFree,
        name: "zfs_arc_sys_free",
        bytes: true,
        least: 0,
        most: u64::MAX,
        plain: 0,
        zero_is_default: true,
        about: "Bytes of available memory below which blocks are given up, down to zfs_arc_min. \
                Default: a 64th of the machine's memory, at least 512 KiB.",
    },
    Info {
        limit: Limit::DirtyMax,
        name: "zfs_dirty_data_max",
        bytes: true,
        least: MIB,
        most: u64::MAX,
        plain: 512 * MIB,
        zero_is_default: true,
        about: "Bytes of one pool that may be changed and not yet written; writers wait for the disks then. \
                Default: a tenth of the machine's memory, at most 512 MiB.",
    },
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
        most: 3600,
        plain: 5,
        zero_is_default: false,
        about: "Seconds after which a transaction group with changes is written. Default: 5.",
    },
    Info {
        limit: Limit::PrivatePools,
        name: "aquifer_private_pools",
        bytes: false,
        least: 0,
        most: 1,
        plain: 0,
        zero_is_default: true,
        about: "1: users other than the owner of the pools may not look at them (list, get, status, …); what `zfs allow` \
                gave them they may do all the same. Default: 0.",
    },
    Info {
        limit: Limit::AsyncBlockMax,
        name: "zfs_async_block_max_blocks",
        bytes: false,
        least: 1,
        most: u64::MAX,
        plain: 100_000,
        zero_is_default: true,
        about: "Blocks of destroyed datasets, and of files that are removed or cut, that one transaction group frees. \
                Default: 100000.",
    },
    Info {
        limit: Limit::DirtyFreesPercent,
        name: "zfs_per_txg_dirty_frees_percent",
        bytes: false,
        least: 1,
        most: 100,
        plain: 30,
        zero_is_default: true,
        about: "Percent of zfs_dirty_data_max that blocks to be freed may take in one transaction group. Default: 30.",
    },
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
    Info {
        limit: Limit::DiscardMemory,
        name: "zfs_spa_discard_memory_limit",
        bytes: true,
        least: 1,
        most: u64::MAX,
        plain: 16 * MIB,
        zero_is_default: true,
        about: "Bytes of memory for what one transaction group discards of a checkpoint. Default: 16 MiB.",
    },
    Info {
        limit: Limit::InitializeChunk,
        name: "zfs_initialize_chunk_size",
        bytes: true,
        least: 512,
        most: 16 * MIB,
        plain: MIB,
        zero_is_default: true,
        about: "Bytes that `zpool initialize` writes at once. Default: 1 MiB.",
    },
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
    Info {
        limit: Limit::TrimExtentMax,
        name: "zfs_trim_extent_bytes_max",
        bytes: true,
        least: 1 << 16,
        most: u64::MAX,
        plain: 128 * MIB,
        zero_is_default: true,
        about: "Bytes that are trimmed at once. Default: 128 MiB.",
    },
    Info {
        limit: Limit::TrimExtentMin,
        name: "zfs_trim_extent_bytes_min",
        bytes: true,
        least: 1,
        most: u64::MAX,
        plain: 32 << 10,
        zero_is_default: true,
        about: "Shorter ranges of free space are not trimmed. Default: 32 KiB.",
    },
    Info {
        limit: Limit::TrimTxgBatch,
        name: "zfs_trim_txg_batch",
        bytes: false,
        least: 1,
        most: 1 << 20,
        plain: 32,
        zero_is_default: true,
        about: "Transaction groups between two automatic trims of freed space. Default: 32.",
    },
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
    Info {
        limit: Limit::L2WriteMax,
        name: "l2arc_write_max",
        bytes: true,
        least: 1,
        most: u64::MAX,
        plain: 32 * MIB,
        zero_is_default: true,
        about: "Bytes that a cache device is fed in one interval at most. Default: 32 MiB.",
    },
    Info {
        limit: Limit::L2WriteBoost,
        name: "l2arc_write_boost",
        bytes: true,
        least: 0,
        most: u64::MAX,
        plain: 32 * MIB,
        zero_is_default: false,
        about: "Bytes added to l2arc_write_max until the cache of blocks has been full once. Default: 32 MiB.",
    },
    Info {
        limit: Limit::L2FeedSecs,
        name: "l2arc_feed_secs",
        bytes: false,
        least: 1,
        most: 3600,
        plain: 1,
        zero_is_default: true,
        about: "Seconds between two rounds of feeding a cache device. Default: 1.",
    },
    Info {
        limit: Limit::L2FeedMinMs,
        name: "l2arc_feed_min_ms",
        bytes: false,
        least: 1,
        most: 3_600_000,
        plain: 200,
        zero_is_default: true,
        about: "Milliseconds between them after a round that wrote more than half of what it was allowed to. Default: 200.",
    },
    Info {
        limit: Limit::L2FeedAgain,
        name: "l2arc_feed_again",
        bytes: false,
        least: 0,
        most: 1,
        plain: 1,
        zero_is_default: false,
        about: "1: after a round that wrote much the next one begins after l2arc_feed_min_ms. Default: 1.",
    },
    Info {
        limit: Limit::L2NoPrefetch,
        name: "l2arc_noprefetch",
        bytes: false,
        least: 0,
        most: 1,
        plain: 1,
        zero_is_default: false,
        about: "1: blocks that were read ahead and not used are not written to cache devices. Default: 1.",
    },
    Info {
        limit: Limit::L2MfuOnly,
        name: "l2arc_mfuonly",
        bytes: false,
        least: 0,
        most: 2,
        plain: 0,
        zero_is_default: true,
        about: "1: only blocks seen more than once are written to cache devices; 2: of metadata all. Default: 0.",
    },
    Info {
        limit: Limit::L2ExcludeSpecial,
        name: "l2arc_exclude_special",
        bytes: false,
        least: 0,
        most: 1,
        plain: 0,
        zero_is_default: true,
        about: "1: blocks on special and dedup vdevs are not written to cache devices. Default: 0.",
    },
    Info {
        limit: Limit::L2MetaPercent,
        name: "l2arc_meta_percent",
        bytes: false,
        least: 0,
        most: 100,
        plain: 33,
        zero_is_default: false,
        about: "Percent of zfs_arc_max that the headers of what is on cache devices may take. Default: 33.",
    },
    Info {
        limit: Limit::L2RebuildEnabled,
        name: "l2arc_rebuild_enabled",
        bytes: false,
        least: 0,
        most: 1,
        plain: 1,
        zero_is_default: false,
        about: "1: an import restores the contents of cache devices. Default: 1.",
    },
    Info {
        limit: Limit::L2RebuildMinSize,
        name: "l2arc_rebuild_blocks_min_l2size",
        bytes: true,
        least: 0,
        most: u64::MAX,
        plain: 1 << 30,
        zero_is_default: false,
        about: "Cache devices below this size get no log blocks, so that their contents end with the import. Default: 1 GiB.",
    },
];

/// The word of a setting that is 0, where that is not its default.
const EXPLICIT_ZERO: u64 = u64::MAX;

impl Info {
    /// Whether 0 is a value of its own.
    fn takes_zero(&self) -> bool {
        self.least == 0 && !self.zero_is_default
    }
}

impl Limit {
    /// Its description.
    pub fn info(self) -> &'static Info {
        #[expect(
            clippy::indexing_slicing,
            reason = "the table has a row for each, in their order: see the test"
        )]
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
}

impl Default for Limits {
    fn default() -> Self {
        Self { words: std::array::from_fn(|_| AtomicU64::new(0)), defaults: [0; LIMITS.len()] }
    }
}

impl Limits {
    /// All defaults, derived from the size of the memory.
    #[doc(alias("arc_default_max", "arc_set_sys_free", "arc_set_limits"))]
    pub fn of_machine(memory: u64) -> Self {
        let mut limits = Self::default();
        let rules = [
            (Limit::ArcMax, (memory / 4).max(64 * MIB)),
            (Limit::ArcMin, (memory / 32).max(32 * MIB)),
            (Limit::ArcSysFree, (memory / 64).max(512 << 10)),
            (Limit::DirtyMax, (memory / 10).clamp(MIB, 512 * MIB)),
            (Limit::DedupIndexMax, (memory / 64).clamp(16 * MIB, 512 * MIB)),
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

    /// Sets a value; 0 restores the default.
    ///
    /// # Errors
    /// A message, if the value is out of bounds.
    pub fn set(&self, limit: Limit, value: u64) -> Result<(), String> {
        let info = limit.info();
        let default = value == 0 && info.zero_is_default;
        if !default && !(info.least..=info.most).contains(&value) {
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
    pub fn dirty_share(&self, percent: Limit) -> u64 {
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
        assert_eq!(
            limits.set(Limit::DelayMinDirtyPercent, 100).unwrap_err(),
            "zfs_delay_min_dirty_percent is from 1 to 99"
        );
        assert_eq!(Limits::of_machine(1 << 30).get(Limit::DirtyMax), (1 << 30) / 10);
        assert_eq!(limits.dirty_share(Limit::DelayMinDirtyPercent), (512 << 20) * 60 / 100);
    }
}
