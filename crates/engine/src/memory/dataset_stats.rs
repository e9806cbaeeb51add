//! Counters of a dataset that is open for writing, and those of intent logs, which exist for all datasets together, too.
//!
//! Names and order of the kstats: `zil_stats`, zil.c, and `dataset_kstats.c`, OpenZFS 2.4.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter of intent logs.
#[doc(alias = "zil_kstat_values_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZilStat {
    /// Commits.
    Commits,
    /// Commits that wrote; others waited for one that covered them.
    Writers,
    /// Commits whose records could not be written to the log.
    Errors,
    /// Commits that waited for a txg because changes had no records.
    Stalls,
    /// Commits that waited for a txg because the log is suspended, or not in use.
    Suspended,
    /// Always 0: a commit does not return before its changes are safe.
    #[allow(dead_code, reason = "the kstat has it")]
    Crashed,
    /// Records written.
    Itxs,
    /// Write records that point to data at their final location.
    Indirect,
    /// Bytes of those data.
    IndirectBytes,
    /// Write records with data that were copied when the write was recorded.
    Copied,
    /// Bytes of those data.
    CopiedBytes,
    /// Write records with data that were read when the log was written.
    NeedCopy,
    /// Bytes of those data.
    NeedCopyBytes,
    /// Blocks on vdevs of the normal class.
    Normal,
    /// Bytes of headers and records in them.
    NormalBytes,
    /// Bytes written of them.
    NormalWrite,
    /// Bytes allocated for them.
    NormalAlloc,
    /// Blocks on log vdevs.
    Slog,
    /// Bytes of headers and records in them.
    SlogBytes,
    /// Bytes written of them.
    SlogWrite,
    /// Bytes allocated for them.
    SlogAlloc,
}

/// Names of the kstats, in the order of [`ZilStat`].
const NAMES: [&str; 21] = [
    "zil_commit_count",
    "zil_commit_writer_count",
    "zil_commit_error_count",
    "zil_commit_stall_count",
    "zil_commit_suspend_count",
    "zil_commit_crash_count",
    "zil_itx_count",
    "zil_itx_indirect_count",
    "zil_itx_indirect_bytes",
    "zil_itx_copied_count",
    "zil_itx_copied_bytes",
    "zil_itx_needcopy_count",
    "zil_itx_needcopy_bytes",
    "zil_itx_metaslab_normal_count",
    "zil_itx_metaslab_normal_bytes",
    "zil_itx_metaslab_normal_write",
    "zil_itx_metaslab_normal_alloc",
    "zil_itx_metaslab_slog_count",
    "zil_itx_metaslab_slog_bytes",
    "zil_itx_metaslab_slog_write",
    "zil_itx_metaslab_slog_alloc",
];

/// The counters of one log, or of all.
#[derive(Debug, Default)]
pub struct ZilStats([AtomicU64; NAMES.len()]);

impl ZilStats {
    /// Adds to a counter.
    pub(crate) fn add(&self, of: ZilStat, count: u64) {
        #[expect(clippy::indexing_slicing, reason = "one for each")]
        self.0[of as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// All counters by name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0.iter().map(|cell| cell.load(Ordering::Relaxed)))
    }
}

/// The counters of a dataset that is open for writing.
#[doc(alias = "dataset_kstats_t")]
#[derive(Debug, Default)]
pub struct DatasetStats {
    /// Write requests.
    pub writes: AtomicU64,
    /// Bytes written.
    pub nwritten: AtomicU64,
    /// Read requests.
    pub reads: AtomicU64,
    /// Bytes read.
    pub nread: AtomicU64,
    /// Files whose last name was removed.
    pub nunlinks: AtomicU64,
    /// Unlinked files that are freed.
    pub nunlinked: AtomicU64,
    /// Its intent log.
    pub zil: ZilStats,
}

impl DatasetStats {
    /// Counts a read request.
    pub fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.nread.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a write request.
    pub fn written(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.nwritten.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All counters by the names of their kstats, in OpenZFS's order.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("writes", &self.writes),
            ("nwritten", &self.nwritten),
            ("reads", &self.reads),
            ("nread", &self.nread),
            ("nunlinks", &self.nunlinks),
            ("nunlinked", &self.nunlinked),
        ];
        own.map(|(name, cell)| (name, cell.load(Ordering::Relaxed))).into_iter().chain(self.zil.all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_the_order_of_counters() {
        let stats = ZilStats::default();
        stats.add(ZilStat::Crashed, 1);
        stats.add(ZilStat::NeedCopyBytes, 7);
        stats.add(ZilStat::SlogAlloc, 3);
        let set: Vec<_> = stats.all().filter(|(_, n)| *n > 0).collect();
        assert_eq!(
            set,
            [
                ("zil_commit_crash_count", 1),
                ("zil_itx_needcopy_bytes", 7),
                ("zil_itx_metaslab_slog_alloc", 3)
            ]
        );
        assert_eq!(ZilStat::SlogAlloc as usize + 1, NAMES.len());
    }
}
