//! Decisions without I/O and without locks: which metaslab, which place in it, when to condense, how much to flush.

use ondisk::space_map::SpaceMapPhys;
use stdx::SizedRanges;

/// Buckets of a space map's histogram.
const BUCKETS: u32 = 32;
/// A metaslab whose longest free piece is shorter than this is searched by size.
#[doc(alias = "metaslab_df_alloc_threshold")]
const DF_THRESHOLD: u64 = 128 << 10;
/// So is one with less free than this, in percent.
#[doc(alias = "metaslab_df_free_pct")]
const DF_FREE_PERCENT: u64 = 4;
/// How far from the cursor a search by offset goes, in bytes.
#[doc(alias = "metaslab_df_max_search")]
const DF_MAX_SEARCH: u64 = 16 << 20;
/// But so many pieces are looked at in any case.
#[doc(alias = "metaslab_min_search_count")]
const DF_MIN_COUNT: u32 = 100;
/// A map is condensed when it has so many percent of its condensed size.
#[doc(alias = "zfs_condense_pct")]
const CONDENSE_PERCENT: u64 = 200;
/// And has more than so many blocks.
#[doc(alias = "zfs_metaslab_condense_block_threshold")]
const CONDENSE_BLOCKS: u64 = 4;

/// How good a metaslab is to allocate from: the size of its longest free pieces as a power of two, then how many of
/// them there are. 0: nothing is free.
#[doc(alias = "metaslab_segment_weight")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Weight(u64);

impl Weight {
    fn new(index: u32, count: u64) -> Self {
        Self(u64::from(index + 1) << 48 | count.min((1 << 48) - 1))
    }

    /// From the free ranges of a loaded metaslab; sizes above the largest bucket of a map's histogram count
    /// as that bucket.
    pub(crate) fn of(free: &SizedRanges, ashift: u32) -> Self {
        let last = BUCKETS + ashift - 1;
        let mut count = 0_u64;
        for (i, &n) in (0..64_u32).zip(free.histogram()).rev() {
            count = count.saturating_mul(2).saturating_add(n);
            if i <= last && count != 0 {
                return Self::new(i, count);
            }
        }
        Self::default()
    }

    /// For a metaslab that is not loaded, from its map's histogram, less space that may not be used yet.
    pub(crate) fn of_map(histogram: &[u64; 32], deferred: &[u64; 32], ashift: u32) -> Self {
        for (i, (&n, &not_yet)) in (0..BUCKETS).zip(histogram.iter().zip(deferred)).rev() {
            if n > not_yet {
                return Self::new(i + ashift, n - not_yet);
            }
        }
        Self::default()
    }

    /// For a metaslab of which only the number of free bytes is known.
    pub(crate) fn of_space(free: u64) -> Self {
        free.checked_ilog2().map_or(Self::default(), |index| Self::new(index, 1))
    }

    /// Power of two of its longest pieces.
    pub(crate) fn index(self) -> Option<u32> {
        u32::try_from(self.0 >> 48).ok()?.checked_sub(1)
    }

    /// No piece can be as long as this.
    pub(crate) fn limit(self) -> u64 {
        self.index().map_or(0, |i| 1_u64.checked_shl(i + 1).unwrap_or(u64::MAX))
    }

    /// As a word whose order is the weight's.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// From [`Weight::word`].
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }
}

/// Where in `free` to put `size` bytes (not 0). Blocks of like alignment lie together and follow one another: `cursor` is
/// where the last of them ended. From a nearly full or much fragmented metaslab, the best fitting piece is
/// returned.
#[doc(alias = "metaslab_df_alloc")]
pub(crate) fn dynamic_fit(free: &SizedRanges, cursor: &mut u64, size: u64, capacity: u64) -> Option<u64> {
    let roomy = free.covered() >= capacity / 100 * DF_FREE_PERCENT && free.largest() >= DF_THRESHOLD;
    let near = if roomy { first_fit(free, *cursor, size) } else { None };
    let found = near.or_else(|| free.best_fit(size).map(|(start, _)| start))?;
    *cursor = found + size;
    Some(found)
}

fn first_fit(free: &SizedRanges, cursor: u64, size: u64) -> Option<u64> {
    let mut first = None;
    for (count, (start, end)) in (0_u32..).zip(free.iter_from(cursor)) {
        let first = *first.get_or_insert(start);
        if start - first > DF_MAX_SEARCH && count >= DF_MIN_COUNT {
            return None;
        }
        if end - start >= size {
            return Some(start);
        }
    }
    None
}

/// Which cursor serves blocks of `size` bytes: one for each power of two that divides it.
pub(crate) fn cursor_of(size: u64) -> usize {
    usize::try_from(size.trailing_zeros()).unwrap_or(0).min(63)
}

/// Adds a histogram of ranges to a map's, whose first bucket is one unit of the map.
#[doc(alias = "space_map_histogram_add")]
pub(crate) fn add_histogram(head: &mut [u64; 32], of: &[u64; 64], shift: u32) {
    let from = usize::try_from(shift).unwrap_or(0);
    for (i, &n) in of.iter().enumerate().skip(from) {
        let at = i - from;
        let last = head.len() - 1;
        if let Some(bucket) = head.get_mut(at.min(last)) {
            // A range of several times the last bucket's size counts as so many ranges.
            let many =
                n.checked_shl(u32::try_from(at.saturating_sub(last)).unwrap_or(63)).unwrap_or(u64::MAX);
            *bucket = bucket.saturating_add(many);
        }
    }
}

/// Histogram of ranges by powers of two.
pub(crate) fn histogram_of(ranges: impl Iterator<Item = (u64, u64)>) -> [u64; 64] {
    let mut histogram = [0; 64];
    for (start, end) in ranges {
        let at = end.saturating_sub(start).checked_ilog2().and_then(|at| usize::try_from(at).ok());
        if let Some(bucket) = at.and_then(|at| histogram.get_mut(at)) {
            *bucket += 1;
        }
    }
    histogram
}

/// Bytes of a condensed map: one that describes just `free`.
#[doc(alias = "space_map_estimate_optimal_size")]
pub(crate) fn condensed_size(free: &SizedRanges, shift: u32, two_words: bool, block_size: u64) -> u64 {
    let mut size = 0_u64;
    for (i, &n) in (0_u32..).zip(free.histogram()) {
        // Runs of up to 2^15 units take one word; of up to 2^36, two.
        let above = i.saturating_sub(15 + shift - 1);
        let bytes = match (above, two_words) {
            (0, _) => 8,
            (_, true) => 16 << i.saturating_sub(36 + shift - 1).min(32),
            (_, false) => 8 << above.min(32),
        };
        size = size.saturating_add(n.saturating_mul(bytes));
    }
    match two_words {
        true => size.saturating_add((size / block_size.max(1) + 1) * 8),
        false => size,
    }
}

/// Whether a map with that head is worth condensing; `condensed` is its size afterwards.
#[doc(alias = "metaslab_should_condense")]
pub(crate) fn should_condense(head: &SpaceMapPhys, condensed: u64, record: u64, nothing_free: bool) -> bool {
    let worth = head.length >= condensed.saturating_mul(CONDENSE_PERCENT) / 100;
    nothing_free && head.length > record || worth && head.length > CONDENSE_BLOCKS * record
}

/// Blocks that the logs may have for each metaslab with changes, in percent.
#[doc(alias = "zfs_unflushed_log_block_pct")]
const LOG_BLOCKS_PERCENT: u64 = 400;
/// Blocks that the logs may have at most.
#[doc(alias = "zfs_unflushed_log_block_max")]
const LOG_BLOCKS_MAX: u64 = 1 << 17;
/// Logs from which the next one's length is guessed.
#[doc(alias = "zfs_max_log_walking")]
const LOG_GUESS: usize = 5;

/// Sizes that tests make smaller, to get everywhere with little.
#[derive(Debug, Clone, Copy)]
pub struct MetaslabLimits {
    /// Block of a metaslab's map that is appended to in every txg.
    #[doc(alias = "zfs_metaslab_sm_blksz_no_log")]
    pub classic_block: u64,
    /// Block of a map that is written now and then, and of a log.
    #[doc(alias = "zfs_metaslab_sm_blksz_with_log")]
    pub logged_block: u64,
    /// Blocks that the logs may have in any case.
    #[doc(alias = "zfs_unflushed_log_block_min")]
    pub log_blocks: u64,
    /// Logs that there may be.
    #[doc(alias = "zfs_unflushed_log_txg_max")]
    pub logs: u64,
    /// Ranges that the changes of all metaslabs since their last flush may have.
    #[doc(alias = "zfs_unflushed_max_mem_amt")]
    pub unflushed_ranges: u64,
}

impl Default for MetaslabLimits {
    fn default() -> Self {
        Self {
            classic_block: 16 << 10,
            logged_block: 128 << 10,
            log_blocks: 1000,
            logs: 1000,
            // Some 32 MiB.
            unflushed_ranges: 1 << 19,
        }
    }
}

/// How many metaslabs to flush in this txg, so that the logs stay within their limits if later txgs are like the last
/// ones. `rows` are the logs, oldest first: blocks, and metaslabs that were flushed last in that txg and have changed.
#[doc(alias = "spa_estimate_metaslabs_to_flush")]
pub(crate) fn metaslabs_to_flush(rows: &[(u64, u64)], limits: &MetaslabLimits) -> u64 {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let guess = rows.len().clamp(1, LOG_GUESS);
    let incoming = rows.iter().rev().take(guess).map(|row| row.0).sum::<u64>().div_ceil(count(guess));
    let dirty: u64 = rows.iter().map(|row| row.1).sum();
    let limit = (dirty * LOG_BLOCKS_PERCENT / 100).max(limits.log_blocks).min(LOG_BLOCKS_MAX);
    let mut blocks = signed(limit) - rows.iter().map(|row| signed(row.0)).sum::<i64>() - signed(incoming);
    let mut txgs = signed(limits.logs) - signed(count(rows.len()));
    let (mut ahead, mut flushes, mut most) = (1, 0, 1);
    for &(gained, dirty) in rows {
        if blocks >= 0 && txgs >= 0 {
            let until = blocks.checked_div(signed(incoming)).unwrap_or(i64::MAX - 1);
            let skip = txgs.min(until) + 1;
            blocks -= skip.saturating_mul(signed(incoming));
            txgs -= skip;
            ahead += skip.unsigned_abs();
        }
        blocks += signed(gained);
        txgs += 1;
        flushes += dirty;
        most = most.max(flushes.div_ceil(ahead));
    }
    most
}

/// Size of a metaslab, as a shift, for a new vdev of `asize` bytes: 16 to 200 metaslabs of 16 MiB to 16 GiB,
/// 512 MiB where that results in such a number.
#[doc(alias = "vdev_metaslab_set_size")]
pub(crate) fn metaslab_shift(asize: u64) -> u32 {
    metaslab_shift_of(asize, LEAST_METASLABS)
}

/// Least number of metaslabs of a new vdev.
#[doc(alias = "zfs_vdev_min_ms_count")]
const LEAST_METASLABS: u64 = 16;

/// As [`metaslab_shift`], with another least number of metaslabs.
pub(crate) fn metaslab_shift_of(asize: u64, least: u64) -> u32 {
    const MIN: u32 = 24;
    const MAX: u32 = 34;
    const DEFAULT: u32 = 29;
    let of = |count: u64| (asize / count).checked_ilog2().map_or(0, |at| at + 1);
    let shift = match asize >> DEFAULT {
        count if count < least => of(least.max(1)),
        ..=200 => DEFAULT,
        _ => of(200),
    };
    match shift {
        ..MIN => MIN,
        MIN..=MAX => shift,
        _ if asize >> MAX > 1 << 17 => of(1 << 17),
        _ => MAX,
    }
}
