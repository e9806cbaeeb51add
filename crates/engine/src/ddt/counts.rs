//! Counters of look-ups in a table, as OpenZFS has them in `zfs/POOL/ddt_stats_CHECKSUM`.
//!
//! Differs from OpenZFS: a key that the index says no ZAP has counts as a look-up in the ZAPs that found nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::ChecksumType;

use super::log_sync::LogSides;
use super::stored::Stored;
use super::write::Tables;

/// The checksums that tables can have.
#[doc(alias = "DDT_CHECKSUM_VALID")]
const CHECKSUMS: [ChecksumType; 5] = [
    ChecksumType::Sha256,
    ChecksumType::Sha512,
    ChecksumType::Skein,
    ChecksumType::Edonr,
    ChecksumType::Blake3,
];

/// Counters of the look-ups of one table since the pool was opened.
#[doc(alias = "ddt_kstats_t")]
#[derive(Debug, Default)]
pub(super) struct DdtCounts {
    /// Look-ups.
    all: AtomicU64,
    /// Lookups of entries that were in use in the txg already.
    live_hit: AtomicU64,
    /// Those that came while the entry was read for an earlier one.
    live_wait: AtomicU64,
    log_active: AtomicU64,
    log_flushing: AtomicU64,
    log_miss: AtomicU64,
    stored_hit: AtomicU64,
    stored_miss: AtomicU64,
}

/// Counters by checksum.
#[derive(Debug, Default)]
pub(super) struct AllCounts([DdtCounts; CHECKSUMS.len()]);

/// A counter: its name, whether it has 32 bits, and its value.
pub(crate) type Counted = (&'static str, bool, u64);

fn bump(counter: &AtomicU64, by: usize) {
    counter.fetch_add(u64::try_from(by).unwrap_or(0), Ordering::Relaxed);
}

impl AllCounts {
    fn of(&self, checksum: ChecksumType) -> Option<&DdtCounts> {
        CHECKSUMS.iter().position(|one| *one == checksum).and_then(|at| self.0.get(at))
    }

    /// A block is looked up; its entry is in use already, or not.
    pub(super) fn asked(&self, checksum: ChecksumType, is_live: bool) {
        if let Some(counts) = self.of(checksum) {
            bump(&counts.all, 1);
            bump(&counts.live_hit, usize::from(is_live));
        }
    }

    /// So many look-ups came while their entries were read for earlier ones.
    pub(super) fn waited(&self, checksum: ChecksumType, count: usize) {
        if let Some(counts) = self.of(checksum) {
            bump(&counts.live_hit, count);
            bump(&counts.live_wait, count);
        }
    }

    /// An entry was found in the active or flushing side of a log, in a ZAP, or nowhere.
    pub(super) fn found(
        &self,
        checksum: ChecksumType,
        stored: Option<&Stored>,
        is_active: bool,
        has_log: bool,
    ) {
        let Some(counts) = self.of(checksum) else { return };
        let is_logged = stored.is_some_and(|stored| stored.logged);
        if is_logged {
            return bump(if is_active { &counts.log_active } else { &counts.log_flushing }, 1);
        }
        bump(&counts.log_miss, usize::from(has_log));
        bump(if stored.is_some() { &counts.stored_hit } else { &counts.stored_miss }, 1);
    }
}

impl Tables {
    /// The counters of each checksum that a table can have: the checksum's name, and its counters in OpenZFS's order.
    #[doc(alias = "ddt_kstat_update")]
    pub(crate) fn counters(&self) -> Vec<(&'static str, Vec<Counted>)> {
        let all = self.all.lock();
        let of = |(checksum, counts): (ChecksumType, &DdtCounts)| {
            let sides = all.get(&checksum.raw()).and_then(|table| table.sides.as_ref());
            (checksum.name(), listed(counts, sides))
        };
        CHECKSUMS.into_iter().zip(&self.counts.0).map(of).collect()
    }
}

fn listed(counts: &DdtCounts, sides: Option<&LogSides>) -> Vec<Counted> {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (active, flushing) = (get(&counts.log_active), get(&counts.log_flushing));
    let (all, live, wait) = (get(&counts.all), get(&counts.live_hit), get(&counts.live_wait));
    let (stored, new) = (get(&counts.stored_hit), get(&counts.stored_miss));
    let entries = |side: usize| {
        let entries = sides.and_then(|sides| sides.objects().get(side).map(|log| log.entries.len()));
        entries.and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
    };
    let rates = sides.map(|sides| sides.rates).unwrap_or_default();
    vec![
        ("lookup", false, all),
        ("lookup_new", false, new),
        ("lookup_existing", false, wait + active + flushing + stored),
        ("lookup_live_hit", false, live),
        ("lookup_live_wait", false, wait),
        ("lookup_live_miss", false, all.saturating_sub(live)),
        ("lookup_log_hit", false, active + flushing),
        ("lookup_log_active_hit", false, active),
        ("lookup_log_flushing_hit", false, flushing),
        ("lookup_log_miss", false, get(&counts.log_miss)),
        ("lookup_stored_hit", false, stored),
        ("lookup_stored_miss", false, new),
        ("log_active_entries", false, entries(0)),
        ("log_flushing_entries", false, entries(1)),
        ("log_ingest_rate", true, rates.ingest),
        ("log_flush_rate", true, rates.flush),
        ("log_flush_time_rate", true, rates.millis),
    ]
}
