//! Counters of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

use super::dataset_stats::ZilStats;

/// The purpose of a read, and the kind of block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadPurpose {
    /// Read ahead: no request waits for it yet.
    pub prefetch: bool,
    /// An indirect block, a dnode, a directory and the like; not the content of a file or volume.
    pub metadata: bool,
    /// The block passes through the system's page cache, which holds the bytes from then on.
    pub paged: bool,
}

/// One counter for each purpose.
#[derive(Debug, Default)]
pub struct ByPurpose([AtomicU64; 4]);

impl ByPurpose {
    fn cell(&self, of: ReadPurpose) -> &AtomicU64 {
        let [data, metadata, ahead, metadata_ahead] = &self.0;
        match (of.prefetch, of.metadata) {
            (false, false) => data,
            (false, true) => metadata,
            (true, false) => ahead,
            (true, true) => metadata_ahead,
        }
    }

    /// Counts one event.
    pub fn count(&self, of: ReadPurpose) {
        self.cell(of).fetch_add(1, Ordering::Relaxed);
    }

    /// The count of one purpose.
    pub fn get(&self, of: ReadPurpose) -> u64 {
        self.cell(of).load(Ordering::Relaxed)
    }

    /// The count of all purposes.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).sum()
    }
}

/// A counter of cache devices, under its kstat's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum L2 {
    /// Reads that a cache device was asked for.
    Hits,
    /// Reads of blocks that no cache device has, while there are cache devices.
    Misses,
    /// Present bytes of blocks that were read ahead and not used.
    PrefetchAsize,
    /// Present bytes of blocks seen once.
    MruAsize,
    /// Present bytes of blocks seen more than once.
    MfuAsize,
    /// Present bytes of the content of files and volumes.
    DataAsize,
    /// Present bytes of other blocks.
    MetadataAsize,
    /// Rounds of writing.
    Feeds,
    /// Always 0: reads go on while a device is written.
    RwClash,
    /// Bytes read.
    ReadBytes,
    /// Bytes written.
    WriteBytes,
    /// Rounds that had something to write.
    WritesSent,
    /// Finished rounds among them.
    WritesDone,
    /// Failed rounds among them.
    WritesError,
    /// Always 0: no lock is held across a round.
    WritesLockRetry,
    /// Always 0.
    EvictLockRetry,
    /// Blocks that were overwritten on the device while memory had them.
    EvictReading,
    /// Always 0.
    EvictL1cached,
    /// Blocks that were freed while they were being written.
    FreeOnWrite,
    /// Rounds that were put off because the headers take all the memory they may.
    AbortLowmem,
    /// Blocks that had the wrong bytes.
    CksumBad,
    /// Reads that failed.
    IoError,
    /// Present bytes of blocks, decompressed.
    Size,
    /// Present bytes of blocks, on the devices.
    Asize,
    /// Bytes of memory for the headers.
    HdrSize,
    /// Log blocks written.
    LogBlkWrites,
    /// Bytes of the last log block written.
    LogBlkAvgAsize,
    /// Present bytes of log blocks.
    LogBlkAsize,
    /// Present log blocks.
    LogBlkCount,
    /// Bytes of blocks for each byte of log block, of the last one written.
    DataToMetaRatio,
    /// Rebuilds that restored blocks.
    RebuildSuccess,
    /// Headers that no rebuild can begin from.
    RebuildUnsupported,
    /// Log blocks that could not be read.
    RebuildIoErrors,
    /// Headers that could not be read.
    RebuildDhErrors,
    /// Log blocks with wrong checksums.
    RebuildCksumLbErrors,
    /// Rebuilds ended by the limit of memory for headers.
    RebuildLowmem,
    /// Restored bytes, decompressed.
    RebuildSize,
    /// Restored bytes, on the devices.
    RebuildAsize,
    /// Restored blocks.
    RebuildBufs,
    /// Blocks that were not restored because they were there.
    RebuildBufsPrecached,
    /// Log blocks restored.
    RebuildLogBlks,
}

/// The counters of cache devices and their kstats, in OpenZFS's order; [`L2`] has the same order.
pub(crate) const L2_NAMES: [&str; 41] = [
    "l2_hits",
    "l2_misses",
    "l2_prefetch_asize",
    "l2_mru_asize",
    "l2_mfu_asize",
    "l2_bufc_data_asize",
    "l2_bufc_metadata_asize",
    "l2_feeds",
    "l2_rw_clash",
    "l2_read_bytes",
    "l2_write_bytes",
    "l2_writes_sent",
    "l2_writes_done",
    "l2_writes_error",
    "l2_writes_lock_retry",
    "l2_evict_lock_retry",
    "l2_evict_reading",
    "l2_evict_l1cached",
    "l2_free_on_write",
    "l2_abort_lowmem",
    "l2_cksum_bad",
    "l2_io_error",
    "l2_size",
    "l2_asize",
    "l2_hdr_size",
    "l2_log_blk_writes",
    "l2_log_blk_avg_asize",
    "l2_log_blk_asize",
    "l2_log_blk_count",
    "l2_data_to_meta_ratio",
    "l2_rebuild_success",
    "l2_rebuild_unsupported",
    "l2_rebuild_io_errors",
    "l2_rebuild_dh_errors",
    "l2_rebuild_cksum_lb_errors",
    "l2_rebuild_lowmem",
    "l2_rebuild_size",
    "l2_rebuild_asize",
    "l2_rebuild_bufs",
    "l2_rebuild_bufs_precached",
    "l2_rebuild_log_blks",
];

/// The counters of the cache devices of all pools.
#[derive(Debug)]
pub struct L2Stats([AtomicU64; L2_NAMES.len()]);

impl Default for L2Stats {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl L2Stats {
    fn cell(&self, of: L2) -> &AtomicU64 {
        #[expect(clippy::indexing_slicing, reason = "one for each")]
        &self.0[of as usize]
    }

    /// Adds to a counter.
    pub(crate) fn add(&self, of: L2, count: u64) {
        self.cell(of).fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts from the counter of something present.
    pub(crate) fn sub(&self, of: L2, count: u64) {
        self.cell(of).fetch_sub(count, Ordering::Relaxed);
    }

    /// Sets a counter.
    pub(crate) fn set(&self, of: L2, value: u64) {
        self.cell(of).store(value, Ordering::Relaxed);
    }

    /// The value of a counter.
    pub fn get(&self, of: L2) -> u64 {
        self.cell(of).load(Ordering::Relaxed)
    }

    /// All counters by name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        L2_NAMES.into_iter().zip(self.0.iter().map(|cell| cell.load(Ordering::Relaxed)))
    }
}

/// Counters since the start of the process, of all pools.
#[derive(Debug, Default)]
pub struct ArcStats {
    /// Reads served from memory.
    pub hits: ByPurpose,
    /// Reads that joined one in progress.
    pub io_hits: ByPurpose,
    /// Reads that went to a device.
    pub misses: ByPurpose,
    /// Blocks that were read ahead and then requested.
    pub prefetch_used: AtomicU64,
    /// Blocks of [`ArcStats::prefetch_used`] whose read was still in progress.
    pub prefetch_joined: AtomicU64,
    /// Cache devices.
    pub second: L2Stats,
    /// Intent logs.
    pub zil: ZilStats,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_the_order_of_counters() {
        assert_eq!(L2::RebuildLogBlks as usize + 1, L2_NAMES.len());
        assert_eq!(L2_NAMES[L2::CksumBad as usize], "l2_cksum_bad");
        assert_eq!(L2_NAMES[L2::HdrSize as usize], "l2_hdr_size");
        assert_eq!(L2_NAMES[L2::DataToMetaRatio as usize], "l2_data_to_meta_ratio");
    }
}
