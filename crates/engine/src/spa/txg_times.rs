//! Notes which txg was written when, for scrubs of a range of dates.
//!
//! Every `spa_note_txg_time` seconds the txg that is being written is noted in memory; every `spa_flush_txg_time` seconds,
//! and at export, the notes are written to the MOS, with a txg that changes something else. After a crash the notes since
//! then are missing: a scrub of these dates begins with an older txg, and reads more.

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::time_log::{TimeLog, TimeRing};
use parking_lot::Mutex;

use super::Spa;
use super::activity::{Activity, SyncPoint};
use super::subjects::Scans;
use crate::dmu::Tx;
use crate::dsl::write::{MosTx, MosView};
use crate::error::Result;
use crate::memory::Limit;
use crate::zap::Value;

/// The notes, and when the last ones were made and written in this import: `spa_last_noted_txg_time` and kin.
#[derive(Debug, Default)]
struct Notes {
    log: TimeLog,
    noted_txg: u64,
    noted: u64,
    flushed: u64,
}

/// The activity.
#[derive(Debug, Default)]
pub(super) struct TxgTimes {
    /// `None` until they are needed first.
    notes: Mutex<Option<Notes>>,
}

/// Reads the log. A ring that cannot be read counts as empty: the log is advice.
#[doc(alias = "spa_load_txg_log_time")]
fn load(at: &MosView<'_>) -> TimeLog {
    let ring = |name: &str| {
        let value = at.zap_get(MOS_DIRECTORY_OBJECT, name).ok().flatten();
        value.and_then(|value| TimeRing::from_words(&value.ints).ok()).unwrap_or_default()
    };
    TimeLog {
        minutes: ring(mos::TXG_LOG_TIME_MINUTES),
        days: ring(mos::TXG_LOG_TIME_DAYS),
        months: ring(mos::TXG_LOG_TIME_MONTHS),
    }
}

fn store(at: &MosTx<'_>, log: &TimeLog) -> Result<()> {
    let rings = [
        (mos::TXG_LOG_TIME_MINUTES, &log.minutes),
        (mos::TXG_LOG_TIME_DAYS, &log.days),
        (mos::TXG_LOG_TIME_MONTHS, &log.months),
    ];
    rings
        .into_iter()
        .try_for_each(|(name, ring)| at.zap_set(MOS_DIRECTORY_OBJECT, name, Value::from(ring.to_words())))
}

impl TxgTimes {
    fn with<T>(&self, at: &MosView<'_>, work: impl FnOnce(&mut Notes) -> T) -> T {
        let is_new = self.notes.lock().is_none();
        let log = if is_new { load(at) } else { TimeLog::default() };
        work(self.notes.lock().get_or_insert_with(|| Notes { log, ..Notes::default() }))
    }

    /// Notes the txg if it is time, or at once, and writes the notes if it is time, or at once.
    #[doc(alias = "spa_sync_time_logger")]
    fn note(&self, spa: &Spa, tx: &Tx, at_once: bool) -> Result<()> {
        let at = spa.datasets.at(tx, spa);
        let now = spa.pool.env.now();
        let is_due = |last: u64, limit| at_once || now >= last.saturating_add(spa.limits().get(limit));
        let changed = at_once || spa.mos.is_dirty(tx.txg());
        let log = self.with(&at, |notes| {
            if tx.txg() > notes.noted_txg && is_due(notes.noted, Limit::NoteTxgTime) {
                notes.log.add(now, tx.txg());
                (notes.noted, notes.noted_txg) = (now, tx.txg());
            }
            let flushes = changed && is_due(notes.flushed, Limit::FlushTxgTime);
            flushes.then(|| {
                notes.flushed = now;
                notes.log.clone()
            })
        });
        let stored = log.map_or(Ok(()), |log| store(&at, &log));
        // The notes are advice: a MOS directory that cannot be read must not stop the pool for them.
        if let Err(e) = stored.as_ref().map_err(|e| e.to_string()) {
            spa.reports()
                .report_pool("ereport.fs.zfs.data", &format!("the times of txgs were not written: {e}"));
        }
        Ok(())
    }
}

impl Activity for TxgTimes {
    fn sync(&self, spa: &Spa, tx: &Tx, moment: SyncPoint) -> Result<()> {
        if moment == SyncPoint::AfterTasks { self.note(spa, tx, false) } else { Ok(()) }
    }
}

impl Scans<'_> {
    /// Writes the notes at export (syncing context), if any txg was noted since the import.
    #[doc(alias = "spa_unload_sync_time_logger")]
    pub(super) fn note_last_txg(self, tx: &Tx) -> Result<()> {
        let noted = self.spa.times.notes.lock().as_ref().is_some_and(|notes| notes.noted_txg != 0);
        if noted { self.spa.times.note(self.spa, tx, true) } else { Ok(()) }
    }

    /// The txgs that bound the blocks written between two times, in seconds since 1970, as far as the notes tell; a time of
    /// 0 is none. Returns the txg after which such blocks are born, and the last one in which they are; 0: up to now.
    pub(super) fn txgs_between(self, at: &MosView<'_>, (from, until): (u64, u64)) -> (u64, u64) {
        self.spa.times.with(at, |notes| {
            let or_none = |time: u64, find: &dyn Fn(u64) -> u64| if time == 0 { 0 } else { find(time) };
            (or_none(from, &|t| notes.log.txg_before(t)), or_none(until, &|t| notes.log.txg_after(t)))
        })
    }
}
